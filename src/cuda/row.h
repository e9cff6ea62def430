/* row.h - what the fast kernels share: element types, packed runs, how a row lies on its threads, the sum in the
 * canonical order, the statistic with its rescue. docs/numerics.md 1.2 to 1.4.
 *
 * A row of n elements has W(n) lanes and is taken in steps of W columns. A thread holds LANES neighbouring lanes: eight
 * where memory speed counts, in runs of 16 bytes (one run of eight two-byte elements, two runs of four four-byte ones,
 * so that a warp's accesses stay dense); two where a few rows have to be done quickly, because then a thread has a
 * quarter of the work. W / LANES threads make the team of a row: part of a warp, a block, or the blocks of a cluster,
 * each of which has a contiguous part of the lanes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_ROW_H
#define RN_CUDA_ROW_H

#include "device.h"
#include "params.h"

#include "../numeric.h"

struct rn_bf16 {
  enum { SIZE = 2, DTYPE = RMSNORM_DTYPE_BF16 };
};
struct rn_f16 {
  enum { SIZE = 2, DTYPE = RMSNORM_DTYPE_F16 };
};
struct rn_f32 {
  enum { SIZE = 4, DTYPE = RMSNORM_DTYPE_F32 };
};

RN_DEVICE void rn_widen_word(rn_bf16, uint32_t w, float *v) {
  v[0] = rn_from_bits(w << 16);
  v[1] = rn_from_bits(w & 0xffff0000u);
}
RN_DEVICE void rn_widen_word(rn_f16, uint32_t w, float *v) {
  v[0] = rn_unpack_f16((uint16_t)w);
  v[1] = rn_unpack_f16((uint16_t)(w >> 16));
}
RN_DEVICE void rn_widen_word(rn_f32, uint32_t w, float *v) {
  v[0] = rn_from_bits(w);
}
RN_DEVICE uint32_t rn_narrow_word(rn_bf16, const float *v) {
  return rn_pack_bf16(v[0], v[1]);
}
RN_DEVICE uint32_t rn_narrow_word(rn_f16, const float *v) {
  return rn_pack_f16(v[0], v[1]);
}
RN_DEVICE uint32_t rn_narrow_word(rn_f32, const float *v) {
  return rn_bits(v[0]);
}

/* N words of elements. */
template <class T, int N> RN_DEVICE void rn_unpack(T, const rn_words<N> &q, float *v) {
  RN_UNROLL for (int i = 0; i < N; i++) rn_widen_word(T(), q.w[i], v + i * (4 / T::SIZE));
}
template <class T, int N> RN_DEVICE rn_words<N> rn_pack(T, const float *v) {
  rn_words<N> q;
  RN_UNROLL for (int i = 0; i < N; i++) q.w[i] = rn_narrow_word(T(), v + i * (4 / T::SIZE));
  return q;
}
template <int N> RN_DEVICE void rn_keep_packed(rn_words<N> &q) {
  RN_UNROLL for (int i = 0; i < N; i++) rn_keep_packed(q.w[i]);
}
template <int N> RN_DEVICE rn_words<N> rn_zero_words() {
  rn_words<N> q;
  RN_UNROLL for (int i = 0; i < N; i++) q.w[i] = 0;
  return q;
}

/* A value rounded to the type, where that is asked for. */
RN_DEVICE float rn_rounded(rn_f32, bool, float v) {
  return v;
}
template <class T> RN_DEVICE float rn_rounded(T, bool asked, float v) {
  float both[2] = {v, v};
  if (asked) rn_widen_word(T(), rn_narrow_word(T(), both), both);
  return both[0];
}

/* ------------------------------------------------------------------------------------------------------------------
 * How a row lies on its team. */
enum rn_span { RN_SPAN_WARP, RN_SPAN_BLOCK, RN_SPAN_CLUSTER };

/* The lanes of a thread of elements T. RUN neighbours are an access of WORDS words; THREADS: of a team within a warp.
 */
template <class T_, int LANES_, rn_span SPAN_, int THREADS_> struct rn_layout {
  typedef T_ T;
  enum {
    LANES = LANES_,
    RUN = LANES_ * T_::SIZE > 16 ? 16 / T_::SIZE : LANES_,
    RUNS = LANES_ / RUN,
    WORDS = RUN * T_::SIZE / 4,
    THREADS = THREADS_
  };
  static constexpr rn_span SPAN = SPAN_;
  typedef rn_words<WORDS> words;
};

enum { RN_TEAM_SLOTS = 2 * 64 + 2 * 16 }; /* floats of shared memory: warps of a block, blocks of a cluster, twice */

