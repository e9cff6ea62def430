/* numeric.h - the number formats as scalar code: f16, bf16, f32 and f64, widened exactly and narrowed to nearest even.
 *
 * Everything here works on bits, so no rounding mode, flush-to-zero bit or conversion instruction can change a result.
 * Valid as C11 and as CUDA C++. docs/numerics.md section 5 is the contract.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_NUMERIC_H
#define RN_NUMERIC_H

#include "rmsnorm.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "rmsnorm promises bits: build it without -ffast-math (and without -Ofast)"
#endif
/* 16 is 0 for a compiler that also has _Float16: float is float all the same. */
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "rmsnorm needs float arithmetic in float (FLT_EVAL_METHOD 0): on 32-bit x86 build with -msse2 -mfpmath=sse"
#endif

/* No multiplication and addition may be contracted into an fma that is not written. The build passes
 * -ffp-contract=off; this is for a plain clang without it (a plain gcc needs -std=c11, which implies it). */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#ifdef __CUDACC__
#define RN_FN static __host__ __device__ inline
#else
#define RN_FN static inline
#endif

/* An ordinary row has its v = S / divisor + eps within [RN_V_MIN, largest finite]; its rstd therefore lies within
 * [RN_RSTD_MIN, RN_RSTD_MAX], and a saved rstd outside belongs to a rescued row (section 1.3 and 4). */
#define RN_V_MIN        0x1p-120f
#define RN_V_MIN_F64    0x1p-960
#define RN_RSTD_MIN     0x1p-64f
#define RN_RSTD_MAX     0x1p60f
#define RN_RSTD_MIN_F64 0x1p-512
#define RN_RSTD_MAX_F64 0x1p480
/* The largest part of a rescued row's exponent that goes into the factor r (section 1.4: b). */
#define RN_RESCUE_B     100
#define RN_RESCUE_B_F64 800

/* ------------------------------------------------------------------------------------------------------------------
 * Bits. */
