/* diff_search.c - which model explains theirs.
 *
 * The parts of a model are settled one after the other, each judged with the later ones left free:
 *
 *   1. inputs and weights   coarsely: is theirs ours times one factor per row, as far as any rounding could matter?
 *   2. roundings            to the bit, with the rstd of each row free (diff_fit.c)
 *   3. the statistic        does the model's rstd lie in the intervals that the fits left?
 *   4. coverage             are the rows or columns that are wrong the last ones?
 *   5. all rows             to the bit (diff_confirm.c)
 *
 * First with no mistake, then with one, then with two; mistakes of different parts do not hide each other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The share of elements that have to be ours times a factor; the last rows may hold something else. */
#define CLOSE_ENOUGH 0.45
/* What one more mistake has to be worth, as a share of the elements. */
#define FAULT_COST 1e-3

enum { ATTEMPTS = 6, COARSE_ROWS = 6, FINE_ROWS = 8, KEPT_MOST = 24, FOUND_MOST = 6, NEAREST_MOST = 3 };

/* ---- the statistic ---- */

typedef struct off {
  double most, mean; /* distance from the intervals in units, over the sample rows; mean: root of the mean of squares */
  int rows, telling; /* telling: with an element that tells a factor */
} off;

/* A row without an element that tells a factor: zeros, NaN, infinities. Its bits have to be those of the model. */
static bool silent_row_fits(rn_diff *d, const rn_model *m, int64_t row, int64_t g, double rstd) {
  int64_t width = d->cols / m->groups, step = width / 61 + 1;
  bool weighted = rn_model_weights(d, m, row);
  for (int64_t c = g * width; c < (g + 1) * width && c < m->cols_written; c += step)
    if (d->known[c] && !rn_same(rn_diff_theirs(d, row, c), rn_model_value(d, m, row, c, d->u[c], rstd, weighted)))
      return false;
  return true;
}

static off off_statistic(rn_diff *d, const rn_model *m, double give_up) {
  off o = {0, 0, 0, 0};
  double unit = rn_unit(d);
  int wrong = 0;
  d->w_of = NULL;
  for (int i = 0; i < d->samples; i++) {
    if (d->sample[i] >= m->rows_written || d->stale[i]) continue;
    memcpy(d->u, d->cache + i * d->cols, sizeof *d->u * (size_t)d->cols);
    for (int64_t g = 0; g < m->groups; g++) {
      const rn_fit *f = &d->target[i * d->target_groups + g];
      double r = rn_model_rstd(d, m, d->sample[i], g, d->u), away = 0;
      for (int k = -1; k <= 1 && m->stat_rounds && f->usable && (r < f->low || r > f->high); k += 2) {
        rn_model other = *m;
        other.nudge = k * RN_NUDGE;
        double near = rn_model_rstd(d, &other, d->sample[i], g, d->u);
        if (near >= f->low && near <= f->high) r = near;
      }
      if (isnan(r) && (m->overrun || m->row_step != d->cols || m->row_base)) continue;
      if (f->usable == 0)
        away = silent_row_fits(d, m, d->sample[i], g, r) ? 0 : INFINITY;
      else if (!(r > 0) || !isfinite(r))
        away = INFINITY;
      else if (r < f->low)
        away = (f->low / r - 1) / unit;
      else if (r > f->high)
        away = (1 - f->high / r) / unit;
      o.most = fmax(o.most, away);
      o.mean += away * away;
      o.rows++, o.telling += f->usable > 0;
      if (away > give_up && ++wrong > 1) {
        o.most = o.mean = INFINITY;
        return o;
      }
    }
  }
  o.mean = o.rows ? sqrt(o.mean / o.rows) : 0;
  return o;
}

