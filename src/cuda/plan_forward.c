/* plan_forward.c - launches of the kernels of forward.cu.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <string.h>

/* The shapes of the kernels, in the order in which kernels.h lists them for every type and sum. */
typedef struct shape {
  enum { WARP, BLOCK, CLUSTER } span;
  int32_t threads, loads, rows;
} shape;
#define SHAPE(type, sum, lanes, span, threads, loads, rows) {span, threads, loads, rows},
static const shape wide_shapes[] = {RN_FORWARD_WIDE(SHAPE, , )};
enum { WIDE_SHAPES = sizeof wide_shapes / sizeof *wide_shapes, LANES = 8 /* of a thread, in the wide ones */ };

enum sum { NONE, STORED, EXACT };
/* The first kernel of each type and sum; -1: there is none. [bf16, f16, f32][sum] */
static const int32_t wide_first[3][3] = {
    {RN_KERNEL_rn_forward_bf16_none_8_WARP_8_1, RN_KERNEL_rn_forward_bf16_stored_8_WARP_8_1,
     RN_KERNEL_rn_forward_bf16_exact_8_WARP_8_1},
    {RN_KERNEL_rn_forward_f16_none_8_WARP_8_1, RN_KERNEL_rn_forward_f16_stored_8_WARP_8_1,
     RN_KERNEL_rn_forward_f16_exact_8_WARP_8_1},
    {RN_KERNEL_rn_forward_f32_none_8_WARP_8_1, RN_KERNEL_rn_forward_f32_stored_8_WARP_8_1, -1}};
enum { TYPE_bf16, TYPE_f16, TYPE_f32 };
#define SUM_none   NONE
#define SUM_stored STORED
/* The kernels for few rows. */
#define FEW(type, sum, lanes, span, loads)                                                                             \
  {RN_KERNEL_rn_few_##type##_##sum##_##lanes##_##span##_##loads,                                                       \
   TYPE_##type,                                                                                                        \
   SUM_##sum,                                                                                                          \
   lanes,                                                                                                              \
   {span, RN_FEW_THREADS(lanes, span, loads), loads, 1}},
static const struct few {
  int32_t kernel, type, sum, lanes;
  shape shape;
} fews[] = {RN_FEW_INSTANCES(FEW)};
enum { FEWS = sizeof fews / sizeof *fews };

