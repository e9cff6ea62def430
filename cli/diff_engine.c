/* diff_engine.c - rn_diff_explain: what the tensors really hold, which numerics are no mistake, which rows to look at;
 * then the search, and the verdict.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include "message.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- types ---- */

static bool holds(const rn_diff_tensor *t, int64_t count, int dtype) {
  int64_t step = count / 400000 + 1;
  for (int64_t i = 0; i < count; i += step) {
    double v = rn_ref_load(t->dtype, t->data, i);
    if (isfinite(v) && rn_ref_round(dtype, v) != v) return false;
  }
  return true;
}

/* The narrowest type that holds every value: .npy has no bf16, so that such tensors come as f32. `wanted` goes first.
 */
static int effective(const rn_diff_tensor *t, int64_t count, int wanted) {
  if (!t->data) return RMSNORM_DTYPE_NONE;
  if (t->dtype == RMSNORM_DTYPE_F64 && holds(t, count, RMSNORM_DTYPE_F32)) {
    if (wanted != RMSNORM_DTYPE_F32 && wanted != RMSNORM_DTYPE_F64 && wanted && holds(t, count, wanted)) return wanted;
    return RMSNORM_DTYPE_F32;
  }
  if (t->dtype != RMSNORM_DTYPE_F32) return t->dtype;
  if ((wanted == RMSNORM_DTYPE_F16 || wanted == RMSNORM_DTYPE_BF16) && holds(t, count, wanted)) return wanted;
  if (holds(t, count, RMSNORM_DTYPE_BF16)) return RMSNORM_DTYPE_BF16;
  return holds(t, count, RMSNORM_DTYPE_F16) ? RMSNORM_DTYPE_F16 : RMSNORM_DTYPE_F32;
}

static bool narrow(int dtype) {
  return dtype == RMSNORM_DTYPE_F16 || dtype == RMSNORM_DTYPE_BF16;
}

static int mantissa(int dtype) {
  switch (dtype) {
  case RMSNORM_DTYPE_F16:
    return 10;
  case RMSNORM_DTYPE_BF16:
    return 7;
  case RMSNORM_DTYPE_F64:
    return 50;
  default:
    return 23;
  }
}

static int64_t weight_count(const rn_diff_input *in) {
  switch (in->weight_shape) {
  case RMSNORM_WEIGHT_HEADS_COLS:
    return in->heads * in->cols;
  case RMSNORM_WEIGHT_GROUP:
    return in->cols / (in->groups > 0 ? in->groups : 1);
  default:
    return in->cols;
  }
}

static void settle_types(rn_diff *d) {
  const rn_diff_input *in = d->in;
  int64_t count = d->rows * d->cols;
  bool codes = in->subject == RN_DIFF_Q;
  int64_t theirs = in->subject == RN_DIFF_DWEIGHT ? weight_count(in) : count;
  d->weight_type = in->weight.data ? in->weight.dtype : RMSNORM_DTYPE_NONE;
  d->x_type = in->x.dtype, d->residual_type = in->residual.data ? in->residual.dtype : RMSNORM_DTYPE_NONE;
  int wanted = narrow(d->x_type) ? d->x_type : effective(&in->x, count, 0);
  d->y_type = codes ? wanted : effective(&in->theirs, theirs, wanted);
  /* A narrow x in a wide file was narrow where it came from only if what came out is narrow as well. */
  if (narrow(d->y_type)) {
    d->x_type = effective(&in->x, count, d->y_type);
    if (in->residual.data) d->residual_type = effective(&in->residual, count, d->y_type);
    if (in->weight.data) d->weight_type = effective(&in->weight, weight_count(in), d->y_type);
  }
  if (d->x_type == RMSNORM_DTYPE_F64 && effective(&in->x, count, 0) != RMSNORM_DTYPE_F64) d->x_type = RMSNORM_DTYPE_F32;
  d->real = d->x_type == RMSNORM_DTYPE_F64 || d->y_type == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32;
  const int types[] = {d->x_type, d->y_type, d->weight_type, d->residual_type};
  d->digits = 52;
  for (int i = 0; i < 4; i++)
    if (types[i] && mantissa(types[i]) < d->digits) d->digits = mantissa(types[i]);
  d->close = 4 * ldexp(1, -d->digits);
  if (d->digits >= 23 && !narrow(d->x_type)) d->close = 64 * rn_unit(d);
}

