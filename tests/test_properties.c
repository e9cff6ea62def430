/* test_properties.c - what holds between calls, whatever the numbers are. For every implementation:
 *
 *   batch     a row has the same bits alone, among others, in another order, and beside rows of NaN
 *   weight    all ones are no weight; weight_offset 1 with w - 1 is w
 *   scale     with eps 0, x times a power of two gives the same y, and rstd and dx divided by it
 *   gradient  with eps 0, dx is perpendicular to x
 *   threads   1 to 7 threads, and a callback in any order, give the same bits, dweight's too
 *
 *   test_properties [STEP]    of the numbers of threads every STEPth only, where time is short
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cases.h"
#include "reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const uint64_t seed = 20240608;
static const int types[] = {RMSNORM_DTYPE_F32, RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16};
static const int64_t widths[] = {1, 5, 33, 64, 100, 257, 512, 1000, 1500, 4096, 5000, 20000};
enum { WIDTHS = sizeof widths / sizeof widths[0], TYPES = 3 };

/* One call: its arrays, packed, all of `type` but weight and dweight. */
typedef struct set {
  int type;
  int64_t rows, cols;
  double eps;
  float offset;
  const void *weight; /* of `type` */
  int threads;
  const rmsnorm_parallel *parallel;
  char *x, *dy, *y, *dx;
  float *rstd, *scale, *dweight;
  uint8_t *q;
} set;

static const char *impl;
static int thread_step = 1;

static void *some(size_t bytes) {
  void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
  assert_non_null(p);
  memset(p, 0x5a, bytes);
  return p;
}
static size_t row_bytes(const set *s) {
  return (size_t)s->cols * rmsnorm_dtype_bytes(s->type);
}

static set set_of(int type, int64_t rows, int64_t cols) {
  set s = {.type = type, .rows = rows, .cols = cols, .eps = 1e-6, .threads = 1};
  size_t bytes = (size_t)rows * row_bytes(&s);
  s.x = some(bytes), s.dy = some(bytes), s.y = some(bytes), s.dx = some(bytes), s.q = some((size_t)(rows * cols));
  s.rstd = some((size_t)rows * 4), s.scale = some((size_t)rows * 4), s.dweight = some((size_t)cols * 4);
  return s;
}
static void set_free(set *s) {
  free(s->x), free(s->dy), free(s->y), free(s->dx), free(s->q), free(s->rstd), free(s->scale), free(s->dweight);
}

static void fill(int type, void *data, int64_t count, rn_random *r) {
  for (int64_t i = 0; i < count; i++) rn_ref_store(type, data, i, rn_random_normal(r));
}
static void fill_set(set *s, rn_random *r) {
  fill(s->type, s->x, s->rows * s->cols, r);
  fill(s->type, s->dy, s->rows * s->cols, r);
}

static void expect_ok(rmsnorm_status status) {
  if (status != RMSNORM_OK) fail_msg("%s: %s", impl, rmsnorm_last_error());
}

static void run_forward(set *s) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = s->rows, a.cols = s->cols, a.eps = s->eps, a.impl = impl, a.threads = s->threads, a.parallel = s->parallel;
  a.numerics.weight_offset = s->offset;
  a.x = rmsnorm_input(s->x, s->type, s->cols);
  a.weight = s->weight, a.weight_dtype = s->type;
  a.y = rmsnorm_output(s->y, s->type, s->cols), a.rstd = s->rstd;
  expect_ok(rmsnorm_forward(&a, NULL));
  a.y.data = NULL, a.rstd = NULL;
  a.quant.granularity = RMSNORM_QUANT_ROW, a.quant.scale_out = s->scale;
  a.quant.q = rmsnorm_output(s->q, RMSNORM_DTYPE_FP8_E4M3, s->cols);
  expect_ok(rmsnorm_forward(&a, NULL));
}

