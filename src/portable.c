/* portable.c - the implementation "portable": plain C, every feature, every shape; the definition of every bit.
 *
 * It reads like docs/numerics.md and has nothing clever in it: elements are widened in tiles of a few dozen, worked on
 * in `real`, and narrowed on the way out. portable_body.h is that text; it is compiled twice, with real = float and,
 * for f64 tensors, with real = double. This file adds what has no type: sharing the rows out, and the order of rows
 * that a weight gradient wants.
 *
 * In place: a row is read as often as it takes before anything of it is written, and in the last pass each tile is
 * read completely before it is written, so an output may be any of the inputs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "epilogue.h"
#include "gate.h"
#include "internal.h"
#include "order.h"

/* Elements handled at once: as many as the fewest lanes there can be, so that a tile is whole lanes. */
#define TILE RN_LANES_MIN
/* The forward's last pass takes whole quantised blocks: at most this many columns. */
#define FORWARD_TILE 128
/* Levels of the tree above the tiles of lanes, and one for the part that is being carried up. */
#define TREE_PARTS 11

/* What portable_body.h calls things, float first. REAL picks one, before each inclusion. */
#define NAME(base) REAL(base##_f32, base##_f64)
#define real       REAL(float, double)
#define REAL_DTYPE REAL(RMSNORM_DTYPE_F32, RMSNORM_DTYPE_F64)
#define REAL_MAX   REAL(FLT_MAX, DBL_MAX)
#define E_MIN      REAL(-126, -1022)
#define E_MAX      REAL(127, 1023)
#define RESCUE_B   REAL(RN_RESCUE_B, RN_RESCUE_B_F64)
#define V_MIN      REAL(RN_V_MIN, RN_V_MIN_F64)
#define RSTD_MIN   REAL(RN_RSTD_MIN, RN_RSTD_MIN_F64)
#define RSTD_MAX   REAL(RN_RSTD_MAX, RN_RSTD_MAX_F64)
#define FMA        REAL(fmaf, fma)
#define SQRT       REAL(sqrtf, sqrt)
#define LOAD       REAL(rn_load, rn_load_f64)
#define STORE      REAL(rn_store, rn_store_f64)
#define ROUND      REAL(rn_round_to, rn_round_to_f64)
#define ABS        REAL(rn_abs, rn_abs_f64)
#define IS_NAN     REAL(rn_is_nan, rn_is_nan_f64)
#define EXP2I      REAL(rn_exp2i, rn_exp2i_f64)
#define EXPONENT   REAL(rn_exponent, rn_exponent_f64)
#define ACT        REAL(rn_act, rn_act_f64)
#define DACT       REAL(rn_dact, rn_dact_f64)

#define REAL(f32, f64) f32
#include "portable_body.h"
#undef REAL
#define REAL(f32, f64) f64
#include "portable_body.h"
#undef REAL

static bool is_f64(const rn_problem *p) {
  return p->x.dtype == RMSNORM_DTYPE_F64;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Rows that do not depend on each other: forward, stats, and a backward without dweight. */

void rn_portable_row(const rn_problem *p, int64_t row) {
  if (p->op == RMSNORM_OP_STATS)
    stats_row_f32(p, row);
  else
    forward_row_f32(p, row);
}

void rn_portable_statistic(const rn_problem *p, int64_t row, int64_t group, float *factor, float *r) {
  const stat_f32 stat = rescued_stat_f32(p, row, group, RMSNORM_DTYPE_F32);
  *factor = stat.power;
  *r = stat.r;
}

static void any_row(const rn_problem *p, int64_t row) {
  int64_t g;
  if (p->op != RMSNORM_OP_BACKWARD) {
    if (is_f64(p))
      forward_row_f64(p, row);
    else
      rn_portable_row(p, row);
    return;
  }
  for (g = 0; g < p->groups; g++) {
    if (is_f64(p))
      backward_group_f64(p, row, g, NULL);
    else
      backward_group_f32(p, row, g, NULL);
  }
}

typedef struct row_blocks {
  const rn_problem *p;
  int64_t rows;       /* all of them: tokens times heads */
  int64_t block_rows; /* rows of one task */
} row_blocks;

static void row_block(void *context, int64_t index) {
  const row_blocks *b = context;
  int64_t row = index * b->block_rows, end = rn_min_i64(row + b->block_rows, b->rows);
  for (; row < end; row++) any_row(b->p, row);
}

static void run_rows(const rn_problem *p) {
  /* A task should be worth the dispatch (some 100 us of scalar work) and still leave enough tasks to balance. */
  const int64_t elements = 16384;
  row_blocks b;
  b.p = p, b.rows = p->rows * p->heads;
  b.block_rows = rn_max_i64(1, elements / p->cols);
  rn_parallel_for(p, rn_threads(p), b.rows / b.block_rows + (b.rows % b.block_rows != 0), row_block, &b);
}

/* ------------------------------------------------------------------------------------------------------------------
 * The weight gradient, serially: one task, so that it too runs in the library's floating-point mode. */

static void dweight_task(void *context, int64_t index) {
  const rn_problem *p = context;
  int64_t vector;
  (void)index;
  for (vector = 0; vector < p->dweight_vectors; vector++) {
    if (is_f64(p))
      dweight_vector_f64(p, vector);
    else
      dweight_vector_f32(p, vector);
  }
}

/* Vectors of workspace: the row lanes of one chunk, and the waiting parts of the tree over all of them. */
static int64_t workspace_vectors(const rn_problem *p) {
  rn_chunks k = rn_chunks_of(p->dweight_rows, p->dweight_cols);
  int64_t vectors = k.P, lanes;
  for (lanes = k.C * k.P; lanes > 0; lanes /= 2) vectors++;
  return vectors;
}

static size_t workspace_bytes(const rn_problem *p) {
  size_t each;
  if (p->op != RMSNORM_OP_BACKWARD || !p->dweight) return 0;
  each = (size_t)workspace_vectors(p) * (is_f64(p) ? sizeof(double) : sizeof(float));
  return (size_t)p->dweight_cols > SIZE_MAX / each ? SIZE_MAX : (size_t)p->dweight_cols * each;
}

/* ------------------------------------------------------------------------------------------------------------------
 * The row of the table. */

static const char *machine_why_not(void) {
  return NULL;
}

static const char *why_not(const rn_problem *p) {
  if (is_f64(p) && p->quant != RMSNORM_QUANT_NONE) return "quantised outputs are defined from float32, x is f64";
  return NULL;
}

static rmsnorm_status run(const rn_problem *p, void *stream) {
  (void)stream;
  if (p->op == RMSNORM_OP_BACKWARD && p->dweight)
    rn_parallel_for(p, 1, 1, dweight_task, (void *)(uintptr_t)p);
  else
    run_rows(p);
  return RMSNORM_OK;
}

const rn_impl rn_impl_portable = {.name = "portable",
                                  .device = RMSNORM_DEVICE_CPU,
                                  .machine_why_not = machine_why_not,
                                  .why_not = why_not,
                                  .workspace_bytes = workspace_bytes,
                                  .run = run};
