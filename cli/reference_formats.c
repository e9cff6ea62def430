/* reference_formats.c - the number formats of the judges, from their definitions: sign, exponent, mantissa, and what
 * the top codes mean. One general routine for all of them, slow and plain, sharing nothing with the library.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <math.h>

typedef struct format {
  int mantissa; /* stored bits */
  int lowest;   /* exponent of the smallest normal number */
  int bits;
  double largest;
  bool saturates;
} format;

static const format *format_of(int dtype) {
  static const format f32 = {23, -126, 32, 0x1.fffffep+127, false}, f16 = {10, -14, 16, 65504, false},
                      bf16 = {7, -126, 16, 0x1.fep+127, false}, f64 = {52, -1022, 64, 0x1.fffffffffffffp+1023, false},
                      e4m3 = {3, -6, 8, 448, true}, e5m2 = {2, -14, 8, 57344, true};
  switch (dtype) {
  case RMSNORM_DTYPE_F16:
    return &f16;
  case RMSNORM_DTYPE_BF16:
    return &bf16;
  case RMSNORM_DTYPE_F64:
    return &f64;
  case RMSNORM_DTYPE_FP8_E4M3:
    return &e4m3;
  case RMSNORM_DTYPE_FP8_E5M2:
    return &e5m2;
  default:
    return &f32;
  }
}

double rn_ref_largest(int dtype) {
  return dtype == RMSNORM_DTYPE_INT8 ? 127 : format_of(dtype)->largest;
}

/* floor(log2 |value|), not below the lowest normal exponent. */
static int exponent_of(const format *f, rn_real value) {
  int e;
  if (value == 0) return f->lowest;
  (void)frexpl(value, &e);
  return e - 1 < f->lowest ? f->lowest : e - 1;
}

double rn_ref_ulp(int dtype, rn_real value) {
  if (dtype == RMSNORM_DTYPE_INT8 || dtype == RMSNORM_DTYPE_E8M0) return 1;
  const format *f = format_of(dtype);
  rn_real v = fabsl(value);
  if (!(v <= f->largest)) v = f->largest;
  return (double)ldexpl(1, exponent_of(f, v) - f->mantissa);
}

double rn_ref_round(int dtype, rn_real value) {
  if (value != value) return (double)value;
  if (dtype == RMSNORM_DTYPE_F32) return (float)value;
  if (dtype == RMSNORM_DTYPE_F64) return (double)value;
  if (dtype == RMSNORM_DTYPE_INT8) return (double)(value > 127 ? 127 : value < -128 ? -128 : rintl(value));
  const format *f = format_of(dtype);
  if (fabsl(value) > 2 * (rn_real)f->largest) return copysign(f->saturates ? f->largest : INFINITY, (double)value);
  int shift = exponent_of(f, value) - f->mantissa;
  rn_real rounded = ldexpl(rintl(ldexpl(value, -shift)), shift);
  if (fabsl(rounded) > f->largest) return copysign(f->saturates ? f->largest : INFINITY, (double)value);
  return (double)(rounded == 0 ? copysignl(0, value) : rounded);
}

uint64_t rn_ref_encode(int dtype, rn_real value) {
  if (dtype == RMSNORM_DTYPE_INT8) return value != value ? 0 : (uint64_t)((int)rn_ref_round(dtype, value) & 0xff);
  const format *f = format_of(dtype);
  int exponent_bits = f->bits - 1 - f->mantissa;
  uint64_t top = ((1ull << exponent_bits) - 1) << f->mantissa; /* the code of infinity where there is one */
  if (value != value) {
    if (dtype == RMSNORM_DTYPE_FP8_E4M3 || dtype == RMSNORM_DTYPE_FP8_E5M2) return 0x7f;
    return top | 1ull << (f->mantissa - 1);
  }
  rn_real rounded = rn_ref_round(dtype, value);
  uint64_t sign = signbit(rounded) ? 1ull << (f->bits - 1) : 0;
  rounded = fabsl(rounded);
  if (rounded > f->largest) return sign | top;
  int e = exponent_of(f, rounded);
  uint64_t units = (uint64_t)ldexpl(rounded, f->mantissa - e); /* with the implicit bit, unless subnormal */
  if (units < 1ull << f->mantissa) return sign | units;
  return sign | ((uint64_t)(e - f->lowest + 1) << f->mantissa) | (units - (1ull << f->mantissa));
}

double rn_ref_decode(int dtype, uint64_t code) {
  if (dtype == RMSNORM_DTYPE_INT8) return (double)(int8_t)(uint8_t)code;
  if (dtype == RMSNORM_DTYPE_E8M0) return code == 0xff ? NAN : ldexp(1, (int)code - 127);
  const format *f = format_of(dtype);
  uint64_t fraction = code & ((1ull << f->mantissa) - 1);
  int exponent_bits = f->bits - 1 - f->mantissa;
  int e = (int)(code >> f->mantissa & ((1ull << exponent_bits) - 1));
  double sign = code >> (f->bits - 1) & 1 ? -1.0 : 1.0;
  if (dtype == RMSNORM_DTYPE_FP8_E4M3 ? e == 15 && fraction == 7 : e == (1 << exponent_bits) - 1)
    return fraction ? NAN : sign * INFINITY;
  if (e == 0) return sign * ldexp((double)fraction, f->lowest - f->mantissa);
  return sign * ldexp((double)(fraction | 1ull << f->mantissa), f->lowest - f->mantissa + e - 1);
}

double rn_ref_load(int dtype, const void *data, int64_t i) {
  switch (rmsnorm_dtype_bytes(dtype)) {
  case 1:
    return rn_ref_decode(dtype, ((const uint8_t *)data)[i]);
  case 2: {
    uint16_t code;
    memcpy(&code, (const char *)data + 2 * i, 2);
    return rn_ref_decode(dtype, code);
  }
  case 4: {
    float v;
    memcpy(&v, (const char *)data + 4 * i, 4);
    return v;
  }
  default: {
    double v;
    memcpy(&v, (const char *)data + 8 * i, 8);
    return v;
  }
  }
}

void rn_ref_store(int dtype, void *data, int64_t i, rn_real value) {
  uint64_t code = rn_ref_encode(dtype, value);
  uint8_t c8 = (uint8_t)code;
  uint16_t c16 = (uint16_t)code;
  uint32_t c32 = (uint32_t)code;
  switch (rmsnorm_dtype_bytes(dtype)) {
  case 1:
    memcpy((char *)data + i, &c8, 1);
    break;
  case 2:
    memcpy((char *)data + 2 * i, &c16, 2);
    break;
  case 4:
    memcpy((char *)data + 4 * i, &c32, 4);
    break;
  default:
    memcpy((char *)data + 8 * i, &code, 8);
    break;
  }
}
