/* forward_row.h - what the kernels of forward.cu and forward_ring.h share: where a row lies, its weights, and what is
 * done with a row that has to be rescued.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_FORWARD_ROW_H
#define RN_CUDA_FORWARD_ROW_H

#include "kernels.h"
#include "row.h"

/* What is normalised: x; x + residual as residual_out stores it; x + residual as float32. */
enum rn_sum { rn_sum_none, rn_sum_stored, rn_sum_exact };

RN_DEVICE bool rn_weight_differs(rn_f32, const rn_cuda_forward &) {
  return false;
}
template <class T> RN_DEVICE bool rn_weight_differs(T, const rn_cuda_forward &p) {
  return p.weight_is_f32 != 0;
}

/* The weights of one run of columns, with the offset added. */
template <class L> RN_DEVICE void rn_load_weight(const rn_cuda_forward &p, const char *weight, int c, float *w) {
  typedef typename L::T T;
  if (rn_weight_differs(T(), p)) {
    RN_UNROLL for (int i = 0; i < L::RUN; i += 4)
        rn_unpack(rn_f32(), rn_kept_load < L::RUN < 4 ? L::RUN : 4 > (weight + 4 * (c + i)), w + i);
  } else {
    rn_unpack(T(), rn_kept_load<L::WORDS>(weight + T::SIZE * c), w);
  }
  RN_UNROLL for (int i = 0; i < L::RUN; i++) w[i] = p.weight_offset + w[i];
}

template <class L> RN_DEVICE void rn_round_run(float *v) {
  if (L::T::SIZE == 2) rn_unpack(typename L::T(), rn_pack<typename L::T, L::WORDS>(typename L::T(), v), v);
}
template <class L> RN_DEVICE typename L::words rn_pack_run(const float *v) {
  return rn_pack<typename L::T, L::WORDS>(typename L::T(), v);
}

RN_DEVICE rn_row_place rn_place_of(const rn_cuda_forward &p, uint32_t row, bool simple) {
  rn_row_place at;
  at.token = row, at.head = at.group = 0;
  if (simple) return at;
  const uint32_t head = rn_divided(row, p.groups_magic); /* of all heads of all tokens */
  at.group = row - head * (uint32_t)p.groups;
  at.token = rn_divided(head, p.heads_magic);
  at.head = head - at.token * (uint32_t)p.heads;
  return at;
}
RN_DEVICE bool rn_is_simple(const rn_cuda_forward &p) {
  return (p.heads_magic | p.groups_magic) == 0;
}

/* ------------------------------------------------------------------------------------------------------------------
 * A rescued row, from its inputs again, a run at a time. The stored sum is there where x or residual may be gone. */
template <class L, rn_sum SUM> struct rn_forward_source {
  const char *x, *residual;
  int32_t cols;
  RN_DEVICE void sum(const rn_forward_source &s, int c, float *u) {
    typedef typename L::T T;
    rn_unpack(T(), rn_stream_load<L::WORDS>(s.x + T::SIZE * c), u);
    if (SUM == rn_sum_none || s.residual == nullptr) return;
    float add[L::RUN];
    rn_unpack(T(), rn_stream_load<L::WORDS>(s.residual + T::SIZE * c), add);
    RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] + add[i];
  }
  RN_DEVICE void run(const rn_forward_source &s, int c, float *u) {
    sum(s, c, u);
    if (SUM == rn_sum_stored) rn_round_run<L>(u);
  }
};

/* known: rstd, already rounded, where it is known after all; else 0. */
template <class L, rn_sum SUM>
RN_DEVICE void rn_forward_rescued(const rn_cuda_forward &p, rn_team &team, uint32_t row, float known = 0) {
  typedef typename L::T T;
  const rn_row_place at = rn_place_of(p, row, rn_is_simple(p));
  const char *weight = p.weight + at.head * p.weight_head_bytes + at.group * p.weight_group_bytes;
  char *const sum_out =
      p.residual_out.data != nullptr ? p.residual_out.data + rn_offset(p.residual_out, at, false) : nullptr;
  char *const y = p.y.data + rn_offset(p.y, at, false);
  const bool stored = SUM == rn_sum_stored && sum_out != nullptr;
  rn_forward_source<L, SUM> source;
  source.x = stored ? sum_out : p.x.data + rn_offset(p.x, at, false);
  source.residual = SUM != rn_sum_none && !stored ? p.residual.data + rn_offset(p.residual, at, false) : nullptr;
  source.cols = p.cols;
  rn_row_stat stat;
  stat.power = 1, stat.r = stat.rstd = known;
  if (known == 0) stat = rn_rescued_stat<L>(team, source, p.divisor, p.eps, p.round_rstd != 0);

  if (p.rstd_out != nullptr && team.thread == 0 && team.rank == 0) p.rstd_out[row] = stat.rstd;
  RN_UNROLL for (int g = 0; g < L::RUNS; g++)
      RN_NO_UNROLL for (int c = rn_first_column<L>(team, g); c < p.cols; c += rn_lanes_of_team<L>(team)) {
    float u[L::RUN], w[L::RUN];
    source.sum(source, c, u);
    if (SUM == rn_sum_exact && sum_out != nullptr) rn_stream_store(sum_out + T::SIZE * c, rn_pack_run<L>(u));
    if (SUM == rn_sum_stored) rn_round_run<L>(u);
    RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = (u[i] * stat.power) * stat.r;
    if (p.round_xhat) rn_round_run<L>(u);
    if (p.weight != nullptr) {
      rn_load_weight<L>(p, weight, c, w);
      RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] * w[i];
    }
    rn_stream_store(y + T::SIZE * c, rn_pack_run<L>(u));
  }
}

#endif /* RN_CUDA_FORWARD_ROW_H */
