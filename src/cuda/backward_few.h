/* backward_few.h - backward of few rows in one launch with two kinds of blocks: dweight needs no row dot, so it does
 * not wait for dx. x and dy are read twice, the second time from L2.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_BACKWARD_FEW_H
#define RN_CUDA_BACKWARD_FEW_H

#include "backward_sums.h"

enum {
  RN_FEW_ROWS = 256,    /* most rows: their statistics lie in shared memory */
  RN_FEW_RUNS = 8,      /* runs of columns a column block has */
  RN_FEW_EACH = 8,      /* row lanes that a thread adds by itself */
  RN_FEW_THREADS = 512, /* the largest block */
  RN_FEW_LEVELS = 10    /* of the tree over pieces of 256 lanes */
};

/* The statistic of one row by one warp, 256 lanes after the other; `parts` is room for the tree above them. */
template <class T, int LANES>
RN_DEVICE float rn_warp_tree_of(const rn_cuda_backward &p, const char *x, float scale, bool greatest, float *parts) {
  const int lane_of_warp = rn_thread() & 31;
  int count = 0, pushed = 0;
  RN_NO_UNROLL for (int first = 0; first < p.lanes; first += 32 * LANES) {
    const int mine = first + lane_of_warp * LANES;
    float lane[LANES] = {0}, m = 0;
    RN_NO_UNROLL for (int c = mine; mine < p.lanes && c < p.cols; c += p.lanes) {
      float u[LANES];
      rn_unpack_run(rn_load_run<T, LANES>(x + T::SIZE * (int64_t)c), u);
      RN_UNROLL for (int i = 0; i < LANES; i++) {
        m = rn_greater::of(m, rn_abs(u[i]));
        u[i] = u[i] * scale;
        lane[i] = fmaf(u[i], u[i], lane[i]);
      }
    }
    float d = greatest ? m : rn_fold(lane);
    /* Lanes past the row's add +0 to a sum of squares, which is never -0. */
    RN_UNROLL for (int k = 1; k < 32; k *= 2) {
      const float other = rn_from_lane_xor(RN_ALL_LANES, d, k);
      d = greatest ? rn_greater::of(d, other) : d + other;
    }
    for (int full = pushed++; full & 1; full >>= 1)
      count--, d = greatest ? rn_greater::of(parts[count], d) : parts[count] + d;
    rn_warp_barrier(RN_ALL_LANES);
    if (lane_of_warp == 0) parts[count] = d;
    count++;
    rn_warp_barrier(RN_ALL_LANES);
  }
  return parts[0];
}
template <class T, int LANES>
RN_DEVICE rn_factors rn_warp_statistic(const rn_cuda_backward &p, const char *x, float *parts) {
  const float v = rn_warp_tree_of<T, LANES>(p, x, 1.0f, false, parts) / p.divisor + p.eps;
  if (rn_is_ordinary(v)) return {1, rn_isqrt(v)};
  const rn_rescue rescue = rn_rescue_of(rn_warp_tree_of<T, LANES>(p, x, 1.0f, true, parts), p.eps);
  const float sum = rn_warp_tree_of<T, LANES>(p, x, rescue.scale, false, parts);
  return rn_rescued(rescue, sum, p.divisor, p.eps);
}

/* dweight of RN_FEW_RUNS runs of columns. Groups of RN_FEW_RUNS threads take up to EACH row lanes each; code for one
 * alone is a quarter of the other, and with so few rows the time to fetch it shows. */
