/* diff_model.c - one row under a model: what is normalised, the weights, and the value of one element. The rounding
 * steps themselves are those of the staged model (reference_staged.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <math.h>
#include <string.h>

double rn_diff_theirs(const rn_diff *d, int64_t row, int64_t col) {
  return rn_ref_load(d->in->theirs.dtype, d->in->theirs.data, row * d->cols + col);
}

bool rn_same(double a, double b) {
  return a == b || (isnan(a) && isnan(b));
}

double rn_ulps(const rn_diff *d, double a, double b) {
  if (a == b || (isnan(a) && isnan(b))) return 0;
  if (!isfinite(a) || !isfinite(b)) return INFINITY;
  return (a - b) / rn_ref_ulp(d->y_type, fabs(a) > fabs(b) ? a : b);
}

/* ---- other ways of rounding ---- */

double rn_narrow_truncate(int dtype, double value) {
  double near = rn_ref_round(dtype, value);
  if (!isfinite(value) || fabs(near) <= fabs(value)) return near;
  if (isinf(near)) return copysign(rn_ref_largest(dtype), value);
  /* One step nearer to zero; at a power of two the steps below are half as long. */
  double step = rn_ref_ulp(dtype, value);
  return near - copysign(step, value);
}

double rn_narrow_away(int dtype, double value) {
  double low = rn_narrow_truncate(dtype, value);
  if (low == value || !isfinite(value)) return low;
  double high = low + copysign(rn_ref_ulp(dtype, value), value);
  return fabs(value - low) >= fabs(high - value) ? rn_ref_round(dtype, high) : low;
}

double rn_narrow_flush(int dtype, double value) {
  double v = rn_ref_round(dtype, value);
  double least = rn_ref_ulp(dtype, 0); /* the smallest subnormal; the smallest normal number is 2^mantissa of them */
  int mantissa = dtype == RMSNORM_DTYPE_F16 ? 10 : dtype == RMSNORM_DTYPE_BF16 ? 7 : 23;
  return dtype != RMSNORM_DTYPE_F64 && fabs(v) < ldexp(least, mantissa) ? copysign(0, v) : v;
}

/* ---- the row ---- */

static double to_real(const rn_diff *d, double v) {
  return d->real == RMSNORM_DTYPE_F64 ? v : (double)(float)v;
}

static double flushed(double v) {
  return fabs(v) < 0x1p-126 ? copysign(0, v) : v;
}

static double summed(const rn_diff *d, const rn_model *m, rn_source_kind source, int sum_dtype, double x, double r) {
  double h = x;
  switch (source) {
  case RN_SOURCE_X:
    return x;
  case RN_SOURCE_RESIDUAL:
    return r;
  case RN_SOURCE_SUM:
    h = to_real(d, x + r);
    break;
  case RN_SOURCE_RESIDUAL_TWICE: /* the sum was stored over r, and r is added once more */
  case RN_SOURCE_X_TWICE:
    h = to_real(d, x + r);
    h = sum_dtype == d->real ? h : m->stages.narrow(sum_dtype, h);
    h = to_real(d, h + (source == RN_SOURCE_X_TWICE ? x : r));
    break;
  }
  return sum_dtype == d->real ? h : m->stages.narrow(sum_dtype, h);
}

static void load(rn_diff *d, const rn_model *m, rn_source_kind source, int sum_dtype, int64_t row, double *u) {
  const rn_diff_input *in = d->in;
  int64_t at = m->row_base + row * m->row_step, count = d->rows * d->cols;
  /* Read as [heads, rows], or written as such. */
  if (m->transposed == 1) at = (row % in->heads * in->rows + row / in->heads) * d->cols;
  if (m->transposed == 2) at = (row % in->rows * in->heads + row / in->rows) * d->cols;
  for (int64_t c = 0; c < d->cols; c++) {
    if (at + c < 0 || at + c >= count) {
      u[c] = NAN;
      continue;
    }
    double x = rn_ref_load(in->x.dtype, in->x.data, at + c);
    if (in->residual.data)
      x = summed(d, m, source, sum_dtype, x, rn_ref_load(in->residual.dtype, in->residual.data, row * d->cols + c));
    if (m->gate && m->gate_place == RMSNORM_GATE_BEFORE && in->gate.data)
      x = to_real(d,
                  x * rn_staged_act(d->real, m->gate, rn_ref_load(in->gate.dtype, in->gate.data, row * d->cols + c)));
    u[c] = m->flush ? flushed(x) : x;
  }
}

double rn_model_row(rn_diff *d, const rn_model *m, int64_t row, double *u) {
  load(d, m, m->source, m->sum_dtype, row, u);
  if (m->centred) {
    double mean = 0, square = 0;
    for (int64_t c = 0; c < d->cols; c++) mean += u[c], square += u[c] * u[c];
    mean = to_real(d, mean / (double)d->cols);
    for (int64_t c = 0; c < d->cols; c++) u[c] = to_real(d, u[c] - mean);
    /* A sum of n terms of either sign: its partial sums are a walk of sqrt(n) rms beside n mean. */
    return 4 * rn_unit(d) * (sqrt((double)d->cols) * fabs(mean) + sqrt(square / (double)d->cols));
  }
  if (m->twice) {
    rn_model once = *m;
    once.twice = false;
    double rstd = rn_model_rstd(d, &once, row, 0, u);
    bool weighted = rn_model_weights(d, &once, row);
    d->w_of = NULL;
    for (int64_t c = 0; c < d->cols; c++) u[c] = rn_model_value(d, &once, row, c, u[c], rstd, weighted);
  }
  return 0;
}

