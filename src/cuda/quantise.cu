/* quantise.cu - q with its scales, and y, the stored sum and rstd beside it, of rows that stay in registers: x,
 * residual, y and residual_out of one type, one pass over memory.
 *
 * Moves cols * (bytes of x + 1) a row, and twice the bytes of x more with a residual that is written back. A thread
 * keeps its part of the row as float32 from the sum of squares on, so a scale for the row costs one more exchange
 * between the threads and nothing else. docs/numerics.md 1 and 3.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "divisor.h"
#include "forward_row.h"
#include "rstd.h"

enum rn_quantise_sum { rn_quantise_sum_none, rn_quantise_sum_residual };

/* A row, or what a thread has of it: LOADS steps of RUNS runs. */
template <class L, int LOADS> struct rn_held { float v[LOADS][L::RUNS][L::RUN]; };

/* ------------------------------------------------------------------------------------------------------------------
 * A rescued row (1.4) is there already: columns past the last one are zeros, which change neither maximum nor sum. */
template <class L, int LOADS>
RN_DEVICE rn_row_stat rn_held_rescue(const rn_cuda_forward &f, rn_team &team, const rn_held<L, LOADS> &held) {
  rn_row_stat stat;
  float d[L::RUNS], lane[L::LANES];
  RN_UNROLL for (int g = 0; g < L::RUNS; g++) {
    d[g] = 0;
    RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int i = 0; i < L::RUN; i++) d[g] =
        rn_greater::of(d[g], rn_abs(held.v[j][g][i]));
  }
  const float m = rn_team_tree<L, rn_greater, false>(team, d);

  stat.power = 1;
  if (!(m <= FLT_MAX) || m == 0) {
    stat.r = rn_is_nan(m) ? m : m > 0 || f.eps == 0 ? 0.0f : rn_isqrt(f.eps);
    stat.r = stat.rstd = rn_rounded(typename L::T(), f.round_rstd != 0, stat.r);
    return stat;
  }
  int e = rn_exponent(m), least = rn_half_down(rn_exponent(f.eps));
  e = e < least ? least : e;
  e = e < -126 ? -126 : e > 127 ? 127 : e;
  const float scale = rn_exp2i(-e);
  RN_UNROLL for (int i = 0; i < L::LANES; i++) lane[i] = 0;
  RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int i = 0; i < L::LANES; i++) {
    const float u = held.v[j][i / L::RUN][i % L::RUN] * scale;
    lane[i] = fmaf(u, u, lane[i]);
  }
  rn_fold_lanes<L>(lane, d);
  const float v = rn_team_tree<L, rn_add, false>(team, d) / f.divisor + (f.eps * scale) * scale;
  const int b = e > RN_RESCUE_B ? RN_RESCUE_B : e > 0 ? e : 0;
  const float r = rn_isqrt(v) * rn_exp2i(-b);
  stat.power = rn_exp2i(b - e);
  stat.r = rn_rounded(typename L::T(), f.round_rstd != 0, r);
  stat.rstd = rn_rounded(typename L::T(), f.round_rstd != 0, r * stat.power);
  return stat;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Codes. */

/* Of RUN scaled values. */
template <int RUN> RN_DEVICE rn_words<RUN / 4> rn_codes_of(int32_t dtype, const float (&t)[RUN]) {
  rn_words<RUN / 4> codes;
  if (dtype == RMSNORM_DTYPE_INT8) {
    RN_UNROLL for (int i = 0; i < RUN; i += 4) codes.w[i / 4] = rn_pack_int8(t[i], t[i + 1], t[i + 2], t[i + 3]);
  } else {
    RN_UNROLL for (int i = 0; i < RUN; i += 4) codes.w[i / 4] =
        rn_pack_fp8(dtype == RMSNORM_DTYPE_FP8_E5M2, t[i], t[i + 1], t[i + 2], t[i + 3]);
  }
  return codes;
}

template <int RUN> RN_DEVICE float rn_run_amax(const float (&v)[RUN]) {
  float amax = 0;
  RN_UNROLL for (int i = 0; i < RUN; i++) amax = fmaxf(amax, fabsf(v[i])); /* skips NaN */
  return amax;
}
/* Infinity counts as the largest finite number. */
RN_DEVICE float rn_finite_amax(float amax) {
  return fminf(amax, FLT_MAX);
}

