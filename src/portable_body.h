/* portable_body.h - the portable implementation's arithmetic, for one `real`; included by portable.c, twice.
 *
 * Sections in brackets are those of docs/numerics.md. `row` counts (token, head) pairs, `g` groups, `col` columns of
 * the whole row. Functions that fill a tile take its first column and its length, and stay within one group.
 *
 * SPDX-License-Identifier: Apache-2.0 */

/* ------------------------------------------------------------------------------------------------------------------
 * [1.1] Inputs. */

static void NAME(load_tile)(const rn_problem *p, const rn_view *view, int64_t row, int64_t col, int64_t count,
                            real *out) {
  const char *data = rn_row(view, p->heads, row);
  int64_t i;
  for (i = 0; i < count; i++) out[i] = LOAD(view->dtype, data, col + i);
}

static void NAME(store_tile)(const rn_problem *p, const rn_view *view, int64_t row, int64_t col, int64_t count,
                             const real *values) {
  char *data = rn_row(view, p->heads, row);
  int64_t i;
  for (i = 0; i < count; i++) STORE(view->dtype, data, col + i, values[i]);
}

/* s: x, or the sum with the residual, not rounded to anything yet. */
static void NAME(load_sum)(const rn_problem *p, int64_t row, int64_t col, int64_t count, real *s) {
  real residual[TILE];
  int64_t i;
  NAME(load_tile)(p, &p->x, row, col, count, s);
  if (!p->residual.data) return;
  NAME(load_tile)(p, &p->residual, row, col, count, residual);
  for (i = 0; i < count; i++) s[i] = s[i] + residual[i];
}

/* h from s. */
static real NAME(rounded_sum)(const rn_problem *p, real s) {
  return p->residual.data ? ROUND(p->round_sum, s) : s;
}

/* u: what is normalised. */
static void NAME(load_u)(const rn_problem *p, int64_t row, int64_t col, int64_t count, real *u) {
  real z[TILE];
  int64_t i;
  NAME(load_sum)(p, row, col, count, u);
  for (i = 0; i < count; i++) u[i] = NAME(rounded_sum)(p, u[i]);
  if (!p->gate_before) return;
  NAME(load_tile)(p, &p->gate, row, col, count, z);
  for (i = 0; i < count; i++) u[i] = u[i] * ACT(p->gate_kind, z[i]);
}

/* [1.5] w, for columns that start `within` the group. Only with a weight. */
static void NAME(load_weight)(const rn_problem *p, int64_t row, int64_t g, int64_t within, int64_t count, real *w) {
  const char *data = p->weight + row % p->heads * p->weight_head_bytes + g * p->weight_group_bytes;
  int64_t i;
  for (i = 0; i < count; i++) w[i] = (real)p->weight_offset + LOAD(p->weight_dtype, data, within + i);
}

/* ------------------------------------------------------------------------------------------------------------------
 * [1.2] The canonical order: lanes are finished a tile at a time, in order, and folded at once. */

/* The pairwise tree above the tiles, as a binary counter: part i waits for its neighbour of the same size. */
typedef struct NAME(tree) {
  real part[TREE_PARTS];
  int parts;
  uint32_t pushed;
} NAME(tree);

static void NAME(push_lanes)(NAME(tree) * tree, real *lane) {
  uint32_t full;
  int width, i;
  for (width = TILE / 2; width > 0; width /= 2)
    for (i = 0; i < width; i++) lane[i] = lane[2 * i] + lane[2 * i + 1];
  for (full = tree->pushed++; full & 1u; full >>= 1) lane[0] = tree->part[--tree->parts] + lane[0];
  tree->part[tree->parts++] = lane[0];
}

/* S of (u * power); power is 1 for all but rescued rows. */
static real NAME(sum_squares)(const rn_problem *p, int64_t row, int64_t g, real power) {
  const int64_t n = p->group_cols, first = g * n, lanes = rn_lanes(n);
  NAME(tree) tree = {{0}, 0, 0};
  int64_t lane0, i, k;
  for (lane0 = 0; lane0 < lanes; lane0 += TILE) {
    real lane[TILE] = {0}, u[TILE];
    for (i = lane0; i < n; i += lanes) {
      int64_t count = rn_min_i64(TILE, n - i);
      NAME(load_u)(p, row, first + i, count, u);
      for (k = 0; k < count; k++) {
        real scaled = u[k] * power;
        lane[k] = FMA(scaled, scaled, lane[k]);
      }
    }
    NAME(push_lanes)(&tree, lane);
  }
  return tree.part[0]; /* the number of lanes is a power of two: one part is left */
}

