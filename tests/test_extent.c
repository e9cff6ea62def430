/* test_extent.c - sizes and strides past 2^31 elements, over mappings of which almost nothing is ever touched; and
 * counts of rows in the millions. For every implementation, results against those of a small packed call.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cases.h"
#include "reference.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { ROWS = 4, COLS = 256, BLOCKS = COLS / 32 };
static const int64_t FAR = ((int64_t)1 << 30) + 17; /* row 2 begins past 2^31 elements, and 2^32 bytes of any type */

static const char *impl;

/* Address space without memory. NULL: this machine grants none, which is said and not passed over. */
static void *reserve(int64_t bytes) {
  void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) fail_msg("no address space of %lld bytes", (long long)bytes);
  return p;
}

/* One array of `rows` rows that lie `stride` elements apart (negative: the first is the last in memory). */
typedef struct field {
  char *map, *data;
  int64_t bytes, stride;
  int dtype;
} field;

static field field_of(int dtype, int64_t stride) {
  int64_t size = (int64_t)rmsnorm_dtype_bytes(dtype), reach = (ROWS - 1) * (stride < 0 ? -stride : stride);
  field f = {.bytes = (reach + COLS) * size + 4096, .stride = stride, .dtype = dtype};
  f.map = reserve(f.bytes);
  f.data = f.map + (stride < 0 ? reach * size : 0);
  return f;
}
static void field_free(field *f) {
  assert_int_equal(munmap(f->map, (size_t)f->bytes), 0);
}
static char *row_of(const field *f, int64_t row) {
  return f->data + row * f->stride * (int64_t)rmsnorm_dtype_bytes(f->dtype);
}
static void put(const field *f, const char *packed) {
  size_t bytes = COLS * rmsnorm_dtype_bytes(f->dtype);
  for (int64_t r = 0; r < ROWS; r++) memcpy(row_of(f, r), packed + (size_t)r * bytes, bytes);
}
/* The rows are right, and the elements on both sides of each are still the zeros of a fresh mapping. */
static void expect_rows(const char *what, const field *f, const char *packed) {
  size_t size = rmsnorm_dtype_bytes(f->dtype), bytes = COLS * size;
  static const char zeros[64];
  for (int64_t r = 0; r < ROWS; r++) {
    const char *row = row_of(f, r);
    if (memcmp(row, packed + (size_t)r * bytes, bytes))
      fail_msg("%s: row %lld of %s is wrong, stride %lld, %s", impl, (long long)r, what, (long long)f->stride,
               rmsnorm_dtype_name(f->dtype));
    if (memcmp(row + bytes, zeros, sizeof zeros) || (row != f->map && memcmp(row - 64, zeros, sizeof zeros)))
      fail_msg("%s: something beside row %lld of %s was written", impl, (long long)r, what);
  }
}

typedef struct packed {
  char x[ROWS * COLS * 4], residual[ROWS * COLS * 4], dy[ROWS * COLS * 4], weight[COLS * 4];
  char y[ROWS * COLS * 4], sum[ROWS * COLS * 4], q[ROWS * COLS], dx[ROWS * COLS * 4];
  float rstd[ROWS], scale[ROWS * BLOCKS], dweight[COLS];
} packed;
static packed want, got;

static rmsnorm_forward_args forward(int dtype, packed *p, int64_t stride) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = ROWS, a.cols = COLS, a.eps = 1e-6, a.impl = impl;
  a.x = rmsnorm_input(p->x, dtype, stride), a.residual = rmsnorm_input(p->residual, dtype, stride);
  a.weight = p->weight, a.weight_dtype = dtype;
  a.y = rmsnorm_output(p->y, dtype, stride), a.residual_out = rmsnorm_output(p->sum, dtype, stride);
  a.rstd = p->rstd;
  return a;
}
static rmsnorm_backward_args backward(int dtype, packed *p, int64_t stride) {
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  a.rows = ROWS, a.cols = COLS, a.eps = 1e-6, a.impl = impl;
  a.x = rmsnorm_input(p->x, dtype, stride), a.dy = rmsnorm_input(p->dy, dtype, stride);
  a.weight = p->weight, a.weight_dtype = dtype;
  a.dx = rmsnorm_output(p->dx, dtype, stride), a.dweight = p->dweight, a.dweight_dtype = RMSNORM_DTYPE_F32;
  return a;
}
static void run_backward(rmsnorm_backward_args *a) {
  assert_int_equal(rmsnorm_backward_workspace_bytes(a, &a->workspace_bytes), RMSNORM_OK);
  void *workspace = aligned_alloc(64, (a->workspace_bytes + 127) / 64 * 64);
  assert_non_null(workspace);
  a->workspace = a->workspace_bytes ? workspace : NULL;
  assert_int_equal(rmsnorm_backward(a, NULL), RMSNORM_OK);
  free(workspace);
}

