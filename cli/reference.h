/* reference.h - what the right answer is: two independent judges of the library.
 *
 *   1. The float64 reference: the formula of rmsnorm.h in long double, with no rounding of its own that matters. Beside
 *      each value stands `err`, how far float32 arithmetic may honestly be from it (a running error analysis), and
 *      `size`, the magnitude that went into it, so that cancelled gradients can be judged in sensible units.
 *   2. The staged model: the roundings that the caller named, one scalar step at a time, fed with a given rstd (and
 *      dot). Whatever the library does, these steps have one right answer, to the bit.
 *
 * Both read the public argument structs and nothing else: no code, no order of summation and no number format is shared
 * with the library. A fault has to be made twice to stay hidden.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_REFERENCE_H
#define RN_REFERENCE_H

#include "rmsnorm.h"

#include <stdbool.h>

typedef long double rn_real;

/* ---- number formats ---- */
double rn_ref_load(int dtype, const void *data, int64_t i);
/* Round to nearest even and give the code. f16, bf16, f32, f64 overflow to infinity; fp8 and int8 saturate. */
uint64_t rn_ref_encode(int dtype, double value);
double rn_ref_decode(int dtype, uint64_t code);
void rn_ref_store(int dtype, void *data, int64_t i, double value);
/* The nearest value of that type, as a number. */
double rn_ref_round(int dtype, double value);
/* The distance between neighbouring values of that type around |value| (towards infinity). */
double rn_ref_ulp(int dtype, double value);
double rn_ref_largest(int dtype);

/* ---- the float64 reference ---- */
typedef struct rn_approx {
  rn_real value;
  double err;  /* bound on |float32 result before its last rounding - value|; infinite = nothing can be promised */
  double size; /* what cancelled: |value| for a plain product, the sum of the magnitudes for a sum */
  bool small;  /* something underflowed on the way: only `err` says how far off a result may be, an ulp says nothing */
} rn_approx;

/* Arrays of the caller, packed: [rows, heads, cols], [rows, heads, groups] or as said. NULL = not wanted. */
typedef struct rn_ref_forward_out {
  rn_approx *y;            /* the value before the last rounding, also what is quantised */
  rn_approx *residual_out; /* the sum */
  rn_approx *rstd;
  rn_approx *sumsq;
  rn_approx *amax; /* [rows, heads, blocks]; largest clamped |v| of the row or block */
} rn_ref_forward_out;

typedef struct rn_ref_backward_out {
  rn_approx *dx;      /* dx and dresidual */
  rn_approx *dgate;   /* [rows, heads, cols] */
  rn_approx *dweight; /* shape of weight */
  rn_approx *dot;     /* [rows, heads, groups] */
} rn_ref_backward_out;

void rn_ref_forward(const rmsnorm_forward_args *args, const rn_ref_forward_out *out);
void rn_ref_stats(const rmsnorm_stats_args *args, rn_approx *sumsq);

void rn_ref_backward(const rmsnorm_backward_args *args, const rn_ref_backward_out *out);

/* How many scales a row has, and how many columns each covers. */
int64_t rn_ref_blocks(const rmsnorm_quant *quant, int64_t cols);
int64_t rn_ref_block_cols(const rmsnorm_quant *quant, int64_t cols);
/* Whether `got` (a float, or an e8m0 code) is a right scale for this amax. */
bool rn_ref_scale_ok(const rmsnorm_quant *quant, rn_approx amax, double got, double *ulp);
/* The reference of a quantised value, given the scale that was used. */
rn_approx rn_ref_quantised(const rmsnorm_quant *quant, rn_approx v, double scale);

/* Is `got`, a value of type dtype, within the bound? compute is the type arithmetic was done in (F32 or F64): storing
 * to any other type adds half an ulp. *ulp receives the distance in ulps of ref.size (0 for a small
 * one), *share the distance as a share of
 * what is allowed (above 1 = wrong). */
bool rn_ref_within(int dtype, int compute, rn_approx ref, double got, double *ulp, double *share);

/* ---- the staged model ----
 * Outputs are packed arrays in the types that args names. rstd: [rows, heads, groups] packed (float, or double with an
 * f64 x), as the library returned it. skipped[row * groups + g] is set for rescued rows: their rstd as returned does
 * not tell the factors that were used. The rstd that comes out is what a given sum of squares has to lead to (only then
 * has it one right answer). NULL outputs are not wanted. */
typedef struct rn_staged_forward_out {
  void *y, *residual_out, *q, *scale;
  float *rstd; /* only with args->sumsq */
  uint8_t *skipped;
} rn_staged_forward_out;
/* v is a scratch array of cols doubles. */
void rn_staged_forward(const rmsnorm_forward_args *args, const void *rstd, double *v, const rn_staged_forward_out *out);

/* The way of one element from u to the value that is stored. rn_staged_forward goes it with RN_ORDER_XHAT and
 * rn_ref_round; `rmsnorm diff` goes it with every other choice. A type equal to `real` means: not rounded there. */
typedef enum rn_product_order {
  RN_ORDER_XHAT,    /* (u * rstd) * weight */
  RN_ORDER_FACTOR,  /* u * (rstd * weight) */
  RN_ORDER_WEIGHT,  /* (u * weight) * rstd */
  RN_ORDER_QUOTIENT /* (u / rms) * weight, the root divided by and never inverted */
} rn_product_order;
typedef struct rn_stages {
  int real; /* F32 or F64: what every step is rounded to */
  int rstd, xhat, normed;
  rn_product_order order;
  double (*narrow)(int dtype, double value); /* rn_ref_round, or another way of rounding */
} rn_stages;
/* weight and act may be NULL: none. The result is not yet rounded to the type of y. */
double rn_staged_value(const rn_stages *stages, double u, double rstd, const double *weight, const double *act);
/* The activation at z, as docs/numerics.md section 2 computes it. */
double rn_staged_act(int real, int gate, double z);

typedef struct rn_staged_backward_out {
  void *dx, *dresidual, *dgate;
  uint8_t *skipped;
} rn_staged_backward_out;
void rn_staged_backward(const rmsnorm_backward_args *args, const void *rstd, const void *dot,
                        const rn_staged_backward_out *out);

#endif /* RN_REFERENCE_H */