/* The fits of all sample rows under this model, and the sums of squares up to each column. */
static bool take_targets(rn_diff *d, const rn_model *m) {
  if (m->groups > d->target_groups_most) return false;
  d->target_groups = m->groups;
  d->w_of = NULL;
  int stale = 0, seen = 0;
  for (int i = 0; i < d->samples; i++) {
    int64_t row = d->sample[i];
    double unsure = rn_model_row(d, m, row, d->u);
    memcpy(d->cache + i * d->cols, d->u, sizeof *d->u * (size_t)d->cols);
    d->stale[i] = row >= m->rows_written;
    for (int64_t g = 0; g < m->groups; g++) {
      rn_fit f = rn_fit_row(d, m, row, g, d->u, d->fit_slack, unsure, true);
      d->target[i * m->groups + g] = f;
      if (f.usable && 2 * f.covered < f.usable) d->stale[i] = true;
    }
    seen++, stale += d->stale[i];
    const double *u = d->u;
    if (m->stat_source != m->source || m->stat_sum_dtype != m->sum_dtype) {
      rn_model other = *m;
      other.source = m->stat_source, other.sum_dtype = m->stat_sum_dtype;
      rn_model_row(d, &other, row, d->stat_u);
      u = d->stat_u;
    }
    double *sum = d->squares + i * (d->cols + 1);
    sum[0] = 0;
    for (int64_t c = 0; c < d->cols; c++) sum[c + 1] = sum[c] + u[c] * u[c];
  }
  return 2 * stale < seen;
}

typedef struct ranked {
  rn_model model;
  off o;
} ranked;

/* Half precision has many ways, so what is none of them goes before those. */
static bool better(const ranked *a, const ranked *b) {
  if ((a->model.stat_dtype != 0) != (b->model.stat_dtype != 0)) return a->model.stat_dtype == 0;
  return a->o.mean < 0.7 * b->o.mean - 0.5;
}

/* Those proposals that fit, into `found`, the best first. */
static int fitting(rn_diff *d, const rn_proposals *list, int from, const off *base, ranked *found, int most) {
  int count = 0;
  for (int i = from; i < list->count; i++) {
    const rn_model *m = &list->model[i];
    double bound = rn_model_rstd_bound(d, m) / rn_unit(d) + 1;
    off o = off_statistic(d, m, bound);
    if (!(o.most <= bound) || o.rows == 0) continue;
    /* Half precision has so many ways that one of them suits any row or two. */
    if (m->stat_dtype && o.telling > 0 && o.telling < 3 * m->groups) continue;
    /* A mistake has to explain much more than no mistake did. */
    if (m->faults && base->most < INFINITY && !(o.mean < 0.3 * base->mean)) continue;
    ranked here = {*m, o};
    int at = count < most ? count : most;
    while (at > 0 && better(&here, &found[at - 1])) at--;
    if (at == most) continue;
    if (count < most) count++;
    for (int k = count - 1; k > at; k--) found[k] = found[k - 1];
    found[at] = here;
  }
  return count;
}

/* An rstd that no exact computation gives: an estimate of the hardware, or a sum in half precision of unknown order. */
static bool loose(rn_diff *d, const rn_model *m, ranked *found) {
  static const struct {
    const char *entry;
    rn_root root;
    int dtype;
  } kinds[] = {{"approximate-rsqrt", RN_ROOT_ESTIMATE, 0},
               {"narrow-statistics", RN_ROOT_NARROW, RMSNORM_DTYPE_F16},
               {"narrow-statistics", RN_ROOT_NARROW, RMSNORM_DTYPE_BF16}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    rn_model t = *m;
    if (m->faults == RN_FAULTS_MOST) return false;
    bool half = d->x_type == RMSNORM_DTYPE_F16 || d->x_type == RMSNORM_DTYPE_BF16;
    if (kinds[i].dtype && (!half || d->x_type != kinds[i].dtype)) continue;
    t.fault[t.faults++] = rn_entry_named(kinds[i].entry);
    t.root = kinds[i].root, t.stat_dtype = kinds[i].dtype;
    double bound = rn_model_rstd_bound(d, &t) / rn_unit(d);
    off o = off_statistic(d, &t, bound);
    if (!(o.most <= bound) || o.rows < 4 * m->groups) continue;
    t.note[t.faults - 1][0] = 0;
    rn_model_parameter(&t, "error", o.most * rn_unit(d));
    if (kinds[i].dtype) rn_model_note(&t, "%s, in an order that is not known", rmsnorm_dtype_name(kinds[i].dtype));
    found->model = t, found->o = o;
    return true;
  }
  return false;
}

