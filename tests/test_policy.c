/* test_policy.c - what becomes of special values: the table of docs/numerics.md section 6, as data. Every line is run
 * on every implementation, in every type that can hold its numbers, at widths on both sides of every vector; between
 * two ordinary rows, which must not notice.
 *
 * All numbers are powers of two where they matter, so that every expected value is exact. w = 2; dy = 1 in even columns
 * and 3 in odd ones; column 1 is the special one.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define LEAST 0x1p-126 /* the smallest scale */

typedef struct two {
  double usual, special; /* of all columns but 1, of column 1 */
} two;

typedef struct policy {
  const char *name;
  double eps;
  bool f32, bf16, f16; /* the types whose range the line is about */
  two x;
  double residual; /* of every column; 0 = absent */
  int round_sum;
  two sum, y;
  double rstd;
  double dx_even, dx_odd;
  two dweight; /* for dy = 1; the odd columns have three times as much */
  bool q_nan, q_all_nan;
  double amax; /* the scale is max(amax / largest, LEAST), and what is not NaN is amax / scale or 0 */
} policy;

static const policy table[] = {
    {"zeros, eps > 0",
     0x1p-20,
     true,
     true,
     true,
     {0, -0.0},
     0,
     0,
     {0, 0},
     {0, -0.0},
     0x1p10,
     2048,
     6144,
     {0, 0},
     false,
     false,
     0},
    {"zeros, eps 0", 0, true, true, true, {0, -0.0}, 0, 0, {0, 0}, {0, -0.0}, 0, 0, 0, {0, 0}, false, false, 0},
    {"a NaN",
     0x1p-20,
     true,
     true,
     true,
     {1, NAN},
     2,
     0,
     {3, NAN},
     {NAN, NAN},
     NAN,
     NAN,
     NAN,
     {NAN, NAN},
     true,
     true,
     0},
    {"an infinity",
     0x1p-20,
     true,
     true,
     true,
     {1, INFINITY},
     2,
     0,
     {3, INFINITY},
     {0, NAN},
     0,
     NAN,
     NAN,
     {0, NAN},
     true,
     false,
     0},
    {"minus infinity, eps 0",
     0,
     true,
     true,
     true,
     {1, -INFINITY},
     2,
     0,
     {3, -INFINITY},
     {0, NAN},
     0,
     NAN,
     NAN,
     {0, NAN},
     true,
     false,
     0},
    {"squares overflow",
     0x1p-20,
     true,
     true,
     false,
     {0x1p100, -0x1p100},
     0,
     0,
     {0, 0},
     {2, -2},
     0x1p-100,
     NAN,
     NAN,
     {1, -1},
     false,
     false,
     2},
    {"squares overflow, x at the end of the range",
     0,
     true,
     true,
     false,
     {0x1p127, 0x1p127},
     0,
     0,
     {0, 0},
     {2, 2},
     0x1p-127,
     -0x1p-126,
     0x1p-126,
     {1, 1},
     false,
     false,
     2},
    {"squares vanish, eps 0",
     0,
     true,
     true,
     false,
     {0x1p-100, 0x1p-100},
     0,
     0,
     {0, 0},
     {2, 2},
     0x1p100,
     -0x1p101,
     0x1p101,
     {1, 1},
     false,
     false,
     2},
    {"subnormal, eps 0",
     0,
     true,
     false,
     false,
     {0x1p-149, 0x1p-149},
     0,
     0,
     {0, 0},
     {2, 2},
     INFINITY,
     -INFINITY,
     INFINITY,
     {1, 1},
     false,
     false,
     2},
    {"squares vanish, eps > 0",
     0x1p-20,
     true,
     true,
     false,
     {0x1p-100, 0x1p-100},
     0,
     0,
     {0, 0},
     {0x1p-89, 0x1p-89},
     0x1p10,
     2048,
     6144,
     {0x1p-90, 0x1p-90},
     false,
     false,
     0x1p-89},
    {"the sum overflows its type, normalised unrounded",
     0,
     false,
     false,
     true,
     {32768, 32768},
     32768,
     RMSNORM_ROUND_NONE,
     {INFINITY, INFINITY},
     {2, 2},
     0x1p-16,
     -0x1p-15,
     0x1p-15,
     {1, 1},
     false,
     false,
     2},
    {"the sum overflows its type, normalised rounded",
     0,
     false,
     false,
     true,
     {32768, 32768},
     32768,
     RMSNORM_ROUND_STORED,
     {INFINITY, INFINITY},
     {NAN, NAN},
     0,
     NAN,
     NAN,
     {NAN, NAN},
     true,
     true,
     0},
};
enum { LINES = sizeof table / sizeof table[0], ROWS = 3, MOST = 4096 };

