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
static const instance *find(int reach, int dtype, int lanes, int64_t loads, bool adds) {
  const instance *best = NULL;
  size_t i;
  for (i = 0; i < sizeof instances / sizeof *instances; i++) {
    const instance *at = &instances[i];
    if (at->reach != reach || at->dtype != dtype || at->lanes != lanes || at->loads < loads || at->adds < adds)
      continue;
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

/* The most blocks of a cluster; 0 where there are neither clusters nor bulk copies. */
static int64_t most_blocks(const rn_cuda_device *device) {
  const int32_t most = rn_cuda_most_blocks(device);
  return most > 1 ? most : 0;
}

/* Few rows: one launch with two kinds of blocks. x and dy are then read by blocks that do not wait for those that write
 * dx, so dx has to be elsewhere. Measured on an H200, bf16, against the two launches: up to 256 rows of 1024 columns
 * or more are 5 to 15 % faster while a tensor has at most 4 MiB; with shorter rows 64 rows are as fast, 256 rows 13 to
 * 27 % slower. */
static bool is_few(const rn_problem *p, int64_t rows, int64_t team) {
  const int64_t bytes = rows * p->cols * p->x.size;
  if (!p->dx.data || !p->dweight || same_tensor(&p->dx, &p->x) || same_tensor(&p->dx, &p->dy)) return false;
  /* Without rstd every block that has columns reads all rows, from L2. */
  if (!p->rstd_in && bytes * (p->cols / (128 / p->x.size)) > (int64_t)8 << 20) return false;
  return rows <= (team < 32 ? 64 : 256) && bytes <= (int64_t)4 << 20;
}

/* `team`: threads that share a row in accesses of 16 bytes; half as much doubles it. 8 bytes are 5 to 20 % faster from
 * 1024 to 7168 columns: more threads for the latency of a single row. Longer rows take a cluster of blocks of 128
 * threads: 17 % faster than one block with 64 rows of 8192 columns, equal with one row. */
static const char *plan_few(const rn_problem *p, rn_cuda_backward *b, int64_t loads, int64_t team,
                            const rn_cuda_device *device, rn_cuda_step *step) {
  const int32_t wide = 16 / p->x.size;
  const bool narrow = p->x.size == 2 && team >= 32 && team <= 128;
  const bool clusters = team > 256 || (team == 256 && b->rows <= 64 && most_blocks(device) > 0);
  const int reach = team < 32 || (team == 32 && !narrow) ? FEW_WARP : clusters ? FEW_CLUSTER : FEW_BLOCK;
  const int64_t run = narrow ? wide / 2 : wide, lanes = (int64_t)b->chunks * b->row_lanes;
  const instance *kernel = find(reach, p->x.dtype, (int)run, loads, true);
  int64_t threads = narrow && b->rows > 64 && team < 128 && loads <= 4 ? 512 : 256, cluster = 1, columns;
  if (!kernel) return "backward: few long rows";
  if (narrow) team *= 2;
  if (reach == FEW_CLUSTER) {
    for (threads = 128; team > cluster * threads && cluster < most_blocks(device);) cluster *= 2;
    if (team > cluster * threads) threads = team / cluster;
    /* Its column blocks have all row lanes in no more than RN_FEW_EACH a thread. */
    while (threads < lanes && threads < kernel->threads && cluster > 1) threads *= 2, cluster /= 2;
    if (cluster == 1 || threads > kernel->threads) return "backward: few long rows";
  }
  if (threads < team && reach == FEW_BLOCK) threads = team;
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

/* ------------------------------------------------------------------------------------------------------------------
 * More rows: a chunk a team, or a chunk a cluster with a ring. The first layout that fits and whose kernel exists is
 * taken. Measured on an H200, bf16, 2048 and 16384 rows and 2^28 elements: the percentages are what the next best one
 * cost there. Teams as above; f32 takes the layouts of 16 bytes that its teams lead to. */
typedef struct layout {
  int16_t most_team, most_loads;
  int32_t least_rows;
  int16_t adds; /* dresidual_out: must be there, must not, both */
  int16_t reach, bytes, threads;
} layout;
enum { MUST_NOT, MUST, BOTH };
/* clang-format off */
static const layout layouts[] = {
    /* Up to 2048 columns. Larger blocks send fewer sums to the second kernel: 1 to 3 %; but with few rows they leave
     * multiprocessors idle: 5 to 10 %. */
    {32, 2, 16384, BOTH, WARP, 16, 256},
    {32, 4, 512, BOTH, WARP, 16, 128},
    {32, 4, 0, BOTH, WARP, 16, 64},
    /* 1536: two warps a row 4 % faster, 2 % slower in long runs. */
    {32, 6, 65536, MUST_NOT, WARP, 16, 128},
    {32, 6, 0, BOTH, BLOCK, 8, 256},
    {32, 8, 0, BOTH, WARP, 16, 128},
    /* 2048; with dresidual_out 16 bytes a thread would leave too few threads: 3 %. */
    {64, 4, 0, MUST_NOT, BLOCK, 16, 256},
    {64, 4, 0, MUST, BLOCK, 8, 256},
    /* 2560, 3072: the ring, in its present form, 15 to 20 % slower in long runs, and 10 % with 2048 rows. */
    {64, 6, 0, BOTH, BLOCK, 8, 256},
    {64, 8, 0, BOTH, BLOCK, 16, 256},
    /* 4096: the ring 6 to 18 % slower; with dresidual_out 4 % faster in long runs, 24 % slower with 2048 rows. */
    {128, 4, 0, MUST_NOT, BLOCK, 16, 256},
    {128, 4, 8192, MUST, RING, 16, 128},
    {128, 4, 0, MUST, BLOCK, 8, 256},
    /* 5120, 6144: the ring 9 to 10 % slower; with dresidual_out equal in long runs. 7168: 14 and 63 %. */
    {128, 6, 0, MUST_NOT, BLOCK, 8, 512},
    {128, 6, 8192, MUST, RING, 16, 128},
    {128, 6, 0, MUST, BLOCK, 8, 512},
    {128, 8, 0, BOTH, BLOCK, 16, 256},
    /* 8192: the ring 5 % faster in long runs, with 2048 rows and dresidual_out 18 % slower. 12288: 7 % slower. */
    {256, 4, 8192, BOTH, RING, 16, 256},
    {256, 4, 0, MUST_NOT, BLOCK, 16, 512},
    {256, 4, 0, MUST, BLOCK, 8, 512},
    {256, 6, 0, MUST_NOT, BLOCK, 8, 512},
    {256, 6, 8192, MUST, RING, 16, 256},
    {256, 6, 0, MUST, RING, 8, 512},
    /* Longer: as few blocks as the registers allow, 7 to 20 %. */
    {INT16_MAX, 4, 0, BOTH, RING, 16, 512},
    {INT16_MAX, 8, 0, BOTH, RING, 16, 256},
    /* Where there is no ring, and what has no kernel above. */
    {256, 6, 0, BOTH, BLOCK, 8, 512},
    {512, 4, 0, BOTH, BLOCK, 16, 512},
    {256, 8, 0, BOTH, BLOCK, 16, 256},
};
/* clang-format on */

/* Of a chunk a team: how many units a block has, and the room in which they add their sums. */
static void take_units(rn_cuda_backward *b, const instance *kernel, int64_t team, int64_t threads, rn_cuda_step *step) {
  const int64_t lanes = (int64_t)b->chunks * b->row_lanes;
  const int64_t unit = team < 32 ? 32 : team, beside = unit / team;
  int64_t units = threads / unit;
  while (units > 1 && units * beside > lanes) units /= 2;
  b->team = (int32_t)team;
  b->line_lanes = (int32_t)(units * beside);
  step->threads = (uint32_t)(units * unit);
  step->cluster = 1;
  step->shared = (uint32_t)(units / 2 * kernel->loads * unit * kernel->lanes * 4);
}

/* Of a chunk a cluster: the stages that fit, three if they do; a fourth gained nothing. */
static bool take_ring(const rn_problem *p, rn_cuda_backward *b, const instance *kernel, int64_t team, int64_t threads,
                      const rn_cuda_device *device, rn_cuda_step *step) {
  const int64_t most = most_blocks(device), row = (p->dresidual_out.data ? 3 : 2) * kernel->loads * kernel->lanes *
                                                  (int64_t)p->x.size; /* bytes of a thread */
  if (most == 0) return false;
  if (team < threads) threads = team;
  /* A single row or a few: as many blocks as there can be. */
  if (b->rows < 16)
    while (threads > 128 && team / threads < most) threads /= 2;
  while (team / threads > most && threads < kernel->threads) threads *= 2;
  if (threads < 64 || team / threads > most) return false;
  for (b->stages = 3; b->stages > 2 && b->stages * row * threads > device->shared_bytes - 1024;) b->stages--;
  if (b->stages * row * threads > device->shared_bytes - 1024) return false;
  b->team = (int32_t)threads;
  b->line_lanes = 1;
  step->threads = (uint32_t)threads;
  step->cluster = (uint32_t)(team / threads);
  step->shared = (uint32_t)(b->stages * row * threads);
  return true;
}

/* `cap` is the most blocks that may be queued. */
static const char *plan_rows(const rn_problem *p, rn_cuda_backward *b, int64_t loads, int64_t team, int64_t cap,
                             const rn_cuda_device *device, rn_cuda_step *step) {
  const bool adds = p->dresidual_out.data != NULL;
  const int64_t lanes = (int64_t)b->chunks * b->row_lanes;
  size_t i;
  for (i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    const layout *at = &layouts[i];
    const instance *kernel = find(at->reach, p->x.dtype, at->bytes / p->x.size, loads, adds);
    const int64_t threads_of_row = team * 16 / at->bytes;
    int64_t clusters;
    if (!kernel || at->most_team < team || at->most_loads < loads || at->least_rows > b->rows) continue;
    if (at->adds != BOTH && (at->adds == MUST) != adds) continue;
    if (at->reach == BLOCK && (threads_of_row < 64 || threads_of_row > kernel->threads)) continue;
    if (at->reach == RING) {
      if (!take_ring(p, b, kernel, threads_of_row, at->threads, device, step)) continue;
    } else {
      int64_t threads = at->threads < kernel->threads ? at->threads : kernel->threads;
      if (threads < threads_of_row) threads = threads_of_row;
      take_units(b, kernel, threads_of_row, threads, step);
    }
    clusters = least(up(lanes, b->line_lanes), cap > step->cluster ? cap / step->cluster : 1);
    step->kernel = kernel->kernel;
    step->blocks = (uint32_t)(clusters * step->cluster);
    return NULL;
  }
  return "backward: no layout for rows this long";
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
  b->inverse_divisor = (p->divisor & (p->divisor - 1)) == 0 ? 1 / b->divisor : 0;

  team = b->lanes / (16 / p->x.size), loads = up(p->cols, b->lanes);
  if (is_few(p, rows, team)) {
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
