/* diff_fit.c - what theirs tells about a row when its rstd is not known: whether all its elements agree on one, and on
 * which. That parts the search in two: inputs, weights and roundings are judged with rstd free, and only then does the
 * statistic have to say where that rstd came from.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <math.h>
#include <stdlib.h>

/* Column k of those that a fit looks at: all of a short group, otherwise one out of each of RN_FIT_COLS stretches, at
 * places without a period. */
static int64_t fit_column(int64_t first, int64_t width, int k) {
  if (width <= RN_FIT_COLS) return first + k;
  int64_t from = k * width / RN_FIT_COLS, to = (k + 1) * width / RN_FIT_COLS;
  uint32_t hash = (uint32_t)k * 2654435761u;
  return first + from + (int64_t)((hash >> 8) % (uint32_t)(to - from));
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* One element as a function of rstd, monotone; with a gate a band, since its activation is only known within a bound.
 */
typedef struct element {
  const rn_diff *d;
  const rn_model *least, *most; /* the model with the activation at either end of its bound */
  int64_t row, col;
  double u, sign, target;
  bool weighted;
} element;

static double value(const element *e, const rn_model *m, double rstd) {
  return e->sign * rn_model_value(e->d, m, e->row, e->col, e->u, rstd, e->weighted);
}

static bool holds(const element *e, double rstd) {
  return value(e, e->least, rstd) <= e->target && value(e, e->most, rstd) >= e->target;
}

/* The least rstd that reaches the target (`upper` false), or the largest that does not pass it. */
static double edge(const element *e, double low, double high, bool upper, int steps) {
  for (int i = 0; i < steps; i++) {
    double middle = 0.5 * (low + high);
    if (upper ? value(e, e->least, middle) <= e->target : value(e, e->most, middle) < e->target)
      low = middle;
    else
      high = middle;
  }
  return upper ? low : high;
}

static bool element_interval(const element *e, double at, double *low, double *high) {
  const rn_diff *d = e->d;
  int steps = d->digits >= 23 ? 7 : 29 - d->digits;
  double reach = 8 * ldexp(1, -d->digits), from = at * (1 - reach), to = at * (1 + reach);
  if (!(value(e, e->least, from) <= e->target && value(e, e->most, to) >= e->target)) return false;
  *low = edge(e, from, to, false, steps);
  *high = edge(e, from, to, true, steps);
  return holds(e, *low) || holds(e, *high);
}

/* An element of which a factor can be read: not zero, not special, not so small that its digits are gone. */
static bool telling(const rn_diff *d, int64_t c, double u, double t, double *factor) {
  double b = u * d->w[c];
  if (!d->known[c] || !isfinite(b) || !isfinite(t) || b == 0 || t == 0) return false;
  *factor = t / b;
  return rn_ref_ulp(d->y_type, t) <= fabs(t) * 4 * ldexp(1, -d->digits) && isfinite(*factor) && *factor != 0;
}

/* What the weighted value is multiplied by: the activation, or its weight once more. */
static double after_weight(const rn_diff *d, const rn_model *m, int64_t row, int64_t c) {
  double again = m->weight == RN_WEIGHT_AGAIN ? d->w[c] : 1;
  if (!m->gate || m->gate_place != RMSNORM_GATE_AFTER || !d->in->gate.data) return again;
  return again * rn_staged_act(d->real, m->gate, rn_ref_load(d->in->gate.dtype, d->in->gate.data, row * d->cols + c));
}

typedef struct row_elements {
  rn_diff *d;
  const rn_model *m;
  const double *u;
  int64_t row, first, width;
  double slack, unsure;
  bool weighted;
  rn_model least, most; /* when there is a gate */
} row_elements;

static void take_row(row_elements *r, rn_diff *d, const rn_model *m, int64_t row, int64_t group, const double *u,
                     double slack, double unsure) {
  r->d = d, r->m = m, r->u = u, r->row = row;
  r->width = d->cols / m->groups, r->first = group * r->width;
  r->slack = slack, r->unsure = unsure;
  r->weighted = rn_model_weights(d, m, row);
  double bound = rn_model_act_bound(d, m);
  if (bound == 0) return;
  r->least = r->most = *m;
  r->least.act_error = -bound, r->most.act_error = bound;
}

/* Element c of a row, when it is a telling one: its factor is where its interval lies, `more` how unsure that is. */
static bool fit_element(const row_elements *r, int64_t c, element *e, double *factor, double *more) {
  const rn_diff *d = r->d;
  if (c >= r->m->cols_written) return false;
  double t = rn_diff_theirs(d, r->row, c), after = after_weight(d, r->m, r->row, c);
  if (after == 0 || !telling(d, c, r->u[c], t / after, factor)) return false;
  bool band = rn_model_act_bound(d, r->m) > 0;
  element made = {d, band ? &r->least : r->m, band ? &r->most : r->m, r->row, c, r->u[c], 1, 0, r->weighted};
  *e = made;
  if (r->u[c] * d->w[c] * after < 0) e->sign = -1;
  e->target = e->sign * t;
  *more = r->slack + r->unsure / fabs(r->u[c]) + rn_model_slack(d, r->m);
  return true;
}

static int fit_count(int64_t width, int most) {
  return width < most ? (int)width : most;
}

/* Theirs: an exponential within two ulp, which are four units, then a sum, a quotient and a product. Ours: one within
 * an ulp, and the same three. */
double rn_model_act_bound(const rn_diff *d, const rn_model *m) {
  return m->gate && d->in->gate.data ? (4 + 3 + 2 + 3) * rn_unit(d) : 0;
}

/* What the model itself does not know of an element: a weight that was read from theirs, a first norm's last bit, an
 * activation. */
double rn_model_slack(const rn_diff *d, const rn_model *m) {
  return rn_model_act_bound(d, m) + (m->weight == RN_WEIGHT_FREE ? d->free_slack : 0) +
         (m->twice ? ldexp(1, -d->digits) : 0);
}

/* All intervals, and where most of them overlap. */
static rn_fit fit_most(const row_elements *r, int most) {
  rn_fit fit = {1, 0, 0, 0};
  double low[RN_FIT_COLS] = {0}, high[RN_FIT_COLS] = {0}, factor, more;
  int count = 0, columns = fit_count(r->width, RN_FIT_COLS);
  element e;
  for (int k = 0; k < columns; k += (columns + most - 1) / most) {
    if (!fit_element(r, fit_column(r->first, r->width, k), &e, &factor, &more)) continue;
    fit.usable++;
    if (factor < 0 || !element_interval(&e, factor, &low[count], &high[count])) continue;
    low[count] *= 1 - more, high[count] *= 1 + more;
    count++;
  }
  qsort(low, (size_t)count, sizeof *low, ascending);
  qsort(high, (size_t)count, sizeof *high, ascending);
  for (int i = 0, j = 0; i < count; i++) {
    while (j < count && high[j] < low[i]) j++;
    if (i + 1 - j > fit.covered) {
      fit.covered = i + 1 - j;
      fit.low = low[i], fit.high = high[j];
    }
  }
  return fit;
}

/* The part of [low, high] in which this element has theirs' bits too; false, and nothing changed, when there is none.
 */
static bool narrow(const element *e, double more, int steps, double *low, double *high) {
  double from = *low / (1 + more), to = *high / (1 - more), least = *low, most = *high;
  bool below = value(e, e->most, from)<e->target, above = value(e, e->least, to)> e->target;
  if (value(e, e->least, from) > e->target || value(e, e->most, to) < e->target) return false;
  if (below) {
    from = edge(e, from, to, false, steps);
    if (!holds(e, from)) return false;
    least = from * (1 - more);
  }
  if (above) {
    to = edge(e, from, to, true, steps);
    if (!holds(e, to)) return false;
    most = to * (1 + more);
  }
  if (least > most) return false;
  *low = least > *low ? least : *low, *high = most < *high ? most : *high;
  return true;
}

/* The interval that all elements share, narrowed one by one: most of them contain what is left and cost two values.
 * covered < usable: there is none. */
static rn_fit fit_all(const row_elements *r) {
  rn_fit fit = {1, 0, 0, 0};
  double factor, more;
  element e;
  int steps = r->d->digits >= 23 ? 9 : 31 - r->d->digits;
  for (int k = 0; k < fit_count(r->width, RN_FIT_COLS); k++) {
    if (!fit_element(r, fit_column(r->first, r->width, k), &e, &factor, &more)) continue;
    fit.usable++;
    if (fit.covered == 0) {
      if (factor < 0 || !element_interval(&e, factor, &fit.low, &fit.high)) return fit;
      fit.low *= 1 - more, fit.high *= 1 + more;
      fit.covered++;
      continue;
    }
    if (!narrow(&e, more, steps, &fit.low, &fit.high)) return fit;
    fit.covered++;
  }
  return fit;
}

rn_fit rn_fit_row(rn_diff *d, const rn_model *m, int64_t row, int64_t group, const double *u, double slack,
                  double unsure, bool thorough) {
  row_elements r;
  take_row(&r, d, m, row, group, u, slack, unsure);
  rn_fit fit = fit_all(&r);
  return fit.covered == fit.usable ? fit : fit_most(&r, thorough ? RN_FIT_COLS : 40);
}

void rn_fit_within(rn_diff *d, const rn_model *m, int64_t row, int64_t group, const double *u, double slack,
                   double unsure, double *low, double *high) {
  row_elements r;
  double factor, more;
  element e;
  take_row(&r, d, m, row, group, u, slack, unsure);
  for (int64_t c = r.first; c < r.first + r.width; c++)
    if (fit_element(&r, c, &e, &factor, &more)) (void)narrow(&e, more, 24, low, high);
}

double rn_closeness(rn_diff *d, const rn_model *m, int rows, double *spread) {
  double close = 0, total = 0, distance = 0, unknown = 0, columns = 0;
  d->w_of = NULL;
  for (int i = 0; i < rows && i < d->samples; i++) {
    int64_t row = d->sample[i], width = d->cols / m->groups;
    if (row >= m->rows_written) continue;
    if (i == 2 && close < 0.25 * total) break; /* nothing will come of it */
    double unsure = rn_model_row(d, m, row, d->u);
    rn_model_weights(d, m, row);
    for (int64_t g = 0; g < m->groups; g++) {
      double factor[RN_FIT_COLS], away[RN_FIT_COLS], sorted[RN_FIT_COLS];
      int count = 0;
      for (int k = 0; k < (width < RN_FIT_COLS ? (int)width : RN_FIT_COLS); k++) {
        int64_t c = fit_column(g * width, width, k);
        if (c >= m->cols_written) continue;
        columns++, unknown += !d->known[c] || isnan(d->u[c]);
        double t = rn_diff_theirs(d, row, c), after = after_weight(d, m, row, c), f;
        if (after == 0 || !telling(d, c, d->u[c], t / after, &f)) {
          /* Zero where the model has none, or the other way round, speaks against it. */
          if (d->known[c] && after != 0 && isfinite(t) && (t == 0) != (d->u[c] * d->w[c] == 0) &&
              fabs(d->u[c] * d->w[c] * after) > 0x1p-20)
            total++;
          continue;
        }
        away[count] = d->close + unsure / fabs(d->u[c]);
        factor[count] = sorted[count] = f;
        count++;
      }
      if (!count) continue;
      qsort(sorted, (size_t)count, sizeof *sorted, ascending);
      double middle = sorted[count / 2];
      for (int k = 0; k < count; k++) {
        double off = middle > 0 ? fabs(factor[k] / middle - 1) : INFINITY;
        if (off <= away[k]) close++;
        distance += off <= away[k] ? off : away[k];
        total++;
      }
    }
  }
  /* What says something of all columns goes before what leaves some out. */
  *spread = total > 0 ? distance / total + 0.5 * d->close * unknown / columns : INFINITY;
  return total > 0 ? close / total : 0;
}
