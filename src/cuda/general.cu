/* general.cu - every problem (but f64): any mix of types, any strides, groups, gates, quantised outputs, backward.
 *
 * Element by element, with run-time types. A row is read once for its statistic and once more, from the caches, for its
 * outputs; nothing of a row is written before its statistic is known, for which every thread has read what it reads,
 * and in the last pass each element is read and written by one thread, so an output may be any of the inputs. The model
 * is src/portable_body.h.
 *
 * Moves what the operation moves; rows past the caches twice. docs/numerics.md 1 to 4.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "general_backward.h"
#include "kernels.h"

#include "../epilogue.h"

/* ------------------------------------------------------------------------------------------------------------------
 * [1.5, 3] Forward. */

struct rn_outputs {
  char *y, *residual_out, *q;
};
RN_DEVICE rn_outputs rn_outputs_at(const rn_problem &p, rn_line_place at) {
  return {rn_line_in(p.y, at), rn_line_in(p.residual_out, at), rn_line_in(p.q, at)};
}

/* u, s, which residual_out takes, and the activation of the gate. */
RN_DEVICE void rn_u_of(uint32_t types, const rn_element4 &e, float (&u)[RN_FOUR], float (&s)[RN_FOUR],
                       float (&act)[RN_FOUR]) {
  rn_sum_of(types, e, s);
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) u[j] = s[j];
  rn_round4(rn_type(types, RN_TYPE_ROUND_SUM), u);
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) act[j] = 0;
  if (!rn_type(types, RN_TYPE_GATE)) return;
  rn_act_of_gate(types, e, act);
  if (rn_type(types, RN_TYPE_GATE_BEFORE)) RN_UNROLL for (int j = 0; j < RN_FOUR; j++) u[j] = u[j] * act[j];
}

/* v from xhat, in place. */
RN_DEVICE void rn_v_of(const rn_cuda_call &c, const rn_raw4 &weight, const float (&act)[RN_FOUR], float (&v)[RN_FOUR]) {
  const uint32_t types = c.types;
  rn_round4(rn_type(types, RN_TYPE_ROUND_XHAT), v);
  if (rn_type(types, RN_TYPE_WEIGHT)) {
    float w[RN_FOUR];
    rn_widen(rn_type(types, RN_TYPE_WEIGHT), weight, w);
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) v[j] = v[j] * (c.p.weight_offset + w[j]);
  }
  rn_round4(rn_type(types, RN_TYPE_ROUND_NORMED), v);
  if (rn_type(types, RN_TYPE_GATE) && !rn_type(types, RN_TYPE_GATE_BEFORE))
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) v[j] = v[j] * act[j];
}

/* amax of these columns alone. */
RN_DEVICE float rn_amax4(float amax, rn_strip strip, const float (&v)[RN_FOUR]) {
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) if (j * strip.step < strip.left) amax = rn_amax(amax, v[j]);
  return amax;
}

/* q of a tile that starts at column `tile` of the row (token, head); `scale` is given for TENSOR and ROW. */
RN_DEVICE void rn_quantise_tile(const rn_problem &p, int64_t row, char *q, int tile, int lane, rn_strip strip,
                                const float (&v)[RN_FOUR], float scale) {
  float of[RN_FOUR];
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) of[j] = scale;
  if (p.quant == RMSNORM_QUANT_BLOCK || p.quant == RMSNORM_QUANT_MX) {
    const int pieces = (int)p.block_cols / 32; /* 32 columns of the tile each */
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) of[j] =
        rn_whole_warp_tree<rn_greater>(32 * j < strip.left ? rn_amax(0, v[j]) : 0.0f);
    if (pieces >= 2) of[0] = of[1] = rn_greater::of(of[0], of[1]), of[2] = of[3] = rn_greater::of(of[2], of[3]);
    if (pieces == 4) of[0] = of[1] = of[2] = of[3] = rn_greater::of(of[0], of[2]);
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) {
      const int block = (tile + 32 * j) / (int)p.block_cols;
      const int64_t at = row * p.scale_row_stride + block * p.scale_block_stride;
      const bool writes = lane == 0 && j % pieces == 0 && 32 * j < strip.left;
      if (p.quant == RMSNORM_QUANT_MX) {
        const int e = rn_mx_exponent(p.quant_dtype, p.e8m0_rounding, of[j]);
        if (writes) p.scale_out[at] = (char)(uint8_t)(e + 127);
        if (32 * j < strip.left) q[tile + lane + 32 * j] = (char)rn_quantise_mx(p.quant_dtype, v[j], e);
      } else {
        of[j] = rn_scale(p.quant_dtype, of[j], p.scale_max);
        if (writes) ((float *)p.scale_out)[at] = of[j];
      }
    }
    if (p.quant == RMSNORM_QUANT_MX) return;
  }
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) if (32 * j < strip.left) q[tile + lane + 32 * j] =
      (char)rn_quantise_scaled(p.quant_dtype, p.scale_op, v[j], of[j]);
}

