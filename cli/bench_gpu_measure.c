/* bench_gpu_measure.c - time one cell on a GPU: make its buffers, compare sampled rows with portable, replay graphs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "bench_gpu.h"
#include "cases.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>

const char *const rn_gpu_op_names[RN_GPU_OPS] = {"fwd", "add", "bwd", "addbwd", "q", "dyn", "dyn8", "addq", "adddyn"};

/* ---- what an operation has ---- */

static bool is_backward(rn_gpu_op op) {
  return op == RN_GPU_BWD || op == RN_GPU_ADDBWD;
}
static bool has_sum(rn_gpu_op op) {
  return op == RN_GPU_ADD || op == RN_GPU_ADDQ || op == RN_GPU_ADDDYN;
}
static int out_dtype(rn_gpu_op op, int dtype) {
  return op == RN_GPU_DYN8 ? RMSNORM_DTYPE_INT8 : op >= RN_GPU_Q ? RMSNORM_DTYPE_FP8_E4M3 : dtype;
}
static bool given_scale(rn_gpu_op op) {
  return op == RN_GPU_Q || op == RN_GPU_ADDQ;
}

int64_t rn_gpu_bytes(rn_gpu_op op, int dtype, int64_t rows, int64_t cols) {
  int64_t size = (int64_t)rmsnorm_dtype_bytes(dtype), out = (int64_t)rmsnorm_dtype_bytes(out_dtype(op, dtype));
  int64_t column = size + out + (has_sum(op) ? 2 * size : 0);
  if (is_backward(op)) column += size + (op == RN_GPU_ADDBWD ? size : 0);
  return rows * cols * column;
}

bool rn_gpu_is_hot(int64_t rows, int64_t bytes) {
  return rows <= 256 && bytes <= (int64_t)12 << 20;
}

/* The streams of a copy in the operation's proportion; addq and adddyn have 4 : 3 and get the nearest there is. */
static void mix_of(rn_gpu_op op, int *reads, int *writes) {
  *reads = op == RN_GPU_FWD ? 1 : op == RN_GPU_ADDBWD ? 3 : 2;
  *writes = has_sum(op) ? 2 : 1;
}

/* ---- buffers ---- */

/* The arrays of one set, then those that all sets share. */
enum { X, SECOND, THIRD, OUT, SUM, SCALES, DWEIGHT, RSTD, PER_SET, WEIGHT = PER_SET, SCALE, WORKSPACE, ARRAYS };

typedef struct bed {
  rn_gpu_cell *c;
  const rn_gpu_settings *s;
  size_t bytes[ARRAYS], at[ARRAYS]; /* at: from the beginning of its set, or of the arena */
  size_t set_bytes;
  rmsnorm_forward_args *forward; /* one for each set */
  rmsnorm_backward_args *backward;
} bed;

static char *arena;
static size_t arena_bytes;
static void *stream;

void rn_gpu_release(void) {
  rn_device_free(arena), rn_stream_free(stream);
  arena = NULL, arena_bytes = 0, stream = NULL;
  rn_gpu_copy_release();
}

static char *array(const bed *b, int which, int64_t set) {
  return arena + b->at[which] + (which < PER_SET ? (size_t)set * b->set_bytes : 0);
}

static bool is_input(int which) {
  return which <= THIRD || which == WEIGHT || which == RSTD || which == SCALE;
}

