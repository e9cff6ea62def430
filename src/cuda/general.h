/* general.h - what the general kernels are made of: the threads of a row, four elements of any type at a time, the
 * canonical sum and the statistic of a row. docs/numerics.md 1.1 to 1.4.
 *
 * Thread t of a row's T takes the elements t, t + T, ...: neighbours read neighbouring elements, whatever the alignment
 * is. Elements are taken four at a time, raw first: all loads are under way before the first is widened.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_GENERAL_H
#define RN_CUDA_GENERAL_H

#include "row.h"

#include "../gate.h"
#include "../order.h"

/* ------------------------------------------------------------------------------------------------------------------
 * Four elements, `step` apart; `left` says how many columns there are from the first one on. Those past the end are 0.
 */
enum { RN_FOUR = 4 };

RN_DEVICE int rn_type(uint32_t types, int place) {
  return (int)(types >> place & 3);
}

/* What a branch may leave unset is set to 0 before it: otherwise it would stay in registers from the start of the
 * kernel on, as something that has a value there. */
struct rn_raw4 {
  uint32_t w[RN_FOUR] = {0, 0, 0, 0};
};
struct rn_strip {
  int step, left;
};
/* Of elements of `type` whose column 0 is at `data`, from column `first` on. */
RN_DEVICE rn_raw4 rn_fetch(int type, const char *data, int first, rn_strip strip) {
  rn_raw4 raw;
  if (type == RMSNORM_DTYPE_F32) {
    const uint32_t *at = (const uint32_t *)data + first;
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) if (j * strip.step < strip.left) raw.w[j] = at[j * strip.step];
  } else {
    const uint16_t *at = (const uint16_t *)data + first;
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) if (j * strip.step < strip.left) raw.w[j] = at[j * strip.step];
  }
  return raw;
}
RN_DEVICE void rn_widen(int dtype, rn_raw4 raw, float (&v)[RN_FOUR]) {
  if (dtype == RMSNORM_DTYPE_F16) {
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) v[j] = rn_unpack_f16((uint16_t)raw.w[j]);
  } else if (dtype == RMSNORM_DTYPE_BF16) {
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) v[j] = rn_from_bits(raw.w[j] << 16);
  } else {
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) v[j] = rn_from_bits(raw.w[j]);
  }
}
/* Rounded to a type and widened again; f32 leaves them alone. */
RN_DEVICE void rn_round4(int dtype, float (&v)[RN_FOUR]) {
  if (dtype == RMSNORM_DTYPE_F16) {
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) v[j] = rn_unpack_f16((uint16_t)rn_pack_f16(v[j], 0));
  } else if (dtype == RMSNORM_DTYPE_BF16) {
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) v[j] = rn_from_bits(rn_pack_bf16(v[j], 0) << 16);
  }
}
RN_DEVICE void rn_put(int type, char *data, int first, rn_strip strip, const float (&v)[RN_FOUR]) {
  if (type == RMSNORM_DTYPE_F32) {
    float *at = (float *)data + first;
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) if (j * strip.step < strip.left) at[j * strip.step] = v[j];
  } else {
    uint16_t *at = (uint16_t *)data + first;
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) {
      const uint32_t word = type == RMSNORM_DTYPE_F16 ? rn_pack_f16(v[j], 0) : rn_pack_bf16(v[j], 0);
      if (j * strip.step < strip.left) at[j * strip.step] = (uint16_t)word;
    }
  }
}
/* Called, not copied: four exponentials next to a row's registers would not fit. */
struct rn_four {
  float v[RN_FOUR];
};
RN_DEVICE rn_four rn_act_of(int kind, rn_four z) {
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) z.v[j] = rn_act(kind, z.v[j]);
  return z;
}
RN_DEVICE void rn_act4(int kind, float (&z)[RN_FOUR]) {
  const rn_four act = rn_act_of(kind, {{z[0], z[1], z[2], z[3]}});
  RN_UNROLL for (int j = 0; j < RN_FOUR; j++) z[j] = act.v[j];
}

