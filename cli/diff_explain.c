/* diff_explain.c - a model in words.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

static void append(char *text, size_t room, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 3, 4)))
#endif
    ;
static void append(char *text, size_t room, const char *format, ...) {
  size_t used = strlen(text);
  va_list list;
  va_start(list, format);
  if (used < room) vsnprintf(text + used, room - used, format, list);
  va_end(list);
}

/* A sentence of the table with its parameters put in. */
static void fill(const rn_model *m, int i, char *text, size_t room) {
  for (const char *at = m->fault[i]->sentence; *at; at++) {
    const char *end = *at == '{' ? strchr(at, '}') : NULL;
    if (!end) {
      append(text, room, "%c", *at);
      continue;
    }
    size_t length = (size_t)(end - at - 1);
    if (length == 4 && strncmp(at + 1, "note", 4) == 0) append(text, room, "%s", m->note[i]);
    for (int k = 0; k < m->parameter_count; k++)
      if (strlen(m->parameters[k].name) == length && strncmp(m->parameters[k].name, at + 1, length) == 0) {
        double v = m->parameters[k].value;
        append(text, room, fabs(v) < 1e15 && v == floor(v) && fabs(v) >= 1 ? "%.0f" : "%.7g", v);
        break;
      }
    at = end;
  }
}

static bool same_numerics(const rn_model *a, const rn_model *b) {
  return a->sum_dtype == b->sum_dtype && a->stages.rstd == b->stages.rstd && a->stages.xhat == b->stages.xhat &&
         a->stages.normed == b->stages.normed && a->offset == b->offset && a->gate == b->gate &&
         (!a->gate || a->gate_place == b->gate_place);
}

static const char *preset_of(const rn_diff *d, const rn_model *m) {
  static const char *const first[] = {"fp32", "torch", "llama", "gemma"}; /* the best known ones first */
  rmsnorm_numerics n;
  for (int i = -4; i < 0 || rmsnorm_preset_name(i); i++) {
    const char *name = i < 0 ? first[4 + i] : rmsnorm_preset_name(i);
    if (i < 0 && d->in->preset) name = d->in->preset;
    if (rmsnorm_preset(name, &n) != RMSNORM_OK) continue;
    rn_model base = rn_model_from(d, &n);
    if (base.stages.normed == base.out_dtype && !n.gate) base.stages.normed = base.stages.real;
    rn_model seen = *m;
    if (seen.stages.normed == seen.out_dtype && !m->gate) seen.stages.normed = seen.stages.real;
    if (seen.stages.real == RMSNORM_DTYPE_F64 && d->real == RMSNORM_DTYPE_F32) continue;
    if (!d->in->weight.data) base.offset = seen.offset;
    if (!d->in->residual.data) base.sum_dtype = seen.sum_dtype;
    if (same_numerics(&base, &seen)) return name;
  }
  return "";
}

static void rounding_words(const rn_diff *d, const rn_model *m, char *text, size_t room) {
  *text = 0;
  if (m->stages.real == RMSNORM_DTYPE_F64) append(text, room, "float64, ");
  if (d->in->residual.data && m->sum_dtype != m->stages.real)
    append(text, room, "sum to %s, ", rmsnorm_dtype_name(m->sum_dtype));
  if (m->stages.rstd != m->stages.real) append(text, room, "rstd to %s, ", rmsnorm_dtype_name(m->stages.rstd));
  if (m->stages.xhat != m->stages.real) append(text, room, "x-hat to %s, ", rmsnorm_dtype_name(m->stages.xhat));
  if (m->stages.normed != m->stages.real && m->stages.normed != m->out_dtype)
    append(text, room, "weighted to %s, ", rmsnorm_dtype_name(m->stages.normed));
  append(text, room, "y to %s", rmsnorm_dtype_name(m->out_dtype));
}

/* The faults that a verdict counts: eps is none when nobody said which one is right. */
static bool counts(const rn_diff *d, const rn_entry *e) {
  return e && !(d->in->eps < 0 && (strcmp(e->text.name, "eps") == 0 || strcmp(e->text.name, "eps-default") == 0));
}

