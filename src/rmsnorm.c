/* rmsnorm.c - the entry points: check the arguments, select an implementation, run it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define STRING_OF(x) #x
#define STRING(x)    STRING_OF(x)

int rmsnorm_version(void) {
  return RMSNORM_VERSION;
}

const char *rmsnorm_version_string(void) {
  return STRING(RMSNORM_VERSION_MAJOR) "." STRING(RMSNORM_VERSION_MINOR) "." STRING(RMSNORM_VERSION_PATCH);
}

static rmsnorm_status check_stream(const rn_problem *p, const void *stream) {
  if (stream != NULL && p->device == RMSNORM_DEVICE_CPU)
    return rn_error(RMSNORM_ERROR_COMBINATION, "stream: must be NULL on the CPU, is %p", stream);
  return RMSNORM_OK;
}

static rmsnorm_status select_and_run(const rn_problem *p, void *stream) {
  if (p->rows == 0) return RMSNORM_OK;
  rmsnorm_status status;
  const rn_impl *impl = rn_select(p, &status);
  return impl != NULL ? impl->run(p, stream) : status;
}

rmsnorm_status rmsnorm_forward(const rmsnorm_forward_args *args, void *stream) {
  rn_problem p;
  rmsnorm_status status = rn_check_forward(args, &p);
  if (status == RMSNORM_OK) status = check_stream(&p, stream);
  return status == RMSNORM_OK ? select_and_run(&p, stream) : status;
}

rmsnorm_status rmsnorm_stats(const rmsnorm_stats_args *args, void *stream) {
  rn_problem p;
  rmsnorm_status status = rn_check_stats(args, &p);
  if (status == RMSNORM_OK) status = check_stream(&p, stream);
  return status == RMSNORM_OK ? select_and_run(&p, stream) : status;
}

static rmsnorm_status check_workspace(const rmsnorm_backward_args *args, size_t needed, const rn_problem *p,
                                      const rn_regions *regions) {
  uintptr_t first = (uintptr_t)args->workspace;
  if (args->workspace == NULL)
    return rn_error(RMSNORM_ERROR_WORKSPACE, "workspace: is NULL, %zu bytes are needed", needed);
  if (args->workspace_bytes < needed)
    return rn_error(RMSNORM_ERROR_WORKSPACE, "workspace_bytes: %zu are needed, found %zu", needed,
                    args->workspace_bytes);
  if (first % 64 != 0)
    return rn_error(RMSNORM_ERROR_WORKSPACE, "workspace: %p is not aligned to 64 bytes", args->workspace);
  if (args->workspace_bytes > UINTPTR_MAX - first)
    return rn_error(RMSNORM_ERROR_WORKSPACE, "workspace_bytes: %zu bytes from %p on pass the end of memory",
                    args->workspace_bytes, args->workspace);
  const rn_region region = {first, first + needed, "workspace", NULL, (int64_t)needed};
  return rn_check_overlap_of(p, regions, &region);
}

/* The sum over no rows. On a device that is the device's memory, which only its implementation can reach. */
static rmsnorm_status zero_dweight(const rn_problem *p, void *stream) {
  size_t bytes = (size_t)(p->dweight_vectors * p->dweight_cols * p->dweight_size);
  if (p->device == RMSNORM_DEVICE_CPU) {
    memset(p->dweight, 0, bytes);
    return RMSNORM_OK;
  }
  rmsnorm_status status;
  const rn_impl *impl = rn_impl_for_device(p->device, &status);
  return impl != NULL ? impl->zero(p->dweight, bytes, stream) : status;
}

rmsnorm_status rmsnorm_backward(const rmsnorm_backward_args *args, void *stream) {
  rn_problem p;
  rn_regions regions;
  rmsnorm_status status = rn_check_backward(args, RN_CHECK_CALL, &p, &regions);
  if (status == RMSNORM_OK) status = check_stream(&p, stream);
  if (status != RMSNORM_OK) return status;
  if (p.rows == 0) return p.dweight != NULL ? zero_dweight(&p, stream) : RMSNORM_OK;
  const rn_impl *impl = rn_select(&p, &status);
  if (impl == NULL) return status;
  size_t needed = impl->workspace_bytes(&p);
  if (needed > 0) {
    status = check_workspace(args, needed, &p, &regions);
    if (status != RMSNORM_OK) return status;
    p.workspace = args->workspace;
    p.workspace_bytes = args->workspace_bytes;
  }
  return impl->run(&p, stream);
}

rmsnorm_status rmsnorm_backward_workspace_bytes(const rmsnorm_backward_args *args, size_t *bytes) {
  rn_problem p;
  rn_regions regions;
  if (bytes == NULL) return rn_error(RMSNORM_ERROR_NULL, "bytes: is NULL");
  rmsnorm_status status = rn_check_backward(args, RN_CHECK_SIZES, &p, &regions);
  if (status != RMSNORM_OK) return status;
  size_t needed = 0;
  if (p.rows > 0) {
    const rn_impl *impl = rn_select(&p, &status);
    if (impl == NULL) return status;
    needed = impl->workspace_bytes(&p);
  }
  *bytes = needed;
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_preload(int32_t device) {
  if (device < RMSNORM_DEVICE_CPU || device > RMSNORM_DEVICE_HIP)
    return rn_error(RMSNORM_ERROR_ENUM, "device: expected CPU (0), CUDA (1) or HIP (2), found %" PRId32, device);
  return device == RMSNORM_DEVICE_CPU ? RMSNORM_OK : rn_preload(device);
}

static rmsnorm_status check_op(int op, const void *args, rn_problem *p) {
  rn_regions regions;
  switch (op) {
  case RMSNORM_OP_FORWARD:
    return rn_check_forward(args, p);
  case RMSNORM_OP_STATS:
    return rn_check_stats(args, p);
  case RMSNORM_OP_BACKWARD:
    return rn_check_backward(args, RN_CHECK_CALL, p, &regions);
  default:
    return rn_error(RMSNORM_ERROR_ENUM, "op: expected FORWARD (0), STATS (1) or BACKWARD (2), found %d", op);
  }
}

rmsnorm_status rmsnorm_impl_for(int op, const void *args, const char **name) {
  rn_problem p;
  if (name == NULL) return rn_error(RMSNORM_ERROR_NULL, "name: is NULL");
  rmsnorm_status status = check_op(op, args, &p);
  if (status != RMSNORM_OK) return status;
  const rn_impl *impl = rn_select(&p, &status);
  if (impl == NULL) return status;
  *name = impl->name;
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_explain(int op, const void *args, char *text, size_t bytes) {
  rn_problem p;
  if (text == NULL) return rn_error(RMSNORM_ERROR_NULL, "text: is NULL");
  if (bytes == 0) return rn_error(RMSNORM_ERROR_BUFFER, "text: 0 bytes have no room for anything");
  rmsnorm_status status = check_op(op, args, &p);
  if (status == RMSNORM_OK) return rn_explain(&p, text, bytes);
  snprintf(text, bytes, "%s\n", rmsnorm_last_error());
  return status;
}
