/* simd_avx2.h - the vocabulary of simd.h for AVX2 with FMA and F16C. 8 floats a vector. Tails of 32-bit elements use
 * masked moves; tails of 16-bit elements, for which there are none, go through a small buffer.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#define RN_VL           8
#define RN_STREAM_ALIGN 32
#define RN_TILE_BLOCKS  1 /* 64 lanes are 8 of the 16 registers already */

typedef __m256 vf;
typedef struct v2 {
  vf a, b;
} v2;
typedef __m128 vfold;

RN_INLINE vf vf_zero(void) {
  return _mm256_setzero_ps();
}
RN_INLINE vf vf_set1(float s) {
  return _mm256_set1_ps(s);
}
RN_INLINE vf vf_load(const float *from) {
  return _mm256_loadu_ps(from);
}
RN_INLINE void vf_store(float *to, vf v) {
  _mm256_storeu_ps(to, v);
}
RN_INLINE vf vf_add(vf a, vf b) {
  return _mm256_add_ps(a, b);
}
RN_INLINE vf vf_sub(vf a, vf b) {
  return _mm256_sub_ps(a, b);
}
RN_INLINE vf vf_mul(vf a, vf b) {
  return _mm256_mul_ps(a, b);
}
RN_INLINE vf vf_div(vf a, vf b) {
  return _mm256_div_ps(a, b);
}
RN_INLINE vf vf_sqrt(vf a) {
  return _mm256_sqrt_ps(a);
}
RN_INLINE vf vf_max(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
RN_INLINE vf vf_min(vf a, vf b) {
  return _mm256_min_ps(a, b);
}
RN_INLINE vf vf_abs(vf a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
RN_INLINE vf vf_fma(vf a, vf b, vf c) {
  return _mm256_fmadd_ps(a, b, c);
}
RN_INLINE vf vf_fnma(vf a, vf b, vf c) {
  return _mm256_fnmadd_ps(a, b, c);
}

RN_INLINE vf vf_select_neg(vf z, vf a, vf b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(z, _mm256_setzero_ps(), _CMP_LT_OQ));
}
RN_INLINE vf vf_clamp_nan_to_zero(vf v) {
  return _mm256_and_ps(_mm256_cmp_ps(v, v, _CMP_ORD_Q), vf_abs(v));
}
RN_INLINE float vf_max_lanes(vf v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
RN_INLINE void vf_pow2_halves(vf k, vf *lo, vf *hi) {
  const __m256i n = _mm256_cvtps_epi32(k), bias = _mm256_set1_epi32(127);
  const __m256i half = _mm256_srai_epi32(n, 1), rest = _mm256_sub_epi32(n, half);
  *lo = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  *hi = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
}

/* The bits of v rounded to bf16, in the upper halves; the lower halves are rubbish. */
RN_INLINE __m256i vf_bf16_upper(vf v, const bool wild) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  if (!wild) return rounded;
  const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), nan));
}
RN_INLINE vf vf_round_bf16(vf v) {
  return _mm256_castsi256_ps(_mm256_and_si256(vf_bf16_upper(v, true), _mm256_set1_epi32((int)0xffff0000u)));
}
RN_INLINE __m128i vf_to_f16(vf v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
RN_INLINE vf vf_round_f16(vf v) {
  return _mm256_cvtph_ps(vf_to_f16(v));
}

/* NATURAL <-> SPLIT */
RN_INLINE v2 v2_split(v2 v) {
  const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
  return (v2){_mm256_permutevar8x32_ps(_mm256_shuffle_ps(v.a, v.b, 0x88), order),
              _mm256_permutevar8x32_ps(_mm256_shuffle_ps(v.a, v.b, 0xdd), order)};
}
RN_INLINE v2 v2_unsplit(v2 v) {
  const vf low = _mm256_unpacklo_ps(v.a, v.b), high = _mm256_unpackhi_ps(v.a, v.b);
  return (v2){_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
RN_INLINE v2 v2_as(v2 natural, int layout) {
  return layout == RN_SPLIT ? v2_split(natural) : natural;
}
RN_INLINE v2 v2_natural(v2 v, int layout) {
  return layout == RN_SPLIT ? v2_unsplit(v) : v;
}

RN_INLINE __m256i first_of_8(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

RN_INLINE v2 v2_load_f32(const void *ptr, int layout) {
  const float *f = (const float *)ptr;
  return v2_as((v2){_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)}, layout);
}
RN_INLINE v2 v2_load_f32_some(const void *ptr, int layout, int count) {
  const float *f = (const float *)ptr;
  return v2_as((v2){_mm256_maskload_ps(f, first_of_8(count)), _mm256_maskload_ps(f + 8, first_of_8(count - 8))},
               layout);
}
RN_INLINE v2 v2_load_bf16(const void *ptr, int layout) {
  const __m256i h = _mm256_loadu_si256((const __m256i *)ptr);
  if (layout == RN_SPLIT)
    return (v2){_mm256_castsi256_ps(_mm256_slli_epi32(h, 16)),
                _mm256_castsi256_ps(_mm256_and_si256(h, _mm256_set1_epi32((int)0xffff0000u)))};
  return (v2){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(h)), 16)),
              _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(h, 1)), 16))};
}
RN_INLINE v2 v2_load_bf16_some(const void *ptr, int layout, int count) {
  uint16_t buffer[16] = {0};
  memcpy(buffer, ptr, (size_t)count * 2);
  return v2_load_bf16(buffer, layout);
}
RN_INLINE v2 v2_load_f16(const void *ptr, int layout) {
  const __m128i *h = (const __m128i *)ptr;
  return v2_as((v2){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))}, layout);
}
RN_INLINE v2 v2_load_f16_some(const void *ptr, int layout, int count) {
  uint16_t buffer[16] = {0};
  memcpy(buffer, ptr, (size_t)count * 2);
  return v2_load_f16(buffer, layout);
}

