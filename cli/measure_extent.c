/* measure_extent.c - which rows, or which columns, hold the errors, and what is the plan behind them; see
 * measure_parts.h.
 *
 * A plan is only named when errors that are scattered by chance would rarely look like it. Errors are scattered when
 * their number of rows is what n errors thrown at random would hit.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "measure_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How likely chance may be to look like what is named. */
#define RARE 1e-4
/* Longest period that is looked for among all whole numbers; beyond, powers of two alone. */
enum { PERIOD_ALL = 512 };
/* A row counts as hit when it has more errors than this share of the worst one's: nothing at first, then a part. */
static const double shares[] = {0, 0.5, 0.25};

typedef struct marks {
  const int64_t *errors;
  int64_t above; /* hit: more errors than this */
  int64_t length;
} marks;

static bool is_hit(const marks *m, int64_t i) {
  return m->errors[i] > m->above;
}

/* Whether that few hits can not be chance: `sum` errors thrown at `length` rows hit `expected` of them on average. */
static bool confined(int64_t hit, int64_t length, int64_t sum, int64_t other) {
  const double load = (double)sum / (double)length;
  /* A row can not hold more errors than it has elements: nearly full ones are hit for certain. */
  const double empty = load >= (double)other ? 0 : exp((double)other * log1p(-load / (double)other));
  const double expected = (double)length * (1 - empty);
  const double spread = sqrt((double)length * empty * (1 - empty));
  return (double)hit < expected - 4 * spread - 0.5;
}

/* All hits lie in first ... last: a prefix, a suffix, a range? */
static bool find_range(rn_extent *e, bool few) {
  const double width = (double)(e->last - e->first + 1), length = (double)e->length, hit = (double)e->hit;
  const bool dense = few && hit >= 0.5 * width && width < length;
  const bool narrow = hit > 1 && hit * pow(width / length, hit - 1) < RARE;
  if (!dense && !narrow) return false;
  e->kind = e->first == 0 ? RN_EXTENT_PREFIX : e->last == e->length - 1 ? RN_EXTENT_SUFFIX : RN_EXTENT_RANGE;
  return true;
}

/* The shortest run of phases, modulo period, that holds all hits; false when it is no news. */
static bool find_run(const marks *m, int64_t period, bool *phases, rn_extent *e) {
  int64_t taken = 0, gap = 0, gap_end = 0;
  memset(phases, 0, (size_t)period);
  for (int64_t i = e->first; i <= e->last && taken < period; i++)
    if (is_hit(m, i) && !phases[i % period]) phases[i % period] = true, taken++;
  if (taken == period) return false;
  for (int64_t i = 0, open = 0; i < 2 * period; i++) { /* the longest gap, round the corner too */
    open = phases[i % period] ? 0 : open + 1;
    if (open > gap) gap = open, gap_end = i;
  }
  e->period = period, e->run = period - gap, e->phase = (gap_end + 1) % period;
  return true;
}

static int64_t places(int64_t length, const rn_extent *e) { /* rows that lie in the run */
  int64_t count = length / e->period * e->run;
  for (int64_t i = length - length % e->period; i < length; i++)
    count += (i - e->phase + e->period) % e->period < e->run;
  return count;
}

/* Hits every so many rows. At least four of them, in three periods; most of the places hit; hardly by chance. */
static bool find_period(const marks *m, rn_extent *e) {
  bool *phases = malloc((size_t)e->length + 1);
  rn_extent best = *e;
  double best_fill = 0;
  const double tried = (double)(e->length / 3 < PERIOD_ALL ? e->length / 3 : PERIOD_ALL);
  if (phases == NULL) return false;
  for (int64_t period = 2; period <= e->length / 3 && e->hit >= 4;
       period = period < PERIOD_ALL ? period + 1 : 2 * period) {
    rn_extent here = *e;
    if (!find_run(m, period, phases, &here) || e->last - e->first < 2 * period) continue;
    const double fill = (double)e->hit / (double)places(e->length, &here);
    const double share = (double)here.run / (double)period;
    const double chance = tried * (double)period * pow(share, (double)e->hit);
    if (fill >= 0.5 && chance < RARE && fill > best_fill * 1.1) best = here, best_fill = fill;
  }
  free(phases);
  /* A range that is as full says more. */
  if (best_fill < 1.25 * (double)e->hit / (double)(e->last - e->first + 1)) return false;
  *e = best, e->kind = RN_EXTENT_PERIODIC;
  return true;
}

