/* backward_sums.h - the tree over the row lanes of dweight (docs/numerics.md 4.1), as far as a block can go.
 *
 * A lane that does not exist is left out, not added as a zero: -0 has to stay -0.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CUDA_BACKWARD_SUMS_H
#define RN_CUDA_BACKWARD_SUMS_H

#include "backward_row.h"

/* Row lanes [first, first + COUNT) of a thread; those from `end` on do not exist. acc[0] receives the sum. */
template <int COUNT, int LANES> RN_DEVICE void rn_add_lanes(float (&acc)[COUNT][LANES], int first, int end) {
  RN_UNROLL for (int step = 1; step < COUNT; step *= 2) RN_UNROLL for (int k = 0; k + step < COUNT; k += 2 * step) {
    if (first + k + step < end) {
      RN_UNROLL for (int i = 0; i < LANES; i++) acc[k][i] = acc[k][i] + acc[k + step][i];
    }
  }
}

/* Row lanes side by side in a warp. */
template <int LANES, int LOADS> RN_DEVICE void rn_add_beside(int team, float (&dweight)[LOADS][LANES]) {
  RN_NO_UNROLL for (int m = team; m < 32; m *= 2) RN_UNROLL for (int j = 0; j < LOADS; j++)
      RN_UNROLL for (int i = 0; i < LANES; i++) dweight[j][i] =
          dweight[j][i] + rn_from_lane_xor(RN_ALL_LANES, dweight[j][i], m);
}

struct alignas(16) rn_four {
  float v[4];
};
/* The units of a block, one of which has `threads` threads and `beside` row lanes from `lane` on, of `lanes` that
 * exist. Unit 0 gets the sum. `room`: half as many floats as all units have. */
template <int LANES, int LOADS>
RN_DEVICE void rn_add_units(int thread, int threads, int unit, int lane, int beside, int lanes,
                            float (&dweight)[LOADS][LANES], float *room) {
  const int units = rn_threads_of_block() / threads;
  for (int step = 1; step < units; step *= 2) {
    const int place = unit % (2 * step);
    rn_four *const at = (rn_four *)room + unit / (2 * step) * (LOADS * (LANES / 4) * threads) + thread;
    rn_barrier(); /* the half that is written now was read in the step before */
    if (place == step) {
      RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int i = 0; i < LANES; i += 4)
          at[(j * LANES + i) / 4 * threads] = {
              {dweight[j][i], dweight[j][i + 1], dweight[j][i + 2], dweight[j][i + 3]}};
    }
    rn_barrier();
    if (place == 0 && lane + step * beside < lanes) {
      RN_UNROLL for (int j = 0; j < LOADS; j++) RN_UNROLL for (int i = 0; i < LANES; i += 4) {
        const rn_four v = at[(j * LANES + i) / 4 * threads];
        RN_UNROLL for (int k = 0; k < 4; k++) dweight[j][i + k] = dweight[j][i + k] + v.v[k];
      }
    }
  }
}

/* A block's sums, for the kernel that adds the lines. */
template <int LANES, int LOADS>
RN_DEVICE void rn_store_line(const rn_cuda_backward &p, int line, int column, const float (&dweight)[LOADS][LANES]) {
  RN_UNROLL for (int j = 0; j < LOADS; j++) {
    const int c = column + j * p.lanes;
    if (c >= p.cols) continue;
    RN_UNROLL for (int i = 0; i < LANES; i += 4) rn_stream_store16(
        p.partial + (int64_t)line * p.cols + c + i,
        {{rn_bits(dweight[j][i]), rn_bits(dweight[j][i + 1]), rn_bits(dweight[j][i + 2]), rn_bits(dweight[j][i + 3])}});
  }
}

#endif /* RN_CUDA_BACKWARD_SUMS_H */
