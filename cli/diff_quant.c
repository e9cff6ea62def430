/* diff_quant.c - quantised outputs: codes and scales under each way of quantising, from the values of the base model.
 * The codes are judged with theirs' own scales, so that a mistake in one does not hide the other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct way {
  bool fnuz, reciprocal, rounded, nan, transposed;
  double largest;
} way;

typedef struct tally {
  int64_t codes, scales, codes_differ, codes_outside, scales_outside, rows;
  int64_t first_row, first_col;
  double first_theirs, first_model;
} tally;

/* ---- e4m3fnuz, told by e4m3fn: one more in the bias halves every value; 0x7f is 240, 0x80 the only NaN ---- */

static double decode(bool fnuz, int dtype, uint8_t code) {
  if (!fnuz) return rn_ref_decode(dtype, code);
  if (code == 0x80) return NAN;
  if ((code & 0x7f) == 0x7f) return code & 0x80 ? -240 : 240;
  return 0.5 * rn_ref_decode(RMSNORM_DTYPE_FP8_E4M3, code);
}

/* The value of the code that this value gets. */
static double quantised(const way *w, int dtype, double v) {
  double top = rn_ref_largest(dtype);
  if (dtype == RMSNORM_DTYPE_INT8) return rn_ref_round(dtype, v);
  if (w->fnuz) {
    if (w->nan && fabs(v) > 248) return NAN;
    if (fabs(2 * v) > 464) return copysign(240, v);
    return 0.5 * rn_ref_round(RMSNORM_DTYPE_FP8_E4M3, 2 * v);
  }
  if (w->nan && fabs(v) > top + 0.5 * rn_ref_ulp(dtype, top)) return NAN;
  return rn_ref_round(dtype, v);
}

/* ---- one row ---- */

static double scaled(const way *w, double v, double scale) {
  return w->reciprocal ? (double)(float)(v * (double)(float)(1 / scale)) : (double)(float)(v / scale);
}

static int64_t scale_index(const rn_diff *d, const way *w, int64_t row, int64_t block, int64_t blocks) {
  if (d->in->quant.granularity == RMSNORM_QUANT_TENSOR) return 0;
  bool columns = (d->in->quant.scale_layout == RMSNORM_SCALE_COL_MAJOR) != w->transposed;
  return columns ? block * d->rows + row : row * blocks + block;
}

static void judge_block(rn_diff *d, const way *w, const double *v, double slack, int64_t row, int64_t block,
                        int64_t blocks, int64_t width, tally *t) {
  const rn_diff_input *in = d->in;
  int dtype = in->quant.q.dtype;
  int64_t first = block * width, last = first + width < d->cols ? first + width : d->cols;
  double amax = 0, scale = rn_ref_load(in->scale.dtype, in->scale.data, scale_index(d, w, row, block, blocks));
  for (int64_t c = first; c < last; c++)
    if (!isnan(v[c])) amax = fmax(amax, fabs(v[c]));
  double low = amax * (1 - slack), high = amax * (1 + slack);
  if (w->rounded) low = rn_ref_round(d->x_type, low), high = rn_ref_round(d->x_type, high);
  t->scales++;
  double least = fmax(low / w->largest * (1 - 0x1p-22), 0x1p-126 * (1 - 0x1p-22));
  double most = fmax(high / w->largest * (1 + 0x1p-22), 0x1p-126);
  /* A row of zeros has whatever smallest scale somebody chose. */
  if (in->quant.granularity != RMSNORM_QUANT_TENSOR && !(scale >= least && scale <= most) && amax > 0)
    t->scales_outside++;
  for (int64_t c = first; c < last; c++) {
    double theirs = decode(w->fnuz, dtype, ((const uint8_t *)in->theirs.data)[row * d->cols + c]);
    double value = w->rounded ? rn_ref_round(d->x_type, v[c]) : v[c],
           model = quantised(w, dtype, scaled(w, value, scale));
    t->codes++;
    if (rn_same(theirs, model)) continue;
    t->codes_differ++;
    if (t->first_row < 0) t->first_row = row, t->first_col = c, t->first_theirs = theirs, t->first_model = model;
    double a = v[c] * (1 - slack), b = v[c] * (1 + slack);
    if (w->rounded) a = rn_ref_round(d->x_type, a), b = rn_ref_round(d->x_type, b);
    a = quantised(w, dtype, scaled(w, a, scale)), b = quantised(w, dtype, scaled(w, b, scale));
    if (!(theirs >= fmin(a, b) && theirs <= fmax(a, b)) && !isnan(a) && !isnan(b)) t->codes_outside++;
    if (isnan(theirs) != (isnan(a) || isnan(b))) t->codes_outside++;
  }
}

