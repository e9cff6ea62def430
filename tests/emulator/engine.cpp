/* engine.cpp - runs a grid: cluster after cluster, the threads of a cluster in turns.
 *
 * The turns can be taken forward, in reverse or at random. A kernel without faults does not care; one that lacks a
 * barrier reads what has not been written yet in one of the orders, or what has been overwritten in another.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

rn_emulated_place *rn_emulated_here;
int rn_emulated_capability = 90;
uint32_t rn_emulated_shared_limit = 227 * 1024;

namespace rn_emulator {

launch now;

namespace {

std::mutex one_at_a_time;
rn_coroutine origin; /* of the host thread that launches */
bool is_running;

/* Threads that are ready, a ring. */
std::vector<cuda_thread *> ready;
size_t ready_first, ready_count;

void push_back(cuda_thread *t) {
  ready[(ready_first + ready_count++) & (ready.size() - 1)] = t;
}
void push_front(cuda_thread *t) {
  ready_first = (ready_first - 1) & (ready.size() - 1);
  ready[ready_first] = t;
  ready_count++;
}

rn_emulated_kernel *kernels;
bool order_is_known;
order chosen;
uint64_t random_state;

void shuffle(cuda_thread **list, int count) {
  for (int i = count; i > 1; i--) std::swap(list[i - 1], list[random_below((uint32_t)i)]);
}

void take_turn(cuda_thread *from, bool leaving) {
  cuda_thread *to = nullptr;
  if (ready_count) {
    to = ready[ready_first];
    ready_first = (ready_first + 1) & (ready.size() - 1);
    ready_count--;
  }
  if (to == from) return;
  rn_emulated_here = to;
  rn_coroutine_switch(&from->coroutine, to ? &to->coroutine : &origin, leaving);
}

void leave() {
  cuda_thread &t = self();
  t.waits_for = HAS_LEFT;
  t.home->living--;
  now.living--;
  cluster_turn();
  take_turn(&t, true);
}

void start_thread() {
  rn_coroutine_begin(&origin);
  now.kernel->run(now.params);
  leave();
  abort(); /* nobody comes back here */
}

const char *say(const cuda_thread &t) {
  static char text[200];
  const cuda_block &b = *t.home;
  switch (t.waits_for) {
  case AT_BARRIER:
    snprintf(text, sizeof text, "waits at barrier %d, where %d of %d threads have arrived", t.number,
             b.barriers[t.number].arrived, b.barriers[t.number].threads);
    break;
  case AT_LANES:
    snprintf(text, sizeof text, "waits for the lanes %08x of its warp, of which %08x have arrived", t.lanes,
             b.arrived_lanes[(size_t)t.thread / 32] & t.lanes);
    break;
  case AT_CLUSTER:
    snprintf(text, sizeof text, "waits at the barrier of the cluster, where %u of %d threads have arrived",
             now.cluster_arrived, now.living);
    break;
  case AT_TRANSFER:
    snprintf(text, sizeof text, "waits for a transfer, word %016llx", (unsigned long long)*t.transfer);
    break;
  case HAS_LEFT:
    return "has left";
  default:
    return "runs";
  }
  return text;
}

/* Which launch this is about, at the start of now.text; how long that is. */
size_t begin_text() {
  return (size_t)snprintf(now.text, sizeof now.text, "%s<<<%u, %u, cluster %u, shared %u>>>: ", now.kernel->name,
                          now.blocks, now.threads, now.cluster, now.shared);
}

/* Nobody is ready and somebody is left: who waits for what, a line for each group. */
void report_deadlock() {
  std::string text = "deadlock";
  int lines = 0;
  for (size_t i = 0; i < now.workers.size() && lines < 12;) {
    const cuda_thread &t = now.workers[i];
    const std::string what = say(t);
    size_t next = i + 1;
    while (next < now.workers.size() && now.workers[next].home == t.home && say(now.workers[next]) == what) next++;
    char line[400];
    snprintf(line, sizeof line, "\n  block %lld, thread%s %d", (long long)t.block, next > i + 1 ? "s" : "", t.thread);
    text += line;
    if (next > i + 1) text += " to " + std::to_string(now.workers[next - 1].thread);
    text += next > i + 1 && t.waits_for != HAS_LEFT ? " each " + what : next > i + 1 ? " have left" : " " + what;
    lines++;
    i = next;
  }
  if (lines == 12) text += "\n  ...";
  const size_t length = begin_text();
  snprintf(now.text + length, sizeof now.text - length, "%s", text.c_str());
  now.failed = true;
}

void fail_outside(const char *what) {
  const size_t length = begin_text();
  snprintf(now.text + length, sizeof now.text - length, "%s", what);
  now.failed = true;
}