struct rn_team {
  int thread;  /* of this block's part of the team */
  int threads; /* this block's part */
  int rank;    /* of this block in the cluster */
  int blocks;  /* of the cluster */
  int round;   /* exchanges so far: the halves of the slots take turns, so one barrier an exchange is enough */
  float *slots;
  rn_transfer *arrived; /* two: what the blocks of the cluster send */
};

template <class L> RN_DEVICE rn_team rn_team_of(float *slots, rn_transfer *arrived) {
  rn_team team;
  team.slots = slots, team.arrived = arrived, team.round = 0, team.rank = 0, team.blocks = 1;
  if (L::SPAN == RN_SPAN_WARP) {
    team.thread = rn_thread() & (L::THREADS - 1), team.threads = L::THREADS;
  } else {
    team.thread = rn_thread(), team.threads = rn_threads_of_block();
  }
  if (L::SPAN == RN_SPAN_CLUSTER) {
    team.rank = rn_cluster_rank(), team.blocks = rn_cluster_blocks();
    if (rn_thread() == 0) rn_transfer_init(&arrived[0], 1), rn_transfer_init(&arrived[1], 1);
    rn_cluster_arrive_relaxed();
  }
  return team;
}
/* Before the first exchange, and before the block leaves: the other blocks have started. */
template <class L> RN_DEVICE void rn_meet(const rn_team &) {
  if (L::SPAN == RN_SPAN_CLUSTER) rn_cluster_wait();
}

/* Lanes of the row, W(n). */
template <class L> RN_DEVICE int rn_lanes_of_team(const rn_team &team) {
  return L::SPAN == RN_SPAN_WARP    ? L::LANES * L::THREADS
         : L::SPAN == RN_SPAN_BLOCK ? L::LANES * team.threads
                                    : L::LANES * team.threads * team.blocks;
}
/* Column of this thread's run `g` in the first step. */
template <class L> RN_DEVICE int rn_first_column(const rn_team &team, int g) {
  const int threads = L::SPAN == RN_SPAN_WARP ? (int)L::THREADS : team.threads;
  return (L::SPAN == RN_SPAN_CLUSTER ? team.rank * (L::LANES * threads) : 0) + (g * threads + team.thread) * L::RUN;
}

/* What is done with two neighbours. */
struct rn_add {
  RN_DEVICE float of(float a, float b) { return a + b; }
};
/* The greater magnitude as bits: NaN above infinity above numbers. */
struct rn_greater {
  RN_DEVICE float of(float a, float b) { return rn_bits(a) > rn_bits(b) ? a : b; }
};

/* One value for the whole row from each thread's RUNS values, neighbours first. Every thread gets it. TOGETHER: all
 * teams of the warp are here; else this team alone, which costs more, because the hardware must be told who that is. */
template <class L, class OP, bool TOGETHER> RN_DEVICE float rn_team_tree(rn_team &team, float (&d)[L::RUNS]) {
  const int within = L::SPAN == RN_SPAN_WARP ? (int)L::THREADS : 32;
  const uint32_t lanes = TOGETHER || within == 32
                             ? RN_ALL_LANES
                             : ((1u << (within & 31)) - 1) << ((rn_thread() & 31) - (team.thread & 31));
  RN_UNROLL for (int m = 1; m < within; m *= 2) RN_UNROLL for (int g = 0; g < L::RUNS; g++) d[g] =
      OP::of(d[g], rn_from_lane_xor(lanes, d[g], m));
  if (L::SPAN == RN_SPAN_WARP) return L::RUNS == 2 ? OP::of(d[0], d[L::RUNS - 1]) : d[0];

  const int lane = rn_thread() & 31, warp = rn_thread() >> 5, warps = team.threads >> 5;
  const int turn = team.round & 1, parity = team.round >> 1 & 1;
  float *const of_warps = team.slots + turn * 64, *const of_blocks = team.slots + 2 * 64 + turn * 16;
  team.round++;
  if (lane == 0) RN_UNROLL for (int g = 0; g < L::RUNS; g++) of_warps[g * warps + warp] = d[g];
  rn_barrier();
  float v;
  if (L::RUNS == 2) { /* first the pairs, so that at most 32 are left */
    const int at = 2 * lane & (2 * warps - 1);
    v = OP::of(of_warps[at], of_warps[at + 1]);
  } else {
    v = of_warps[lane & (warps - 1)];
  }
  for (int m = 1; m < warps; m *= 2) v = OP::of(v, rn_from_lane_xor(RN_ALL_LANES, v, m));
  if (L::SPAN != RN_SPAN_CLUSTER) return v;

  if (warp == 0) {
    if (lane == 0) rn_transfer_expect(&team.arrived[turn], 4 * (uint32_t)team.blocks);
    if (lane < team.blocks) rn_cluster_send(of_blocks + team.rank, lane, v, &team.arrived[turn]);
  }
  rn_cluster_receive(&team.arrived[turn], (uint32_t)parity);
  v = of_blocks[lane & (team.blocks - 1)];
  for (int m = 1; m < team.blocks; m *= 2) v = OP::of(v, rn_from_lane_xor(RN_ALL_LANES, v, m));
  return v;
}