/* rstd may be a unit off; the one with the fewest other codes is the one they had. */
static void judge_row(rn_diff *d, const rn_model *m, const way *w, int64_t row, double *v, tally *t) {
  int64_t blocks = rn_ref_blocks(&d->in->quant, d->cols), width = rn_ref_block_cols(&d->in->quant, d->cols);
  tally best = {0};
  rn_model_row(d, m, row, d->u);
  double rstd = rn_model_rstd(d, m, row, 0, d->u);
  bool weighted = rn_model_weights(d, m, row);
  for (int step = 0; step < 7; step++) {
    tally one = {0};
    one.first_row = -1;
    float r = (float)rstd;
    for (int k = 0; k < (step + 1) / 2; k++) r = nextafterf(r, step % 2 ? INFINITY : 0);
    for (int64_t c = 0; c < d->cols; c++) v[c] = rn_model_value(d, m, row, c, d->u[c], (double)r, weighted);
    double slack = 4 * rn_unit(d) + rn_model_rstd_bound(d, m);
    for (int64_t b = 0; b < blocks; b++) judge_block(d, w, v, slack, row, b, blocks, width, &one);
    if (step == 0 || one.codes_outside + one.scales_outside + one.codes_differ <
                         best.codes_outside + best.scales_outside + best.codes_differ)
      best = one;
    if (best.codes_differ == 0 || best.codes_outside > 8) break;
  }
  t->codes += best.codes, t->scales += best.scales, t->codes_differ += best.codes_differ;
  t->codes_outside += best.codes_outside, t->scales_outside += best.scales_outside, t->rows += best.codes_differ > 0;
  if (t->first_row < 0 && best.first_row >= 0)
    t->first_row = best.first_row, t->first_col = best.first_col, t->first_theirs = best.first_theirs,
    t->first_model = best.first_model;
}

static tally judge(rn_diff *d, const rn_model *m, const way *w, bool all, double *v) {
  tally t = {0};
  t.first_row = t.first_col = -1;
  d->w_of = NULL;
  for (int64_t i = 0; i < (all ? d->rows : d->samples); i++) {
    judge_row(d, m, w, all ? i : d->sample[i], v, &t);
    if (!all && i >= 2 && t.codes_outside + t.scales_outside > t.codes / 2) break;
    if (all && (i & 63) == 0) rn_progress(d, (double)i / (double)d->rows);
  }
  return t;
}

/* ---- the search ---- */

static void fault(rn_model *m, const char *name, const char *note) {
  if (m->faults == RN_FAULTS_MOST) return;
  m->fault[m->faults++] = rn_entry_named(name);
  rn_model_note(m, "%s", note);
}

static rn_model named(const rn_diff *d, const rn_model *base, const way *w, const way *right) {
  rn_model m = *base;
  if (w->fnuz) fault(&m, "fp8-codes", "e4m3fnuz, read as e4m3fn");
  if (w->largest != right->largest && !(w->fnuz && w->largest == 240)) {
    fault(&m, "fp8-largest", "");
    rn_model_parameter(&m, "largest", w->largest);
    rn_model_parameter(&m, "largest_ours", right->largest);
  }
  if (w->transposed) fault(&m, "scale-transposed", "");
  if (w->rounded) fault(&m, "scale-rounded", rmsnorm_dtype_name(d->x_type));
  if (w->nan) fault(&m, "saturation", "");
  if (w->reciprocal != right->reciprocal)
    fault(&m, "scale-operation",
          w->reciprocal ? "multiplied by the rounded reciprocal of the scale, where ours divides"
                        : "divided by the scale, where ours multiplies by its reciprocal");
  return m;
}

