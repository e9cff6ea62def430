/* test_diff.c - how often `rmsnorm diff` names the mistake, and how often it names one where there is none. Every entry
 * of the catalogue has a generator here; outputs come from the plain kernel of test_diff_kernel.c.
 *
 *   test_diff [FACTOR [SEED [NAME]]]
 *
 * FACTOR says how many cases: 1 is the usual run; 0 a brief one, for instrumented and emulated builds; 35 that of
 * docs/diagnosis.md (10500 cases without a mistake). NAME: that hypothesis alone, or none, singles, gradients,
 * quantised, pairs, false.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "test_diff.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct generator {
  const char *name; /* of the hypothesis that has to be found; NULL: none */
  int needs;
  void (*make)(kernel *k, instance *i, uint64_t *state);
  int group; /* two mistakes are taken from two groups; ALONE: it leaves nothing to see of another */
} generator;
enum { STATISTIC, INPUT, WEIGHT, ROUNDING, COVERAGE, ALONE };

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
  UNUSED;
  k->weight_by_caller = i->seed % 2; /* half of them: y is multiplied, after it was rounded */
  k->weight_squared = !k->weight_by_caller;
  for (int64_t c = 0; c < i->cols; c += 3) i->w[c] = -i->w[c]; /* a square has lost the sign */
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
MAKE(gate) {
  UNUSED;
  switch (random_bits(state) % 3) {
  case 0:
    k->gate = 0;
    break;
  case 1:
    k->gate = 2;
    break;
  default:
    k->gate_first = true;
  }
}
MAKE(groups_missing) {
  UNUSED, k->groups = 1;
}
MAKE(transposed) {
  UNUSED, k->transposed = true;
}
MAKE(zero_rows) {
  UNUSED;
  k->eps = i->eps = 0;
  for (int64_t row = 1; row < i->rows; row += 3) memset(i->x + row * i->cols, 0, (size_t)i->cols * sizeof *i->x);
}
MAKE(huge_rows) {
  UNUSED;
  for (int64_t e = 0; e < i->rows * i->cols; e++)
    if (e / i->cols % 4 == 2) i->x[e] = to_type(i->x_type, (double)i->x[e] * 0x1p70);
}
MAKE(normed_rounded) {
  UNUSED, k->normed_rounded = true;
}
MAKE(output_kept) {
  UNUSED, k->normed_rounded = false;
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
    {"eps", ROWS, eps, STATISTIC},
    {"eps-default", ROWS, eps_default, STATISTIC},
    {"eps-outside", ROWS, eps_outside, STATISTIC},
    {"eps-floor", ROWS, eps_floor, STATISTIC},
    {"divisor", ROWS, divisor, STATISTIC},
    {"groups", ROWS, groups, ALONE},
    {"mean-removed", ROWS, centred, INPUT},
    {"variance", ROWS, variance, STATISTIC},
    {"narrow-statistics", ROWS | NARROW | LONG, half_squares, ALONE},
    {"narrow-statistics", ROWS | NARROW | LONG, half_sum, ALONE},
    {"narrow-statistics", ROWS | NARROW | LONG, half_root, ALONE},
    {"truncation", NARROW_Y, truncate, ROUNDING},
    {"ties-away", NARROW_Y | HALF_WEIGHT | LLAMA | LONG, away, ALONE},
    {"flush-to-zero", ROWS | LONG, flush, ALONE},
    {"approximate-rsqrt", ROWS | LONG, approximate, ALONE},
    {"fast-inverse-root", ROWS, quake, ALONE},
    {"not-normalised", ROWS, no_norm, ALONE},
    {"norm-twice", ROWS, twice, ALONE},
    {"residual-ignored", ROWS | RESIDUAL, no_residual, INPUT},
    {"residual-clobbered", ROWS | RESIDUAL, only_residual, INPUT},
    {"residual-twice", ROWS | RESIDUAL, residual_twice, INPUT},
    {"x-twice", ROWS | RESIDUAL, x_twice, INPUT},
    {"statistic-source", ROWS | RESIDUAL, statistic_of_x, ALONE},
    {"tail-dropped", ROWS, tail, STATISTIC},
    {"tail-contaminated", ROWS, overrun, STATISTIC},
    {"weight-shifted", ROWS, weight_shift, WEIGHT},
    {"weight-stride", ROWS, weight_stride, WEIGHT},
    {"weight-broadcast", ROWS, weight_period, WEIGHT},
    {"weight-broadcast", ROWS, weight_by_row, WEIGHT},
    {"weight-bytes", ROWS | F32_WEIGHT, weight_bytes, WEIGHT},
    {"weight-missing", ROWS, no_weight, WEIGHT},
    {"weight-squared", ROWS, weight_squared, WEIGHT},
    {"weight-other", ROWS | OTHERS, other_weight, WEIGHT},
    {"weight-unknown", ROWS, other_weight, ALONE},
    {"offset-missing", ROWS | SMALL, offset_missing, WEIGHT},
    {"offset-twice", ROWS | SMALL, offset_twice, WEIGHT},
    {"offset-narrow", ROWS | SMALL | HALF_WEIGHT | LONG, offset_in_half, ALONE},
    {"row-stride", ROWS, row_stride, INPUT},
    {"rows-unwritten", ROWS, rows_written, COVERAGE},
    {"columns-unwritten", ROWS, cols_written, COVERAGE},
    {"round-sum", ROWS | RESIDUAL | NARROW | LONG, sum_kept, ROUNDING},
    {"round-rstd", ROWS | NARROW | LONG, rstd_rounded, ALONE},
    {"round-xhat", ROWS | NARROW | LLAMA | LONG, xhat_kept, ROUNDING},
    {"gate", ROWS | GATED, gate, INPUT},
    {"groups-missing", ROWS | GROUPED, groups_missing, ALONE},
    {"heads-transposed", ROWS | HEADS, transposed, INPUT},
    {"zero-row", ROWS, zero_rows, ALONE},
    {"float32-overflow", ROWS | NOT_F16, huge_rows, ALONE},
    {"round-normed", ROWS | GATED | NARROW | LONG, normed_rounded, ROUNDING},
    {"output-type", ROWS | NARROW | WIDE_Y | NORMED | NO_UPCAST, output_kept, ALONE},
    {NULL, 0, nothing, ALONE},
    {NULL, 0, order, ALONE},
    {NULL, GATED | GROUPED | HEADS, nothing, ALONE},
};
enum { GENERATORS = sizeof generators / sizeof *generators };

