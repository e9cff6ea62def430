/* test_host.c - what the host process does must not matter: threads of its own, its rounding mode, flush-to-zero, and
 * exception flags neither change a bit of a result nor come back changed.
 *
 *   test_host            all of that
 *   test_host unknown    RMSNORM_IMPL is set to a name that does not exist: every call is refused
 *   test_host portable   RMSNORM_IMPL=portable: that one runs, and args->impl still goes first
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "rmsnorm.h"

#include <fenv.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

enum { ROWS = 37, COLS = 320, THREADS = 4 };

static float x[ROWS * COLS], dy[ROWS * COLS], weight[COLS];

typedef struct results {
  float y[ROWS * COLS], dx[ROWS * COLS], dweight[COLS], rstd[ROWS];
} results;

static int failures;

static void expect(int holds, const char *what, int line) {
  if (!holds) {
    fprintf(stderr, "test_host.c:%d: %s: %s\n", line, what, rmsnorm_last_error());
    failures++;
  }
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

static void fill(void) {
  uint32_t state = 1;
  for (int i = 0; i < ROWS * COLS; i++) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(int32_t)state * 0x1p-31f;
    state = state * 1664525u + 1013904223u;
    dy[i] = (float)(int32_t)state * 0x1p-31f;
  }
  /* rows whose squares, and whose results, are subnormal or huge */
  for (int c = 0; c < COLS; c++) {
    x[3 * COLS + c] *= 0x1p-130f;
    x[4 * COLS + c] *= 0x1p-70f;
    x[5 * COLS + c] *= 0x1p100f;
    dy[6 * COLS + c] *= 0x1p-128f;
    weight[c] = c % 7 == 0 ? 0x1p-128f : 1.0f + (float)c / 3;
  }
}

static void run_all(results *r, const rmsnorm_parallel *parallel, int threads) {
  memset(r, 0xff, sizeof *r);
  rmsnorm_forward_args f = RMSNORM_FORWARD_ARGS_INIT;
  f.rows = ROWS, f.cols = COLS, f.eps = 1e-6;
  f.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, COLS);
  f.weight = weight, f.weight_dtype = RMSNORM_DTYPE_F32;
  f.y = rmsnorm_output(r->y, RMSNORM_DTYPE_F32, COLS);
  f.rstd = r->rstd;
  f.parallel = parallel, f.threads = threads;
  EXPECT(rmsnorm_forward(&f, NULL) == RMSNORM_OK);
  rmsnorm_backward_args b = RMSNORM_BACKWARD_ARGS_INIT;
  b.rows = ROWS, b.cols = COLS, b.eps = 1e-6;
  b.x = f.x, b.weight = weight, b.weight_dtype = RMSNORM_DTYPE_F32;
  b.dy = rmsnorm_input(dy, RMSNORM_DTYPE_F32, COLS);
  b.dx = rmsnorm_output(r->dx, RMSNORM_DTYPE_F32, COLS);
  b.dweight = r->dweight, b.dweight_dtype = RMSNORM_DTYPE_F32;
  b.parallel = parallel, b.threads = threads;
  size_t bytes = 0;
  EXPECT(rmsnorm_backward_workspace_bytes(&b, &bytes) == RMSNORM_OK);
  b.workspace = aligned_alloc(64, (bytes + 127) / 64 * 64);
  b.workspace_bytes = bytes;
  EXPECT(b.workspace != NULL && rmsnorm_backward(&b, NULL) == RMSNORM_OK);
  free(b.workspace);
}

/* A parallel-for of threads made for the occasion: thread k takes the tasks k, k + THREADS, ... */
typedef struct share {
  int64_t first, tasks;
  void (*task)(void *, int64_t);
  void *context;
} share;

static void *run_share(void *context) {
  const share *s = context;
  fesetround(FE_UPWARD);
  for (int64_t i = s->first; i < s->tasks; i += THREADS) s->task(s->context, i);
  return fegetround() == FE_UPWARD ? NULL : context;
}

static void run_in_threads(void *context, int64_t tasks, void (*task)(void *, int64_t), void *task_context) {
  int *calls = context;
  share shares[THREADS];
  pthread_t threads[THREADS];
  ++*calls;
  for (int k = 0; k < THREADS; k++) {
    shares[k] = (share){k, tasks, task, task_context};
    EXPECT(pthread_create(&threads[k], NULL, run_share, &shares[k]) == 0);
  }
  for (int k = 0; k < THREADS; k++) {
    void *changed = NULL;
    EXPECT(pthread_join(threads[k], &changed) == 0 && changed == NULL);
  }
}

static void *run_many(void *context) {
  for (int i = 0; i < 20; i++) run_all(context, NULL, 1);
  return NULL;
}