RN_DEVICE float rn_row_scale(const rn_problem &p, rn_crew crew, int64_t row, float amax) {
  const float scale = rn_scale(p.quant_dtype, rn_crew_greatest<rn_greater>(crew, amax), p.scale_max);
  if (crew.thread == 0) ((float *)p.scale_out)[row] = scale;
  return scale;
}

/* y and residual_out of a tile. */
RN_DEVICE void rn_put_tile(uint32_t types, const rn_outputs &out, int first, rn_strip strip, const float (&v)[RN_FOUR],
                           const float (&s)[RN_FOUR]) {
  const int residual_out = rn_type(types, RN_TYPE_RESIDUAL_OUT), y = rn_type(types, RN_TYPE_Y);
  if (residual_out) rn_put(residual_out, out.residual_out, first, strip, s);
  if (y) rn_put(y, out.y, first, strip, v);
}

RN_DEVICE void rn_forward_unit(const rn_cuda_call &c, rn_crew crew, int64_t unit) {
  const rn_problem &p = c.p;
  const int n = (int)p.group_cols, weight = rn_type(c.types, RN_TYPE_WEIGHT);
  const int64_t row = p.groups == 1 ? unit : unit / p.groups, group = unit - row * p.groups;
  const rn_line_place at = rn_place_at(p, row, group);
  const rn_line line = rn_line_at(p, at, group);
  const rn_row_stat stat = rn_stat_of(c, crew, line, 0, unit, p.round_rstd);
  const rn_outputs out = rn_outputs_at(p, at);
  if (p.rstd_out && crew.thread == 0) ((float *)p.rstd_out)[unit] = stat.rstd;

  RN_NO_UNROLL for (int tile = rn_warp_in(crew) * RN_TILE; tile < n; tile += rn_warps_of(crew) * RN_TILE) {
    const int first = tile + rn_lane_in(crew);
    const rn_strip strip = {32, n - first};
    float v[RN_FOUR], s[RN_FOUR], act[RN_FOUR];
    rn_raw4 w;
    const rn_element4 e = rn_fetch_element(c.types, line, first, strip, rn_type(c.types, RN_TYPE_GATE));
    if (weight) w = rn_fetch(weight, line.weight, first, strip);
    rn_u_of(c.types, e, v, s, act);
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) v[j] = (v[j] * stat.power) * stat.r;
    rn_v_of(c, w, act, v);
    rn_put_tile(c.types, out, first, strip, v, s);
  }
}

RN_KERNEL(rn_general_forward, rn_cuda_call, RN_GENERAL_THREADS) {
  rn_let_next_start();
  rn_wait_for_previous();
  const rn_crew crew = rn_crew_of(p.lanes);
  const int64_t units = rn_rows_of(p) * p.p.heads * p.p.groups;
  RN_EACH_UNIT(unit, crew, units) rn_forward_unit(p, crew, unit);
}

/* Quantised outputs: a scale may belong to columns of several groups. So a crew takes a row with all its groups, a
 * window of groups after the other: first their statistics, which shared memory keeps, then their columns. */
static_assert(RN_GENERAL_WINDOW % RN_TILE == 0, "the groups of a window are whole tiles, whatever their length is");
struct rn_window {
  float *power, *r; /* of group g at g % RN_GENERAL_WINDOW */
};

RN_DEVICE void rn_window_stats(const rn_cuda_call &c, rn_crew crew, const rn_line &line, int64_t row, rn_window window,
                               int group, int end) {
  rn_crew_barrier(crew); /* the slots may still be read */
  RN_NO_UNROLL for (; group < end; group++) {
    const int64_t unit = row * c.p.groups + group;
    const rn_row_stat stat = rn_stat_of(c, crew, line, group * (int)c.p.group_cols, unit, c.p.round_rstd);
    if (crew.thread != 0) continue;
    window.power[group % RN_GENERAL_WINDOW] = stat.power;
    window.r[group % RN_GENERAL_WINDOW] = stat.r;
    if (c.p.rstd_out) ((float *)c.p.rstd_out)[unit] = stat.rstd;
  }
  rn_crew_barrier(crew);
}

