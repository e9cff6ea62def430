/* plan_general.c - launches of the general kernels.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

/* Columns are 32-bit numbers in the kernels, and a step past the end must not overflow them. */
static const int64_t most_cols = (int64_t)1 << 30;
static const uint32_t warp_threads = 32;

static size_t aligned(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/* The row sums come first. */
static bool workspace_of(const rn_problem *p, size_t *partials, size_t *total) {
  const rn_chunks chunks = rn_chunks_of(p->dweight_rows, p->dweight_cols);
  const size_t each = sizeof(rn_row_sums), per_vector = (size_t)chunks.C * sizeof(float);
  const size_t most = SIZE_MAX / 2, rows = (size_t)(p->rows * p->heads);
  const size_t lines = (size_t)(p->dweight_vectors * p->dweight_cols);
  *partials = *total = most;
  if (rows > most / each / (size_t)p->groups || lines > most / per_vector / 2) return false;
  *partials = aligned(rows * (size_t)p->groups * each);
  *total = *partials + lines * per_vector;
  return true;
}

size_t rn_cuda_workspace_general(const rn_problem *p) {
  size_t partials, total;
  if (p->op != RMSNORM_OP_BACKWARD || !p->dweight) return 0;
  return workspace_of(p, &partials, &total) ? total : SIZE_MAX;
}

static uint32_t type_at(int32_t dtype, bool present, enum rn_type_place place) {
  return present ? (uint32_t)dtype << place : 0;
}
static uint32_t view_at(const rn_view *view, enum rn_type_place place) {
  return type_at(view->dtype, view->data != NULL, place);
}

static uint32_t types_of(const rn_problem *p) {
  return view_at(&p->x, RN_TYPE_X) | view_at(&p->residual, RN_TYPE_RESIDUAL) | view_at(&p->gate, RN_TYPE_GATE) |
         view_at(&p->y, RN_TYPE_Y) | view_at(&p->residual_out, RN_TYPE_RESIDUAL_OUT) | view_at(&p->dy, RN_TYPE_DY) |
         view_at(&p->dresidual_out, RN_TYPE_DRESIDUAL_OUT) | view_at(&p->dx, RN_TYPE_DX) |
         view_at(&p->dresidual, RN_TYPE_DRESIDUAL) | view_at(&p->dgate, RN_TYPE_DGATE) |
         type_at(p->weight_dtype, p->weight != NULL, RN_TYPE_WEIGHT) |
         type_at(p->round_sum, p->residual.data != NULL, RN_TYPE_ROUND_SUM) |
         type_at(p->round_xhat, true, RN_TYPE_ROUND_XHAT) | type_at(p->round_normed, true, RN_TYPE_ROUND_NORMED) |
         type_at(p->gate_kind, p->gate.data != NULL, RN_TYPE_GATE_KIND) |
         type_at(1, p->gate.data != NULL && p->gate_before, RN_TYPE_GATE_BEFORE);
}

/* As many blocks as there is work for, or as the caller allows. */
static uint32_t blocks_for(int64_t units, int64_t of_block, const rn_cuda_options *options) {
  int64_t blocks = units / of_block + (units % of_block != 0);
  if (options->multiprocessors > 0 && blocks > options->multiprocessors) blocks = options->multiprocessors;
  return (uint32_t)(blocks < 1 ? 1 : blocks > INT32_MAX ? INT32_MAX : blocks);
}

/* Kernels that work on rows: a warp each, or a block. */
static void add_rows(rn_cuda_plan *plan, int32_t kernel, int64_t units, const rn_cuda_options *options,
                     const rn_cuda_device *device) {
  const uint32_t lanes = (uint32_t)plan->params.call.lanes;
  rn_cuda_step *step = &plan->step[plan->steps++];
  *step = (rn_cuda_step){kernel, 1, 256, 1, 0, 1};
  if (lanes <= RN_GENERAL_WARP_LANES) {
    step->blocks = blocks_for(units, step->threads / warp_threads, options);
  } else {
    /* Each thread takes a few lanes of a row, so that several rows keep a multiprocessor busy; when there are not that
     * many rows, more threads finish the row sooner. */
    const uint32_t each = units >= 4 * (int64_t)device->multiprocessors ? 4 : 1;
    const bool light = kernel == RN_KERNEL_rn_general_forward || kernel == RN_KERNEL_rn_general_stats;
    const uint32_t most = light ? RN_GENERAL_THREADS : RN_GENERAL_HEAVY;
    step->threads = lanes / each;
    if (step->threads > most) step->threads = most;
    if (step->threads < 128) step->threads = 128;
    step->blocks = blocks_for(units, 1, options);
  }
  step->shared = (uint32_t)plan->params.call.slots * (uint32_t)sizeof(float);
  if (kernel == RN_KERNEL_rn_general_quantise) {
    const uint32_t crews = lanes <= RN_GENERAL_WARP_LANES ? step->threads / warp_threads : 1;
    step->shared += crews * 2 * RN_GENERAL_WINDOW * (uint32_t)sizeof(float);
  }
}

static void add_dweight(rn_cuda_plan *plan, const rn_cuda_options *options) {
  const rn_problem *p = &plan->params.call.p;
  const int64_t tiles = (p->dweight_cols + 31) / 32, chunks = plan->params.call.chunks.C;
  rn_cuda_step *step = &plan->step[plan->steps++];
  *step = (rn_cuda_step){RN_KERNEL_rn_general_dweight, 1, 256, 1, 0, 1};
  step->blocks = blocks_for(p->dweight_vectors * chunks * tiles, step->threads / warp_threads, options);
}

/* A thread adds some 16 chunks; a block has eight columns at least, because memory is read in pieces of 32 bytes. */
static void add_dweight_sum(rn_cuda_plan *plan, const rn_cuda_options *options) {
  rn_cuda_call *call = &plan->params.call;
  rn_cuda_step *step = &plan->step[plan->steps++];
  int32_t slices = 1;
  while (slices < RN_GENERAL_SLICES && slices * 16 < call->chunks.C) slices *= 2;
  call->slices = slices;
  *step = (rn_cuda_step){RN_KERNEL_rn_general_dweight_sum, 1, slices > 32 ? 8 * (uint32_t)slices : 256, 1, 0, 1};
  const int64_t columns = step->threads / (uint32_t)slices;
  step->blocks = blocks_for(call->p.dweight_vectors * ((call->p.dweight_cols + columns - 1) / columns), 1, options);
}

const char *rn_cuda_plan_general(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                                 rn_cuda_plan *plan) {
  rn_cuda_call *call = &plan->params.call;
  const int64_t rows = p->rows * p->heads, units = rows * p->groups;
  size_t partials, total;
  if (p->cols > most_cols) return "cols is more than 2^30";
  plan->steps = 0;
  call->p = *p;
  call->live_rows = options->live_rows;
  call->live_factor = p->live_factor;
  call->types = types_of(p);
  call->lanes = (int32_t)rn_lanes(p->group_cols);
  /* A warp's sum each, and two levels of the tree above them. */
  call->slots = call->lanes <= RN_GENERAL_WARP_LANES ? 0 : call->lanes / 32 + call->lanes / 1024 + 32;
  call->slices = 1;
  call->partials = 0;
  if (p->op == RMSNORM_OP_STATS) {
    add_rows(plan, RN_KERNEL_rn_general_stats, units, options, device);
  } else if (p->op == RMSNORM_OP_FORWARD && p->quant != RMSNORM_QUANT_NONE) {
    add_rows(plan, RN_KERNEL_rn_general_quantise, rows, options, device);
  } else if (p->op == RMSNORM_OP_FORWARD) {
    add_rows(plan, RN_KERNEL_rn_general_forward, units, options, device);
  } else if (!p->dweight) {
    add_rows(plan, RN_KERNEL_rn_general_dx, units, options, device);
  } else {
    if (!workspace_of(p, &partials, &total)) return "the workspace would not fit in memory";
    call->chunks = rn_chunks_of(p->dweight_rows, p->dweight_cols);
    call->partials = (int64_t)partials;
    add_rows(plan, RN_KERNEL_rn_general_row_sums, units, options, device);
    add_dweight(plan, options);
    if (p->dx.data || p->dresidual.data || p->dgate.data)
      add_rows(plan, RN_KERNEL_rn_general_dx, units, options, device);
    add_dweight_sum(plan, options);
  }
  return NULL;
}
