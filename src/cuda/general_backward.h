/* general_backward.h - the general kernels of backward: row sums, dx with its companions, dweight.
 *
 * Without dweight one kernel does it all: statistic, dot and outputs of a row, one row after the other. With dweight,
 * whose threads own columns and walk rows, the statistics and dots of all rows go to the workspace first; then the
 * chunks of 4.1 are summed, before dx is written, which may be x or dy; and last the chunks are added up.
 * docs/numerics.md 4.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_GENERAL_BACKWARD_H
#define RN_CUDA_GENERAL_BACKWARD_H

#include "general.h"

/* Four elements, prepared. Without a weight w is 0, without a gate z and act are. */
struct rn_gradient4 {
  float h[RN_FOUR], dy[RN_FOUR], xhat[RN_FOUR], g[RN_FOUR], t[RN_FOUR];
  float z[RN_FOUR] = {0, 0, 0, 0}, act[RN_FOUR] = {0, 0, 0, 0}, w[RN_FOUR] = {0, 0, 0, 0};
};
RN_DEVICE void rn_load_gradient(const rn_cuda_call &c, const rn_line &line, const char *dy, float power, float r,
                                int first, rn_strip strip, rn_gradient4 &d) {
  const uint32_t types = c.types;
  const int gate = rn_type(types, RN_TYPE_GATE), weight = rn_type(types, RN_TYPE_WEIGHT);
  const bool before = rn_type(types, RN_TYPE_GATE_BEFORE);
  rn_raw4 raw_weight;
  const rn_element4 e = rn_fetch_element(types, line, first, strip, gate);
  const rn_raw4 raw_dy = rn_fetch(rn_type(types, RN_TYPE_DY), dy, first, strip);
  if (weight) raw_weight = rn_fetch(weight, line.weight, first, strip);
  rn_sum_of(types, e, d.h);
  rn_round4(rn_type(types, RN_TYPE_ROUND_SUM), d.h);
  rn_widen(rn_type(types, RN_TYPE_DY), raw_dy, d.dy);
  if (gate) {
    rn_widen(gate, e.gate, d.z);
    rn_act_of_gate(types, e, d.act);
  }
  if (weight) rn_widen(weight, raw_weight, d.w);
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) {
    const float u = before ? d.h[j] * d.act[j] : d.h[j];
    d.xhat[j] = (u * power) * r;
    d.g[j] = gate && !before ? d.dy[j] * d.act[j] : d.dy[j];
    d.t[j] = d.g[j];
    if (weight) d.w[j] = c.p.weight_offset + d.w[j], d.t[j] = d.g[j] * d.w[j];
  }
}

/* A saved rstd saves the pass over x, where it can: ordinary rows, not rounded. `row`: (token, head, group). */
RN_DEVICE rn_row_stat rn_backward_stat(const rn_cuda_call &c, rn_crew crew, const rn_line &line, int64_t row) {
  if (c.p.rstd_in && c.p.round_rstd == RMSNORM_DTYPE_F32) {
    const float rstd = ((const float *)c.p.rstd_in)[row];
    if (rstd >= RN_RSTD_MIN && rstd <= RN_RSTD_MAX) return {1, rstd, rstd};
  }
  return rn_stat_of(c, crew, line, 0, row, RMSNORM_DTYPE_F32);
}

RN_DEVICE bool rn_wants_du(uint32_t types) {
  return rn_type(types, RN_TYPE_DX) || rn_type(types, RN_TYPE_DRESIDUAL) ||
         (rn_type(types, RN_TYPE_DGATE) && rn_type(types, RN_TYPE_GATE_BEFORE));
}

/* Statistic and dot of a row; dot_out is written. */
RN_DEVICE rn_row_sums rn_row_sums_of(const rn_cuda_call &c, rn_crew crew, const rn_line &line, const char *dy,
                                     int64_t row) {
  const rn_row_stat stat = rn_backward_stat(c, crew, line, row);
  rn_row_sums sums = {stat.power, stat.r, 0};
  if (c.p.dot_out || (rn_wants_du(c.types) && !c.p.dot_in)) {
    const int n = (int)c.p.group_cols;
    sums.dot =
        rn_canonical_sum(crew, n, c.lanes, [&](int first, rn_strip strip, float(&t)[RN_FOUR], float(&xhat)[RN_FOUR]) {
          rn_gradient4 d;
          rn_load_gradient(c, line, dy, stat.power, stat.r, first, strip, d);
          RN_UNROLL for (int j = 0; j < RN_FOUR; j++) t[j] = d.t[j], xhat[j] = d.xhat[j];
        });
    if (c.p.dot_out && crew.thread == 0) c.p.dot_out[row] = sums.dot;
  }
  if (c.p.dot_in) sums.dot = c.p.dot_in[row];
  return sums;
}

