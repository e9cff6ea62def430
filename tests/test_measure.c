/* test_measure.c - how two arrays differ: planted differences whose numbers are known by construction, and arrays that
 * differ without a plan, in which none may be seen.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "compare.h"
#include "json.h"
#include "measure.h"
#include "picture.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t state;

static uint64_t next(void) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state * UINT64_C(0x2545f4914f6cdd1d);
}
static double uniform(void) {
  return (double)(next() >> 11) * 0x1p-53;
}
/* Nothing small: an ulp is a fixed step then. In [1, 2) or (-2, -1]. */
static double plain(void) {
  const double v = 1 + uniform();
  return next() >> 63 ? -v : v;
}

static rn_tensor make(int dtype, int64_t rows, int64_t cols) {
  rn_tensor t;
  assert_true(rn_tensor_new(&t, dtype, 2, (const int64_t[]){rows, cols}));
  return t;
}
static rn_tensor filled(int dtype, int64_t rows, int64_t cols) {
  rn_tensor t = make(dtype, rows, cols);
  for (int64_t i = 0; i < t.count; i++) rn_ref_store(dtype, t.data, i, plain());
  return t;
}
static rn_tensor copy(const rn_tensor *t) {
  rn_tensor c;
  assert_true(rn_tensor_new(&c, t->dtype, t->rank, t->shape));
  memcpy(c.data, t->data, (size_t)t->count * (size_t)t->item_bytes);
  return c;
}
/* So many codes away from zero; the values stay within one binade and the next. */
static void move(rn_tensor *t, int64_t i, int64_t codes) {
  uint64_t bits = 0;
  memcpy(&bits, (char *)t->data + i * t->item_bytes, (size_t)t->item_bytes);
  bits += (uint64_t)codes;
  memcpy((char *)t->data + i * t->item_bytes, &bits, (size_t)t->item_bytes);
}
static rn_measured measure(const rn_tensor *a, const rn_tensor *b) {
  rn_measured m;
  assert_true(rn_measure(a, b, &m, stderr));
  return m;
}
static const int floats[] = {RMSNORM_DTYPE_F32, RMSNORM_DTYPE_F16, RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F64};
enum { FLOATS = sizeof floats / sizeof *floats };

/* ------------------------------------------------------------------------------------------------------------------ */

