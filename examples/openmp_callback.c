/* openmp_callback.c - the caller's own threads: hand rmsnorm a parallel-for. Here it is a loop of OpenMP; a thread pool
 * of your engine goes into the same place. The bits do not depend on it, which is checked against a serial run.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <rmsnorm.h>

#include <stdio.h>
#include <string.h>

enum { ROWS = 512, COLS = 1024 };

static float x[ROWS * COLS], mine[ROWS * COLS], serial[ROWS * COLS];

static void run(void *context, int64_t tasks, void (*task)(void *task_context, int64_t index), void *task_context) {
  int64_t *calls = context;
  *calls += 1;
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < tasks; i++) task(task_context, i);
}

int main(void) {
  int64_t calls = 0;
  rmsnorm_parallel parallel = {0};
  parallel.context = &calls, parallel.threads = 4, parallel.run = run;

  for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)((i * 131) % 1009 - 504) / 300;
  rmsnorm_forward_args args = RMSNORM_FORWARD_ARGS_INIT;
  args.rows = ROWS, args.cols = COLS, args.eps = 1e-6;
  args.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, COLS);
  args.y = rmsnorm_output(mine, RMSNORM_DTYPE_F32, COLS);
  args.parallel = &parallel;
  if (rmsnorm_forward(&args, NULL) != RMSNORM_OK) {
    fprintf(stderr, "%s\n", rmsnorm_last_error());
    return 1;
  }
  args.parallel = NULL, args.threads = 1;
  args.y = rmsnorm_output(serial, RMSNORM_DTYPE_F32, COLS);
  if (rmsnorm_forward(&args, NULL) != RMSNORM_OK) {
    fprintf(stderr, "%s\n", rmsnorm_last_error());
    return 1;
  }
  const int same = memcmp(mine, serial, sizeof mine) == 0;
  printf("through the callback (called %s) and serially: %s bits\n", calls > 0 ? "at least once" : "never",
         same ? "the same" : "different");
  return same && calls > 0 ? 0 : 1;
}
