/* hip_triton.c - the row "triton-hip": the kernels on AMD GPUs, through the runtime of src/gpu.
 *
 * A module belongs to the device that was current when it was loaded, so each device has handles of its own. Threads
 * that come first together may load a kernel twice; the one that is late gives its own back.
 *
 * The code objects are compiled and inspected, and this file is tested against a runtime that writes down what it is
 * asked for; it has not been run on AMD hardware.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../gpu/hip.h"
#include "triton.h"

/* How the arguments are handed over: as one block, laid out as the kernel reads them. */
static void *const buffer_pointer = (void *)(uintptr_t)1, *const buffer_size = (void *)(uintptr_t)2,
                   *const buffer_end = (void *)(uintptr_t)3;

static void describe(const rn_hip_device *from, rn_triton_device *to) {
  *to = (rn_triton_device){.device = RMSNORM_DEVICE_HIP,
                           .number = from->number,
                           .arch = from->arch,
                           .wave = from->wave,
                           .multiprocessors = from->multiprocessors,
                           .shared_bytes = from->shared_bytes};
}
static rmsnorm_status device_of_thread(rn_triton_device *device) {
  rn_hip_device found;
  rmsnorm_status status = rn_hip_device_of_thread(&found);
  if (status == RMSNORM_OK) describe(&found, device);
  return status;
}
static bool device_to_explain(rn_triton_device *device) {
  rn_hip_device found;
  if (!rn_hip_device_to_explain(&found)) return false;
  describe(&found, device);
  return true;
}

static rmsnorm_status load(const rn_triton_kernel *k, _Atomic(void *) *place, void **handle) {
  const rn_hip *hip = rn_hip_get();
  void *module = NULL, *first = NULL;
  int error = hip->module_load(&module, k->image);
  if (error != RN_HIP_SUCCESS) return rn_hip_error(error, "loading ", k->name);
  error = hip->module_function(handle, module, k->entry);
  if (error != RN_HIP_SUCCESS) {
    hip->module_unload(module);
    return rn_hip_error(error, "finding ", k->name);
  }
  if (!atomic_compare_exchange_strong(place, &first, *handle)) {
    hip->module_unload(module);
    *handle = first;
  }
  return RMSNORM_OK;
}

static rmsnorm_status ready(int32_t kernel, const rn_triton_device *device, void **handle) {
  if (device->number >= RN_TRITON_DEVICES)
    return rn_error(RMSNORM_ERROR_UNSUPPORTED, "\"triton-hip\": device %d: only the first %d devices of a process",
                    device->number, RN_TRITON_DEVICES);
  _Atomic(void *) *place = &rn_triton_loads[kernel].of[device->number];
  *handle = atomic_load_explicit(place, memory_order_acquire);
  return *handle != NULL ? RMSNORM_OK : load(&rn_triton_kernels[kernel], place, handle);
}

/* Each value at a multiple of its width, as in a struct. */
static size_t pack(const rn_triton_kernel *k, const rn_triton_value *values, int count, unsigned char *block) {
  size_t at = 0;
  for (int i = 0; i < count; i++) {
    const int kind = i < k->count ? k->parameters[i].kind : RN_TRITON_POINTER;
    const size_t width = kind == RN_TRITON_I32 || kind == RN_TRITON_F32 ? 4 : 8;
    at = (at + width - 1) / width * width;
    memcpy(block + at, &values[i], width);
    at += width;
  }
  return at;
}

static rmsnorm_status launch(const rn_triton_step *step, void *handle, const rn_triton_value *values, int count,
                             void *stream) {
  const rn_triton_kernel *k = &rn_triton_kernels[step->kernel];
  uint64_t block[RN_TRITON_PARAMETERS] = {0};
  size_t size = pack(k, values, count, (unsigned char *)block);
  void *extra[] = {buffer_pointer, block, buffer_size, &size, buffer_end};
  int error = rn_hip_get()->launch(handle, step->blocks, 1, 1, step->threads, 1, 1, k->shared, stream, NULL, extra);
  return error == RN_HIP_SUCCESS ? RMSNORM_OK : rn_hip_error(error, "launching ", k->name);
}

static const rn_triton_gpu gpu = {.name = "triton-hip",
                                  .device_of_thread = device_of_thread,
                                  .device_to_explain = device_to_explain,
                                  .ready = ready,
                                  .launch = launch};

static const char *machine_why_not(void) {
  return rn_triton_has(RMSNORM_DEVICE_HIP) ? rn_hip_why_not()
                                           : "this build has no Triton kernels for HIP (RMSNORM_TRITON_TARGETS)";
}
static const char *why_not(const rn_problem *p) {
  return rn_triton_why_not(&gpu, p);
}
static rmsnorm_status run(const rn_problem *p, void *stream) {
  return rn_triton_run(&gpu, p, stream);
}
static rmsnorm_status zero(void *data, size_t bytes, void *stream) {
  int error = rn_hip_get()->memset8(data, 0, bytes, stream);
  return error == RN_HIP_SUCCESS ? RMSNORM_OK : rn_hip_error(error, "setting dweight to zero", "");
}
static rmsnorm_status preload(void) {
  return rn_triton_preload(&gpu);
}

const rn_impl rn_impl_triton_hip = {.name = "triton-hip",
                                    .device = RMSNORM_DEVICE_HIP,
                                    .machine_why_not = machine_why_not,
                                    .why_not = why_not,
                                    .workspace_bytes = rn_triton_workspace_bytes,
                                    .run = run,
                                    .zero = zero,
                                    .preload = preload};