static void test_classes(void **unused) {
  (void)unused;
  static const struct {
    uint64_t ulp;
    const char *name;
  } known[] = {{0, "0"},
               {1, "1"},
               {2, "2"},
               {3, "3-4"},
               {4, "3-4"},
               {5, "5-8"},
               {8, "5-8"},
               {9, "9-16"},
               {4096, "2049-4096"},
               {4097, "4097-8192"},
               {8193, "8193-2^14"},
               {16384, "8193-2^14"},
               {16385, "2^14-2^15"},
               {65536, "2^15-2^16"},
               {65537, "over 2^16"},
               {UINT64_MAX, "over 2^16"}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    assert_string_equal(rn_ulp_class_name(rn_ulp_class(known[i].ulp)), known[i].name);
}

static void test_equal(void **unused) {
  (void)unused;
  for (int k = 0; k < FLOATS; k++) {
    rn_tensor b = filled(floats[k], 5, 33), a = copy(&b);
    /* Zeros of both signs, infinities and NaN with other payloads are equal. */
    rn_ref_store(b.dtype, b.data, 7, -0.0), rn_ref_store(a.dtype, a.data, 7, 0.0);
    rn_ref_store(b.dtype, b.data, 8, (double)INFINITY), rn_ref_store(a.dtype, a.data, 8, (double)INFINITY);
    rn_ref_store(b.dtype, b.data, 9, (double)NAN), rn_ref_store(a.dtype, a.data, 9, (double)NAN);
    move(&a, 9, 1);
    rn_measured m = measure(&a, &b);
    assert_true(rn_measured_equal(&m));
    assert_int_equal(m.zero_signs, 1);
    assert_int_equal(m.specials.nan_both, 1);
    assert_int_equal(m.specials.inf_both, 1);
    assert_int_equal(m.first, -1);
    assert_int_equal(m.row_extent.kind, RN_EXTENT_NONE);
    assert_false(m.narrowed);
    rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
  }
}

/* Every number of a measurement, by construction. */
static void test_numbers(void **unused) {
  (void)unused;
  for (int k = 0; k < FLOATS; k++) {
    rn_tensor b = filled(floats[k], 8, 64), a = copy(&b);
    rn_ref_store(b.dtype, b.data, 100, -1.25), rn_ref_store(a.dtype, a.data, 100, -1.25);
    rn_ref_store(b.dtype, b.data, 200, 1.25), rn_ref_store(a.dtype, a.data, 200, 1.25);
    move(&a, 100, 3), move(&a, 200, -1); /* a is 3 ulp below b there, and 1 below here */
    rn_measured m = measure(&a, &b);
    const double n = 8 * 64, ulp = rn_ref_ulp(b.dtype, 1.25);
    assert_int_equal(m.dtype, b.dtype);
    assert_int_equal(m.differ, 2);
    assert_int_equal(m.ulp, 3);
    assert_int_equal(m.first, 100);
    assert_int_equal(m.worst, 100);
    assert_true(m.first_a == -1.25 - 3 * ulp && m.first_b == -1.25);
    assert_int_equal(m.classes[0], 8 * 64 - 2);
    assert_int_equal(m.classes[rn_ulp_class(3)], 1);
    assert_int_equal(m.classes[rn_ulp_class(1)], 1);
    assert_true(fabs(m.bias_ulp - -4 / n) < 1e-12);
    assert_true(fabs(m.away_ulp - 2 / n) < 1e-12);
    assert_true(fabs(m.mean_ulp - 4 / n) < 1e-12);
    assert_true(fabs(m.largest_relative - 3 * ulp / 1.25) < 1e-12 * ulp + 1e-15 * ulp);
    assert_int_equal(m.rows_four, 0);
    rn_measured_free(&m);
    move(&a, 300, 3), move(&a, 50, 2); /* of two that are equally bad the first is meant */
    m = measure(&a, &b);
    assert_int_equal(m.first, 50);
    assert_int_equal(m.worst, 100);
    rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
  }
}

static void test_specials(void **unused) {
  (void)unused;
  rn_tensor b = filled(RMSNORM_DTYPE_F16, 6, 40), a = copy(&b);
  for (int c = 0; c < 40; c++) {
    rn_ref_store(a.dtype, a.data, 3 * 40 + c, (double)NAN);
    rn_ref_store(a.dtype, a.data, 4 * 40 + c, 0.0);
    rn_ref_store(b.dtype, b.data, 5 * 40 + c, 65504.0);
    rn_ref_store(a.dtype, a.data, 5 * 40 + c, 65504.0);
  }
  for (int r = 0; r < 6; r++) rn_ref_store(a.dtype, a.data, r * 40 + 39, 0.0);
  rn_ref_store(a.dtype, a.data, 5 * 40 + 1, (double)INFINITY); /* next to 65504 as a code, and not as a result */
  rn_ref_store(b.dtype, b.data, 2, (double)-INFINITY), rn_ref_store(a.dtype, a.data, 2, (double)INFINITY);
  rn_measured m = measure(&a, &b);
  assert_int_equal(m.specials.nan_a, 39);
  assert_int_equal(m.specials.rows_nan_a, 1);
  assert_int_equal(m.specials.rows_full_nan_a, 0); /* its last column is 0 */
  assert_int_equal(m.specials.first_nan_a, 120);
  assert_int_equal(m.specials.inf_a, 2);
  assert_int_equal(m.specials.inf_b, 1);
  assert_int_equal(m.specials.inf_both, 0);
  assert_int_equal(m.specials.zero_rows_a, 1);
  assert_int_equal(m.specials.zero_rows_b, 0);
  assert_int_equal(m.specials.zero_cols_a, 1);
  assert_int_equal(m.classes[RN_ULP_CLASS_NONFINITE], 39 + 2);
  rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
}

/* The coarser of two types; and arrays that are wider than what is in them. */
static void test_types(void **unused) {
  (void)unused;
  rn_tensor wide = filled(RMSNORM_DTYPE_F32, 9, 50), narrow = make(RMSNORM_DTYPE_BF16, 9, 50);
  rn_tensor kept = make(RMSNORM_DTYPE_F32, 9, 50);
  int64_t inexact = 0;
  for (int64_t i = 0; i < wide.count; i++) {
    const double v = rn_ref_load(wide.dtype, wide.data, i);
    rn_ref_store(narrow.dtype, narrow.data, i, v);
    rn_ref_store(kept.dtype, kept.data, i, rn_ref_round(RMSNORM_DTYPE_BF16, v));
    inexact += rn_ref_round(RMSNORM_DTYPE_BF16, v) != v;
  }
  rn_measured m = measure(&narrow, &wide);
  assert_int_equal(m.dtype, RMSNORM_DTYPE_BF16);
  assert_true(m.rounded && !m.narrowed && rn_measured_equal(&m));
  assert_int_equal(m.inexact, inexact);
  rn_measured_free(&m);
  m = measure(&kept, &narrow);
  assert_true(!m.rounded && !m.narrowed && rn_measured_equal(&m));
  assert_int_equal(m.narrow_a, RMSNORM_DTYPE_BF16);
  rn_measured_free(&m);
  rn_tensor other = copy(&kept);
  move(&other, 17, 0x10000); /* one bf16 step */
  m = measure(&other, &kept);
  assert_true(m.narrowed && m.dtype == RMSNORM_DTYPE_BF16);
  assert_int_equal(m.ulp, 1);
  rn_measured_free(&m);
  move(&other, 18, 1); /* one f32 step: not all values are bf16's any more */
  m = measure(&other, &kept);
  assert_true(!m.narrowed && m.dtype == RMSNORM_DTYPE_F32);
  assert_int_equal(m.differ, 2);
  assert_int_equal(m.ulp, 0x10000);
  rn_measured_free(&m);
  /* bf16 and f16: neither holds the other's values. */
  rn_tensor half = make(RMSNORM_DTYPE_F16, 9, 50);
  for (int64_t i = 0; i < wide.count; i++)
    rn_ref_store(half.dtype, half.data, i, rn_ref_load(wide.dtype, wide.data, i));
  m = measure(&half, &narrow);
  assert_true(m.rounded && m.dtype == RMSNORM_DTYPE_BF16);
  assert_true(m.ulp <= 1); /* rounding twice */
  rn_measured_free(&m);
  rn_tensor_free(&wide), rn_tensor_free(&narrow), rn_tensor_free(&kept), rn_tensor_free(&other), rn_tensor_free(&half);
}

static void test_refused(void **unused) {
  (void)unused;
  char text[400] = "";
  rn_measured m;
  rn_tensor a = filled(RMSNORM_DTYPE_F32, 3, 8), b = filled(RMSNORM_DTYPE_F32, 3, 7), raw = copy(&a);
  FILE *err = fmemopen(text, sizeof text, "w");
  assert_non_null(err);
  assert_false(rn_measure(&a, &b, &m, err));
  raw.dtype = RMSNORM_DTYPE_NONE;
  assert_false(rn_measure(&a, &raw, &m, err));
  raw.dtype = RMSNORM_DTYPE_E8M0;
  assert_false(rn_measure(&a, &raw, &m, err));
  fclose(err);
  assert_non_null(strstr(text, "24 and 21 elements"));
  assert_non_null(strstr(text, "--dtype"));
  assert_non_null(strstr(text, "can not be compared"));
  rn_tensor_free(&a), rn_tensor_free(&b), rn_tensor_free(&raw);
}

/* Shapes without a plane: a number, a row, nothing. */
static void test_shapes(void **unused) {
  (void)unused;
  rn_tensor a, b;
  rn_measured m;
  rn_picture p;
  static const int64_t shapes[][3] = {{0, 0, 0}, {0, 4, 1}, {4, 0, 1}, {3, 4, 1}, {1, 7, 1}, {7, 1, 1}};
  for (int rank = 0; rank <= 3; rank++)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
      assert_true(rn_tensor_new(&a, RMSNORM_DTYPE_F32, rank, shapes[i]));
      assert_true(rn_tensor_new(&b, RMSNORM_DTYPE_F32, rank, shapes[i]));
      if (a.count > 0) rn_ref_store(a.dtype, a.data, a.count - 1, 1.0);
      m = measure(&a, &b);
      assert_int_equal(m.differ, a.count > 0);
      FILE *none = fopen("/dev/null", "w");
      assert_non_null(none);
      rn_measured_print(none, &m), rn_measured_json(none, &m);
      assert_true(rn_picture_make(&p, &a, &b, 16, 64, stderr));
      rn_picture_print(none, &p);
      assert_true(rn_picture_svg(none, &p, "empty"));
      fclose(none);
      rn_picture_free(&p), rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
    }
}