/* ---- the models that are no mistake ---- */

static int rounding(const rn_diff *d, int where) {
  switch (where) {
  case RMSNORM_ROUND_X:
    return d->x_type;
  case RMSNORM_ROUND_WEIGHT:
    return narrow(d->weight_type) ? d->weight_type : d->real;
  case RMSNORM_ROUND_PROMOTED:
    return !d->weight_type || d->x_type == d->weight_type ? d->x_type : d->real;
  default:
    return d->real;
  }
}

rn_model rn_model_from(const rn_diff *d, const rmsnorm_numerics *n) {
  rn_model m;
  memset(&m, 0, sizeof m);
  m.sum_dtype = d->real;
  if (d->in->residual.data && n->round_sum == RMSNORM_ROUND_STORED)
    m.sum_dtype = d->x_type == d->residual_type ? d->x_type : d->real;
  m.stat_sum_dtype = m.sum_dtype;
  m.gate = n->gate, m.gate_place = n->gate ? n->gate_place : 0;
  m.row_step = d->cols;
  m.eps = d->real == RMSNORM_DTYPE_F64 ? d->in->eps : (double)(float)d->in->eps;
  if (d->in->eps < 0) m.eps = 1e-6;
  m.divisor = (double)d->in->divisor;
  m.groups = d->in->groups > 0 ? d->in->groups : 1;
  m.offset = m.origin_offset = d->in->weight.data ? (double)n->weight_offset : 0;
  m.stages.real = d->real;
  m.stages.rstd = rounding(d, n->round_rstd);
  m.stages.xhat = rounding(d, n->round_xhat);
  m.stages.normed = rounding(d, n->round_normed);
  m.stages.narrow = m.out_narrow = rn_ref_round;
  m.out_dtype = d->y_type;
  m.rows_written = d->rows, m.cols_written = d->cols;
  return m;
}

static void take_bases(rn_diff *d) {
  rmsnorm_numerics n;
  if (d->in->numerics_given) {
    d->base[d->bases] = rn_model_from(d, &d->in->numerics);
    d->base_numerics[d->bases++] = d->in->numerics;
    return;
  }
  for (int i = 0; rmsnorm_preset_name(i) && d->bases < RN_BASES_MOST; i++) {
    if (rmsnorm_preset(rmsnorm_preset_name(i), &n) != RMSNORM_OK || (n.gate != 0) != (d->in->gate.data != NULL))
      continue;
    rn_model m = rn_model_from(d, &n);
    bool seen = false;
    for (int k = 0; k < d->bases; k++) {
      const rn_model *b = &d->base[k];
      seen = seen || (b->sum_dtype == m.sum_dtype && b->stages.rstd == m.stages.rstd &&
                      b->stages.xhat == m.stages.xhat && b->stages.normed == m.stages.normed && b->offset == m.offset &&
                      b->gate == m.gate && b->gate_place == m.gate_place);
    }
    if (!seen) d->base_numerics[d->bases] = n, d->base[d->bases++] = m;
  }
}

/* ---- rows and columns that were never written: one pattern from some place to the end ---- */

static bool pattern_at(const rn_diff *d, int64_t row, int64_t col, double pattern) {
  return rn_same(rn_diff_theirs(d, row, col), pattern);
}

/* Whether most of our values in this region are not the pattern. */
static bool unlike(rn_diff *d, int64_t row, int64_t last_row, int64_t col, double pattern) {
  int64_t other = 0, all = 0, step = (last_row - row) / 64 + 1;
  const rn_model *m = &d->base[0];
  d->w_of = NULL;
  for (int64_t r = row; r < last_row; r += step) {
    rn_model_row(d, m, r, d->u);
    double rstd = rn_model_rstd(d, m, r, 0, d->u);
    bool weighted = rn_model_weights(d, m, r);
    for (int64_t c = col; c < d->cols; c++, all++)
      other += isfinite(d->u[c]) && !rn_same(rn_model_value(d, m, r, c, d->u[c], rstd, weighted), pattern);
  }
  return 2 * other > all;
}

