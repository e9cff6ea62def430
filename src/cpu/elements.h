/* elements.h - from a problem to vectors of values: loading any type, rounding to any type, the gate. Included by row.c
 * after simd.h.
 *
 * rn_cfg holds what the inner loops branch on. In the instances that matter its fields are compile-time constants, so
 * that every switch below folds away; the general instance leaves them to run time and takes whatever is asked.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_ELEMENTS_H
#define RN_ELEMENTS_H

#include "../gate.h"
#include "../internal.h"
#include "../numeric.h"
#include "simd.h"

#define RN_PAIR  (2 * RN_VL)    /* elements of a v2 */
#define RN_PAIRS (64 / RN_PAIR) /* v2 of a 64-lane block */

typedef struct rn_cfg {
  int x, residual, weight, y, residual_out; /* element types; residual_out also when absent */
  int gate;                                 /* rmsnorm_gate */
  int layout;                               /* of every vector in the row */
  bool store_sum;                           /* the first pass writes residual_out */
  bool tame;                                /* no wild NaN can come up, see simd.h */
  bool fixed;                               /* the types above are compile-time constants */
  int round_sum, round_xhat, round_normed;  /* element types, F32 = not rounded */
  bool has_offset;                          /* weight_offset is not -0 */
  float weight_offset;
} rn_cfg;
/* Everything the loops need from the problem is in here or in a local copy of a place: a vector store may alias
 * anything that lies in memory, and what it may alias would be loaded again in every turn. */

/* Where one row (one group of it) lies. */
typedef struct rn_place {
  const char *x, *residual, *gate, *weight;
  char *y, *residual_out, *q;
} rn_place;

/* Rows that lie at equal distances: the place of the first, and the bytes from each to the next (0 for what is absent).
 */
typedef struct rn_run {
  rn_place at;
  int64_t x_step, residual_step, gate_step, weight_step, y_step, residual_out_step;
  int count;
} rn_run;

/* From one row's place to the next one's. Through integers: an absent tensor is NULL, to which C allows nothing to be
 * added, not even 0. */
RN_INLINE char *step_from(const char *base, int64_t bytes) {
  return (char *)((uintptr_t)base + (uintptr_t)bytes);
}
RN_INLINE void advance(const rn_run *run, rn_place *at) {
  at->x = step_from(at->x, run->x_step), at->residual = step_from(at->residual, run->residual_step);
  at->gate = step_from(at->gate, run->gate_step), at->weight = step_from(at->weight, run->weight_step);
  at->y = step_from(at->y, run->y_step), at->residual_out = step_from(at->residual_out, run->residual_out_step);
}

RN_INLINE int64_t rn_offset(int dtype, int64_t i) {
  return dtype == RMSNORM_DTYPE_F32 ? i * 4 : i * 2;
}

/* All RN_PAIR elements at i, or the first `count` of them (the others 0; count <= 0: none). */
RN_INLINE v2 load_all(int dtype, int layout, const char *base, int64_t i) {
  const char *ptr = base + rn_offset(dtype, i);
  switch (dtype) {
  case RMSNORM_DTYPE_BF16:
    return v2_load_bf16(ptr, layout);
  case RMSNORM_DTYPE_F16:
    return v2_load_f16(ptr, layout);
  default:
    return v2_load_f32(ptr, layout);
  }
}
RN_INLINE v2 load_some(int dtype, int layout, const char *base, int64_t i, int count) {
  const char *ptr = base + rn_offset(dtype, i);
  switch (dtype) {
  case RMSNORM_DTYPE_BF16:
    return v2_load_bf16_some(ptr, layout, count);
  case RMSNORM_DTYPE_F16:
    return v2_load_f16_some(ptr, layout, count);
  default:
    return v2_load_f32_some(ptr, layout, count);
  }
}
RN_INLINE void store_all(int dtype, int layout, char *base, int64_t i, v2 v, bool stream, const bool wild) {
  char *ptr = base + rn_offset(dtype, i);
  switch (dtype) {
  case RMSNORM_DTYPE_BF16:
    v2_store_bf16(ptr, layout, v, stream, wild);
    break;
  case RMSNORM_DTYPE_F16:
    v2_store_f16(ptr, layout, v, stream);
    break;
  default:
    v2_store_f32(ptr, layout, v, stream);
  }
}
RN_INLINE void store_some(int dtype, int layout, char *base, int64_t i, v2 v, int count) {
  char *ptr = base + rn_offset(dtype, i);
  switch (dtype) {
  case RMSNORM_DTYPE_BF16:
    v2_store_bf16_some(ptr, layout, v, count);
    break;
  case RMSNORM_DTYPE_F16:
    v2_store_f16_some(ptr, layout, v, count);
    break;
  default:
    v2_store_f32_some(ptr, layout, v, count);
  }
}

/* The general instance calls these two instead of holding a copy of every conversion at every access. */
static __attribute__((noinline)) v2 load_any(int dtype, int layout, const char *base, int64_t i, int count) {
  return count >= RN_PAIR ? load_all(dtype, layout, base, i) : load_some(dtype, layout, base, i, count);
}
static __attribute__((noinline)) void store_any(int dtype, int layout, char *base, int64_t i, const v2 *v, int count) {
  if (count >= RN_PAIR)
    store_all(dtype, layout, base, i, *v, false, true);
  else
    store_some(dtype, layout, base, i, *v, count);
}