/* ------------------------------------------------------------------------------------------------------------------
 * Plans. */

typedef bool (*chooser)(int64_t i, int64_t length, int64_t p);
static bool all(int64_t i, int64_t length, int64_t p) {
  (void)i, (void)length, (void)p;
  return true;
}
static bool prefix(int64_t i, int64_t length, int64_t p) {
  (void)length;
  return i < p;
}
static bool suffix(int64_t i, int64_t length, int64_t p) {
  return i >= length - p;
}
static bool one(int64_t i, int64_t length, int64_t p) {
  (void)length;
  return i == p;
}
static bool middle(int64_t i, int64_t length, int64_t p) {
  return i >= length / 4 && i < length / 4 + p;
}
static bool every(int64_t i, int64_t length, int64_t p) {
  (void)length;
  return i % p == p / 2;
}
static bool half_of_every(int64_t i, int64_t length, int64_t p) {
  (void)length;
  return i % p >= p / 2;
}

static const struct {
  const char *name;
  chooser rows, cols;
  int64_t row_p, col_p;
  rn_extent_kind row_kind, col_kind;
} plans[] = {
    {"everywhere", all, all, 0, 0, RN_EXTENT_ALL, RN_EXTENT_ALL},
    {"tail of columns", all, suffix, 0, 7, RN_EXTENT_ALL, RN_EXTENT_SUFFIX},
    {"half the columns", all, suffix, 0, 256, RN_EXTENT_ALL, RN_EXTENT_SUFFIX},
    {"first columns", all, prefix, 0, 16, RN_EXTENT_ALL, RN_EXTENT_PREFIX},
    {"one column", all, one, 0, 99, RN_EXTENT_ALL, RN_EXTENT_ONE},
    {"columns in the middle", all, middle, 0, 64, RN_EXTENT_ALL, RN_EXTENT_RANGE},
    {"last row", suffix, all, 1, 0, RN_EXTENT_ONE, RN_EXTENT_ALL},
    {"last block of rows", suffix, all, 6, 0, RN_EXTENT_SUFFIX, RN_EXTENT_ALL},
    {"one row", one, all, 11, 0, RN_EXTENT_ONE, RN_EXTENT_ALL},
    {"first rows", prefix, all, 5, 0, RN_EXTENT_PREFIX, RN_EXTENT_ALL},
    {"every 4th row", every, all, 4, 0, RN_EXTENT_PERIODIC, RN_EXTENT_ALL},
    {"every 8th column", all, every, 0, 8, RN_EXTENT_ALL, RN_EXTENT_PERIODIC},
    {"every 16th column", all, every, 0, 16, RN_EXTENT_ALL, RN_EXTENT_PERIODIC},
    {"every 32nd column", all, every, 0, 32, RN_EXTENT_ALL, RN_EXTENT_PERIODIC},
    {"every 64th column", all, every, 0, 64, RN_EXTENT_ALL, RN_EXTENT_PERIODIC},
    {"every 128th column", all, every, 0, 128, RN_EXTENT_ALL, RN_EXTENT_PERIODIC},
    {"the second half of every 8", all, half_of_every, 0, 8, RN_EXTENT_ALL, RN_EXTENT_PERIODIC},
    {"the second half of every 64", all, half_of_every, 0, 64, RN_EXTENT_ALL, RN_EXTENT_PERIODIC},
    {"a rectangle", suffix, middle, 9, 32, RN_EXTENT_SUFFIX, RN_EXTENT_RANGE},
};
enum { PLANS = sizeof plans / sizeof *plans };

