/* forward_ring.h - forward of long rows, many of them: each block of a cluster has a part of a row, and the next rows
 * of the cluster are on their way into shared memory while it works on one.
 *
 * With whole rows in registers (forward.cu) a multiprocessor that waits for the sum of a row has nothing to load; from
 * 32768 columns on there are too few blocks beside it to hide that. Bulk copies need no registers, so STAGES rows can
 * be under way. Clusters take `rows_of_cluster` neighbouring rows and leave: multiprocessors get unequal shares of a
 * busy memory, and the hardware deals the next cluster to whoever is done.
 *
 * Moves what forward.cu moves. docs/numerics.md 1.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_FORWARD_RING_H
#define RN_CUDA_FORWARD_RING_H

#include "forward_row.h"

/* The stages of this block, and the transfers that fill them. */
template <class L> struct rn_ring {
  char *stages;
  rn_transfer *full;
  uint32_t stage_bytes, half; /* of one stage; where residual begins in it */
};

/* Starts to load this block's part of a row: one thread does. */
template <class L, rn_sum SUM, int LOADS, int STAGES>
RN_DEVICE void rn_ring_fill(const rn_cuda_forward &p, const rn_team &team, const rn_ring<L> &ring, uint32_t row,
                            int stage) {
  typedef typename L::T T;
  const rn_row_place at = rn_place_of(p, row, rn_is_simple(p));
  const int part = L::LANES * team.threads, lanes = part * team.blocks, first = team.rank * part;
  const char *const x = p.x.data + rn_offset(p.x, at, false);
  const char *const residual = SUM == rn_sum_none ? nullptr : p.residual.data + rn_offset(p.residual, at, false);
  char *const to = ring.stages + stage * ring.stage_bytes;
  uint32_t bytes[LOADS], all = 0;
  RN_UNROLL for (int j = 0; j < LOADS; j++) {
    const int left = p.cols - (first + j * lanes);
    bytes[j] = left <= 0 ? 0 : (uint32_t)(left < part ? left : part) * T::SIZE;
    all += bytes[j];
  }
  rn_transfer_expect(&ring.full[stage], SUM == rn_sum_none ? all : 2 * all);
  RN_UNROLL for (int j = 0; j < LOADS; j++) {
    if (bytes[j] == 0) continue;
    const int64_t from = (int64_t)(first + j * lanes) * T::SIZE;
    rn_transfer_start(to + j * part * T::SIZE, x + from, bytes[j], &ring.full[stage]);
    if (SUM != rn_sum_none)
      rn_transfer_start(to + ring.half + j * part * T::SIZE, residual + from, bytes[j], &ring.full[stage]);
  }
}

