/* reference.c - the float64 reference: rmsnorm.h's formulas in long double, each intermediate with a running bound on
 * what correct float32 arithmetic may lose. The bound knows one thing about the library: how long the longest chain of
 * additions is (docs/numerics.md 1.2), because that is what the loss of a sum depends on.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"
#include "reference_source.h"

#include <math.h>

/* ---- the call ---- */

static int rounding_dtype(const rn_source *s, int rounding) {
  int x = s->x.dtype, w = s->weight_dtype;
  bool weight = s->weight != NULL, half = w == RMSNORM_DTYPE_F16 || w == RMSNORM_DTYPE_BF16;
  switch (rounding) {
  case RMSNORM_ROUND_X:
    return x;
  case RMSNORM_ROUND_WEIGHT:
    return weight && half ? w : s->real;
  case RMSNORM_ROUND_PROMOTED:
    return !weight || x == w ? x : s->real;
  default:
    return s->real;
  }
}

static void resolve(rn_source *s, int stored_dtype) {
  const rmsnorm_numerics *n = &s->numerics;
  s->width = s->cols / s->groups;
  if (s->divisor == 0) s->divisor = s->width;
  s->real = s->x.dtype == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32;
  s->sum_dtype = s->real;
  if (s->residual.data && n->round_sum == RMSNORM_ROUND_STORED)
    s->sum_dtype = stored_dtype ? stored_dtype : s->x.dtype == s->residual.dtype ? s->x.dtype : s->real;
  s->rstd_dtype = rounding_dtype(s, n->round_rstd);
  s->xhat_dtype = rounding_dtype(s, n->round_xhat);
  s->normed_dtype = rounding_dtype(s, n->round_normed);
}

rn_source rn_source_forward(const rmsnorm_forward_args *a) {
  rn_source s = {a->rows,         a->heads,  a->cols, a->groups,   0,       a->divisor, a->eps,
                 a->numerics,     0,         0,       0,           0,       0,          a->weight_dtype,
                 a->weight_shape, a->weight, a->x,    a->residual, a->gate, a->sumsq};
  resolve(&s, a->residual_out.data ? a->residual_out.dtype : 0);
  return s;
}

rn_source rn_source_backward(const rmsnorm_backward_args *a) {
  rn_source s = {a->rows,         a->heads,  a->cols, a->groups,   0,       a->divisor, a->eps,
                 a->numerics,     0,         0,       0,           0,       0,          a->weight_dtype,
                 a->weight_shape, a->weight, a->x,    a->residual, a->gate, a->sumsq};
  resolve(&s, a->sum_dtype);
  return s;
}

double rn_source_at(const rn_source *s, const rmsnorm_input_tensor *t, int64_t row, int64_t head, int64_t col) {
  int64_t at = col + (s->rows > 1 ? row * t->row_stride : 0) + (s->heads > 1 ? head * t->head_stride : 0);
  return rn_ref_load(t->dtype, t->data, at);
}

int64_t rn_source_weight_index(const rn_source *s, int64_t head, int64_t col) {
  switch (s->weight_shape) {
  case RMSNORM_WEIGHT_HEADS_COLS:
    return head * s->cols + col;
  case RMSNORM_WEIGHT_GROUP:
    return col % s->width;
  default:
    return col;
  }
}

/* ---- approximate arithmetic: the value, and how far a rounded evaluation may be off ---- */

typedef struct arithmetic {
  double unit;  /* largest relative error of one operation */
  double tiny;  /* largest absolute error of one operation whose result is subnormal */
  double limit; /* largest finite number */
} arithmetic;

static arithmetic arithmetic_of(const rn_source *s) {
  arithmetic f32 = {0x1p-24, 0x1p-150, 0x1.fffffep+127}, f64 = {0x1p-53, 0x1p-1074, 0x1.fffffffffffffp+1023};
  return s->real == RMSNORM_DTYPE_F64 ? f64 : f32;
}

static rn_approx exactly(rn_real value) {
  rn_approx a = {value, 0, (double)fabsl(value), false};
  return a;
}

