/* check_forward.c - the arguments of rmsnorm_forward and rmsnorm_stats.
 *
 * One value is read through a pointer of the caller, a quantiser's given scale; nothing is written.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "check_parts.h"

#include <float.h>

static rmsnorm_status check_quant_values(const rn_problem *p, const rmsnorm_quant *quant) {
  int32_t granularity = quant->granularity;
  bool bounded = granularity == RMSNORM_QUANT_ROW || granularity == RMSNORM_QUANT_BLOCK;
  bool blocked = granularity == RMSNORM_QUANT_BLOCK || granularity == RMSNORM_QUANT_MX;
  TRY(check_range("quant.granularity", granularity, RMSNORM_QUANT_MX));
  TRY(check_range("quant.scale_op", quant->scale_op, RMSNORM_SCALE_RECIPROCAL));
  TRY(check_range("quant.scale_layout", quant->scale_layout, RMSNORM_SCALE_COL_MAJOR));
  TRY(check_range("quant.e8m0_rounding", quant->e8m0_rounding, RMSNORM_E8M0_CEIL));
  if (granularity == RMSNORM_QUANT_BLOCK) {
    if (quant->block_cols != 32 && quant->block_cols != 64 && quant->block_cols != 128)
      return rn_error(RMSNORM_ERROR_SIZE, "quant.block_cols: must be 32, 64 or 128, is %" PRId32, quant->block_cols);
  } else if (quant->block_cols != 0) {
    return rn_error(RMSNORM_ERROR_COMBINATION, "quant.block_cols: is %" PRId32 ", but only BLOCK has it; leave it 0",
                    quant->block_cols);
  }
  uint32_t max_bits = bits_of_float(quant->scale_max);
  if (max_bits != 0 && !is_positive_finite(quant->scale_max))
    return rn_error(RMSNORM_ERROR_VALUE, "quant.scale_max: must be 0 (none) or positive and finite, is %g",
                    (double)quant->scale_max);
  if (max_bits != 0 && !bounded)
    return rn_error(RMSNORM_ERROR_COMBINATION, "quant.scale_max: only ROW and BLOCK bound their scales; leave it 0");
  if (blocked && quant->scale_stride != 0) {
    int64_t block = granularity == RMSNORM_QUANT_MX ? 32 : quant->block_cols;
    int64_t least =
        quant->scale_layout == RMSNORM_SCALE_COL_MAJOR ? p->rows * p->heads : p->cols / block + (p->cols % block != 0);
    if (quant->scale_stride < least)
      return rn_error(RMSNORM_ERROR_STRIDE, "quant.scale_stride: must be 0 or at least %" PRId64 ", is %" PRId64, least,
                      quant->scale_stride);
  }
  TRY(check_dtype("quant.q", quant->q.dtype, QUANTISED));
  if (granularity == RMSNORM_QUANT_MX && quant->q.dtype == RMSNORM_DTYPE_INT8)
    return rn_error(RMSNORM_ERROR_COMBINATION, "quant.q: MX takes fp8_e4m3 or fp8_e5m2, found int8");
  return RMSNORM_OK;
}

/* The scales of ROW, BLOCK and MX: their layout as the problem has it, and their region. */
static rmsnorm_status check_scale_out(rn_problem *p, const rmsnorm_quant *quant, rn_regions *regions) {
  int64_t rows = p->rows * p->heads;
  int64_t size = quant->granularity == RMSNORM_QUANT_MX ? 1 : 4;
  int64_t blocks = p->blocks, stride = quant->scale_stride, extent;
  bool by_column = quant->granularity != RMSNORM_QUANT_ROW && quant->scale_layout == RMSNORM_SCALE_COL_MAJOR;
  int64_t lines = by_column ? blocks : rows, length = by_column ? rows : blocks;
  if (quant->granularity == RMSNORM_QUANT_ROW || stride == 0) stride = length;
  if (__builtin_mul_overflow(stride, lines - 1, &extent) || __builtin_add_overflow(extent, length, &extent) ||
      __builtin_mul_overflow(extent, size, &extent))
    return rn_error(RMSNORM_ERROR_STRIDE, "quant.scale_stride: %" PRId64 " overflows", stride);
  p->scale_out = quant->scale_out;
  p->scale_row_stride = by_column ? 1 : stride;
  p->scale_block_stride = by_column ? stride : 1;
  rn_region *region = &regions->output[regions->outputs++];
  TRY(check_packed("quant.scale_out", quant->scale_out, extent / size, size, region));
  int64_t line_bytes, row_bytes;
  if (!by_column && !__builtin_mul_overflow(stride, size, &line_bytes) &&
      !__builtin_mul_overflow(line_bytes, p->heads, &row_bytes)) {
    /* Scales may lie between the rows of q in one buffer. The dtype is NONE so that they never pass for a tensor. */
    regions->scale = (rn_view){quant->scale_out, p->rows > 1 ? row_bytes : 0, p->heads > 1 ? line_bytes : 0,
                               RMSNORM_DTYPE_NONE, (int32_t)size};
    region->view = &regions->scale;
    region->width = length * size;
  }
  return RMSNORM_OK;
}

