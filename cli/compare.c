/* compare.c - see compare.h. Works on bit patterns: the codes of a sign-and-magnitude type, counted through zero, are
 * numbered in the order of their values, so a difference of numbers is a distance in ulp.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "compare.h"

#include <math.h>
#include <string.h>

static uint64_t bits_at(const rn_tensor *t, int64_t i) {
  uint64_t bits = 0;
  memcpy(&bits, (const char *)t->data + i * t->item_bytes, (size_t)t->item_bytes);
  return bits;
}

/* The layout of a type: 0 exponent bits = an integer. */
static void layout(int dtype, int *exponent, int *mantissa) {
  *exponent = 0, *mantissa = 0;
  switch (dtype) {
  case RMSNORM_DTYPE_F32:
    *exponent = 8, *mantissa = 23;
    break;
  case RMSNORM_DTYPE_F16:
    *exponent = 5, *mantissa = 10;
    break;
  case RMSNORM_DTYPE_BF16:
    *exponent = 8, *mantissa = 7;
    break;
  case RMSNORM_DTYPE_F64:
    *exponent = 11, *mantissa = 52;
    break;
  case RMSNORM_DTYPE_FP8_E4M3:
    *exponent = 4, *mantissa = 3;
    break;
  case RMSNORM_DTYPE_FP8_E5M2:
    *exponent = 5, *mantissa = 2;
    break;
  default:
    break;
  }
}

bool rn_code_is_nan(int dtype, uint64_t bits) {
  int exponent, mantissa;
  layout(dtype, &exponent, &mantissa);
  if (dtype == RMSNORM_DTYPE_E8M0) return bits == 0xff;
  if (exponent == 0) return false;
  const uint64_t magnitude = bits & ((UINT64_C(1) << (exponent + mantissa)) - 1);
  if (dtype == RMSNORM_DTYPE_FP8_E4M3) return magnitude == 0x7f;
  return magnitude > ((UINT64_C(1) << exponent) - 1) << mantissa;
}

int64_t rn_ordinal(int dtype, uint64_t bits) {
  int exponent, mantissa;
  layout(dtype, &exponent, &mantissa);
  if (dtype == RMSNORM_DTYPE_INT8) return (int8_t)bits;
  if (exponent == 0) return (int64_t)bits;
  const uint64_t sign = UINT64_C(1) << (exponent + mantissa);
  return bits & sign ? -(int64_t)(bits & (sign - 1)) : (int64_t)bits;
}

rn_difference rn_compare(const rn_tensor *got, const rn_tensor *expected) {
  rn_difference d = {got->count, 0, 0, -1};
  for (int64_t i = 0; i < got->count; i++) {
    const uint64_t a = bits_at(got, i), b = bits_at(expected, i);
    const bool nan_a = rn_code_is_nan(got->dtype, a), nan_b = rn_code_is_nan(got->dtype, b);
    if (a == b || (nan_a && nan_b)) continue;
    const int64_t m = rn_ordinal(got->dtype, a), n = rn_ordinal(got->dtype, b);
    const uint64_t ulp = nan_a || nan_b ? UINT64_MAX : m > n ? (uint64_t)m - (uint64_t)n : (uint64_t)n - (uint64_t)m;
    d.differ++;
    if (d.worst < 0 || ulp > d.ulp) d.ulp = ulp, d.worst = i;
  }
  return d;
}

double rn_value(const rn_tensor *tensor, int64_t i) {
  int exponent, mantissa;
  const uint64_t bits = bits_at(tensor, i);
  layout(tensor->dtype, &exponent, &mantissa);
  if (rn_code_is_nan(tensor->dtype, bits)) return NAN;
  if (tensor->dtype == RMSNORM_DTYPE_E8M0) return ldexp(1, (int)bits - 127);
  if (exponent == 0) return (double)rn_ordinal(tensor->dtype, bits);
  const uint64_t sign = UINT64_C(1) << (exponent + mantissa), magnitude = bits & (sign - 1);
  const int bias = (1 << (exponent - 1)) - 1, e = (int)(magnitude >> mantissa);
  const double fraction = (double)(magnitude & ((UINT64_C(1) << mantissa) - 1));
  const double hidden = ldexp(1, mantissa);
  double value = e == 0 ? ldexp(fraction, 1 - bias - mantissa) : ldexp(hidden + fraction, e - bias - mantissa);
  if (e == (1 << exponent) - 1 && tensor->dtype != RMSNORM_DTYPE_FP8_E4M3) value = INFINITY;
  return bits & sign ? -value : value;
}
