/* simd_avx512.h - the vocabulary of simd.h for AVX-512 F, BW, DQ and VL. 16 floats a vector, masks for the tails.
 *
 * bf16 is converted with integer instructions: vcvtneps2bf16 flushes subnormals to zero.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#define RN_VL           16
#define RN_STREAM_ALIGN 64
#define RN_TILE_BLOCKS  4 /* 64-lane blocks summed side by side: 16 of the 32 registers are accumulators */

typedef __m512 vf;
typedef struct v2 {
  vf a, b;
} v2;
typedef __m512 vfold;

RN_INLINE vf vf_zero(void) {
  return _mm512_setzero_ps();
}
RN_INLINE vf vf_set1(float s) {
  return _mm512_set1_ps(s);
}
RN_INLINE vf vf_load(const float *from) {
  return _mm512_loadu_ps(from);
}
RN_INLINE void vf_store(float *to, vf v) {
  _mm512_storeu_ps(to, v);
}
RN_INLINE vf vf_add(vf a, vf b) {
  return _mm512_add_ps(a, b);
}
RN_INLINE vf vf_sub(vf a, vf b) {
  return _mm512_sub_ps(a, b);
}
RN_INLINE vf vf_mul(vf a, vf b) {
  return _mm512_mul_ps(a, b);
}
RN_INLINE vf vf_div(vf a, vf b) {
  return _mm512_div_ps(a, b);
}
RN_INLINE vf vf_sqrt(vf a) {
  return _mm512_sqrt_ps(a);
}
RN_INLINE vf vf_max(vf a, vf b) {
  return _mm512_max_ps(a, b);
}
RN_INLINE vf vf_min(vf a, vf b) {
  return _mm512_min_ps(a, b);
}
RN_INLINE vf vf_abs(vf a) {
  return _mm512_abs_ps(a);
}
RN_INLINE vf vf_fma(vf a, vf b, vf c) {
  return _mm512_fmadd_ps(a, b, c);
}
RN_INLINE vf vf_fnma(vf a, vf b, vf c) {
  return _mm512_fnmadd_ps(a, b, c);
}

RN_INLINE vf vf_select_neg(vf z, vf a, vf b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(z, _mm512_setzero_ps(), _CMP_LT_OQ), b, a);
}
RN_INLINE vf vf_clamp_nan_to_zero(vf v) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), _mm512_abs_ps(v));
}
RN_INLINE float vf_max_lanes(vf v) {
  return _mm512_reduce_max_ps(v);
}
RN_INLINE void vf_pow2_halves(vf k, vf *lo, vf *hi) {
  const __m512i n = _mm512_cvtps_epi32(k), bias = _mm512_set1_epi32(127);
  const __m512i half = _mm512_srai_epi32(n, 1), rest = _mm512_sub_epi32(n, half);
  *lo = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
  *hi = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(rest, bias), 23));
}

/* The bits of v rounded to bf16, in the upper halves; the lower halves are rubbish. */
RN_INLINE __m512i vf_bf16_upper(vf v, const bool wild) {
  const __m512i u = _mm512_castps_si512(v), rounded = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
  const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
  const __m512i even = _mm512_mask_add_epi32(rounded, odd, rounded, _mm512_set1_epi32(1));
  if (!wild) return even;
  return _mm512_mask_mov_epi32(even, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
}
RN_INLINE vf vf_round_bf16(vf v) {
  return _mm512_castsi512_ps(_mm512_and_si512(vf_bf16_upper(v, true), _mm512_set1_epi32((int)0xffff0000u)));
}
RN_INLINE __m256i vf_to_f16(vf v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
RN_INLINE vf vf_round_f16(vf v) {
  return _mm512_cvtph_ps(vf_to_f16(v));
}

/* NATURAL <-> SPLIT */
RN_INLINE v2 v2_split(v2 v) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return (v2){_mm512_permutex2var_ps(v.a, even, v.b), _mm512_permutex2var_ps(v.a, odd, v.b)};
}
RN_INLINE v2 v2_unsplit(v2 v) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return (v2){_mm512_permutex2var_ps(v.a, low, v.b), _mm512_permutex2var_ps(v.a, high, v.b)};
}
RN_INLINE v2 v2_as(v2 natural, int layout) {
  return layout == RN_SPLIT ? v2_split(natural) : natural;
}
RN_INLINE v2 v2_natural(v2 v, int layout) {
  return layout == RN_SPLIT ? v2_unsplit(v) : v;
}

