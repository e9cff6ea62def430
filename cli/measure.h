/* measure.h - how two arrays differ, when nothing is known but the arrays: how many elements and how far, which way
 * they lean, and where they lie. `rmsnorm diff a.npy b.npy` shows this.
 *
 * a is what is being questioned, b what it is held against; every signed number is a - b. An array is seen as a plane:
 * its last dimension are the columns, all others together the rows.
 *
 * Distances are in ulp, counted in the coarser of the two types. Where two arrays of one wide type hold nothing but
 * values of one narrower type (bf16 kept in f32, because the file format knows none), that narrower type counts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_MEASURE_H
#define RN_CLI_MEASURE_H

#include "files.h"

/* Classes of distance: 0, 1, 2, 3 to 4, 5 to 8, ... 2^15 to 2^16, more, and last
 * the elements with a NaN on one side, or an infinity that the other does not have. */
enum { RN_ULP_CLASSES = 20, RN_ULP_CLASS_NONFINITE = RN_ULP_CLASSES - 1 };
/* rn_ulp_class - the class of a distance. rn_ulp_class_name - "0", "1", "2", "3-4", ..., "NaN, Inf". */
int rn_ulp_class(uint64_t ulp);
const char *rn_ulp_class_name(int class);

/* Which of the rows (or columns) hold errors. */
typedef enum rn_extent_kind {
  RN_EXTENT_NONE,      /* none of them */
  RN_EXTENT_ALL,       /* as many as errors scattered without a plan would hit */
  RN_EXTENT_ONE,       /* `first` alone */
  RN_EXTENT_PREFIX,    /* 0 ... last */
  RN_EXTENT_SUFFIX,    /* first ... length - 1 */
  RN_EXTENT_RANGE,     /* first ... last */
  RN_EXTENT_PERIODIC,  /* those whose number modulo `period` lies in phase ... phase + run - 1 (modulo period) */
  RN_EXTENT_SCATTERED, /* few, and in no order that is known here: `some` are the first of them */
} rn_extent_kind;

enum { RN_EXTENT_SOME = 6 };
typedef struct rn_extent {
  rn_extent_kind kind;
  int64_t length;      /* how many rows (columns) there are */
  int64_t hit;         /* how many of them hold an error */
  int64_t first, last; /* the first and the last of those, -1 */
  int64_t period, phase, run;
  int64_t some[RN_EXTENT_SOME];
  bool denser; /* the others hold errors too, but clearly fewer: hit, first, last, some are about the dense ones */
} rn_extent;

/* What NaN and infinities there are, and whether they sit in the same places. */
typedef struct rn_specials {
  int64_t nan_a, nan_b, nan_both;
  int64_t inf_a, inf_b, inf_both;   /* both: the same sign too */
  int64_t first_nan_a, first_nan_b; /* elements, -1 */
  int64_t first_inf_a, first_inf_b; /* elements, -1 */
  int64_t rows_nan_a, rows_nan_b;   /* rows with at least one */
  int64_t rows_full_nan_a;          /* rows of a that are NaN throughout */
  int64_t zero_rows_a, zero_rows_b; /* rows of zeros only */
  int64_t zero_cols_a, zero_cols_b; /* columns of zeros only */
} rn_specials;

/* How much of the squared difference goes away when a is divided by one factor, by one for every row, by one for every
 * column: 1 = all of it. Negative: there was nothing to divide. */
typedef struct rn_factors {
  double whole, by_row, by_col; /* the shares */
  double factor;                /* the one factor */
  double row_least, row_most;   /* the range of the factors of the rows */
  double col_least, col_most;
} rn_factors;

typedef struct rn_measured {
  int dtype_a, dtype_b, dtype; /* as stored; dtype: the type whose ulps are counted */
  bool rounded;                /* the two types are not the same: values were rounded to dtype before the comparison */
  bool narrowed;               /* both types are wider than dtype, and all values are dtype's */
  int narrow_a, narrow_b;      /* the narrowest type that holds every value of a (b): the stored one, or f16, bf16 */
  bool reshaped;               /* same elements, other shape: a's shape counts */
  int64_t rows, cols, elements;

  int64_t differ;                            /* elements at least 1 ulp apart, and those not finite on one side only */
  int64_t zero_signs;                        /* elements that are +0 on one side and -0 on the other; not in `differ` */
  int64_t inexact;                           /* with `rounded`: elements that are equal only after that rounding */
  uint64_t ulp;                              /* the largest distance among finite elements */
  int64_t worst;                             /* the first element with that distance, -1 */
  int64_t first;                             /* the first element that differs, -1 */
  double first_a, first_b, worst_a, worst_b; /* their values */
  int64_t classes[RN_ULP_CLASSES];

  /* Over the elements where both are finite. */
  double mean_ulp;         /* mean distance */
  double bias_ulp;         /* mean signed distance: > 0 = a lies above b */
  double away_ulp;         /* the same with the sign of b taken off: < 0 = a is nearer to zero (truncation) */
  double away_sure;        /* away_ulp in units of its standard error; beyond +-5 it is no chance */
  double relative;         /* sum of sign(b) (a - b) over the sum of |b| */
  double largest_relative; /* largest |a - b| / |b| */

  double rms;    /* root of the sum of (a - b)^2 over that of b^2 */
  double cosine; /* of a and b as vectors: 1 = the same but for a factor, 0 = nothing to do with each other */

  int64_t rows_one_way; /* rows with four errors or more ... */
  int64_t rows_four;    /* ... whose errors all lean one way: away from zero, or towards it */
  rn_factors factors;
  rn_specials specials;

  uint64_t floor; /* the extents below are those of errors above this many ulp: 0, or what hides a plan */
  int64_t above;  /* how many errors that are */
  rn_extent row_extent, col_extent;
  int64_t row_shift; /* row r of a is row r + row_shift of b, bit for bit, for nearly all r; 0 = not so */
  bool transposed;   /* a is the transpose of b */
  int64_t *row_errors, *col_errors; /* owned: errors above `floor` in every row, in every column */
} rn_measured;

/* rn_measure - compare a with b. False: the arrays can not be compared (other numbers of elements, types without
 * values, no memory); one message, ending in a newline, went to err, and nothing needs to be freed. */
bool rn_measure(const rn_tensor *a, const rn_tensor *b, rn_measured *m, FILE *err);
void rn_measured_free(rn_measured *m);

/* rn_measured_equal - no element differs: the bits are equal, but for the payload of NaNs (and, where m->rounded, after
 * rounding to the coarser type). */
bool rn_measured_equal(const rn_measured *m);

/* rn_extent_say - the words for an extent: "the last 64 of 4096 columns", "columns 3, 11, 19, ... (every 8th)". `what`
 * is "row" or "column". Always fits in RN_EXTENT_TEXT bytes. */
enum { RN_EXTENT_TEXT = 160 };
void rn_extent_say(const rn_extent *e, const char *what, char text[RN_EXTENT_TEXT]);

/* rn_measured_print - some twenty lines for people. rn_measured_json - one object: "{...}", no newline. */
void rn_measured_print(FILE *out, const rn_measured *m);
void rn_measured_json(FILE *out, const rn_measured *m);

#endif /* RN_CLI_MEASURE_H */