template <int LANES> struct rn_few_room {
  enum { COLUMNS = RN_FEW_RUNS * LANES, GROUPS = RN_FEW_THREADS / RN_FEW_RUNS, PARTS = 8 };
  float power[RN_FEW_ROWS], r[RN_FEW_ROWS];
  float sums[GROUPS * COLUMNS], pieces[PARTS * COLUMNS];
  float parts[RN_FEW_THREADS / 32 * RN_FEW_LEVELS];
};
template <class T, int LANES, int EACH>
RN_DEVICE void rn_few_columns(const rn_cuda_backward &p, int block, rn_few_room<LANES> &room) {
  enum { COLUMNS = rn_few_room<LANES>::COLUMNS, PARTS = rn_few_room<LANES>::PARTS };
  float *const power = room.power, *const r = room.r, *const sums = room.sums, *const pieces = room.pieces;
  float *const parts = room.parts;
  const rn_deal deal = rn_deal_of(p);
  const int threads = rn_threads_of_block(), group = rn_thread() / RN_FEW_RUNS, groups = threads / RN_FEW_RUNS;
  const int column = block * COLUMNS + rn_thread() % RN_FEW_RUNS * LANES,
            end = deal.rows > 0 ? deal.chunks * deal.row_lanes : 0;
  const int lanes_of_group = p.few_each, first = group * lanes_of_group;

  /* The first row of every row lane is on its way before anything is waited for. */
  rn_run<T, LANES> x[EACH], dy[EACH];
  int row[EACH];
  RN_UNROLL for (int k = 0; k < EACH; k++) {
    const int lane = first + k;
    row[k] = k < lanes_of_group && lane < end && column < p.cols
                 ? rn_dealt_row(deal, lane / deal.row_lanes, lane % deal.row_lanes)
                 : deal.rows;
    x[k] = rn_fill_run<T, LANES>(0), dy[k] = rn_fill_run<T, LANES>(p.negative_zeros);
    if (row[k] < deal.rows) {
      x[k] = rn_load_kept_run<T, LANES>(rn_row_at(p, p.x, row[k]) + T::SIZE * (int64_t)column);
      dy[k] = rn_load_kept_run<T, LANES>(rn_row_at(p, p.dy, row[k]) + T::SIZE * (int64_t)column);
    }
  }

  bool all = true;
  for (int i = rn_thread(); i < deal.rows; i += threads) {
    power[i] = 1, r[i] = p.rstd == nullptr ? 0.0f : p.rstd[i];
    all = all && rn_is_ordinary_rstd(r[i]);
  }
  if (rn_any_in_block(!all)) {
    RN_NO_UNROLL for (int i = rn_thread() / 32; i < deal.rows; i += threads / 32) {
      const bool known = rn_is_ordinary_rstd(r[i]);
      if (known) continue;
      const rn_factors stat =
          rn_warp_statistic<T, LANES>(p, rn_row_at(p, p.x, i), parts + rn_thread() / 32 * RN_FEW_LEVELS);
      rn_warp_barrier(RN_ALL_LANES);
      power[i] = stat.power, r[i] = stat.r;
    }
    rn_barrier();
  }

  float acc[EACH][LANES];
  RN_UNROLL for (int k = 0; k < EACH; k++) {
    float u[LANES], g[LANES];
    const bool is = row[k] < deal.rows;
    const float power_of = is ? power[row[k]] : 1.0f, r_of = is ? r[row[k]] : 1.0f;
    rn_unpack_run(x[k], u);
    rn_unpack_run(dy[k], g);
    RN_UNROLL for (int i = 0; i < LANES; i++) acc[k][i] = fmaf(g[i], (u[i] * power_of) * r_of, 0.0f);
  }
  /* Lanes with more than one row: their number is no power of two, or the rows are very long. */
  RN_NO_UNROLL for (int step = deal.row_lanes;; step += deal.row_lanes) {
    bool more = false;
    RN_UNROLL for (int k = 0; k < EACH; k++) {
      const int lane = first + k;
      if (row[k] >= deal.rows) continue;
      const int next = rn_dealt_row(deal, lane / deal.row_lanes, lane % deal.row_lanes + step);
      if (next >= deal.rows) continue;
      float u[LANES], g[LANES];
      more = true;
      rn_unpack_run(rn_load_kept_run<T, LANES>(rn_row_at(p, p.x, next) + T::SIZE * (int64_t)column), u);
      rn_unpack_run(rn_load_kept_run<T, LANES>(rn_row_at(p, p.dy, next) + T::SIZE * (int64_t)column), g);
      RN_UNROLL for (int i = 0; i < LANES; i++) acc[k][i] = fmaf(g[i], (u[i] * power[next]) * r[next], acc[k][i]);
    }
    if (!more) break;
  }
  rn_add_lanes(acc, first, first + lanes_of_group < end ? first + lanes_of_group : end);
  RN_UNROLL for (int i = 0; i < LANES; i++) sums[group * COLUMNS + rn_thread() % RN_FEW_RUNS * LANES + i] = acc[0][i];
  rn_barrier();

  /* Groups, eight at a time, then what is left. */
  const int of_column = rn_thread() % COLUMNS, eight = rn_thread() / COLUMNS, eights = (groups + 7) / 8;
  if (eight < eights) {
    float of_group[8][1];
    RN_UNROLL for (int k = 0; k < 8; k++) of_group[k][0] =
        eight * 8 + k < groups ? sums[(eight * 8 + k) * COLUMNS + of_column] : 0.0f;
    rn_add_lanes(of_group, eight * 8, (end + lanes_of_group - 1) / lanes_of_group);
    pieces[eight * COLUMNS + of_column] = of_group[0][0];
  }
  rn_barrier();
  if (eight == 0 && block * COLUMNS + of_column < p.cols) {
    float of_eight[PARTS][1];
    RN_UNROLL for (int k = 0; k < PARTS; k++) of_eight[k][0] = k < eights ? pieces[k * COLUMNS + of_column] : 0.0f;
    rn_add_lanes(of_eight, 0, (end + 8 * lanes_of_group - 1) / (8 * lanes_of_group));
    rn_store(p.dweight_dtype, p.dweight, block * COLUMNS + of_column, end > 0 ? of_eight[0][0] : 0.0f);
  }
}

