/* faults.c - the deliberately broken libraries, and the hunt for them.
 *
 * Each fault is the real library with arguments or results tampered with, the way public kernels have really failed:
 * tails, strides, roundings, eps, offsets, aliases, partial sums, scales, NaN.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include <math.h>
#include <stdlib.h>

typedef enum fault {
  TAIL_DROPPED,
  ROUNDING_SWAPPED,
  SUM_SWAPPED,
  STRIDE_WRONG,
  LAST_ROW,
  PAST_THE_ROW,
  BIT_FLIPPED,
  EPS_IGNORED,
  EPS_OUTSIDE,
  OFFSET_MISSING,
  ADDED_TWICE,
  INPUT_CHANGED,
  DWEIGHT_SHORT,
  DSUM_FORGOTTEN,
  DIVISOR_DOUBLED,
  GATE_MISPLACED,
  SCALE_ULP,
  SATURATION,
  NAN_SWALLOWED,
  ALIGNMENT,
  THREADS,
  SUMSQ_ULP,
  RSTD_ULP,
  SUBSET,
  COMPANY,
  FAULTS
} fault;

static const struct {
  const char *name, *about;
} faults[FAULTS] = {
    [TAIL_DROPPED] = {"tail-dropped", "the last column is neither counted nor written"},
    [ROUNDING_SWAPPED] = {"rounding-swapped", "x-hat is rounded where it should not be, and the other way round"},
    [SUM_SWAPPED] = {"sum-swapped", "the unrounded sum is normalised instead of the rounded one, and the reverse"},
    [STRIDE_WRONG] = {"stride-wrong", "y is written as if it were packed"},
    [LAST_ROW] = {"last-row", "the last row is left out"},
    [PAST_THE_ROW] = {"past-the-row", "one element behind a row is written"},
    [BIT_FLIPPED] = {"bit-flipped", "one bit of one result is wrong"},
    [EPS_IGNORED] = {"eps-ignored", "eps counts as 0"},
    [EPS_OUTSIDE] = {"eps-raised", "eps is raised to 1e-4"},
    [OFFSET_MISSING] = {"offset-missing", "weight_offset is not added"},
    [ADDED_TWICE] = {"added-twice", "a residual updated in place is added twice"},
    [INPUT_CHANGED] = {"input-changed", "x is modified"},
    [DWEIGHT_SHORT] = {"dweight-short", "dweight lacks its last rows"},
    [DSUM_FORGOTTEN] = {"dsum-forgotten", "the gradient that comes through the sum is not added"},
    [DIVISOR_DOUBLED] = {"divisor-doubled", "the mean is taken over twice the width"},
    [GATE_MISPLACED] = {"gate-misplaced", "the gate is applied on the other side of the norm"},
    [SCALE_ULP] = {"scale-ulp", "one scale is off by its last bit"},
    [SATURATION] = {"saturation", "the largest quantised value becomes its neighbour"},
    [NAN_SWALLOWED] = {"nan-swallowed", "NaN comes out as 0"},
    [ALIGNMENT] = {"alignment", "an x that is not 64-byte aligned gives another last bit"},
    [THREADS] = {"threads", "with threads one result has another last bit"},
    [SUMSQ_ULP] = {"sumsq-ulp", "a sum of squares is off by some units"},
    [RSTD_ULP] = {"rstd-ulp", "rstd is returned with another last bit"},
    [SUBSET] = {"subset", "dx has another last bit when dweight is not asked for"},
    [COMPANY] = {"company", "a single row gives another last bit than the same row among others"},
};

int rn_fault_count(void) {
  return FAULTS;
}
const char *rn_fault_name(int f) {
  return faults[f].name;
}
const char *rn_fault_about(int f) {
  return faults[f].about;
}

static fault broken;

/* ---- tampering with results ---- */

static char *element(const rmsnorm_output_tensor *t, int64_t rows, int64_t heads, int64_t row, int64_t head,
                     int64_t col) {
  int64_t at = (rows > 1 ? row * t->row_stride : 0) + (heads > 1 ? head * t->head_stride : 0) + col;
  return (char *)t->data + at * (int64_t)rmsnorm_dtype_bytes(t->dtype);
}

static void flip(void *p) {
  *(unsigned char *)p ^= 1;
} /* the last bit of any type, on little-endian machines */

static void flip_one(const rmsnorm_output_tensor *t, int64_t rows, int64_t heads, int64_t cols) {
  if (t->data && rows) flip(element(t, rows, heads, rows / 2, 0, cols / 2));
}

static void past_the_row(const rmsnorm_output_tensor *t, int64_t rows, int64_t cols) {
  if (t->data && rows > 1 && t->row_stride > cols)
    flip((char *)t->data + cols * (int64_t)rmsnorm_dtype_bytes(t->dtype));
}

