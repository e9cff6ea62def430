/* gpu.c - gpu.h through the CUDA driver, found at run time.
 *
 * The few functions of the driver that are needed, by the names the driver exports them under, with C types of our own:
 * no header of CUDA is needed to build the command.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include "rmsnorm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t address; /* CUdeviceptr */

enum {
  SUCCESS = 0,
  MULTIPROCESSORS = 16, /* CU_DEVICE_ATTRIBUTE_... */
  L2_BYTES = 38,
  CAPABILITY_MAJOR = 75,
  CAPABILITY_MINOR = 76,
  NON_BLOCKING = 1,  /* CU_STREAM_NON_BLOCKING */
  CAPTURE_GLOBAL = 0 /* the strictest: nothing that a capture forbids may be called by anybody */
};

/* CUlaunchConfig */
typedef struct launch {
  unsigned blocks[3], threads[3], shared;
  void *stream, *attributes;
  unsigned attribute_count;
} launch;

#define LIBRARY_PARAMETERS                                                                                             \
  (void **library, const void *image, int *options, void **values, unsigned count, int *library_options,               \
   void **library_values, unsigned library_count)

/* name without suffix, suffix, parameters */
#define FUNCTIONS(X)                                                                                                   \
  X(cuInit, "", (unsigned flags))                                                                                      \
  X(cuDriverGetVersion, "", (int *version))                                                                            \
  X(cuGetErrorName, "", (int error, const char **text))                                                                \
  X(cuGetErrorString, "", (int error, const char **text))                                                              \
  X(cuDeviceGetCount, "", (int *count))                                                                                \
  X(cuDeviceGet, "", (int *device, int ordinal))                                                                       \
  X(cuDeviceGetName, "", (char *name, int bytes, int device))                                                          \
  X(cuDeviceGetAttribute, "", (int *value, int attribute, int device))                                                 \
  X(cuDeviceTotalMem, "_v2", (size_t * bytes, int device))                                                             \
  X(cuDevicePrimaryCtxRetain, "", (void **context, int device))                                                        \
  X(cuDevicePrimaryCtxRelease, "_v2", (int device))                                                                    \
  X(cuCtxCreate, "_v2", (void **context, unsigned flags, int device))                                                  \
  X(cuCtxDestroy, "_v2", (void *context))                                                                              \
  X(cuCtxSetCurrent, "", (void *context))                                                                              \
  X(cuCtxSynchronize, "", (void))                                                                                      \
  X(cuMemGetInfo, "_v2", (size_t * available, size_t * total))                                                         \
  X(cuMemAlloc, "_v2", (address * data, size_t bytes))                                                                 \
  X(cuMemFree, "_v2", (address data))                                                                                  \
  X(cuMemAllocHost, "_v2", (void **data, size_t bytes))                                                                \
  X(cuMemFreeHost, "", (void *data))                                                                                   \
  X(cuMemcpyHtoD, "_v2", (address to, const void *from, size_t bytes))                                                 \
  X(cuMemcpyDtoH, "_v2", (void *to, address from, size_t bytes))                                                       \
  X(cuMemcpyDtoDAsync, "_v2", (address to, address from, size_t bytes, void *stream))                                  \
  X(cuMemsetD8, "_v2", (address to, unsigned char value, size_t count))                                                \
  X(cuStreamCreate, "", (void **stream, unsigned flags))                                                               \
  X(cuStreamSynchronize, "", (void *stream))                                                                           \
  X(cuStreamDestroy, "_v2", (void *stream))                                                                            \
  X(cuStreamBeginCapture, "_v2", (void *stream, int mode))                                                             \
  X(cuStreamEndCapture, "", (void *stream, void **graph))                                                              \
  X(cuEventCreate, "", (void **event, unsigned flags))                                                                 \
  X(cuEventRecord, "", (void *event, void *stream))                                                                    \
  X(cuEventSynchronize, "", (void *event))                                                                             \
  X(cuEventElapsedTime, "", (float *milliseconds, void *from, void *to))                                               \
  X(cuEventDestroy, "_v2", (void *event))                                                                              \
  X(cuGraphInstantiateWithFlags, "", (void **exec, void *graph, unsigned long long flags))                             \
  X(cuGraphLaunch, "", (void *exec, void *stream))                                                                     \
  X(cuGraphExecDestroy, "", (void *exec))                                                                              \
  X(cuGraphDestroy, "", (void *graph))                                                                                 \
  X(cuLibraryLoadData, "", LIBRARY_PARAMETERS)                                                                         \
  X(cuLibraryGetKernel, "", (void **kernel, void *library, const char *name))                                          \
  X(cuLaunchKernelEx, "", (const launch *how, void *kernel, void **parameters, void **extra))

static struct {
#define MEMBER(name, suffix, parameters) int(*name) parameters;
  FUNCTIONS(MEMBER)
#undef MEMBER
} cu;

struct rn_device {
  void *context;
  int device;
  bool primary;
};

static char what[400];
static int version, count; /* of the driver, of its devices */

const char *rn_device_error(void) {
  return what;
}