static void run_backward(set *s) {
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  a.rows = s->rows, a.cols = s->cols, a.eps = s->eps, a.impl = impl, a.threads = s->threads, a.parallel = s->parallel;
  a.numerics.weight_offset = s->offset;
  a.x = rmsnorm_input(s->x, s->type, s->cols), a.dy = rmsnorm_input(s->dy, s->type, s->cols);
  a.weight = s->weight, a.weight_dtype = s->type;
  a.dx = rmsnorm_output(s->dx, s->type, s->cols);
  if (s->weight) a.dweight = s->dweight, a.dweight_dtype = RMSNORM_DTYPE_F32;
  expect_ok(rmsnorm_backward_workspace_bytes(&a, &a.workspace_bytes));
  char *workspace = some(a.workspace_bytes);
  a.workspace = a.workspace_bytes ? workspace : NULL;
  expect_ok(rmsnorm_backward(&a, NULL));
  free(workspace);
}

static void run(set *s) {
  run_forward(s);
  run_backward(s);
}

static void same(const char *what, const set *s, const void *got, const void *want, size_t bytes) {
  if (memcmp(got, want, bytes))
    fail_msg("%s: other bits with %s, %s, rows %lld, cols %lld (seed %llu)", what, impl, rmsnorm_dtype_name(s->type),
             (long long)s->rows, (long long)s->cols, (unsigned long long)seed);
}

/* Row `i` of a set has the results that row `j` of another has. */
static void same_row(const char *what, const set *a, int64_t i, const set *b, int64_t j) {
  size_t bytes = row_bytes(a), cols = (size_t)a->cols;
  same(what, a, a->y + (size_t)i * bytes, b->y + (size_t)j * bytes, bytes);
  same(what, a, a->dx + (size_t)i * bytes, b->dx + (size_t)j * bytes, bytes);
  same(what, a, a->q + (size_t)i * cols, b->q + (size_t)j * cols, cols);
  same(what, a, a->rstd + i, b->rstd + j, 4);
  same(what, a, a->scale + i, b->scale + j, 4);
}
static void same_results(const char *what, const set *a, const set *b) {
  for (int64_t i = 0; i < a->rows; i++) same_row(what, a, i, b, i);
}
static void copy_row(set *to, int64_t i, const set *from, int64_t j) {
  size_t bytes = row_bytes(to);
  memcpy(to->x + (size_t)i * bytes, from->x + (size_t)j * bytes, bytes);
  memcpy(to->dy + (size_t)i * bytes, from->dy + (size_t)j * bytes, bytes);
}

/* Calls check for every implementation, type and width. */
static void everywhere(void (*check)(int type, int64_t cols, const void *weight, rn_random *r)) {
  rn_random r = {seed};
  for (int i = 0; rmsnorm_impl_name(i); i++) {
    if (rmsnorm_impl_why_not(i)) continue;
    impl = rmsnorm_impl_name(i);
    for (int t = 0; t < TYPES; t++)
      for (int w = 0; w < WIDTHS; w++) {
        char *weight = some((size_t)widths[w] * 4);
        fill(types[t], weight, widths[w], &r);
        check(types[t], widths[w], weight, &r);
        free(weight);
      }
  }
}

static void check_batch(int type, int64_t cols, const void *weight, rn_random *r) {
  enum { ROWS = 11, STEP = 7 }; /* row i goes to place i * STEP mod ROWS */
  set all = set_of(type, ROWS, cols), one = set_of(type, 1, cols), other = set_of(type, ROWS, cols),
      mixed = set_of(type, 2 * ROWS + 1, cols);
  all.weight = one.weight = other.weight = mixed.weight = weight;
  fill_set(&all, r);
  run(&all);
  for (int64_t c = 0; c < mixed.rows * cols; c++) {
    rn_ref_store(type, mixed.x, c, NAN);
    rn_ref_store(type, mixed.dy, c, 1);
  }
  for (int64_t i = 0; i < ROWS; i++) {
    copy_row(&one, 0, &all, i);
    run(&one);
    same_row("a row alone", &one, 0, &all, i);
    copy_row(&other, i * STEP % ROWS, &all, i);
    copy_row(&mixed, 2 * i + 1, &all, i);
  }
  run(&other);
  run(&mixed);
  for (int64_t i = 0; i < ROWS; i++) {
    same_row("rows in another order", &other, i * STEP % ROWS, &all, i);
    same_row("rows beside NaN", &mixed, 2 * i + 1, &all, i);
    assert_true(isnan(mixed.rstd[2 * i]) && isnan(rn_ref_load(type, mixed.y, 2 * i * cols)));
  }
  set_free(&all), set_free(&one), set_free(&other), set_free(&mixed);
}
static void test_batch(void **state) {
  (void)state;
  everywhere(check_batch);
}