RN_KERNEL_CAPPED(rn_general_row_sums, rn_cuda_call, RN_GENERAL_BOUND, RN_GENERAL_REGISTERS) {
  rn_let_next_start();
  rn_wait_for_previous();
  const rn_crew crew = rn_crew_of(p.lanes);
  const int64_t units = rn_rows_of(p) * p.p.heads * p.p.groups;
  RN_EACH_UNIT(unit, crew, units) {
    const int64_t row = unit / p.p.groups, group = unit - row * p.p.groups;
    const rn_line_place at = rn_place_at(p.p, row, group);
    const rn_row_sums sums = rn_row_sums_of(p, crew, rn_line_at(p.p, at, group), rn_line_in(p.p.dy, at), unit);
    if (crew.thread == 0) ((rn_row_sums *)p.p.workspace)[unit] = sums;
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * dx, dresidual, dgate. */

RN_DEVICE void rn_dx_unit(const rn_cuda_call &c, rn_crew crew, int64_t unit) {
  const rn_problem &p = c.p;
  const uint32_t types = c.types;
  const int n = (int)p.group_cols, incoming_type = rn_type(types, RN_TYPE_DRESIDUAL_OUT);
  const int gate = rn_type(types, RN_TYPE_GATE), weight = rn_type(types, RN_TYPE_WEIGHT);
  const int dx_type = rn_type(types, RN_TYPE_DX), dresidual_type = rn_type(types, RN_TYPE_DRESIDUAL);
  const int dgate_type = rn_type(types, RN_TYPE_DGATE), kind = rn_type(types, RN_TYPE_GATE_KIND);
  const bool before = rn_type(types, RN_TYPE_GATE_BEFORE);
  const int64_t row = p.groups == 1 ? unit : unit / p.groups, group = unit - row * p.groups;
  const rn_line_place at = rn_place_at(p, row, group);
  const rn_line line = rn_line_at(p, at, group);
  const char *dy = rn_line_in(p.dy, at);
  const rn_row_sums sums =
      p.dweight ? ((const rn_row_sums *)p.workspace)[unit] : rn_row_sums_of(c, crew, line, dy, unit);
  const float by_dot = sums.dot / (float)p.divisor;
  const char *incoming = rn_line_in(p.dresidual_out, at);
  char *const dx = rn_line_in(p.dx, at), *const dresidual = rn_line_in(p.dresidual, at);
  char *const dgate = rn_line_in(p.dgate, at);
  if (!dx_type && !dresidual_type && !dgate_type) return; /* dot_out alone */

  RN_NO_UNROLL for (int tile = rn_warp_in(crew) * RN_TILE; tile < n; tile += rn_warps_of(crew) * RN_TILE) {
    const int first = tile + rn_lane_in(crew);
    const rn_strip strip = {32, n - first};
    rn_gradient4 d;
    rn_raw4 raw_incoming;
    float dh[RN_FOUR], dz[RN_FOUR];
    if (incoming_type) raw_incoming = rn_fetch(incoming_type, incoming, first, strip);
    rn_load_gradient(c, line, dy, sums.power, sums.r, first, strip, d);
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) {
      const float k = fmaf(-d.xhat[j], by_dot, d.t[j]), du = (sums.r * k) * sums.power;
      dz[j] = before ? du * d.h[j] : d.dy[j] * (weight ? d.xhat[j] * d.w[j] : d.xhat[j]);
      dh[j] = before ? du * d.act[j] : du;
    }
    if (incoming_type) {
      float more[RN_FOUR];
      rn_widen(incoming_type, raw_incoming, more);
      RN_UNROLL for (int j = 0; j < RN_FOUR; j++) dh[j] = dh[j] + more[j];
    }
    if (dx_type) rn_put(dx_type, dx, first, strip, dh);
    if (dresidual_type) rn_put(dresidual_type, dresidual, first, strip, dh);
    if (gate && dgate_type) {
      RN_UNROLL for (int j = 0; j < RN_FOUR; j++) dz[j] = dz[j] * rn_dact(kind, d.z[j]);
      rn_put(dgate_type, dgate, first, strip, dz);
    }
  }
}

RN_KERNEL_CAPPED(rn_general_dx, rn_cuda_call, RN_GENERAL_BOUND, RN_GENERAL_REGISTERS) {
  rn_let_next_start();
  rn_wait_for_previous();
  const rn_crew crew = rn_crew_of(p.lanes);
  const int64_t units = rn_rows_of(p) * p.p.heads * p.p.groups;
  RN_EACH_UNIT(unit, crew, units) rn_dx_unit(p, crew, unit);
}

/* ------------------------------------------------------------------------------------------------------------------
 * [4.1] dweight: a warp takes 32 columns of one chunk of one vector, one column a lane. */

/* g and xhat of one column, for four contributing rows: those numbered member[j]. */
RN_DEVICE void rn_load_members(const rn_cuda_call &c, int64_t vector, int column, const int64_t (&member)[RN_FOUR],
                               const bool (&is)[RN_FOUR], float (&g)[RN_FOUR], float (&xhat)[RN_FOUR]) {
  const rn_problem &p = c.p;
  const uint32_t types = c.types;
  const int gate = rn_type(types, RN_TYPE_GATE), residual = rn_type(types, RN_TYPE_RESIDUAL);
  const int type_x = rn_type(types, RN_TYPE_X), type_dy = rn_type(types, RN_TYPE_DY);
  const bool before = rn_type(types, RN_TYPE_GATE_BEFORE), shared = p.dweight_cols < p.cols;
  const int own_group = shared || p.groups == 1 ? 0 : column / (int)p.group_cols;
  rn_element4 e;
  rn_raw4 raw_dy;
  float power[RN_FOUR], r[RN_FOUR], act[RN_FOUR];
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) {
    power[j] = r[j] = 0;
    if (!is[j]) continue;
    int64_t row = member[j], group = own_group;
    if (shared) row = member[j] / p.groups, group = member[j] - row * p.groups;
    rn_line_place at = {row, 0, (int)(shared ? group * p.group_cols : 0)};
    if (p.dweight_vectors > 1) {
      at.head = vector, row = row * p.heads + vector;
    } else if (p.heads > 1) {
      at.token = row / p.heads, at.head = row % p.heads;
    }
    const rn_row_sums *sums = (const rn_row_sums *)p.workspace + (row * p.groups + group);
    const rn_strip one = {1, 1};
    power[j] = sums->power, r[j] = sums->r;
    e.x.w[j] = rn_fetch(type_x, rn_line_in(p.x, at), column, one).w[0];
    raw_dy.w[j] = rn_fetch(type_dy, rn_line_in(p.dy, at), column, one).w[0];
    if (residual) e.residual.w[j] = rn_fetch(residual, rn_line_in(p.residual, at), column, one).w[0];
    if (gate) e.gate.w[j] = rn_fetch(gate, rn_line_in(p.gate, at), column, one).w[0];
  }
  rn_sum_of(types, e, xhat);
  rn_round4(rn_type(types, RN_TYPE_ROUND_SUM), xhat);
  rn_widen(type_dy, raw_dy, g);
  if (gate) {
    rn_act_of_gate(types, e, act);
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) {
      if (before)
        xhat[j] = xhat[j] * act[j];
      else
        g[j] = g[j] * act[j];
    }
  }
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) xhat[j] = (xhat[j] * power[j]) * r[j];
}