/* v becomes v / scale. What is divided for real goes round, so that there is one division in the code. */
template <int RUN> RN_DEVICE void rn_divide_run(rn_divisor d, int32_t reciprocal, float (&v)[RUN]) {
  if (d.low >= 0) {
    RN_UNROLL for (int i = 0; i < RUN; i++) v[i] = rn_divide(d, v[i]);
    return;
  }
  RN_NO_UNROLL for (int turn = 0; turn < RUN; turn++) {
    const float t = rn_divide_plainly(d, reciprocal, v[0]);
    RN_UNROLL for (int i = 0; i + 1 < RUN; i++) v[i] = v[i + 1];
    v[RUN - 1] = t;
  }
}

/* A block of columns lies on neighbouring threads of a warp. Its scale is written by the one that has column c, the
 * block's first, if the row is there. */
RN_DEVICE rn_divisor rn_scale_block(const rn_cuda_quantise &p, uint32_t row, int c, bool here, float amax) {
  const int64_t at = row * p.scale_row_stride + (c >> p.block_shift) * p.scale_block_stride;
  const bool writes = here && (c & ((1 << p.block_shift) - 1)) == 0;
  if (p.granularity == RMSNORM_QUANT_MX) {
    const int e = rn_mx_exponent(p.dtype, p.e8m0_rounding, rn_finite_amax(amax));
    if (writes) p.scale_out[at] = (char)(uint8_t)(e + 127);
    return rn_power_divisor(e, amax);
  }
  const float scale = rn_scale(p.dtype, rn_finite_amax(amax), p.scale_max);
  if (writes) ((float *)p.scale_out)[at] = scale;
  return rn_divisor_of(scale, p.reciprocal, amax);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Rows. */

/* Addresses are computed anew from here on: kept for all runs, and through an exchange, they would cost registers. */
RN_DEVICE void rn_forget_addresses(rn_team &team) {
  uint32_t thread = (uint32_t)team.thread;
  rn_keep_packed(thread);
  team.thread = (int)thread;
}

/* One row of the team, at most LOADS * W columns. Within a warp all teams come here together, those that have no row
 * left too. */
template <class L, rn_quantise_sum SUM, int LOADS>
RN_DEVICE void rn_quantise_row(const rn_cuda_quantise &p, rn_team &team, uint32_t row, bool here, float scale_in) {
  typedef typename L::T T;
  typedef typename L::words words;
  constexpr bool ADDS = SUM == rn_quantise_sum_residual;
  /* The weight waits in registers for the sum, where there is room beside the row. */
  constexpr bool WAITS = LOADS * L::LANES * T::SIZE * (ADDS ? 2 : 1) <= 64;
  const rn_cuda_forward &f = p.f;
  const bool waits = WAITS && f.weight != nullptr && !rn_weight_differs(T(), f), simple = rn_is_simple(f);
  const int lanes = rn_lanes_of_team<L>(team), cols = f.cols;
  const rn_row_place at = rn_place_of(f, here ? row : 0, simple);
  words q[LOADS][L::RUNS], other[ADDS ? LOADS : 1][L::RUNS], waiting[LOADS][L::RUNS];
  rn_held<L, LOADS> held;

#define RN_RUNS_OF_ROW RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int g = 0; g < L::RUNS; g++)
#define RN_COLUMN      (rn_first_column<L>(team, g) + j * lanes)
#define RN_HERE        (here && RN_COLUMN < cols)

  const char *const x = f.x.data + rn_offset(f.x, at, simple);
  RN_RUNS_OF_ROW {
    q[j][g] = rn_zero_words<L::WORDS>();
    if (RN_HERE) q[j][g] = rn_stream_load<L::WORDS>(x + T::SIZE * RN_COLUMN);
  }
  if (ADDS) {
    const char *const residual = f.residual.data + rn_offset(f.residual, at, simple);
    RN_RUNS_OF_ROW {
      other[j][g] = rn_zero_words<L::WORDS>();
      if (RN_HERE) other[j][g] = rn_stream_load<L::WORDS>(residual + T::SIZE * RN_COLUMN);
    }
  }
  const char *weight = f.weight;
  if (!simple) weight += at.head * f.weight_head_bytes + at.group * f.weight_group_bytes;
  if (waits) RN_RUNS_OF_ROW if (RN_COLUMN < cols) waiting[j][g] = rn_kept_load<L::WORDS>(weight + T::SIZE * RN_COLUMN);

  rn_forget_addresses(team);
  float d[L::RUNS], lane[L::LANES];
  RN_UNROLL for (int i = 0; i < L::LANES; i++) lane[i] = 0;
  RN_RUNS_OF_ROW {
    float(&u)[L::RUN] = held.v[j][g];
    rn_unpack(T(), q[j][g], u);
    if (ADDS) {
      float add[L::RUN];
      rn_unpack(T(), other[j][g], add);
      RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] + add[i];
      const words sum = rn_pack_run<L>(u);
      if (p.round_sum) rn_unpack(T(), sum, u);
      if (f.residual_out.data != nullptr && RN_HERE)
        rn_stream_store(f.residual_out.data + rn_offset(f.residual_out, at, simple) + T::SIZE * RN_COLUMN, sum);
    }
    RN_UNROLL for (int i = 0; i < L::RUN; i++) lane[g * L::RUN + i] = fmaf(u[i], u[i], lane[g * L::RUN + i]);
  }
  rn_fold_lanes<L>(lane, d);

  const float mean = rn_team_tree<L, rn_add, true>(team, d) / f.divisor + f.eps;
  rn_row_stat stat;
  if (rn_is_ordinary(mean)) {
    stat.r = stat.rstd = rn_rounded(T(), f.round_rstd != 0, rn_isqrt(mean));
  } else {
    stat = rn_held_rescue<L, LOADS>(f, team, held);
    RN_RUNS_OF_ROW RN_UNROLL for (int i = 0; i < L::RUN; i++) held.v[j][g][i] = held.v[j][g][i] * stat.power;
  }
  if (f.rstd_out != nullptr && here && team.thread == 0 && team.rank == 0) f.rstd_out[row] = stat.rstd;

  /* v of 1.5, and y. */
  const bool blocks = p.granularity == RMSNORM_QUANT_BLOCK || p.granularity == RMSNORM_QUANT_MX;
  float greatest[L::RUNS], of_block[LOADS * L::RUNS];
  RN_UNROLL for (int g = 0; g < L::RUNS; g++) greatest[g] = 0;
  RN_RUNS_OF_ROW {
    float(&v)[L::RUN] = held.v[j][g], w[L::RUN];
    rn_forget_addresses(team);
    RN_UNROLL for (int i = 0; i < L::RUN; i++) v[i] = v[i] * stat.r;
    if (f.round_xhat) rn_round_run<L>(v);
    if (waits) {
      rn_unpack(T(), waiting[j][g], w);
      if (RN_COLUMN < cols) RN_UNROLL for (int i = 0; i < L::RUN; i++) v[i] = v[i] * (f.weight_offset + w[i]);
    } else if (weight != nullptr && RN_COLUMN < cols) {
      rn_load_weight<L>(f, weight, RN_COLUMN, w);
      RN_UNROLL for (int i = 0; i < L::RUN; i++) v[i] = v[i] * w[i];
    }
    if (p.round_normed) rn_round_run<L>(v);
    if (f.y.data != nullptr && RN_HERE)
      rn_stream_store(f.y.data + rn_offset(f.y, at, simple) + T::SIZE * RN_COLUMN, rn_pack_run<L>(v));
    const float amax = rn_run_amax(v);
    greatest[g] = fmaxf(greatest[g], amax);
    if (blocks) of_block[j * L::RUNS + g] = amax;
  }

  /* Scales: of the blocks, in memory of the thread; or one for all. */
  rn_divisor of_run[LOADS * L::RUNS], divisor = {1, 0};
  if (blocks) {
    RN_NO_UNROLL for (int k = 0; k < LOADS * L::RUNS; k++) {
      const int j = k / L::RUNS, g = k % L::RUNS;
      float amax = of_block[k];
      RN_NO_UNROLL for (int m = 1; m * L::RUN < 1 << p.block_shift; m *= 2) amax =
          rn_greater::of(amax, rn_from_lane_xor(RN_ALL_LANES, amax, m));
      of_run[k] = rn_scale_block(p, row, RN_COLUMN, RN_HERE, amax);
    }
  } else {
    float scale = scale_in, amax = fmaxf(greatest[0], greatest[L::RUNS - 1]);
    if (p.granularity == RMSNORM_QUANT_ROW) {
      amax = rn_team_tree<L, rn_greater, true>(team, greatest);
      scale = rn_scale(p.dtype, rn_finite_amax(amax), p.scale_max);
      if (here && team.thread == 0 && team.rank == 0) ((float *)p.scale_out)[row] = scale;
    }
    divisor = rn_divisor_of(scale, p.reciprocal, amax);
  }

  char *const codes = p.q.data + rn_offset(p.q, at, simple);
  RN_RUNS_OF_ROW {
    rn_forget_addresses(team);
    if (blocks) divisor = of_run[j * L::RUNS + g];
    rn_divide_run(divisor, p.reciprocal, held.v[j][g]);
    if (RN_HERE) rn_stream_store(codes + RN_COLUMN, rn_codes_of(p.dtype, held.v[j][g]));
  }
#undef RN_HERE
#undef RN_COLUMN
#undef RN_RUNS_OF_ROW
}

