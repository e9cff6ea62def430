/* check_device.c - what `rmsnorm check --device` runs beside the families of every implementation: graphs, several
 * streams, several contexts, and the problems of check_extent.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "checking.h"

#include <stdio.h>

enum { TOGETHER = 4 }; /* calls that are under way at the same time */

/* What the cases of a family share. */
typedef struct rn_bed {
  const rn_check_options *o;
  rn_check_report *r;
  rn_harness h[TOGETHER];
  rn_case c[TOGETHER];
  void *stream[TOGETHER];
  rn_device *another; /* a second context */
  void *another_stream;
  bool ready[TOGETHER];
  int64_t elements; /* shapes: of the largest tensor that the harness has room for */
} rn_bed;

/* Cases of all families by turns. */
static void sample(rn_case *c, int64_t index, uint64_t seed) {
  int64_t families = rn_family_count(), family = index % families;
  int64_t i = index / families * 37 + family;
  rn_case_make(c, (int)family, i % rn_family_cases((int)family, RN_DEFAULT), seed);
}

/* Case k of the bed gets its reference results. What is wrong with those the families have said. */
static bool prepare_case(rn_bed *b, int k) {
  rn_check_note_running(b->r, &b->c[k], "portable, packed");
  int answer = rn_harness_prepare(&b->h[k], &b->c[k], b->r->judged);
  b->ready[k] = answer != 2;
  return b->ready[k] || b->h[k].found;
}

static bool prepare(rn_bed *b, int64_t first, int count) {
  for (int k = 0; k < count; k++) {
    sample(&b->c[k], first + k, b->o->seed);
    if (!prepare_case(b, k)) return false;
  }
  return true;
}

/* All calls are queued before any is waited for. 0 go on, 2 stop. */
static int together(rn_bed *b, int count, const char *family, int64_t index) {
  rn_check_report *r = b->r;
  for (int i = 0; i < r->impls; i++) {
    const char *impl = r->name[i];
    for (int k = 0; k < count; k++) {
      rn_check_note_running(r, &b->c[k], family);
      if (!b->ready[k] || !rn_harness_place(&b->h[k], impl)) continue;
      if (b->h[k].found) r->tally[i].found[RN_FOUND_REFUSED]++;
      if (b->h[k].found) rn_check_findings(&b->h[k], impl, family, index, b->o, r);
      return 2;
    }
    for (int k = 0; k < count; k++)
      if (b->ready[k]) rn_harness_call(&b->h[k], impl);
    for (int k = 0; k < count; k++) {
      bool unsupported;
      if (!b->ready[k]) continue;
      int answer = rn_harness_collect(&b->h[k], impl, &r->tally[i], &unsupported);
      if (b->h[k].found) rn_check_findings(&b->h[k], impl, family, index, b->o, r);
      if (answer == 2) return 2;
    }
  }
  return 0;
}

static int run_graph(rn_bed *b, const char *family, int64_t index) {
  if (!prepare(b, index, 1)) return 2;
  b->h[0].stream = b->stream[0], b->h[0].graph = true;
  rn_check_launch(&b->h[0], index);
  return together(b, 1, family, index);
}

/* Some rows of a call exist only: all, none, one less, less than none, more than there are. Every other case is a graph
 * that runs with all rows first. */
static int run_live(rn_bed *b, const char *family, int64_t index) {
  rn_harness *h = &b->h[0];
  if (!prepare(b, index, 1)) return 2;
  int64_t rows = b->c[0].rows;
  const int64_t live[] = {rows - 1, 0, rows, 1, rows / 2, -3, rows + 5};
  if (b->c[0].op == RMSNORM_OP_BACKWARD) return 0;
  h->stream = b->stream[0], h->graph = index % 2, h->live = true, h->live_rows = live[index % 7];
  rn_check_launch(h, index);
  return together(b, 1, family, index);
}

static int run_streams(rn_bed *b, const char *family, int64_t index) {
  if (!prepare(b, index * TOGETHER, TOGETHER)) return 2;
  for (int k = 0; k < TOGETHER; k++) b->h[k].stream = b->stream[k];
  return together(b, TOGETHER, family, index);
}

/* The second context is on another device where there is one. */
static int run_contexts(rn_bed *b, const char *family, int64_t index) {
  int ordinal = b->o->where.ordinal, devices = rn_device_count();
  if (!b->another) {
    b->another = devices > 1 ? rn_device_open((ordinal + 1) % devices) : rn_device_open_another(ordinal);
    /* Opening made it current. */
    if (!b->another || !(b->another_stream = rn_stream_new())) {
      rn_check_note(b->r, "%s/%lld: %s", family, (long long)index, rn_device_error());
      return rn_device_use(b->r->device) ? 0 : 2;
    }
    if (rmsnorm_preload(rn_device_kind()) != RMSNORM_OK) {
      rn_check_note(b->r, "%s/%lld: %s", family, (long long)index, rmsnorm_last_error());
      return rn_device_use(b->r->device) ? 0 : 2;
    }
  }
  if (!prepare(b, index * 2 + 1, 2)) return 2;
  /* The memory of the second harness is of the second context from here on. */
  rn_harness *h = &b->h[1];
  h->device = b->another, h->stream = b->another_stream, b->h[0].stream = b->stream[0];
  return together(b, 2, family, index);
}