static bool failed(const char *function, int error) {
  const char *name = NULL, *words = NULL;
  if (cu.cuGetErrorName) (void)cu.cuGetErrorName(error, &name);
  if (cu.cuGetErrorString) (void)cu.cuGetErrorString(error, &words);
  snprintf(what, sizeof what, "%s: %s (%d)%s%s", function, name ? name : "error", error, words ? ", " : "",
           words ? words : "");
  return false;
}

static bool missing(const char *function) {
  snprintf(what, sizeof what, "the driver has no %s", function);
  return false;
}

/* true when the driver's function is there and succeeds. */
#define TRY(name, ...) (cu.name == NULL ? missing(#name) : attempted(#name, cu.name(__VA_ARGS__)))

static bool attempted(const char *function, int error) {
  return error == SUCCESS || failed(function, error);
}

/* ---- the driver ---- */

/* A pointer to data becomes one to a function: ISO C has no cast for it, POSIX promises that it works. */
static void find(void *library, const char *symbol, void *function) {
  void *found = dlsym(library, symbol);
  memcpy(function, &found, sizeof found);
}

static bool load(void) {
  static enum { NOT_YET, LOADED, REFUSED } state;
  static char why[sizeof what];
  if (state == LOADED) return true;
  if (state == REFUSED) {
    memcpy(what, why, sizeof why);
    return false;
  }
  state = REFUSED;
  const char *named = getenv("RMSNORM_CUDA_DRIVER"), *file = named && *named ? named : "libcuda.so.1";
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *reason = dlerror();
    snprintf(what, sizeof what, "there is no CUDA driver on this machine: %s", reason ? reason : file);
  } else {
#define FUNCTION(name, suffix, parameters) find(library, #name suffix, &cu.name);
    FUNCTIONS(FUNCTION)
#undef FUNCTION
    if (!cu.cuInit || !cu.cuDeviceGetCount || !cu.cuDeviceGet)
      snprintf(what, sizeof what, "%s is not a CUDA driver: it has no cuInit", file);
    else if (TRY(cuInit, 0) && TRY(cuDeviceGetCount, &count) && TRY(cuDriverGetVersion, &version))
      state = LOADED;
  }
  memcpy(why, what, sizeof why);
  return state == LOADED;
}

int rn_device_count(void) {
  if (!load()) return 0;
  if (count < 1) snprintf(what, sizeof what, "the CUDA driver has no device");
  return count;
}

static bool device_of(int ordinal, int *device) {
  if (rn_device_count() < 1) return false;
  if (ordinal < 0 || ordinal >= count) {
    snprintf(what, sizeof what, "there is no device %d, the driver has %d", ordinal, count);
    return false;
  }
  return TRY(cuDeviceGet, device, ordinal);
}

bool rn_device_facts_of(int ordinal, rn_device_facts *f) {
  int device, l2 = 0;
  memset(f, 0, sizeof *f);
  f->ordinal = ordinal;
  if (!device_of(ordinal, &device)) return false;
  f->driver = version;
  if (TRY(cuDeviceGetAttribute, &l2, L2_BYTES, device)) f->l2_bytes = (size_t)l2;
  return TRY(cuDeviceGetName, f->name, (int)sizeof f->name - 1, device) &&
         TRY(cuDeviceGetAttribute, &f->major, CAPABILITY_MAJOR, device) &&
         TRY(cuDeviceGetAttribute, &f->minor, CAPABILITY_MINOR, device) &&
         TRY(cuDeviceGetAttribute, &f->sms, MULTIPROCESSORS, device) && TRY(cuDeviceTotalMem, &f->memory_bytes, device);
}

/* ---- contexts ---- */

static rn_device *open_context(int ordinal, bool primary) {
  rn_device *d = calloc(1, sizeof *d);
  if (!d) {
    snprintf(what, sizeof what, "no memory");
    return NULL;
  }
  d->primary = primary;
  if (device_of(ordinal, &d->device) &&
      (primary ? TRY(cuDevicePrimaryCtxRetain, &d->context, d->device) : TRY(cuCtxCreate, &d->context, 0, d->device))) {
    if (TRY(cuCtxSetCurrent, d->context)) return d;
    rn_device_close(d);
    return NULL;
  }
  free(d);
  return NULL;
}

rn_device *rn_device_open(int ordinal) {
  return open_context(ordinal, true);
}
rn_device *rn_device_open_another(int ordinal) {
  return open_context(ordinal, false);
}

void rn_device_close(rn_device *d) {
  if (!d) return;
  if (d->primary)
    (void)TRY(cuDevicePrimaryCtxRelease, d->device);
  else
    (void)TRY(cuCtxDestroy, d->context);
  free(d);
}

bool rn_device_use(const rn_device *d) {
  return TRY(cuCtxSetCurrent, d->context);
}
bool rn_device_finish(void) {
  return cu.cuCtxSynchronize == NULL ? missing("cuCtxSynchronize")
                                     : attempted("cuCtxSynchronize", cu.cuCtxSynchronize());
}
size_t rn_device_free_bytes(void) {
  size_t available = 0, total = 0;
  return TRY(cuMemGetInfo, &available, &total) ? available : 0;
}