static void swallow_nan(const rmsnorm_output_tensor *t, int64_t rows, int64_t heads, int64_t cols) {
  if (!t->data) return;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t c = 0; c < cols; c++) {
        char *p = element(t, rows, heads, r, h, c);
        if (isnan(rn_ref_load(t->dtype, p, 0))) rn_ref_store(t->dtype, p, 0, 0);
      }
}

static void lower_the_largest(const rmsnorm_output_tensor *t, int64_t rows, int64_t heads, int64_t cols) {
  if (!t->data) return;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t c = 0; c < cols; c++) {
        char *p = element(t, rows, heads, r, h, c);
        if (fabs(rn_ref_load(t->dtype, p, 0)) == rn_ref_largest(t->dtype)) *p = (char)(*p - 1);
      }
}

static bool off_the_line(const void *p) {
  return (uintptr_t)p % 64 != 0;
}

/* ---- the three calls ---- */

static void tamper_with_numerics(rmsnorm_numerics *n, double *eps, int64_t *divisor, int64_t width) {
  switch (broken) {
  case ROUNDING_SWAPPED:
    n->round_xhat = n->round_xhat == RMSNORM_ROUND_X ? RMSNORM_ROUND_NONE : RMSNORM_ROUND_X;
    break;
  case SUM_SWAPPED:
    n->round_sum = n->round_sum ? RMSNORM_ROUND_NONE : RMSNORM_ROUND_STORED;
    break;
  case EPS_IGNORED:
    *eps = 0;
    break;
  case EPS_OUTSIDE:
    *eps = *eps < 1e-4 ? 1e-4 : *eps;
    break;
  case OFFSET_MISSING:
    n->weight_offset = 0;
    break;
  case GATE_MISPLACED:
    n->gate_place = n->gate ? !n->gate_place : 0;
    break;
  case DIVISOR_DOUBLED:
    *divisor = 2 * (*divisor ? *divisor : width);
    break;
  default:
    break;
  }
}

static rmsnorm_status broken_forward(const rmsnorm_forward_args *args, void *stream) {
  rmsnorm_forward_args a = *args;
  int64_t rows = a.rows, heads = a.heads, cols = a.cols;
  tamper_with_numerics(&a.numerics, &a.eps, &a.divisor, cols / a.groups);
  switch (broken) {
  case TAIL_DROPPED:
    /* Everything indexed by cols keeps its place only in the simple case. */
    if (cols > 1 && a.groups == 1 && !a.quant.granularity && a.weight_shape == RMSNORM_WEIGHT_COLS)
      a.divisor = a.divisor ? a.divisor : cols, a.cols--;
    break;
  case STRIDE_WRONG:
    if (a.y.data && heads == 1 && a.y.row_stride > cols && a.y.data != a.x.data && a.y.data != a.residual.data &&
        a.y.data != a.gate.data)
      a.y.row_stride = cols;
    break;
  case LAST_ROW:
    if (rows > 1) a.rows--;
    break;
  default:
    break;
  }
  rmsnorm_status status = rmsnorm_forward(&a, stream);
  if (status != RMSNORM_OK || rows == 0) return status;
  switch (broken) {
  case PAST_THE_ROW:
    past_the_row(&a.y, rows, (heads - 1) * (heads > 1 ? a.y.head_stride : 0) + cols);
    break;
  case BIT_FLIPPED:
    flip_one(&a.y, rows, heads, cols);
    break;
  case ADDED_TWICE:
    if (a.residual_out.data && a.residual_out.data == a.residual.data) return rmsnorm_forward(&a, stream);
    break;
  case INPUT_CHANGED:
    if (a.x.data != a.y.data && a.x.data != a.residual_out.data) flip((void *)(uintptr_t)a.x.data);
    break;
  case SCALE_ULP:
    if (a.quant.scale_out && a.quant.granularity) flip(a.quant.scale_out);
    break;
  case SATURATION:
    if (a.quant.granularity) lower_the_largest(&a.quant.q, rows, heads, cols);
    break;
  case NAN_SWALLOWED:
    swallow_nan(&a.y, rows, heads, cols);
    break;
  case ALIGNMENT:
    if (off_the_line(a.x.data)) flip_one(&a.y, rows, heads, cols);
    break;
  case THREADS:
    if (a.threads != 1 || a.parallel) flip_one(&a.y, rows, heads, cols);
    break;
  case RSTD_ULP:
    if (a.rstd) flip(a.rstd);
    break;
  case COMPANY:
    if (rows == 1) flip_one(&a.y, rows, heads, cols);
    break;
  default:
    break;
  }
  return status;
}

static rmsnorm_status broken_stats(const rmsnorm_stats_args *args, void *stream) {
  rmsnorm_status status = rmsnorm_stats(args, stream);
  if (status == RMSNORM_OK && broken == SUMSQ_ULP && args->rows) args->sumsq[0] *= 1 + 0x1p-18f;
  return status;
}

