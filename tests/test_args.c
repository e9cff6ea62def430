/* test_args.c - every refusal the header promises: its own status, a sentence that names the argument, and not one byte
 * changed; and beside them what is legal though it looks odd.
 *
 * All buffers of a call lie in one arena filled with a pattern, so that "nothing was written" is one comparison.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "rmsnorm.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3, COLS = 64, SLOT = 4096, SLOTS = 16 };
static _Alignas(64) unsigned char arena[SLOT * SLOTS], before[SLOT * SLOTS];

enum { X, RESIDUAL, GATE, WEIGHT, Y, RESIDUAL_OUT, RSTD, SUMSQ, Q, SCALE, DY, DRESIDUAL_OUT, DX, DWEIGHT, DOT, WORK };

static void *slot(int i) {
  return arena + (size_t)i * SLOT;
}
/* An address that is not aligned to any element wider than a byte. */
static void *odd(int i) {
  return arena + (size_t)i * SLOT + 1;
}

/* Small positive floats everywhere: legal as f32, f16 and bf16, and no poison for the sums. */
static void fill_arena(void) {
  for (size_t i = 0; i < sizeof arena; i += 2) {
    uint16_t half = (uint16_t)(0x3c00 + (i * 7 % 512));
    memcpy(arena + i, &half, 2);
  }
  memcpy(before, arena, sizeof arena);
}

static rmsnorm_input_tensor in(int i, int dtype) {
  return rmsnorm_input(slot(i), dtype, COLS);
}
static rmsnorm_output_tensor out(int i, int dtype) {
  return rmsnorm_output(slot(i), dtype, COLS);
}

static rmsnorm_forward_args good_forward(void) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = ROWS, a.cols = COLS, a.eps = 1e-6;
  a.x = in(X, RMSNORM_DTYPE_F32);
  a.weight = slot(WEIGHT), a.weight_dtype = RMSNORM_DTYPE_F32;
  a.y = out(Y, RMSNORM_DTYPE_F32);
  return a;
}

/* Everything that forward can have, with per-row scales. */
static rmsnorm_forward_args full_forward(void) {
  rmsnorm_forward_args a = good_forward();
  a.residual = in(RESIDUAL, RMSNORM_DTYPE_F32);
  a.gate = in(GATE, RMSNORM_DTYPE_F32);
  a.numerics.gate = RMSNORM_GATE_SILU;
  a.residual_out = out(RESIDUAL_OUT, RMSNORM_DTYPE_F32);
  a.rstd = slot(RSTD);
  a.quant.granularity = RMSNORM_QUANT_ROW;
  a.quant.q = out(Q, RMSNORM_DTYPE_INT8);
  a.quant.scale_out = slot(SCALE);
  return a;
}

static rmsnorm_stats_args good_stats(void) {
  rmsnorm_stats_args a = RMSNORM_STATS_ARGS_INIT;
  a.rows = ROWS, a.cols = COLS;
  a.x = in(X, RMSNORM_DTYPE_F32);
  a.sumsq = slot(SUMSQ);
  return a;
}

static rmsnorm_backward_args good_backward(void) {
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  a.rows = ROWS, a.cols = COLS, a.eps = 1e-6;
  a.x = in(X, RMSNORM_DTYPE_F32);
  a.dy = in(DY, RMSNORM_DTYPE_F32);
  a.weight = slot(WEIGHT), a.weight_dtype = RMSNORM_DTYPE_F32;
  a.dx = out(DX, RMSNORM_DTYPE_F32);
  return a;
}

static void expect_refused(rmsnorm_status found, rmsnorm_status expected, const char *word, const char *what,
                           int line) {
  if (found != expected || strstr(rmsnorm_last_error(), word) == NULL)
    fail_msg("line %d: %s: expected status %d and \"%s\" in the message, found %d, \"%s\"", line, what, expected, word,
             found, rmsnorm_last_error());
  if (memcmp(arena, before, sizeof arena) != 0)
    fail_msg("line %d: %s: was refused, but something was written", line, what);
}

static void expect_ok(rmsnorm_status found, const char *what, int line) {
  if (found != RMSNORM_OK)
    fail_msg("line %d: %s: expected success, found %d: %s", line, what, found, rmsnorm_last_error());
  fill_arena();
}