static void check_extent(const rn_extent *e, rn_extent_kind kind, chooser chosen, int64_t p, const char *name) {
  char text[RN_EXTENT_TEXT];
  rn_extent_say(e, "line", text);
  if (e->kind != kind) fail_msg("%s: kind %d, expected %d: %s", name, e->kind, kind, text);
  if (kind == RN_EXTENT_ALL) return;
  for (int64_t i = 0; i < e->length; i++) {
    const bool inside = kind == RN_EXTENT_PERIODIC ? ((i - e->phase) % e->period + e->period) % e->period < e->run
                                                   : i >= e->first && i <= e->last;
    if (inside != chosen(i, e->length, p)) fail_msg("%s: line %d told wrongly: %s", name, (int)i, text);
  }
}

/* Errors of `large` ulp by a plan, at this share of its places, on a ground of 1 ulp at a share of all. */
static void check_plan(int k, int dtype, double density, double ground, int64_t large) {
  enum { ROWS = 48, COLS = 512 };
  rn_tensor b = filled(dtype, ROWS, COLS), a = copy(&b);
  int64_t planted = 0, grounded = 0;
  for (int64_t i = 0; i < a.count; i++) {
    const bool in = plans[k].rows(i / COLS, ROWS, plans[k].row_p) && plans[k].cols(i % COLS, COLS, plans[k].col_p);
    if (in && uniform() < density)
      move(&a, i, large), planted++;
    else if (uniform() < ground)
      move(&a, i, 1), grounded++;
  }
  rn_measured m = measure(&a, &b);
  assert_int_equal(m.differ, planted + grounded);
  assert_int_equal(m.ulp, large);
  check_extent(&m.row_extent, plans[k].row_kind, plans[k].rows, plans[k].row_p, plans[k].name);
  check_extent(&m.col_extent, plans[k].col_kind, plans[k].cols, plans[k].col_p, plans[k].name);
  rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
}

