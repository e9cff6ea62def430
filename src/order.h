/* order.h - the two fixed orders as arithmetic: lanes of a row, and chunks of rows: docs/numerics.md 1.2 and 4.1.
 *
 * Both depend on lengths and counts alone, never on threads or machine. All 64-bit.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_ORDER_H
#define RN_ORDER_H

#include "numeric.h"

#define RN_LANES_MIN 64
#define RN_LANES_MAX 65536

RN_FN int64_t rn_min_i64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
RN_FN int64_t rn_max_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* The largest power of two not above v, 1 for v < 1. */
RN_FN int64_t rn_pow2_below(int64_t v) {
  int64_t p = 1;
  while (p <= v / 2) p *= 2;
  return p;
}
/* The smallest power of two not below v. v <= 2^62. */
RN_FN int64_t rn_pow2_above(int64_t v) {
  int64_t p = 1;
  while (p < v) p *= 2;
  return p;
}

/* W(n): the lanes of a row of n elements; element i belongs to lane i mod W. A power of two. */
RN_FN int64_t rn_lanes(int64_t n) {
  int64_t w = RN_LANES_MIN;
  while (w < RN_LANES_MAX && w <= n / 8) w *= 2;
  return w;
}

/* How the R rows that contribute to a weight gradient of length n are dealt out. */
typedef struct rn_chunks {
  int64_t P; /* row lanes of a chunk: its i-th row goes to lane i mod P. A power of two */
  int64_t C; /* chunks */
  int64_t B; /* rows of a unit: unit j = rows [j B, j B + B) belongs to chunk j mod C */
} rn_chunks;

RN_FN rn_chunks rn_chunks_of(int64_t R, int64_t n) {
  const int64_t M = (int64_t)1 << 21; /* 2^21 */
  rn_chunks k;
  /* Every n past 2^24 has the same chunks; keeping p small keeps it from overflowing. */
  int64_t p = rn_pow2_above(rn_min_i64(n, (int64_t)1 << 40)), limit;
  k.P = rn_max_i64(1, 256 / rn_lanes(n));
  if (p <= 32768) {
    limit = p <= 1024 ? 8192 : p == 2048 ? 4096 : n > 3072 && n <= 4096 ? 2048 : M / p;
    limit = rn_min_i64(limit, rn_max_i64(M / (p * k.P), R / (16 * k.P)));
    k.C = rn_pow2_below(rn_min_i64(limit, R / k.P));
  } else {
    k.C = rn_max_i64(1, rn_min_i64(R, rn_max_i64(7, 7 * (M / 4) / p)));
  }
  k.B = rn_pow2_below(rn_min_i64(4096 / p, R / k.C));
  return k;
}

/* How many of the R rows chunk c takes. */
RN_FN int64_t rn_chunk_rows(rn_chunks k, int64_t R, int64_t c) {
  int64_t units = R / k.B, rest = R % k.B; /* whole units, and the rows of a last, short one */
  int64_t mine = (units / k.C + (c < units % k.C)) * k.B;
  return mine + (c == units % k.C ? rest : 0);
}

/* The number, within [0, R), of chunk c's i-th row. */
RN_FN int64_t rn_chunk_row(rn_chunks k, int64_t c, int64_t i) {
  return (i / k.B * k.C + c) * k.B + i % k.B;
}

#endif /* RN_ORDER_H */