/* v and s of columns first, first + 32, ... of the row, which may belong to several groups. */
RN_DEVICE void rn_normed(const rn_cuda_call &c, const rn_line &line, rn_window window, int first, rn_strip strip,
                         float (&v)[RN_FOUR], float (&s)[RN_FOUR]) {
  const int n = (int)c.p.group_cols, weight = rn_type(c.types, RN_TYPE_WEIGHT);
  const int64_t next = c.p.weight_group_bytes;
  float act[RN_FOUR];
  rn_raw4 w;
  const rn_element4 e = rn_fetch_element(c.types, line, first, strip, rn_type(c.types, RN_TYPE_GATE));
  if (weight && c.p.groups == 1) w = rn_fetch(weight, line.weight, first, strip);
  rn_u_of(c.types, e, v, s, act);
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) {
    const int group = c.p.groups == 1 || 32 * j >= strip.left ? 0 : (first + 32 * j) / n;
    v[j] = (v[j] * window.power[group % RN_GENERAL_WINDOW]) * window.r[group % RN_GENERAL_WINDOW];
    if (!weight || c.p.groups == 1) continue;
    const int within = first + 32 * j - group * n;
    w.w[j] = rn_fetch(weight, line.weight + group * next, within, {1, 32 * j < strip.left}).w[0];
  }
  rn_v_of(c, w, act, v);
}

RN_DEVICE void rn_quantise_row(const rn_cuda_call &c, rn_crew crew, int64_t row, rn_window window) {
  const rn_problem &p = c.p;
  const int n = (int)p.group_cols, groups = (int)p.groups;
  const rn_line_place at = rn_place_at(p, row, 0);
  const rn_line line = rn_line_at(p, at, 0);
  const rn_outputs out = rn_outputs_at(p, at);
  float scale = p.quant == RMSNORM_QUANT_TENSOR ? *p.scale_in : 0, amax = 0;
  bool known = false; /* the statistics of the only window */

  /* A scale for the row needs all of it first: once more through it, only reading. */
  RN_NO_UNROLL for (bool scaled = p.quant != RMSNORM_QUANT_ROW;; scaled = true) {
    RN_NO_UNROLL for (int group = 0; group < groups; group += RN_GENERAL_WINDOW) {
      const int last = groups - group < RN_GENERAL_WINDOW ? groups : group + RN_GENERAL_WINDOW, end = last * n;
      if (!known) rn_window_stats(c, crew, line, row, window, group, last);
      RN_NO_UNROLL for (int tile = group * n + rn_warp_in(crew) * RN_TILE; tile < end;
                        tile += rn_warps_of(crew) * RN_TILE) {
        const int first = tile + rn_lane_in(crew);
        const rn_strip strip = {32, end - first};
        float v[RN_FOUR], s[RN_FOUR];
        rn_normed(c, line, window, first, strip, v, s);
        if (scaled) {
          rn_put_tile(c.types, out, first, strip, v, s);
          rn_quantise_tile(p, row, out.q, tile, rn_lane_in(crew), strip, v, scale);
        } else {
          amax = rn_amax4(amax, strip, v);
        }
      }
    }
    if (scaled) return;
    scale = rn_row_scale(p, crew, row, amax);
    known = groups <= RN_GENERAL_WINDOW;
  }
}

RN_KERNEL_CAPPED(rn_general_quantise, rn_cuda_call, RN_GENERAL_BOUND, RN_GENERAL_REGISTERS) {
  RN_SHARED_REST(shared);
  rn_let_next_start();
  rn_wait_for_previous();
  float *const windows = (float *)shared + p.slots;
  const rn_crew crew = rn_crew_of(p.lanes);
  float *const first = windows + 2 * RN_GENERAL_WINDOW * rn_crew_index(crew);
  const int64_t rows = rn_rows_of(p) * p.p.heads;
  RN_EACH_UNIT(row, crew, rows) rn_quantise_row(p, crew, row, {first, first + RN_GENERAL_WINDOW});
}

RN_KERNEL(rn_general_stats, rn_cuda_call, RN_GENERAL_THREADS) {
  rn_let_next_start();
  rn_wait_for_previous();
  const rn_crew crew = rn_crew_of(p.lanes);
  const int64_t units = rn_rows_of(p) * p.p.heads * p.p.groups;
  RN_EACH_UNIT(unit, crew, units) {
    const int64_t row = unit / p.p.groups, group = unit - row * p.p.groups;
    const float sum = rn_sum_squares(p, crew, rn_line_at(p.p, rn_place_at(p.p, row, group), group), 0, 1);
    if (crew.thread == 0) p.p.sumsq_out[unit] = sum;
  }
}