static void test_plans(void **unused) {
  (void)unused;
  for (int k = 0; k < PLANS; k++)
    for (int t = 0; t < 3; t++) {
      check_plan(k, floats[t], 1, 0, 5);
      check_plan(k, floats[t], 0.9, 0, 1);
      if (k > 0) check_plan(k, floats[t], 1, 0.2, 24); /* by size */
    }
}

/* The same size everywhere, a few everywhere and all in the tail: told by density. */
static void test_denser(void **unused) {
  (void)unused;
  rn_tensor b = filled(RMSNORM_DTYPE_BF16, 64, 256), a = copy(&b);
  for (int64_t i = 0; i < a.count; i++)
    if (i % 256 >= 240 || uniform() < 0.1) move(&a, i, 1);
  rn_measured m = measure(&a, &b);
  assert_int_equal(m.col_extent.kind, RN_EXTENT_SUFFIX);
  assert_true(m.col_extent.denser);
  assert_int_equal(m.col_extent.first, 240);
  assert_int_equal(m.row_extent.kind, RN_EXTENT_ALL);
  rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
}

static void test_scattered(void **unused) {
  (void)unused;
  static const int rows[] = {3, 17, 90};
  rn_tensor b = filled(RMSNORM_DTYPE_F16, 128, 96), a = copy(&b);
  for (int k = 0; k < 3; k++)
    for (int c = 0; c < 96; c++) rn_ref_store(a.dtype, a.data, rows[k] * 96 + c, 0.0);
  rn_measured m = measure(&a, &b);
  char text[RN_EXTENT_TEXT];
  rn_extent_say(&m.row_extent, "row", text);
  assert_string_equal(text, "3 rows of 128: 3, 17, 90");
  assert_int_equal(m.specials.zero_rows_a, 3);
  assert_true(m.factors.by_row > 0.999 && m.factors.row_least == 0 && m.factors.row_most == 1);
  rn_measured_free(&m);
  /* Four rows at one distance are no period yet. */
  memcpy(a.data, b.data, (size_t)a.count * (size_t)a.item_bytes);
  for (int r = 3; r < 128; r += 37)
    for (int c = 0; c < 96; c++) move(&a, r * 96 + c, 1);
  m = measure(&a, &b);
  assert_int_equal(m.row_extent.kind, RN_EXTENT_SCATTERED);
  rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
}

