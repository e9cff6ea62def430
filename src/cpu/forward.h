/* forward.h - the forward row: sum the squares in the canonical order, then normalise, scale and hand on. Part of
 * row.c.
 *
 * Bytes: a row is read once from memory and written once. The second pass reads it again, from the cache nearest to the
 * core that holds a row (or a block of short rows), while the next row is prefetched behind it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../order.h"
#include "elements.h"
#include "quantise.h"
#include "rows.h"

#include <math.h>

/* Short rows are taken several at a time: their sums share the shuffles of fold_sum4 and the latency of the square root
 * and the two divisions. 16 rows fill one vector of rstd; a block stays within half of the first-level cache. */
#define RN_ROWS_MAX    16
#define RN_BLOCK_BYTES 16384

/* acc[0 .. blocks * RN_PAIRS) = the lanes of `blocks` 64-lane blocks that start at lane `lane`. With c.store_sum the
 * sum x + residual is written to residual_out on the way. */
RN_INLINE void square_lanes(const rn_problem *p, rn_cfg c, const rn_place *at, int64_t n, int64_t lanes, int64_t lane,
                            const int blocks, v2 *acc) {
  for (int j = 0; j < blocks * RN_PAIRS; ++j) acc[j] = v2_zero();
  int64_t i = lane;
  for (; i + blocks * 64 <= n; i += lanes)
    for (int j = 0; j < blocks * RN_PAIRS; ++j) {
      const v2 h = load_sum(c, at, i + j * RN_PAIR, RN_PAIR);
      if (c.store_sum) store(c, c.residual_out, at->residual_out, i + j * RN_PAIR, h, RN_PAIR, false);
      const v2 u = gated_before(p, c, at, i + j * RN_PAIR, RN_PAIR, h);
      acc[j] = v2_fma(u, u, acc[j]);
    }
  /* What is left of the last, partly filled step. Absent elements read as 0 and so change nothing: a lane of squares is
   * never -0. Unrolled without a way out, or the lanes would be kept in memory for the sake of an index. */
  if (i < n)
#pragma GCC unroll 16
    for (int j = 0; j < blocks * RN_PAIRS; ++j) {
      const int64_t k = i + j * RN_PAIR, left = n - k;
      const int count = left <= 0 ? 0 : left < RN_PAIR ? (int)left : RN_PAIR;
      const v2 h = load_sum(c, at, k, count);
      if (c.store_sum) store(c, c.residual_out, at->residual_out, k, h, count, false);
      const v2 u = gated_before(p, c, at, k, count, h);
      acc[j] = v2_fma(u, u, acc[j]);
    }
}

/* sums[first .. last) of one row's 64-lane blocks; first and last are multiples of 4. */
RN_INLINE void square_blocks(const rn_problem *p, rn_cfg c, const rn_place *at, int64_t n, int64_t lanes, int64_t first,
                             int64_t last, float *sums) {
  const int tile = c.fixed ? RN_TILE_BLOCKS : 1;
  v2 acc[RN_TILE_BLOCKS * RN_PAIRS];
  vfold fold[4];
  for (int64_t b = first; b < last; b += 4) {
    for (int t = 0; t < 4; t += tile) {
      square_lanes(p, c, at, n, lanes, (b + t) * 64, tile, acc);
      for (int s = 0; s < tile; ++s) fold[t + s] = fold64(acc + s * RN_PAIRS, c.layout);
    }
    fold_sum4(fold, c.layout, sums + b);
  }
}

/* The sums of squares of a run of short rows, of `per_row` (1 or 2) 64-lane blocks each: four blocks at a time. */
RN_INLINE void square_short_rows(const rn_problem *p, rn_cfg c, const rn_run *run, int64_t n, const int per_row,
                                 float *sums) {
  const int step = 4 / per_row;
  v2 acc[RN_PAIRS];
  vfold fold[4];
  float out[4];
  rn_place at = run->at;
  int r = 0;
  for (; r + step <= run->count; r += step) {
    for (int t = 0; t < 4; ++t) {
      square_lanes(p, c, &at, n, per_row * 64, t % per_row * 64, 1, acc);
      fold[t] = fold64(acc, c.layout);
      if ((t + 1) % per_row == 0) advance(run, &at);
    }
    fold_sum4(fold, c.layout, out);
    for (int t = 0; t < step; ++t) sums[r + t] = per_row == 1 ? out[t] : out[2 * t] + out[2 * t + 1];
  }
  for (; r < run->count; ++r, advance(run, &at)) {
    for (int t = 0; t < per_row; ++t) {
      square_lanes(p, c, &at, n, per_row * 64, t * 64, 1, acc);
      fold[t] = fold64(acc, c.layout);
    }
    for (int t = per_row; t < 4; ++t) fold[t] = fold[0]; /* not used */
    fold_sum4(fold, c.layout, out);
    sums[r] = per_row == 1 ? out[0] : out[0] + out[1];
  }
}

