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

/* Where the bundles come from: the rows of a range in order, or (with dweight) a stretch of row lanes. Short rows would
 * feel every division, so none is made per bundle. */
typedef struct rn_bundles {
  const rn_problem *p;
  int most;              /* rows of a chain */
  int64_t row, last_row; /* without dweight */
  rn_chunks chunks;
  int unit_shift, lane_shift; /* log2 of chunks.B, chunks.P */
  int64_t units, longer,
      rest;                   /* whole units of a chunk; how many chunks have one more; the rows of a last, short one */
  int64_t vector, lane, last; /* the first lane of the chunk at hand; the end of the stretch */
  int64_t rows;               /* of the chunk at hand */
  int64_t i, l;               /* within the chunk: how many rows of each lane are done, times P; the lane */
} rn_bundles;

static rn_bundles bundles_of_rows(const rn_problem *p, int64_t first, int64_t last) {
  rn_bundles s = {.p = p, .row = first, .last_row = last};
  s.most = p->cols <= RN_WIDE_COLS ? RN_BUNDLE : chain_most(p);
  if (p->heads > 1 && p->weight_head_bytes) s.most = 1; /* the rows of a bundle share their weight */
  return s;
}

static rn_bundles bundles_of_lanes(const rn_problem *p, const rn_lane_range *range) {
  rn_bundles s = {.p = p, .vector = range->vector, .lane = range->first, .last = range->last};
  const int64_t R = p->dweight_rows;
  s.chunks = rn_chunks_of(R, p->dweight_cols);
  s.unit_shift = __builtin_ctzll((unsigned long long)s.chunks.B);
  s.lane_shift = __builtin_ctzll((unsigned long long)s.chunks.P);
  s.units = (R >> s.unit_shift) / s.chunks.C, s.longer = (R >> s.unit_shift) % s.chunks.C;
  s.rest = R & (s.chunks.B - 1);
  s.most = chain_most(p);
  return s;
}

/* rn_chunk_rows and rn_chunk_row of order.h, with shifts. */
RN_INLINE int64_t chunk_rows(const rn_bundles *s, int64_t chunk) {
  return ((s->units + (chunk < s->longer)) << s->unit_shift) + (chunk == s->longer ? s->rest : 0);
}
RN_INLINE void add_member(const rn_bundles *s, rn_bundle *b, int64_t chunk, int64_t i) {
  const int64_t unit = (i >> s->unit_shift) * s->chunks.C + chunk;
  const int64_t j = (unit << s->unit_shift) + (i & (s->chunks.B - 1));
  bundle_add(s->p, b, s->p->dweight_vectors > 1 ? j * s->p->heads + s->vector : j);
}

/* Four lanes at once, when each has one row or (the first of them) two. Lanes of a stretch start at a multiple of four
 * wherever there are four. Chunks never get longer from one to the next. */
RN_INLINE bool next_quad(rn_bundles *s, rn_bundle *b) {
  const int64_t P = s->chunks.P, first = s->lane >> s->lane_shift;
  const int64_t last = (s->lane + RN_QUAD - 1) >> s->lane_shift;
  if (P > RN_QUAD || s->lane % RN_QUAD != 0 || s->lane + RN_QUAD > s->last) return false;
  const int64_t most = chunk_rows(s, first), least = chunk_rows(s, last);
  if (least < P || most > (s->p->cols <= RN_WIDE_TREE_COLS ? 2 : 1) * P || s->most < RN_QUAD) return false;
  for (int64_t k = 0; k < 2; ++k)
    for (int64_t l = 0; l < RN_QUAD; ++l) {
      const int64_t chunk = first + (l >> s->lane_shift), i = k * P + (l & (P - 1));
      if (i < chunk_rows(s, chunk)) add_member(s, b, chunk, i);
    }
  b->tree = b->starts = b->ends = true, b->lane = 0;
  s->lane += RN_QUAD;
  return true;
}