/* Where everything lies; how much that is in all. */
static size_t lay_out(bed *b, size_t workspace) {
  const rn_gpu_cell *c = b->c;
  size_t size = rmsnorm_dtype_bytes(c->dtype), elements = (size_t)(c->rows * c->cols), at = 0;
  memset(b->bytes, 0, sizeof b->bytes);
  b->bytes[X] = elements * size;
  if (has_sum(c->op) || is_backward(c->op)) b->bytes[SECOND] = elements * size;
  if (c->op == RN_GPU_ADDBWD) b->bytes[THIRD] = elements * size;
  b->bytes[OUT] = elements * rmsnorm_dtype_bytes(out_dtype(c->op, c->dtype));
  if (has_sum(c->op)) b->bytes[SUM] = elements * size;
  if (c->op >= RN_GPU_Q && !given_scale(c->op)) b->bytes[SCALES] = (size_t)c->rows * sizeof(float);
  if (is_backward(c->op)) b->bytes[RSTD] = (size_t)c->rows * sizeof(float);
  b->bytes[WEIGHT] = (size_t)c->cols * size;
  if (is_backward(c->op)) b->bytes[DWEIGHT] = (size_t)c->cols * size;
  if (given_scale(c->op)) b->bytes[SCALE] = sizeof(float);
  b->bytes[WORKSPACE] = workspace;
  for (int a = 0; a < ARRAYS; a++) {
    if (a == PER_SET) b->set_bytes = at, at *= (size_t)c->sets;
    b->at[a] = at;
    at += (b->bytes[a] + 511) / 512 * 512;
  }
  return at;
}

static bool reserve(size_t bytes) {
  if (bytes <= arena_bytes) return true;
  rn_device_free(arena);
  arena_bytes = 0;
  arena = rn_device_alloc(bytes);
  if (!arena) return false;
  arena_bytes = bytes;
  return true;
}

/* ---- the calls ---- */

static rmsnorm_forward_args forward_of(const bed *b, int64_t set) {
  const rn_gpu_cell *c = b->c;
  rmsnorm_forward_args f = RMSNORM_FORWARD_ARGS_INIT;
  f.rows = c->rows, f.cols = c->cols, f.eps = 1e-6, f.device = rn_device_kind();
  f.impl = b->s->impl, f.launch = &b->s->launch;
  f.weight = array(b, WEIGHT, 0), f.weight_dtype = c->dtype;
  f.x = rmsnorm_input(array(b, X, set), c->dtype, c->cols);
  if (has_sum(c->op)) {
    f.residual = rmsnorm_input(array(b, SECOND, set), c->dtype, c->cols);
    f.residual_out = rmsnorm_output(array(b, SUM, set), c->dtype, c->cols);
    f.numerics.round_sum = RMSNORM_ROUND_STORED; /* as in the model families: add, then norm */
  }
  if (c->op >= RN_GPU_Q) {
    f.quant.granularity = given_scale(c->op) ? RMSNORM_QUANT_TENSOR : RMSNORM_QUANT_ROW;
    f.quant.q = rmsnorm_output(array(b, OUT, set), out_dtype(c->op, c->dtype), c->cols);
    if (given_scale(c->op))
      f.quant.scale = (const float *)(const void *)array(b, SCALE, 0);
    else
      f.quant.scale_out = array(b, SCALES, set);
  } else {
    f.y = rmsnorm_output(array(b, OUT, set), c->dtype, c->cols);
  }
  return f;
}

static rmsnorm_backward_args backward_of(const bed *b, int64_t set) {
  const rn_gpu_cell *c = b->c;
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  a.rows = c->rows, a.cols = c->cols, a.eps = 1e-6, a.device = rn_device_kind();
  a.impl = b->s->impl, a.launch = &b->s->launch;
  a.weight = array(b, WEIGHT, 0), a.weight_dtype = c->dtype;
  a.x = rmsnorm_input(array(b, X, set), c->dtype, c->cols);
  a.dy = rmsnorm_input(array(b, SECOND, set), c->dtype, c->cols);
  if (c->op == RN_GPU_ADDBWD) a.dresidual_out = rmsnorm_input(array(b, THIRD, set), c->dtype, c->cols);
  a.rstd = array(b, RSTD, set);
  a.dx = rmsnorm_output(array(b, OUT, set), c->dtype, c->cols);
  a.dweight = array(b, DWEIGHT, set), a.dweight_dtype = c->dtype;
  a.workspace = b->bytes[WORKSPACE] ? array(b, WORKSPACE, 0) : NULL, a.workspace_bytes = b->bytes[WORKSPACE];
  return a;
}

static rmsnorm_status call(const bed *b, int64_t set, void *on) {
  return is_backward(b->c->op) ? rmsnorm_backward(&b->backward[set], on) : rmsnorm_forward(&b->forward[set], on);
}