static const int64_t widths[] = {2, 8, 30, 64, 100, 130, 300, 1024, 1500, 4096};

static float weight[MOST];
static char x[ROWS * MOST * 4], residual[ROWS * MOST * 4], dy[ROWS * MOST * 4];
static char y[ROWS * MOST * 4], sum[ROWS * MOST * 4], dx[ROWS * MOST * 4];
static char clean_y[ROWS * MOST * 4], clean_dx[ROWS * MOST * 4];
static float rstd[ROWS], dweight[MOST], scale[ROWS];
static uint8_t q[ROWS * MOST];
static const policy *line;
static const char *impl;
static int type;
static int64_t cols;

static void expect(double got, double want, const char *what, int64_t col) {
  bool same = isnan(want) ? isnan(got) != 0 : got == want && signbit(got) == signbit(want);
  if (want == 0 && !strcmp(what, "y") && line->x.usual != 0) same = got == 0;          /* signs: those of x */
  if (want == 0 && (!strcmp(what, "dx") || !strcmp(what, "dweight"))) same = got == 0; /* sign of a zero gradient */
  if (!same)
    fail_msg("%s, %s, %s, %lld columns: %s[%lld] is %g (%a), the table says %g", line->name, impl,
             rmsnorm_dtype_name(type), (long long)cols, what, (long long)col, got, got, want);
}

/* Row 1 holds the special row, rows 0 and 2 ordinary ones; `clean` makes row 1 ordinary as well. */
static void fill(bool clean) {
  for (int64_t r = 0; r < ROWS; r++)
    for (int64_t c = 0; c < cols; c++) {
      bool special = r == 1 && !clean;
      double v = special ? c == 1 ? line->x.special : line->x.usual : (double)((r * 7 + c * 5) % 11 - 4);
      rn_ref_store(type, x, r * cols + c, v);
      rn_ref_store(type, residual, r * cols + c, line->residual);
      rn_ref_store(type, dy, r * cols + c, c % 2 ? 3 : 1);
    }
  for (int64_t c = 0; c < cols; c++) weight[c] = 2;
}

static rmsnorm_forward_args forward(void) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = ROWS, a.cols = cols, a.eps = line->eps, a.impl = impl, a.threads = 1;
  a.numerics.round_sum = line->residual != 0 ? line->round_sum : 0;
  a.x = rmsnorm_input(x, type, cols);
  if (line->residual != 0) a.residual = rmsnorm_input(residual, type, cols);
  if (line->residual != 0) a.residual_out = rmsnorm_output(sum, type, cols);
  a.weight = weight, a.weight_dtype = RMSNORM_DTYPE_F32;
  a.y = rmsnorm_output(y, type, cols);
  a.rstd = rstd;
  return a;
}

static void run_forward(void) {
  rmsnorm_forward_args a = forward();
  memset(y, 0x5a, sizeof y), memset(sum, 0x5a, sizeof sum), memset(rstd, 0x5a, sizeof rstd);
  assert_int_equal(rmsnorm_forward(&a, NULL), RMSNORM_OK);
}

static void run_backward(int64_t first, int64_t rows, bool saved) {
  static _Alignas(64) char workspace[1 << 20];
  rmsnorm_forward_args f = forward();
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  int64_t skip = first * cols * (int64_t)rmsnorm_dtype_bytes(type);
  a.rows = rows, a.cols = cols, a.eps = f.eps, a.impl = impl, a.threads = 1, a.numerics = f.numerics;
  a.x = rmsnorm_input(x + skip, type, cols), a.dy = rmsnorm_input(dy + skip, type, cols);
  if (line->residual != 0) a.residual = rmsnorm_input(residual + skip, type, cols);
  a.weight = weight, a.weight_dtype = RMSNORM_DTYPE_F32;
  a.dx = rmsnorm_output(dx + skip, type, cols);
  a.dweight = dweight, a.dweight_dtype = RMSNORM_DTYPE_F32;
  if (saved) a.rstd = rstd + first;
  a.workspace = workspace;
  memset(dx, 0x5a, sizeof dx), memset(dweight, 0x5a, sizeof dweight), memset(workspace, 0xff, sizeof workspace);
  assert_int_equal(rmsnorm_backward_workspace_bytes(&a, &a.workspace_bytes), RMSNORM_OK);
  assert_true(a.workspace_bytes <= sizeof workspace);
  if (!a.workspace_bytes) a.workspace = NULL;
  assert_int_equal(rmsnorm_backward(&a, NULL), RMSNORM_OK);
}

