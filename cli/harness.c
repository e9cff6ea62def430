/* harness.c - run a case: make its arrays, call, compare. What the parts are for is in harness.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "harness_parts.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

const rn_library rn_library_real = {rmsnorm_forward, rmsnorm_stats, rmsnorm_backward, rmsnorm_backward_workspace_bytes};

const char *rn_finding_name(int kind) {
  static const char *const names[RN_FINDING_KINDS] = {"bits", "guard", "input", "refused", "float64", "staged"};
  return names[kind];
}

/* Bytes outputs hold before a call. They differ between the reference call and the call under test, so that an element
 * neither writes can not look right; input gaps are NaN, so that reading one shows. */
enum { POISON_REFERENCE = 0xa5, POISON_TEST = 0x5a, POISON_INPUT = 0xff };

/* ---- a parallel-for of the caller ---- */

typedef struct crew {
  atomic_llong next;
  int64_t tasks;
  void (*task)(void *context, int64_t index);
  void *context;
} crew;

static void *crew_work(void *argument) {
  crew *c = argument;
  for (;;) {
    int64_t i = atomic_fetch_sub(&c->next, 1); /* last task first: no order may be relied on */
    if (i < 0) return NULL;
    c->task(c->context, i);
  }
}

static void crew_run(void *context, int64_t tasks, void (*task)(void *, int64_t), void *task_context) {
  enum { MOST = 8 };
  const int *threads = context;
  pthread_t others[MOST];
  int started = 0;
  crew c = {tasks - 1, tasks, task, task_context};
  while (started < *threads - 1 && started < MOST && started < tasks - 1 &&
         !pthread_create(&others[started], NULL, crew_work, &c))
    started++;
  crew_work(&c);
  while (started) pthread_join(others[--started], NULL);
}

/* ---- from a case to arguments ---- */

static size_t size_of(const rn_case *c, int t) {
  return rmsnorm_dtype_bytes(c->dtype[t]);
}

static int64_t count_of(const rn_case *c, int t) {
  switch (t) {
  case RN_WEIGHT:
  case RN_DWEIGHT:
    return c->weight_shape == RMSNORM_WEIGHT_HEADS_COLS ? c->heads * c->cols
           : c->weight_shape == RMSNORM_WEIGHT_GROUP    ? c->cols / c->groups
                                                        : c->cols;
  case RN_SCALE_IN:
    return 1;
  case RN_SCALE:
    return c->rows * c->heads * rn_ref_blocks(&c->quant, c->cols);
  case RN_RSTD:
  case RN_RSTD_IN:
  case RN_SUMSQ:
  case RN_SUMSQ_IN:
  case RN_DOT:
  case RN_DOT_IN:
    return c->rows * c->heads * c->groups;
  default:
    return c->rows * c->heads * c->cols;
  }
}

rn_binding rn_bind(const rn_case *c, void *data) {
  rn_binding b = {data, c->heads * c->cols, c->cols, 1};
  return b;
}

static rmsnorm_input_tensor input_of(const rn_case *c, const rn_binding *b, int t) {
  return rmsnorm_input_heads(b[t].data, b[t].data ? c->dtype[t] : 0, b[t].row_stride, b[t].head_stride);
}
static rmsnorm_output_tensor output_of(const rn_case *c, const rn_binding *b, int t) {
  return rmsnorm_output_heads(b[t].data, b[t].data ? c->dtype[t] : 0, b[t].row_stride, b[t].head_stride);
}

rmsnorm_forward_args rn_bind_forward(const rn_case *c, const rn_binding *b) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = c->rows, a.heads = c->heads, a.cols = c->cols, a.groups = c->groups;
  a.eps = c->eps, a.divisor = c->divisor, a.numerics = c->numerics;
  a.weight = b[RN_WEIGHT].data, a.weight_dtype = c->dtype[RN_WEIGHT], a.weight_shape = c->weight_shape;
  a.x = input_of(c, b, RN_X), a.residual = input_of(c, b, RN_RESIDUAL), a.gate = input_of(c, b, RN_GATE);
  a.y = output_of(c, b, RN_Y), a.residual_out = output_of(c, b, RN_SUM);
  a.rstd = b[RN_RSTD].data, a.sumsq = b[RN_SUMSQ_IN].data;
  a.quant = c->quant;
  a.quant.scale = b[RN_SCALE_IN].data, a.quant.scale_out = b[RN_SCALE].data;
  a.quant.scale_stride =
      c->quant.scale_layout == RMSNORM_SCALE_COL_MAJOR ? b[RN_SCALE].col_stride : b[RN_SCALE].row_stride;
  if (c->quant.granularity < RMSNORM_QUANT_BLOCK) a.quant.scale_stride = 0;
  a.quant.q = output_of(c, b, RN_Q);
  return a;
}

