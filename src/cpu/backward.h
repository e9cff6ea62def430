/* backward.h - the backward row: two sums, then dx, and the weight gradient collected on the way. Part of row.c.
 *
 * dweight needs every row in the order of docs/numerics.md 4.1. Rows are therefore taken in bundles that are neighbours
 * in that order: either up to four successive rows of one row lane (a chain of fma that stays in a register) or the one
 * or two rows of each of four neighbouring lanes (a pairwise tree in registers). A finished lane goes into a binary
 * counter of vectors, and the carries are added in registers too. So a bundle costs about one load and one store of the
 * weight gradient, whatever the chunks are. Scratch vectors keep the layout of the rows; only the last store undoes it.
 *
 * Bytes: dy and x are read once from memory, dx is written once; what a bundle looks at again comes from the caches.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../order.h"
#include "elements.h"
#include "rows.h"

#define RN_BUNDLE 8 /* rows at most */
#define RN_QUAD   4 /* row lanes of a tree; rows of a chain */

/* What a bundle reads must still be in the second-level cache for its last pass. */
#define RN_BUNDLE_BYTES (768 * 1024)
/* Up to this many columns eight rows at once save more (shuffles, roots, loads of w) than 24 places cost: without
 * dweight, and with it, where the alternative is chains of two. */
#define RN_WIDE_COLS      256
#define RN_WIDE_TREE_COLS 1024
/* Bytes of x and dy in a row up to which a bundle's squares are summed early, see grad_bundles. */
#define RN_EARLY_BYTES 2048

typedef struct rn_grad_cfg {
  rn_cfg forward; /* x, residual, weight, gate, layout: what makes u */
  int dy, dresidual_out, dx, dresidual, dgate;
  bool rescued; /* rows may carry a power of two, docs/numerics.md 1.4 */
} rn_grad_cfg;

typedef struct rn_grad_place {
  rn_place in;
  const char *dy, *dresidual_out;
  char *dx, *dresidual, *dgate;
  float factor, r; /* xhat = (u * factor) * r; factor is 1 for ordinary rows */
  float c;         /* dot / divisor */
} rn_grad_place;

RN_INLINE rn_grad_place grad_place_of(const rn_problem *p, int64_t token, int64_t head) {
  rn_grad_place at;
#define RN_AT(view) ((view).data ? (view).data + token * (view).row_bytes + head * (view).head_bytes : NULL)
  at.in.x = RN_AT(p->x), at.in.residual = RN_AT(p->residual), at.in.gate = RN_AT(p->gate);
  at.in.y = at.in.residual_out = at.in.q = NULL;
  at.in.weight = p->weight ? p->weight + head * p->weight_head_bytes : NULL;
  at.dy = RN_AT(p->dy), at.dresidual_out = RN_AT(p->dresidual_out);
  at.dx = RN_AT(p->dx), at.dresidual = RN_AT(p->dresidual), at.dgate = RN_AT(p->dgate);
#undef RN_AT
  at.factor = 1.0f, at.r = 0.0f, at.c = 0.0f;
  return at;
}

RN_INLINE v2 load_u(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int64_t i, int count) {
  return gated_before(p, c.forward, &at->in, i, count, load_sum(c.forward, &at->in, i, count));
}
RN_INLINE v2 load_g(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int64_t i, int count) {
  v2 g = load(c.forward, c.dy, at->dy, i, count);
  if (c.forward.gate && !p->gate_before)
    g = v2_mul(g, v2_act(c.forward.gate, load(c.forward, p->gate.dtype, at->in.gate, i, count)));
  return g;
}
RN_INLINE v2 load_w(rn_grad_cfg c, const rn_grad_place *at, int64_t i, int count) {
  v2 w = load(c.forward, c.forward.weight, at->in.weight, i, count);
  if (c.forward.has_offset) {
    const vf offset = vf_set1(c.forward.weight_offset);
    w = (v2){vf_add(w.a, offset), vf_add(w.b, offset)};
  }
  return w;
}
RN_INLINE v2 xhat_of(rn_grad_cfg c, const rn_grad_place *at, v2 u) {
  if (c.rescued) u = v2_scale(u, vf_set1(at->factor));
  return v2_scale(u, vf_set1(at->r));
}