static void check_weight(int type, int64_t cols, const void *weight, rn_random *r) {
  set a = set_of(type, 5, cols), b = set_of(type, 5, cols);
  char *ones = some((size_t)cols * 4), *more = some((size_t)cols * 4);
  (void)weight;
  fill_set(&a, r);
  for (int64_t i = 0; i < 5; i++) copy_row(&b, i, &a, i);
  for (int64_t c = 0; c < cols; c++) rn_ref_store(type, ones, c, 1);
  a.weight = ones;
  run(&a), run(&b);
  same_results("a weight of ones", &a, &b);
  for (int64_t c = 0; c < cols; c++) { /* multiples of 1/64, so that w - 1 is exact in every type */
    double w = (double)rn_random_below(r, 128) / 64;
    rn_ref_store(type, ones, c, w), rn_ref_store(type, more, c, w - 1);
  }
  b.weight = more, b.offset = 1;
  run(&a), run(&b);
  same_results("an offset of one", &a, &b);
  same("an offset of one", &a, a.dweight, b.dweight, (size_t)cols * 4);
  set_free(&a), set_free(&b);
  free(ones), free(more);
}
static void test_weight(void **state) {
  (void)state;
  everywhere(check_weight);
}

static void check_scale(int type, int64_t cols, const void *weight, rn_random *r) {
  static const int wide[] = {-100, -60, -7, 1, 20, 60, 100}, half[] = {-3, -1, 1, 3};
  const int *powers = type == RMSNORM_DTYPE_F16 ? half : wide;
  int count = type == RMSNORM_DTYPE_F16 ? 4 : 7;
  set a = set_of(type, 3, cols), b = set_of(type, 3, cols);
  a.eps = b.eps = 0, a.weight = b.weight = weight;
  fill_set(&a, r);
  /* Multiples of 1/64: nothing is subnormal after scaling either, in any of the types. */
  for (int64_t i = 0; i < 3 * cols; i++) rn_ref_store(type, a.x, i, (double)(1 + rn_random_below(r, 200)) / 64);
  run(&a);
  for (int k = 0; k < count; k++) {
    double factor = ldexp(1, powers[k]);
    for (int64_t i = 0; i < 3; i++) copy_row(&b, i, &a, i);
    for (int64_t i = 0; i < 3 * cols; i++) rn_ref_store(type, b.x, i, rn_ref_load(type, a.x, i) * factor);
    run(&b);
    same("y of a scaled x", &a, b.y, a.y, 3 * row_bytes(&a));
    same("q of a scaled x", &a, b.q, a.q, (size_t)(3 * cols));
    same("dweight of a scaled x", &a, b.dweight, a.dweight, (size_t)cols * 4);
    for (int64_t i = 0; i < 3; i++) b.rstd[i] *= (float)factor;
    same("rstd of a scaled x", &a, b.rstd, a.rstd, 12);
    if (type != RMSNORM_DTYPE_F32) continue; /* elsewhere a scaled dx may be subnormal */
    for (int64_t i = 0; i < 3 * cols; i++) {
      double was = rn_ref_load(type, a.dx, i), is = rn_ref_load(type, b.dx, i) * factor;
      if (is != was && fabs(was / factor) > 0x1p-120)
        fail_msg("%s: dx of x * 2^%d is %a, not %a", impl, powers[k], is, was);
    }
  }
  set_free(&a), set_free(&b);
}
static void test_scale(void **state) {
  (void)state;
  everywhere(check_scale);
}

/* sum dx x = D - (D / n) sum xhat^2 is 0 in exact arithmetic. With u = 2^-24, d the longest chain of additions of
 * docs/numerics.md 1.2 and A = sum |t xhat|: D is off by d u A; sum xhat^2 / n by 2 (d/2 + 4) u, what c rounds by 3 u;
 * the two roundings of each dx by 4 u A in all. Together (2 d + 16) u A, and the last rounding to a narrow type. */
