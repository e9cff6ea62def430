/* launch_triton.c - what the rows "triton" and "triton-hip" have in common: a plan, its launches queued on the caller's
 * stream.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../fpenv.h"
#include "triton.h"

/* A plan converts numbers (eps, divisor), and that is arithmetic: not in the caller's mode. */
static const char *plan_of(const rn_problem *p, const rn_triton_device *device, rn_triton_plan *plan) {
  rn_fp saved = rn_fp_enter();
  const char *reason = rn_triton_plan_of(p, device, plan);
  rn_fp_leave(saved);
  return reason;
}

const char *rn_triton_why_not(const rn_triton_gpu *gpu, const rn_problem *p) {
  rn_triton_device device;
  rn_triton_plan plan = {.steps = 0};
  if (!gpu->device_to_explain(&device)) return "the driver does not describe its device";
  return plan_of(p, &device, &plan);
}

static rmsnorm_status refuse(const rn_triton_gpu *gpu, const rn_triton_device *device, const char *reason) {
  if (device->device == RMSNORM_DEVICE_HIP)
    return rn_error(RMSNORM_ERROR_UNSUPPORTED, "\"%s\": %s; device %d is gfx%x", gpu->name, reason, device->number,
                    (unsigned)device->arch);
  return rn_error(RMSNORM_ERROR_UNSUPPORTED, "\"%s\": %s; device %d has compute capability %d.%d", gpu->name, reason,
                  device->number, device->arch / 10, device->arch % 10);
}

/* Programmatic dependent launch is a promise of the kernel to wait, which these do not make: without effect. */
rmsnorm_status rn_triton_run(const rn_triton_gpu *gpu, const rn_problem *p, void *stream) {
  rn_triton_device device;
  rn_triton_plan plan = {.steps = 0};
  rmsnorm_status status = gpu->device_of_thread(&device);
  if (status != RMSNORM_OK) return status;
  const char *reason = plan_of(p, &device, &plan);
  if (reason != NULL) return refuse(gpu, &device, reason);
  for (int i = 0; i < plan.steps && status == RMSNORM_OK; i++) {
    const rn_triton_step *step = &plan.step[i];
    rn_triton_value values[RN_TRITON_PARAMETERS];
    void *handle;
    status = gpu->ready(step->kernel, &device, &handle);
    if (status != RMSNORM_OK) break;
    const int count = rn_triton_values(&rn_triton_kernels[step->kernel], p, &plan.extra, values);
    status = gpu->launch(step, handle, values, count, stream);
  }
  return status;
}

rmsnorm_status rn_triton_preload(const rn_triton_gpu *gpu) {
  rn_triton_device device;
  rmsnorm_status status = gpu->device_of_thread(&device);
  if (status != RMSNORM_OK) return status;
  const rn_triton_target *target = rn_triton_target_of(&device);
  if (target == NULL) return refuse(gpu, &device, rn_triton_no_target);
  for (int32_t i = 0; i < target->count && status == RMSNORM_OK; i++) {
    void *handle;
    status = gpu->ready(target->first + i, &device, &handle);
    if (status == RMSNORM_OK && gpu->load_now != NULL) status = gpu->load_now(target->first + i, handle);
  }
  return status;
}