bool rn_search_statistic(rn_diff *d, const rn_model *m, rn_proposals *out) {
  ranked found[FOUND_MOST];
  rn_proposals list;
  int count = 0;
  out->count = 0;
  if (d->taken != m) {
    d->taken = NULL;
    if (!take_targets(d, m)) return false;
    d->taken = m;
  }
  if (!rn_proposals_make(&list)) return false;
  double bound = rn_model_rstd_bound(d, m) / rn_unit(d) + 1;
  off base = off_statistic(d, m, INFINITY);
  if (base.rows && base.most <= 3) { /* nothing to explain */
    found[count].model = *m, found[count++].o = base;
  } else {
    rn_propose_axis(d, RN_AXIS_BENIGN, m, &list);
    off need = {INFINITY, INFINITY, 0, 0};
    ranked order[1];
    bool ordered =
        list.count > 0 && fitting(d, &list, 0, &need, order, 1) && order[0].o.most <= 1.5 && base.most <= 40 * bound;
    list.count = 0;
    rn_propose_axis(d, RN_AXIS_STATISTIC, m, &list);
    if (ordered) found[count++] = order[0];
    /* Of a few rounded rstd every one is somebody's. */
    bool few = m->faults && m->stages.rstd != m->stages.real && base.rows < 3 * m->groups;
    if (!ordered && !d->plain && !few) count = fitting(d, &list, 0, &base, found, FOUND_MOST);
    if ((!count || ordered) && base.most <= bound && base.rows) found[count].model = *m, found[count++].o = base;
    /* Two mistakes that are free to choose their numbers explain any two rows. */
    if (!count && d->pairs && !d->plain && m->faults == 0 && base.rows >= 3 * m->groups) {
      rn_proposals second;
      int singles = list.count;
      if (rn_proposals_make(&second)) {
        for (int i = 0; i < singles && !count; i++) {
          second.count = 0;
          rn_propose_axis(d, RN_AXIS_STATISTIC, &list.model[i], &second);
          count = fitting(d, &second, 0, &base, found, FOUND_MOST);
        }
        rn_proposals_free(&second);
      }
    }
    if (!count && d->loose && !d->plain && loose(d, m, &found[0])) count = 1;
  }
  for (int i = 0; i < count; i++) out->model[out->count] = found[i].model, out->score[out->count++] = found[i].o.mean;
  rn_proposals_free(&list);
  return count > 0;
}

/* ---- roundings ---- */

/* 0: it does not fit; 1: most rows agree on one rstd each, and the others are something else altogether. */
static bool fits_to_the_bit(rn_diff *d, const rn_model *m, double slack) {
  int good = 0, stale = 0;
  d->w_of = NULL;
  for (int i = 0, seen = 0; i < d->samples && seen < FINE_ROWS; i++) {
    int64_t row = d->sample[i];
    if (row >= m->rows_written) continue;
    seen++;
    double unsure = rn_model_row(d, m, row, d->u);
    for (int64_t g = 0; g < m->groups; g++) {
      rn_fit f = rn_fit_row(d, m, row, g, d->u, slack, unsure, false);
      if (f.usable == 0) continue;
      if (f.covered == f.usable)
        good++;
      else if (f.covered < 0.3 * f.usable)
        stale++;
      else
        return false;
      if (stale > 3) return false;
    }
  }
  return good > stale;
}

/* ---- the whole of a model ---- */

