/* forward.cu - y, the stored sum and rstd of rows that stay in registers: x, residual, y and residual_out of one type,
 * accesses as wide as alignment and work allow, one pass over memory.
 *
 * Moves cols * (bytes of x + bytes of y) a row, and the same again with a residual that is written back; nothing is
 * read twice but the weight, which stays in the caches. All loads of a row are under way before the first is used.
 * docs/numerics.md 1.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "forward_few.h"
#include "forward_ring.h"

/* ------------------------------------------------------------------------------------------------------------------
 * The sums of ROWS rows that a team within a warp has at the same time. Where a thread of the tree has several rows, it
 * hands half of them to its neighbour for the other half of the neighbour's, so in the end it has the sum of one row:
 * row_of(thread). All threads then make a statistic, each that of its row. */
template <class L, int ROWS> RN_DEVICE float rn_team_trees(rn_team &team, float (&d)[ROWS][L::RUNS]) {
  if constexpr (ROWS == 1) {
    return rn_team_tree<L, rn_add, true>(team, d[0]);
  } else {
    int rows = ROWS;
    RN_UNROLL for (int m = 1; m < L::THREADS; m *= 2) {
      rows = rows > 1 ? rows / 2 : 0;
      const bool upper = (team.thread & m) != 0;
      RN_UNROLL for (int g = 0; g < L::RUNS; g++) {
        if (rows == 0) d[0][g] = d[0][g] + rn_from_lane_xor(RN_ALL_LANES, d[0][g], m);
        RN_UNROLL for (int i = 0; i < ROWS / 2; i++) {
          if (i >= rows) continue;
          const float kept = upper ? d[i + rows][g] : d[i][g], given = upper ? d[i][g] : d[i + rows][g];
          d[i][g] = kept + rn_from_lane_xor(RN_ALL_LANES, given, m);
        }
      }
    }
    return L::RUNS == 2 ? d[0][0] + d[0][L::RUNS - 1] : d[0][0];
  }
}
/* The lowest thread that ends up with row i. */
template <int ROWS> RN_DEVICE int rn_thread_of_row(int i) {
  return ROWS == 4 ? (i >> 1) | (i & 1) << 1 : i;
}

/* ROWS rows of the team: row, row + stride, ... below `rows`; each at most LOADS * W columns. Within a warp all teams
 * come here together, those that have no row left too. */
template <class L, rn_sum SUM, int LOADS, int ROWS>
RN_DEVICE void rn_forward_some(const rn_cuda_forward &p, rn_team &team, uint32_t row, uint32_t stride, uint32_t rows) {
  typedef typename L::T T;
  typedef typename L::words words;
  /* The weight waits in registers for the sum, where there is room beside the rows. */
  constexpr bool WAITS = LOADS * ROWS * L::LANES * T::SIZE * (SUM == rn_sum_none ? 1 : 2) <= 128;
  const bool waits = WAITS && p.weight != nullptr && !rn_weight_differs(T(), p), simple = rn_is_simple(p);
  const int lanes = rn_lanes_of_team<L>(team), cols = p.cols;
  words q[ROWS][LOADS][L::RUNS], other[ROWS][SUM == rn_sum_none ? 1 : LOADS][L::RUNS], waiting[LOADS][L::RUNS];
  rn_row_place at[ROWS];
  bool here[ROWS];

#define RN_RUNS_OF_ROW RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int g = 0; g < L::RUNS; g++)
#define RN_COLUMN      (rn_first_column<L>(team, g) + j * lanes)

  RN_UNROLL for (int k = 0; k < ROWS; k++) {
    here[k] = L::SPAN != RN_SPAN_WARP || row + k * stride < rows;
    at[k] = rn_place_of(p, here[k] ? row + k * stride : 0, simple);
    const char *const x = p.x.data + rn_offset(p.x, at[k], simple);
    RN_RUNS_OF_ROW {
      q[k][j][g] = rn_zero_words<L::WORDS>();
      if (here[k] && RN_COLUMN < cols) q[k][j][g] = rn_stream_load<L::WORDS>(x + T::SIZE * RN_COLUMN);
    }
    if (SUM != rn_sum_none) {
      const char *const residual = p.residual.data + rn_offset(p.residual, at[k], simple);
      RN_RUNS_OF_ROW {
        other[k][j][g] = rn_zero_words<L::WORDS>();
        if (here[k] && RN_COLUMN < cols) other[k][j][g] = rn_stream_load<L::WORDS>(residual + T::SIZE * RN_COLUMN);
      }
    }
  }
  /* With several rows at once the weight is read once for all; heads and groups with their own then take one row. */
  const char *weight = p.weight;
  if (!simple) weight += at[0].head * p.weight_head_bytes + at[0].group * p.weight_group_bytes;
  if (waits) RN_RUNS_OF_ROW if (RN_COLUMN < cols) waiting[j][g] = rn_kept_load<L::WORDS>(weight + T::SIZE * RN_COLUMN);

  float d[ROWS][L::RUNS];
  RN_UNROLL for (int k = 0; k < ROWS; k++) {
    float lane[L::LANES];
    RN_UNROLL for (int i = 0; i < L::LANES; i++) lane[i] = 0;
    RN_RUNS_OF_ROW {
      float u[L::RUN];
      rn_unpack(T(), q[k][j][g], u);
      if (SUM != rn_sum_none) {
        float add[L::RUN];
        rn_unpack(T(), other[k][j][g], add);
        RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] + add[i];
        if (SUM == rn_sum_stored) {
          q[k][j][g] = rn_pack_run<L>(u);
          rn_unpack(T(), q[k][j][g], u);
          if (p.residual_out.data != nullptr && here[k] && RN_COLUMN < cols)
            rn_stream_store(p.residual_out.data + rn_offset(p.residual_out, at[k], simple) + T::SIZE * RN_COLUMN,
                            q[k][j][g]);
        }
      }
      RN_UNROLL for (int i = 0; i < L::RUN; i++) lane[g * L::RUN + i] = fmaf(u[i], u[i], lane[g * L::RUN + i]);
    }
    rn_fold_lanes<L>(lane, d[k]);
  }

  /* rstd; -1 stands for a row that has to be rescued. */
  const float v = rn_team_trees<L, ROWS>(team, d) / p.divisor + p.eps;
  const float own = rn_is_ordinary(v) ? rn_rounded(T(), p.round_rstd != 0, rn_isqrt(v)) : -1.0f;
  RN_UNROLL for (int k = 0; k < ROWS; k++) {
    float rstd = own;
    if (ROWS > 1) rstd = rn_from_lane(RN_ALL_LANES, own, (rn_thread() & 31) - team.thread + rn_thread_of_row<ROWS>(k));
    if (L::SPAN == RN_SPAN_WARP && !here[k]) continue;
    if (rstd < 0) {
      rn_forward_rescued<L, SUM>(p, team, row + k * stride);
      continue;
    }
    if (p.rstd_out != nullptr && team.thread == 0 && team.rank == 0) p.rstd_out[row + k * stride] = rstd;

    char *const y = p.y.data + rn_offset(p.y, at[k], simple);
    RN_RUNS_OF_ROW {
      if (RN_COLUMN >= cols) continue;
      float u[L::RUN], w[L::RUN];
      rn_keep_packed(q[k][j][g]);
      rn_unpack(T(), q[k][j][g], u);
      if (SUM == rn_sum_exact) {
        rn_keep_packed(other[k][j][g]);
        rn_unpack(T(), other[k][j][g], w);
        RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] + w[i];
        if (p.residual_out.data != nullptr)
          rn_stream_store(p.residual_out.data + rn_offset(p.residual_out, at[k], simple) + T::SIZE * RN_COLUMN,
                          rn_pack_run<L>(u));
      }
      RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] * rstd;
      if (p.round_xhat) rn_round_run<L>(u);
      if (waits) {
        rn_unpack(T(), waiting[j][g], w);
        RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] * (p.weight_offset + w[i]);
      } else if (weight != nullptr) {
        rn_load_weight<L>(p, weight, RN_COLUMN, w);
        RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] * w[i];
      }
      rn_stream_store(y + T::SIZE * RN_COLUMN, rn_pack_run<L>(u));
    }
  }
