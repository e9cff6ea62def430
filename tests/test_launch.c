/* test_launch.c - the wishes that only a device has: what the CPU refuses, and what is wrong everywhere.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "rmsnorm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static float x[64] = {1}, y[64];
static int64_t live[2];

static rmsnorm_status forward(int device, rmsnorm_launch wishes) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = 1, a.cols = 64, a.eps = 0, a.device = device, a.launch = &wishes;
  a.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, 64);
  a.y = rmsnorm_output(y, RMSNORM_DTYPE_F32, 64);
  return rmsnorm_forward(&a, NULL);
}
static rmsnorm_status stats(int device, rmsnorm_launch wishes) {
  rmsnorm_stats_args a = RMSNORM_STATS_ARGS_INIT;
  a.rows = 1, a.cols = 64, a.device = device, a.launch = &wishes;
  a.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, 64);
  a.sumsq = y;
  return rmsnorm_stats(&a, NULL);
}
static rmsnorm_status backward(int device, rmsnorm_launch wishes) {
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  a.rows = 1, a.cols = 64, a.eps = 0, a.device = device, a.launch = &wishes;
  a.x = a.dy = rmsnorm_input(x, RMSNORM_DTYPE_F32, 64);
  a.dx = rmsnorm_output(y, RMSNORM_DTYPE_F32, 64);
  return rmsnorm_backward(&a, NULL);
}

static void expect(rmsnorm_status found, rmsnorm_status expected, const char *word) {
  assert_int_equal(found, expected);
  if (strstr(rmsnorm_last_error(), word) == NULL) fail_msg("\"%s\" is not in: %s", word, rmsnorm_last_error());
}

static void test_cpu(void **state) {
  (void)state;
  rmsnorm_status (*const calls[])(int, rmsnorm_launch) = {forward, stats, backward};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(calls[i](RMSNORM_DEVICE_CPU, (rmsnorm_launch){0, 0, NULL}), RMSNORM_OK);
    expect(calls[i](RMSNORM_DEVICE_CPU, (rmsnorm_launch){1, 0, NULL}), RMSNORM_ERROR_COMBINATION, "launch: the CPU");
    expect(calls[i](RMSNORM_DEVICE_CPU, (rmsnorm_launch){0, 4, NULL}), RMSNORM_ERROR_COMBINATION, "launch: the CPU");
    expect(calls[i](RMSNORM_DEVICE_CPU, (rmsnorm_launch){0, 0, live}), RMSNORM_ERROR_COMBINATION, "launch");
  }
}

static void test_everywhere(void **state) {
  (void)state;
  const int64_t *crooked = (const int64_t *)((uintptr_t)live + 4), *in_y = (const int64_t *)(void *)(y + 2);
  for (int device = RMSNORM_DEVICE_CPU; device <= RMSNORM_DEVICE_CUDA; device++) {
    expect(forward(device, (rmsnorm_launch){2, 0, NULL}), RMSNORM_ERROR_ENUM, "launch->dependent");
    expect(stats(device, (rmsnorm_launch){-1, 0, NULL}), RMSNORM_ERROR_ENUM, "launch->dependent");
    expect(backward(device, (rmsnorm_launch){0, -1, NULL}), RMSNORM_ERROR_SIZE, "launch->multiprocessors");
    expect(backward(device, (rmsnorm_launch){0, 0, live}), RMSNORM_ERROR_COMBINATION, "launch->live_rows");
  }
  expect(forward(RMSNORM_DEVICE_CUDA, (rmsnorm_launch){0, 0, crooked}), RMSNORM_ERROR_ALIGNMENT, "launch->live_rows");
  expect(forward(RMSNORM_DEVICE_CUDA, (rmsnorm_launch){0, 0, in_y}), RMSNORM_ERROR_OVERLAP, "launch->live_rows");
  expect(stats(RMSNORM_DEVICE_CUDA, (rmsnorm_launch){0, 0, in_y - 1}), RMSNORM_ERROR_OVERLAP, "launch->live_rows");
}

static void test_preload(void **state) {
  (void)state;
  assert_int_equal(rmsnorm_preload(RMSNORM_DEVICE_CPU), RMSNORM_OK);
  expect(rmsnorm_preload(-1), RMSNORM_ERROR_ENUM, "device");
  expect(rmsnorm_preload(3), RMSNORM_ERROR_ENUM, "device");
  expect(rmsnorm_preload(RMSNORM_DEVICE_HIP), RMSNORM_ERROR_UNSUPPORTED, "device");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu), cmocka_unit_test(test_everywhere),
                                     cmocka_unit_test(test_preload)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
