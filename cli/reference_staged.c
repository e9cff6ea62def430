/* reference_staged.c - the staged model: the caller's roundings, one scalar step at a time. Given rstd (and dot), every
 * step has exactly one right answer, so what comes out is compared bit for bit.
 *
 * Steps are computed in double and rounded to float at once: a double has more than twice a float's digits, so for
 * + * / sqrt this is the correctly rounded float result. Only fma needs its own function.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"
#include "reference_source.h"

#include <math.h>

static double step(const rn_source *s, double v) {
  return s->real == RMSNORM_DTYPE_F64 ? v : (double)(float)v;
}
static double fused(const rn_source *s, double a, double b, double c) {
  return s->real == RMSNORM_DTYPE_F64 ? fma(a, b, c) : (double)fmaf((float)a, (float)b, (float)c);
}
static double stage(const rn_source *s, int dtype, double v) {
  return dtype == s->real ? v : rn_ref_round(dtype, v);
}

/* ---- the gate: docs/numerics.md 2 ---- */

static double exponential(const rn_source *s, double magnitude) {
  if (s->real == RMSNORM_DTYPE_F64) return exp(-magnitude);
  float a = (float)magnitude;
  if (a > 110.0f) a = 110.0f;
  float t = fmaf(-a, 0x1.715476p+0f, 12582912.0f), k = t - 12582912.0f;
  float r = fmaf(k, -0x1.7f7d1cp-20f, fmaf(k, -0x1.62e4p-1f, -a));
  static const float c[5] = {0x1.6a270cp-10f, 0x1.1239fp-7f, 0x1.5558fp-5f, 0x1.555492p-3f, 0x1.fffffcp-2f};
  float p = c[0];
  for (int i = 1; i < 5; i++) p = fmaf(p, r, c[i]);
  p = fmaf(fmaf(p, r, 1.0f), r, 1.0f);
  if (isnan(k)) return p;
  int n = (int)k, half = n >= 0 ? n / 2 : -((1 - n) / 2); /* n / 2 rounded down */
  return ldexpf((float)ldexpf(p, half), n - half);
}

typedef struct gate_values {
  double act, slope;
} gate_values;

static gate_values gate_at(const rn_source *s, double z) {
  gate_values g = {1, 1};
  if (!s->numerics.gate) return g;
  double e = exponential(s, fabs(z)), d = step(s, 1 + e);
  double sigmoid = step(s, (z < 0 ? e : 1) / d), cosig = step(s, (z < 0 ? 1 : e) / d);
  if (s->numerics.gate == RMSNORM_GATE_SIGMOID) {
    g.act = sigmoid;
    g.slope = step(s, sigmoid * cosig);
  } else {
    g.act = step(s, z * sigmoid);
    g.slope = step(s, sigmoid * fused(s, z, cosig, 1));
  }
  return g;
}

double rn_staged_act(int real, int gate, double z) {
  rn_source s = {0};
  s.real = real, s.numerics.gate = gate;
  return gate_at(&s, z).act;
}

/* ---- inputs and statistics ---- */

typedef struct element {
  double sum, h, u;
  gate_values gate;
} element;

static element element_at(const rn_source *s, int64_t row, int64_t head, int64_t col) {
  element e;
  e.sum = e.h = rn_source_at(s, &s->x, row, head, col);
  if (s->residual.data) {
    e.sum = step(s, e.h + rn_source_at(s, &s->residual, row, head, col));
    e.h = stage(s, s->sum_dtype, e.sum);
  }
  e.u = e.h;
  e.gate = gate_at(s, s->numerics.gate ? rn_source_at(s, &s->gate, row, head, col) : 0);
  if (s->numerics.gate && s->numerics.gate_place == RMSNORM_GATE_BEFORE) e.u = step(s, e.h * e.gate.act);
  return e;
}

typedef struct row_statistic {
  double rstd;
  bool rescued; /* its rstd as returned does not tell which factors were used */
} row_statistic;

