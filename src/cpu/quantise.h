/* quantise.h - the quantised formats of epilogue.h without branches, so that the compiler makes vectors of the loops,
 * and amax in vectors. Same codes, element for element. Part of row.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../epilogue.h"
#include "elements.h"

/* |v| as fp8: rounded on the bits where the result is normal; where it is subnormal, adding a number whose last bit is
 * worth the least subnormal rounds as well, and leaves the code in the low bits. */
RN_INLINE uint32_t fp8_code(float v, int man, int bias, uint32_t largest) {
  const uint32_t bits = rn_bits(v), mag = bits & 0x7fffffffu;
  const int drop = 23 - man;
  const uint32_t normal =
      ((mag + ((1u << (drop - 1)) - 1u) + (mag >> drop & 1u)) >> drop) - ((uint32_t)(127 - bias) << man);
  const float anchor = rn_from_bits((uint32_t)(127 + 23 - man + 1 - bias) << 23);
  const uint32_t subnormal = rn_bits(rn_from_bits(mag) + anchor) - rn_bits(anchor);
  uint32_t code = mag < (uint32_t)(128 - bias) << 23 ? subnormal : normal;
  code = code > largest ? largest : code;
  code = mag > 0x7f800000u ? RN_FP8_NAN : code;
  return code | (bits >> 24 & 0x80u);
}
RN_INLINE uint32_t int8_code(float v) {
  float q = v == v ? v : 0.0f;
  q = q > 127.0f ? 127.0f : q;
  q = q < -128.0f ? -128.0f : q;
  return rn_bits(q + RN_INT8_MAGIC) - rn_bits(RN_INT8_MAGIC);
}
RN_INLINE uint32_t any_code(int dtype, float v) {
  switch (dtype) {
  case RMSNORM_DTYPE_FP8_E4M3:
    return fp8_code(v, RN_E4M3_MAN, RN_E4M3_BIAS, RN_E4M3_LARGEST);
  case RMSNORM_DTYPE_FP8_E5M2:
    return fp8_code(v, RN_E5M2_MAN, RN_E5M2_BIAS, RN_E5M2_LARGEST);
  default:
    return int8_code(v);
  }
}

RN_INLINE void codes_divided(int dtype, const float *restrict v, int count, float scale, uint8_t *restrict q) {
  for (int k = 0; k < count; ++k) q[k] = (uint8_t)any_code(dtype, v[k] / scale);
}
RN_INLINE void codes_multiplied(int dtype, const float *restrict v, int count, float a, float b, uint8_t *restrict q) {
  for (int k = 0; k < count; ++k) q[k] = (uint8_t)any_code(dtype, (v[k] * a) * b);
}
RN_INLINE void codes(const rn_problem *p, int dtype, const float *v, int count, float scale, int exponent, uint8_t *q) {
  if (p->quant == RMSNORM_QUANT_MX)
    codes_multiplied(dtype, v, count, rn_exp2i(exponent / 2 - exponent), rn_exp2i(-(exponent / 2)), q);
  else if (p->scale_op == RMSNORM_SCALE_RECIPROCAL)
    codes_multiplied(dtype, v, count, 1.0f / scale, 1.0f, q);
  else
    codes_divided(dtype, v, count, scale, q);
}

/* q[0 .. count) of values with one scale (MX: its exponent). */
static void quantise_values(const rn_problem *p, const float *v, int count, float scale, int exponent, uint8_t *q) {
  switch (p->quant_dtype) {
  case RMSNORM_DTYPE_FP8_E4M3:
    codes(p, RMSNORM_DTYPE_FP8_E4M3, v, count, scale, exponent, q);
    break;
  case RMSNORM_DTYPE_FP8_E5M2:
    codes(p, RMSNORM_DTYPE_FP8_E5M2, v, count, scale, exponent, q);
    break;
  default:
    codes(p, RMSNORM_DTYPE_INT8, v, count, scale, exponent, q);
  }
}

/* The largest |v|, which a maximum finds in any order. NaN is skipped, infinity counts as the largest finite number. */
static float amax_of(const float *v, int count) {
  vf most = vf_zero();
  for (int k = 0; k < count; k += RN_PAIR) {
    const v2 a = count - k >= RN_PAIR ? v2_load_f32(v + k, RN_NATURAL) : v2_load_f32_some(v + k, RN_NATURAL, count - k);
    most = vf_max(most, vf_max(vf_clamp_nan_to_zero(a.a), vf_clamp_nan_to_zero(a.b)));
  }
  return vf_max_lanes(vf_min(most, vf_set1(FLT_MAX)));
}