rmsnorm_stats_args rn_bind_stats(const rn_case *c, const rn_binding *b) {
  rmsnorm_stats_args a = RMSNORM_STATS_ARGS_INIT;
  bool before = c->numerics.gate_place == RMSNORM_GATE_BEFORE;
  a.rows = c->rows, a.heads = c->heads, a.cols = c->cols, a.groups = c->groups;
  a.round_sum = c->numerics.round_sum, a.sum_dtype = c->dtype[RN_SUM];
  a.x = input_of(c, b, RN_X), a.residual = input_of(c, b, RN_RESIDUAL);
  if (c->numerics.gate && before) a.gate_kind = c->numerics.gate, a.gate = input_of(c, b, RN_GATE);
  a.sumsq = b[RN_SUMSQ].data;
  return a;
}

rmsnorm_backward_args rn_bind_backward(const rn_case *c, const rn_binding *b) {
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  a.rows = c->rows, a.heads = c->heads, a.cols = c->cols, a.groups = c->groups;
  a.eps = c->eps, a.divisor = c->divisor, a.numerics = c->numerics;
  a.weight = b[RN_WEIGHT].data, a.weight_dtype = c->dtype[RN_WEIGHT], a.weight_shape = c->weight_shape;
  a.x = input_of(c, b, RN_X), a.residual = input_of(c, b, RN_RESIDUAL), a.gate = input_of(c, b, RN_GATE);
  a.dy = input_of(c, b, RN_DY), a.dresidual_out = input_of(c, b, RN_DSUM);
  a.rstd = b[RN_RSTD_IN].data, a.sumsq = b[RN_SUMSQ_IN].data, a.dot = b[RN_DOT_IN].data;
  a.sum_dtype = c->dtype[RN_SUM];
  a.dx = output_of(c, b, RN_DX), a.dresidual = output_of(c, b, RN_DRESIDUAL), a.dgate = output_of(c, b, RN_DGATE);
  a.dweight = b[RN_DWEIGHT].data, a.dweight_dtype = c->dtype[RN_DWEIGHT];
  a.dot_out = b[RN_DOT].data;
  return a;
}

/* Device, threads and implementation, alike in the three structs. A device has its own. */
#define EXECUTE(args, h, name, crew_size, how)                                                                         \
  do {                                                                                                                 \
    int threads_ = (h)->device ? 0 : (h)->own.threads;                                                                 \
    (args).impl = (name);                                                                                              \
    (args).device = (h)->device ? RMSNORM_DEVICE_CUDA : RMSNORM_DEVICE_CPU;                                            \
    (args).threads = threads_ > 0 ? threads_ : 0;                                                                      \
    (args).launch = (h)->device ? &(h)->launch : NULL;                                                                 \
    if (threads_ < 0) {                                                                                                \
      (crew_size) = -threads_;                                                                                         \
      (how).context = &(crew_size), (how).threads = (crew_size), (how).run = crew_run;                                 \
      (args).parallel = &(how);                                                                                        \
    }                                                                                                                  \
  } while (0)

/* ---- findings ---- */

static rn_finding *find(rn_harness *h, int kind, int tensor) {
  for (int i = 0; i < h->found; i++)
    if (h->findings[i].kind == kind && h->findings[i].tensor == tensor) {
      h->findings[i].count++;
      return NULL;
    }
  if (h->found == (int)(sizeof h->findings / sizeof h->findings[0])) return NULL;
  rn_finding *f = &h->findings[h->found++];
  memset(f, 0, sizeof *f);
  f->kind = kind, f->tensor = tensor, f->count = 1;
  return f;
}

void rn_locate(const rn_harness *h, rn_finding *f, int64_t at) {
  const rn_case *c = h->c;
  int t = f->tensor;
  int64_t cols = t == RN_WEIGHT || t == RN_DWEIGHT ? h->count[t]
                 : t == RN_SCALE                   ? rn_ref_blocks(&c->quant, c->cols)
                 : rn_tensor_is_strided(t)         ? c->cols
                                                   : c->groups;
  int64_t heads = t == RN_DWEIGHT ? 1 : c->heads;
  f->col = at % cols, f->head = at / cols % heads, f->row = at / cols / heads;
}

