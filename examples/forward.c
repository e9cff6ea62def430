/* forward.c - the shortest useful program: normalise two rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <rmsnorm.h>

#include <stdio.h>

int main(void) {
  const float x[2][4] = {{1, 2, 3, 4}, {10, 20, 30, 40}}, weight[4] = {1, 1, 0.5f, 2};
  float y[2][4];

  rmsnorm_forward_args args = RMSNORM_FORWARD_ARGS_INIT;
  args.rows = 2;
  args.cols = 4;
  args.eps = 1e-6; /* required: it belongs to the model */
  args.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, 4);
  args.y = rmsnorm_output(y, RMSNORM_DTYPE_F32, 4);
  args.weight = weight;
  args.weight_dtype = RMSNORM_DTYPE_F32;

  if (rmsnorm_forward(&args, NULL) != RMSNORM_OK) {
    fprintf(stderr, "%s\n", rmsnorm_last_error());
    return 1;
  }
  for (int r = 0; r < 2; r++)
    printf("%.4f %.4f %.4f %.4f\n", (double)y[r][0], (double)y[r][1], (double)y[r][2], (double)y[r][3]);
  return 0;
}