/* The lines of a pair of vectors, into the second-level cache, where a bundle fits. */
RN_INLINE void prefetch_pair(const char *base, int dtype, int64_t i) {
  for (int64_t byte = 0; byte < rn_offset(dtype, RN_PAIR); byte += 64)
    rn_prefetch_far(base + rn_offset(dtype, i) + byte);
}

/* What is summed over a row: the squares of u, or t * xhat. */
enum { RN_SQUARES_OF_U, RN_DOTS };

RN_INLINE v2 sum_step(const rn_problem *p, rn_grad_cfg c, const int what, const rn_grad_place *at, int64_t i, int count,
                      v2 acc) {
  const v2 u = load_u(p, c, at, i, count);
  if (what == RN_SQUARES_OF_U) return v2_fma(u, u, acc);
  v2 t = load_g(p, c, at, i, count);
  if (at->in.weight) t = v2_mul(t, load_w(c, at, i, count));
  return v2_fma(t, xhat_of(c, at, u), acc);
}

/* acc = the lanes of `blocks` 64-lane blocks from `lane` on. `soon` is a dy that will be wanted soon, or NULL. */
RN_INLINE void sum_lanes(const rn_problem *p, rn_grad_cfg c, const int what, const rn_grad_place *at, int64_t n,
                         int64_t lanes, int64_t lane, const int blocks, v2 *acc, const char *soon) {
  for (int j = 0; j < blocks * RN_PAIRS; ++j) acc[j] = v2_zero();
  int64_t i = lane;
  for (; i + blocks * 64 <= n; i += lanes)
    for (int j = 0; j < blocks * RN_PAIRS; ++j) {
      acc[j] = sum_step(p, c, what, at, i + j * RN_PAIR, RN_PAIR, acc[j]);
      if (soon) prefetch_pair(soon, c.dy, i + j * RN_PAIR);
    }
  if (i < n)
#pragma GCC unroll 16
    for (int j = 0; j < blocks * RN_PAIRS; ++j) {
      const int64_t k = i + j * RN_PAIR, left = n - k;
      const int count = left <= 0 ? 0 : left < RN_PAIR ? (int)left : RN_PAIR;
      const v2 more = sum_step(p, c, what, at, k, count, acc[j]);
      /* A lane of products may be -0, which adding an absent element's +0 would lose. */
      acc[j] = what == RN_DOTS ? v2_keep_first(c.forward.layout, count, more, acc[j]) : more;
    }
}

/* sum[s] of rows of `per_row` (1 or 2) 64-lane blocks: four blocks at a time. */
RN_INLINE void short_row_sums(const rn_problem *p, rn_grad_cfg c, const int what, const rn_grad_place *at, int rows,
                              const int per_row, float *sum, const rn_grad_place *next) {
  const int step = 4 / per_row;
  v2 acc[RN_PAIRS];
  vfold fold[4];
  float out[4];
  for (int s = 0; s < rows; s += step) {
    const int some = rows - s < step ? rows - s : step;
    for (int t = 0; t < 4; ++t) {
      const int r = s + t / per_row;
      if (t < some * per_row) {
        sum_lanes(p, c, what, at + r, p->cols, per_row * 64, t % per_row * 64, 1, acc, next ? next[r].dy : NULL);
        fold[t] = fold64(acc, c.forward.layout);
      } else
        fold[t] = fold[0]; /* its sum is not used */
    }
    fold_sum4(fold, c.forward.layout, out);
    for (int t = 0; t < some; ++t) sum[s + t] = per_row == 1 ? out[t] : out[2 * t] + out[2 * t + 1];
  }
}

/* sum[s] of `rows` rows. Long rows are taken four blocks of every row at a time, so that the weight comes from the
 * caches once. `next` are as many rows whose dy will be wanted soon, or NULL. */
