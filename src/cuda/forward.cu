/* forward.cu - y, the stored sum and rstd of rows that stay in registers: x, residual, y and residual_out of one type,
 * 16-byte accesses, one pass over memory.
 *
 * Moves cols * (bytes of x + bytes of y) a row, and the same again with a residual that is written back; nothing is
 * read twice but the weight, which stays in the caches. All loads of a row are under way before the first is used.
 * docs/numerics.md 1.
 *
 * SPDX-License-Identifier: Apache-2.0 */
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
template <class T> RN_DEVICE void rn_load_weight(const rn_cuda_forward &p, const char *weight, int column, float *w) {
  if (rn_weight_differs(T(), p)) {
    RN_UNROLL for (int i = 0; i < T::RUN; i += 4)
        rn_unpack(rn_f32(), rn_kept_load16(weight + 4 * (int64_t)(column + i)), w + i);
  } else {
    rn_unpack(T(), rn_kept_load16(weight + T::SIZE * (int64_t)column), w);
  }
  RN_UNROLL for (int i = 0; i < T::RUN; i++) w[i] = p.weight_offset + w[i];
}

RN_DEVICE void rn_round_run(rn_f32, float *) {}
template <class T> RN_DEVICE void rn_round_run(T, float *v) {
  rn_unpack(T(), rn_pack(T(), v), v);
}

/* A rescued row, from its inputs again, a run at a time. The stored sum is there where x or residual may be gone. */
template <class T, rn_sum SUM> struct rn_forward_source {
  const char *x, *residual;
  int32_t cols;
  RN_DEVICE void sum(const rn_forward_source &s, int c, float *u) {
    rn_unpack(T(), rn_stream_load16(s.x + T::SIZE * (int64_t)c), u);
    if (SUM == rn_sum_none || s.residual == nullptr) return;
    float add[T::RUN];
    rn_unpack(T(), rn_stream_load16(s.residual + T::SIZE * (int64_t)c), add);
    RN_UNROLL for (int i = 0; i < T::RUN; i++) u[i] = u[i] + add[i];
  }
  RN_DEVICE void run(const rn_forward_source &s, int c, float *u) {
    sum(s, c, u);
    if (SUM == rn_sum_stored) rn_round_run(T(), u);
  }
};

template <class T, rn_sum SUM, int TEAM>
RN_DEVICE void rn_forward_rescued(const rn_cuda_forward &p, rn_team &team, int64_t row) {
  const rn_row_place at = rn_place_of(row, p.heads, p.groups);
  const char *weight = p.weight + at.head * p.weight_head_bytes + at.group * p.weight_group_bytes;
  char *const sum_out = p.residual_out.data != nullptr ? rn_at(p.residual_out, at) : nullptr;
  char *const y = rn_at(p.y, at);
  const bool stored = SUM == rn_sum_stored && sum_out != nullptr;
  rn_forward_source<T, SUM> source;
  source.x = stored ? sum_out : rn_at(p.x, at);
  source.residual = SUM != rn_sum_none && !stored ? rn_at(p.residual, at) : nullptr;
  source.cols = p.cols;
  const rn_row_stat stat = rn_rescued_stat<T, TEAM>(team, source, p.divisor, p.eps, p.round_rstd != 0);

  if (p.rstd_out != nullptr && team.thread == 0 && team.rank == 0) p.rstd_out[row] = stat.rstd;
  RN_UNROLL for (int g = 0; g < T::RUNS; g++)
      RN_NO_UNROLL for (int c = rn_first_column<T, TEAM>(team, g); c < p.cols; c += rn_lanes_of_team<TEAM>(team)) {
    float u[T::RUN], w[T::RUN];
    source.sum(source, c, u);
    if (SUM == rn_sum_exact && sum_out != nullptr) rn_stream_store16(sum_out + T::SIZE * (int64_t)c, rn_pack(T(), u));
    if (SUM == rn_sum_stored) rn_round_run(T(), u);
    RN_UNROLL for (int i = 0; i < T::RUN; i++) u[i] = (u[i] * stat.power) * stat.r;
    if (p.round_xhat) rn_round_run(T(), u);
    if (p.weight != nullptr) {
      rn_load_weight<T>(p, weight, c, w);
      RN_UNROLL for (int i = 0; i < T::RUN; i++) u[i] = u[i] * w[i];
    }
    rn_stream_store16(y + T::SIZE * (int64_t)c, rn_pack(T(), u));
  }
}