static rn_extent look(const marks *m, int64_t other) {
  rn_extent e = {.kind = RN_EXTENT_NONE, .length = m->length, .first = -1, .last = -1, .denser = m->above > 0};
  int64_t sum = 0;
  for (int64_t i = 0; i < m->length; i++) {
    sum += m->errors[i];
    if (!is_hit(m, i)) continue;
    if (e.hit < RN_EXTENT_SOME) e.some[e.hit] = i;
    if (e.hit++ == 0) e.first = i;
    e.last = i;
  }
  if (e.hit == 0) return e;
  const bool few = confined(e.hit, e.length, sum, other);
  e.kind = RN_EXTENT_ALL;
  if (e.length == 1 || e.hit == e.length) return e;
  if (e.hit == 1 && (few || !e.denser))
    e.kind = RN_EXTENT_ONE;
  else if (!(few && find_period(m, &e)) && !find_range(&e, few) && few)
    e.kind = RN_EXTENT_SCATTERED;
  return e;
}

rn_extent rn_extent_find(const int64_t *errors, int64_t length, int64_t other) {
  rn_extent all = {.kind = RN_EXTENT_NONE, .length = length, .first = -1, .last = -1};
  int64_t most = 0, sum = 0;
  for (int64_t i = 0; i < length; i++) sum += errors[i], most = errors[i] > most ? errors[i] : most;
  for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
    const marks m = {errors, (int64_t)(shares[i] * (double)most), length};
    if (i > 0 && m.above == 0) continue;
    const rn_extent found = look(&m, other);
    if (i == 0) all = found;
    if (i == 0 && found.kind != RN_EXTENT_ALL && found.kind != RN_EXTENT_SCATTERED) return found;
    if (i == 0 || found.kind == RN_EXTENT_NONE || found.kind == RN_EXTENT_ALL || found.hit > length / 2) continue;
    if (found.kind == all.kind) continue;
    /* Denser ones have to be much denser than the rest, and by more than chance. */
    int64_t inside = 0;
    for (int64_t k = 0; k < length; k++) inside += is_hit(&m, k) ? errors[k] : 0;
    const double background = (double)(sum - inside) / (double)(length - found.hit);
    const double mean = (double)inside / (double)found.hit;
    if (mean >= 3 * background && mean - background > 6 * sqrt(background + 1)) return found;
  }
  return all;
}

static int64_t count_say(char *text, size_t room, const char *what, int64_t n) {
  return snprintf(text, room, "%" PRId64 " %s%s", n, what, n == 1 ? "" : "s");
}

void rn_extent_say(const rn_extent *e, const char *what, char text[RN_EXTENT_TEXT]) {
  const char *lead = e->denser ? "mostly " : "";
  int n = 0;
  switch (e->kind) {
  case RN_EXTENT_NONE:
    snprintf(text, RN_EXTENT_TEXT, "no %s", what);
    return;
  case RN_EXTENT_ALL:
    snprintf(text, RN_EXTENT_TEXT, "spread over %" PRId64 " of %" PRId64 " %ss", e->hit, e->length, what);
    return;
  case RN_EXTENT_ONE:
    snprintf(text, RN_EXTENT_TEXT, "%s%s %" PRId64 " of %" PRId64, lead, what, e->first, e->length);
    return;
  case RN_EXTENT_PREFIX:
    snprintf(text, RN_EXTENT_TEXT, "%sthe first %" PRId64 " of %" PRId64 " %ss", lead, e->last + 1, e->length, what);
    return;
  case RN_EXTENT_SUFFIX:
    snprintf(text, RN_EXTENT_TEXT, "%sthe last %" PRId64 " of %" PRId64 " %ss, from %" PRId64 " on", lead,
             e->length - e->first, e->length, what, e->first);
    return;
  case RN_EXTENT_RANGE:
    snprintf(text, RN_EXTENT_TEXT, "%s%ss %" PRId64 " to %" PRId64 " of %" PRId64, lead, what, e->first, e->last,
             e->length);
    return;
  case RN_EXTENT_PERIODIC:
    if (e->run == 1)
      snprintf(text, RN_EXTENT_TEXT, "%severy %" PRId64 "th %s from %" PRId64 " on", lead, e->period, what, e->phase);
    else
      snprintf(text, RN_EXTENT_TEXT, "%s%" PRId64 " of every %" PRId64 " %ss, from %" PRId64 " on", lead, e->run,
               e->period, what, e->phase);
    return;
  case RN_EXTENT_SCATTERED:
    n = snprintf(text, RN_EXTENT_TEXT, "%s", lead);
    n += (int)count_say(text + n, RN_EXTENT_TEXT - (size_t)n, what, e->hit);
    n += snprintf(text + n, RN_EXTENT_TEXT - (size_t)n, " of %" PRId64 ":", e->length);
    for (int i = 0; i < RN_EXTENT_SOME && i < e->hit && n < RN_EXTENT_TEXT; i++)
      n += snprintf(text + n, RN_EXTENT_TEXT - (size_t)n, "%s %" PRId64, i ? "," : "", e->some[i]);
    if (e->hit > RN_EXTENT_SOME && n < RN_EXTENT_TEXT) snprintf(text + n, RN_EXTENT_TEXT - (size_t)n, ", ...");
    return;
  }
}
