/* gpu.c - gpu.h through the CUDA driver or the HIP runtime, found at run time.
 *
 * The few functions that are needed, by the names each exports them under, with C types of our own: no header of CUDA
 * or ROCm is needed to build the command. HIP's functions are CUDA's by other names, but for what a context is.
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
  NON_BLOCKING = 1,  /* CU_STREAM_NON_BLOCKING, hipStreamNonBlocking */
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

/* name, CUDA's symbol, HIP's symbol ("": it has none), parameters */
#define FUNCTIONS(X)                                                                                                   \
  X(cuInit, "cuInit", "hipInit", (unsigned flags))                                                                     \
  X(cuDriverGetVersion, "cuDriverGetVersion", "hipRuntimeGetVersion", (int *version))                                  \
  X(cuGetErrorName, "cuGetErrorName", "hipDrvGetErrorName", (int error, const char **text))                            \
  X(cuGetErrorString, "cuGetErrorString", "hipDrvGetErrorString", (int error, const char **text))                      \
  X(cuDeviceGetCount, "cuDeviceGetCount", "hipGetDeviceCount", (int *count))                                           \
  X(cuDeviceGet, "cuDeviceGet", "hipDeviceGet", (int *device, int ordinal))                                            \
  X(cuDeviceGetName, "cuDeviceGetName", "hipDeviceGetName", (char *name, int bytes, int device))                       \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", "hipDeviceGetAttribute", (int *value, int attribute, int device))    \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", "hipDeviceTotalMem", (size_t * bytes, int device))                        \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", "", (void **context, int device))                            \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", "", (int device))                                       \
  X(cuCtxCreate, "cuCtxCreate_v2", "", (void **context, unsigned flags, int device))                                   \
  X(cuCtxDestroy, "cuCtxDestroy_v2", "", (void *context))                                                              \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", "", (void *context))                                                           \
  X(cuCtxSynchronize, "cuCtxSynchronize", "hipDeviceSynchronize", (void))                                              \
  X(cuMemGetInfo, "cuMemGetInfo_v2", "hipMemGetInfo", (size_t * available, size_t * total))                            \
  X(cuMemAlloc, "cuMemAlloc_v2", "hipMalloc", (address * data, size_t bytes))                                          \
  X(cuMemFree, "cuMemFree_v2", "hipFree", (address data))                                                              \
  X(cuMemAllocHost, "cuMemAllocHost_v2", "hipMemAllocHost", (void **data, size_t bytes))                               \
  X(cuMemFreeHost, "cuMemFreeHost", "hipHostFree", (void *data))                                                       \
  X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", "hipMemcpyHtoD", (address to, const void *from, size_t bytes))                    \
  X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", "hipMemcpyDtoH", (void *to, address from, size_t bytes))                          \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync",                                                   \
    (address to, address from, size_t bytes, void *stream))                                                            \
  X(cuMemsetD8, "cuMemsetD8_v2", "hipMemsetD8", (address to, unsigned char value, size_t count))                       \
  X(cuStreamCreate, "cuStreamCreate", "hipStreamCreateWithFlags", (void **stream, unsigned flags))                     \
  X(cuStreamSynchronize, "cuStreamSynchronize", "hipStreamSynchronize", (void *stream))                                \
  X(cuStreamDestroy, "cuStreamDestroy_v2", "hipStreamDestroy", (void *stream))                                         \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", "hipStreamBeginCapture", (void *stream, int mode))                \
  X(cuStreamEndCapture, "cuStreamEndCapture", "hipStreamEndCapture", (void *stream, void **graph))                     \
  X(cuEventCreate, "cuEventCreate", "hipEventCreateWithFlags", (void **event, unsigned flags))                         \
  X(cuEventRecord, "cuEventRecord", "hipEventRecord", (void *event, void *stream))                                     \
  X(cuEventSynchronize, "cuEventSynchronize", "hipEventSynchronize", (void *event))                                    \
  X(cuEventElapsedTime, "cuEventElapsedTime", "hipEventElapsedTime", (float *milliseconds, void *from, void *to))      \
  X(cuEventDestroy, "cuEventDestroy_v2", "hipEventDestroy", (void *event))                                             \
  X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags",                        \
    (void **exec, void *graph, unsigned long long flags))                                                              \
  X(cuGraphLaunch, "cuGraphLaunch", "hipGraphLaunch", (void *exec, void *stream))                                      \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", "hipGraphExecDestroy", (void *exec))                                     \
  X(cuGraphDestroy, "cuGraphDestroy", "hipGraphDestroy", (void *graph))                                                \
  X(cuLibraryLoadData, "cuLibraryLoadData", "", LIBRARY_PARAMETERS)                                                    \
  X(cuLibraryGetKernel, "cuLibraryGetKernel", "", (void **kernel, void *library, const char *name))                    \
  X(cuLaunchKernelEx, "cuLaunchKernelEx", "", (const launch *how, void *kernel, void **parameters, void **extra))      \
  X(hipSetDevice, "", "hipSetDevice", (int device))                                                                    \
  X(hipGetDeviceProperties, "", "hipGetDevicePropertiesR0600", (void *properties, int device))