static row_statistic statistic(const rn_source *s, const void *rstd, int64_t row, int64_t head, int64_t group) {
  row_statistic r = {0, false};
  int64_t at = (row * s->heads + head) * s->groups + group;
  rn_real sum = 0;
  for (int64_t i = 0; i < s->width; i++) {
    double u = element_at(s, row, head, group * s->width + i).u;
    sum += (rn_real)u * u;
  }
  bool f64 = s->real == RMSNORM_DTYPE_F64;
  double low = f64 ? 0x1p-960 : 0x1p-120, high = f64 ? 0x1.fffffffffffffp+1023 : 0x1.fffffep+127;
  double eps = step(s, s->eps);
  if (!s->sumsq) {
    /* Near the threshold the exact sum does not tell which side the rounded one fell on. A row of zeros and one that is
     * not finite are settled by definition and use the returned rstd. */
    rn_real v = sum / (rn_real)s->divisor + eps;
    bool finite = !isnan(sum) && !isinf(sum);
    r.rescued = finite && sum != 0 && !(v > low * 1.001L && sum < high * 0.999L);
    if (finite && sum == 0 && eps != 0) r.rescued = eps < low * 1.001;
  }
  r.rstd = rn_ref_load(s->real, rstd, at);
  return r;
}

/* docs/numerics.md 1.3: from a given sum to rstd. Sums are given in float32 only. */
static double rstd_of_sum(const rn_source *s, float sum) {
  float v = sum / (float)s->divisor + (float)s->eps;
  if (v == 0) return 0;
  float r = 1 / sqrtf(v);
  if (v >= 0x1p-120f && v <= 0x1.fffffep+127f) {
    float high = v * r, low = fmaf(v, r, -high);
    float e = fmaf(-low, r, fmaf(-high, r, 1));
    r = fmaf(0.5f * r, e, r);
  }
  return stage(s, s->rstd_dtype, (double)r);
}

static double weight_at(const rn_source *s, int64_t head, int64_t col) {
  double w = rn_ref_load(s->weight_dtype, s->weight, rn_source_weight_index(s, head, col));
  return s->numerics.weight_offset == 0 ? w : step(s, (double)s->numerics.weight_offset + w);
}

/* ---- the quantiser: docs/numerics.md 3 ---- */

static void quantise_row(const rmsnorm_quant *q, const double *v, int64_t cols, void *codes, void *scales,
                         int64_t row) {
  int64_t block = rn_ref_block_cols(q, cols), blocks = rn_ref_blocks(q, cols);
  double largest = rn_ref_largest(q->q.dtype);
  int emax = q->q.dtype == RMSNORM_DTYPE_FP8_E4M3 ? 8 : 15;
  for (int64_t b = 0; b < blocks; b++) {
    int64_t first = b * block, last = first + block < cols ? first + block : cols;
    double amax = 0, scale;
    int e = 0;
    for (int64_t c = first; c < last; c++)
      if (!isnan(v[c]) && fabs(v[c]) > amax) amax = fabs(v[c]) > 0x1.fffffep+127 ? 0x1.fffffep+127 : fabs(v[c]);
    if (q->granularity == RMSNORM_QUANT_TENSOR) {
      scale = *q->scale;
    } else if (q->granularity == RMSNORM_QUANT_MX) {
      e = -127;
      if (amax > 0) {
        (void)frexp(amax, &e);
        e = e - 1 - emax;
        if (q->e8m0_rounding == RMSNORM_E8M0_CEIL && amax > ldexp(largest, e)) e++;
        if (e < -127) e = -127;
        if (e > 127) e = 127;
      }
      scale = ldexp(1, e);
    } else {
      scale = (float)(amax / largest);
      if (scale < 0x1p-126) scale = 0x1p-126;
      if (q->scale_max > 0 && scale > q->scale_max) scale = q->scale_max;
    }
    if (scales && q->granularity == RMSNORM_QUANT_MX)
      ((uint8_t *)scales)[row * blocks + b] = (uint8_t)(e + 127);
    else if (scales)
      ((float *)scales)[row * blocks + b] = (float)scale;
    for (int64_t c = first; codes && c < last; c++) {
      double w;
      if (q->granularity == RMSNORM_QUANT_MX)
        w = (float)((double)(float)ldexp(v[c], -(e - e / 2)) * ldexp(1, -(e / 2)));
      else if (q->scale_op == RMSNORM_SCALE_RECIPROCAL)
        w = (float)(v[c] * (double)(float)(1 / scale));
      else
        w = (float)(v[c] / scale);
      rn_ref_store(q->q.dtype, codes, row * cols + c, w);
    }
  }
}

/* ---- forward and backward ---- */

static double to(const rn_stages *s, double v) {
  return s->real == RMSNORM_DTYPE_F64 ? v : (double)(float)v;
}
static double narrowed(const rn_stages *s, int dtype, double v) {
  return dtype == s->real ? v : s->narrow(dtype, v);
}

