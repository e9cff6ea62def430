/* simd.h - the vocabulary that row.c is written in. Each instruction set has one header that defines it; RN_ISA_* says
 * which. Everything is static inline, so that no copy made for one instruction set can be linked into another's code.
 *
 * A vector `vf` holds RN_VL floats. Rows are walked in pairs (`v2`) of 2*RN_VL neighbouring elements, in one of two
 * layouts:
 *   RN_NATURAL  a = the first RN_VL elements, b = the next RN_VL
 *   RN_SPLIT    a = the elements with even index, b = those with odd index
 * SPLIT is how bf16 comes out of memory for one shift and one mask, without shuffles; and since the first step of the
 * canonical tree adds neighbours, it makes that step a plain a + b. Only code in which every operand is in the same
 * layout may use it; the layout is a compile-time constant wherever speed matters.
 *
 * What each header provides (count is a number of elements, 0 <= count <= 2*RN_VL; nothing beyond it is touched):
 *   vf_load(ptr) vf_store(ptr, v)  any alignment
 *   vf_zero vf_set1 vf_add vf_sub vf_mul vf_div vf_sqrt vf_max vf_min vf_abs
 *   vf_fma(a,b,c) = a*b + c        vf_fnma(a,b,c) = c - a*b           one rounding each
 *   vf_select_neg(z, a, b)         z < 0 ? a : b (b for NaN)
 *   vf_pow2_halves(k, &lo, &hi)    lo = 2^(k>>1), hi = 2^(k-(k>>1)) for integral k in [-200, 0]
 *   vf_clamp_nan_to_zero(v)        |v| kept, NaN becomes 0 (for amax)
 *   vf_max_lanes(v)                largest lane
 *   vf_round_bf16 vf_round_f16     round to that precision, stay f32
 *   v2_load_{f32,bf16,f16}(ptr, layout)   v2_load_..._some(ptr, layout, count)     absent elements read as 0
 *   v2_store_{f32,f16}(ptr, layout, v, stream)   v2_store_..._some(ptr, layout, v, count)
 *   v2_store_bf16(ptr, layout, v, stream, wild)
 *                                  stream: non-temporal, ptr must be RN_STREAM_ALIGN aligned
 *                                  wild: v may hold a NaN whose lower 16 bits are not 0, see below
 *   v2_keep_first(layout, count, new, old)   elements before count from new, the others from old
 *   fold64(v2 acc[32/RN_VL], layout) -> vfold   64 lanes, part of the way down the canonical tree
 *   fold_sum4(vfold f[4], layout, float out[4])   the rest of the way for four of them
 *   rn_prefetch(ptr)  rn_prefetch_far(ptr)  rn_stream_fence()      far: into the second-level cache only
 *
 * Rounding to bf16 by addition would carry a wild NaN over into -0, so storing one costs a comparison. The NaN that
 * arithmetic makes, and those that were bf16 before, are not wild.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_SIMD_H
#define RN_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define RN_INLINE static inline __attribute__((always_inline))

enum { RN_NATURAL = 0, RN_SPLIT = 1 };

#if defined(RN_ISA_AVX512)
#include "simd_avx512.h"
#elif defined(RN_ISA_AVX2)
#include "simd_avx2.h"
#elif defined(RN_ISA_NEON)
#include "simd_neon.h"
#else
#error "simd.h: define RN_ISA_AVX512, RN_ISA_AVX2 or RN_ISA_NEON"
#endif

#endif /* RN_SIMD_H */