static rmsnorm_status broken_backward(const rmsnorm_backward_args *args, void *stream) {
  rmsnorm_backward_args a = *args;
  tamper_with_numerics(&a.numerics, &a.eps, &a.divisor, a.cols / a.groups);
  if (broken == DSUM_FORGOTTEN) a.dresidual_out.data = NULL;
  if (broken == LAST_ROW && a.rows > 1) a.rows--;
  rmsnorm_status status = rmsnorm_backward(&a, stream);
  if (status != RMSNORM_OK || a.rows == 0) return status;
  switch (broken) {
  case DWEIGHT_SHORT:
    if (a.dweight && a.rows > 1 && a.dx.data != a.x.data && a.dx.data != a.dy.data) {
      rmsnorm_backward_args less = a;
      less.rows -= (a.rows + 7) / 8;
      less.dx.data = less.dresidual.data = less.dgate.data = NULL, less.dot_out = NULL;
      (void)rmsnorm_backward(&less, stream);
    }
    break;
  case PAST_THE_ROW:
    past_the_row(&a.dx, a.rows, (a.heads - 1) * (a.heads > 1 ? a.dx.head_stride : 0) + a.cols);
    break;
  case BIT_FLIPPED:
    flip_one(&a.dx, a.rows, a.heads, a.cols);
    break;
  case SUBSET:
    if (!a.dweight && a.weight) flip_one(&a.dx, a.rows, a.heads, a.cols);
    break;
  case NAN_SWALLOWED:
    swallow_nan(&a.dx, a.rows, a.heads, a.cols);
    break;
  default:
    break;
  }
  return status;
}

const rn_library *rn_fault_library(int f) {
  static const rn_library library = {broken_forward, broken_stats, broken_backward, rmsnorm_backward_workspace_bytes};
  broken = (fault)f;
  return &library;
}

/* ---- the hunt ---- */

/* A hunt ends when so many cases have caught the fault: then every way of catching it has had its chance. */
enum { SAMPLE = 64, SMALL = 1500, ENOUGH = 24 };

bool rn_fault_hunt(int f, bool everywhere, uint64_t seed, rn_catch *result) {
  rn_harness h;
  rn_tally *tally = calloc(1, sizeof *tally);
  rn_harness_init(&h);
  memset(result, 0, sizeof *result);
  h.library = rn_fault_library(f);
  if (everywhere) h.reference_library = h.library;
  bool ok = tally != NULL;
  for (int family = 0; ok && family < rn_family_count() && result->caught < ENOUGH; family++) {
    int64_t cases = rn_family_cases(family, RN_QUICK), step = cases / SAMPLE + 1;
    for (int64_t i = 0; ok && i < cases && result->caught < ENOUGH; i += step) {
      rn_case c;
      bool unsupported;
      rn_case_make(&c, family, i, seed);
      if (c.cols > SMALL || c.rows > SMALL || c.unjudged) continue;
      int before = rn_harness_prepare(&h, &c, tally);
      int found = h.found;
      rn_finding first = h.findings[0];
      for (int k = 0; k < h.found; k++) result->kinds |= 1u << h.findings[k].kind;
      ok = before != 2 || found > 0;
      if (before == 2) continue;
      ok = rn_harness_run(&h, "portable", tally, &unsupported) != 2;
      for (int k = 0; k < h.found; k++) result->kinds |= 1u << h.findings[k].kind;
      result->cases++;
      if (!found && !h.found) continue;
      if (!found) first = h.findings[0];
      if (!result->caught++)
        snprintf(result->first, sizeof result->first, "%s %s in %s/%lld", rn_finding_name(first.kind),
                 rn_tensor_name(first.tensor), c.family, (long long)c.index);
    }
  }
  rn_harness_free(&h);
  free(tally);
  return ok;
}

int rn_self_test(FILE *out, uint64_t seed) {
  int missed = 0;
  fprintf(out, "%-18s %-38s %s\n", "fault", "caught when portable is right by", "when portable is as wrong by");
  for (int f = 0; f < FAULTS; f++) {
    char words[2][80] = {"", ""};
    rn_catch result[2];
    for (int everywhere = 0; everywhere < 2; everywhere++) {
      rn_catch *r = &result[everywhere];
      if (!rn_fault_hunt(f, everywhere, seed, r)) return -1;
      size_t at = 0;
      for (int k = 0; k < RN_FINDING_KINDS; k++)
        if (r->kinds & 1u << k)
          at +=
              (size_t)snprintf(words[everywhere] + at, sizeof words[0] - at, "%s%s", at ? " " : "", rn_finding_name(k));
      if (!r->caught) missed++, snprintf(words[everywhere], sizeof words[0], "NOT CAUGHT");
    }
    fprintf(out, "%-18s %-38s %-38s %s\n", faults[f].name, words[0], words[1], faults[f].about);
  }
  return missed;
}
