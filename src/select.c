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

static const rn_impl *const table[] = {
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

const rn_impl *rn_impl_named(const char *name) {
  for (int i = 0; i < IMPLS; i++)
    if (strcmp(table[i]->name, name) == 0) return table[i];
  return NULL;
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

/* What RMSNORM_IMPL said at the first call: an index into the table, or one of these. Two threads that come here first
 * together store the same value twice. */
enum { ENV_NOT_READ = -1, ENV_ABSENT = -2, ENV_UNKNOWN = -3 };
static _Atomic int env_choice = ENV_NOT_READ;

static int env_read(void) {
  int choice = ENV_ABSENT;
  const char *name = getenv("RMSNORM_IMPL");
  if (name != NULL && name[0] != 0) {
    choice = ENV_UNKNOWN;
    for (int i = 0; i < IMPLS; i++)
      if (strcmp(table[i]->name, name) == 0) choice = i;
  }
  atomic_store_explicit(&env_choice, choice, memory_order_relaxed);
  return choice;
}

/* The implementation that is forced, *by saying who forces it; NULL with RMSNORM_OK when none is. */
static rmsnorm_status forced_impl(const rn_problem *p, const rn_impl **impl, const char **by) {
  char names[128];
  *impl = NULL;
  if (p->impl != NULL) {
    *by = "impl";
    *impl = rn_impl_named(p->impl);
    if (*impl == NULL)
      return rn_error(RMSNORM_ERROR_UNKNOWN_IMPL, "impl: this build has no implementation \"%.64s\"; it has %s",
                      p->impl, known_names(names, sizeof names));
    return RMSNORM_OK;
  }
  *by = "RMSNORM_IMPL";
  int choice = atomic_load_explicit(&env_choice, memory_order_relaxed);
  if (choice == ENV_NOT_READ) choice = env_read();
  if (choice == ENV_UNKNOWN)
    return rn_error(RMSNORM_ERROR_UNKNOWN_IMPL,
                    "RMSNORM_IMPL: the environment names an implementation that this build does not have; it has %s",
                    known_names(names, sizeof names));
  if (choice >= 0) *impl = table[choice];
  return RMSNORM_OK;
}

static const char *device_why_not(const rn_problem *p) {
  switch (p->device) {
  case RMSNORM_DEVICE_CPU:
    return NULL;
  case RMSNORM_DEVICE_CUDA:
    return "runs on the CPU, the tensors are on a CUDA device";
  default:
    return "runs on the CPU, the tensors are on a HIP device";
  }
}

static const char *why_not(const rn_impl *impl, const rn_problem *p) {
  const char *reason = device_why_not(p);
  if (reason == NULL) reason = impl->machine_why_not();
  return reason != NULL ? reason : impl->why_not(p);
}

static const rn_impl *first_fit(const rn_problem *p) {
  for (int i = 0; i < IMPLS; i++)
    if (why_not(table[i], p) == NULL) return table[i];
  return NULL;
}

const rn_impl *rn_select(const rn_problem *p, rmsnorm_status *status) {
  const rn_impl *impl;
  const char *by;
  *status = forced_impl(p, &impl, &by);
  if (*status != RMSNORM_OK) return NULL;
  if (impl != NULL) {
    const char *reason = why_not(impl, p);
    if (reason == NULL) return impl;
    *status =
        rn_error(RMSNORM_ERROR_UNSUPPORTED, "%s forces \"%s\", which does not take this: %s", by, impl->name, reason);
    return NULL;
  }
  impl = first_fit(p);
  if (impl == NULL) {
    /* Every implementation refused; the last one in the table is the most general, so its reason says most. */
    *status = rn_error(RMSNORM_ERROR_UNSUPPORTED, "no implementation of this build takes this; \"%s\": %s",
                       table[IMPLS - 1]->name, why_not(table[IMPLS - 1], p));
  }
  return impl;
}

rmsnorm_status rn_explain(const rn_problem *p, char *text, size_t bytes) {
  const rn_impl *forced;
  const char *by;
  rmsnorm_status status = forced_impl(p, &forced, &by);
  if (status != RMSNORM_OK) {
    snprintf(text, bytes, "%s\n", rmsnorm_last_error());
    return status;
  }
  const rn_impl *chosen = rn_select(p, &status);
  size_t used = 0;
  for (int i = 0; i < IMPLS; i++) {
    char line[320];
    const rn_impl *impl = table[i];
    const char *reason = why_not(impl, p);
    int n;
    if (impl == chosen && forced != NULL)
      n = snprintf(line, sizeof line, "%-9s runs: forced by %s\n", impl->name, by);
    else if (impl == chosen)
      n = snprintf(line, sizeof line, "%-9s runs: the first that takes this\n", impl->name);
    else if (reason != NULL)
      n = snprintf(line, sizeof line, "%-9s %s: %s\n", impl->name, impl == forced ? "forced, but can not" : "can not",
                   reason);
    else if (forced != NULL)
      n = snprintf(line, sizeof line, "%-9s does not run: %s forces \"%s\"\n", impl->name, by, forced->name);
    else
      n = snprintf(line, sizeof line, "%-9s does not run: \"%s\" comes first\n", impl->name, chosen->name);
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

const char *rmsnorm_cpu_features(void) {
  return rn_cpu_features();
}
