/* plan.h - from a problem and the facts of a device to launches: pure functions, no driver, testable anywhere.
 *
 * A plan is up to RN_CUDA_STEPS kernels, queued one after the other, which share one parameter struct. Every threshold
 * stands in plan_*.c beside the measurement that chose it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_PLAN_H
#define RN_CUDA_PLAN_H

#include "kernels.h"
#include "params.h"

/* What the plans want to know of a device. */
typedef struct rn_cuda_device {
  int32_t major, minor;
  int32_t multiprocessors;
  int32_t shared_bytes; /* most shared memory a block may ask for */
  uint32_t families;    /* bit i: the kernels of family i (kernels.h) are in this build */
  int32_t native;       /* bool: it runs machine code of its own, not PTX, which has neither clusters nor bulk copies */
} rn_cuda_device;

/* What the caller asks of a launch (rmsnorm_launch of the header, with its defaults filled in). */
typedef struct rn_cuda_options {
  int32_t multiprocessors;  /* most to use; 0 = all */
  const int64_t *live_rows; /* or NULL */
} rn_cuda_options;

typedef struct rn_cuda_step {
  int32_t kernel; /* enum rn_cuda_kernel */
  uint32_t blocks, threads, cluster, shared;
  uint32_t dependent; /* bool: may be started while the step before it runs, for which it waits itself */
} rn_cuda_step;

enum { RN_CUDA_STEPS = 4 };
typedef struct rn_cuda_plan {
  int32_t steps;
  rn_cuda_step step[RN_CUDA_STEPS];
  union {
    rn_cuda_call call;
    rn_cuda_forward forward;
    rn_cuda_quantise quantise;
    rn_cuda_backward backward;
  } params;
} rn_cuda_plan;

/* Each fills *plan and returns NULL, or returns why its kernels do not take the problem (static text).
 * rn_cuda_plan_of asks them in order, fastest first; the general one last. */
const char *rn_cuda_plan_of(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                            rn_cuda_plan *plan);
const char *rn_cuda_plan_forward(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                                 rn_cuda_plan *plan);
const char *rn_cuda_plan_quantise(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                                  rn_cuda_plan *plan);
const char *rn_cuda_plan_backward(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                                  rn_cuda_plan *plan);
const char *rn_cuda_plan_general(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                                 rn_cuda_plan *plan);

/* The most blocks of a cluster, 1 where there are neither clusters nor bulk copies. 16 are more than the architecture
 * promises; sm_90 and sm_100 have them. */
int32_t rn_cuda_most_blocks(const rn_cuda_device *device);
/* The struct of forward.cu, which that of quantise.cu begins with; and one of its tensors. */
void rn_cuda_fill_forward(const rn_problem *p, const rn_cuda_options *options, rn_cuda_forward *forward);
rn_cuda_view rn_cuda_view_of(const rn_view *view, int64_t group_cols);

/* How much workspace backward wants: a function of the problem alone, so that it can be asked without a device. Covers
 * every plan. */
size_t rn_cuda_workspace_bytes(const rn_problem *p);
/* What each family needs of it; 0 without dweight. rn_cuda_workspace_bytes is the larger. */
size_t rn_cuda_workspace_general(const rn_problem *p);
size_t rn_cuda_workspace_backward(const rn_problem *p);

#endif /* RN_CUDA_PLAN_H */
