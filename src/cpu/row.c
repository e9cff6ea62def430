/* row.c - the row kernels of one instruction set. Compiled once per set, with RN_ISA_<SET> defined and that set's
 * flags; everything in here is static but one table of functions.
 *
 * Each entry point picks an instance: the loops of forward.h and backward.h with the element types fixed at compile
 * time for the usual combinations, and once with everything left to run time for all the others.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "elements.h"

#include "forward.h"

#include "backward.h"

#include "dweight.h"

#define F32  RMSNORM_DTYPE_F32
#define F16  RMSNORM_DTYPE_F16
#define BF16 RMSNORM_DTYPE_BF16

/* One element type for x, residual, residual_out and y; the weight's; and x-hat rounded to that type or not. */
RN_INLINE rn_cfg uniform(const rn_problem *p, int type, int weight, int residual, int round_xhat) {
  return (rn_cfg){.x = type,
                  .residual = residual ? type : 0,
                  .weight = weight,
                  .y = type,
                  .residual_out = type,
                  .gate = RMSNORM_GATE_NONE,
                  .layout = type == BF16 ? RN_SPLIT : RN_NATURAL,
                  .store_sum = false,
                  .tame = weight != F32,
                  .fixed = true,
                  .round_sum = p->round_sum,
                  .round_xhat = round_xhat ? type : F32,
                  .round_normed = F32,
                  .has_offset = rn_bits(p->weight_offset) != 0x80000000u,
                  .weight_offset = p->weight_offset};
}

/* Whatever the problem says. */
RN_INLINE rn_cfg general(const rn_problem *p, int layout) {
  return (rn_cfg){.x = p->x.dtype,
                  .residual = p->residual.data ? p->residual.dtype : 0,
                  .weight = p->weight_dtype,
                  .y = p->y.dtype,
                  .residual_out = p->residual_out.dtype,
                  .gate = p->gate_kind,
                  .layout = layout,
                  .store_sum = false,
                  .tame = false,
                  .fixed = false,
                  .round_sum = p->round_sum,
                  .round_xhat = p->round_xhat,
                  .round_normed = p->round_normed,
                  .has_offset = rn_bits(p->weight_offset) != 0x80000000u,
                  .weight_offset = p->weight_offset};
}

/* ------------------------------------------------------------------------------------------------------------------
 * The first pass: name, element type, residual?, the sum stored? */
#define RN_SQUARES(SQUARE)                                                                                             \
  SQUARE(f32, F32, 0, 0)                                                                                               \
  SQUARE(f32_sum, F32, 1, 0)                                                                                           \
  SQUARE(f32_sum_stored, F32, 1, 1)                                                                                    \
  SQUARE(bf16, BF16, 0, 0)                                                                                             \
  SQUARE(bf16_sum, BF16, 1, 0)                                                                                         \
  SQUARE(bf16_sum_stored, BF16, 1, 1)                                                                                  \
  SQUARE(f16, F16, 0, 0)                                                                                               \
  SQUARE(f16_sum, F16, 1, 0)                                                                                           \
  SQUARE(f16_sum_stored, F16, 1, 1)

RN_INLINE rn_cfg uniform_square(const rn_problem *p, int type, int residual, int stored) {
  rn_cfg c = uniform(p, type, type, residual, 0);
  c.store_sum = stored;
  return c;
}

#define RN_SQUARE(name, type, residual, stored)                                                                        \
  static void square_rows_##name(const rn_problem *p, const rn_run *run, int64_t n, float *sums) {                     \
    square_rows(p, uniform_square(p, type, residual, stored), run, n, sums);                                           \
  }                                                                                                                    \
  static void square_blocks_##name(const rn_problem *p, const rn_place *at, int64_t first, int64_t last,               \
                                   float *sums) {                                                                      \
    square_blocks(p, uniform_square(p, type, residual, stored), at, p->cols, rn_lanes(p->cols), first, last, sums);    \
  }                                                                                                                    \
  static const rn_square square_##name = {square_rows_##name, square_blocks_##name};
RN_SQUARES(RN_SQUARE)