void rn_found_value(rn_harness *h, int kind, int tensor, int64_t at, double got, double want) {
  rn_finding *f = find(h, kind, tensor);
  if (!f) return;
  rn_locate(h, f, at);
  f->got = got, f->want = want;
}

static bool same_element(int dtype, const void *a, const void *b, int64_t i) {
  size_t size = rmsnorm_dtype_bytes(dtype);
  if (!memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size)) return true;
  return dtype != RMSNORM_DTYPE_INT8 && isnan(rn_ref_load(dtype, a, i)) && isnan(rn_ref_load(dtype, b, i));
}

int64_t rn_compare_bits(rn_harness *h, int kind, int t, const void *got, const void *want, const uint8_t *skipped) {
  const rn_case *c = h->c;
  int64_t differing = 0;
  if (!memcmp(got, want, (size_t)h->count[t] * size_of(c, t))) return 0;
  for (int64_t i = 0; i < h->count[t]; i++) {
    if (same_element(c->dtype[t], got, want, i)) continue;
    if (skipped && skipped[i / (h->count[t] / (c->rows * c->heads))]) continue;
    differing++;
    rn_found_value(h, kind, t, i, rn_ref_load(c->dtype[t], got, i), rn_ref_load(c->dtype[t], want, i));
  }
  return differing;
}

/* ---- memory ---- */

static bool grow(void **p, size_t *have, size_t bytes) {
  bytes += 64;
  if (bytes <= *have) return true;
  free(*p);
  *p = NULL, *have = 0;
  bytes += bytes / 2;
  *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!*p) return false;
  *have = bytes;
  return true;
}

static bool place_slot(rn_harness *h, int t) {
  const rn_case *c = h->c;
  rn_slot *s = &h->slot[t];
  rn_layout l = c->layout[t];
  s->size = size_of(c, t), s->col_stride = 1;
  if (rn_tensor_is_strided(t)) {
    int64_t wide = c->cols + l.pad;
    s->rows = c->rows, s->heads = c->heads, s->cols = c->cols;
    s->head_stride = c->cols, s->row_stride = c->heads * c->cols;
    if (l.kind == RN_LAYOUT_PADDED) s->head_stride = wide, s->row_stride = c->heads * wide + l.pad / 2;
    if (l.kind == RN_LAYOUT_SLICE) s->row_stride += l.pad;
    if (l.kind == RN_LAYOUT_HEADS) s->row_stride = c->cols, s->head_stride = (c->rows ? c->rows : 1) * c->cols;
    if (l.kind == RN_LAYOUT_BACKWARDS) s->head_stride = -wide, s->row_stride = -c->heads * wide;
    if (l.kind == RN_LAYOUT_REPEATED) s->row_stride = 0;
  } else if (t == RN_SCALE && c->quant.granularity >= RMSNORM_QUANT_BLOCK) {
    int64_t blocks = rn_ref_blocks(&c->quant, c->cols), more = c->quant.scale_stride < 0 ? -c->quant.scale_stride : 0;
    bool col_major = c->quant.scale_layout == RMSNORM_SCALE_COL_MAJOR;
    s->rows = c->rows * c->heads, s->heads = 1, s->cols = blocks;
    s->row_stride = col_major ? 1 : blocks + more;
    s->col_stride = col_major ? s->rows + more : 1;
    s->head_stride = 0;
  } else {
    s->rows = s->heads = 1, s->cols = h->count[t];
    s->row_stride = s->head_stride = 0;
  }
  return rn_slot_place(s, l.offset, l.at_end);
}

static rn_binding slot_binding(const rn_slot *s) {
  rn_binding b = {s->data, s->row_stride, s->head_stride, s->col_stride};
  return b;
}

/* An input in guarded memory, and the same values packed for the reference call. */
static bool make_input(rn_harness *h, int t) {
  const rn_case *c = h->c;
  rn_slot *s = &h->slot[t];
  int64_t rows = rn_tensor_is_strided(t) ? c->rows * c->heads : 1,
          cols = rn_tensor_is_strided(t) ? c->cols : h->count[t];
  if (!grow(&h->packed[t], &h->packed_bytes[t], (size_t)h->count[t] * size_of(c, t)) || !place_slot(h, t) ||
      !grow(&h->scratch, &h->scratch_bytes, (size_t)cols * sizeof(double)))
    return false;
  double *values = h->scratch;
  for (int64_t r = 0; r < rows; r++) {
    rn_case_fill(c, t, r, values, cols);
    for (int64_t i = 0; i < cols; i++) rn_ref_store(c->dtype[t], h->packed[t], r * cols + i, values[i]);
  }
  rn_slot_poison(s, POISON_INPUT);
  rn_slot_put(s, h->packed[t]);
  rn_slot_keep(s);
  rn_slot_get(s, h->packed[t]); /* repeated rows have become equal */
  return true;
}

