/* test_abi.c - what a compiled program relies on: sizes and places in the structs, values of the enumerators, versions,
 * initialisers. A change that fails here breaks programs that are already linked (raise RMSNORM_ABI in CMakeLists.txt).
 *
 * This file is also compiled as C++ (test_abi_cpp), without cmocka: the header alone has to be good for both.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "rmsnorm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static void expect(int holds, const char *what, int line) {
  if (!holds) {
    fprintf(stderr, "test_abi.c:%d: %s does not hold\n", line, what);
    failures++;
  }
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

#define AT(type, field, place) EXPECT(offsetof(type, field) == (place))

static void test_layouts(void) {
  EXPECT(sizeof(rmsnorm_input_tensor) == 40);
  EXPECT(sizeof(rmsnorm_output_tensor) == 40);
  AT(rmsnorm_input_tensor, row_stride, 8);
  AT(rmsnorm_input_tensor, head_stride, 16);
  AT(rmsnorm_input_tensor, col_stride, 24);
  AT(rmsnorm_input_tensor, dtype, 32);
  AT(rmsnorm_input_tensor, reserved, 36);
  EXPECT(sizeof(rmsnorm_numerics) == 28);
  AT(rmsnorm_numerics, round_sum, 4);
  AT(rmsnorm_numerics, gate_place, 24);
  EXPECT(sizeof(rmsnorm_parallel) == 24);
  AT(rmsnorm_parallel, threads, 8);
  AT(rmsnorm_parallel, run, 16);
  EXPECT(sizeof(rmsnorm_launch) == 16);
  AT(rmsnorm_launch, multiprocessors, 4);
  AT(rmsnorm_launch, live_rows, 8);
  EXPECT(sizeof(rmsnorm_quant) == 88);
  AT(rmsnorm_quant, scale_max, 20);
  AT(rmsnorm_quant, scale, 24);
  AT(rmsnorm_quant, scale_stride, 40);
  AT(rmsnorm_quant, q, 48);

  EXPECT(sizeof(rmsnorm_forward_args) == 440);
  AT(rmsnorm_forward_args, rows, 8);
  AT(rmsnorm_forward_args, eps, 40);
  AT(rmsnorm_forward_args, numerics, 56);
  AT(rmsnorm_forward_args, weight_dtype, 84);
  AT(rmsnorm_forward_args, weight, 96);
  AT(rmsnorm_forward_args, x, 104);
  AT(rmsnorm_forward_args, y, 224);
  AT(rmsnorm_forward_args, rstd, 304);
  AT(rmsnorm_forward_args, quant, 320);
  AT(rmsnorm_forward_args, parallel, 408);
  AT(rmsnorm_forward_args, threads, 416);
  AT(rmsnorm_forward_args, impl, 424);
  AT(rmsnorm_forward_args, launch, 432);

  EXPECT(sizeof(rmsnorm_stats_args) == 216);
  AT(rmsnorm_stats_args, round_sum, 40);
  AT(rmsnorm_stats_args, x, 56);
  AT(rmsnorm_stats_args, sumsq, 176);
  AT(rmsnorm_stats_args, impl, 200);
  AT(rmsnorm_stats_args, launch, 208);

  EXPECT(sizeof(rmsnorm_backward_args) == 520);
  AT(rmsnorm_backward_args, numerics, 56);
  AT(rmsnorm_backward_args, weight, 96);
  AT(rmsnorm_backward_args, x, 104);
  AT(rmsnorm_backward_args, dy, 224);
  AT(rmsnorm_backward_args, rstd, 304);
  AT(rmsnorm_backward_args, sum_dtype, 328);
  AT(rmsnorm_backward_args, dx, 336);
  AT(rmsnorm_backward_args, dweight, 456);
  AT(rmsnorm_backward_args, workspace_bytes, 480);
  AT(rmsnorm_backward_args, impl, 504);
  AT(rmsnorm_backward_args, launch, 512);
}

static void test_values(void) {
  EXPECT(RMSNORM_OK == 0 && RMSNORM_ERROR_NULL == 10 && RMSNORM_ERROR_STRUCT_SIZE == 12 && RMSNORM_ERROR_SIZE == 14);
  EXPECT(RMSNORM_ERROR_STRIDE == 16 && RMSNORM_ERROR_COL_STRIDE == 18 && RMSNORM_ERROR_ALIGNMENT == 20);
  EXPECT(RMSNORM_ERROR_OVERLAP == 22 && RMSNORM_ERROR_ENUM == 24 && RMSNORM_ERROR_VALUE == 26);
  EXPECT(RMSNORM_ERROR_WORKSPACE == 28 && RMSNORM_ERROR_COMBINATION == 30 && RMSNORM_ERROR_UNSUPPORTED == 40);
  EXPECT(RMSNORM_ERROR_UNKNOWN_IMPL == 42 && RMSNORM_ERROR_DEVICE == 50 && RMSNORM_ERROR_BUFFER == 60);
  EXPECT(RMSNORM_DTYPE_NONE == 0 && RMSNORM_DTYPE_F32 == 1 && RMSNORM_DTYPE_F16 == 2 && RMSNORM_DTYPE_BF16 == 3);
  EXPECT(RMSNORM_DTYPE_F64 == 4 && RMSNORM_DTYPE_FP8_E4M3 == 8 && RMSNORM_DTYPE_FP8_E5M2 == 9);
  EXPECT(RMSNORM_DTYPE_INT8 == 10 && RMSNORM_DTYPE_E8M0 == 11);
  EXPECT(RMSNORM_ROUND_X == 1 && RMSNORM_ROUND_WEIGHT == 2 && RMSNORM_ROUND_PROMOTED == 3);
  EXPECT(RMSNORM_ROUND_STORED == 4);
  EXPECT(RMSNORM_DEVICE_CPU == 0 && RMSNORM_DEVICE_CUDA == 1 && RMSNORM_DEVICE_HIP == 2);
  EXPECT(RMSNORM_QUANT_TENSOR == 1 && RMSNORM_QUANT_ROW == 2 && RMSNORM_QUANT_BLOCK == 3 && RMSNORM_QUANT_MX == 4);
}

static void test_names(void) {
  static const struct {
    int dtype;
    size_t bytes;
    const char *name;
  } types[] = {{RMSNORM_DTYPE_F32, 4, "f32"},
               {RMSNORM_DTYPE_F16, 2, "f16"},
               {RMSNORM_DTYPE_BF16, 2, "bf16"},
               {RMSNORM_DTYPE_F64, 8, "f64"},
               {RMSNORM_DTYPE_FP8_E4M3, 1, "fp8_e4m3"},
               {RMSNORM_DTYPE_FP8_E5M2, 1, "fp8_e5m2"},
               {RMSNORM_DTYPE_INT8, 1, "int8"},
               {RMSNORM_DTYPE_E8M0, 1, "e8m0"},
               {RMSNORM_DTYPE_NONE, 0, "?"},
               {5, 0, "?"},
               {12, 0, "?"},
               {-1, 0, "?"}};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    EXPECT(rmsnorm_dtype_bytes(types[i].dtype) == types[i].bytes);
    EXPECT(strcmp(rmsnorm_dtype_name(types[i].dtype), types[i].name) == 0);
  }
  for (int status = -5; status < 100; status++)
    EXPECT(rmsnorm_status_string(status) != NULL && rmsnorm_status_string(status)[0] != 0);
  EXPECT(strncmp(rmsnorm_status_string(RMSNORM_ERROR_OVERLAP), "RMSNORM_ERROR_OVERLAP", 21) == 0);
  EXPECT(rmsnorm_last_error() != NULL && rmsnorm_last_error()[0] == 0);
}

static void test_versions(void) {
  char text[32];
  snprintf(text, sizeof text, "%d.%d.%d", RMSNORM_VERSION_MAJOR, RMSNORM_VERSION_MINOR, RMSNORM_VERSION_PATCH);
  EXPECT(strcmp(rmsnorm_version_string(), text) == 0);
  EXPECT(rmsnorm_version() == RMSNORM_VERSION);
#ifdef RN_TEST_VERSION
  EXPECT(strcmp(text, RN_TEST_VERSION) == 0); /* what CMake read */
