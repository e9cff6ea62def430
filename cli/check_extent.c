/* check_extent.c - problems on a device that are too large for the harness: a million rows, more than 2^32 elements,
 * more than 2^32 rows, row strides past 2^31.
 *
 * The rows of such a problem repeat with an odd period, so an index that loses a power of two meets other values, and
 * the reference needs one period only: row r of every output has to be row r % period of what portable makes of one
 * period. Nothing is sampled: every byte of every output comes back and is compared, the gaps and both ends included.
 * dweight depends on all rows; portable sums them too, over a view that shows the period again and again (row stride
 * 0). With row strides past 2^31 there are as many rows as the period has.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "checking.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct extent {
  const char *about;
  int op, dtype;
  int64_t period, repeats, cols, row_stride; /* 0 = cols */
  bool residual;
  bool quant;
  bool rstd;
} extent;

enum { F32 = RMSNORM_DTYPE_F32, F16 = RMSNORM_DTYPE_F16, BF16 = RMSNORM_DTYPE_BF16 };
enum { FORWARD = RMSNORM_OP_FORWARD, BACKWARD = RMSNORM_OP_BACKWARD };
enum { END = 512, CHUNK = 64 << 20, POISON = 0xff }; /* 0xff in every byte is a NaN in every type but int8 */

static const extent many[] = {
    {"10^6 rows of 64", FORWARD, BF16, 3125, 320, 64, 0, false, false, true},
    {"10^6 rows of 64", FORWARD, F16, 3125, 320, 64, 0, false, false, true},
    {"10^6 rows of 64", FORWARD, F32, 3125, 320, 64, 0, false, false, true},
    {"10^6 rows of 64", FORWARD, BF16, 3125, 320, 64, 0, true, false, true},
    {"10^6 rows of 64", FORWARD, BF16, 3125, 320, 64, 0, false, true, true},
    {"10^6 rows of 64", BACKWARD, BF16, 3125, 320, 64, 0, false, false, false},
    {"10^6 rows of 64", BACKWARD, F16, 3125, 320, 64, 0, false, false, false},
    {"10^6 rows of 64", BACKWARD, F32, 3125, 320, 64, 0, false, false, false},
};
static const extent largest[] = {
    {"more than 2^32 elements", FORWARD, BF16, 1009, 1040, 4096, 0, false, false, true},
    {"more than 2^32 elements", FORWARD, BF16, 1009, 1040, 4096, 0, true, false, true},
    {"more than 2^32 elements", FORWARD, BF16, 1009, 1040, 4096, 0, false, true, true},
    {"more than 2^32 elements", FORWARD, F32, 1009, 1040, 4096, 0, false, false, true},
    {"more than 2^32 elements", BACKWARD, BF16, 1009, 1040, 4096, 0, false, false, false},
    {"more than 2^32 elements, odd cols", FORWARD, BF16, 1009, 1039, 4097, 0, false, false, true},
    {"more than 2^32 elements, long rows", FORWARD, BF16, 31, 1058, 131072, 0, false, false, true},
    {"more than 2^32 elements, long rows", BACKWARD, BF16, 31, 1058, 131072, 0, false, false, false},
    {"more than 2^32 rows", FORWARD, BF16, 1009, 4256658, 1, 0, false, false, false},
    {"row strides past 2^31", FORWARD, BF16, 3, 1, 4097, 2147491845, false, false, true},
    {"row strides past 2^31", BACKWARD, BF16, 3, 1, 4096, 2147491840, false, false, false},
};

/* One array: a period of it on the host, all of it on the device between two ends of poison. */
typedef struct side {
  int dtype;      /* 0 = not there */
  int64_t cols;   /* elements of one row */
  int64_t stride; /* from one row to the next */
  char *period;
  char *base; /* on the device, with its ends */
  size_t bytes;
  bool output, once; /* once: one row in all (weight, dweight) */
} side;

enum { X, SECOND, WEIGHT, Y, SUM, SCALE, RSTD, DWEIGHT, SIDES };
static const char *const side_names[SIDES] = {"x",         "residual or dy", "weight", "y, q or dx", "residual_out",
                                              "scale_out", "rstd",           "dweight"};

