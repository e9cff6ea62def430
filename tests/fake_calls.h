/* fake_calls.h - how every entry point of a fake driver begins and ends: it is written down, and fails when a test has
 * asked for that. `fake`, which holds what is written down, is the including file's.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_CALLS_H
#define FAKE_CALLS_H

#include <pthread.h>
#include <stdio.h>

enum { SUCCESS = 0, INVALID_VALUE = 1 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* It holds the lock until leave(). */
static int enter(const char *name) {
  pthread_mutex_lock(&lock);
  snprintf(fake.last_call, sizeof fake.last_call, "%s", name);
  if (++fake.calls != fake.fail_at) return SUCCESS;
  snprintf(fake.failed_call, sizeof fake.failed_call, "%s", name);
  return fake.fail_with;
}
static int leave(int result) {
  pthread_mutex_unlock(&lock);
  return result;
}
#define ENTER()                                                                                                        \
  do {                                                                                                                 \
    int failure = enter(__func__);                                                                                     \
    if (failure != SUCCESS) return leave(failure);                                                                     \
  } while (0)

static int breach(const char *what, const char *of) {
  if (fake.breach[0] == 0) snprintf(fake.breach, sizeof fake.breach, "%s %s", what, of);
  return INVALID_VALUE;
}

#endif /* FAKE_CALLS_H */