/* One rounded operation gave this value. */
static rn_approx rounded(const arithmetic *k, rn_approx a) {
  double magnitude = (double)fabsl(a.value) + a.err;
  if (isnan(a.value) || isinf(a.value))
    a.err = 0;
  else if (!(magnitude < k->limit))
    a.err = INFINITY;
  else
    a.err += k->unit * magnitude + k->tiny;
  if (magnitude > 0 && magnitude * k->unit < 4 * k->tiny) a.small = true;
  return a;
}

/* Infinity times something that float32 may have rounded to 0: NaN or infinity, nobody can say. */
static bool is_open(rn_approx a, rn_approx b) {
  return isinf(a.value) && b.err > 0 && fabsl(b.value) <= b.err;
}

static bool product_is_open(rn_approx a, rn_approx b) {
  return is_open(a, b) || is_open(b, a);
}

static rn_approx mul(const arithmetic *k, rn_approx a, rn_approx b) {
  rn_approx p = {0, INFINITY, 0, a.small || b.small};
  if (product_is_open(a, b)) return p;
  double am = (double)fabsl(a.value), bm = (double)fabsl(b.value);
  p.value = a.value * b.value;
  p.err = (a.err ? a.err * bm : 0) + (b.err ? b.err * (am + a.err) : 0);
  p.size = a.size * bm > b.size * am ? a.size * bm : b.size * am;
  return rounded(k, p);
}

static rn_approx add(const arithmetic *k, rn_approx a, rn_approx b) {
  rn_approx s = {a.value + b.value, a.err + b.err, a.size + b.size, a.small || b.small};
  /* Infinity plus what may be the other infinity or NaN. */
  if (isinf(s.value) && isinf(s.err)) return (rn_approx){0, INFINITY, 0, true};
  return rounded(k, s);
}

/* A named rounding to a narrower type: half an ulp more; beyond its range nothing can be promised. */
static rn_approx stage(int dtype, int real, rn_approx a) {
  if (dtype == real || isnan(a.value) || isinf(a.value)) return a;
  double magnitude = (double)fabsl(a.value) + a.err;
  if (!(magnitude < rn_ref_largest(dtype)))
    a.err = INFINITY;
  else
    a.err += 0.5 * rn_ref_ulp(dtype, magnitude);
  if (magnitude > 0 && rn_ref_ulp(dtype, magnitude) == rn_ref_ulp(dtype, 0)) a.small = true;
  return a;
}

/* The longest chain of additions an element takes part in: its lane, then the tree. */
static int depth(int64_t n) {
  int64_t lanes = 64;
  int levels = 6;
  while (lanes < 65536 && 8 * lanes <= n) lanes *= 2, levels++;
  return (int)((n + lanes - 1) / lanes) + levels;
}

/* ---- the gate ----
 * The exponential is within 2 units, 1 + E and the quotient add one each; E enters the denominator as well. */
typedef struct gate_values {
  rn_approx act, slope;      /* act(z) and act'(z) */
  bool act_gone, slope_gone; /* underflowed: the exact one is not 0, but that of any correct evaluation is */
} gate_values;

/* Times act or slope. What is gone counts as the 0 it has become when it meets an infinity: NaN. */
static rn_approx gated(const arithmetic *k, rn_approx a, rn_approx factor, bool gone) {
  return gone && isinf(a.value) ? exactly(NAN) : mul(k, a, factor);
}

