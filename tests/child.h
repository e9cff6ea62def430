/* child.h - scenarios that need a process of their own, because a process opens its driver once. In the child a failed
 * expectation is printed, and the child's exit status carries it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CHILD_H
#define CHILD_H

#include "rmsnorm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
static void expect(int holds, const char *what, const char *file, int line) {
  if (holds) return;
  fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", file, line, what, rmsnorm_last_error());
  failures++;
}
#define EXPECT(condition)  expect(condition, #condition, __FILE__, __LINE__)
#define EXPECT_ERROR(word) expect(strstr(rmsnorm_last_error(), word) != NULL, word, __FILE__, __LINE__)

/* What the fake driver found wrong, "" = nothing; looked at when a scenario ends. */
static const char *(*breach_of_child)(void);

static int in_child(void (*scenario)(int), int number) {
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    scenario(number);
    if (breach_of_child != NULL) expect(breach_of_child()[0] == 0, breach_of_child(), __FILE__, __LINE__);
    fflush(NULL);
    _exit(failures == 0 ? 0 : 1);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) fail_msg("scenario %d: the child died of signal %d", number, WTERMSIG(status));
  return WEXITSTATUS(status);
}
static void run_in_child(void (*scenario)(int)) {
  assert_int_equal(in_child(scenario, 0), 0);
}

#endif /* CHILD_H */
