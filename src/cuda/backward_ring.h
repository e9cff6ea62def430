/* backward_ring.h - backward of long rows: a block, or a cluster of blocks, has a chunk, and bulk copies bring its next
 * rows into a ring of stages in shared memory while it works on one.
 *
 * With long rows few blocks fit a multiprocessor, so the other blocks do not hide what one waits for; the ring does.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_BACKWARD_RING_H
#define RN_CUDA_BACKWARD_RING_H

#include "backward_sums.h"

enum { RN_RING_STAGES = 4 };

/* Starts the copies of this block's part of a row: for each tensor, LOADS segments one after the other. */
template <class T, int LANES, int LOADS>
RN_DEVICE void rn_ring_fetch(const rn_cuda_backward &p, int row, int rank, char *stage, rn_transfer *full) {
  const int tensors = p.dresidual_out.data != nullptr ? 3 : 2, segment = rn_threads_of_block() * LANES;
  const char *from[3] = {rn_row_at(p, p.x, row), rn_row_at(p, p.dy, row), rn_row_at(p, p.dresidual_out, row)};
  int columns = 0;
  RN_NO_UNROLL for (int j = 0; j < LOADS; j++) {
    const int left = p.cols - rank * segment - j * p.lanes;
    columns += left <= 0 ? 0 : left < segment ? left : segment;
  }
  rn_transfer_expect(full, (uint32_t)(tensors * columns * T::SIZE));
  RN_NO_UNROLL for (int j = 0; j < LOADS; j++) {
    const int first = rank * segment + j * p.lanes, left = p.cols - first;
    if (left <= 0) break;
    RN_UNROLL for (int k = 0; k < 3; k++) if (k < tensors)
        rn_transfer_start(stage + (k * LOADS + j) * segment * T::SIZE, from[k] + T::SIZE * (int64_t)first,
                          (uint32_t)((left < segment ? left : segment) * T::SIZE), full);
  }
}

/* Once all threads have taken their runs, the stage is free for a later row. */
template <class T, int LANES, int LOADS> struct rn_ring_refill {
  const rn_cuda_backward &p;
  char *stage;
  rn_transfer *full;
  int row, rank;
  bool is;
  RN_DEVICE void done(const rn_ring_refill &r) {
    if (r.is) rn_ring_fetch<T, LANES, LOADS>(r.p, r.row, r.rank, r.stage, r.full);
  }
};

template <class T, int LANES, int LOADS, bool ADDS, class WEIGHTS>
RN_DEVICE void rn_backward_ring(const rn_cuda_backward &p) {
  RN_SHARED(float, slots, RN_SHARE_SLOTS);
  RN_SHARED(rn_transfer, full, RN_RING_STAGES);
  RN_SHARED_REST(rest);
  rn_share team = rn_share_of<RN_SHARE_CLUSTER>(rn_threads_of_block(), slots);
  const int column = (team.rank * team.threads + team.thread) * LANES, segment_bytes = team.threads * LANES * T::SIZE;
  const bool adds = ADDS && p.dresidual_out.data != nullptr;
  const int stage_bytes = (adds ? 3 : 2) * LOADS * segment_bytes;
  const bool fetches = team.thread == team.threads - 32; /* not of the warp that all wait for in an exchange */
  char *const own = rest + team.thread * LANES * T::SIZE;

  if (fetches) {
    for (int s = 0; s < p.stages; s++) rn_transfer_init(full + s, 1);
  }
  /* Columns past the end of the row are never copied. */
  for (int s = 0; s < p.stages; s++) RN_UNROLL for (int j = 0; j < LOADS; j++) {
      if (column + j * p.lanes < p.cols) continue;
      char *const at = own + s * stage_bytes + j * segment_bytes;
      rn_put_run(at, rn_fill_run<T, LANES>(0));
      rn_put_run(at + LOADS * segment_bytes, rn_fill_run<T, LANES>(p.dy_padding));
    }
  rn_wait_for_previous();
  rn_let_next_start();
  const rn_deal deal = rn_deal_of(p);
  WEIGHTS weight;
  WEIGHTS::start(weight, p, column);
  rn_barrier();
  rn_cluster_arrive(), rn_cluster_wait(); /* all blocks have started */

  int stage = 0;
  uint32_t parity = 0;
  const int clusters = (int)(rn_blocks() / team.blocks);
  RN_NO_UNROLL for (int chunk = (int)(rn_block() / team.blocks); chunk < deal.chunks; chunk += clusters) {
    float dweight[LOADS][LANES];
    RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int k = 0; k < LANES; k++) dweight[j][k] = 0;
    if (fetches) {
      for (int k = 0; k < p.stages && rn_dealt_row(deal, chunk, k) < deal.rows; k++) {
        const int s = stage + k < p.stages ? stage + k : stage + k - p.stages;
        rn_ring_fetch<T, LANES, LOADS>(p, rn_dealt_row(deal, chunk, k), team.rank, rest + s * stage_bytes, full + s);
      }
    }
    int row = rn_dealt_row(deal, chunk, 0);
    float next_saved = row < deal.rows && p.rstd != nullptr ? p.rstd[row] : 0.0f;
    RN_NO_UNROLL for (int i = 0; row < deal.rows; i++) {
      const int next = rn_dealt_row(deal, chunk, i + 1);
      const float saved = next_saved;
      if (p.rstd != nullptr && next < deal.rows) next_saved = p.rstd[next];
      rn_run<T, LANES> x[LOADS], dy[LOADS], incoming[ADDS ? LOADS : 1];
      const char *const at = own + stage * stage_bytes;
      rn_transfer_wait(full + stage, parity);
      RN_UNROLL for (int j = 0; j < LOADS; j++) {
        x[j] = rn_take_run<T, LANES>(at + j * segment_bytes);
        dy[j] = rn_take_run<T, LANES>(at + (LOADS + j) * segment_bytes);
        incoming[ADDS ? j : 0] = rn_fill_run<T, LANES>(p.negative_zeros);
        if (adds) incoming[ADDS ? j : 0] = rn_take_run<T, LANES>(at + (2 * LOADS + j) * segment_bytes);
      }
      const rn_factors stat = rn_statistic<RN_SHARE_CLUSTER>(p, team, x, saved);
      const rn_ring_refill<T, LANES, LOADS> refill = {p,
                                                      rest + stage * stage_bytes,
                                                      full + stage,
                                                      rn_dealt_row(deal, chunk, i + p.stages),
                                                      team.rank,
                                                      fetches && rn_dealt_row(deal, chunk, i + p.stages) < deal.rows};
      rn_finish_row<RN_SHARE_CLUSTER, true, ADDS>(p, team, column, stat, rn_row_at(p, p.dx, row), p.dx.data != nullptr,
                                                  x, dy, incoming, weight, dweight, refill);
      if (++stage == p.stages) stage = 0, parity ^= 1;
      row = next;
    }
    if (p.partial != nullptr) rn_store_line(p, chunk, column, dweight);
  }
  rn_cluster_arrive(), rn_cluster_wait(); /* nobody leaves while another one writes to it */
}

#endif /* RN_CUDA_BACKWARD_RING_H */
