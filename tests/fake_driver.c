/* fake_driver.c - see fake_driver.h. Its functions have the types that NVIDIA documents for the entry points.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fake_driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct kernel {
  char name[96];
  const void *image;
  int most_dynamic[FAKE_DEVICES], wide_clusters[FAKE_DEVICES];
} kernel;

typedef struct launch_attribute {
  int id;
  char pad[4];
  union {
    char pad[64];
    uint32_t cluster[3];
    int number;
  } value;
} launch_attribute;

typedef struct launch_config {
  uint32_t blocks[3], threads[3], shared;
  void *stream;
  launch_attribute *attributes;
  uint32_t count;
} launch_config;

enum { INVALID_CONTEXT = 201, NOT_FOUND = 500, STATIC_SHARED = 1024 };

static _Thread_local int current = -1;
static kernel kernels[FAKE_MOST];
static int kernel_count;
static const void *libraries[FAKE_MOST]; /* a library is the address of one: its image, NULL = not loaded (any more) */

static void make_current(int device) {
  current = device;
}

EXPORT fake_driver fake = {.version = 12040,
                           .devices = FAKE_DEVICES,
                           .major = {9, 8},
                           .shared_bytes = {232448, 101376},
                           .make_current = make_current};

#include "fake_calls.h"

EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuDriverGetVersion(int *version) {
  ENTER();
  *version = fake.version;
  return leave(SUCCESS);
}

static int cuInit(unsigned flags) {
  ENTER();
  return leave(flags == 0 ? fake.init_result : breach("flags of", "cuInit"));
}

static int cuDeviceGetCount(int *count) {
  ENTER();
  *count = fake.devices;
  return leave(SUCCESS);
}

static int cuDeviceGetAttribute(int *value, int attribute, int device) {
  ENTER();
  if (device < 0 || device >= fake.devices) return leave(101);
  switch (attribute) {
  case 16:
    *value = device == 0 ? 132 : 58;
    return leave(SUCCESS);
  case 75:
    *value = fake.major[device];
    return leave(SUCCESS);
  case 76:
    *value = device == 0 ? 0 : 9;
    return leave(SUCCESS);
  case 97:
    *value = fake.shared_bytes[device];
    return leave(SUCCESS);
  default:
    return leave(breach("unknown attribute of", "a device"));
  }
}

static int cuCtxGetDevice(int *device) {
  ENTER();
  if (current < 0) return leave(INVALID_CONTEXT);
  *device = current;
  return leave(SUCCESS);
}

/* Not counted: it is what failures are explained with. */
static int cuGetErrorName(int error, const char **name) {
  *name = error == 209   ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : error == 201 ? "CUDA_ERROR_INVALID_CONTEXT"
          : error == 900 ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
          : error == 999 ? "CUDA_ERROR_UNKNOWN"
                         : NULL;
  return *name != NULL ? SUCCESS : INVALID_VALUE;
}

static int cuLibraryLoadData(void **library, const void *image, int *jit_options, void **jit_values, unsigned jit_count,
                             int *options, void **values, unsigned count) {
  usleep((useconds_t)fake.load_us);
  ENTER();
  if (image == NULL || jit_options != NULL || jit_values != NULL || jit_count != 0 || options != NULL ||
      values != NULL || count != 0)
    return leave(breach("arguments of", "cuLibraryLoadData"));
  if (fake.loads == FAKE_MOST) return leave(2);
  libraries[fake.loads] = image;
  *library = &libraries[fake.loads++];
  return leave(SUCCESS);
}

static int is_loaded(const void *library) {
  const void *const *l = library;
  return l >= libraries && l < libraries + FAKE_MOST && *l != NULL;
}

static int cuLibraryUnload(void *library) {
  ENTER();
  if (!is_loaded(library)) return leave(breach("unloading", "what is not loaded"));
  *(const void **)library = NULL;
  fake.unloads++;
  return leave(SUCCESS);
}

static int cuLibraryGetKernel(void **handle, void *library, const char *name) {
  ENTER();
  if (!is_loaded(library)) return leave(breach("kernels of", "what is not loaded"));
  const void *image = *(const void *const *)library;
  int i = 0;
  while (i < kernel_count && (kernels[i].image != image || strcmp(kernels[i].name, name) != 0)) i++;
  if (i == FAKE_MOST) return leave(NOT_FOUND);
  if (i == kernel_count) {
    snprintf(kernels[i].name, sizeof kernels[i].name, "%s", name);
    kernels[i].image = image;
    for (int d = 0; d < FAKE_DEVICES; d++) kernels[i].most_dynamic[d] = 49152 - STATIC_SHARED;
    kernel_count++;
  }
  *handle = &kernels[i];
  return leave(SUCCESS);
}

static int cuKernelGetAttribute(int *value, int attribute, void *handle, int device) {
  ENTER();
  (void)handle;
  if (attribute != 1 || device < 0 || device >= fake.devices) return leave(breach("attribute of", "a kernel"));
  *value = STATIC_SHARED;
  return leave(SUCCESS);
}

static int cuKernelSetAttribute(int attribute, int value, void *handle, int device) {
  ENTER();
  kernel *k = handle;
  if (device < 0 || device >= fake.devices) return leave(breach("device of", "a kernel's attribute"));
  if (attribute == 8 && value <= fake.shared_bytes[device] - STATIC_SHARED)
    k->most_dynamic[device] = value;
  else if (attribute == 14 && value == 1 && fake.major[device] >= 9)
    k->wide_clusters[device] = 1;
  else
    return leave(breach("setting an attribute of", k->name));
  fake.attributes_set[device]++;
  return leave(SUCCESS);
}