static gate_values gate_at(const arithmetic *k, int gate, rn_real z) {
  gate_values g = {0};
  rn_real e = expl(-fabsl(z));
  rn_real sigmoid = (z < 0 ? e : 1) / (1 + e), cosig = (z < 0 ? 1 : e) / (1 + e);
  double u = k->unit, zm = (double)fabsl(z);
  double sigmoid_err = 5 * u * (double)sigmoid + 4 * k->tiny, cosig_err = 5 * u * (double)cosig + 4 * k->tiny;
  bool low = e * k->unit < 4 * k->tiny;
  /* Less than half the smallest number, with whatever the exponential may be off. At z = -inf silu is -inf * 0. */
  bool gone = e * (1 + 8 * (rn_real)u) < k->tiny;
  g.act_gone = gone && z < 0 && !(isinf(z) && gate == RMSNORM_GATE_SILU);
  g.slope_gone = gone && !isinf(z) && (z < 0 || gate == RMSNORM_GATE_SIGMOID);
  if (isinf(z)) zm = 0;
  if (isnan(z)) {
    g.act = g.slope = exactly(z);
  } else if (gate == RMSNORM_GATE_SIGMOID) {
    rn_approx a = {sigmoid, sigmoid_err, (double)sigmoid, low}, b = {cosig, cosig_err, (double)cosig, low};
    g.act = a;
    g.slope = mul(k, a, b);
  } else {
    rn_approx s = {sigmoid, sigmoid_err, (double)sigmoid, low};
    rn_approx inner = {1 + z * cosig, zm * cosig_err, 1 + zm * (double)cosig, low};
    g.act = mul(k, exactly(z), s);
    g.slope = mul(k, s, rounded(k, inner));
  }
  return g;
}

/* ---- one element's way into the norm ---- */

typedef struct element {
  rn_approx h, u;
  rn_real z;
} element;

/* The sum in the arithmetic's own type is part of the definition (rmsnorm.h: "the float32 sum"). A double holds the sum
 * of two floats well enough that rounding it again gives the rounding of the exact sum. */
static rn_real sum_of(const rn_source *s, double a, double b) {
  double t = a + b;
  return s->real == RMSNORM_DTYPE_F64 ? t : (double)(float)t;
}

static element element_at(const rn_source *s, const arithmetic *k, int64_t row, int64_t head, int64_t col) {
  element e;
  rn_real h = rn_source_at(s, &s->x, row, head, col);
  if (s->residual.data) {
    h = sum_of(s, (double)h, rn_source_at(s, &s->residual, row, head, col));
    h = rn_ref_round(s->sum_dtype, (double)h);
  }
  e.h = e.u = exactly(h);
  e.z = s->numerics.gate ? rn_source_at(s, &s->gate, row, head, col) : 0;
  if (s->numerics.gate && s->numerics.gate_place == RMSNORM_GATE_BEFORE) {
    gate_values gate = gate_at(k, s->numerics.gate, e.z);
    e.u = gated(k, e.h, gate.act, gate.act_gone);
    if (fabsl(e.u.value) > k->limit) e.u.value = copysignl(INFINITY, e.u.value), e.u.err = 0;
  }
  return e;
}

static rn_approx weight_at(const rn_source *s, const arithmetic *k, int64_t head, int64_t col) {
  rn_real w = rn_ref_load(s->weight_dtype, s->weight, rn_source_weight_index(s, head, col));
  if (s->numerics.weight_offset == 0) return exactly(w);
  rn_approx sum = exactly(w + (rn_real)s->numerics.weight_offset);
  return rounded(k, sum);
}

/* ---- statistics of one (row, head, group) ---- */

/* A sum whose terms brought along more error than rounding explains. */
static bool lossy(const arithmetic *k, double err, double size) {
  return err > 32 * k->unit * size;
}

static rn_approx sum_of_squares(const rn_source *s, const arithmetic *k, int64_t row, int64_t head, int64_t group) {
  rn_real sum = 0, lost = 0; /* compensated: an f64 row is judged by it too */
  double err = 0;
  bool open = false; /* an element that may be NaN or infinite (is_open): so may the sum */
  for (int64_t i = 0; i < s->width; i++) {
    rn_approx u = element_at(s, k, row, head, group * s->width + i).u;
    rn_real square = u.value * u.value, next = sum + square;
    if (!isinf(next)) lost += sum >= square ? (sum - next) + square : (square - next) + sum;
    sum = next;
    open |= u.value == 0 && isinf(u.err);
    err += 2 * (double)fabsl(u.value) * u.err + u.err * u.err;
  }
  rn_approx total = {sum + lost, err, (double)sum, lossy(k, err, (double)sum)};
  if (isnan(sum))
    total.err = 0;
  else if (open)
    total.err = INFINITY;
  else if (isinf(sum))
    total.err = 0;
  else
    total.err += depth(s->width) * k->unit * ((double)sum + err);
  return total;
}