static const char *const kinds[] = {"f32", "f16", "bf16", "bf16, f32 weight", "bf16 in f32 files"};

void set_up(instance *i, kernel *k, int kind, int needs, uint64_t seed, rn_diff_input *in) {
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
  if (needs & WIDE_Y) i->y_type = F32;
  i->residual = (needs & RESIDUAL) != 0, i->weighted = true;
  i->heads = needs & HEADS ? 4 : 1, i->groups = needs & GROUPED ? 4 : 1;
  i->rows -= i->rows % i->heads;
  i->eps = k->eps = 1e-6f;
  if (!instance_make(i, (needs & SMALL) != 0)) exit(2);
  /* What ours does, and theirs too unless it is the mistake. */
  bool llama = (needs & LLAMA) != 0;
  k->sum_rounded = i->x_type != F32, k->xhat_rounded = llama;
  k->offset = needs & SMALL ? 1 : 0;
  k->groups = i->groups, k->gate = needs & GATED ? 1 : 0, k->normed_rounded = (needs & NORMED) != 0;
  k->lanes = (int)(INT64_C(1) << random_bits(&state) % 9);
  const char *preset = llama ? "llama" : needs & SMALL ? "gemma" : "torch";
  in->numerics_given = rmsnorm_preset(preset, &in->numerics) == RMSNORM_OK;
  in->preset = preset;
  if (llama && (needs & SMALL)) in->numerics.weight_offset = 1;
  if (needs & GATED) in->numerics.round_normed = RMSNORM_ROUND_NONE;
  if (needs & GATED) in->numerics.gate = RMSNORM_GATE_SILU, in->numerics.gate_place = RMSNORM_GATE_AFTER;
  if (needs & NORMED) in->numerics.round_normed = RMSNORM_ROUND_X;
}