/* ------------------------------------------------------------------------------------------------------------------
 * The threads of a row: a warp, or the whole block, whose shared memory then starts with W / 32 and W / 1024 slots. */
struct rn_crew {
  int thread, threads;
};
RN_DEVICE rn_crew rn_crew_of(int lanes) {
  if (lanes <= RN_GENERAL_WARP_LANES) return {rn_thread() & 31, 32};
  return {rn_thread(), rn_threads_of_block()};
}
RN_DEVICE bool rn_is_warp(rn_crew crew) {
  return crew.threads == 32;
}
RN_DEVICE int rn_lane_in(rn_crew crew) {
  return crew.thread & 31;
}
RN_DEVICE int rn_warp_in(rn_crew crew) {
  return crew.thread >> 5;
}
RN_DEVICE int rn_warps_of(rn_crew crew) {
  return crew.threads >> 5;
}
/* Which crew of the block this is, of how many. */
RN_DEVICE int rn_crew_index(rn_crew crew) {
  return rn_is_warp(crew) ? rn_thread() >> 5 : 0;
}
RN_DEVICE int rn_crews(rn_crew crew) {
  return rn_is_warp(crew) ? rn_threads_of_block() >> 5 : 1;
}
RN_DEVICE void rn_crew_barrier(rn_crew crew) {
  if (rn_is_warp(crew))
    rn_warp_barrier(RN_ALL_LANES);
  else
    rn_barrier();
}

/* `values` neighbours of a warp (a power of two) as one. */
template <class OP> RN_DEVICE float rn_warp_tree(float v, int values) {
  RN_NO_UNROLL for (int m = 1; m < values; m *= 2) v = OP::of(v, rn_from_lane_xor(RN_ALL_LANES, v, m));
  return v;
}
template <class OP> RN_DEVICE float rn_whole_warp_tree(float v) {
  RN_UNROLL for (int m = 1; m < 32; m *= 2) v = OP::of(v, rn_from_lane_xor(RN_ALL_LANES, v, m));
  return v;
}

/* One for the crew from one value of each of its threads, in any order: for maxima only. */
template <class OP> RN_DEVICE float rn_crew_greatest(rn_crew crew, float v) {
  RN_SHARED_REST(rest);
  float *const slots = (float *)rest;
  v = rn_whole_warp_tree<OP>(v);
  if (rn_is_warp(crew)) return v;
  rn_barrier();
  if (rn_lane_in(crew) == 0) slots[rn_warp_in(crew)] = v;
  rn_barrier();
  return rn_whole_warp_tree<OP>(slots[rn_lane_in(crew) & (rn_warps_of(crew) - 1)]);
}

/* The sum over a row in the canonical order, for every thread of the crew. read(first, strip, a, b): the factors of the
 * elements first, first + step, ... */