/* ------------------------------------------------------------------------------------------------------------------
 * The usual row, in a third of the instructions: one scale for all of it, a weight of the type of x; no switch is asked
 * about within a step. false: this row has to go the other way, and nothing has been written;
 * with a residual never, because the sum may lie where x was. */
RN_DEVICE bool rn_is_usual(const rn_cuda_quantise &p, bool weight_differs) {
  return (p.granularity == RMSNORM_QUANT_TENSOR || p.granularity == RMSNORM_QUANT_ROW) && p.f.weight != nullptr &&
         !weight_differs;
}

/* Codes of the runs of a row; DTYPE is known when this is compiled. here(j, g): is that run of the row there? */
template <int DTYPE, class L, int LOADS, class HERE>
RN_DEVICE void rn_write_codes(const rn_held<L, LOADS> &held, char *codes, int step, int apart, const HERE &here) {
  RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int g = 0; g < L::RUNS; g++) {
    const rn_words<L::RUN / 4> of_run = rn_codes_of(DTYPE, held.v[j][g]);
    if (here(j, g)) rn_stream_store(codes + j * step + g * apart, of_run);
  }
}
template <class L, rn_quantise_sum SUM, int LOADS>
RN_DEVICE bool rn_quantise_usual(const rn_cuda_quantise &p, rn_team &team, uint32_t row, bool there, float scale_in,
                                 rn_divisor divisor_in) {
  typedef typename L::T T;
  typedef typename L::words words;
  constexpr bool ADDS = SUM == rn_quantise_sum_residual;
  const rn_cuda_forward &f = p.f;
  const bool simple = rn_is_simple(f);
  const rn_row_place at = rn_place_of(f, there ? row : 0, simple);
  const int first = rn_first_column<L>(team, 0), lanes = rn_lanes_of_team<L>(team);
  const int apart = L::RUNS == 1 ? 0 : rn_first_column<L>(team, 1) - first; /* columns from one run to the next */
  const auto here = [&](int j, int g) { return there && first + j * lanes + g * apart < f.cols; };
  const int64_t place = (int64_t)T::SIZE * first;
  words q[LOADS][L::RUNS], other[ADDS ? LOADS : 1][L::RUNS];
  rn_held<L, LOADS> held;
#define RN_RUNS_OF_ROW RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int g = 0; g < L::RUNS; g++)
#define RN_BYTE        (T::SIZE * (j * lanes + g * apart))

  const char *x = f.x.data + rn_offset(f.x, at, simple) + place;
  const char *weight = f.weight + place;
  if (!simple) weight += at.head * f.weight_head_bytes + at.group * f.weight_group_bytes;
  rn_keep_address(x), rn_keep_address(weight);
  RN_RUNS_OF_ROW {
    q[j][g] = rn_zero_words<L::WORDS>();
    if (here(j, g)) q[j][g] = rn_stream_load<L::WORDS>(x + RN_BYTE);
  }
  if (ADDS) {
    const char *residual = f.residual.data + rn_offset(f.residual, at, simple) + place;
    rn_keep_address(residual);
    RN_RUNS_OF_ROW {
      other[j][g] = rn_zero_words<L::WORDS>();
      if (here(j, g)) other[j][g] = rn_stream_load<L::WORDS>(residual + RN_BYTE);
    }
  }
  float d[L::RUNS], lane[L::LANES];
  char *sum_out = ADDS ? f.residual_out.data + rn_offset(f.residual_out, at, simple) + place : nullptr;
  rn_keep_address(sum_out);
  RN_UNROLL for (int i = 0; i < L::LANES; i++) lane[i] = 0;
  RN_RUNS_OF_ROW {
    float(&u)[L::RUN] = held.v[j][g];
    rn_unpack(T(), q[j][g], u);
    if (ADDS) {
      float add[L::RUN];
      rn_unpack(T(), other[j][g], add);
      RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] + add[i];
      const words packed = rn_pack_run<L>(u);
      if (p.round_sum) rn_unpack(T(), packed, u);
      if (f.residual_out.data != nullptr && here(j, g)) rn_stream_store(sum_out + RN_BYTE, packed);
    }
    RN_UNROLL for (int i = 0; i < L::RUN; i++) lane[g * L::RUN + i] = fmaf(u[i], u[i], lane[g * L::RUN + i]);
  }
  rn_fold_lanes<L>(lane, d);
  const float sum = rn_team_tree<L, rn_add, true>(team, d);
  const float mean = rn_quotient(sum, f.divisor, f.inverse), square = mean + f.eps;
  bool usual = rn_takes_short_way(mean, square);
  rn_row_stat stat;
  stat.power = 1;
  if constexpr (ADDS) {
    if (usual) {
      stat.r = stat.rstd = rn_rounded(T(), f.round_rstd != 0, rn_isqrt_from(square, rn_root_near(square)));
    } else {
      const float v = sum / f.divisor + f.eps;
      stat.r = stat.rstd = rn_rounded(T(), f.round_rstd != 0, rn_isqrt(v));
      if (!rn_is_ordinary(v)) stat = rn_held_rescue<L, LOADS>(f, team, held);
      RN_RUNS_OF_ROW RN_UNROLL for (int i = 0; i < L::RUN; i++) held.v[j][g][i] = held.v[j][g][i] * stat.power;
    }
  } else {
    /* Where several rows share a warp, all of them take the same way. */
    if (L::SPAN == RN_SPAN_WARP && L::THREADS < 32) usual = !rn_any_in_warp(RN_ALL_LANES, there && !usual);
    if (!usual) return false;
    stat.r = stat.rstd = rn_rounded(T(), f.round_rstd != 0, rn_isqrt_from(square, rn_root_near(square)));
  }
  const float rstd = stat.r;
  if (f.rstd_out != nullptr && there && team.thread == 0 && team.rank == 0) f.rstd_out[row] = stat.rstd;

  float greatest[L::RUNS];
  RN_UNROLL for (int g = 0; g < L::RUNS; g++) greatest[g] = 0;
  RN_RUNS_OF_ROW {
    float(&v)[L::RUN] = held.v[j][g], weights[L::RUN];
    words w = rn_zero_words<L::WORDS>();
    if (here(j, g)) w = rn_kept_load<L::WORDS>(weight + RN_BYTE);
    rn_unpack(T(), w, weights);
    RN_UNROLL for (int i = 0; i < L::RUN; i++) v[i] = v[i] * rstd;
    if (f.round_xhat) rn_round_run<L>(v);
    RN_UNROLL for (int i = 0; i < L::RUN; i++) v[i] = v[i] * (f.weight_offset + weights[i]);
    if (p.round_normed) rn_round_run<L>(v);
    greatest[g] = fmaxf(greatest[g], rn_run_amax(v));
  }
  if (f.y.data != nullptr) {
    char *y = f.y.data + rn_offset(f.y, at, simple) + place;
    rn_keep_address(y);
    RN_RUNS_OF_ROW if (here(j, g)) rn_stream_store(y + RN_BYTE, rn_pack_run<L>(held.v[j][g]));
  }

  float amax = fmaxf(greatest[0], greatest[L::RUNS - 1]), scale = scale_in;
  rn_divisor divisor = divisor_in;
  if (p.granularity == RMSNORM_QUANT_ROW) {
    amax = rn_team_tree<L, rn_greater, true>(team, greatest);
    scale = rn_scale(p.dtype, rn_finite_amax(amax), p.scale_max);
    if (there && team.thread == 0 && team.rank == 0) ((float *)p.scale_out)[row] = scale;
    divisor = rn_divisor_of(scale, p.reciprocal, 0);
  }
  if (!(amax <= rn_most_divided(scale, p.reciprocal))) divisor.by = scale, divisor.low = -1;
  if (divisor.low >= 0) {
    RN_RUNS_OF_ROW RN_UNROLL for (int i = 0; i < L::RUN; i++) held.v[j][g][i] = rn_divide(divisor, held.v[j][g][i]);
  } else {
    RN_RUNS_OF_ROW rn_divide_run(divisor, p.reciprocal, held.v[j][g]);
  }

  char *codes = p.q.data + rn_offset(p.q, at, simple) + first;
  rn_keep_address(codes);
  switch (p.dtype) {
  case RMSNORM_DTYPE_FP8_E4M3:
    rn_write_codes<RMSNORM_DTYPE_FP8_E4M3, L, LOADS>(held, codes, lanes, apart, here);
    break;
  case RMSNORM_DTYPE_FP8_E5M2:
    rn_write_codes<RMSNORM_DTYPE_FP8_E5M2, L, LOADS>(held, codes, lanes, apart, here);
    break;
  default:
    rn_write_codes<RMSNORM_DTYPE_INT8, L, LOADS>(held, codes, lanes, apart, here);
  }