static void find_unwritten(rn_diff *d) {
  double last = rn_diff_theirs(d, d->rows - 1, d->cols - 1);
  int64_t row = d->rows, col = d->cols;
  for (bool same = true; same && row > 0;) {
    for (int64_t c = 0; c < d->cols && same; c++) same = pattern_at(d, row - 1, c, last);
    if (same) row--;
  }
  for (bool same = true; same && col > 0;) {
    for (int64_t r = 0; r < row && same; r++) same = pattern_at(d, r, col - 1, last);
    if (same) col--;
  }
  /* A few elements that happen to be alike are no pattern, and neither is what our own rows would hold there. */
  bool live_row = (d->rows - row) * d->cols >= 4 && unlike(d, row, d->rows, 0, last);
  bool live_col = row * (d->cols - col) >= 4 && unlike(d, 0, row, col, last);
  for (int b = 0; b < d->bases; b++) {
    rn_model *m = &d->base[b];
    if (live_row && row > 0 && row < d->rows) {
      m->rows_written = row;
      m->fault[m->faults++] = rn_entry_named("rows-unwritten");
      rn_model_parameter(m, "row", (double)row);
    }
    if (live_col && col > 0 && col < d->cols) {
      m->cols_written = col;
      m->fault[m->faults++] = rn_entry_named("columns-unwritten");
      rn_model_parameter(m, "column", (double)col);
    }
  }
}

/* ---- the rows to look at ---- */

static bool sampled(const rn_diff *d, int64_t row) {
  for (int i = 0; i < d->samples; i++)
    if (d->sample[i] == row) return true;
  return false;
}

static void sample(rn_diff *d, int64_t row) {
  if (row >= 0 && d->samples < RN_SAMPLE_MOST && !sampled(d, row)) d->sample[d->samples++] = row;
}

static int64_t longest(const rn_diff *d) {
  int64_t most = (INT64_C(1) << 22) / d->cols;
  return most < 12 ? 12 : most > RN_SAMPLE_MOST ? RN_SAMPLE_MOST : most;
}

static void take_spread(rn_diff *d) {
  int64_t most = longest(d) < 24 ? longest(d) : 24;
  for (int64_t i = 0; i < most; i++) sample(d, (2 * i + 1) * d->rows / (2 * most));
}

static void take_sample(rn_diff *d) {
  enum { ENDS = 6 };
  int64_t low[ENDS], high[ENDS], odd[ENDS], rows = d->base[0].rows_written, spread = longest(d) - 3 * ENDS;
  double low_of[ENDS], high_of[ENDS];
  int odds = 0;
  for (int i = 0; i < ENDS; i++) low[i] = high[i] = -1, low_of[i] = INFINITY, high_of[i] = 0;
  if (spread < 8) spread = 8;
  for (int64_t r = 0; r < rows; r++) {
    double sum = 0, theirs = 0;
    int64_t step = d->cols / 256 + 1;
    bool special = false;
    for (int64_t c = 0; c < d->cols; c += step) {
      double x = rn_ref_load(d->in->x.dtype, d->in->x.data, r * d->cols + c), t = rn_diff_theirs(d, r, c);
      if (d->in->residual.data) x += rn_ref_load(d->in->residual.dtype, d->in->residual.data, r * d->cols + c);
      sum += x * x, theirs += t * t;
      special = special || !isfinite(t);
    }
    if ((special || (theirs == 0) != (sum == 0)) && odds < ENDS) odd[odds++] = r;
    if (!isfinite(sum) || sum == 0) continue;
    for (int i = 0; i < ENDS; i++)
      if (sum < low_of[i]) {
        for (int k = ENDS - 1; k > i; k--) low[k] = low[k - 1], low_of[k] = low_of[k - 1];
        low[i] = r, low_of[i] = sum;
        break;
      }
    for (int i = 0; i < ENDS; i++)
      if (sum > high_of[i]) {
        for (int k = ENDS - 1; k > i; k--) high[k] = high[k - 1], high_of[k] = high_of[k - 1];
        high[i] = r, high_of[i] = sum;
        break;
      }
  }
  /* Rows all over first, in an order that does not run through them from one end. */
  int64_t stride = 1;
  while (stride * 2 < spread) stride *= 2;
  for (; stride >= 1; stride /= 2)
    for (int64_t i = stride == 1 ? 0 : stride / 2; i < spread; i += stride)
      sample(d, (2 * i + 1) * rows / (2 * spread));
  for (int i = 0; i < ENDS; i++) sample(d, low[i]), sample(d, high[i]);
  for (int i = 0; i < odds; i++) sample(d, odd[i]);
  for (int64_t r = 0; r < rows && rows <= RN_SAMPLE_MOST; r++)
    if (d->samples < longest(d)) sample(d, r);
}

