/* rows.h - what one instruction set offers to cpu.c: the functions of row.c, compiled with that set's flags.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_ROWS_H
#define RN_ROWS_H

#include "../internal.h"

#include <math.h>

/* Rows whose groups' statistics fit here are taken; with more groups the portable implementation runs. */
#define RN_GROUPS_MAX 512
/* 64-lane blocks of the longest lane set, W = 65536. */
#define RN_BLOCKS_MAX 1024

/* A stretch of the weight gradient's row lanes, see dweight.h. */
typedef struct rn_lane_range {
  int64_t vector;      /* which weight vector (head), 0 when there is one */
  int64_t first, last; /* row lanes [first, last) */
  float *scratch;      /* vectors of dweight_cols, padded: the P lanes of a chunk, then the levels of the tree */
  float *sum;          /* [dweight_cols]: receives the tree over these lanes */
} rn_lane_range;

/* How the memory is to be treated; never what is computed. */
typedef struct rn_way {
  bool stream;   /* write past the caches */
  bool prefetch; /* fetch the next row while this one is finished */
} rn_way;

typedef struct rn_isa {
  /* Forward (or stats) of rows [first, last), numbered token * heads + head. */
  void (*forward_rows)(const rn_problem *p, int64_t first, int64_t last, rn_way way);
  /* The sums of 64-lane blocks [first, last) of one row, into sums[first..last). For rows shared by threads. */
  void (*block_sums)(const rn_problem *p, int64_t row, int64_t first, int64_t last, float *sums);
  /* The last pass of one row over columns [first, last). */
  void (*apply_cols)(const rn_problem *p, int64_t row, int64_t first, int64_t last, float rstd, rn_way way);
  /* Backward of rows [first, last) without dweight. */
  void (*backward_rows)(const rn_problem *p, int64_t first, int64_t last, rn_way way);
  /* Backward of every row that belongs to these row lanes, dweight's share included. */
  void (*backward_lanes)(const rn_problem *p, const rn_lane_range *range, rn_way way);
  /* Columns [first, last) of one weight vector = the tree over parts of sums[part * stride + col], rounded once. */
  void (*dweight_cols)(const rn_problem *p, int64_t vector, const float *sums, int64_t stride, int64_t parts,
                       int64_t first, int64_t last);
} rn_isa;

extern const rn_isa rn_isa_avx512, rn_isa_avx2, rn_isa_neon;

/* v = S / divisor + eps is an ordinary row's when it lies in this range; docs/numerics.md 1.3. */
static inline bool rn_ordinary(float v) {
  return v >= 0x1p-120f && v <= 3.402823466e+38f;
}

/* isqrt(v) of docs/numerics.md 1.3, one value at a time. */
static inline float rn_isqrt(float v) {
  const float r = 1.0f / sqrtf(v);
  if (!rn_ordinary(v)) return r;
  const float high = v * r, low = fmaf(v, r, -high);
  return fmaf(0.5f * r, fmaf(-low, r, fmaf(-high, r, 1.0f)), r);
}

/* The pairwise tree over `count` (a power of two) sums; overwrites them. */
static inline float rn_tree(float *sums, int64_t count) {
  for (; count > 1; count /= 2)
    for (int64_t i = 0; i < count / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  return sums[0];
}

#endif /* RN_ROWS_H */
