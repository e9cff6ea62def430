/* plan_triton.c - from a problem and the facts of a device to launches of compiled kernels: pure, no driver.
 *
 * The fast families are tried first; each takes what its comment says, and of its variants the one with the right facts
 * whose assumptions (widths, alignments: values.c) the problem meets. The general ones take the rest.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "triton.h"

#include <math.h>

/* Columns are 32-bit numbers in the kernels, and a step past the end must not overflow them. */
static const int64_t most_cols = (int64_t)1 << 30;
/* Programs of the general kernels, which go round: enough for any device, and few beside the rows of a large problem.
 */
static const int64_t general_programs = 65535 * 8;

typedef struct planning {
  const rn_problem *p;
  const rn_triton_device *device;
  const rn_triton_target *target;
  rn_triton_plan *plan;
} planning;

/* ---- the table ---- */

/* Machine code of Triton from 9.0 on uses what only that very capability has; before, a later minor takes it. A code
 * object is for one architecture. */
static bool takes(const rn_triton_target *t, const rn_triton_device *device) {
  if (t->device != device->device) return false;
  if (t->arch == device->arch) return true;
  return t->device == RMSNORM_DEVICE_CUDA && t->arch < 90 && t->arch / 10 == device->arch / 10 &&
         t->arch < device->arch;
}

const rn_triton_target *rn_triton_target_of(const rn_triton_device *device) {
  const rn_triton_target *best = NULL;
  for (const rn_triton_target *t = rn_triton_targets; t->count != 0; t++)
    if (takes(t, device) && (best == NULL || t->arch > best->arch)) best = t;
  return best;
}

bool rn_triton_has(int32_t device) {
  for (const rn_triton_target *t = rn_triton_targets; t->count != 0; t++)
    if (t->device == device) return true;
  return false;
}

/* What a variant has to be for; 0 where its family knows no such thing. */
typedef struct facts {
  int32_t family, type, residual, row_lanes;
  int64_t lanes, least_steps;
} facts;

static bool is_for(const rn_triton_kernel *k, const facts *f) {
  return k->type == f->type && k->lanes == f->lanes && k->row_lanes == f->row_lanes &&
         (k->residual == f->residual || k->residual == RN_TRITON_EITHER) && k->steps >= f->least_steps;
}

/* The one with the fewest steps, -1: there is none. */
static int32_t variant(const rn_triton_target *t, const facts *f) {
  int32_t best = -1;
  for (int32_t i = t->first + t->family[f->family]; i < t->first + t->family[f->family + 1]; i++)
    if (is_for(&rn_triton_kernels[i], f) && (best < 0 || rn_triton_kernels[i].steps < rn_triton_kernels[best].steps))
      best = i;
  return best;
}

/* Of those that are for it and whose tile has at most so many columns: the one with the largest or the smallest. */
static int32_t by_tile(const rn_triton_target *t, const facts *f, int64_t most, bool largest) {
  int32_t best = -1;
  for (int32_t i = t->first + t->family[f->family]; i < t->first + t->family[f->family + 1]; i++) {
    const int32_t tile = rn_triton_kernels[i].tile_cols;
    if (!is_for(&rn_triton_kernels[i], f) || tile > most) continue;
    if (best < 0 || (tile > rn_triton_kernels[best].tile_cols) == largest) best = i;
  }
  return best;
}

/* Of a family that works in tiles: the smallest that holds all lanes, else the largest. */
static int32_t tiled(const rn_triton_target *t, int32_t family, int64_t lanes) {
  int32_t best = -1;
  for (int32_t i = t->first + t->family[family]; i < t->first + t->family[family + 1]; i++) {
    const int64_t tile = rn_triton_kernels[i].tile_cols, had = best < 0 ? 0 : rn_triton_kernels[best].tile_cols;
    if (best < 0 || (had < lanes ? tile > had : tile >= lanes && tile < had)) best = i;
  }
  return best;
}

/* ---- steps ---- */

/* The largest grid: 2^31 - 1 programs, and on HIP fewer than 2^32 threads (more are cut off without a word). */
static int64_t most_programs(const rn_triton_device *device, int64_t threads) {
  const int64_t all = INT32_MAX, of_threads = (int64_t)UINT32_MAX / threads;
  return device->device == RMSNORM_DEVICE_HIP && of_threads < all ? of_threads : all;
}

