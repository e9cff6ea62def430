/* overlap.c - may these buffers be used together? Decided from addresses and strides; no memory is read.
 *
 * Buffers whose byte ranges are apart are done at once. Ranges that cross need not touch, though: the q and k columns
 * of one packed projection, or heads interleaved with their gates, are slices with equal strides in one buffer. For
 * those the rows themselves are compared. Crossing ranges with unequal strides are refused: no useful layout needs
 * them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <inttypes.h>

typedef enum meeting { APART, MEET, UNEQUAL_STRIDES, UNDECIDED } meeting;

/* b > 0 in both. */
static int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b < 0);
}
static int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b > 0);
}

static int64_t max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}
static int64_t min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* One outer dimension of a pair: row i of a and row k of b lie (k - i) * step apart, low <= k - i <= high. */
typedef struct axis {
  int64_t step, low, high;
} axis;

/* false when the strides of the two differ. A stride of 0 and a missing dimension come to the same: one place. */
static bool pair_axis(int64_t count_a, int64_t step_a, int64_t count_b, int64_t step_b, axis *pair) {
  if (step_a == 0) count_a = 1;
  if (step_b == 0) count_b = 1;
  if (count_a > 1 && count_b > 1 && step_a != step_b) return false;
  pair->step = count_a > 1 ? step_a : step_b;
  pair->low = 1 - count_a;
  pair->high = count_b - 1;
  if (count_a == 1 && count_b == 1) {
    pair->step = 1;
  } else if (pair->step < 0) {
    pair->step = -pair->step;
    int64_t low = pair->low;
    pair->low = -pair->high;
    pair->high = -low;
  }
  return true;
}

/* Do any two rows share a byte? Row starts differ by distance + i * outer + j * inner, and they meet when that lies in
 * (-width_b, width_a). */
static meeting rows_meet(const rn_problem *p, const rn_region *a, const rn_region *b) {
  /* Keeps every sum below inside int64_t. */
  const uintptr_t limit = (uintptr_t)1 << (sizeof(uintptr_t) * 8 - 3);
  if (a->last - a->first > limit || b->last - b->first > limit) return UNDECIDED;
  const rn_view *va = a->view, *vb = b->view;
  axis outer, inner;
  if (!pair_axis(va != NULL ? p->rows : 1, va != NULL ? va->row_bytes : 0, vb != NULL ? p->rows : 1,
                 vb != NULL ? vb->row_bytes : 0, &outer) ||
      !pair_axis(va != NULL ? p->heads : 1, va != NULL ? va->head_bytes : 0, vb != NULL ? p->heads : 1,
                 vb != NULL ? vb->head_bytes : 0, &inner))
    return UNEQUAL_STRIDES;
  if (inner.step > outer.step) {
    axis swap = outer;
    outer = inner;
    inner = swap;
  }
  uintptr_t start_a = va != NULL ? (uintptr_t)va->data : a->first;
  uintptr_t start_b = vb != NULL ? (uintptr_t)vb->data : b->first;
  int64_t distance = (int64_t)(start_b - start_a);
  int64_t above = -b->width, below = a->width;
  int64_t i = max64(outer.low, ceil_div(above + 1 - inner.high * inner.step - distance, outer.step));
  int64_t last = min64(outer.high, floor_div(below - 1 - inner.low * inner.step - distance, outer.step));
  /* Rows of an output do not interleave, so only the few outer steps that bring the two side by side are left. */
  for (int tries = 0; i <= last; i++, tries++) {
    if (tries == 64) return UNDECIDED;
    int64_t from = distance + i * outer.step;
    int64_t j = max64(inner.low, ceil_div(above + 1 - from, inner.step));
    if (j <= min64(inner.high, floor_div(below - 1 - from, inner.step))) return MEET;
  }
  return APART;
}

static rmsnorm_status refuse_unless_apart(const rn_problem *p, const rn_region *output, const rn_region *other,
                                          const char *rule) {
  switch (rows_meet(p, output, other)) {
  case APART:
    return RMSNORM_OK;
  case UNEQUAL_STRIDES:
    return rn_error(RMSNORM_ERROR_OVERLAP,
                    "%s and %s lie in one stretch of memory with different strides: slices of one buffer need equal "
                    "strides in bytes; %s",
                    output->name, other->name, rule);
  case UNDECIDED:
    return rn_error(RMSNORM_ERROR_OVERLAP, "%s and %s are too entangled in memory to prove them apart; %s",
                    output->name, other->name, rule);
  default:
    return rn_error(RMSNORM_ERROR_OVERLAP,
                    "%s overlaps %s: %s [0x%" PRIxPTR ", 0x%" PRIxPTR "), %s [0x%" PRIxPTR ", 0x%" PRIxPTR "); %s",
                    output->name, other->name, output->name, output->first, output->last, other->name, other->first,
                    other->last, rule);
  }
}

static rmsnorm_status check_against_inputs(const rn_problem *p, const rn_regions *regions, const rn_region *output) {
  for (int i = 0; i < regions->inputs; i++) {
    const rn_region *input = &regions->input[i];
    if (!ranges_cross(output, input) || same_tensor(output->view, input->view)) continue;
    rmsnorm_status status = refuse_unless_apart(p, output, input,
                                                input->view != NULL && output->view != NULL
                                                    ? "only exactly the same tensor (data, dtype, strides) may be both"
                                                    : "these two have to be apart");
    if (status != RMSNORM_OK) return status;
  }
  return RMSNORM_OK;
}

static rmsnorm_status check_against_outputs(const rn_problem *p, const rn_regions *regions, int count,
                                            const rn_region *output) {
  for (int i = 0; i < count; i++) {
    if (ranges_cross(output, &regions->output[i])) {
      rmsnorm_status status = refuse_unless_apart(p, output, &regions->output[i], "two outputs have to be apart");
      if (status != RMSNORM_OK) return status;
    }
  }
  return RMSNORM_OK;
}

rmsnorm_status rn_check_overlaps(const rn_problem *p, const rn_regions *regions) {
  for (int i = 0; i < regions->outputs; i++) {
    rmsnorm_status status = check_against_inputs(p, regions, &regions->output[i]);
    if (status == RMSNORM_OK && i > 0) status = check_against_outputs(p, regions, i, &regions->output[i]);
    if (status != RMSNORM_OK) return status;
  }
  return RMSNORM_OK;
}

rmsnorm_status rn_check_overlap_of(const rn_problem *p, const rn_regions *regions, const rn_region *output) {
  rmsnorm_status status = check_against_inputs(p, regions, output);
  return status != RMSNORM_OK ? status : check_against_outputs(p, regions, regions->outputs, output);
}