typedef struct api {
#define MEMBER(name, cuda, hip, parameters) int(*name) parameters;
  FUNCTIONS(MEMBER)
#undef MEMBER
} api;

enum attribute { MULTIPROCESSORS, L2_BYTES, MAJOR, MINOR, ATTRIBUTES };

/* Kinds of devices, by rmsnorm_device. */
typedef struct runtime {
  const char *word, *variable; /* of the environment, that names another file */
  const char *files[5];        /* tried in this order, after that one */
  int attributes[ATTRIBUTES];  /* CU_DEVICE_ATTRIBUTE_..., hipDeviceAttribute_t */
  enum { NOT_YET, LOADED, REFUSED } state;
  int version, count; /* of the driver, of its devices */
  char why[400];
  api api;
} runtime;
static runtime runtimes[] = {[RMSNORM_DEVICE_CUDA] = {.word = "CUDA driver",
                                                      .variable = "RMSNORM_CUDA_DRIVER",
                                                      .files = {"libcuda.so.1"},
                                                      .attributes = {16, 38, 75, 76}},
                             [RMSNORM_DEVICE_HIP] = {.word = "HIP runtime",
                                                     .variable = "RMSNORM_HIP_DRIVER",
                                                     .files = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so",
                                                               "/opt/rocm/lib/libamdhip64.so"},
                                                     .attributes = {63, 19, 23, 61}}};
static runtime *now = &runtimes[RMSNORM_DEVICE_CUDA];

struct rn_device {
  void *context;
  int device;
  bool primary;
};

static char what[sizeof now->why];

void rn_device_choose(int device) {
  now = &runtimes[device == RMSNORM_DEVICE_HIP ? RMSNORM_DEVICE_HIP : RMSNORM_DEVICE_CUDA];
}
int rn_device_kind(void) {
  return (int)(now - runtimes);
}
static bool is_hip(void) {
  return now == &runtimes[RMSNORM_DEVICE_HIP];
}

const char *rn_device_error(void) {
  return what;
}

/* What a function is called where it was looked for. */
static const char *symbol_of(const char *name) {
  static const struct {
    const char *name, *cuda, *hip;
  } symbols[] = {
#define SYMBOLS(name, cuda, hip, parameters) {#name, cuda, hip},
      FUNCTIONS(SYMBOLS)
#undef SYMBOLS
  };
  size_t i = 0;
  while (strcmp(name, symbols[i].name) != 0) i++;
  const char *symbol = is_hip() ? symbols[i].hip : symbols[i].cuda;
  return *symbol ? symbol : name;
}

static bool failed(const char *function, int error) {
  const char *name = NULL, *words = NULL;
  if (now->api.cuGetErrorName) (void)now->api.cuGetErrorName(error, &name);
  if (now->api.cuGetErrorString) (void)now->api.cuGetErrorString(error, &words);
  snprintf(what, sizeof what, "%s: %s (%d)%s%s", symbol_of(function), name ? name : "error", error, words ? ", " : "",
           words ? words : "");
  return false;
}

static bool missing(const char *function) {
  snprintf(what, sizeof what, "the %s has no %s", now->word, symbol_of(function));
  return false;
}

/* true when the function is there and succeeds. */
#define TRY(name, ...) (now->api.name == NULL ? missing(#name) : attempted(#name, now->api.name(__VA_ARGS__)))

static bool attempted(const char *function, int error) {
  return error == SUCCESS || failed(function, error);
}

/* ---- the driver ---- */

/* A pointer to data becomes one to a function: ISO C has no cast for it, POSIX promises that it works. */
static void find(void *library, const char *symbol, void *function) {
  void *found = dlsym(library, symbol);
  memcpy(function, &found, sizeof found);
}

static void *open_file(const char **file) {
  const char *named = getenv(now->variable);
  if (named && *named) return dlopen(*file = named, RTLD_NOW | RTLD_LOCAL);
  void *library = NULL;
  for (int i = 0; !library && now->files[i]; i++) library = dlopen(*file = now->files[i], RTLD_NOW | RTLD_LOCAL);
  return library;
}

static bool load(void) {
  const char *file = NULL;
  if (now->state == LOADED) return true;
  if (now->state == REFUSED) {
    memcpy(what, now->why, sizeof what);
    return false;
  }
  now->state = REFUSED;
  void *library = open_file(&file);
  if (!library) {
    const char *reason = dlerror();
    snprintf(what, sizeof what, "there is no %s on this machine: %s", now->word, reason ? reason : file);
  } else {
#define FUNCTION(name, cuda, hip, parameters)                                                                          \
  if (*(is_hip() ? hip : cuda)) find(library, is_hip() ? hip : cuda, &now->api.name);
    FUNCTIONS(FUNCTION)
#undef FUNCTION
    if (!now->api.cuInit || !now->api.cuDeviceGetCount || !now->api.cuDeviceGet)
      snprintf(what, sizeof what, "%s is not a %s: it has no %s", file, now->word, symbol_of("cuInit"));
    else if (TRY(cuInit, 0) && TRY(cuDeviceGetCount, &now->count) && TRY(cuDriverGetVersion, &now->version))
      now->state = LOADED;
  }
  memcpy(now->why, what, sizeof what);
  return now->state == LOADED;
}

