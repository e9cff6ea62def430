/* select.c - the ordered table of implementations, the choice among them, and the words about that choice.
 *
 * The order of the table is the policy: the first implementation that takes the problem runs. A forced one that does
 * not take it is an error, never a reason to run another.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the build has no kernels, a row says why. */
#ifndef RN_HAVE_CUDA
#ifndef RN_NO_CUDA
#define RN_NO_CUDA "it was made of the portable sources alone"
#endif
static const char *no_cuda(void) {
  return "this build has no CUDA kernels: " RN_NO_CUDA;
}
const rn_impl rn_impl_cuda = {.name = "cuda", .device = RMSNORM_DEVICE_CUDA, .machine_why_not = no_cuda};
#endif

#ifndef RN_HAVE_TRITON
#ifndef RN_NO_TRITON
#define RN_NO_TRITON "it was made of the portable sources alone"
#endif
static const char *no_triton(void) {
  return "this build has no Triton kernels: " RN_NO_TRITON;
}
static const char *no_triton_hip(void) {
  return "this build has no kernels for HIP devices, which are made with Triton: " RN_NO_TRITON;
}
const rn_impl rn_impl_triton = {.name = "triton", .device = RMSNORM_DEVICE_CUDA, .machine_why_not = no_triton};
const rn_impl rn_impl_triton_hip = {
    .name = "triton-hip", .device = RMSNORM_DEVICE_HIP, .machine_why_not = no_triton_hip};
#endif

static const rn_impl *const table[] = {
    &rn_impl_cuda,     &rn_impl_triton, &rn_impl_triton_hip,
#ifdef RN_HAVE_AVX512
    &rn_impl_avx512,
#endif
#ifdef RN_HAVE_AVX2
    &rn_impl_avx2,
#endif
#ifdef RN_HAVE_NEON
    &rn_impl_neon,
#endif
    &rn_impl_portable,
};

enum { IMPLS = sizeof table / sizeof table[0] };

const rn_impl *rn_impl_at(int i) {
  return i >= 0 && i < IMPLS ? table[i] : NULL;
}

/* What a caller can force: a row of the table, nothing, or a name that is not there. */
enum { NOT_FORCED = -1, UNKNOWN = -2 };

/* Out of line, like everything below that is not on the way of a usual call: rn_select then saves no registers for it.
 */
#define SELDOM static __attribute__((noinline, cold))

SELDOM int index_of(const char *name) {
  for (int i = 0; i < IMPLS; i++)
    if (strcmp(table[i]->name, name) == 0) return i;
  return UNKNOWN;
}

const rn_impl *rn_impl_named(const char *name) {
  return rn_impl_at(index_of(name));
}

#if !defined(RN_HAVE_AVX512) && !defined(RN_HAVE_AVX2) && !defined(RN_HAVE_NEON)
/* A build of the portable sources alone looks for no instruction sets. */
const char *rn_cpu_features(void) {
  return "";
}
#endif

/* "avx512, avx2, portable" */
static const char *known_names(char *text, size_t bytes) {
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < IMPLS && used < bytes; i++)
    used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", " : "", table[i]->name);
  return text;
}

/* What RMSNORM_IMPL says, as a row of the table or one of the names above. */
static int environment(void) {
  const char *name = getenv("RMSNORM_IMPL");
  return name != NULL && name[0] != 0 ? index_of(name) : NOT_FORCED;
}

/* What does not change while the process lives is looked up at the first call: the environment, and which rows of the
 * table for the CPU this machine can run and RMSNORM_IMPL lets run, in order, NULL behind the last. Rows for devices
 * know for themselves whether they can, so that no driver is looked for on the CPU. Two threads that come first
 * together store the same values twice. */
enum { NOT_LOOKED_UP = -3 };
static _Atomic int forced_by_environment = NOT_LOOKED_UP;
static const rn_impl *_Atomic candidates[IMPLS + 1];

static bool may_run(int i, int choice) {
  return (choice == NOT_FORCED || choice == i) && table[i]->machine_why_not() == NULL;
}