/* Sets up the threads of the cluster whose first block is `first`. */
void set_up(int64_t first) {
  std::vector<cuda_thread *> start;
  now.living = (int)(now.cluster * now.threads);
  now.cluster_phase = now.cluster_arrived = 0;
  now.copies.clear();
  shared_set_up();
  for (uint32_t r = 0; r < now.cluster; r++) {
    cuda_block &b = now.home[r];
    b.threads = &now.workers[(size_t)r * now.threads];
    b.count = b.living = (int)now.threads;
    b.number = first + r;
    memset(b.barriers, 0, sizeof b.barriers);
    b.arrived_lanes.assign((now.threads + 31) / 32, 0);
    for (uint32_t i = 0; i < now.threads; i++) {
      cuda_thread &t = b.threads[i];
      t = cuda_thread();
      t.thread = (int32_t)i, t.threads = (int32_t)now.threads;
      t.rank = (int32_t)r, t.cluster = (int32_t)now.cluster;
      t.block = b.number, t.blocks = now.blocks;
      t.home = &b;
      rn_coroutine_make(&t.coroutine, (size_t)r * now.threads + i, start_thread);
      start.push_back(&t);
    }
  }
  ready_first = ready_count = 0;
  wake(start.data(), (int)start.size(), false);
}

void run_cluster(int64_t first) {
  set_up(first);
  is_running = true;
  cuda_thread *to = ready[ready_first];
  ready_first = (ready_first + 1) & (ready.size() - 1);
  ready_count--;
  rn_emulated_here = to;
  rn_coroutine_switch(&origin, &to->coroutine, false);
  rn_emulated_here = nullptr;
  is_running = false;
  if (now.failed) return;
  if (now.living)
    report_deadlock();
  else if (!now.copies.empty())
    fail_outside("a transfer was started and nobody waited for it");
  else if (const char *damage = shared_damage())
    fail_outside(damage);
}

/* RMSNORM_EMULATED_TRACE: at the end of the program a line on stderr for each kernel, with its number of launches. */
void print_launches() {
  for (const rn_emulated_kernel *k = kernels; k; k = k->next)
    fprintf(stderr, "emulated device: %8llu launches of %s\n", (unsigned long long)k->launches, k->name);
}
void count_launch(const rn_emulated_kernel &kernel) {
  static bool asked;
  if (!asked && getenv("RMSNORM_EMULATED_TRACE")) atexit(print_launches);
  asked = true;
  kernel.launches++;
}

/* Where an access that the processor refuses goes on: the handler sends it here. */
char refused[200];
void stop_refused() {
  fault("%s", refused);
}

void on_signal(int number, siginfo_t *info, void *context) {
  const long overrun = rn_coroutine_overrun(info->si_addr);
  if (is_running && overrun < 0) {
    snprintf(refused, sizeof refused, "%s at %p%s", number == SIGBUS ? "bad access" : "access out of bounds",
             info->si_addr, rn_emulated_is_shut() ? ", or before rn_wait_for_previous" : "");
    ucontext_t *u = (ucontext_t *)context;
#if defined(__x86_64__)
    u->uc_mcontext.gregs[REG_RSP] = ((u->uc_mcontext.gregs[REG_RSP] - 1024) & ~(greg_t)15) - 8;
    u->uc_mcontext.gregs[REG_RIP] = (greg_t)stop_refused;
#else
    u->uc_mcontext.sp = (u->uc_mcontext.sp - 1024) & ~15ull;
    u->uc_mcontext.pc = (uintptr_t)stop_refused;
#endif
    return;
  }
  char text[300];
  const int n = is_running
                    ? snprintf(text, sizeof text, "emulated device: %s: a thread ran out of stack\n", now.kernel->name)
                    : snprintf(text, sizeof text, "emulated device: the host touched %p%s\n", info->si_addr,
                               rn_emulated_is_shut() ? ": memory of the device?" : "");
  if (write(2, text, (size_t)n) < 0) _exit(3);
  signal(number, SIG_DFL);
}

void catch_signals() {
  static bool done;
  static char stack[64 * 1024];
  if (done) return;
  done = true;
  stack_t alternative = {};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

} // namespace

order threads_order() {
  if (!order_is_known) {
    const char *wanted = getenv("RMSNORM_EMULATED_ORDER");
    if (!rn_emulated_order(wanted && *wanted ? wanted : "forward")) {
      fprintf(stderr, "emulated device: RMSNORM_EMULATED_ORDER=%s is not forward, reverse or random:<seed>\n", wanted);
      exit(2);
    }
  }
  return chosen;
}

uint32_t random_below(uint32_t n) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)((random_state >> 32) * n >> 32);
}

