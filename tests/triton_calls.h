/* triton_calls.h - what the kernels of the Triton backend have to be handed for the calls of calls.h. The values come
 * from the arguments of the call, by the meaning that each name has, not from the library.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRITON_CALLS_H
#define TRITON_CALLS_H

#include "calls.h"
#include "triton/triton.h"

#include <string.h>

/* The kernel of the table with that image. */
static const rn_triton_kernel *kernel_of(const void *image) {
  for (const rn_triton_target *t = rn_triton_targets; t->count != 0; t++)
    for (int32_t i = t->first; i < t->first + t->count; i++)
      if (rn_triton_kernels[i].image == image) return &rn_triton_kernels[i];
  return NULL;
}
static int32_t kernels_for(int32_t arch) {
  for (const rn_triton_target *t = rn_triton_targets; t->count != 0; t++)
    if (t->device == calls_device && t->arch == arch) return t->count;
  return 0;
}

static size_t width_of(const rn_triton_kernel *k, int i) {
  const int kind = i < k->count ? k->parameters[i].kind : RN_TRITON_POINTER;
  return kind == RN_TRITON_I32 || kind == RN_TRITON_F32 ? 4 : 8;
}
/* What forward_args(rows, cols) with a residual in f16 and both outputs means, by name; all else is 0. */
static uint64_t expected_of_forward(int name, int64_t rows, int64_t cols) {
  const float eps = 0.25f, divisor = (float)cols;
  uint32_t bits;
  switch (name) {
  case RN_TRITON_x:
    return (uintptr_t)AT(1);
  case RN_TRITON_y:
    return (uintptr_t)AT(2);
  case RN_TRITON_weight:
    return (uintptr_t)AT(3);
  case RN_TRITON_residual:
    return (uintptr_t)AT(8);
  case RN_TRITON_residual_out:
    return (uintptr_t)AT(9);
  case RN_TRITON_x_row_stride:
  case RN_TRITON_y_row_stride:
    return (uint64_t)cols;
  case RN_TRITON_residual_row_stride:
    return (uint64_t)cols + 8;
  case RN_TRITON_residual_out_row_stride:
    return (uint64_t)cols + 16;
  case RN_TRITON_rows:
  case RN_TRITON_units:
  case RN_TRITON_live_most:
    return (uint64_t)rows;
  case RN_TRITON_heads:
  case RN_TRITON_groups:
  case RN_TRITON_live_factor:
  case RN_TRITON_round_rstd: /* f32: not rounded */
  case RN_TRITON_round_xhat:
  case RN_TRITON_round_normed:
  case RN_TRITON_round_sum:
    return 1;
  case RN_TRITON_cols:
  case RN_TRITON_group_cols:
  case RN_TRITON_weight_group_stride: /* there is one group, so nothing is multiplied with it */
    return (uint64_t)cols;
  case RN_TRITON_lanes:
    return (uint64_t)rn_lanes(cols);
  case RN_TRITON_x_type:
  case RN_TRITON_y_type:
  case RN_TRITON_residual_type:
  case RN_TRITON_residual_out_type:
  case RN_TRITON_weight_type:
    return RMSNORM_DTYPE_BF16;
  case RN_TRITON_eps:
    memcpy(&bits, &eps, sizeof bits);
    return bits;
  case RN_TRITON_divisor:
    memcpy(&bits, &divisor, sizeof bits);
    return bits;
  case RN_TRITON_weight_offset: /* -0 */
    return 0x80000000u;
  default:
    return 0;
  }
}

#endif /* TRITON_CALLS_H */