RN_INLINE void row_sums(const rn_problem *p, rn_grad_cfg c, const int what, const rn_grad_place *at, int rows,
                        float *sum, const rn_grad_place *next) {
  const int64_t n = p->cols, lanes = rn_lanes(n), blocks = lanes / 64;
  const int tile = c.forward.fixed ? RN_TILE_BLOCKS : 1;
  float sums[RN_BUNDLE][RN_BLOCKS_MAX];
  v2 acc[RN_TILE_BLOCKS * RN_PAIRS] = {v2_zero()};
  vfold fold[4];
  if (blocks == 1) {
    short_row_sums(p, c, what, at, rows, 1, sum, next);
    return;
  }
  if (blocks == 2) {
    short_row_sums(p, c, what, at, rows, 2, sum, next);
    return;
  }
  for (int64_t b = 0; b < blocks; b += 4)
    for (int s = 0; s < rows; ++s) {
      for (int t = 0; t < 4; t += tile) {
        sum_lanes(p, c, what, at + s, n, lanes, (b + t) * 64, tile, acc, next ? next[s].dy : NULL);
        for (int k = 0; k < tile; ++k) fold[t + k] = fold64(acc + k * RN_PAIRS, c.forward.layout);
      }
      fold_sum4(fold, c.forward.layout, sums[s] + b);
    }
  for (int s = 0; s < rows; ++s) sum[s] = rn_tree(sums[s], blocks);
}

/* One step of the last pass for one row: gradients of this row's own, and (g, xhat) for dweight. */
typedef struct rn_products {
  v2 g, xhat;
} rn_products;
RN_INLINE rn_products grad_step(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int64_t i, int count, v2 w,
                                bool stream) {
  const v2 h = load_sum(c.forward, &at->in, i, count);
  const v2 dy = load(c.forward, c.dy, at->dy, i, count);
  v2 u = h, g = dy;
  rn_gate_values gate[2] = {{vf_zero(), vf_zero()}, {vf_zero(), vf_zero()}};
  if (c.forward.gate) {
    const v2 z = load(c.forward, p->gate.dtype, at->in.gate, i, count);
    gate[0] = gate_values(c.forward.gate, z.a), gate[1] = gate_values(c.forward.gate, z.b);
    if (p->gate_before)
      u = v2_mul(h, (v2){gate[0].act, gate[1].act});
    else
      g = v2_mul(dy, (v2){gate[0].act, gate[1].act});
  }
  const v2 xhat = xhat_of(c, at, u);
  /* The fixed instances are for calls that want dx and no other output of its shape. */
  const bool fixed = c.forward.fixed;
  if (fixed || at->dx || at->dresidual || at->dgate) {
    const vf r = vf_set1(at->r), dot = vf_set1(at->c);
    const v2 t = at->in.weight ? v2_mul(g, w) : g;
    v2 du = {vf_mul(r, vf_fnma(xhat.a, dot, t.a)), vf_mul(r, vf_fnma(xhat.b, dot, t.b))};
    if (c.rescued) du = v2_scale(du, vf_set1(at->factor));
    v2 dh = du;
    if (c.forward.gate) {
      const v2 slope = {gate[0].derivative, gate[1].derivative};
      v2 dgate;
      if (p->gate_before) {
        dgate = v2_mul(v2_mul(du, h), slope);
        dh = v2_mul(du, (v2){gate[0].act, gate[1].act});
      } else
        dgate = v2_mul(v2_mul(dy, at->in.weight ? v2_mul(xhat, w) : xhat), slope);
      /* dresidual_out may lie on dgate's place: everything is loaded before anything is stored. */
      if (at->dresidual_out) dh = v2_add(dh, load(c.forward, c.dresidual_out, at->dresidual_out, i, count));
      if (at->dgate) store(c.forward, c.dgate, at->dgate, i, dgate, count, false);
    } else if (at->dresidual_out)
      dh = v2_add(dh, load(c.forward, c.dresidual_out, at->dresidual_out, i, count));
    if (fixed || at->dx) store(c.forward, c.dx, at->dx, i, dh, count, stream);
    if (!fixed && at->dresidual) store(c.forward, c.dresidual, at->dresidual, i, dh, count, false);
  }
  return (rn_products){g, xhat};
}

