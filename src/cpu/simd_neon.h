/* simd_neon.h - the vocabulary of simd.h for AArch64. 4 floats a vector; pairwise additions are instructions here, so
 * everything stays in NATURAL layout. Tails go through a small buffer.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <arm_neon.h>

#define RN_VL           4
#define RN_STREAM_ALIGN 16
#define RN_TILE_BLOCKS  1 /* 64 lanes are 16 of the 32 registers */

typedef float32x4_t vf;
typedef struct v2 {
  vf a, b;
} v2;
typedef float32x4_t vfold;

RN_INLINE vf vf_zero(void) {
  return vdupq_n_f32(0.0f);
}
RN_INLINE vf vf_set1(float s) {
  return vdupq_n_f32(s);
}
RN_INLINE vf vf_load(const float *from) {
  return vld1q_f32(from);
}
RN_INLINE void vf_store(float *to, vf v) {
  vst1q_f32(to, v);
}
RN_INLINE vf vf_add(vf a, vf b) {
  return vaddq_f32(a, b);
}
RN_INLINE vf vf_sub(vf a, vf b) {
  return vsubq_f32(a, b);
}
RN_INLINE vf vf_mul(vf a, vf b) {
  return vmulq_f32(a, b);
}
RN_INLINE vf vf_div(vf a, vf b) {
  return vdivq_f32(a, b);
}
RN_INLINE vf vf_sqrt(vf a) {
  return vsqrtq_f32(a);
}
RN_INLINE vf vf_max(vf a, vf b) {
  return vmaxq_f32(a, b);
}
/* min(a, b) with b's NaN kept, as on x86: row.c relies on it to let a NaN through. vminq keeps NaN of either side. */
RN_INLINE vf vf_min(vf a, vf b) {
  return vminq_f32(a, b);
}
RN_INLINE vf vf_abs(vf a) {
  return vabsq_f32(a);
}
RN_INLINE vf vf_fma(vf a, vf b, vf c) {
  return vfmaq_f32(c, a, b);
}
RN_INLINE vf vf_fnma(vf a, vf b, vf c) {
  return vfmsq_f32(c, a, b);
}

RN_INLINE vf vf_select_neg(vf z, vf a, vf b) {
  return vbslq_f32(vcltzq_f32(z), a, b);
}
RN_INLINE vf vf_clamp_nan_to_zero(vf v) {
  return vreinterpretq_f32_u32(vandq_u32(vceqq_f32(v, v), vreinterpretq_u32_f32(vabsq_f32(v))));
}
RN_INLINE float vf_max_lanes(vf v) {
  return vmaxvq_f32(v);
}
RN_INLINE void vf_pow2_halves(vf k, vf *lo, vf *hi) {
  const int32x4_t n = vcvtnq_s32_f32(k), bias = vdupq_n_s32(127);
  const int32x4_t half = vshrq_n_s32(n, 1), rest = vsubq_s32(n, half);
  *lo = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
  *hi = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
}

/* The bits of v rounded to bf16, in the upper halves; the lower halves are rubbish. */
RN_INLINE uint32x4_t vf_bf16_upper(vf v, const bool wild) {
  const uint32x4_t u = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
  if (!wild) return rounded;
  return vbslq_u32(vceqq_f32(v, v), rounded, vdupq_n_u32(0x7fc00000));
}
RN_INLINE vf vf_round_bf16(vf v) {
  return vreinterpretq_f32_u32(vandq_u32(vf_bf16_upper(v, true), vdupq_n_u32(0xffff0000u)));
}
RN_INLINE vf vf_round_f16(vf v) {
  return vcvt_f32_f16(vcvt_f16_f32(v));
}