/* ---- the library's own result ---- */

static rmsnorm_input_tensor packed(const rn_diff *d, const rn_diff_tensor *t, const void *converted, int type) {
  if (!t->data) return rmsnorm_input(NULL, 0, 0);
  return rmsnorm_input_heads(converted ? converted : t->data, type, d->in->heads * d->cols, d->cols);
}

/* The same values in the type they are of. */
static void *convert(const rn_diff_tensor *t, int64_t count, int type) {
  if (!t->data || t->dtype == type) return NULL;
  char *to = malloc((size_t)count * rmsnorm_dtype_bytes(type));
  for (int64_t i = 0; to && i < count; i++) rn_ref_store(type, to, i, rn_ref_load(t->dtype, t->data, i));
  return to;
}

/* What the library returns with these numerics, in theirs' type, into result->ours. */
static bool compute_ours(const rn_diff *d, const rmsnorm_numerics *n, double eps, rn_diff_result *result) {
  const rn_diff_input *in = d->in;
  int64_t count = d->rows * d->cols;
  int y = d->x_type == RMSNORM_DTYPE_F64   ? RMSNORM_DTYPE_F64
          : d->y_type == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F32
                                           : d->y_type;
  int types[] = {d->x_type, d->residual_type, d->weight_type, in->gate.dtype};
  const rn_diff_tensor *tensors[] = {&in->x, &in->residual, &in->weight, &in->gate};
  void **converted = ((rn_diff *)d)->converted; /* made once, for all numerics */
  if (!result->ours) result->ours = malloc((size_t)count * rmsnorm_dtype_bytes(y));
  result->ours_dtype = y;
  for (int i = 0; i < 4; i++)
    if (!converted[i]) converted[i] = convert(tensors[i], i == 2 ? weight_count(in) : count, types[i]);
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = in->rows, a.heads = in->heads, a.cols = in->cols, a.groups = in->groups > 0 ? in->groups : 1;
  a.eps = eps, a.divisor = in->divisor, a.numerics = *n;
  a.x = packed(d, &in->x, converted[0], types[0]);
  a.residual = packed(d, &in->residual, converted[1], types[1]);
  a.gate = packed(d, &in->gate, converted[3], types[3]);
  a.weight = converted[2] ? converted[2] : in->weight.data, a.weight_dtype = types[2],
  a.weight_shape = in->weight_shape;
  a.y = rmsnorm_output_heads(result->ours, y, in->heads * d->cols, d->cols);
  return result->ours && rmsnorm_forward(&a, NULL) == RMSNORM_OK;
}

static bool all_the_same(const rn_diff *d, const void *data, int dtype) {
  for (int64_t r = 0; r < d->rows; r++)
    for (int64_t c = 0; c < d->cols; c++)
      if (!rn_same(rn_diff_theirs(d, r, c), rn_ref_load(dtype, data, r * d->cols + c))) return false;
  return true;
}

/* Theirs against an array of the same shape. */
static rn_diff_evidence compare(const rn_diff *d, const void *data, int dtype) {
  rn_diff_evidence e;
  memset(&e, 0, sizeof e);
  e.first_row = e.first_col = -1;
  uint8_t *cols = calloc((size_t)d->cols, 1);
  for (int64_t r = 0; r < d->rows; r++) {
    bool row = false;
    for (int64_t c = 0; c < d->cols; c++) {
      double t = rn_diff_theirs(d, r, c), v = rn_ref_load(dtype, data, r * d->cols + c);
      e.elements++;
      if (rn_same(t, v)) continue;
      if (e.first_row < 0) e.first_row = r, e.first_col = c, e.first_theirs = t, e.first_model = v;
      double off = rn_ulps(d, t, v);
      e.differ++, row = true;
      e.max_ulp = fmax(e.max_ulp, fabs(off));
      if (isfinite(off)) e.mean_ulp += off;
      if (cols) cols[c] = 1;
    }
    e.rows_differ += row;
  }
  for (int64_t c = 0; cols && c < d->cols; c++) e.cols_differ += cols[c];
  if (e.elements) e.mean_ulp /= (double)e.elements;
  free(cols);
  return e;
}

