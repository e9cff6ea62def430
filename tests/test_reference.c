/* test_reference.c - the judge is judged: its gradients against central differences of its own forward, its values
 * against golden.txt (written by golden.py in 60 digits), its number formats against the C types and by round trips.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static uint64_t seed = 20240607;
static uint64_t next_random(void) {
  uint64_t z = seed += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
/* A multiple of 2^-20 in [-2, 2): sums and small steps are exact in a double. */
static double next_value(void) {
  return ldexp((double)(int64_t)(next_random() % (1u << 22)) - (1 << 21), -20);
}

/* ---- number formats ---- */

static void test_every_narrow_code_survives(void **state) {
  (void)state;
  static const int dtypes[] = {RMSNORM_DTYPE_F16, RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_FP8_E4M3, RMSNORM_DTYPE_FP8_E5M2,
                               RMSNORM_DTYPE_INT8};
  for (size_t d = 0; d < COUNT(dtypes); d++)
    for (uint64_t code = 0; code < 1ull << (8 * rmsnorm_dtype_bytes(dtypes[d])); code++) {
      double v = rn_ref_decode(dtypes[d], code);
      if (isnan(v))
        assert_true(isnan(rn_ref_decode(dtypes[d], rn_ref_encode(dtypes[d], v))));
      else if (!(dtypes[d] == RMSNORM_DTYPE_FP8_E5M2 && isinf(v)))
        assert_int_equal(rn_ref_encode(dtypes[d], v), code);
    }
}

static void test_narrowing_goes_to_the_nearest_even(void **state) {
  (void)state;
  static const int dtypes[] = {RMSNORM_DTYPE_F16, RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_FP8_E4M3, RMSNORM_DTYPE_FP8_E5M2};
  for (size_t d = 0; d < COUNT(dtypes); d++) {
    int dtype = dtypes[d];
    for (uint64_t code = 0; rn_ref_decode(dtype, code + 1) <= rn_ref_largest(dtype); code++) {
      double low = rn_ref_decode(dtype, code), high = rn_ref_decode(dtype, code + 1), tie = low / 2 + high / 2;
      assert_int_equal(rn_ref_encode(dtype, tie), code + (code & 1));
      assert_int_equal(rn_ref_encode(dtype, nextafter(tie, low)), code);
      assert_int_equal(rn_ref_encode(dtype, nextafter(tie, high)), code + 1);
      assert_true(rn_ref_ulp(dtype, low) == high - low);
    }
  }
  assert_true(isinf(rn_ref_round(RMSNORM_DTYPE_F16, 65520)));
  assert_true(rn_ref_round(RMSNORM_DTYPE_F16, 65519.99) == 65504);
  assert_true(isinf(rn_ref_round(RMSNORM_DTYPE_BF16, 0x1.ffp+127)));
  assert_int_equal(rn_ref_encode(RMSNORM_DTYPE_FP8_E4M3, 1e30), 0x7e);
  assert_int_equal(rn_ref_encode(RMSNORM_DTYPE_FP8_E5M2, -INFINITY), 0xfb);
  assert_int_equal(rn_ref_encode(RMSNORM_DTYPE_INT8, 126.5), 126);
  assert_int_equal(rn_ref_encode(RMSNORM_DTYPE_INT8, -128.6), 0x80);
  assert_int_equal(rn_ref_encode(RMSNORM_DTYPE_INT8, NAN), 0);
}

static void test_wide_codes_are_those_of_c(void **state) {
  (void)state;
  for (int i = 0; i < 100000; i++) {
    uint64_t bits = next_random();
    uint32_t bits32 = (uint32_t)bits;
    double d;
    float f;
    memcpy(&d, &bits, 8);
    memcpy(&f, &bits32, 4);
    if (!isnan(d))
      assert_true(rn_ref_encode(RMSNORM_DTYPE_F64, d) == bits && rn_ref_decode(RMSNORM_DTYPE_F64, bits) == d);
    if (!isnan(f))
      assert_true(rn_ref_encode(RMSNORM_DTYPE_F32, f) == bits32 &&
                  rn_ref_decode(RMSNORM_DTYPE_F32, bits32) == (double)f);
  }
}

/* ---- gradients against differences ---- */

