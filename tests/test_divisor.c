/* test_divisor.c - what src/cuda does faster than src/epilogue.h: fp8.h gives its codes, and divisor.h those of a
 * division, at every boundary between two codes, for scales of all kinds; with RMSNORM_EVERY_SCALE=1 in the environment
 * for all 2^23 mantissas (some minutes).
 *
 * Between boundaries nothing can go wrong: the float that stands for the quotient is a unit in the last place off at
 * most, and values two such units from a boundary are among those looked at.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cuda/divisor.h"
#include "cuda/fp8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t state = 1;
static uint32_t next(void) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (uint32_t)(state >> 16);
}

enum { FORMATS = 3, MOST_BOUNDARIES = 256 };
static const int formats[FORMATS] = {RMSNORM_DTYPE_FP8_E4M3, RMSNORM_DTYPE_FP8_E5M2, RMSNORM_DTYPE_INT8};
static float boundaries[FORMATS][MOST_BOUNDARIES];
static int counts[FORMATS];

/* Halfway between neighbouring codes, and beyond the last. */
static int find_boundaries(void **context) {
  (void)context;
  for (int f = 0; f < FORMATS; f++) {
    uint8_t last = formats[f] == RMSNORM_DTYPE_FP8_E4M3 ? RN_E4M3_LARGEST : RN_E5M2_LARGEST;
    if (formats[f] == RMSNORM_DTYPE_INT8) last = 127;
    float low = 0, high = 0;
    for (int code = 1; code <= last; code++) {
      low = high, high = rn_dequantise(formats[f], (uint8_t)code);
      boundaries[f][counts[f]++] = low + (high - low) / 2;
    }
    boundaries[f][counts[f]++] = high + (high - low) / 2;
  }
  return 0;
}

static int64_t quickly, in_all;
static void check(int dtype, float scale, int32_t reciprocal, float v) {
  const rn_divisor d = rn_divisor_of(scale, reciprocal, rn_amax(0, v) == FLT_MAX ? fabsf(v) : rn_amax(0, v));
  const float t = d.low >= 0 ? rn_divide(d, v) : rn_divide_plainly(d, reciprocal, v);
  const int op = reciprocal ? RMSNORM_SCALE_RECIPROCAL : RMSNORM_SCALE_DIVIDE;
  const uint8_t expected = rn_quantise_scaled(dtype, op, v, scale), found = rn_quantise(dtype, t);
  in_all++, quickly += d.low >= 0;
  if (expected == found) return;
  if (dtype != RMSNORM_DTYPE_INT8 && (expected & found & 0x7fu) == RN_FP8_NAN) return;
  fail_msg("format %d, scale %a, op %d, v %a: %02x, not %02x", dtype, (double)scale, op, (double)v, found, expected);
}

/* v = boundary * scale and its neighbours, either sign. */
static void check_boundaries(float scale, int32_t reciprocal) {
  for (int f = 0; f < FORMATS; f++)
    for (int i = 0; i < counts[f]; i++) {
      const float at = boundaries[f][i] * scale;
      if (!(at >= 0x1p-140f && at < 0x1p127f)) continue;
      for (uint32_t k = 0; k < 5; k++) {
        const float v = rn_from_bits(rn_bits(at) + k - 2);
        check(formats[f], scale, reciprocal, i & 1 ? -v : v);
      }
    }
}
static float scale_of(uint32_t mantissa, int exponent) {
  return rn_from_bits((mantissa & 0x7fffffu) | (uint32_t)(exponent + 127) << 23);
}

static void test_boundaries(void **context) {
  (void)context;
  const bool every = getenv("RMSNORM_EVERY_SCALE") != NULL;
  quickly = in_all = 0;
  for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += every ? 1 : 1021)
    check_boundaries(scale_of(mantissa, -6), 0);
  assert_true(quickly > in_all / 1000 * 999);
  for (uint32_t i = 0; i < 4096; i++) check_boundaries(scale_of(next(), -126 + (int)(next() % 253)), (int32_t)(i & 1));
  print_message("%lld quotients, all but %lld of them quickly\n", (long long)in_all, (long long)(in_all - quickly));
}

