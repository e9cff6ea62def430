/* measure_parts.h - what the files of measure and picture share: two arrays, looked at row by row (measure_pair.c), and
 * the plan behind a list of counts (measure_extent.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_MEASURE_PARTS_H
#define RN_CLI_MEASURE_PARTS_H

#include "measure.h"

/* Distances that are no number of ulps: not finite on one side only. */
#define RN_GAP_NONFINITE INT64_MIN

typedef struct rn_pair {
  const rn_tensor *a, *b;
  int dtype; /* whose ulps are counted */
  bool rounded, narrowed, reshaped;
  int narrow_a, narrow_b; /* see rn_measured */
  int64_t rows, cols;
  double *values_a, *values_b; /* of every code of a type of at most 16 bits; owned, NULL for wider ones */
  int64_t *gap;                /* one row: a - b in ulp, or RN_GAP_NONFINITE; owned */
  int64_t *ordinal_b;          /* of b, while a's stand in gap; owned */
  double *row_a, *row_b;       /* its values as stored; owned */
  uint64_t hash_a, hash_b;     /* of the values of that row, rounded to dtype */
} rn_pair;

/* rn_pair_open - false: a message went to err, nothing needs to be closed. */
bool rn_pair_open(rn_pair *p, const rn_tensor *a, const rn_tensor *b, FILE *err);
void rn_pair_close(rn_pair *p);
/* rn_pair_row - fill gap, row_a, row_b and the hashes with a row. */
void rn_pair_row(rn_pair *p, int64_t row);
/* One element of a (b) as a number. */
double rn_pair_a(const rn_pair *p, int64_t i);
double rn_pair_b(const rn_pair *p, int64_t i);

/* rn_extent_find - which of `length` rows (or columns) of `other` elements hold errors, from their counts. */
rn_extent rn_extent_find(const int64_t *errors, int64_t length, int64_t other);

#endif /* RN_CLI_MEASURE_PARTS_H */
