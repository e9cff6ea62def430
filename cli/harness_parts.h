/* harness_parts.h - what harness.c and harness_judge.c share, and nobody else sees.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_HARNESS_PARTS_H
#define RN_HARNESS_PARTS_H

#include "harness.h"

/* From a case and the places of its arrays [RN_TENSORS] to arguments. rn_bind_packed: those of the reference call. */
rn_binding rn_bind(const rn_case *c, void *data);
void rn_bind_packed(const rn_harness *h, rn_binding *b);
rmsnorm_forward_args rn_bind_forward(const rn_case *c, const rn_binding *b);
rmsnorm_stats_args rn_bind_stats(const rn_case *c, const rn_binding *b);
rmsnorm_backward_args rn_bind_backward(const rn_case *c, const rn_binding *b);

/* Note that element `at` of an array is wrong; where in the array that is. */
void rn_found_value(rn_harness *h, int kind, int tensor, int64_t at, double got, double want);
void rn_locate(const rn_harness *h, rn_finding *f, int64_t at);
/* Compare two packed arrays bit for bit, NaN alike; rows with skipped set are left out. How many elements differ. */
int64_t rn_compare_bits(rn_harness *h, int kind, int t, const void *got, const void *want, const uint8_t *skipped);

/* The results of the reference call against both judges. false: no memory. */
bool rn_judge_forward(rn_harness *h);
bool rn_judge_stats(rn_harness *h);
bool rn_judge_backward(rn_harness *h);

#endif /* RN_HARNESS_PARTS_H */