/* A thread's lane sums, as one value a run. */
template <class L> RN_DEVICE void rn_fold_lanes(float (&lane)[L::LANES], float (&d)[L::RUNS]) {
  RN_UNROLL for (int m = 1; m < L::RUN; m *= 2) RN_UNROLL for (int i = 0; i < L::LANES; i += 2 * m) lane[i] =
      lane[i] + lane[i + m];
  RN_UNROLL for (int g = 0; g < L::RUNS; g++) d[g] = lane[g * L::RUN];
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
template <class L, class SOURCE>
RN_DEVICE rn_row_stat rn_rescued_stat(rn_team &team, const SOURCE &source, float divisor, float eps, bool round_rstd) {
  rn_row_stat stat;
  float u[L::RUN], d[L::RUNS];
  RN_UNROLL for (int g = 0; g < L::RUNS; g++) {
    d[g] = 0;
    RN_NO_UNROLL for (int c = rn_first_column<L>(team, g); c < source.cols; c += rn_lanes_of_team<L>(team)) {
      SOURCE::run(source, c, u);
      RN_UNROLL for (int k = 0; k < L::RUN; k++) d[g] = rn_greater::of(d[g], rn_abs(u[k]));
    }
  }
  const float m = rn_team_tree<L, rn_greater, false>(team, d);

  stat.power = 1;
  if (!(m <= FLT_MAX) || m == 0) {
    stat.r = rn_is_nan(m) ? m : m > 0 || eps == 0 ? 0.0f : rn_isqrt(eps);
    stat.r = stat.rstd = rn_rounded(typename L::T(), round_rstd, stat.r);
    return stat;
  }
  int e = rn_exponent(m), least = rn_half_down(rn_exponent(eps));
  e = e < least ? least : e;
  e = e < -126 ? -126 : e > 127 ? 127 : e;
  const float scale = rn_exp2i(-e);
  float lane[L::LANES];
  RN_UNROLL for (int k = 0; k < L::LANES; k++) lane[k] = 0;
  RN_UNROLL for (int g = 0; g < L::RUNS; g++)
      RN_NO_UNROLL for (int c = rn_first_column<L>(team, g); c < source.cols; c += rn_lanes_of_team<L>(team)) {
    SOURCE::run(source, c, u);
    RN_UNROLL for (int k = 0; k < L::RUN; k++) {
      u[k] = u[k] * scale;
      lane[g * L::RUN + k] = fmaf(u[k], u[k], lane[g * L::RUN + k]);
    }
  }
  rn_fold_lanes<L>(lane, d);
  const float v = rn_team_tree<L, rn_add, false>(team, d) / divisor + (eps * scale) * scale;
  const int b = e > RN_RESCUE_B ? RN_RESCUE_B : e > 0 ? e : 0;
  const float r = rn_isqrt(v) * rn_exp2i(-b);
  stat.power = rn_exp2i(b - e);
  stat.r = rn_rounded(typename L::T(), round_rstd, r);
  stat.rstd = rn_rounded(typename L::T(), round_rstd, r * stat.power);
  return stat;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Where a row lies. */
/* Of a power of two. */
RN_DEVICE int rn_log2(uint32_t v) {
  return rn_exponent((float)v);
}
struct rn_row_place {
  uint32_t token, head, group;
};
/* row / by, where magic = 2^64 / by rounded up (0 for by = 1). Lemire, Kaser, Kurz, "Faster remainder by direct
 * computation", 2019: exact for 32-bit numbers. */
RN_DEVICE uint32_t rn_divided(uint32_t row, uint64_t magic) {
  return magic != 0 ? (uint32_t)rn_high_product(magic, row) : row;
}
/* How far a place is from the first row; most tensors have neither heads nor groups left (simple). */
RN_DEVICE int64_t rn_offset(const rn_cuda_view &view, rn_row_place at, bool simple) {
  const int64_t offset = at.token * view.row_bytes;
  return simple ? offset : offset + at.head * view.head_bytes + at.group * view.group_bytes;
}

/* How many of the rows there are; `most` is what the count in device memory can be at most, rows = most * factor. */
RN_DEVICE int64_t rn_live_rows(int64_t rows, const int64_t *live, int64_t most, int64_t factor) {
  if (live == nullptr) return rows;
  const int64_t given = *live;
  return given <= 0 ? 0 : given >= most ? rows : given * factor;
}

#endif /* RN_CUDA_ROW_H */