/* An input whose packed values are there already. */
static bool adopt_input(rn_harness *h, int t) {
  if (!place_slot(h, t)) return false;
  rn_slot_poison(&h->slot[t], POISON_INPUT);
  rn_slot_put(&h->slot[t], h->packed[t]);
  rn_slot_keep(&h->slot[t]);
  return true;
}

/* Any sums will do, as long as they are not those of the rows. */
static bool make_sums(rn_harness *h) {
  const rn_case *c = h->c;
  if (!grow(&h->packed[RN_SUMSQ_IN], &h->packed_bytes[RN_SUMSQ_IN], (size_t)h->count[RN_SUMSQ_IN] * sizeof(float)))
    return false;
  float *sums = h->packed[RN_SUMSQ_IN];
  int64_t width = c->cols / c->groups;
  for (int64_t i = 0; i < h->count[RN_SUMSQ_IN]; i++) {
    double sum = 0;
    for (int64_t k = 0; k < width; k++) {
      double v = rn_ref_load(c->dtype[RN_X], h->packed[RN_X], i * width + k);
      sum += 1.7 * v * v;
    }
    sums[i] = (float)(sum > 0x1p126 ? 0x1p126 : sum);
  }
  return adopt_input(h, RN_SUMSQ_IN);
}

/* ---- the reference call ---- */

static void refused(rn_harness *h, rmsnorm_status status) {
  rn_finding *f = find(h, RN_FOUND_REFUSED, RN_X);
  if (f) snprintf(f->text, sizeof f->text, "%s: %s", rmsnorm_status_string(status), rmsnorm_last_error());
}

void rn_bind_packed(const rn_harness *h, rn_binding *b) {
  memset(b, 0, RN_TENSORS * sizeof *b);
  for (int t = 0; t < RN_INPUTS; t++)
    if (h->c->dtype[t]) b[t] = rn_bind(h->c, h->packed[t]);
  for (int t = RN_INPUTS; t < RN_TENSORS; t++)
    if (h->all & 1u << t) b[t] = rn_bind(h->c, h->packed[t]);
  b[RN_SCALE].row_stride = rn_ref_blocks(&h->c->quant, h->c->cols);
}

static rmsnorm_status reference_forward(rn_harness *h, const rn_case *c) {
  rn_binding b[RN_TENSORS];
  rn_bind_packed(h, b);
  rmsnorm_forward_args a = rn_bind_forward(c, b);
  a.impl = "portable", a.threads = 1;
  a.quant.scale_layout = RMSNORM_SCALE_ROW_MAJOR, a.quant.scale_stride = 0;
  if (!c->alone) return h->reference_library->forward(&a, NULL);
  rmsnorm_status status = RMSNORM_OK;
  a.rows = 1;
  for (int64_t r = 0; r < c->rows && status == RMSNORM_OK; r++) {
    int64_t blocks = rn_ref_blocks(&c->quant, c->cols);
    rmsnorm_forward_args one = a;
#define ADVANCE(member, t, n)                                                                                          \
  if (one.member) one.member = (void *)((char *)(uintptr_t)one.member + r * (n) * (int64_t)size_of(c, t))
    ADVANCE(x.data, RN_X, c->heads * c->cols);
    ADVANCE(residual.data, RN_RESIDUAL, c->heads * c->cols);
    ADVANCE(gate.data, RN_GATE, c->heads * c->cols);
    ADVANCE(y.data, RN_Y, c->heads * c->cols);
    ADVANCE(residual_out.data, RN_SUM, c->heads * c->cols);
    ADVANCE(quant.q.data, RN_Q, c->heads * c->cols);
    ADVANCE(quant.scale_out, RN_SCALE, c->heads * blocks);
    ADVANCE(rstd, RN_RSTD, c->heads * c->groups);
    ADVANCE(sumsq, RN_SUMSQ_IN, c->heads * c->groups);
#undef ADVANCE
    status = h->reference_library->forward(&one, NULL);
  }
  return status;
}

