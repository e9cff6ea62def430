/* test_diff_kernel.h - a plain float kernel in which every mistake of the catalogue can be made, and random inputs for
 * it. Written without a look at the models of cli/diff_*.c: loops as somebody would write them, in float, with a
 * conversion of its own. What it makes is what `rmsnorm diff` has to explain.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_TEST_DIFF_KERNEL_H
#define RN_TEST_DIFF_KERNEL_H

#include "diff.h"

#include <stdbool.h>
#include <stdint.h>

/* How a kernel goes about it; all zero: the right way. */
typedef struct kernel {
  /* the roundings of a family */
  bool sum_rounded, rstd_rounded, xhat_rounded, xhat_to_weight, normed_rounded; /* normed: before the gate */
  float offset;
  int gate; /* 0 none, 1 silu, 2 sigmoid */
  bool gate_first;
  /* the order of the sum: strided lanes; 0 = 32 */
  int lanes;
  int product; /* 0: (x r) w, 1: x (r w), 2: (x w) r, 3: (x / rms) w */
  bool wide;   /* double throughout */
  /* mistakes */
  float eps;
  int eps_place; /* 0 inside, 1 outside, 2 max */
  int64_t divisor, groups;
  bool centred, variance, half_squares, half_sum, half_mean, half_root, truncate, away, flush, approximate, quake;
  bool no_norm, twice, no_residual, only_residual, residual_twice, x_twice, statistic_of_x;
  int64_t tail, overrun; /* columns that count, elements of the next row that count too */
  int64_t weight_shift, weight_stride, weight_period, weight_block;
  bool weight_bytes, no_weight, weight_squared, weight_by_caller, offset_in_half, offset_added_twice, other_weight,
      weight_by_row;
  int64_t row_stride;
  bool transposed;                    /* rows and heads of x have changed places */
  int64_t rows_written, cols_written; /* 0: all */
  float poison;                       /* what unwritten places hold; NAN: junk */
} kernel;

typedef struct instance {
  uint64_t seed;
  int64_t rows, heads, cols; /* rows: those of all heads */
  int64_t groups;            /* of the right norm, 1 most of the time */
  int x_type, w_type, y_type;
  bool residual, upcast; /* upcast: narrow values in f32 arrays, as files without bf16 have them */
  bool weighted;
  float eps;
  float *x, *r, *w, *other, *gate; /* the values, already of their type */
  float *y;                        /* what the kernel made */
} instance;

uint64_t random_bits(uint64_t *state);
double random_unit(uint64_t *state); /* within [0, 1) */
double random_normal(uint64_t *state);
float to_type(int dtype, double v);
float to_type_truncated(int dtype, double v);

/* small_weights: around 0, as families with 1 + weight store them. */
bool instance_make(instance *i, bool small_weights);
void instance_free(instance *i);
void run_kernel(const instance *i, const kernel *k);
/* Values as an array of dtype; malloc. */
void *stored(const float *v, int64_t count, int dtype);

#endif /* RN_TEST_DIFF_KERNEL_H */