SELDOM int look_up(void) {
  int choice = environment(), count = 0;
  for (int i = 0; i < IMPLS; i++)
    if (table[i]->device == RMSNORM_DEVICE_CPU && may_run(i, choice))
      atomic_store_explicit(&candidates[count++], table[i], memory_order_relaxed);
  atomic_store_explicit(&forced_by_environment, choice, memory_order_release);
  return choice;
}

/* A row of the table, NOT_FORCED or UNKNOWN. */
static inline int environment_choice(void) {
  int choice = atomic_load_explicit(&forced_by_environment, memory_order_acquire);
  return choice != NOT_LOOKED_UP ? choice : look_up();
}

/* Likewise. The argument goes before the environment. */
static int forced(const rn_problem *p) {
  return p->impl != NULL ? index_of(p->impl) : environment_choice();
}

static const char *forced_by(const rn_problem *p) {
  return p->impl != NULL ? "impl" : "RMSNORM_IMPL";
}

/* [where it runs][where the tensors are] */
static const char *const other_device[3][3] = {
    {NULL, "runs on the CPU, the tensors are on a CUDA device", "runs on the CPU, the tensors are on a HIP device"},
    {"runs on CUDA devices, the tensors are on the CPU", NULL, "runs on CUDA devices, the tensors are on a HIP device"},
    {"runs on HIP devices, the tensors are on the CPU", "runs on HIP devices, the tensors are on a CUDA device", NULL}};

static const char *why_not(const rn_impl *impl, const rn_problem *p) {
  const char *reason = other_device[impl->device][p->device];
  if (reason == NULL) reason = impl->machine_why_not();
  return reason != NULL ? reason : impl->why_not(p);
}

/* Of implementations that all refuse, the one whose reason says most: the last one that this machine can run, which is
 * the most general; else one that the build has. */
SELDOM const rn_impl *most_telling(int32_t device) {
  const rn_impl *best = NULL;
  int rank = 0;
  for (int i = 0; i < IMPLS; i++) {
    if (table[i]->device != device) continue;
    const int its = table[i]->machine_why_not() == NULL ? 3 : table[i]->why_not != NULL ? 2 : 1;
    if (its == 3 || its > rank) best = table[i], rank = its;
  }
  return best;
}

/* Why there is nothing for this problem, where it is known that there is nothing. */
SELDOM rmsnorm_status refuse(const rn_problem *p) {
  int choice = forced(p);
  char names[128];
  if (choice >= 0)
    return rn_error(RMSNORM_ERROR_UNSUPPORTED, "%s forces \"%s\", which does not take this: %s", forced_by(p),
                    table[choice]->name, why_not(table[choice], p));
  if (choice == NOT_FORCED) {
    const rn_impl *impl = most_telling(p->device);
    return rn_error(RMSNORM_ERROR_UNSUPPORTED, "no implementation of this build takes this; \"%s\": %s", impl->name,
                    why_not(impl, p));
  }
  if (p->impl != NULL)
    return rn_error(RMSNORM_ERROR_UNKNOWN_IMPL, "impl: this build has no implementation \"%.64s\"; it has %s", p->impl,
                    known_names(names, sizeof names));
  return rn_error(RMSNORM_ERROR_UNKNOWN_IMPL,
                  "RMSNORM_IMPL: the environment names an implementation that this build does not have; it has %s",
                  known_names(names, sizeof names));
}

SELDOM const rn_impl *forced_by_argument(const rn_problem *p) {
  int choice = index_of(p->impl);
  return choice != UNKNOWN && why_not(table[choice], p) == NULL ? table[choice] : NULL;
}

/* A device has few rows, and a call more to do than to walk the table. */
static __attribute__((noinline)) const rn_impl *choose_for_device(const rn_problem *p, int choice) {
  for (int i = 0; i < IMPLS; i++)
    if (table[i]->device == p->device && may_run(i, choice) && table[i]->why_not(p) == NULL) return table[i];
  return NULL;
}

