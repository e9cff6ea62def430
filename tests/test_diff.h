/* test_diff.h - what the parts of test_diff share: an instance for a generator, and what is counted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_TEST_DIFF_H
#define RN_TEST_DIFF_H

#include "test_diff_kernel.h"

enum { F32 = RMSNORM_DTYPE_F32, F16 = RMSNORM_DTYPE_F16, BF16 = RMSNORM_DTYPE_BF16 };

/* What a generator needs to make its mistake visible. */
enum {
  RESIDUAL = 1, /* a residual */
  NARROW = 2,   /* x in f16 or bf16 */
  SMALL = 4,    /* weights around 0, with an offset of 1 */
  ROWS = 8,     /* at least eight rows */
  F32_WEIGHT = 16,
  HALF_WEIGHT = 32,
  WIDE_Y = 64, /* y in f32 */
  OTHERS = 128,
  NARROW_Y = 512,
  LLAMA = 1024,   /* ours rounds x-hat */
  LONG = 2048,    /* at least 256 columns */
  GATED = 4096,   /* silu of a gate, after the norm */
  GROUPED = 8192, /* four groups are right */
  HEADS = 16384,  /* four heads */
  NOT_F16 = 32768,
  NORMED = 65536, /* ours rounds the weighted value to x's type */
  NO_UPCAST = 131072
};

typedef struct counts {
  int cases, hits;
} counts;

/* An instance of this kind of types, the kernel that makes no mistake, and what the engine is told of them. */
void set_up(instance *i, kernel *k, int kind, int needs, uint64_t seed, rn_diff_input *in);
/* Whether the verdict names this hypothesis. */
bool named(const rn_diff_result *r, const char *name);
/* A case that went wrong, for whoever has to look into it. */
void tell(const char *what, int kind, const instance *i, uint64_t seed, const rn_diff_result *r);

/* test_diff_outputs.c: `each` cases of every kind. */
counts gradients(int each, uint64_t seed);
counts quantised(int each, uint64_t seed);

#endif /* RN_TEST_DIFF_H */
