/* plan_quantise.c - launches of the kernels of quantise.cu.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <string.h>

/* The shapes of the kernels, in the order in which kernels.h lists them for every type and sum. */
typedef struct shape {
  enum { WARP, BLOCK, CLUSTER } span;
  int32_t threads, loads;
} shape;
#define SHAPE(type, sum, span, threads, loads) {span, threads, loads},
static const shape shapes[] = {RN_QUANTISE_SHAPES(SHAPE, , )};
static const shape shapes_f32[] = {RN_QUANTISE_SHAPES_F32(SHAPE, , )};
enum { LANES = 8 /* of a thread */ };

/* The kernels of a type: the first of each list, [none, residual]. */
typedef struct kernel_list {
  const shape *shapes;
  size_t count;
  int32_t first[2];
} kernel_list;
#define FIRST(type)                                                                                                    \
  { RN_KERNEL_rn_quantise_##type##_none_WARP_8_8, RN_KERNEL_rn_quantise_##type##_residual_WARP_8_8 }
#define LIST(shapes, type)                                                                                             \
  { shapes, sizeof shapes / sizeof *shapes, FIRST(type) }
static const kernel_list lists[3] = {LIST(shapes, bf16), LIST(shapes, f16), LIST(shapes_f32, f32)};

typedef struct answer {
  int32_t kernel, threads, cluster, rows_of_block;
} answer;

/* ------------------------------------------------------------------------------------------------------------------
 * Alignment: a run is 16 bytes of x, and as many columns of q. */

static int32_t run_of(const rn_problem *p) {
  return 16 / p->x.size;
}

static bool aligned_view(const rn_view *view, int32_t bytes, bool heads) {
  if (view->data == NULL) return true;
  return ((uintptr_t)view->data | (uint64_t)view->row_bytes | (heads ? (uint64_t)view->head_bytes : 0)) %
             (uint32_t)bytes ==
         0;
}

static bool aligned(const rn_problem *p) {
  const bool heads = p->heads > 1, groups = p->groups > 1;
  if (p->group_cols % run_of(p) != 0 || !aligned_view(&p->q, run_of(p), heads)) return false;
  if (!aligned_view(&p->x, 16, heads) || !aligned_view(&p->y, 16, heads) || !aligned_view(&p->residual, 16, heads) ||
      !aligned_view(&p->residual_out, 16, heads))
    return false;
  return ((uintptr_t)p->weight | (heads ? (uint64_t)p->weight_head_bytes : 0) |
          (groups ? (uint64_t)p->weight_group_bytes : 0)) %
             16 ==
         0;
}

static const char *takes(const rn_problem *p) {
  const int32_t type = p->x.dtype;
  if (p->op != RMSNORM_OP_FORWARD || p->quant == RMSNORM_QUANT_NONE) return "quantised outputs only";
  if (p->gate.data != NULL) return "no gates";
  if (p->sumsq_in != NULL) return "no given sums";
  if (type == RMSNORM_DTYPE_F64) return "no f64";
  if ((p->y.data != NULL && p->y.dtype != type) || (p->residual.data != NULL && p->residual.dtype != type) ||
      (p->residual_out.data != NULL && p->residual_out.dtype != type))
    return "x, residual, residual_out and y of one type";
  if (p->weight != NULL && p->weight_dtype != type && p->weight_dtype != RMSNORM_DTYPE_F32)
    return "a weight of the type of x, or f32";
  if ((p->round_xhat != RMSNORM_DTYPE_F32 && p->round_xhat != type) ||
      (p->round_rstd != RMSNORM_DTYPE_F32 && p->round_rstd != type) ||
      (p->round_normed != RMSNORM_DTYPE_F32 && p->round_normed != type) ||
      (p->residual.data != NULL && p->round_sum != RMSNORM_DTYPE_F32 && p->round_sum != type))
    return "roundings to the type of x";
  if (p->groups > 1 && p->quant != RMSNORM_QUANT_TENSOR) return "groups have one scale for all";
  if (p->group_cols > 8 * RN_LANES_MAX) return "at most 524288 columns";
  if (p->rows > INT32_MAX / p->heads / p->groups) return "fewer than 2^31 rows";
  if (!aligned(p)) return "16-byte aligned rows";
  return NULL;
}

/* ------------------------------------------------------------------------------------------------------------------
 * The choice. */

static const char *choose(const rn_problem *p, int32_t most_blocks, answer *a) {
  const int64_t lanes = rn_lanes(p->group_cols), steps = (p->group_cols + lanes - 1) / lanes, team = lanes / LANES;
  const int64_t rows = p->rows * p->heads * p->groups;
  const kernel_list *list = &lists[p->x.dtype == RMSNORM_DTYPE_BF16 ? 0 : p->x.dtype == RMSNORM_DTYPE_F16 ? 1 : 2];
  const bool adds = p->residual.data != NULL;
  const bool blocks = p->quant == RMSNORM_QUANT_BLOCK || p->quant == RMSNORM_QUANT_MX;
  int span = WARP;
  if (blocks && p->block_cols > run_of(p) * (team < 32 ? team : 32)) return "a block of columns fits a warp";
  a->cluster = 1, a->threads = 64;
  if (team > 32) {
    /* Few long rows go on smaller blocks, several to a row. */
    const int64_t most = steps > 4 ? 256 : 512; /* RN_QUANTISE_THREADS */
    int64_t threads = team;
    if (rows <= 64 && p->group_cols >= 16384) threads = 128;
    while (threads > most) threads /= 2;
    if (p->group_cols >= 32768 && threads > 128 && rows > 64) threads = 128;
    if (most_blocks == 1) threads = team < most ? team : most;
    while (team / threads > most_blocks && threads < most) threads *= 2;
    a->threads = (int32_t)threads, a->cluster = (int32_t)(team / threads);
    span = a->cluster > 1 ? CLUSTER : BLOCK;
  }
  if (a->cluster > most_blocks) return "a row does not fit the registers of a block, and there are no clusters";
  a->rows_of_block = span == WARP ? a->threads / (int32_t)team : 1;
  for (size_t i = 0; i < list->count; i++) {
    const shape *s = &list->shapes[i];
    if ((int)s->span != span || (span == WARP && s->threads != team) || s->loads < steps) continue;
    a->kernel = list->first[adds] + (int32_t)i;
    return NULL;
  }
  return "rows longer than 524288 columns do not fit the registers of a cluster";
}

static void fill(const rn_problem *p, const rn_cuda_options *options, rn_cuda_quantise *q) {
  rn_cuda_forward *f = &q->f;
  memset(q, 0, sizeof *q);
  rn_cuda_fill_forward(p, options, f);
  q->q = rn_cuda_view_of(&p->q, p->group_cols);
  q->scale_in = p->scale_in, q->scale_out = p->scale_out;
  q->scale_row_stride = p->scale_row_stride, q->scale_block_stride = p->scale_block_stride;
  q->granularity = p->quant, q->dtype = p->quant_dtype;
  q->reciprocal = p->scale_op == RMSNORM_SCALE_RECIPROCAL, q->e8m0_rounding = p->e8m0_rounding;
  q->block_shift = p->block_cols == 128 ? 7 : p->block_cols == 64 ? 6 : 5;
  q->round_sum = f->residual.data != NULL && p->round_sum != RMSNORM_DTYPE_F32;
  q->round_normed = p->round_normed != RMSNORM_DTYPE_F32;
  q->scale_max = p->scale_max;
}

const char *rn_cuda_plan_quantise(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                                  rn_cuda_plan *plan) {
  const char *reason = takes(p);
  answer a = {0};
  if (reason != NULL) return reason;
  int32_t most_blocks = rn_cuda_most_blocks(device);
  if (options->multiprocessors > 0)
    while (most_blocks > options->multiprocessors) most_blocks /= 2;
  reason = choose(p, most_blocks, &a);
  if (reason != NULL) return reason;

  fill(p, options, &plan->params.quantise);
  int64_t blocks = (plan->params.quantise.f.rows + a.rows_of_block - 1) / a.rows_of_block * a.cluster;
  if (options->multiprocessors > 0 && blocks > options->multiprocessors)
    blocks = options->multiprocessors / a.cluster * a.cluster;
  if (blocks > INT32_MAX / 16 * 16) blocks = INT32_MAX / 16 * 16;
  plan->steps = 1;
  plan->step[0] = (rn_cuda_step){a.kernel, (uint32_t)blocks, (uint32_t)a.threads, (uint32_t)a.cluster, 0, 0};
  return NULL;
}