#undef RN_BYTE
#undef RN_RUNS_OF_ROW
  return true;
}

/* Any other row; the exchanges of the team so far. */
template <class L, rn_quantise_sum SUM, int LOADS>
RN_SELDOM int rn_quantise_apart(const rn_cuda_quantise *p, rn_team team, uint32_t row, bool here, float scale_in) {
  rn_quantise_row<L, SUM, LOADS>(*p, team, row, here, scale_in);
  return team.round;
}

template <class L, rn_quantise_sum SUM, int LOADS> RN_DEVICE void rn_quantise_rows(const rn_cuda_quantise &p) {
  RN_SHARED(float, slots, L::SPAN == RN_SPAN_WARP ? 1 : RN_TEAM_SLOTS);
  RN_SHARED(rn_transfer, arrived, 2);
  rn_team team = rn_team_of<L>(slots, arrived);
  rn_wait_for_previous();
  rn_let_next_start();
  uint32_t rows = (uint32_t)p.f.rows;
  if (p.f.live_rows != nullptr) rows = (uint32_t)rn_live_rows(p.f.rows, p.f.live_rows, p.f.live_most, p.f.live_factor);
  const float scale_in = p.granularity == RMSNORM_QUANT_TENSOR ? *p.scale_in : 1.0f;
  const rn_divisor divisor_in = rn_divisor_of(scale_in, p.reciprocal, 0);
  const bool usual = rn_is_usual(p, rn_weight_differs(typename L::T(), p.f));
  rn_meet<L>(team);
  /* Within a warp 32 / THREADS rows lie side by side, and it goes on while the first of them is there. */
  constexpr bool WARP = L::SPAN == RN_SPAN_WARP;
  const uint32_t blocks = (uint32_t)team.blocks; /* of a cluster, a power of two */
  const int shift = L::SPAN == RN_SPAN_CLUSTER ? rn_log2(blocks) : 0;
  const uint32_t beside = WARP ? 32 / L::THREADS : 1, warps = WARP ? (uint32_t)rn_threads_of_block() / 32 : 1;
  const uint32_t own = WARP ? (uint32_t)(rn_thread() & 31) / L::THREADS : 0;
  const uint32_t step = ((uint32_t)rn_blocks() >> shift) * warps * beside;
  uint32_t first = (((uint32_t)rn_block() >> shift) * warps + (WARP ? (uint32_t)rn_thread() / 32 : 0)) * beside;
  RN_NO_UNROLL for (; first < rows; first += step) {
    const uint32_t row = first + own;
    const bool here = row < rows;
    if (!usual || !rn_quantise_usual<L, SUM, LOADS>(p, team, row, here, scale_in, divisor_in))
      team.round = rn_quantise_apart<L, SUM, LOADS>(&p, team, row, here, scale_in);
  }
}

#define RN_QUANTISE_KERNEL(type, sum, span, threads, loads)                                                            \
  RN_KERNEL_CAPPED(RN_QUANTISE_NAME(type, sum, span, threads, loads), rn_cuda_quantise,                                \
                   RN_QUANTISE_THREADS(type, sum, span, loads), RN_QUANTISE_REGISTERS(type, sum, loads)) {             \
    rn_quantise_rows<rn_layout<rn_##type, 8, RN_SPAN_##span, threads>, rn_quantise_sum_##sum, loads>(p);               \
  }
RN_QUANTISE_INSTANCES(RN_QUANTISE_KERNEL)
