/* test_numeric.c - the scalar code everything else is compared with: formats, quantisers, the exponential, the orders.
 *
 * Nothing here is compared with itself. The value of a code comes from ldexp on its fields; a narrowing is judged by
 * the distance to both neighbours in that table; the exponential by libm's in double; the orders by counting rows and
 * by a table worked out from the text of docs/numerics.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "epilogue.h"
#include "gate.h"
#include "numeric.h"
#include "order.h"

/* ------------------------------------------------------------------------------------------------------------------
 * Random numbers: one seed, printed, taken from RMSNORM_TEST_SEED if that is set. */
static uint64_t state;

static uint64_t random_bits(void) { /* splitmix64 */
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
static float random_float(void) {
  return rn_from_bits((uint32_t)random_bits());
} /* any pattern */
static double random_double(void) {
  return rn_from_bits_f64(random_bits());
}

/* ------------------------------------------------------------------------------------------------------------------
 * A small binary format, from its definition: sign, exponent field, mantissa field. */
typedef struct format {
  const char *name;
  int bits, man, bias;
  uint32_t last; /* magnitude code of the largest finite value */
  uint32_t nan;  /* the first NaN magnitude code */
  int saturates; /* otherwise last + 1 is infinity */
  int dtype;
  double value[0x8000]; /* of every magnitude code; last + 1 continues the scale, to judge overflow by distance */
} format;

static format f16 = {"f16", 16, 10, 15, 0x7bff, 0x7c01, 0, RMSNORM_DTYPE_F16, {0}};
static format bf16 = {"bf16", 16, 7, 127, 0x7f7f, 0x7f81, 0, RMSNORM_DTYPE_BF16, {0}};
static format e4m3 = {"e4m3", 8, 3, 7, 0x7e, 0x7f, 1, RMSNORM_DTYPE_FP8_E4M3, {0}};
static format e5m2 = {"e5m2", 8, 2, 15, 0x7b, 0x7d, 1, RMSNORM_DTYPE_FP8_E5M2, {0}};
static format *const formats[] = {&f16, &bf16, &e4m3, &e5m2};

static void fill(format *f) {
  uint32_t code;
  for (code = 0; code < (uint32_t)1 << (f->bits - 1); code++) {
    int exponent = (int)(code >> f->man), mantissa = (int)(code & (((uint32_t)1 << f->man) - 1));
    f->value[code] = exponent == 0 ? ldexp(mantissa, 1 - f->bias - f->man)
                                   : ldexp(mantissa + (1 << f->man), exponent - f->bias - f->man);
  }
}

static int setup(void **unused) {
  const char *seed = getenv("RMSNORM_TEST_SEED");
  size_t i;
  (void)unused;
  state = seed ? strtoull(seed, NULL, 0) : 20250607u;
  printf("seed %" PRIu64 " (RMSNORM_TEST_SEED)\n", state);
  for (i = 0; i < sizeof formats / sizeof *formats; i++) fill(formats[i]);
  return 0;
}

/* The magnitude code nearest to m >= 0, ties to the even code, by looking at both neighbours. Both distances are exact:
 * they are multiples of m's last place and smaller than the format's, or the format's last places themselves. */
static uint32_t nearest(const format *f, double m) {
  uint32_t low = 0, high = f->last + 1, end = f->saturates ? f->last : f->last + 1;
  if (m >= f->value[end]) return end;
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if (f->value[middle] <= m)
      low = middle;
    else
      high = middle;
  }
  if (high > end) return end;
  if (m - f->value[low] == f->value[high] - m) return low % 2 == 0 ? low : high;
  return m - f->value[low] < f->value[high] - m ? low : high;
}

static uint32_t expected(const format *f, double v) {
  uint32_t sign = signbit(v) ? (uint32_t)1 << (f->bits - 1) : 0;
  return sign | nearest(f, fabs(v));
}

static uint32_t narrow(const format *f, float v) {
  return f == &f16 ? rn_narrow_f16(v) : f == &bf16 ? rn_narrow_bf16(v) : rn_quantise(f->dtype, v);
}

static int is_nan_code(const format *f, uint32_t code) {
  return (code & (((uint32_t)1 << (f->bits - 1)) - 1)) >= f->nan;
}

static void check_float(const format *f, float v) {
  uint32_t got = narrow(f, v), want;
  if (isnan(v)) {
    if (!is_nan_code(f, got)) fail_msg("%s: NaN %08x became %x", f->name, rn_bits(v), got);
    return;
  }
  want = expected(f, v);
  if (got != want) fail_msg("%s: %a gives %x, nearest is %x", f->name, v, got, want);
}