static void square_rows_any(const rn_problem *p, const rn_run *run, int64_t n, float *sums) {
  square_rows(p, general(p, RN_NATURAL), run, n, sums);
}
static void square_blocks_any(const rn_problem *p, const rn_place *at, int64_t first, int64_t last, float *sums) {
  square_blocks(p, general(p, RN_NATURAL), at, p->cols, rn_lanes(p->cols), first, last, sums);
}
static const rn_square square_any = {square_rows_any, square_blocks_any};

static const rn_square *square_for(const rn_problem *p, bool stored) {
  const int type = p->x.dtype, residual = p->residual.data != NULL;
  if (p->gate_before) return &square_any;
  if (residual && (p->residual.dtype != type || (p->round_sum != F32 && p->round_sum != type))) return &square_any;
#define RN_CHOOSE(name, t, r, s)                                                                                       \
  if (type == (t) && residual == (r) && stored == (s)) return &square_##name;
  RN_SQUARES(RN_CHOOSE)
#undef RN_CHOOSE
  return &square_any;
}

/* ------------------------------------------------------------------------------------------------------------------
 * The last pass: name, element type, weight type, residual?, x-hat rounded? */
#define RN_APPLIES(APPLY)                                                                                              \
  APPLY(f32, F32, F32, 0, 0)                                                                                           \
  APPLY(f32_sum, F32, F32, 1, 0)                                                                                       \
  APPLY(bf16, BF16, BF16, 0, 0)                                                                                        \
  APPLY(bf16_round, BF16, BF16, 0, 1)                                                                                  \
  APPLY(bf16_sum, BF16, BF16, 1, 0)                                                                                    \
  APPLY(bf16_sum_round, BF16, BF16, 1, 1)                                                                              \
  APPLY(bf16_w32, BF16, F32, 0, 0)                                                                                     \
  APPLY(bf16_w32_round, BF16, F32, 0, 1)                                                                               \
  APPLY(bf16_w32_sum, BF16, F32, 1, 0)                                                                                 \
  APPLY(bf16_w32_sum_round, BF16, F32, 1, 1)                                                                           \
  APPLY(f16, F16, F16, 0, 0)                                                                                           \
  APPLY(f16_round, F16, F16, 0, 1)                                                                                     \
  APPLY(f16_sum, F16, F16, 1, 0)                                                                                       \
  APPLY(f16_sum_round, F16, F16, 1, 1)                                                                                 \
  APPLY(f16_w32, F16, F32, 0, 0)                                                                                       \
  APPLY(f16_w32_round, F16, F32, 0, 1)                                                                                 \
  APPLY(f16_w32_sum, F16, F32, 1, 0)                                                                                   \
  APPLY(f16_w32_sum_round, F16, F32, 1, 1)

#define RN_APPLY(name, type, weight, residual, round)                                                                  \
  static void apply_##name(const rn_problem *p, const rn_run *run, int64_t first, int64_t last, const float *rstd,     \
                           bool stream, const rn_place *next) {                                                        \
    apply_rows(p, uniform(p, type, weight, residual, round), run, first, last, rstd, stream, next);                    \
  }                                                                                                                    \
  static void fused_##name(const rn_problem *p, const rn_place *at, float rstd, bool stream, const rn_place *next,     \
                           const rn_place *later, float *next_sum) {                                                   \
    fused_row(p, uniform(p, type, weight, residual, round), at, rstd, stream, next, later, next_sum);                  \
  }
RN_APPLIES(RN_APPLY)

static void apply_any(const rn_problem *p, const rn_run *run, int64_t first, int64_t last, const float *rstd,
                      bool stream, const rn_place *next) {
  (void)stream; /* the general form stores through the caches */
  apply_rows(p, general(p, RN_NATURAL), run, first, last, rstd, false, next);
}