static bool queue_library(void *context, int64_t set, void *on) {
  return call(context, set, on) == RMSNORM_OK;
}

static bool fail(rn_gpu_cell *c, int outcome, const char *why) {
  c->outcome = outcome;
  snprintf(c->why, sizeof c->why, "%s", why);
  return false;
}

static bool refused(rn_gpu_cell *c, rmsnorm_status status) {
  return fail(c, status == RMSNORM_ERROR_UNSUPPORTED ? RN_GPU_UNSUPPORTED : RN_GPU_FAILED, rmsnorm_last_error());
}

/* Values of a plain layer, again and again, with a period that no power of two of rows falls into. */
static const char *pattern(int dtype, size_t *bytes) {
  enum { COUNT = 999936 }; /* 512 * 1953: whole lines, and rows repeat after an odd number of them */
  static char *made[RMSNORM_DTYPE_BF16 + 1];
  *bytes = COUNT * rmsnorm_dtype_bytes(dtype);
  if (made[dtype]) return made[dtype];
  rn_random random = {20261129};
  made[dtype] = malloc(*bytes);
  for (int64_t i = 0; made[dtype] && i < COUNT; i++) rn_ref_store(dtype, made[dtype], i, rn_random_normal(&random));
  return made[dtype];
}

static bool fill(const bed *b) {
  size_t period;
  const char *values = pattern(b->c->dtype, &period);
  const float scale = 0.0123f;
  if (!values) return false;
  size_t inputs = b->at[WORKSPACE], first = period < inputs ? period : inputs;
  /* Everything, outputs too: they are poisoned next. */
  return rn_device_upload(arena, values, first) && rn_device_repeat(arena, period, inputs) &&
         (!b->bytes[SCALE] || rn_device_upload(array(b, SCALE, 0), &scale, sizeof scale)) && rn_device_finish();
}

static bool poison(const bed *b) {
  for (int a = OUT; a < WORKSPACE; a++)
    for (int64_t set = 0; set < (a < PER_SET ? b->c->sets : 1); set++)
      if (!is_input(a) && !rn_device_fill(array(b, a, set), 0xff, b->bytes[a])) return false;
  return rn_device_finish();
}

/* rstd of every set, as a forward has left it. y goes where dx will be. */
static bool make_rstd(const bed *b) {
  for (int64_t set = 0; is_backward(b->c->op) && set < b->c->sets; set++) {
    rmsnorm_forward_args f = forward_of(b, set);
    f.rstd = array(b, RSTD, set);
    rmsnorm_status status = rmsnorm_forward(&f, stream);
    if (status != RMSNORM_OK) return refused(b->c, status);
  }
  return rn_stream_finish(stream) || fail(b->c, RN_GPU_FAILED, rn_device_error());
}

/* false: why is in the cell. */
static bool prepare(bed *b) {
  rn_gpu_cell *c = b->c;
  int64_t four = 4 * (int64_t)b->s->l2_bytes, sets = c->hot ? 1 : (four + c->bytes - 1) / c->bytes;
  size_t workspace = 0;
  c->sets = (int)(sets < 1 ? 1 : sets > 96 ? 96 : sets);
  (void)lay_out(b, 0);
  if (is_backward(c->op)) {
    rmsnorm_backward_args a = backward_of(b, 0); /* pointers are not followed, but have to be there */
    static char there;
    a.x.data = a.dy.data = a.weight = &there, a.dx.data = a.dweight = &there;
    if (a.dresidual_out.dtype) a.dresidual_out.data = &there;
    rmsnorm_status status = rmsnorm_backward_workspace_bytes(&a, &workspace);
    if (status != RMSNORM_OK) return refused(c, status);
  }
  if (!reserve(lay_out(b, workspace))) return fail(c, RN_GPU_NO_ROOM, rn_device_error());
  if (!fill(b)) return fail(c, RN_GPU_FAILED, rn_device_error());
  b->forward = calloc((size_t)c->sets, sizeof *b->forward), b->backward = calloc((size_t)c->sets, sizeof *b->backward);
  if (!b->forward || !b->backward) return fail(c, RN_GPU_NO_ROOM, "no memory");
  for (int64_t set = 0; set < c->sets; set++)
    if (is_backward(c->op))
      b->backward[set] = backward_of(b, set);
    else
      b->forward[set] = forward_of(b, set);
  return make_rstd(b);
}