RN_KERNEL_CAPPED(rn_general_dweight, rn_cuda_call, RN_GENERAL_BOUND, RN_GENERAL_REGISTERS) {
  rn_let_next_start();
  rn_wait_for_previous();
  const int64_t C = p.chunks.C, B = p.chunks.B;
  const int P = (int)p.chunks.P, n = (int)p.p.dweight_cols, tiles = (n + 31) / 32;
  const int64_t units = p.p.dweight_vectors * C * tiles;
  const int warps = rn_threads_of_block() >> 5;
  float *const partials = (float *)((char *)p.p.workspace + p.partials);
  int shift = 0; /* B = 2^shift */
  while ((B >> shift) > 1) shift++;

  for (int64_t unit = rn_block() * warps + (rn_thread() >> 5); unit < units; unit += rn_blocks() * warps) {
    const int64_t line = unit / tiles, vector = line / C, chunk = line - vector * C; /* line: [vector, chunk] */
    const int column = (int)(unit - line * tiles) * 32 + (rn_thread() & 31);
    const int64_t members = rn_chunk_rows(p.chunks, p.p.dweight_rows, chunk);
    float lane[RN_FOUR] = {0, 0, 0, 0}; /* P row lanes */
    if (column >= n) continue;
    RN_NO_UNROLL for (int64_t i = 0; i < members; i += RN_FOUR) {
      float g[RN_FOUR], xhat[RN_FOUR];
      int64_t member[RN_FOUR];
      bool is[RN_FOUR];
      RN_UNROLL for (int j = 0; j < RN_FOUR; j++) {
        is[j] = i + j < members;
        member[j] = ((((i + j) >> shift) * C + chunk) << shift) | ((i + j) & (B - 1)); /* rn_chunk_row */
      }
      rn_load_members(p, vector, column, member, is, g, xhat);
      RN_UNROLL for (int j = 0; j < RN_FOUR; j++) if (is[j]) { /* i is a multiple of P */
        if (P == 4)
          lane[j] = fmaf(g[j], xhat[j], lane[j]);
        else if (P == 2)
          lane[j & 1] = fmaf(g[j], xhat[j], lane[j & 1]);
        else
          lane[0] = fmaf(g[j], xhat[j], lane[0]);
      }
    }
    /* The row lanes of a chunk are neighbours in the tree. */
    if (P > 1) lane[0] = lane[0] + lane[1];
    if (P == 4) lane[0] = lane[0] + (lane[2] + lane[3]);
    partials[line * n + column] = lane[0];
  }
}

