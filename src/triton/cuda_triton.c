/* cuda_triton.c - the row "triton": the kernels on NVIDIA GPUs, through the driver of src/gpu.
 *
 * A kernel's library belongs to no context, so one handle of it serves all contexts of all devices. Handles lie in
 * atomics: threads that come first together may load a kernel twice, and the one that is late gives its own back.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../gpu/cuda_driver.h"
#include "triton.h"

/* What every block may have without asking. */
enum { USUAL_SHARED_BYTES = 48 * 1024 };

static void describe(const rn_driver_device *from, rn_triton_device *to) {
  *to = (rn_triton_device){.device = RMSNORM_DEVICE_CUDA,
                           .number = from->number,
                           .arch = from->major * 10 + from->minor,
                           .wave = 32,
                           .multiprocessors = from->multiprocessors,
                           .shared_bytes = from->shared_bytes};
}
static rmsnorm_status device_of_thread(rn_triton_device *device) {
  rn_driver_device found;
  rmsnorm_status status = rn_driver_device_of_context(&found);
  if (status == RMSNORM_OK) describe(&found, device);
  return status;
}
static bool device_to_explain(rn_triton_device *device) {
  rn_driver_device found;
  if (!rn_driver_device_to_explain(&found)) return false;
  describe(&found, device);
  return true;
}

static rmsnorm_status load(const rn_triton_kernel *k, rn_triton_loaded *loaded, void **handle) {
  const rn_driver *driver = rn_driver_get();
  void *library = NULL, *first = NULL;
  int error = driver->library_load(&library, k->image, NULL, NULL, 0, NULL, NULL, 0);
  if (error != RN_CU_SUCCESS) return rn_driver_error(error, "loading ", k->name);
  error = driver->library_kernel(handle, library, k->entry);
  if (error != RN_CU_SUCCESS) {
    driver->library_unload(library);
    return rn_driver_error(error, "finding ", k->name);
  }
  if (!atomic_compare_exchange_strong(&loaded->of[0], &first, *handle)) {
    driver->library_unload(library);
    *handle = first;
  }
  return RMSNORM_OK;
}

/* Drivers from 12.4 on tell what the kernel takes: the launch reads that much behind each address it is given, so it
 * has to be what the manifest says. */
static rmsnorm_status check_parameters(const rn_triton_kernel *k, void *handle) {
  static const size_t widths[] = {
      [RN_TRITON_POINTER] = 8, [RN_TRITON_I64] = 8, [RN_TRITON_I32] = 4, [RN_TRITON_F32] = 4};
  const rn_driver *driver = rn_driver_get();
  const size_t count = (size_t)k->count + k->hidden;
  size_t offset, size;
  if (driver->kernel_parameter == NULL) return RMSNORM_OK;
  for (size_t i = 0; i < count; i++) {
    const size_t expected = i < k->count ? widths[k->parameters[i].kind] : 8;
    int error = driver->kernel_parameter(handle, i, &offset, &size);
    if (error != RN_CU_SUCCESS && error != RN_CU_INVALID_VALUE) return rn_driver_error(error, "asking for ", k->name);
    if (error != RN_CU_SUCCESS || size != expected)
      return rn_error(RMSNORM_ERROR_DEVICE, "CUDA: parameter %zu of %s is not the one of its manifest", i, k->name);
  }
  if (driver->kernel_parameter(handle, count, &offset, &size) == RN_CU_SUCCESS)
    return rn_error(RMSNORM_ERROR_DEVICE, "CUDA: %s has more parameters than its manifest", k->name);
  return RMSNORM_OK;
}

static rmsnorm_status prepare(const rn_triton_kernel *k, rn_triton_loaded *loaded, const rn_triton_device *device,
                              void *handle) {
  rmsnorm_status status = check_parameters(k, handle);
  if (status != RMSNORM_OK) return status;
  if (k->shared > USUAL_SHARED_BYTES) {
    int error = rn_driver_get()->set_kernel_attribute(RN_CU_KERNEL_MOST_DYNAMIC_SHARED_BYTES, (int)k->shared, handle,
                                                      device->number);
    if (error != RN_CU_SUCCESS) return rn_driver_error(error, "preparing ", k->name);
  }
  if (device->number < RN_TRITON_DEVICES)
    atomic_fetch_or_explicit(&loaded->prepared, (uint64_t)1 << device->number, memory_order_release);
  return RMSNORM_OK;
}

static rmsnorm_status ready(int32_t kernel, const rn_triton_device *device, void **handle) {
  const rn_triton_kernel *k = &rn_triton_kernels[kernel];
  rn_triton_loaded *loaded = &rn_triton_loads[kernel];
  *handle = atomic_load_explicit(&loaded->of[0], memory_order_acquire);
  if (*handle == NULL) {
    rmsnorm_status status = load(k, loaded, handle);
    if (status != RMSNORM_OK) return status;
  }
  const uint64_t prepared = atomic_load_explicit(&loaded->prepared, memory_order_acquire);
  if (device->number < RN_TRITON_DEVICES && (prepared >> device->number & 1) != 0) return RMSNORM_OK;
  return prepare(k, loaded, device, *handle);
}

/* A handle alone loads nothing into a context yet. */
static rmsnorm_status load_now(int32_t kernel, void *handle) {
  int error = rn_driver_load_kernel(handle);
  return error == RN_CU_SUCCESS ? RMSNORM_OK : rn_driver_error(error, "loading ", rn_triton_kernels[kernel].name);
}

static rmsnorm_status launch(const rn_triton_step *step, void *handle, const rn_triton_value *values, int count,
                             void *stream) {
  const rn_triton_kernel *k = &rn_triton_kernels[step->kernel];
  const void *params[RN_TRITON_PARAMETERS];
  for (int i = 0; i < count; i++) params[i] = &values[i];
  const rn_cu_launch_config config = {
      .blocks = {step->blocks, 1, 1}, .threads = {step->threads, 1, 1}, .shared = k->shared, .stream = stream};
  int error = rn_driver_get()->launch(&config, handle, (void **)params, NULL);
  return error == RN_CU_SUCCESS ? RMSNORM_OK : rn_driver_error(error, "launching ", k->name);
}

static const rn_triton_gpu cuda = {.name = "triton",
                                   .device_of_thread = device_of_thread,
                                   .device_to_explain = device_to_explain,
                                   .ready = ready,
                                   .load_now = load_now,
                                   .launch = launch};

static const char *machine_why_not(void) {
  return rn_triton_has(RMSNORM_DEVICE_CUDA) ? rn_driver_why_not()
                                            : "this build has no Triton kernels for CUDA (RMSNORM_TRITON_TARGETS)";
}
static const char *why_not(const rn_problem *p) {
  return rn_triton_why_not(&cuda, p);
}
static rmsnorm_status run(const rn_problem *p, void *stream) {
  return rn_triton_run(&cuda, p, stream);
}
static rmsnorm_status preload(void) {
  return rn_triton_preload(&cuda);
}

const rn_impl rn_impl_triton = {.name = "triton",
                                .device = RMSNORM_DEVICE_CUDA,
                                .machine_why_not = machine_why_not,
                                .why_not = why_not,
                                .workspace_bytes = rn_triton_workspace_bytes,
                                .run = run,
                                .zero = rn_driver_zero,
                                .preload = preload};