static const extent *extent_at(bool of_many, int64_t index) {
  return of_many ? &many[index] : &largest[index];
}
int64_t rn_extent_cases(bool of_many) {
  return of_many ? (int64_t)(sizeof many / sizeof *many) : (int64_t)(sizeof largest / sizeof *largest);
}

void rn_extent_describe(bool of_many, int64_t index, char *text, size_t bytes) {
  const extent *e = extent_at(of_many, index);
  snprintf(text, bytes, "%s: %s %s, %lld x %lld%s%s, row stride %lld", e->about,
           e->op == BACKWARD ? "backward" : "forward", rmsnorm_dtype_name(e->dtype),
           (long long)(e->period * e->repeats), (long long)e->cols, e->residual ? ", residual" : "",
           e->quant ? ", fp8 with a scale per row" : "", (long long)(e->row_stride ? e->row_stride : e->cols));
}

/* ---- the arrays ---- */

static size_t size_of(const side *s) {
  return rmsnorm_dtype_bytes(s->dtype);
}
static int64_t period_of(const extent *e, const side *s) {
  return s->once ? 1 : e->period;
}

static void lay_out(const extent *e, side *s) {
  bool backward = e->op == BACKWARD;
  int64_t stride = e->row_stride ? e->row_stride : e->cols;
  memset(s, 0, SIDES * sizeof *s);
#define SIDE(which, there, type, columns, step, out, single)                                                           \
  if (there)                                                                                                           \
  s[which].dtype = (type), s[which].cols = (columns), s[which].stride = (step), s[which].output = (out),               \
  s[which].once = (single)
  SIDE(X, true, e->dtype, e->cols, stride, false, false);
  SIDE(SECOND, backward || e->residual, e->dtype, e->cols, stride, false, false);
  SIDE(WEIGHT, true, e->dtype, e->cols, e->cols, false, true);
  SIDE(Y, true, e->quant ? RMSNORM_DTYPE_FP8_E4M3 : e->dtype, e->cols, stride, true, false);
  SIDE(SUM, e->residual, e->dtype, e->cols, stride, true, false);
  SIDE(SCALE, e->quant, RMSNORM_DTYPE_F32, 1, 1, true, false);
  SIDE(RSTD, e->rstd, RMSNORM_DTYPE_F32, 1, 1, true, false);
  SIDE(DWEIGHT, backward, e->dtype, e->cols, e->cols, true, true);
#undef SIDE
  for (int k = 0; k < SIDES; k++) {
    int64_t rows = s[k].once ? 1 : e->period * e->repeats;
    s[k].bytes = s[k].dtype ? (size_t)((rows - 1) * s[k].stride + s[k].cols) * size_of(&s[k]) + 2 * END : 0;
  }
}

static bool make_periods(const extent *e, side *s, uint64_t seed) {
  for (int k = 0; k < SIDES; k++) {
    if (!s[k].dtype) continue;
    int64_t n = period_of(e, &s[k]) * s[k].cols;
    rn_random random = {seed * 131 + (uint64_t)k};
    s[k].period = malloc((size_t)n * size_of(&s[k]) + 64);
    if (!s[k].period) return false;
    for (int64_t i = 0; i < n && !s[k].output; i++) rn_ref_store(s[k].dtype, s[k].period, i, rn_random_normal(&random));
  }
  return true;
}

/* Inputs on the device are the period again and again; everything else there is poison. */
static bool upload(const extent *e, side *s) {
  for (int k = 0; k < SIDES; k++) {
    if (!s[k].dtype) continue;
    s[k].base = rn_device_alloc(s[k].bytes);
    if (!s[k].base || !rn_device_fill(s[k].base, POISON, s[k].bytes)) return false;
    if (s[k].output) continue;
    char *data = s[k].base + END;
    size_t row = (size_t)s[k].cols * size_of(&s[k]), step = (size_t)s[k].stride * size_of(&s[k]);
    if (step == row) {
      size_t period = (size_t)period_of(e, &s[k]) * row;
      if (!rn_device_upload(data, s[k].period, period) || !rn_device_repeat(data, period, s[k].bytes - 2 * END))
        return false;
      continue;
    }
    for (int64_t r = 0; r < e->period; r++)
      if (!rn_device_upload(data + (size_t)r * step, s[k].period + (size_t)r * row, row)) return false;
  }
  return rn_device_finish();
}

