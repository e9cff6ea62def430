/* row.h - what the fast kernels share: how a row lies on its threads, packed vectors, the sum in the canonical order,
 * the statistic with its rescue. docs/numerics.md 1.2 to 1.4.
 *
 * A row of n elements has W(n) lanes and is taken in `loads` steps of W columns. A thread holds eight lanes: one run of
 * eight neighbours where elements have two bytes, two runs of four where they have four, so that every access is 16
 * bytes wide and neighbours in a warp read neighbouring addresses. W / 8 threads make the team of a row: part of a
 * warp, a block, or the blocks of a cluster, each of which has a contiguous part of the lanes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_ROW_H
#define RN_CUDA_ROW_H

#include "device.h"
#include "params.h"

#include "../numeric.h"

/* Element types: RUN neighbours fit an access, RUNS of them are eight lanes. */
struct rn_bf16 {
  enum { SIZE = 2, RUN = 8, RUNS = 1, DTYPE = RMSNORM_DTYPE_BF16 };
};
struct rn_f16 {
  enum { SIZE = 2, RUN = 8, RUNS = 1, DTYPE = RMSNORM_DTYPE_F16 };
};
struct rn_f32 {
  enum { SIZE = 4, RUN = 4, RUNS = 2, DTYPE = RMSNORM_DTYPE_F32 };
};

RN_DEVICE void rn_unpack(rn_bf16, rn_words4 q, float *v) {
  RN_UNROLL for (int i = 0; i < 4; i++) {
    v[2 * i] = rn_from_bits(q.w[i] << 16);
    v[2 * i + 1] = rn_from_bits(q.w[i] & 0xffff0000u);
  }
}
RN_DEVICE void rn_unpack(rn_f16, rn_words4 q, float *v) {
  RN_UNROLL for (int i = 0; i < 4; i++) {
    v[2 * i] = rn_unpack_f16((uint16_t)q.w[i]);
    v[2 * i + 1] = rn_unpack_f16((uint16_t)(q.w[i] >> 16));
  }
}
RN_DEVICE void rn_unpack(rn_f32, rn_words4 q, float *v) {
  RN_UNROLL for (int i = 0; i < 4; i++) v[i] = rn_from_bits(q.w[i]);
}
RN_DEVICE rn_words4 rn_pack(rn_bf16, const float *v) {
  return {{rn_pack_bf16(v[0], v[1]), rn_pack_bf16(v[2], v[3]), rn_pack_bf16(v[4], v[5]), rn_pack_bf16(v[6], v[7])}};
}
RN_DEVICE rn_words4 rn_pack(rn_f16, const float *v) {
  return {{rn_pack_f16(v[0], v[1]), rn_pack_f16(v[2], v[3]), rn_pack_f16(v[4], v[5]), rn_pack_f16(v[6], v[7])}};
}
RN_DEVICE rn_words4 rn_pack(rn_f32, const float *v) {
  return {{rn_bits(v[0]), rn_bits(v[1]), rn_bits(v[2]), rn_bits(v[3])}};
}
/* A value rounded to the type, where that is asked for. */
RN_DEVICE float rn_rounded(rn_f32, bool, float v) {
  return v;
}
template <class T> RN_DEVICE float rn_rounded(T, bool asked, float v) {
  float run[T::RUN] = {v};
  if (!asked) return v;
  rn_unpack(T(), rn_pack(T(), run), run);
  return run[0];
}
RN_DEVICE rn_words4 rn_zero_words() {
  return {{0, 0, 0, 0}};
}
RN_DEVICE void rn_keep_packed(rn_words4 &q) {
  RN_UNROLL for (int i = 0; i < 4; i++) rn_keep_packed(q.w[i]);
}

/* ------------------------------------------------------------------------------------------------------------------
 * The team of a row. */
enum { RN_TEAM_SLOTS = 2 * 32 + 2 * 16 }; /* floats of shared memory: warps of a block, blocks of a cluster, twice */

struct rn_team {
  int thread;     /* of this block's part of the team */
  int threads;    /* this block's part */
  int rank;       /* of this block in the cluster */
  int blocks;     /* of the cluster */
  uint32_t lanes; /* of the warp that work on this row */
  int turn;       /* 0, 1: which half of the slots is used next; so one barrier an exchange is enough */
  bool met;       /* the blocks of the cluster are known to have started */
  float *slots;
};