/* The chunks of one column, shared out among `slices` threads: `branch` (a power of two) neighbours each, so that each
 * has a whole branch of the tree, and the last ones a part of it or nothing. */
RN_DEVICE float rn_branch(const float *from, int64_t n, int64_t count) {
  enum { LEVELS = 6 }; /* of the tree above pairs: 64 chunks at most */
  float waiting[LEVELS], v = 0;
  RN_UNROLL for (int level = 0; level < LEVELS; level++) waiting[level] = 0;
  RN_NO_UNROLL for (int64_t i = 0; i < count; i += 2) {
    v = from[i * n];
    if (i + 1 < count) v = v + from[(i + 1) * n];
    bool up = true; /* as in a binary counter: parts of the same size meet */
    RN_UNROLL for (int level = 0; level < LEVELS; level++) {
      const bool meets = up && (i >> (level + 1) & 1);
      if (up && !meets) waiting[level] = v;
      if (meets) v = waiting[level] + v;
      up = meets;
    }
  }
  /* What waits is carried up, the smallest first. */
  const int64_t pairs = (count + 1) / 2;
  bool any = false;
  RN_UNROLL for (int level = 0; level < LEVELS; level++) if (pairs >> level & 1) {
    v = any ? waiting[level] + v : waiting[level];
    any = true;
  }
  return v;
}

RN_KERNEL(rn_general_dweight_sum, rn_cuda_call, RN_GENERAL_THREADS) {
  RN_SHARED(float, of_slice, RN_GENERAL_THREADS);
  rn_let_next_start();
  rn_wait_for_previous();
  const int64_t C = p.chunks.C;
  const int n = (int)p.p.dweight_cols, slices = p.slices, columns = rn_threads_of_block() / slices;
  const int slice = rn_thread() / columns, own = rn_thread() % columns, tiles = (n + columns - 1) / columns;
  const int64_t branch = rn_pow2_above((C + slices - 1) / slices);
  const int present = (int)((C + branch - 1) / branch); /* slices that have something */
  const int64_t units = p.p.dweight_vectors * tiles;
  const float *const partials = (const float *)((const char *)p.p.workspace + p.partials);

  for (int64_t unit = rn_block(); unit < units; unit += rn_blocks()) {
    const int64_t vector = unit / tiles;
    const int column = (int)(unit - vector * tiles) * columns + own;
    float v = 0;
    if (column < n && slice < present)
      v = rn_branch(partials + (vector * C + slice * branch) * n + column, n, rn_min_i64(branch, C - slice * branch));
    rn_barrier(); /* the last unit's may still be read */
    of_slice[rn_thread()] = v;
    rn_barrier();
    for (int apart = 1; apart < slices; apart *= 2) {
      if (slice % (2 * apart) == 0 && slice + apart < present)
        v = v + of_slice[rn_thread() + apart * columns], of_slice[rn_thread()] = v;
      rn_barrier();
    }
    if (slice == 0 && column < n) rn_store(p.p.dweight_dtype, p.p.dweight, vector * n + column, v);
  }
}

#endif /* RN_CUDA_GENERAL_BACKWARD_H */
