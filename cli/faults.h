/* faults.h - deliberately broken libraries. A harness that does not catch each of them proves nothing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_FAULTS_H
#define RN_FAULTS_H

#include "harness.h"

#include <stdio.h>

int rn_fault_count(void);
const char *rn_fault_name(int fault);
const char *rn_fault_about(int fault);

/* The library with this fault in it. One at a time: it is remembered in a variable. */
const rn_library *rn_fault_library(int fault);

typedef struct rn_catch {
  uint32_t kinds; /* a bit for each rn_finding_kind that spoke up */
  int64_t cases, caught;
  char first[400]; /* the first case that caught it */
} rn_catch;

/* Run a sample of every family. With `everywhere` the reference call is broken in the same way, so that only the
 * float64 reference, the staged model and the guards can notice. false: no memory. */
bool rn_fault_hunt(int fault, bool everywhere, uint64_t seed, rn_catch *result);

/* Hunt every fault in both ways and write what caught it. Returns the number of hunts that caught nothing, -1 when
 * memory ran out. */
int rn_self_test(FILE *out, uint64_t seed);

#endif /* RN_FAULTS_H */
