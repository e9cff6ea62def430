/* diff_gradient.c - gradients: dx and dweight in double under each mistake, and whether float32 in any order can have
 * come to theirs. A value of dx is what two terms leave of each other, so distances are judged by the size of the
 * terms.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum narrow_sum { SUM_WIDE, SUM_IN_ORDER, SUM_ANY_ORDER } narrow_sum;

typedef struct variant {
  rn_model model; /* its eps, offset, weight and faults */
  bool mean_term, no_dot, no_dresidual, over_dy;
  int xhat_type; /* 0: not rounded */
  narrow_sum sum;
  int sum_type;
} variant;

typedef struct judged {
  double value, slack;
} judged;

/* ---- one row ---- */

static double at(const rn_diff_tensor *t, int64_t i) {
  return t->data ? rn_ref_load(t->dtype, t->data, i) : 0;
}

/* dx of one row, and how far float32 may be from it. x-hat goes into d->stat_u. */
static void dx_row(rn_diff *d, const variant *v, int64_t row, judged *dx) {
  const rn_diff_input *in = d->in;
  double n = (double)d->cols, dot = 0, size = 0, mean = 0, weight = 0, unit = rn_unit(d), *flip = d->squares, flips = 0;
  rn_model_row(d, &v->model, row, d->u);
  double rstd = rn_model_rstd(d, &v->model, row, 0, d->u), bound = rn_model_rstd_bound(d, &v->model);
  rn_model_weights(d, &v->model, row);
  for (int64_t c = 0; c < d->cols; c++) {
    double xhat = d->u[c] * rstd, t = at(&in->dy, row * d->cols + c) * d->w[c];
    flip[c] = 0;
    if (v->xhat_type) { /* near a tie it may have been rounded to either side */
      flip[c] = fabs(rn_ref_round(v->xhat_type, xhat * (1 + bound)) - rn_ref_round(v->xhat_type, xhat * (1 - bound)));
      xhat = rn_ref_round(v->xhat_type, xhat);
    }
    d->stat_u[c] = xhat;
    dot += t * xhat, size += fabs(t * xhat), mean += t, weight += fabs(t), flips += fabs(t) * flip[c];
  }
  double divisor = v->model.divisor > 0 ? v->model.divisor : n, walk = 6 * sqrt(n);
  /* A sum of either sign: its partial sums are as large as it, or as a walk of that many steps. */
  double lost_dot = unit * (walk * fabs(dot) + 18 * size) + flips, lost_mean = unit * (walk * fabs(mean) + 18 * weight);
  for (int64_t c = 0; c < d->cols && dx; c++) {
    double t = at(&in->dy, row * d->cols + c) * d->w[c], xhat = d->stat_u[c];
    double away = v->no_dot ? 0 : xhat * dot / divisor,
           extra = v->no_dresidual ? 0 : at(&in->dresidual, row * d->cols + c);
    dx[c].value = rstd * (t - away - (v->mean_term ? mean / n : 0)) + extra;
    dx[c].slack = rstd * ((bound + 4 * unit) * (fabs(t) + 2 * fabs(away) + (v->mean_term ? fabs(mean) / n : 0)) +
                          (v->no_dot ? 0 : (fabs(xhat) * lost_dot + flip[c] * fabs(dot)) / divisor) +
                          (v->mean_term ? lost_mean / n : 0)) +
                  4 * unit * fabs(extra);
  }
}

/* ---- dweight ---- */

/* Every column at once: sum and slack; `narrow`: as it comes in sum_type, one row after the other. */
static bool dweight(rn_diff *d, const variant *v, judged *out, double *in_order) {
  int64_t count = d->in->weight_shape == RMSNORM_WEIGHT_HEADS_COLS ? d->in->heads * d->cols : d->cols;
  double unit = rn_unit(d), rows = (double)d->rows;
  judged *dx = v->over_dy ? malloc(sizeof *dx * (size_t)d->cols) : NULL;
  if (v->over_dy && !dx) return false;
  memset(out, 0, sizeof *out * (size_t)count), memset(in_order, 0, sizeof *in_order * (size_t)count);
  for (int64_t row = 0; row < d->rows; row++) {
    dx_row(d, v, row, dx);
    int64_t base = count > d->cols ? row % d->in->heads * d->cols : 0;
    for (int64_t c = 0; c < d->cols; c++) {
      double g = at(&d->in->dy, row * d->cols + c);
      if (dx) g = rn_ref_round(d->in->dy.dtype, dx[c].value);
      double p = g * d->stat_u[c], unsure = fabs(g) * d->squares[c];
      if (dx)
        unsure += fabs(d->stat_u[c]) * fabs(rn_ref_round(d->in->dy.dtype, dx[c].value + dx[c].slack) -
                                            rn_ref_round(d->in->dy.dtype, dx[c].value - dx[c].slack));
      out[base + c].value += p;
      double lost = v->sum == SUM_ANY_ORDER ? ldexp(1, v->sum_type == RMSNORM_DTYPE_F16 ? -11 : -8) : unit;
      out[base + c].slack += lost * fabs(p) * (v->sum == SUM_WIDE ? 12 + fmin(rows, 6 * sqrt(rows)) : 2 + sqrt(rows));
      out[base + c].slack += unsure + rn_model_rstd_bound(d, &v->model) * fabs(p);
      if (v->sum == SUM_IN_ORDER)
        in_order[base + c] = rn_ref_round(v->sum_type, in_order[base + c] + rn_ref_round(v->sum_type, p));
    }
  }
  for (int64_t c = 0; c < count && v->sum == SUM_IN_ORDER; c++) out[c].value = in_order[c], out[c].slack = 0;
  free(dx);
  return true;
}

