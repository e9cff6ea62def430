/* backward.h - the backward row: two sums, then dx, and the weight gradient collected on the way. Part of row.c.
 *
 * dweight needs every row in the order of docs/numerics.md 4.1. Rows are therefore taken in bundles of up to four that
 * are neighbours in that order, either successive rows of one row lane (a chain of fma that stays in a register) or the
 * single rows of four neighbouring lanes (a pairwise tree in registers). A finished lane goes into a binary counter of
 * vectors, and the carries are added in registers too. So a bundle costs about one load and one store of the weight
 * gradient, whatever the chunks are. Scratch vectors keep the layout of the rows; only the last store undoes it.
 *
 * Bytes: dy and x are read once from memory, dx is written once; the second look at a bundle comes from the cache.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../order.h"
#include "elements.h"
#include "row.h"

#define RN_BUNDLE 4
#define RN_BUNDLE_BYTES                                                                                                \
  (768 * 1024) /* what a bundle reads must still be in the second-level cache for its last pass                        \
                */

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
  at.in = place_of(p, token, head);
#define RN_AT(view) ((view).data ? (view).data + token * (view).row_bytes + head * (view).head_bytes : NULL)
  at.dy = RN_AT(p->dy), at.dresidual_out = RN_AT(p->dresidual_out);
  at.dx = RN_AT(p->dx), at.dresidual = RN_AT(p->dresidual), at.dgate = RN_AT(p->dgate);
#undef RN_AT
  at.factor = 1.0f, at.r = 0.0f, at.c = 0.0f;
  return at;
}

RN_INLINE v2 load_u(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int64_t i, int count) {
  return gated_before(p, c.forward, &at->in, i, count, load_sum(p, c.forward, &at->in, i, count));
}
RN_INLINE v2 load_g(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int64_t i, int count) {
  v2 g = load(c.forward, c.dy, at->dy, i, count);
  if (c.forward.gate && !p->gate_before)
    g = v2_mul(g, v2_act(c.forward.gate, load(c.forward, p->gate.dtype, at->in.gate, i, count)));
  return g;
}
RN_INLINE v2 load_w(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int64_t i, int count) {
  const vf offset = vf_set1(p->weight_offset);
  const v2 w = load(c.forward, c.forward.weight, at->in.weight, i, count);
  return (v2){vf_add(w.a, offset), vf_add(w.b, offset)};
}
RN_INLINE v2 xhat_of(rn_grad_cfg c, const rn_grad_place *at, v2 u) {
  if (c.rescued) u = v2_scale(u, vf_set1(at->factor));
  return v2_scale(u, vf_set1(at->r));
}

RN_INLINE v2 dot_step(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int64_t i, int count, v2 acc) {
  v2 t = load_g(p, c, at, i, count);
  if (at->in.weight) t = v2_mul(t, load_w(p, c, at, i, count));
  return v2_fma(t, xhat_of(c, at, load_u(p, c, at, i, count)), acc);
}

RN_INLINE void dot_lanes(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int64_t n, int64_t lanes,
                         int64_t lane, const int blocks, v2 *acc) {
  for (int j = 0; j < blocks * RN_PAIRS; ++j) acc[j] = v2_zero();
  int64_t i = lane;
  for (; i + blocks * 64 <= n; i += lanes)
    for (int j = 0; j < blocks * RN_PAIRS; ++j) acc[j] = dot_step(p, c, at, i + j * RN_PAIR, RN_PAIR, acc[j]);
  for (int j = 0; j < blocks * RN_PAIRS; ++j) {
    const int64_t k = i + j * RN_PAIR;
    if (k >= n) break;
    const int count = n - k < RN_PAIR ? (int)(n - k) : RN_PAIR;
    const v2 sum = dot_step(p, c, at, k, count, acc[j]);
    /* A lane of products may be -0, which adding an absent element's +0 would lose. */
    acc[j] = count == RN_PAIR ? sum : v2_keep_first(c.forward.layout, count, sum, acc[j]);
  }
}

