/* plan_backward.c - which backward kernel takes a problem, and how its rows lie on threads, blocks and clusters.
 *
 * Every choice is a function of the problem and the facts of the device; docs/numerics.md 4.1 fixes which rows a chunk
 * has, so nothing here can change a bit of the result.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include <string.h>

/* Which kernel there is: who shares a row, element type, neighbouring lanes a thread, steps a row, dresidual_out. */
enum reach { WARP, BLOCK, RING, FEW_WARP, FEW_BLOCK, FEW_CLUSTER };
typedef struct instance {
  int16_t kernel, reach, dtype, lanes, loads, adds, threads;
} instance;

#define DTYPE_bf16 RMSNORM_DTYPE_BF16
#define DTYPE_f16  RMSNORM_DTYPE_F16
#define DTYPE_f32  RMSNORM_DTYPE_F32
#define INSTANCE(reach, type, lanes, loads, rows, adds, threads, registers)                                            \
  {RN_KERNEL_rn_backward_##reach##_##type##_##lanes##_##loads##_##adds,                                                \
   reach,                                                                                                              \
   DTYPE_##type,                                                                                                       \
   lanes,                                                                                                              \
   loads,                                                                                                              \
   adds,                                                                                                               \
   threads},
static const instance instances[] = {RN_BACKWARD_INSTANCES(INSTANCE) RN_BACKWARD_FEW_INSTANCES(INSTANCE)};

/* The kernel with the fewest steps, and without dresidual_out where there is none, that takes the row. */
static const instance *find(int reach, int dtype, int64_t loads, bool adds) {
  const instance *best = NULL;
  size_t i;
  for (i = 0; i < sizeof instances / sizeof *instances; i++) {
    const instance *at = &instances[i];
    if (at->reach != reach || at->dtype != dtype || at->loads < loads || at->adds < adds) continue;
    if (!best || at->loads < best->loads || (at->loads == best->loads && at->adds < best->adds)) best = at;
  }
  return best;
}

/* ------------------------------------------------------------------------------------------------------------------
 * What the kernels take. */
static const char *not_a_tensor(const rn_view *view, int64_t heads, int dtype) {
  const int64_t most = (int64_t)1 << 30;
  if (!view->data) return NULL;
  if (view->dtype != dtype) return "backward: x, dy, dresidual_out and dx are not of one type";
  if (((uintptr_t)view->data | (uint64_t)view->row_bytes | (heads > 1 ? (uint64_t)view->head_bytes : 0)) % 16 != 0)
    return "backward: rows are not aligned to 16 bytes";
  if (view->row_bytes > most || view->row_bytes < -most ||
      (heads > 1 && (view->head_bytes > most || view->head_bytes < -most)))
    return "backward: a stride is longer than 2^30 bytes";
  return NULL;
}