/* An instance of the first pass: the sums of squares of `count` rows of n elements; count is 1 for rows of more than
 * 128 lanes. And its part for rows that are shared by threads. */
typedef struct rn_square {
  void (*rows)(const rn_problem *p, const rn_run *run, int64_t n, float *sums);
  void (*blocks)(const rn_problem *p, const rn_place *at, int64_t first, int64_t last, float *sums);
} rn_square;

RN_INLINE void square_rows(const rn_problem *p, rn_cfg c, const rn_run *run, int64_t n, float *sums) {
  const int64_t lanes = rn_lanes(n);
  float blocks[RN_BLOCKS_MAX];
  if (lanes == 64) {
    square_short_rows(p, c, run, n, 1, sums);
    return;
  }
  if (lanes == 128) {
    square_short_rows(p, c, run, n, 2, sums);
    return;
  }
  rn_place at = run->at;
  for (int r = 0; r < run->count; ++r, advance(run, &at)) {
    square_blocks(p, c, &at, n, lanes, 0, lanes / 64, blocks);
    sums[r] = rn_tree(blocks, lanes / 64);
  }
}

/* isqrt(v) of docs/numerics.md 1.3 for ordinary v; rubbish for others. */
RN_INLINE vf isqrt(vf v) {
  const vf one = vf_set1(1.0f), r = vf_div(one, vf_sqrt(v)), high = vf_mul(v, r);
  const vf minus_low = vf_fnma(v, r, high); /* -(v r - high), exactly */
  const vf e = vf_fma(minus_low, r, vf_fnma(high, r, one));
  return vf_fma(vf_mul(vf_set1(0.5f), r), e, r);
}

/* v = sum / divisor + eps, rstd = isqrt(v), for up to RN_ROWS_MAX rows at once. The arrays are RN_PAIR longer than
 * that.
 */
RN_INLINE void finish_rstd(const rn_problem *p, int count, const float *sums, float *v, float *rstd) {
  const vf divisor = vf_set1((float)p->divisor), eps = vf_set1((float)p->eps);
  for (int i = 0; i < count; i += RN_VL) {
    const vf value = vf_add(vf_div(vf_load(sums + i), divisor), eps);
    vf_store(v + i, value);
    vf_store(rstd + i, isqrt(value));
  }
}

/* The value that y and the quantiser receive, docs/numerics.md 1.5. */
RN_INLINE v2 normalise(const rn_problem *p, rn_cfg c, const rn_place *at, int64_t i, int count, v2 h, vf rstd) {
  v2 v = round_to(c.round_xhat, v2_scale(gated_before(p, c, at, i, count, h), rstd));
  if (at->weight) {
    v2 w = load(c, c.weight, at->weight, i, count);
    if (c.has_offset) { /* the branch is cheaper than adding -0 */
      const vf offset = vf_set1(c.weight_offset);
      w = (v2){vf_add(w.a, offset), vf_add(w.b, offset)};
    }
    v = v2_mul(v, w);
  }
  v = round_to(c.round_normed, v);
  if (c.gate && !p->gate_before) v = v2_mul(v, v2_act(c.gate, load(c, p->gate.dtype, at->gate, i, count)));
  return v;
}

/* One step of the last pass: everything is loaded before anything is stored, so that outputs may lie on inputs. */
RN_INLINE void apply_step(const rn_problem *p, rn_cfg c, const rn_place *at, int64_t i, int count, vf rstd,
                          bool stream) {
  const v2 h = load_sum(c, at, i, count);
  const v2 v = normalise(p, c, at, i, count, h, rstd);
  if (c.residual && at->residual_out) {
    /* The sum is stored before it is rounded a second time: without round_sum it has not been rounded yet. */
    store(c, c.residual_out, at->residual_out, i, h, count, stream && at->residual_out != at->residual);
  }
  if (at->y) store(c, c.y, at->y, i, v, count, stream);
}

