/* loader.c - kernels: loaded when they are first used, prepared once for each device, launched.
 *
 * Images and kernels belong to no context, so one handle of each serves all contexts of all devices. Handles lie in
 * atomics: threads that come first together may load an image twice, and the one that is late gives its own back.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "host.h"

#include <stdatomic.h>

static const struct {
  const char *name;
  int family;
} list[RN_CUDA_KERNELS] = {
#define TEXT_OF(name)                    #name
#define RN_LISTED(family, name, threads) {TEXT_OF(name), RN_FAMILY_##family},
    RN_CUDA_LIST};

#define FAMILY_NAME(family) #family,
static const char *const family_names[RN_CUDA_FAMILY_COUNT] = {RN_CUDA_FAMILIES(FAMILY_NAME)};

static _Atomic(void *) libraries[RN_CUDA_FAMILY_COUNT];
static struct {
  _Atomic(void *) handle;
  _Atomic uint64_t prepared; /* bit i: on device i */
} kernels[RN_CUDA_KERNELS];

uint32_t rn_cuda_families(void) {
  uint32_t families = 0;
  for (int i = 0; i < RN_CUDA_FAMILY_COUNT; i++)
    if (rn_cuda_images[i] != NULL) families |= 1u << i;
  return families;
}

/* Machine code runs on devices of its major and of its minor or a later one; any other device gets the PTX. */
static bool has_machine_code(int32_t major, int32_t minor) {
  for (int i = 0; rn_cuda_capabilities[i] != 0; i++)
    if (rn_cuda_capabilities[i] / 10 == major && rn_cuda_capabilities[i] % 10 <= minor) return true;
  return false;
}

static void place_on(const rn_driver_device *device, rn_place *place) {
  place->number = device->number;
  place->facts = (rn_cuda_device){.major = device->major,
                                  .minor = device->minor,
                                  .multiprocessors = device->multiprocessors,
                                  .shared_bytes = device->shared_bytes,
                                  .families = rn_cuda_families(),
                                  .native = has_machine_code(device->major, device->minor)};
}

rmsnorm_status rn_place_of_context(rn_place *place) {
  rn_driver_device device;
  rmsnorm_status status = rn_driver_device_of_context(&device);
  if (status == RMSNORM_OK) place_on(&device, place);
  return status;
}

bool rn_place_to_explain(rn_place *place) {
  rn_driver_device device;
  if (!rn_driver_device_to_explain(&device)) return false;
  place_on(&device, place);
  return true;
}

static rmsnorm_status load_library(int family, void **library) {
  const rn_driver *driver = rn_driver_get();
  *library = atomic_load_explicit(&libraries[family], memory_order_acquire);
  if (*library != NULL) return RMSNORM_OK;
  void *fresh = NULL, *first = NULL;
  int error = driver->library_load(&fresh, rn_cuda_images[family], NULL, NULL, 0, NULL, NULL, 0);
  if (error != RN_CU_SUCCESS) return rn_driver_error(error, "loading the kernels of ", family_names[family]);
  if (atomic_compare_exchange_strong(&libraries[family], &first, fresh)) {
    *library = fresh;
  } else {
    driver->library_unload(fresh);
    *library = first;
  }
  return RMSNORM_OK;
}

static rmsnorm_status load_kernel(int kernel, void **handle) {
  void *library;
  rmsnorm_status status = load_library(list[kernel].family, &library);
  if (status != RMSNORM_OK) return status;
  int error = rn_driver_get()->library_kernel(handle, library, list[kernel].name);
  if (error != RN_CU_SUCCESS) return rn_driver_error(error, "finding ", list[kernel].name);
  atomic_store_explicit(&kernels[kernel].handle, *handle, memory_order_release);
  return RMSNORM_OK;
}

/* Lets a kernel have as much shared memory and as large clusters as there are, whatever its first launch asks for. */
static rmsnorm_status prepare(int kernel, void *handle, const rn_place *place) {
  const rn_driver *driver = rn_driver_get();
  int fixed = 0;
  int error = driver->kernel_attribute(&fixed, RN_CU_KERNEL_STATIC_SHARED_BYTES, handle, place->number);
  if (error == RN_CU_SUCCESS)
    error = driver->set_kernel_attribute(RN_CU_KERNEL_MOST_DYNAMIC_SHARED_BYTES, place->facts.shared_bytes - fixed,
                                         handle, place->number);
  if (error == RN_CU_SUCCESS && place->facts.major >= 9)
    error = driver->set_kernel_attribute(RN_CU_KERNEL_NON_PORTABLE_CLUSTER, 1, handle, place->number);
  if (error != RN_CU_SUCCESS) return rn_driver_error(error, "preparing ", list[kernel].name);
  if (place->number < 64)
    atomic_fetch_or_explicit(&kernels[kernel].prepared, (uint64_t)1 << place->number, memory_order_release);
  return RMSNORM_OK;
}

static rmsnorm_status ready_kernel(int kernel, const rn_place *place, void **handle) {
  *handle = atomic_load_explicit(&kernels[kernel].handle, memory_order_acquire);
  if (*handle == NULL) {
    rmsnorm_status status = load_kernel(kernel, handle);
    if (status != RMSNORM_OK) return status;
  }
  uint64_t prepared = atomic_load_explicit(&kernels[kernel].prepared, memory_order_acquire);
  if (place->number < 64 && (prepared >> place->number & 1) != 0) return RMSNORM_OK;
  return prepare(kernel, *handle, place);
}

rmsnorm_status rn_loader_launch(const rn_cuda_step *step, const rn_place *place, bool dependent, void *params,
                                void *stream) {
  void *handle;
  rmsnorm_status status = ready_kernel(step->kernel, place, &handle);
  if (status != RMSNORM_OK) return status;
  rn_cu_launch_attribute attributes[2];
  rn_cu_launch_config config = {.blocks = {step->blocks, 1, 1},
                                .threads = {step->threads, 1, 1},
                                .shared = step->shared,
                                .stream = stream,
                                .attributes = attributes};
  if (step->cluster > 1)
    attributes[config.attribute_count++] =
        (rn_cu_launch_attribute){.id = RN_CU_LAUNCH_CLUSTER, .value.cluster = {step->cluster, 1, 1}};
  if (dependent)
    attributes[config.attribute_count++] = (rn_cu_launch_attribute){.id = RN_CU_LAUNCH_DEPENDENT, .value.dependent = 1};
  int error = rn_driver_get()->launch(&config, handle, &params, NULL);
  return error == RN_CU_SUCCESS ? RMSNORM_OK : rn_driver_error(error, "launching ", list[step->kernel].name);
}

rmsnorm_status rn_loader_preload(void) {
  rn_place place;
  rmsnorm_status status = rn_place_of_context(&place);
  for (int kernel = 0; kernel < RN_CUDA_KERNELS && status == RMSNORM_OK; kernel++) {
    void *handle;
    if (rn_cuda_images[list[kernel].family] == NULL) continue;
    status = ready_kernel(kernel, &place, &handle);
    if (status != RMSNORM_OK) break;
    int error = rn_driver_load_kernel(handle);
    if (error != RN_CU_SUCCESS) status = rn_driver_error(error, "loading ", list[kernel].name);
  }
  return status;
}