/* One spoilt (or odd but legal) argument at a time. */
#define REFUSED(op, base, statement, status, word)                                                                     \
  do {                                                                                                                 \
    rmsnorm_##op##_args a = base;                                                                                      \
    statement;                                                                                                         \
    expect_refused(rmsnorm_##op(&a, NULL), status, word, #statement, __LINE__);                                        \
  } while (0)
#define TAKEN(op, base, statement)                                                                                     \
  do {                                                                                                                 \
    rmsnorm_##op##_args a = base;                                                                                      \
    statement;                                                                                                         \
    expect_ok(rmsnorm_##op(&a, NULL), #statement, __LINE__);                                                           \
  } while (0)

#define FORWARD(statement, status, word)  REFUSED(forward, good_forward(), statement, RMSNORM_ERROR_##status, word)
#define FULL(statement, status, word)     REFUSED(forward, full_forward(), statement, RMSNORM_ERROR_##status, word)
#define STATS(statement, status, word)    REFUSED(stats, good_stats(), statement, RMSNORM_ERROR_##status, word)
#define BACKWARD(statement, status, word) REFUSED(backward, good_backward(), statement, RMSNORM_ERROR_##status, word)

static void test_good_ones(void **state) {
  (void)state;
  TAKEN(forward, good_forward(), (void)a);
  TAKEN(forward, full_forward(), (void)a);
  TAKEN(stats, good_stats(), (void)a);
  TAKEN(backward, good_backward(), (void)a);
}

static void test_struct(void **state) {
  (void)state;
  expect_refused(rmsnorm_forward(NULL, NULL), RMSNORM_ERROR_NULL, "args", "NULL args", __LINE__);
  expect_refused(rmsnorm_stats(NULL, NULL), RMSNORM_ERROR_NULL, "args", "NULL args", __LINE__);
  expect_refused(rmsnorm_backward(NULL, NULL), RMSNORM_ERROR_NULL, "args", "NULL args", __LINE__);
  FORWARD(a.struct_size = 0, STRUCT_SIZE, "initialiser");
  FORWARD(a.struct_size -= 8, STRUCT_SIZE, "struct_size");
  FORWARD(a.struct_size += 8, STRUCT_SIZE, "newer");
  STATS(a.struct_size += 1, STRUCT_SIZE, "newer");
  BACKWARD(a.struct_size = 1u << 30, STRUCT_SIZE, "newer");
  rmsnorm_forward_args a = good_forward();
  int stream = 0;
  expect_refused(rmsnorm_forward(&a, &stream), RMSNORM_ERROR_COMBINATION, "stream", "a stream", __LINE__);
}

static void test_sizes(void **state) {
  (void)state;
  FORWARD(a.rows = -1, SIZE, "rows");
  FORWARD(a.heads = 0, SIZE, "heads");
  FORWARD(a.heads = -3, SIZE, "heads");
  FORWARD(a.cols = 0, SIZE, "cols");
  FORWARD(a.cols = -64, SIZE, "cols");
  FORWARD(a.groups = 0, SIZE, "groups");
  FORWARD(a.groups = -1, SIZE, "groups");
  FORWARD(a.groups = 3, SIZE, "divide");
  FORWARD(a.groups = 128, SIZE, "divide");
  FORWARD(a.divisor = -1, SIZE, "divisor");
  FORWARD((a.rows = INT64_MAX / 32, a.x.row_stride = 0), SIZE, "too large");
  FORWARD((a.rows = (int64_t)1 << 32, a.heads = (int64_t)1 << 32), SIZE, "too large");
  FORWARD((a.rows = (int64_t)1 << 55, a.x.row_stride = 0), SIZE, "too large");
  FORWARD((a.rows = 0, a.heads = INT64_MAX / 2), SIZE, "too large");
  FORWARD(a.threads = -1, SIZE, "threads");
  STATS(a.rows = -1, SIZE, "rows");
  STATS(a.cols = 0, SIZE, "cols");
  BACKWARD(a.cols = 0, SIZE, "cols");
  BACKWARD(a.groups = 5, SIZE, "divide");
  TAKEN(forward, good_forward(), a.groups = 64);
  TAKEN(forward, good_forward(), a.divisor = 1000000);
}

static void test_values(void **state) {
  (void)state;
  FORWARD(a.eps = rmsnorm_eps_unset(), VALUE, "not set");
  FORWARD(a.eps = -1e-30, VALUE, "eps");
  FORWARD(a.eps = (double)INFINITY, VALUE, "eps");
  FORWARD(a.eps = -(double)NAN, VALUE, "eps");
  FORWARD(a.eps = 1e39, VALUE, "float32");
  FORWARD(a.numerics.weight_offset = INFINITY, VALUE, "weight_offset");
  FORWARD(a.numerics.weight_offset = NAN, VALUE, "weight_offset");
  BACKWARD(a.eps = -1, VALUE, "eps");
  BACKWARD(a.numerics.weight_offset = -INFINITY, VALUE, "weight_offset");
  FULL(a.quant.scale_max = -1, VALUE, "scale_max");
  FULL(a.quant.scale_max = NAN, VALUE, "scale_max");
  FULL(a.quant.scale_max = INFINITY, VALUE, "scale_max");
  static const float bad_scales[] = {0, -0.0f, -1, NAN, INFINITY};
  for (size_t i = 0; i < sizeof bad_scales / sizeof bad_scales[0]; i++)
    FULL((a.quant.granularity = RMSNORM_QUANT_TENSOR, a.quant.scale_out = NULL, a.quant.scale = &bad_scales[i]), VALUE,
         "quant.scale");
  FORWARD(a.x.reserved = 1, VALUE, "reserved");
  FORWARD(a.y.reserved = -1, VALUE, "reserved");
  TAKEN(forward, good_forward(), a.eps = 0);
  TAKEN(forward, good_forward(), a.eps = -0.0);
  TAKEN(forward, good_forward(), (a.weight = NULL, a.weight_dtype = 0, a.numerics.weight_offset = NAN));
}

static void test_enums(void **state) {
  (void)state;
  static const int unknown[] = {-1, 0, 5, 12, 33, INT32_MAX, INT32_MIN, RMSNORM_DTYPE_INT8, RMSNORM_DTYPE_E8M0};
  for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
    FORWARD(a.x.dtype = unknown[i], ENUM, "x:");
    FORWARD(a.y.dtype = unknown[i], ENUM, "y:");
    FORWARD(a.weight_dtype = unknown[i], ENUM, "weight:");
    FULL(a.residual.dtype = unknown[i], ENUM, "residual:");
    FULL(a.residual_out.dtype = unknown[i], ENUM, "residual_out:");
    FULL(a.gate.dtype = unknown[i], ENUM, "gate:");
    BACKWARD(a.dy.dtype = unknown[i], ENUM, "dy:");
    BACKWARD((a.dweight = slot(DWEIGHT), a.dweight_dtype = unknown[i]), ENUM, "dweight:");
    if (unknown[i] != RMSNORM_DTYPE_INT8) FULL(a.quant.q.dtype = unknown[i], ENUM, "quant.q");
    if (unknown[i] != 0) BACKWARD(a.sum_dtype = unknown[i], ENUM, "sum_dtype");
  }
  FULL(a.quant.q.dtype = RMSNORM_DTYPE_F32, ENUM, "quant.q");
  FORWARD(a.numerics.round_sum = RMSNORM_ROUND_X, ENUM, "round_sum");
  FORWARD(a.numerics.round_rstd = RMSNORM_ROUND_WEIGHT, ENUM, "round_rstd");
  FORWARD(a.numerics.round_xhat = RMSNORM_ROUND_STORED, ENUM, "round_xhat");
  FORWARD(a.numerics.round_normed = -1, ENUM, "round_normed");
  FORWARD(a.numerics.gate = 3, ENUM, "numerics.gate");
  FORWARD(a.numerics.gate_place = 2, ENUM, "gate_place");
  FORWARD(a.weight_shape = 3, ENUM, "weight_shape");
  FORWARD(a.device = 3, ENUM, "device");
  FORWARD(a.quant.granularity = 5, ENUM, "granularity");
  FULL(a.quant.scale_op = 2, ENUM, "scale_op");
  FULL(a.quant.scale_layout = -1, ENUM, "scale_layout");
  FULL(a.quant.e8m0_rounding = 9, ENUM, "e8m0_rounding");
  STATS(a.round_sum = 1, ENUM, "round_sum");
  STATS(a.sum_dtype = 7, ENUM, "sum_dtype");
  STATS(a.gate_kind = 3, ENUM, "gate_kind");
  BACKWARD(a.numerics.gate_place = -1, ENUM, "gate_place");
}

static void test_null(void **state) {
  (void)state;
  FORWARD(a.x.data = NULL, NULL, "x:");
  FORWARD(a.y.data = NULL, NULL, "y:");
  FULL(a.quant.q.data = NULL, NULL, "quant.q");
  FULL(a.quant.scale_out = NULL, NULL, "scale_out");
  FULL((a.quant.granularity = RMSNORM_QUANT_TENSOR, a.quant.scale_out = NULL), NULL, "quant.scale");
  STATS(a.x.data = NULL, NULL, "x:");
  STATS(a.sumsq = NULL, NULL, "sumsq");
  BACKWARD(a.x.data = NULL, NULL, "x:");
  BACKWARD(a.dy.data = NULL, NULL, "dy:");
  BACKWARD(a.dx.data = NULL, NULL, "nothing is wanted");
  rmsnorm_parallel parallel = {NULL, 2, 0, NULL};
  FORWARD(a.parallel = &parallel, NULL, "run");
  TAKEN(forward, full_forward(), a.y.data = NULL);
}

static void test_combinations(void **state) {
  (void)state;
  FORWARD(a.residual_out = out(RESIDUAL_OUT, RMSNORM_DTYPE_F32), COMBINATION, "residual_out");
  FORWARD(a.gate = in(GATE, RMSNORM_DTYPE_F32), COMBINATION, "gate: is given");
  FORWARD(a.numerics.gate = RMSNORM_GATE_SIGMOID, COMBINATION, "gate: is absent");
  STATS(a.gate = in(GATE, RMSNORM_DTYPE_F32), COMBINATION, "gate_kind");
  STATS(a.x.dtype = RMSNORM_DTYPE_F64, COMBINATION, "f64");
  BACKWARD((a.dweight = slot(DWEIGHT), a.dweight_dtype = RMSNORM_DTYPE_F32, a.weight = NULL), COMBINATION, "dweight");
  BACKWARD(a.dgate = out(Q, RMSNORM_DTYPE_F32), COMBINATION, "dgate");
  FULL(a.quant.scale = slot(SUMSQ), COMBINATION, "quant.scale");
  FULL((a.quant.granularity = RMSNORM_QUANT_TENSOR, a.quant.scale = slot(SUMSQ)), COMBINATION, "scale_out");
  FULL(a.quant.block_cols = 32, COMBINATION, "block_cols");
  FULL(a.quant.granularity = RMSNORM_QUANT_MX, COMBINATION, "MX");
  FULL((a.quant.granularity = RMSNORM_QUANT_MX, a.quant.q.dtype = RMSNORM_DTYPE_FP8_E4M3, a.quant.scale_max = 1),
       COMBINATION, "scale_max");
  /* f64 only beside an x in f64 */
  FORWARD(a.y.dtype = RMSNORM_DTYPE_F64, COMBINATION, "y: f64");
  FORWARD(a.weight_dtype = RMSNORM_DTYPE_F64, COMBINATION, "weight: f64");
  FULL(a.residual.dtype = RMSNORM_DTYPE_F64, COMBINATION, "residual: f64");
  BACKWARD(a.dy.dtype = RMSNORM_DTYPE_F64, COMBINATION, "dy: f64");
  TAKEN(forward, good_forward(), a.x.dtype = RMSNORM_DTYPE_F64);
  TAKEN(forward, good_forward(), (a.x.dtype = RMSNORM_DTYPE_F64, a.y.dtype = RMSNORM_DTYPE_F64));
  TAKEN(
      forward, full_forward(),
      (a.x.dtype = RMSNORM_DTYPE_F64, a.residual.dtype = RMSNORM_DTYPE_F64, a.quant.granularity = RMSNORM_QUANT_NONE));
  TAKEN(backward, good_backward(), (a.x.dtype = RMSNORM_DTYPE_F64, a.dy.dtype = RMSNORM_DTYPE_F64));
}

static void test_strides(void **state) {
  (void)state;
  FORWARD(a.x.col_stride = 2, COL_STRIDE, "x:");
  FORWARD(a.x.col_stride = 0, COL_STRIDE, "x:");
  FORWARD(a.y.col_stride = -1, COL_STRIDE, "y:");
  FULL(a.gate.col_stride = COLS, COL_STRIDE, "gate:");
  FULL(a.quant.q.col_stride = 3, COL_STRIDE, "quant.q");
  STATS(a.x.col_stride = 5, COL_STRIDE, "x:");
  BACKWARD(a.dx.col_stride = 2, COL_STRIDE, "dx:");
  FORWARD(a.y.row_stride = COLS - 1, STRIDE, "y:");
  FORWARD(a.y.row_stride = 0, STRIDE, "y:");
  FORWARD(a.y.row_stride = 1 - COLS, STRIDE, "y:");
  FORWARD((a.heads = 2, a.x.head_stride = COLS, a.y.head_stride = COLS, a.y.row_stride = COLS), STRIDE, "y:");
  FORWARD((a.heads = 2, a.x.head_stride = COLS, a.y.head_stride = 3 * COLS, a.y.row_stride = 2 * COLS), STRIDE, "y:");
  FORWARD(a.x.row_stride = INT64_MAX, STRIDE, "x:");
  FORWARD(a.x.row_stride = INT64_MIN, STRIDE, "x:");
  FORWARD(a.y.row_stride = INT64_MAX / 4, STRIDE, "y:");
  FORWARD((a.rows = 2, a.y.dtype = RMSNORM_DTYPE_F16, a.y.row_stride = INT64_MIN / 2), STRIDE, "y:");
  FORWARD((a.heads = 2, a.x.head_stride = INT64_MIN / 2), STRIDE, "x:");
  FORWARD(a.x.row_stride = INT64_MIN / 16, STRIDE, "memory");
  FORWARD(a.x.row_stride = INT64_MAX / 16, OVERLAP, "entangled");
  FULL((a.quant.granularity = RMSNORM_QUANT_BLOCK, a.quant.block_cols = 32, a.quant.scale_stride = 1), STRIDE,
       "scale_stride");
  FULL((a.quant.granularity = RMSNORM_QUANT_BLOCK, a.quant.block_cols = 32, a.quant.scale_stride = ROWS - 1,
        a.quant.scale_layout = RMSNORM_SCALE_COL_MAJOR),
       STRIDE, "scale_stride");
  FULL((a.quant.granularity = RMSNORM_QUANT_BLOCK, a.quant.block_cols = 32, a.quant.scale_stride = INT64_MAX), STRIDE,
       "scale_stride");
  FULL((a.quant.granularity = RMSNORM_QUANT_BLOCK, a.quant.block_cols = 48), SIZE, "block_cols");
  FULL(a.quant.granularity = RMSNORM_QUANT_BLOCK, SIZE, "block_cols");
  /* Odd, but legal. */
  TAKEN(forward, good_forward(), a.x.row_stride = 0);
  TAKEN(forward, good_forward(), a.x.row_stride = 1);
  TAKEN(forward, good_forward(), (a.y.data = (float *)slot(Y) + 2 * COLS, a.y.row_stride = -COLS));
  TAKEN(forward, good_forward(), (a.x.data = (float *)slot(X) + 2 * COLS, a.x.row_stride = -COLS));
  TAKEN(forward, good_forward(), (a.rows = 1, a.x.row_stride = INT64_MIN, a.y.row_stride = 0));
  TAKEN(forward, good_forward(), (a.x.head_stride = INT64_MAX, a.y.head_stride = 1));
  /* [heads][rows] in memory */
  TAKEN(forward, good_forward(), (a.heads = 2, a.x.head_stride = ROWS * COLS, a.y.head_stride = ROWS * COLS));
}

static void test_alignment(void **state) {
  (void)state;
  FORWARD(a.x.data = odd(X), ALIGNMENT, "x:");
  FORWARD(a.y.data = odd(Y), ALIGNMENT, "y:");
  FORWARD((a.x.data = odd(X), a.x.dtype = RMSNORM_DTYPE_BF16), ALIGNMENT, "x:");
  FORWARD(a.weight = (char *)slot(WEIGHT) + 2, ALIGNMENT, "weight:");
  FORWARD(a.rstd = odd(RSTD), ALIGNMENT, "rstd:");
  FORWARD(a.sumsq = (void *)((char *)slot(SUMSQ) + 2), ALIGNMENT, "sumsq:");
  FORWARD((a.x.dtype = RMSNORM_DTYPE_F64, a.x.data = (char *)slot(X) + 4), ALIGNMENT, "x:");
  FORWARD((a.x.dtype = RMSNORM_DTYPE_F64, a.rstd = (char *)slot(RSTD) + 4), ALIGNMENT, "rstd:");
  FULL(a.residual.data = odd(RESIDUAL), ALIGNMENT, "residual:");
  FULL(a.gate.data = odd(GATE), ALIGNMENT, "gate:");
  FULL(a.residual_out.data = odd(RESIDUAL_OUT), ALIGNMENT, "residual_out:");
  FULL(a.quant.scale_out = odd(SCALE), ALIGNMENT, "scale_out:");
  FULL((a.quant.granularity = RMSNORM_QUANT_TENSOR, a.quant.scale_out = NULL, a.quant.scale = odd(SCALE)), ALIGNMENT,
       "quant.scale:");
  STATS(a.sumsq = odd(SUMSQ), ALIGNMENT, "sumsq:");
  BACKWARD(a.dy.data = odd(DY), ALIGNMENT, "dy:");
  BACKWARD(a.dx.data = odd(DX), ALIGNMENT, "dx:");
  BACKWARD(a.dot_out = odd(DOT), ALIGNMENT, "dot_out:");
  BACKWARD(a.dot = odd(DOT), ALIGNMENT, "dot:");
  BACKWARD(a.rstd = odd(RSTD), ALIGNMENT, "rstd:");
  BACKWARD((a.dweight = odd(DWEIGHT), a.dweight_dtype = RMSNORM_DTYPE_F32), ALIGNMENT, "dweight:");
  TAKEN(forward, full_forward(), a.quant.q.data = odd(Q));
  TAKEN(forward, good_forward(), (a.x.data = (char *)slot(X) + 2, a.x.dtype = RMSNORM_DTYPE_BF16));
  TAKEN(forward, full_forward(),
        (a.quant.granularity = RMSNORM_QUANT_MX, a.quant.q.dtype = RMSNORM_DTYPE_FP8_E5M2,
         a.quant.scale_out = odd(SCALE)));
}

static void test_overlap(void **state) {
  (void)state;
  const int F32 = RMSNORM_DTYPE_F32;
  /* Exactly the same tensor as an elementwise input. */
  TAKEN(forward, full_forward(), a.y = out(X, F32));
  TAKEN(forward, full_forward(), a.y = out(RESIDUAL, F32));
  TAKEN(forward, full_forward(), a.y = out(GATE, F32));
  TAKEN(forward, full_forward(), a.residual_out = out(X, F32));
  TAKEN(forward, full_forward(), (a.residual_out = out(RESIDUAL, F32), a.y = out(X, F32)));
  TAKEN(forward, full_forward(), a.residual_out = out(GATE, F32));
  TAKEN(backward, good_backward(), a.dx = out(X, F32));
  TAKEN(backward, good_backward(), a.dx = out(DY, F32));
  TAKEN(backward, good_backward(), (a.dx = out(DY, F32), a.dresidual = out(X, F32)));
  TAKEN(backward, good_backward(), (a.dresidual_out = in(DRESIDUAL_OUT, F32), a.dresidual = out(DRESIDUAL_OUT, F32)));
  TAKEN(backward, good_backward(),
        (a.numerics.gate = RMSNORM_GATE_SILU, a.gate = in(GATE, F32), a.dgate = out(GATE, F32)));
  /* Nearly the same. */
  FORWARD(a.y.data = (float *)slot(X) + 1, OVERLAP, "y overlaps x");
  FORWARD(a.y.data = (float *)slot(X) + ROWS * COLS - 1, OVERLAP, "y overlaps x");
  FORWARD((a.y = out(X, RMSNORM_DTYPE_BF16)), OVERLAP, "y and x");
  FORWARD((a.y = out(X, F32), a.y.row_stride = COLS + 1), OVERLAP, "different strides");
  FORWARD((a.x.row_stride = 0, a.y = out(X, F32)), OVERLAP, "y ");
  TAKEN(forward, good_forward(), a.y.data = (float *)slot(X) + ROWS * COLS);
  /* Outputs with each other. */
  FULL(a.residual_out = out(Y, F32), OVERLAP, "residual_out");
  FULL((a.y = out(X, F32), a.residual_out = out(X, F32)), OVERLAP, "residual_out");
  FULL(a.rstd = slot(Y), OVERLAP, "rstd");
  FULL(a.quant.q.data = slot(Y), OVERLAP, "quant.q");
  FULL(a.quant.scale_out = slot(RSTD), OVERLAP, "scale_out");
  FULL(a.quant.scale_out = slot(Q), OVERLAP, "scale_out");
  BACKWARD(a.dresidual = out(DX, F32), OVERLAP, "dresidual");
  BACKWARD(a.dot_out = slot(DX), OVERLAP, "dot_out");
  BACKWARD((a.dweight = slot(DX), a.dweight_dtype = F32), OVERLAP, "dweight");
  /* Outputs with inputs that are read more than once. */
  FORWARD(a.y = out(WEIGHT, F32), OVERLAP, "y overlaps weight");
  FORWARD(a.rstd = slot(WEIGHT), OVERLAP, "rstd overlaps weight");
  FORWARD(a.rstd = slot(X), OVERLAP, "rstd overlaps x");
  FORWARD((a.sumsq = slot(SUMSQ), a.rstd = slot(SUMSQ)), OVERLAP, "rstd overlaps sumsq");
  FORWARD((a.sumsq = slot(SUMSQ), a.y = out(SUMSQ, F32)), OVERLAP, "y overlaps sumsq");
  FULL(a.quant.q.data = slot(X), OVERLAP, "quant.q");
  FULL(a.quant.scale_out = slot(X), OVERLAP, "scale_out");
  STATS(a.sumsq = slot(X), OVERLAP, "sumsq overlaps x");
  BACKWARD(a.dx = out(WEIGHT, F32), OVERLAP, "dx overlaps weight");
  BACKWARD((a.dweight = slot(WEIGHT), a.dweight_dtype = F32), OVERLAP, "dweight overlaps weight");
  BACKWARD((a.rstd = slot(RSTD), a.dot_out = slot(RSTD)), OVERLAP, "dot_out overlaps rstd");
  BACKWARD((a.dot = slot(DOT), a.dot_out = slot(DOT)), OVERLAP, "dot_out overlaps dot");
}

/* Slices of one buffer whose byte ranges cross though no byte is shared. */
static void test_interleaved(void **state) {
  (void)state;
  const int F32 = RMSNORM_DTYPE_F32;
  float *base = slot(X);
  /* k written beside q in one packed projection */
  TAKEN(forward, good_forward(),
        (a.x = rmsnorm_input(base, F32, 2 * COLS), a.y = rmsnorm_output(base + COLS, F32, 2 * COLS)));
  FORWARD((a.x = rmsnorm_input(base, F32, 2 * COLS), a.y = rmsnorm_output(base + COLS - 1, F32, 2 * COLS)), OVERLAP,
          "y overlaps x");
  FORWARD((a.x = rmsnorm_input(base, F32, 2 * COLS), a.y = rmsnorm_output(base + COLS + 1, F32, 2 * COLS)), OVERLAP,
          "y overlaps x");
  /* heads interleaved with their gates: [rows][heads][2][cols], written over the gates' neighbours */
  TAKEN(forward, good_forward(),
        (a.heads = 2, a.cols = 32, a.x = rmsnorm_input_heads(base, F32, 4 * 32, 2 * 32),
         a.y = rmsnorm_output_heads(base + 32, F32, 4 * 32, 2 * 32)));
  FORWARD((a.heads = 2, a.cols = 32, a.x = rmsnorm_input_heads(base, F32, 5 * 32, 2 * 32),
           a.y = rmsnorm_output_heads(base + 31, F32, 5 * 32, 2 * 32)),
          OVERLAP, "y overlaps x");
  TAKEN(forward, good_forward(),
        (a.heads = 2, a.cols = 32, a.x = rmsnorm_input_heads(base, F32, 5 * 32, 2 * 32),
         a.y = rmsnorm_output_heads(base + 32, F32, 5 * 32, 2 * 32)));
  /* meets only in the last row */
  FORWARD((a.x = rmsnorm_input(base, F32, 2 * COLS), a.y = rmsnorm_output(base + 4 * COLS, F32, 2 * COLS)), OVERLAP,
          "y overlaps x");
  /* the same backwards through memory */
  TAKEN(forward, good_forward(),
        (a.x = rmsnorm_input(base + 4 * COLS, F32, -2 * COLS), a.y = rmsnorm_output(base + 5 * COLS, F32, -2 * COLS)));
  FORWARD(
      (a.x = rmsnorm_input(base + 4 * COLS, F32, -2 * COLS), a.y = rmsnorm_output(base + 5 * COLS - 1, F32, -2 * COLS)),
      OVERLAP, "y overlaps x");
  /* another type, equal strides in bytes: bf16 y in the gap behind each f32 row */
  TAKEN(forward, good_forward(),
        (a.x = rmsnorm_input(base, F32, 2 * COLS), a.y = rmsnorm_output(base + COLS, RMSNORM_DTYPE_BF16, 4 * COLS)));
  /* each row of q followed by its scales in one buffer */
  TAKEN(forward, full_forward(),
        (a.quant.granularity = RMSNORM_QUANT_BLOCK, a.quant.block_cols = 32,
         a.quant.q = rmsnorm_output(slot(Q), RMSNORM_DTYPE_FP8_E4M3, COLS + 8),
         a.quant.scale_out = (char *)slot(Q) + COLS, a.quant.scale_stride = (COLS + 8) / 4));
  FULL((a.quant.granularity = RMSNORM_QUANT_BLOCK, a.quant.block_cols = 32,
        a.quant.q = rmsnorm_output(slot(Q), RMSNORM_DTYPE_FP8_E4M3, COLS + 8),
        a.quant.scale_out = (char *)slot(Q) + COLS - 4, a.quant.scale_stride = (COLS + 8) / 4),
       OVERLAP, "scale_out");
  /* one byte of q too far, on either side of y's rows */
  const int INT8 = RMSNORM_DTYPE_INT8, step = 2 * COLS * 4;
  char *bytes = slot(Y);
  TAKEN(forward, full_forward(),
        (a.y = rmsnorm_output(bytes + 256, F32, 2 * COLS), a.quant.q = rmsnorm_output(bytes + 256 - 64, INT8, step)));
  FULL((a.y = rmsnorm_output(bytes + 256, F32, 2 * COLS), a.quant.q = rmsnorm_output(bytes + 256 - 63, INT8, step)),
       OVERLAP, "quant.q overlaps y");
  TAKEN(forward, full_forward(),
        (a.y = rmsnorm_output(bytes + 256, F32, 2 * COLS), a.quant.q = rmsnorm_output(bytes + 512, INT8, step)));
  FULL((a.y = rmsnorm_output(bytes + 256, F32, 2 * COLS), a.quant.q = rmsnorm_output(bytes + 511, INT8, step)), OVERLAP,
       "quant.q overlaps y");
  /* the weight in the gap between two rows */
  TAKEN(forward, good_forward(), (a.y = rmsnorm_output(base, F32, 2 * COLS), a.x = in(Y, F32), a.weight = base + COLS));
  FORWARD((a.y = rmsnorm_output(base, F32, 2 * COLS), a.x = in(Y, F32), a.weight = base + COLS + 1), OVERLAP,
          "y overlaps weight");
}

static void test_no_rows(void **state) {
  (void)state;
  rmsnorm_forward_args forward = RMSNORM_FORWARD_ARGS_INIT;
  forward.cols = COLS, forward.eps = 1e-6, forward.x.dtype = RMSNORM_DTYPE_F32;
  assert_int_equal(rmsnorm_forward(&forward, NULL), RMSNORM_OK);
  rmsnorm_stats_args stats = RMSNORM_STATS_ARGS_INIT;
  stats.cols = COLS, stats.x.dtype = RMSNORM_DTYPE_F16;
  assert_int_equal(rmsnorm_stats(&stats, NULL), RMSNORM_OK);
  /* Pointers that must not be followed. */
  TAKEN(forward, full_forward(), (a.rows = 0, a.x.data = odd(0), a.y.data = (void *)1, a.quant.scale_out = (void *)3));
  assert_memory_equal(arena, before, sizeof arena);
  FORWARD((a.rows = 0, a.eps = -1), VALUE, "eps");
  FORWARD((a.rows = 0, a.cols = 0), SIZE, "cols");

  rmsnorm_backward_args backward = good_backward();
  backward.rows = 0, backward.x.data = NULL, backward.dy.data = NULL;
  backward.dweight = slot(DWEIGHT), backward.dweight_dtype = RMSNORM_DTYPE_BF16;
  assert_int_equal(rmsnorm_backward(&backward, NULL), RMSNORM_OK);
  memset(before + (size_t)DWEIGHT * SLOT, 0, COLS * 2);
  assert_memory_equal(arena, before, sizeof arena);
  fill_arena();
  backward.heads = 2, backward.weight_shape = RMSNORM_WEIGHT_HEADS_COLS;
  assert_int_equal(rmsnorm_backward(&backward, NULL), RMSNORM_OK);
  memset(before + (size_t)DWEIGHT * SLOT, 0, COLS * 2 * 2);
  assert_memory_equal(arena, before, sizeof arena);
  fill_arena();
  backward.groups = 4, backward.weight_shape = RMSNORM_WEIGHT_GROUP;
  assert_int_equal(rmsnorm_backward(&backward, NULL), RMSNORM_OK);
  memset(before + (size_t)DWEIGHT * SLOT, 0, COLS / 4 * 2);
  assert_memory_equal(arena, before, sizeof arena);
  fill_arena();
  size_t bytes = 77;
  assert_int_equal(rmsnorm_backward_workspace_bytes(&backward, &bytes), RMSNORM_OK);
  assert_int_equal(bytes, 0);
}

static void test_workspace(void **state) {
  (void)state;
  rmsnorm_backward_args a = good_backward();
  a.rows = 64, a.x.row_stride = 0, a.dy.row_stride = 0, a.dx.data = NULL;
  a.dweight = slot(DWEIGHT), a.dweight_dtype = RMSNORM_DTYPE_F32;
  size_t bytes = 0;
  assert_int_equal(rmsnorm_backward_workspace_bytes(&a, NULL), RMSNORM_ERROR_NULL);
  assert_int_equal(rmsnorm_backward_workspace_bytes(&a, &bytes), RMSNORM_OK);
  assert_in_range(bytes, 1, 1 << 20);

  /* The query does not want pointers, and says what the call would say. */
  rmsnorm_backward_args q = a;
  q.x.data = NULL, q.dy.data = NULL, q.weight = NULL, q.dweight = (void *)1;
  size_t again = 0;
  assert_int_equal(rmsnorm_backward_workspace_bytes(&q, &again), RMSNORM_OK);
  assert_int_equal(again, bytes);
  q.cols = 0;
  expect_refused(rmsnorm_backward_workspace_bytes(&q, &again), RMSNORM_ERROR_SIZE, "cols", "cols", __LINE__);
  assert_int_equal(again, bytes);

  unsigned char *work = aligned_alloc(64, bytes / 64 * 64 + 128);
  assert_non_null(work);
  expect_refused(rmsnorm_backward(&a, NULL), RMSNORM_ERROR_WORKSPACE, "workspace: is NULL", "NULL", __LINE__);
  a.workspace = work, a.workspace_bytes = bytes - 1;
  expect_refused(rmsnorm_backward(&a, NULL), RMSNORM_ERROR_WORKSPACE, "workspace_bytes", "small", __LINE__);
  a.workspace = work + 4, a.workspace_bytes = bytes + 64;
  expect_refused(rmsnorm_backward(&a, NULL), RMSNORM_ERROR_WORKSPACE, "aligned", "misaligned", __LINE__);
  a.workspace = slot(DWEIGHT), a.workspace_bytes = bytes;
  expect_refused(rmsnorm_backward(&a, NULL), RMSNORM_ERROR_OVERLAP, "workspace overlaps dweight", "overlap", __LINE__);
  a.workspace = slot(WEIGHT);
  expect_refused(rmsnorm_backward(&a, NULL), RMSNORM_ERROR_OVERLAP, "workspace overlaps weight", "overlap", __LINE__);
  a.workspace = work, a.workspace_bytes = bytes;
  expect_ok(rmsnorm_backward(&a, NULL), "enough", __LINE__);
  free(work);
}

static void run_in_turn(void *context, int64_t tasks, void (*task)(void *, int64_t), void *task_context) {
  (void)context;
  for (int64_t i = tasks - 1; i >= 0; i--) task(task_context, i);
}

static void test_parallel(void **state) {
  (void)state;
  rmsnorm_parallel parallel = {NULL, 4, 0, run_in_turn};
  TAKEN(forward, full_forward(), a.parallel = &parallel);
  TAKEN(backward, good_backward(), (a.parallel = &parallel, a.threads = 2));
  parallel.threads = 0;
  FORWARD(a.parallel = &parallel, SIZE, "parallel->threads");
  parallel.threads = -4;
  STATS(a.parallel = &parallel, SIZE, "parallel->threads");
  parallel.threads = 1, parallel.reserved = 1;
  BACKWARD(a.parallel = &parallel, VALUE, "reserved");
}

static void test_selection(void **state) {
  (void)state;
  FORWARD(a.impl = "portabel", UNKNOWN_IMPL, "portabel");
  FORWARD(a.impl = "", UNKNOWN_IMPL, "portable");
  STATS(a.impl = "x", UNKNOWN_IMPL, "it has");
  BACKWARD(a.impl = "none", UNKNOWN_IMPL, "it has");
  /* Where there is a GPU the first thing that is missing is a context. */
  if (rmsnorm_impl_why_not(0) != NULL && rmsnorm_impl_why_not(1) != NULL)
    FORWARD(a.device = RMSNORM_DEVICE_CUDA, UNSUPPORTED, "CUDA");
  else
    FORWARD(a.device = RMSNORM_DEVICE_CUDA, DEVICE, "CUDA");
  FORWARD(a.device = RMSNORM_DEVICE_HIP, UNSUPPORTED, "HIP");
  FORWARD((a.device = RMSNORM_DEVICE_CUDA, a.impl = "portable"), UNSUPPORTED, "CUDA");
  TAKEN(forward, good_forward(), a.impl = "portable");

  int count = 0;
  const char *name;
  while (rmsnorm_impl_name(count) != NULL) count++;
  assert_in_range(count, 4, 6);
  assert_string_equal(rmsnorm_impl_name(count - 1), "portable");
  assert_null(rmsnorm_impl_why_not(count - 1));
  assert_null(rmsnorm_impl_name(-1));
  assert_null(rmsnorm_impl_name(count));
  assert_non_null(rmsnorm_impl_why_not(count));
  assert_string_equal(rmsnorm_impl_name(0), "cuda");
  assert_int_equal(rmsnorm_impl_device(0), RMSNORM_DEVICE_CUDA);
  assert_int_equal(rmsnorm_impl_device(count - 1), RMSNORM_DEVICE_CPU);
  assert_int_equal(rmsnorm_impl_device(count), -1);
  assert_non_null(rmsnorm_cpu_features());

  rmsnorm_forward_args a = good_forward();
  rmsnorm_backward_args b = good_backward();
  rmsnorm_stats_args s = good_stats();
  assert_int_equal(rmsnorm_impl_for(RMSNORM_OP_FORWARD, &a, &name), RMSNORM_OK);
  assert_int_equal(rmsnorm_impl_for(RMSNORM_OP_STATS, &s, &name), RMSNORM_OK);
  assert_int_equal(rmsnorm_impl_for(RMSNORM_OP_BACKWARD, &b, &name), RMSNORM_OK);
  assert_int_equal(rmsnorm_impl_for(RMSNORM_OP_FORWARD, &a, NULL), RMSNORM_ERROR_NULL);
  assert_int_equal(rmsnorm_impl_for(3, &a, &name), RMSNORM_ERROR_ENUM);
  assert_int_equal(rmsnorm_impl_for(RMSNORM_OP_FORWARD, NULL, &name), RMSNORM_ERROR_NULL);
  a.impl = "portable";
  assert_int_equal(rmsnorm_impl_for(RMSNORM_OP_FORWARD, &a, &name), RMSNORM_OK);
  assert_string_equal(name, "portable");
  /* Only the portable implementation takes f64; the others, forced, refuse. */
  for (int i = 0; i < count; i++) {
    a = good_forward(), a.x.dtype = RMSNORM_DTYPE_F64, a.impl = rmsnorm_impl_name(i);
    if (i == count - 1)
      expect_ok(rmsnorm_forward(&a, NULL), "portable f64", __LINE__);
    else
      expect_refused(rmsnorm_forward(&a, NULL), RMSNORM_ERROR_UNSUPPORTED, a.impl, "f64", __LINE__);
  }
}

static void test_explain(void **state) {
  (void)state;
  char text[1024], small[16];
  rmsnorm_forward_args a = good_forward();
  assert_int_equal(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text), RMSNORM_OK);
  int lines = 0, count = 0, runs = 0;
  for (const char *c = text; *c != 0; c++) lines += *c == '\n';
  while (rmsnorm_impl_name(count) != NULL) {
    assert_non_null(strstr(text, rmsnorm_impl_name(count)));
    count++;
  }
  for (const char *c = text; (c = strstr(c, " runs: ")) != NULL; c++) runs++;
  assert_int_equal(lines, count);
  assert_int_equal(runs, 1);

  a.impl = "portable";
  assert_int_equal(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text), RMSNORM_OK);
  assert_non_null(strstr(text, "portable   runs: forced by impl\n"));
  a.device = RMSNORM_DEVICE_CUDA;
  assert_int_equal(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text), RMSNORM_ERROR_UNSUPPORTED);
  assert_non_null(strstr(text, "CUDA"));
  a = good_forward(), a.impl = "what";
  assert_int_equal(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text), RMSNORM_ERROR_UNKNOWN_IMPL);
  assert_non_null(strstr(text, "what"));
  a = good_forward(), a.cols = -2;
  assert_int_equal(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text), RMSNORM_ERROR_SIZE);
  assert_non_null(strstr(text, "cols: must be >= 1, is -2"));

  a = good_forward();
  memset(small, 'z', sizeof small);
  assert_int_equal(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, small, 8), RMSNORM_ERROR_BUFFER);
  assert_int_equal(strlen(small), 7);
  assert_int_equal(small[8], 'z');
  assert_int_equal(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, small, 0), RMSNORM_ERROR_BUFFER);
  assert_int_equal(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, NULL, 9), RMSNORM_ERROR_NULL);
  assert_int_equal(rmsnorm_explain(-1, &a, text, sizeof text), RMSNORM_ERROR_ENUM);
}