static void check_quant(int format) {
  rmsnorm_forward_args a = forward();
  double largest = rn_ref_largest(format);
  a.quant.granularity = RMSNORM_QUANT_ROW, a.quant.scale_out = scale, a.quant.q = rmsnorm_output(q, format, cols);
  memset(q, 0x5a, sizeof q), memset(scale, 0x5a, sizeof scale);
  assert_int_equal(rmsnorm_forward(&a, NULL), RMSNORM_OK);
  double want = (double)((float)line->amax / (float)largest);
  expect((double)scale[1], want < LEAST ? LEAST : want, "scale", 0);
  for (int64_t c = 0; c < cols; c++) {
    double got = rn_ref_load(format, q, cols + c), value = line->amax == 0 ? 0 : largest;
    if (line->q_all_nan || (line->q_nan && c == 1)) value = format == RMSNORM_DTYPE_INT8 ? 0 : NAN;
    expect(isnan(value) ? got : fabs(got), value, "q", c);
  }
}

static void check_line(void) {
  size_t row = (size_t)cols * rmsnorm_dtype_bytes(type);
  fill(true);
  run_forward();
  memcpy(clean_y, y, sizeof y);
  run_backward(0, ROWS, false);
  memcpy(clean_dx, dx, sizeof dx);

  fill(false);
  run_forward();
  assert_memory_equal(y, clean_y, row);
  assert_memory_equal(y + 2 * row, clean_y + 2 * row, row);
  expect((double)rstd[1], line->rstd, "rstd", 0);
  for (int64_t c = 0; c < cols; c++) {
    expect(rn_ref_load(type, y, cols + c), c == 1 ? line->y.special : line->y.usual, "y", c);
    if (line->residual != 0)
      expect(rn_ref_load(type, sum, cols + c), c == 1 ? line->sum.special : line->sum.usual, "residual_out", c);
  }
  for (int saved = 0; saved < 2; saved++) {
    run_backward(0, ROWS, saved);
    assert_memory_equal(dx, clean_dx, row);
    assert_memory_equal(dx + 2 * row, clean_dx + 2 * row, row);
    run_backward(1, 1, saved);
    bool signs = line->x.special == -line->x.usual && line->x.usual != 0; /* then dx depends on the width */
    for (int64_t c = 0; c < cols; c++) {
      if (!signs) expect(rn_ref_load(type, dx, cols + c), c % 2 ? line->dx_odd : line->dx_even, "dx", c);
      expect((double)dweight[c], (c == 1 ? line->dweight.special : line->dweight.usual) * (c % 2 ? 3 : 1), "dweight",
             c);
    }
  }
  check_quant(RMSNORM_DTYPE_FP8_E4M3);
  check_quant(RMSNORM_DTYPE_FP8_E5M2);
  check_quant(RMSNORM_DTYPE_INT8);
}

static void test_the_table(void **state) {
  (void)state;
  int checked = 0;
  for (int i = 0; rmsnorm_impl_name(i); i++) {
    if (rmsnorm_impl_why_not(i)) continue;
    impl = rmsnorm_impl_name(i);
    for (line = table; line < table + LINES; line++)
      for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        cols = widths[w];
        if (line->f32) type = RMSNORM_DTYPE_F32, check_line(), checked++;
        if (line->bf16) type = RMSNORM_DTYPE_BF16, check_line(), checked++;
        if (line->f16) type = RMSNORM_DTYPE_F16, check_line(), checked++;
      }
  }
  assert_true(checked >= 260);
}