void rn_search_quant(rn_diff *d, rn_diff_result *result) {
  const rn_diff_input *in = d->in;
  double *v = malloc(sizeof *v * (size_t)d->cols);
  const int dtype = in->quant.q.dtype;
  const way right = {false, in->quant.scale_op == RMSNORM_SCALE_RECIPROCAL, false, false, false, rn_ref_largest(dtype)};
  bool fp8 = dtype == RMSNORM_DTYPE_FP8_E4M3,
       narrow = d->x_type == RMSNORM_DTYPE_F16 || d->x_type == RMSNORM_DTYPE_BF16;
  bool block = in->quant.granularity == RMSNORM_QUANT_BLOCK;
  const double largests[] = {right.largest, fp8 ? 240 : dtype == RMSNORM_DTYPE_INT8 ? 128 : 448};
  rn_model nearest = d->base[0];
  tally best = {0};
  bool found = false;
  if (!v || !in->scale.data) {
    free(v);
    return;
  }
  d->y_type = RMSNORM_DTYPE_F32, d->digits = 7; /* codes are what counts; the values stay in float32 */
  for (int b = 0; b < d->bases; b++) d->base[b].out_dtype = RMSNORM_DTYPE_F32;
  /* Ways with few mistakes first: the bits of `mask` are mistakes. */
  for (int faults = 0; faults <= (d->options->pairs ? 2 : 1) && !found; faults++) {
    tally least = {0};
    rn_model answer = d->base[0];
    for (int mask = 0; mask < 64; mask++)
      for (int b = 0; b < d->bases; b++) {
        way w = {(mask & 1) != 0,  right.reciprocal != ((mask & 8) != 0),
                 (mask & 4) != 0,  (mask & 16) != 0,
                 (mask & 32) != 0, largests[(mask & 2) != 0]};
        if (w.fnuz) w.largest = mask & 2 ? right.largest : 240;
        if (__builtin_popcount((unsigned)mask) != faults) continue;
        if ((w.fnuz && !fp8) || (w.rounded && !narrow) || (w.transposed && !block)) continue;
        /* Where the model rounds its values anyway, the mistake is not to. */
        rn_model from = d->base[b];
        if (w.rounded && from.stages.normed == d->x_type) {
          w.rounded = false;
          from.stages.normed = from.stages.real;
          fault(&from, "round-normed", "scale and codes come from values that are not rounded, where ours are");
        }
        tally t = judge(d, &from, &w, false, v);
        rn_model m = named(d, &from, &w, &right);
        int64_t wrong = t.codes_outside + t.scales_outside;
        double share = (double)wrong / (double)(t.codes + t.scales);
        if (best.codes == 0 || share < (double)(best.codes_outside + best.scales_outside) / (double)best.codes)
          best = t, nearest = m;
        if (wrong || (found && t.codes_differ >= least.codes_differ)) continue;
        t = judge(d, &from, &w, true, v);
        if (t.codes_outside + t.scales_outside || (found && t.codes_differ >= least.codes_differ)) continue;
        least = t, answer = m, found = true;
      }
    /* Codes that differ within the slack may be of the other operation: only then look at more mistakes. */
    if (found && least.codes_differ > 0 && faults == 0) {
      way other = right;
      other.reciprocal = !right.reciprocal;
      tally t = judge(d, &d->base[0], &other, true, v);
      if (t.codes_differ == 0 && t.codes_outside + t.scales_outside == 0)
        answer = named(d, &d->base[0], &other, &right), least = t;
    }
    if (found) best = least, nearest = answer;
  }
  rn_confirmed c;
  memset(&c, 0, sizeof c);
  c.match = !found ? RN_DIFF_PARTLY : best.codes_differ ? RN_DIFF_WITHIN : RN_DIFF_ALL_BITS;
  c.evidence.elements = best.codes, c.evidence.differ = best.codes_differ;
  c.evidence.outside = best.codes_outside + best.scales_outside, c.evidence.rows_differ = best.rows;
  c.evidence.first_row = best.first_row, c.evidence.first_col = best.first_col;
  c.evidence.first_theirs = best.first_theirs, c.evidence.first_model = best.first_model;
  c.evidence.max_ulp = best.codes_differ ? 1 : 0;
  rn_explain_model(d, &nearest, &c, &result->explanation[result->count++]);
  tally ours = judge(d, &d->base[0], &right, true, v);
  result->evidence.elements = ours.codes, result->evidence.differ = ours.codes_differ;
  result->evidence.outside = ours.codes_outside + ours.scales_outside, result->evidence.rows_differ = ours.rows;
  result->evidence.first_row = ours.first_row, result->evidence.first_col = ours.first_col;
  result->evidence.first_theirs = ours.first_theirs, result->evidence.first_model = ours.first_model;
  free(v);
}