typedef struct search {
  rn_diff *d;
  rn_proposals roundings, statistics;
  rn_diff_result *result;
  rn_model nearest[NEAREST_MOST]; /* the best first, each of other mistakes than those before it */
  double nearest_outside[NEAREST_MOST];
  int nearest_count;
  rn_model answer[RN_DIFF_EXPLANATIONS]; /* likewise */
  rn_confirmed confirmed[RN_DIFF_EXPLANATIONS];
  int found;
  int budget; /* confirmations of all rows that failed */
} search;

static bool same_faults(const rn_model *a, const rn_model *b) {
  return a->faults == b->faults && memcmp(a->fault, b->fault, sizeof *a->fault * (size_t)a->faults) == 0;
}

static void keep_nearest(search *s, const rn_model *m, const rn_confirmed *c) {
  double outside = c->evidence.elements ? (double)c->evidence.outside / (double)c->evidence.elements : 1;
  outside += FAULT_COST * m->faults;
  int at = 0;
  while (at < s->nearest_count && !same_faults(&s->nearest[at], m)) at++;
  if (at < s->nearest_count && outside >= s->nearest_outside[at]) return;
  if (at == NEAREST_MOST && outside >= s->nearest_outside[--at]) return;
  if (at == s->nearest_count) s->nearest_count++;
  for (; at > 0 && outside < s->nearest_outside[at - 1]; at--)
    s->nearest[at] = s->nearest[at - 1], s->nearest_outside[at] = s->nearest_outside[at - 1];
  s->nearest[at] = *m, s->nearest_outside[at] = outside;
}

/* The last rows are wrong and no others: they were not written. */
static bool only_last_rows(const rn_diff *d, const rn_model *m, const rn_confirmed *c) {
  return m->faults < RN_FAULTS_MOST && c->first_wrong > 0 && c->rows_wrong > 0 && c->rows_gone == c->rows_wrong &&
         c->last_right < c->first_wrong && 2 * c->first_wrong >= d->rows;
}

static bool accept(search *s, rn_model *m) {
  rn_diff *d = s->d;
  rn_confirmed c;
  if (!rn_confirm(d, m, RN_CONFIRM_SAMPLE, &c)) return false;
  bool last = only_last_rows(d, m, &c);
  /* Rows that lie outside of x say nothing for a stride. */
  if (m->row_step != d->cols && c.evidence.unknown > c.evidence.elements + c.evidence.elements / 8) return false;
  /* Nor do a few columns for a weight whose other elements would lie outside of it. */
  int64_t rows = d->rows < d->samples ? d->rows : d->samples;
  if (c.evidence.unknown > 0 && (c.evidence.elements < 24 || c.evidence.elements < 8 * rows)) return false;
  if (c.match == RN_DIFF_PARTLY && !last) {
    keep_nearest(s, m, &c);
    return false;
  }
  if (s->budget-- <= 0 || !rn_confirm(d, m, RN_CONFIRM_UNTIL_WRONG, &c)) return false;
  if (only_last_rows(d, m, &c)) {
    m->fault[m->faults++] = rn_entry_named("rows-unwritten");
    m->rows_written = c.first_wrong;
    rn_model_parameter(m, "row", (double)c.first_wrong);
    if (!rn_confirm(d, m, RN_CONFIRM_ALL, &c)) return false;
  }
  if (c.match == RN_DIFF_PARTLY) {
    keep_nearest(s, m, &c);
    return false;
  }
  s->answer[0] = *m, s->confirmed[0] = c, s->found = 1;
  return true;
}

/* What explains theirs as well, with as many mistakes: all of it was weighed for the answer already. */
static void accept_others(search *s, const rn_proposals *list, int from) {
  for (int i = from; i < list->count && s->found < RN_DIFF_EXPLANATIONS; i++) {
    const rn_model *m = &list->model[i];
    rn_confirmed c;
    bool known = m->faults != s->answer[0].faults;
    for (int k = 0; k < s->found; k++) known = known || same_faults(m, &s->answer[k]);
    if (known || !rn_confirm(s->d, m, RN_CONFIRM_SAMPLE, &c) || c.match == RN_DIFF_PARTLY) continue;
    if (!rn_confirm(s->d, m, RN_CONFIRM_UNTIL_WRONG, &c) || c.match == RN_DIFF_PARTLY) continue;
    s->answer[s->found] = *m, s->confirmed[s->found++] = c;
  }
}

