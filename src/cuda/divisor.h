/* divisor.h - many values divided by one scale on their way to a code of a quantised type: two operations a value.
 *
 * With high = 1 / scale, rounded down, and low = what is missing of it, fma(v, high, v * low) misses v / scale by less
 * than 2^-45 of it before its one rounding. Another code than that of v / scale needs another side of a boundary m of
 * the codes, and m = M * 2^i with M < 256. With scale = B * 2^j, 2^23 <= B < 2^24, and L = floor(log2 M): the quotient
 * has to be as near as that to the middle between m and a neighbour, so v - m * scale, an integer D in units of
 * 2^(i+j), to B * 2^(L-24). That is to say, B lies within 16 of D * 2^(24-L), a multiple of 2^17. (B = D * 2^(24-L) is
 * not among them: v / scale would be the middle of two floats, which no quotient of two floats is.) Such scales, 32 of
 * 131072, are left to division; among the others, tests/test_divisor.c finds no v that gets another code, and 17 pairs
 * of a B and a boundary among those.
 *
 * Powers of two change nothing as long as nothing that counts over- or underflows: scales within [2^-126, 2^60] and |v|
 * up to 2^60 scale. The rest is divided.
 *
 * Valid as C11 and as CUDA C++.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_DIVISOR_H
#define RN_CUDA_DIVISOR_H

#include "../epilogue.h"

#include <math.h>

/* low >= 0: rn_divide, by = high; else by is the scale itself. */
typedef struct rn_divisor {
  float by, low;
} rn_divisor;

/* The largest |v| for rn_divide; below 0: none. */
RN_FN float rn_most_divided(float scale, int32_t reciprocal) {
  const uint32_t near = (rn_bits(scale) + 16) & 0x1ffffu; /* to a multiple of 2^17, which is 16 */
  if (!(scale >= RN_SCALE_MIN && scale <= 0x1p60f)) return -1;
  return reciprocal || near > 32 || near == 16 ? 0x1p60f * scale : -1;
}

/* For values up to amax (or NaN). reciprocal: v * (1 / scale) is meant, rounded twice. */
RN_FN rn_divisor rn_divisor_of(float scale, int32_t reciprocal, float amax) {
  rn_divisor d;
  float rest;
  d.by = scale, d.low = -1;
  if (!(amax <= rn_most_divided(scale, reciprocal))) return d;
  d.by = 1.0f / scale, d.low = 0;
  if (reciprocal) return d;
  rest = fmaf(-scale, d.by, 1.0f); /* exact, also for the neighbour below */
  if (rest < 0) {                  /* low must not be negative: -0 would become +0 */
    d.by = rn_from_bits(rn_bits(d.by) - 1);
    rest = fmaf(-scale, d.by, 1.0f);
  }
  d.low = rest * d.by;
  return d;
}

/* A float with the code of v / scale (reciprocal: of v * (1 / scale)). */
RN_FN float rn_divide(rn_divisor d, float v) {
  return fmaf(v, d.by, v * d.low);
}
RN_FN float rn_divide_plainly(rn_divisor d, int32_t reciprocal, float v) {
  return reciprocal ? v * (1.0f / d.by) : v / d.by;
}

/* MX, blocks with the scale 2^e. The two exact factors of docs/numerics.md 3 give the code of the product with 2^-e:
 * what either of them loses has a code of zero, or saturates. */
RN_FN rn_divisor rn_power_divisor(int e, float amax) {
  rn_divisor d;
  d.by = rn_exp2i(amax <= FLT_MAX ? -e : e), d.low = amax <= FLT_MAX ? 0.0f : -1.0f;
  return d;
}

#endif /* RN_CUDA_DIVISOR_H */
