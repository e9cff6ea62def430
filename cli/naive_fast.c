/* naive_fast.c - the plain loops as -O3 -ffast-math makes them (the build gives these flags to this file alone).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define NAIVE(name) rn_naive_fast_##name
#include "naive_loops.h"
