/* gate.h - sigmoid and silu with their derivatives, from one fixed exponential: docs/numerics.md section 2.
 *
 * A library's expf differs in its last bit between machines, so the steps are written out: scale by log2 e, split off
 * the integer, a polynomial of degree 6 on what is left, two exact powers of two. The vector code takes the same steps
 * with the same constants. For f64, which only gradient checks use, the exponential is libm's.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_GATE_H
#define RN_GATE_H

#include "numeric.h"

#include <math.h>

#define RN_EXP_LIMIT  110.0f /* exp(-110) is 0 in float: larger arguments would only leave the range of k */
#define RN_EXP_LOG2E  0x1.715476p+0f
#define RN_EXP_MAGIC  12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold */
#define RN_EXP_LN2_HI 0x1.62e4p-1f
#define RN_EXP_LN2_LO 0x1.7f7d1cp-20f
#define RN_EXP_C2     0x1.fffffcp-2f
#define RN_EXP_C3     0x1.555492p-3f
#define RN_EXP_C4     0x1.5558fp-5f
#define RN_EXP_C5     0x1.1239fp-7f
#define RN_EXP_C6     0x1.6a270cp-10f

/* exp(-a) for a >= 0, infinity included; NaN gives NaN. */
RN_FN float rn_exp_minus(float a) {
  float t, k, r, p;
  int whole, half;
  if (rn_is_nan(a)) return a;
  if (a > RN_EXP_LIMIT) a = RN_EXP_LIMIT;
  t = fmaf(-a, RN_EXP_LOG2E, RN_EXP_MAGIC);
  k = t - RN_EXP_MAGIC;
  r = fmaf(k, -RN_EXP_LN2_HI, -a);
  r = fmaf(k, -RN_EXP_LN2_LO, r);
  p = RN_EXP_C6;
  p = fmaf(p, r, RN_EXP_C5);
  p = fmaf(p, r, RN_EXP_C4);
  p = fmaf(p, r, RN_EXP_C3);
  p = fmaf(p, r, RN_EXP_C2);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  whole = (int)k, half = rn_half_down(whole);
  return (p * rn_exp2i(half)) * rn_exp2i(whole - half); /* in two steps: 2^k alone may be below the smallest float */
}

/* sigmoid(z) and cosig(z) = 1 - sigmoid(z), neither of them ever through a difference. */
RN_FN float rn_sigmoid(float z) {
  float e = rn_exp_minus(rn_abs(z));
  return (z < 0 ? e : 1.0f) / (1.0f + e);
}
RN_FN float rn_cosig(float z) {
  float e = rn_exp_minus(rn_abs(z));
  return (z < 0 ? 1.0f : e) / (1.0f + e);
}
RN_FN double rn_sigmoid_f64(double z) {
  double e = exp(-rn_abs_f64(z));
  return (z < 0 ? e : 1.0) / (1.0 + e);
}
RN_FN double rn_cosig_f64(double z) {
  double e = exp(-rn_abs_f64(z));
  return (z < 0 ? 1.0 : e) / (1.0 + e);
}

/* act(z) for a kind of gate (rmsnorm_gate, not NONE), and its derivative. */
RN_FN float rn_act(int kind, float z) {
  return kind == RMSNORM_GATE_SILU ? z * rn_sigmoid(z) : rn_sigmoid(z);
}
RN_FN float rn_dact(int kind, float z) {
  return rn_sigmoid(z) * (kind == RMSNORM_GATE_SILU ? fmaf(z, rn_cosig(z), 1.0f) : rn_cosig(z));
}
RN_FN double rn_act_f64(int kind, double z) {
  return kind == RMSNORM_GATE_SILU ? z * rn_sigmoid_f64(z) : rn_sigmoid_f64(z);
}
RN_FN double rn_dact_f64(int kind, double z) {
  return rn_sigmoid_f64(z) * (kind == RMSNORM_GATE_SILU ? fma(z, rn_cosig_f64(z), 1.0) : rn_cosig_f64(z));
}

#endif /* RN_GATE_H */