/* The P lanes of a chunk advance together, `most` rows of a lane at a time. */
RN_INLINE void next_chain(rn_bundles *s, rn_bundle *b) {
  const int64_t P = s->chunks.P, chunk = s->lane >> s->lane_shift;
  if (s->i == 0 && s->l == 0) s->rows = chunk_rows(s, chunk);
  b->tree = false, b->lane = s->l, b->starts = s->i == 0, b->ends = s->i + P * s->most >= s->rows;
  while (b->rows < s->most && s->i + s->l + b->rows * P < s->rows) add_member(s, b, chunk, s->i + s->l + b->rows * P);
  if (b->rows == 0) b->at[0] = grad_place_of(s->p, 0, 0), b->at[0].in.weight = NULL; /* a lane without rows: +0 */
  if (++s->l == P) {
    s->l = 0, s->i += P * s->most;
    if (b->ends) s->i = 0, s->lane += P;
  }
}

static void next_bundle(rn_bundles *s, rn_bundle *b) {
  b->rows = 0;
  if (!s->p->dweight) {
    while (b->rows < s->most && s->row < s->last_row) bundle_add(s->p, b, s->row++);
    b->tree = b->rows == RN_BUNDLE;
    if (b->rows == 0) b->rows = -1;
  } else if (s->lane >= s->last)
    b->rows = -1;
  else if (s->i != 0 || s->l != 0 || !next_quad(s, b))
    next_chain(s, b);
}

/* The row lanes of a chunk, and the counter that takes the finished ones. NULL lanes: no dweight. */
typedef struct rn_row_lanes {
  float *lanes; /* [P][stride] */
  rn_counter counter;
} rn_row_lanes;

static rn_collect collect(rn_row_lanes *sums, const rn_bundle *b) {
  rn_collect to;
  to.start = NULL, to.carries = 0, to.target = NULL;
  if (!sums->lanes) return to;
  float *lane = sums->lanes + b->lane * sums->counter.stride;
  if (!b->starts) to.start = lane;
  if (b->ends)
    counter_push(&sums->counter, b->tree ? 2 : 0, &to);
  else
    to.target = lane;
  return to;
}

/* All bundles, one after the other. With short rows the squares of a bundle are summed before the dots of the one
 * before it, so that its roots and divisions wait behind those; longer rows are still in the first-level cache for
 * their dots. The dots fetch dy, the last pass fetches x of the next bundle whose squares are still to come. */
static void grad_bundles(const rn_problem *p, const rn_grad *grad, const rn_grad *rescued, rn_bundles *source,
                         rn_row_lanes *sums, rn_way way) {
  rn_bundle ring[3], *now = ring, *next = ring + 1, *later = ring + 2;
  const bool early = p->cols * (p->x.size + p->dy.size) <= RN_EARLY_BYTES;
  next_bundle(source, now);
  next_bundle(source, next);
  if (early && now->rows >= 0) bundle_statistics(p, grad, now);
  while (now->rows >= 0) {
    next_bundle(source, later);
    rn_bundle *const summed = early ? next : now, *const fetched = early ? later : next;
    if (summed->rows >= 0) bundle_statistics(p, grad, summed);
    const rn_grad_place *const soon = way.prefetch && fetched->rows >= now->rows ? fetched->at : NULL;
    const rn_collect to = collect(sums, now);
    const rn_grad *const kind = __builtin_expect(now->ordinary, 1) ? grad : rescued;
    bundle_dots(p, kind, now, soon);
    kind->bundle(p, now->at, now->rows, now->tree, &to, way.stream, soon);
    rn_bundle *const done = now;
    now = next, next = later, later = done;
  }
}

static void grad_rows(const rn_problem *p, const rn_grad *grad, const rn_grad *rescued, int64_t first, int64_t last,
                      rn_way way) {
  rn_bundles source = bundles_of_rows(p, first, last);
  rn_row_lanes nowhere = {.lanes = NULL};
  grad_bundles(p, grad, rescued, &source, &nowhere, way);
}

static void grad_lanes(const rn_problem *p, const rn_grad *grad, const rn_grad *rescued, const rn_lane_range *range,
                       rn_way way) {
  const int64_t n = padded_cols(p);
  rn_bundles source = bundles_of_lanes(p, range);
  rn_row_lanes sums = {range->scratch, {range->scratch + source.chunks.P * n, n, 0}};
  grad_bundles(p, grad, rescued, &source, &sums, way);
  const rn_counter counter = sums.counter;

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