RN_FN uint32_t rn_bits(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
RN_FN float rn_from_bits(uint32_t bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
RN_FN uint64_t rn_bits_f64(double v) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
RN_FN double rn_from_bits_f64(uint64_t bits) {
  double v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

RN_FN float rn_abs(float v) {
  return rn_from_bits(rn_bits(v) & 0x7fffffffu);
}
RN_FN double rn_abs_f64(double v) {
  return rn_from_bits_f64(rn_bits_f64(v) & 0x7fffffffffffffffu);
}
RN_FN int rn_is_nan(float v) {
  return (rn_bits(v) & 0x7fffffffu) > 0x7f800000u;
}
RN_FN int rn_is_nan_f64(double v) {
  return (rn_bits_f64(v) & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Exponents and powers of two. */

/* e / 2 rounded down, for either sign: what docs/numerics.md writes as e >> 1. */
RN_FN int rn_half_down(int e) {
  return (e - (e & 1)) / 2;
}

/* 2^e, exactly, for e within [-149, 127]; subnormal below -126. */
RN_FN float rn_exp2i(int e) {
  return rn_from_bits(e >= -126 ? (uint32_t)(e + 127) << 23 : (uint32_t)1 << (e + 149));
}
/* 2^e, exactly, for e within [-1074, 1023]. */
RN_FN double rn_exp2i_f64(int e) {
  return rn_from_bits_f64(e >= -1022 ? (uint64_t)(e + 1023) << 52 : (uint64_t)1 << (e + 1074));
}

/* exponent(0): below every other one, also after rn_half_down. */
#define RN_EXPONENT_OF_ZERO (-16384)

/* The e with 2^e <= m < 2^(e+1), also for subnormal m. m is finite and not negative. */
RN_FN int rn_exponent(float m) {
  uint32_t bits = rn_bits(m);
  int e = -126;
  if (bits == 0) return RN_EXPONENT_OF_ZERO;
  if (bits >= 0x00800000u) return (int)(bits >> 23) - 127;
  for (; bits < 0x00800000u; bits <<= 1) e--;
  return e;
}
RN_FN int rn_exponent_f64(double m) {
  uint64_t bits = rn_bits_f64(m);
  int e = -1022;
  if (bits == 0) return RN_EXPONENT_OF_ZERO;
  if (bits >= 0x0010000000000000u) return (int)(bits >> 52) - 1023;
  for (; bits < 0x0010000000000000u; bits <<= 1) e--;
  return e;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Widening: exact; NaN stays NaN (and becomes quiet, as conversion instructions make it). */
RN_FN float rn_widen_bf16(uint16_t code) {
  uint32_t bits = (uint32_t)code << 16;
  if ((bits & 0x7fffffffu) > 0x7f800000u) bits |= 0x00400000u;
  return rn_from_bits(bits);
}

RN_FN float rn_widen_f16(uint16_t code) {
  uint32_t sign = (uint32_t)(code & 0x8000u) << 16, mag = code & 0x7fffu;
  if (mag > 0x7c00u) return rn_from_bits(sign | 0x7fc00000u | (mag & 0x3ffu) << 13);
  if (mag == 0x7c00u) return rn_from_bits(sign | 0x7f800000u);
  if (mag >= 0x0400u) return rn_from_bits(sign | ((mag << 13) + (112u << 23))); /* the bias grows from 15 to 127 */
  return rn_from_bits(sign | rn_bits((float)mag * 0x1p-24f));                   /* a count of smallest subnormals */
}

/* ------------------------------------------------------------------------------------------------------------------
 * Narrowing: to nearest even, subnormals kept, overflow to infinity, NaN stays NaN and quiet. */

/* bits / 2^shift rounded to nearest even; shift within [1, 31]. */
RN_FN uint32_t rn_shift_to_even(uint32_t bits, int shift) {
  uint32_t kept = bits >> shift, rest = bits - (kept << shift), half = (uint32_t)1 << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1u)));
}

/* The magnitude bits of a finite or infinite float, as the code of a smaller format with `man` mantissa bits and the
 * exponent bias `bias`, on its scale of codes without an end: a value past the largest exponent gets a code past the
 * last, and the caller clamps. */
RN_FN uint32_t rn_narrow_magnitude(uint32_t mag, int man, int bias) {
  int exponent = (int)(mag >> 23), shift;
  if (exponent > 127 - bias) /* normal there: shift the bias; a carry out of the mantissa steps up the exponent */
    return rn_shift_to_even(mag - ((uint32_t)(127 - bias) << 23), 23 - man);
  shift = 151 - bias - man - exponent;
  if (shift > 24) return 0; /* below half of the smallest subnormal (float subnormals too) */
  return rn_shift_to_even((mag & 0x007fffffu) | 0x00800000u, shift);
}

RN_FN uint16_t rn_narrow_bf16(float v) {
  uint32_t bits = rn_bits(v);
  if (rn_is_nan(v)) return (uint16_t)(bits >> 16 | 0x0040u);
  return (uint16_t)rn_shift_to_even(bits, 16); /* the same exponents: subnormals and overflow come by themselves */
}

RN_FN uint16_t rn_narrow_f16(float v) {
  uint32_t bits = rn_bits(v), sign = bits >> 16 & 0x8000u, mag = bits & 0x7fffffffu, code;
  if (rn_is_nan(v)) return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x3ffu));
  code = rn_narrow_magnitude(mag, 10, 15);
  return (uint16_t)(sign | (code > 0x7c00u ? 0x7c00u : code));
}

/* A double as a float, rounded to odd: inexact values end in an odd last bit. A second rounding, to at most 22 bits,
 * then gives what one rounding of the double would have: the odd bit remembers that something was there. */
RN_FN float rn_narrow_odd(double v) {
  float near = (float)v;
  uint32_t bits = rn_bits(near);
  if (rn_is_nan_f64(v) || (double)near == v || (bits & 1u)) return near;
  return rn_from_bits(rn_abs_f64((double)near) > rn_abs_f64(v) ? bits - 1 : bits + 1);
}
RN_FN uint16_t rn_narrow_bf16_f64(double v) {
  return rn_narrow_bf16(rn_narrow_odd(v));
}
RN_FN uint16_t rn_narrow_f16_f64(double v) {
  return rn_narrow_f16(rn_narrow_odd(v));
}

/* ------------------------------------------------------------------------------------------------------------------
 * Elements of arrays, by type. memcpy, because the arrays are the caller's and have the caller's types. */

/* Element `index` of `data`, widened to float. f32, f16, bf16; an f64 element is rounded. */
RN_FN float rn_load(int dtype, const void *data, int64_t index) {
  const char *at = (const char *)data;
  uint16_t code;
  float v;
  double wide;
  switch (dtype) {
  case RMSNORM_DTYPE_F16:
    memcpy(&code, at + 2 * index, 2);
    return rn_widen_f16(code);
  case RMSNORM_DTYPE_BF16:
    memcpy(&code, at + 2 * index, 2);
    return rn_widen_bf16(code);
  case RMSNORM_DTYPE_F64:
    memcpy(&wide, at + 8 * index, 8);
    return (float)wide;
  default:
    memcpy(&v, at + 4 * index, 4);
    return v;
  }
}
/* The same, widened to double: exact for every type. */
RN_FN double rn_load_f64(int dtype, const void *data, int64_t index) {
  double v;
  if (dtype != RMSNORM_DTYPE_F64) return (double)rn_load(dtype, data, index);
  memcpy(&v, (const char *)data + 8 * index, 8);
  return v;
}

/* Element `index` of `data` = v, rounded once. f32, f16, bf16, f64. */
RN_FN void rn_store_f64(int dtype, void *data, int64_t index, double v) {
  char *at = (char *)data;
  uint16_t code;
  float near;
  switch (dtype) {
  case RMSNORM_DTYPE_F16:
    code = rn_narrow_f16_f64(v), memcpy(at + 2 * index, &code, 2);
    break;
  case RMSNORM_DTYPE_BF16:
    code = rn_narrow_bf16_f64(v), memcpy(at + 2 * index, &code, 2);
    break;
  case RMSNORM_DTYPE_F64:
    memcpy(at + 8 * index, &v, 8);
    break;
  default:
    near = (float)v, memcpy(at + 4 * index, &near, 4);
    break;
  }
}
RN_FN void rn_store(int dtype, void *data, int64_t index, float v) {
  char *at = (char *)data;
  uint16_t code;
  switch (dtype) {
  case RMSNORM_DTYPE_F16:
    code = rn_narrow_f16(v), memcpy(at + 2 * index, &code, 2);
    break;
  case RMSNORM_DTYPE_BF16:
    code = rn_narrow_bf16(v), memcpy(at + 2 * index, &code, 2);
    break;
  case RMSNORM_DTYPE_F64:
    rn_store_f64(dtype, data, index, (double)v);
    break;
  default:
    memcpy(at + 4 * index, &v, 4);
    break;
  }
}

/* v rounded to the type and widened again; f32 (f64 in the second) leaves it alone. */
RN_FN float rn_round_to(int dtype, float v) {
  switch (dtype) {
  case RMSNORM_DTYPE_F16:
    return rn_widen_f16(rn_narrow_f16(v));
  case RMSNORM_DTYPE_BF16:
    return rn_widen_bf16(rn_narrow_bf16(v));
  default:
    return v;
  }
}
RN_FN double rn_round_to_f64(int dtype, double v) {
  switch (dtype) {
  case RMSNORM_DTYPE_F16:
    return (double)rn_widen_f16(rn_narrow_f16_f64(v));
  case RMSNORM_DTYPE_BF16:
    return (double)rn_widen_bf16(rn_narrow_bf16_f64(v));
  case RMSNORM_DTYPE_F32:
    return (double)(float)v;
  default:
    return v;
  }
}

#endif /* RN_NUMERIC_H */