/* Which rows are zero or not finite in theirs alone: "rows 3, 17, 90 overflowed". */
static void overflowed(const rn_diff *d, const rn_model *m, char *text, size_t room) {
  int count = 0;
  for (int i = 0; i < m->faults; i++)
    if (strcmp(m->fault[i]->text.name, "narrow-statistics") != 0 && strcmp(m->fault[i]->text.name, "float32-overflow"))
      continue;
    else
      for (int64_t row = 0; row < d->rows && count < 9; row++) {
        bool silent = true, zero = true;
        for (int64_t c = 0; c < d->cols && silent; c++) {
          double t = rn_diff_theirs(d, row, c), x = rn_ref_load(d->in->x.dtype, d->in->x.data, row * d->cols + c);
          silent = t == 0 || !isfinite(t);
          zero = zero && (x == 0 || !isfinite(x));
        }
        if (!silent || zero) continue;
        count++;
        if (count == 1) append(text, room, ": row(s) ");
        append(text, room, count == 9 ? ", ..." : count > 1 ? ", %lld" : "%lld", (long long)row);
      }
  if (count) append(text, room, " overflowed");
}

void rn_explain_model(const rn_diff *d, const rn_model *m, const rn_confirmed *c, rn_diff_explanation *to) {
  size_t room = sizeof to->sentence;
  memset(to, 0, sizeof *to);
  to->wider = m->stages.real == RMSNORM_DTYPE_F64 && d->x_type != RMSNORM_DTYPE_F64;
  to->match = c->match, to->evidence = c->evidence, to->units = c->units;
  for (int i = 0; i < m->faults; i++)
    if (counts(d, m->fault[i]) && to->count < RN_DIFF_HYPOTHESES) to->hypothesis[to->count++] = &m->fault[i]->text;
  snprintf(to->preset, sizeof to->preset, "%s", preset_of(d, m));
  rounding_words(d, m, to->roundings, sizeof to->roundings);
  memcpy(to->parameters, m->parameters, sizeof to->parameters);
  to->parameter_count = m->parameter_count;
  if (d->in->eps < 0 && to->parameter_count < RN_DIFF_PARAMETERS) {
    rn_diff_parameter *p = &to->parameters[to->parameter_count++];
    snprintf(p->name, sizeof p->name, "eps_found");
    p->value = m->eps;
  }
  to->bound_ulp = rn_model_rstd_bound(d, m) / (d->y_type == RMSNORM_DTYPE_F32 ? rn_unit(d) : ldexp(1, -d->digits));
  if (to->bound_ulp < 1) to->bound_ulp = 1;
  append(to->sentence, room, "%s ",
         c->match == RN_DIFF_ALL_BITS ? "bits equal"
         : c->match == RN_DIFF_WITHIN ? "equals"
                                      : "nearest:");
  append(to->sentence, room, *to->preset ? "preset %s" : "a norm with %s", *to->preset ? to->preset : to->roundings);
  if (c->match == RN_DIFF_WITHIN) append(to->sentence, room, " within %.3g ulp", fmax(1, ceil(c->evidence.max_ulp)));
  if (d->in->eps < 0) append(to->sentence, room, ", eps %.7g", m->eps);
  for (int i = 0, said = 0; i < m->faults; i++) {
    if (!counts(d, m->fault[i])) continue;
    append(to->sentence, room, said++ ? "; and " : " except: ");
    fill(m, i, to->sentence, room);
    if (to->count < 2 || said == 1)
      snprintf(to->fix, sizeof to->fix, "%s", m->fault[i]->text.fix);
    else
      append(to->fix, sizeof to->fix, "; %s", m->fault[i]->text.fix);
  }
  overflowed(d, m, to->sentence, room);
  if (c->match == RN_DIFF_ALL_BITS && !to->count) return;
  /* Whatever is left is of the arithmetic: say of which kind. */
  if (c->match == RN_DIFF_WITHIN) {
    if (m->stages.order != RN_ORDER_XHAT && m->order_note)
      append(to->sentence, room, " (multiplied as %s)", m->order_note);
    else if (c->units > 1.5)
      append(to->sentence, room, " (squares added in another order: rstd up to %.3g units of %g off, %.3g allowed)",
             c->units, rn_unit(d), rn_model_rstd_bound(d, m) / rn_unit(d));
    else
      append(to->sentence, room, " (float32 multiplied in another order)");
  }
}