/* mean square + eps, and 1 / sqrt of it. Rescued rows obey the same bound: their scale is a power of two. */
static rn_approx rstd_of(const rn_source *s, const arithmetic *k, rn_approx sum) {
  rn_approx r;
  rn_real v = sum.value / (rn_real)s->divisor + (rn_real)s->eps;
  if (isnan(v)) return exactly(v);
  if (isinf(sum.err)) return (rn_approx){0, INFINITY, 0, true};
  if (isinf(v) || v == 0) return exactly(0);
  rn_real err = sum.err / (rn_real)s->divisor + 4 * k->unit * v;
  if (s->sumsq) err += 4 * k->tiny; /* not rescued: a subnormal mean stays one */
  r.value = 1 / sqrtl(v);
  double relative = (double)(err / v);
  r.err = relative < 0.1 ? (double)r.value * (0.6 * relative + 2.1 * k->unit) : INFINITY;
  r.size = (double)r.value;
  r.small = relative > 64 * k->unit;
  return r;
}

static rn_approx statistic(const rn_source *s, const arithmetic *k, int64_t row, int64_t head, int64_t group) {
  if (s->sumsq) return rstd_of(s, k, exactly(s->sumsq[(row * s->heads + head) * s->groups + group]));
  rn_approx sum = sum_of_squares(s, k, row, head, group);
  /* Squares below the normal range are lost only in rows that are not rescued. */
  double low = s->real == RMSNORM_DTYPE_F64 ? 0x1p-961 : 0x1p-121;
  if (sum.value / (rn_real)s->divisor + (rn_real)s->eps > low) sum.err += (double)s->width * k->tiny;
  return rstd_of(s, k, sum);
}

void rn_ref_stats(const rmsnorm_stats_args *a, rn_approx *sumsq) {
  rmsnorm_forward_args f = RMSNORM_FORWARD_ARGS_INIT;
  f.rows = a->rows, f.heads = a->heads, f.cols = a->cols, f.groups = a->groups, f.eps = 0;
  f.x = a->x, f.residual = a->residual, f.gate = a->gate;
  f.numerics.round_sum = a->round_sum, f.numerics.gate = a->gate_kind, f.numerics.gate_place = RMSNORM_GATE_BEFORE;
  rn_source s = rn_source_forward(&f);
  resolve(&s, a->sum_dtype);
  arithmetic k = arithmetic_of(&s);
  for (int64_t r = 0; r < s.rows * s.heads; r++)
    for (int64_t g = 0; g < s.groups; g++) {
      rn_approx sum = sum_of_squares(&s, &k, r / s.heads, r % s.heads, g);
      sum.err += (double)s.width * k.tiny; /* plain float32: small squares vanish, large ones may overflow */
      if (sum.value + sum.err > k.limit && !isinf(sum.value)) sum.err = INFINITY;
      sumsq[r * s.groups + g] = sum;
    }
}

/* ---- forward ---- */

int64_t rn_ref_block_cols(const rmsnorm_quant *q, int64_t cols) {
  return q->granularity == RMSNORM_QUANT_BLOCK ? q->block_cols : q->granularity == RMSNORM_QUANT_MX ? 32 : cols;
}
int64_t rn_ref_blocks(const rmsnorm_quant *q, int64_t cols) {
  int64_t block = rn_ref_block_cols(q, cols);
  return (cols + block - 1) / block;
}

static void note_amax(const arithmetic *k, rn_approx *amax, rn_approx v) {
  double m = (double)fabsl(v.value);
  if (isnan(v.value)) return;
  if (m > k->limit) m = k->limit;
  if (m > (double)amax->value) amax->value = m;
  if (v.err > amax->err) amax->err = v.err;
  amax->small |= v.small;
}