/* ---- the calls ---- */

typedef struct places {
  char *data[SIDES];
  int64_t rows, heads, row_stride, head_stride;
} places;

static rmsnorm_status forward(const extent *e, const places *p, const char *impl, int device, void *stream) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = p->rows, a.heads = p->heads, a.cols = e->cols, a.eps = 1e-6, a.impl = impl, a.device = device;
  a.weight = p->data[WEIGHT], a.weight_dtype = e->dtype;
  a.x = rmsnorm_input_heads(p->data[X], e->dtype, p->row_stride, p->head_stride);
  if (e->residual) {
    a.residual = rmsnorm_input_heads(p->data[SECOND], e->dtype, p->row_stride, p->head_stride);
    a.residual_out = rmsnorm_output_heads(p->data[SUM], e->dtype, p->row_stride, p->head_stride);
  }
  if (e->quant) {
    a.quant.granularity = RMSNORM_QUANT_ROW;
    a.quant.q = rmsnorm_output_heads(p->data[Y], RMSNORM_DTYPE_FP8_E4M3, p->row_stride, p->head_stride);
    a.quant.scale_out = p->data[SCALE];
  } else {
    a.y = rmsnorm_output_heads(p->data[Y], e->dtype, p->row_stride, p->head_stride);
  }
  a.rstd = p->data[RSTD];
  return rmsnorm_forward(&a, stream);
}

/* room: NULL on the CPU, whose workspace is allocated here; on a device the workspace, made by the caller and freed by
 * it after the work is done. */
static rmsnorm_status backward(const extent *e, const places *p, const char *impl, int device, void *stream,
                               char **room) {
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  a.rows = p->rows, a.heads = p->heads, a.cols = e->cols, a.eps = 1e-6, a.impl = impl, a.device = device;
  a.weight = p->data[WEIGHT], a.weight_dtype = e->dtype;
  a.x = rmsnorm_input_heads(p->data[X], e->dtype, p->row_stride, p->head_stride);
  a.dy = rmsnorm_input_heads(p->data[SECOND], e->dtype, p->row_stride, p->head_stride);
  if (p->data[Y]) a.dx = rmsnorm_output_heads(p->data[Y], e->dtype, p->row_stride, p->head_stride);
  a.dweight = p->data[DWEIGHT], a.dweight_dtype = e->dtype;
  rmsnorm_status status = rmsnorm_backward_workspace_bytes(&a, &a.workspace_bytes);
  if (status != RMSNORM_OK) return status;
  void *own = NULL;
  if (a.workspace_bytes && device == RMSNORM_DEVICE_CPU) own = aligned_alloc(64, (a.workspace_bytes + 63) / 64 * 64);
  if (a.workspace_bytes && device != RMSNORM_DEVICE_CPU) *room = rn_device_alloc(a.workspace_bytes);
  a.workspace = !a.workspace_bytes ? NULL : device == RMSNORM_DEVICE_CPU ? own : *room;
  status = rmsnorm_backward(&a, stream);
  free(own);
  return status;
}

/* The fastest implementation of this processor. */
static const char *fastest(void) {
  for (int i = 0; rmsnorm_impl_name(i) != NULL; i++)
    if (rmsnorm_impl_device(i) == RMSNORM_DEVICE_CPU && rmsnorm_impl_why_not(i) == NULL) return rmsnorm_impl_name(i);
  return "portable";
}

/* What portable makes of one period. dweight of all rows is the fastest implementation's, which the check of the CPU
 * holds to portable's bits: portable adds rows on one thread and would take minutes for each case. */