/* Where a bundle's share of dweight goes: target = carries[..] + (start + products). */
typedef struct rn_collect {
  const float *start; /* chain: what the lane holds so far; NULL = +0 */
  const float *carry[64];
  int carries;
  float *target; /* NULL = no dweight */
} rn_collect;

RN_INLINE v2 raw_load(const float *base, int64_t i) {
  return v2_load_f32(base + i, RN_NATURAL);
}

/* A tree has one row of each of four lanes, then the second rows of the first of them; a chain has one lane. */
RN_INLINE void bundle_step(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, const int rows, const bool tree,
                           const float *start, const rn_collect *to, float *target, int carries, int64_t i, int count,
                           bool stream) {
  const v2 w = at->in.weight ? load_w(c, at, i, count) : v2_zero();
  v2 sum[RN_QUAD] = {v2_zero(), v2_zero(), v2_zero(), v2_zero()};
  if (!tree && start) sum[0] = raw_load(start, i);
#pragma GCC unroll 8
  for (int s = 0; s < rows; ++s) {
    const rn_products d = grad_step(p, c, at + s, i, count, w, stream);
    if (!target) continue;
    const int lane = tree ? s % RN_QUAD : 0;
    sum[lane] = v2_fma(d.g, d.xhat, sum[lane]);
  }
  if (!target) return;
  if (tree) sum[0] = v2_add(v2_add(sum[0], sum[1]), v2_add(sum[2], sum[3]));
  for (int k = 0; k < carries; ++k) sum[0] = v2_add(raw_load(to->carry[k], i), sum[0]);
  v2_store_f32(target + i, RN_NATURAL, sum[0], 0);
}

/* The last pass of a bundle. Without rows it only moves the counter on. `next` are as many rows whose x will be wanted
 * soon, or NULL. */
RN_INLINE void bundle_columns(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *bundle, const int rows,
                              const bool tree, const rn_collect *to, bool stream, const rn_grad_place *next) {
  const int64_t n = p->cols;
  const float *const start = to->start;
  float *const target = to->target;
  const int carries = target ? to->carries : 0;
  rn_grad_place at[RN_BUNDLE]; /* local copies, see rn_cfg */
  const char *next_x[RN_BUNDLE];
  at[0] = bundle[0]; /* also without rows: its weight is looked at */
  for (int s = 0; s < rows; ++s) {
    at[s] = bundle[s];
    next_x[s] = next ? next[s].in.x : NULL;
    if (!at[s].dx || (uintptr_t)at[s].dx % RN_STREAM_ALIGN != 0) stream = false;
  }
  const bool fetch = next != NULL;
  int64_t i = 0;
  for (; i + RN_PAIR <= n; i += RN_PAIR) {
    bundle_step(p, c, at, rows, tree, start, to, target, carries, i, RN_PAIR, stream);
    for (int s = 0; fetch && s < rows; ++s) prefetch_pair(next_x[s], c.forward.x, i);
  }
  if (i < n) bundle_step(p, c, at, rows, tree, start, to, target, carries, i, (int)(n - i), false);
}

/* Bundles of the usual sizes are unrolled. */
RN_INLINE void bundle_pass(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int rows, bool tree,
                           const rn_collect *to, bool stream, const rn_grad_place *next) {
#define RN_UNROLLED(count, as_tree)                                                                                    \
  if (c.forward.fixed && rows == (count) && tree == (as_tree)) {                                                       \
    bundle_columns(p, c, at, count, as_tree, to, stream, next);                                                        \
    return;                                                                                                            \
  }
  RN_UNROLLED(8, true)
  RN_UNROLLED(4, true)
  RN_UNROLLED(4, false)
  RN_UNROLLED(2, false)
  RN_UNROLLED(1, false)
#undef RN_UNROLLED
  bundle_columns(p, c, at, rows, tree, to, stream, next);
}

/* An instance: the sums of squares and the dots of a bundle's rows, and its last pass. */
typedef struct rn_grad {
  void (*squares)(const rn_problem *p, const rn_grad_place *at, int rows, float *sum);
  void (*dots)(const rn_problem *p, const rn_grad_place *at, int rows, float *sum, const rn_grad_place *next);
  void (*bundle)(const rn_problem *p, const rn_grad_place *at, int rows, bool tree, const rn_collect *to, bool stream,
                 const rn_grad_place *next);
} rn_grad;

