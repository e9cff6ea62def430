/* backward.cu - dx and dweight of rows that stay in registers: x, dy, dresidual_out and dx of one type, aligned runs,
 * rstd saved or made again from x. docs/numerics.md 4.
 *
 * Reads x, dy (and dresidual_out) once and writes dx once. What a row adds to dweight stays in registers, chunk by
 * chunk in the order of 4.1; the chunks that a block has are added in the block, so that one line of partial sums
 * leaves it; a second kernel adds the lines. Few rows go in one launch (backward_few.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "backward_few.h"
#include "backward_ring.h"
#include "kernels.h"

/* ------------------------------------------------------------------------------------------------------------------
 * Rows straight from global memory: a chunk is a team's (RN_SHARE_WARP: that of one or several warps). */
template <int REACH, class T, int LANES, int LOADS, int ROWS, bool ADDS, class WEIGHTS>
RN_DEVICE void rn_backward_rows(const rn_cuda_backward &p) {
  RN_SHARED(float, slots, REACH == RN_SHARE_WARP ? 1 : RN_SHARE_TEAMS * RN_SHARE_SLOTS);
  RN_SHARED_REST(rest);
  rn_wait_for_previous();
  rn_let_next_start();
  rn_share team = rn_share_of<REACH>(p.team, slots, nullptr);
  const rn_deal deal = rn_deal_of(p);
  /* A unit holds `beside` neighbouring row lanes of a chunk: the rows side by side in a warp. */
  const int unit_threads = REACH == RN_SHARE_WARP ? 32 : p.team, beside = REACH == RN_SHARE_WARP ? 32 / p.team : 1;
  const int unit = rn_thread() / unit_threads, side = REACH == RN_SHARE_WARP ? (rn_thread() & 31) / p.team : 0;
  const int thread = team.thread, column = thread * LANES, lanes = deal.chunks * deal.row_lanes;

  WEIGHTS weight;
  WEIGHTS::start(weight, p, column);
  RN_NO_UNROLL for (int line = (int)rn_block(); line * p.line_lanes < lanes; line += (int)rn_blocks()) {
    const int lane = line * p.line_lanes + unit * beside, chunk = lane / deal.row_lanes;
    float dweight[LOADS][LANES];
    RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int k = 0; k < LANES; k++) dweight[j][k] = 0;

    RN_NO_UNROLL for (int i = lane % deal.row_lanes; lane < lanes && rn_dealt_row(deal, chunk, i) < deal.rows;
                      i += ROWS * deal.row_lanes) {
      rn_run<T, LANES> x[ROWS][LOADS], dy[ROWS][LOADS], incoming[ROWS][ADDS ? LOADS : 1];
      int row[ROWS];
      float saved[ROWS];
      RN_UNROLL for (int k = 0; k < ROWS; k++) {
        row[k] = rn_dealt_row(deal, chunk, i + side + k * deal.row_lanes);
        const bool is = row[k] < deal.rows;
        rn_load_row<ADDS>(p, row[k], is, column, x[k], dy[k], incoming[k]);
        saved[k] = !is ? 1.0f : p.rstd == nullptr ? 0.0f : p.rstd[row[k]];
      }
      RN_UNROLL for (int k = 0; k < ROWS; k++) {
        const rn_factors stat = rn_statistic<REACH>(p, team, x[k], saved[k]);
        rn_finish_row<REACH, true, ADDS>(p, team, column, stat, rn_row_at(p, p.dx, row[k]),
                                         p.dx.data != nullptr && row[k] < deal.rows, x[k], dy[k], incoming[k], weight,
                                         dweight);
      }
    }
    if (p.partial == nullptr) continue;
    if (REACH == RN_SHARE_WARP) rn_add_beside(p.team, dweight);
    rn_add_units(rn_thread() % unit_threads, unit_threads, unit, lane, beside, lanes, dweight, (float *)rest);
    if (unit == 0 && side == 0) rn_store_line(p, line, column, dweight);
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * The sum of the lines. */
enum { RN_TREE_EACH = 8 };

/* Lines [first, end) of a column, as a tree: eights, which are carried up like the digits of a binary number. */
RN_DEVICE float rn_sum_of_lines(const rn_cuda_backward &p, int column, int first, int end) {
  enum { LEVELS = 8 }; /* 8192 lines, which 32 threads or more share */
  float stack[LEVELS] = {0}, sum = 0;
  RN_NO_UNROLL for (int line = first; line < end; line += RN_TREE_EACH) {
    float v[RN_TREE_EACH][1];
    RN_UNROLL for (int k = 0; k < RN_TREE_EACH; k++) {
      v[k][0] = 0;
      if (line + k < end && column < p.cols) v[k][0] = p.partial[(int64_t)(line + k) * p.cols + column];
    }
    rn_add_lanes(v, line, end);
    sum = v[0][0];
    const int before = (line - first) / RN_TREE_EACH;
    const bool last = line + RN_TREE_EACH >= end; /* meets whatever waits */
    bool carried = true;
    RN_UNROLL for (int level = 0; level < LEVELS; level++) {
      const bool left = (before >> level & 1) != 0;
      if (carried && left) sum = stack[level] + sum;
      if (carried && !left && !last) stack[level] = sum, carried = false;
    }
  }
  return sum;
}

/* A block has p.tree_columns neighbouring columns; every thread of a column adds a part of the lines, and the parts are
 * added in shared memory. */
RN_KERNEL(rn_backward_tree, rn_cuda_backward, RN_TREE_THREADS) {
  RN_SHARED(float, parts, RN_TREE_THREADS);
  rn_wait_for_previous();
  rn_let_next_start();
  const rn_deal deal = rn_deal_of(p);
  const int lines = deal.rows > 0 ? (deal.chunks * deal.row_lanes + p.line_lanes - 1) / p.line_lanes : 0;
  const int columns = p.tree_columns, threads = rn_threads_of_block() / columns; /* of a column */
  const int part = rn_thread() / columns;
  int each = RN_TREE_EACH; /* lines of a thread */
  while (each * threads < lines) each *= 2;
  const int first = part * each, end = first + each < lines ? first + each : lines;

  RN_NO_UNROLL for (int column0 = (int)rn_block() * columns; column0 < p.cols; column0 += (int)rn_blocks() * columns) {
    const int column = column0 + rn_thread() % columns;
    parts[rn_thread()] = rn_sum_of_lines(p, column, first, end);
    for (int step = 1; step < threads; step *= 2) {
      rn_barrier();
      if (part % (2 * step) == 0 && part + step < threads && first + step * each < lines)
        parts[rn_thread()] = parts[rn_thread()] + parts[rn_thread() + step * columns];
    }
    if (part == 0 && column < p.cols) rn_store(p.dweight_dtype, p.dweight, column, parts[rn_thread()]);
    rn_barrier();
  }
}

/* ------------------------------------------------------------------------------------------------------------------
 * The kernels. */
#define RN_WEIGHTS(type, lanes, loads) rn_kept_weights<rn_##type, lanes, loads>
#define RN_BACKWARD_WARP(type, lanes, loads, rows, adds)                                                               \
  rn_backward_rows<RN_SHARE_WARP, rn_##type, lanes, loads, rows, adds, RN_WEIGHTS(type, lanes, loads)>(p)
#define RN_BACKWARD_BLOCK(type, lanes, loads, rows, adds)                                                              \
  rn_backward_rows<RN_SHARE_BLOCK, rn_##type, lanes, loads, rows, adds, RN_WEIGHTS(type, lanes, loads)>(p)
#define RN_BACKWARD_FEW_WARP(type, lanes, loads, rows, adds)                                                           \
  rn_backward_few<RN_SHARE_WARP, rn_##type, lanes, loads, RN_WEIGHTS(type, lanes, loads)>(p)
#define RN_BACKWARD_FEW_BLOCK(type, lanes, loads, rows, adds)                                                          \
  rn_backward_few<RN_SHARE_BLOCK, rn_##type, lanes, loads, RN_WEIGHTS(type, lanes, loads)>(p)
/* Where there are no clusters and bulk copies no plan asks for these, and they would only take time to compile. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define RN_BACKWARD_RING(type, lanes, loads, rows, adds)        (void)p
#define RN_BACKWARD_FEW_CLUSTER(type, lanes, loads, rows, adds) (void)p
#else
#define RN_BACKWARD_RING(type, lanes, loads, rows, adds)                                                               \
  rn_backward_ring<rn_##type, lanes, loads, adds, RN_WEIGHTS(type, lanes, loads)>(p)
#define RN_BACKWARD_FEW_CLUSTER(type, lanes, loads, rows, adds)                                                        \
  rn_backward_few<RN_SHARE_CLUSTER, rn_##type, lanes, loads, RN_WEIGHTS(type, lanes, loads)>(p)
#endif
#define RN_BACKWARD_KERNEL(reach, type, lanes, loads, rows, adds, threads, registers)                                  \
  RN_KERNEL_CAPPED(RN_BACKWARD_NAME(reach, type, lanes, loads, adds), rn_cuda_backward, threads, registers) {          \
    RN_BACKWARD_##reach(type, lanes, loads, rows, adds);                                                               \
  }
#ifndef RN_BACKWARD_TUNING
RN_BACKWARD_INSTANCES(RN_BACKWARD_KERNEL)
RN_BACKWARD_FEW_INSTANCES(RN_BACKWARD_KERNEL)
#endif