static void ask(instance *i, const kernel *k, int needs, rn_diff_input *in, bool pairs, rn_diff_result *result) {
  rn_diff_options options = {pairs, NULL};
  rn_diff_weight other = {"another layer", {NULL, 0}};
  int x = i->upcast ? F32 : i->x_type, w = i->upcast ? F32 : i->w_type, y = i->upcast ? F32 : i->y_type;
  int64_t count = i->rows * i->cols;
  in->rows = i->rows / i->heads, in->heads = i->heads, in->cols = i->cols, in->eps = (double)i->eps;
  in->groups = i->groups;
  if (in->numerics.gate) in->gate.data = stored(i->gate, count, x), in->gate.dtype = x;
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
  free((void *)in->residual.data), free((void *)in->gate.data), free((void *)other.tensor.data);
}

static bool suits(const generator *g, int kind) {
  bool narrow = kind != 0;
  if ((g->needs & (NARROW | NARROW_Y)) && !narrow) return false;
  if ((g->needs & HALF_WEIGHT) && (kind == 0 || kind == 3)) return false;
  if ((g->needs & (F32_WEIGHT | NO_UPCAST)) && kind == 4) return false;
  if ((g->needs & NOT_F16) && kind == 1) return false;
  return true;
}

bool named(const rn_diff_result *r, const char *name) {
  for (int i = 0; r->verdict == RN_DIFF_EXPLAINED && i < r->explanation[0].count; i++)
    if (strcmp(r->explanation[0].hypothesis[i]->name, name) == 0) return true;
  return false;
}

static bool verbose, brief;

