/* hip.c - finds the HIP runtime when it is first needed, and says in words why it can not be used.
 *
 * Nothing is linked. A process may have a runtime already, PyTorch brings its own: a second one would know nothing of
 * its streams and its memory, so the one that is mapped is taken before any is opened.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* secure_getenv, dl_iterate_phdr */
#endif
#include "hip.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 6.0: the first with hipGetDevicePropertiesR0600. The layout of the properties has changed before, and what is called
 * hipGetDeviceProperties may be either; a name with a revision is one layout for good. */
enum { OLDEST = 60000000 };

static const struct entry {
  const char *name;
  size_t place;
} entries[] = {
#define ENTRY(name, field)                                                                                             \
  { name, offsetof(rn_hip, field) }
    ENTRY("hipGetErrorName", error_name),
    ENTRY("hipInit", init),
    ENTRY("hipGetDeviceCount", device_count),
    ENTRY("hipGetDevice", current_device),
    ENTRY("hipGetDevicePropertiesR0600", device_properties),
    ENTRY("hipModuleLoadData", module_load),
    ENTRY("hipModuleUnload", module_unload),
    ENTRY("hipModuleGetFunction", module_function),
    ENTRY("hipModuleLaunchKernel", launch),
    ENTRY("hipMemsetAsync", memset8),
};

/* Tried in this order; an old one is opened to say that it is old. */
static const char *const files[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so",
                                    "/opt/rocm/lib/libamdhip64.so", "libamdhip64.so.5"};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static rn_hip hip;
static char reason[400]; /* "" = ready */

static const char *error_name(int error) {
  const char *name = hip.error_name != NULL ? hip.error_name(error) : NULL;
  return name != NULL ? name : "error";
}

