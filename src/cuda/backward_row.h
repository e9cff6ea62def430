/* backward_row.h - what the fast backward kernels share: who holds a row, packed runs, the weights, the two passes over
 * a row. docs/numerics.md 4.
 *
 * A thread holds LANES neighbouring lanes of a row, one access wide, and takes the row in `LOADS` steps of W columns.
 * So it always sees the same columns, and its part of dweight stays in its registers from row to row. W / LANES threads
 * make the team of a row.
 *
 * Where a row has no element (columns past its end, rows past the last), x is +0 and dy a zero of the sign that makes
 * every product -0: adding -0 changes no lane, not even one that is -0 itself. So the arithmetic needs no conditions.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_BACKWARD_ROW_H
#define RN_CUDA_BACKWARD_ROW_H

#include "row.h"

/* ------------------------------------------------------------------------------------------------------------------
 * Runs. */
template <class T, int LANES> struct alignas(LANES *T::SIZE) rn_run {
  enum { WORDS = LANES * T::SIZE / 4 };
  uint32_t w[WORDS];
};

template <class T, int LANES> RN_DEVICE void rn_unpack_run(const rn_run<T, LANES> &run, float *v) {
  RN_UNROLL for (int i = 0; i < rn_run<T, LANES>::WORDS; i++) rn_widen_word(T(), run.w[i], v + i * (4 / T::SIZE));
}
template <class T, int LANES> RN_DEVICE rn_run<T, LANES> rn_pack_run(const float *v) {
  rn_run<T, LANES> run;
  RN_UNROLL for (int i = 0; i < rn_run<T, LANES>::WORDS; i++) run.w[i] = rn_narrow_word(T(), v + i * (4 / T::SIZE));
  return run;
}
template <class T, int LANES> RN_DEVICE void rn_keep_packed(rn_run<T, LANES> &run) {
  RN_UNROLL for (int i = 0; i < rn_run<T, LANES>::WORDS; i++) rn_keep_packed(run.w[i]);
}
template <class T, int LANES> RN_DEVICE rn_run<T, LANES> rn_fill_run(uint32_t word) {
  rn_run<T, LANES> run;
  RN_UNROLL for (int i = 0; i < rn_run<T, LANES>::WORDS; i++) run.w[i] = word;
  return run;
}

template <class T, int LANES> RN_DEVICE rn_run<T, LANES> rn_load_run(const char *at) {
  rn_run<T, LANES> run;
  if constexpr (rn_run<T, LANES>::WORDS == 4) {
    const rn_words4 q = rn_stream_load16(at);
    RN_UNROLL for (int i = 0; i < 4; i++) run.w[i] = q.w[i];
  } else {
    const rn_words2 q = rn_stream_load8(at);
    RN_UNROLL for (int i = 0; i < 2; i++) run.w[i] = q.w[i];
  }
  return run;
}
/* What nobody writes while it is read. */
template <class T, int LANES> RN_DEVICE rn_run<T, LANES> rn_load_kept_run(const char *at) {
  rn_run<T, LANES> run;
  if constexpr (rn_run<T, LANES>::WORDS == 4) {
    const rn_words4 q = rn_kept_load16(at);
    RN_UNROLL for (int i = 0; i < 4; i++) run.w[i] = q.w[i];
  } else {
    const rn_words2 q = rn_kept_load8(at);
    RN_UNROLL for (int i = 0; i < 2; i++) run.w[i] = q.w[i];
  }
  return run;
}
template <class T, int LANES> RN_DEVICE void rn_store_run(char *at, const rn_run<T, LANES> &run) {
  if constexpr (rn_run<T, LANES>::WORDS == 4)
    rn_stream_store16(at, {{run.w[0], run.w[1], run.w[2], run.w[3]}});
  else
    rn_stream_store8(at, {{run.w[0], run.w[1]}});
}