void rn_ref_forward(const rmsnorm_forward_args *args, const rn_ref_forward_out *out) {
  rn_source s = rn_source_forward(args);
  arithmetic k = arithmetic_of(&s);
  bool after = s.numerics.gate && s.numerics.gate_place == RMSNORM_GATE_AFTER;
  int64_t block = rn_ref_block_cols(&args->quant, s.cols), blocks = rn_ref_blocks(&args->quant, s.cols);
  for (int64_t i = 0; out->amax && i < s.rows * s.heads * blocks; i++) out->amax[i] = exactly(0);
  for (int64_t r = 0; r < s.rows * s.heads; r++) {
    int64_t row = r / s.heads, head = r % s.heads;
    for (int64_t g = 0; g < s.groups; g++) {
      rn_approx rstd = statistic(&s, &k, row, head, g);
      rstd = stage(s.rstd_dtype, s.real, rstd);
      if (out->rstd) out->rstd[r * s.groups + g] = rstd;
      if (out->sumsq) out->sumsq[r * s.groups + g] = sum_of_squares(&s, &k, row, head, g);
      for (int64_t c = g * s.width; c < (g + 1) * s.width; c++) {
        element e = element_at(&s, &k, row, head, c);
        rn_approx v = stage(s.xhat_dtype, s.real, mul(&k, e.u, rstd));
        if (s.weight) v = mul(&k, v, weight_at(&s, &k, head, c));
        v = stage(s.normed_dtype, s.real, v);
        if (after) {
          gate_values gate = gate_at(&k, s.numerics.gate, e.z);
          v = gated(&k, v, gate.act, gate.act_gone);
        }
        if (out->y) out->y[r * s.cols + c] = v;
        if (out->residual_out) {
          rn_approx sum = exactly((rn_real)rn_source_at(&s, &s.x, row, head, c) +
                                  (rn_real)rn_source_at(&s, &s.residual, row, head, c));
          out->residual_out[r * s.cols + c] = rounded(&k, sum);
        }
        if (out->amax) note_amax(&k, &out->amax[r * blocks + c / block], v);
      }
    }
  }
}

/* ---- backward ---- */

typedef struct gradient {
  rn_approx xhat, g, t; /* g: gradient behind the gate; t = g * w */
  element e;
  gate_values gate;
  rn_approx weight;
} gradient;

static gradient gradient_at(const rn_source *s, const arithmetic *k, const rmsnorm_input_tensor *dy, rn_approx rstd,
                            int64_t row, int64_t head, int64_t col) {
  gradient d = {0};
  d.e = element_at(s, k, row, head, col);
  d.xhat = mul(k, d.e.u, rstd);
  if (s->numerics.gate) d.gate = gate_at(k, s->numerics.gate, d.e.z);
  d.g = exactly(rn_source_at(s, dy, row, head, col));
  if (s->numerics.gate && s->numerics.gate_place == RMSNORM_GATE_AFTER)
    d.g = gated(k, d.g, d.gate.act, d.gate.act_gone);
  d.weight = s->weight ? weight_at(s, k, head, col) : exactly(1);
  d.t = s->weight ? mul(k, d.g, d.weight) : d.g;
  return d;
}

static rn_approx dot_of(const rn_source *s, const arithmetic *k, const rmsnorm_input_tensor *dy, rn_approx rstd,
                        int64_t row, int64_t head, int64_t group) {
  rn_approx dot = exactly(0);
  bool open = false;
  for (int64_t c = group * s->width; c < (group + 1) * s->width; c++) {
    gradient d = gradient_at(s, k, dy, rstd, row, head, c);
    double t = (double)fabsl(d.t.value), x = (double)fabsl(d.xhat.value);
    dot.value += d.t.value * d.xhat.value;
    dot.err += d.t.err * x + d.xhat.err * t + d.t.err * d.xhat.err;
    dot.size += t * x;
    open |= product_is_open(d.t, d.xhat);
  }
  dot.small = lossy(k, dot.err, dot.size);
  if (isnan(dot.value))
    dot.err = 0;
  else if (open)
    dot.value = 0, dot.err = INFINITY;
  else if (isinf(dot.value))
    dot.err = 0;
  else if (!(dot.size + dot.err < k->limit))
    dot.err = INFINITY;
  else
    dot.err += depth(s->width) * k->unit * (dot.size + dot.err) + (double)s->width * k->tiny;
  return dot;
}