/* ------------------------------------------------------------------------------------------------------------------
 * [1.3, 1.4] The statistic of a row: xhat = (u * power) * r. */
typedef struct NAME(stat) {
  real power; /* 2^-a: 1 for ordinary rows */
  real r;
  real rstd; /* as returned */
} NAME(stat);

/* 1 / sqrt(v), made better by one step of Newton's method: e is 1 - v r^2 but for its own rounding, because the product
 * v r is kept in two pieces. Outside the range of ordinary rows the pieces would not be exact. */
static real NAME(rstd_of)(real v) {
  const real r = 1 / SQRT(v);
  real high, low, e;
  if (!(v >= V_MIN && v <= REAL_MAX)) return r;
  high = v * r;
  low = FMA(v, r, -high);
  e = FMA(-low, r, FMA(-high, r, 1));
  return FMA((real)0.5 * r, e, r);
}

static NAME(stat) NAME(plain_stat)(int32_t round_rstd, real rstd) {
  NAME(stat) stat;
  stat.power = 1, stat.r = stat.rstd = ROUND(round_rstd, rstd);
  return stat;
}

static NAME(stat) NAME(rescued_stat)(const rn_problem *p, int64_t row, int64_t g, int32_t round_rstd) {
  const int64_t n = p->group_cols, first = g * n;
  const real eps = (real)p->eps;
  NAME(stat) stat;
  real u[TILE], m = 0, v, r;
  bool nan = false;
  int64_t i, k;
  int e, a, b;

  for (i = 0; i < n; i += TILE) {
    int64_t count = rn_min_i64(TILE, n - i);
    NAME(load_u)(p, row, first + i, count, u);
    for (k = 0; k < count; k++) {
      if (IS_NAN(u[k])) nan = true;
      if (ABS(u[k]) > m) m = ABS(u[k]);
    }
  }
  if (nan) return NAME(plain_stat)(round_rstd, (real)NAN);
  if (m > REAL_MAX) return NAME(plain_stat)(round_rstd, 0);
  if (m == 0) return NAME(plain_stat)(round_rstd, eps == 0 ? 0 : NAME(rstd_of)(eps));

  e = EXPONENT(m);
  if (e < rn_half_down(EXPONENT(eps))) e = rn_half_down(EXPONENT(eps));
  if (e < E_MIN) e = E_MIN;
  if (e > E_MAX) e = E_MAX;
  v = NAME(sum_squares)(p, row, g, EXP2I(-e)) / (real)p->divisor + (eps * EXP2I(-e)) * EXP2I(-e);
  r = NAME(rstd_of)(v);
  /* r' * 2^-e alone may overflow or vanish: the part b of e goes into r, the part a goes to u. */
  b = e > RESCUE_B ? RESCUE_B : e > 0 ? e : 0;
  a = e - b;
  r = r * EXP2I(-b);
  stat.power = EXP2I(-a);
  stat.r = ROUND(round_rstd, r);
  stat.rstd = ROUND(round_rstd, r * stat.power);
  return stat;
}

static NAME(stat) NAME(stat_of)(const rn_problem *p, int64_t row, int64_t g, int32_t round_rstd) {
  const real divisor = (real)p->divisor, eps = (real)p->eps;
  real v;
  if (p->sumsq_in) {
    v = (real)p->sumsq_in[row * p->groups + g] / divisor + eps;
    return NAME(plain_stat)(round_rstd, v == 0 ? 0 : NAME(rstd_of)(v));
  }
  v = NAME(sum_squares)(p, row, g, 1) / divisor + eps;
  if (v >= V_MIN && v <= REAL_MAX) return NAME(plain_stat)(round_rstd, NAME(rstd_of)(v));
  return NAME(rescued_stat)(p, row, g, round_rstd);
}

/* Only the f32 kind has split statistics; the other is compiled so that this stays one text. */
#if REAL(1, 0)
static void NAME(stats_row)(const rn_problem *p, int64_t row) {
  int64_t g;
  for (g = 0; g < p->groups; g++) p->sumsq_out[row * p->groups + g] = NAME(sum_squares)(p, row, g, 1);
}
#endif

