/* backward_ring.h - backward of long rows: a block, or a cluster of blocks, has a chunk, and bulk copies bring its next
 * rows into a ring of stages in shared memory while it works on one.
 *
 * With long rows few blocks fit a multiprocessor, so the other blocks do not hide what one waits for; the ring does,
 * together with the order of the passes: two rows are always under way. A row stays in its stage until its second pass.
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

/* What is known of a row after its first pass, but for the dot that its threads are still sending to each other. */
struct rn_ring_row {
  int row, stage;
  rn_factors stat;
};

/* The first pass over a row comes before the second one over the row before it: by the time the second pass wants the
 * dot, the blocks of the cluster have sent it long ago. One barrier of the block a row. */
template <class T, int LANES, int LOADS, bool ADDS, class WEIGHTS>
RN_DEVICE void rn_backward_ring(const rn_cuda_backward &p) {
  RN_SHARED(float, slots, 2 * RN_SHARE_SLOTS);
  RN_SHARED(rn_transfer, arrived, 4);
  RN_SHARED(rn_transfer, full, RN_RING_STAGES);
  RN_SHARED_REST(rest);
  rn_share of_dot = rn_share_of<RN_SHARE_CLUSTER>(rn_threads_of_block(), slots, arrived);
  const int threads = of_dot.threads, thread = of_dot.thread, rank = of_dot.rank;
  const int column = (rank * threads + thread) * LANES, segment_bytes = threads * LANES * T::SIZE;
  const bool adds = ADDS && p.dresidual_out.data != nullptr;
  const int stage_bytes = (adds ? 3 : 2) * LOADS * segment_bytes;
  const bool fetches = thread == threads - 32; /* not of the warp that sends */
  char *const own = rest + thread * LANES * T::SIZE;

  if (thread == 0) rn_transfer_init(arrived + 2, 1), rn_transfer_init(arrived + 3, 1);
  if (fetches) {
    for (int s = 0; s < p.stages; s++) rn_transfer_init(full + s, 1);
  }
  rn_cluster_arrive_relaxed();
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
  rn_cluster_wait(); /* all blocks have started */

  int stage = 0;      /* of the next row */
  int stat_round = 0; /* what statistics take to be made again has slots of its own */
  uint32_t parity = 0;
  const int clusters = (int)(rn_blocks() / of_dot.blocks);
  RN_NO_UNROLL for (int chunk = (int)(rn_block() / of_dot.blocks); chunk < deal.chunks; chunk += clusters) {
    float dweight[LOADS][LANES];
    RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int k = 0; k < LANES; k++) dweight[j][k] = 0;
    if (fetches) {
      for (int k = 0; k < p.stages && rn_dealt_row(deal, chunk, k) < deal.rows; k++) {
        const int s = stage + k < p.stages ? stage + k : stage + k - p.stages;
        rn_ring_fetch<T, LANES, LOADS>(p, rn_dealt_row(deal, chunk, k), rank, rest + s * stage_bytes, full + s);
      }
    }
    rn_ring_row now = {deal.rows, 0, {1, 1}}, next = {rn_dealt_row(deal, chunk, 0), 0, {1, 1}};
    float saved = next.row < deal.rows && p.rstd != nullptr ? p.rstd[next.row] : 0.0f;
    RN_NO_UNROLL for (int i = 0; now.row < deal.rows || next.row < deal.rows; i++) {
      const int after = rn_dealt_row(deal, chunk, i + 1);
      const bool is_next = next.row < deal.rows, is_now = now.row < deal.rows;
      float c = 0;
      if (is_next) {
        const char *const at = own + stage * stage_bytes;
        next.stage = stage;
        rn_transfer_wait(full + stage, parity);
        next.stat = {1, saved};
        if (!rn_is_ordinary_rstd(saved)) {
          rn_run<T, LANES> x[LOADS];
          RN_UNROLL for (int j = 0; j < LOADS; j++) x[j] = rn_take_run<T, LANES>(at + j * segment_bytes);
          rn_share of_stat = of_dot;
          of_stat.round = stat_round, of_stat.slots += RN_SHARE_SLOTS, of_stat.arrived += 2;
          next.stat = rn_statistic<RN_SHARE_CLUSTER>(p, of_stat, x, saved);
          stat_round = of_stat.round;
        }
        if (p.rstd != nullptr && after < deal.rows) saved = p.rstd[after];
        float lane[LANES] = {0}, w[LANES];
        RN_UNROLL for (int j = 0; j < LOADS; j++) {
          WEIGHTS::step(weight, p, column, j, w);
          rn_first_run<true>(next.stat, rn_take_run<T, LANES>(at + j * segment_bytes),
                             rn_take_run<T, LANES>(at + (LOADS + j) * segment_bytes), w, dweight[j], lane);
        }
        if (is_now) c = rn_mean(p, rn_share_receive<RN_SHARE_CLUSTER>(of_dot, false));
        rn_share_put<RN_SHARE_CLUSTER>(of_dot, rn_fold(lane), false);
      } else {
        c = rn_mean(p, rn_share_receive<RN_SHARE_CLUSTER>(of_dot, false));
      }
      if (is_now && p.dx.data != nullptr) {
        const char *const at = own + now.stage * stage_bytes;
        char *const dx = rn_row_at(p, p.dx, now.row) + T::SIZE * (int64_t)column;
        RN_UNROLL for (int j = 0; j < LOADS; j++) {
          float w[LANES];
          rn_run<T, LANES> incoming = rn_fill_run<T, LANES>(p.negative_zeros);
          if (adds) incoming = rn_take_run<T, LANES>(at + (2 * LOADS + j) * segment_bytes);
          WEIGHTS::step(weight, p, column, j, w);
          rn_second_run<ADDS>(
              now.stat, c, dx + T::SIZE * (int64_t)(j * p.lanes), rn_take_run<T, LANES>(at + j * segment_bytes),
              rn_take_run<T, LANES>(at + (LOADS + j) * segment_bytes), incoming, w, column + j * p.lanes < p.cols);
        }
      }
      rn_barrier(); /* all have put their part of the next dot, and nobody needs this row's stage any more */
      if (is_next) {
        rn_share_send<RN_SHARE_CLUSTER>(of_dot, false);
        if (++stage == p.stages) stage = 0, parity ^= 1;
      }
      const int later = rn_dealt_row(deal, chunk, i - 1 + p.stages);
      if (fetches && is_now && later < deal.rows)
        rn_ring_fetch<T, LANES, LOADS>(p, later, rank, rest + now.stage * stage_bytes, full + now.stage);
      now = next, next.row = after;
    }
    if (p.partial != nullptr) rn_store_line(p, chunk, column, dweight);
  }
}

#endif /* RN_CUDA_BACKWARD_RING_H */