void wake(cuda_thread **list, int count, bool next) {
  const order how = threads_order();
  if (how == REVERSE) std::reverse(list, list + count);
  if (how == RANDOM) {
    shuffle(list, count);
    next = random_below(4) ? next : !next;
  }
  for (int i = 0; i < count; i++) list[i]->waits_for = RUNS;
  if (next)
    for (int i = count; i-- > 0;) push_front(list[i]);
  else
    for (int i = 0; i < count; i++) push_back(list[i]);
}

void give_way() {
  take_turn(&self(), false);
}

/* The stack of a thread that is dropped is not unwound: nothing here may own memory. */
void fault(const char *format, ...) {
  cuda_thread &t = self();
  size_t length = begin_text();
  length += (size_t)snprintf(now.text + length, sizeof now.text - length, "block %lld, thread %d ", (long long)t.block,
                             t.thread);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(now.text + length, sizeof now.text - length, format, arguments);
  va_end(arguments);
  now.failed = true;
  rn_emulated_here = nullptr;
  rn_coroutine_switch(&t.coroutine, &origin, true);
  abort();
}

} // namespace rn_emulator

using namespace rn_emulator;

rn_emulated_kernel::rn_emulated_kernel(const char *kernel_name, uint32_t most_threads, size_t bytes,
                                       void (*body)(const void *))
    : name(kernel_name), threads(most_threads), params_bytes(bytes), run(body), next(kernels), launches(0) {
  kernels = this;
}

const rn_emulated_kernel *rn_emulated_kernel_named(const char *name) {
  for (const rn_emulated_kernel *k = kernels; k; k = k->next)
    if (!strcmp(k->name, name)) return k;
  return nullptr;
}

bool rn_emulated_order(const char *text) {
  char *end;
  order_is_known = true;
  if (!strcmp(text, "forward"))
    chosen = FORWARD;
  else if (!strcmp(text, "reverse"))
    chosen = REVERSE;
  else if (!strncmp(text, "random:", 7)) {
    chosen = RANDOM;
    random_state = strtoull(text + 7, &end, 10) * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
    if (*end || end == text + 7 || !random_state) return false;
  } else
    return false;
  return true;
}

const char *rn_emulate(const rn_emulated_kernel *kernel, const void *params, uint32_t blocks, uint32_t threads,
                       uint32_t cluster, uint32_t shared) {
  std::lock_guard<std::mutex> lock(one_at_a_time);
  catch_signals();
  count_launch(*kernel);
  now.kernel = kernel, now.params = params;
  now.blocks = blocks, now.threads = threads, now.cluster = cluster ? cluster : 1, now.shared = shared;
  now.serial++;
  const bool was_shut = rn_emulated_is_shut();
  now.failed = now.somebody_waited = false;
  if (!blocks || blocks > 0x7fffffffu || !threads || threads > 1024 || threads > kernel->threads)
    fail_outside("this is no grid for the kernel");
  else if (shared > rn_emulated_shared_limit)
    fail_outside("a block has no so much shared memory");
  else if (now.cluster > (rn_emulated_capability >= 90 ? 16 : 1) || blocks % now.cluster)
    fail_outside("the grid is no whole number of clusters");
  const size_t count = (size_t)now.cluster * threads;
  if (!now.failed) {
    now.home.resize(now.cluster);
    now.workers.resize(count);
    if (!rn_coroutine_stack(count - 1)) fail_outside("no memory for the stacks");
    size_t ring = 1;
    while (ring < count) ring *= 2;
    if (ready.size() < ring) ready.resize(ring);
  }
  const order how = threads_order();
  const int64_t clusters = blocks / now.cluster, skip = how == RANDOM ? random_below((uint32_t)clusters) : 0;
  for (int64_t i = 0; i < clusters && !now.failed; i++)
    run_cluster((how == REVERSE ? clusters - 1 - i : (i + skip) % clusters) * now.cluster);
  if (!now.failed && !now.somebody_waited) fail_outside("no thread has called rn_wait_for_previous");
  if (!now.failed)
    if (const char *damage = rn_emulated_damage()) fail_outside(damage);
  if (now.failed) { /* what it damaged before it stopped is not the next launch's doing */
    if (was_shut) rn_emulated_open();
    while (rn_emulated_damage()) continue;
  }
  if (was_shut) rn_emulated_shut();
  if (now.failed) {
    rn_coroutine_forget();
    fprintf(stderr, "emulated device: %s\n", now.text);
  }
  return now.failed ? now.text : nullptr;
}

const char *rn_emulate_named(const char *kernel, const void *params, uint32_t blocks, uint32_t threads,
                             uint32_t cluster, uint32_t shared) {
  const rn_emulated_kernel *k = rn_emulated_kernel_named(kernel);
  return k ? rn_emulate(k, params, blocks, threads, cluster, shared) : "no kernel of that name";
}