RN_INLINE void v2_store_f32(void *ptr, int layout, v2 v, int stream) {
  float *f = (float *)ptr;
  const v2 n = v2_natural(v, layout);
  if (stream) {
    _mm256_stream_ps(f, n.a);
    _mm256_stream_ps(f + 8, n.b);
  } else {
    _mm256_storeu_ps(f, n.a);
    _mm256_storeu_ps(f + 8, n.b);
  }
}
RN_INLINE void v2_store_f32_some(void *ptr, int layout, v2 v, int count) {
  float *f = (float *)ptr;
  const v2 n = v2_natural(v, layout);
  _mm256_maskstore_ps(f, first_of_8(count), n.a);
  _mm256_maskstore_ps(f + 8, first_of_8(count - 8), n.b);
}
RN_INLINE void v2_store_bf16(void *ptr, int layout, v2 v, int stream, const bool wild) {
  const __m256i a = vf_bf16_upper(v.a, wild), b = vf_bf16_upper(v.b, wild);
  __m256i h;
  if (layout == RN_SPLIT)
    h = _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa);
  else
    h = _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16)), 0xd8);
  if (stream)
    _mm256_stream_si256((__m256i *)ptr, h);
  else
    _mm256_storeu_si256((__m256i *)ptr, h);
}
RN_INLINE void v2_store_bf16_some(void *ptr, int layout, v2 v, int count) {
  uint16_t buffer[16];
  v2_store_bf16(buffer, layout, v, 0, true);
  memcpy(ptr, buffer, (size_t)count * 2);
}
RN_INLINE void v2_store_f16(void *ptr, int layout, v2 v, int stream) {
  const v2 n = v2_natural(v, layout);
  const __m256i h = _mm256_inserti128_si256(_mm256_castsi128_si256(vf_to_f16(n.a)), vf_to_f16(n.b), 1);
  if (stream)
    _mm256_stream_si256((__m256i *)ptr, h);
  else
    _mm256_storeu_si256((__m256i *)ptr, h);
}
RN_INLINE void v2_store_f16_some(void *ptr, int layout, v2 v, int count) {
  uint16_t buffer[16];
  v2_store_f16(buffer, layout, v, 0);
  memcpy(ptr, buffer, (size_t)count * 2);
}

RN_INLINE v2 v2_keep_first(int layout, int count, v2 fresh, v2 old) {
  const int a = layout == RN_SPLIT ? (count + 1) / 2 : count, b = layout == RN_SPLIT ? count / 2 : count - 8;
  return (v2){_mm256_blendv_ps(old.a, fresh.a, _mm256_castsi256_ps(first_of_8(a))),
              _mm256_blendv_ps(old.b, fresh.b, _mm256_castsi256_ps(first_of_8(b)))};
}

/* The four sums of 16 neighbouring lanes, in order. */
RN_INLINE vfold fold64(const v2 *acc, int layout) {
  if (layout == RN_SPLIT) {
    const vf p = _mm256_hadd_ps(_mm256_add_ps(acc[0].a, acc[0].b), _mm256_add_ps(acc[1].a, acc[1].b));
    const vf q = _mm256_hadd_ps(_mm256_add_ps(acc[2].a, acc[2].b), _mm256_add_ps(acc[3].a, acc[3].b));
    const vf eighths = _mm256_hadd_ps(p, q);
    return _mm_add_ps(_mm256_castps256_ps128(eighths), _mm256_extractf128_ps(eighths, 1));
  }
  const vf p = _mm256_hadd_ps(_mm256_hadd_ps(acc[0].a, acc[0].b), _mm256_hadd_ps(acc[1].a, acc[1].b));
  const vf q = _mm256_hadd_ps(_mm256_hadd_ps(acc[2].a, acc[2].b), _mm256_hadd_ps(acc[3].a, acc[3].b));
  return _mm_hadd_ps(_mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1)),
                     _mm_add_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1)));
}
RN_INLINE void fold_sum4(const vfold *f, int layout, float *out) {
  (void)layout; /* both layouts are in order by now */
  _mm_storeu_ps(out, _mm_hadd_ps(_mm_hadd_ps(f[0], f[1]), _mm_hadd_ps(f[2], f[3])));
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