enum { ROWS = 2, HEADS = 2, COLS = 6, ALL = ROWS * HEADS * COLS };

typedef struct problem {
  double x[ALL], residual[ALL], gate[ALL], weight[HEADS * COLS], dy[ALL], dsum[ALL];
  rmsnorm_forward_args forward;
  rmsnorm_backward_args backward;
} problem;

static void problem_init(problem *p, int gate, int place, int shape, int groups, int64_t divisor, float offset,
                         bool residual) {
  double *arrays[] = {p->x, p->residual, p->gate, p->dy, p->dsum};
  for (size_t a = 0; a < COUNT(arrays); a++)
    for (int i = 0; i < ALL; i++) arrays[a][i] = next_value();
  for (int i = 0; i < HEADS * COLS; i++) p->weight[i] = next_value();
  rmsnorm_forward_args f = RMSNORM_FORWARD_ARGS_INIT;
  f.rows = ROWS, f.heads = HEADS, f.cols = COLS, f.groups = groups, f.divisor = divisor, f.eps = 1e-3;
  f.numerics.gate = gate, f.numerics.gate_place = place, f.numerics.weight_offset = offset;
  f.weight = p->weight, f.weight_dtype = RMSNORM_DTYPE_F64, f.weight_shape = shape;
  f.x = rmsnorm_input_heads(p->x, RMSNORM_DTYPE_F64, HEADS * COLS, COLS);
  if (residual) f.residual = rmsnorm_input_heads(p->residual, RMSNORM_DTYPE_F64, HEADS * COLS, COLS);
  if (gate) f.gate = rmsnorm_input_heads(p->gate, RMSNORM_DTYPE_F64, HEADS * COLS, COLS);
  rmsnorm_backward_args b = RMSNORM_BACKWARD_ARGS_INIT;
  b.rows = f.rows, b.heads = f.heads, b.cols = f.cols, b.groups = f.groups, b.divisor = divisor, b.eps = f.eps;
  b.numerics = f.numerics, b.weight = f.weight, b.weight_dtype = f.weight_dtype, b.weight_shape = shape;
  b.x = f.x, b.residual = f.residual, b.gate = f.gate;
  b.dy = rmsnorm_input_heads(p->dy, RMSNORM_DTYPE_F64, HEADS * COLS, COLS);
  b.dresidual_out = rmsnorm_input_heads(p->dsum, RMSNORM_DTYPE_F64, HEADS * COLS, COLS);
  p->forward = f, p->backward = b;
}

/* The scalar whose gradient backward gives: sum of dy * y, plus dresidual_out * h. */
static rn_real loss(problem *p) {
  rn_approx y[ALL];
  rn_ref_forward_out out = {.y = y};
  rn_ref_forward(&p->forward, &out);
  rn_real sum = 0;
  for (int i = 0; i < ALL; i++) {
    rn_real h = (rn_real)p->x[i] + (p->forward.residual.data ? p->residual[i] : 0);
    sum += y[i].value * p->dy[i] + h * p->dsum[i];
  }
  return sum;
}

static rn_real difference(problem *p, double *value, double by) {
  double kept = *value;
  *value = kept + by;
  rn_real high = loss(p);
  *value = kept - by;
  rn_real low = loss(p);
  *value = kept;
  return (high - low) / (2 * (rn_real)by);
}

/* Two central differences, extrapolated: the error is h^4 times a fifth derivative, here about 2^-44 * 10^3. */
static void check_gradient(problem *p, double *value, rn_real gradient) {
  rn_real wide = difference(p, value, 0x1p-11), narrow = difference(p, value, 0x1p-12);
  rn_real want = (4 * narrow - wide) / 3;
  if (!(fabsl(want - gradient) <= 1e-8L * (1 + fabsl(want))))
    fail_msg("gradient %.15Lg, differences give %.15Lg", gradient, want);
}