/* Settle roundings, statistic and coverage of a model with these inputs and weights, at most `faults` mistakes. */
static bool settle(search *s, const rn_model *from, int faults) {
  rn_diff *d = s->d;
  /* Elements of a wider type than the roundings tell the order of a product; others allow for any. */
  int attempts[2] = {0, 0};
  double slacks[] = {d->y_type == d->real ? 0 : 3 * rn_unit(d), 3 * rn_unit(d)};
  for (int k = 0; k < (slacks[0] == slacks[1] ? 1 : 2); k++) {
    int fitting_count = 0;
    rn_model fits[ATTEMPTS];
    rn_roundings(d, from, &s->roundings);
    for (int i = 0; i < s->roundings.count; i++) {
      const rn_model *m = &s->roundings.model[i];
      if (m->faults > faults || fitting_count == ATTEMPTS || !fits_to_the_bit(d, m, slacks[k])) continue;
      /* Roundings that the data can not tell apart leave the same rstd: a few attempts at explaining it are enough. */
      bool wide = m->stages.rstd == m->stages.real;
      if (attempts[wide]++ < 3) fits[fitting_count++] = *m;
    }
    d->fit_slack = slacks[k];
    d->taken = NULL;
    /* A rounding that needs no mistake in the statistic goes before one that does. */
    for (int pass = 0; pass < 2; pass++)
      for (int i = 0; i < fitting_count; i++) {
        d->plain = pass == 0;
        if (!rn_search_statistic(d, &fits[i], &s->statistics)) {
          rn_confirmed c;
          if (pass && rn_confirm(d, &fits[i], RN_CONFIRM_SAMPLE, &c)) keep_nearest(s, &fits[i], &c);
          continue;
        }
        for (int b = 0; b < s->statistics.count; b++) {
          rn_model t = s->statistics.model[b];
          if (t.faults <= faults && accept(s, &t)) {
            if (t.faults) accept_others(s, &s->statistics, b + 1);
            d->taken = NULL;
            return true;
          }
        }
      }
    d->taken = NULL;
  }
  return false;
}

/* ---- inputs and weights ---- */

typedef struct kept {
  rn_model model;
  double close, spread;
} kept;

static int rank(kept *k, int count, const rn_model *m, double close, double spread) {
  int at = count < KEPT_MOST ? count : KEPT_MOST;
  while (at > 0 && (close > k[at - 1].close + 0.02 || (close > k[at - 1].close - 0.02 && spread < k[at - 1].spread)))
    at--;
  if (at == KEPT_MOST) return count;
  if (count < KEPT_MOST) count++;
  for (int i = count - 1; i > at; i--) k[i] = k[i - 1];
  k[at].model = *m, k[at].close = close, k[at].spread = spread;
  return count;
}

/* The same two mistakes, the other one first. */
static bool reversed(const kept *k, int count, const rn_model *m, double close, double spread) {
  for (int i = 0; i < count && m->faults >= 2; i++) {
    const rn_model *other = &k[i].model;
    int last = m->faults - 1;
    if (k[i].close == close && k[i].spread == spread && other->faults == m->faults &&
        other->fault[last] == m->fault[last - 1] && other->fault[last - 1] == m->fault[last] &&
        strcmp(other->note[last], m->note[last - 1]) == 0 && strcmp(other->note[last - 1], m->note[last]) == 0)
      return true;
  }
  return false;
}

static int keep_close(rn_diff *d, const rn_proposals *list, kept *k, int count) {
  for (int i = 0; i < list->count; i++) {
    double spread, close = rn_closeness(d, &list->model[i], COARSE_ROWS, &spread);
    if (close >= CLOSE_ENOUGH && !reversed(k, count, &list->model[i], close, spread))
      count = rank(k, count, &list->model[i], close, spread);
  }
  return count;
}

