/* diff_confirm.c - whether a model accounts for every element of every row.
 *
 * A row is right when all its elements have the model's bits, with the model's rstd or, should float32 have come to
 * another one, with one rstd for the whole row that lies within the bound of the arithmetic.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void rn_progress(const rn_diff *d, double share) {
  enum { WIDTH = 40 };
  rn_diff *state = (rn_diff *)d;
  double at = now();
  if (!d->options->progress) return;
  if (d->began == 0) state->began = at;
  if (at - d->began < 1 || at - d->drawn < 0.1) return;
  state->drawn = at;
  int full = (int)(share * WIDTH);
  fprintf(d->options->progress, "\r[");
  for (int i = 0; i < WIDTH; i++) fputc(i < full ? '#' : ' ', d->options->progress);
  fprintf(d->options->progress, "] %3.0f%%", 100 * share);
  fflush(d->options->progress);
}

/* One element that differs. */
static void note(const rn_diff *d, rn_diff_evidence *e, int64_t row, int64_t col, double theirs, double model) {
  if (e->first_row < 0) e->first_row = row, e->first_col = col, e->first_theirs = theirs, e->first_model = model;
  double off = rn_ulps(d, theirs, model);
  e->differ++;
  e->max_ulp = fmax(e->max_ulp, fabs(off));
  if (isfinite(off)) e->mean_ulp += off;
}

/* The model's value with rstd moved by whatever float32 may have lost in the element itself. */
static bool reachable(const rn_diff *d, const rn_model *m, int64_t row, int64_t c, const double *u, double rstd,
                      double slack, double unsure, bool weighted, double theirs) {
  double more = slack + rn_model_slack(d, m);
  /* A mean was removed: u itself is only known to within `unsure`. */
  more += unsure > 0 && u[c] != 0 ? unsure / fabs(u[c]) : 0;
  rn_model less = *m, greater = *m;
  less.act_error = -rn_model_act_bound(d, m), greater.act_error = -less.act_error;
  double a = rn_model_value(d, &less, row, c, u[c], rstd * (1 - more), weighted);
  double b = rn_model_value(d, &greater, row, c, u[c], rstd * (1 + more), weighted);
  return theirs >= fmin(a, b) && theirs <= fmax(a, b);
}

typedef struct row_judged {
  int64_t differ, outside;
  double units;
} row_judged;

