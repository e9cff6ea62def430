/* diff_rounding.c - every way of rounding that a model can have, those that are no mistake first.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <string.h>

static bool same_rounding(const rn_model *a, const rn_model *b) {
  return a->sum_dtype == b->sum_dtype && a->stages.rstd == b->stages.rstd && a->stages.xhat == b->stages.xhat &&
         a->stages.normed == b->stages.normed && a->stages.order == b->stages.order &&
         a->stages.narrow == b->stages.narrow && a->out_narrow == b->out_narrow && a->stages.real == b->stages.real;
}

/* A rounding right before the same rounding does nothing. */
static int settled(const rn_model *m, int normed) {
  return normed == m->out_dtype && !(m->gate && m->gate_place == RMSNORM_GATE_AFTER) ? m->stages.real : normed;
}

static bool add(rn_proposals *list, const rn_model *m) {
  for (int i = 0; i < list->count; i++)
    if (same_rounding(&list->model[i], m)) return false;
  if (list->count == RN_PROPOSALS_MOST) return false;
  list->model[list->count++] = *m;
  return true;
}

static void words(char *note, size_t bytes, const char *what, int from, int to, int real) {
  if (to == real)
    snprintf(note, bytes, "%s stays in %s, where ours is rounded to %s", what, rmsnorm_dtype_name(real),
             rmsnorm_dtype_name(from));
  else
    snprintf(note, bytes, "%s is rounded to %s, ours %s%s", what, rmsnorm_dtype_name(to),
             from == real ? "is not" : "to ", from == real ? "" : rmsnorm_dtype_name(from));
}

static void fault(rn_model *m, const char *entry, const char *what, int from, int to) {
  char note[160];
  if (from == to) return;
  if (m->faults == RN_FAULTS_MOST) {
    m->faults++; /* one too many: dropped by the caller */
    return;
  }
  if (m->faults > RN_FAULTS_MOST) return;
  words(note, sizeof note, what, from, to, m->stages.real);
  m->fault[m->faults++] = rn_entry_named(entry);
  rn_model_note(m, "%s", note);
}

/* All roundings that differ from those of `from` in one switch or two. */
static void alternatives(const rn_diff *d, const rn_model *from, int changes, rn_proposals *list) {
  int types[4] = {0}, count = 0;
  const int candidates[] = {d->real, d->x_type, d->weight_type, d->residual_type, d->y_type};
  for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
    bool known = candidates[i] == RMSNORM_DTYPE_NONE || (i > 0 && candidates[i] == RMSNORM_DTYPE_F32) ||
                 candidates[i] == RMSNORM_DTYPE_FP8_E4M3 || candidates[i] == RMSNORM_DTYPE_F64;
    if (i == 0) known = false;
    for (int k = 0; k < count; k++) known = known || types[k] == candidates[i];
    if (!known && count < 4) types[count++] = candidates[i];
  }
  for (int s = 0; s < (d->in->residual.data ? count : 1); s++)
    for (int q = 0; q < count; q++)
      for (int h = 0; h < count; h++)
        for (int n = 0; n < count; n++) {
          rn_model m = *from;
          if (d->in->residual.data) m.sum_dtype = types[s];
          if (m.stat_source == m.source && from->stat_sum_dtype == from->sum_dtype) m.stat_sum_dtype = m.sum_dtype;
          m.stages.rstd = types[q], m.stages.xhat = types[h], m.stages.normed = settled(&m, types[n]);
          int changed = (m.sum_dtype != from->sum_dtype) + (m.stages.rstd != from->stages.rstd) +
                        (m.stages.xhat != from->stages.xhat) + (m.stages.normed != from->stages.normed);
          if (changed != changes) continue;
          fault(&m, "round-sum", "the sum x + residual", from->sum_dtype, m.sum_dtype);
          fault(&m, "round-rstd", "rstd", from->stages.rstd, m.stages.rstd);
          fault(&m, "round-xhat", "x-hat", from->stages.xhat, m.stages.xhat);
          bool wide = d->y_type == RMSNORM_DTYPE_F32 && m.stages.normed == d->real && from->stages.normed == d->x_type;
          fault(&m, wide ? "output-type" : "round-normed", wide ? "the output" : "the weighted value",
                from->stages.normed, m.stages.normed);
          if (m.faults <= RN_FAULTS_MOST) add(list, &m);
        }
}

static void other_narrowing(const rn_model *from, rn_proposals *list) {
  static const struct {
    const char *entry;
    double (*narrow)(int dtype, double value);
  } ways[] = {{"truncation", rn_narrow_truncate}, {"ties-away", rn_narrow_away}};
  for (size_t i = 0; i < 2 && from->faults < RN_FAULTS_MOST; i++)
    for (int all = 0; all < 2; all++) {
      rn_model m = *from;
      m.fault[m.faults++] = rn_entry_named(ways[i].entry);
      m.out_narrow = ways[i].narrow;
      if (all) m.stages.narrow = ways[i].narrow;
      if (from->out_narrow == rn_ref_round) add(list, &m);
    }
}

void rn_roundings(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  list->count = 0;
  rn_model m = *from;
  m.stages.normed = settled(&m, m.stages.normed);
  /* What is no mistake: the bases that differ from the one this model grew out of in roundings alone. */
  add(list, &m);
  for (int b = 0; b < d->bases && !d->in->numerics_given; b++) {
    const rn_model *base = &d->base[b];
    if (base->offset != from->origin_offset || base->gate != from->gate || base->gate_place != from->gate_place)
      continue;
    m = *from;
    if (m.sum_dtype == from->stat_sum_dtype) m.stat_sum_dtype = base->sum_dtype;
    m.sum_dtype = base->sum_dtype;
    m.stages = base->stages, m.stages.narrow = from->stages.narrow;
    m.stages.normed = settled(&m, m.stages.normed);
    add(list, &m);
  }
  int plain = list->count;
  /* Float32 in another order, or everything in float64. */
  static const struct {
    rn_product_order order;
    const char *text;
  } orders[] = {{RN_ORDER_FACTOR, "x * (rstd * weight)"},
                {RN_ORDER_WEIGHT, "(x * weight) * rstd"},
                {RN_ORDER_QUOTIENT, "x / rms * weight"}};
  for (int i = 0; i < plain && d->real == RMSNORM_DTYPE_F32; i++)
    for (int o = 0; o < 3; o++) {
      m = list->model[i];
      m.stages.order = orders[o].order;
      m.order_note = orders[o].text;
      if (m.stages.xhat == d->real || m.stages.order == RN_ORDER_QUOTIENT) add(list, &m);
    }
  if (d->real == RMSNORM_DTYPE_F32) {
    m = list->model[0];
    if (m.stages.rstd == m.stages.real && m.stages.xhat == m.stages.real && m.stages.normed == m.stages.real) {
      m.stages.real = m.stages.rstd = m.stages.xhat = m.stages.normed = RMSNORM_DTYPE_F64;
      add(list, &m);
    }
  }
  for (int i = 0; i < plain && d->y_type != RMSNORM_DTYPE_F32; i++) {
    m = list->model[i];
    other_narrowing(&m, list);
  }
  for (int changes = 1; changes <= 2; changes++) {
    m = list->model[0];
    if (d->real == RMSNORM_DTYPE_F32) alternatives(d, &m, changes, list);
  }
}