/* Where two operations are not enough they are not used: near multiples of 2^17, and for the pairs that show it. */
static void test_near_multiples(void **context) {
  (void)context;
  for (uint32_t i = 0; i < 64; i++)
    for (uint32_t k = 0; k < 41; k++) check_boundaries(scale_of((i << 17) + k - 20, -6), 0);
  assert_true(rn_most_divided(scale_of(0x3fffffu, 0), 0) < 0); /* 0xbfffff is one */
  assert_true(rn_most_divided(1.0f, 0) > 0);
  assert_true(rn_most_divided(1.5f, 0) > 0);
}

static void test_special(void **context) {
  (void)context;
  static const float values[] = {0,  -0.0f,   0x1p-149f, -0x1p-149f, 0x1p-126f, 1,
                                 -1, FLT_MAX, -FLT_MAX,  INFINITY,   -INFINITY, NAN};
  static const float scales[] = {0x1p-149f, 0x1.8p-140f, 0x1p-126f, 0x1.8p-126f, 0x1.234568p-100f,
                                 1,         0x1p60f,     0x1.8p60f, 0x1p127f,    FLT_MAX};
  for (size_t s = 0; s < sizeof scales / sizeof *scales; s++)
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
      for (int f = 0; f < FORMATS; f++)
        for (int32_t reciprocal = 0; reciprocal < 2; reciprocal++) check(formats[f], scales[s], reciprocal, values[v]);
}

static void test_powers(void **context) {
  (void)context;
  static const float odd[] = {0, -0.0f, 0x1p-149f, 0x1.234568p-127f, 0x1p-126f, FLT_MAX, INFINITY, -INFINITY, NAN};
  for (int e = -127; e <= 127; e++)
    for (int f = 0; f < 2; f++) {
      for (int i = 0; i < counts[f] + (int)(sizeof odd / sizeof *odd); i++)
        for (uint32_t k = 0; k < 5; k++) {
          float v = i < counts[f] ? ldexpf(boundaries[f][i], e) : odd[i - counts[f]];
          if (i < counts[f] && rn_bits(v) > 2) v = rn_from_bits(rn_bits(v) + k - 2);
          const float amax = rn_is_nan(v) ? 0 : fabsf(v);
          const rn_divisor d = rn_power_divisor(e, amax);
          const float t = d.low >= 0 ? rn_divide(d, v) : rn_divide_plainly(d, 0, v);
          const uint8_t expected = rn_quantise_mx(formats[f], v, e), found = rn_quantise(formats[f], t);
          if (expected != found && (expected & found & 0x7fu) != RN_FP8_NAN)
            fail_msg("format %d, 2^%d, v %a: %02x, not %02x", formats[f], e, (double)v, found, expected);
        }
    }
}

/* Every upper half of a float, with lower halves next to 0 and any. */
static void test_fp8(void **context) {
  (void)context;
  for (uint32_t high = 0; high < 1u << 16; high++)
    for (uint32_t k = 0; k < 16; k++) {
      const float v = rn_from_bits(high << 16 | (k < 8 ? (k - 4) & 0xffffu : next() & 0xffffu));
      for (int32_t e5m2 = 0; e5m2 < 2; e5m2++) {
        const uint32_t expected = rn_quantise(e5m2 ? RMSNORM_DTYPE_FP8_E5M2 : RMSNORM_DTYPE_FP8_E4M3, v);
        if (rn_fp8_code(e5m2, v) != expected)
          fail_msg("e5m2 %d, v %a: %02x, not %02x", e5m2, (double)v, rn_fp8_code(e5m2, v), expected);
      }
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_boundaries), cmocka_unit_test(test_near_multiples),
                                     cmocka_unit_test(test_special), cmocka_unit_test(test_powers),
                                     cmocka_unit_test(test_fp8)};
  return cmocka_run_group_tests(tests, find_boundaries, NULL);
}