RN_INLINE __mmask16 first_of_16(int count) {
  return (__mmask16)(count >= 16 ? 0xffff : (1u << (count < 0 ? 0 : count)) - 1u);
}
RN_INLINE __mmask32 first_of_32(int count) {
  return count >= 32 ? 0xffffffffu : (1u << (count < 0 ? 0 : count)) - 1u;
}

RN_INLINE v2 v2_load_f32(const void *ptr, int layout) {
  const float *f = (const float *)ptr;
  return v2_as((v2){_mm512_loadu_ps(f), _mm512_loadu_ps(f + 16)}, layout);
}
RN_INLINE v2 v2_load_f32_some(const void *ptr, int layout, int count) {
  const float *f = (const float *)ptr;
  return v2_as(
      (v2){_mm512_maskz_loadu_ps(first_of_16(count), f), _mm512_maskz_loadu_ps(first_of_16(count - 16), f + 16)},
      layout);
}
RN_INLINE v2 v2_from_bf16(__m512i h, int layout) {
  if (layout == RN_SPLIT)
    return (v2){_mm512_castsi512_ps(_mm512_slli_epi32(h, 16)),
                _mm512_castsi512_ps(_mm512_and_si512(h, _mm512_set1_epi32((int)0xffff0000u)))};
  return (v2){_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(h)), 16)),
              _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(h, 1)), 16))};
}
RN_INLINE v2 v2_load_bf16(const void *ptr, int layout) {
  return v2_from_bf16(_mm512_loadu_si512(ptr), layout);
}
RN_INLINE v2 v2_load_bf16_some(const void *ptr, int layout, int count) {
  return v2_from_bf16(_mm512_maskz_loadu_epi16(first_of_32(count), ptr), layout);
}
RN_INLINE v2 v2_load_f16(const void *ptr, int layout) {
  const __m256i *h = (const __m256i *)ptr;
  return v2_as((v2){_mm512_cvtph_ps(_mm256_loadu_si256(h)), _mm512_cvtph_ps(_mm256_loadu_si256(h + 1))}, layout);
}
RN_INLINE v2 v2_load_f16_some(const void *ptr, int layout, int count) {
  const __m512i h = _mm512_maskz_loadu_epi16(first_of_32(count), ptr);
  return v2_as((v2){_mm512_cvtph_ps(_mm512_castsi512_si256(h)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1))},
               layout);
}

RN_INLINE void v2_store_f32(void *ptr, int layout, v2 v, int stream) {
  float *f = (float *)ptr;
  const v2 n = v2_natural(v, layout);
  if (stream) {
    _mm512_stream_ps(f, n.a);
    _mm512_stream_ps(f + 16, n.b);
  } else {
    _mm512_storeu_ps(f, n.a);
    _mm512_storeu_ps(f + 16, n.b);
  }
}
RN_INLINE void v2_store_f32_some(void *ptr, int layout, v2 v, int count) {
  float *f = (float *)ptr;
  const v2 n = v2_natural(v, layout);
  _mm512_mask_storeu_ps(f, first_of_16(count), n.a);
  _mm512_mask_storeu_ps(f + 16, first_of_16(count - 16), n.b);
}
RN_INLINE __m512i v2_to_bf16(v2 v, int layout, const bool wild) {
  const __m512i a = vf_bf16_upper(v.a, wild), b = vf_bf16_upper(v.b, wild);
  if (layout == RN_SPLIT) return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b);
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16))),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16)), 1);
}
RN_INLINE void v2_store_bf16(void *ptr, int layout, v2 v, int stream, const bool wild) {
  const __m512i h = v2_to_bf16(v, layout, wild);
  if (stream)
    _mm512_stream_si512((__m512i *)ptr, h);
  else
    _mm512_storeu_si512(ptr, h);
}
RN_INLINE void v2_store_bf16_some(void *ptr, int layout, v2 v, int count) {
  _mm512_mask_storeu_epi16(ptr, first_of_32(count), v2_to_bf16(v, layout, true));
}
RN_INLINE __m512i v2_to_f16(v2 v, int layout) {
  const v2 n = v2_natural(v, layout);
  return _mm512_inserti64x4(_mm512_castsi256_si512(vf_to_f16(n.a)), vf_to_f16(n.b), 1);
}
RN_INLINE void v2_store_f16(void *ptr, int layout, v2 v, int stream) {
  const v2 n = v2_natural(v, layout);
  if (stream) {
    _mm256_stream_si256((__m256i *)ptr, vf_to_f16(n.a));
    _mm256_stream_si256((__m256i *)ptr + 1, vf_to_f16(n.b));
  } else {
    _mm256_storeu_si256((__m256i *)ptr, vf_to_f16(n.a));
    _mm256_storeu_si256((__m256i *)ptr + 1, vf_to_f16(n.b));
  }
}
RN_INLINE void v2_store_f16_some(void *ptr, int layout, v2 v, int count) {
  _mm512_mask_storeu_epi16(ptr, first_of_32(count), v2_to_f16(v, layout));
}