/* ---- against theirs ---- */

static void judge(const rn_diff *d, const judged *model, int64_t row, int64_t cols, rn_diff_evidence *e) {
  bool differs = false;
  for (int64_t c = 0; c < cols; c++) {
    double t = rn_ref_load(d->in->theirs.dtype, d->in->theirs.data, row * cols + c);
    double v = rn_ref_round(d->y_type, model[c].value);
    e->elements++;
    if (rn_same(t, v)) continue;
    double low = rn_ref_round(d->y_type, model[c].value - model[c].slack);
    double high = rn_ref_round(d->y_type, model[c].value + model[c].slack), off = rn_ulps(d, t, v);
    if (e->first_row < 0) e->first_row = row, e->first_col = c, e->first_theirs = t, e->first_model = v;
    e->differ++, differs = true;
    e->max_ulp = fmax(e->max_ulp, fabs(off));
    if (isfinite(off)) e->mean_ulp += off;
    if (!(t >= low && t <= high)) e->outside++;
  }
  e->rows_differ += differs;
}

static bool compare(rn_diff *d, const variant *v, bool all, rn_diff_evidence *e) {
  bool weight = d->in->subject == RN_DIFF_DWEIGHT;
  int64_t count = weight && d->in->weight_shape == RMSNORM_WEIGHT_HEADS_COLS ? d->in->heads * d->cols : d->cols;
  judged *model = malloc(sizeof *model * (size_t)count);
  double *order = malloc(sizeof *order * (size_t)count);
  bool good = model && order;
  memset(e, 0, sizeof *e);
  e->first_row = e->first_col = -1;
  d->w_of = NULL;
  if (good && weight) {
    good = dweight(d, v, model, order);
    if (good) judge(d, model, 0, count, e);
  }
  for (int64_t i = 0; good && !weight && i < (all ? d->rows : d->samples); i++) {
    int64_t row = all ? i : d->sample[i];
    dx_row(d, v, row, model);
    judge(d, model, row, d->cols, e);
    if (!all && e->outside > 0) break;
    if (all && (i & 63) == 0) rn_progress(d, (double)i / (double)d->rows);
  }
  if (e->elements) e->mean_ulp /= (double)e->elements;
  free(model), free(order);
  return good;
}

/* ---- the variants: one mistake each; pairs are all of one with all of the others ---- */

typedef struct variants {
  variant *of;
  int count;
} variants;
enum { VARIANTS_MOST = 48 };

static variant *add(variants *list, const variant *from, const char *name) {
  if (list->count == VARIANTS_MOST || from->model.faults >= RN_DIFF_HYPOTHESES) return NULL;
  for (int i = 0; i < from->model.faults; i++)
    if (strcmp(from->model.fault[i]->text.name, name) == 0) return NULL;
  variant *v = &list->of[list->count++];
  *v = *from;
  v->model.note[v->model.faults][0] = 0;
  v->model.fault[v->model.faults++] = rn_entry_named(name);
  return v;
}