/* Rows whose last passes run side by side: successive rows of one row lane, or (tree) the one or two rows of each of
 * four lanes. */
typedef struct rn_bundle {
  rn_grad_place at[RN_BUNDLE];
  int64_t row[RN_BUNDLE];
  int rows; /* -1: there is no such bundle */
  bool tree, ordinary;
  /* For dweight, see dweight.h. */
  int64_t lane;      /* of the chunk */
  bool starts, ends; /* the first, the last bundle of its lane */
} rn_bundle;

RN_INLINE void bundle_add(const rn_problem *p, rn_bundle *b, int64_t row) {
  const int64_t token = p->heads == 1 ? row : row / p->heads, head = p->heads == 1 ? 0 : row % p->heads;
  b->row[b->rows] = row;
  b->at[b->rows++] = grad_place_of(p, token, head);
}

/* factor and r of a row with this v = sum / divisor + eps and its rstd. False when the row is rescued. */
RN_INLINE bool grad_rstd(const rn_problem *p, rn_grad_place *at, int64_t row, float v, float rstd) {
  at->r = p->sumsq_in ? given_rstd(v) : rstd;
  if (p->sumsq_in || rn_ordinary(v)) return true;
  rn_portable_statistic(p, row, 0, &at->factor, &at->r);
  return false;
}

/* The statistics of a bundle: at->r, at->factor; b->ordinary is whether all its rows are. */
static void bundle_statistics(const rn_problem *p, const rn_grad *grad, rn_bundle *b) {
  float sums[RN_BUNDLE + RN_PAIR] = {0}, v[RN_BUNDLE + RN_PAIR], rstd[RN_BUNDLE + RN_PAIR];
  b->ordinary = true;
  if (p->rstd_in && p->round_rstd == RMSNORM_DTYPE_F32) {
    bool usable = true;
    for (int s = 0; s < b->rows; ++s) {
      b->at[s].r = ((const float *)p->rstd_in)[b->row[s]];
      usable &= b->at[s].r >= RN_RSTD_MIN && b->at[s].r <= RN_RSTD_MAX;
    }
    if (usable) return;
  }
  if (p->sumsq_in)
    for (int s = 0; s < b->rows; ++s) sums[s] = p->sumsq_in[b->row[s]];
  else
    grad->squares(p, b->at, b->rows, sums);
  finish_rstd(p, b->rows, sums, v, rstd);
  for (int s = 0; s < b->rows; ++s) {
    /* A saved rstd that is in range stays, whatever its neighbours say. */
    const float saved = p->rstd_in && p->round_rstd == RMSNORM_DTYPE_F32 ? b->at[s].r : 0.0f;
    if (saved >= RN_RSTD_MIN && saved <= RN_RSTD_MAX) continue;
    b->ordinary &= grad_rstd(p, &b->at[s], b->row[s], v[s], rstd[s]);
  }
}

/* The dots of a bundle, after its statistics: at->c. */
static void bundle_dots(const rn_problem *p, const rn_grad *grad, rn_bundle *b, const rn_grad_place *next) {
  const bool wanted = p->dx.data || p->dresidual.data || (p->dgate.data && p->gate_before);
  float dot[RN_BUNDLE] = {0};
  if (p->dot_out || (wanted && !p->dot_in)) grad->dots(p, b->at, b->rows, dot, next);
  for (int s = 0; s < b->rows; ++s) {
    if (p->dot_out) p->dot_out[b->row[s]] = dot[s];
    if (p->dot_in) dot[s] = p->dot_in[b->row[s]];
    const float c = dot[s] / (float)p->divisor;
    b->at[s].c = c == c ? c : (float)NAN; /* a given NaN could be a wild one, see simd.h */
  }
}

/* Rows of a chain. */
RN_INLINE int chain_most(const rn_problem *p) {
  const int64_t two_rows = p->cols * (p->x.size + p->dy.size) * 2;
  return two_rows * 2 <= RN_BUNDLE_BYTES ? 4 : two_rows <= RN_BUNDLE_BYTES ? 2 : 1;
}