/* Elements before the first y that is aligned for streaming; everything when none will be. */
RN_INLINE int64_t stream_head(rn_cfg c, const rn_place *at, int64_t i, int64_t n) {
  const int64_t off = (int64_t)((uintptr_t)(at->y + rn_offset(c.y, i)) % RN_STREAM_ALIGN);
  const int64_t head = off == 0 ? 0 : (RN_STREAM_ALIGN - off) / rn_offset(c.y, 1);
  return head < n ? head : n;
}

/* Columns [first, last) of the last pass; with stream, the first is aligned for it. `soon` is a place whose bytes at
 * the same columns will be wanted before long, or NULL. */
RN_INLINE void apply_cols_at(const rn_problem *p, rn_cfg c, const rn_place *at, int64_t first, int64_t last, vf rstd,
                             bool stream, const rn_place *soon) {
  int64_t i = first;
  for (; i + RN_PAIR <= last; i += RN_PAIR) {
    apply_step(p, c, at, i, RN_PAIR, rstd, stream);
    if (soon) {
      for (int64_t byte = 0; byte < rn_offset(c.x, RN_PAIR); byte += 64)
        rn_prefetch(soon->x + rn_offset(c.x, i) + byte);
      if (c.residual)
        for (int64_t byte = 0; byte < rn_offset(c.residual, RN_PAIR); byte += 64)
          rn_prefetch(soon->residual + rn_offset(c.residual, i) + byte);
    }
  }
  if (i < last) apply_step(p, c, at, i, (int)(last - i), rstd, false);
}

/* The columns before the first one that can be streamed from; *stream is cleared when y and residual_out disagree. */
RN_INLINE int64_t apply_head(const rn_problem *p, rn_cfg c, const rn_place *at, int64_t first, int64_t last, vf rstd,
                             bool *stream) {
  if (!*stream || !at->y) return first;
  const int64_t start = first + stream_head(c, at, first, last - first);
  if (start > first) apply_cols_at(p, c, at, first, start, rstd, false, NULL);
  if (c.residual && at->residual_out && at->residual_out != at->residual &&
      (uintptr_t)(at->residual_out + rn_offset(c.residual_out, start)) % RN_STREAM_ALIGN != 0)
    *stream = false;
  return start;
}

RN_INLINE void apply_row(const rn_problem *p, rn_cfg c, const rn_place *at, int64_t first, int64_t last, float rstd_one,
                         bool stream, const rn_place *soon) {
  const vf rstd = vf_set1(rstd_one);
  const int64_t start = apply_head(p, c, at, first, last, rstd, &stream);
  apply_cols_at(p, c, at, start, last, rstd, stream, soon);
}

/* An instance of the last pass: columns [first, last) of the run's rows. */
typedef void (*rn_apply)(const rn_problem *p, const rn_run *run, int64_t first, int64_t last, const float *rstd,
                         bool stream, const rn_place *next);
RN_INLINE void apply_rows(const rn_problem *p, rn_cfg c, const rn_run *run, int64_t first, int64_t last,
                          const float *rstd, bool stream, const rn_place *next) {
  const rn_run steps = *run; /* local copies, see rn_cfg */
  rn_place at = run->at, then = next ? *next : run->at;
  for (int r = 0; r < steps.count; ++r, advance(&steps, &at), advance(&steps, &then))
    apply_row(p, c, &at, first, last, rstd[r], stream, next ? &then : NULL);
}

