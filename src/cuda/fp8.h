/* fp8.h - fp8 codes by arithmetic, without a branch: for GPUs before sm_89, which have no instruction for them.
 *
 * The magnitude, at most the largest, is added to a power of two whose last bit is the step of the codes there, so that
 * the sum is rounded as the code has to be. Its low bits then count the steps from 0; binades above the subnormal one
 * have half of theirs in common with the one below, and all codes below come on top.
 *
 * Valid as C11 and as CUDA C++.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_FP8_H
#define RN_CUDA_FP8_H

#include "../epilogue.h"

/* rn_quantise to e5m2 or e4m3. */
RN_FN uint32_t rn_fp8_code(int32_t e5m2, float v) {
  const int man = e5m2 ? RN_E5M2_MAN : RN_E4M3_MAN;
  const float most = e5m2 ? 57344.0f : 448.0f, mag = rn_abs(v) < most ? rn_abs(v) : most;
  const uint32_t first = rn_bits(e5m2 ? 0x1p-14f : 0x1p-6f), exponent = rn_bits(mag) & 0x7f800000u;
  const uint32_t binade = exponent > first ? exponent : first, unit = binade + ((uint32_t)(23 - man) << 23);
  const uint32_t steps = rn_bits(mag + rn_from_bits(unit)) - unit;
  const uint32_t code = steps + ((binade - first) >> (23 - man));
  return (rn_is_nan(v) ? RN_FP8_NAN : code) | (rn_bits(v) >> 24 & 0x80u);
}

#endif /* RN_CUDA_FP8_H */
