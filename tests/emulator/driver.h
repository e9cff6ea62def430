/* driver.h - what the parts of the emulated CUDA driver share. The entry points have the names, parameters and numbers
 * of the real driver, from its public documentation; none of its headers is needed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_EMULATED_DRIVER_H
#define RN_EMULATED_DRIVER_H

#include "engine.h"

#include <map>
#include <mutex>
#include <set>
#include <vector>

#define RN_EXPORT extern "C" __attribute__((visibility("default"))) int

enum result {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  OUT_OF_RESOURCES = 701,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_UNMATCHED = 903,
  CAPTURE_IMPLICIT = 906,
  INVALID_CLUSTER_SIZE = 912
};

namespace rn_driver {

struct context {
  uint32_t number; /* the owner of its memory; 0 belongs to no context */
  int device;
  std::set<const rn_emulated_kernel *> loaded; /* kernels that capture may launch */
};

/* Something that was queued: done at once, or kept in a graph. */
struct work {
  enum { LAUNCH, FILL, COPY } kind;
  const rn_emulated_kernel *kernel;
  uint32_t blocks, threads, cluster, shared;
  std::vector<uint64_t> params; /* a copy, aligned */
  void *to;
  const void *from;
  int byte;
  size_t bytes;
};
typedef std::vector<work> graph;

struct stream {
  context *home;
  bool captures, is_invalid, blocking;
  int mode;
  graph captured;
};

/* Calls come from any thread and are done one at a time. */
extern std::recursive_mutex mutex;
/* The context that is current in this thread, or NULL. */
context *current();
bool is_context(const context *c);

/* Says why on stderr, for the person who reads the test's output. */
int refuse(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* CAPTURE_UNSUPPORTED when this call may not be made because somebody captures; what captures becomes invalid. */
int not_in_capture(const char *what);
/* Does it now, or writes it down where the stream is captured. */
int queue(void *stream, work w);
int run_work(context *c, const work &w);

/* How many there are. */
int count_of_devices();

} // namespace rn_driver

#endif /* RN_EMULATED_DRIVER_H */
