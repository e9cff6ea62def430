/* check_shapes.c - the cases of the family "shapes": problems of the sizes and layouts between which kernels for a GPU
 * are chosen. Lanes, steps, warps, blocks, clusters: every choice depends on cols, rows and alignment, so rows of all
 * lengths from one warp's to a cluster's are met with few and with many rows, in every type and for every operation.
 *
 * Only the bits are compared: other families have judged such values. Of the first cases those with many rows have few
 * that exist, by a number on the device; later cases have them all.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "checking.h"

#define COUNT(a) ((int64_t)(sizeof(a) / sizeof((a)[0])))

typedef enum kind {
  PLAIN,  /* forward */
  STORED, /* with residual: the stored sum is normalised */
  EXACT,  /* the float32 sum is */
  QUANTISED,
  QUANTISED_ADDS, /* with residual, either way */
  DX,             /* backward: outputs; _ADDS: with dresidual_out */
  DX_ADDS,
  DWEIGHT,
  BOTH,
  BOTH_ADDS,
  KINDS,
  STATS = KINDS
} kind;
enum { TYPES = 3, FORWARD_SUMS = 3 };
static const int types[TYPES] = {RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16, RMSNORM_DTYPE_F32};

/* An odd number of rows, so that an index that loses a power of two meets other values. */
enum { PERIOD = 127 };

/* Few rows of each of these, in every type and kind. W(cols) is 64 up to 511 columns, then doubles with them; a row has
 * 1 to 8 steps of W there, and 4 to 8 beyond. */
static const int64_t few[] = {8,    64,   104,  128,   200,   256,   384,   504,   512,  640,
                              768,  1000, 1024, 1280,  1536,  2040,  2048,  2560,  3072, 4088,
                              4096, 5120, 8192, 12288, 16376, 16384, 20480, 32768, 49152};
/* Likewise, of widths that leave only the general kernels; here with STATS. */
static const int64_t odd[] = {63, 1001, 8193};
/* The longest ones cost much: each in one type and kind after the other. */
static const int64_t longest[] = {98304, 131072, 196600, 262144, 400000, 524288};

typedef struct edge {
  int64_t cols, rows;
  int multiprocessors, offset;
} edge;
/* Forward: just past the numbers of rows at which kernels change; misaligned rows of several threads' width. */
static const edge many[] = {
    {64, 2049, 0, 0},   {128, 2050, 0, 0}, {200, 2051, 0, 0}, {384, 2049, 0, 0}, {512, 2052, 0, 0}, {768, 2053, 0, 0},
    {1000, 2049, 0, 0}, {1024, 300, 0, 0}, {1536, 265, 0, 0}, {2040, 301, 0, 0}, {2048, 300, 0, 0}, {3072, 265, 0, 0},
    {4088, 299, 0, 0},  {32768, 65, 0, 0}, {8192, 5, 0, 2},   {5122, 3, 0, 0},   {6146, 17, 5, 2},  {24578, 3, 0, 2},
    {40960, 65, 0, 0},  {8192, 17, 0, 0},  {12280, 18, 0, 0}, {14336, 17, 0, 0}, {65536, 66, 3, 0}};
/* Rows long and many enough for rings of bulk copies; fewer multiprocessors make for smaller clusters. */
static const edge ring[] = {{12288, 515, 0, 0}, {16384, 513, 0, 0}, {20480, 514, 0, 0}, {32768, 512, 2, 0}};
static const edge long_ring[] = {{32768, 515, 0, 0}, {24576, 517, 7, 0}, {40960, 513, 0, 0},
                                 {65536, 514, 0, 0}, {98304, 513, 0, 0}, {131072, 512, 0, 0}};
