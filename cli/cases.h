/* cases.h - what `rmsnorm check` runs: a case is one call, complete down to the strides, offsets and seeds. Cases come
 * in families; the index inside a family decides everything, so that family/index and a seed name a case for good.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CASES_H
#define RN_CASES_H

#include "rmsnorm.h"

#include <stdbool.h>

/* Every array a call may touch. Inputs first. */
typedef enum rn_tensor {
  RN_X,
  RN_RESIDUAL,
  RN_GATE,
  RN_DY,
  RN_DSUM, /* dresidual_out */
  RN_WEIGHT,
  RN_SCALE_IN,
  RN_SUMSQ_IN,
  RN_RSTD_IN,
  RN_DOT_IN,
  RN_INPUTS,
  RN_Y = RN_INPUTS,
  RN_SUM, /* residual_out */
  RN_Q,
  RN_DX,
  RN_DRESIDUAL,
  RN_DGATE,
  RN_SCALE,
  RN_RSTD,
  RN_SUMSQ,
  RN_DWEIGHT,
  RN_DOT,
  RN_WORKSPACE,
  RN_TENSORS
} rn_tensor;
const char *rn_tensor_name(int tensor);
/* Whether it is [rows, heads, cols] with free strides; the others are packed. */
bool rn_tensor_is_strided(int tensor);

typedef enum rn_layout_kind {
  RN_LAYOUT_PACKED,
  RN_LAYOUT_PADDED,    /* gaps behind every head and every row */
  RN_LAYOUT_SLICE,     /* some columns of a wider projection */
  RN_LAYOUT_HEADS,     /* heads outermost */
  RN_LAYOUT_BACKWARDS, /* negative strides */
  RN_LAYOUT_REPEATED,  /* row stride 0; inputs only */
  RN_LAYOUTS
} rn_layout_kind;

typedef struct rn_layout {
  int kind;
  int offset;  /* elements by which the base is moved from a 64-byte line */
  int pad;     /* elements of a gap */
  bool at_end; /* the last element lies before a page that may not be touched */
} rn_layout;

typedef enum rn_data {
  RN_DATA_NORMAL,
  RN_DATA_LARGE, /* squares overflow the type, or float32 */
  RN_DATA_SMALL, /* squares vanish */
  RN_DATA_SUBNORMAL,
  RN_DATA_ZERO,
  RN_DATA_CONSTANT,
  RN_DATA_NAN,   /* one NaN among normal values */
  RN_DATA_INF,   /* one infinity */
  RN_DATA_TIES,  /* sums and products that lie between two bf16 numbers */
  RN_DATA_WIDE,  /* exponents all over the range */
  RN_DATA_MIXED, /* another kind in every row */
  RN_DATA_SOME,  /* another kind in one row of eight, the others normal */
  RN_DATAS
} rn_data;

typedef struct rn_case {
  const char *family;
  int64_t index;
  uint64_t seed;
  int op; /* rmsnorm_op */
  int64_t rows, heads, cols, groups, divisor;
  double eps;
  rmsnorm_numerics numerics;
  int weight_shape;
  int dtype[RN_TENSORS]; /* 0 = not there */
  rn_layout layout[RN_TENSORS];
  int alias[RN_TENSORS];      /* outputs: the input whose memory it shares, or -1 */
  uint32_t want;              /* outputs asked for in the call under test; the reference call asks for all */
  rmsnorm_quant quant;        /* everything but the pointers */
  bool saved_rstd, given_dot; /* backward: handed in, instead of computed */
  bool split;                 /* forward: the sums come from rmsnorm_stats of the same implementation */
  bool alone;                 /* forward: the reference call is made for every row by itself */
  bool unjudged;              /* only the bits are compared: other families have judged such values */
  int64_t period;             /* the rows of each input repeat after so many; 0: they do not */
  int data, weight_data;
  int threads; /* as in the arguments; -n = n threads through a callback */
} rn_case;

typedef enum rn_level { RN_QUICK, RN_DEFAULT, RN_LONG, RN_LEVELS } rn_level;

int rn_family_count(void);
const char *rn_family_name(int family);
const char *rn_family_about(int family);
int64_t rn_family_cases(int family, rn_level level);
void rn_case_make(rn_case *c, int family, int64_t index, uint64_t seed);
/* For cases that no family here makes: one type throughout, packed, nothing special, all outputs absent from `want` but
 * all there in `dtype`; and what makes a case legal once it has been changed. */
void rn_case_usual(rn_case *c, const char *family, int64_t index, int type, uint64_t seed);
void rn_case_legalise(rn_case *c);
/* One line that says what is special about a case. */
void rn_case_describe(const rn_case *c, char *text, size_t bytes);

/* A small generator of random numbers, the same everywhere. */
typedef struct rn_random {
  uint64_t state;
} rn_random;
uint64_t rn_random_next(rn_random *r);
int64_t rn_random_below(rn_random *r, int64_t n);
double rn_random_normal(rn_random *r);

/* Fill n values of a row for an array of that type; `row_seed` makes equal rows equal. */
void rn_case_fill(const rn_case *c, int tensor, int64_t row, double *values, int64_t n);

#endif /* RN_CASES_H */