static rmsnorm_status reference_stats(rn_harness *h) {
  rn_binding b[RN_TENSORS];
  rn_bind_packed(h, b);
  rmsnorm_stats_args a = rn_bind_stats(h->c, b);
  a.impl = "portable", a.threads = 1;
  return h->reference_library->stats(&a, NULL);
}

static rmsnorm_status reference_backward(rn_harness *h) {
  rn_binding b[RN_TENSORS];
  size_t bytes = 0;
  rn_bind_packed(h, b);
  rmsnorm_backward_args a = rn_bind_backward(h->c, b);
  a.rstd = NULL, a.dot = NULL;
  a.impl = "portable", a.threads = 1;
  rmsnorm_status status = h->reference_library->workspace(&a, &bytes);
  if (status != RMSNORM_OK) return status;
  void *workspace = aligned_alloc(64, (bytes / 64 + 1) * 64);
  if (workspace) memset(workspace, POISON_INPUT, bytes);
  a.workspace = bytes ? workspace : NULL, a.workspace_bytes = bytes;
  status = h->reference_library->backward(&a, NULL);
  free(workspace);
  return status;
}

/* rstd as a forward with these numerics returns it, for backward. Room: packed[RN_RSTD]. */
static rmsnorm_status forward_rstd(rn_harness *h, int round_rstd) {
  rn_case c = *h->c;
  rn_binding b[RN_TENSORS];
  rn_bind_packed(h, b);
  c.op = RMSNORM_OP_FORWARD, c.numerics.round_rstd = round_rstd;
  c.quant.granularity = 0;
  c.dtype[RN_Y] = c.dtype[RN_X];
  void *y = malloc((size_t)h->count[RN_X] * 8 + 8), *sum = malloc((size_t)h->count[RN_X] * 8 + 8);
  for (int t = RN_INPUTS; t < RN_TENSORS; t++) b[t].data = NULL;
  b[RN_Y] = rn_bind(&c, y), b[RN_RSTD].data = h->packed[RN_RSTD];
  if (c.dtype[RN_SUM] && c.dtype[RN_RESIDUAL]) b[RN_SUM] = rn_bind(&c, sum);
  rmsnorm_forward_args a = rn_bind_forward(&c, b);
  a.impl = "portable", a.threads = 1;
  rmsnorm_status status = y && sum ? h->reference_library->forward(&a, NULL) : RMSNORM_ERROR_NULL;
  free(y), free(sum);
  return status;
}

/* ---- the two halves of a case ---- */

void rn_harness_init(rn_harness *h) {
  memset(h, 0, sizeof *h);
  h->reference_library = h->library = &rn_library_real;
}

void rn_harness_free(rn_harness *h) {
  if (h->device) (void)rn_device_use(h->device);
  rn_device_free(h->live_place);
  for (int t = 0; t < RN_TENSORS; t++) rn_slot_free(&h->slot[t]), free(h->packed[t]);
  free(h->scratch);
  memset(h, 0, sizeof *h);
}

static void count_findings(rn_harness *h, rn_tally *tally) {
  tally->failed_cases += h->found > 0;
  for (int i = 0; i < h->found; i++) tally->found[h->findings[i].kind]++;
}

int rn_harness_prepare(rn_harness *h, const rn_case *c, rn_tally *portable) {
  h->c = c, h->found = 0, h->all = 0;
  h->measured = portable->measure;
  for (int t = 0; t < RN_WORKSPACE; t++) {
    h->count[t] = count_of(c, t);
    bool stands_for_type = t == RN_SUM && c->op != RMSNORM_OP_FORWARD;
    if (t >= RN_INPUTS && c->dtype[t] && !stands_for_type) h->all |= 1u << t;
    if (t >= RN_INPUTS && !grow(&h->packed[t], &h->packed_bytes[t], (size_t)h->count[t] * 8)) return 2;
    if (t >= RN_INPUTS) memset(h->packed[t], POISON_REFERENCE, (size_t)h->count[t] * size_of(c, t));
  }
  for (int t = 0; t < RN_SUMSQ_IN; t++)
    if (c->dtype[t] && !make_input(h, t)) return 2;
  if (c->dtype[RN_SUMSQ_IN] && !make_sums(h)) return 2;

  rmsnorm_status status;
  if (c->op == RMSNORM_OP_FORWARD) {
    status = reference_forward(h, c);
  } else if (c->op == RMSNORM_OP_STATS) {
    status = reference_stats(h);
  } else {
    status = reference_backward(h);
    if (status == RMSNORM_OK) status = forward_rstd(h, RMSNORM_ROUND_NONE);
  }
  if (status != RMSNORM_OK) {
    refused(h, status);
    count_findings(h, portable);
    return 2;
  }
  bool ok = c->unjudged                   ? true
            : c->op == RMSNORM_OP_FORWARD ? rn_judge_forward(h)
            : c->op == RMSNORM_OP_STATS   ? rn_judge_stats(h)
                                          : rn_judge_backward(h);
  count_findings(h, portable);
  return !ok ? 2 : h->found > 0;
}