template <class READ> RN_DEVICE float rn_canonical_sum(rn_crew crew, int n, int lanes, READ read) {
  RN_SHARED_REST(rest);
  float *const slots = (float *)rest;
  const int lane = rn_lane_in(crew);
  float kept = 0;
  if (!rn_is_warp(crew)) rn_barrier(); /* the slots may still be read */
  RN_NO_UNROLL for (int lane0 = 0; lane0 < lanes; lane0 += crew.threads) {
    float sum = 0;
    RN_NO_UNROLL for (int first = lane0 + crew.thread; first < n; first += RN_FOUR * lanes) {
      const rn_strip strip = {lanes, n - first};
      float a[RN_FOUR], b[RN_FOUR];
      read(first, strip, a, b);
      RN_UNROLL for (int j = 0; j < RN_FOUR; j++) if (j * strip.step < strip.left) sum = fmaf(a[j], b[j], sum);
    }
    sum = rn_whole_warp_tree<rn_add>(sum);
    if (rn_is_warp(crew))
      kept = (lane & (lanes / 32 - 1)) == lane0 / 32 ? sum : kept;
    else if (lane == 0)
      slots[(lane0 + crew.thread) / 32] = sum;
  }
  int values = lanes / 32;
  if (rn_is_warp(crew)) return rn_warp_tree<rn_add>(kept, values);
  int from = 0;
  rn_barrier();
  while (values > 32) {
    const int to = from + values;
    values /= 32;
    for (int i = rn_warp_in(crew); i < values; i += rn_warps_of(crew)) {
      const float sum = rn_whole_warp_tree<rn_add>(slots[from + 32 * i + lane]);
      if (lane == 0) slots[to + i] = sum;
    }
    from = to;
    rn_barrier();
  }
  return rn_warp_tree<rn_add>(slots[from + (lane & (values - 1))], values);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Where a row lies. Columns are counted from here: from the first one of a group, or of all of them. */
struct rn_line {
  const char *x, *residual, *gate, *weight;
};
struct rn_line_place {
  int64_t token, head;
  int column; /* of the whole row, where the line starts */
};
RN_DEVICE char *rn_line_in(const rn_view &view, rn_line_place at) {
  if (view.data == nullptr) return nullptr;
  return view.data + at.token * view.row_bytes + at.head * view.head_bytes + (int64_t)at.column * view.size;
}
/* row = token * heads + head. */
RN_DEVICE rn_line_place rn_place_at(const rn_problem &p, int64_t row, int64_t group) {
  const int column = (int)(group * p.group_cols);
  if (p.heads == 1) return {row, 0, column};
  return {row / p.heads, row % p.heads, column};
}
RN_DEVICE rn_line rn_line_at(const rn_problem &p, rn_line_place at, int64_t group) {
  const char *weight = p.weight;
  if (weight) weight += at.head * p.weight_head_bytes + group * p.weight_group_bytes;
  return {rn_line_in(p.x, at), rn_line_in(p.residual, at), rn_line_in(p.gate, at), weight};
}

/* [1.1] Raw elements of one place, and what becomes of them. */
struct rn_element4 {
  rn_raw4 x, residual, gate;
};
RN_DEVICE rn_element4 rn_fetch_element(uint32_t types, const rn_line &line, int first, rn_strip strip, bool with_gate) {
  const int residual = rn_type(types, RN_TYPE_RESIDUAL);
  rn_element4 e;
  e.x = rn_fetch(rn_type(types, RN_TYPE_X), line.x, first, strip);
  if (residual) e.residual = rn_fetch(residual, line.residual, first, strip);
  if (with_gate) e.gate = rn_fetch(rn_type(types, RN_TYPE_GATE), line.gate, first, strip);
  return e;
}
/* s: x, or the sum, not rounded yet. */
RN_DEVICE void rn_sum_of(uint32_t types, const rn_element4 &e, float (&s)[RN_FOUR]) {
  rn_widen(rn_type(types, RN_TYPE_X), e.x, s);
  if (rn_type(types, RN_TYPE_RESIDUAL)) {
    float residual[RN_FOUR];
    rn_widen(rn_type(types, RN_TYPE_RESIDUAL), e.residual, residual);
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) s[j] = s[j] + residual[j];
  }
}
/* act(z) of the gate. */
RN_DEVICE void rn_act_of_gate(uint32_t types, const rn_element4 &e, float (&act)[RN_FOUR]) {
  rn_widen(rn_type(types, RN_TYPE_GATE), e.gate, act);
  rn_act4(rn_type(types, RN_TYPE_GATE_KIND), act);
}
/* u: what is normalised. */
RN_DEVICE void rn_load_u(uint32_t types, const rn_line &line, int first, rn_strip strip, float (&u)[RN_FOUR]) {
  const bool before = rn_type(types, RN_TYPE_GATE_BEFORE);
  const rn_element4 e = rn_fetch_element(types, line, first, strip, before);
  rn_sum_of(types, e, u);
  rn_round4(rn_type(types, RN_TYPE_ROUND_SUM), u);
  if (before) {
    float act[RN_FOUR];
    rn_act_of_gate(types, e, act);
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) u[j] = u[j] * act[j];
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * [1.2 to 1.4] */
/* Of the n columns that start at `column` of the line. */
RN_DEVICE float rn_sum_squares(const rn_cuda_call &c, rn_crew crew, const rn_line &line, int column, float factor) {
  return rn_canonical_sum(crew, (int)c.p.group_cols, c.lanes,
                          [&](int first, rn_strip strip, float(&a)[RN_FOUR], float(&b)[RN_FOUR]) {
                            rn_load_u(c.types, line, column + first, strip, a);
                            RN_UNROLL for (int j = 0; j < RN_FOUR; j++) a[j] = b[j] = a[j] * factor;
                          });
}

/* The greatest |u|, NaN above infinity. */
RN_DEVICE float rn_greatest_u(const rn_cuda_call &c, rn_crew crew, const rn_line &line, int column) {
  const int n = (int)c.p.group_cols;
  float greatest = 0;
  RN_NO_UNROLL for (int i = crew.thread; i < n; i += RN_FOUR * crew.threads) {
    const rn_strip strip = {crew.threads, n - i};
    float u[RN_FOUR];
    rn_load_u(c.types, line, column + i, strip, u);
    RN_UNROLL for (int j = 0; j < RN_FOUR; j++) if (j * strip.step < strip.left) greatest =
        rn_greater::of(greatest, rn_abs(u[j]));
  }
  return rn_crew_greatest<rn_greater>(crew, greatest);
}

RN_DEVICE rn_row_stat rn_plain_stat(int32_t round_rstd, float rstd) {
  rstd = rn_round_to(round_rstd, rstd);
  return {1.0f, rstd, rstd};
}

/* row: (token, head, group) as one number. */
RN_DEVICE rn_row_stat rn_stat_of(const rn_cuda_call &c, rn_crew crew, const rn_line &line, int column, int64_t row,
                                 int32_t round_rstd) {
  const float divisor = (float)c.p.divisor, eps = (float)c.p.eps;
  if (c.p.sumsq_in) {
    const float v = c.p.sumsq_in[row] / divisor + eps;
    return rn_plain_stat(round_rstd, v == 0 ? 0 : rn_isqrt(v));
  }
  float scale = 1, v;
  int e = 0;
  RN_NO_UNROLL for (bool rescued = false;; rescued = true) { /* one text of the sum for both */
    v = rn_sum_squares(c, crew, line, column, scale) / divisor + (eps * scale) * scale;
    if (rescued) break;
    if (rn_is_ordinary(v)) return rn_plain_stat(round_rstd, rn_isqrt(v));
    const float m = rn_greatest_u(c, crew, line, column);
    if (rn_is_nan(m)) return rn_plain_stat(round_rstd, m);
    if (m > FLT_MAX) return rn_plain_stat(round_rstd, 0);
    if (m == 0) return rn_plain_stat(round_rstd, eps == 0 ? 0 : rn_isqrt(eps));
    e = (int)rn_max_i64(rn_exponent(m), rn_half_down(rn_exponent(eps)));
    e = e < -126 ? -126 : e > 127 ? 127 : e;
    scale = rn_exp2i(-e);
  }
  const int b = e > RN_RESCUE_B ? RN_RESCUE_B : e > 0 ? e : 0;
  const float power = rn_exp2i(b - e), r = rn_isqrt(v) * rn_exp2i(-b);
  return {power, rn_round_to(round_rstd, r), rn_round_to(round_rstd, r * power)};
}

/* In the last pass a warp takes tiles of this many columns, whole quantised blocks: lane l has l, l + 32, l + 64, ...
 */
enum { RN_TILE = 32 * RN_FOUR };

/* One (token, head, group) after the other, dealt to the crews of all blocks. */
#define RN_EACH_UNIT(unit, crew, units)                                                                                \
  for (int64_t unit = rn_block() * rn_crews(crew) + rn_crew_index(crew); unit < (units);                               \
       unit += rn_blocks() * rn_crews(crew))

/* How many of p.rows there are. */
RN_DEVICE int64_t rn_rows_of(const rn_cuda_call &c) {
  if (!c.live_rows) return c.p.rows;
  return rn_live_rows(c.p.rows, c.live_rows, c.p.rows / c.live_factor, c.live_factor);
}

#endif /* RN_CUDA_GENERAL_H */