static void check_double(const format *f, double v) {
  uint32_t got = f == &f16 ? rn_narrow_f16_f64(v) : rn_narrow_bf16_f64(v), want;
  if (isnan(v)) {
    if (!is_nan_code(f, got)) fail_msg("%s: NaN became %x", f->name, got);
    return;
  }
  want = expected(f, v);
  if (got != want) fail_msg("%s: double %a gives %x, nearest is %x", f->name, v, got, want);
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* Every code of f16 and bf16: its value, and back to itself. NaN stays NaN and is quiet, with its sign. */
static void every_code_round_trips(void **unused) {
  int k;
  (void)unused;
  for (k = 0; k < 2; k++) {
    const format *f = formats[k];
    uint32_t code;
    for (code = 0; code < 0x10000; code++) {
      uint16_t stored[4] = {(uint16_t)code}, again[4] = {0}; /* as wide as the widest element */
      uint32_t mag = code & 0x7fff, quiet = (uint32_t)1 << (f->man - 1);
      float v = rn_load(f->dtype, stored, 0);
      double wide = rn_load_f64(f->dtype, stored, 0);
      rn_store(f->dtype, again, 0, v);
      if (mag >= f->nan) {
        assert_true(isnan(v) && isnan(wide));
        assert_true(rn_bits(v) & 0x00400000u);
        assert_true(is_nan_code(f, again[0]) && (again[0] & quiet) && (again[0] & 0x8000) == (code & 0x8000));
        continue;
      }
      if (mag > f->last)
        assert_true(isinf(v));
      else
        assert_true(fabs((double)v) == f->value[mag]);
      assert_int_equal(!!signbit(v), code >> 15);
      assert_true((double)v == wide);
      assert_int_equal(again[0], code);
      again[0] = 0;
      rn_store_f64(f->dtype, again, 0, wide);
      assert_int_equal(again[0], code);
      assert_true(rn_bits(rn_round_to(f->dtype, v)) == rn_bits(v));
      assert_true(rn_bits_f64(rn_round_to_f64(f->dtype, wide)) == rn_bits_f64(wide));
    }
  }
}

/* On, just below and just above every code and every middle between two codes: where a rounding can go wrong. */
static void narrowing_at_every_boundary(void **unused) {
  size_t k;
  (void)unused;
  for (k = 0; k < sizeof formats / sizeof *formats; k++) {
    const format *f = formats[k];
    uint32_t code;
    for (code = 0; code <= f->last; code++) {
      double at[2];
      int i, step, sign;
      at[0] = f->value[code], at[1] = (f->value[code] + f->value[code + 1]) / 2;
      for (i = 0; i < 2; i++)
        for (sign = -1; sign <= 1; sign += 2) {
          for (step = -3; step <= 3; step++) {
            float v = (float)at[i];
            uint32_t bits = rn_bits(v);
            if ((double)v != at[i]) fail_msg("%s: the middle %a is not a float", f->name, at[i]);
            if (step < 0 && bits < (uint32_t)-step) continue;
            check_float(f, (float)sign * rn_from_bits(bits + (uint32_t)step));
          }
          if (f->bits != 16) continue;
          for (step = -2; step <= 2; step++) { /* a double beside a middle, which as a float would be the middle */
            uint64_t bits = rn_bits_f64(at[i]);
            if (step < 0 && bits < (uint64_t)-step) continue;
            check_double(f, sign * rn_from_bits_f64(bits + (uint64_t)(int64_t)step));
          }
        }
    }
  }
}

static void narrowing_at_random(void **unused) {
  static const float corners[] = {0.0f,      -0.0f, FLT_MAX,   -FLT_MAX, FLT_MIN,  0x1p-149f, -0x1p-149f, INFINITY,
                                  -INFINITY, NAN,   65519.99f, 65520.0f, 65504.0f, 0x1p-25f,  0x1.8p-25f};
  static const double wide[] = {
      DBL_MAX,  -DBL_MAX, DBL_MIN,   0x1p-1074, 0x1.fffffefffffffp127,  0x1p128,
      0x1p-134, INFINITY, -INFINITY, NAN,       0x1.0000000000001p-134, 0x1.0000000000001p-25};
  size_t k, i;
  (void)unused;
  for (k = 0; k < sizeof formats / sizeof *formats; k++) {
    const format *f = formats[k];
    for (i = 0; i < sizeof corners / sizeof *corners; i++) check_float(f, corners[i]);
    for (i = 0; i < 1000000; i++) {
      check_float(f, random_float());
      /* within the format's range: a random pattern is mostly far outside of it */
      check_float(f, (float)(f->value[random_bits() % (f->last + 1)] * (1 + 0x1p-32 * (double)(random_bits() >> 32))));
    }
    if (f->bits != 16) continue;
    for (i = 0; i < sizeof wide / sizeof *wide; i++) check_double(f, wide[i]);
    for (i = 0; i < 1000000; i++) {
      check_double(f, random_double());
      check_double(f, f->value[random_bits() % (f->last + 1)] * (1 + 0x1p-32 * (double)(random_bits() >> 32)));
    }
  }
}

static void other_types_pass_through(void **unused) {
  double d = 0x1.0000000000001p0, e = 0;
  float v = 0x1.000002p0f, w = 0;
  (void)unused;
  rn_store(RMSNORM_DTYPE_F32, &w, 0, v);
  assert_true(w == v && rn_load(RMSNORM_DTYPE_F32, &w, 0) == v && rn_round_to(RMSNORM_DTYPE_F32, v) == v);
  rn_store_f64(RMSNORM_DTYPE_F64, &e, 0, d);
  assert_true(e == d && rn_load_f64(RMSNORM_DTYPE_F64, &e, 0) == d && rn_round_to_f64(RMSNORM_DTYPE_F64, d) == d);
  rn_store_f64(RMSNORM_DTYPE_F32, &w, 0, d);
  assert_true(w == 1.0f && rn_round_to_f64(RMSNORM_DTYPE_F32, d) == 1.0);
}

static void powers_and_exponents(void **unused) {
  int e, i, want;
  (void)unused;
  for (e = -149; e <= 127; e++) {
    assert_true(rn_exp2i(e) == ldexpf(1, e));
    assert_int_equal(rn_exponent(ldexpf(1, e)), e);
  }
  for (e = -1074; e <= 1023; e++) {
    assert_true(rn_exp2i_f64(e) == ldexp(1, e));
    assert_int_equal(rn_exponent_f64(ldexp(1, e)), e);
  }
  for (e = -1100; e <= 1100; e++) assert_int_equal(rn_half_down(e), (int)floor(e / 2.0));
  for (i = 0; i < 1000000; i++) {
    float v = fabsf(random_float());
    double d = fabs(random_double());
    if (v > 0 && v <= FLT_MAX) {
      frexpf(v, &want);
      assert_int_equal(rn_exponent(v), want - 1);
    }
    if (d > 0 && d <= DBL_MAX) {
      frexp(d, &want);
      assert_int_equal(rn_exponent_f64(d), want - 1);
    }
  }
  assert_true(rn_half_down(rn_exponent(0)) < -1074 && rn_half_down(rn_exponent_f64(0)) < -1074);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Quantised formats. */

static void every_fp8_code(void **unused) {
  int k;
  (void)unused;
  for (k = 2; k < 4; k++) {
    const format *f = formats[k];
    uint32_t code;
    for (code = 0; code < 256; code++) {
      float v = rn_dequantise(f->dtype, (uint8_t)code);
      uint32_t mag = code & 0x7f, back = rn_quantise(f->dtype, v);
      if (mag >= f->nan) {
        assert_true(isnan(v));
        assert_int_equal(back & 0x7f, 0x7f);
      } else if (mag > f->last) { /* e5m2 infinity: never written, read as what it is */
        assert_true(isinf(v));
        assert_int_equal(back, (code & 0x80) | f->last);
      } else {
        assert_true(fabs((double)v) == f->value[mag] && !!signbit(v) == code >> 7);
        assert_int_equal(back, code);
      }
    }
    assert_true(rn_largest(f->dtype) == f->value[f->last]);
    assert_int_equal(rn_largest_exponent(f->dtype), (int)floor(log2(f->value[f->last])));
  }
}

static void every_int8_and_e8m0_code(void **unused) {
  int code;
  (void)unused;
  for (code = -128; code <= 127; code++) {
    int step;
    assert_true(rn_dequantise(RMSNORM_DTYPE_INT8, (uint8_t)code) == (float)code);
    for (step = -100; step <= 100; step++) {
      float v = (float)code + (float)step / 100;
      double want = nearbyint(v);
      want = want > 127 ? 127 : want < -128 ? -128 : want;
      if ((int8_t)rn_quantise(RMSNORM_DTYPE_INT8, v) != want) fail_msg("int8: %a", v);
    }
  }
  for (code = 0; code < 255; code++)
    assert_true(rn_dequantise(RMSNORM_DTYPE_E8M0, (uint8_t)code) == ldexp(1, code - 127));
  assert_true(isnan(rn_dequantise(RMSNORM_DTYPE_E8M0, 255)));
  assert_true(rn_largest(RMSNORM_DTYPE_INT8) == 127.0f);
}

/* The values at which quantisers in public went wrong, with the codes worked out by hand. */
static void quantiser_table(void **unused) {
  static const struct {
    float v;
    uint8_t e4m3, e5m2;
    int int8;
  } table[] = {
      {0, 0x00, 0x00, 0},
      {-0.0f, 0x80, 0x80, 0},
      {0.49f, 0x30, 0x38, 0},
      {-0.49f, 0xb0, 0xb8, 0},
      {0.5f, 0x30, 0x38, 0},
      {-0.5f, 0xb0, 0xb8, 0},
      {1.5f, 0x3c, 0x3e, 2},
      {2.5f, 0x42, 0x41, 2},
      {126.5f, 0x70, 0x58, 126},
      {127.4f, 0x70, 0x58, 127},
      {127.5f, 0x70, 0x58, 127},
      {127.6f, 0x70, 0x58, 127},
      {-127.5f, 0xf0, 0xd8, -128},
      {-128.4f, 0xf0, 0xd8, -128},
      {-129, 0xf0, 0xd8, -128},
      {447, 0x7e, 0x5f, 127},
      {448, 0x7e, 0x5f, 127},
      {449, 0x7e, 0x5f, 127},
      {464, 0x7e, 0x5f, 127},
      {465, 0x7e, 0x5f, 127},
      {480, 0x7e, 0x60, 127},
      {57343, 0x7e, 0x7b, 127},
      {57344, 0x7e, 0x7b, 127},
      {61440, 0x7e, 0x7b, 127},
      {1e30f, 0x7e, 0x7b, 127},
      {-1e30f, 0xfe, 0xfb, -128},
      {INFINITY, 0x7e, 0x7b, 127},
      {-INFINITY, 0xfe, 0xfb, -128},
      {0x1p-10f, 0x00, 0x14, 0},
      {0x1.8p-10f, 0x01, 0x16, 0},
      {0x1p-17f, 0x00, 0x00, 0},
      {0x1.8p-17f, 0x00, 0x01, 0},
      {FLT_TRUE_MIN, 0x00, 0x00, 0},
  };
  size_t i;
  (void)unused;
  for (i = 0; i < sizeof table / sizeof *table; i++) {
    if (rn_quantise(RMSNORM_DTYPE_FP8_E4M3, table[i].v) != table[i].e4m3) fail_msg("e4m3: %a", table[i].v);
    if (rn_quantise(RMSNORM_DTYPE_FP8_E5M2, table[i].v) != table[i].e5m2) fail_msg("e5m2: %a", table[i].v);
    if ((int8_t)rn_quantise(RMSNORM_DTYPE_INT8, table[i].v) != table[i].int8) fail_msg("int8: %a", table[i].v);
  }
  assert_int_equal(rn_quantise(RMSNORM_DTYPE_FP8_E4M3, NAN) & 0x7f, 0x7f);
  assert_int_equal(rn_quantise(RMSNORM_DTYPE_FP8_E5M2, NAN) & 0x7f, 0x7f);
  assert_int_equal(rn_quantise(RMSNORM_DTYPE_INT8, NAN), 0);
}

static void scales(void **unused) {
  (void)unused;
  assert_true(rn_amax(0, -3) == 3 && rn_amax(4, -3) == 4 && rn_amax(3, NAN) == 3 && !signbit(rn_amax(0, -0.0f)));
  assert_true(rn_amax(1, INFINITY) == FLT_MAX && rn_amax(1, -INFINITY) == FLT_MAX);
  assert_true(rn_scale(RMSNORM_DTYPE_FP8_E4M3, 896, FLT_MAX) == 2);
  assert_true(rn_scale(RMSNORM_DTYPE_FP8_E5M2, 28672, FLT_MAX) == 0.5f);
  assert_true(rn_scale(RMSNORM_DTYPE_INT8, 127, FLT_MAX) == 1);
  assert_true(rn_scale(RMSNORM_DTYPE_INT8, 1, FLT_MAX) == 1.0f / 127.0f);
  assert_true(rn_scale(RMSNORM_DTYPE_FP8_E4M3, 896, 1.5f) == 1.5f);       /* the bound of the caller */
  assert_true(rn_scale(RMSNORM_DTYPE_FP8_E4M3, 0, FLT_MAX) == 0x1p-126f); /* a zero row */
  assert_true(rn_scale(RMSNORM_DTYPE_FP8_E4M3, 0x1p-120f, FLT_MAX) == 0x1p-126f);
  assert_true(rn_scale(RMSNORM_DTYPE_FP8_E4M3, 0, 0x1p-130f) == 0x1p-130f); /* the bound comes last */
}

/* On the ties of a scale that is no power of two, dividing gives the tie and multiplying by the reciprocal often does
 * not. The product of two floats is exact in double, so both are known without the code under test. */
static void divide_or_multiply(void **unused) {
  int scale, k, differ = 0;
  (void)unused;
  for (scale = 3; scale < 200; scale += 2) {
    for (k = -127; k < 127; k++) {
      float v = (float)(scale * (k + 0.5)), product = (float)((double)v * (float)(1.0 / scale));
      int divided = (int8_t)rn_quantise_scaled(RMSNORM_DTYPE_INT8, RMSNORM_SCALE_DIVIDE, v, (float)scale);
      int multiplied = (int8_t)rn_quantise_scaled(RMSNORM_DTYPE_INT8, RMSNORM_SCALE_RECIPROCAL, v, (float)scale);
      assert_int_equal(divided, k % 2 == 0 ? k : k + 1);
      assert_int_equal(multiplied, (int)nearbyint(product));
      differ += divided != multiplied;
    }
  }
  assert_true(differ > 1000);
}

static void mx_exponents(void **unused) {
  int k, i;
  (void)unused;
  for (k = 2; k < 4; k++) {
    const format *f = formats[k];
    const double largest = f->value[f->last];
    for (i = 0; i < 500000; i++) {
      float amax = fabsf(random_float());
      int floored, ceiled, e, want;
      if (!(amax <= FLT_MAX)) continue;
      if (i < 277) amax = ldexpf(1.75f, i - 149); /* exactly the largest mantissa */
      if (i >= 277 && i < 554) amax = nextafterf(ldexpf(1.75f, i - 277 - 149), INFINITY);
      if (i == 554) amax = 0;
      if (i == 555) amax = FLT_MAX;
      if (amax > FLT_MAX) continue;
      floored = rn_mx_exponent(f->dtype, RMSNORM_E8M0_FLOOR, amax);
      ceiled = rn_mx_exponent(f->dtype, RMSNORM_E8M0_CEIL, amax);
      want = amax == 0 ? -127 : ilogb(amax) - (f->man == 3 ? 8 : 15);
      assert_int_equal(floored, want < -127 ? -127 : want);
      for (e = -400; amax > largest * ldexp(1, e); e++) {
      }
      assert_int_equal(ceiled, e < -127 ? -127 : e);
    }
    for (i = 0; i < 500000; i++) { /* values with an exponent: the exact quotient, rounded once */
      int e = (int)(random_bits() % 255) - 127;
      float v =
          (float)ldexp(f->value[random_bits() % (f->last + 1)] * (1 + 0x1p-32 * (double)(random_bits() >> 32)), e);
      if (random_bits() & 1) v = -v;
      if (fabsf(v) > FLT_MAX) continue;
      assert_int_equal(rn_quantise_mx(f->dtype, v, e), expected(f, ldexp(v, -e)));
    }
    assert_int_equal(rn_quantise_mx(f->dtype, NAN, 0) & 0x7f, 0x7f);
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * The gate. */

/* The last place of a float at v. */
static double ulp_at(double v) {
  int e = v == 0 ? -126 : ilogb(v);
  return ldexp(1, (e < -126 ? -126 : e) - 23);
}
static double ulps(float got, double want) {
  return fabs((double)got - want) / ulp_at(want);
}

/* Every float in [-110, 0]. Below 2^-26 the nearest float to exp(-a) is 1 and stays so down to 0: there every 2^12th
 * float has to be exactly 1. */
static void exponential_everywhere(void **unused) {
  const uint32_t last = rn_bits(110.0f), small = rn_bits(0x1p-26f);
  double worst = 0;
  float worst_at = 0;
  uint32_t bits;
  (void)unused;
  for (bits = 0; bits < small; bits += 4096) assert_true(rn_exp_minus(rn_from_bits(bits)) == 1.0f);
  for (; bits <= last; bits++) {
    float a = rn_from_bits(bits);
    double error = ulps(rn_exp_minus(a), exp(-(double)a));
    if (error > worst) worst = error, worst_at = a;
  }
  printf("exponential: largest error %.6f ulp, at exp(-%a), over %u arguments\n", worst, worst_at, last - small + 1);
  assert_true(worst <= 1.0);
  assert_true(rn_exp_minus(INFINITY) == 0.0f && rn_exp_minus(FLT_MAX) == 0.0f && isnan(rn_exp_minus(NAN)));
}

/* Where the bounds come from, in relative errors of 2^-23 = e. E has 1 e (its ulp is at most that); d = 1 + E, within
 * [1, 2], has 1 e (half from E, half from its own rounding); the quotient adds half: sigmoid and cosig 2.5 e. A
 * relative error of e is less than 2 ulp, a last rounding is half an ulp: sigmoid, cosig 2 * 2 + 0.5 = 4.5 ulp silu 2.5
 * * 2 + 0.5 = 5.5 ulp      sigmoid' 5 * 2 + 0.5 = 10.5 ulp silu' 2.5 e + 2.5 e + two roundings = 6 e, of sigmoid * (1 +
 * |z| cosig): the sum in it cancels near z = -1.278 Below z = -87.3 sigmoid is subnormal and has an absolute error of
 * up to 2^-149 (from E, the division by 1 is exact), which z multiplies: `tiny`. */
static void gate_against_double(void **unused) {
  int i;
  (void)unused;
  for (i = 0; i < 2000000; i++) {
    float z = (float)ldexp((double)(random_bits() >> 11) - 0x1p52, -52) * (i % 2 ? 100.0f : 2.0f);
    double s = z < 0 ? exp(z) / (1 + exp(z)) : 1 / (1 + exp(-(double)z));
    double c = z < 0 ? 1 / (1 + exp(z)) : exp(-(double)z) / (1 + exp(-(double)z));
    double scale = s * (1 + fabs((double)z) * c), tiny = z < -87 ? -z * 0x1p-149 : 0;
    if (ulps(rn_act(RMSNORM_GATE_SIGMOID, z), s) > 4.5) fail_msg("sigmoid(%a)", z);
    if (ulps(rn_cosig(z), c) > 4.5) fail_msg("cosig(%a)", z);
    if (fabs(rn_act(RMSNORM_GATE_SILU, z) - z * s) > tiny + 5.5 * ulp_at(z * s)) fail_msg("silu(%a)", z);
    if (ulps(rn_dact(RMSNORM_GATE_SIGMOID, z), s * c) > 10.5) fail_msg("sigmoid'(%a)", z);
    if (fabs(rn_dact(RMSNORM_GATE_SILU, z) - s * (1 + z * c)) > 6 * 0x1p-23 * scale + tiny) fail_msg("silu'(%a)", z);
    if (fabs(rn_act_f64(RMSNORM_GATE_SILU, z) - z * s) > 0x1p-50 * fabs(z * s)) fail_msg("f64 silu(%a)", z);
    if (fabs(rn_act_f64(RMSNORM_GATE_SIGMOID, z) - s) > 0x1p-50 * s) fail_msg("f64 sigmoid(%a)", z);
    if (fabs(rn_dact_f64(RMSNORM_GATE_SILU, z) - s * (1 + z * c)) > 0x1p-49 * scale) fail_msg("f64 silu'(%a)", z);
    if (fabs(rn_dact_f64(RMSNORM_GATE_SIGMOID, z) - s * c) > 0x1p-49 * s * c) fail_msg("f64 sigmoid'(%a)", z);
  }
}

/* The bits, not only the bound: every step of section 2 carried out in exact fractions by a program in another
 * language, the results folded into one number (FNV-1a, 32 bits at a time). */
static uint64_t fold(uint64_t hash, float v) {
  return (hash ^ rn_bits(v)) * 0x100000001b3u;
}

static void gate_bits(void **unused) {
  uint64_t hash = 0xcbf29ce484222325u;
  int i;
  (void)unused;
  for (i = 0; i < 20000; i++) hash = fold(hash, rn_exp_minus((float)i * 177 * 0x1p-15f));
  assert_int_equal(hash, 0x3ce5ecf63f35f61au);
  for (hash = 0xcbf29ce484222325u, i = 0; i < 4000; i++) {
    float z = (float)(i - 2000) * 107 * 0x1p-14f;
    hash = fold(hash, rn_act(RMSNORM_GATE_SIGMOID, z));
    hash = fold(hash, rn_act(RMSNORM_GATE_SILU, z));
    hash = fold(hash, rn_dact(RMSNORM_GATE_SIGMOID, z));
    hash = fold(hash, rn_dact(RMSNORM_GATE_SILU, z));
  }
  assert_int_equal(hash, 0x684e7e3a5c7b9947u);
}

static void gate_corners(void **unused) {
  (void)unused;
  assert_true(rn_act(RMSNORM_GATE_SIGMOID, 0) == 0.5f && rn_act(RMSNORM_GATE_SIGMOID, -0.0f) == 0.5f);
  assert_true(rn_act(RMSNORM_GATE_SIGMOID, INFINITY) == 1 && rn_act(RMSNORM_GATE_SIGMOID, -INFINITY) == 0);
  assert_true(rn_act(RMSNORM_GATE_SILU, INFINITY) == INFINITY && rn_act(RMSNORM_GATE_SILU, 1000) == 1000);
  assert_true(signbit(rn_act(RMSNORM_GATE_SILU, -0.0f)) && rn_act(RMSNORM_GATE_SILU, -0.0f) == 0);
  assert_true(rn_act(RMSNORM_GATE_SILU, -1000) == 0 && isnan(rn_act(RMSNORM_GATE_SILU, -INFINITY)));
  assert_true(isnan(rn_act(RMSNORM_GATE_SILU, NAN)) && isnan(rn_act(RMSNORM_GATE_SIGMOID, NAN)));
  assert_true(isnan(rn_dact(RMSNORM_GATE_SILU, NAN)) && isnan(rn_dact(RMSNORM_GATE_SIGMOID, NAN)));
  assert_true(rn_dact(RMSNORM_GATE_SIGMOID, 0) == 0.25f && rn_dact(RMSNORM_GATE_SILU, 0) == 0.5f);
}

/* ------------------------------------------------------------------------------------------------------------------
 * The two orders. */

static void lanes_of_every_length(void **unused) {
  int64_t n;
  (void)unused;
  for (n = 1; n < 700000; n++) {
    int64_t want = 65536;
    while (want > 64 && 4 * want > n) want /= 2;
    if (rn_lanes(n) != want) fail_msg("lanes of %" PRId64, n);
  }
  assert_int_equal(rn_lanes(INT64_MAX), 65536);
}

/* Worked out from the text of docs/numerics.md by a program in another language. */
static void chunks_of_known_shapes(void **unused) {
  static const struct {
    int64_t R, n, P, C, B;
  } table[] = {
      {0, 64, 4, 1, 1},
      {1, 1, 4, 1, 1},
      {3, 64, 4, 1, 2},
      {4, 64, 4, 1, 4},
      {7, 128, 4, 1, 4},
      {100, 64, 4, 16, 4},
      {4096, 64, 4, 1024, 4},
      {1000000, 64, 4, 8192, 64},
      {512, 512, 2, 256, 2},
      {8192, 1024, 1, 2048, 4},
      {1048576, 1024, 1, 8192, 4},
      {300, 1025, 1, 256, 1},
      {65536, 1025, 1, 4096, 2},
      {1048576, 2048, 1, 4096, 2},
      {4096, 2304, 1, 512, 1},
      {1048576, 3072, 1, 512, 1},
      {1048576, 3073, 1, 2048, 1},
      {40000, 4096, 1, 2048, 1},
      {1048576, 4096, 1, 2048, 1},
      {1000, 8192, 1, 256, 1},
      {100000, 8192, 1, 256, 1},
      {77, 16384, 1, 64, 1},
      {5000, 32768, 1, 64, 1},
      {5, 32768, 1, 4, 1},
      {5, 32769, 1, 5, 1},
      {0, 65536, 1, 1, 1},
      {1000, 65536, 1, 56, 1},
      {1000, 131072, 1, 28, 1},
      {1000, 262144, 1, 14, 1},
      {1000, 1000000, 1, 7, 1},
      {9, 4194304, 1, 7, 1},
      {1000, 16777216, 1, 7, 1},
      {16384, 100, 4, 4096, 4},
      {2048, 576, 2, 1024, 2},
      {131072, 128, 4, 4096, 32},
      {123457, 192, 4, 2048, 16},
      {20000, 4096, 1, 1024, 1},
      {9000, 4096, 1, 512, 1},
      {50000, 2048, 1, 2048, 2},
      {30000, 2048, 1, 1024, 2},
      {20000, 8192, 1, 256, 1},
      {60000, 1024, 1, 2048, 4},
      {7000, 64, 4, 1024, 4},
      {3000, 16384, 1, 128, 1},
  };
  size_t i;
  (void)unused;
  for (i = 0; i < sizeof table / sizeof *table; i++) {
    rn_chunks k = rn_chunks_of(table[i].R, table[i].n);
    if (k.P != table[i].P || k.C != table[i].C || k.B != table[i].B)
      fail_msg("R %" PRId64 " n %" PRId64 ": P %" PRId64 " C %" PRId64 " B %" PRId64, table[i].R, table[i].n, k.P, k.C,
               k.B);
  }
}

/* Every row in exactly one chunk, exactly once, in increasing order, in the chunk its unit belongs to. */
static void check_chunks(int64_t R, int64_t n) {
  const rn_chunks k = rn_chunks_of(R, n);
  unsigned char *seen = calloc((size_t)R + 1, 1);
  int64_t chunk, i, total = 0;
  assert_non_null(seen);
  assert_true(k.P >= 1 && k.C >= 1 && k.B >= 1);
  for (chunk = 0; chunk < k.C; chunk++) {
    int64_t rows = rn_chunk_rows(k, R, chunk), before = -1;
    assert_true(rows >= 0);
    for (i = 0; i < rows; i++) {
      int64_t row = rn_chunk_row(k, chunk, i);
      if (row < 0 || row >= R || seen[row] || row <= before || row / k.B % k.C != chunk)
        fail_msg("R %" PRId64 " n %" PRId64 ": chunk %" PRId64 " row %" PRId64, R, n, chunk, row);
      seen[row] = 1, before = row;
    }
    total += rows;
  }
  if (total != R) fail_msg("R %" PRId64 " n %" PRId64 ": %" PRId64 " rows dealt", R, n, total);
  free(seen);
}

static void every_row_is_dealt_once(void **unused) {
  static const int64_t lengths[] = {1,     2,     63,    64,    255,    256,    257,    512,  1000,
                                    1024,  1025,  2048,  2049,  3072,   3073,   4096,   4097, 8192,
                                    16384, 32768, 32769, 65536, 131072, 262144, 5000000};
  size_t i;
  int64_t R;
  (void)unused;
  for (i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    for (R = 0; R < 300; R++) check_chunks(R, lengths[i]);
    for (R = 0; R < 60; R++) check_chunks((int64_t)(random_bits() % 300000), lengths[i]);
    check_chunks(131072, lengths[i]);
  }
  for (R = 0; R < 3000; R++) check_chunks((int64_t)(random_bits() % 5000), 1 + (int64_t)(random_bits() % 200000));
}

/* Sizes no machine has: still defined, still 64-bit. */
static void huge_sizes(void **unused) {
  rn_chunks k = rn_chunks_of((int64_t)1 << 40, 64);
  int64_t total = 0, chunk;
  (void)unused;
  for (chunk = 0; chunk < k.C; chunk++) total += rn_chunk_rows(k, (int64_t)1 << 40, chunk);
  assert_true(total == (int64_t)1 << 40);
  assert_true(rn_chunk_row(k, k.C - 1, rn_chunk_rows(k, (int64_t)1 << 40, k.C - 1) - 1) == ((int64_t)1 << 40) - 1);
  k = rn_chunks_of(INT64_MAX, INT64_MAX);
  assert_true(k.P == 1 && k.C == 7 && k.B == 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_code_round_trips),
      cmocka_unit_test(narrowing_at_every_boundary),
      cmocka_unit_test(narrowing_at_random),
      cmocka_unit_test(other_types_pass_through),
      cmocka_unit_test(powers_and_exponents),
      cmocka_unit_test(every_fp8_code),
      cmocka_unit_test(every_int8_and_e8m0_code),
      cmocka_unit_test(quantiser_table),
      cmocka_unit_test(scales),
      cmocka_unit_test(divide_or_multiply),
      cmocka_unit_test(mx_exponents),
      cmocka_unit_test(exponential_everywhere),
      cmocka_unit_test(gate_against_double),
      cmocka_unit_test(gate_bits),
      cmocka_unit_test(gate_corners),
      cmocka_unit_test(lanes_of_every_length),
      cmocka_unit_test(chunks_of_known_shapes),
      cmocka_unit_test(every_row_is_dealt_once),
      cmocka_unit_test(huge_sizes),
  };
  return cmocka_run_group_tests_name("numeric", tests, setup, NULL);
}
