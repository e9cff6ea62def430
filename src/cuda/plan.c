/* plan.c - which family's kernels take a problem: the fast ones in order, the general one last.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

typedef const char *plan_function(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                                  rn_cuda_plan *plan);

static const struct {
  int family;
  plan_function *plan;
} families[] = {
    {RN_FAMILY_forward, rn_cuda_plan_forward},
    {RN_FAMILY_quantise, rn_cuda_plan_quantise},
    {RN_FAMILY_backward, rn_cuda_plan_backward},
    {RN_FAMILY_general, rn_cuda_plan_general},
};

const char *rn_cuda_plan_of(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                            rn_cuda_plan *plan) {
  if (p->x.dtype == RMSNORM_DTYPE_F64) return "x is f64: only portable takes it";
  const char *reason = "this build has no kernels for it (RMSNORM_KERNELS)";
  for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
    if ((device->families >> families[i].family & 1) != 0) {
      reason = families[i].plan(p, options, device, plan);
      if (reason == NULL) return NULL;
    }
  return reason;
}

int32_t rn_cuda_most_blocks(const rn_cuda_device *device) {
  if (!device->native || device->major < 9) return 1;
  return device->major <= 10 ? 16 : 8;
}

size_t rn_cuda_workspace_bytes(const rn_problem *p) {
  const size_t general = rn_cuda_workspace_general(p), backward = rn_cuda_workspace_backward(p);
  return general > backward ? general : backward;
}