static void propose(const rn_diff *d, const variant *from, variants *list) {
  static const double usual[] = {1e-5, 1e-6, 1e-4, 0x1p-23, 1e-8, 0x1p-7, 0x1p-10, 0, 1e-12, 1e-3};
  bool narrow = d->x_type == RMSNORM_DTYPE_F16 || d->x_type == RMSNORM_DTYPE_BF16;
  bool weight = d->in->subject == RN_DIFF_DWEIGHT;
  variant *v;
  if (!weight) {
    if (!from->no_dot && (v = add(list, from, "gradient-mean-term")) != NULL) v->mean_term = true;
    if (!from->mean_term && (v = add(list, from, "gradient-dot-missing")) != NULL) v->no_dot = true;
    if (d->in->dresidual.data && (v = add(list, from, "residual-gradient-missing")) != NULL) v->no_dresidual = true;
  }
  if (weight && (v = add(list, from, "dx-over-dy")) != NULL) v->over_dy = true;
  if (narrow && (v = add(list, from, "gradient-xhat-rounded")) != NULL) {
    v->xhat_type = d->x_type;
    rn_model_note(&v->model, "%s", rmsnorm_dtype_name(d->x_type));
  }
  for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
    if ((float)usual[i] == (float)from->model.eps || (v = add(list, from, "eps")) == NULL) continue;
    rn_model_parameter(&v->model, "eps_ours", from->model.eps);
    rn_model_parameter(&v->model, "eps", usual[i]);
    v->model.eps = usual[i];
  }
  if (d->in->weight.data && (!weight || from->over_dy)) {
    if ((v = add(list, from, "weight-missing")) != NULL) v->model.weight = RN_WEIGHT_NONE;
    if (from->model.offset != 0 && (v = add(list, from, "offset-missing")) != NULL) {
      rn_model_parameter(&v->model, "offset_ours", from->model.offset);
      v->model.offset = 0;
    }
    if ((v = add(list, from, "offset-twice")) != NULL) {
      rn_model_parameter(&v->model, "offset_ours", from->model.offset);
      v->model.offset = from->model.offset + 1;
      rn_model_parameter(&v->model, "offset", v->model.offset);
    }
  }
  if (d->in->residual.data && (v = add(list, from, "residual-ignored")) != NULL)
    v->model.source = v->model.stat_source = RN_SOURCE_X;
  if ((v = add(list, from, "mean-removed")) != NULL) v->model.centred = true;
  static const int types[] = {RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16};
  for (int order = 0; weight && order < 2; order++)
    for (int t = 0; t < 2; t++)
      if (types[t] == (narrow ? d->x_type : types[t]) && (v = add(list, from, "dweight-narrow")) != NULL) {
        v->sum = order ? SUM_ANY_ORDER : SUM_IN_ORDER, v->sum_type = types[t];
        rn_model_note(&v->model, "%s", rmsnorm_dtype_name(types[t]));
      }
}

static bool answers(rn_diff *d, const variant *v, rn_diff_result *result, rn_diff_evidence *nearest, variant *best) {
  rn_confirmed c;
  memset(&c, 0, sizeof c);
  if (!compare(d, v, false, &c.evidence)) return false;
  if (c.evidence.outside == 0 && d->in->subject == RN_DIFF_DX && !compare(d, v, true, &c.evidence)) return false;
  double share = (double)c.evidence.outside / (double)(c.evidence.elements ? c.evidence.elements : 1);
  if (nearest->elements == 0 || share < (double)nearest->outside / (double)nearest->elements)
    *nearest = c.evidence, *best = *v;
  if (c.evidence.outside) return false;
  c.match = c.evidence.differ ? RN_DIFF_WITHIN : RN_DIFF_ALL_BITS;
  rn_explain_model(d, &v->model, &c, &result->explanation[result->count++]);
  return true;
}

void rn_search_gradient(rn_diff *d, rn_diff_result *result) {
  variants one = {NULL, 0}, two = {NULL, 0};
  rn_diff_evidence nearest;
  variant base, best;
  memset(&base, 0, sizeof base), memset(&nearest, 0, sizeof nearest);
  one.of = malloc(sizeof *one.of * VARIANTS_MOST), two.of = malloc(sizeof *two.of * VARIANTS_MOST);
  bool found = false, room = one.of && two.of;
  for (int b = 0; room && b < d->bases && !found; b++) {
    base.model = best.model = d->base[b];
    best = base;
    found = answers(d, &base, result, &nearest, &best);
  }
  base.model = d->base[0];
  if (room) propose(d, &base, &one);
  for (int i = 0; i < one.count && !found; i++)
    found = one.of[i].sum != SUM_ANY_ORDER && answers(d, &one.of[i], result, &nearest, &best);
  for (int i = 0; i < one.count && !found && d->options->pairs; i++) {
    two.count = 0;
    if (one.of[i].sum != SUM_ANY_ORDER) propose(d, &one.of[i], &two);
    for (int k = 0; k < two.count && !found; k++)
      found = two.of[k].sum != SUM_ANY_ORDER && answers(d, &two.of[k], result, &nearest, &best);
  }
  for (int i = 0; i < one.count && !found; i++) /* its bound is a wide one */
    found = one.of[i].sum == SUM_ANY_ORDER && answers(d, &one.of[i], result, &nearest, &best);
  if (!found && nearest.elements) {
    rn_confirmed c;
    memset(&c, 0, sizeof c);
    c.match = RN_DIFF_PARTLY, c.evidence = nearest;
    rn_explain_model(d, &best.model, &c, &result->explanation[result->count++]);
  }
  /* What is right, for the picture. */
  if (d->in->subject == RN_DIFF_DX && room && (result->ours = malloc((size_t)(d->rows * d->cols) * 4)) != NULL) {
    judged *row = malloc(sizeof *row * (size_t)d->cols);
    base.model = d->base[0], d->w_of = NULL;
    result->ours_dtype = d->y_type == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F32 : d->y_type;
    for (int64_t r = 0; r < d->rows && row; r++) {
      dx_row(d, &base, r, row);
      for (int64_t c = 0; c < d->cols; c++)
        rn_ref_store(result->ours_dtype, result->ours, r * d->cols + c, row[c].value);
    }
    free(row);
  }
  base.model = d->base[0];
  if (room) compare(d, &base, true, &result->evidence);
  free(one.of), free(two.of);
}
