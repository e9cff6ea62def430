/* compare.h - how far two tensors are apart, in units in the last place of their own type.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_COMPARE_H
#define RN_CLI_COMPARE_H

#include "files.h"

typedef struct rn_difference {
  int64_t elements;
  int64_t differ; /* elements with other bits; a NaN equals every NaN */
  uint64_t ulp;   /* the largest distance; UINT64_MAX: a NaN on one side only. -0 and +0 differ by 0 ulp */
  int64_t worst;  /* the first element with that distance, -1 when all bits are equal */
} rn_difference;

/* rn_compare - both tensors have the same type and number of elements. */
rn_difference rn_compare(const rn_tensor *got, const rn_tensor *expected);

/* rn_ordinal - the number of a code: codes of a type in the order of their values, counted through zero, which both its
 * signs have as number 0. rn_code_is_nan - whether that code is a NaN. */
int64_t rn_ordinal(int dtype, uint64_t bits);
bool rn_code_is_nan(int dtype, uint64_t bits);

/* rn_value - element i as a number, for messages. */
double rn_value(const rn_tensor *tensor, int64_t i);

#endif /* RN_CLI_COMPARE_H */