double rn_staged_value(const rn_stages *s, double u, double rstd, const double *weight, const double *act) {
  double r = narrowed(s, s->rstd, rstd), v;
  switch (weight != NULL || s->order == RN_ORDER_QUOTIENT ? s->order : RN_ORDER_XHAT) {
  case RN_ORDER_FACTOR:
    v = to(s, u * to(s, r * *weight));
    break;
  case RN_ORDER_WEIGHT:
    v = to(s, to(s, u * *weight) * r);
    break;
  case RN_ORDER_QUOTIENT:
    v = narrowed(s, s->xhat, to(s, u / to(s, 1 / r)));
    if (weight != NULL) v = to(s, v * *weight);
    break;
  default:
    v = narrowed(s, s->xhat, to(s, u * r));
    if (weight != NULL) v = to(s, v * *weight);
  }
  v = narrowed(s, s->normed, v);
  return act != NULL ? to(s, v * *act) : v;
}

void rn_staged_forward(const rmsnorm_forward_args *args, const void *rstd, double *v,
                       const rn_staged_forward_out *out) {
  rn_source s = rn_source_forward(args);
  bool after = s.numerics.gate && s.numerics.gate_place == RMSNORM_GATE_AFTER;
  /* rstd comes as it was returned, rounded already. */
  const rn_stages stages = {s.real, s.real, s.xhat_dtype, s.normed_dtype, RN_ORDER_XHAT, rn_ref_round};
  for (int64_t r = 0; r < s.rows * s.heads; r++) {
    int64_t row = r / s.heads, head = r % s.heads;
    for (int64_t g = 0; g < s.groups; g++) {
      row_statistic stat = statistic(&s, rstd, row, head, g);
      if (out->skipped) out->skipped[r * s.groups + g] = stat.rescued;
      if (out->rstd) out->rstd[r * s.groups + g] = (float)rstd_of_sum(&s, s.sumsq[r * s.groups + g]);
      for (int64_t c = g * s.width; c < (g + 1) * s.width; c++) {
        element e = element_at(&s, row, head, c);
        double w = s.weight ? weight_at(&s, head, c) : 1;
        v[c] = rn_staged_value(&stages, e.u, stat.rstd, s.weight ? &w : NULL, after ? &e.gate.act : NULL);
        if (out->y) rn_ref_store(args->y.dtype, out->y, r * s.cols + c, v[c]);
        if (out->residual_out) rn_ref_store(args->residual_out.dtype, out->residual_out, r * s.cols + c, e.sum);
      }
    }
    if (args->quant.granularity) quantise_row(&args->quant, v, s.cols, out->q, out->scale, r);
  }
}

void rn_staged_backward(const rmsnorm_backward_args *args, const void *rstd, const void *dot,
                        const rn_staged_backward_out *out) {
  rn_source s = rn_source_backward(args);
  bool after = s.numerics.gate && s.numerics.gate_place == RMSNORM_GATE_AFTER;
  bool before = s.numerics.gate && !after;
  s.rstd_dtype = s.real; /* the gradient passes through the forward's roundings */
  for (int64_t r = 0; r < s.rows * s.heads; r++) {
    int64_t row = r / s.heads, head = r % s.heads;
    for (int64_t g = 0; g < s.groups; g++) {
      row_statistic stat = statistic(&s, rstd, row, head, g);
      if (out->skipped) out->skipped[r * s.groups + g] = stat.rescued;
      double share = step(&s, rn_ref_load(RMSNORM_DTYPE_F32, dot, r * s.groups + g) / step(&s, (double)s.divisor));
      for (int64_t c = g * s.width; c < (g + 1) * s.width; c++) {
        element e = element_at(&s, row, head, c);
        double dy = rn_source_at(&s, &args->dy, row, head, c), w = s.weight ? weight_at(&s, head, c) : 1;
        double xhat = step(&s, e.u * stat.rstd), t = after ? step(&s, dy * e.gate.act) : dy;
        if (s.weight) t = step(&s, t * w);
        double du = step(&s, stat.rstd * fused(&s, -xhat, share, t));
        double dx = before ? step(&s, du * e.gate.act) : du;
        if (args->dresidual_out.data) dx = step(&s, dx + rn_source_at(&s, &args->dresidual_out, row, head, c));
        double dgate = before ? step(&s, du * e.h) : step(&s, dy * (s.weight ? step(&s, xhat * w) : xhat));
        dgate = step(&s, dgate * e.gate.slope);
        if (out->dx) rn_ref_store(args->dx.dtype, out->dx, r * s.cols + c, dx);
        if (out->dresidual) rn_ref_store(args->dresidual.dtype, out->dresidual, r * s.cols + c, dx);
        if (out->dgate) rn_ref_store(args->dgate.dtype, out->dgate, r * s.cols + c, dgate);
      }
    }
  }
}
