/* epilogue.h - what each quantised output means, written once as scalar code: docs/numerics.md section 3.
 *
 * A new format is an enum value in rmsnorm.h, a line in each of the switches here, and nothing else to be right
 * everywhere; vector forms elsewhere are accelerations that return the same codes. Valid as C11 and as CUDA C++.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_EPILOGUE_H
#define RN_EPILOGUE_H

#include "numeric.h"

/* fp8: mantissa bits, exponent bias, and the code of the largest finite value. */
#define RN_E4M3_MAN     3
#define RN_E4M3_BIAS    7
#define RN_E4M3_LARGEST 0x7eu
#define RN_E5M2_MAN     2
#define RN_E5M2_BIAS    15
#define RN_E5M2_LARGEST 0x7bu
#define RN_FP8_NAN      0x7fu
#define RN_SCALE_MIN    0x1p-126f   /* no scale is smaller: a zero row gets this one */
#define RN_INT8_MAGIC   12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold */

/* The largest finite value of a quantised type: what amax is divided by. */
RN_FN float rn_largest(int dtype) {
  switch (dtype) {
  case RMSNORM_DTYPE_FP8_E4M3:
    return 448.0f;
  case RMSNORM_DTYPE_FP8_E5M2:
    return 57344.0f;
  default:
    return 127.0f;
  }
}

/* The exponent of that largest value (fp8), the emax of the OCP microscaling text. */
RN_FN int rn_largest_exponent(int dtype) {
  return dtype == RMSNORM_DTYPE_FP8_E4M3 ? 8 : 15;
}

RN_FN uint8_t rn_quantise_fp8(float v, int man, int bias, uint32_t largest) {
  uint32_t bits = rn_bits(v), sign = bits >> 24 & 0x80u, code;
  if (rn_is_nan(v)) return (uint8_t)(sign | RN_FP8_NAN);
  code = rn_narrow_magnitude(bits & 0x7fffffffu, man, bias);
  return (uint8_t)(sign | (code > largest ? largest : code));
}

RN_FN uint8_t rn_quantise_int8(float v) {
  int32_t q;
  if (rn_is_nan(v)) return 0;
  if (v > 127.0f) v = 127.0f;
  if (v < -128.0f) v = -128.0f;
  q = (int32_t)(rn_bits(v + RN_INT8_MAGIC) - rn_bits(RN_INT8_MAGIC));
  return (uint8_t)(int8_t)q;
}

/* A scaled value as a code: to nearest even, saturated, infinity too; NaN stays NaN (int8: 0). */
RN_FN uint8_t rn_quantise(int dtype, float v) {
  switch (dtype) {
  case RMSNORM_DTYPE_FP8_E4M3:
    return rn_quantise_fp8(v, RN_E4M3_MAN, RN_E4M3_BIAS, RN_E4M3_LARGEST);
  case RMSNORM_DTYPE_FP8_E5M2:
    return rn_quantise_fp8(v, RN_E5M2_MAN, RN_E5M2_BIAS, RN_E5M2_LARGEST);
  default:
    return rn_quantise_int8(v);
  }
}

/* The value of a code, exactly; multiply by the scale to undo rn_quantise. */
RN_FN float rn_dequantise(int dtype, uint8_t code) {
  float sign = code & 0x80u ? -1.0f : 1.0f;
  uint32_t mag = code & 0x7fu;
  switch (dtype) {
  case RMSNORM_DTYPE_FP8_E4M3:
    if (mag == RN_FP8_NAN) return rn_from_bits(0x7fc00000u);
    if (mag < 8u) return sign * ((float)mag * 0x1p-9f);
    return sign * rn_from_bits((mag << 20) + (120u << 23));
  case RMSNORM_DTYPE_FP8_E5M2:
    return rn_widen_f16((uint16_t)(code << 8)); /* e5m2 is the upper half of f16 */
  case RMSNORM_DTYPE_E8M0:
    return code == 0xffu ? rn_from_bits(0x7fc00000u) : rn_exp2i((int)code - 127);
  default:
    return (float)(code < 128u ? (int)code : (int)code - 256);
  }
}

/* One more value for amax, which starts at +0: NaN is skipped, infinity counts as the largest finite number. */
RN_FN float rn_amax(float amax, float v) {
  float a = rn_abs(v);
  if (a > FLT_MAX) a = FLT_MAX;
  return a > amax ? a : amax;
}

/* ROW and BLOCK: the scale of a row or block with this amax. */
RN_FN float rn_scale(int dtype, float amax, float scale_max) {
  float scale = amax / rn_largest(dtype);
  if (scale < RN_SCALE_MIN) scale = RN_SCALE_MIN;
  return scale > scale_max ? scale_max : scale;
}

/* TENSOR, ROW and BLOCK: one value with its scale. The reciprocal is rounded to float by itself, on purpose. */
RN_FN uint8_t rn_quantise_scaled(int dtype, int scale_op, float v, float scale) {
  return rn_quantise(dtype, scale_op == RMSNORM_SCALE_RECIPROCAL ? v * (1.0f / scale) : v / scale);
}

/* MX: the exponent of the block's scale, within [-127, 127]; its e8m0 code is this + 127. */
RN_FN int rn_mx_exponent(int dtype, int e8m0_rounding, float amax) {
  int exponent, e;
  if (amax < FLT_MIN) return -127; /* zero, and everything so small that the clamp below decides */
  exponent = rn_exponent(amax);
  e = exponent - rn_largest_exponent(dtype);
  /* CEIL: one more where amax, taken to [1, 2), is past the largest value taken there (both exact). */
  if (e8m0_rounding == RMSNORM_E8M0_CEIL &&
      amax * rn_exp2i(-exponent) > rn_largest(dtype) * rn_exp2i(-rn_largest_exponent(dtype)))
    e++;
  return e < -127 ? -127 : e > 127 ? 127 : e;
}

/* MX: one value with the exponent of its scale. Two normal factors: 2^-127 alone would be a subnormal one. */
RN_FN uint8_t rn_quantise_mx(int dtype, float v, int e) {
  int half = e / 2;
  return rn_quantise(dtype, (v * rn_exp2i(half - e)) * rn_exp2i(-half));
}

#endif /* RN_EPILOGUE_H */