int rn_device_count(void) {
  if (!load()) return 0;
  if (now->count < 1) snprintf(what, sizeof what, "the %s has no device", now->word);
  return now->count;
}

static bool device_of(int ordinal, int *device) {
  if (rn_device_count() < 1) return false;
  if (ordinal < 0 || ordinal >= now->count) {
    snprintf(what, sizeof what, "there is no device %d, the driver has %d", ordinal, now->count);
    return false;
  }
  return TRY(cuDeviceGet, device, ordinal);
}

/* gcnArchName of the properties' layout R0600, which are 1472 bytes. */
static bool find_arch(int device, rn_device_facts *f) {
  enum { ARCH_NAME = 1160, ROOM = 4096 };
  static union {
    char bytes[ROOM];
    uint64_t aligned;
  } properties;
  if (!TRY(hipGetDeviceProperties, &properties, device)) return false;
  snprintf(f->arch, sizeof f->arch, "%.60s", properties.bytes + ARCH_NAME);
  return true;
}

bool rn_device_facts_of(int ordinal, rn_device_facts *f) {
  int device, l2 = 0;
  memset(f, 0, sizeof *f);
  f->ordinal = ordinal;
  if (!device_of(ordinal, &device)) return false;
  f->driver = now->version;
  if (TRY(cuDeviceGetAttribute, &l2, now->attributes[L2_BYTES], device)) f->l2_bytes = (size_t)l2;
  return TRY(cuDeviceGetName, f->name, (int)sizeof f->name - 1, device) &&
         TRY(cuDeviceGetAttribute, &f->major, now->attributes[MAJOR], device) &&
         TRY(cuDeviceGetAttribute, &f->minor, now->attributes[MINOR], device) &&
         TRY(cuDeviceGetAttribute, &f->sms, now->attributes[MULTIPROCESSORS], device) &&
         TRY(cuDeviceTotalMem, &f->memory_bytes, device) && (!is_hip() || find_arch(device, f));
}

const char *rn_device_version(const rn_device_facts *f) {
  static char text[40];
  if (*f->arch)
    snprintf(text, sizeof text, "HIP %d.%d", f->driver / 10000000, f->driver / 100000 % 100);
  else
    snprintf(text, sizeof text, "driver %d.%d", f->driver / 1000, f->driver % 1000 / 10);
  return text;
}

/* ---- contexts ---- */

static bool open_on(rn_device *d) {
  if (is_hip()) return true; /* a device is its own context */
  return d->primary ? TRY(cuDevicePrimaryCtxRetain, &d->context, d->device)
                    : TRY(cuCtxCreate, &d->context, 0, d->device);
}

static rn_device *open_context(int ordinal, bool primary) {
  rn_device *d = calloc(1, sizeof *d);
  if (!d) {
    snprintf(what, sizeof what, "no memory");
    return NULL;
  }
  d->primary = primary;
  if (device_of(ordinal, &d->device) && open_on(d)) {
    if (rn_device_use(d)) return d;
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
  if (is_hip())
    ; /* it stays */
  else if (d->primary)
    (void)TRY(cuDevicePrimaryCtxRelease, d->device);
  else
    (void)TRY(cuCtxDestroy, d->context);
  free(d);
}

bool rn_device_use(const rn_device *d) {
  return is_hip() ? TRY(hipSetDevice, d->device) : TRY(cuCtxSetCurrent, d->context);
}
bool rn_device_finish(void) {
  return now->api.cuCtxSynchronize == NULL ? missing("cuCtxSynchronize")
                                           : attempted("cuCtxSynchronize", now->api.cuCtxSynchronize());
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

static const char *const kinds[] = {
    [RMSNORM_DEVICE_CPU] = "cpu", [RMSNORM_DEVICE_CUDA] = "cuda", [RMSNORM_DEVICE_HIP] = "hip"};

bool rn_where_parse(const char *text, rn_where *where) {
  char *end;
  where->ordinal = 0;
  for (int kind = 0; kind < (int)(sizeof kinds / sizeof *kinds); kind++) {
    const size_t length = strlen(kinds[kind]);
    if (strncmp(text, kinds[kind], length) != 0) continue;
    where->device = kind;
    if (!text[length]) return true;
    if (kind == RMSNORM_DEVICE_CPU || text[length] != ':') return false;
    text += length + 1;
    long n = strtol(text, &end, 10);
    where->ordinal = (int)n;
    return *text >= '0' && *text <= '9' && !*end && n < 1024;
  }
  return false;
}

const char *rn_where_name(const rn_where *where) {
  return kinds[where->device];
}

bool rn_where_has(const rn_where *where, int i) {
  return rmsnorm_impl_device(i) == where->device;
}