static void propose_shape(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  rn_propose_axis(d, RN_AXIS_INPUT, from, list);
  rn_propose_axis(d, RN_AXIS_WEIGHT, from, list);
}

/* Bases that differ in more than roundings. */
static int shapes(const rn_diff *d, const rn_model **shape) {
  int count = 0;
  for (int b = 0; b < d->bases; b++) {
    bool seen = false;
    for (int i = 0; i < count; i++)
      seen = seen || (shape[i]->offset == d->base[b].offset && shape[i]->gate == d->base[b].gate &&
                      shape[i]->gate_place == d->base[b].gate_place);
    if (!seen) shape[count++] = &d->base[b];
  }
  return count;
}

/* The shapes themselves, nothing wrong with their inputs and weights. */
static void settle_shapes(search *s, const rn_model **shape, int count, int faults) {
  for (int i = 0; i < count && !s->found; i++) {
    double spread, close = rn_closeness(s->d, shape[i], COARSE_ROWS, &spread);
    if (close >= CLOSE_ENOUGH) settle(s, shape[i], faults);
  }
}

static void settle_kept(search *s, const kept *k, int count, int faults, double progress) {
  for (int i = 0; i < count && !s->found; i++) {
    settle(s, &k[i].model, faults);
    rn_progress(s->d, progress * (i + 1) / count);
  }
}

/* A single mistake, or none, accounts for all but one element in ten thousand: what is left is no second one. */
static bool nearly(const search *s) {
  return s->nearest_count > 0 && s->nearest_outside[0] - FAULT_COST * s->nearest[0].faults <= 1e-4;
}