RN_INLINE rn_place place_of(const rn_problem *p, int64_t token, int64_t head) {
  rn_place at;
  const int64_t row = token, h = head;
#define RN_AT(view) ((view).data ? (view).data + row * (view).row_bytes + h * (view).head_bytes : NULL)
  at.x = RN_AT(p->x), at.residual = RN_AT(p->residual), at.gate = RN_AT(p->gate);
  at.y = RN_AT(p->y), at.residual_out = RN_AT(p->residual_out), at.q = RN_AT(p->q);
#undef RN_AT
  at.weight = p->weight ? p->weight + head * p->weight_head_bytes : NULL;
  return at;
}
/* A run of one row. */
RN_INLINE rn_run run_of(rn_place at) {
  rn_run run;
  memset(&run, 0, sizeof run);
  run.at = at, run.count = 1;
  return run;
}
/* From (row, head) on, at most `most` rows that lie at equal distances: neighbouring tokens, or heads of one token. */
RN_INLINE rn_run run_from(const rn_problem *p, int64_t token, int64_t head, int64_t most) {
  rn_run run;
  const bool tokens = p->heads == 1;
#define RN_STEP(view) (!(view).data ? 0 : tokens ? (view).row_bytes : (view).head_bytes)
  run.at = place_of(p, token, head);
  run.x_step = RN_STEP(p->x), run.residual_step = RN_STEP(p->residual), run.gate_step = RN_STEP(p->gate);
  run.y_step = RN_STEP(p->y), run.residual_out_step = RN_STEP(p->residual_out);
  run.weight_step = p->weight && !tokens ? p->weight_head_bytes : 0;
#undef RN_STEP
  if (!tokens && most > p->heads - head) most = p->heads - head;
  run.count = (int)most;
  return run;
}

RN_INLINE rn_place place_of_row(const rn_problem *p, int64_t row) {
  return p->heads == 1 ? place_of(p, row, 0) : place_of(p, row / p->heads, row % p->heads);
}
RN_INLINE rn_place place_of_group(const rn_problem *p, rn_cfg c, const rn_place *row, int64_t g) {
  rn_place at = *row;
  const int64_t i = g * p->group_cols;
  at.x += rn_offset(c.x, i);
  if (at.residual) at.residual += rn_offset(c.residual, i);
  if (at.gate) at.gate += rn_offset(p->gate.dtype, i);
  if (at.y) at.y += rn_offset(c.y, i);
  if (at.residual_out) at.residual_out += rn_offset(c.residual_out, i);
  if (at.q) at.q += i;
  if (at.weight) at.weight += g * p->weight_group_bytes;
  return at;
}

RN_INLINE float row_rstd(const rn_problem *p, float rstd) {
  return rn_round_to(p->round_rstd, rstd);
}

/* A row or a group with given sums has no rescue: v == 0 means rstd = 0. And a NaN becomes the plain one. */
static float given_rstd(float v) {
  const float rstd = v == 0.0f ? 0.0f : rn_isqrt(v);
  return rstd == rstd ? rstd : (float)NAN;
}

/* An instance of both passes at once, for rows of at least 512 lanes that come from memory: the last pass of one row
 * and the first of the next walk over the same columns side by side, so that the memory never waits for the sums.
 * `later` is the row after the next, of which the first columns are prefetched. */
typedef void (*rn_fused)(const rn_problem *p, const rn_place *at, float rstd, bool stream, const rn_place *next,
                         const rn_place *later, float *next_sum);

#define RN_TILE_LANES 256
RN_INLINE void fused_row(const rn_problem *p, rn_cfg c, const rn_place *this_row, float rstd_one, bool stream,
                         const rn_place *next_row, const rn_place *later, float *next_sum) {
  const int64_t n = p->cols, lanes = rn_lanes(n);
  const rn_place here = *this_row, then = *next_row, *at = &here, *next = &then;
  const vf rstd = vf_set1(rstd_one);
  const int64_t head = apply_head(p, c, at, 0, n, rstd, &stream);
  float sums[RN_BLOCKS_MAX];
  for (int64_t lane = 0; lane < lanes; lane += RN_TILE_LANES) {
    square_blocks(p, c, next, n, lanes, lane / 64, (lane + RN_TILE_LANES) / 64, sums);
    /* What the next turn of this loop will sum. */
    rn_place soon = *next;
    int64_t ahead = RN_TILE_LANES;
    if (lane + RN_TILE_LANES >= lanes) soon = *later, ahead = -lane;
    soon.x += rn_offset(c.x, ahead);
    if (c.residual) soon.residual += rn_offset(c.residual, ahead);
    int64_t i = head + lane;
    for (; i + RN_TILE_LANES <= n; i += lanes) apply_cols_at(p, c, at, i, i + RN_TILE_LANES, rstd, stream, &soon);
    if (i < n) apply_cols_at(p, c, at, i, n, rstd, stream, NULL);
  }
  *next_sum = rn_tree(sums, lanes / 64);
}

/* The instances that serve one problem. */
typedef struct rn_passes {
  const rn_square *square;
  rn_apply apply;
  rn_fused fused; /* NULL for the general form */
} rn_passes;

