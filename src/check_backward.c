/* check_backward.c - the arguments of rmsnorm_backward and of its workspace query.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "check_parts.h"

/* A workspace query may leave the pointers of inputs out; then their types tell which of them there will be. */
static bool is_present(const void *data, int32_t dtype, rn_check_mode mode) {
  return data != NULL || (mode == RN_CHECK_SIZES && dtype != RMSNORM_DTYPE_NONE);
}

static rmsnorm_status check_dweight(rn_problem *p, rn_check_mode mode, const rmsnorm_backward_args *a,
                                    rn_regions *regions) {
  if (!is_present(a->weight, a->weight_dtype, mode))
    return rn_error(RMSNORM_ERROR_COMBINATION, "dweight: is wanted, but weight is absent");
  TRY(check_dtype("dweight", a->dweight_dtype, floats_of(p)));
  bool per_head = a->weight_shape == RMSNORM_WEIGHT_HEADS_COLS, per_group = a->weight_shape == RMSNORM_WEIGHT_GROUP;
  p->dweight = a->dweight;
  p->dweight_dtype = a->dweight_dtype;
  p->dweight_size = rn_dtype_bytes[a->dweight_dtype];
  p->dweight_vectors = per_head ? p->heads : 1;
  p->dweight_cols = per_group ? p->group_cols : p->cols;
  p->dweight_rows = (per_head ? p->rows : p->rows * p->heads) * (per_group ? p->groups : 1);
  if (mode == RN_CHECK_SIZES) return RMSNORM_OK;
  return check_packed("dweight", a->dweight, p->dweight_vectors * p->dweight_cols, p->dweight_size,
                      &regions->output[regions->outputs++]);
}

rmsnorm_status rn_check_backward(const rmsnorm_backward_args *a, rn_check_mode mode, rn_problem *p,
                                 rn_regions *regions) {
  TRY(check_struct(a, a != NULL ? a->struct_size : 0, sizeof *a));
  const rmsnorm_numerics *n = &a->numerics;
  clear(p);
  p->op = RMSNORM_OP_BACKWARD;
  p->weight_offset = -0.0f;
  regions->inputs = regions->outputs = 0;
  TRY(check_sizes(p, a->rows, a->heads, a->cols, a->groups, a->divisor));
  TRY(check_execution(p, a->parallel, a->threads, a->device, a->impl, a->launch));
  TRY(check_dtype("x", a->x.dtype, FLOATS_AND_F64));
  p->x.dtype = a->x.dtype;
  TRY(check_eps(a->eps, p));
  TRY(check_numerics(n));
  TRY(check_range("weight_shape", a->weight_shape, RMSNORM_WEIGHT_GROUP));
  TRY(check_sum_dtype(p, a->sum_dtype));
  if (a->dweight != NULL) TRY(check_dweight(p, mode, a, regions));
  if (a->rows == 0) return RMSNORM_OK;

  if (mode == RN_CHECK_CALL) {
    if (a->x.data == NULL) return rn_error(RMSNORM_ERROR_NULL, "x: is NULL");
    if (a->dy.data == NULL) return rn_error(RMSNORM_ERROR_NULL, "dy: is NULL");
    TRY(check_gate_pair(a->gate.data, n->gate, "numerics.gate"));
  }
  if (a->dx.data == NULL && a->dresidual.data == NULL && a->dgate.data == NULL && a->dweight == NULL &&
      a->dot_out == NULL)
    return rn_error(RMSNORM_ERROR_NULL, "dx, dresidual, dgate, dweight, dot_out: all are NULL, nothing is wanted");
  if (a->dgate.data != NULL && n->gate == RMSNORM_GATE_NONE)
    return rn_error(RMSNORM_ERROR_COMBINATION, "dgate: is wanted, but numerics.gate is NONE");

  TRY(rn_check_input(p, mode, "x", &a->x, &p->x, regions));
  TRY(rn_check_input(p, mode, "dy", &a->dy, &p->dy, regions));
  if (is_present(a->weight, a->weight_dtype, mode)) {
    rn_region *region = &regions->input[regions->inputs];
    TRY(check_weight(p, mode, a->weight, a->weight_dtype, floats_of(p), a->weight_shape, n->weight_offset, region));
    if (mode == RN_CHECK_CALL) regions->inputs++;
  }
  if (is_present(a->residual.data, a->residual.dtype, mode))
    TRY(rn_check_input(p, mode, "residual", &a->residual, &p->residual, regions));
  if (n->gate != RMSNORM_GATE_NONE) TRY(rn_check_input(p, mode, "gate", &a->gate, &p->gate, regions));
  if (is_present(a->dresidual_out.data, a->dresidual_out.dtype, mode))
    TRY(rn_check_input(p, mode, "dresidual_out", &a->dresidual_out, &p->dresidual_out, regions));
  unsigned floats = floats_of(p);
  if (a->dx.data != NULL) TRY(rn_check_output(p, mode, "dx", &a->dx, floats, &p->dx, regions));
  if (a->dresidual.data != NULL)
    TRY(rn_check_output(p, mode, "dresidual", &a->dresidual, floats, &p->dresidual, regions));
  if (a->dgate.data != NULL) TRY(rn_check_output(p, mode, "dgate", &a->dgate, floats, &p->dgate, regions));

  p->gate_kind = n->gate;
  p->gate_before = n->gate != RMSNORM_GATE_NONE && n->gate_place == RMSNORM_GATE_BEFORE;
  p->round_sum = sum_type(p, n->round_sum, a->sum_dtype);
  /* The gradient is that of the formula without these three. */
  p->round_rstd = p->round_xhat = p->round_normed = full_type(p);
  /* A rounded rstd is not the one of that formula. */
  p->rstd_in = rounding_type(p, n->round_rstd) == full_type(p) ? a->rstd : NULL;
  p->sumsq_in = a->sumsq;
  p->dot_in = a->dot;
  p->dot_out = a->dot_out;
  if (mode == RN_CHECK_CALL) {
    int64_t statistics = p->rows * p->heads * p->groups;
    if (a->rstd != NULL)
      TRY(check_packed("rstd", a->rstd, statistics, rn_dtype_bytes[full_type(p)], &regions->input[regions->inputs++]));
    if (a->sumsq != NULL) TRY(check_packed("sumsq", a->sumsq, statistics, 4, &regions->input[regions->inputs++]));
    if (a->dot != NULL) TRY(check_packed("dot", a->dot, statistics, 4, &regions->input[regions->inputs++]));
    if (a->dot_out != NULL)
      TRY(check_packed("dot_out", a->dot_out, statistics, 4, &regions->output[regions->outputs++]));
  }
  if (p->heads > 1) rn_collapse_heads(p, regions);
  return mode == RN_CHECK_CALL ? rn_check_overlaps(p, regions) : RMSNORM_OK;
}