RN_INLINE v2 v2_keep_first(int layout, int count, v2 fresh, v2 old) {
  if (layout == RN_SPLIT)
    return (v2){_mm512_mask_blend_ps(first_of_16((count + 1) / 2), old.a, fresh.a),
                _mm512_mask_blend_ps(first_of_16(count / 2), old.b, fresh.b)};
  return (v2){_mm512_mask_blend_ps(first_of_16(count), old.a, fresh.a),
              _mm512_mask_blend_ps(first_of_16(count - 16), old.b, fresh.b)};
}

/* Adds neighbours of p (low half of each 128-bit quarter of the result) and of q (high half). */
RN_INLINE vf add_neighbours(vf p, vf q) {
  return _mm512_add_ps(_mm512_shuffle_ps(p, q, 0x88), _mm512_shuffle_ps(p, q, 0xdd));
}
/* Adds neighbouring 128-bit quarters of p (lower half of the result) and of q (upper half). */
RN_INLINE vf add_quarters(vf p, vf q) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x88), _mm512_shuffle_f32x4(p, q, 0xdd));
}
/* NATURAL: quarter L = {sums of elements 4L..4L+3 of the four vectors}.
 * SPLIT: quarter L = {sums of 8L..8L+3 and 8L+4..8L+7 of the first 32 lanes, then of the second 32}. */
RN_INLINE vfold fold64(const v2 *acc, int layout) {
  if (layout == RN_SPLIT) return add_neighbours(_mm512_add_ps(acc[0].a, acc[0].b), _mm512_add_ps(acc[1].a, acc[1].b));
  return add_neighbours(add_neighbours(acc[0].a, acc[0].b), add_neighbours(acc[1].a, acc[1].b));
}
RN_INLINE void fold_sum4(const vfold *f, int layout, float *out) {
  if (layout == RN_SPLIT) {
    const vf eighths = add_quarters(add_neighbours(f[0], f[1]), add_neighbours(f[2], f[3]));
    const vf halves = add_quarters(eighths, eighths); /* 32-lane sums in order: f0 f0 f1 f1 | f2 f2 f3 f3 */
    const __m256 h = _mm512_castps512_ps256(halves);
    _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1), 0x88),
                                  _mm_shuffle_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1), 0xdd)));
    return;
  }
  const vf s = add_quarters(add_quarters(f[0], f[1]), add_quarters(f[2], f[3])); /* quarter i: 16-lane sums of f[i] */
  const vf pairs = _mm512_add_ps(s, _mm512_movehdup_ps(s));
  const vf sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0x02));
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(
                         _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), sums)));
}

RN_INLINE void rn_prefetch(const void *ptr) {
  _mm_prefetch((const char *)ptr, _MM_HINT_T0);
}
RN_INLINE void rn_prefetch_far(const void *ptr) {
  _mm_prefetch((const char *)ptr, _MM_HINT_T1);
}
RN_INLINE void rn_stream_fence(void) {
  _mm_sfence();
}