/* Adds a step with that many programs, or fewer where they may be fewer. false: the kernel does not take it. */
static bool add(planning *q, int32_t kernel, int64_t programs) {
  const rn_triton_kernel *k = &rn_triton_kernels[kernel];
  const int64_t threads = (int64_t)k->warps * k->wave, capped = q->p->launch.multiprocessors;
  int64_t most = most_programs(q->device, threads);
  if (k->any_grid && capped > 0 && capped < most) most = capped;
  if (programs > most && !k->any_grid) return false;
  if (!k->any_grid && capped > 0 && programs > capped) return false;
  if (programs > most) programs = most;
  if (k->shared > (uint32_t)q->device->shared_bytes) return false;
  if (!rn_triton_fits(k, q->p, &q->plan->extra)) return false;
  q->plan->step[q->plan->steps++] = (rn_triton_step){kernel, (uint32_t)programs, (uint32_t)threads};
  return true;
}

static int64_t parts(int64_t all, int64_t each) {
  return all / each + (all % each != 0);
}

/* ---- what the kernels get beside the problem ---- */

static size_t aligned(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

enum { ROW_SUMS_BYTES = 3 * sizeof(float) }; /* power, r, dot: see the kernels */

/* The sums of the rows come first, then those of the chunks. */
static bool workspace_of(const rn_problem *p, size_t *partials, size_t *total) {
  const rn_chunks chunks = rn_chunks_of(p->dweight_rows, p->dweight_cols);
  const size_t per_vector = (size_t)chunks.C * sizeof(float), most = SIZE_MAX / 2;
  const size_t rows = (size_t)(p->rows * p->heads), lines = (size_t)(p->dweight_vectors * p->dweight_cols);
  if (rows > most / ROW_SUMS_BYTES / (size_t)p->groups || lines > most / per_vector / 2) return false;
  *partials = aligned(rows * (size_t)p->groups * ROW_SUMS_BYTES);
  *total = *partials + lines * per_vector;
  return true;
}

size_t rn_triton_workspace_bytes(const rn_problem *p) {
  size_t partials, total;
  if (p->op != RMSNORM_OP_BACKWARD || p->dweight == NULL) return 0;
  return workspace_of(p, &partials, &total) ? total : SIZE_MAX;
}

static int32_t rounding(int32_t dtype) {
  return dtype == 0 ? RMSNORM_DTYPE_F32 : dtype;
}

static void fill_weight(const rn_problem *p, rn_triton_extra *e) {
  e->weight_offset = -0.0f;
  if (p->weight == NULL) return;
  e->weight_type = p->weight_dtype;
  e->weight_offset = p->weight_offset;
  e->weight_head_stride = p->weight_head_bytes / p->weight_size;
  e->weight_group_stride = p->weight_group_bytes / p->weight_size;
}

static void fill(const rn_problem *p, rn_triton_extra *e) {
  *e = (rn_triton_extra){.divisor = (float)p->divisor,
                         .eps = (float)p->eps,
                         .units = p->rows * p->heads * p->groups,
                         .lanes = rn_lanes(p->group_cols),
                         .round_sum = rounding(p->round_sum),
                         .round_rstd = rounding(p->round_rstd),
                         .round_xhat = rounding(p->round_xhat),
                         .round_normed = rounding(p->round_normed),
                         .chunk_step = 1,
                         .live_rows = p->launch.live_rows,
                         .live_most = p->rows / p->live_factor,
                         .live_factor = p->live_factor};
  fill_weight(p, e);
  if (e->round_rstd == RMSNORM_DTYPE_F32) e->rstd_in = p->rstd_in;
  if (p->op != RMSNORM_OP_BACKWARD || p->dweight == NULL) return;
  e->dweight_type = p->dweight_dtype;
  const rn_chunks chunks = rn_chunks_of(p->dweight_rows, p->dweight_cols);
  e->chunks = chunks.C, e->row_lanes = chunks.P, e->unit_rows = chunks.B;
  size_t partials, total;
  if (p->workspace == NULL || !workspace_of(p, &partials, &total)) return;
  e->sums = p->workspace;
  e->partials = (char *)p->workspace + partials;
}

/* ---- the fast families ---- */

static bool same(const rn_view *view, int32_t type) {
  return view->data == NULL || view->dtype == type;
}
static bool weight_is_usual(const rn_problem *p) {
  return p->weight == NULL || p->weight_dtype == RMSNORM_DTYPE_F32 || p->weight_dtype == p->x.dtype;
}
static bool rounds_to(int32_t dtype, int32_t type) {
  return dtype == RMSNORM_DTYPE_F32 || dtype == type;
}
/* Rows that are whole words of 16 bytes. */
static bool whole_words(const rn_problem *p) {
  return p->group_cols * p->x.size % 16 == 0;
}

/* forward_row, forward_long: one type, no gate, no quantised output, all statistics their own. */
static bool is_plain_forward(const planning *q) {
  const rn_problem *p = q->p;
  const rn_triton_extra *e = &q->plan->extra;
  const int32_t type = p->x.dtype;
  return p->y.data != NULL && p->quant == RMSNORM_QUANT_NONE && p->gate.data == NULL && p->sumsq_in == NULL &&
         same(&p->y, type) && same(&p->residual, type) && same(&p->residual_out, type) && weight_is_usual(p) &&
         rounds_to(e->round_sum, type) && rounds_to(e->round_xhat, type) && rounds_to(e->round_rstd, type) &&
         e->round_normed == RMSNORM_DTYPE_F32 && whole_words(p);
}

/* forward_few: what it leaves out is not wanted, and the launch lasts about as long as one row. Measured on one H200:
 * 1024 rows of 256 and of 1024 columns are faster in it than in forward_row, 2048 rows of 64 are not; 256 rows of 4096
 * are or are as fast, and of 1024 rows of 4096 it is all the same. */
static bool is_few(const planning *q) {
  const rn_problem *p = q->p;
  const rn_triton_extra *e = &q->plan->extra;
  const int64_t most_rows = 1024, most_elements = (int64_t)1 << 22;
  return e->units <= most_rows && e->units * p->group_cols <= most_elements && p->heads == 1 && p->groups == 1 &&
         p->weight != NULL && p->weight_dtype == p->x.dtype && e->weight_offset == 0 && signbit(e->weight_offset) &&
         e->live_rows == NULL && e->round_rstd == RMSNORM_DTYPE_F32 &&
         (p->residual.data != NULL) == (p->residual_out.data != NULL);
}

static bool plan_forward(planning *q) {
  const rn_problem *p = q->p;
  const rn_triton_extra *e = &q->plan->extra;
  if (!is_plain_forward(q)) return false;
  facts wanted = {.family = RN_TRITON_forward_few,
                  .type = p->x.dtype,
                  .residual = p->residual.data != NULL,
                  .lanes = e->lanes,
                  .least_steps = parts(p->group_cols, e->lanes)};
  int32_t k = is_few(q) ? variant(q->target, &wanted) : -1;
  if (k >= 0 && add(q, k, e->units)) return true;
  wanted.family = RN_TRITON_forward_row;
  k = variant(q->target, &wanted);
  if (k >= 0 && add(q, k, parts(e->units, rn_triton_kernels[k].tile_rows > 0 ? rn_triton_kernels[k].tile_rows : 1)))
    return true;
  wanted.family = RN_TRITON_forward_long, wanted.lanes = 0, wanted.least_steps = 0;
  k = by_tile(q->target, &wanted, p->group_cols, true);
  return k >= 0 && add(q, k, e->units);
}

/* One program for some columns of all chunks is few programs, and many chunks are much to add: then they are folded
 * first, some of them a program. */
static bool add_dweight_sum(planning *q) {
  const rn_problem *p = q->p;
  rn_triton_extra *e = &q->plan->extra;
  const int64_t many_chunks = 256;
  const int32_t fold = tiled(q->target, RN_TRITON_dweight_fold, p->dweight_cols);
  if (fold >= 0 && e->chunks >= many_chunks) {
    const rn_triton_kernel *f = &rn_triton_kernels[fold];
    const int64_t branches = parts(e->chunks, f->tile_rows), tiles = parts(p->dweight_cols, f->tile_cols);
    if (!add(q, fold, rn_min_i64(p->dweight_vectors * branches * tiles, INT32_MAX))) return false;
    e->chunk_step = f->tile_rows;
  }
  const int32_t k = tiled(q->target, RN_TRITON_dweight_sum, p->dweight_cols);
  return k >= 0 && add(q, k, p->dweight_vectors * parts(p->dweight_cols, rn_triton_kernels[k].tile_cols));
}

/* backward_rows, backward_long: dx and dweight of one type and one weight vector, from the saved sum. */
static bool is_plain_backward(const planning *q) {
  const rn_problem *p = q->p;
  const int32_t type = p->x.dtype;
  return p->groups == 1 && p->weight_head_bytes == 0 && p->residual.data == NULL && p->gate.data == NULL &&
         p->dresidual.data == NULL && p->dgate.data == NULL && p->dot_in == NULL && p->dot_out == NULL &&
         p->sumsq_in == NULL && same(&p->dy, type) && same(&p->dx, type) && same(&p->dresidual_out, type) &&
         weight_is_usual(p) && whole_words(p);
}

/* Rows too long for registers. Their lanes are a whole number of tiles, and their chunks take single rows. */
static bool plan_long_backward(planning *q) {
  const rn_problem *p = q->p;
  const rn_triton_extra *e = &q->plan->extra;
  const int64_t most_units = (int64_t)1 << 30;                         /* a step past the last row must not overflow */
  const bool few = e->units < 4 * (int64_t)q->device->multiprocessors; /* 64 rows of 32768: 6.0 and 8.8 us */
  facts wanted = {.family = p->dweight == NULL ? RN_TRITON_backward_long_dx : RN_TRITON_backward_long_sums,
                  .type = p->x.dtype};
  int32_t k = by_tile(q->target, &wanted, e->lanes, few);
  if (k < 0 || e->units > most_units || !add(q, k, e->units)) return false;
  if (p->dweight == NULL) return true;
  wanted.family = RN_TRITON_backward_long;
  k = variant(q->target, &wanted);
  return k >= 0 && e->unit_rows == 1 && add(q, k, e->chunks * parts(p->group_cols, rn_triton_kernels[k].tile_cols)) &&
         add_dweight_sum(q);
}

static bool plan_backward(planning *q) {
  const rn_problem *p = q->p;
  rn_triton_extra *e = &q->plan->extra;
  if (!is_plain_backward(q)) return false;
  const int32_t row_lanes = (int32_t)rn_max_i64(1, 256 / e->lanes);
  const facts wanted = {.family = RN_TRITON_backward_rows,
                        .type = p->x.dtype,
                        .lanes = e->lanes,
                        .row_lanes = row_lanes,
                        .least_steps = parts(p->group_cols, e->lanes)};
  const int32_t k = variant(q->target, &wanted);
  if (k < 0) return plan_long_backward(q);
  const int64_t each = rn_max_i64(1, rn_triton_kernels[k].tile_rows); /* chunks a program */
  if (p->dweight != NULL) return add(q, k, parts(e->chunks, each)) && add_dweight_sum(q);
  /* Without dweight the rows may be dealt out in any way. */
  int64_t programs = 8 * (int64_t)q->device->multiprocessors;
  if (p->launch.multiprocessors > 0) programs = rn_min_i64(programs, p->launch.multiprocessors);
  e->chunks = rn_min_i64(e->units, programs * each), e->row_lanes = row_lanes, e->unit_rows = 1;
  return add(q, k, parts(e->chunks, each));
}

/* ---- the general ones ---- */

static bool add_general(planning *q, int32_t family, int64_t units) {
  const int32_t k = tiled(q->target, family, q->plan->extra.lanes);
  return k >= 0 && add(q, k, rn_min_i64(units, general_programs));
}

static bool plan_general(planning *q) {
  const rn_problem *p = q->p;
  rn_triton_extra *e = &q->plan->extra;
  if (p->op != RMSNORM_OP_BACKWARD) return add_general(q, RN_TRITON_general_forward, p->rows * p->heads);
  if (p->dweight == NULL) return add_general(q, RN_TRITON_general_backward_dx, e->units);
  /* dx comes after dweight, because it may lie where x and dy do. */
  const facts wanted = {.family = RN_TRITON_general_backward_dweight, .row_lanes = (int32_t)e->row_lanes};
  const int32_t k = variant(q->target, &wanted);
  e->has_sums = 1;
  if (k < 0 || !add_general(q, RN_TRITON_general_backward_sums, e->units)) return false;
  if (!add(q, k, p->dweight_vectors * e->chunks * parts(p->dweight_cols, rn_triton_kernels[k].tile_cols))) return false;
  if ((p->dx.data != NULL || p->dresidual.data != NULL || p->dgate.data != NULL) &&
      !add_general(q, RN_TRITON_general_backward_dx, e->units))
    return false;
  return add_dweight_sum(q);
}

/* ---- all ---- */

static void start(planning *q) {
  q->plan->steps = 0;
  fill(q->p, &q->plan->extra);
}

const char *rn_triton_plan_of(const rn_problem *p, const rn_triton_device *device, rn_triton_plan *plan) {
  planning q = {p, device, rn_triton_target_of(device), plan};
  size_t partials, total;
  if (p->x.dtype == RMSNORM_DTYPE_F64) return "x is f64: only portable takes it";
  if (p->cols > most_cols) return "cols is more than 2^30";
  if (q.target == NULL) return rn_triton_no_target;
  if (rn_triton_kernels[q.target->first].wave != device->wave) return "the device's waves are of another size";
  if (p->op == RMSNORM_OP_BACKWARD && p->dweight != NULL && !workspace_of(p, &partials, &total))
    return "the workspace would not fit in memory";
  start(&q);
  if (p->op == RMSNORM_OP_FORWARD ? plan_forward(&q) : p->op == RMSNORM_OP_BACKWARD && plan_backward(&q)) return NULL;
  start(&q);
  if (plan_general(&q)) return NULL;
  return p->launch.multiprocessors > 0 ? "no kernel of this build takes it with so few multiprocessors"
                                       : "no kernel of this build takes it (it was made with some variants only)";
}