/* Inputs of a backward that come out of other calls. */
static bool hand_in(rn_harness *h, rn_case *c) {
  struct {
    bool wanted;
    int from, to, dtype;
  } list[] = {
      {c->saved_rstd, RN_RSTD, RN_RSTD_IN, c->dtype[RN_X] == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32},
      {c->given_dot, RN_DOT, RN_DOT_IN, RMSNORM_DTYPE_F32}};
  if (c->op != RMSNORM_OP_BACKWARD) return true;
  if (c->saved_rstd && c->numerics.round_rstd && forward_rstd(h, c->numerics.round_rstd) != RMSNORM_OK) return false;
  for (int i = 0; i < 2; i++) {
    if (!list[i].wanted) continue;
    int to = list[i].to;
    c->dtype[to] = list[i].dtype;
    size_t bytes = (size_t)h->count[to] * size_of(c, to);
    if (!grow(&h->packed[to], &h->packed_bytes[to], bytes)) return false;
    memcpy(h->packed[to], h->packed[list[i].from], bytes);
    if (!adopt_input(h, to)) return false;
  }
  return true;
}

/* ---- the call under test ---- */

static rmsnorm_backward_args backward_under_test(rn_harness *h, const char *impl, int *crew_size,
                                                 rmsnorm_parallel *how) {
  rmsnorm_backward_args a = rn_bind_backward(&h->own, h->bound);
  EXECUTE(a, h, impl, *crew_size, *how);
  a.workspace = h->bound[RN_WORKSPACE].data, a.workspace_bytes = h->workspace_bytes;
  return a;
}

static rmsnorm_status call(rn_harness *h, const char *impl) {
  const rn_case *c = &h->own;
  const rn_binding *b = h->bound;
  rmsnorm_parallel how;
  int crew_size;
  memset(&how, 0, sizeof how);
  if (c->op == RMSNORM_OP_STATS || c->split) {
    rmsnorm_stats_args a = rn_bind_stats(c, b);
    EXECUTE(a, h, impl, crew_size, how);
    rmsnorm_status status = h->library->stats(&a, h->stream);
    if (status != RMSNORM_OK || !c->split) return status;
  }
  if (c->op == RMSNORM_OP_FORWARD) {
    rmsnorm_forward_args a = rn_bind_forward(c, b);
    if (c->split) a.sumsq = b[RN_SUMSQ].data;
    EXECUTE(a, h, impl, crew_size, how);
    return h->library->forward(&a, h->stream);
  }
  rmsnorm_backward_args a = backward_under_test(h, impl, &crew_size, &how);
  return h->library->backward(&a, h->stream);
}

/* Outputs may share the slot of an input. */
static bool is_alias(const rn_harness *h, int t) {
  return t >= RN_INPUTS && t < RN_WORKSPACE && h->own.alias[t] >= 0;
}

/* The slot that an array of the call lies in. NULL: the call has no such array. */
static rn_slot *slot_of(rn_harness *h, int t) {
  return !h->bound[t].data ? NULL : &h->slot[is_alias(h, t) ? h->own.alias[t] : t];
}

/* Whether the array has a slot of its own, filled and looked at once. */
static bool has_slot(const rn_harness *h, int t) {
  return h->bound[t].data && !is_alias(h, t);
}

static int device_trouble(rn_harness *h) {
  rn_finding *f = find(h, RN_FOUND_REFUSED, RN_X);
  if (f) snprintf(f->text, sizeof f->text, "the device: %.180s", rn_device_error());
  return 2;
}

static bool upload(rn_harness *h) {
  for (int t = 0; t < RN_TENSORS; t++)
    if (has_slot(h, t) && !rn_slot_upload(&h->slot[t])) return false;
  return rn_device_finish(); /* other streams do not wait for the copies */
}

/* The number of rows that exist, on the device. */
static bool place_live_rows(rn_harness *h, int64_t rows) {
  h->launch.live_rows = NULL;
  if (!h->live) return true;
  if (!h->live_place && !(h->live_place = rn_device_alloc(sizeof rows))) return false;
  h->launch.live_rows = h->live_place;
  return rn_device_upload(h->live_place, &rows, sizeof rows);
}