static void test_gradients_are_the_slopes(void **state) {
  (void)state;
  for (int gate = 0; gate <= 2; gate++)
    for (int variant = 0; variant < 12; variant++) {
      problem p;
      problem_init(&p, gate, variant % 2, variant % 3, variant % 4 < 2 ? 1 : 3, variant % 5 == 4 ? 17 : 0,
                   variant % 2 ? 1.0f : 0.0f, variant % 3 != 1);
      rn_approx dx[ALL], dgate[ALL], dweight[HEADS * COLS], dot[ROWS * HEADS * 3];
      rn_ref_backward_out out = {dx, gate ? dgate : NULL, dweight, dot};
      rn_ref_backward(&p.backward, &out);
      for (int i = 0; i < ALL; i++) {
        check_gradient(&p, &p.x[i], dx[i].value);
        if (p.forward.residual.data) check_gradient(&p, &p.residual[i], dx[i].value);
        if (gate) check_gradient(&p, &p.gate[i], dgate[i].value);
      }
      int weights = variant % 3 == RMSNORM_WEIGHT_HEADS_COLS ? HEADS * COLS
                    : variant % 3 == RMSNORM_WEIGHT_GROUP    ? COLS / (int)p.forward.groups
                                                             : COLS;
      for (int i = 0; i < weights; i++) check_gradient(&p, &p.weight[i], dweight[i].value);
    }
}

/* ---- golden vectors ---- */

enum { LONGEST = 64, ARRAYS = 12 };
typedef struct golden {
  char name[ARRAYS][20];
  char text[ARRAYS][LONGEST][48];
  int length[ARRAYS];
  int arrays;
} golden;

static int golden_find(const golden *g, const char *name) {
  for (int i = 0; i < g->arrays; i++)
    if (!strcmp(g->name[i], name)) return i;
  return -1;
}

static bool golden_load(const golden *g, const char *name, double *to) {
  int a = golden_find(g, name);
  for (int i = 0; a >= 0 && i < g->length[a]; i++) to[i] = strtod(g->text[a][i], NULL);
  return a >= 0;
}

/* A double-based long double (no wider type) gets a correspondingly wider allowance. */
static void golden_compare(const golden *g, const char *name, const rn_approx *got) {
  int a = golden_find(g, name);
  for (int i = 0; a >= 0 && i < g->length[a]; i++) {
    rn_real want = strtold(g->text[a][i], NULL), off = fabsl(got[i].value - want);
    if (!(off <= 64 * LDBL_EPSILON * (rn_real)(got[i].size > fabsl(want) ? got[i].size : fabsl(want))))
      fail_msg("%s[%d]: %.21Lg, golden.txt has %s", name, i, got[i].value, g->text[a][i]);
  }
}

static void golden_check(const golden *g, const char *head) {
  char name[64], eps[40], offset[40];
  int rows, heads, cols, groups, divisor, gate, before;
  assert_int_equal(10, sscanf(head,
                              "case %63s rows %d heads %d cols %d groups %d divisor %d gate %d before %d eps %39s "
                              "offset %39s",
                              name, &rows, &heads, &cols, &groups, &divisor, &gate, &before, eps, offset));
  double x[LONGEST], residual[LONGEST], z[LONGEST], weight[LONGEST], dy[LONGEST], dsum[LONGEST];
  rmsnorm_forward_args f = RMSNORM_FORWARD_ARGS_INIT;
  rmsnorm_backward_args b = RMSNORM_BACKWARD_ARGS_INIT;
  f.rows = rows, f.heads = heads, f.cols = cols, f.groups = groups, f.divisor = divisor;
  f.eps = strtod(eps, NULL);
  f.numerics.weight_offset = (float)strtod(offset, NULL);
  f.numerics.gate = gate, f.numerics.gate_place = before;
  f.weight = weight, f.weight_dtype = RMSNORM_DTYPE_F64;
  assert_true(golden_load(g, "x", x) && golden_load(g, "weight", weight) && golden_load(g, "dy", dy) &&
              golden_load(g, "dresidual_out", dsum));
  f.x = rmsnorm_input_heads(x, RMSNORM_DTYPE_F64, heads * cols, cols);
  b.dy = rmsnorm_input_heads(dy, RMSNORM_DTYPE_F64, heads * cols, cols);
  b.dresidual_out = rmsnorm_input_heads(dsum, RMSNORM_DTYPE_F64, heads * cols, cols);
  if (golden_load(g, "residual", residual))
    f.residual = rmsnorm_input_heads(residual, RMSNORM_DTYPE_F64, heads * cols, cols);
  if (golden_load(g, "gate", z)) f.gate = rmsnorm_input_heads(z, RMSNORM_DTYPE_F64, heads * cols, cols);
  b.rows = rows, b.heads = heads, b.cols = cols, b.groups = groups, b.divisor = divisor, b.eps = f.eps;
  b.numerics = f.numerics, b.weight = f.weight, b.weight_dtype = f.weight_dtype;
  b.x = f.x, b.residual = f.residual, b.gate = f.gate;
  rn_approx y[LONGEST], rstd[LONGEST], dx[LONGEST], dgate[LONGEST], dweight[LONGEST], dot[LONGEST];
  rn_ref_forward_out forward = {.y = y, .rstd = rstd};
  rn_ref_backward_out backward = {dx, gate ? dgate : NULL, dweight, dot};
  rn_ref_forward(&f, &forward);
  rn_ref_backward(&b, &backward);
  golden_compare(g, "y", y), golden_compare(g, "rstd", rstd), golden_compare(g, "dx", dx);
  golden_compare(g, "dgate", dgate), golden_compare(g, "dweight", dweight), golden_compare(g, "dot", dot);
}