static const char *why_not(const rn_problem *p, const rn_cuda_device *device) {
  const rn_view *const views[] = {&p->x, &p->dy, &p->dresidual_out, &p->dx};
  size_t i;
  if (p->op != RMSNORM_OP_BACKWARD) return "backward: another operation";
  if (!(device->families >> RN_FAMILY_backward & 1u)) return "backward: its kernels are not in this build";
  if (p->x.dtype != RMSNORM_DTYPE_BF16 && p->x.dtype != RMSNORM_DTYPE_F16 && p->x.dtype != RMSNORM_DTYPE_F32)
    return "backward: the type of x";
  for (i = 0; i < sizeof views / sizeof *views; i++) {
    const char *reason = not_a_tensor(views[i], p->heads, p->x.dtype);
    if (reason) return reason;
  }
  if (p->residual.data) return "backward: a residual to be added to x";
  if (p->gate.data) return "backward: a gate";
  if (p->sumsq_in || p->dot_in || p->dot_out) return "backward: split statistics";
  if (p->dresidual.data || p->dgate.data) return "backward: more outputs than dx and dweight";
  if (!p->dx.data && !p->dweight) return "backward: neither dx nor dweight";
  if (p->groups != 1) return "backward: groups";
  if (p->weight && p->weight_head_bytes != 0 && p->heads > 1) return "backward: a weight for each head";
  if (p->dweight && p->dweight_vectors != 1) return "backward: a weight gradient for each head";
  if (p->weight && p->weight_dtype != p->x.dtype) return "backward: the weight has not the type of x";
  if ((uintptr_t)p->weight % 16 != 0) return "backward: the weight is not aligned to 16 bytes";
  if (p->cols * p->x.size % 16 != 0) return "backward: cols is no multiple of 16 bytes";
  if (p->rows < 1 || p->rows > ((int64_t)1 << 30) / p->heads) return "backward: the number of rows";
  if (p->cols > 8 * (int64_t)RN_LANES_MAX) return "backward: rows longer than 2^19";
  return NULL;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Shapes. */
static uint32_t least(int64_t a, int64_t b) {
  return (uint32_t)(a < b ? a : b);
}
static int64_t up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static bool same_tensor(const rn_view *a, const rn_view *b) {
  return a->data == b->data;
}

/* The most blocks of a cluster; 0 where there are neither clusters nor bulk copies. Data centre parts take 16 on
 * request, others 8. A device that is none of those with code of their own runs that of 8.0, which has none of it. */
static int64_t most_blocks(const rn_cuda_device *device) {
  return device->major == 9 || device->major == 10 ? 16 : device->major == 12 ? 8 : 0;
}

/* Few rows: one launch with two kinds of blocks. x and dy are then read by blocks that do not wait for those that write
 * dx, so dx has to be elsewhere. */
static bool is_few(const rn_problem *p, int64_t rows) {
  if (p->dx.data && (same_tensor(&p->dx, &p->x) || same_tensor(&p->dx, &p->dy))) return false;
  return p->dx.data && p->dweight && rows <= 256 && rows * p->cols * p->x.size <= (int64_t)4 << 20;
}

static const char *plan_few(const rn_problem *p, rn_cuda_backward *b, int64_t loads, int64_t team,
                            const rn_cuda_device *device, rn_cuda_step *step) {
  const int reach = team <= 32 ? FEW_WARP : team <= 256 ? FEW_BLOCK : FEW_CLUSTER;
  const instance *kernel = find(reach, p->x.dtype, loads, true);
  const int64_t run = 16 / p->x.size, lanes = (int64_t)b->chunks * b->row_lanes;
  int64_t threads = 256, cluster = 1, columns;
  if (!kernel) return "backward: few long rows";
  while (team > cluster * kernel->threads) cluster *= 2;
  if (reach == FEW_CLUSTER && cluster > most_blocks(device)) return "backward: few long rows";
  if (team > cluster * threads) threads = team / cluster;
  b->team = (int32_t)(team / cluster);
  b->row_blocks = (int32_t)(up(b->rows, threads / b->team) * cluster);
  for (b->few_each = 1; threads / 8 * b->few_each < lanes;) b->few_each *= 2;
  columns = up(up(p->cols, 8 * run), cluster) * cluster;
  step->kernel = kernel->kernel;
  step->blocks = (uint32_t)(b->row_blocks + columns);
  step->threads = (uint32_t)threads;
  step->cluster = (uint32_t)cluster;
  return NULL;
}

/* A chunk a team, or a chunk a cluster with a ring. `cap` is the most blocks that may be queued. */
static const char *plan_rows(const rn_problem *p, rn_cuda_backward *b, int64_t loads, int64_t team, int64_t cap,
                             const rn_cuda_device *device, rn_cuda_step *step) {
  const bool adds = p->dresidual_out.data != NULL;
  const int reach = team <= 32 ? WARP : team <= 256 && p->cols < 12288 ? BLOCK : RING;
  const instance *kernel = find(reach, p->x.dtype, loads, adds);
  const int64_t lanes = (int64_t)b->chunks * b->row_lanes;
  int64_t units = 1, cluster = 1, threads = team;
  if (!kernel) return "backward: rows too long";
  if (reach == WARP) {
    units = kernel->threads / 32;
    while (units > 1 && units * (32 / team) > lanes) units /= 2;
    threads = 32 * units;
    b->line_lanes = (int32_t)(units * (32 / team));
    step->shared = (uint32_t)(units / 2 * kernel->loads * 32 * kernel->lanes * 4);
  } else if (reach == BLOCK) {
    while (units * 2 * team <= kernel->threads && units * 2 * team <= 256 && units * 2 <= lanes) units *= 2;
    threads = units * team;
    b->line_lanes = (int32_t)units;
    step->shared = (uint32_t)(units / 2 * kernel->loads * team * kernel->lanes * 4);
  } else {
    const int64_t stage = (adds ? 3 : 2) * kernel->loads * kernel->lanes * p->x.size; /* of a thread */
    while (threads > kernel->threads) threads /= 2, cluster *= 2;
    if (team == 512) threads = 256, cluster = 2;
    if (team == 2048) threads = 128, cluster = 16;
    if (team == 4096) threads = 256, cluster = 16;
    if (cluster > most_blocks(device)) return "backward: rows this long need larger clusters";
    b->line_lanes = 1;
    for (b->stages = 2; b->stages > 1 && b->stages * stage * threads > device->shared_bytes - 1024;) b->stages--;
    if (b->stages * stage * threads > device->shared_bytes - 1024) return "backward: rows too long";
    step->shared = (uint32_t)(b->stages * stage * threads);
  }
  b->team = (int32_t)(reach == WARP ? team : threads / units);
  step->kernel = kernel->kernel;
  step->threads = (uint32_t)threads;
  step->cluster = (uint32_t)cluster;
  step->blocks = least(up(lanes, b->line_lanes) * cluster, cap / cluster > 0 ? cap / cluster * cluster : cluster);
  return NULL;
}

/* The kernel that adds the lines of partial sums. */
static void plan_tree(rn_cuda_backward *b, int64_t cap, rn_cuda_step *step) {
  const int64_t lines = up((int64_t)b->chunks * b->row_lanes, b->line_lanes);
  int64_t threads;
  b->tree_columns = b->cols < 4096 ? 8 : 32;
  threads = 32 / b->tree_columns; /* of a column: a warp at least */
  while (threads * 8 < lines && 2 * threads * b->tree_columns <= RN_TREE_THREADS) threads *= 2;
  step->kernel = RN_KERNEL_rn_backward_tree;
  step->blocks = least(up(b->cols, b->tree_columns), cap);
  step->threads = (uint32_t)(threads * b->tree_columns);
  step->cluster = 1;
  step->dependent = 1;
}

static rn_cuda_tensor tensor_of(const rn_view *view) {
  rn_cuda_tensor t = {view->data, (int32_t)view->row_bytes, (int32_t)view->head_bytes};
  return t;
}

const char *rn_cuda_plan_backward(const rn_problem *p, const rn_cuda_options *options, const rn_cuda_device *device,
                                  rn_cuda_plan *plan) {
  rn_cuda_backward *const b = &plan->params.backward;
  const char *reason = why_not(p, device);
  const int64_t cap = options->multiprocessors > 0 ? options->multiprocessors : INT32_MAX;
  int64_t rows, loads, team;
  rn_chunks chunks;
  if (reason) return reason;

  memset(plan, 0, sizeof *plan);
  rows = p->rows * p->heads;
  chunks = rn_chunks_of(rows, p->cols);
  b->x = tensor_of(&p->x), b->dy = tensor_of(&p->dy);
  b->dresidual_out = tensor_of(&p->dresidual_out), b->dx = tensor_of(&p->dx);
  b->weight = p->weight;
  b->rstd = p->round_rstd == RMSNORM_DTYPE_F32 ? p->rstd_in : NULL;
  b->partial = p->dweight ? p->workspace : NULL;
  b->dweight = p->dweight, b->dweight_dtype = p->dweight_dtype;
  b->live_rows = options->live_rows, b->live_factor = p->live_factor * p->heads;
  b->live_most = rows / b->live_factor;
  b->rows = (int32_t)rows, b->heads = (int32_t)p->heads, b->cols = (int32_t)p->cols;
  b->lanes = (int32_t)rn_lanes(p->cols);
  b->chunks = (int32_t)chunks.C, b->row_lanes = (int32_t)chunks.P;
  while ((int64_t)2 << b->unit_shift <= chunks.B) b->unit_shift++;
  b->weight_offset = p->weight ? p->weight_offset : -0.0f;
  b->negative_zeros = p->x.size == 4 ? 0x80000000u : 0x80008000u;
  b->dy_padding = b->weight_offset < 0 ? 0 : b->negative_zeros;
  b->divisor = (float)p->divisor, b->eps = (float)p->eps;

  team = b->lanes / (16 / p->x.size), loads = up(p->cols, b->lanes);
  if (is_few(p, rows)) {
    reason = plan_few(p, b, loads, team, device, &plan->step[0]);
    plan->steps = 1;
    if (!reason && (int64_t)plan->step[0].blocks <= cap) return NULL;
    memset(&plan->step[0], 0, sizeof plan->step[0]);
  }
  reason = plan_rows(p, b, loads, team, cap, device, &plan->step[0]);
  plan->steps = 1;
  if (!reason && b->partial) plan_tree(b, cap, &plan->step[plan->steps++]);
  return reason;
}

size_t rn_cuda_workspace_backward(const rn_problem *p) {
  const int64_t rows = p->rows * p->heads;
  if (!p->dweight || p->dweight_vectors != 1 || p->groups != 1 || rows < 1) return 0;
  return (size_t)rn_chunks_of(rows, p->cols).C * (size_t)p->cols * sizeof(float);
}