/* How many of its rows a call has written. */
static int64_t rows_written(const rn_harness *h) {
  int64_t rows = h->own.rows;
  return !h->live || h->live_rows > rows ? rows : h->live_rows < 0 ? 0 : h->live_rows;
}

/* The elements of an output that belong to the rows written: its slot becomes so much smaller. */
static int64_t cut_to_rows_written(const rn_harness *h, rn_slot *s, int64_t elements) {
  int64_t rows = h->own.rows, written = rows_written(h);
  if (written == rows) return elements;
  if (s->rows == 1 && s->heads == 1)
    s->cols = s->cols / rows * written; /* packed over all rows */
  else
    s->rows = s->rows / rows * written; /* a dimension of rows, or of rows and heads */
  return elements / rows * written;
}

/* The backward's workspace, once all other arrays have their places. */
static int place_workspace(rn_harness *h, const char *impl) {
  rmsnorm_parallel how;
  int crew_size;
  memset(&how, 0, sizeof how);
  h->workspace_bytes = 0;
  if (h->own.op != RMSNORM_OP_BACKWARD) return 0;
  rmsnorm_backward_args a = backward_under_test(h, impl, &crew_size, &how);
  size_t bytes = 0;
  h->status = h->library->workspace(&a, &bytes);
  if (h->status != RMSNORM_OK || !bytes) return 0;
  rn_slot *s = &h->slot[RN_WORKSPACE];
  s->rows = s->heads = 1, s->cols = (int64_t)bytes, s->row_stride = s->head_stride = 0;
  s->col_stride = 1, s->size = 1;
  if (!rn_slot_place(s, 0, bytes % 64 == 0)) return 2;
  rn_slot_poison(s, POISON_INPUT), rn_slot_keep(s);
  h->bound[RN_WORKSPACE] = slot_binding(s), h->workspace_bytes = bytes;
  return 0;
}

/* Binds the mirror of every slot instead of the slot. */
static int place_mirrors(rn_harness *h) {
  if (!upload(h)) return device_trouble(h);
  for (int t = 0; t < RN_TENSORS; t++) {
    rn_slot *s = slot_of(h, t);
    if (s) h->bound[t].data = rn_slot_mirrored(s);
  }
  return 0;
}

static int place(rn_harness *h, const char *impl) {
  rn_case *c = &h->own;
  rn_binding *b = h->bound;
  memset(b, 0, sizeof h->bound);
  h->found = 0, h->status = RMSNORM_OK, h->outputs = h->all & c->want;
  if (h->device && !rn_device_use(h->device)) return device_trouble(h);
  if (!hand_in(h, c)) return 2;
  if (c->split) c->dtype[RN_SUMSQ] = RMSNORM_DTYPE_F32;
  for (int t = 0; t < RN_INPUTS; t++)
    if (c->dtype[t]) rn_slot_restore(&h->slot[t]), b[t] = slot_binding(&h->slot[t]);
  for (int t = RN_INPUTS; t < RN_WORKSPACE; t++) {
    if (!(h->outputs & 1u << t) && !(c->split && t == RN_SUMSQ)) continue;
    if (c->alias[t] >= 0) {
      b[t] = b[c->alias[t]];
      continue;
    }
    if (!place_slot(h, t)) return 2;
    rn_slot_poison(&h->slot[t], POISON_TEST), rn_slot_keep(&h->slot[t]);
    b[t] = slot_binding(&h->slot[t]);
  }
  int answer = place_workspace(h, impl);
  if (answer || !h->device) return answer;
  if (!place_live_rows(h, h->graph ? c->rows : h->live_rows)) return device_trouble(h);
  return place_mirrors(h);
}

int rn_harness_place(rn_harness *h, const char *impl) {
  const rn_case *outside = h->c;
  h->own = *outside, h->c = &h->own;
  int answer = place(h, impl);
  h->c = outside;
  return answer;
}

/* The call becomes a graph; the graph runs, everything it wrote is undone, and it runs again. */
static rmsnorm_status call_graph(rn_harness *h, const char *impl) {
  if (!rn_graph_begin(h->stream)) {
    device_trouble(h);
    return RMSNORM_ERROR_DEVICE;
  }
  rmsnorm_status status = call(h, impl);
  void *graph = rn_graph_end(h->stream);
  if (status != RMSNORM_OK) {
    rn_graph_free(graph);
    return status;
  }
  bool ok = graph && rn_graph_launch(graph, h->stream) && rn_stream_finish(h->stream) && upload(h) &&
            place_live_rows(h, h->live_rows) && rn_device_finish() && rn_graph_launch(graph, h->stream) &&
            rn_stream_finish(h->stream);
  if (!ok) device_trouble(h);
  rn_graph_free(graph);
  return RMSNORM_OK;
}