/* One row of the team, at most LOADS * W columns. */
template <class T, rn_sum SUM, int TEAM, int LOADS>
RN_DEVICE void rn_forward_row(const rn_cuda_forward &p, rn_team &team, int64_t row) {
  const rn_row_place at = rn_place_of(row, p.heads, p.groups);
  const int lanes = rn_lanes_of_team<TEAM>(team);
  const char *x = rn_at(p.x, at);
  const char *weight = p.weight + at.head * p.weight_head_bytes + at.group * p.weight_group_bytes;
  rn_words4 q[LOADS][T::RUNS], other[SUM == rn_sum_none ? 1 : LOADS][T::RUNS];

  RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int g = 0; g < T::RUNS; g++) {
    const int c = rn_first_column<T, TEAM>(team, g) + j * lanes;
    q[j][g] = rn_zero_words();
    if (c < p.cols) q[j][g] = rn_stream_load16(x + T::SIZE * (int64_t)c);
  }
  if (SUM != rn_sum_none) {
    const char *residual = rn_at(p.residual, at);
    RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int g = 0; g < T::RUNS; g++) {
      const int c = rn_first_column<T, TEAM>(team, g) + j * lanes;
      other[j][g] = rn_zero_words();
      if (c < p.cols) other[j][g] = rn_stream_load16(residual + T::SIZE * (int64_t)c);
    }
  }
  if (p.weight != nullptr) {
    RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int g = 0; g < T::RUNS; g++) {
      const int c = rn_first_column<T, TEAM>(team, g) + j * lanes;
      if (c < p.cols) rn_prefetch(weight + (rn_weight_differs(T(), p) ? 4 : T::SIZE) * (int64_t)c);
    }
  }

  float lane[8], d[T::RUNS];
  RN_UNROLL for (int i = 0; i < 8; i++) lane[i] = 0;
  char *sum_out = p.residual_out.data != nullptr ? rn_at(p.residual_out, at) : nullptr;
  RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int g = 0; g < T::RUNS; g++) {
    float u[T::RUN];
    rn_unpack(T(), q[j][g], u);
    if (SUM != rn_sum_none) {
      float add[T::RUN];
      rn_unpack(T(), other[j][g], add);
      RN_UNROLL for (int i = 0; i < T::RUN; i++) u[i] = u[i] + add[i];
      if (SUM == rn_sum_stored) {
        const int c = rn_first_column<T, TEAM>(team, g) + j * lanes;
        q[j][g] = rn_pack(T(), u);
        rn_unpack(T(), q[j][g], u);
        if (sum_out != nullptr && c < p.cols) rn_stream_store16(sum_out + T::SIZE * (int64_t)c, q[j][g]);
      }
    }
    RN_UNROLL for (int i = 0; i < T::RUN; i++) lane[g * T::RUN + i] = fmaf(u[i], u[i], lane[g * T::RUN + i]);
  }
  rn_fold_lanes<T>(lane, d);
  const float v = rn_team_tree<TEAM, T::RUNS, rn_add>(team, d) / p.divisor + p.eps;
  if (!rn_is_ordinary(v)) {
    rn_forward_rescued<T, SUM, TEAM>(p, team, row);
    return;
  }
  float rstd = rn_isqrt(v);
  rstd = rn_rounded(T(), p.round_rstd != 0, rstd);
  if (p.rstd_out != nullptr && team.thread == 0 && team.rank == 0) p.rstd_out[row] = rstd;

  char *y = rn_at(p.y, at);
  RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int g = 0; g < T::RUNS; g++) {
    const int c = rn_first_column<T, TEAM>(team, g) + j * lanes;
    if (c >= p.cols) continue;
    float u[T::RUN], w[T::RUN];
    rn_keep_packed(q[j][g]);
    rn_unpack(T(), q[j][g], u);
    if (SUM == rn_sum_exact) {
      rn_keep_packed(other[j][g]);
      rn_unpack(T(), other[j][g], w);
      RN_UNROLL for (int i = 0; i < T::RUN; i++) u[i] = u[i] + w[i];
      if (sum_out != nullptr) rn_stream_store16(sum_out + T::SIZE * (int64_t)c, rn_pack(T(), u));
    }
    RN_UNROLL for (int i = 0; i < T::RUN; i++) u[i] = u[i] * rstd;
    if (p.round_xhat) rn_round_run(T(), u);
    if (p.weight != nullptr) {
      rn_load_weight<T>(p, weight, c, w);
      RN_UNROLL for (int i = 0; i < T::RUN; i++) u[i] = u[i] * w[i];
    }
    rn_stream_store16(y + T::SIZE * (int64_t)c, rn_pack(T(), u));
  }
}

template <class T, rn_sum SUM, int TEAM, int LOADS> RN_DEVICE void rn_forward_rows(const rn_cuda_forward &p) {
  RN_SHARED(float, slots, TEAM > 0 ? 1 : RN_TEAM_SLOTS);
  rn_team team = rn_team_of<TEAM>(slots);
  const int64_t per_block = TEAM > 0 ? rn_threads_of_block() / (TEAM > 0 ? TEAM : 1) : 1;
  const int64_t step = rn_blocks() / team.blocks * per_block;
  rn_wait_for_previous();
  rn_let_next_start();
  const int64_t rows = rn_live_rows(p.rows, p.live_rows, p.live_factor);
  RN_NO_UNROLL for (int64_t row =
                        rn_block() / team.blocks * per_block + (TEAM > 0 ? rn_thread() / (TEAM > 0 ? TEAM : 1) : 0);
                    row < rows; row += step) rn_forward_row<T, SUM, TEAM, LOADS>(p, team, row);
  /* A block that has had no row has not met the others yet: none may leave before all have started. */
  if (team.blocks > 1 && !team.met) rn_cluster_wait();
}

#define RN_FORWARD_KERNEL(type, sum, team, loads)                                                                      \
  RN_KERNEL_CAPPED(RN_FORWARD_NAME(type, sum, team, loads), rn_cuda_forward,                                           \
                   RN_FORWARD_THREADS(team, RN_FORWARD_HELD(type, sum, loads)),                                        \
                   RN_FORWARD_REGISTERS(RN_FORWARD_HELD(type, sum, loads))) {                                          \
    rn_forward_rows<rn_##type, rn_sum_##sum, team, loads>(p);                                                          \
  }
RN_FORWARD_INSTANCES(RN_FORWARD_KERNEL)