/* In shared memory. */
template <class T, int LANES> RN_DEVICE rn_run<T, LANES> rn_take_run(const char *at) {
  return *(const rn_run<T, LANES> *)at;
}
template <class T, int LANES> RN_DEVICE void rn_put_run(char *at, const rn_run<T, LANES> &run) {
  *(rn_run<T, LANES> *)at = run;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Who shares a row: threads of a warp, of a block (which may hold several teams), of a cluster of blocks. */
enum rn_sharing { RN_SHARE_WARP, RN_SHARE_BLOCK, RN_SHARE_CLUSTER };

enum {
  RN_SHARE_SLOTS = 2 * (32 + 16), /* floats of shared memory a team: warps of a block, blocks of a cluster, twice */
  RN_SHARE_TEAMS = 8              /* teams in a block */
};

struct rn_share {
  int thread;  /* of this block's part of the team */
  int threads; /* this block's part */
  int number;  /* of the team in the block */
  int rank, blocks;
  int turn; /* 0, 1: the half of the slots that is used next; so one barrier an exchange is enough */
  float *slots;
};

template <int REACH> RN_DEVICE rn_share rn_share_of(int team_threads, float *slots) {
  rn_share team;
  team.threads = team_threads, team.number = rn_thread() / team_threads;
  team.thread = rn_thread() - team.number * team_threads;
  team.rank = REACH == RN_SHARE_CLUSTER ? rn_cluster_rank() : 0,
  team.blocks = REACH == RN_SHARE_CLUSTER ? rn_cluster_blocks() : 1;
  team.turn = 0, team.slots = slots + (REACH == RN_SHARE_WARP ? 0 : team.number * RN_SHARE_SLOTS);
  return team;
}

/* One value for the row from one of each of its threads, neighbours first. Every thread gets it. With RN_SHARE_CLUSTER
 * all blocks of the cluster have to have started. */
struct rn_nothing {
  RN_DEVICE void done(const rn_nothing &) {}
};
/* `meanwhile` is done when every thread of the block has come that far. */
template <int REACH, class OP, class MEANWHILE = rn_nothing>
RN_DEVICE float rn_share_tree(rn_share &team, float d, const MEANWHILE &meanwhile = MEANWHILE()) {
  RN_UNROLL for (int m = 1; m < 32; m *= 2) if (REACH != RN_SHARE_WARP || m < team.threads) d =
      OP::of(d, rn_from_lane_xor(RN_ALL_LANES, d, m));
  if constexpr (REACH != RN_SHARE_WARP) {
    const int lane = rn_thread() & 31, warp = team.thread >> 5, warps = team.threads >> 5;
    float *const of_warps = team.slots + team.turn * 32, *const of_blocks = team.slots + 2 * 32 + team.turn * 16;
    team.turn ^= 1;
    if (lane == 0) of_warps[warp] = d;
    if (REACH == RN_SHARE_BLOCK)
      rn_team_barrier(1 + team.number, team.threads);
    else
      rn_barrier();
    MEANWHILE::done(meanwhile);
    d = of_warps[lane & (warps - 1)];
    for (int m = 1; m < warps; m *= 2) d = OP::of(d, rn_from_lane_xor(RN_ALL_LANES, d, m));
    if (REACH == RN_SHARE_CLUSTER && team.blocks > 1) {
      if (warp == 0 && lane < team.blocks) rn_cluster_store(of_blocks + team.rank, lane, d);
      rn_cluster_arrive(), rn_cluster_wait();
      d = of_blocks[lane & (team.blocks - 1)];
      for (int m = 1; m < team.blocks; m *= 2) d = OP::of(d, rn_from_lane_xor(RN_ALL_LANES, d, m));
    }
  }
  return d;
}

template <int LANES> RN_DEVICE float rn_fold(const float (&lane)[LANES]) {
  const float d = (lane[0] + lane[1]) + (lane[2] + lane[3]);
  if constexpr (LANES == 8) return d + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  return d;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Where things lie. */
RN_DEVICE char *rn_row_at(const rn_cuda_backward &p, const rn_cuda_tensor &tensor, int row) {
  if (p.heads == 1) return tensor.data + (int64_t)row * tensor.row_bytes;
  const int token = (int)((uint32_t)row / (uint32_t)p.heads), head = row - token * p.heads;
  return tensor.data + (int64_t)token * tensor.row_bytes + (int64_t)head * tensor.head_bytes;
}

/* How the rows are dealt out: docs/numerics.md 4.1, for the rows that are alive. */
struct rn_deal {
  int rows, chunks, row_lanes, unit_shift;
};
RN_DEVICE rn_deal rn_deal_of(const rn_cuda_backward &p) {
  if (p.live_rows == nullptr) return {p.rows, p.chunks, p.row_lanes, p.unit_shift};
  const int rows = (int)rn_live_rows(p.rows, p.live_rows, p.live_most, p.live_factor);
  const rn_chunks k = rn_chunks_of(rows > 0 ? rows : 1, p.cols);
  int shift = 0;
  while ((int64_t)2 << shift <= k.B) shift++;
  return {rows, (int)k.C, (int)k.P, shift};
}
/* The number of a chunk's i-th row; past the chunk's last one it is not below deal.rows. */
RN_DEVICE int rn_dealt_row(const rn_deal &deal, int chunk, int i) {
  const int unit = i >> deal.unit_shift;
  return ((unit * deal.chunks + chunk) << deal.unit_shift) + (i & ((1 << deal.unit_shift) - 1));
}

/* ------------------------------------------------------------------------------------------------------------------
 * Weights, of the type of x: they stay in registers, packed. */
RN_DEVICE uint32_t rn_one_word(rn_bf16) {
  return 0x3f803f80u;
}
RN_DEVICE uint32_t rn_one_word(rn_f16) {
  return 0x3c003c00u;
}
RN_DEVICE uint32_t rn_one_word(rn_f32) {
  return 0x3f800000u;
}

template <class T, int LANES, int LOADS> struct rn_kept_weights {
  rn_run<T, LANES> run[LOADS];
  RN_DEVICE void start(rn_kept_weights &weight, const rn_cuda_backward &p, int column) {
    RN_UNROLL for (int j = 0; j < LOADS; j++) {
      const int c = column + j * p.lanes;
      weight.run[j] = rn_fill_run<T, LANES>(p.weight == nullptr ? rn_one_word(T()) : 0);
      if (p.weight != nullptr && c < p.cols)
        weight.run[j] = rn_load_kept_run<T, LANES>(p.weight + T::SIZE * (int64_t)c);
    }
  }
  RN_DEVICE void step(rn_kept_weights &weight, const rn_cuda_backward &p, int, int j, float (&w)[LANES]) {
    rn_keep_packed(weight.run[j]);
    rn_unpack_run(weight.run[j], w);
    RN_UNROLL for (int i = 0; i < LANES; i++) w[i] = p.weight_offset + w[i];
  }
};
/* ------------------------------------------------------------------------------------------------------------------
 * The statistic: xhat = (x * power) * r. */
struct rn_factors {
  float power, r;
};
/* Can power be anything but 1? f16 has no element whose square float32 would not hold. */
RN_DEVICE bool rn_has_power(rn_f16) {
  return false;
}
template <class T> RN_DEVICE bool rn_has_power(T) {
  return true;
}

template <int REACH, class T, int LANES, int LOADS>
RN_DEVICE float rn_sum_of_squares(rn_share &team, const rn_run<T, LANES> (&x)[LOADS], float scale) {
  float lane[LANES] = {0};
  RN_UNROLL for (int j = 0; j < LOADS; j++) {
    float u[LANES];
    rn_unpack_run(x[j], u);
    RN_UNROLL for (int i = 0; i < LANES; i++) {
      u[i] = u[i] * scale;
      lane[i] = fmaf(u[i], u[i], lane[i]);
    }
  }
  return rn_share_tree<REACH, rn_add>(team, rn_fold(lane));
}

/* 1.4, from the greatest magnitude m of the row and, where one is needed, the sum of the scaled squares. */
struct rn_rescue {
  int e;
  float scale; /* 0: no sum is needed, and r is known */
  float r;
};
RN_DEVICE rn_rescue rn_rescue_of(float m, float eps) {
  if (!(m <= FLT_MAX) || m == 0) return {0, 0, rn_is_nan(m) ? m : m > 0 || eps == 0 ? 0.0f : rn_isqrt(eps)};
  const int least = rn_half_down(rn_exponent(eps));
  int e = rn_exponent(m);
  e = e < least ? least : e;
  e = e < -126 ? -126 : e > 127 ? 127 : e;
  return {e, rn_exp2i(-e), 0};
}
RN_DEVICE rn_factors rn_rescued(rn_rescue rescue, float sum, float divisor, float eps) {
  if (rescue.scale == 0) return {1, rescue.r};
  const float v = sum / divisor + (eps * rescue.scale) * rescue.scale;
  const int b = rescue.e > RN_RESCUE_B ? RN_RESCUE_B : rescue.e > 0 ? rescue.e : 0;
  return {rn_exp2i(b - rescue.e), rn_isqrt(v) * rn_exp2i(-b)};
}

RN_DEVICE bool rn_is_ordinary_rstd(float rstd) {
  return rstd >= RN_RSTD_MIN && rstd <= RN_RSTD_MAX;
}
/* Is it so for any row of those who take part together in an exchange? */
template <int REACH> RN_DEVICE bool rn_any_row(bool is) {
  return REACH == RN_SHARE_WARP ? rn_any_in_warp(RN_ALL_LANES, is) : is;
}

/* From the saved rstd where that is one of an ordinary row (0: none is saved), otherwise from x. */
template <int REACH, class T, int LANES, int LOADS>
RN_DEVICE rn_factors rn_statistic(const rn_cuda_backward &p, rn_share &team, const rn_run<T, LANES> (&x)[LOADS],
                                  float saved) {
  rn_factors stat = {1, saved};
  bool known = rn_is_ordinary_rstd(saved);
  if (!rn_any_row<REACH>(!known)) return stat;
  const float v = rn_sum_of_squares<REACH>(team, x, 1.0f) / p.divisor + p.eps;
  if (!known && rn_is_ordinary(v)) known = true, stat.r = rn_isqrt(v);
  if (!rn_any_row<REACH>(!known)) return stat;

  float m = 0;
  RN_UNROLL for (int j = 0; j < LOADS; j++) {
    float u[LANES];
    rn_unpack_run(x[j], u);
    RN_UNROLL for (int i = 0; i < LANES; i++) m = rn_greater::of(m, rn_abs(u[i]));
  }
  const rn_rescue rescue = rn_rescue_of(rn_share_tree<REACH, rn_greater>(team, m), p.eps);
  const float sum = rn_sum_of_squares<REACH>(team, x, rescue.scale);
  return known ? stat : rn_rescued(rescue, sum, p.divisor, p.eps);
}

/* The runs of a row, or of none. ADDS: dresidual_out may be there; -0, which changes no sum, stands for it if not. */
template <bool ADDS, class T, int LANES, int LOADS>
RN_DEVICE void rn_load_row(const rn_cuda_backward &p, int row, bool is, int column, rn_run<T, LANES> (&x)[LOADS],
                           rn_run<T, LANES> (&dy)[LOADS], rn_run<T, LANES> (&incoming)[ADDS ? LOADS : 1]) {
  const char *const of_x = rn_row_at(p, p.x, row), *const of_dy = rn_row_at(p, p.dy, row);
  const char *const of_incoming = ADDS ? rn_row_at(p, p.dresidual_out, row) : nullptr;
  RN_UNROLL for (int j = 0; j < LOADS; j++) {
    const int c = column + j * p.lanes;
    const bool here = is && c < p.cols;
    x[j] = rn_fill_run<T, LANES>(0), dy[j] = rn_fill_run<T, LANES>(is ? p.dy_padding : p.negative_zeros);
    if (here) x[j] = rn_load_run<T, LANES>(of_x + T::SIZE * (int64_t)c);
    if (here) dy[j] = rn_load_run<T, LANES>(of_dy + T::SIZE * (int64_t)c);
  }
  if (ADDS) {
    RN_UNROLL for (int j = 0; j < LOADS; j++) {
      const int c = column + j * p.lanes;
      incoming[ADDS ? j : 0] = rn_fill_run<T, LANES>(p.negative_zeros);
      if (is && c < p.cols && p.dresidual_out.data != nullptr)
        incoming[ADDS ? j : 0] = rn_load_run<T, LANES>(of_incoming + T::SIZE * (int64_t)c);
    }
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * The two passes over the runs of a row: what goes to dweight and the thread's part of the dot; dx. POWER: may the
 * power be anything but 1? */
template <bool POWER> RN_DEVICE float rn_xhat(float x, rn_factors stat) {
  return POWER ? (x * stat.power) * stat.r : x * stat.r;
}

template <bool POWER, bool DWEIGHT, class T, int LANES, int LOADS, class WEIGHTS>
RN_DEVICE float rn_first_pass(const rn_cuda_backward &p, int column, rn_factors stat,
                              const rn_run<T, LANES> (&x)[LOADS], const rn_run<T, LANES> (&dy)[LOADS], WEIGHTS &weight,
                              float (&dweight)[LOADS][LANES]) {
  float lane[LANES] = {0};
  RN_UNROLL for (int j = 0; j < LOADS; j++) {
    float u[LANES], g[LANES], w[LANES];
    rn_unpack_run(x[j], u);
    rn_unpack_run(dy[j], g);
    WEIGHTS::step(weight, p, column, j, w);
    RN_UNROLL for (int i = 0; i < LANES; i++) {
      const float xhat = rn_xhat<POWER>(u[i], stat);
      if (DWEIGHT) dweight[j][i] = fmaf(g[i], xhat, dweight[j][i]);
      lane[i] = fmaf(g[i] * w[i], xhat, lane[i]);
    }
  }
  return rn_fold(lane);
}

template <bool POWER, bool ADDS, class T, int LANES, int LOADS, class WEIGHTS>
RN_DEVICE void rn_second_pass(const rn_cuda_backward &p, int column, rn_factors stat, float c, char *dx, bool store,
                              rn_run<T, LANES> (&x)[LOADS], rn_run<T, LANES> (&dy)[LOADS],
                              rn_run<T, LANES> (&incoming)[ADDS ? LOADS : 1], WEIGHTS &weight) {
  RN_UNROLL for (int j = 0; j < LOADS; j++) {
    const int at = column + j * p.lanes;
    float u[LANES], g[LANES], w[LANES];
    rn_keep_packed(x[j]), rn_keep_packed(dy[j]);
    rn_unpack_run(x[j], u);
    rn_unpack_run(dy[j], g);
    WEIGHTS::step(weight, p, column, j, w);
    RN_UNROLL for (int i = 0; i < LANES; i++) {
      const float k = fmaf(-rn_xhat<POWER>(u[i], stat), c, g[i] * w[i]);
      u[i] = POWER ? (stat.r * k) * stat.power : stat.r * k;
    }
    if (ADDS) {
      rn_unpack_run(incoming[ADDS ? j : 0], g);
      RN_UNROLL for (int i = 0; i < LANES; i++) u[i] = u[i] + g[i];
    }
    if (store && at < p.cols) rn_store_run(dx + T::SIZE * (int64_t)at, rn_pack_run<T, LANES>(u));
  }
}

/* Both, for the row whose runs are at hand. Every thread of the team takes part, with a row or without. */
template <int REACH, bool DWEIGHT, bool ADDS, class T, int LANES, int LOADS, class WEIGHTS,
          class MEANWHILE = rn_nothing>
RN_DEVICE void rn_finish_row(const rn_cuda_backward &p, rn_share &team, int column, rn_factors stat, char *dx,
                             bool store, rn_run<T, LANES> (&x)[LOADS], rn_run<T, LANES> (&dy)[LOADS],
                             rn_run<T, LANES> (&incoming)[ADDS ? LOADS : 1], WEIGHTS &weight,
                             float (&dweight)[LOADS][LANES], const MEANWHILE &meanwhile = MEANWHILE()) {
  const bool power = rn_has_power(T()) && stat.power != 1;
  float dot;
  if (power)
    dot = rn_first_pass<true, DWEIGHT>(p, column, stat, x, dy, weight, dweight);
  else
    dot = rn_first_pass<false, DWEIGHT>(p, column, stat, x, dy, weight, dweight);
  const float c = rn_share_tree<REACH, rn_add>(team, dot, meanwhile) / p.divisor;
  if (power)
    rn_second_pass<true, ADDS>(p, column, stat, c, dx, store, x, dy, incoming, weight);
  else
    rn_second_pass<false, ADDS>(p, column, stat, c, dx, store, x, dy, incoming, weight);
}

#endif /* RN_CUDA_BACKWARD_ROW_H */
