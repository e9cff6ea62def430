/* launches.cpp - the emulated CUDA driver: libraries of kernels, launches, streams, events, capture, graphs.
 *
 * What is queued is done before the call returns, which is one of the orders that streams allow.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <chrono>
#include <string>

#include <dlfcn.h>

using namespace rn_driver;

namespace {

struct library {
  uint32_t mark;
};
constexpr uint32_t library_mark = 0x11b7a9e5;

/* A kernel as the driver hands it out; the same pointer serves as its function in a context. */
struct kernel {
  const rn_emulated_kernel *body;
  std::map<int, int> dynamic_bytes, large_clusters; /* by device */
};
std::map<std::string, kernel *> kernels;

struct event {
  std::chrono::steady_clock::time_point at;
  bool recorded;
};

std::set<stream *> streams;

/* NULL, 1 and 2 are the streams that every context has. */
bool is_default(const void *s) {
  return (uintptr_t)s <= 2;
}
stream *known(void *s) {
  return streams.count((stream *)s) ? (stream *)s : nullptr;
}
bool is_kernel(const kernel *k) {
  for (const auto &entry : kernels)
    if (entry.second == k) return true;
  return false;
}

constexpr int global_mode = 0;
constexpr unsigned non_blocking = 1;

} // namespace

#define NEED_CONTEXT                                                                                                   \
  std::lock_guard<std::recursive_mutex> lock(mutex);                                                                   \
  context *const here = current();                                                                                     \
  if (!here) return INVALID_CONTEXT

int rn_driver::not_in_capture(const char *what) {
  bool refused = false;
  for (stream *s : streams)
    if (s->captures && s->mode == global_mode) refused = s->is_invalid = true;
  return refused ? refuse(CAPTURE_UNSUPPORTED, "%s while a stream is captured", what) : SUCCESS;
}

int rn_driver::run_work(context *c, const work &w) {
  rn_emulated_own(c->number);
  switch (w.kind) {
  case work::LAUNCH:
    return rn_emulate(w.kernel, w.params.data(), w.blocks, w.threads, w.cluster, w.shared) ? LAUNCH_FAILED : SUCCESS;
  case work::FILL:
    if (rn_emulated_fill(w.to, w.byte, w.bytes)) return SUCCESS;
    return refuse(INVALID_VALUE, "setting %zu bytes at %p: out of bounds", w.bytes, w.to);
  default:
    if (rn_emulated_copy(w.to, w.from, w.bytes, true, true)) return SUCCESS;
    return refuse(INVALID_VALUE, "a copy of %zu bytes from %p to %p: out of bounds", w.bytes, w.from, w.to);
  }
}

int rn_driver::queue(void *handle, work w) {
  context *here = current();
  if (is_default(handle)) {
    for (stream *s : streams)
      if (s->captures && s->blocking && s->home == here) {
        s->is_invalid = true;
        return refuse(CAPTURE_IMPLICIT, "work on the default stream while another one is captured");
      }
    return run_work(here, w);
  }
  stream *s = known(handle);
  if (!s) return refuse(INVALID_HANDLE, "work on %p, which is no stream", handle);
  if (s->home != here) return refuse(INVALID_HANDLE, "work on a stream of another context");
  if (!s->captures) return run_work(here, w);
  if (s->is_invalid) return CAPTURE_INVALIDATED;
  if (w.kind == work::LAUNCH && !here->loaded.count(w.kernel)) {
    s->is_invalid = true;
    return refuse(CAPTURE_UNSUPPORTED, "%s would be loaded while its stream is captured", w.kernel->name);
  }
  s->captured.push_back(w);
  return SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Libraries and kernels. */

RN_EXPORT cuLibraryLoadData(library **l, const void *image, int *, void **, unsigned, int *, void **, unsigned) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  if (!image) return INVALID_VALUE;
  if (int error = not_in_capture("cuLibraryLoadData")) return error;
  *l = new library{library_mark};
  return SUCCESS;
}
RN_EXPORT cuLibraryUnload(library *l) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  if (!l || l->mark != library_mark) return INVALID_HANDLE;
  l->mark = 0;
  delete l;
  return SUCCESS;
}
RN_EXPORT cuLibraryGetKernel(kernel **k, library *l, const char *name) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  if (!l || l->mark != library_mark) return INVALID_HANDLE;
  const rn_emulated_kernel *body = rn_emulated_kernel_named(name);
  if (!body) return refuse(NOT_FOUND, "there is no kernel %s", name);
  kernel *&known_as = kernels[name];
  if (!known_as) known_as = new kernel{body, {}, {}};
  *k = known_as;
  return SUCCESS;
}
RN_EXPORT cuKernelGetFunction(kernel **function, kernel *k) {
  NEED_CONTEXT;
  if (!is_kernel(k)) return INVALID_HANDLE;
  *function = k;
  return SUCCESS;
}

