/* naive.h - plain loops as peers of the benchmark; see naive_loops.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_NAIVE_H
#define RN_NAIVE_H

#include <stdint.h>

typedef struct rn_naive {
  const void *x, *dy, *weight;
  void *residual, *y; /* y: dx in backward */
  int64_t cols;
  float eps;
} rn_naive;

/* Packed rows [first, last). dweight is not computed: a peer for dx alone. */
typedef void (*rn_naive_rows)(const rn_naive *n, int64_t first, int64_t last);

void rn_naive_forward_f32(const rn_naive *n, int64_t first, int64_t last);
void rn_naive_forward_bf16(const rn_naive *n, int64_t first, int64_t last);
void rn_naive_residual_f32(const rn_naive *n, int64_t first, int64_t last);
void rn_naive_residual_bf16(const rn_naive *n, int64_t first, int64_t last);
void rn_naive_backward_f32(const rn_naive *n, int64_t first, int64_t last);
void rn_naive_backward_bf16(const rn_naive *n, int64_t first, int64_t last);

void rn_naive_fast_forward_f32(const rn_naive *n, int64_t first, int64_t last);
void rn_naive_fast_forward_bf16(const rn_naive *n, int64_t first, int64_t last);
void rn_naive_fast_residual_f32(const rn_naive *n, int64_t first, int64_t last);
void rn_naive_fast_residual_bf16(const rn_naive *n, int64_t first, int64_t last);
void rn_naive_fast_backward_f32(const rn_naive *n, int64_t first, int64_t last);
void rn_naive_fast_backward_bf16(const rn_naive *n, int64_t first, int64_t last);

#endif /* RN_NAIVE_H */