/* A symbol as a pointer to a function: ISO C knows no cast between the two. */
static bool find(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

/* ---- the file ---- */

static int is_runtime(struct dl_phdr_info *info, size_t size, void *path) {
  (void)size;
  const char *name = info->dlpi_name != NULL ? strrchr(info->dlpi_name, '/') : NULL;
  if (name == NULL || strncmp(name, "/libamdhip64.so", 15) != 0) return 0;
  *(const char **)path = info->dlpi_name;
  return 1;
}

static void *open_mapped(const char **file) {
  if (dl_iterate_phdr(is_runtime, file) == 0) return NULL;
  return dlopen(*file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

static void *open_file(const char **file) {
  const char *named = secure_getenv("RMSNORM_HIP_DRIVER");
  if (named != NULL && named[0] != 0) {
    *file = named;
    return dlopen(named, RTLD_NOW | RTLD_LOCAL);
  }
  void *library = open_mapped(file);
  for (size_t i = 0; i < sizeof files / sizeof files[0] && library == NULL; i++)
    library = dlopen(*file = files[i], RTLD_NOW | RTLD_LOCAL);
  return library;
}

static bool find_entries(void *library) {
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
    if (!find(library, entries[i].name, (char *)&hip + entries[i].place)) {
      snprintf(reason, sizeof reason, "the HIP runtime has no %s", entries[i].name);
      return false;
    }
  return true;
}

/* A runtime that was loaded stays loaded, also one that can not be used: it may have started threads. */
static void open_runtime(void) {
  const char *file = NULL;
  void *library = open_file(&file);
  if (library == NULL) {
    const char *named = secure_getenv("RMSNORM_HIP_DRIVER"), *why = dlerror();
    if (named != NULL && named[0] != 0)
      snprintf(reason, sizeof reason, "no HIP runtime where RMSNORM_HIP_DRIVER says: %s",
               why != NULL ? why : "it can not be opened");
    else
      snprintf(reason, sizeof reason, "no HIP runtime: there is no libamdhip64.so, from ROCm 6.0 on");
    return;
  }
  int (*get_version)(int *version), error, count = 0;
  if (!find(library, "hipRuntimeGetVersion", &get_version)) {
    snprintf(reason, sizeof reason, "%s is no HIP runtime: it has no hipRuntimeGetVersion", file);
    return;
  }
  if ((error = get_version(&hip.version)) != RN_HIP_SUCCESS) {
    snprintf(reason, sizeof reason, "the HIP runtime does not tell its version: error %d", error);
    return;
  }
  if (hip.version < OLDEST) {
    snprintf(reason, sizeof reason, "the HIP runtime is of ROCm %d.%d, 6.0 or later is needed", hip.version / 10000000,
             hip.version / 100000 % 100);
    return;
  }
  if (!find_entries(library)) return;
  if ((error = hip.init(0)) == RN_HIP_SUCCESS) error = hip.device_count(&count);
  if (error == RN_HIP_NO_DEVICE || (error == RN_HIP_SUCCESS && count == 0))
    snprintf(reason, sizeof reason, "there is no HIP device, or HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES hides it");
  else if (error != RN_HIP_SUCCESS)
    snprintf(reason, sizeof reason, "the HIP runtime does not start: %s (%d)", error_name(error), error);
}

const char *rn_hip_why_not(void) {
  pthread_once(&once, open_runtime);
  return reason[0] != 0 ? reason : NULL;
}

const rn_hip *rn_hip_get(void) {
  return &hip;
}

rmsnorm_status rn_hip_error(int error, const char *what, const char *of) {
  const char *hint = "";
  if (error == RN_HIP_INVALID_IMAGE || error == RN_HIP_NO_BINARY_FOR_GPU)
    hint = "; the kernels of this build are not for this device";
  else if (error >= RN_HIP_FIRST_OF_CAPTURE && error <= RN_HIP_LAST_OF_CAPTURE)
    hint = "; call rmsnorm_preload before a graph is captured";
  return rn_error(RMSNORM_ERROR_DEVICE, "HIP: %s%s: %s (%d)%s", what, of, error_name(error), error, hint);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Devices. The facts of each lie in one atomic word, 0 = not asked yet; threads that ask together store the same. */

/* Where the fields lie in the layout R0600, which is 1472 bytes long. */
enum { SHARED_PER_BLOCK = 296, WARP_SIZE = 308, MULTIPROCESSORS = 388, ARCH_NAME = 1160, ROOM = 4096 };

enum { MOST_DEVICES = 64 };
static _Atomic uint64_t known[MOST_DEVICES];

static int32_t number_at(const char *properties, size_t at) {
  int32_t number;
  memcpy(&number, properties + at, sizeof number);
  return number;
}

/* "gfx90a:sramecc+:xnack-": the hexadecimal digits. */
static uint32_t arch_of(const char *name) {
  uint32_t arch = 0;
  if (strncmp(name, "gfx", 3) != 0) return 0;
  for (name += 3; arch <= 0xfff; name++) {
    if (*name >= '0' && *name <= '9')
      arch = arch * 16 + (uint32_t)(*name - '0');
    else if (*name >= 'a' && *name <= 'f')
      arch = arch * 16 + 10 + (uint32_t)(*name - 'a');
    else
      break;
  }
  return *name == 0 || *name == ':' ? arch : 0;
}

static int look_at(int number, uint64_t *word) {
  union {
    char bytes[ROOM];
    uint64_t aligned;
  } properties;
  memset(&properties, 0, sizeof properties);
  int error = hip.device_properties(properties.bytes, number);
  if (error != RN_HIP_SUCCESS) return error;
  uint64_t shared = 0;
  memcpy(&shared, properties.bytes + SHARED_PER_BLOCK, sizeof shared);
  if (shared > 0xffffff) shared = 0xffffff;
  /* arch, multiprocessors, threads of a wave, LDS: 16, 16, 8 and 24 bits */
  *word = (uint64_t)arch_of(properties.bytes + ARCH_NAME) << 48 |
          (uint64_t)(number_at(properties.bytes, MULTIPROCESSORS) & 0xffff) << 32 |
          (uint64_t)(number_at(properties.bytes, WARP_SIZE) & 0xff) << 24 | shared;
  if (number < MOST_DEVICES) atomic_store_explicit(&known[number], *word, memory_order_relaxed);
  return RN_HIP_SUCCESS;
}

static int describe(int number, rn_hip_device *device) {
  uint64_t word = number < MOST_DEVICES ? atomic_load_explicit(&known[number], memory_order_relaxed) : 0;
  if (word == 0) {
    int error = look_at(number, &word);
    if (error != RN_HIP_SUCCESS) return error;
  }
  *device = (rn_hip_device){.number = number,
                            .arch = (int32_t)(word >> 48),
                            .wave = (int32_t)(word >> 24 & 0xff),
                            .multiprocessors = (int32_t)(word >> 32 & 0xffff),
                            .shared_bytes = (int32_t)(word & 0xffffff)};
  return RN_HIP_SUCCESS;
}

rmsnorm_status rn_hip_device_of_thread(rn_hip_device *device) {
  int number = 0, error = hip.current_device(&number);
  if (error != RN_HIP_SUCCESS) return rn_hip_error(error, "hipGetDevice", "");
  error = describe(number, device);
  return error == RN_HIP_SUCCESS ? RMSNORM_OK : rn_hip_error(error, "hipGetDevicePropertiesR0600", "");
}

bool rn_hip_device_to_explain(rn_hip_device *device) {
  int number = 0;
  if (hip.current_device(&number) != RN_HIP_SUCCESS) number = 0;
  return describe(number, device) == RN_HIP_SUCCESS;
}