static void test_presets(void **state) {
  (void)state;
  rmsnorm_numerics n;
  int count = 0;
  while (rmsnorm_preset_name(count) != NULL) {
    assert_non_null(rmsnorm_preset_families(count));
    assert_int_equal(rmsnorm_preset(rmsnorm_preset_name(count), &n), RMSNORM_OK);
    for (int i = 0; i < count; i++) assert_string_not_equal(rmsnorm_preset_name(i), rmsnorm_preset_name(count));
    /* Every preset is a legal set of switches. */
    rmsnorm_forward_args a = good_forward();
    a.numerics = n;
    if (n.gate != RMSNORM_GATE_NONE) a.gate = in(GATE, RMSNORM_DTYPE_F32);
    expect_ok(rmsnorm_forward(&a, NULL), rmsnorm_preset_name(count), __LINE__);
    count++;
  }
  assert_in_range(count, 15, 50);
  assert_null(rmsnorm_preset_name(-1));
  assert_null(rmsnorm_preset_families(count));
  assert_int_equal(rmsnorm_preset("fp32", &n), RMSNORM_OK);
  const rmsnorm_numerics zero = {0, 0, 0, 0, 0, 0, 0};
  assert_memory_equal(&n, &zero, sizeof n);
  assert_int_equal(rmsnorm_preset("llama", &n), RMSNORM_OK);
  assert_int_equal(n.round_xhat, RMSNORM_ROUND_X);
  assert_int_equal(n.round_sum, RMSNORM_ROUND_STORED);
  assert_int_equal(rmsnorm_preset("t5", &n), RMSNORM_OK);
  assert_int_equal(n.round_xhat, RMSNORM_ROUND_WEIGHT);
  assert_int_equal(rmsnorm_preset("gemma", &n), RMSNORM_OK);
  assert_true(n.weight_offset == 1 && n.round_xhat == RMSNORM_ROUND_NONE);
  rmsnorm_numerics kept = n;
  assert_int_equal(rmsnorm_preset("gemma99", &n), RMSNORM_ERROR_ENUM);
  assert_memory_equal(&n, &kept, sizeof n);
  assert_int_equal(rmsnorm_preset(NULL, &n), RMSNORM_ERROR_NULL);
  assert_int_equal(rmsnorm_preset("llama", NULL), RMSNORM_ERROR_NULL);
}

static int begin(void **state) {
  (void)state;
  fill_arena();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_good_ones, begin),    cmocka_unit_test_setup(test_struct, begin),
      cmocka_unit_test_setup(test_sizes, begin),        cmocka_unit_test_setup(test_values, begin),
      cmocka_unit_test_setup(test_enums, begin),        cmocka_unit_test_setup(test_null, begin),
      cmocka_unit_test_setup(test_combinations, begin), cmocka_unit_test_setup(test_strides, begin),
      cmocka_unit_test_setup(test_alignment, begin),    cmocka_unit_test_setup(test_overlap, begin),
      cmocka_unit_test_setup(test_interleaved, begin),  cmocka_unit_test_setup(test_no_rows, begin),
      cmocka_unit_test_setup(test_workspace, begin),    cmocka_unit_test_setup(test_parallel, begin),
      cmocka_unit_test_setup(test_selection, begin),    cmocka_unit_test_setup(test_explain, begin),
      cmocka_unit_test_setup(test_presets, begin),
  };
  return cmocka_run_group_tests_name("args", tests, NULL, NULL);
}
