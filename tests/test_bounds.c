/* test_bounds.c - the bounds of docs/numerics.md, measured and asserted.
 *
 * Random and adversarial rows go through the portable implementation (the others have its bits: `rmsnorm check`), every
 * element is compared with the float64 reference, and the rounding-in-stages switches with the staged model bit for
 * bit. `test_bounds --elements 10000000` prints the table of docs/numerics.md; without arguments a million of each
 * type.
 *
 * The proven bounds of docs/numerics.md section 8 are computed for every single element by the reference
 * (rn_approx.err); a result outside of one is a finding and fails the test whatever the ulps are. On top of that the
 * measured maxima are held to 3 ulp (f32 forward) and 0.51 ulp (everything narrower).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static int64_t wanted = 1000000;
static const uint64_t seed = 20240607;

typedef enum kind { FORWARD, GATED, STAGED, QUANT, BACKWARD, KINDS } kind;
static const char *const kind_names[KINDS] = {"forward", "forward, gate", "forward, stages", "quantised", "backward"};

static const int floats[3] = {RMSNORM_DTYPE_F32, RMSNORM_DTYPE_F16, RMSNORM_DTYPE_BF16};
static const int formats[3] = {RMSNORM_DTYPE_FP8_E4M3, RMSNORM_DTYPE_FP8_E5M2, RMSNORM_DTYPE_INT8};

/* A case of the "random" family, reduced to what the bound is about. */
static void shape(rn_case *c, kind what, int dtype, int64_t index) {
  static const int64_t cols[] = {64, 100, 256, 576, 1024, 1000, 2048, 4096, 5120, 8191, 16384, 65536};
  static const int data[] = {RN_DATA_NORMAL, RN_DATA_NORMAL,   RN_DATA_WIDE, RN_DATA_LARGE,
                             RN_DATA_SMALL,  RN_DATA_CONSTANT, RN_DATA_TIES, RN_DATA_SUBNORMAL};
  static const double epsilons[] = {1e-6, 1e-5, 0, 1e-20};
  rn_case_make(c, 2, index, seed + (uint64_t)what * 77 + (uint64_t)dtype);
  c->op = what == BACKWARD ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
  c->rows = 4, c->heads = c->groups = 1, c->divisor = 0;
  c->cols = cols[index % 12];
  c->eps = epsilons[index / 3 % 4];
  c->data = data[index % 8];
  c->weight_data = 0, c->weight_shape = 0;
  c->saved_rstd = c->given_dot = c->split = c->alone = false;
  memset(&c->quant, 0, sizeof c->quant);
  for (int t = 0; t < RN_TENSORS; t++) {
    c->alias[t] = -1, c->dtype[t] = 0;
    memset(&c->layout[t], 0, sizeof c->layout[t]);
  }
  rmsnorm_numerics *n = &c->numerics;
  memset(n, 0, sizeof *n);
  n->weight_offset = index % 3 == 1;
  n->round_sum = index % 2 ? RMSNORM_ROUND_STORED : RMSNORM_ROUND_NONE;
  /* The input is as wide as the result, or wider: bf16 numbers in f16 would only test overflow. */
  int input = what == QUANT ? floats[index / 2 % 3] : index % 4 == 3 ? RMSNORM_DTYPE_F32 : dtype;
  c->dtype[RN_X] = input, c->dtype[RN_WEIGHT] = index % 5 == 4 ? RMSNORM_DTYPE_F32 : input;
  if (index % 3 == 2) c->dtype[RN_RESIDUAL] = input;
  if (what == GATED || (what == BACKWARD && index % 2)) {
    n->gate = 1 + (int)(index / 2 % 2), n->gate_place = (int)(index / 4 % 2);
    c->dtype[RN_GATE] = input;
  }
  if (what == STAGED)
    n->round_xhat = 1 + (int)(index % 3), n->round_normed = (int)(index / 3 % 4), n->round_rstd = index % 7 == 6;
  c->want = ~0u;
  if (what == BACKWARD) {
    c->dtype[RN_DY] = input;
    if (index % 3 == 1) c->dtype[RN_DSUM] = input;
    c->dtype[RN_DX] = c->dtype[RN_DRESIDUAL] = c->dtype[RN_DWEIGHT] = dtype;
    if (n->gate) c->dtype[RN_DGATE] = dtype;
    c->dtype[RN_DOT] = RMSNORM_DTYPE_F32;
    return;
  }
  c->dtype[RN_RSTD] = RMSNORM_DTYPE_F32;
  if (c->dtype[RN_RESIDUAL]) c->dtype[RN_SUM] = input;
  if (what != QUANT) {
    c->dtype[RN_Y] = dtype;
    return;
  }
  c->dtype[RN_Q] = dtype;
  c->quant.granularity = index % 2 ? RMSNORM_QUANT_ROW : RMSNORM_QUANT_BLOCK;
  c->quant.block_cols = c->quant.granularity == RMSNORM_QUANT_BLOCK ? 128 : 0;
  c->quant.scale_op = (int)(index / 4 % 2);
  c->dtype[RN_SCALE] = RMSNORM_DTYPE_F32;
}

static int output_of(kind what) {
  return what == QUANT ? RN_Q : what == BACKWARD ? RN_DX : RN_Y;
}

/* Run cases of one kind and type until enough elements are measured. Every finding fails, unless the library is broken.
 */
