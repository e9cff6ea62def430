/* rstd.h - mean and 1 / sqrt of an ordinary row without division and without square root: the bits of row.h in a third
 * of the time, for kernels whose time is that of one row.
 *
 * The quotient: with inverse = 1 / divisor, rounded, the product is at most two units in the last place off, and one
 * step with the exact remainder rounds it as division does (Markstein, "Computation of elementary functions on the IBM
 * RISC System/6000 processor", 1990).
 *
 * The root: rn_isqrt of row.h takes one step of Newton's method from 1 / sqrt(v), rounded twice, and ends at the
 * nearest float or, where the true value is all but in the middle of two, at one of those. From any float within three
 * units of the nearest one, two steps end at the same float, for every v but two, taken to [1, 4): those are left to
 * rn_isqrt. So the device's own approximation may be the start, whatever its last bits are; tests/test_rstd.c tries all
 * v with all seven starts.
 *
 * Valid as C11 and as CUDA C++.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_RSTD_H
#define RN_CUDA_RSTD_H

#include "../numeric.h"

#include <math.h>

RN_FN float rn_newton_step(float v, float r) {
  const float high = v * r, low = fmaf(v, r, -high);
  const float e = fmaf(-low, r, fmaf(-high, r, 1.0f));
  return fmaf(0.5f * r, e, r);
}

/* s / divisor; inverse = 1.0f / divisor. Where rn_takes_short_way says so of the result. */
RN_FN float rn_quotient(float s, float divisor, float inverse) {
  const float q = s * inverse;
  return fmaf(fmaf(-q, divisor, s), inverse, q);
}

/* v = q + eps, both ordinary, and v none of the two. Small quotients have remainders that float32 can not hold. */
RN_FN int rn_takes_short_way(float q, float v) {
  const uint32_t of_four = rn_bits(v) & 0x00ffffffu; /* v without powers of four */
  return q >= 0x1p-90f && v <= FLT_MAX && of_four != 0x0009f038u && of_four != 0x007ffffeu;
}

/* 1 / sqrt(v) from something near it. */
RN_FN float rn_isqrt_from(float v, float near) {
  return rn_newton_step(v, rn_newton_step(v, near));
}

#endif /* RN_CUDA_RSTD_H */
