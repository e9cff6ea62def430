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
  int round; /* exchanges so far: the halves of the slots take turns, so one barrier an exchange is enough */
  float *slots;
  rn_transfer *arrived; /* two: what the blocks of a cluster send */
};

/* With RN_SHARE_CLUSTER the blocks meet (rn_cluster_wait) before the first exchange. What a block is sent it also waits
 * for, so it can leave after its last exchange. */
template <int REACH> RN_DEVICE rn_share rn_share_of(int team_threads, float *slots, rn_transfer *arrived) {
  rn_share team;
  team.threads = team_threads, team.number = rn_thread() / team_threads;
  team.thread = rn_thread() - team.number * team_threads;
  team.rank = REACH == RN_SHARE_CLUSTER ? rn_cluster_rank() : 0,
  team.blocks = REACH == RN_SHARE_CLUSTER ? rn_cluster_blocks() : 1;
  team.round = 0, team.slots = slots + (REACH == RN_SHARE_WARP ? 0 : team.number * RN_SHARE_SLOTS);
  team.arrived = arrived;
  if (REACH == RN_SHARE_CLUSTER && rn_thread() == 0) rn_transfer_init(arrived, 1), rn_transfer_init(arrived + 1, 1);
  return team;
}

/* Two neighbours: their sum, or the greater magnitude. */
RN_DEVICE float rn_met(float a, float b, bool greatest) {
  return greatest ? rn_greater::of(a, b) : a + b;
}
/* `count` neighbours, a power of two up to 32: lane i of the warp has the one at i % count. */
RN_DEVICE float rn_tree_of(float d, int count, bool greatest) {
  for (int m = 1; m < count; m *= 2) d = rn_met(d, rn_from_lane_xor(RN_ALL_LANES, d, m), greatest);
  return d;
}

/* One value for the row from one of each of its threads, neighbours first, in three steps with one barrier of the team
 * between the first and the second; much can be done between the second and the third. */
