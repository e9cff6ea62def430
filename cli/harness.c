/* harness.c - run a case: make its arrays, call, compare. What the parts are for is in harness.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "harness_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const rn_library rn_library_real = {rmsnorm_forward, rmsnorm_stats, rmsnorm_backward, rmsnorm_backward_workspace_bytes};

const char *rn_finding_name(int kind) {
  static const char *const names[RN_FINDING_KINDS] = {"bits", "guard", "input", "refused", "float64", "staged"};
  return names[kind];
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

/* ---- findings ---- */

rn_finding *rn_find(rn_harness *h, int kind, int tensor) {
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
  rn_finding *f = rn_find(h, kind, tensor);
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

bool rn_grow(void **p, size_t *have, size_t bytes) {
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

bool rn_place_slot(rn_harness *h, int t) {
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

/* The values of an input, packed: each row is made by itself, so that threads may share them where there are many. */
static bool fill(const rn_harness *h, int t, int64_t rows, int64_t cols) {
  const rn_case *c = h->c;
  int64_t fresh = c->period && c->period < rows ? c->period : rows;
  size_t bytes = (size_t)cols * size_of(c, t);
  char *packed = h->packed[t];
  bool ok = true;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) reduction(&& : ok) if (h->device && fresh * cols > 1 << 16)
#endif
  for (int64_t r = 0; r < fresh; r++) {
    double *values = malloc((size_t)cols * sizeof *values);
    if (values) {
      rn_case_fill(c, t, r, values, cols);
      for (int64_t i = 0; i < cols; i++) rn_ref_store(c->dtype[t], packed, r * cols + i, values[i]);
    }
    ok = ok && values;
    free(values);
  }
  for (int64_t r = fresh; ok && r < rows; r++)
    memcpy(packed + (size_t)r * bytes, packed + (size_t)(r % fresh) * bytes, bytes);
  return ok;
}

/* An input in guarded memory, and the same values packed for the reference call. */
static bool make_input(rn_harness *h, int t) {
  const rn_case *c = h->c;
  rn_slot *s = &h->slot[t];
  bool strided = rn_tensor_is_strided(t);
  if (!rn_grow(&h->packed[t], &h->packed_bytes[t], (size_t)h->count[t] * size_of(c, t)) || !rn_place_slot(h, t) ||
      !fill(h, t, strided ? c->rows * c->heads : 1, strided ? c->cols : h->count[t]))
    return false;
  rn_slot_poison(s, RN_POISON_INPUT);
  rn_slot_put(s, h->packed[t]);
  rn_slot_keep(s);
  rn_slot_get(s, h->packed[t]); /* repeated rows have become equal */
  return true;
}

/* An input whose packed values are there already. */
static bool adopt_input(rn_harness *h, int t) {
  if (!rn_place_slot(h, t)) return false;
  rn_slot_poison(&h->slot[t], RN_POISON_INPUT);
  rn_slot_put(&h->slot[t], h->packed[t]);
  rn_slot_keep(&h->slot[t]);
  return true;
}

/* Any sums will do, as long as they are not those of the rows. */
static bool make_sums(rn_harness *h) {
  const rn_case *c = h->c;
  if (!rn_grow(&h->packed[RN_SUMSQ_IN], &h->packed_bytes[RN_SUMSQ_IN], (size_t)h->count[RN_SUMSQ_IN] * sizeof(float)))
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

void rn_refused(rn_harness *h, rmsnorm_status status) {
  rn_finding *f = rn_find(h, RN_FOUND_REFUSED, RN_X);
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

/* One thread, except where a device is tried on large problems: threads have been tried on the CPU. */
static int reference_threads(const rn_harness *h) {
  return h->device && h->c->unjudged ? 0 : 1;
}

static rmsnorm_status reference_forward(rn_harness *h, const rn_case *c) {
  rn_binding b[RN_TENSORS];
  rn_bind_packed(h, b);
  rmsnorm_forward_args a = rn_bind_forward(c, b);
  a.impl = "portable", a.threads = reference_threads(h);
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
  a.impl = "portable", a.threads = reference_threads(h);
  return h->reference_library->stats(&a, NULL);
}

static rmsnorm_status reference_backward(rn_harness *h) {
  rn_binding b[RN_TENSORS];
  size_t bytes = 0;
  rn_bind_packed(h, b);
  rmsnorm_backward_args a = rn_bind_backward(h->c, b);
  a.rstd = NULL, a.dot = NULL;
  a.impl = "portable", a.threads = reference_threads(h);
  rmsnorm_status status = h->reference_library->workspace(&a, &bytes);
  if (status != RMSNORM_OK) return status;
  void *workspace = aligned_alloc(64, (bytes / 64 + 1) * 64);
  if (workspace) memset(workspace, RN_POISON_INPUT, bytes);
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
  a.impl = "portable", a.threads = reference_threads(h);
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

void rn_count_findings(rn_harness *h, rn_tally *tally) {
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
    if (t >= RN_INPUTS && !rn_grow(&h->packed[t], &h->packed_bytes[t], (size_t)h->count[t] * 8)) return 2;
    if (t >= RN_INPUTS) memset(h->packed[t], RN_POISON_REFERENCE, (size_t)h->count[t] * size_of(c, t));
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
    rn_refused(h, status);
    rn_count_findings(h, portable);
    return 2;
  }
  bool ok = c->unjudged                   ? true
            : c->op == RMSNORM_OP_FORWARD ? rn_judge_forward(h)
            : c->op == RMSNORM_OP_STATS   ? rn_judge_stats(h)
                                          : rn_judge_backward(h);
  rn_count_findings(h, portable);
  return !ok ? 2 : h->found > 0;
}

/* Inputs of a backward that come out of other calls. */
bool rn_hand_in(rn_harness *h, rn_case *c) {
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
    if (!rn_grow(&h->packed[to], &h->packed_bytes[to], bytes)) return false;
    memcpy(h->packed[to], h->packed[list[i].from], bytes);
    if (!adopt_input(h, to)) return false;
  }
  return true;
}