/* ---- the engine ---- */

static void release(rn_diff *d) {
  free(d->u), free(d->w), free(d->stat_u), free(d->known);
  free(d->squares), free(d->target), free(d->free_weight), free(d->cache);
  for (int i = 0; i < 4; i++) free(d->converted[i]);
}

static bool prepare(rn_diff *d) {
  const size_t cols = (size_t)d->cols, samples = RN_SAMPLE_MOST;
  d->target_groups_most = d->cols < 128 ? d->cols : 128;
  if (d->in->groups > d->target_groups_most) d->target_groups_most = d->in->groups;
  d->u = malloc(cols * sizeof(double)), d->w = malloc(cols * sizeof(double));
  d->stat_u = malloc(cols * sizeof(double)), d->known = malloc(cols * sizeof(bool));
  d->squares = malloc((cols + 1) * samples * sizeof(double));
  d->target = malloc(samples * (size_t)d->target_groups_most * sizeof(rn_fit));
  d->free_weight = malloc(cols * (size_t)d->in->heads * sizeof(double));
  d->cache = malloc(cols * samples * sizeof(double));
  return d->cache && d->u && d->w && d->stat_u && d->known && d->squares && d->target && d->free_weight;
}

static void conclude(rn_diff_result *result) {
  const rn_diff_explanation *e = &result->explanation[0];
  bool explained = result->count > 0 && e->match != RN_DIFF_PARTLY;
  result->verdict = !explained                                  ? RN_DIFF_UNEXPLAINED
                    : e->count                                  ? RN_DIFF_EXPLAINED
                    : e->match == RN_DIFF_ALL_BITS && !e->wider ? RN_DIFF_EQUAL
                                                                : RN_DIFF_BENIGN;
  if (explained)
    snprintf(result->sentence, sizeof result->sentence, "%s", e->sentence);
  else
    snprintf(result->sentence, sizeof result->sentence, "not explained by anything in the catalogue");
}

static void explain_forward(rn_diff *d, rn_diff_result *result) {
  /* The library itself, to the bit. */
  for (int b = 0; b < d->bases && d->in->eps >= 0 && d->base[0].faults == 0; b++) {
    if (!compute_ours(d, &d->base_numerics[b], d->in->eps, result)) break;
    if (!all_the_same(d, result->ours, result->ours_dtype)) continue;
    rn_diff_evidence e = compare(d, result->ours, result->ours_dtype);
    rn_confirmed c;
    memset(&c, 0, sizeof c);
    c.match = RN_DIFF_ALL_BITS, c.evidence = e;
    rn_explain_model(d, &d->base[b], &c, &result->explanation[result->count++]);
    result->evidence = e;
    return;
  }
  rn_search_forward(d, result);
  const rn_diff_explanation *found = result->count ? &result->explanation[0] : NULL;
  double eps = d->in->eps;
  rmsnorm_numerics n = d->base_numerics[0];
  if (found && !d->in->numerics_given && *found->preset) rmsnorm_preset(found->preset, &n);
  for (int i = 0; found && i < found->parameter_count && eps < 0; i++)
    if (strcmp(found->parameters[i].name, "eps_found") == 0) eps = found->parameters[i].value;
  if (compute_ours(d, &n, eps < 0 ? 1e-6 : eps, result))
    result->evidence = compare(d, result->ours, result->ours_dtype);
}