/* Backward: more rows than one launch does at once. */
static const edge backward[] = {{8, 2049, 0, 0},   {64, 257, 0, 0},   {128, 300, 0, 0},  {200, 2049, 0, 0},
                                {384, 301, 37, 0}, {504, 300, 0, 0},  {512, 513, 0, 0},  {768, 300, 3, 0},
                                {1000, 257, 0, 0}, {1024, 259, 0, 0}, {1536, 300, 0, 0}, {2040, 257, 0, 0},
                                {2048, 299, 0, 0}, {3072, 257, 1, 0}, {4088, 257, 0, 0}, {4096, 260, 0, 0},
                                {7168, 257, 0, 0}, {8192, 257, 0, 0}, {12288, 24, 20, 0}};

/* Where the parts of the family begin. */
enum {
  FEW_ROWS = 0,
  ODD = FEW_ROWS + (int)(sizeof few / sizeof *few) * TYPES * KINDS,
  MANY_LIVE = ODD + (int)(sizeof odd / sizeof *odd) * TYPES * (KINDS + 1),
  RING_LIVE = MANY_LIVE + (int)(sizeof many / sizeof *many) * TYPES * FORWARD_SUMS,
  BACKWARD = RING_LIVE + (int)(sizeof ring / sizeof *ring) * TYPES * 2,
  LONGEST = BACKWARD + (int)(sizeof backward / sizeof *backward) * TYPES * 2,
  MANY = LONGEST + (int)(sizeof longest / sizeof *longest) * KINDS,
  RING = MANY + (int)(sizeof many / sizeof *many) * TYPES * FORWARD_SUMS,
  LONG_RING = RING + (int)(sizeof ring / sizeof *ring) * TYPES * 2,
  RANDOM = LONG_RING + (int)(sizeof long_ring / sizeof *long_ring) * 2,
  RANDOMS = 900
};
const int64_t rn_shape_cases[RN_LEVELS] = {LONGEST, RANDOM + RANDOMS, RANDOM + 20 * RANDOMS};

static bool is_forward(kind k) {
  return k < DX;
}

static void set_kind(rn_case *c, kind k, int64_t i) {
  int type = c->dtype[RN_X];
  c->op = is_forward(k) ? RMSNORM_OP_FORWARD : k == STATS ? RMSNORM_OP_STATS : RMSNORM_OP_BACKWARD;
  c->want = k == DX || k == DX_ADDS ? 1u << RN_DX : k == DWEIGHT ? 1u << RN_DWEIGHT : 1u << RN_DX | 1u << RN_DWEIGHT;
  if (is_forward(k)) c->want = 1u << RN_Y | (uint32_t)(i % 2) << RN_RSTD;
  if (k == STORED || k == EXACT || k == QUANTISED_ADDS) {
    c->dtype[RN_RESIDUAL] = c->dtype[RN_SUM] = type;
    c->numerics.round_sum =
        k == STORED || (k == QUANTISED_ADDS && i / 4 % 2) ? RMSNORM_ROUND_STORED : RMSNORM_ROUND_NONE;
  }
  if (k == QUANTISED || k == QUANTISED_ADDS) {
    static const int formats[] = {RMSNORM_DTYPE_FP8_E4M3, RMSNORM_DTYPE_FP8_E5M2, RMSNORM_DTYPE_INT8};
    c->quant.granularity = RMSNORM_QUANT_TENSOR + (int)(i % 4);
    c->dtype[RN_Q] = formats[i % 4 == 3 ? i / 4 % 2 : i / 4 % 3];
    if (c->quant.granularity == RMSNORM_QUANT_BLOCK) c->quant.block_cols = i % 3 ? 128 : 64;
    if (i % 5) c->want &= ~(1u << RN_Y);
  }
  if (k == DX_ADDS || k == BOTH_ADDS) c->dtype[RN_DSUM] = type;
  if (k == BOTH && i % 3 == 0) c->dtype[RN_DWEIGHT] = RMSNORM_DTYPE_F32;
  c->saved_rstd = !is_forward(k) && i % 2;
}