/* The kernels of the ring. */
#define RING(type, sum, span, loads, stages, threads, registers)                                                       \
  {RN_KERNEL_rn_ring_##type##_##sum##_##span##_##loads##_##threads, TYPE_##type, SUM_##sum, {span, threads, loads, 1}},
static const struct ring {
  int32_t kernel, type, sum;
  shape shape;
} rings[] = {RN_RING_INSTANCES(RING)};
enum { RINGS = sizeof rings / sizeof *rings };

static int type_index(int32_t dtype) {
  return dtype == RMSNORM_DTYPE_BF16 ? TYPE_bf16 : dtype == RMSNORM_DTYPE_F16 ? TYPE_f16 : TYPE_f32;
}

/* What the choice is made from. */
typedef struct question {
  int64_t rows, lanes, steps; /* W(cols); steps of W columns in a row */
  int32_t cols, size;
  enum sum sum;
  int type;
  bool weight_differs;   /* from head to head or group to group */
  int32_t most_blocks;   /* of a cluster; 1: no clusters */
  uint32_t shared_bytes; /* for the stages of a ring */
} question;

/* How a row lies on threads. */
typedef struct answer {
  int32_t kernel, threads, cluster, rows_of_block;
  uint32_t shared; /* the ring's */
} answer;

/* ------------------------------------------------------------------------------------------------------------------
 * Alignment: every run of columns is one access. */

static bool aligned_view(const rn_view *view, uint32_t bytes, bool heads) {
  if (view->data == NULL) return true;
  return ((uintptr_t)view->data | (uint64_t)view->row_bytes | (heads ? (uint64_t)view->head_bytes : 0)) % bytes == 0;
}

static bool aligned(const rn_problem *p, int32_t lanes) {
  const bool heads = p->heads > 1, groups = p->groups > 1;
  const int32_t run = lanes * p->x.size > 16 ? 16 / p->x.size : lanes;
  const uint32_t bytes = (uint32_t)(run * p->x.size);
  if (p->group_cols % run != 0) return false;
  if (!aligned_view(&p->x, bytes, heads) || !aligned_view(&p->y, bytes, heads) ||
      !aligned_view(&p->residual, bytes, heads) || !aligned_view(&p->residual_out, bytes, heads))
    return false;
  if (p->weight == NULL) return true;
  const uint32_t access = p->weight_size * run > 16 ? 16 : (uint32_t)(p->weight_size * run);
  return ((uintptr_t)p->weight | (heads ? (uint64_t)p->weight_head_bytes : 0) |
          (groups ? (uint64_t)p->weight_group_bytes : 0)) %
             access ==
         0;
}

/* ------------------------------------------------------------------------------------------------------------------
 * The choice. Measured on one H200, bf16, against the best copy kernel of the same run; docs/performance.md has the
 * tables. */

/* Few rows: a launch has so few that its time is that of one row. Up to 4096 columns that is so for 2048 rows as well:
 * 9.8 us where the wide kernels take 10.0, 2.0 against 2.5 at 64 columns. */
static bool is_few(const question *q) {
  return q->rows <= (q->cols <= 4096 ? 2048 : q->cols < 16384 ? 256 : 64);
}

/* Lanes of a thread: as few as blocks of 128 to 256 threads allow, for the fewer it has the sooner it is done, but
 * large blocks start and meet late; from 1024 rows on, where blocks wait for their turn, blocks of 64 to 128. */
static int32_t few_lanes(const question *q) {
  const int32_t wide = q->size == 4 ? 4 : 8, row = (int32_t)q->lanes;
  if (q->rows < 1024) return row <= 256 ? 2 : row <= 1024 ? 4 : wide;
  return row <= 128 ? 2 : row <= 256 || (row == 512 && q->steps > 4) ? 4 : wide;
}

/* A row of 32 KiB is moved sooner by several blocks than by one: up to sixteen where there are rows for no more, eight
 * beside a few others. `most`: lanes that alignment allows, 2 or all. */
static bool choose_few(const question *q, int32_t most, answer *a) {
  const int32_t row = (int32_t)q->lanes, bytes = q->cols * q->size * (q->sum == NONE ? 1 : 2);
  const bool spread = bytes >= (q->rows <= 16 ? 32768 : 65536);
  int32_t lanes = few_lanes(q);
  if (lanes > most) lanes = most;
  int span = row == 64 ? WARP : BLOCK;
  a->threads = row / lanes, a->cluster = 1;
  if (span == WARP) a->threads = RN_FEW_WARP_THREADS;
  const int32_t threads = RN_FEW_THREADS(lanes, BLOCK, q->steps > 6 ? 8 : 6); /* most of a block */
  if (span == BLOCK && q->most_blocks > 1 && (spread || a->threads > threads)) {
    const bool others = q->rows > 4 && q->most_blocks > 8 && row / lanes <= 8 * threads;
    a->threads = 64;
    while (row / lanes / a->threads > (others ? 8 : q->most_blocks)) a->threads *= 2;
    a->cluster = row / lanes / a->threads, span = a->cluster > 1 ? CLUSTER : BLOCK;
  }
  a->rows_of_block = span == WARP ? a->threads / 32 : 1;
  for (int i = 0; i < FEWS; i++) {
    const struct few *f = &fews[i];
    if (f->type != q->type || f->sum != (int32_t)q->sum || f->lanes != lanes || (int)f->shape.span != span) continue;
    if (f->shape.loads < q->steps || f->shape.threads < a->threads) continue;
    a->kernel = f->kernel;
    return true;
  }
  return false;
}

/* A row in one block up to this many threads, or in a cluster. */
static void lay_out(const question *q, answer *a, int *span) {
  const int64_t team = q->lanes / LANES;
  a->cluster = 1;
  if (team <= 32) {
    *span = WARP;
    /* Blocks of two warps leave sooner than blocks of four: 4 % at 1024 columns, 1 to 5 % elsewhere. One warp: 20 %
     * slower, a multiprocessor does not hold enough of them. */
    a->threads = 64;
    return;
  }
  const int64_t most = q->size * (q->sum == NONE ? 1 : 2) * LANES * q->steps > 256 ? 256 : 512;
  int64_t threads = team;
  if (q->rows <= 64 && q->cols >= 16384) threads = 128;
  while (threads > most) threads /= 2;
  if (q->cols >= 32768 && threads > 128 && q->rows > 64) threads = 128;
  while (team / threads > q->most_blocks && threads < most) threads *= 2;
  a->threads = (int32_t)threads;
  a->cluster = (int32_t)(team / threads);
  *span = a->cluster > 1 ? CLUSTER : BLOCK;
}

/* The ring, for many long rows: from 12288 columns on it is faster than registers alone (bf16: 2 % at 12288 and 16384,
 * 15 % at 32768, twice as fast at 262144), below that slower or equal. Few rows for a cluster, so that the hardware
 * evens out unequal shares of memory: two; four from 65536 columns on, where a cluster has fewer neighbours; six at
 * 262144. */
static bool choose_ring(const question *q, answer *a) {
  const int64_t team = q->lanes / 8;
  if (q->most_blocks < 2 || q->cols < 12288 || q->rows < (q->cols >= 131072 ? 256 : 512)) return false;
  const int64_t most = q->steps > 4 ? 256 : 512;
  int64_t threads = team > most ? most : team;
  /* Two tensors and f32 take more shared memory: smaller blocks keep several of them on a multiprocessor. */
  if (q->sum != NONE && q->size == 2) threads = q->cols == 16384 ? 256 : 128;
  if (q->size == 4) threads = q->sum != NONE && q->cols >= 32768 ? 128 : 256;
  if (q->size == 4 && q->sum != NONE && q->cols < 16384) return false;
  if (threads > team) threads = team;
  while (team / threads > q->most_blocks && threads < most) threads *= 2;
  if (team / threads > q->most_blocks) return false;
  a->threads = (int32_t)threads, a->cluster = (int32_t)(team / threads);
  a->rows_of_block = q->cols >= 262144 ? 6 : q->cols >= 65536 ? 4 : q->cols >= 32768 || q->sum == NONE ? 2 : 1;
  if (q->sum != NONE && q->cols < 131072) a->rows_of_block = q->cols >= 32768 ? 2 : 1;
  for (int i = 0; i < RINGS; i++) {
    const shape *s = &rings[i].shape;
    if (rings[i].type != q->type || rings[i].sum != (int32_t)q->sum) continue;
    if ((int)s->span != (a->cluster > 1 ? CLUSTER : BLOCK) || s->loads < q->steps || s->threads < threads) continue;
    a->kernel = rings[i].kernel;
    a->shared = (uint32_t)(RN_FORWARD_STAGES * s->loads * 8 * a->threads * q->size * (q->sum == NONE ? 1 : 2));
    return a->shared <= q->shared_bytes;
  }
  return false;
}

static const char *choose(const question *q, answer *a) {
  const int32_t first = wide_first[q->type][q->sum], team = (int32_t)(q->lanes / LANES);
  int span;
  if (first < 0) return "no kernel for this sum";
  lay_out(q, a, &span);
  if (a->cluster > q->most_blocks) return "a row does not fit the registers of a block, and there are no clusters";
  for (int i = 0; i < WIDE_SHAPES; i++) {
    const shape *s = &wide_shapes[i];
    if ((int)s->span != span || (span == WARP && s->threads != team) || s->loads < q->steps) continue;
    if (s->rows > 1 && q->weight_differs) continue;
    a->kernel = first + i;
    a->rows_of_block = span == WARP ? a->threads / team * s->rows : 1;
    return NULL;
  }
  return "rows longer than 524288 columns do not fit the registers of a cluster";
}

/* ------------------------------------------------------------------------------------------------------------------
 * The plan. */

static const char *takes(const rn_problem *p) {
  const int32_t type = p->x.dtype;
  if (p->op != RMSNORM_OP_FORWARD) return "forward only";
  if (p->quant != RMSNORM_QUANT_NONE || p->y.data == NULL) return "no quantised outputs";
  if (p->gate.data != NULL) return "no gates";
  if (p->sumsq_in != NULL) return "no given sums";
  if (type == RMSNORM_DTYPE_F64) return "no f64";
  if (p->y.dtype != type || (p->residual.data != NULL && p->residual.dtype != type) ||
      (p->residual_out.data != NULL && p->residual_out.dtype != type))
    return "x, residual, residual_out and y of one type";
  if (p->weight != NULL && p->weight_dtype != type && p->weight_dtype != RMSNORM_DTYPE_F32)
    return "a weight of the type of x, or f32";
  if (p->round_normed != RMSNORM_DTYPE_F32) return "round_normed NONE";
  if ((p->round_xhat != RMSNORM_DTYPE_F32 && p->round_xhat != type) ||
      (p->round_rstd != RMSNORM_DTYPE_F32 && p->round_rstd != type) ||
      (p->residual.data != NULL && p->round_sum != RMSNORM_DTYPE_F32 && p->round_sum != type))
    return "roundings to the type of x";
  if (p->group_cols > 8 * RN_LANES_MAX) return "at most 524288 columns";
  if (p->rows > INT32_MAX / p->heads / p->groups) return "fewer than 2^31 rows";
  return NULL;
}

rn_cuda_view rn_cuda_view_of(const rn_view *view, int64_t group_cols) {
  return (rn_cuda_view){view->data, view->row_bytes, view->head_bytes, group_cols * view->size};
}
/* 2^64 / by, rounded up; 0 for 1. */
static uint64_t magic(int64_t by) {
  return by == 1 ? 0 : UINT64_MAX / (uint64_t)by + 1;
}

void rn_cuda_fill_forward(const rn_problem *p, const rn_cuda_options *options, rn_cuda_forward *f) {
  memset(f, 0, sizeof *f);
  f->x = rn_cuda_view_of(&p->x, p->group_cols), f->y = rn_cuda_view_of(&p->y, p->group_cols);
  f->residual = rn_cuda_view_of(&p->residual, p->group_cols),
  f->residual_out = rn_cuda_view_of(&p->residual_out, p->group_cols);
  f->weight = p->weight;
  f->weight_head_bytes = p->heads > 1 ? p->weight_head_bytes : 0;
  f->weight_group_bytes = p->groups > 1 ? p->weight_group_bytes : 0;
  f->rstd_out = p->rstd_out;
  f->rows = p->rows * p->heads * p->groups;
  f->heads = (int32_t)p->heads, f->groups = (int32_t)p->groups;
  f->heads_magic = magic(p->heads), f->groups_magic = magic(p->groups);
  f->cols = (int32_t)p->group_cols;
  f->divisor = (float)p->divisor, f->inverse = 1.0f / f->divisor, f->eps = (float)p->eps,
  f->weight_offset = p->weight_offset;
  f->weight_is_f32 = p->weight_dtype == RMSNORM_DTYPE_F32;
  f->round_xhat = p->round_xhat != RMSNORM_DTYPE_F32, f->round_rstd = p->round_rstd != RMSNORM_DTYPE_F32;
  f->live_rows = options->live_rows;
  f->live_factor = p->live_factor * p->heads * p->groups;
  f->live_most = f->rows / f->live_factor;
}

const char *rn_cuda_plan_forward(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                                 rn_cuda_plan *plan) {
  const char *reason = takes(p);
  if (reason != NULL) return reason;
  question q;
  answer a = {0}, ring = {0};
  q.rows = p->rows * p->heads * p->groups;
  q.lanes = rn_lanes(p->group_cols);
  q.steps = (p->group_cols + q.lanes - 1) / q.lanes;
  q.cols = (int32_t)p->group_cols, q.size = p->x.size;
  q.type = type_index(p->x.dtype);
  q.sum = p->residual.data == NULL ? NONE : p->round_sum == p->x.dtype ? STORED : EXACT;
  q.weight_differs = (p->heads > 1 && p->weight_head_bytes != 0) || (p->groups > 1 && p->weight_group_bytes != 0);
  q.most_blocks = rn_cuda_most_blocks(device);
  if (options->multiprocessors > 0)
    while (q.most_blocks > options->multiprocessors) q.most_blocks /= 2;

  /* A kilobyte is the kernel's own. */
  q.shared_bytes = device->shared_bytes > 1024 ? (uint32_t)device->shared_bytes - 1024 : 0;
  /* The kernels for few rows know one row a team, at its stride; those of two lanes are there for rows
   * that are aligned to no more, however many. */
  const bool plain =
      p->heads * p->groups == 1 && p->weight != NULL && options->live_rows == NULL && options->multiprocessors == 0;
  const bool wide = aligned(p, LANES);
  reason = "rows aligned to 16 bytes (without heads and groups: to two elements)";
  if (wide && choose_ring(&q, &ring)) a = ring, reason = NULL;
  if (reason != NULL && wide && plain && is_few(&q) && choose_few(&q, LANES, &a)) reason = NULL;
  if (reason != NULL && wide) a = (answer){0}, reason = choose(&q, &a);
  if (reason != NULL && plain && aligned(p, 2) && choose_few(&q, 2, &a)) reason = NULL;
  if (reason != NULL) return reason;

  rn_cuda_fill_forward(p, options, &plan->params.forward);
  plan->params.forward.rows_of_cluster = a.rows_of_block;
  int64_t blocks = (q.rows + a.rows_of_block - 1) / a.rows_of_block * a.cluster;
  if (options->multiprocessors > 0 && blocks > options->multiprocessors) {
    blocks = options->multiprocessors / a.cluster * a.cluster;
    /* The ring's clusters do not come back for more. */
    const int64_t clusters = blocks / a.cluster;
    if (a.shared > 0) plan->params.forward.rows_of_cluster = (int32_t)((q.rows + clusters - 1) / clusters);
  }
  if (blocks > INT32_MAX / 16 * 16) blocks = INT32_MAX / 16 * 16;
  plan->steps = 1;
  plan->step[0] = (rn_cuda_step){a.kernel, (uint32_t)blocks, (uint32_t)a.threads, (uint32_t)a.cluster, a.shared, 0};
  return NULL;
}
