/* test_rstd.c - src/cuda/rstd.h gives the bits of a division and of the definition in numeric.h: the root for every v,
 * taken to [1, 4), from every start that a device's approximation may give; the quotient for every mantissa of the sum
 * and many divisors.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cuda/rstd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* docs/numerics.md 1.3, written out. */
static float definition(float v) {
  const float r = 1.0f / sqrtf(v), h = v * r, l = fmaf(v, r, -h);
  return fmaf(0.5f * r, fmaf(-l, r, fmaf(-h, r, 1.0f)), r);
}

static void every_root(void **state) {
  (void)state;
  enum { FARTHEST = 3 };
  int64_t left = 0;
  for (uint32_t bits = rn_bits(1.0f); bits < rn_bits(4.0f); bits++) {
    const float v = rn_from_bits(bits), wanted = definition(v);
    const uint32_t nearest = rn_bits((float)(1 / sqrt((double)v)));
    if (!rn_takes_short_way(v, v)) {
      left++;
      continue;
    }
    for (int off = -FARTHEST; off <= FARTHEST; off++) {
      const float r = rn_isqrt_from(v, rn_from_bits(nearest + (uint32_t)off));
      if (rn_bits(r) != rn_bits(wanted)) fail_msg("v = %a, start %d units off: %a, expected %a", v, off, r, wanted);
    }
  }
  assert_int_equal(left, 2);
}

/* Powers of four change nothing, at the ends of the range neither. */
static void scaled_roots(void **state) {
  (void)state;
  uint32_t seed = 1;
  for (int i = 0; i < 2000000; i++) {
    seed = seed * 1664525u + 1013904223u;
    const float v = rn_from_bits(seed % (rn_bits(FLT_MAX) - rn_bits(0x1p-90f) + 1) + rn_bits(0x1p-90f));
    if (!rn_takes_short_way(v, v)) continue;
    const float near = rn_from_bits(rn_bits((float)(1 / sqrt((double)v))) + seed % 7 - 3);
    if (rn_bits(rn_isqrt_from(v, near)) != rn_bits(definition(v))) fail_msg("v = %a", v);
  }
}

static void check_quotients(float divisor, uint32_t step) {
  const float inverse = 1.0f / divisor;
  for (uint32_t bits = rn_bits(1.0f); bits < rn_bits(2.0f); bits += step) {
    const float s = rn_from_bits(bits);
    if (rn_bits(rn_quotient(s, divisor, inverse)) != rn_bits(s / divisor)) fail_msg("%a / %a", s, divisor);
  }
}

static void quotients(void **state) {
  (void)state;
  for (int divisor = 1; divisor <= 64; divisor++) check_quotients((float)divisor, 5);
  for (int divisor = 65; divisor <= 600000; divisor += divisor / 64 + 7) check_quotients((float)divisor, 11);
  for (int ones = 1; ones < 64; ones++) check_quotients(rn_from_bits(0x4f800000u - (uint32_t)ones), 7); /* up to 2^32 */
  for (int power = -90; power < 127; power++) {
    const float s = ldexpf(1.2345678f, power), divisor = 4095;
    const float q = rn_quotient(s, divisor, 1.0f / divisor);
    if (rn_takes_short_way(q, q) && rn_bits(q) != rn_bits(s / divisor)) fail_msg("2^%d / %a", power, divisor);
  }
}

/* What is left to the long way. */
static void range(void **state) {
  (void)state;
  assert_true(rn_takes_short_way(1, 1));
  assert_true(rn_takes_short_way(FLT_MAX, FLT_MAX));
  assert_false(rn_takes_short_way(0, 1e-5f));
  assert_false(rn_takes_short_way(0x1p-91f, 1));
  assert_false(rn_takes_short_way(INFINITY, INFINITY));
  assert_false(rn_takes_short_way(FLT_MAX, INFINITY));
  assert_false(rn_takes_short_way(NAN, NAN));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_root), cmocka_unit_test(scaled_roots),
                                     cmocka_unit_test(quotients), cmocka_unit_test(range)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