static int explain_alone(const rn_diff_input *in, const rn_diff_options *options, rn_diff_result *result) {
  rn_diff *d = calloc(1, sizeof *d);
  if (!d) return rn_trouble("diff", "there is no memory for the comparison");
  d->in = in, d->options = options;
  d->rows = in->rows * in->heads, d->cols = in->cols;
  if (!prepare(d)) {
    release(d), free(d);
    return rn_trouble("diff", "there is no memory for the comparison");
  }
  rn_progress(d, 0); /* its clock starts */
  settle_types(d);
  take_bases(d);
  if (in->subject == RN_DIFF_Y) {
    if (d->cols > 1 || d->rows > 1) find_unwritten(d);
    take_sample(d);
    explain_forward(d, result);
  } else if (in->subject == RN_DIFF_Q) {
    take_spread(d);
    rn_search_quant(d, result);
  } else {
    take_spread(d);
    rn_search_gradient(d, result);
  }
  conclude(result);
  if (options->progress && d->drawn > 0) fprintf(options->progress, "\r%50s\r", "");
  release(d), free(d);
  return 0;
}

int rn_diff_explain(const rn_diff_input *input, const rn_diff_options *options, rn_diff_result *result) {
  rn_diff_input in = *input;
  memset(result, 0, sizeof *result);
  if (!in.x.data || !in.theirs.data || in.rows < 1 || in.heads < 1 || in.cols < 1)
    return rn_trouble("diff", "there is nothing to compare: x and theirs need at least one element");
  if (!in.reference.data) return explain_alone(&in, options, result);
  /* First what the reference is: that is what theirs is held against. */
  rn_diff_result *reference = calloc(1, sizeof *reference);
  if (!reference) return rn_trouble("diff", "there is no memory for the comparison");
  rn_diff_input ours = in;
  ours.theirs = in.reference, ours.reference.data = NULL;
  int status = explain_alone(&ours, options, reference);
  const rn_diff_explanation *e = &reference->explanation[0];
  bool good = status == 0 && reference->verdict != RN_DIFF_UNEXPLAINED;
  if (good && !in.numerics_given && *e->preset && rmsnorm_preset(e->preset, &in.numerics) == RMSNORM_OK)
    in.numerics_given = true, in.preset = e->preset;
  for (int i = 0; good && i < e->parameter_count && in.eps < 0; i++)
    if (strcmp(e->parameters[i].name, "eps_found") == 0) in.eps = e->parameters[i].value;
  in.reference.data = NULL;
  if (status == 0) status = explain_alone(&in, options, result);
  if (status == 0) {
    rn_diff d;
    memset(&d, 0, sizeof d);
    d.in = &in, d.rows = in.rows * in.heads, d.cols = in.cols, d.y_type = in.theirs.dtype;
    if (in.subject == RN_DIFF_DWEIGHT) d.rows = 1, d.cols = weight_count(&in);
    if (in.subject == RN_DIFF_Y) d.y_type = effective(&in.theirs, d.rows * d.cols, 0);
    result->evidence = compare(&d, input->reference.data, input->reference.dtype);
    char theirs[RN_DIFF_TEXT];
    memcpy(theirs, result->sentence, sizeof theirs);
    if (result->evidence.differ == 0)
      snprintf(result->sentence, sizeof result->sentence, "theirs and the reference have the same bits");
    else
      snprintf(result->sentence, sizeof result->sentence, "the reference: %.200s. Theirs: %.280s", reference->sentence,
               theirs);
    if (result->evidence.differ == 0)
      result->verdict = RN_DIFF_EQUAL;
    else if (reference->verdict == RN_DIFF_EXPLAINED && result->verdict <= RN_DIFF_BENIGN)
      result->verdict = RN_DIFF_EXPLAINED;
    else if (result->verdict == RN_DIFF_EQUAL)
      result->verdict = good ? RN_DIFF_BENIGN : RN_DIFF_UNEXPLAINED;
    free(result->ours);
    size_t bytes = (size_t)(d.rows * d.cols) * rmsnorm_dtype_bytes(input->reference.dtype);
    if ((result->ours = malloc(bytes)) != NULL) memcpy(result->ours, input->reference.data, bytes);
    result->ours_dtype = input->reference.dtype;
  }
  rn_diff_free(reference), free(reference);
  return status;
}

void rn_diff_free(rn_diff_result *result) {
  free(result->ours);
  result->ours = NULL;
}