/* TEAM: threads a row, or 0 for the whole block or cluster. */
template <int TEAM> RN_DEVICE rn_team rn_team_of(float *slots) {
  rn_team team;
  team.slots = slots, team.turn = 0, team.met = false;
  if (TEAM > 0) {
    const int lane = rn_thread() & 31;
    team.thread = lane % (TEAM > 0 ? TEAM : 1), team.threads = TEAM, team.rank = 0, team.blocks = 1;
    team.lanes = TEAM >= 32 ? RN_ALL_LANES : ((1u << (TEAM & 31)) - 1) << (lane - team.thread);
  } else {
    team.thread = rn_thread(), team.threads = rn_threads_of_block();
    team.rank = rn_cluster_rank(), team.blocks = rn_cluster_blocks();
    team.lanes = RN_ALL_LANES;
    if (team.blocks > 1) rn_cluster_arrive();
  }
  return team;
}

/* What is done with two neighbours. */
struct rn_add {
  RN_DEVICE float of(float a, float b) { return a + b; }
};
/* The greater magnitude as bits: NaN above infinity above numbers. */
struct rn_greater {
  RN_DEVICE float of(float a, float b) { return rn_bits(a) > rn_bits(b) ? a : b; }
};

/* One value for the whole row from each thread's RUNS values, neighbours first. Every thread gets it. */
template <int TEAM, int RUNS, class OP> RN_DEVICE float rn_team_tree(rn_team &team, float (&d)[RUNS]) {
  const int within = TEAM > 0 ? TEAM : 32;
  RN_UNROLL for (int m = 1; m < within; m *= 2) RN_UNROLL for (int g = 0; g < RUNS; g++) d[g] =
      OP::of(d[g], rn_from_lane_xor(team.lanes, d[g], m));
  if (TEAM > 0) return RUNS == 2 ? OP::of(d[0], d[RUNS - 1]) : d[0];

  const int lane = rn_thread() & 31, warp = rn_thread() >> 5, warps = team.threads >> 5, values = warps * RUNS;
  float *const of_warps = team.slots + team.turn * 32, *const of_blocks = team.slots + 2 * 32 + team.turn * 16;
  team.turn ^= 1;
  if (lane == 0) RN_UNROLL for (int g = 0; g < RUNS; g++) of_warps[g * warps + warp] = d[g];
  rn_barrier();
  float v = of_warps[lane & (values - 1)];
  for (int m = 1; m < values; m *= 2) v = OP::of(v, rn_from_lane_xor(RN_ALL_LANES, v, m));
  if (team.blocks == 1) return v;

  if (!team.met) rn_cluster_wait(), team.met = true;
  if (warp == 0 && lane < team.blocks) rn_cluster_store(of_blocks + team.rank, lane, v);
  rn_cluster_arrive(), rn_cluster_wait();
  v = of_blocks[lane & (team.blocks - 1)];
  for (int m = 1; m < team.blocks; m *= 2) v = OP::of(v, rn_from_lane_xor(RN_ALL_LANES, v, m));
  return v;
}

/* Lanes of the row, W(n). */
template <int TEAM> RN_DEVICE int rn_lanes_of_team(const rn_team &team) {
  return TEAM > 0 ? 8 * TEAM : 8 * team.threads * team.blocks;
}
/* Column of lane run `g` of the first step. */
template <class T, int TEAM> RN_DEVICE int rn_first_column(const rn_team &team, int g) {
  const int threads = TEAM > 0 ? TEAM : team.threads;
  return (TEAM > 0 ? 0 : team.rank * (8 * threads)) + (g * threads + team.thread) * T::RUN;
}

