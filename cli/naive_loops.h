/* naive_loops.h - what one writes without thinking about it: two plain loops a row. A peer for the benchmark, nothing
 * else: it keeps no order, rescues no row, knows no roundings. Included by naive.c (strict arithmetic) and naive_fast.c
 * (-ffast-math), which define NAIVE(name).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "naive.h"

#include <math.h>
#include <string.h>

/* The compiler may use what the machine has. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define CLONES
#endif

static inline float widen(uint16_t v) {
  uint32_t bits = (uint32_t)v << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static inline uint16_t narrow(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
static inline float same(float f) {
  return f;
}

#define LOOPS(suffix, T, load, store)                                                                                  \
  CLONES void NAIVE(forward_##suffix)(const rn_naive *n, int64_t first, int64_t last) {                                \
    const T *w = n->weight;                                                                                            \
    for (int64_t r = first; r < last; r++) {                                                                           \
      const T *x = (const T *)n->x + r * n->cols;                                                                      \
      T *y = (T *)n->y + r * n->cols;                                                                                  \
      float sum = 0;                                                                                                   \
      for (int64_t i = 0; i < n->cols; i++) sum += load(x[i]) * load(x[i]);                                            \
      float rstd = 1 / sqrtf(sum / (float)n->cols + n->eps);                                                           \
      for (int64_t i = 0; i < n->cols; i++) y[i] = store(load(x[i]) * rstd * load(w[i]));                              \
    }                                                                                                                  \
  }                                                                                                                    \
  CLONES void NAIVE(residual_##suffix)(const rn_naive *n, int64_t first, int64_t last) {                               \
    const T *w = n->weight;                                                                                            \
    for (int64_t r = first; r < last; r++) {                                                                           \
      const T *x = (const T *)n->x + r * n->cols;                                                                      \
      T *h = (T *)n->residual + r * n->cols, *y = (T *)n->y + r * n->cols;                                             \
      float sum = 0;                                                                                                   \
      for (int64_t i = 0; i < n->cols; i++) {                                                                          \
        float s = load(x[i]) + load(h[i]);                                                                             \
        h[i] = store(s);                                                                                               \
        sum += s * s;                                                                                                  \
      }                                                                                                                \
      float rstd = 1 / sqrtf(sum / (float)n->cols + n->eps);                                                           \
      for (int64_t i = 0; i < n->cols; i++) y[i] = store(load(h[i]) * rstd * load(w[i]));                              \
    }                                                                                                                  \
  }                                                                                                                    \
  CLONES void NAIVE(backward_##suffix)(const rn_naive *n, int64_t first, int64_t last) {                               \
    const T *w = n->weight;                                                                                            \
    for (int64_t r = first; r < last; r++) {                                                                           \
      const T *x = (const T *)n->x + r * n->cols, *dy = (const T *)n->dy + r * n->cols;                                \
      T *dx = (T *)n->y + r * n->cols;                                                                                 \
      float sum = 0, dot = 0;                                                                                          \
      for (int64_t i = 0; i < n->cols; i++) {                                                                          \
        sum += load(x[i]) * load(x[i]);                                                                                \
        dot += load(dy[i]) * load(w[i]) * load(x[i]);                                                                  \
      }                                                                                                                \
      float rstd = 1 / sqrtf(sum / (float)n->cols + n->eps);                                                           \
      float share = dot * rstd * rstd / (float)n->cols;                                                                \
      for (int64_t i = 0; i < n->cols; i++) dx[i] = store(rstd * (load(dy[i]) * load(w[i]) - load(x[i]) * share));     \
    }                                                                                                                  \
  }

LOOPS(f32, float, same, same)
LOOPS(bf16, uint16_t, widen, narrow)