/* ---- memory ---- */

static address address_of(const void *data) {
  return (address)(uintptr_t)data;
}

void *rn_device_alloc(size_t bytes) {
  address data = 0;
  return TRY(cuMemAlloc, &data, bytes ? bytes : 1) ? (void *)(uintptr_t)data : NULL;
}
void rn_device_free(void *data) {
  if (data) (void)TRY(cuMemFree, address_of(data));
}
bool rn_device_upload(void *to, const void *from, size_t bytes) {
  return bytes == 0 || TRY(cuMemcpyHtoD, address_of(to), from, bytes);
}
bool rn_device_download(void *to, const void *from, size_t bytes) {
  return bytes == 0 || TRY(cuMemcpyDtoH, to, address_of(from), bytes);
}
bool rn_device_fill(void *to, int byte, size_t bytes) {
  return bytes == 0 || TRY(cuMemsetD8, address_of(to), (unsigned char)byte, bytes);
}
bool rn_device_move(void *to, const void *from, size_t bytes, void *stream) {
  return bytes == 0 || TRY(cuMemcpyDtoDAsync, address_of(to), address_of(from), bytes, stream);
}

bool rn_device_repeat(void *data, size_t period, size_t bytes) {
  char *to = data;
  for (size_t have = period; have < bytes;) {
    size_t more = bytes - have < have ? bytes - have : have;
    if (!rn_device_move(to + have, to, more, NULL)) return false;
    have += more;
  }
  return true;
}

void *rn_device_host_alloc(size_t bytes) {
  void *data = NULL;
  return TRY(cuMemAllocHost, &data, bytes) ? data : NULL;
}
void rn_device_host_free(void *data) {
  if (data) (void)TRY(cuMemFreeHost, data);
}

/* ---- streams, events, graphs ---- */

void *rn_stream_new(void) {
  void *stream = NULL;
  return TRY(cuStreamCreate, &stream, NON_BLOCKING) ? stream : NULL;
}
bool rn_stream_finish(void *stream) {
  return TRY(cuStreamSynchronize, stream);
}
void rn_stream_free(void *stream) {
  if (stream) (void)TRY(cuStreamDestroy, stream);
}

void *rn_event_new(void) {
  void *event = NULL;
  return TRY(cuEventCreate, &event, 0) ? event : NULL;
}
bool rn_event_record(void *event, void *stream) {
  return TRY(cuEventRecord, event, stream);
}
bool rn_event_seconds(void *from, void *to, double *seconds) {
  float milliseconds = 0;
  if (!TRY(cuEventElapsedTime, &milliseconds, from, to)) return false;
  *seconds = 1e-3 * (double)milliseconds;
  return true;
}
void rn_event_free(void *event) {
  if (event) (void)TRY(cuEventDestroy, event);
}

bool rn_graph_begin(void *stream) {
  return TRY(cuStreamBeginCapture, stream, CAPTURE_GLOBAL);
}
void *rn_graph_end(void *stream) {
  void *graph = NULL, *exec = NULL;
  if (!TRY(cuStreamEndCapture, stream, &graph) || !graph) return NULL;
  if (!TRY(cuGraphInstantiateWithFlags, &exec, graph, 0)) exec = NULL;
  (void)TRY(cuGraphDestroy, graph);
  return exec;
}
bool rn_graph_launch(void *graph, void *stream) {
  return TRY(cuGraphLaunch, graph, stream);
}
void rn_graph_free(void *graph) {
  if (graph) (void)TRY(cuGraphExecDestroy, graph);
}

/* ---- kernels ---- */

void *rn_kernel_find(const void *image, const char *name) {
  static const void *loaded;
  static void *library;
  void *kernel = NULL;
  if (image != loaded && !TRY(cuLibraryLoadData, &library, image, NULL, NULL, 0, NULL, NULL, 0)) return NULL;
  loaded = image;
  return TRY(cuLibraryGetKernel, &kernel, library, name) ? kernel : NULL;
}

bool rn_kernel_launch(void *kernel, unsigned blocks, unsigned threads, void *parameters, void *stream) {
  const launch how = {{blocks, 1, 1}, {threads, 1, 1}, 0, stream, NULL, 0};
  return TRY(cuLaunchKernelEx, &how, kernel, &parameters, NULL);
}

/* ---- --device ---- */

bool rn_where_parse(const char *text, rn_where *where) {
  char *end;
  where->ordinal = 0;
  where->device = RMSNORM_DEVICE_CUDA;
  if (!strcmp(text, "cuda")) return true;
  if (!strncmp(text, "cuda:", 5) && text[5] >= '0' && text[5] <= '9') {
    long n = strtol(text + 5, &end, 10);
    where->ordinal = (int)n;
    return !*end && n < 1024;
  }
  where->device = RMSNORM_DEVICE_CPU;
  return !strcmp(text, "cpu");
}

bool rn_where_has(const rn_where *where, int i) {
  return rmsnorm_impl_device(i) == where->device;
}
