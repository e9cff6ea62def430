/* dweight.h - the order over rows that the weight gradient wants: docs/numerics.md 4.1. Part of row.c, after
 * backward.h.
 *
 * Row lanes are finished one after the other and go into a binary counter of vectors, which is the pairwise tree: what
 * a lane has to be added to is known before its last bundle runs, so the additions happen there, in registers.
 *
 * SPDX-License-Identifier: Apache-2.0 */

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

/* The bundles of a stretch of row lanes, in order. Short rows would feel every division, so none is made per bundle. */
typedef struct rn_bundles {
  const rn_problem *p;
  rn_chunks chunks;
  int unit_shift;             /* log2 of chunks.B */
  int64_t singles;            /* the lanes from this one on have one row each (if P is 1) */
  int64_t vector, lane, last; /* the first lane of the chunk at hand; the end of the stretch */
  int64_t rows;               /* of the chunk at hand, -1 = not known yet */
  int64_t i, l;               /* within the chunk: how many rows of each lane are done, times P; the lane */
  int most;                   /* rows of a bundle */
} rn_bundles;

static rn_bundles bundles_of(const rn_problem *p, const rn_lane_range *range) {
  rn_bundles s = {.p = p, .vector = range->vector, .lane = range->first, .last = range->last, .rows = -1};
  const int64_t R = p->dweight_rows;
  s.chunks = rn_chunks_of(R, p->dweight_cols);
  s.unit_shift = __builtin_ctzll((unsigned long long)s.chunks.B);
  /* With fewer than two rows a chunk units are single rows, and the first R - C chunks have two. */
  s.singles = s.chunks.P == 1 && R < 2 * s.chunks.C ? R - s.chunks.C : INT64_MAX;
  s.most = bundle_most(p);
  return s;
}

/* rn_chunk_row of order.h, with shifts. */
RN_INLINE void add_member(const rn_bundles *s, rn_bundle *b, int64_t chunk, int64_t i) {
  const int64_t unit = (i >> s->unit_shift) * s->chunks.C + chunk;
  const int64_t j = (unit << s->unit_shift) + (i & (s->chunks.B - 1));
  bundle_add(s->p, b, s->p->dweight_vectors > 1 ? j * s->p->heads + s->vector : j);
}

static bool next_bundle(rn_bundles *s, rn_bundle *b) {
  b->rows = 0;
  if (s->lane >= s->last) return false;
  /* Four lanes with one row each. (Lanes of a stretch start at a multiple of four wherever there are four.) */
  if (s->lane >= s->singles && s->most == RN_BUNDLE && s->lane % 4 == 0 && s->lane + 4 <= s->last) {
    b->tree = b->starts = b->ends = true;
    for (int k = 0; k < 4; ++k) add_member(s, b, s->lane + k, 0);
    s->lane += 4;
    return true;
  }
  /* The P lanes of a chunk advance together, `most` rows of a lane at a time. */
  const int64_t P = s->chunks.P, chunk = P == 1 ? s->lane : s->lane / P;
  if (s->rows < 0) s->rows = rn_chunk_rows(s->chunks, s->p->dweight_rows, chunk);
  b->tree = false, b->lane = s->l, b->starts = s->i == 0, b->ends = s->i + P * s->most >= s->rows;
  while (b->rows < s->most && s->i + s->l + b->rows * P < s->rows) add_member(s, b, chunk, s->i + s->l + b->rows * P);
  if (++s->l == P) {
    s->l = 0, s->i += P * s->most;
    if (b->ends) s->i = 0, s->lane += P, s->rows = -1;
  }
  return true;
}

static void grad_lanes(const rn_problem *p, const rn_grad *grad, const rn_grad *rescued, const rn_lane_range *range,
                       rn_way way) {
  const int64_t n = padded_cols(p);
  rn_bundles source = bundles_of(p, range);
  float *lane_sums = range->scratch; /* [P][n] */
  rn_counter counter = {lane_sums + source.chunks.P * n, n, 0};
  rn_bundle now, next;
  for (bool more = next_bundle(&source, &now); more; now = next) {
    rn_collect to;
    more = next_bundle(&source, &next);
    to.start = now.starts ? NULL : lane_sums + now.lane * n;
    if (now.ends)
      counter_push(&counter, now.tree ? 2 : 0, &to);
    else
      to.carries = 0, to.target = lane_sums + now.lane * n;
    if (now.rows == 0) now.at[0] = grad_place_of(p, 0, 0), now.at[0].in.weight = NULL; /* a lane without rows: +0 */
    bundle_run(p, grad, rescued, &now, &to, way, &next);
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
