/* triton_calls.h - the calls that the tests of the Triton backend's host side make, and what their kernels have to be
 * handed. The values come from the arguments of the call, by the meaning that each name has, not from the library.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRITON_CALLS_H
#define TRITON_CALLS_H

#include "child.h"
#include "triton/triton.h"

/* The device that the calls are for. */
static int32_t calls_device;

static rmsnorm_forward_args forward_args(int64_t rows, int64_t cols) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = rows, a.cols = cols, a.eps = 0.25, a.device = calls_device;
  a.x = rmsnorm_input(AT(1), RMSNORM_DTYPE_BF16, cols);
  a.y = rmsnorm_output(AT(2), RMSNORM_DTYPE_BF16, cols);
  a.weight = AT(3), a.weight_dtype = RMSNORM_DTYPE_BF16;
  return a;
}
static rmsnorm_stats_args stats_args(void) {
  rmsnorm_stats_args a = RMSNORM_STATS_ARGS_INIT;
  a.rows = 5, a.cols = 100, a.device = calls_device;
  a.x = rmsnorm_input(AT(1), RMSNORM_DTYPE_F32, 100);
  a.sumsq = AT(4);
  return a;
}
static rmsnorm_backward_args backward_args(int64_t rows, int64_t cols) {
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  a.rows = rows, a.cols = cols, a.eps = 0.25, a.device = calls_device;
  a.x = rmsnorm_input(AT(1), RMSNORM_DTYPE_BF16, cols);
  a.dy = rmsnorm_input(AT(2), RMSNORM_DTYPE_BF16, cols);
  a.dx = rmsnorm_output(AT(5), RMSNORM_DTYPE_BF16, cols);
  a.weight = AT(3), a.weight_dtype = a.dweight_dtype = RMSNORM_DTYPE_BF16;
  a.dweight = AT(4);
  a.workspace = (void *)(uintptr_t)0x70000000u, a.workspace_bytes = (size_t)1 << 28;
  return a;
}

static rmsnorm_status forward(void) {
  rmsnorm_forward_args a = forward_args(64, 4096);
  return rmsnorm_forward(&a, stream);
}
static rmsnorm_status stats(void) {
  rmsnorm_stats_args a = stats_args();
  return rmsnorm_stats(&a, stream);
}
static rmsnorm_status backward(void) {
  rmsnorm_backward_args a = backward_args(64, 4096);
  return rmsnorm_backward(&a, stream);
}
static rmsnorm_status no_rows(void) {
  rmsnorm_backward_args a = backward_args(0, 4096);
  return rmsnorm_backward(&a, stream);
}
static rmsnorm_status preload(void) {
  return rmsnorm_preload(calls_device);
}
static rmsnorm_status (*const calls[])(void) = {forward, stats, backward, no_rows, preload};
enum { CALLS = sizeof calls / sizeof calls[0] };

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