static void run(kind what, int dtype, int64_t elements, rn_tally *tally, const rn_library *broken) {
  rn_harness h;
  rn_harness_init(&h);
  if (broken) h.reference_library = broken;
  const rn_measure *m = &tally->measure[what == STAGED][output_of(what)][dtype];
  for (int64_t i = 0; m->elements < elements; i++) {
    rn_case c;
    char text[1200];
    shape(&c, what, dtype, i);
    int answer = rn_harness_prepare(&h, &c, tally);
    if (!answer || broken) continue;
    rn_case_describe(&c, text, sizeof text);
    const rn_finding *f = &h.findings[0];
    fail_msg("%s %s [%lld, %lld, %lld] got %a expected %a: %s %s", rn_finding_name(f->kind), rn_tensor_name(f->tensor),
             (long long)f->row, (long long)f->head, (long long)f->col, f->got, f->want, text, f->text);
  }
  rn_harness_free(&h);
}

static void print(kind what, const rn_tally *tally) {
  for (int t = RN_INPUTS; t < RN_TENSORS; t++)
    for (int staged = 0; staged < 2; staged++)
      for (int d = 0; d < RN_DTYPES; d++) {
        const rn_measure *m = &tally->measure[staged][t][d];
        if (m->elements)
          printf("| %s | %s | %s | %lld | %.4f | %.3f |\n", kind_names[what], rn_tensor_name(t), rmsnorm_dtype_name(d),
                 (long long)m->elements, m->ulp, m->share);
      }
}

static void assert_ulp(const rn_tally *tally, int tensor, int dtype, double most) {
  const rn_measure *m = &tally->measure[0][tensor][dtype];
  if (!(m->ulp <= most))
    fail_msg("%s %s: %.4f ulp, the bound is %.2f (%s)", rn_tensor_name(tensor), rmsnorm_dtype_name(dtype), m->ulp, most,
             m->where);
}

static void measure_kind(kind what, const int dtypes[3], void (*judge)(const rn_tally *, int dtype)) {
  rn_tally *tally = calloc(1, sizeof *tally);
  assert_non_null(tally);
  for (int i = 0; i < 3; i++) run(what, dtypes[i], wanted, tally, NULL);
  print(what, tally); /* the table also when a bound turns out to be wrong */
  for (int i = 0; judge && i < 3; i++) judge(tally, dtypes[i]);
  free(tally);
}

static void judge_forward(const rn_tally *t, int dtype) {
  assert_ulp(t, RN_Y, dtype, dtype == RMSNORM_DTYPE_F32 ? 3 : 0.51);
  assert_ulp(t, RN_SUM, dtype, 0.51);
  assert_ulp(t, RN_RSTD, RMSNORM_DTYPE_F32, 2);
}
/* The activation is within 6 u, and is one factor more: 3 + 6 ulp. */
static void judge_gated(const rn_tally *t, int dtype) {
  assert_ulp(t, RN_Y, dtype, dtype == RMSNORM_DTYPE_F32 ? 9 : 0.51);
}
static void judge_quant(const rn_tally *t, int dtype) {
  assert_ulp(t, RN_Q, dtype, 0.51);
}
static void judge_backward(const rn_tally *t, int dtype) {
  static const int outputs[] = {RN_DX, RN_DRESIDUAL, RN_DGATE, RN_DWEIGHT};
  for (int i = 0; i < 4 && dtype != RMSNORM_DTYPE_F32; i++) assert_ulp(t, outputs[i], dtype, 0.51);
}

static void test_forward(void **state) {
  (void)state;
  measure_kind(FORWARD, floats, judge_forward);
}
static void test_gate(void **state) {
  (void)state;
  measure_kind(GATED, floats, judge_gated);
}
/* The bits of the staged model are compared inside; the distance from float64 is printed for information. */
static void test_stages(void **state) {
  (void)state;
  measure_kind(STAGED, floats, NULL);
}
static void test_quant(void **state) {
  (void)state;
  measure_kind(QUANT, formats, judge_quant);
}
static void test_backward(void **state) {
  (void)state;
  measure_kind(BACKWARD, floats, judge_backward);
}

/* The bounds are tight enough to notice: with one rounding too many, 0.51 ulp and the computed bound are both passed.
 */
static void test_a_rounding_too_many_shows(void **state) {
  (void)state;
  for (int i = 1; i < 3; i++) {
    rn_tally *tally = calloc(1, sizeof *tally);
    assert_non_null(tally);
    for (int f = 0; f < rn_fault_count(); f++)
      if (!strcmp(rn_fault_name(f), "rounding-swapped")) run(FORWARD, floats[i], 100000, tally, rn_fault_library(f));
    assert_true(tally->measure[0][RN_Y][floats[i]].ulp > 0.9);
    assert_true(tally->found[RN_FOUND_FLOAT64] > 0 && tally->found[RN_FOUND_STAGED] > 0);
    free(tally);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_forward), cmocka_unit_test(test_gate),     cmocka_unit_test(test_stages),
      cmocka_unit_test(test_quant),   cmocka_unit_test(test_backward), cmocka_unit_test(test_a_rounding_too_many_shows),
  };
  if (argc == 3 && !strcmp(argv[1], "--elements")) wanted = strtoll(argv[2], NULL, 10);
  printf("seed %llu, at least %lld elements of each type\n\n"
         "| operation | output | type | elements | largest distance, ulp | share of the proven bound |\n"
         "|---|---|---|---|---|---|\n",
         (unsigned long long)seed, (long long)wanted);
  return cmocka_run_group_tests_name("bounds", tests, NULL, NULL);
}
