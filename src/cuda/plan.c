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
#ifdef RN_PLAN_forward
    {RN_FAMILY_forward, rn_cuda_plan_forward},
#endif
#ifdef RN_PLAN_backward
    {RN_FAMILY_backward, rn_cuda_plan_backward},
#endif
#ifdef RN_PLAN_general
    {RN_FAMILY_general, rn_cuda_plan_general},
#endif
    {RN_CUDA_FAMILY_COUNT, NULL},
};

const char *rn_cuda_plan_of(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                            rn_cuda_plan *plan) {
  if (p->x.dtype == RMSNORM_DTYPE_F64) return "x is f64: only portable takes it";
  const char *reason = "this build has no kernels for it (RMSNORM_KERNELS)";
  for (int i = 0; families[i].plan != NULL; i++)
    if ((device->families >> families[i].family & 1) != 0) {
      reason = families[i].plan(p, options, device, plan);
      if (reason == NULL) return NULL;
    }
  return reason;
}

size_t rn_cuda_workspace_bytes(const rn_problem *p) {
  size_t most = 0;
  (void)p;
#ifdef RN_PLAN_general
  size_t general = rn_cuda_workspace_general(p);
  if (general > most) most = general;
#endif
#ifdef RN_PLAN_backward
  size_t backward = rn_cuda_workspace_backward(p);
  if (backward > most) most = backward;
#endif
  return most;
}
