/* naive.c - the plain loops with strict arithmetic: sums can not be vectorised.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define NAIVE(name) rn_naive_##name
#include "naive_loops.h"
