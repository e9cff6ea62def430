/* forward_few.h - y, the stored sum and rstd where a launch has few rows: one row a team, and the launch lasts as long
 * as its longest thread.
 *
 * So a thread does little: no heads, no groups, no counted rows, no loop; two to eight lanes, as many as keep
 * the blocks small; the statistic the short way (rstd.h); the values of the warps are added in registers, not by
 * further shuffles; whatever is seldom lies apart, because code that is only jumped over has to be fetched all the
 * same. One row on an H200, an empty kernel 0.73 us: docs/performance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_FORWARD_FEW_H
#define RN_CUDA_FORWARD_FEW_H

#include "forward_row.h"
#include "rstd.h"

/* N floats of shared memory, neighbours first. Slots without a warp or block hold +0, which changes no sum of squares.
 */
template <int N> RN_DEVICE float rn_sum_of_slots(const float *slots) {
  float v[N];
  RN_UNROLL for (int i = 0; i < N; i += 4) {
    const rn_words<4> q = *(const rn_words<4> *)(slots + i);
    RN_UNROLL for (int k = 0; k < 4; k++) v[i + k] = rn_from_bits(q.w[k]);
  }
  RN_UNROLL for (int m = 1; m < N; m *= 2) RN_UNROLL for (int i = 0; i < N; i += 2 * m) v[i] = v[i] + v[i + m];
  return v[0];
}

/* rn_team_tree of row.h for the first exchange of a row. */
template <class L> RN_DEVICE float rn_few_tree(rn_team &team, float d) {
  RN_UNROLL for (int m = 1; m < 32; m *= 2) d = d + rn_from_lane_xor(RN_ALL_LANES, d, m);
  if (L::SPAN == RN_SPAN_WARP) return d;

  const int warps = team.threads >> 5;
  float *const of_warps = team.slots, *const of_blocks = team.slots + 2 * 64; /* as rn_team_tree has them */
  team.round++;
  if ((team.thread & 31) == 0) of_warps[team.thread >> 5] = d;
  if (team.thread < 16 && team.thread >= warps) of_warps[team.thread] = 0;
  if (L::SPAN == RN_SPAN_CLUSTER && team.thread < 16 && team.thread >= team.blocks) of_blocks[team.thread] = 0;
  rn_barrier();
  const float v = warps <= 4 ? rn_sum_of_slots<4>(of_warps) : rn_sum_of_slots<16>(of_warps);
  if (L::SPAN != RN_SPAN_CLUSTER) return v;

  rn_meet<L>(team);
  if (team.thread == 0) rn_transfer_expect(&team.arrived[0], 4 * (uint32_t)team.blocks);
  if (team.thread < team.blocks) rn_cluster_send(of_blocks + team.rank, team.thread, v, &team.arrived[0]);
  rn_cluster_receive(&team.arrived[0], 0);
  return rn_sum_of_slots<16>(of_blocks);
}

/* A row for which the short way is none, or with weights of another type: from memory again. All of the team come here
 * together. */
template <class L, rn_sum SUM> RN_SELDOM void rn_few_apart(const rn_cuda_forward *p, uint32_t row, float sum) {
  RN_SHARED(float, slots, L::SPAN == RN_SPAN_WARP ? 1 : RN_TEAM_SLOTS);
  RN_SHARED(rn_transfer, arrived, 2);
  rn_team team = rn_team_of<L>(slots, arrived);
  rn_meet<L>(team);
  const float v = sum / p->divisor + p->eps;
  const float known = rn_is_ordinary(v) ? rn_rounded(typename L::T(), p->round_rstd != 0, rn_isqrt(v)) : 0.0f;
  rn_forward_rescued<L, SUM>(*p, team, row, known);
}

