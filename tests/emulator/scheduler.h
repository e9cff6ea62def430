/* scheduler.h - the threads of a cluster as coroutines: who runs, who waits for what, who is woken in which order.
 *
 * engine.cpp runs grids, words.cpp has the words that wait; both speak through this.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_EMULATED_SCHEDULER_H
#define RN_EMULATED_SCHEDULER_H

#include "coroutine.h"
#include "engine.h"

#include <vector>

namespace rn_emulator {

enum waits { RUNS, AT_BARRIER, AT_LANES, AT_CLUSTER, AT_TRANSFER, HAS_LEFT };

struct cuda_block;

struct cuda_thread : rn_emulated_place {
  rn_coroutine coroutine;
  cuda_block *home;
  waits waits_for;
  int number;            /* of the barrier */
  uint32_t lanes;        /* the group of lanes it meets */
  rn_emulated_word word; /* what it meets them for */
  int from;              /* the lane it wants the value of */
  uint32_t value, result;
  const rn_transfer *transfer;
  uint32_t phase;   /* of the cluster barrier, when it arrived there */
  bool has_arrived; /* there, and has not waited yet */
  bool has_waited;  /* for the kernel before */
};

struct barrier {
  int arrived, threads;
  rn_emulated_word word;
  bool any;
};

struct cuda_block {
  cuda_thread *threads;
  int count, living;
  int64_t number;
  char *shared; /* dynamic part first, then the RN_SHARED arrays with guards between them */
  barrier barriers[16];
  std::vector<uint32_t> arrived_lanes; /* by warp */
};

/* Bytes on their way to shared memory: from global memory, or a value that another block sends. */
struct copy {
  char *to;
  const char *from; /* NULL: value */
  float value;
  uint32_t bytes;
  rn_transfer *transfer;
};

enum order { FORWARD, REVERSE, RANDOM };

/* The launch that runs; there is one at a time in a process. */
struct launch {
  const rn_emulated_kernel *kernel;
  const void *params;
  uint32_t blocks, threads, cluster, shared;
  uint64_t serial;
  std::vector<cuda_block> home;     /* of the cluster that runs */
  std::vector<cuda_thread> workers; /* of all its blocks */
  int living;
  uint32_t cluster_phase, cluster_arrived;
  std::vector<copy> copies; /* started and not made */
  bool somebody_waited;     /* for the kernel before */
  bool failed;
  char text[4096];
};
extern launch now;

static inline cuda_thread &self() {
  return *(cuda_thread *)rn_emulated_here;
}

order threads_order();
uint32_t random_below(uint32_t n);

/* Wakes threads, the running one too when it is among them. Those of a warp come next, others after everybody who is
 * ready. */
void wake(cuda_thread **list, int count, bool next);
/* Lets the next thread that is ready run. The running one comes back when it has been woken. */
void give_way();

[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* words.cpp */
/* The barrier of the cluster opens when all its threads that have not left have arrived. */
void cluster_turn();
/* shared.cpp: fresh shared memory for the blocks of a cluster; which guard has been written over, or NULL. */
void shared_set_up();
const char *shared_damage();
bool in_shared(const cuda_block &b, const void *at, size_t bytes);

} // namespace rn_emulator

#endif /* RN_EMULATED_SCHEDULER_H */