/* Few errors can be a plan, and large ones none. */
static void test_few(void **unused) {
  (void)unused;
  rn_tensor b = filled(RMSNORM_DTYPE_BF16, 64, 256), a = copy(&b);
  for (int k = 0; k < 4; k++) move(&a, (11 + 13 * k) * 256 + 252 + k, 1);
  rn_measured m = measure(&a, &b);
  assert_int_equal(m.col_extent.kind, RN_EXTENT_SUFFIX);
  assert_int_equal(m.col_extent.first, 252);
  assert_int_equal(m.row_extent.kind, RN_EXTENT_ALL);
  rn_measured_free(&m);
  for (int64_t i = 0; i < a.count; i++)
    if (uniform() < 0.3) move(&a, i, 1);
  move(&a, 20 * 256 + 7, 30), move(&a, 40 * 256 + 7, 30); /* outliers, by chance in one column */
  m = measure(&a, &b);
  assert_int_equal(m.floor, 0);
  assert_int_equal(m.col_extent.kind, RN_EXTENT_ALL);
  rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
}

/* Errors without a plan, of any density and any spread of sizes: nothing may be seen in them. */
static void test_noise(void **unused) {
  (void)unused;
  enum { CASES = 600 };
  int seen = 0;
  for (int n = 0; n < CASES; n++) {
    const int64_t rows = 2 + (int64_t)(next() % 100), cols = 8 + (int64_t)(next() % 400);
    const double density = pow(10, -3.5 * uniform()), tail = uniform();
    rn_tensor b = filled(floats[n % 3], rows, cols), a = copy(&b);
    for (int64_t i = 0; i < a.count; i++)
      if (uniform() < density) move(&a, i, 1 + (int64_t)(pow(uniform(), -tail) - 1) % 60);
    rn_measured m = measure(&a, &b);
    /* A single line that is hit is told as it is, plan or not. */
    const bool row_plan =
        m.row_extent.kind != RN_EXTENT_ALL && m.row_extent.kind != RN_EXTENT_NONE && m.row_extent.hit > 1 && rows > 2;
    const bool col_plan =
        m.col_extent.kind != RN_EXTENT_ALL && m.col_extent.kind != RN_EXTENT_NONE && m.col_extent.hit > 1;
    seen += row_plan || col_plan;
    rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
  }
  print_message("plans seen in noise: %d of %d\n", seen, CASES);
  assert_true(seen <= CASES / 100);
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void test_factors(void **unused) {
  (void)unused;
  enum { ROWS = 40, COLS = 64 };
  for (int kind = 0; kind < 4; kind++) { /* none, whole, by row, by column */
    rn_tensor b = filled(RMSNORM_DTYPE_F32, ROWS, COLS), a = copy(&b);
    double row[ROWS], col[COLS];
    for (int r = 0; r < ROWS; r++) row[r] = kind == 2 ? 0.9 + 0.2 * uniform() : 1;
    for (int c = 0; c < COLS; c++) col[c] = kind == 3 ? 0.9 + 0.2 * uniform() : 1;
    for (int64_t i = 0; i < a.count; i++) {
      double v = rn_ref_load(b.dtype, b.data, i) * row[i / COLS] * col[i % COLS] * (kind == 1 ? 1.125 : 1);
      if (kind == 0) v *= 0.9 + 0.2 * uniform();
      rn_ref_store(a.dtype, a.data, i, v);
    }
    rn_measured m = measure(&a, &b);
    assert_int_equal(m.factors.whole > 0.99, kind == 1);
    assert_int_equal(m.factors.by_row > 0.99, kind == 1 || kind == 2);
    assert_int_equal(m.factors.by_col > 0.99, kind == 1 || kind == 3);
    if (kind == 1) assert_true(fabs(m.factors.factor - 1.125) < 1e-6 && fabs(m.rms - 0.125) < 1e-6);
    assert_true(m.cosine > 0.99);
    rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
  }
}

/* Truncation leans towards zero, rounding does not; and its rows lean one way. */
static void test_bias(void **unused) {
  (void)unused;
  for (int kind = 0; kind < 2; kind++) {
    rn_tensor b = make(RMSNORM_DTYPE_BF16, 64, 128), a = copy(&b);
    for (int64_t i = 0; i < a.count; i++) {
      const double v = plain(), step = rn_ref_ulp(RMSNORM_DTYPE_BF16, v);
      rn_ref_store(b.dtype, b.data, i, v);
      rn_ref_store(a.dtype, a.data, i, kind == 0 ? trunc(v / step) * step : v + (uniform() - 0.5) * step);
    }
    rn_measured m = measure(&a, &b);
    if (kind == 0) {
      assert_true(fabs(m.away_ulp + 0.5) < 0.05 && m.away_sure < -20);
      assert_int_equal(m.rows_one_way, m.rows_four);
      assert_true(m.rows_four == 64 && m.relative < 0);
    } else {
      assert_true(fabs(m.away_sure) < 5);
      assert_true(m.rows_one_way < 8);
    }
    rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
  }
}

static void test_moved(void **unused) {
  (void)unused;
  rn_tensor b = filled(RMSNORM_DTYPE_F32, 32, 32), a = copy(&b);
  for (int shift = -3; shift <= 3; shift++) {
    const size_t row = 32 * sizeof(float);
    for (int r = 0; r < 32; r++)
      if (r + shift >= 0 && r + shift < 32)
        memcpy((char *)a.data + (size_t)r * row, (char *)b.data + (size_t)(r + shift) * row, row);
    rn_measured m = measure(&a, &b);
    assert_int_equal(m.row_shift, shift);
    assert_false(m.transposed);
    rn_measured_free(&m);
  }
  for (int i = 0; i < 32 * 32; i++)
    rn_ref_store(a.dtype, a.data, i, rn_ref_load(b.dtype, b.data, i % 32 * 32 + i / 32));
  rn_measured m = measure(&a, &b);
  assert_true(m.transposed && m.row_shift == 0);
  rn_measured_free(&m);
  /* Rows that are all alike are not shifted. */
  for (int i = 0; i < 32 * 32; i++) rn_ref_store(b.dtype, b.data, i, 1 + i % 32);
  memcpy(a.data, b.data, 32 * 32 * sizeof(float));
  move(&a, 5, 1);
  m = measure(&a, &b);
  assert_int_equal(m.row_shift, 0);
  rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
}

/* ------------------------------------------------------------------------------------------------------------------
 * What is said. */

static char *said(void (*say)(FILE *, const rn_measured *), const rn_measured *m) {
  char *text = NULL;
  size_t bytes;
  FILE *out = open_memstream(&text, &bytes);
  assert_non_null(out);
  say(out, m);
  fclose(out);
  return text;
}

static void test_said(void **unused) {
  (void)unused;
  rn_tensor b = filled(RMSNORM_DTYPE_BF16, 16, 128), a = copy(&b);
  for (int r = 0; r < 16; r++)
    for (int c = 96; c < 128; c++) move(&a, r * 128 + c, 2);
  rn_ref_store(a.dtype, a.data, 96, (double)NAN);
  rn_measured m = measure(&a, &b);
  char *text = said(rn_measured_print, &m);
  assert_non_null(
      strstr(text, "16 x 128, bf16 against bf16\n512 of 2048 elements differ (25 %), by at most 2 ulp of bf16"));
  assert_non_null(strstr(text, "the last 32 of 128 columns, from 96 on"));
  assert_non_null(strstr(text, "NaN  1 in a, 0 in b"));
  free(text);
  text = said(rn_measured_json, &m);
  rn_json json = {text, text + strlen(text), NULL};
  assert_true(rn_json_skip(&json, 8) && json.at == json.end);
  assert_null(strstr(text, ":nan"));
  assert_non_null(strstr(text, "\"first\":{\"row\":0,\"column\":96,\"a\":null,"));
  assert_non_null(strstr(text, "\"col_extent\":{\"kind\":\"suffix\""));
  free(text);
  rn_measured_free(&m), rn_tensor_free(&a), rn_tensor_free(&b);
}

/* A cell holds the worst of its elements and counts them all, whatever the sizes. */
static void test_picture(void **unused) {
  (void)unused;
  for (int n = 0; n < 60; n++) {
    const int64_t rows = 1 + (int64_t)(next() % 70), cols = 1 + (int64_t)(next() % 300);
    rn_tensor b = filled(RMSNORM_DTYPE_F32, rows, cols), a = copy(&b);
    const int64_t at = (int64_t)(next() % (uint64_t)a.count);
    move(&a, at, 7);
    rn_picture p;
    assert_true(rn_picture_make(&p, &a, &b, 16, 64, stderr));
    int64_t elements = 0, differ = 0;
    for (int i = 0; i < p.cell_rows * p.cell_cols; i++) elements += p.cells[i].elements, differ += p.cells[i].differ;
    assert_int_equal(elements, a.count);
    assert_int_equal(differ, 1);
    const int64_t r = at / cols * p.cell_rows / rows, c = at % cols * p.cell_cols / cols;
    assert_int_equal(p.cells[r * p.cell_cols + c].ulp, 7);
    rn_picture_free(&p), rn_tensor_free(&a), rn_tensor_free(&b);
  }
  rn_tensor b = filled(RMSNORM_DTYPE_F32, 4, 8), a = copy(&b);
  move(&a, 9, 1), move(&a, 18, 40), rn_ref_store(a.dtype, a.data, 31, (double)NAN);
  rn_picture p;
  char *text = NULL;
  size_t bytes;
  setenv("NO_COLOR", "1", 1);
  assert_true(rn_picture_make(&p, &a, &b, 16, 64, stderr));
  FILE *out = open_memstream(&text, &bytes);
  assert_non_null(out);
  rn_picture_print(out, &p);
  fclose(out);
  assert_non_null(strstr(text, "0 ........\n1 .-......\n2 ..*.....\n3 .......!\n"));
  free(text);
  out = open_memstream(&text, &bytes);
  assert_non_null(out);
  assert_true(rn_picture_svg(out, &p, "<a & b>"));
  fclose(out);
  assert_non_null(strstr(text, "&lt;a &amp; b&gt;"));
  assert_non_null(strstr(text, "M1 1h1v1h-1z"));
  assert_non_null(strstr(text, "M7 3h1v1h-1z"));
  assert_string_equal(text + bytes - 7, "</svg>\n");
  free(text);
  rn_picture_free(&p), rn_tensor_free(&a), rn_tensor_free(&b);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_classes),   cmocka_unit_test(test_equal),   cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_specials),  cmocka_unit_test(test_types),   cmocka_unit_test(test_refused),
      cmocka_unit_test(test_shapes),    cmocka_unit_test(test_plans),   cmocka_unit_test(test_denser),
      cmocka_unit_test(test_scattered), cmocka_unit_test(test_few),     cmocka_unit_test(test_noise),
      cmocka_unit_test(test_factors),   cmocka_unit_test(test_bias),    cmocka_unit_test(test_moved),
      cmocka_unit_test(test_said),      cmocka_unit_test(test_picture),
  };
  state = argc > 1 ? strtoull(argv[1], NULL, 0) : 20261130;
  if (state == 0) state = 1;
  print_message("seed %llu\n", (unsigned long long)state);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
