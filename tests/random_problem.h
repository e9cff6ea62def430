/* random_problem.h - random problems for the tests of plans, through the checks of the public functions. Nothing is
 * run: no address is real.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RANDOM_PROBLEM_H
#define RANDOM_PROBLEM_H

#include "check.h"

static int32_t random_device = RMSNORM_DEVICE_CUDA;
static uint64_t random_state;
static uint64_t next(void) {
  random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
  return random_state;
}
static void random_seed(uint64_t seed) {
  random_state = seed * 0x9e3779b97f4a7c15u | 1;
  next(), next();
}
static int64_t below(int64_t n) {
  return (int64_t)(next() % (uint64_t)n);
}
static bool one_in(int64_t n) {
  return below(n) == 0;
}
/* As likely to be small as large. */
static int64_t size(int bits) {
  int64_t v = 1 + below((int64_t)1 << below(bits + 1));
  return one_in(3) ? (int64_t)1 << below(bits + 1) : v;
}

static const int types[] = {RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16, RMSNORM_DTYPE_F32};
static int usual_type;
static int type(void) {
  return one_in(8) ? types[below(3)] : usual_type;
}

/* Buffers of 2^44 bytes each; most are aligned, as an allocator's are. */
static uintptr_t next_buffer;
static void *buffer(void) {
  next_buffer += (uintptr_t)1 << 44;
  return (void *)(next_buffer + (one_in(4) ? 4 * (uintptr_t)below(64) : 0));
}
static rmsnorm_input_tensor input(int64_t heads, int64_t cols) {
  int64_t width = one_in(6) ? cols + below(64) : cols;
  return rmsnorm_input_heads(buffer(), type(), one_in(10) ? 0 : width * heads + (one_in(8) ? 8 : 0), width);
}
static rmsnorm_output_tensor output(int64_t heads, int64_t cols) {
  int64_t width = one_in(6) ? cols + below(64) : cols;
  return rmsnorm_output_heads(buffer(), type(), width * heads + (one_in(8) ? 8 : 0), width);
}

typedef struct shape {
  int64_t rows, heads, cols, groups;
} shape;
static shape random_shape(void) {
  shape s;
  next_buffer = 0;
  usual_type = types[below(3)];
  s.groups = one_in(8) ? size(5) : 1;
  s.cols = size(one_in(4) ? 20 : 15);
  if (one_in(3)) s.cols = (s.cols + 63) / 64 * 64;
  s.cols = s.cols * s.groups;
  s.heads = one_in(4) ? size(6) : 1;
  s.rows = size(one_in(20) ? 36 : 22);
  while ((double)s.rows * (double)s.heads * (double)s.cols > 1e12) s.rows = (s.rows + 1) / 2;
  return s;
}

static rmsnorm_launch launch;
static const rmsnorm_launch *random_launch(bool live) {
  launch.dependent = (int32_t)below(2);
  launch.multiprocessors = one_in(3) ? (int32_t)size(8) : 0;
  launch.live_rows = live && one_in(3) ? (const int64_t *)((uintptr_t)1 << 43) : NULL;
  return &launch;
}

static rmsnorm_status random_forward(rn_problem *p) {
  shape s = random_shape();
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = s.rows, a.heads = s.heads, a.cols = s.cols, a.groups = s.groups, a.eps = 1e-6;
  a.device = random_device, a.launch = random_launch(true);
  a.x = input(s.heads, s.cols), a.y = output(s.heads, s.cols);
  if (!one_in(5)) a.weight = buffer(), a.weight_dtype = type(), a.weight_shape = one_in(4) ? (int)below(3) : 0;
  if (one_in(2)) {
    a.residual = input(s.heads, s.cols);
    if (!one_in(4)) a.residual_out = output(s.heads, s.cols);
    if (one_in(2)) a.numerics.round_sum = RMSNORM_ROUND_STORED;
  }
  if (one_in(4)) a.numerics.round_xhat = (int)below(4), a.numerics.round_normed = (int)below(4);
  if (one_in(8))
    a.gate = input(s.heads, s.cols), a.numerics.gate = 1 + (int)below(2), a.numerics.gate_place = (int)below(2);
  if (one_in(4)) a.rstd = buffer();
  if (one_in(8)) a.sumsq = buffer();
  if (one_in(4)) {
    a.quant.granularity = 1 + (int)below(4);
    a.quant.q = output(s.heads, s.cols), a.quant.q.dtype = RMSNORM_DTYPE_FP8_E4M3;
    if (a.quant.granularity == RMSNORM_QUANT_BLOCK) a.quant.block_cols = 32 << below(3);
    if (a.quant.granularity == RMSNORM_QUANT_TENSOR)
      a.quant.scale = buffer();
    else
      a.quant.scale_out = buffer();
  }
  return rn_check_forward(&a, p);
}
static rmsnorm_status random_stats(rn_problem *p) {
  shape s = random_shape();
  rmsnorm_stats_args a = RMSNORM_STATS_ARGS_INIT;
  a.rows = s.rows, a.heads = s.heads, a.cols = s.cols, a.groups = s.groups;
  a.device = random_device, a.launch = random_launch(true);
  a.x = input(s.heads, s.cols);
  a.sumsq = buffer();
  return rn_check_stats(&a, p);
}
static rmsnorm_status random_backward(rn_problem *p) {
  shape s = random_shape();
  rn_regions regions;
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  a.rows = s.rows, a.heads = s.heads, a.cols = s.cols, a.groups = s.groups, a.eps = 1e-6;
  a.device = random_device, a.launch = random_launch(false);
  a.x = input(s.heads, s.cols), a.dy = input(s.heads, s.cols);
  if (!one_in(6)) a.dx = output(s.heads, s.cols);
  if (!one_in(5)) {
    a.weight = buffer(), a.weight_dtype = type(), a.weight_shape = one_in(4) ? (int)below(3) : 0;
    if (!one_in(4)) a.dweight = buffer(), a.dweight_dtype = one_in(2) ? RMSNORM_DTYPE_F32 : type();
  }
  if (one_in(3)) a.dresidual_out = input(s.heads, s.cols);
  if (one_in(5)) a.dresidual = output(s.heads, s.cols);
  if (one_in(2)) a.rstd = buffer();
  if (one_in(8)) a.dot_out = buffer();
  if (one_in(8)) {
    a.gate = input(s.heads, s.cols), a.numerics.gate = 1 + (int)below(2), a.numerics.gate_place = (int)below(2);
    if (one_in(2)) a.dgate = output(s.heads, s.cols);
  }
  return rn_check_backward(&a, RN_CHECK_CALL, p, &regions);
}

#endif /* RANDOM_PROBLEM_H */