static rmsnorm_status check_quant(rn_problem *p, const rmsnorm_quant *quant, rn_regions *regions) {
  bool given = quant->granularity == RMSNORM_QUANT_TENSOR;
  if (quant->q.data == NULL) return rn_error(RMSNORM_ERROR_NULL, "quant.q: is NULL, but quant.granularity is not NONE");
  if (given ? quant->scale == NULL : quant->scale_out == NULL)
    return rn_error(RMSNORM_ERROR_NULL, "quant.%s: is NULL, but quant.granularity needs it",
                    given ? "scale" : "scale_out");
  if (given ? quant->scale_out != NULL : quant->scale != NULL)
    return rn_error(RMSNORM_ERROR_COMBINATION, "quant.%s: is given, but this quant.granularity does not use it",
                    given ? "scale_out" : "scale");
  p->quant = quant->granularity;
  p->quant_dtype = quant->q.dtype;
  p->scale_op = quant->scale_op;
  p->e8m0_rounding = quant->e8m0_rounding;
  p->scale_max = bits_of_float(quant->scale_max) == 0 ? FLT_MAX : quant->scale_max;
  p->block_cols = quant->granularity == RMSNORM_QUANT_MX ? 32 : quant->block_cols;
  p->blocks = p->block_cols != 0 ? p->cols / p->block_cols + (p->cols % p->block_cols != 0) : 1;
  TRY(check_output(p, "quant.q", &quant->q, QUANTISED, &p->q, regions));
  if (!given) return check_scale_out(p, quant, regions);
  p->scale_in = quant->scale;
  TRY(check_packed("quant.scale", quant->scale, 1, 4, &regions->input[regions->inputs++]));
  if (p->device == RMSNORM_DEVICE_CPU && !is_positive_finite(quant->scale[0]))
    return rn_error(RMSNORM_ERROR_VALUE, "quant.scale: must be positive and finite, is %g", (double)quant->scale[0]);
  return RMSNORM_OK;
}

/* One row of 64 columns takes no longer than all the checks below. So the plainest call has a short way: y from x and
 * perhaps a weight of [cols], float32 throughout, nothing else. true: *p is what check_call makes of it. It never
 * refuses; false means that check_call has to look, at a larger call or at what is wrong with this one. */