void rn_harness_call(rn_harness *h, const char *impl) {
  if (h->status != RMSNORM_OK) return; /* the workspace was refused already */
  if (h->device && !rn_device_use(h->device)) {
    device_trouble(h);
    return;
  }
  h->status = h->graph ? call_graph(h, impl) : call(h, impl);
}

/* Everything back from the device. */
static bool download(rn_harness *h) {
  if (!rn_device_use(h->device) || !rn_stream_finish(h->stream)) return false;
  for (int t = 0; t < RN_TENSORS; t++) {
    bool wild = false;
    int64_t offset = 0;
    if (!has_slot(h, t)) continue;
    if (!grow(&h->scratch, &h->scratch_bytes, h->slot[t].usable)) return false;
    if (!rn_slot_download(&h->slot[t], h->scratch, &wild, &offset)) return false;
    rn_finding *f = wild ? find(h, RN_FOUND_GUARD, t) : NULL;
    if (f) f->col = offset;
  }
  return true;
}

/* Compares what the call returned, and makes the elements those of the image again. Rows that do not exist have to be
 * as they were, which is for look_for_damage to see. */
static bool compare_outputs(rn_harness *h, rn_tally *tally) {
  for (int t = RN_INPUTS; t < RN_WORKSPACE; t++) {
    bool sums = h->own.split && t == RN_SUMSQ; /* they are not compared: what is made of them is */
    if (!(h->outputs & 1u << t) && !sums) continue;
    rn_slot cut = *slot_of(h, t);
    int64_t all = h->count[t];
    h->count[t] = cut_to_rows_written(h, &cut, all);
    bool ok = grow(&h->scratch, &h->scratch_bytes, (size_t)all * cut.size);
    if (ok && !sums) {
      rn_slot_get(&cut, h->scratch);
      tally->differing += rn_compare_bits(h, RN_FOUND_BITS, t, h->scratch, h->packed[t], NULL);
      tally->elements += h->count[t];
    }
    if (ok) rn_slot_forget_elements(&cut);
    h->count[t] = all;
    if (!ok) return false;
  }
  return true;
}

static void look_for_damage(rn_harness *h) {
  for (int t = 0; t < RN_TENSORS; t++) {
    int64_t offset;
    if (!has_slot(h, t) || !rn_slot_damage(&h->slot[t], &offset)) continue;
    bool aliased = false;
    for (int o = RN_INPUTS; o < RN_WORKSPACE; o++) aliased |= h->own.alias[o] == t && h->bound[o].data;
    rn_finding *f = find(h, t < RN_INPUTS && !aliased ? RN_FOUND_INPUT : RN_FOUND_GUARD, t);
    if (f) f->col = offset;
    rn_slot_restore(&h->slot[t]);
  }
}

int rn_harness_collect(rn_harness *h, const char *impl, rn_tally *tally, bool *unsupported) {
  const rn_case *outside = h->c;
  bool ran = h->status == RMSNORM_OK;
  int answer = 2;
  *unsupported = !ran && h->status == RMSNORM_ERROR_UNSUPPORTED && strcmp(impl, "portable");
  h->c = &h->own;
  if (!ran && !*unsupported) refused(h, h->status);
  if (h->device && !download(h)) {
    device_trouble(h);
    goto done;
  }
  if (h->bound[RN_WORKSPACE].data) rn_slot_forget_elements(&h->slot[RN_WORKSPACE]);
  if (ran && !compare_outputs(h, tally)) goto done;
  look_for_damage(h);
  if (*unsupported)
    tally->unsupported++;
  else
    tally->cases++;
  answer = h->found > 0;
done:
  count_findings(h, tally);
  h->c = outside;
  return answer;
}

int rn_harness_run(rn_harness *h, const char *impl, rn_tally *tally, bool *unsupported) {
  *unsupported = false;
  int answer = rn_harness_place(h, impl);
  if (answer) {
    count_findings(h, tally);
    return answer;
  }
  rn_harness_call(h, impl);
  return rn_harness_collect(h, impl, tally, unsupported);
}