/* One row lane may hold as many rows as there are: the bound below holds for every order of rows. */
static void add_product(rn_approx *sum, rn_approx g, rn_approx xhat) {
  double gm = (double)fabsl(g.value), xm = (double)fabsl(xhat.value);
  sum->value += g.value * xhat.value;
  sum->err += g.err * xm + xhat.err * gm + g.err * xhat.err;
  sum->size += gm * xm;
  sum->small |= product_is_open(g, xhat); /* until the sum is finished, `small` says that it is open */
}

void rn_ref_backward(const rmsnorm_backward_args *args, const rn_ref_backward_out *out) {
  rn_source s = rn_source_backward(args);
  arithmetic k = arithmetic_of(&s);
  bool after = s.numerics.gate && s.numerics.gate_place == RMSNORM_GATE_AFTER;
  bool before = s.numerics.gate && !after;
  int64_t weights = s.weight_shape == RMSNORM_WEIGHT_HEADS_COLS ? s.heads * s.cols
                    : s.weight_shape == RMSNORM_WEIGHT_GROUP    ? s.width
                                                                : s.cols;
  int64_t terms = s.weight_shape == RMSNORM_WEIGHT_HEADS_COLS ? s.rows
                  : s.weight_shape == RMSNORM_WEIGHT_GROUP    ? s.rows * s.heads * s.groups
                                                              : s.rows * s.heads;
  for (int64_t i = 0; out->dweight && i < weights; i++) out->dweight[i] = exactly(0);
  for (int64_t r = 0; r < s.rows * s.heads; r++) {
    int64_t row = r / s.heads, head = r % s.heads;
    for (int64_t g = 0; g < s.groups; g++) {
      rn_approx rstd = statistic(&s, &k, row, head, g);
      rn_approx dot = args->dot ? exactly(args->dot[r * s.groups + g]) : dot_of(&s, &k, &args->dy, rstd, row, head, g);
      if (out->dot) out->dot[r * s.groups + g] = dot;
      rn_approx share = {dot.value / s.divisor, dot.err / (double)s.divisor, dot.size / (double)s.divisor, dot.small};
      share = rounded(&k, share);
      for (int64_t c = g * s.width; c < (g + 1) * s.width; c++) {
        gradient d = gradient_at(&s, &k, &args->dy, rstd, row, head, c);
        if (out->dweight) add_product(&out->dweight[rn_source_weight_index(&s, head, c)], d.g, d.xhat);
        rn_approx back = mul(&k, d.xhat, share);
        back.value = -back.value;
        rn_approx du = mul(&k, rstd, add(&k, d.t, back));
        if (out->dx) {
          rn_approx dx = before ? gated(&k, du, d.gate.act, d.gate.act_gone) : du;
          if (args->dresidual_out.data) dx = add(&k, dx, exactly(rn_source_at(&s, &args->dresidual_out, row, head, c)));
          out->dx[r * s.cols + c] = dx;
        }
        if (out->dgate) {
          rn_approx v = before ? mul(&k, du, d.e.h)
                               : mul(&k, exactly(rn_source_at(&s, &args->dy, row, head, c)),
                                     s.weight ? mul(&k, d.xhat, d.weight) : d.xhat);
          out->dgate[r * s.cols + c] = gated(&k, v, d.gate.slope, d.gate.slope_gone);
        }
      }
    }
  }
  for (int64_t i = 0; out->dweight && i < weights; i++) {
    rn_approx *w = &out->dweight[i];
    bool open = w->small;
    w->small = lossy(&k, w->err, w->size);
    if (isnan(w->value))
      w->err = 0;
    else if (open)
      w->err = INFINITY;
    else if (isinf(w->value))
      w->err = 0;
    else if (!(w->size + w->err < k.limit))
      w->err = INFINITY;
    else
      w->err += (double)terms * (k.unit * (w->size + w->err) + k.tiny);
  }
}

/* ---- judging ---- */