void tell(const char *what, int kind, const instance *i, uint64_t seed, const rn_diff_result *r) {
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
      if (!suits(&generators[g], kind) || (brief && (g + kind) % 4 != 0)) continue;
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

/* An eps of 0 is not the machine epsilon of a type, and two mistakes free to choose their numbers explain any one row.
 */
static counts cautious(int count, uint64_t seed) {
  counts total = {0, 0};
  for (int n = 0; n < count; n++) {
    instance i;
    kernel k;
    rn_diff_input in;
    rn_diff_result result;
    bool row = n % 2;
    set_up(&i, &k, n % 3 ? 4 : 0, row ? LLAMA : ROWS, seed + (uint64_t)n, &in);
    if (row) i.rows = 1;
    k.eps = row ? 3e-3f : 0;
    run_kernel(&i, &k);
    ask(&i, &k, 0, &in, true, &result);
    bool hit =
        row ? result.verdict != RN_DIFF_EXPLAINED || result.explanation[0].count < 2 : !named(&result, "eps-default");
    if (!hit) tell(row ? "one row" : "eps of 0", 0, &i, seed + (uint64_t)n, &result);
    total.cases++, total.hits += hit;
    rn_diff_free(&result), instance_free(&i);
  }
  return total;
}

/* ---- two mistakes ---- */

/* Without a residual in the sum its rounding can not be seen, nor that of x-hat without a weight, nor that of the
 * weighted value without a gate behind it; what has no mean has one variance. */
static bool hides(const char *a, const char *b) {
  static const char *const hidden[][2] = {{"residual-ignored", "round-sum"},
                                          {"residual-clobbered", "round-sum"},
                                          {"weight-missing", "round-xhat"},
                                          {"gate", "round-normed"},
                                          {"mean-removed", "variance"}};
  for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
    if ((strcmp(a, hidden[i][0]) == 0 && strcmp(b, hidden[i][1]) == 0) ||
        (strcmp(b, hidden[i][0]) == 0 && strcmp(a, hidden[i][1]) == 0))
      return true;
  return false;
}

static counts pairs(int count, uint64_t seed) {
  counts total = {0, 0};
  uint64_t state = seed * 77 + 5;
  while (total.cases < count) {
    const generator *a = &generators[random_bits(&state) % GENERATORS],
                    *b = &generators[random_bits(&state) % GENERATORS];
    int kind = (int)(random_bits(&state) % 5), needs = a->needs | b->needs;
    uint64_t at = random_bits(&state);
    /* Of the same kind, one would undo the other or they can not both be seen. */
    if (a->name && b->name && hides(a->name, b->name)) continue;
    if (!a->name || !b->name || a->group == b->group || a->group == ALONE || b->group == ALONE) continue;
    if (!suits(a, kind) || !suits(b, kind) || ((needs & F32_WEIGHT) && (needs & HALF_WEIGHT))) continue;
    instance i;
    kernel k;
    rn_diff_input in;
    rn_diff_result result;
    set_up(&i, &k, kind, needs, at, &in);
    a->make(&k, &i, &state), b->make(&k, &i, &state);
    run_kernel(&i, &k);
    ask(&i, &k, needs, &in, true, &result);
    bool hit = named(&result, a->name) && named(&result, b->name);
    char both[80];
    snprintf(both, sizeof both, "%s + %s", a->name, b->name);
    total.cases++, total.hits += hit;
    if (!hit) tell(both, kind, &i, at, &result);
    rn_diff_free(&result), instance_free(&i);
  }
  return total;
}

/* ---- none: noise, unrelated tensors, other orders ---- */

static const char *const innocents[] = {
    "noise on every element",    "noise on some elements",     "one element wrong", "an unrelated tensor",
    "elements in another order", "another order of summation", "noise of one unit"};
enum { INNOCENTS = sizeof innocents / sizeof *innocents };

static counts false_positives(int count, uint64_t seed) {
  counts total = {0, 0}, each[INNOCENTS] = {{0, 0}};
  uint64_t state = seed * 99 + 7;
  for (int n = 0; n < count; n++) {
    static const int64_t sizes[][2] = {{1, 64}, {4, 64}, {16, 64}, {9, 256}, {24, 200}, {3, 768}};
    const int64_t *size = sizes[random_bits(&state) % (sizeof sizes / sizeof *sizes)];
    int kind = (int)(random_bits(&state) % 5), what = (int)(random_bits(&state) % INNOCENTS);
    uint64_t at = random_bits(&state);
    instance i;
    kernel k;
    rn_diff_input in;
    rn_diff_result result;
    set_up(&i, &k, kind, random_bits(&state) % 2 ? RESIDUAL : 0, at, &in);
    instance_free(&i);
    i.rows = size[0], i.cols = size[1];
    if (!instance_make(&i, false)) exit(2);
    run_kernel(&i, &k);
    double noise = ldexp(1, -(int)(random_bits(&state) % 6)) * 0.1;
    /* Noise that can be seen: some units of the type of y at least. */
    int64_t elements = i.rows * i.cols, share = what == 1 ? 2 + (int64_t)(random_bits(&state) % 20) : 1;
    if (what <= 1)
      for (int64_t e = 0; e < elements; e += 1 + (int64_t)(random_bits(&state) % (uint64_t)share))
        i.y[e] = to_type(i.y_type, (double)i.y[e] * (1 + noise * random_normal(&state)));
    if (what == 2) {
      int64_t e = (int64_t)(random_bits(&state) % (uint64_t)elements);
      i.y[e] = to_type(i.y_type, (double)i.y[e] * 1.5 + 0.25);
    }
    if (what == 3)
      for (int64_t e = 0; e < elements; e++) i.y[e] = to_type(i.y_type, random_normal(&state));
    if (what == 4)
      for (int64_t e = elements - 1; e > 0; e--) { /* all elements shuffled */
        int64_t to = (int64_t)(random_bits(&state) % (uint64_t)(e + 1));
        float t = i.y[e];
        i.y[e] = i.y[to], i.y[to] = t;
      }
    if (what == 5) order(&k, &i, &state), run_kernel(&i, &k);
    /* In f32 a unit is what another order may cost; in a narrow type it is not. */
    double unit = i.y_type == F16 ? 0x1p-10 : i.y_type == BF16 ? 0x1p-7 : 0x1p-17;
    for (int64_t e = 0; what == 6 && e < elements; e++)
      i.y[e] = to_type(i.y_type, (double)i.y[e] * (1 + unit * ((double)(random_bits(&state) % 3) - 1)));
    ask(&i, &k, 0, &in, n % 8 == 0, &result);
    /* Noise may happen to change nothing, and a right result has to be called right. */
    bool wrong = result.verdict == RN_DIFF_EXPLAINED || (what == 5 && result.verdict == RN_DIFF_UNEXPLAINED);
    total.cases++, total.hits += wrong, each[what].cases++, each[what].hits += wrong;
    if (wrong) tell(innocents[what], kind, &i, at, &result);
    rn_diff_free(&result), instance_free(&i);
  }
  for (int w = 0; w < INNOCENTS; w++)
    printf("  %-28s %d of %d called something else\n", innocents[w], each[w].hits, each[w].cases);
  return total;
}

int main(int argc, char **argv) {
  int factor = argc > 1 ? atoi(argv[1]) : 1;
  uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
  const char *only = argc > 3 ? argv[3] : NULL;
  verbose = true, brief = factor == 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("seed %" PRIu64 "\n", seed);
  struct {
    const char *what;
    counts c;
    double least, most;
  } part[6] = {
      {"one mistake named first", {0, 0}, 0.99, 1},    {"gradients named first", {0, 0}, 1, 1},
      {"quantised outputs named first", {0, 0}, 1, 1}, {"two mistakes both named", {0, 0}, brief ? 0.5 : 0.9, 1},
      {"false explanations", {0, 0}, 0, 0.001},        {"cautious", {0, 0}, 1, 1}};
  bool all = !only;
  if (only && strcmp(only, "singles") == 0) part[0].c = singles(factor, seed, NULL);
  if (all || strcmp(only, "gradients") == 0) part[1].c = gradients(brief ? 1 : factor, seed);
  if (all || strcmp(only, "quantised") == 0) part[2].c = quantised(brief ? 1 : factor, seed);
  if (all || strcmp(only, "pairs") == 0) part[3].c = pairs(brief ? 4 : 20 * factor, seed);
  if (all || strcmp(only, "false") == 0) part[4].c = false_positives(brief ? 50 : 300 * factor, seed);
  if (all || strcmp(only, "cautious") == 0) part[5].c = cautious(brief ? 8 : 24 * factor, seed);
  if (all ||
      part[0].c.cases + part[1].c.cases + part[2].c.cases + part[3].c.cases + part[4].c.cases + part[5].c.cases == 0)
    part[0].c = singles(brief ? 1 : factor, seed, only);
  bool good = true;
  for (int p = 0; p < 6; p++) {
    double share = part[p].c.cases ? (double)part[p].c.hits / part[p].c.cases : part[p].least;
    bool fine = share >= part[p].least && share <= part[p].most;
    if (part[p].c.cases)
      printf("%-30s %d of %d, %.2f %%%s\n", part[p].what, part[p].c.hits, part[p].c.cases, 100 * share,
             fine ? "" : ": NOT ENOUGH");
    good = good && fine;
  }
  return good ? 0 : 1;
}