RN_INLINE bool is_plain_call(const rmsnorm_forward_args *a, rn_problem *p) {
  const rmsnorm_numerics *n = &a->numerics;
  int32_t switches = n->round_sum | n->round_rstd | n->round_xhat | n->round_normed | n->gate | n->gate_place |
                     a->weight_shape | a->quant.granularity | a->device;
  uintptr_t extras = (uintptr_t)a->residual.data | (uintptr_t)a->gate.data | (uintptr_t)a->residual_out.data |
                     (uintptr_t)a->rstd | (uintptr_t)a->sumsq | (uintptr_t)a->parallel | (uintptr_t)a->launch;
  if (switches != 0 || extras != 0 || a->divisor != 0 || a->heads != 1 || a->groups != 1 || a->threads < 0 ||
      a->x.data == NULL || a->y.data == NULL || bits_of_double(a->eps) > FLT_MAX_AS_DOUBLE_BITS)
    return false;
  clear(p);
  p->op = RMSNORM_OP_FORWARD;
  p->device = RMSNORM_DEVICE_CPU;
  p->rows = a->rows;
  p->heads = p->groups = 1;
  p->cols = p->group_cols = p->divisor = a->cols;
  p->eps = a->eps;
  p->impl = a->impl;
  p->threads = a->threads;
  p->live_factor = 1;
  p->round_sum = p->round_rstd = p->round_xhat = p->round_normed = RMSNORM_DTYPE_F32;
  p->weight_offset = -0.0f;
  rn_region x, y, weight = {0};
  if (!plain_input(p, "x", &a->x, FLOATS, &p->x, &x) || !plain_output(p, "y", &a->y, FLOATS, &p->y, &y) ||
      (ranges_cross(&y, &x) && !same_tensor(&p->y, &p->x)))
    return false;
  if (a->weight == NULL) return true;
  return check_weight(p, RN_CHECK_CALL, a->weight, a->weight_dtype, FLOATS, RMSNORM_WEIGHT_COLS, n->weight_offset,
                      &weight) == RMSNORM_OK &&
         !ranges_cross(&y, &weight);
}

/* Every call; struct_size has been looked at. Out of line: the short way needs few of its registers. */
static __attribute__((noinline)) rmsnorm_status check_call(const rmsnorm_forward_args *a, rn_problem *p) {
  const rmsnorm_numerics *n = &a->numerics;
  clear(p);
  p->op = RMSNORM_OP_FORWARD;
  p->weight_offset = -0.0f;
  TRY(check_sizes(p, a->rows, a->heads, a->cols, a->groups, a->divisor));
  TRY(check_execution(p, a->parallel, a->threads, a->device, a->impl, a->launch));
  TRY(check_dtype("x", a->x.dtype, FLOATS_AND_F64));
  p->x.dtype = a->x.dtype;
  TRY(check_eps(a->eps, p));
  TRY(check_numerics(n));
  TRY(check_range("weight_shape", a->weight_shape, RMSNORM_WEIGHT_GROUP));
  if (a->quant.granularity != RMSNORM_QUANT_NONE) TRY(check_quant_values(p, &a->quant));
  if (a->rows == 0) return RMSNORM_OK;

  if (a->x.data == NULL) return rn_error(RMSNORM_ERROR_NULL, "x: is NULL");
  if (a->y.data == NULL && a->quant.granularity == RMSNORM_QUANT_NONE)
    return rn_error(RMSNORM_ERROR_NULL, "y: is NULL, and there is no quant.q either");
  if (a->residual_out.data != NULL && a->residual.data == NULL)
    return rn_error(RMSNORM_ERROR_COMBINATION, "residual_out: is given, but residual is absent");
  TRY(check_gate_pair(a->gate.data, n->gate, "numerics.gate"));

  rn_regions regions;
  regions.inputs = regions.outputs = 0;
  TRY(check_input(p, "x", &a->x, &p->x, &regions));
  if (a->weight != NULL) {
    rn_region *region = &regions.input[regions.inputs++];
    TRY(check_weight(p, RN_CHECK_CALL, a->weight, a->weight_dtype, floats_of(p), a->weight_shape, n->weight_offset,
                     region));
  }
  if (a->residual.data != NULL) TRY(check_input(p, "residual", &a->residual, &p->residual, &regions));
  if (a->gate.data != NULL) TRY(check_input(p, "gate", &a->gate, &p->gate, &regions));
  if (a->y.data != NULL) TRY(check_output(p, "y", &a->y, floats_of(p), &p->y, &regions));
  if (a->residual_out.data != NULL)
    TRY(check_output(p, "residual_out", &a->residual_out, floats_of(p), &p->residual_out, &regions));
  int64_t statistics = p->rows * p->heads * p->groups;
  if (a->rstd != NULL) {
    p->rstd_out = a->rstd;
    TRY(check_packed("rstd", a->rstd, statistics, rn_dtype_bytes[full_type(p)], &regions.output[regions.outputs++]));
  }
  if (a->sumsq != NULL) {
    p->sumsq_in = a->sumsq;
    TRY(check_packed("sumsq", a->sumsq, statistics, 4, &regions.input[regions.inputs++]));
  }
  if (a->quant.granularity != RMSNORM_QUANT_NONE) TRY(check_quant(p, &a->quant, &regions));
  TRY(check_live_rows(p, &regions));

  p->gate_kind = n->gate;
  p->gate_before = n->gate != RMSNORM_GATE_NONE && n->gate_place == RMSNORM_GATE_BEFORE;
  p->round_sum = sum_type(p, n->round_sum, p->residual_out.dtype);
  p->round_rstd = rounding_type(p, n->round_rstd);
  p->round_xhat = rounding_type(p, n->round_xhat);
  p->round_normed = rounding_type(p, n->round_normed);
  /* Where y is all that follows, its own rounding is this one. */
  if (p->round_normed == p->y.dtype && p->quant == RMSNORM_QUANT_NONE &&
      (p->gate_kind == RMSNORM_GATE_NONE || p->gate_before))
    p->round_normed = full_type(p);

  if (p->heads > 1) rn_collapse_heads(p, &regions);
  return rn_check_overlaps(p, &regions);
}