static rmsnorm_status reference(const extent *e, const side *s) {
  places p = {.rows = e->period, .heads = 1, .row_stride = e->cols, .head_stride = 0};
  for (int k = 0; k < SIDES; k++) p.data[k] = s[k].period;
  if (e->op == FORWARD) return forward(e, &p, "portable", RMSNORM_DEVICE_CPU, NULL);
  rmsnorm_status status = backward(e, &p, "portable", RMSNORM_DEVICE_CPU, NULL, NULL);
  if (status != RMSNORM_OK || e->repeats == 1) return status;
  places all = {.rows = e->repeats, .heads = e->period, .row_stride = 0, .head_stride = e->cols};
  memcpy(all.data, p.data, sizeof all.data);
  all.data[Y] = NULL;
  return backward(e, &all, fastest(), RMSNORM_DEVICE_CPU, NULL, NULL);
}

/* ---- comparing ---- */

/* Reads an array of the device from its beginning to its end. */
typedef struct reader {
  const char *base;
  size_t bytes, at; /* at: how much has been read */
  char *room;       /* CHUNK bytes */
  size_t have, used;
  bool failed;
} reader;

/* The next n bytes are those of `want`, or poison when that is NULL. How many are not; *first: where in the array. */
static int64_t mismatches(reader *in, const char *want, size_t n, size_t *first) {
  static unsigned char poison[1 << 16];
  int64_t wrong = 0;
  if (!poison[0]) memset(poison, POISON, sizeof poison);
  while (n && !in->failed) {
    if (in->used == in->have) {
      in->have = in->bytes - in->at < CHUNK ? in->bytes - in->at : CHUNK, in->used = 0;
      in->failed = !in->have || !rn_device_download(in->room, in->base + in->at, in->have);
      in->at += in->have;
      continue;
    }
    size_t part = in->have - in->used < n ? in->have - in->used : n;
    if (!want && part > sizeof poison) part = sizeof poison;
    const char *expected = want ? want : (const char *)poison, *got = in->room + in->used;
    if (memcmp(got, expected, part))
      for (size_t i = 0; i < part; i++) {
        if (got[i] == expected[i]) continue;
        if (!wrong++ && *first == SIZE_MAX) *first = in->at - in->have + in->used + i;
      }
    in->used += part, n -= part;
    if (want) want += part;
  }
  return wrong;
}

typedef struct verdict {
  int64_t elements_wrong, outside_wrong; /* in bytes */
  size_t first_element, first_outside;
} verdict;

static bool compare(const extent *e, const side *s, char *room, verdict *v) {
  reader in = {.base = s->base, .bytes = s->bytes, .room = room};
  size_t row = (size_t)s->cols * size_of(s), step = (size_t)s->stride * size_of(s);
  int64_t rows = s->once ? 1 : e->period * e->repeats, period = period_of(e, s);
  v->elements_wrong = v->outside_wrong = 0, v->first_element = v->first_outside = SIZE_MAX;
  v->outside_wrong += mismatches(&in, NULL, END, &v->first_outside);
  if (step == row) {
    for (int64_t r = 0; r < rows && !in.failed; r += period)
      v->elements_wrong += mismatches(&in, s->period, (size_t)period * row, &v->first_element);
  } else {
    for (int64_t r = 0; r < rows && !in.failed; r++) {
      if (r) v->outside_wrong += mismatches(&in, NULL, step - row, &v->first_outside);
      v->elements_wrong += mismatches(&in, s->period + (size_t)(r % period) * row, row, &v->first_element);
    }
  }
  v->outside_wrong += mismatches(&in, NULL, END, &v->first_outside);
  return !in.failed;
}

