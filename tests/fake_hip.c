/* fake_hip.c - see fake_hip.h. Its functions have the types that AMD documents; the properties have the layout R0600.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fake_hip.h"

#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { INVALID_DEVICE = 101, NOT_FOUND = 500, INVALID_HANDLE = 400 };

typedef struct module {
  const void *image;
  int device, loaded;
} module;
typedef struct function {
  module *of;
  char entry[64];
} function;

static _Thread_local int current;
static module modules[FAKE_HIP_MOST];
static function functions[FAKE_HIP_MOST];

static void make_current(int device) {
  current = device;
}

EXPORT fake_hip fake = {.version = 60032830,
                        .devices = FAKE_HIP_DEVICES,
                        .arch = {"gfx942:sramecc+:xnack-", "gfx90a:sramecc+:xnack-"},
                        .make_current = make_current};

#include "fake_calls.h"

EXPORT int hipRuntimeGetVersion(int *version);
EXPORT int hipRuntimeGetVersion(int *version) {
  ENTER();
  *version = fake.version;
  return leave(SUCCESS);
}

EXPORT int hipInit(unsigned flags);
EXPORT int hipInit(unsigned flags) {
  ENTER();
  return leave(flags == 0 ? fake.init_result : breach("flags of", "hipInit"));
}

EXPORT int hipGetDeviceCount(int *count);
EXPORT int hipGetDeviceCount(int *count) {
  ENTER();
  *count = fake.devices;
  return leave(fake.devices > 0 ? SUCCESS : 100);
}

EXPORT int hipGetDevice(int *device);
EXPORT int hipGetDevice(int *device) {
  ENTER();
  *device = current;
  return leave(SUCCESS);
}

/* Not counted: it is what failures are explained with. */
EXPORT const char *hipGetErrorName(int error);
EXPORT const char *hipGetErrorName(int error) {
  return error == 1     ? "hipErrorInvalidValue"
         : error == 209 ? "hipErrorNoBinaryForGpu"
         : error == 900 ? "hipErrorStreamCaptureUnsupported"
         : error == 999 ? "hipErrorUnknown"
                        : NULL;
}

/* Where the fields lie: 1472 bytes in all, every other one of them poison. */
EXPORT int hipGetDevicePropertiesR0600(void *properties, int device);
EXPORT int hipGetDevicePropertiesR0600(void *properties, int device) {
  ENTER();
  if (device < 0 || device >= fake.devices) return leave(INVALID_DEVICE);
  char *p = properties;
  const size_t shared = 65536;
  const int wave = 64, units = device == 0 ? 304 : 104;
  memset(p, 0xa5, 1472);
  memcpy(p + 296, &shared, sizeof shared);
  memcpy(p + 308, &wave, sizeof wave);
  memcpy(p + 388, &units, sizeof units);
  snprintf(p + 1160, 256, "%s", fake.arch[device]);
  return leave(SUCCESS);
}

EXPORT int hipModuleLoadData(void **handle, const void *image);
EXPORT int hipModuleLoadData(void **handle, const void *image) {
  usleep((useconds_t)fake.load_us);
  ENTER();
  if (image == NULL) return leave(breach("no image for", "hipModuleLoadData"));
  if (fake.loads == FAKE_HIP_MOST) return leave(2);
  modules[fake.loads] = (module){image, current, 1};
  *handle = &modules[fake.loads++];
  return leave(SUCCESS);
}

static int is_loaded(const module *m) {
  return m >= modules && m < modules + FAKE_HIP_MOST && m->loaded;
}

EXPORT int hipModuleUnload(void *handle);
EXPORT int hipModuleUnload(void *handle) {
  ENTER();
  if (!is_loaded(handle)) return leave(breach("unloading", "what is not loaded"));
  ((module *)handle)->loaded = 0;
  fake.unloads++;
  return leave(SUCCESS);
}

EXPORT int hipModuleGetFunction(void **handle, void *of, const char *name);
EXPORT int hipModuleGetFunction(void **handle, void *of, const char *name) {
  ENTER();
  if (!is_loaded(of)) return leave(breach("functions of", "what is not loaded"));
  if (fake.functions == FAKE_HIP_MOST) return leave(NOT_FOUND);
  function *f = &functions[fake.functions++];
  f->of = of;
  snprintf(f->entry, sizeof f->entry, "%s", name);
  *handle = f;
  return leave(SUCCESS);
}

#ifndef FAKE_HIP_LACKS_LAUNCH
static int launch(const function *f, const uint32_t *blocks, const uint32_t *threads, uint32_t shared, void *stream,
                  void **params, void **extra) {
  if (f < functions || f >= functions + fake.functions || !f->of->loaded) return INVALID_HANDLE;
  if (f->of->device != current) return breach("a launch on another device than that of", f->entry);
  if (params != NULL || extra == NULL || (uintptr_t)extra[0] != 1 || (uintptr_t)extra[2] != 2 ||
      (uintptr_t)extra[4] != 3)
    return breach("the form of the arguments of", f->entry);
  if (fake.launches == FAKE_HIP_MOST) return 2;
  fake_hip_launch *record = &fake.launch[fake.launches++];
  *record = (fake_hip_launch){.image = f->of->image, .device = current, .shared = shared, .stream = stream};
  snprintf(record->entry, sizeof record->entry, "%s", f->entry);
  memcpy(record->blocks, blocks, sizeof record->blocks);
  memcpy(record->threads, threads, sizeof record->threads);
  record->bytes = *(const size_t *)extra[3];
  if (record->bytes > FAKE_HIP_BYTES) return breach("the size of the arguments of", f->entry);
  memcpy(record->arguments, extra[1], record->bytes);
  if (fake.argument_bytes != NULL && fake.argument_bytes(f->of->image, f->entry) != record->bytes) return INVALID_VALUE;
  const uint64_t in_block = (uint64_t)threads[0] * threads[1] * threads[2];
  if (in_block < 1 || in_block > 1024) return breach("threads of", f->entry);
  if (blocks[0] < 1 || blocks[0] * in_block >= (uint64_t)1 << 32) return breach("a grid of 2^32 threads of", f->entry);
  if (shared > 65536) return breach("LDS of", f->entry);
  return SUCCESS;
}

EXPORT int hipModuleLaunchKernel(void *f, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                                 unsigned shared, void *stream, void **params, void **extra);
EXPORT int hipModuleLaunchKernel(void *f, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                                 unsigned shared, void *stream, void **params, void **extra) {
  const uint32_t blocks[3] = {bx, by, bz}, threads[3] = {tx, ty, tz};
  ENTER();
  return leave(launch(f, blocks, threads, shared, stream, params, extra));
}
#endif

EXPORT int hipMemsetAsync(void *at, int value, size_t bytes, void *stream);
EXPORT int hipMemsetAsync(void *at, int value, size_t bytes, void *stream) {
  ENTER();
  if (fake.memsets == FAKE_HIP_MOST) return leave(2);
  fake.memset8[fake.memsets].at = at, fake.memset8[fake.memsets].stream = stream;
  fake.memset8[fake.memsets].value = value, fake.memset8[fake.memsets++].bytes = bytes;
  return leave(SUCCESS);
}
