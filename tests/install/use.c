/* use.c - the smallest program that proves an installation: one row whose result is known exactly.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <rmsnorm.h>

#include <stdio.h>

int main(void) {
  /* mean of squares 4, so every element is halved; all exact */
  const float x[4] = {2, -2, 2, -2}, weight[4] = {1, 3, 5, 7}, expected[4] = {1, -3, 5, -7};
  float y[4] = {0};
  rmsnorm_forward_args args = RMSNORM_FORWARD_ARGS_INIT;
  args.rows = 1;
  args.cols = 4;
  args.eps = 0;
  args.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, 4);
  args.weight = weight;
  args.weight_dtype = RMSNORM_DTYPE_F32;
  args.y = rmsnorm_output(y, RMSNORM_DTYPE_F32, 4);
  if (rmsnorm_forward(&args, NULL) != RMSNORM_OK) {
    fprintf(stderr, "%s\n", rmsnorm_last_error());
    return 1;
  }
  for (int i = 0; i < 4; i++)
    if (y[i] != expected[i]) {
      fprintf(stderr, "y[%d] is %g, expected %g\n", i, (double)y[i], (double)expected[i]);
      return 1;
    }
  if (rmsnorm_version() != RMSNORM_VERSION) {
    fprintf(stderr, "the header and the library are of different versions\n");
    return 1;
  }
  printf("rmsnorm %s works\n", rmsnorm_version_string());
  return 0;
}
