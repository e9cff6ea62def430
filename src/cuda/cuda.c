/* cuda.c - the row "cuda" of the table: a plan for the problem, its launches queued on the caller's stream.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../fpenv.h"
#include "host.h"

/* A plan converts numbers (eps, divisor), and that is arithmetic: not in the caller's mode. */
static const char *plan_of(const rn_problem *p, const rn_place *place, rn_cuda_plan *plan) {
  const rn_cuda_options options = {p->launch.multiprocessors, p->launch.live_rows};
  rn_fp saved = rn_fp_enter();
  const char *reason = rn_cuda_plan_of(p, &options, &place->facts, plan);
  rn_fp_leave(saved);
  return reason;
}

static const char *why_not(const rn_problem *p) {
  rn_place place;
  rn_cuda_plan plan;
  if (!rn_place_to_explain(&place)) return "the CUDA driver does not describe its device";
  return plan_of(p, &place, &plan);
}

static rmsnorm_status run(const rn_problem *p, void *stream) {
  rn_place place;
  rn_cuda_plan plan;
  rmsnorm_status status = rn_place_of_context(&place);
  if (status != RMSNORM_OK) return status;
  const char *reason = plan_of(p, &place, &plan);
  if (reason != NULL) return rn_error(RMSNORM_ERROR_UNSUPPORTED, "\"cuda\": %s", reason);
  /* Graphs hold kernels that start early, one after the other, from 12.3 on; what the caller wishes, the caller gets.
   */
  const bool can_depend = place.facts.major >= 9, inside = can_depend && rn_driver_get()->version >= 12030;
  for (int i = 0; i < plan.steps && status == RMSNORM_OK; i++) {
    const bool dependent = i == 0 ? can_depend && p->launch.dependent != 0 : inside && plan.step[i].dependent != 0;
    status = rn_loader_launch(&plan.step[i], &place, dependent, &plan.params, stream);
  }
  return status;
}

const rn_impl rn_impl_cuda = {.name = "cuda",
                              .device = RMSNORM_DEVICE_CUDA,
                              .machine_why_not = rn_driver_why_not,
                              .why_not = why_not,
                              .workspace_bytes = rn_cuda_workspace_bytes,
                              .run = run,
                              .zero = rn_driver_zero,
                              .preload = rn_loader_preload};