template <class L, rn_sum SUM, int LOADS, int STAGES> RN_DEVICE void rn_ring_rows(const rn_cuda_forward &p) {
  typedef typename L::T T;
  typedef typename L::words words;
  RN_SHARED(float, slots, RN_TEAM_SLOTS);
  RN_SHARED(rn_transfer, arrived, 2);
  RN_SHARED(rn_transfer, full, STAGES);
  RN_SHARED_REST(stages);
  rn_team team = rn_team_of<L>(slots, arrived);
  rn_ring<L> ring;
  ring.stages = stages, ring.full = full;
  ring.half = (uint32_t)(LOADS * L::LANES * team.threads * T::SIZE);
  ring.stage_bytes = SUM == rn_sum_none ? ring.half : 2 * ring.half;
  const bool filler = rn_thread() == 0;
  if (filler)
    for (int s = 0; s < STAGES; s++) rn_transfer_init(&full[s], 1);
  rn_barrier();
  rn_wait_for_previous();
  rn_let_next_start();

  uint32_t rows = (uint32_t)p.rows;
  if (p.live_rows != nullptr) rows = (uint32_t)rn_live_rows(p.rows, p.live_rows, p.live_most, p.live_factor);
  const uint32_t each = (uint32_t)p.rows_of_cluster, first = (uint32_t)(rn_block() / team.blocks) * each;
  const uint32_t end = first + each < rows ? first + each : rows;
  if (filler)
    for (uint32_t i = 0; i < STAGES && first + i < end; i++)
      rn_ring_fill<L, SUM, LOADS, STAGES>(p, team, ring, first + i, (int)i);

  /* The weight stays in registers: it is the same for all rows, unless heads or groups have their own. */
  const bool waits =
      p.weight != nullptr && !rn_weight_differs(T(), p) && (p.weight_head_bytes | p.weight_group_bytes) == 0;
  const int lanes = rn_lanes_of_team<L>(team);
  words waiting[LOADS][L::RUNS];
#define RN_RUNS_OF_ROW RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int g = 0; g < L::RUNS; g++)
#define RN_COLUMN      (rn_first_column<L>(team, g) + j * lanes)
  RN_RUNS_OF_ROW {
    waiting[j][g] = rn_zero_words<L::WORDS>();
    if (waits && RN_COLUMN < p.cols) waiting[j][g] = rn_kept_load<L::WORDS>(p.weight + T::SIZE * RN_COLUMN);
  }
  rn_meet<L>(team);

  int stage = 0;
  uint32_t parity = 0;
  RN_NO_UNROLL for (uint32_t row = first; row < end; row++) {
    const rn_row_place at = rn_place_of(p, row, rn_is_simple(p));
    char *const sum_out =
        p.residual_out.data != nullptr ? p.residual_out.data + rn_offset(p.residual_out, at, false) : nullptr;
    const words *const from = (const words *)(stages + stage * ring.stage_bytes) + team.thread;
    const words *const add_from = (const words *)((const char *)from + ring.half);
    words q[LOADS][L::RUNS], other[SUM == rn_sum_exact ? LOADS : 1][L::RUNS];
    float lane[L::LANES], d[L::RUNS];
    RN_UNROLL for (int i = 0; i < L::LANES; i++) lane[i] = 0;
    rn_transfer_wait(&full[stage], parity);
    RN_RUNS_OF_ROW {
      float u[L::RUN];
      q[j][g] = rn_zero_words<L::WORDS>();
      if (RN_COLUMN < p.cols) q[j][g] = from[(j * L::RUNS + g) * team.threads];
      rn_unpack(T(), q[j][g], u);
      if (SUM != rn_sum_none) {
        float add[L::RUN];
        words r = rn_zero_words<L::WORDS>();
        if (RN_COLUMN < p.cols) r = add_from[(j * L::RUNS + g) * team.threads];
        rn_unpack(T(), r, add);
        RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] + add[i];
        if (SUM == rn_sum_stored) {
          q[j][g] = rn_pack_run<L>(u);
          rn_unpack(T(), q[j][g], u);
          if (sum_out != nullptr && RN_COLUMN < p.cols) rn_stream_store(sum_out + T::SIZE * RN_COLUMN, q[j][g]);
        } else {
          other[SUM == rn_sum_exact ? j : 0][g] = r;
        }
      }
      RN_UNROLL for (int i = 0; i < L::RUN; i++) lane[g * L::RUN + i] = fmaf(u[i], u[i], lane[g * L::RUN + i]);
    }
    rn_fold_lanes<L>(lane, d);
    /* After the block's barrier inside, nobody looks at this stage any more. */
    const float v = rn_team_tree<L, rn_add, true>(team, d) / p.divisor + p.eps;
    if (filler && row + STAGES < end) rn_ring_fill<L, SUM, LOADS, STAGES>(p, team, ring, row + STAGES, stage);
    if (++stage == STAGES) stage = 0, parity ^= 1;
    if (!rn_is_ordinary(v)) {
      rn_forward_rescued<L, SUM>(p, team, row);
      continue;
    }
    const float rstd = rn_rounded(T(), p.round_rstd != 0, rn_isqrt(v));
    if (p.rstd_out != nullptr && team.thread == 0 && team.rank == 0) p.rstd_out[row] = rstd;

    char *const y = p.y.data + rn_offset(p.y, at, false);
    const char *const weight = p.weight + at.head * p.weight_head_bytes + at.group * p.weight_group_bytes;
    RN_RUNS_OF_ROW {
      if (RN_COLUMN >= p.cols) continue;
      float u[L::RUN], w[L::RUN];
      rn_keep_packed(q[j][g]);
      rn_unpack(T(), q[j][g], u);
      if (SUM == rn_sum_exact) {
        rn_unpack(T(), other[SUM == rn_sum_exact ? j : 0][g], w);
        RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] + w[i];
        if (sum_out != nullptr) rn_stream_store(sum_out + T::SIZE * RN_COLUMN, rn_pack_run<L>(u));
      }
      RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] * rstd;
      if (p.round_xhat) rn_round_run<L>(u);
      if (waits) {
        rn_keep_packed(waiting[j][g]);
        rn_unpack(T(), waiting[j][g], w);
        RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] * (p.weight_offset + w[i]);
      } else if (p.weight != nullptr) {
        rn_load_weight<L>(p, weight, RN_COLUMN, w);
        RN_UNROLL for (int i = 0; i < L::RUN; i++) u[i] = u[i] * w[i];
      }
      rn_stream_store(y + T::SIZE * RN_COLUMN, rn_pack_run<L>(u));
    }
  }
#undef RN_COLUMN
#undef RN_RUNS_OF_ROW
}

#endif /* RN_CUDA_FORWARD_RING_H */