#endif
}

static void test_initialisers(void) {
  rmsnorm_forward_args forward = RMSNORM_FORWARD_ARGS_INIT;
  rmsnorm_stats_args stats = RMSNORM_STATS_ARGS_INIT;
  rmsnorm_backward_args backward = RMSNORM_BACKWARD_ARGS_INIT;
  EXPECT(forward.struct_size == sizeof forward && forward.heads == 1 && forward.groups == 1);
  EXPECT(stats.struct_size == sizeof stats && stats.heads == 1 && stats.groups == 1);
  EXPECT(backward.struct_size == sizeof backward && backward.heads == 1 && backward.groups == 1);
  EXPECT(forward.eps != forward.eps && backward.eps != backward.eps);
  EXPECT(forward.x.data == NULL && forward.impl == NULL && forward.quant.granularity == RMSNORM_QUANT_NONE);
  float value = 0;
  rmsnorm_input_tensor in = rmsnorm_input_heads(&value, RMSNORM_DTYPE_F16, 7, 3);
  EXPECT(in.data == &value && in.row_stride == 7 && in.head_stride == 3 && in.col_stride == 1);
  EXPECT(in.dtype == RMSNORM_DTYPE_F16 && in.reserved == 0);
  rmsnorm_output_tensor out = rmsnorm_output(&value, RMSNORM_DTYPE_F32, -5);
  EXPECT(out.data == &value && out.row_stride == -5 && out.head_stride == 0 && out.col_stride == 1);
}

int main(void) {
  if (sizeof(void *) == 8) test_layouts();
  test_values();
  test_names();
  test_versions();
  test_initialisers();
  if (failures == 0) printf("test_abi: all hold\n");
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
