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
  RN_GENERAL_THREADS = 1024, /* the largest block of forward and stats, whose registers fit that many threads */
  RN_GENERAL_HEAVY = 512,    /* and of the others, whose registers would fit RN_GENERAL_BOUND */
  RN_GENERAL_BOUND = 640,
  RN_GENERAL_REGISTERS = 96,
  RN_GENERAL_SLICES = 128, /* of dweight's at most 8192 chunks: 64 are left for a thread */
  RN_GENERAL_WINDOW = 256  /* groups of one row whose statistics are kept at the same time; a power of two */
};
typedef struct rn_cuda_call {
  rn_problem p;
  const int64_t *live_rows; /* NULL, or how many of p.rows there are, in device memory (rows in the caller's sense) */
  int64_t live_factor;      /* p.rows per row of the caller: heads where (rows, heads) was collapsed, else 1 */
  rn_chunks chunks;         /* dweight */
  int64_t partials;         /* where in the workspace the sums of the chunks lie, in bytes */
  uint32_t types;           /* all types and switches that the inner loops ask for: rn_type of the places below */
  int32_t lanes;            /* W(p.group_cols) */
  int32_t slots;            /* floats of shared memory that the sum over a row needs */
  int32_t slices;           /* dweight: among how many threads the chunks of one column are shared out */
} rn_cuda_call;
/* Two bits each: rmsnorm_dtype of a tensor, 0 when it is absent, or of a rounding; in one word, because a loop that
 * asks for them one by one keeps them all in registers. */
enum rn_type_place {
  RN_TYPE_X = 0,
  RN_TYPE_RESIDUAL = 2,
  RN_TYPE_GATE = 4,
  RN_TYPE_WEIGHT = 6,
  RN_TYPE_Y = 8,
  RN_TYPE_RESIDUAL_OUT = 10,
  RN_TYPE_DY = 12,
  RN_TYPE_DRESIDUAL_OUT = 14,
  RN_TYPE_DX = 16,
  RN_TYPE_DRESIDUAL = 18,
  RN_TYPE_DGATE = 20,
  RN_TYPE_ROUND_SUM = 22,
  RN_TYPE_ROUND_XHAT = 24,
  RN_TYPE_ROUND_NORMED = 26,
  RN_TYPE_GATE_KIND = 28, /* rmsnorm_gate */
  RN_TYPE_GATE_BEFORE = 30
};
/* At the start of the workspace, for each (token, head, group): xhat = (u * power) * r, and the row dot. */
typedef struct rn_row_sums {
  float power, r, dot;
} rn_row_sums;

/* forward.cu: x, residual, y, residual_out of one type, aligned runs. What every row needs comes first. */
typedef struct rn_cuda_forward {
  rn_cuda_view x, y;        /* data NULL = absent */
  const char *weight;       /* NULL = ones */
  const int64_t *live_rows; /* NULL, or the number of live rows of the caller, of live_most that there are */
  float *rstd_out;
  uint64_t heads_magic, groups_magic;         /* for rn_divided; 0 = one */
  int64_t rows;                               /* tokens * heads * groups, below 2^31 */
  int32_t cols;                               /* of a group, at most 2^24 */
  float divisor, inverse, eps, weight_offset; /* inverse: 1 / divisor, rounded */
  int32_t weight_is_f32, round_xhat, round_rstd;
  int32_t heads, groups;
  rn_cuda_view residual, residual_out;
  int64_t weight_head_bytes, weight_group_bytes;
  int64_t live_most, live_factor;
  int32_t rows_of_cluster; /* forward_ring.h */
} rn_cuda_forward;

/* quantise.cu: as forward.cu, y may be absent; q and its scales. */
typedef struct rn_cuda_quantise {
  rn_cuda_forward f;
  rn_cuda_view q;
  const float *scale_in; /* TENSOR */
  char *scale_out;       /* ROW, BLOCK: float; MX: e8m0 */
  int64_t scale_row_stride, scale_block_stride;
  int32_t granularity, dtype, reciprocal, e8m0_rounding;
  int32_t block_shift; /* BLOCK, MX: log2 of the columns */
  int32_t round_sum, round_normed;
  float scale_max;
} rn_cuda_quantise;

/* backward.cu: x, dy, dresidual_out, dx of one type, aligned runs, rstd given or recomputed. Rows and strides fit 32
 * bits there, so that an address is one instruction. */
typedef struct rn_cuda_tensor {
  char *data;
  int32_t row_bytes, head_bytes;
} rn_cuda_tensor;
typedef struct rn_cuda_backward {
  rn_cuda_tensor x, dy, dresidual_out, dx; /* data NULL = absent */
  const char *weight;                      /* NULL = ones */
  const float *rstd;                       /* NULL = from x */
  float *partial;                          /* the workspace: lines of cols sums. NULL: no dweight */
  char *dweight;
  const int64_t *live_rows;
  int64_t live_most, live_factor;
  int32_t rows; /* tokens * heads */
  int32_t heads, cols;
  int32_t lanes;                         /* W(cols) */
  int32_t chunks, row_lanes, unit_shift; /* C, P and log2 B of rn_chunks_of for all rows */
  int32_t line_lanes;                    /* row lanes that a block adds before its line goes to partial */
  int32_t team;                          /* threads of a block that share a row */
  int32_t stages;                        /* of the ring */
  int32_t row_blocks, few_each;          /* few rows: blocks that do dx; row lanes of a thread that does dweight */
  int32_t tree_columns;                  /* columns of a block of rn_backward_tree */
  int32_t dweight_dtype;
  uint32_t dy_padding;     /* zeros that stand for dy past the last column, of the sign that -0 products need */
  uint32_t negative_zeros; /* likewise for rows that are not there: -0 of x's type */
  float weight_offset, divisor, eps;
  float inverse_divisor; /* 0 unless the divisor is a power of two */
} rn_cuda_backward;

/* copy.cu */
typedef struct rn_cuda_copy {
  const void *from[3];
  void *to[2];
  int64_t words; /* of 16 bytes, in each stream */
} rn_cuda_copy;

#endif /* RN_CUDA_PARAMS_H */