bool rn_ref_within(int dtype, int compute, rn_approx ref, double got, double *ulp, double *share) {
  *ulp = *share = 0;
  if (isnan(ref.value)) return dtype == RMSNORM_DTYPE_INT8 ? got == 0 : isnan(got);
  if (isinf(ref.err) || isnan(ref.err)) return true;
  bool saturates = dtype == RMSNORM_DTYPE_INT8 || dtype == RMSNORM_DTYPE_FP8_E4M3 || dtype == RMSNORM_DTYPE_FP8_E5M2;
  double largest = rn_ref_largest(dtype), unit = rn_ref_ulp(dtype, ref.size);
  rn_real edge = (rn_real)largest + rn_ref_ulp(dtype, largest), want = ref.value, have = got;
  if (saturates) {
    if (want > largest) want = largest;
    if (want < -largest - (dtype == RMSNORM_DTYPE_INT8)) want = -largest - (dtype == RMSNORM_DTYPE_INT8);
  } else {
    /* Infinity stands one step past the largest number, and everything beyond is as good as infinity. */
    if (want > edge) want = edge;
    if (want < -edge) want = -edge;
    if (isinf(got)) have = copysignl(edge, have);
  }
  if (isnan(got)) {
    *ulp = *share = INFINITY;
    return false;
  }
  double distance = (double)fabsl(have - want), allowed = ref.err;
  if (dtype != compute) allowed += 0.5 * rn_ref_ulp(dtype, (double)fabsl(ref.value) + ref.err);
  if (!ref.small) *ulp = distance / unit;
  *share = distance == 0 ? 0 : distance / allowed;
  return distance <= allowed;
}

bool rn_ref_scale_ok(const rmsnorm_quant *q, rn_approx amax, double got, double *ulp) {
  *ulp = 0;
  double low = (double)amax.value - amax.err, high = (double)amax.value + amax.err;
  if (low < 0) low = 0;
  if (isinf(amax.err)) return q->granularity == RMSNORM_QUANT_MX || got > 0;
  double largest = rn_ref_largest(q->q.dtype);
  if (q->granularity == RMSNORM_QUANT_MX) {
    /* The power of two jumps: it has to be that of some amax within the bound. */
    double ends[2] = {low, high};
    int e[2], emax = q->q.dtype == RMSNORM_DTYPE_FP8_E4M3 ? 8 : 15;
    for (int i = 0; i < 2; i++) {
      e[i] = -127;
      if (ends[i] > 0) {
        int x;
        (void)frexp(ends[i], &x);
        e[i] = x - 1 - emax;
        if (q->e8m0_rounding == RMSNORM_E8M0_CEIL && ends[i] > ldexp(largest, e[i])) e[i]++;
      }
      if (e[i] < -127) e[i] = -127;
      if (e[i] > 127) e[i] = 127;
    }
    return got >= e[0] + 127 && got <= e[1] + 127;
  }
  double bound = q->scale_max > 0 ? q->scale_max : INFINITY;
  double want = (double)amax.value / largest, err = amax.err / largest + 0x1p-24 * want + 0x1p-150;
  if (want < 0x1p-126) want = 0x1p-126;
  if (want > bound) want = bound;
  double unit = rn_ref_ulp(RMSNORM_DTYPE_F32, want);
  if (!amax.small) *ulp = fabs(got - want) / unit;
  return fabs(got - want) <= err;
}

rn_approx rn_ref_quantised(const rmsnorm_quant *q, rn_approx v, double scale) {
  rn_approx r = {v.value / (rn_real)scale, v.err / scale, v.size / scale, v.small};
  /* A division, or a reciprocal and a product; a subnormal reciprocal loses more than a unit. */
  if (!isinf(r.value)) r.err += 2.1 * 0x1p-24 * (double)fabsl(r.value) + 0x1p-149;
  if (q->scale_op == RMSNORM_SCALE_RECIPROCAL && q->granularity != RMSNORM_QUANT_MX && 1 / scale < 0x1p-126)
    r.err += (double)fabsl(v.value) * 0x1p-149;
  if (q->scale_op == RMSNORM_SCALE_RECIPROCAL && 1 / scale > 0x1.fffffep+127) r.err = INFINITY;
  return r;
}