/* A thread's eight lane sums, as one value a run. */
template <class T> RN_DEVICE void rn_fold_lanes(const float (&lane)[8], float (&d)[T::RUNS]) {
  RN_UNROLL for (int g = 0; g < T::RUNS; g++) {
    const float *a = lane + g * T::RUN;
    d[g] = (a[0] + a[1]) + (a[2] + a[3]);
    if (T::RUN == 8) d[g] = d[g] + ((a[T::RUN - 4] + a[T::RUN - 3]) + (a[T::RUN - 2] + a[T::RUN - 1]));
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * The statistic: xhat = (u * power) * r. */
struct rn_row_stat {
  float power, r, rstd;
};

/* 1 / sqrt(v) for an ordinary row's v: one step of Newton's method takes back the error of root and division. */
RN_DEVICE float rn_isqrt(float v) {
  const float r = 1.0f / sqrtf(v);
  if (!(v >= RN_V_MIN && v <= FLT_MAX)) return r;
  const float high = v * r, low = fmaf(v, r, -high);
  const float e = fmaf(-low, r, fmaf(-high, r, 1.0f));
  return fmaf(0.5f * r, e, r);
}

RN_DEVICE bool rn_is_ordinary(float v) {
  return v >= RN_V_MIN && v <= FLT_MAX;
}

/* 1.4: the statistic of a row whose sum of squares float32 could not hold. SOURCE::run(source, c, u) gives u of the run
 * of columns from c on. A thread asks for the columns that it holds anyway, so nothing that another one writes is read.
 */
template <class T, int TEAM, class SOURCE>
RN_DEVICE rn_row_stat rn_rescued_stat(rn_team &team, const SOURCE &source, float divisor, float eps, bool round_rstd) {
  rn_row_stat stat;
  float u[T::RUN], d[T::RUNS];
  RN_UNROLL for (int g = 0; g < T::RUNS; g++) {
    d[g] = 0;
    RN_NO_UNROLL for (int c = rn_first_column<T, TEAM>(team, g); c < source.cols; c += rn_lanes_of_team<TEAM>(team)) {
      SOURCE::run(source, c, u);
      RN_UNROLL for (int k = 0; k < T::RUN; k++) d[g] = rn_greater::of(d[g], rn_abs(u[k]));
    }
  }
  const float m = rn_team_tree<TEAM, T::RUNS, rn_greater>(team, d);

  stat.power = 1;
  if (!(m <= FLT_MAX) || m == 0) {
    stat.r = rn_is_nan(m) ? m : m > 0 || eps == 0 ? 0.0f : rn_isqrt(eps);
    stat.r = stat.rstd = rn_rounded(T(), round_rstd, stat.r);
    return stat;
  }
  int e = rn_exponent(m), least = rn_half_down(rn_exponent(eps));
  e = e < least ? least : e;
  e = e < -126 ? -126 : e > 127 ? 127 : e;
  const float scale = rn_exp2i(-e);
  float lane[8];
  RN_UNROLL for (int k = 0; k < 8; k++) lane[k] = 0;
  RN_UNROLL for (int g = 0; g < T::RUNS; g++)
      RN_NO_UNROLL for (int c = rn_first_column<T, TEAM>(team, g); c < source.cols; c += rn_lanes_of_team<TEAM>(team)) {
    SOURCE::run(source, c, u);
    RN_UNROLL for (int k = 0; k < T::RUN; k++) {
      u[k] = u[k] * scale;
      lane[g * T::RUN + k] = fmaf(u[k], u[k], lane[g * T::RUN + k]);
    }
  }
  rn_fold_lanes<T>(lane, d);
  const float v = rn_team_tree<TEAM, T::RUNS, rn_add>(team, d) / divisor + (eps * scale) * scale;
  const int b = e > RN_RESCUE_B ? RN_RESCUE_B : e > 0 ? e : 0;
  const float r = rn_isqrt(v) * rn_exp2i(-b);
  stat.power = rn_exp2i(b - e);
  stat.r = rn_rounded(T(), round_rstd, r);
  stat.rstd = rn_rounded(T(), round_rstd, r * stat.power);
  return stat;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Where a row lies. */
struct rn_row_place {
  int64_t token;
  int32_t head, group;
};
RN_DEVICE rn_row_place rn_place_of(int64_t row, int32_t heads, int32_t groups) {
  rn_row_place at;
  at.token = row, at.head = at.group = 0;
  if (groups != 1) at.group = (int32_t)(at.token % groups), at.token /= groups;
  if (heads != 1) at.head = (int32_t)(at.token % heads), at.token /= heads;
  return at;
}
RN_DEVICE char *rn_at(const rn_cuda_view &view, rn_row_place at) {
  return view.data + at.token * view.row_bytes + at.head * view.head_bytes + at.group * view.group_bytes;
}

/* How many of the rows there are. */
RN_DEVICE int64_t rn_live_rows(int64_t rows, const int64_t *live, int64_t factor) {
  if (live == nullptr) return rows;
  const int64_t given = *live;
  return given <= 0 ? 0 : given >= rows / factor ? rows : given * factor;
}

#endif /* RN_CUDA_ROW_H */
