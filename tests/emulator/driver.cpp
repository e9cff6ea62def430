/* driver.cpp - the emulated CUDA driver: devices, contexts, memory, and how its entry points are found.
 *
 * What RMSNORM_EMULATED_... variables say: DEVICES (how many, 1), CAPABILITY (8.0, 8.6, 8.9, 9.0, 10.0 or 12.0; 9.0),
 * MEMORY_MIB (of a device, 4096), VERSION (of the driver, 12080), ORDER (of threads; engine.h),
 * TRACE (which kernels were launched how often).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace rn_driver {

std::recursive_mutex mutex;

namespace {

/* What plans look at, by capability. */
struct chip {
  int capability;
  const char *name;
  int multiprocessors, shared_bytes, shared_of_multiprocessor, l2_bytes;
};
constexpr chip chips[] = {{80, "emulated A100", 108, 163 * 1024, 164 * 1024, 40 << 20},
                          {86, "emulated A40", 84, 99 * 1024, 100 * 1024, 6 << 20},
                          {89, "emulated L40", 142, 99 * 1024, 100 * 1024, 96 << 20},
                          {90, "emulated H200", 132, 227 * 1024, 228 * 1024, 60 << 20},
                          {100, "emulated B200", 148, 227 * 1024, 228 * 1024, 126 << 20},
                          {120, "emulated 5090", 170, 99 * 1024, 100 * 1024, 96 << 20}};

bool initialized;
const chip *the_chip = &chips[3];
std::vector<context *> contexts;
uint32_t contexts_made;
std::map<int, context *> primary;
std::map<int, int> retained;
thread_local std::vector<context *> stack; /* the last one is current */

context *make_context(int device) {
  context *c = new context();
  c->number = ++contexts_made;
  c->device = device;
  contexts.push_back(c);
  return c;
}

void destroy(context *c) {
  rn_emulated_free_all_of(c->number);
  for (size_t i = 0; i < contexts.size(); i++)
    if (contexts[i] == c) contexts.erase(contexts.begin() + (long)i);
  delete c;
}

} // namespace

int count_of_devices() {
  const char *text = getenv("RMSNORM_EMULATED_DEVICES");
  return text ? atoi(text) : 1;
}

bool is_context(const context *c) {
  for (const context *known : contexts)
    if (known == c) return true;
  return false;
}

context *current() {
  return stack.empty() || !is_context(stack.back()) ? nullptr : stack.back();
}

int refuse(int error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("emulated driver: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  return error;
}

} // namespace rn_driver

using namespace rn_driver;

#define LOCK std::lock_guard<std::recursive_mutex> lock(mutex)
#define NEED_INIT                                                                                                      \
  LOCK;                                                                                                                \
  if (!initialized) return NOT_INITIALIZED
#define NEED_CONTEXT                                                                                                   \
  NEED_INIT;                                                                                                           \
  context *const here = current();                                                                                     \
  if (!here) return INVALID_CONTEXT;                                                                                   \
  rn_emulated_own(here->number)
#define NEED_DEVICE(device)                                                                                            \
  NEED_INIT;                                                                                                           \
  if (device < 0 || device >= count_of_devices()) return INVALID_DEVICE

/* ------------------------------------------------------------------------------------------------------------------
 * The driver. */

RN_EXPORT cuInit(unsigned flags) {
  LOCK;
  if (flags) return INVALID_VALUE;
  if (count_of_devices() < 1) return NO_DEVICE;
  if (const char *text = getenv("RMSNORM_EMULATED_CAPABILITY")) {
    const int wanted = (int)(10 * strtod(text, nullptr) + 0.5);
    the_chip = nullptr;
    for (const chip &c : chips)
      if (c.capability == wanted) the_chip = &c;
    if (!the_chip) {
      the_chip = &chips[3];
      return refuse(INVALID_DEVICE, "RMSNORM_EMULATED_CAPABILITY=%s is not emulated", text);
    }
  }
  rn_emulated_capability = the_chip->capability;
  rn_emulated_shared_limit = (uint32_t)the_chip->shared_bytes;
  initialized = true;
  rn_emulated_shut();
  return SUCCESS;
}

RN_EXPORT cuDriverGetVersion(int *version) {
  const char *text = getenv("RMSNORM_EMULATED_VERSION");
  *version = text ? atoi(text) : 12080;
  return SUCCESS;
}