RN_INLINE float row_dot(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at) {
  const int64_t n = p->cols, lanes = rn_lanes(n), blocks = lanes / 64;
  const int tile = c.forward.fixed ? RN_TILE_BLOCKS : 1;
  float sums[RN_BLOCKS_MAX];
  v2 acc[RN_TILE_BLOCKS * RN_PAIRS] = {v2_zero()};
  vfold fold[4];
  if (blocks >= 4) {
    for (int64_t b = 0; b < blocks; b += 4) {
      for (int t = 0; t < 4; t += tile) {
        dot_lanes(p, c, at, n, lanes, (b + t) * 64, tile, acc);
        for (int s = 0; s < tile; ++s) fold[t + s] = fold64(acc + s * RN_PAIRS, c.forward.layout);
      }
      fold_sum4(fold, c.forward.layout, sums + b);
    }
  } else {
    for (int t = 0; t < 4; ++t) {
      if (t < blocks) dot_lanes(p, c, at, n, lanes, t * 64, 1, acc);
      fold[t] = fold64(acc, c.forward.layout); /* past the last block: not used */
    }
    fold_sum4(fold, c.forward.layout, sums);
  }
  return rn_tree(sums, blocks);
}

/* One step of the last pass for one row: gradients of this row's own, and (g, xhat) for dweight. */
typedef struct rn_products {
  v2 g, xhat;
} rn_products;
RN_INLINE rn_products grad_step(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int64_t i, int count, v2 w,
                                bool stream) {
  const v2 h = load_sum(p, c.forward, &at->in, i, count);
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
  if (at->dx || at->dresidual || at->dgate) {
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
    if (at->dx) store(c.forward, c.dx, at->dx, i, dh, count, stream);
    if (at->dresidual) store(c.forward, c.dresidual, at->dresidual, i, dh, count, false);
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

RN_INLINE void bundle_step(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, const int rows, const bool tree,
                           const rn_collect *to, int64_t i, int count, bool stream) {
  const v2 w = at->in.weight ? load_w(p, c, at, i, count) : v2_zero();
  v2 sum[RN_BUNDLE];
  sum[0] = !tree && to->start ? raw_load(to->start, i) : v2_zero();
  for (int s = 0; s < rows; ++s) {
    const rn_products d = grad_step(p, c, at + s, i, count, w, stream);
    if (!to->target) continue;
    if (tree)
      sum[s] = v2_fma(d.g, d.xhat, v2_zero());
    else
      sum[0] = v2_fma(d.g, d.xhat, sum[0]);
  }
  if (!to->target) return;
  if (tree)
    for (int width = rows; width > 1; width /= 2)
      for (int s = 0; s < width / 2; ++s) sum[s] = v2_add(sum[2 * s], sum[2 * s + 1]);
  for (int k = 0; k < to->carries; ++k) sum[0] = v2_add(raw_load(to->carry[k], i), sum[0]);
  v2_store_f32(to->target + i, RN_NATURAL, sum[0], 0);
}

/* The last pass of a bundle. Without rows it only moves the counter on. */
RN_INLINE void bundle_columns(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, const int rows,
                              const bool tree, const rn_collect *to, bool stream) {
  const int64_t n = p->cols;
  int64_t i = 0;
  if (stream) {
    for (int s = 0; s < rows; ++s)
      if (!at[s].dx || (uintptr_t)at[s].dx % RN_STREAM_ALIGN != 0) stream = false;
  }
  for (; i + RN_PAIR <= n; i += RN_PAIR) bundle_step(p, c, at, rows, tree, to, i, RN_PAIR, stream);
  if (i < n) bundle_step(p, c, at, rows, tree, to, i, (int)(n - i), false);
}

/* Bundles of the usual sizes are unrolled. */
RN_INLINE void bundle_pass(const rn_problem *p, rn_grad_cfg c, const rn_grad_place *at, int rows, bool tree,
                           const rn_collect *to, bool stream) {
  if (c.forward.fixed && rows == RN_BUNDLE && tree)
    bundle_columns(p, c, at, RN_BUNDLE, true, to, stream);
  else if (c.forward.fixed && rows == RN_BUNDLE)
    bundle_columns(p, c, at, RN_BUNDLE, false, to, stream);
  else
    bundle_columns(p, c, at, rows, tree, to, stream);
}

/* An instance: the forward's first pass, the row dot, and the last pass of a bundle. */
typedef struct rn_grad {
  const rn_square *square;
  float (*dot)(const rn_problem *p, const rn_grad_place *at);
  void (*bundle)(const rn_problem *p, const rn_grad_place *at, int rows, bool tree, const rn_collect *to, bool stream);
} rn_grad;

/* The statistic of one row: at->factor and at->r; false when the row is rescued. */
static bool grad_statistic(const rn_problem *p, const rn_grad *grad, rn_grad_place *at, int64_t row) {
  float sums[RN_PAIR] = {0}, v[RN_PAIR], r[RN_PAIR];
  if (p->rstd_in && p->round_rstd == RMSNORM_DTYPE_F32) {
    const float saved = ((const float *)p->rstd_in)[row];
    if (saved >= RN_RSTD_MIN && saved <= RN_RSTD_MAX) {
      at->r = saved;
      return true;
    }
  }
  if (p->sumsq_in)
    sums[0] = p->sumsq_in[row];
  else {
    const rn_run one = run_of(at->in);
    grad->square->rows(p, &one, p->cols, sums);
  }
  finish_rstd(p, 1, sums, v, r);
  at->r = p->sumsq_in ? given_rstd(v[0]) : r[0];
  if (p->sumsq_in || rn_ordinary(v[0])) return true;
  rn_portable_statistic(p, row, 0, &at->factor, &at->r);
  return false;
}

/* Everything that a row's last pass needs. True when the row is ordinary. */
static bool grad_prepare(const rn_problem *p, const rn_grad *grad, const rn_grad *rescued, rn_grad_place *at,
                         int64_t row) {
  const bool ordinary = grad_statistic(p, grad, at, row);
  const bool wanted = at->dx || at->dresidual || (at->dgate && p->gate_before);
  float dot = 0.0f;
  if (p->dot_out || (wanted && !p->dot_in)) dot = (ordinary ? grad : rescued)->dot(p, at);
  if (p->dot_out) p->dot_out[row] = dot;
  if (p->dot_in) dot = p->dot_in[row];
  at->c = dot / (float)p->divisor;
  return ordinary;
}

static void bundle(const rn_problem *p, const rn_grad *grad, const rn_grad *rescued, rn_grad_place *at,
                   const int64_t *row, int rows, bool tree, const rn_collect *to, bool stream) {
  bool ordinary = true;
  for (int s = 0; s < rows; ++s) ordinary &= grad_prepare(p, grad, rescued, at + s, row[s]);
  (__builtin_expect(ordinary, 1) ? grad : rescued)->bundle(p, at, rows, tree, to, stream);
}

static void grad_rows(const rn_problem *p, const rn_grad *grad, const rn_grad *rescued, int64_t first, int64_t last,
                      bool stream) {
  const rn_collect nowhere = {.target = NULL};
  int64_t token = first / p->heads, head = first % p->heads;
  for (int64_t row = first; row < last; ++row) {
    rn_grad_place at = grad_place_of(p, token, head);
    bundle(p, grad, rescued, &at, &row, 1, false, &nowhere, stream);
    if (++head == p->heads) head = 0, ++token;
  }
}

/* The binary counter: vector `level` holds the sum of 2^level row lanes, or nothing. */
typedef struct rn_counter {
  float *levels; /* level k at levels + k * stride */
  int64_t stride;
  uint64_t occupied;
} rn_counter;

/* Where the sum of 2^level more lanes goes: carries listed in *to, to->target set. */
RN_INLINE void counter_push(rn_counter *k, int level, rn_collect *to) {
  to->carries = 0;
  while (k->occupied >> level & 1) {
    to->carry[to->carries++] = k->levels + level * k->stride;
    k->occupied &= ~(1ull << level);
    ++level;
  }
  k->occupied |= 1ull << level;
  to->target = k->levels + level * k->stride;
}

RN_INLINE int64_t padded_cols(const rn_problem *p) {
  return (p->dweight_cols + 63) / 64 * 64;
}

static void grad_lanes(const rn_problem *p, const rn_grad *grad, const rn_grad *rescued, const rn_lane_range *range,
                       bool stream) {
  const rn_chunks chunks = rn_chunks_of(p->dweight_rows, p->dweight_cols);
  const int64_t n = padded_cols(p), R = p->dweight_rows;
  const int64_t row_bytes = p->cols * (p->x.size + p->dy.size);
  const int most = row_bytes * 4 <= RN_BUNDLE_BYTES ? 4 : row_bytes * 2 <= RN_BUNDLE_BYTES ? 2 : 1;
  float *lane_sums = range->scratch; /* [P][n] */
  rn_counter counter = {range->scratch + chunks.P * n, n, 0};
  rn_grad_place at[RN_BUNDLE];
  int64_t row[RN_BUNDLE];
  rn_collect to;

  for (int64_t lane = range->first; lane < range->last;) {
    const int64_t chunk = lane / chunks.P;
    /* Four lanes with one row each. (Lanes of a range start at multiples of four wherever there are four.) */
    if (chunks.P == 1 && most == 4 && lane % 4 == 0 && lane + 4 <= range->last && rn_chunk_rows(chunks, R, lane) == 1 &&
        rn_chunk_rows(chunks, R, lane + 1) == 1 && rn_chunk_rows(chunks, R, lane + 2) == 1 &&
        rn_chunk_rows(chunks, R, lane + 3) == 1) {
      for (int s = 0; s < 4; ++s) {
        const int64_t j = rn_chunk_row(chunks, lane + s, 0);
        row[s] = p->dweight_vectors > 1 ? j * p->heads + range->vector : j;
        at[s] = grad_place_of(p, row[s] / p->heads, row[s] % p->heads);
      }
      counter_push(&counter, 2, &to);
      bundle(p, grad, rescued, at, row, 4, true, &to, stream);
      lane += 4;
      continue;
    }
    /* One chunk: its P lanes advance together, `most` rows of a lane at a time. */
    const int64_t rows = rn_chunk_rows(chunks, R, chunk), P = chunks.P;
    for (int64_t i = 0; i == 0 || i < rows; i += P * most) {
      const bool ends = i + P * most >= rows;
      for (int64_t l = 0; l < P; ++l) {
        int count = 0;
        for (; count < most && i + l + count * P < rows; ++count) {
          const int64_t j = rn_chunk_row(chunks, chunk, i + l + count * P);
          row[count] = p->dweight_vectors > 1 ? j * p->heads + range->vector : j;
          at[count] = grad_place_of(p, row[count] / p->heads, row[count] % p->heads);
        }
        to.start = i == 0 ? NULL : lane_sums + l * n;
        if (ends)
          counter_push(&counter, 0, &to);
        else
          to.carries = 0, to.target = lane_sums + l * n;
        if (count == 0) at[0] = grad_place_of(p, 0, 0), at[0].in.weight = NULL;
        bundle(p, grad, rescued, at, row, count, false, &to, stream);
      }
    }
    lane += P;
  }

  /* What is left in the counter: the shorter right end is added to its left neighbours, shortest first. */
  for (int64_t i = 0; i < n; i += RN_PAIR) {
    v2 sum = v2_zero();
    bool empty = true;
    for (int level = 0; level < 64 && counter.occupied >> level; ++level) {
      if (!(counter.occupied >> level & 1)) continue;
      const v2 left = raw_load(counter.levels + level * n, i);
      sum = empty ? left : v2_add(left, sum);
      empty = false;
    }
    v2_store_f32(range->sum + i, RN_NATURAL, sum, 0);
  }
}

/* dweight[first .. last) = the tree over `parts` sums, rounded once; first is a multiple of RN_PAIR. */
static void grad_finish(const rn_problem *p, int layout, int64_t vector, const float *sums, int64_t stride,
                        int64_t parts, int64_t first, int64_t last) {
  char *dweight = p->dweight + rn_offset(p->dweight_dtype, vector * p->dweight_cols);
  for (int64_t i = first; i < last; i += RN_PAIR) {
    v2 level[64];
    uint64_t occupied = 0;
    for (int64_t part = 0; part < parts; ++part) {
      v2 sum = raw_load(sums + part * stride, i);
      int k = 0;
      for (; occupied >> k & 1; ++k) sum = v2_add(level[k], sum), occupied &= ~(1ull << k);
      level[k] = sum, occupied |= 1ull << k;
    }
    v2 sum = v2_zero();
    bool empty = true;
    for (int k = 0; k < 64 && occupied >> k; ++k)
      if (occupied >> k & 1) sum = empty ? level[k] : v2_add(level[k], sum), empty = false;
    const int count = last - i < RN_PAIR ? (int)(last - i) : RN_PAIR;
    if (count == RN_PAIR)
      store_all(p->dweight_dtype, layout, dweight, i, sum, false, true);
    else
      store_some(p->dweight_dtype, layout, dweight, i, sum, count);
  }
}