#undef RN_COLUMN
#undef RN_RUNS_OF_ROW
}

template <class L, rn_sum SUM, int LOADS, int ROWS> RN_DEVICE void rn_forward_rows(const rn_cuda_forward &p) {
  RN_SHARED(float, slots, L::SPAN == RN_SPAN_WARP ? 1 : RN_TEAM_SLOTS);
  RN_SHARED(rn_transfer, arrived, 2);
  rn_team team = rn_team_of<L>(slots, arrived);
  rn_wait_for_previous();
  rn_let_next_start();
  uint32_t rows = (uint32_t)p.rows;
  if (p.live_rows != nullptr) rows = (uint32_t)rn_live_rows(p.rows, p.live_rows, p.live_most, p.live_factor);
  rn_meet<L>(team);
  if constexpr (L::SPAN == RN_SPAN_WARP) {
    /* A warp has 32 / THREADS rows side by side, ROWS times, and goes on while the first of them is there. */
    const uint32_t beside = 32 / L::THREADS, warps = (uint32_t)rn_threads_of_block() / 32;
    const uint32_t step = (uint32_t)rn_blocks() * warps * (beside * ROWS);
    uint32_t row = ((uint32_t)rn_block() * warps + (uint32_t)rn_thread() / 32) * (beside * ROWS);
    RN_NO_UNROLL for (; row < rows; row += step)
        rn_forward_some<L, SUM, LOADS, ROWS>(p, team, row + (uint32_t)(rn_thread() & 31) / L::THREADS, beside, rows);
  } else {
    const uint32_t blocks = (uint32_t)team.blocks; /* of a cluster, a power of two */
    const int shift = L::SPAN == RN_SPAN_CLUSTER ? rn_log2(blocks) : 0;
    RN_NO_UNROLL for (uint32_t row = (uint32_t)rn_block() >> shift; row < rows; row += (uint32_t)rn_blocks() >> shift)
        rn_forward_some<L, SUM, LOADS, ROWS>(p, team, row, 0, rows);
  }
}

#define RN_FORWARD_KERNEL(type, sum, lanes, span, threads, loads, rows)                                                \
  RN_KERNEL_CAPPED(RN_FORWARD_NAME(type, sum, lanes, span, threads, loads), rn_cuda_forward,                           \
                   RN_FORWARD_THREADS(type, sum, lanes, span, loads),                                                  \
                   RN_FORWARD_REGISTERS(span, RN_FORWARD_HELD(type, sum, lanes, loads, rows))) {                       \
    rn_forward_rows<rn_layout<rn_##type, lanes, RN_SPAN_##span, threads>, rn_sum_##sum, loads, rows>(p);               \
  }
RN_FORWARD_INSTANCES(RN_FORWARD_KERNEL)
RN_FEW_INSTANCES(RN_FEW_KERNEL)

#define RN_RING_KERNEL(type, sum, span, loads, stages, threads, registers)                                             \
  RN_KERNEL_CAPPED(RN_RING_NAME(type, sum, span, loads, threads), rn_cuda_forward, threads, registers) {               \
    rn_ring_rows<rn_layout<rn_##type, 8, RN_SPAN_##span, 0>, rn_sum_##sum, loads, stages>(p);                          \
  }
RN_RING_INSTANCES(RN_RING_KERNEL)