static void test_threads(const results *expected) {
  static results found[THREADS];
  for (int threads = 0; threads <= 5; threads++) {
    run_all(&found[0], NULL, threads);
    EXPECT(memcmp(&found[0], expected, sizeof *expected) == 0);
  }
  int calls = 0;
  const rmsnorm_parallel parallel = {&calls, THREADS, 0, run_in_threads};
  run_all(&found[0], &parallel, 0);
  EXPECT(memcmp(&found[0], expected, sizeof *expected) == 0);
  calls = 0;
  run_all(&found[0], &parallel, 1);
  EXPECT(calls == 0); /* threads == 1: serially, in the calling thread */
  pthread_t threads[THREADS];
  for (int k = 0; k < THREADS; k++) EXPECT(pthread_create(&threads[k], NULL, run_many, &found[k]) == 0);
  for (int k = 0; k < THREADS; k++) {
    EXPECT(pthread_join(threads[k], NULL) == 0);
    EXPECT(memcmp(&found[k], expected, sizeof *expected) == 0);
  }
}

static void test_modes(const results *expected) {
  static results found;
  static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  for (int i = 0; i < 4; i++)
    for (int flags = 0; flags < 2; flags++)
      for (int threads = 0; threads < 2; threads++) {
        fesetround(modes[i]);
        feclearexcept(FE_ALL_EXCEPT);
        if (flags) feraiseexcept(FE_DIVBYZERO | FE_INEXACT);
        int before = fetestexcept(FE_ALL_EXCEPT);
        run_all(&found, NULL, threads);
        int after = fetestexcept(FE_ALL_EXCEPT), mode = fegetround();
        fesetround(FE_TONEAREST);
        EXPECT(before == after);
        EXPECT(mode == modes[i]);
        EXPECT(memcmp(&found, expected, sizeof found) == 0);
      }
  /* A refusal raises nothing either, not even about a NaN. */
  feclearexcept(FE_ALL_EXCEPT);
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = 1, a.cols = 1, a.x.dtype = RMSNORM_DTYPE_F32;
  EXPECT(rmsnorm_forward(&a, NULL) == RMSNORM_ERROR_VALUE);
  EXPECT(fetestexcept(FE_ALL_EXCEPT) == 0);
#ifdef __SSE__
  const unsigned flush = 0x8040; /* flush to zero, denormals are zero */
  unsigned host = _mm_getcsr();
  _mm_setcsr(host | flush);
  run_all(&found, NULL, 1);
  unsigned after = _mm_getcsr();
  _mm_setcsr(host);
  EXPECT(after == (host | flush));
  EXPECT(memcmp(&found, expected, sizeof found) == 0);
#endif
}

static void test_unknown(void) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  float in = 1, out = 7;
  a.rows = 1, a.cols = 1, a.eps = 0;
  a.x = rmsnorm_input(&in, RMSNORM_DTYPE_F32, 1);
  a.y = rmsnorm_output(&out, RMSNORM_DTYPE_F32, 1);
  for (int i = 0; i < 2; i++) {
    EXPECT(rmsnorm_forward(&a, NULL) == RMSNORM_ERROR_UNKNOWN_IMPL && out == 7);
    EXPECT(strstr(rmsnorm_last_error(), "RMSNORM_IMPL") != NULL);
  }
  a.impl = "portable";
  EXPECT(rmsnorm_forward(&a, NULL) == RMSNORM_OK && out == 1);
}

static void test_portable(void) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  float in = 1, out = 7;
  const char *name = NULL;
  char text[1024];
  a.rows = 1, a.cols = 1, a.eps = 0;
  a.x = rmsnorm_input(&in, RMSNORM_DTYPE_F32, 1);
  a.y = rmsnorm_output(&out, RMSNORM_DTYPE_F32, 1);
  EXPECT(rmsnorm_impl_for(RMSNORM_OP_FORWARD, &a, &name) == RMSNORM_OK && strcmp(name, "portable") == 0);
  EXPECT(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text) == RMSNORM_OK);
  EXPECT(strstr(text, "portable   runs: forced by RMSNORM_IMPL\n") != NULL);
  a.impl = "unheard-of";
  EXPECT(rmsnorm_impl_for(RMSNORM_OP_FORWARD, &a, &name) == RMSNORM_ERROR_UNKNOWN_IMPL);
}

int main(int argc, char **argv) {
  fill();
  if (argc > 1 && strcmp(argv[1], "unknown") == 0) {
    test_unknown();
  } else if (argc > 1 && strcmp(argv[1], "portable") == 0) {
    test_portable();
  } else {
    static results expected;
    run_all(&expected, NULL, 1);
    test_threads(&expected);
    test_modes(&expected);
  }
  if (failures == 0) printf("test_host: all hold\n");
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
