/* measure_pair.c - two arrays of any types and the distance of their elements, row by row; see measure_parts.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "compare.h"
#include "measure_parts.h"
#include "reference.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* So many elements that all fit a narrower type by no chance: a few whole numbers always do. */
enum { NARROW_EVIDENCE = 32 };

/* Types of which the coarser can hold a rounded value of the finer, finest first. */
static const int by_fineness[] = {RMSNORM_DTYPE_F64,  RMSNORM_DTYPE_F32,      RMSNORM_DTYPE_F16,
                                  RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_FP8_E4M3, RMSNORM_DTYPE_FP8_E5M2};
enum { FLOATS = sizeof by_fineness / sizeof *by_fineness };

static int fineness(int dtype) {
  for (int i = 0; i < FLOATS; i++)
    if (by_fineness[i] == dtype) return i;
  return -1;
}

static bool is_wide(int dtype) {
  return dtype == RMSNORM_DTYPE_F32 || dtype == RMSNORM_DTYPE_F64;
}

static uint64_t code_at(const rn_tensor *t, int64_t i) {
  uint64_t bits = 0;
  memcpy(&bits, (const char *)t->data + i * t->item_bytes, (size_t)t->item_bytes);
  return bits;
}

static double value_of(int dtype, const double *values, uint64_t bits) {
  if (values != NULL) return values[bits];
  if (dtype == RMSNORM_DTYPE_F64) {
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
  }
  const uint32_t low = (uint32_t)bits;
  float v;
  memcpy(&v, &low, sizeof v);
  return (double)v;
}

/* A bit for every type, by its place above, that holds all values of t. */
static uint32_t types_that_fit(const rn_tensor *t) {
  const int from = fineness(t->dtype), last = fineness(RMSNORM_DTYPE_BF16);
  uint32_t fit = 0;
  if (from < 0) return 0;
  fit = 1u << from;
  if (!is_wide(t->dtype) || t->count < NARROW_EVIDENCE) return fit;
  for (int k = from + 1; k <= last; k++) {
    bool good = true;
    for (int64_t i = 0; i < t->count && good; i++) {
      const double v = value_of(t->dtype, NULL, code_at(t, i));
      good = v != v || rn_ref_round(by_fineness[k], v) == v;
    }
    if (good) fit |= 1u << k;
  }
  return fit;
}

static int coarsest(uint32_t fit, int otherwise) {
  for (int k = FLOATS - 1; k >= 0; k--)
    if (fit >> k & 1) return by_fineness[k];
  return otherwise;
}

static bool settle_type(rn_pair *p, FILE *err) {
  const int a = p->a->dtype, b = p->b->dtype;
  const int fine_a = fineness(a), fine_b = fineness(b);
  p->narrow_a = a, p->narrow_b = b, p->dtype = a;
  if (a == RMSNORM_DTYPE_NONE || b == RMSNORM_DTYPE_NONE) {
    fprintf(err, "one of the arrays holds raw %d-byte elements and does not say of which type. Try: --dtype %s\n",
            a == RMSNORM_DTYPE_NONE ? p->a->item_bytes : p->b->item_bytes,
            (a == RMSNORM_DTYPE_NONE ? p->a->item_bytes : p->b->item_bytes) == 2 ? "bf16" : "TYPE");
    return false;
  }
  if (a != b && (fine_a < 0 || fine_b < 0)) {
    fprintf(err, "%s and %s can not be compared: expected two types of floating-point numbers, or twice the same\n",
            rmsnorm_dtype_name(a), rmsnorm_dtype_name(b));
    return false;
  }
  if (fine_a < 0) return true;
  const uint32_t fit_a = types_that_fit(p->a), fit_b = types_that_fit(p->b);
  p->narrow_a = coarsest(fit_a, a), p->narrow_b = coarsest(fit_b, b);
  p->dtype = fine_a > fine_b ? a : b;
  const int both = coarsest(fit_a & fit_b, RMSNORM_DTYPE_NONE);
  p->rounded = fineness(both) < fineness(p->dtype);
  if (p->rounded) return true;
  p->dtype = both; /* nothing is lost: it holds the values of both */
  p->narrowed = both != a && both != b;
  return true;
}

static bool make_table(int dtype, double **values) {
  if (is_wide(dtype)) return true;
  const size_t codes = (size_t)1 << (8 * rmsnorm_dtype_bytes(dtype));
  *values = malloc(codes * sizeof **values);
  if (*values == NULL) return false;
  for (size_t i = 0; i < codes; i++) (*values)[i] = rn_ref_decode(dtype, i);
  return true;
}