static void check_gradient(int type, int64_t cols, const void *weight, rn_random *r) {
  set s = set_of(type, 4, cols);
  int64_t lanes = 64;
  while (lanes < 65536 && 8 * lanes <= cols) lanes *= 2;
  double d = ceil((double)cols / (double)lanes) + log2((double)lanes), narrow = type == RMSNORM_DTYPE_BF16  ? 0x1p-9
                                                                                : type == RMSNORM_DTYPE_F16 ? 0x1p-12
                                                                                                            : 0;
  s.eps = 0, s.weight = weight;
  fill_set(&s, r);
  run(&s);
  for (int64_t i = 0; i < s.rows; i++) {
    double sum = 0, size = 0, rounded = 0;
    for (int64_t c = 0; c < cols; c++) {
      double x = rn_ref_load(type, s.x, i * cols + c), dx = rn_ref_load(type, s.dx, i * cols + c);
      double t = rn_ref_load(type, s.dy, i * cols + c) * rn_ref_load(type, weight, c);
      sum += dx * x, rounded += fabs(dx * x) + fabs(x) * 0x1p-25;
      size += fabs(t * x * (double)s.rstd[i]);
    }
    double bound = (2 * d + 16) * 0x1p-24 * size + narrow * rounded;
    if (!(fabs(sum) <= bound))
      fail_msg("%s, %s, cols %lld: dx . x is %g, more than %g", impl, rmsnorm_dtype_name(type), (long long)cols, sum,
               bound);
  }
  set_free(&s);
}
static void test_gradient(void **state) {
  (void)state;
  everywhere(check_gradient);
}

/* Tasks one after the other, the last first. */
static void backwards(void *context, int64_t tasks, void (*task)(void *, int64_t), void *task_context) {
  ++*(int *)context;
  while (tasks > 0) task(task_context, --tasks);
}

static void test_threads(void **state) {
  (void)state;
  static const int64_t shapes[][2] = {{3000, 600}, {1500, 1024}, {400, 3000}, {37, 40000}, {5, 300000}, {21001, 64}};
  rn_random r = {seed};
  for (int i = 0; rmsnorm_impl_name(i); i++) {
    if (rmsnorm_impl_why_not(i)) continue;
    impl = rmsnorm_impl_name(i);
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
      int type = types[k % TYPES];
      int64_t rows = shapes[k][0], cols = shapes[k][1];
      set a = set_of(type, rows, cols), b = set_of(type, rows, cols);
      char *weight = some((size_t)cols * 4);
      fill(type, weight, cols, &r);
      fill_set(&a, &r);
      rn_ref_store(type, a.x, rows / 2 * cols + cols / 2, INFINITY); /* a rescued row among them */
      memcpy(b.x, a.x, (size_t)rows * row_bytes(&a)), memcpy(b.dy, a.dy, (size_t)rows * row_bytes(&a));
      a.weight = b.weight = weight;
      run(&a);
      for (int threads = 2; threads <= 14; threads += thread_step) {
        int calls = 0, crew = threads - 7;
        rmsnorm_parallel how = {.context = &calls, .threads = crew, .run = backwards};
        memset(b.y, 0x33, (size_t)rows * row_bytes(&b)), memset(b.dx, 0x33, (size_t)rows * row_bytes(&b));
        memset(b.dweight, 0x33, (size_t)cols * 4);
        b.threads = threads <= 7 ? threads : 0, b.parallel = threads <= 7 ? NULL : &how;
        run(&b);
        if (crew > 1) assert_true(calls > 0);
        for (int64_t row = 0; row < rows; row++)
          if (row != rows / 2) same_row("threads", &b, row, &a, row);
        for (int64_t c = 0; c < cols; c++)
          if (!isnan(a.dweight[c]) || !isnan(b.dweight[c]))
            same("threads, dweight", &b, b.dweight + c, a.dweight + c, 4);
      }
      set_free(&a), set_free(&b), free(weight);
    }
  }
}

int main(int argc, char **argv) {
  if (argc > 1) thread_step = atoi(argv[1]);
  if (thread_step < 1) return 2;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_batch), cmocka_unit_test(test_weight),
                                     cmocka_unit_test(test_scale), cmocka_unit_test(test_gradient),
                                     cmocka_unit_test(test_threads)};
  return cmocka_run_group_tests_name("properties", tests, NULL, NULL);
}
