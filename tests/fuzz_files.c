/* fuzz_files.c - libFuzzer target: any bytes as a file. Everything the index offers is loaded; the sanitizers judge.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Iinclude -Icli tests/fuzz_files.c \
 *     cli/files*.c cli/json.c -L BUILD -lrmsnorm -o fuzz_files && ./fuzz_files -max_len=4096 CORPUS
 *
 * or cmake -DRMSNORM_FUZZ=ON with clang. tests/test_files.c --corpus DIRECTORY writes valid files to start from.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "files.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static FILE *nowhere;
  rn_index index;
  rn_tensor tensor;
  if (nowhere == NULL) nowhere = fopen("/dev/null", "w");
  if (nowhere == NULL) abort();
  if (rn_index_read(&index, "fuzz", data, bytes, nowhere))
    for (size_t i = 0; i < index.count; i++) {
      if (!rn_index_load(&index, "fuzz", data, index.entries[i].name, RMSNORM_DTYPE_BF16, &tensor, nowhere)) continue;
      if (tensor.data == NULL || (size_t)tensor.count > bytes) abort();
      rn_tensor_free(&tensor);
    }
  rn_index_load(&index, "fuzz", data, index.count ? "no such name" : NULL, RMSNORM_DTYPE_NONE, &tensor, nowhere);
  rn_tensor_free(&tensor);
  rn_index_free(&index);
  return 0;
}