static rn_passes passes_for(const rn_problem *p) {
  const int type = p->x.dtype, weight = p->weight ? p->weight_dtype : type, residual = p->residual.data != NULL;
  const int round = p->round_xhat != F32;
  const rn_passes any = {square_for(p, false), apply_any, NULL};
  if (p->gate_kind || p->round_normed != F32 || (round && p->round_xhat != type)) return any;
  if (residual && (p->residual.dtype != type || (p->round_sum != F32 && p->round_sum != type))) return any;
  if (p->residual_out.data && p->residual_out.dtype != type) return any;
  if (p->y.data && p->y.dtype != type) return any;
#define RN_CHOOSE(name, t, w, r, h)                                                                                    \
  if (type == (t) && weight == (w) && residual == (r) && round == (h))                                                 \
    return (rn_passes){any.square, apply_##name, fused_##name};
  RN_APPLIES(RN_CHOOSE)
#undef RN_CHOOSE
  return any;
}

/* Can the first pass store the sums, so that the last one reads them instead of adding again? They have to be exactly
 * what is normalised, and the caches have to hold them until then; and they may not lie on a gate, which is read last.
 */
static bool stores_sums(const rn_problem *p, rn_way way) {
  const int type = p->x.dtype;
  return p->residual_out.data && p->residual_out.data != p->gate.data && !way.stream && !p->sumsq_in &&
         !p->gate_before && p->residual.dtype == type && p->residual_out.dtype == type &&
         (type == F32 || p->round_sum == type);
}

static void forward_rows(const rn_problem *p, int64_t first, int64_t last, rn_way way) {
  if (p->groups > 1 || p->quant != RMSNORM_QUANT_NONE) {
    const rn_passes passes = passes_for(p);
    const rn_cfg c = general(p, RN_NATURAL);
    for (int64_t row = first; row < last; ++row) general_row(p, c, &passes, row);
    return;
  }
  if (stores_sums(p, way)) {
    const rn_problem stored = stored_problem(p);
    rn_passes passes = passes_for(&stored);
    passes.square = square_for(p, true);
    plain_rows(p, &stored, &passes, first, last, way);
    return;
  }
  const rn_passes passes = passes_for(p);
  if (last - first == 1)
    single_row(p, &passes, first, way);
  else if (way.prefetch && passes.fused && p->cols >= RN_FUSED_MIN && !p->sumsq_in && p->op == RMSNORM_OP_FORWARD)
    far_long_rows(p, &passes, first, last, way);
  else
    plain_rows(p, NULL, &passes, first, last, way);
  if (way.stream) rn_stream_fence();
}

static void block_sums(const rn_problem *p, int64_t row, int64_t first, int64_t last, float *sums) {
  const rn_place at = place_of_row(p, row);
  square_for(p, false)->blocks(p, &at, first, last, sums);
}

static void apply_cols(const rn_problem *p, int64_t row, int64_t first, int64_t last, float rstd, rn_way way) {
  const rn_run run = run_of(place_of_row(p, row));
  passes_for(p).apply(p, &run, first, last, &rstd, way.stream, NULL);
  if (way.stream) rn_stream_fence();
}

/* ------------------------------------------------------------------------------------------------------------------
 * Backward: name, element type of everything but the weight, weight type, first pass. */
#define RN_GRADS(GRAD)                                                                                                 \
  GRAD(f32, F32, F32)                                                                                                  \
  GRAD(bf16, BF16, BF16)                                                                                               \
  GRAD(bf16_w32, BF16, F32)                                                                                            \
  GRAD(f16, F16, F16)                                                                                                  \
  GRAD(f16_w32, F16, F32)

RN_INLINE rn_grad_cfg uniform_grad(const rn_problem *p, int type, int weight) {
  return (rn_grad_cfg){.forward = uniform(p, type, weight, 0, 0),
                       .dy = type,
                       .dresidual_out = type,
                       .dx = type,
                       .dresidual = type,
                       .dgate = type,
                       .rescued = false};
}
RN_INLINE rn_grad_cfg general_grad(const rn_problem *p, int layout) {
  return (rn_grad_cfg){.forward = general(p, layout),
                       .dy = p->dy.dtype,
                       .dresidual_out = p->dresidual_out.dtype,
                       .dx = p->dx.dtype,
                       .dresidual = p->dresidual.dtype,
                       .dgate = p->dgate.dtype,
                       .rescued = true};
}

#define RN_GRAD(name, type, weight)                                                                                    \
  static void squares_##name(const rn_problem *p, const rn_grad_place *at, int rows, float *sum) {                     \
    row_sums(p, uniform_grad(p, type, weight), RN_SQUARES_OF_U, at, rows, sum, NULL);                                  \
  }                                                                                                                    \
  static void dots_##name(const rn_problem *p, const rn_grad_place *at, int rows, float *sum,                          \
                          const rn_grad_place *next) {                                                                 \
    row_sums(p, uniform_grad(p, type, weight), RN_DOTS, at, rows, sum, next);                                          \
  }                                                                                                                    \
  static void bundle_##name(const rn_problem *p, const rn_grad_place *at, int rows, bool tree, const rn_collect *to,   \
                            bool stream, const rn_grad_place *next) {                                                  \
    bundle_pass(p, uniform_grad(p, type, weight), at, rows, tree, to, stream, next);                                   \
  }                                                                                                                    \
  static const rn_grad grad_##name = {squares_##name, dots_##name, bundle_##name};