/* Outputs that take the place of inputs. Of few rows dx and dweight have kernels of their own while they stay apart. */
static void set_places(rn_case *c, kind k, int64_t i, bool apart) {
  static const int forward[][2] = {{-1, -1}, {RN_X, -1}, {RN_X, RN_RESIDUAL}, {RN_RESIDUAL, RN_X}, {-1, RN_RESIDUAL}};
  const int *f = forward[i % COUNT(forward)];
  if (is_forward(k) && k < QUANTISED) c->alias[RN_Y] = f[0], c->alias[RN_SUM] = f[1];
  if (k == DX || k == DX_ADDS) c->alias[RN_DX] = i % 4 == 1 ? RN_X : i % 4 == 2 ? RN_DY : i % 4 == 3 ? RN_DSUM : -1;
  if ((k == BOTH || k == BOTH_ADDS) && !apart) c->alias[RN_DX] = i % 2 ? RN_DY : RN_X;
}

/* All strides and bases stay multiples of `run` elements. */
static void set_layouts(rn_case *c, int layout, int run, int64_t i) {
  for (int t = 0; t < RN_TENSORS; t++) {
    rn_layout *l = &c->layout[t];
    l->kind = rn_tensor_is_strided(t) ? layout : RN_LAYOUT_PACKED;
    l->pad = run * (2 + 2 * (int)((i + t) % 3));
    l->at_end = (i + t) % 3 == 0;
  }
}

static void shape_of(rn_shape *s, const edge *e, int64_t i, bool live) {
  s->c.cols = e->cols, s->c.rows = e->rows, s->multiprocessors = e->multiprocessors;
  if (live && e->rows > 200) s->live_rows = 61 + i % 7;
  if (live && e->rows > 60 && e->cols > 8192) s->live_rows = 9 + i % 3;
  for (int t = 0; e->offset && t < RN_TENSORS; t++) s->c.layout[t].offset = e->offset, s->c.layout[t].at_end = false;
}

/* Any shape: a power of two of lanes, some steps of them, not more than some millions of elements. */
static void random_shape(rn_shape *s, int64_t i, rn_random *r) {
  static const int64_t rows[] = {1, 1, 2, 3, 5, 16, 17, 64, 65, 129, 256, 257, 300, 700, 2049, 5000};
  static const int most[] = {0, 0, 0, 0, 1, 3, 16, 64};
  static const int runs[] = {8, 8, 8, 8, 4, 2, 1};
  const int64_t elements = (int64_t)3 << 20;
  rn_case *c = &s->c;
  int run = runs[rn_random_below(r, COUNT(runs))], wide = (int)rn_random_below(r, 11);
  int64_t lanes = (int64_t)64 << wide, steps = wide ? 4 + rn_random_below(r, 5) : 1 + rn_random_below(r, 8);
  int64_t cols = lanes * steps - (rn_random_below(r, 3) ? 0 : run * rn_random_below(r, lanes / run));
  int64_t count = rows[rn_random_below(r, COUNT(rows))] + (rn_random_below(r, 3) ? 0 : rn_random_below(r, 9));
  if (rn_random_below(r, 4) == 0) c->heads = 1 + rn_random_below(r, 5);
  if (rn_random_below(r, 6) == 0 && cols < 70000) c->groups = 2 + rn_random_below(r, 3);
  c->cols = (cols ? cols : run) * c->groups;
  count = (count + c->heads - 1) / c->heads;
  while (count > 1 && count * c->heads * c->cols > elements) count = count * 2 / 3;
  c->rows = count;
  if (c->heads > 1 && rn_random_below(r, 2)) c->weight_shape = RMSNORM_WEIGHT_HEADS_COLS;
  if (c->groups > 1 && rn_random_below(r, 2)) c->weight_shape = RMSNORM_WEIGHT_GROUP;
  if (rn_random_below(r, 4) == 0) c->dtype[RN_WEIGHT] = rn_random_below(r, 4) ? RMSNORM_DTYPE_F32 : 0;
  if (rn_random_below(r, 4) == 0) c->numerics.round_xhat = RMSNORM_ROUND_X;
  if (rn_random_below(r, 8) == 0) c->numerics.round_rstd = RMSNORM_ROUND_X;
  if (rn_random_below(r, 4) == 0) c->numerics.weight_offset = 1;
  if (rn_random_below(r, 3) == 0) c->divisor = c->cols / c->groups + 3;
  s->multiprocessors = most[rn_random_below(r, COUNT(most))];
  int layouts[] = {RN_LAYOUT_PACKED, RN_LAYOUT_PADDED, RN_LAYOUT_SLICE, RN_LAYOUT_HEADS, RN_LAYOUT_BACKWARDS};
  set_layouts(c, layouts[rn_random_below(r, COUNT(layouts))], run, i);
  for (int t = 0; t < RN_TENSORS && rn_random_below(r, 2); t++)
    c->layout[t].offset = run * (int)rn_random_below(r, 5), c->layout[t].at_end = false;
}