/* A row of the block is rescued: row by row, then. */
static __attribute__((noinline)) void apply_rescued(const rn_problem *p, const rn_run *run, rn_apply apply, int64_t row,
                                                    const float *v, const float *rstd) {
  rn_place at = run->at;
  for (int r = 0; r < run->count; ++r, advance(run, &at))
    if (rn_ordinary(v[r])) {
      const rn_run one = run_of(at);
      if (p->rstd_out) ((float *)p->rstd_out)[row + r] = rstd[r];
      apply(p, &one, 0, p->cols, rstd + r, false, NULL);
    } else
      rn_portable_row(p, row + r);
}

/* rstd of a run's rows, written out. False when one of them is to be rescued. */
RN_INLINE bool run_rstd(const rn_problem *p, const rn_run *run, int64_t row, const float *sums, float *v, float *rstd) {
  bool ordinary = true;
  finish_rstd(p, run->count, sums, v, rstd);
  for (int r = 0; r < run->count; ++r) {
    if (p->sumsq_in)
      rstd[r] = given_rstd(v[r]);
    else
      ordinary &= rn_ordinary(v[r]);
  }
  if (p->round_rstd != RMSNORM_DTYPE_F32)
    for (int r = 0; r < run->count; ++r) rstd[r] = rn_round_to(p->round_rstd, rstd[r]);
  if (ordinary && p->rstd_out) memcpy((float *)p->rstd_out + row, rstd, (size_t)run->count * sizeof(float));
  return ordinary;
}

RN_INLINE void run_sums(const rn_problem *p, const rn_passes *passes, const rn_run *run, int64_t row, float *sums) {
  if (p->sumsq_in)
    memcpy(sums, p->sumsq_in + row, (size_t)run->count * sizeof(float));
  else
    passes->square->rows(p, run, p->cols, sums);
}

/* A walk over rows in runs of at most `most`. */
typedef struct rn_walk {
  int64_t row, last, token, head, most;
} rn_walk;
RN_INLINE rn_run next_run(const rn_problem *p, rn_walk *walk) {
  const int64_t left = walk->last - walk->row;
  const rn_run run = run_from(p, walk->token, walk->head, left < walk->most ? left : walk->most);
  walk->row += run.count;
  if (p->heads == 1)
    walk->token += run.count;
  else if ((walk->head += run.count) == p->heads)
    walk->head = 0, ++walk->token;
  return run;
}
RN_INLINE rn_walk walk_from(const rn_problem *p, int64_t first, int64_t last, int64_t most) {
  if (p->heads == 1) return (rn_walk){first, last, first, 0, most};
  return (rn_walk){first, last, first / p->heads, first % p->heads, most};
}

/* Fused passes take rows of at least two tiles: with a single one, sums and stores alternate in steps of whole rows. */
#define RN_FUSED_MIN (8 * RN_TILE_LANES)

/* Long rows from memory: the passes of neighbouring rows are fused. */
static void far_long_rows(const rn_problem *p, const rn_passes *passes, int64_t first, int64_t last, rn_way way) {
  rn_walk walk = walk_from(p, first, last, 1);
  rn_run run = next_run(p, &walk), next = run;
  if (walk.row < last) next = next_run(p, &walk);
  float sums[RN_PAIR], v[RN_PAIR], rstd[RN_PAIR];
  run_sums(p, passes, &run, first, sums);
  for (int64_t row = first; row < last; ++row) {
    rn_run later = next;
    if (walk.row < last) later = next_run(p, &walk);
    if (!run_rstd(p, &run, row, sums, v, rstd)) {
      rn_portable_row(p, row);
      if (row + 1 < last) run_sums(p, passes, &next, row + 1, sums);
    } else if (row + 1 < last)
      passes->fused(p, &run.at, rstd[0], way.stream, &next.at, &later.at, sums);
    else
      passes->apply(p, &run, 0, p->cols, rstd, way.stream, NULL);
    run = next, next = later;
  }
}