static void look(search *s) {
  rn_diff *d = s->d;
  const rn_model *shape[RN_BASES_MOST];
  rn_proposals first, second;
  kept *one = malloc(sizeof *one * KEPT_MOST), *two = malloc(sizeof *two * KEPT_MOST);
  int ones = 0, twos = 0, shape_count = shapes(d, shape), already = d->base[0].faults;
  bool pairs = d->options->pairs, good = one && two && rn_proposals_make(&first);
  if (good && !rn_proposals_make(&second)) rn_proposals_free(&first), good = false;
  if (!good) {
    free(one), free(two);
    return;
  }
  d->pairs = d->loose = false;
  /* Nothing wrong; one mistake in roundings or statistic; one in inputs or weights. */
  settle_shapes(s, shape, shape_count, already);
  settle_shapes(s, shape, shape_count, already + 1);
  for (int i = 0; i < shape_count && !s->found; i++) {
    first.count = 0;
    propose_shape(d, shape[i], &first);
    ones = keep_close(d, &first, one, ones);
  }
  settle_kept(s, one, ones, already + 1, 0.1);
  /* Two: both in roundings and statistic, one there, none there. */
  pairs = pairs && !nearly(s);
  d->pairs = pairs;
  if (pairs) settle_shapes(s, shape, shape_count, already + 2);
  if (pairs) settle_kept(s, one, ones, already + 2, 0.2);
  for (int i = 0; i < shape_count && !s->found && pairs; i++) {
    first.count = 0;
    propose_shape(d, shape[i], &first);
    for (int a = 0; a < first.count; a++) {
      second.count = 0;
      propose_shape(d, &first.model[a], &second);
      twos = keep_close(d, &second, two, twos);
    }
  }
  settle_kept(s, two, twos, already + 2, 0.3);
  /* What is only known to within a wide bound, or not at all. */
  d->loose = true, d->pairs = false;
  settle_shapes(s, shape, shape_count, already + 1);
  if (pairs) settle_kept(s, one, ones, already + 2, 0.4);
  for (int i = 0; i < shape_count && !s->found; i++) {
    first.count = 0;
    rn_propose_axis(d, RN_AXIS_LAST, shape[i], &first);
    for (int a = 0; a < first.count && !s->found; a++) settle(s, &first.model[a], already + (pairs ? 2 : 1));
  }
  rn_proposals_free(&first), rn_proposals_free(&second);
  free(one), free(two);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Theirs over u, with the row's own factor taken out: what is left of a column is the same in all rows, whatever its
 * weight, unless the column holds something else. Rows in `seen`, NaN where an element says nothing. */
static int column_factors(rn_diff *d, const rn_model *m, double *seen, int most) {
  double *row = malloc(sizeof *row * (size_t)d->cols);
  int rows = 0;
  for (int i = 0; row && i < d->samples && rows < most; i++) {
    double *to = seen + rows * d->cols;
    int64_t count = 0;
    rn_model_row(d, m, d->sample[i], d->u);
    for (int64_t c = 0; c < d->cols; c++) {
      to[c] = rn_diff_theirs(d, d->sample[i], c) / d->u[c];
      if (!isfinite(to[c])) to[c] = NAN;
      if (!isnan(to[c])) row[count++] = fabs(to[c]);
    }
    if (count < d->cols / 2 + 1) continue;
    qsort(row, (size_t)count, sizeof *row, ascending);
    if (!(row[count / 2] > 0)) continue;
    for (int64_t c = 0; c < d->cols; c++) to[c] /= row[count / 2];
    rows++;
  }
  free(row);
  return rows;
}

/* Columns from some number on in which the rows do not agree, when they do before. */
static void find_stale_columns(rn_diff *d) {
  enum { ROWS = 16 };
  double *seen = malloc(sizeof *seen * (size_t)d->cols * ROWS);
  bool *wrong = calloc((size_t)d->cols, sizeof *wrong);
  int rows = seen && wrong ? column_factors(d, &d->base[0], seen, ROWS) : 0;
  int64_t from = d->cols, before = 0;
  for (int64_t c = 0; rows >= 5 && c < d->cols; c++) {
    double column[ROWS] = {0};
    int count = 0, apart = 0;
    for (int r = 0; r < rows; r++)
      if (!isnan(seen[r * d->cols + c])) column[count++] = seen[r * d->cols + c];
    qsort(column, (size_t)count, sizeof *column, ascending);
    for (int r = 0; r < count; r++) apart += !(fabs(column[r] - column[count / 2]) <= 0.15 * fabs(column[count / 2]));
    wrong[c] = 2 * apart > count;
  }
  while (rows >= 5 && from > 0 && wrong[from - 1]) from--;
  for (int64_t c = 0; rows >= 5 && c < from; c++) before += wrong[c];
  if (rows >= 5 && from < d->cols && 4 * from >= d->cols && before <= from / 50)
    for (int b = 0; b < d->bases; b++) {
      rn_model *t = &d->base[b];
      if (t->faults == RN_FAULTS_MOST) continue;
      t->fault[t->faults++] = rn_entry_named("columns-unwritten");
      t->cols_written = from;
      rn_model_parameter(t, "column", (double)from);
    }
  free(seen), free(wrong);
}

void rn_search_forward(rn_diff *d, rn_diff_result *result) {
  search s = {0};
  s.d = d, s.result = result, s.budget = 8;
  if (!rn_proposals_make(&s.roundings) || !rn_proposals_make(&s.statistics)) {
    rn_proposals_free(&s.roundings);
    return;
  }
  if (d->base[0].cols_written == d->cols && d->base[0].groups == 1 && d->rows >= 4) find_stale_columns(d);
  look(&s);
  for (int i = 0; i < s.found; i++)
    rn_explain_model(d, &s.answer[i], &s.confirmed[i], &result->explanation[result->count++]);
  for (int i = 0; i < s.nearest_count && !s.found; i++) {
    rn_confirmed c;
    if (rn_confirm(d, &s.nearest[i], RN_CONFIRM_ALL, &c))
      rn_explain_model(d, &s.nearest[i], &c, &result->explanation[result->count++]);
  }
  rn_proposals_free(&s.roundings), rn_proposals_free(&s.statistics);
}