/* ---- checking ---- */

/* Some rows of an array, packed on the host. */
static bool bring(const bed *b, int which, int64_t set, const int64_t *rows, int count, size_t row_bytes, char *to) {
  if (count == b->c->rows) return rn_device_download(to, array(b, which, set), row_bytes * (size_t)count);
  for (int i = 0; i < count; i++)
    if (!rn_device_download(to + (size_t)i * row_bytes, array(b, which, set) + (size_t)rows[i] * row_bytes, row_bytes))
      return false;
  return true;
}

/* First, last and middle rows of a set; of small problems all, then dweight is compared too. */
static int sample_rows(const rn_gpu_cell *c, int64_t *rows, int most, bool *all) {
  int count = 0;
  *all = c->rows * c->cols <= (int64_t)1 << 20 && c->rows <= most;
  for (int64_t r = 0; *all && r < c->rows; r++) rows[count++] = r;
  if (*all) return count;
  const int64_t wanted[] = {0, 1, c->rows / 3, c->rows / 2 + 1, c->rows - 2, c->rows - 1};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
    if (wanted[i] >= 0 && wanted[i] < c->rows && (!count || wanted[i] > rows[count - 1])) rows[count++] = wanted[i];
  return count;
}

enum { SAMPLED = 4096 };

/* What portable makes of these rows into want[], from inputs in got[]. */
static rmsnorm_status portable(const rn_gpu_cell *c, char *const *got, char *const *want, int count, bool dweight) {
  if (is_backward(c->op)) {
    rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
    a.rows = count, a.cols = c->cols, a.eps = 1e-6, a.impl = "portable";
    a.weight = got[WEIGHT], a.weight_dtype = c->dtype;
    a.x = rmsnorm_input(got[X], c->dtype, c->cols), a.dy = rmsnorm_input(got[SECOND], c->dtype, c->cols);
    if (c->op == RN_GPU_ADDBWD) a.dresidual_out = rmsnorm_input(got[THIRD], c->dtype, c->cols);
    a.dx = rmsnorm_output(want[OUT], c->dtype, c->cols);
    if (dweight) a.dweight = want[DWEIGHT], a.dweight_dtype = c->dtype;
    rmsnorm_status status = rmsnorm_backward_workspace_bytes(&a, &a.workspace_bytes);
    void *workspace = aligned_alloc(64, (a.workspace_bytes / 64 + 1) * 64);
    if (a.workspace_bytes) a.workspace = workspace;
    if (status == RMSNORM_OK) status = rmsnorm_backward(&a, NULL);
    free(workspace);
    return status;
  }
  rmsnorm_forward_args f = RMSNORM_FORWARD_ARGS_INIT;
  f.rows = count, f.cols = c->cols, f.eps = 1e-6, f.impl = "portable";
  f.weight = got[WEIGHT], f.weight_dtype = c->dtype;
  f.x = rmsnorm_input(got[X], c->dtype, c->cols);
  if (has_sum(c->op)) {
    f.residual = rmsnorm_input(got[SECOND], c->dtype, c->cols);
    f.residual_out = rmsnorm_output(want[SUM], c->dtype, c->cols);
    f.numerics.round_sum = RMSNORM_ROUND_STORED;
  }
  if (c->op >= RN_GPU_Q) {
    f.quant.granularity = given_scale(c->op) ? RMSNORM_QUANT_TENSOR : RMSNORM_QUANT_ROW;
    f.quant.q = rmsnorm_output(want[OUT], out_dtype(c->op, c->dtype), c->cols);
    if (given_scale(c->op))
      f.quant.scale = (const float *)(const void *)got[SCALE];
    else
      f.quant.scale_out = want[SCALES];
  } else {
    f.y = rmsnorm_output(want[OUT], c->dtype, c->cols);
  }
  return rmsnorm_forward(&f, NULL);
}

/* Whether an array has something for every row. */
static bool by_rows(int which) {
  return which < PER_SET && which != DWEIGHT;
}