static void test_golden_vectors(void **state) {
  (void)state;
  FILE *f = fopen(RN_TEST_DIR "/golden.txt", "r");
  assert_non_null(f);
  static char line[16384], head[512];
  static golden g;
  int cases = 0;
  for (bool more = true; more;) {
    more = fgets(line, sizeof line, f) != NULL;
    if (more && line[0] == '#') continue;
    if (!more || !strncmp(line, "case ", 5)) {
      if (g.arrays) golden_check(&g, head), cases++;
      g.arrays = 0;
      if (more) snprintf(head, sizeof head, "%.*s", (int)sizeof head - 1, line);
      continue;
    }
    assert_true(g.arrays < ARRAYS);
    char *word = strtok(line, " ");
    snprintf(g.name[g.arrays], sizeof g.name[0], "%s", word);
    g.length[g.arrays] = atoi(strtok(NULL, " "));
    assert_in_range(g.length[g.arrays], 1, LONGEST);
    for (int i = 0; i < g.length[g.arrays]; i++) {
      word = strtok(NULL, " \n");
      assert_non_null(word);
      snprintf(g.text[g.arrays][i], sizeof g.text[0][0], "%s", word);
    }
    g.arrays++;
  }
  fclose(f);
  assert_int_equal(cases, 10);
}

/* ---- what the judge says of special rows ---- */

static void test_special_rows(void **state) {
  (void)state;
  float x[5][4] = {{0, -0.0f, 0, 0},
                   {1, NAN, 2, 3},
                   {1, INFINITY, -2, 3},
                   {1e30f, 1e30f, -1e30f, 1e30f},
                   {1e-30f, 1e-30f, 1e-30f, -1e-30f}};
  rmsnorm_forward_args f = RMSNORM_FORWARD_ARGS_INIT;
  f.rows = 5, f.cols = 4, f.eps = 0;
  f.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, 4);
  rn_approx y[20];
  rn_ref_forward_out out = {.y = y};
  rn_ref_forward(&f, &out);
  for (int c = 0; c < 4; c++) {
    assert_true(y[c].value == 0 && !signbit(y[c].value) == (c != 1));
    assert_true(isnan(y[4 + c].value));
    assert_true(c == 1 ? isnan(y[8 + c].value) : y[8 + c].value == 0);
    assert_true(fabsl(y[12 + c].value - (c == 2 ? -1 : 1)) < 1e-15L && y[12 + c].err < 1e-5);
    assert_true(fabsl(y[16 + c].value - (c == 3 ? -1 : 1)) < 1e-15L && y[16 + c].err < 1e-5);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_narrow_code_survives),
      cmocka_unit_test(test_narrowing_goes_to_the_nearest_even),
      cmocka_unit_test(test_wide_codes_are_those_of_c),
      cmocka_unit_test(test_gradients_are_the_slopes),
      cmocka_unit_test(test_golden_vectors),
      cmocka_unit_test(test_special_rows),
  };
  return cmocka_run_group_tests_name("reference", tests, NULL, NULL);
}