static void report(const side *s, const char *name, const verdict *v, int impl, bool of_many, int64_t index,
                   const rn_check_options *o, rn_check_report *r) {
  char what[200], text[480];
  const char *family = of_many ? "many" : "extent";
  rn_extent_describe(of_many, index, what, sizeof what);
  if (v->elements_wrong) {
    size_t at = (v->first_element - END) / size_of(s);
    snprintf(text, sizeof text, "%s: %lld bytes differ, the first in row %lld col %lld; %s", name,
             (long long)v->elements_wrong, (long long)((int64_t)at / s->stride), (long long)((int64_t)at % s->stride),
             what);
    rn_check_finding(&r->tally[impl], RN_FOUND_BITS, r->name[impl], family, index, text, o, r);
    r->tally[impl].differing += v->elements_wrong / (int64_t)size_of(s) + 1;
  }
  if (v->outside_wrong) {
    snprintf(text, sizeof text, "%s: %lld bytes outside of the rows were written, the first at byte %lld; %s", name,
             (long long)v->outside_wrong, (long long)v->first_outside - END, what);
    rn_check_finding(&r->tally[impl], RN_FOUND_GUARD, r->name[impl], family, index, text, o, r);
  }
}

/* One implementation. 0 go on, 2 stop. */
static int run_impl(const extent *e, side *s, int impl, bool of_many, int64_t index, char *room,
                    const rn_check_options *o, rn_check_report *r) {
  places p = {.rows = e->period * e->repeats, .heads = 1, .row_stride = s[X].stride, .head_stride = 0};
  char *workspace = NULL, text[600];
  const char *family = of_many ? "many" : "extent";
  for (int k = 0; k < SIDES; k++) {
    p.data[k] = s[k].dtype ? s[k].base + END : NULL;
    if (s[k].dtype && s[k].output && !rn_device_fill(s[k].base, POISON, s[k].bytes)) return 2;
  }
  if (!rn_device_finish()) return 2;
  rmsnorm_status status = e->op == FORWARD ? forward(e, &p, r->name[impl], rn_device_kind(), r->stream)
                                           : backward(e, &p, r->name[impl], rn_device_kind(), r->stream, &workspace);
  if (status == RMSNORM_ERROR_UNSUPPORTED) {
    r->tally[impl].unsupported++;
    return 0;
  }
  bool ok = status == RMSNORM_OK && rn_stream_finish(r->stream);
  rn_device_free(workspace);
  if (!ok) {
    snprintf(text, sizeof text, "%s", status != RMSNORM_OK ? rmsnorm_last_error() : rn_device_error());
    rn_check_finding(&r->tally[impl], RN_FOUND_REFUSED, r->name[impl], family, index, text, o, r);
    r->tally[impl].failed_cases++;
    return status == RMSNORM_OK ? 2 : 0;
  }
  r->tally[impl].cases++;
  for (int k = 0; k < SIDES; k++) {
    verdict v;
    if (!s[k].dtype || !s[k].output) continue;
    if (!compare(e, &s[k], room, &v)) return 2;
    r->tally[impl].elements += (s[k].once ? 1 : e->period * e->repeats) * s[k].cols;
    report(&s[k], side_names[k], &v, impl, of_many, index, o, r);
  }
  return 0;
}

int rn_extent_run(bool of_many, int64_t index, const rn_check_options *o, rn_check_report *r) {
  const size_t spare = (size_t)64 << 20; /* for a workspace, and what the driver keeps */
  const extent *e = extent_at(of_many, index);
  side s[SIDES];
  size_t need = spare, there = rn_device_free_bytes();
  char what[200];
  rn_extent_describe(of_many, index, what, sizeof what);
  snprintf(r->running, sizeof r->running, "%s", what);
  lay_out(e, s);
  for (int k = 0; k < SIDES; k++) need += s[k].bytes;
  if (need > there) {
    rn_check_note(r, "%s/%lld: needs %.1f GiB on the device, %.1f are free (%s)", of_many ? "many" : "extent",
                  (long long)index, (double)need * 0x1p-30, (double)there * 0x1p-30, e->about);
    return 0;
  }
  char *room = rn_device_host_alloc(CHUNK);
  int status = room && make_periods(e, s, o->seed + (uint64_t)index) ? 0 : 2;
  if (!status && reference(e, s) != RMSNORM_OK) status = 2;
  if (!status && !upload(e, s)) status = 2;
  for (int i = 0; i < r->impls && !status; i++) status = run_impl(e, s, i, of_many, index, room, o, r);
  for (int k = 0; k < SIDES; k++) free(s[k].period), rn_device_free(s[k].base);
  rn_device_host_free(room);
  return status;
}
