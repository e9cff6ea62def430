/* calls.h - the calls that the tests of the host sides of the GPU backends make, on addresses that no process has:
 * whoever follows one of them, dies.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CALLS_H
#define CALLS_H

#include "rmsnorm.h"

#include <stdint.h>

#define AT(n) ((void *)(uintptr_t)(0x10000000u * (n) + 0x100u))
static void *const stream = (void *)0x5eed;

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

#endif /* CALLS_H */