static row_judged judge_group(rn_diff *d, const rn_model *m, int64_t row, int64_t g, double unsure, rn_diff_evidence *e,
                              uint8_t *cols_differ) {
  int64_t width = d->cols / m->groups, first = g * width, last = first + width;
  row_judged j = {0, 0, 0};
  if (last > m->cols_written) last = m->cols_written;
  double rstd = rn_model_rstd(d, m, row, g, d->u), unit = rn_unit(d), bound = rn_model_rstd_bound(d, m);
  bool weighted = rn_model_weights(d, m, row), all = true;
  /* What lies behind the last row, or outside of x, is not known. */
  if (isnan(rstd) && (m->overrun || m->row_step != d->cols || m->row_base)) {
    e->unknown += last - first;
    return j;
  }
  double nominal = m->stages.real == RMSNORM_DTYPE_F32 ? (double)(float)rstd : rstd;
  for (int64_t c = first; c < last && all; c++)
    all = !d->known[c] || rn_same(rn_diff_theirs(d, row, c), rn_model_value(d, m, row, c, d->u[c], nominal, weighted));
  for (int k = -1; k <= 1 && m->stat_rounds && !all && isfinite(rstd); k += 2) {
    rn_model other = *m;
    other.nudge = k * RN_NUDGE;
    double near = rn_model_rstd(d, &other, row, g, d->u);
    int64_t same = 0, same_near = 0, step = width / 64 + 1;
    for (int64_t c = first; c < last; c += step) {
      double t = rn_diff_theirs(d, row, c);
      same += rn_same(t, rn_model_value(d, m, row, c, d->u[c], rstd, weighted));
      same_near += rn_same(t, rn_model_value(d, m, row, c, d->u[c], near, weighted));
    }
    if (same_near > same) rstd = near;
  }
  if (!all && isfinite(rstd) && rstd > 0) {
    double low = rstd * (1 - bound), high = rstd * (1 + bound);
    rn_fit_within(d, m, row, g, d->u, d->y_type == m->stages.real ? 0 : 3 * unit, unsure, &low, &high);
    double at = low > rstd ? low : high < rstd ? high : rstd;
    if (m->stages.real == RMSNORM_DTYPE_F32) { /* a float, if one lies inside */
      float f = (float)at;
      if ((double)f < low) f = nextafterf(f, INFINITY);
      if ((double)f > high) f = nextafterf(f, 0);
      at = (double)f >= low ? (double)f : at;
    }
    nominal = at;
    j.units = fabs(at / rstd - 1) / unit;
  }
  /* Products in another order, or of an unrounded rstd: three roundings. */
  double slack = (m->stages.real == RMSNORM_DTYPE_F64 ? 0 : 3) * unit;
  for (int64_t c = first; c < last; c++) {
    double t = rn_diff_theirs(d, row, c);
    if (!d->known[c]) {
      e->unknown++;
      continue;
    }
    double v = rn_model_value(d, m, row, c, d->u[c], nominal, weighted);
    e->elements++;
    if (rn_same(t, v)) continue;
    j.differ++;
    cols_differ[c] = 1;
    note(d, e, row, c, t, v);
    /* Beyond the fit the whole interval is allowed only where there was no fit. */
    if (!reachable(d, m, row, c, d->u, nominal, slack, unsure, weighted, t)) j.outside++;
  }
  return j;
}

bool rn_confirm(rn_diff *d, const rn_model *m, rn_confirm_rows which, rn_confirmed *c) {
  enum { ENOUGH = 1 << 15 }; /* elements, for the share of those that are wrong */
  uint8_t *cols_differ = calloc((size_t)d->cols, 1);
  memset(c, 0, sizeof *c);
  rn_diff_evidence *e = &c->evidence;
  e->first_row = e->first_col = c->first_wrong = c->last_right = -1;
  c->nominal = true;
  if (!cols_differ) return false;
  d->w_of = NULL;
  bool all = which != RN_CONFIRM_SAMPLE;
  int64_t rows = all ? d->rows : d->samples;
  for (int64_t i = 0; i < rows; i++) {
    int64_t row = all ? i : d->sample[i], outside = 0, differ = 0;
    if (row >= m->rows_written) continue;
    double unsure = rn_model_row(d, m, row, d->u);
    for (int64_t g = 0; g < m->groups; g++) {
      row_judged j = judge_group(d, m, row, g, unsure, e, cols_differ);
      outside += j.outside, differ += j.differ;
      if (j.units > c->units) c->units = j.units;
      /* The last bit of rstd is nobody's mistake. */
      if (j.units > 1.5 || j.differ) c->nominal = false;
    }
    if (differ) e->rows_differ++;
    e->outside += outside;
    if (outside) {
      c->rows_wrong++;
      c->rows_gone += 2 * outside > m->cols_written;
      if (c->first_wrong < 0 || row < c->first_wrong) c->first_wrong = row;
    } else if (row > c->last_right) {
      c->last_right = row;
    }
    /* A wrong row that is not wrong throughout: nothing that follows makes up for it. */
    if (which != RN_CONFIRM_ALL && c->rows_gone < c->rows_wrong && e->elements >= ENOUGH) break;
    if (all && (i & 63) == 0) rn_progress(d, (double)i / (double)rows);
  }
  for (int64_t i = 0; i < d->cols; i++) e->cols_differ += cols_differ[i];
  free(cols_differ);
  if (e->elements) e->mean_ulp /= (double)e->elements;
  c->match = e->outside ? RN_DIFF_PARTLY : c->nominal ? RN_DIFF_ALL_BITS : RN_DIFF_WITHIN;
  return true;
}