rmsnorm_status rn_check_forward(const rmsnorm_forward_args *a, rn_problem *p) {
  TRY(check_struct(a, a != NULL ? a->struct_size : 0, sizeof *a));
  return is_plain_call(a, p) ? RMSNORM_OK : check_call(a, p);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Split statistics. */

rmsnorm_status rn_check_stats(const rmsnorm_stats_args *a, rn_problem *p) {
  TRY(check_struct(a, a != NULL ? a->struct_size : 0, sizeof *a));
  clear(p);
  p->op = RMSNORM_OP_STATS;
  p->weight_offset = -0.0f;
  TRY(check_sizes(p, a->rows, a->heads, a->cols, a->groups, 0));
  TRY(check_execution(p, a->parallel, a->threads, a->device, a->impl, a->launch));
  if (a->x.dtype == RMSNORM_DTYPE_F64)
    return rn_error(RMSNORM_ERROR_COMBINATION, "x: is f64, but split statistics are float32");
  TRY(check_dtype("x", a->x.dtype, FLOATS));
  p->x.dtype = a->x.dtype;
  if (a->round_sum != RMSNORM_ROUND_NONE && a->round_sum != RMSNORM_ROUND_STORED)
    return rn_error(RMSNORM_ERROR_ENUM, "round_sum: expected NONE (0) or STORED (4), found %" PRId32, a->round_sum);
  TRY(check_sum_dtype(p, a->sum_dtype));
  TRY(check_range("gate_kind", a->gate_kind, RMSNORM_GATE_SIGMOID));
  TRY(check_reserved("args", a->reserved));
  if (a->rows == 0) return RMSNORM_OK;

  if (a->x.data == NULL) return rn_error(RMSNORM_ERROR_NULL, "x: is NULL");
  if (a->sumsq == NULL) return rn_error(RMSNORM_ERROR_NULL, "sumsq: is NULL");
  TRY(check_gate_pair(a->gate.data, a->gate_kind, "gate_kind"));
  rn_regions regions;
  regions.inputs = regions.outputs = 0;
  TRY(check_input(p, "x", &a->x, &p->x, &regions));
  if (a->residual.data != NULL) TRY(check_input(p, "residual", &a->residual, &p->residual, &regions));
  if (a->gate.data != NULL) TRY(check_input(p, "gate", &a->gate, &p->gate, &regions));
  p->sumsq_out = a->sumsq;
  TRY(check_packed("sumsq", a->sumsq, p->rows * p->heads * p->groups, 4, &regions.output[regions.outputs++]));
  TRY(check_live_rows(p, &regions));

  p->gate_kind = a->gate_kind;
  p->gate_before = a->gate_kind != RMSNORM_GATE_NONE;
  p->round_sum = sum_type(p, a->round_sum, a->sum_dtype);
  p->round_rstd = p->round_xhat = p->round_normed = full_type(p);
  if (p->heads > 1) rn_collapse_heads(p, &regions);
  return rn_check_overlaps(p, &regions);
}
