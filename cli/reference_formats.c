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

static double power_of_two(int e) {
  uint64_t bits = (uint64_t)(e + 1023) << 52;
  double v;
  memcpy(&v, &bits, 8);
  return v;
}

/* floor(log2 |value|), not below the lowest normal exponent. */
static int exponent_of(const format *f, double value) {
  uint64_t bits;
  memcpy(&bits, &value, 8);
  int e = (int)(bits >> 52 & 0x7ff) - 1023;
  return e < f->lowest ? f->lowest : e;
}

double rn_ref_ulp(int dtype, double value) {
  if (dtype == RMSNORM_DTYPE_INT8 || dtype == RMSNORM_DTYPE_E8M0) return 1;
  const format *f = format_of(dtype);
  double v = fabs(value);
  if (!(v <= f->largest)) v = f->largest;
  return ldexp(1, exponent_of(f, v) - f->mantissa);
}

/* The nearest whole number, ties to even, for |v| < 2^51. */
static double nearest(double v) {
  volatile double shifted = v + 0x1.8p52;
  return shifted - 0x1.8p52;
}

double rn_ref_round(int dtype, double value) {
  if (value != value || dtype == RMSNORM_DTYPE_F64) return value;
  if (dtype == RMSNORM_DTYPE_F32) return (float)value;
  if (dtype == RMSNORM_DTYPE_INT8) return value > 127 ? 127 : value < -128 ? -128 : nearest(value);
  const format *f = format_of(dtype);
  double beyond = copysign(f->saturates ? f->largest : INFINITY, value);
  if (fabs(value) > 2 * f->largest) return beyond;
  int shift = exponent_of(f, value) - f->mantissa;
  double rounded = nearest(value * power_of_two(-shift)) * power_of_two(shift);
  if (fabs(rounded) > f->largest) return beyond;
  return rounded == 0 ? copysign(0, value) : rounded;
}

uint64_t rn_ref_encode(int dtype, double value) {
  if (dtype == RMSNORM_DTYPE_INT8) return value != value ? 0 : (uint64_t)((int)rn_ref_round(dtype, value) & 0xff);
  const format *f = format_of(dtype);
  if (dtype == RMSNORM_DTYPE_F64) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
  }
  int exponent_bits = f->bits - 1 - f->mantissa;
  uint64_t top = ((1ull << exponent_bits) - 1) << f->mantissa; /* the code of infinity where there is one */
  if (value != value) {
    if (dtype == RMSNORM_DTYPE_FP8_E4M3 || dtype == RMSNORM_DTYPE_FP8_E5M2) return 0x7f;
    return top | 1ull << (f->mantissa - 1);
  }
  double rounded = rn_ref_round(dtype, value);
  uint64_t sign = signbit(rounded) ? 1ull << (f->bits - 1) : 0;
  rounded = fabs(rounded);
  if (rounded > f->largest) return sign | top;
  int e = exponent_of(f, rounded);
  uint64_t units = (uint64_t)(rounded * power_of_two(f->mantissa - e)); /* with the implicit bit, unless subnormal */
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

/* The 16-bit types have few enough codes to decode each only once. A table, because loading is most of what the judges
 * do; filled by whoever comes first (the judges run in one thread). */
static double decode16(int dtype, uint16_t code) {
  static float table[2][65536];
  static bool filled;
  if (!filled) {
    for (int i = 0; i < 65536; i++) {
      table[0][i] = (float)rn_ref_decode(RMSNORM_DTYPE_F16, (uint64_t)i);
      table[1][i] = (float)rn_ref_decode(RMSNORM_DTYPE_BF16, (uint64_t)i);
    }
    filled = true;
  }
  return table[dtype == RMSNORM_DTYPE_BF16][code];
}

double rn_ref_load(int dtype, const void *data, int64_t i) {
  const char *at = data;
  switch (dtype) {
  case RMSNORM_DTYPE_F16:
  case RMSNORM_DTYPE_BF16: {
    uint16_t code;
    memcpy(&code, at + 2 * i, 2);
    return decode16(dtype, code);
  }
  case RMSNORM_DTYPE_F32: {
    float v;
    memcpy(&v, at + 4 * i, 4);
    return v;
  }
  case RMSNORM_DTYPE_F64: {
    double v;
    memcpy(&v, at + 8 * i, 8);
    return v;
  }
  default:
    return rn_ref_decode(dtype, (uint8_t)at[i]);
  }
}

void rn_ref_store(int dtype, void *data, int64_t i, double value) {
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
