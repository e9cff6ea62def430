/* check.h - from arguments to a problem: what rmsnorm.c asks of the checks and overlap.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CHECK_H
#define RN_CHECK_H

#include "internal.h"

/* The bytes a buffer takes part with, [first, last), and how its rows lie in them. */
typedef struct rn_region {
  uintptr_t first, last;
  const char *name;
  rn_view *view; /* NULL = packed, without holes between the rows */
  int64_t width; /* bytes of one row of view */
} rn_region;

static inline bool ranges_cross(const rn_region *a, const rn_region *b) {
  return a->first < b->last && b->first < a->last;
}

static inline bool same_tensor(const rn_view *a, const rn_view *b) {
  return a != NULL && b != NULL && a->data == b->data && a->dtype == b->dtype && a->row_bytes == b->row_bytes &&
         a->head_bytes == b->head_bytes;
}

/* Every present buffer of a call. The inputs that have a view are exactly those that an output may be the same as. */
typedef struct rn_regions {
  int outputs, inputs;
  rn_region output[6];
  rn_region input[9];
  rn_view scale; /* the rows of a quantiser's scales, which have no tensor of their own */
} rn_regions;

typedef enum rn_check_mode {
  RN_CHECK_CALL, /* everything */
  RN_CHECK_SIZES /* for a workspace query: pointers need not be set, and say nothing when they are */
} rn_check_mode;

/* Fill *p from checked arguments. With rows == 0 they stop after the values: no tensor of *p is set. */
rmsnorm_status rn_check_forward(const rmsnorm_forward_args *args, rn_problem *p);
rmsnorm_status rn_check_stats(const rmsnorm_stats_args *args, rn_problem *p);
/* The regions are handed out because the workspace joins them only after an implementation has been chosen. */
rmsnorm_status rn_check_backward(const rmsnorm_backward_args *args, rn_check_mode mode, rn_problem *p,
                                 rn_regions *regions);

/* overlap.c: no output meets another buffer, except as the very same tensor as an elementwise input. */
rmsnorm_status rn_check_overlaps(const rn_problem *p, const rn_regions *regions);
/* The same for one more output. */
rmsnorm_status rn_check_overlap_of(const rn_problem *p, const rn_regions *regions, const rn_region *output);

#endif /* RN_CHECK_H */
