/* sharded.c - a row whose columns lie on two ranks. Each rank sums the squares of its own columns, the sums are added
 * (here by a plus, in real use by an all-reduce in a fixed order), and each rank normalises its own columns with the
 * total width as divisor. The result is that of the whole row up to the order of one addition.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <rmsnorm.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 16, COLS = 1536, LEFT = 1024, RIGHT = COLS - LEFT };

static float x[ROWS * COLS], whole[ROWS * COLS], sharded[ROWS * COLS], weight[COLS];

static void stop_on(rmsnorm_status status) {
  if (status == RMSNORM_OK) return;
  fprintf(stderr, "%s\n", rmsnorm_last_error());
  exit(1);
}

/* Every rank's part is a view into the whole: its first column and its width; the row stride stays COLS. */
static void stats(int first, int cols, float *sumsq) {
  rmsnorm_stats_args args = RMSNORM_STATS_ARGS_INIT;
  args.rows = ROWS, args.cols = cols;
  args.x = rmsnorm_input(x + first, RMSNORM_DTYPE_F32, COLS);
  args.sumsq = sumsq;
  stop_on(rmsnorm_stats(&args, NULL));
}

static void forward(int first, int cols, const float *sumsq, float *y) {
  rmsnorm_forward_args args = RMSNORM_FORWARD_ARGS_INIT;
  args.rows = ROWS, args.cols = cols, args.eps = 1e-6;
  args.divisor = COLS; /* the width of the whole row, not of this part */
  args.x = rmsnorm_input(x + first, RMSNORM_DTYPE_F32, COLS);
  args.weight = weight + first, args.weight_dtype = RMSNORM_DTYPE_F32;
  args.y = rmsnorm_output(y + first, RMSNORM_DTYPE_F32, COLS);
  args.sumsq = sumsq;
  stop_on(rmsnorm_forward(&args, NULL));
}

int main(void) {
  float left[ROWS], right[ROWS], sumsq[ROWS];
  for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)((i * 53) % 997 - 498) / 200;
  for (int c = 0; c < COLS; c++) weight[c] = 0.5f + (float)c / COLS;

  forward(0, COLS, NULL, whole);
  stats(0, LEFT, left);
  stats(LEFT, RIGHT, right);
  for (int r = 0; r < ROWS; r++) sumsq[r] = left[r] + right[r];
  forward(0, LEFT, sumsq, sharded);
  forward(LEFT, RIGHT, sumsq, sharded);

  /* In units of 2^-24, one rounding each: the whole sum takes 6 + 8 (lanes of 256 and the tree over them), the sharded
   * one at most 4 + 8 + 1; half of a sum's error reaches rstd. Divide, add eps (halved too), root, divide and the two
   * products: 5 on either side. 14/2 + 13/2 + 2 * 5 = 23.5. */
  double worst = 0;
  for (int i = 0; i < ROWS * COLS; i++)
    if (whole[i] != 0) worst = fmax(worst, fabs((double)sharded[i] / (double)whole[i] - 1));
  printf("largest relative difference to the whole: %.2f units of 2^-24\n", worst * 16777216);
  return worst <= 24.0 / 16777216 ? 0 : 1;
}
