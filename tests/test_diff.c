/* test_diff.c - how often `rmsnorm diff` names the mistake, and how often it names one where there is none. Every entry
 * of the catalogue has a generator here; outputs come from the plain kernel of test_diff_kernel.c.
 *
 *   test_diff [FACTOR [SEED [NAME]]]   FACTOR: how many times the cases of the usual run, 1; 40 for docs/diagnosis.md
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "test_diff_kernel.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
  ONLY_F16 = 256,
  NARROW_Y = 512,
  LLAMA = 1024, /* ours rounds x-hat */
  LONG = 2048,  /* at least 256 columns */
  ONLY_F32 = 4096
};

typedef struct generator {
  const char *name; /* of the hypothesis that has to be found; NULL: none */
  int needs;
  void (*make)(kernel *k, instance *i, uint64_t *state);
} generator;

#define MAKE(name) static void name(kernel *k, instance *i, uint64_t *state)
#define UNUSED     (void)k, (void)i, (void)state

static int64_t pick(uint64_t *state, const int64_t *list, int count) {
  return list[random_bits(state) % (uint64_t)count];
}
#define PICK(...)                                                                                                      \
  pick(state, (const int64_t[]){__VA_ARGS__}, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

MAKE(eps) {
  UNUSED;
  static const float values[] = {1e-5f, 1e-4f, 1e-8f, 3e-5f, 2.5e-4f};
  int n = i->x_type == BF16 || i->y_type == BF16 ? 2 : 5;
  k->eps = values[random_bits(state) % (uint64_t)n];
  if (i->rows < 8 || n == 2) k->eps = random_bits(state) % 2 ? 1e-5f : 1e-4f;
}
MAKE(eps_default) {
  UNUSED;
  k->eps = random_bits(state) % 2 ? 0x1p-10f : 0x1p-7f;
}
MAKE(eps_outside) {
  UNUSED;
  k->eps_place = 1, k->eps = i->eps = 1e-3f;
}
MAKE(eps_floor) {
  UNUSED;
  k->eps_place = 2, k->eps = i->eps = 0.1f;
}
MAKE(divisor) {
  UNUSED;
  int64_t padded = (i->cols + 127) / 128 * 128;
  if (padded == i->cols) padded = i->cols * 2;
  k->divisor = PICK(padded, i->cols / 2, i->cols / 4, 1, i->cols * 8);
}
MAKE(groups) {
  UNUSED;
  k->groups = PICK(2, 4, 8);
}
MAKE(centred) {
  UNUSED, k->centred = true;
}
MAKE(variance) {
  UNUSED, k->variance = true;
}
MAKE(half_squares) {
  UNUSED;
  k->half_squares = true, k->half_mean = true, k->half_root = random_bits(state) % 2;
  for (int64_t c = 0; c < i->cols; c++) /* and some that overflow f16 */
    if (i->x_type == F16) i->x[c] = to_type(F16, (double)i->x[c] * 400 / (fabs((double)i->x[0]) + 1));
}
MAKE(half_sum) {
  UNUSED;
  k->half_sum = true, k->lanes = (int)PICK(1, 32, 128);
}
MAKE(half_root) {
  UNUSED, k->half_mean = k->half_root = true;
}
MAKE(truncate) {
  UNUSED, k->truncate = true;
}
MAKE(away) {
  UNUSED, k->away = true;
}
MAKE(approximate) {
  UNUSED, k->approximate = true;
}
MAKE(quake) {
  UNUSED, k->quake = true;
}
MAKE(no_norm) {
  UNUSED, k->no_norm = true;
}
MAKE(twice) {
  UNUSED, k->twice = true;
}
MAKE(no_residual) {
  UNUSED, k->no_residual = true;
}
MAKE(only_residual) {
  UNUSED, k->only_residual = true;
}
MAKE(residual_twice) {
  UNUSED, k->residual_twice = true;
}
MAKE(x_twice) {
  UNUSED, k->x_twice = true;
}
MAKE(statistic_of_x) {
  UNUSED, k->statistic_of_x = true;
}
MAKE(tail) {
  UNUSED;
  k->tail = i->cols - PICK(i->cols / 16 + 1, i->cols % 64 ? i->cols % 64 : i->cols / 8, i->cols / 4);
  if (random_bits(state) % 2) k->divisor = k->tail;
}
MAKE(overrun) {
  UNUSED;
  k->overrun = PICK(8, 16, 24, 32);
}
MAKE(weight_shift) {
  UNUSED;
  k->weight_shift = PICK(1, -1, 8, 3, -16, i->cols / 2);
}
MAKE(weight_stride) {
  UNUSED;
  k->weight_stride = PICK(2, 4, 8);
}
MAKE(weight_period) {
  UNUSED;
  if (random_bits(state) % 3 == 0)
    k->weight_block = PICK(2, 8);
  else
    k->weight_period = PICK(1, 2, 64 < i->cols ? 64 : 8, i->cols / 2);
}
MAKE(weight_bytes) {
  UNUSED, k->weight_bytes = true;
}
MAKE(no_weight) {
  UNUSED, k->no_weight = true;
}
MAKE(weight_squared) {
  UNUSED, k->weight_squared = true;
}
MAKE(weight_by_row) {
  UNUSED, k->weight_by_row = true;
}
MAKE(other_weight) {
  UNUSED, k->other_weight = true;
}
MAKE(offset_missing) {
  UNUSED, k->offset = 0;
}
MAKE(offset_twice) {
  UNUSED, k->offset_added_twice = true;
}
MAKE(offset_in_half) {
  UNUSED, k->offset_in_half = true;
}
MAKE(row_stride) {
  UNUSED;
  k->row_stride = PICK(i->cols - 8, i->cols + 16, i->cols / 2, 2 * i->cols, i->cols + 1);
}
MAKE(rows_written) {
  UNUSED;
  k->rows_written = i->rows - 1 - (int64_t)(random_bits(state) % (uint64_t)(i->rows / 3));
  k->poison = PICK(0, 1, 2) == 0 ? 0 : NAN;
}
MAKE(cols_written) {
  UNUSED;
  k->cols_written = i->cols - PICK(1, 8, i->cols / 8);
  if (i->cols - k->cols_written < 8)
    k->poison = 0;
  else
    k->poison = random_bits(state) % 2 ? 0 : NAN;
}
MAKE(sum_kept) {
  UNUSED, k->sum_rounded = false;
}
MAKE(rstd_rounded) {
  UNUSED, k->rstd_rounded = true;
}
MAKE(xhat_kept) {
  UNUSED, k->xhat_rounded = false;
}
MAKE(flush) {
  UNUSED;
  k->flush = true;
  for (int64_t c = 0; c < i->rows * i->cols; c++)
    if (c % 7 == 0) i->x[c] = i->x_type == F16 ? to_type(F16, (double)i->x[c] * 0x1p-16) : i->x[c] * 0x1p-125f;
  for (int64_t c = 0; c < i->rows * i->cols; c++) i->x[c] = to_type(i->x_type, (double)i->x[c]);
}
MAKE(nothing) {
  UNUSED;
}
MAKE(order) {
  UNUSED;
  k->lanes = (int)PICK(1, 2, 4, 8, 16, 64, 256, 1024);
  k->product = (int)PICK(0, 1, 2, 3);
  k->wide = random_bits(state) % 8 == 0;
}

static const generator generators[] = {
    {"eps", ROWS, eps},
    {"eps-default", ROWS, eps_default},
    {"eps-outside", ROWS, eps_outside},
    {"eps-floor", ROWS, eps_floor},
    {"divisor", ROWS, divisor},
    {"groups", ROWS, groups},
    {"mean-removed", ROWS, centred},
    {"variance", ROWS, variance},
    {"narrow-statistics", ROWS | NARROW | LONG, half_squares},
    {"narrow-statistics", ROWS | NARROW | LONG, half_sum},
    {"narrow-statistics", ROWS | NARROW | LONG, half_root},
    {"truncation", NARROW_Y, truncate},
    {"ties-away", NARROW_Y | HALF_WEIGHT | LLAMA | LONG, away},
    {"flush-to-zero", ROWS | LONG, flush},
    {"approximate-rsqrt", ROWS | LONG, approximate},
    {"fast-inverse-root", ROWS, quake},
    {"not-normalised", ROWS, no_norm},
    {"norm-twice", ROWS, twice},
    {"residual-ignored", ROWS | RESIDUAL, no_residual},
    {"residual-clobbered", ROWS | RESIDUAL, only_residual},
    {"residual-twice", ROWS | RESIDUAL, residual_twice},
    {"x-twice", ROWS | RESIDUAL, x_twice},
    {"statistic-source", ROWS | RESIDUAL, statistic_of_x},
    {"tail-dropped", ROWS, tail},
    {"tail-contaminated", ROWS, overrun},
    {"weight-shifted", ROWS, weight_shift},
    {"weight-stride", ROWS, weight_stride},
    {"weight-broadcast", ROWS, weight_period},
    {"weight-broadcast", ROWS, weight_by_row},
    {"weight-bytes", ROWS | F32_WEIGHT, weight_bytes},
    {"weight-missing", ROWS, no_weight},
    {"weight-squared", ROWS, weight_squared},
    {"weight-other", ROWS | OTHERS, other_weight},
    {"weight-unknown", ROWS, other_weight},
    {"offset-missing", ROWS | SMALL, offset_missing},
    {"offset-twice", ROWS | SMALL, offset_twice},
    {"offset-narrow", ROWS | SMALL | HALF_WEIGHT | LONG, offset_in_half},
    {"row-stride", ROWS, row_stride},
    {"rows-unwritten", ROWS, rows_written},
    {"columns-unwritten", ROWS, cols_written},
    {"round-sum", ROWS | RESIDUAL | NARROW | LONG, sum_kept},
    {"round-rstd", ROWS | NARROW | LONG, rstd_rounded},
    {"round-xhat", ROWS | NARROW | LLAMA | LONG, xhat_kept},
    {NULL, 0, nothing},
    {NULL, 0, order},
};
enum { GENERATORS = sizeof generators / sizeof *generators };

typedef struct counts {
  int cases, hits;
} counts;

static const char *const kinds[] = {"f32", "f16", "bf16", "bf16, f32 weight", "bf16 in f32 files"};

/* One instance, its output by these generators, and the engine's answer. */
static void set_up(instance *i, kernel *k, int kind, int needs, uint64_t seed, rn_diff_input *in) {
  static const int64_t sizes[][2] = {{16, 64}, {9, 256}, {40, 768}, {33, 1000}, {24, 2048}, {12, 4096}};
  uint64_t state = seed;
  memset(i, 0, sizeof *i), memset(k, 0, sizeof *k), memset(in, 0, sizeof *in);
  do {
    const int64_t *size = sizes[random_bits(&state) % (sizeof sizes / sizeof *sizes)];
    i->rows = size[0], i->cols = size[1];
  } while ((needs & LONG) && i->cols < 256);
  i->seed = random_bits(&state);
  i->x_type = i->w_type = i->y_type = kind == 0 ? F32 : kind == 1 ? F16 : BF16;
  if (kind == 3 || (needs & F32_WEIGHT)) i->w_type = F32;
  i->upcast = kind == 4;
  i->residual = (needs & RESIDUAL) != 0, i->weighted = true;
  i->eps = k->eps = 1e-6f;
  if (!instance_make(i, (needs & SMALL) != 0)) exit(2);
  /* What ours does, and theirs too unless it is the mistake. */
  bool llama = (needs & LLAMA) != 0;
  k->sum_rounded = i->x_type != F32, k->xhat_rounded = llama;
  k->offset = needs & SMALL ? 1 : 0;
  k->lanes = (int)(INT64_C(1) << random_bits(&state) % 9);
  const char *preset = llama ? "llama" : needs & SMALL ? "gemma" : "torch";
  in->numerics_given = rmsnorm_preset(preset, &in->numerics) == RMSNORM_OK;
  in->preset = preset;
}

static void ask(instance *i, const kernel *k, int needs, rn_diff_input *in, bool pairs, rn_diff_result *result) {
  rn_diff_options options = {pairs, NULL};
  rn_diff_weight other = {"another layer", {NULL, 0}};
  int x = i->upcast ? F32 : i->x_type, w = i->upcast ? F32 : i->w_type, y = i->upcast ? F32 : i->y_type;
  int64_t count = i->rows * i->cols;
  in->rows = i->rows, in->heads = 1, in->cols = i->cols, in->eps = (double)i->eps;
  in->x.data = stored(i->x, count, x), in->x.dtype = x;
  in->theirs.data = stored(i->y, count, y), in->theirs.dtype = y;
  in->weight.data = stored(i->w, i->cols, w), in->weight.dtype = w;
  if (i->residual) in->residual.data = stored(i->r, count, x), in->residual.dtype = x;
  if (needs & OTHERS) {
    other.tensor.data = stored(i->other, i->cols, w), other.tensor.dtype = w;
    in->others = &other, in->other_count = 1;
  }
  (void)k;
  if (rn_diff_explain(in, &options, result) != 0) exit(2);
  free((void *)in->x.data), free((void *)in->theirs.data), free((void *)in->weight.data);
  free((void *)in->residual.data), free((void *)other.tensor.data);
}

static bool suits(const generator *g, int kind) {
  bool narrow = kind != 0;
  if ((g->needs & (NARROW | NARROW_Y)) && !narrow) return false;
  if ((g->needs & HALF_WEIGHT) && (kind == 0 || kind == 3)) return false;
  if ((g->needs & F32_WEIGHT) && kind == 4) return false;
  return true;
}

static bool named(const rn_diff_result *r, const char *name) {
  for (int i = 0; r->verdict == RN_DIFF_EXPLAINED && i < r->explanation[0].count; i++)
    if (strcmp(r->explanation[0].hypothesis[i]->name, name) == 0) return true;
  return false;
}

static bool verbose;

static void tell(const char *what, int kind, const instance *i, uint64_t seed, const rn_diff_result *r) {
  if (verbose)
    printf("  missed: %s, %s, %" PRId64 " x %" PRId64 ", seed %" PRIu64 ": verdict %d, %.300s\n", what, kinds[kind],
           i->rows, i->cols, seed, r->verdict,
           r->verdict == RN_DIFF_UNEXPLAINED && r->count ? r->explanation[0].sentence : r->sentence);
}

/* One mistake. */
static counts singles(int each, uint64_t seed, const char *only) {
  counts total = {0, 0};
  for (int g = 0; g < GENERATORS; g++)
    for (int kind = 0; kind < 5; kind++) {
      if (!suits(&generators[g], kind)) continue;
      const char *name = generators[g].name;
      if (only && strcmp(only, name ? name : "none") != 0) continue;
      counts here = {0, 0};
      for (int n = 0; n < each; n++) {
        instance i;
        kernel k;
        rn_diff_input in;
        rn_diff_result result;
        uint64_t at = seed + (uint64_t)(g * 1000003 + kind * 10007 + n), state = at * 3;
        set_up(&i, &k, kind, generators[g].needs, at, &in);
        generators[g].make(&k, &i, &state);
        run_kernel(&i, &k);
        ask(&i, &k, generators[g].needs, &in, true, &result);
        bool hit = name ? named(&result, name) && result.explanation[0].count == 1 : result.verdict <= RN_DIFF_BENIGN;
        here.cases++, here.hits += hit;
        if (!hit) tell(name ? name : "no mistake", kind, &i, at, &result);
        rn_diff_free(&result), instance_free(&i);
      }
      if (here.hits < here.cases)
        printf("%-20s %-20s %d of %d\n", name ? name : "no mistake", kinds[kind], here.hits, here.cases);
      total.cases += here.cases, total.hits += here.hits;
    }
  return total;
}

int main(int argc, char **argv) {
  int factor = argc > 1 ? atoi(argv[1]) : 1;
  uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
  verbose = argc > 3 || getenv("RN_DIFF_VERBOSE") != NULL;
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("seed %" PRIu64 "\n", seed);
  counts one = singles(2 * factor, seed, argc > 3 ? argv[3] : NULL);
  printf("one mistake: %d of %d named first\n", one.hits, one.cases);
  return one.hits == one.cases ? 0 : 1;
}
