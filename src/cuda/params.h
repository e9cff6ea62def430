/* params.h - what the host hands to the kernels: one struct a kernel, passed by value.
 *
 * Valid as C11 and as CUDA C++. The general kernels take the problem as it is; the fast ones take what they need of it,
 * because constant memory that a launch touches first costs time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_PARAMS_H
#define RN_CUDA_PARAMS_H

#include "../internal.h"
#include "../order.h"

/* A tensor as rows of group_cols elements: row r = ((token * heads + head) * groups + group). */
typedef struct rn_cuda_view {
  char *data;
  int64_t row_bytes, head_bytes, group_bytes;
} rn_cuda_view;

/* general.cu: any problem at all. Up to RN_GENERAL_WARP_LANES lanes a row belongs to one warp, beyond to a block. */
enum {
  RN_GENERAL_WARP_LANES = 256,
  RN_GENERAL_THREADS = 1024, /* the largest block */
  RN_GENERAL_WINDOW = 256    /* groups of one row whose statistics are kept at the same time; a power of two */
};
typedef struct rn_cuda_call {
  rn_problem p;
  const int64_t *live_rows; /* NULL, or how many of p.rows there are, in device memory (rows in the caller's sense) */
  int64_t live_factor;      /* p.rows per row of the caller: heads where (rows, heads) was collapsed, else 1 */
  rn_chunks chunks;         /* dweight, for all p.rows */
  int64_t partials;         /* where in the workspace the sums of the chunks lie, in bytes */
  int32_t lanes;            /* W(p.group_cols) */
  int32_t slices;           /* dweight: among how many threads the chunks of one column are shared out */
} rn_cuda_call;
/* At the start of the workspace, for each (token, head, group): xhat = (u * power) * r, and the row dot. */
typedef struct rn_row_sums {
  float power, r, dot;
} rn_row_sums;

/* forward.cu: x, residual, y, residual_out of one type, aligned vectors. */
typedef struct rn_cuda_forward {
  rn_cuda_view x, residual, y, residual_out; /* data NULL = absent */
  const char *weight;                        /* NULL = ones */
  int64_t weight_head_bytes, weight_group_bytes;
  float *rstd_out;
  const int64_t *live_rows;
  int64_t live_factor;
  int64_t rows; /* tokens * heads * groups */
  int32_t heads, groups;
  int32_t cols;  /* of a group */
  int32_t lanes; /* W(cols) */
  int32_t weight_is_f32, round_xhat, round_rstd;
  int32_t team; /* threads that share a row in one block */
  float weight_offset, divisor, eps;
} rn_cuda_forward;

/* backward.cu: x, dy, dresidual_out, dx of one type, aligned vectors, rstd given or recomputed. */
typedef struct rn_cuda_backward {
  const int64_t *live_rows;
} rn_cuda_backward;

/* copy.cu */
typedef struct rn_cuda_copy {
  const void *from[3];
  void *to[2];
  int64_t words; /* of 16 bytes, in each stream */
} rn_cuda_copy;

#endif /* RN_CUDA_PARAMS_H */