/* Every kernel there is. */
static int run_shapes(rn_bed *b, const char *family, int64_t index) {
  enum { SOME = 1 << 20 };
  rn_harness *h = &b->h[0];
  rn_shape s;
  rn_shape_make(&s, family, index, b->o->seed);
  /* All of an array's room is copied there and back, so room that was needed once is given back. */
  int64_t elements = s.c.rows * s.c.heads * s.c.cols;
  if (b->elements > SOME && elements < b->elements / 8) {
    rn_harness_free(h);
    rn_harness_init(h);
    h->device = b->r->device, b->elements = 0;
  }
  if (elements > b->elements) b->elements = elements;
  b->c[0] = s.c;
  if (!prepare_case(b, 0)) return 2;
  if (!b->ready[0]) rn_check_findings(h, "portable", family, index, b->o, b->r);
  h->stream = index % 2 ? b->stream[0] : NULL;
  h->live = s.live_rows >= 0, h->live_rows = s.live_rows;
  h->launch.multiprocessors = s.multiprocessors, h->launch.dependent = index % 5 == 4;
  return together(b, 1, family, index);
}

static int run_many(rn_bed *b, const char *family, int64_t index) {
  (void)family;
  return rn_extent_run(true, index, b->o, b->r);
}
static int run_extent(rn_bed *b, const char *family, int64_t index) {
  (void)family;
  return rn_extent_run(false, index, b->o, b->r);
}

#define CASES(quick, usual, many)                                                                                      \
  (const int64_t[RN_LEVELS]) {                                                                                         \
    quick, usual, many                                                                                                 \
  }
static const struct family {
  const char *name, *about;
  const int64_t *cases; /* at each level */
  int (*run)(rn_bed *b, const char *family, int64_t index);
} families[] = {
    {"shapes", "rows of all lengths, few and many, until every kernel has run", rn_shape_cases, run_shapes},
    {"graph", "cases of all families, captured into a graph that is launched twice", CASES(60, 400, 4000), run_graph},
    {"live", "calls of which some rows exist only, by a number on the device", CASES(60, 400, 4000), run_live},
    {"streams", "four calls on four streams at once", CASES(20, 150, 1500), run_streams},
    {"contexts", "two calls in two contexts by turns", CASES(20, 100, 1000), run_contexts},
    {"many", "10^6 rows of 64", CASES(0, 8, 8), run_many},
    {"extent", "more than 2^32 elements, rows, row strides past 2^31", CASES(0, 11, 11), run_extent},
};
enum { FAMILIES = sizeof families / sizeof *families };

static int64_t cases_of(const rn_check_options *o, int f) {
  return rn_check_takes(o, families[f].name, -1) ? (rn_check_cases(o, families[f].cases) + o->step - 1) / o->step : 0;
}

int64_t rn_device_family_total(const rn_check_options *o) {
  int64_t total = 0;
  for (int f = 0; f < FAMILIES; f++) total += cases_of(o, f);
  return total;
}

void rn_device_family_list(const rn_check_options *o) {
  for (int f = 0; f < FAMILIES; f++)
    printf("%-10s %6lld  %s\n", families[f].name, (long long)cases_of(o, f), families[f].about);
}

/* Each harness starts afresh with every family, so that all its memory is of one context. */
static bool open_bed(rn_bed *b, const rn_check_options *o, rn_check_report *r) {
  memset(b, 0, sizeof *b);
  b->o = o, b->r = r;
  for (int k = 0; k < TOGETHER; k++) {
    rn_harness_init(&b->h[k]);
    b->h[k].device = r->device;
    if (!(b->stream[k] = rn_stream_new())) return false;
  }
  return true;
}

static void close_bed(rn_bed *b) {
  for (int k = 0; k < TOGETHER; k++) rn_harness_free(&b->h[k]);
  if (b->another) {
    (void)rn_device_use(b->another);
    rn_stream_free(b->another_stream);
    rn_device_close(b->another);
  }
  (void)rn_device_use(b->r->device);
  for (int k = 0; k < TOGETHER; k++) rn_stream_free(b->stream[k]);
}

int rn_device_families(const rn_check_options *o, rn_check_report *r) {
  static rn_bed bed;
  int status = 0;
  for (int f = 0; f < FAMILIES && status != 2; f++) {
    if (!rn_check_takes(o, families[f].name, -1)) continue;
    if (!open_bed(&bed, o, r)) status = 2;
    for (int64_t i = 0; i < rn_check_cases(o, families[f].cases) && status != 2; i += o->step) {
      if (!rn_check_takes(o, families[f].name, i)) continue;
      status = families[f].run(&bed, families[f].name, i);
      rn_check_progress(r, families[f].name);
    }
    close_bed(&bed);
  }
  return status;
}