/* dx of one row a team. */
template <int REACH, class T, int LANES, int LOADS, class WEIGHTS>
RN_DEVICE void rn_few_rows(const rn_cuda_backward &p, float *slots, rn_transfer *arrived) {
  rn_share team = rn_share_of<REACH>(p.team, slots, arrived);
  if (REACH == RN_SHARE_CLUSTER) rn_cluster_arrive_relaxed(), rn_cluster_wait(); /* all blocks have started */
  const int teams = rn_threads_of_block() / p.team, block = (int)rn_block() / team.blocks;
  const int row = block * teams + team.number, column = (team.rank * p.team + team.thread) * LANES;
  const int rows = rn_deal_of(p).rows;
  const bool is = row < rows;
  rn_run<T, LANES> x[LOADS], dy[LOADS], incoming[LOADS];
  WEIGHTS weight;
  float none[LOADS][LANES];
  if (REACH != RN_SHARE_WARP && !is) return; /* the whole team; a cluster's blocks all have the same row */
  rn_load_row<true>(p, row, is, column, x, dy, incoming);
  const float saved = !is ? 1.0f : p.rstd == nullptr ? 0.0f : p.rstd[row];
  WEIGHTS::start(weight, p, column);
  const rn_factors stat = rn_statistic<REACH>(p, team, x, saved);
  rn_finish_row<REACH, false, true>(p, team, column, stat, rn_row_at(p, p.dx, row), is, x, dy, incoming, weight, none);
}

template <int REACH, class T, int LANES, int LOADS, class WEIGHTS>
RN_DEVICE void rn_backward_few(const rn_cuda_backward &p) {
  RN_SHARED(float, slots, REACH == RN_SHARE_WARP ? 1 : RN_SHARE_TEAMS * RN_SHARE_SLOTS);
  RN_SHARED(rn_transfer, arrived, 2);
  RN_SHARED(rn_few_room<LANES>, room, 1);
  rn_wait_for_previous();
  rn_let_next_start();
  if (rn_block() < p.row_blocks)
    rn_few_rows<REACH, T, LANES, LOADS, WEIGHTS>(p, slots, arrived);
  else if (p.few_each == 1)
    rn_few_columns<T, LANES, 1>(p, (int)rn_block() - p.row_blocks, room[0]);
  else
    rn_few_columns<T, LANES, RN_FEW_EACH>(p, (int)rn_block() - p.row_blocks, room[0]);
}

#endif /* RN_CUDA_BACKWARD_FEW_H */
