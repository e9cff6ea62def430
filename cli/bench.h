/* bench.h - the parts of `rmsnorm bench`: one cell of the table, and how it is measured and drawn.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_BENCH_H
#define RN_BENCH_H

#include "rmsnorm.h"

#include <stdbool.h>
#include <stdio.h>

typedef enum rn_bench_op {
  RN_BENCH_FORWARD,     /* read x, write y */
  RN_BENCH_RESIDUAL,    /* read x, read and write the residual in place, write y */
  RN_BENCH_BACKWARD,    /* read dy and x, write dx; dweight too */
  RN_BENCH_BACKWARD_DX, /* the same without dweight */
  RN_BENCH_QUANT_ROW,   /* read x, write fp8 with a scale per row */
  RN_BENCH_GATED,       /* read x and gate, write y */
  RN_BENCH_OPS
} rn_bench_op;
extern const char *const rn_bench_op_names[RN_BENCH_OPS];

typedef enum rn_bench_who {
  RN_BENCH_LIBRARY,
  RN_BENCH_MEMCPY, /* copies of the same bytes */
  RN_BENCH_LOOP,
  RN_BENCH_STREAM,
  RN_BENCH_NAIVE, /* plain loops of the same operation, where there are some */
  RN_BENCH_NAIVE_FAST,
  RN_BENCH_WHOS
} rn_bench_who;
extern const char *const rn_bench_who_names[RN_BENCH_WHOS];

typedef struct rn_bench_cell {
  rn_bench_op op;
  int dtype;
  int64_t cols;
  int64_t rows; /* of one call */
  int64_t sets; /* how many different places the calls go round */
  int64_t set_bytes;
  int threads;
  const char *impl; /* NULL = the library's choice */
  char ran[24];     /* what that was */
  int64_t call_bytes;
  int rounds;
  double least[RN_BENCH_WHOS], median[RN_BENCH_WHOS]; /* seconds for call_bytes; 0 = not measured */
} rn_bench_cell;

/* Measure one cell for about `budget` seconds. The library's result is checked first. On failure false, and why. */
bool rn_bench_measure(rn_bench_cell *cell, double budget, bool peers, char *why, size_t why_bytes);
/* Bytes that one row of this operation moves. */
int64_t rn_bench_row_bytes(rn_bench_op op, int dtype, int64_t cols);
/* The fastest copy of a cell. */
rn_bench_who rn_bench_best_copy(const rn_bench_cell *cell);
void rn_bench_release(void);

/* One panel for every working set and number of threads, one line for every operation and type. */
bool rn_bench_svg(FILE *out, const rn_bench_cell *cells, int count);

double rn_bench_now(void);

#endif /* RN_BENCH_H */