void rn_shape_make(rn_shape *s, const char *family, int64_t index, uint64_t seed) {
  int64_t i = index - (index < ODD         ? FEW_ROWS
                       : index < MANY_LIVE ? ODD
                       : index < RING_LIVE ? MANY_LIVE
                       : index < BACKWARD  ? RING_LIVE
                       : index < LONGEST   ? BACKWARD
                       : index < MANY      ? LONGEST
                       : index < RING      ? MANY
                       : index < LONG_RING ? RING
                       : index < RANDOM    ? LONG_RING
                                           : RANDOM);
  kind k;
  int64_t at;
  rn_case *c = &s->c;
  rn_random r = {seed * 77 + (uint64_t)index * 0x9e3779b97f4a7c15u};
  rn_case_usual(c, family, index, types[i % TYPES], seed);
  c->unjudged = true, c->period = PERIOD;
  c->data = index % 4 == 0 ? RN_DATA_SOME : RN_DATA_NORMAL;
  s->live_rows = -1, s->multiprocessors = 0;
  at = i / TYPES;
  set_layouts(c, index % 3 == 1 ? RN_LAYOUT_PADDED : RN_LAYOUT_PACKED, 8, index);
  if (index < ODD) {
    k = (kind)(at % KINDS);
    c->cols = few[at / KINDS], c->rows = c->cols > 10000 ? 1 + index % 2 : 1 + index % 4 + (c->cols < 1000 ? 3 : 0);
  } else if (index < MANY_LIVE) {
    k = (kind)(at % (KINDS + 1));
    c->cols = odd[at / (KINDS + 1)], c->rows = c->cols < 100 ? 130 : 2 + index % 4;
  } else if (index < RING_LIVE || (index >= MANY && index < RING)) {
    k = (kind)(at % FORWARD_SUMS);
    shape_of(s, &many[at / FORWARD_SUMS], i, index < RING_LIVE);
  } else if (index < BACKWARD || (index >= RING && index < LONG_RING)) {
    k = at % 2 ? STORED : PLAIN;
    shape_of(s, &ring[at / 2], i, index < BACKWARD);
  } else if (index < LONGEST) {
    k = at % 2 ? BOTH_ADDS : BOTH;
    shape_of(s, &backward[at / 2], i, false);
  } else if (index < MANY) {
    k = (kind)(i % KINDS);
    rn_case_usual(c, family, index, types[(i + i / KINDS) % TYPES], seed);
    c->unjudged = true;
    c->cols = longest[i / KINDS], c->rows = 1 + index % 7;
  } else if (index < RANDOM) {
    k = i % 2 ? STORED : PLAIN;
    rn_case_usual(c, family, index, types[i / 2 % TYPES], seed);
    c->unjudged = true, c->period = PERIOD;
    shape_of(s, &long_ring[i / 2], i, false);
  } else {
    k = (kind)rn_random_below(&r, KINDS);
    random_shape(s, index, &r);
  }
  set_kind(c, k, index / TYPES);
  set_places(c, k, index, index < BACKWARD || (index % 2 && c->rows > 200));
  rn_case_legalise(c);
}