/* The set's outputs, as they are on the device, against portable. */
static bool check(const bed *b, int64_t set, const char *when) {
  static const char *const names[ARRAYS] = {
      [OUT] = "the result", [SUM] = "the sum", [SCALES] = "a scale", [DWEIGHT] = "dweight"};
  static int64_t rows[SAMPLED];
  static const int64_t whole[1] = {0};
  rn_gpu_cell *c = b->c;
  bool all, ok = true;
  int count = sample_rows(c, rows, SAMPLED, &all);
  char *got[ARRAYS] = {NULL}, *want[ARRAYS] = {NULL};
  size_t row_bytes[ARRAYS];
  for (int a = 0; a < WORKSPACE && ok; a++) {
    row_bytes[a] = by_rows(a) ? b->bytes[a] / (size_t)c->rows : b->bytes[a];
    if (!b->bytes[a]) continue;
    int parts = by_rows(a) ? count : 1;
    got[a] = malloc(row_bytes[a] * (size_t)parts), want[a] = malloc(row_bytes[a] * (size_t)parts);
    ok = got[a] && want[a] && bring(b, a, set, by_rows(a) ? rows : whole, parts, row_bytes[a], got[a]);
  }
  if (!ok) {
    (void)fail(c, RN_GPU_FAILED, rn_device_error());
  } else if (portable(c, got, want, count, all) != RMSNORM_OK) {
    ok = fail(c, RN_GPU_FAILED, rmsnorm_last_error());
  }
  for (int a = OUT; a < WORKSPACE && ok; a++) {
    if (!b->bytes[a] || !names[a] || (a == DWEIGHT && !all)) continue;
    size_t bytes = row_bytes[a] * (by_rows(a) ? (size_t)count : 1), at = 0;
    if (!memcmp(got[a], want[a], bytes)) continue;
    while (got[a][at] == want[a][at]) at++;
    snprintf(c->why, sizeof c->why, "%s %s has other bits than portable's, row %lld byte %zu", when, names[a],
             (long long)(by_rows(a) ? rows[at / row_bytes[a]] : 0), at % row_bytes[a]);
    c->outcome = RN_GPU_WRONG, ok = false;
  }
  for (int a = 0; a < ARRAYS; a++) free(got[a]), free(want[a]);
  return ok;
}

/* ---- timing ---- */

static int by_value(const void *a, const void *b) {
  double p = *(const double *)a, q = *(const double *)b;
  return (p > q) - (p < q);
}

enum { LEAST_REPLAYS = 7, MOST_REPLAYS = 25, MOST_LAUNCHES = 200 };

/* About how long one launch takes: some of them after a first one. */
static bool estimate(rn_gpu_queue queue, void *context, int64_t sets, void *on, void *const *events, double *seconds) {
  enum { TRIES = 4 };
  if (!queue(context, 0, on) || !rn_event_record(events[0], on)) return false;
  for (int i = 0; i < TRIES; i++)
    if (!queue(context, i % sets, on)) return false;
  if (!rn_event_record(events[1], on) || !rn_stream_finish(on) || !rn_event_seconds(events[0], events[1], seconds))
    return false;
  *seconds /= TRIES;
  return true;
}

static void *capture(rn_gpu_queue queue, void *context, int64_t sets, int launches, void *on) {
  if (!rn_graph_begin(on)) return NULL;
  bool ok = true;
  for (int i = 0; i < launches && ok; i++) ok = queue(context, i % sets, on);
  void *graph = rn_graph_end(on);
  if (ok) return graph;
  rn_graph_free(graph);
  return NULL;
}

/* One replay to warm up, then all the others behind it without a pause: the events between them fall into a device that
 * always has work queued. */