static inline const rn_impl *choose(const rn_problem *p) {
  if (p->impl != NULL) return forced_by_argument(p);
  int choice = environment_choice();
  if (p->device != RMSNORM_DEVICE_CPU) return choose_for_device(p, choice);
  for (int i = 0;; i++) {
    const rn_impl *impl = atomic_load_explicit(&candidates[i], memory_order_relaxed);
    if (impl == NULL || impl->why_not(p) == NULL) return impl;
  }
}

const rn_impl *rn_select(const rn_problem *p, rmsnorm_status *status) {
  const rn_impl *impl = choose(p);
  *status = impl != NULL ? RMSNORM_OK : refuse(p);
  return impl;
}

const rn_impl *rn_impl_for_device(int32_t device, rmsnorm_status *status) {
  *status = RMSNORM_OK;
  for (int i = 0; i < IMPLS; i++)
    if (table[i]->device == device && table[i]->machine_why_not() == NULL) return table[i];
  *status = rn_error(RMSNORM_ERROR_UNSUPPORTED, "device: %s", most_telling(device)->machine_why_not());
  return NULL;
}

/* One that has nothing for this very device does not matter where another one has. */
rmsnorm_status rn_preload(int32_t device) {
  rmsnorm_status status;
  bool any = false;
  if (rn_impl_for_device(device, &status) == NULL) return status;
  for (int i = 0; i < IMPLS; i++) {
    if (table[i]->device != device || table[i]->machine_why_not() != NULL) continue;
    const rmsnorm_status its = table[i]->preload();
    if (its != RMSNORM_OK && its != RMSNORM_ERROR_UNSUPPORTED) return its;
    if (its == RMSNORM_OK)
      any = true;
    else
      status = its;
  }
  return any ? RMSNORM_OK : status;
}

rmsnorm_status rn_explain(const rn_problem *p, char *text, size_t bytes) {
  rmsnorm_status status;
  const rn_impl *chosen = rn_select(p, &status);
  const int choice = forced(p);
  if (choice == UNKNOWN) {
    snprintf(text, bytes, "%s\n", rmsnorm_last_error());
    return status;
  }
  const rn_impl *by_force = rn_impl_at(choice);
  size_t used = 0;
  for (int i = 0; i < IMPLS; i++) {
    char line[320];
    const rn_impl *impl = table[i];
    const char *reason = why_not(impl, p);
    int n;
    if (impl == chosen && by_force != NULL)
      n = snprintf(line, sizeof line, "%-10s runs: forced by %s\n", impl->name, forced_by(p));
    else if (impl == chosen)
      n = snprintf(line, sizeof line, "%-10s runs: the first that takes this\n", impl->name);
    else if (reason != NULL)
      n = snprintf(line, sizeof line, "%-10s %s: %s\n", impl->name,
                   impl == by_force ? "forced, but can not" : "can not", reason);
    else if (by_force != NULL)
      n = snprintf(line, sizeof line, "%-10s does not run: %s forces \"%s\"\n", impl->name, forced_by(p),
                   by_force->name);
    else
      n = snprintf(line, sizeof line, "%-10s does not run: \"%s\" comes first\n", impl->name, chosen->name);
    if (n >= (int)sizeof line) n = (int)sizeof line - 1;
    size_t room = used < bytes ? bytes - used : 0;
    if (room > 0) snprintf(text + used, room, "%s", line);
    used += (size_t)n;
  }
  if (used >= bytes)
    return rn_error(RMSNORM_ERROR_BUFFER, "text: %zu bytes are needed, %zu were given", used + 1, bytes);
  return status;
}

const char *rmsnorm_impl_name(int i) {
  const rn_impl *impl = rn_impl_at(i);
  return impl != NULL ? impl->name : NULL;
}

const char *rmsnorm_impl_why_not(int i) {
  const rn_impl *impl = rn_impl_at(i);
  return impl != NULL ? impl->machine_why_not() : "there is no implementation of this number";
}

int rmsnorm_impl_device(int i) {
  const rn_impl *impl = rn_impl_at(i);
  return impl != NULL ? impl->device : -1;
}

const char *rmsnorm_cpu_features(void) {
  return rn_cpu_features();
}