RN_GRADS(RN_GRAD)

/* The general form multiplies by at->factor, which is 1 for ordinary rows, so it serves rescued rows as well. It comes
 * in both layouts, because it shares the scratch vectors of dweight with the instance it stands in for. */
static void squares_any(const rn_problem *p, const rn_grad_place *at, int rows, float *sum) {
  row_sums(p, general_grad(p, RN_NATURAL), RN_SQUARES_OF_U, at, rows, sum, NULL);
}
static void dots_any(const rn_problem *p, const rn_grad_place *at, int rows, float *sum, const rn_grad_place *next) {
  (void)next;
  row_sums(p, general_grad(p, RN_NATURAL), RN_DOTS, at, rows, sum, NULL);
}
static void bundle_any(const rn_problem *p, const rn_grad_place *at, int rows, bool tree, const rn_collect *to,
                       bool stream, const rn_grad_place *next) {
  (void)stream, (void)next;
  bundle_pass(p, general_grad(p, RN_NATURAL), at, rows, tree, to, false, NULL);
}
static void bundle_any_split(const rn_problem *p, const rn_grad_place *at, int rows, bool tree, const rn_collect *to,
                             bool stream, const rn_grad_place *next) {
  (void)stream, (void)next;
  bundle_pass(p, general_grad(p, RN_SPLIT), at, rows, tree, to, false, NULL);
}
static const rn_grad grad_any = {squares_any, dots_any, bundle_any};
static const rn_grad grad_any_split = {squares_any, dots_any, bundle_any_split};

static const rn_grad *grad_for(const rn_problem *p) {
  const int type = p->x.dtype, weight = p->weight ? p->weight_dtype : type;
  if (p->gate_kind || p->residual.data || p->dy.dtype != type) return &grad_any;
  if (p->dresidual_out.data && p->dresidual_out.dtype != type) return &grad_any;
  if (!p->dx.data || p->dx.dtype != type || p->dresidual.data) return &grad_any;
#define RN_CHOOSE(name, t, w)                                                                                          \
  if (type == (t) && weight == (w)) return &grad_##name;
  RN_GRADS(RN_CHOOSE)
#undef RN_CHOOSE
  return &grad_any;
}
static int layout_of(const rn_problem *p, const rn_grad *grad) {
  return grad != &grad_any && p->x.dtype == BF16 ? RN_SPLIT : RN_NATURAL;
}
static const rn_grad *rescued_for(const rn_problem *p, const rn_grad *grad) {
  return layout_of(p, grad) == RN_SPLIT ? &grad_any_split : &grad_any;
}

static void backward_rows(const rn_problem *p, int64_t first, int64_t last, rn_way way) {
  const rn_grad *grad = grad_for(p);
  grad_rows(p, grad, rescued_for(p, grad), first, last, way);
  if (way.stream) rn_stream_fence();
}

static void backward_lanes(const rn_problem *p, const rn_lane_range *range, rn_way way) {
  const rn_grad *grad = grad_for(p);
  grad_lanes(p, grad, rescued_for(p, grad), range, way);
  if (way.stream) rn_stream_fence();
}

static void dweight_cols(const rn_problem *p, int64_t vector, const float *sums, int64_t stride, int64_t parts,
                         int64_t first, int64_t last) {
  grad_finish(p, layout_of(p, grad_for(p)), vector, sums, stride, parts, first, last);
}

#if defined(RN_ISA_AVX512)
const rn_isa rn_isa_avx512 =
#elif defined(RN_ISA_AVX2)
const rn_isa rn_isa_avx2 =
#else
const rn_isa rn_isa_neon =
#endif
    {forward_rows, block_sums, apply_cols, backward_rows, backward_lanes, dweight_cols};
