/* harness_parts.h - what harness.c, harness_call.c and harness_judge.c share, and nobody else sees.
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

/* Bytes outputs hold before a call. They differ between the reference call and the call under test, so that an element
 * neither writes can not look right; input gaps are NaN, so that reading one shows. */
enum { RN_POISON_REFERENCE = 0xa5, RN_POISON_TEST = 0x5a, RN_POISON_INPUT = 0xff };

/* Memory that only grows; what was in it is lost. */
bool rn_grow(void **p, size_t *have, size_t bytes);
/* Room for array t, in the layout that the case wants. */
bool rn_place_slot(rn_harness *h, int t);
/* Inputs of a backward that come out of other calls: into *c, which is the case as it will be called. */
bool rn_hand_in(rn_harness *h, rn_case *c);

/* A new finding; NULL when there is one of this kind about this tensor already. */
rn_finding *rn_find(rn_harness *h, int kind, int tensor);
void rn_refused(rn_harness *h, rmsnorm_status status);
void rn_count_findings(rn_harness *h, rn_tally *tally);
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