static int attribute_of(int *value, int attribute, const kernel *k, int device) {
  if (!is_kernel(k)) return INVALID_HANDLE;
  switch (attribute) {
  case 0: /* threads of a block */
    *value = (int)k->body->threads;
    break;
  case 1: /* shared memory of the kernel's own: known only when it has run */
  case 2: /* constant memory */
  case 3: /* local memory */
    *value = 0;
    break;
  case 4: /* registers */
    *value = 65536 / (int)k->body->threads < 255 ? 65536 / (int)k->body->threads : 255;
    break;
  case 8:
    *value = k->dynamic_bytes.count(device) ? k->dynamic_bytes.at(device) : 48 * 1024;
    break;
  case 14:
    *value = k->large_clusters.count(device) ? k->large_clusters.at(device) : 0;
    break;
  default:
    return refuse(INVALID_VALUE, "kernel attribute %d is not emulated", attribute);
  }
  return SUCCESS;
}
RN_EXPORT cuKernelGetAttribute(int *value, int attribute, kernel *k, int device) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  return attribute_of(value, attribute, k, device);
}
RN_EXPORT cuKernelSetAttribute(int attribute, int value, kernel *k, int device) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  if (!is_kernel(k)) return INVALID_HANDLE;
  if (device < 0 || device >= count_of_devices()) return INVALID_DEVICE;
  if (attribute == 8 && value >= 0 && value <= (int)rn_emulated_shared_limit)
    k->dynamic_bytes[device] = value;
  else if (attribute == 14 && rn_emulated_capability >= 90)
    k->large_clusters[device] = value;
  else
    return refuse(INVALID_VALUE, "%s: kernel attribute %d can not be %d", k->body->name, attribute, value);
  return SUCCESS;
}
/* Functions are loaded into a context when they are looked at, where kernels are not. */
RN_EXPORT cuFuncGetAttribute(int *value, int attribute, kernel *function) {
  NEED_CONTEXT;
  if (!is_kernel(function)) return INVALID_HANDLE;
  here->loaded.insert(function->body);
  return attribute_of(value, attribute, function, here->device);
}
RN_EXPORT cuFuncLoad(kernel *function) {
  NEED_CONTEXT;
  if (!is_kernel(function)) return INVALID_HANDLE;
  if (int error = not_in_capture("cuFuncLoad")) return error;
  here->loaded.insert(function->body);
  return SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Launches. */

namespace {

struct launch_attribute {
  int32_t id;
  char pad[4];
  union {
    char pad[64];
    uint32_t cluster[3];
    int32_t dependent;
  } value;
};
struct launch_config {
  uint32_t blocks[3], threads[3], shared;
  void *stream;
  const launch_attribute *attributes;
  uint32_t attribute_count;
};

/* The limits of the device and of the kernel. */
int check_launch(const work &w, const kernel &k, int device) {
  const char *name = w.kernel->name;
  int dynamic_limit, large;
  attribute_of(&dynamic_limit, 8, &k, device);
  attribute_of(&large, 14, &k, device);
  if (!w.blocks || w.blocks > 0x7fffffffu || !w.threads || w.threads > 1024)
    return refuse(INVALID_VALUE, "%s: %u blocks of %u threads", name, w.blocks, w.threads);
  if (w.threads > w.kernel->threads)
    return refuse(OUT_OF_RESOURCES, "%s: blocks of %u threads, made for at most %u", name, w.threads,
                  w.kernel->threads);
  if ((int64_t)w.shared > dynamic_limit)
    return refuse(INVALID_VALUE, "%s: %u bytes of shared memory, %d are allowed", name, w.shared, dynamic_limit);
  if (w.cluster > 1 && rn_emulated_capability < 90)
    return refuse(NOT_SUPPORTED, "%s: a cluster of %u on a device without clusters", name, w.cluster);
  if (!w.cluster || w.blocks % w.cluster || w.cluster > 16 || (w.cluster > 8 && !large))
    return refuse(INVALID_CLUSTER_SIZE, "%s: %u blocks in clusters of %u", name, w.blocks, w.cluster);
  return SUCCESS;
}

} // namespace

RN_EXPORT cuLaunchKernelEx(const launch_config *config, kernel *k, void **params, void **extra) {
  NEED_CONTEXT;
  if (!config || !is_kernel(k) || extra || !params || !params[0]) return INVALID_VALUE;
  work w = {};
  w.kind = work::LAUNCH;
  w.kernel = k->body;
  w.blocks = config->blocks[0], w.threads = config->threads[0], w.shared = config->shared, w.cluster = 1;
  for (int i = 1; i < 3; i++)
    if (config->blocks[i] != 1 || config->threads[i] != 1)
      return refuse(INVALID_VALUE, "%s: only grids of one dimension are emulated", w.kernel->name);
  for (uint32_t i = 0; i < config->attribute_count; i++) {
    const launch_attribute &a = config->attributes[i];
    if (a.id == 4 && a.value.cluster[1] == 1 && a.value.cluster[2] == 1)
      w.cluster = a.value.cluster[0];
    else if (a.id == 6 && rn_emulated_capability >= 90)
      continue; /* may start early, and need not */
    else if (a.id != 0)
      return refuse(INVALID_VALUE, "%s: launch attribute %d", w.kernel->name, a.id);
  }
  if (int error = check_launch(w, *k, here->device)) return error;
  w.params.resize((w.kernel->params_bytes + 7) / 8);
  memcpy(w.params.data(), params[0], w.kernel->params_bytes);
  const int error = queue(config->stream, w);
  if (!error) here->loaded.insert(w.kernel);
  return error;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Streams and events. */

RN_EXPORT cuStreamCreate(stream **s, unsigned flags) {
  NEED_CONTEXT;
  *s = new stream();
  (*s)->home = here;
  (*s)->blocking = !(flags & non_blocking);
  streams.insert(*s);
  return SUCCESS;
}
RN_EXPORT cuStreamDestroy_v2(stream *s) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  if (!streams.erase(s)) return INVALID_HANDLE;
  delete s;
  return SUCCESS;
}
static int look_at_stream(void *handle, const char *what) {
  NEED_CONTEXT;
  stream *s = known(handle);
  if (!s && !is_default(handle)) return refuse(INVALID_HANDLE, "%s of %p, which is no stream", what, handle);
  if (s && s->captures) {
    s->is_invalid = true;
    return refuse(CAPTURE_UNSUPPORTED, "%s of a stream that is captured", what);
  }
  return s && !is_context(s->home) ? INVALID_CONTEXT : (int)SUCCESS;
}
RN_EXPORT cuStreamSynchronize(void *s) {
  return look_at_stream(s, "cuStreamSynchronize");
}
RN_EXPORT cuStreamQuery(void *s) {
  return look_at_stream(s, "cuStreamQuery");
}
RN_EXPORT cuStreamWaitEvent(void *s, event *, unsigned) {
  return look_at_stream(s, "cuStreamWaitEvent");
}

RN_EXPORT cuEventCreate(event **e, unsigned) {
  NEED_CONTEXT;
  *e = new event();
  return SUCCESS;
}
RN_EXPORT cuEventDestroy_v2(event *e) {
  delete e;
  return SUCCESS;
}
RN_EXPORT cuEventRecord(event *e, void *s) {
  if (int error = look_at_stream(s, "cuEventRecord")) return error;
  e->at = std::chrono::steady_clock::now();
  e->recorded = true;
  return SUCCESS;
}
RN_EXPORT cuEventSynchronize(event *) {
  NEED_CONTEXT;
  return not_in_capture("cuEventSynchronize");
}
RN_EXPORT cuEventQuery(event *) {
  NEED_CONTEXT;
  return not_in_capture("cuEventQuery");
}
RN_EXPORT cuEventElapsedTime(float *milliseconds, const event *from, const event *to) {
  if (!from->recorded || !to->recorded) return INVALID_HANDLE;
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Capture and graphs. A graph and what is made of it are the same list of work; the latter knows its context. */

RN_EXPORT cuStreamBeginCapture_v2(stream *s, int mode) {
  NEED_CONTEXT;
  if (!known(s) || s->captures) return refuse(CAPTURE_UNSUPPORTED, "a capture of a stream that can not be captured");
  s->captures = true;
  s->is_invalid = false;
  s->mode = mode;
  s->captured.clear();
  return SUCCESS;
}
RN_EXPORT cuStreamIsCapturing(stream *s, int *status) {
  NEED_CONTEXT;
  *status = known(s) && s->captures ? s->is_invalid ? 2 : 1 : 0;
  return SUCCESS;
}
RN_EXPORT cuStreamEndCapture(stream *s, graph **g) {
  NEED_CONTEXT;
  *g = nullptr;
  if (!known(s) || !s->captures) return CAPTURE_UNMATCHED;
  s->captures = false;
  if (s->is_invalid) return CAPTURE_INVALIDATED;
  *g = new graph(s->captured);
  return SUCCESS;
}
RN_EXPORT cuGraphInstantiateWithFlags(graph **made, const graph *g, unsigned long long) {
  NEED_CONTEXT;
  if (int error = not_in_capture("cuGraphInstantiate")) return error;
  *made = new graph(*g);
  return SUCCESS;
}
RN_EXPORT cuGraphLaunch(const graph *g, void *s) {
  NEED_CONTEXT;
  if (int error = look_at_stream(s, "cuGraphLaunch")) return error;
  for (const work &w : *g)
    if (int error = run_work(here, w)) return error;
  return SUCCESS;
}
RN_EXPORT cuGraphExecDestroy(graph *g) {
  delete g;
  return SUCCESS;
}
RN_EXPORT cuGraphDestroy(graph *g) {
  delete g;
  return SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Entry points by name: the newest of each, whatever version is asked for. */

RN_EXPORT cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t, int *status) {
  const std::string name = symbol;
  Dl_info own;
  *function = nullptr;
  if (dladdr((void *)cuGraphDestroy, &own)) {
    void *self = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    for (const char *suffix : {"_v2", ""})
      if (self && !*function) *function = dlsym(self, (name + suffix).c_str());
    if (self) dlclose(self);
  }
  if (name == "cuFuncLoad" && version < 12040) *function = nullptr;
  if (status) *status = *function ? 0 : 1;
  return *function ? SUCCESS : NOT_FOUND;
}