/* One row alone: what a decoder calls for every token. No blocks, and one rstd needs no vectors. */
static void single_row(const rn_problem *p, const rn_passes *passes, int64_t row, rn_way way) {
  const rn_run run = run_of(place_of_row(p, row));
  float sum[RN_PAIR], rstd;
  run_sums(p, passes, &run, row, sum);
  if (p->op == RMSNORM_OP_STATS) {
    p->sumsq_out[row] = sum[0];
    return;
  }
  const float v = sum[0] / (float)p->divisor + (float)p->eps;
  if (p->sumsq_in)
    rstd = given_rstd(v);
  else if (rn_ordinary(v))
    rstd = rn_isqrt(v);
  else {
    rn_portable_row(p, row);
    return;
  }
  rstd = row_rstd(p, rstd);
  if (p->rstd_out) ((float *)p->rstd_out)[row] = rstd;
  passes->apply(p, &run, 0, p->cols, &rstd, way.stream, NULL);
}

/* The problem and the run of the last pass after a first pass that has stored the sums: they are its x. */
static rn_problem stored_problem(const rn_problem *p) {
  rn_problem s = *p;
  s.x = p->residual_out;
  s.residual.data = s.residual_out.data = NULL;
  s.round_sum = RMSNORM_DTYPE_F32;
  return s;
}
RN_INLINE rn_run stored_run(const rn_run *run) {
  rn_run s = *run;
  s.at.x = run->at.residual_out, s.x_step = run->residual_out_step;
  s.at.residual = NULL, s.at.residual_out = NULL, s.residual_step = s.residual_out_step = 0;
  return s;
}

/* Rows of one group each, no quantised output: blocks of rows, statistic first, then the last pass. `stored` is NULL or
 * the problem of the last pass, see stored_problem; then passes->apply is for that one. */
static void plain_rows(const rn_problem *p, const rn_problem *stored, const rn_passes *passes, int64_t first,
                       int64_t last, rn_way way) {
  const int64_t n = p->cols;
  int64_t block = RN_BLOCK_BYTES / (n * 4);
  block = block < 1 ? 1 : block > RN_ROWS_MAX ? RN_ROWS_MAX : block;
  float sums[RN_ROWS_MAX + RN_PAIR], v[RN_ROWS_MAX + RN_PAIR], rstd[RN_ROWS_MAX + RN_PAIR];
  rn_walk walk = walk_from(p, first, last, block);
  rn_run run = next_run(p, &walk);
  for (int64_t row = first;;) {
    run_sums(p, passes, &run, row, sums);
    const rn_run done = stored ? stored_run(&run) : run;
    const rn_problem *last_pass = stored ? stored : p;
    const bool more = walk.row < last;
    /* The next block's place is made before this one's last pass, which prefetches it. */
    if (more) run = next_run(p, &walk);
    if (p->op == RMSNORM_OP_STATS)
      memcpy(p->sumsq_out + row, sums, (size_t)done.count * sizeof(float));
    else if (__builtin_expect(run_rstd(p, &done, row, sums, v, rstd), 1))
      passes->apply(last_pass, &done, 0, n, rstd, way.stream, way.prefetch && more ? &run.at : NULL);
    else
      apply_rescued(last_pass, &done, passes->apply, row, v, rstd);
    if (!more) return;
    row += done.count;
  }
}

/* The values of columns [i, i + count) of group g, into v. */
static void normal_values(const rn_problem *p, rn_cfg c, const rn_place *at, int64_t i, int count, float rstd,
                          float *v) {
  for (int k = 0; k < count; k += RN_PAIR) {
    const int some = count - k < RN_PAIR ? count - k : RN_PAIR;
    const v2 h = load_sum(c, at, i + k, some);
    v2_store_f32(v + k, c.layout, normalise(p, c, at, i + k, some, h, vf_set1(rstd)), 0);
  }
}

/* The columns of a row in stretches of at most one block, none of which crosses a group. */
#define RN_STRETCH 128
typedef struct rn_stretch {
  int64_t col, group, in_group; /* first column; its group; its place in the group */
  int count;
} rn_stretch;
RN_INLINE bool next_stretch(const rn_problem *p, int64_t limit, rn_stretch *s) {
  s->col += s->count, s->in_group += s->count;
  if (s->in_group == p->group_cols) s->in_group = 0, ++s->group;
  int64_t count = RN_STRETCH;
  if (count > limit - s->col) count = limit - s->col;
  if (count > p->group_cols - s->in_group) count = p->group_cols - s->in_group;
  s->count = (int)count;
  return count > 0;
}