RN_INLINE v2 v2_load_f32(const void *ptr, int layout) {
  (void)layout;
  const float *f = (const float *)ptr;
  return (v2){vld1q_f32(f), vld1q_f32(f + 4)};
}
RN_INLINE v2 v2_load_bf16(const void *ptr, int layout) {
  (void)layout;
  const uint16x8_t h = vld1q_u16((const uint16_t *)ptr);
  return (v2){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}
RN_INLINE v2 v2_load_f16(const void *ptr, int layout) {
  (void)layout;
  const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16((const uint16_t *)ptr));
  return (v2){vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
RN_INLINE v2 v2_load_f32_some(const void *ptr, int layout, int count) {
  float buffer[8] = {0};
  memcpy(buffer, ptr, (size_t)count * 4);
  return v2_load_f32(buffer, layout);
}
RN_INLINE v2 v2_load_bf16_some(const void *ptr, int layout, int count) {
  uint16_t buffer[8] = {0};
  memcpy(buffer, ptr, (size_t)count * 2);
  return v2_load_bf16(buffer, layout);
}
RN_INLINE v2 v2_load_f16_some(const void *ptr, int layout, int count) {
  uint16_t buffer[8] = {0};
  memcpy(buffer, ptr, (size_t)count * 2);
  return v2_load_f16(buffer, layout);
}

/* There is no portable streaming store for vectors here: stream is not looked at. */
RN_INLINE void v2_store_f32(void *ptr, int layout, v2 v, int stream) {
  (void)layout, (void)stream;
  vst1q_f32((float *)ptr, v.a);
  vst1q_f32((float *)ptr + 4, v.b);
}
RN_INLINE void v2_store_bf16(void *ptr, int layout, v2 v, int stream, const bool wild) {
  (void)layout, (void)stream;
  vst1q_u16((uint16_t *)ptr, vuzp2q_u16(vreinterpretq_u16_u32(vf_bf16_upper(v.a, wild)),
                                        vreinterpretq_u16_u32(vf_bf16_upper(v.b, wild))));
}
RN_INLINE void v2_store_f16(void *ptr, int layout, v2 v, int stream) {
  (void)layout, (void)stream;
  vst1q_u16((uint16_t *)ptr, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.a), v.b)));
}
RN_INLINE void v2_store_f32_some(void *ptr, int layout, v2 v, int count) {
  float buffer[8];
  v2_store_f32(buffer, layout, v, 0);
  memcpy(ptr, buffer, (size_t)count * 4);
}
RN_INLINE void v2_store_bf16_some(void *ptr, int layout, v2 v, int count) {
  uint16_t buffer[8];
  v2_store_bf16(buffer, layout, v, 0, true);
  memcpy(ptr, buffer, (size_t)count * 2);
}
RN_INLINE void v2_store_f16_some(void *ptr, int layout, v2 v, int count) {
  uint16_t buffer[8];
  v2_store_f16(buffer, layout, v, 0);
  memcpy(ptr, buffer, (size_t)count * 2);
}

RN_INLINE v2 v2_keep_first(int layout, int count, v2 fresh, v2 old) {
  (void)layout;
  const int32x4_t index = {0, 1, 2, 3};
  return (v2){vbslq_f32(vcgtq_s32(vdupq_n_s32(count), index), fresh.a, old.a),
              vbslq_f32(vcgtq_s32(vdupq_n_s32(count - 4), index), fresh.b, old.b)};
}

/* The four sums of 16 neighbouring lanes, in order. */
RN_INLINE vfold fold64(const v2 *acc, int layout) {
  (void)layout;
  vf quads[4];
  for (int i = 0; i < 4; ++i)
    quads[i] = vpaddq_f32(vpaddq_f32(acc[2 * i].a, acc[2 * i].b), vpaddq_f32(acc[2 * i + 1].a, acc[2 * i + 1].b));
  return vpaddq_f32(vpaddq_f32(quads[0], quads[1]), vpaddq_f32(quads[2], quads[3]));
}
RN_INLINE void fold_sum4(const vfold *f, int layout, float *out) {
  (void)layout;
  vst1q_f32(out, vpaddq_f32(vpaddq_f32(f[0], f[1]), vpaddq_f32(f[2], f[3])));
}

RN_INLINE void rn_prefetch(const void *ptr) {
  __builtin_prefetch(ptr, 0, 3);
}
RN_INLINE void rn_prefetch_far(const void *ptr) {
  __builtin_prefetch(ptr, 0, 2);
}
RN_INLINE void rn_stream_fence(void) {}