/* An output that overflows its own type is infinite; a quantised one saturates. */
static void test_outputs_that_overflow(void **state) {
  (void)state;
  static const policy ordinary = {.name = "outputs overflow", .x = {1, 1}, .amax = 0x1p20};
  line = &ordinary;
  for (int i = 0; rmsnorm_impl_name(i); i++) {
    if (rmsnorm_impl_why_not(i)) continue;
    impl = rmsnorm_impl_name(i), type = RMSNORM_DTYPE_F16, cols = 100;
    fill(false);
    for (int64_t c = 0; c < cols; c++) weight[c] = 0x1p20f;
    rmsnorm_forward_args a = forward();
    float one = 1;
    a.quant.granularity = RMSNORM_QUANT_TENSOR, a.quant.scale = &one;
    a.quant.q = rmsnorm_output(q, RMSNORM_DTYPE_FP8_E4M3, cols);
    assert_int_equal(rmsnorm_forward(&a, NULL), RMSNORM_OK);
    for (int64_t c = 0; c < cols; c++) {
      expect(rn_ref_load(type, y, cols + c), INFINITY, "y", c);
      expect(rn_ref_load(RMSNORM_DTYPE_FP8_E4M3, q, cols + c), 448, "q", c);
    }
    check_quant(RMSNORM_DTYPE_INT8);
  }
}

/* NaN in the weight stays in its column of y, q and out of the scale; NaN in dy in its row of dx and column of dweight.
 */
static void test_other_inputs(void **state) {
  (void)state;
  static const policy ordinary = {.name = "NaN in weight or dy", .x = {1, 1}, .amax = 2, .q_nan = true};
  line = &ordinary;
  for (int i = 0; rmsnorm_impl_name(i); i++) {
    if (rmsnorm_impl_why_not(i)) continue;
    impl = rmsnorm_impl_name(i), type = RMSNORM_DTYPE_BF16, cols = 300;
    fill(false);
    weight[1] = NAN;
    run_forward();
    run_backward(1, 1, false);
    for (int64_t c = 0; c < cols; c++) {
      expect(rn_ref_load(type, y, cols + c), c == 1 ? NAN : 2, "y", c);
      expect(rn_ref_load(type, dx, cols + c), NAN, "dx", c);
      expect((double)dweight[c], c % 2 ? 3 : 1, "dweight", c);
    }
    check_quant(RMSNORM_DTYPE_FP8_E5M2);
    check_quant(RMSNORM_DTYPE_INT8);

    weight[1] = 2;
    rn_ref_store(type, dy, cols + 1, NAN);
    run_backward(0, ROWS, false);
    for (int64_t r = 0; r < ROWS; r++)
      for (int64_t c = 0; c < cols; c++) assert_int_equal(isnan(rn_ref_load(type, dx, r * cols + c)) != 0, r == 1);
    for (int64_t c = 0; c < cols; c++) assert_int_equal(isnan(dweight[c]) != 0, c == 1);
  }
}

/* Every edge of the quantisers in every lane: ties, saturation, infinities, NaN. The given sums make rstd 1, so that
 * what is quantised is x itself. */
static void test_quantiser_edges(void **state) {
  (void)state;
  static const float edges[] = {0,        0.49f,      -0.49f,  0.5f,    -0.5f,   1.5f,     126.5f,    127.4f,
                                127.5f,   127.6f,     -127.5f, -128.4f, -128.5f, 447,      448,       449,
                                464,      465,        480,     57343,   57344,   61440,    -61440,    1e30f,
                                INFINITY, -INFINITY,  NAN,     -0.0f,   0x1p-9f, 0x1p-10f, 0x1.8p-9f, 0x1p-16f,
                                0x1p-17f, 0x1.8p-16f, 17,      18,      19,      -20};
  static const int formats[] = {RMSNORM_DTYPE_FP8_E4M3, RMSNORM_DTYPE_FP8_E5M2, RMSNORM_DTYPE_INT8};
  enum { EDGES = sizeof edges / sizeof edges[0], WIDTH = 150 };
  float values[WIDTH], sumsq = WIDTH, one = 1;
  uint8_t got[WIDTH], want[WIDTH];
  for (int i = 0; rmsnorm_impl_name(i); i++)
    for (int shift = 0; !rmsnorm_impl_why_not(i) && shift < EDGES; shift++)
      for (int f = 0; f < 3; f++)
        for (int op = 0; op < 2; op++) {
          for (int c = 0; c < WIDTH; c++) {
            values[c] = edges[(c + shift) % EDGES];
            rn_ref_store(formats[f], want, c, (double)values[c]);
          }
          rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
          a.rows = 1, a.cols = WIDTH, a.eps = 0, a.impl = rmsnorm_impl_name(i);
          a.x = rmsnorm_input(values, RMSNORM_DTYPE_F32, WIDTH), a.sumsq = &sumsq;
          a.quant.granularity = RMSNORM_QUANT_TENSOR, a.quant.scale = &one, a.quant.scale_op = op;
          a.quant.q = rmsnorm_output(got, formats[f], WIDTH);
          memset(got, 0x5a, sizeof got);
          assert_int_equal(rmsnorm_forward(&a, NULL), RMSNORM_OK);
          for (int c = 0; c < WIDTH; c++)
            if (got[c] != want[c] && !(isnan(values[c]) && (got[c] ^ want[c]) == 0x80))
              fail_msg("%s: %a to %s in column %d is %#x, not %#x", a.impl, (double)values[c],
                       rmsnorm_dtype_name(formats[f]), c, got[c], want[c]);
        }
}

