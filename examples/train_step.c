/* train_step.c - forward, backward and a step of gradient descent on the weight: the loss has to fall.
 *
 * The task: find the weight that produced `target`. Loss = half the sum of (y - target)^2, so dy = y - target.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <rmsnorm.h>

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 8, COLS = 64, STEPS = 20 };

static float x[ROWS * COLS], y[ROWS * COLS], target[ROWS * COLS], dy[ROWS * COLS], dx[ROWS * COLS], rstd[ROWS];
static float weight[COLS], dweight[COLS];

static void stop_on(rmsnorm_status status) {
  if (status == RMSNORM_OK) return;
  fprintf(stderr, "%s\n", rmsnorm_last_error());
  exit(1);
}

int main(void) {
  rmsnorm_forward_args forward = RMSNORM_FORWARD_ARGS_INIT;
  forward.rows = ROWS, forward.cols = COLS, forward.eps = 1e-5;
  forward.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, COLS);
  forward.y = rmsnorm_output(target, RMSNORM_DTYPE_F32, COLS);
  forward.weight = weight, forward.weight_dtype = RMSNORM_DTYPE_F32;
  forward.rstd = rstd; /* saved for the backward */

  for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)((i * 37) % 101 - 50) / 25;
  for (int c = 0; c < COLS; c++) weight[c] = 1 + (float)c / COLS;
  stop_on(rmsnorm_forward(&forward, NULL));
  for (int c = 0; c < COLS; c++) weight[c] = 1;
  forward.y = rmsnorm_output(y, RMSNORM_DTYPE_F32, COLS);

  rmsnorm_backward_args backward = RMSNORM_BACKWARD_ARGS_INIT;
  backward.rows = ROWS, backward.cols = COLS, backward.eps = 1e-5;
  backward.x = forward.x;
  backward.weight = weight, backward.weight_dtype = RMSNORM_DTYPE_F32;
  backward.dy = rmsnorm_input(dy, RMSNORM_DTYPE_F32, COLS);
  backward.rstd = rstd;
  backward.dx = rmsnorm_output(dx, RMSNORM_DTYPE_F32, COLS); /* for the layer before; not used here */
  backward.dweight = dweight, backward.dweight_dtype = RMSNORM_DTYPE_F32;
  stop_on(rmsnorm_backward_workspace_bytes(&backward, &backward.workspace_bytes));
  if (backward.workspace_bytes > 0) { /* a multiple of its alignment, as aligned_alloc wants */
    backward.workspace = aligned_alloc(64, (backward.workspace_bytes + 63) / 64 * 64);
    if (backward.workspace == NULL) return 1;
  }

  double first = 0, loss = 0;
  for (int step = 0; step < STEPS; step++) {
    stop_on(rmsnorm_forward(&forward, NULL));
    loss = 0;
    for (int i = 0; i < ROWS * COLS; i++) {
      dy[i] = y[i] - target[i];
      loss += 0.5 * (double)dy[i] * (double)dy[i];
    }
    if (step == 0) first = loss;
    stop_on(rmsnorm_backward(&backward, NULL));
    for (int c = 0; c < COLS; c++) weight[c] -= 0.1f * dweight[c];
  }
  printf("loss %g -> %g in %d steps\n", first, loss, STEPS);
  free(backward.workspace);
  return loss < 0.01 * first ? 0 : 1;
}
