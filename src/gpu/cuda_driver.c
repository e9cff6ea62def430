/* cuda_driver.c - finds the CUDA driver when it is first needed, and says in words why it can not be used.
 *
 * Nothing is linked: the library runs on machines without a GPU. Entry points are asked for by name and version, so
 * that a newer driver answers with the functions whose types cuda_driver.h has.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* secure_getenv */
#endif
#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The interface that cuda_driver.h is written after: the first with libraries of kernels that belong to no context. */
enum { OLDEST = 12000 };

static const struct entry {
  const char *name;
  int version;
  size_t place;
  bool optional;
} entries[] = {
#define ENTRY(name, field)                                                                                             \
  { name, OLDEST, offsetof(rn_driver, field), false }
    ENTRY("cuGetErrorName", error_name),
    ENTRY("cuInit", init),
    ENTRY("cuDeviceGetCount", device_count),
    ENTRY("cuDeviceGetAttribute", device_attribute),
    ENTRY("cuCtxGetDevice", context_device),
    ENTRY("cuLibraryLoadData", library_load),
    ENTRY("cuLibraryUnload", library_unload),
    ENTRY("cuLibraryGetKernel", library_kernel),
    ENTRY("cuKernelGetAttribute", kernel_attribute),
    ENTRY("cuKernelSetAttribute", set_kernel_attribute),
    ENTRY("cuKernelGetFunction", kernel_function),
    ENTRY("cuFuncGetAttribute", function_attribute),
    ENTRY("cuLaunchKernelEx", launch),
    ENTRY("cuMemsetD8Async", memset8),
    {"cuFuncLoad", 12040, offsetof(rn_driver, function_load), true},
    {"cuKernelGetParamInfo", 12040, offsetof(rn_driver, kernel_parameter), true},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static rn_driver driver;
static char reason[400]; /* "" = ready */

static const char *error_name(int error) {
  const char *name = NULL;
  return driver.error_name != NULL && driver.error_name(error, &name) == RN_CU_SUCCESS && name != NULL ? name : "error";
}

/* A symbol as a pointer to a function: ISO C knows no cast between the two. */
static bool find(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

static bool find_entries(void *library) {
  int (*get)(const char *symbol, void **function, int version, uint64_t flags, int *status);
  if (!find(library, "cuGetProcAddress_v2", &get)) {
    snprintf(reason, sizeof reason, "the CUDA driver has no cuGetProcAddress_v2");
    return false;
  }
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
    const struct entry *entry = &entries[i];
    void *function = NULL;
    int status = 0;
    if (get(entry->name, &function, entry->version, 0, &status) != RN_CU_SUCCESS) function = NULL;
    if (function == NULL && !entry->optional) {
      snprintf(reason, sizeof reason, "the CUDA driver has no %s", entry->name);
      return false;
    }
    memcpy((char *)&driver + entry->place, &function, sizeof function);
  }
  return true;
}

/* A driver that was loaded stays loaded, also one that can not be used: it may have started threads. */
static void open_driver(void) {
  const char *named = secure_getenv("RMSNORM_CUDA_DRIVER");
  bool is_named = named != NULL && named[0] != 0;
  void *library = dlopen(is_named ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *why = dlerror();
    snprintf(reason, sizeof reason, "no CUDA driver%s: %s", is_named ? " where RMSNORM_CUDA_DRIVER says" : "",
             why != NULL ? why : "it can not be opened");
    return;
  }
  int (*get_version)(int *version), error, count = 0;
  if (!find(library, "cuDriverGetVersion", &get_version)) {
    snprintf(reason, sizeof reason, "%s is no CUDA driver: it has no cuDriverGetVersion",
             is_named ? named : "libcuda.so.1");
    return;
  }
  if ((error = get_version(&driver.version)) != RN_CU_SUCCESS) {
    snprintf(reason, sizeof reason, "the CUDA driver does not tell its version: error %d", error);
    return;
  }
  if (driver.version < OLDEST) {
    snprintf(reason, sizeof reason, "the CUDA driver is for CUDA %d.%d, 12.0 or later is needed", driver.version / 1000,
             driver.version % 1000 / 10);
    return;
  }
  if (!find_entries(library)) return;
  if ((error = driver.init(0)) == RN_CU_SUCCESS) error = driver.device_count(&count);
  if (error == RN_CU_NO_DEVICE || (error == RN_CU_SUCCESS && count == 0))
    snprintf(reason, sizeof reason, "there is no CUDA device, or CUDA_VISIBLE_DEVICES hides it");
  else if (error != RN_CU_SUCCESS)
    snprintf(reason, sizeof reason, "the CUDA driver does not start: %s (%d)", error_name(error), error);
}

const char *rn_driver_why_not(void) {
  pthread_once(&once, open_driver);
  return reason[0] != 0 ? reason : NULL;
}

const rn_driver *rn_driver_get(void) {
  return &driver;
}

rmsnorm_status rn_driver_error(int error, const char *what, const char *of) {
  const char *hint = "";
  switch (error) {
  case RN_CU_INVALID_CONTEXT:
    hint = "; a CUDA context has to be current in the calling thread (cudaSetDevice, cuCtxSetCurrent)";
    break;
  case RN_CU_INVALID_IMAGE:
  case RN_CU_NO_BINARY_FOR_GPU:
  case RN_CU_UNSUPPORTED_PTX_VERSION:
    hint = "; the kernels of this build are not for this device and driver";
    break;
  default:
    if (error >= RN_CU_FIRST_OF_CAPTURE && error <= RN_CU_LAST_OF_CAPTURE)
      hint = "; call rmsnorm_preload before a graph is captured";
  }
  return rn_error(RMSNORM_ERROR_DEVICE, "CUDA: %s%s: %s (%d)%s", what, of, error_name(error), error, hint);
}

/* Before 12.4 asking for an attribute does it. */
int rn_driver_load_kernel(void *kernel) {
  void *function;
  int ignored, error = driver.kernel_function(&function, kernel);
  if (error != RN_CU_SUCCESS) return error;
  return driver.function_load != NULL ? driver.function_load(function)
                                      : driver.function_attribute(&ignored, RN_CU_KERNEL_STATIC_SHARED_BYTES, function);
}

rmsnorm_status rn_driver_zero(void *data, size_t bytes, void *stream) {
  int error = driver.memset8((uintptr_t)data, 0, bytes, stream);
  return error == RN_CU_SUCCESS ? RMSNORM_OK : rn_driver_error(error, "setting dweight to zero", "");
}

/* ------------------------------------------------------------------------------------------------------------------
 * Devices. The facts of each lie in one atomic word, 0 = not asked yet; threads that ask together store the same. */

enum { MOST_DEVICES = 64 };
static _Atomic uint64_t known[MOST_DEVICES];

static uint64_t pack(const int fact[4]) {
  return (uint64_t)fact[0] << 56 | (uint64_t)fact[1] << 48 | (uint64_t)fact[2] << 32 | (uint64_t)fact[3];
}

static int look_at(int number, uint64_t *word) {
  static const int attribute[4] = {RN_CU_DEVICE_MAJOR, RN_CU_DEVICE_MINOR, RN_CU_DEVICE_MULTIPROCESSORS,
                                   RN_CU_DEVICE_SHARED_BYTES};
  int fact[4];
  for (int i = 0; i < 4; i++) {
    int error = driver.device_attribute(&fact[i], attribute[i], number);
    if (error != RN_CU_SUCCESS) return error;
  }
  *word = pack(fact);
  if (number < MOST_DEVICES) atomic_store_explicit(&known[number], *word, memory_order_relaxed);
  return RN_CU_SUCCESS;
}

static int describe(int number, rn_driver_device *device) {
  uint64_t word = number < MOST_DEVICES ? atomic_load_explicit(&known[number], memory_order_relaxed) : 0;
  if (word == 0) {
    int error = look_at(number, &word);
    if (error != RN_CU_SUCCESS) return error;
  }
  *device = (rn_driver_device){.number = number,
                               .major = (int32_t)(word >> 56),
                               .minor = (int32_t)(word >> 48 & 0xff),
                               .multiprocessors = (int32_t)(word >> 32 & 0xffff),
                               .shared_bytes = (int32_t)(word & 0xffffffff)};
  return RN_CU_SUCCESS;
}

rmsnorm_status rn_driver_device_of_context(rn_driver_device *device) {
  int number = 0, error = driver.context_device(&number);
  if (error != RN_CU_SUCCESS) return rn_driver_error(error, "cuCtxGetDevice", "");
  error = describe(number, device);
  if (error != RN_CU_SUCCESS) return rn_driver_error(error, "cuDeviceGetAttribute", "");
  if (device->major < 8)
    return rn_error(RMSNORM_ERROR_UNSUPPORTED, "CUDA device %d has compute capability %d.%d, 8.0 or later is needed",
                    number, device->major, device->minor);
  return RMSNORM_OK;
}

bool rn_driver_device_to_explain(rn_driver_device *device) {
  int number = 0;
  if (driver.context_device(&number) != RN_CU_SUCCESS) number = 0;
  return describe(number, device) == RN_CU_SUCCESS;
}