/* heads: the rows are the heads of one token instead. */
static void check_strides(int dtype, int64_t stride, bool heads) {
  rn_random r = {1};
  for (int64_t i = 0; i < ROWS * COLS; i++) {
    rn_ref_store(dtype, want.x, i, rn_random_normal(&r));
    rn_ref_store(dtype, want.residual, i, rn_random_normal(&r));
    rn_ref_store(dtype, want.dy, i, rn_random_normal(&r));
    if (i < COLS) rn_ref_store(dtype, want.weight, i, rn_random_normal(&r));
  }
  rmsnorm_forward_args f = forward(dtype, &want, COLS);
  f.quant.granularity = RMSNORM_QUANT_BLOCK, f.quant.block_cols = 32, f.quant.scale_out = want.scale;
  f.quant.q = rmsnorm_output(want.q, RMSNORM_DTYPE_FP8_E4M3, COLS);
  assert_int_equal(rmsnorm_forward(&f, NULL), RMSNORM_OK);
  rmsnorm_backward_args b = backward(dtype, &want, COLS);
  run_backward(&b);

  got = want;
  memset(got.rstd, 0x5a, sizeof got.rstd), memset(got.dweight, 0x5a, sizeof got.dweight);
  field x = field_of(dtype, stride), residual = field_of(dtype, stride - 64), dy = field_of(dtype, stride + 64);
  field y = field_of(dtype, stride + 3), sum = field_of(dtype, stride + 5), dx = field_of(dtype, stride - 7);
  field q = field_of(RMSNORM_DTYPE_FP8_E4M3, 2 * stride + 9);
  put(&x, want.x), put(&residual, want.residual), put(&dy, want.dy);
#define PLACE(tensor, field)                                                                                           \
  (tensor).data = (field).data, (tensor).row_stride = heads ? 0 : (field).stride,                                      \
  (tensor).head_stride = heads ? (field).stride : 0
  f = forward(dtype, &got, COLS);
  if (heads) f.rows = 1, f.heads = ROWS;
  PLACE(f.x, x), PLACE(f.residual, residual), PLACE(f.y, y), PLACE(f.residual_out, sum);
  assert_int_equal(rmsnorm_forward(&f, NULL), RMSNORM_OK);
  expect_rows("y", &y, want.y), expect_rows("residual_out", &sum, want.sum);
  assert_memory_equal(got.rstd, want.rstd, sizeof want.rstd);

  /* Quantised, with the scales of a row, and then of a block, far from each other. */
  int64_t apart = ((int64_t)1 << 31) / BLOCKS + 3;
  for (int layout = 0; layout < 2; layout++) {
    float *scale = reserve((BLOCKS + 1) * apart * 4 + 4096);
    f.quant.granularity = RMSNORM_QUANT_BLOCK, f.quant.block_cols = 32;
    f.quant.scale_layout = layout, f.quant.scale_out = scale, f.quant.scale_stride = apart;
    f.quant.q = rmsnorm_output(NULL, RMSNORM_DTYPE_FP8_E4M3, 0);
    PLACE(f.quant.q, q);
    memset(row_of(&q, ROWS - 1), 0, COLS);
    assert_int_equal(rmsnorm_forward(&f, NULL), RMSNORM_OK);
    expect_rows("q", &q, want.q);
    for (int64_t row = 0; row < ROWS; row++)
      for (int64_t k = 0; k < BLOCKS; k++) {
        float found = layout == RMSNORM_SCALE_ROW_MAJOR ? scale[row * apart + k] : scale[k * apart + row];
        assert_memory_equal(&found, &want.scale[row * BLOCKS + k], 4);
      }
    assert_int_equal(munmap(scale, (size_t)((BLOCKS + 1) * apart * 4 + 4096)), 0);
  }

  b = backward(dtype, &got, COLS);
  if (heads) b.rows = 1, b.heads = ROWS;
  PLACE(b.x, x), PLACE(b.dy, dy), PLACE(b.dx, dx);
  run_backward(&b);
  expect_rows("dx", &dx, want.dx);
  assert_memory_equal(got.dweight, want.dweight, sizeof want.dweight);
#undef PLACE
  field_free(&x), field_free(&residual), field_free(&dy), field_free(&y), field_free(&sum), field_free(&dx),
      field_free(&q);
}

