/* copy.cu - what memory can do: the yardstick of `rmsnorm bench`. Short blocks that live for one shot, 16-byte words.
 *
 * Reads READS streams, writes WRITES streams of the same length; what is read all goes into what is written, so that
 * nothing can be left out.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "params.h"

#include "device.h"

template <int READS, int WRITES, int WORDS> RN_DEVICE void rn_copy_words(const rn_cuda_copy &p) {
  rn_wait_for_previous();
  rn_let_next_start();
  const int64_t first = rn_block() * rn_threads_of_block() * WORDS + rn_thread();
  rn_words4 q[WORDS];
  RN_UNROLL for (int k = 0; k < WORDS; k++) {
    const int64_t i = first + k * rn_threads_of_block();
    q[k] = {{0, 0, 0, 0}};
    RN_UNROLL for (int r = 0; r < READS; r++) {
      if (i >= p.words) continue;
      const rn_words4 v = rn_stream_load16((const char *)p.from[r] + 16 * i);
      RN_UNROLL for (int w = 0; w < 4; w++) q[k].w[w] ^= v.w[w];
    }
  }
  RN_UNROLL for (int k = 0; k < WORDS; k++) {
    const int64_t i = first + k * rn_threads_of_block();
    RN_UNROLL for (int w = 0; w < WRITES; w++) if (i < p.words) rn_stream_store16((char *)p.to[w] + 16 * i, q[k]);
  }
}

/* X(reads, writes, words): streams in, streams out, 16-byte words a thread. Blocks of any size up to 1024. */
#define RN_COPY_SHAPE(X, reads, writes) X(reads, writes, 1) X(reads, writes, 2) X(reads, writes, 4)
#define RN_COPY_KERNEL(reads, writes, words)                                                                           \
  RN_KERNEL(rn_copy_##reads##_##writes##_##words, rn_cuda_copy, 1024) {                                                \
    rn_copy_words<reads, writes, words>(p);                                                                            \
  }
RN_COPY_SHAPE(RN_COPY_KERNEL, 1, 1)
RN_COPY_SHAPE(RN_COPY_KERNEL, 2, 1)
RN_COPY_SHAPE(RN_COPY_KERNEL, 2, 2)
RN_COPY_SHAPE(RN_COPY_KERNEL, 3, 1)