/* ------------------------------------------------------------------------------------------------------------------
 * [1.5, 3] Forward. Columns are walked from left to right, a quantised block at a time, and blocks know nothing of
 * groups. The statistic of a group is made when its first column comes up, before any of its columns is written. */
typedef struct NAME(cursor) {
  NAME(stat) stat;
  int64_t g; /* the group that stat belongs to, -1 = none */
} NAME(cursor);

/* v of up to TILE columns of one group, and s, which residual_out takes. */
static void NAME(normed_tile)(const rn_problem *p, int64_t row, int64_t g, NAME(stat) stat, int64_t col, int64_t count,
                              real *v, real *s) {
  real w[TILE], z[TILE];
  int64_t i;
  NAME(load_sum)(p, row, col, count, s);
  if (p->weight) NAME(load_weight)(p, row, g, col - g * p->group_cols, count, w);
  if (p->gate.data) NAME(load_tile)(p, &p->gate, row, col, count, z);
  for (i = 0; i < count; i++) {
    real u = NAME(rounded_sum)(p, s[i]);
    if (p->gate.data && p->gate_before) u = u * ACT(p->gate_kind, z[i]);
    v[i] = ROUND(p->round_xhat, (u * stat.power) * stat.r);
    if (p->weight) v[i] = v[i] * w[i];
    v[i] = ROUND(p->round_normed, v[i]);
    if (p->gate.data && !p->gate_before) v[i] = v[i] * ACT(p->gate_kind, z[i]);
  }
}

/* The same for up to FORWARD_TILE columns, across groups. */
static void NAME(normed)(const rn_problem *p, int64_t row, NAME(cursor) * cursor, int64_t col, int64_t count, real *v,
                         real *s) {
  while (count > 0) {
    int64_t g = col / p->group_cols, left = (g + 1) * p->group_cols - col;
    int64_t step = rn_min_i64(rn_min_i64(count, left), TILE);
    if (g != cursor->g) {
      cursor->stat = NAME(stat_of)(p, row, g, p->round_rstd), cursor->g = g;
      if (p->rstd_out) STORE(REAL_DTYPE, p->rstd_out, row * p->groups + g, cursor->stat.rstd);
    }
    NAME(normed_tile)(p, row, g, cursor->stat, col, step, v, s);
    col += step, count -= step, v += step, s += step;
  }
}

static float NAME(amax_of)(float amax, const real *v, int64_t count) {
  int64_t i;
  for (i = 0; i < count; i++) amax = rn_amax(amax, (float)v[i]);
  return amax;
}

/* q of one tile, which with BLOCK and MX is one block. `scale` is given for TENSOR and ROW. */
static void NAME(quantise_tile)(const rn_problem *p, int64_t row, int64_t col, int64_t count, const real *v,
                                float scale) {
  uint8_t *q = (uint8_t *)rn_row(&p->q, p->heads, row) + col;
  int64_t i;
  if (p->quant == RMSNORM_QUANT_MX) {
    int e = rn_mx_exponent(p->quant_dtype, p->e8m0_rounding, NAME(amax_of)(0, v, count));
    p->scale_out[row * p->scale_row_stride + col / p->block_cols * p->scale_block_stride] = (char)(uint8_t)(e + 127);
    for (i = 0; i < count; i++) q[i] = rn_quantise_mx(p->quant_dtype, (float)v[i], e);
    return;
  }
  if (p->quant == RMSNORM_QUANT_BLOCK) {
    scale = rn_scale(p->quant_dtype, NAME(amax_of)(0, v, count), p->scale_max);
    rn_store(RMSNORM_DTYPE_F32, p->scale_out, row * p->scale_row_stride + col / p->block_cols * p->scale_block_stride,
             scale);
  }
  for (i = 0; i < count; i++) q[i] = rn_quantise_scaled(p->quant_dtype, p->scale_op, (float)v[i], scale);
}