static const struct {
  int error;
  const char *name, *words;
} errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not initiated in this stream"},
    {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {INVALID_CLUSTER_SIZE, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
};
static int tell(int error, const char **text, bool words) {
  for (const auto &e : errors)
    if (e.error == error) {
      *text = words ? e.words : e.name;
      return SUCCESS;
    }
  *text = nullptr;
  return INVALID_VALUE;
}
RN_EXPORT cuGetErrorName(int error, const char **text) {
  return tell(error, text, false);
}
RN_EXPORT cuGetErrorString(int error, const char **text) {
  return tell(error, text, true);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Devices and contexts. */

RN_EXPORT cuDeviceGetCount(int *count) {
  NEED_INIT;
  *count = count_of_devices();
  return SUCCESS;
}
RN_EXPORT cuDeviceGet(int *device, int ordinal) {
  NEED_DEVICE(ordinal);
  *device = ordinal;
  return SUCCESS;
}
RN_EXPORT cuDeviceGetName(char *name, int bytes, int device) {
  NEED_DEVICE(device);
  snprintf(name, (size_t)bytes, "%s", the_chip->name);
  return SUCCESS;
}
RN_EXPORT cuDeviceTotalMem_v2(size_t *bytes, int device) {
  NEED_DEVICE(device);
  *bytes = rn_emulated_memory_total();
  return SUCCESS;
}
RN_EXPORT cuDeviceGetAttribute(int *value, int attribute, int device) {
  NEED_DEVICE(device);
  switch (attribute) {
  case 1: /* threads of a block, their x */
  case 2:
    *value = 1024;
    break;
  case 5: /* blocks of a grid */
    *value = 0x7fffffff;
    break;
  case 8: /* shared memory without asking */
    *value = 48 * 1024;
    break;
  case 10:
    *value = 32;
    break;
  case 12: /* registers of a block, of a multiprocessor */
  case 82:
    *value = 65536;
    break;
  case 16:
    *value = the_chip->multiprocessors;
    break;
  case 38:
    *value = the_chip->l2_bytes;
    break;
  case 39: /* threads of a multiprocessor */
    *value = the_chip->capability % 10 && the_chip->capability != 90 ? 1536 : 2048;
    break;
  case 41: /* one address space */
    *value = 1;
    break;
  case 75:
    *value = the_chip->capability / 10;
    break;
  case 76:
    *value = the_chip->capability % 10;
    break;
  case 81:
    *value = the_chip->shared_of_multiprocessor;
    break;
  case 97:
    *value = the_chip->shared_bytes;
    break;
  case 120: /* clusters */
    *value = the_chip->capability >= 90;
    break;
  default:
    return refuse(INVALID_VALUE, "device attribute %d is not emulated", attribute);
  }
  return SUCCESS;
}

RN_EXPORT cuDevicePrimaryCtxRetain(context **c, int device) {
  NEED_DEVICE(device);
  if (!primary[device]) primary[device] = make_context(device);
  retained[device]++;
  *c = primary[device];
  return SUCCESS;
}
RN_EXPORT cuDevicePrimaryCtxRelease_v2(int device) {
  NEED_DEVICE(device);
  if (!retained[device]) return INVALID_CONTEXT;
  if (--retained[device] == 0) {
    destroy(primary[device]);
    primary[device] = nullptr;
  }
  return SUCCESS;
}
RN_EXPORT cuCtxCreate_v2(context **c, unsigned, int device) {
  NEED_DEVICE(device);
  *c = make_context(device);
  stack.push_back(*c);
  return SUCCESS;
}
RN_EXPORT cuCtxDestroy_v2(context *c) {
  NEED_INIT;
  if (!is_context(c)) return INVALID_CONTEXT;
  if (!stack.empty() && stack.back() == c) stack.pop_back();
  destroy(c);
  return SUCCESS;
}
RN_EXPORT cuCtxPushCurrent_v2(context *c) {
  NEED_INIT;
  if (!is_context(c)) return INVALID_CONTEXT;
  stack.push_back(c);
  return SUCCESS;
}
RN_EXPORT cuCtxPopCurrent_v2(context **c) {
  NEED_INIT;
  if (stack.empty()) return INVALID_CONTEXT;
  if (c) *c = stack.back();
  stack.pop_back();
  return SUCCESS;
}
RN_EXPORT cuCtxSetCurrent(context *c) {
  NEED_INIT;
  if (c && !is_context(c)) return INVALID_CONTEXT;
  if (!stack.empty()) stack.pop_back();
  if (c) stack.push_back(c);
  return SUCCESS;
}
RN_EXPORT cuCtxGetCurrent(context **c) {
  NEED_INIT;
  *c = current();
  return SUCCESS;
}
RN_EXPORT cuCtxGetDevice(int *device) {
  NEED_CONTEXT;
  *device = here->device;
  return SUCCESS;
}
RN_EXPORT cuCtxSynchronize() {
  NEED_CONTEXT;
  return not_in_capture("cuCtxSynchronize");
}

/* ------------------------------------------------------------------------------------------------------------------
 * Memory. */

RN_EXPORT cuMemGetInfo_v2(size_t *available, size_t *total) {
  NEED_CONTEXT;
  *total = rn_emulated_memory_total();
  *available = *total - rn_emulated_memory_used();
  return SUCCESS;
}
RN_EXPORT cuMemAlloc_v2(void **at, size_t bytes) {
  NEED_CONTEXT;
  if (int error = not_in_capture("cuMemAlloc")) return error;
  if (!bytes) return INVALID_VALUE;
  *at = rn_emulated_alloc(bytes);
  return *at ? SUCCESS : OUT_OF_MEMORY;
}
RN_EXPORT cuMemFree_v2(void *at) {
  NEED_CONTEXT;
  if (int error = not_in_capture("cuMemFree")) return error;
  return !at || rn_emulated_free(at) ? SUCCESS : refuse(INVALID_VALUE, "cuMemFree of %p, which is no allocation", at);
}
RN_EXPORT cuMemAllocHost_v2(void **at, size_t bytes) {
  NEED_CONTEXT;
  *at = malloc(bytes);
  return *at ? SUCCESS : OUT_OF_MEMORY;
}
RN_EXPORT cuMemFreeHost(void *at) {
  NEED_CONTEXT;
  free(at);
  return SUCCESS;
}

static int copied(void *to, const void *from, size_t bytes, bool to_device, bool from_device) {
  if (rn_emulated_copy(to, from, bytes, to_device, from_device)) return SUCCESS;
  return refuse(INVALID_VALUE, "a copy of %zu bytes from %p to %p: out of bounds", bytes, from, to);
}
RN_EXPORT cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes) {
  NEED_CONTEXT;
  if (int error = not_in_capture("cuMemcpyHtoD")) return error;
  return copied(to, from, bytes, true, false);
}
RN_EXPORT cuMemcpyDtoH_v2(void *to, const void *from, size_t bytes) {
  NEED_CONTEXT;
  if (int error = not_in_capture("cuMemcpyDtoH")) return error;
  return copied(to, from, bytes, false, true);
}
RN_EXPORT cuMemcpyDtoD_v2(void *to, const void *from, size_t bytes) {
  NEED_CONTEXT;
  if (int error = not_in_capture("cuMemcpyDtoD")) return error;
  return copied(to, from, bytes, true, true);
}
RN_EXPORT cuMemsetD8_v2(void *at, unsigned char byte, size_t count) {
  NEED_CONTEXT;
  if (int error = not_in_capture("cuMemsetD8")) return error;
  if (rn_emulated_fill(at, byte, count)) return SUCCESS;
  return refuse(INVALID_VALUE, "setting %zu bytes at %p: out of bounds", count, at);
}
/* In a capture only copies within the device are emulated. */
static int copy_queued(void *to, const void *from, size_t bytes, bool to_device, bool from_device, void *s) {
  NEED_CONTEXT;
  if (to_device && from_device) {
    work w = {};
    w.kind = work::COPY, w.to = to, w.from = from, w.bytes = bytes;
    return queue(s, w);
  }
  if (int error = not_in_capture("a copy between host and device")) return error;
  return copied(to, from, bytes, to_device, from_device);
}
RN_EXPORT cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *s) {
  return copy_queued(to, from, bytes, true, false, s);
}
RN_EXPORT cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, void *s) {
  return copy_queued(to, from, bytes, false, true, s);
}
RN_EXPORT cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *s) {
  return copy_queued(to, from, bytes, true, true, s);
}
RN_EXPORT cuMemsetD8Async(void *at, unsigned char byte, size_t count, void *s) {
  NEED_CONTEXT;
  work w = {};
  w.kind = work::FILL, w.to = at, w.byte = byte, w.bytes = count;
  return queue(s, w);
}