template <class L, rn_sum SUM, int LOADS> RN_DEVICE void rn_few_rows(const rn_cuda_forward &p) {
  typedef typename L::T T;
  typedef typename L::words words;
  static_assert(L::RUNS == 1, "a step is one access");
  RN_SHARED(float, slots, L::SPAN == RN_SPAN_WARP ? 1 : RN_TEAM_SLOTS);
  RN_SHARED(rn_transfer, arrived, 2);
  rn_team team = rn_team_of<L>(slots, arrived);
  rn_wait_for_previous();
  rn_let_next_start();
  uint32_t row = (uint32_t)rn_block();
  if (L::SPAN == RN_SPAN_WARP) row = row * ((uint32_t)rn_threads_of_block() >> 5) + ((uint32_t)rn_thread() >> 5);
  if (L::SPAN == RN_SPAN_CLUSTER) row >>= rn_log2((uint32_t)team.blocks);
  if (L::SPAN == RN_SPAN_WARP && row >= (uint32_t)p.rows) return;

  const int first = rn_first_column<L>(team, 0), lanes = rn_lanes_of_team<L>(team), step = T::SIZE * lanes;
  const int64_t at = T::SIZE * (int64_t)first;
  /* From 256 columns on a row has four whole steps. */
  const auto here = [&](int j) { return (L::SPAN != RN_SPAN_WARP && j < 4) || first + j * lanes < p.cols; };
#define RN_STEPS RN_UNROLL for (int j = 0; j < LOADS; j++)

  words q[LOADS], other[LOADS], w[LOADS];
  const char *x = p.x.data + row * p.x.row_bytes + at, *weight = p.weight + at;
  rn_keep_address(x);
  RN_STEPS {
    q[j] = rn_zero_words<L::WORDS>();
    if (here(j)) q[j] = rn_stream_load<L::WORDS>(x + j * step);
  }
  if (SUM != rn_sum_none) {
    const char *residual = p.residual.data + row * p.residual.row_bytes + at;
    rn_keep_address(residual);
    RN_STEPS {
      other[j] = rn_zero_words<L::WORDS>();
      if (here(j)) other[j] = rn_stream_load<L::WORDS>(residual + j * step);
    }
  }
  rn_keep_address(weight);
  const bool differs = rn_weight_differs(T(), p);
  RN_STEPS {
    w[j] = rn_zero_words<L::WORDS>();
    if (p.weight != nullptr && !differs && here(j)) w[j] = rn_kept_load<L::WORDS>(weight + j * step);
  }

  float lane[L::LANES], d[1], u[L::LANES], v[L::LANES];
  RN_UNROLL for (int i = 0; i < L::LANES; i++) lane[i] = 0;
  RN_STEPS {
    rn_unpack(T(), q[j], u);
    if (SUM != rn_sum_none) {
      rn_unpack(T(), other[j], v);
      RN_UNROLL for (int i = 0; i < L::LANES; i++) u[i] = u[i] + v[i];
      q[j] = rn_pack_run<L>(u);
      rn_unpack(T(), q[j], u);
    }
    RN_UNROLL for (int i = 0; i < L::LANES; i++) lane[i] = fmaf(u[i], u[i], lane[i]);
  }
  if (SUM != rn_sum_none && p.residual_out.data != nullptr) {
    char *sum = p.residual_out.data + row * p.residual_out.row_bytes + at;
    rn_keep_address(sum);
    RN_STEPS if (here(j)) rn_stream_store(sum + j * step, q[j]);
  }
  rn_fold_lanes<L>(lane, d);

  const float sum = rn_few_tree<L>(team, d[0]), mean = rn_quotient(sum, p.divisor, p.inverse), square = mean + p.eps;
  if (rn_takes_short_way(mean, square) && !differs) {
    const float rstd = rn_rounded(T(), p.round_rstd != 0, rn_isqrt_from(square, rn_root_near(square)));
    char *y = p.y.data + row * p.y.row_bytes + at;
    rn_keep_address(y);
    RN_STEPS {
      rn_unpack(T(), q[j], u);
      rn_unpack(T(), w[j], v);
      RN_UNROLL for (int i = 0; i < L::LANES; i++) u[i] = u[i] * rstd;
      if (p.round_xhat) rn_round_run<L>(u);
      RN_UNROLL for (int i = 0; i < L::LANES; i++) u[i] = u[i] * (p.weight_offset + v[i]);
      q[j] = rn_pack_run<L>(u);
      if (here(j)) rn_stream_store(y + j * step, q[j]);
    }
    if (p.rstd_out != nullptr && team.thread == 0 && team.rank == 0) p.rstd_out[row] = rstd;
    return;
  }
  rn_few_apart<L, SUM>(&p, row, sum);
#undef RN_STEPS
}

#define RN_FEW_KERNEL(type, sum, lanes, span, loads)                                                                   \
  RN_KERNEL_CAPPED(RN_FEW_NAME(type, sum, lanes, span, loads), rn_cuda_forward, RN_FEW_THREADS(lanes, span, loads),    \
                   RN_FEW_REGISTERS(lanes, loads)) {                                                                   \
    rn_few_rows<rn_layout<rn_##type, lanes, RN_SPAN_##span, 32>, rn_sum_##sum, loads>(p);                              \
  }

#endif /* RN_CUDA_FORWARD_FEW_H */