static void for_every_impl(void (*check)(void)) {
  for (int i = 0; rmsnorm_impl_name(i); i++)
    if (!rmsnorm_impl_why_not(i)) impl = rmsnorm_impl_name(i), check();
}

static void check_far_rows(void) {
  static const int types[] = {RMSNORM_DTYPE_F32, RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16};
  for (int t = 0; t < 3; t++)
    for (int heads = 0; heads < 2; heads++) {
      check_strides(types[t], FAR, heads);
      check_strides(types[t], -FAR, heads);
    }
}
static void test_far_rows(void **state) {
  (void)state;
  for_every_impl(check_far_rows);
}

/* A million rows of 64, and eight million of 3 (B21): every one is written, none twice differently. */
static void many_rows(int64_t rows, int64_t cols) {
  enum { PERIOD = 8 };
  size_t row = (size_t)cols * 2;
  char *x = malloc((size_t)rows * row), *y = malloc((size_t)rows * row);
  assert_true(x && y);
  rn_random r = {2};
  for (int64_t i = 0; i < PERIOD * cols; i++) rn_ref_store(RMSNORM_DTYPE_BF16, x, i, rn_random_normal(&r));
  for (int64_t i = PERIOD; i < rows; i++) memcpy(x + (size_t)i * row, x + (size_t)(i % PERIOD) * row, row);
  memset(y, 0xff, (size_t)rows * row);
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = rows, a.cols = cols, a.eps = 1e-6, a.impl = impl;
  a.x = rmsnorm_input(x, RMSNORM_DTYPE_BF16, cols), a.y = rmsnorm_output(y, RMSNORM_DTYPE_BF16, cols);
  assert_int_equal(rmsnorm_forward(&a, NULL), RMSNORM_OK);
  char first[PERIOD * 64 * 2];
  assert_true(cols <= 64);
  a.rows = PERIOD, a.y.data = first, a.impl = "portable";
  assert_int_equal(rmsnorm_forward(&a, NULL), RMSNORM_OK);
  for (int64_t i = 0; i < rows; i++)
    if (memcmp(y + (size_t)i * row, first + (size_t)(i % PERIOD) * row, row))
      fail_msg("%s: row %lld of %lld, cols %lld, is wrong", impl, (long long)i, (long long)rows, (long long)cols);
  free(x), free(y);
}
static void check_many_rows(void) {
  many_rows(1000000, 64);
  many_rows(8388608 + 3, 3);
}
static void test_many_rows(void **state) {
  (void)state;
  for_every_impl(check_many_rows);
}

/* More than 2^31 elements in one call: one row of x, seen by all rows. Vector implementations only: the others need
 * half a minute for as many elements. */
static void check_many_elements(void) {
  enum { WIDE = 4096 };
  int64_t rows = ((int64_t)1 << 31) / WIDE + 5;
  if (!strcmp(impl, "portable")) return;
  float *x = malloc(WIDE * 4), *sumsq = malloc((size_t)rows * 4), one;
  assert_true(x && sumsq);
  for (int c = 0; c < WIDE; c++) x[c] = (float)(c % 17) - 7;
  memset(sumsq, 0xff, (size_t)rows * 4);
  rmsnorm_stats_args a = RMSNORM_STATS_ARGS_INIT;
  a.rows = rows, a.cols = WIDE, a.impl = impl, a.sumsq = sumsq;
  a.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, 0);
  assert_int_equal(rmsnorm_stats(&a, NULL), RMSNORM_OK);
  a.rows = 1, a.sumsq = &one, a.impl = "portable";
  assert_int_equal(rmsnorm_stats(&a, NULL), RMSNORM_OK);
  for (int64_t i = 0; i < rows; i++)
    if (memcmp(&sumsq[i], &one, 4)) fail_msg("%s: the sum of row %lld is %g", impl, (long long)i, (double)sumsq[i]);
  free(x), free(sumsq);
}
static void test_many_elements(void **state) {
  (void)state;
  for_every_impl(check_many_elements);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_far_rows), cmocka_unit_test(test_many_rows),
                                     cmocka_unit_test(test_many_elements)};
  return cmocka_run_group_tests_name("extent", tests, NULL, NULL);
}
