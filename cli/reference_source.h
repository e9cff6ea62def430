/* reference_source.h - what both judges read: the tensors of a forward or backward call, and its switches resolved.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_REFERENCE_SOURCE_H
#define RN_REFERENCE_SOURCE_H

#include "reference.h"

typedef struct rn_source {
  int64_t rows, heads, cols, groups, width; /* width = cols / groups, the length of one statistic */
  int64_t divisor;
  double eps;
  rmsnorm_numerics numerics;
  int real;      /* the type of the arithmetic: F32, or F64 when x is f64 */
  int sum_dtype; /* what the sum is rounded to before it is normalised; real = not */
  int rstd_dtype, xhat_dtype, normed_dtype;
  int weight_dtype, weight_shape;
  const void *weight;
  rmsnorm_input_tensor x, residual, gate;
  const float *sumsq;
} rn_source;

rn_source rn_source_forward(const rmsnorm_forward_args *args);
rn_source rn_source_backward(const rmsnorm_backward_args *args);
double rn_source_at(const rn_source *s, const rmsnorm_input_tensor *t, int64_t row, int64_t head, int64_t col);
/* Where the weight of this element lies in weight and in dweight. */
int64_t rn_source_weight_index(const rn_source *s, int64_t head, int64_t col);

#endif /* RN_REFERENCE_SOURCE_H */