/* count is the constant RN_PAIR in the bulk of a row, and anything in its tail. */
RN_INLINE v2 load(rn_cfg c, int dtype, const char *base, int64_t i, int count) {
  if (!c.fixed) return load_any(dtype, c.layout, base, i, count);
  if (__builtin_constant_p(count) && count == RN_PAIR) return load_all(dtype, c.layout, base, i);
  return load_some(dtype, c.layout, base, i, count);
}
RN_INLINE void store(rn_cfg c, int dtype, char *base, int64_t i, v2 v, int count, bool stream) {
  if (!c.fixed)
    store_any(dtype, c.layout, base, i, &v, count);
  else if (__builtin_constant_p(count) && count == RN_PAIR)
    store_all(dtype, c.layout, base, i, v, stream, !c.tame);
  else
    store_some(dtype, c.layout, base, i, v, count);
}

RN_INLINE v2 v2_add(v2 p, v2 q) {
  return (v2){vf_add(p.a, q.a), vf_add(p.b, q.b)};
}
RN_INLINE v2 v2_mul(v2 p, v2 q) {
  return (v2){vf_mul(p.a, q.a), vf_mul(p.b, q.b)};
}
RN_INLINE v2 v2_scale(v2 p, vf s) {
  return (v2){vf_mul(p.a, s), vf_mul(p.b, s)};
}
RN_INLINE v2 v2_fma(v2 p, v2 q, v2 r) {
  return (v2){vf_fma(p.a, q.a, r.a), vf_fma(p.b, q.b, r.b)};
}
RN_INLINE v2 v2_zero(void) {
  return (v2){vf_zero(), vf_zero()};
}

RN_INLINE v2 round_to(int dtype, v2 v) {
  switch (dtype) {
  case RMSNORM_DTYPE_BF16:
    return (v2){vf_round_bf16(v.a), vf_round_bf16(v.b)};
  case RMSNORM_DTYPE_F16:
    return (v2){vf_round_f16(v.a), vf_round_f16(v.b)};
  default:
    return v;
  }
}

/* exp(-|z|): docs/numerics.md section 2, operation for operation. */
RN_INLINE vf exp_minus_abs(vf z) {
  const vf a = vf_min(vf_set1(RN_EXP_LIMIT), vf_abs(z)); /* in this order a NaN stays */
  const vf k = vf_sub(vf_fnma(a, vf_set1(RN_EXP_LOG2E), vf_set1(RN_EXP_MAGIC)), vf_set1(RN_EXP_MAGIC));
  const vf minus_a = vf_sub(vf_set1(-0.0f), a);
  const vf r = vf_fnma(k, vf_set1(RN_EXP_LN2_LO), vf_fnma(k, vf_set1(RN_EXP_LN2_HI), minus_a));
  vf p = vf_set1(RN_EXP_C6);
  p = vf_fma(p, r, vf_set1(RN_EXP_C5));
  p = vf_fma(p, r, vf_set1(RN_EXP_C4));
  p = vf_fma(p, r, vf_set1(RN_EXP_C3));
  p = vf_fma(p, r, vf_set1(RN_EXP_C2));
  p = vf_fma(p, r, vf_set1(1.0f));
  p = vf_fma(p, r, vf_set1(1.0f));
  vf low, high;
  vf_pow2_halves(k, &low, &high);
  return vf_mul(vf_mul(p, low), high);
}
typedef struct rn_gate_values {
  vf act, derivative;
} rn_gate_values;
static __attribute__((noinline)) rn_gate_values gate_values(int kind, vf z) {
  const vf one = vf_set1(1.0f), e = exp_minus_abs(z), d = vf_add(one, e);
  const vf sigmoid = vf_div(vf_select_neg(z, e, one), d), cosig = vf_div(vf_select_neg(z, one, e), d);
  if (kind == RMSNORM_GATE_SIGMOID) return (rn_gate_values){sigmoid, vf_mul(sigmoid, cosig)};
  return (rn_gate_values){vf_mul(z, sigmoid), vf_mul(sigmoid, vf_fma(z, cosig, one))};
}
RN_INLINE v2 v2_act(int kind, v2 z) {
  return (v2){gate_values(kind, z.a).act, gate_values(kind, z.b).act};
}

/* x + residual, rounded where round_sum says so. */
RN_INLINE v2 load_sum(rn_cfg c, const rn_place *at, int64_t i, int count) {
  v2 h = load(c, c.x, at->x, i, count);
  if (c.residual) {
    h = v2_add(h, load(c, c.residual, at->residual, i, count));
    if (c.x != RMSNORM_DTYPE_F32 || !c.fixed) h = round_to(c.round_sum, h);
  }
  return h;
}
/* What is squared: the sum, times a gate before the norm. */
RN_INLINE v2 gated_before(const rn_problem *p, rn_cfg c, const rn_place *at, int64_t i, int count, v2 h) {
  if (c.gate && p->gate_before) h = v2_mul(h, v2_act(c.gate, load(c, p->gate.dtype, at->gate, i, count)));
  return h;
}

#endif /* RN_ELEMENTS_H */