bool rn_gpu_time_it(rn_gpu_queue queue, void *context, int64_t sets, double budget, void *on, rn_gpu_time *time) {
  static void *events[MOST_REPLAYS + 1];
  double times[MOST_REPLAYS], once = 0;
  for (int i = 0; i <= MOST_REPLAYS; i++)
    if (!events[i] && !(events[i] = rn_event_new())) return false;
  memset(time, 0, sizeof *time);
  if (!estimate(queue, context, sets, on, events, &once)) return false;
  /* 20 to 200 launches; fewer only where each is longer than what a replay costs by a hundred times. */
  double fit = budget / (LEAST_REPLAYS + 1) / (once > 1e-7 ? once : 1e-7);
  int least = once > 250e-6 ? 4 : 20, launches = fit < least ? least : fit > MOST_LAUNCHES ? MOST_LAUNCHES : (int)fit;
  if (launches < sets && launches < MOST_LAUNCHES) launches = (int)(sets < MOST_LAUNCHES ? sets : MOST_LAUNCHES);
  double replays = budget / ((double)launches * (once > 1e-7 ? once : 1e-7));
  time->launches = launches;
  time->replays = replays < LEAST_REPLAYS ? LEAST_REPLAYS : replays > MOST_REPLAYS ? MOST_REPLAYS : (int)replays;
  void *graph = capture(queue, context, sets, launches, on);
  bool ok = graph && rn_graph_launch(graph, on) && rn_event_record(events[0], on);
  for (int i = 0; i < time->replays && ok; i++) ok = rn_graph_launch(graph, on) && rn_event_record(events[i + 1], on);
  ok = ok && rn_stream_finish(on);
  for (int i = 0; i < time->replays && ok; i++) {
    ok = rn_event_seconds(events[i], events[i + 1], &times[i]);
    times[i] /= launches;
  }
  rn_graph_free(graph);
  if (!ok) return false;
  qsort(times, (size_t)time->replays, sizeof *times, by_value);
  time->median = times[time->replays / 2], time->least = times[0], time->high = times[time->replays * 9 / 10];
  return true;
}

/* What the caller's thread spends on one call. So few that the driver's queue does not fill up. */
static bool host_cost(bed *b) {
  double fit = 0.01 / b->c->time.median;
  int calls = fit < 10 ? 10 : fit > 300 ? 300 : (int)fit;
  double start = rn_bench_now();
  for (int i = 0; i < calls; i++)
    if (!queue_library(b, i % b->c->sets, stream)) return false;
  b->c->host = (rn_bench_now() - start) / calls;
  return rn_stream_finish(stream);
}

static bool measure(bed *b) {
  rn_gpu_cell *c = b->c;
  int reads, writes;
  if (!prepare(b)) return false;
  if (!poison(b)) return fail(c, RN_GPU_FAILED, rn_device_error());
  rmsnorm_status status = call(b, 0, stream);
  if (status != RMSNORM_OK) return refused(c, status);
  if (!rn_stream_finish(stream)) return fail(c, RN_GPU_FAILED, rn_device_error());
  if (!check(b, 0, "called once,") || !poison(b)) return false;
  if (!rn_gpu_time_it(queue_library, b, c->sets, b->s->budget / 2, stream, &c->time))
    return fail(c, RN_GPU_FAILED, *rn_device_error() ? rn_device_error() : rmsnorm_last_error());
  if (!check(b, (c->sets < c->time.launches ? c->sets : c->time.launches) - 1, "replayed,")) return false;
  if (!host_cost(b)) return fail(c, RN_GPU_FAILED, rn_device_error());
  c->copy = rn_gpu_copy(1, 1, c->bytes, c->hot, b->s, stream, &c->copy_name);
  mix_of(c->op, &reads, &writes);
  if (reads + writes > 2) c->mixed = rn_gpu_copy(reads, writes, c->bytes, c->hot, b->s, stream, &c->mixed_name);
  return true;
}

bool rn_gpu_measure(rn_gpu_cell *c, const rn_gpu_settings *s) {
  bed b;
  memset(&b, 0, sizeof b);
  b.c = c, b.s = s;
  c->bytes = rn_gpu_bytes(c->op, c->dtype, c->rows, c->cols);
  c->outcome = RN_GPU_TIMED;
  if (!stream && !(stream = rn_stream_new())) return fail(c, RN_GPU_FAILED, rn_device_error());
  (void)measure(&b);
  free(b.forward), free(b.backward);
  return rn_device_finish();
}