static bool same_shape(const rn_tensor *a, const rn_tensor *b) {
  return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->rank) == 0;
}

bool rn_pair_open(rn_pair *p, const rn_tensor *a, const rn_tensor *b, FILE *err) {
  memset(p, 0, sizeof *p);
  p->a = a, p->b = b;
  if (a->count != b->count) {
    fprintf(err, "the arrays have %" PRId64 " and %" PRId64 " elements: expected two of the same shape\n", a->count,
            b->count);
    return false;
  }
  if (!settle_type(p, err)) return false;
  p->reshaped = !same_shape(a, b);
  p->cols = a->rank > 0 ? a->shape[a->rank - 1] : 1;
  p->rows = p->cols > 0 ? a->count / p->cols : 0;
  const size_t room = p->cols > 0 ? (size_t)p->cols : 1;
  p->gap = malloc(room * sizeof *p->gap);
  p->ordinal_b = malloc(room * sizeof *p->ordinal_b);
  p->row_a = malloc(room * sizeof *p->row_a);
  p->row_b = malloc(room * sizeof *p->row_b);
  if (p->gap && p->ordinal_b && p->row_a && p->row_b && make_table(a->dtype, &p->values_a) &&
      make_table(b->dtype, &p->values_b))
    return true;
  rn_pair_close(p);
  fprintf(err, "there is no memory to compare %" PRId64 " elements\n", a->count);
  return false;
}

void rn_pair_close(rn_pair *p) {
  free(p->values_a), free(p->values_b), free(p->gap), free(p->ordinal_b), free(p->row_a), free(p->row_b);
  memset(p, 0, sizeof *p);
}

double rn_pair_a(const rn_pair *p, int64_t i) {
  return value_of(p->a->dtype, p->values_a, code_at(p->a, i));
}
double rn_pair_b(const rn_pair *p, int64_t i) {
  return value_of(p->b->dtype, p->values_b, code_at(p->b, i));
}

/* The code in dtype of a value that is stored in another type. */
static uint64_t encode(int stored, int dtype, uint64_t bits, double value) {
  if (stored == RMSNORM_DTYPE_F32 && dtype == RMSNORM_DTYPE_BF16) /* the usual case, made quick; not for NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  return rn_ref_encode(dtype, value);
}

/* One row of one side: its values, and their ordinals in dtype. Those of a NaN is the largest, whatever its code. */
static void load_row(const rn_tensor *t, const double *table, int dtype, int64_t row, int64_t cols, double *value,
                     int64_t *ordinal) {
  const int stored = t->dtype;
  const char *at = (const char *)t->data + row * cols * t->item_bytes;
  for (int64_t c = 0; c < cols; c++, at += t->item_bytes) {
    uint64_t bits = 0;
    switch (t->item_bytes) { /* sizes that the compiler knows */
    case 2:
      memcpy(&bits, at, 2);
      break;
    case 4:
      memcpy(&bits, at, 4);
      break;
    default:
      memcpy(&bits, at, (size_t)t->item_bytes);
    }
    const double v = value_of(stored, table, bits);
    value[c] = v;
    ordinal[c] = v != v ? INT64_MAX : rn_ordinal(dtype, stored == dtype ? bits : encode(stored, dtype, bits, v));
  }
}

/* The difference of two ordinals, which in f64 does not always fit. */
static int64_t gap_of(int64_t a, int64_t b) {
  if (b < 0 && a > INT64_MAX + b) return INT64_MAX;
  if (b > 0 && a < -INT64_MAX + b) return -INT64_MAX;
  return a - b;
}

static uint64_t mix(uint64_t hash, uint64_t with) {
  hash = (hash ^ with) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 29;
}

void rn_pair_row(rn_pair *p, int64_t row) {
  load_row(p->a, p->values_a, p->dtype, row, p->cols, p->row_a, p->gap);
  load_row(p->b, p->values_b, p->dtype, row, p->cols, p->row_b, p->ordinal_b);
  p->hash_a = p->hash_b = 0;
  for (int64_t c = 0; c < p->cols; c++) {
    const double a = p->row_a[c], b = p->row_b[c];
    const int64_t m = p->gap[c], n = p->ordinal_b[c];
    p->hash_a = mix(p->hash_a, (uint64_t)m), p->hash_b = mix(p->hash_b, (uint64_t)n);
    if (isfinite(a) && isfinite(b))
      p->gap[c] = gap_of(m, n);
    else
      p->gap[c] = a == b || (a != a && b != b) ? 0 : RN_GAP_NONFINITE;
  }
}