/* A block of zeros in the microscaling formats: code 0, which is 2^-127. */
static void test_mx_zeros(void **state) {
  (void)state;
  line = table + 1;
  for (int i = 0; rmsnorm_impl_name(i); i++) {
    if (rmsnorm_impl_why_not(i)) continue;
    uint8_t codes[ROWS * 4];
    impl = rmsnorm_impl_name(i), type = RMSNORM_DTYPE_F32, cols = 100;
    fill(false);
    memset(codes, 0x5a, sizeof codes), memset(q, 0x5a, sizeof q);
    rmsnorm_forward_args a = forward();
    a.quant.granularity = RMSNORM_QUANT_MX, a.quant.scale_out = codes;
    a.quant.q = rmsnorm_output(q, RMSNORM_DTYPE_FP8_E4M3, cols);
    assert_int_equal(rmsnorm_forward(&a, NULL), RMSNORM_OK);
    for (int b = 0; b < 4; b++) assert_int_equal(codes[4 + b], 0);
    for (int64_t c = 0; c < cols; c++) assert_int_equal(q[cols + c] & 0x7f, 0);
  }
}

/* An infinity times an activation that is 0 in float32: NaN, and with it the whole row. Its neighbours do not notice.
 */
static void test_infinity_behind_a_closed_gate(void **state) {
  enum { N = 130, M = 3 };
  static float in[M * N], gate[M * N], out[M * N], roots[M];
  (void)state;
  for (int kind = RMSNORM_GATE_SILU; kind <= RMSNORM_GATE_SIGMOID; kind++)
    for (int k = 0; rmsnorm_impl_name(k) != NULL; k++) {
      if (rmsnorm_impl_why_not(k) != NULL) continue;
      for (int i = 0; i < M * N; i++) in[i] = 1, gate[i] = 1, out[i] = -7;
      in[N + 77] = INFINITY, gate[N + 77] = -120;
      rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
      a.rows = M, a.cols = N, a.eps = 1e-6, a.impl = rmsnorm_impl_name(k), a.rstd = roots;
      a.x = rmsnorm_input(in, RMSNORM_DTYPE_F32, N), a.gate = rmsnorm_input(gate, RMSNORM_DTYPE_F32, N);
      a.y = rmsnorm_output(out, RMSNORM_DTYPE_F32, N);
      a.numerics.gate = kind, a.numerics.gate_place = RMSNORM_GATE_BEFORE;
      assert_int_equal(rmsnorm_forward(&a, NULL), RMSNORM_OK);
      for (int i = 0; i < M * N; i++)
        if (i / N == 1)
          assert_true(isnan(out[i]));
        else
          assert_true(out[i] > 0.99f && out[i] < 1.01f);
      assert_true(isnan(roots[1]) && isfinite(roots[0]) && roots[0] == roots[2]);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_infinity_behind_a_closed_gate),
                                     cmocka_unit_test(test_the_table),
                                     cmocka_unit_test(test_outputs_that_overflow),
                                     cmocka_unit_test(test_other_inputs),
                                     cmocka_unit_test(test_quantiser_edges),
                                     cmocka_unit_test(test_mx_zeros)};
  return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