static void NAME(forward_row)(const rn_problem *p, int64_t row) {
  const bool blocks = p->quant == RMSNORM_QUANT_BLOCK || p->quant == RMSNORM_QUANT_MX;
  const int64_t tile = blocks ? p->block_cols : FORWARD_TILE;
  real v[FORWARD_TILE], s[FORWARD_TILE];
  NAME(cursor) cursor = {{0, 0, 0}, -1};
  float scale = 0;
  int64_t col;

  if (p->quant == RMSNORM_QUANT_TENSOR) scale = *p->scale_in;
  if (p->quant == RMSNORM_QUANT_ROW) { /* the scale needs the whole row first: once more through it, only reading */
    for (col = 0; col < p->cols; col += tile) {
      int64_t count = rn_min_i64(tile, p->cols - col);
      NAME(normed)(p, row, &cursor, col, count, v, s);
      scale = NAME(amax_of)(scale, v, count);
    }
    scale = rn_scale(p->quant_dtype, scale, p->scale_max);
    rn_store(RMSNORM_DTYPE_F32, p->scale_out, row, scale);
  }
  for (col = 0; col < p->cols; col += tile) {
    int64_t count = rn_min_i64(tile, p->cols - col);
    NAME(normed)(p, row, &cursor, col, count, v, s);
    if (p->residual_out.data) NAME(store_tile)(p, &p->residual_out, row, col, count, s);
    if (p->y.data) NAME(store_tile)(p, &p->y, row, col, count, v);
    if (p->q.data) NAME(quantise_tile)(p, row, col, count, v, scale);
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * [4] Backward. */

/* One tile, read and prepared. */
typedef struct NAME(gradient) {
  real h[TILE], z[TILE], act[TILE], dy[TILE], w[TILE];
  real xhat[TILE], g[TILE], t[TILE];
} NAME(gradient);

static void NAME(load_gradient)(const rn_problem *p, int64_t row, int64_t g, NAME(stat) stat, int64_t within,
                                int64_t count, NAME(gradient) * d) {
  const int64_t col = g * p->group_cols + within;
  int64_t i;
  NAME(load_sum)(p, row, col, count, d->h);
  NAME(load_tile)(p, &p->dy, row, col, count, d->dy);
  if (p->gate.data) NAME(load_tile)(p, &p->gate, row, col, count, d->z);
  if (p->weight) NAME(load_weight)(p, row, g, within, count, d->w);
  for (i = 0; i < count; i++) {
    real u;
    if (p->gate.data) d->act[i] = ACT(p->gate_kind, d->z[i]);
    d->h[i] = NAME(rounded_sum)(p, d->h[i]);
    u = p->gate_before ? d->h[i] * d->act[i] : d->h[i];
    d->xhat[i] = (u * stat.power) * stat.r;
    d->g[i] = p->gate.data && !p->gate_before ? d->dy[i] * d->act[i] : d->dy[i];
    d->t[i] = p->weight ? d->g[i] * d->w[i] : d->g[i];
  }
}

/* A saved rstd saves the pass over x, where it can: ordinary rows, not rounded. */
static NAME(stat) NAME(backward_stat)(const rn_problem *p, int64_t row, int64_t g) {
  if (p->rstd_in && p->round_rstd == REAL_DTYPE) {
    real rstd = LOAD(REAL_DTYPE, p->rstd_in, row * p->groups + g);
    if (rstd >= RSTD_MIN && rstd <= RSTD_MAX) return NAME(plain_stat)(REAL_DTYPE, rstd);
  }
  return NAME(stat_of)(p, row, g, REAL_DTYPE);
}

/* D, in the order of [1.2]. */
static real NAME(row_dot)(const rn_problem *p, int64_t row, int64_t g, NAME(stat) stat) {
  const int64_t n = p->group_cols, lanes = rn_lanes(n);
  NAME(tree) tree = {{0}, 0, 0};
  NAME(gradient) d;
  int64_t lane0, i, k;
  for (lane0 = 0; lane0 < lanes; lane0 += TILE) {
    real lane[TILE] = {0};
    for (i = lane0; i < n; i += lanes) {
      int64_t count = rn_min_i64(TILE, n - i);
      NAME(load_gradient)(p, row, g, stat, i, count, &d);
      for (k = 0; k < count; k++) lane[k] = FMA(d.t[k], d.xhat[k], lane[k]);
    }
    NAME(push_lanes)(&tree, lane);
  }
  return tree.part[0];
}

/* Everything the row (row, g) gives; its share of dweight goes to row_lane[group_cols], which may be NULL. */
static void NAME(backward_group)(const rn_problem *p, int64_t row, int64_t g, real *row_lane) {
  const NAME(stat) stat = NAME(backward_stat)(p, row, g);
  const bool wants_du = p->dx.data || p->dresidual.data || (p->dgate.data && p->gate_before);
  const int64_t at = row * p->groups + g;
  NAME(gradient) d;
  real dh[TILE], dgate[TILE], incoming[TILE];
  real dot = 0, c;
  int64_t within, i;

  if (p->dot_out || (wants_du && !p->dot_in)) dot = NAME(row_dot)(p, row, g, stat);
  if (p->dot_out) p->dot_out[at] = (float)dot;
  if (p->dot_in) dot = (real)p->dot_in[at];
  c = dot / (real)p->divisor;

  for (within = 0; within < p->group_cols; within += TILE) {
    const int64_t count = rn_min_i64(TILE, p->group_cols - within), col = g * p->group_cols + within;
    NAME(load_gradient)(p, row, g, stat, within, count, &d);
    if (p->dresidual_out.data) NAME(load_tile)(p, &p->dresidual_out, row, col, count, incoming);
    for (i = 0; i < count; i++) {
      real k = FMA(-d.xhat[i], c, d.t[i]);
      real du = (stat.r * k) * stat.power;
      if (p->dgate.data && p->gate_before)
        dgate[i] = (du * d.h[i]) * DACT(p->gate_kind, d.z[i]);
      else if (p->dgate.data)
        dgate[i] = (d.dy[i] * (p->weight ? d.xhat[i] * d.w[i] : d.xhat[i])) * DACT(p->gate_kind, d.z[i]);
      dh[i] = p->gate_before ? du * d.act[i] : du;
      if (p->dresidual_out.data) dh[i] = dh[i] + incoming[i];
      if (row_lane) row_lane[within + i] = FMA(d.g[i], d.xhat[i], row_lane[within + i]);
    }
    if (p->dx.data) NAME(store_tile)(p, &p->dx, row, col, count, dh);
    if (p->dresidual.data) NAME(store_tile)(p, &p->dresidual, row, col, count, dh);
    if (p->dgate.data) NAME(store_tile)(p, &p->dgate, row, col, count, dgate);
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * [4.1] dweight: one weight vector, over all rows that contribute to it, chunk after chunk. */

/* The contributing row number `member` of a vector, with everything else that row gives. */
static void NAME(backward_member)(const rn_problem *p, int64_t vector, int64_t member, real *row_lane) {
  int64_t g;
  if (p->dweight_cols < p->cols) { /* one vector for all groups: members are (row, group) */
    NAME(backward_group)(p, member / p->groups, member % p->groups, row_lane);
    return;
  }
  for (g = 0; g < p->groups; g++)
    NAME(backward_group)(p, member * p->dweight_vectors + vector, g, row_lane + g * p->group_cols);
}

static void NAME(add_vector)(int64_t n, const real *left, real *right, real *sum) {
  int64_t i;
  for (i = 0; i < n; i++) sum[i] = left[i] + right[i];
}

static void NAME(dweight_vector)(const rn_problem *p, int64_t vector) {
  const int64_t n = p->dweight_cols, rows = p->dweight_rows;
  const rn_chunks chunks = rn_chunks_of(rows, n);
  real *lanes = p->workspace;         /* [P, n] the row lanes of the chunk at hand */
  real *stack = lanes + chunks.P * n; /* the tree's waiting parts, as in NAME(tree) */
  char *dweight = p->dweight + vector * n * p->dweight_size;
  int64_t parts = 0, pushed = 0, chunk, i, lane, full;

  for (chunk = 0; chunk < chunks.C; chunk++) {
    const int64_t members = rn_chunk_rows(chunks, rows, chunk);
    for (i = 0; i < chunks.P * n; i++) lanes[i] = 0;
    for (i = 0; i < members; i++)
      NAME(backward_member)(p, vector, rn_chunk_row(chunks, chunk, i), lanes + i % chunks.P * n);
    for (lane = 0; lane < chunks.P; lane++) {
      real *carry = lanes + lane * n;
      for (full = pushed++; full & 1; full >>= 1) NAME(add_vector)(n, stack + --parts * n, carry, carry);
      memcpy(stack + parts++ * n, carry, (size_t)n * sizeof(real));
    }
  }
  /* Parts without a partner are carried up: the smallest, which is the last, meets its left neighbour first. */
  for (; parts > 1; parts--)
    NAME(add_vector)(n, stack + (parts - 2) * n, stack + (parts - 1) * n, stack + (parts - 2) * n);
  for (i = 0; i < n; i++) STORE(p->dweight_dtype, dweight, i, stack[i]);
}