/* ---- the weight ---- */

/* Element i of the bytes of the weight, seen as another type. */
static double reread(const rn_diff *d, int type, int64_t i, bool *known) {
  const rn_diff_tensor *w = &d->in->weight;
  int64_t held = d->in->weight_shape == RMSNORM_WEIGHT_HEADS_COLS ? d->in->heads * d->cols : d->cols;
  int64_t bytes = held * (int64_t)rmsnorm_dtype_bytes(w->dtype);
  *known = (i + 1) * (int64_t)rmsnorm_dtype_bytes(type) <= bytes;
  return *known ? rn_ref_load(type, w->data, i) : 0;
}

static double weight_at(rn_diff *d, const rn_model *m, int64_t row, int64_t c, bool *known) {
  const rn_diff_input *in = d->in;
  int64_t heads = in->heads, head = row % heads, width = d->cols, at = c, base = 0, held = d->cols;
  if (in->weight_shape == RMSNORM_WEIGHT_GROUP && in->groups > 1) width = held = d->cols / in->groups, at = c % width;
  if (in->weight_shape == RMSNORM_WEIGHT_HEADS_COLS) base = head * d->cols, held = heads * d->cols;
  rn_diff_tensor w = in->weight;
  *known = true;
  switch (m->weight) {
  case RN_WEIGHT_SHIFTED:
    at += m->weight_param;
    break;
  case RN_WEIGHT_STRIDED:
    at *= m->weight_param;
    break;
  case RN_WEIGHT_REPEATED:
    at %= m->weight_param;
    break;
  case RN_WEIGHT_BLOCKED:
    at /= m->weight_param;
    break;
  case RN_WEIGHT_REVERSED:
    at = width - 1 - at;
    break;
  case RN_WEIGHT_OTHER:
    w = in->others[m->weight_param].tensor;
    break;
  case RN_WEIGHT_HEAD:
    base = (head + m->weight_param) % heads * d->cols;
    break;
  case RN_WEIGHT_BY_ROW:
    at = row / heads, *known = at < held;
    return *known ? rn_ref_load(w.dtype, w.data, at) : 0;
  case RN_WEIGHT_BYTES:
    return reread(d, (int)m->weight_param, base + at, known);
  case RN_WEIGHT_FREE:
    return d->free_weight[base + c];
  default:
    break;
  }
  at += base;
  *known = at >= 0 && at < held;
  return *known ? rn_ref_load(w.dtype, w.data, at) : 0;
}

bool rn_model_weights(rn_diff *d, const rn_model *m, int64_t row) {
  if ((m->weight != RN_WEIGHT_FREE && !d->in->weight.data && m->weight != RN_WEIGHT_OTHER) ||
      m->weight == RN_WEIGHT_NONE) {
    for (int64_t c = 0; c < d->cols; c++) d->w[c] = 1, d->known[c] = true;
    d->w_of = NULL;
    return false;
  }
  /* All rows of a head see the same weights. */
  if (d->w_of == m && d->w_head == row % d->in->heads && m->weight != RN_WEIGHT_BY_ROW) return true;
  for (int64_t c = 0; c < d->cols; c++) {
    double w = weight_at(d, m, row, c, &d->known[c]);
    if (m->weight != RN_WEIGHT_FREE && m->offset != 0) {
      w = to_real(d, w + m->offset);
      if (m->offset_narrow) w = rn_ref_round(d->weight_type, w);
    }
    if (m->weight == RN_WEIGHT_SQUARED) w = to_real(d, w * w);
    d->w[c] = m->flush ? flushed(w) : w;
  }
  d->w_of = m, d->w_head = row % d->in->heads;
  return true;
}

/* ---- one element ---- */

double rn_model_value(const rn_diff *d, const rn_model *m, int64_t row, int64_t col, double u, double rstd,
                      bool weighted) {
  double act;
  const rn_diff_tensor *gate = &d->in->gate;
  bool after = m->gate && m->gate_place == RMSNORM_GATE_AFTER && gate->data;
  if (after)
    act =
        (1 + m->act_error) * rn_staged_act(d->real, m->gate, rn_ref_load(gate->dtype, gate->data, row * d->cols + col));
  double v = rn_staged_value(&m->stages, u, rstd, weighted ? &d->w[col] : NULL, after ? &act : NULL);
  v = m->out_narrow(m->out_dtype, v);
  return m->weight == RN_WEIGHT_AGAIN && weighted ? m->out_narrow(m->out_dtype, to_real(d, v * d->w[col])) : v;
}