/* A function is its kernel here. */
static int cuKernelGetFunction(void **function, void *handle) {
  ENTER();
  if (current < 0) return leave(INVALID_CONTEXT);
  *function = handle;
  return leave(SUCCESS);
}

static int cuFuncGetAttribute(int *value, int attribute, void *function) {
  ENTER();
  (void)attribute, (void)function;
  *value = 0;
  fake.functions_loaded++;
  return leave(SUCCESS);
}

static int cuKernelGetParamInfo(void *handle, size_t index, size_t *offset, size_t *bytes) {
  ENTER();
  const kernel *k = handle;
  *offset = 8 * index;
  *bytes = fake.width != NULL ? fake.width(k->image, k->name, index) : 0;
  return leave(*bytes != 0 ? SUCCESS : INVALID_VALUE);
}

static int cuFuncLoad(void *function) {
  ENTER();
  (void)function;
  fake.functions_loaded++;
  return leave(SUCCESS);
}

static int launch(const launch_config *config, const kernel *k, void **params, void **extra) {
  if (current < 0) return INVALID_CONTEXT;
  if (k < kernels || k >= kernels + kernel_count) return breach("launch of", "no kernel");
  if (params == NULL || params[0] == NULL || extra != NULL) return breach("parameters of", k->name);
  if (fake.launches == FAKE_MOST) return 2;
  fake_launch *record = &fake.launch[fake.launches++];
  *record = (fake_launch){.image = k->image, .device = current, .shared = config->shared, .stream = config->stream};
  snprintf(record->kernel, sizeof record->kernel, "%s", k->name);
  memcpy(record->blocks, config->blocks, sizeof record->blocks);
  memcpy(record->threads, config->threads, sizeof record->threads);
  if (fake.width == NULL) memcpy(record->params, params[0], fake.params_bytes);
  for (size_t i = 0, width; fake.width != NULL && (width = fake.width(k->image, k->name, i)) != 0; i++)
    memcpy(record->params + 8 * i, params[i], width);
  record->attributes = config->count;
  record->cluster = 1;
  for (uint32_t i = 0; i < config->count; i++) {
    const launch_attribute *a = &config->attributes[i];
    if (a->id == 4 && a->value.cluster[1] == 1 && a->value.cluster[2] == 1)
      record->cluster = a->value.cluster[0];
    else if (a->id == 6)
      record->dependent = a->value.number;
    else
      return breach("a launch attribute of", k->name);
  }
  const int threads = (int)(config->threads[0] * config->threads[1] * config->threads[2]);
  if (threads < 1 || threads > 1024) return breach("threads of", k->name);
  if (config->blocks[0] < 1 || config->blocks[0] > INT32_MAX) return breach("blocks of", k->name);
  if ((int)config->shared > k->most_dynamic[current]) return breach("shared memory of", k->name);
  if (record->cluster > 8 && !k->wide_clusters[current]) return breach("the wide cluster of", k->name);
  if (record->cluster > 1 && fake.major[current] < 9) return breach("the cluster of", k->name);
  if (config->blocks[0] % record->cluster != 0) return breach("blocks that fill no cluster of", k->name);
  return SUCCESS;
}

static int cuLaunchKernelEx(const launch_config *config, void *handle, void **params, void **extra) {
  ENTER();
  return leave(launch(config, handle, params, extra));
}

static int cuMemsetD8Async(unsigned long long at, unsigned char value, size_t bytes, void *stream) {
  ENTER();
  if (current < 0) return leave(INVALID_CONTEXT);
  if (fake.memsets == FAKE_MOST) return leave(2);
  fake.memset8[fake.memsets++] = (fake_memset){at, value, bytes, stream};
  return leave(SUCCESS);
}

#define ENTRY(name, since)                                                                                             \
  { #name, (void (*)(void))name, since }
static const struct {
  const char *name;
  void (*function)(void);
  int since;
} entries[] = {
    ENTRY(cuGetErrorName, 6000),        ENTRY(cuInit, 2000),
    ENTRY(cuDeviceGetCount, 2000),      ENTRY(cuDeviceGetAttribute, 2000),
    ENTRY(cuCtxGetDevice, 2000),        ENTRY(cuLibraryLoadData, 12000),
    ENTRY(cuLibraryUnload, 12000),      ENTRY(cuLibraryGetKernel, 12000),
    ENTRY(cuKernelGetAttribute, 12000), ENTRY(cuKernelSetAttribute, 12000),
    ENTRY(cuKernelGetFunction, 12000),  ENTRY(cuFuncGetAttribute, 2020),
    ENTRY(cuFuncLoad, 12040),           ENTRY(cuLaunchKernelEx, 11060),
    ENTRY(cuMemsetD8Async, 3020),       ENTRY(cuKernelGetParamInfo, 12040),
};

EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status);
EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
  ENTER();
  if (fake.asked_count < FAKE_MOST) snprintf(fake.asked[fake.asked_count++], sizeof fake.asked[0], "%s", symbol);
  *function = NULL;
  *status = 1;
  if (flags != 0) return leave(breach("flags for", symbol));
  if (fake.lacks != NULL && strcmp(fake.lacks, symbol) == 0) return leave(NOT_FOUND);
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
    if (strcmp(entries[i].name, symbol) == 0 && version >= entries[i].since && fake.version >= entries[i].since) {
      memcpy(function, &entries[i].function, sizeof *function);
      *status = 0;
      return leave(SUCCESS);
    }
  return leave(NOT_FOUND);
}