/* Everything else: several groups, quantised outputs. One row at a time, its groups' statistics first. */
static void general_row(const rn_problem *p, rn_cfg c, const rn_passes *passes, int64_t row) {
  const int64_t n = p->group_cols, stat = row * p->groups;
  const rn_place whole = place_of_row(p, row);
  float sums[RN_PAIR] = {0}, v[RN_PAIR], r[RN_PAIR], rstd[RN_GROUPS_MAX];
  for (int64_t g = 0; g < p->groups; ++g) {
    const rn_place at = place_of_group(p, c, &whole, g);
    if (p->sumsq_in)
      sums[0] = p->sumsq_in[stat + g];
    else {
      const rn_run one = run_of(at);
      passes->square->rows(p, &one, n, sums);
    }
    if (p->op == RMSNORM_OP_STATS) {
      p->sumsq_out[stat + g] = sums[0];
      continue;
    }
    finish_rstd(p, 1, sums, v, r);
    if (p->sumsq_in)
      r[0] = given_rstd(v[0]);
    else if (!rn_ordinary(v[0])) {
      rn_portable_row(p, row);
      return;
    }
    rstd[g] = row_rstd(p, r[0]);
  }
  if (p->op == RMSNORM_OP_STATS) return;
  if (p->rstd_out)
    for (int64_t g = 0; g < p->groups; ++g) ((float *)p->rstd_out)[stat + g] = rstd[g];
  if (p->quant == RMSNORM_QUANT_NONE) {
    for (int64_t g = 0; g < p->groups; ++g) {
      const rn_place at = place_of_group(p, c, &whole, g);
      const rn_run one = run_of(at);
      passes->apply(p, &one, 0, n, rstd + g, false, NULL);
    }
    return;
  }

  float values[RN_STRETCH + RN_PAIR], scale = p->quant == RMSNORM_QUANT_TENSOR ? *p->scale_in : 0.0f;
  if (p->quant == RMSNORM_QUANT_ROW) {
    float amax = 0.0f;
    for (rn_stretch s = {0}; next_stretch(p, p->cols, &s);) {
      const rn_place at = place_of_group(p, c, &whole, s.group);
      normal_values(p, c, &at, s.in_group, s.count, rstd[s.group], values);
      const float m = amax_of(values, s.count);
      amax = m > amax ? m : amax;
    }
    scale = rn_scale(p->quant_dtype, amax, p->scale_max);
    ((float *)p->scale_out)[row] = scale;
  }
  const bool blocks = p->quant == RMSNORM_QUANT_BLOCK || p->quant == RMSNORM_QUANT_MX;
  const int64_t width = blocks ? p->block_cols : p->cols;
  rn_stretch s = {0};
  for (int64_t b = 0; b * width < p->cols; ++b) {
    const int64_t end = (b + 1) * width < p->cols ? (b + 1) * width : p->cols;
    int exponent = 0;
    if (blocks) {
      /* A block may cross groups: its amax first, stretch by stretch; a stretch is computed twice only then. */
      float amax = 0.0f;
      for (rn_stretch t = s; next_stretch(p, end, &t);) {
        const rn_place at = place_of_group(p, c, &whole, t.group);
        normal_values(p, c, &at, t.in_group, t.count, rstd[t.group], values);
        const float m = amax_of(values, t.count);
        amax = m > amax ? m : amax;
      }
      const int64_t index = row * p->scale_row_stride + b * p->scale_block_stride;
      if (p->quant == RMSNORM_QUANT_MX) {
        exponent = rn_mx_exponent(p->quant_dtype, p->e8m0_rounding, amax);
        ((uint8_t *)p->scale_out)[index] = (uint8_t)(exponent + 127);
      } else {
        scale = rn_scale(p->quant_dtype, amax, p->scale_max);
        ((float *)p->scale_out)[index] = scale;
      }
    }
    while (next_stretch(p, end, &s)) {
      const rn_place at = place_of_group(p, c, &whole, s.group);
      uint8_t *q = (uint8_t *)at.q + s.in_group;
      normal_values(p, c, &at, s.in_group, s.count, rstd[s.group], values);
      if (at.y || at.residual_out) {
        const rn_run one = run_of(at);
        passes->apply(p, &one, s.in_group, s.in_group + s.count, rstd + s.group, false, NULL);
      }
      quantise_values(p, values, s.count, scale, exponent, q);
    }
  }
}