template <int REACH> RN_DEVICE void rn_share_put(rn_share &team, float d, bool greatest) {
  RN_UNROLL for (int m = 1; m < 32; m *= 2) d = rn_met(d, rn_from_lane_xor(RN_ALL_LANES, d, m), greatest);
  if ((rn_thread() & 31) == 0) team.slots[(team.round & 1) * 32 + (team.thread >> 5)] = d;
}
template <int REACH> RN_DEVICE float rn_share_of_block(const rn_share &team, bool greatest) {
  const int warps = team.threads >> 5;
  return rn_tree_of(team.slots[(team.round & 1) * 32 + (rn_thread() & 31 & (warps - 1))], warps, greatest);
}
template <int REACH> RN_DEVICE void rn_share_send(rn_share &team, bool greatest) {
  if (REACH != RN_SHARE_CLUSTER || team.blocks == 1 || team.thread >= 32) return;
  const int turn = team.round & 1;
  const float d = rn_share_of_block<REACH>(team, greatest);
  if (team.thread == 0) rn_transfer_expect(team.arrived + turn, 4 * (uint32_t)team.blocks);
  if (team.thread < team.blocks)
    rn_cluster_send(team.slots + 2 * 32 + turn * 16 + team.rank, team.thread, d, team.arrived + turn);
}
template <int REACH> RN_DEVICE float rn_share_receive(rn_share &team, bool greatest) {
  float d;
  if (REACH == RN_SHARE_CLUSTER && team.blocks > 1) {
    rn_cluster_receive(team.arrived + (team.round & 1), (uint32_t)(team.round >> 1 & 1));
    d = rn_tree_of(team.slots[2 * 32 + (team.round & 1) * 16 + (rn_thread() & (team.blocks - 1))], team.blocks,
                   greatest);
  } else {
    d = rn_share_of_block<REACH>(team, greatest);
  }
  team.round++;
  return d;
}
/* All at once. Every thread of the row gets it. */
template <int REACH> RN_DEVICE float rn_share_tree(rn_share &team, float d, bool greatest = false) {
  if constexpr (REACH == RN_SHARE_WARP) {
    RN_UNROLL for (int m = 1; m < 32; m *= 2) if (m < team.threads) d =
        rn_met(d, rn_from_lane_xor(RN_ALL_LANES, d, m), greatest);
    return d;
  } else {
    rn_share_put<REACH>(team, d, greatest);
    if (REACH == RN_SHARE_BLOCK)
      rn_team_barrier(1 + team.number, team.threads);
    else
      rn_barrier();
    rn_share_send<REACH>(team, greatest);
    return rn_share_receive<REACH>(team, greatest);
  }
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
    if (LOADS > 1) rn_keep_packed(weight.run[j]);
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

/* v / divisor: the same bits, and faster, where the divisor is a power of two. */
RN_DEVICE float rn_mean(const rn_cuda_backward &p, float v) {
  return p.inverse_divisor != 0 ? v * p.inverse_divisor : v / p.divisor;
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

/* From the saved rstd where that is one of an ordinary row (0: none is saved), otherwise from x: the sum of squares; if
 * float32 does not hold it, the greatest magnitude and the sum of the scaled squares. */
template <int REACH, class T, int LANES, int LOADS>
RN_DEVICE rn_factors rn_statistic(const rn_cuda_backward &p, rn_share &team, rn_run<T, LANES> (&x)[LOADS],
                                  float saved) {
  rn_factors stat = {1, saved};
  rn_rescue rescue = {0, 1, 0};
  bool known = rn_is_ordinary_rstd(saved);
  RN_NO_UNROLL for (int step = 0; rn_any_row<REACH>(!known); step++) {
    float lane[LANES] = {0}, m = 0;
    RN_UNROLL for (int j = 0; j < LOADS; j++) {
      float u[LANES];
      rn_keep_packed(x[j]);
      rn_unpack_run(x[j], u);
      RN_UNROLL for (int i = 0; i < LANES; i++) {
        m = rn_greater::of(m, rn_abs(u[i]));
        u[i] = u[i] * rescue.scale;
        lane[i] = fmaf(u[i], u[i], lane[i]);
      }
    }
    const float all = rn_share_tree<REACH>(team, step == 1 ? m : rn_fold(lane), step == 1);
    if (step == 0) {
      const float v = rn_mean(p, all) + p.eps;
      if (!known && rn_is_ordinary(v)) known = true, stat.r = rn_isqrt(v);
    } else if (step == 1) {
      rescue = rn_rescue_of(all, p.eps);
    } else if (!known) {
      known = true, stat = rn_rescued(rescue, all, p.divisor, p.eps);
    }
    if (step == 2) break;
  }
  return stat;
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
 * The two passes over the runs of a row: what goes to dweight and the thread's part of the dot; dx. Multiplying by a
 * power of 1 changes nothing, so there is one form for all rows. */
template <class T> RN_DEVICE float rn_xhat(T, float x, rn_factors stat) {
  return rn_has_power(T()) ? (x * stat.power) * stat.r : x * stat.r;
}

template <bool DWEIGHT, class T, int LANES>
RN_DEVICE void rn_first_run(rn_factors stat, const rn_run<T, LANES> &x, const rn_run<T, LANES> &dy,
                            const float (&w)[LANES], float (&dweight)[LANES], float (&lane)[LANES]) {
  float u[LANES], g[LANES];
  rn_unpack_run(x, u);
  rn_unpack_run(dy, g);
  RN_UNROLL for (int i = 0; i < LANES; i++) {
    const float xhat = rn_xhat(T(), u[i], stat);
    if (DWEIGHT) dweight[i] = fmaf(g[i], xhat, dweight[i]);
    lane[i] = fmaf(g[i] * w[i], xhat, lane[i]);
  }
}
template <bool ADDS, class T, int LANES>
RN_DEVICE void rn_second_run(rn_factors stat, float c, char *dx, const rn_run<T, LANES> &x, const rn_run<T, LANES> &dy,
                             const rn_run<T, LANES> &incoming, const float (&w)[LANES], bool store) {
  float u[LANES], g[LANES];
  rn_unpack_run(x, u);
  rn_unpack_run(dy, g);
  RN_UNROLL for (int i = 0; i < LANES; i++) {
    const float k = fmaf(-rn_xhat(T(), u[i], stat), c, g[i] * w[i]);
    u[i] = rn_has_power(T()) ? (stat.r * k) * stat.power : stat.r * k;
  }
  if (ADDS) {
    rn_unpack_run(incoming, g);
    RN_UNROLL for (int i = 0; i < LANES; i++) u[i] = u[i] + g[i];
  }
  if (store) rn_store_run(dx, rn_pack_run<T, LANES>(u));
}

/* Both, for the row whose runs are at hand. Every thread of the team takes part, with a row or without. */
template <int REACH, bool DWEIGHT, bool ADDS, class T, int LANES, int LOADS, class WEIGHTS>
RN_DEVICE void rn_finish_row(const rn_cuda_backward &p, rn_share &team, int column, rn_factors stat, char *dx,
                             bool store, rn_run<T, LANES> (&x)[LOADS], rn_run<T, LANES> (&dy)[LOADS],
                             rn_run<T, LANES> (&incoming)[ADDS ? LOADS : 1], WEIGHTS &weight,
                             float (&dweight)[LOADS][LANES]) {
  float lane[LANES] = {0}, w[LANES];
  RN_UNROLL for (int j = 0; j < LOADS; j++) {
    WEIGHTS::step(weight, p, column, j, w);
    rn_first_run<DWEIGHT>(stat, x[j], dy[j], w, dweight[j], lane);
  }
  const float c = rn_mean(p, rn_share_tree<REACH>(team, rn_fold(lane)));
  RN_UNROLL for (int j = 0; j < LOADS; j++) {
    const int at = column + j * p.lanes;
    if (LOADS > 1) rn_keep_packed(x[j]), rn_keep_packed(dy[j]);
    WEIGHTS::step(weight, p, column, j, w);
    rn_second_run<ADDS>(stat, c, dx + T::SIZE * (int64_t)at, x[j], dy[j], incoming[ADDS ? j : 0], w,
                        store && at < p.cols);
  }
}

#endif /* RN_CUDA_BACKWARD_ROW_H */
