/* cases.c - the families of cases and the numbers they are fed with.
 *
 * Every case starts as a random call over everything the interface offers; its family then pins what it is about.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cases.h"

#include "reference.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define COUNT(a) ((int64_t)(sizeof(a) / sizeof((a)[0])))

static const char *const tensor_names[RN_TENSORS] = {
    "x",       "residual",     "gate", "dy", "dresidual_out", "weight", "scale",     "sumsq", "rstd",  "dot",
    "y",       "residual_out", "q",    "dx", "dresidual",     "dgate",  "scale_out", "rstd",  "sumsq", "dweight",
    "dot_out", "workspace"};
const char *rn_tensor_name(int tensor) {
  return tensor_names[tensor];
}
bool rn_tensor_is_strided(int t) {
  return t <= RN_DSUM || (t >= RN_Y && t <= RN_DGATE);
}

/* ---- random numbers ---- */

uint64_t rn_random_next(rn_random *r) {
  uint64_t z = r->state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
int64_t rn_random_below(rn_random *r, int64_t n) {
  return (int64_t)(rn_random_next(r) % (uint64_t)n);
}

/* Twelve uniform numbers: no libm, so the same everywhere, and the tails do not matter here. */
double rn_random_normal(rn_random *r) {
  double sum = 0;
  for (int i = 0; i < 3; i++) {
    uint64_t v = rn_random_next(r);
    sum += (double)(v & 0xffff) + (double)(v >> 16 & 0xffff) + (double)(v >> 32 & 0xffff) + (double)(v >> 48);
  }
  return sum / 65536 - 6;
}

static bool chance(rn_random *r, int64_t one_in) {
  return rn_random_below(r, one_in) == 0;
}
static int pick(rn_random *r, const int *from, int64_t n) {
  return from[rn_random_below(r, n)];
}

/* ---- a random call ---- */

static const int floats[] = {RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16, RMSNORM_DTYPE_F32};
static int random_float(rn_random *r) {
  return pick(r, floats, COUNT(floats));
}

static rn_layout random_layout(rn_random *r, bool output) {
  static const int outputs[] = {RN_LAYOUT_PACKED, RN_LAYOUT_PACKED, RN_LAYOUT_PADDED,
                                RN_LAYOUT_SLICE,  RN_LAYOUT_HEADS,  RN_LAYOUT_BACKWARDS};
  rn_layout l;
  l.kind = !output && chance(r, 12) ? RN_LAYOUT_REPEATED : pick(r, outputs, COUNT(outputs));
  l.offset = chance(r, 2) ? 0 : (int)rn_random_below(r, 32);
  l.pad = 1 + (int)rn_random_below(r, 40);
  l.at_end = chance(r, 4);
  return l;
}

static rmsnorm_numerics random_numerics(rn_random *r) {
  static const float offsets[] = {0, 0, 0, 1, 1, -0.5f, 0.1f};
  rmsnorm_numerics n;
  memset(&n, 0, sizeof n);
  n.weight_offset = offsets[rn_random_below(r, COUNT(offsets))];
  n.round_sum = chance(r, 2) ? RMSNORM_ROUND_STORED : RMSNORM_ROUND_NONE;
  n.round_rstd = chance(r, 6) ? RMSNORM_ROUND_X : RMSNORM_ROUND_NONE;
  n.round_xhat = chance(r, 2) ? (int)rn_random_below(r, 4) : 0;
  n.round_normed = chance(r, 2) ? (int)rn_random_below(r, 4) : 0;
  n.gate = chance(r, 3) ? 1 + (int)rn_random_below(r, 2) : 0;
  n.gate_place = n.gate ? (int)rn_random_below(r, 2) : 0;
  return n;
}

static void random_quant(rn_random *r, rn_case *c, int granularity) {
  static const int formats[] = {RMSNORM_DTYPE_FP8_E4M3, RMSNORM_DTYPE_FP8_E5M2, RMSNORM_DTYPE_INT8};
  static const int blocks[] = {32, 64, 128};
  rmsnorm_quant *q = &c->quant;
  memset(q, 0, sizeof *q);
  q->granularity = granularity;
  c->dtype[RN_Q] = pick(r, formats, granularity == RMSNORM_QUANT_MX ? 2 : 3);
  q->scale_op = (int)rn_random_below(r, 2);
  if (granularity == RMSNORM_QUANT_BLOCK) q->block_cols = pick(r, blocks, COUNT(blocks));
  if (granularity >= RMSNORM_QUANT_BLOCK) {
    q->scale_layout = (int)rn_random_below(r, 2);
    if (chance(r, 2)) q->scale_stride = -(1 + rn_random_below(r, 9)); /* so many more than packed; resolved below */
  }
  if (granularity == RMSNORM_QUANT_MX) q->e8m0_rounding = (int)rn_random_below(r, 2);
  if ((granularity == RMSNORM_QUANT_ROW || granularity == RMSNORM_QUANT_BLOCK) && chance(r, 3))
    q->scale_max = chance(r, 2) ? 0x1.47ae14p-7f : 0x1p-12f;
}

static void random_case(rn_case *c, rn_random *r) {
  static const int64_t rows[] = {1, 1, 2, 3, 4, 7, 16, 17};
  static const double epsilons[] = {1e-6, 1e-5, 1e-6, 0, 1e-20, 0x1p-8, 1.0};
  static const int threads[] = {1, 1, 1, 0, 2, 7, -1, -3};
  c->rows = rows[rn_random_below(r, COUNT(rows))];
  c->heads = chance(r, 3) ? 1 + rn_random_below(r, 5) : 1;
  c->groups = chance(r, 4) ? 1 + rn_random_below(r, 4) : 1;
  c->cols = c->groups * (1 + rn_random_below(r, chance(r, 4) ? 700 : 140));
  c->divisor = chance(r, 6) ? c->cols + 1 + rn_random_below(r, 1000) : 0;
  c->eps = epsilons[rn_random_below(r, COUNT(epsilons))];
  c->numerics = random_numerics(r);
  c->weight_shape = chance(r, 2) ? (int)rn_random_below(r, 3) : 0;
  for (int t = 0; t < RN_TENSORS; t++) {
    c->dtype[t] = random_float(r);
    c->layout[t] = random_layout(r, t >= RN_INPUTS);
    c->alias[t] = -1;
  }
  if (chance(r, 2)) { /* the usual case: one type for all activations */
    int one = random_float(r);
    for (int t = 0; t < RN_TENSORS; t++)
      if (rn_tensor_is_strided(t)) c->dtype[t] = one;
  }
  if (chance(r, 3)) { /* and no games with the memory */
    for (int t = 0; t < RN_TENSORS; t++) c->layout[t].kind = RN_LAYOUT_PACKED, c->layout[t].offset = 0;
  }
  if (chance(r, 2)) c->dtype[RN_RESIDUAL] = 0;
  if (chance(r, 5)) c->dtype[RN_WEIGHT] = 0;
  if (chance(r, 3)) c->dtype[RN_DSUM] = 0;
  if (chance(r, 2)) c->dtype[RN_SUM] = 0;
  random_quant(r, c, chance(r, 3) ? 1 + (int)rn_random_below(r, 4) : 0);
  if (chance(r, 8))
    c->dtype[RN_SUMSQ_IN] = RMSNORM_DTYPE_F32;
  else
    c->dtype[RN_SUMSQ_IN] = 0;
  c->want = 0xffffffffu;
  if (chance(r, 3)) c->want &= ~(1u << RN_RSTD);
  /* dx alone, or with dweight, is what kernels have fast ways for. */
  if (chance(r, 2)) c->want &= ~(1u << RN_DRESIDUAL | 1u << RN_DOT);
  if (chance(r, 4)) c->want &= ~(1u << RN_DWEIGHT);
  c->saved_rstd = chance(r, 3);
  c->given_dot = chance(r, 5);
  c->data = chance(r, 2) ? RN_DATA_NORMAL : chance(r, 2) ? RN_DATA_MIXED : (int)rn_random_below(r, RN_DATAS);
  c->weight_data = (int)rn_random_below(r, 3);
  c->threads = pick(r, threads, COUNT(threads));
  /* aliases are tried; what does not fit falls away in rn_case_legalise */
  for (int t = RN_Y; t <= RN_DGATE; t++)
    if (chance(r, 3)) c->alias[t] = (int)rn_random_below(r, RN_WEIGHT);
}

/* ---- making it legal ---- */

static void keep(rn_case *c, uint32_t outputs) {
  for (int t = RN_INPUTS; t < RN_TENSORS; t++)
    if (!(outputs & 1u << t)) c->dtype[t] = 0;
}

static void legalise_alias(rn_case *c) {
  bool taken[RN_INPUTS] = {false};
  for (int t = RN_INPUTS; t < RN_TENSORS; t++) {
    int from = c->alias[t];
    if (from < 0) continue;
    bool ok = c->dtype[t] && c->dtype[from] && rn_tensor_is_strided(t) && t != RN_Q && !taken[from] &&
              (c->op == RMSNORM_OP_FORWARD || c->want & 1u << t);
    if (!ok) {
      c->alias[t] = -1;
      continue;
    }
    taken[from] = true;
    if (c->layout[from].kind == RN_LAYOUT_REPEATED) c->layout[from].kind = RN_LAYOUT_PADDED;
    c->layout[t] = c->layout[from];
    c->dtype[t] = c->dtype[from];
  }
}

void rn_case_legalise(rn_case *c) {
  rmsnorm_numerics *n = &c->numerics;
  bool f64 = c->dtype[RN_X] == RMSNORM_DTYPE_F64;
  if (!n->gate) c->dtype[RN_GATE] = 0;
  if (c->cols % c->groups) c->groups = 1;
  c->dtype[RN_SCALE_IN] = c->dtype[RN_RSTD_IN] = c->dtype[RN_DOT_IN] = 0;
  if (f64) c->dtype[RN_SUMSQ_IN] = 0, c->quant.granularity = 0;
  if (c->dtype[RN_SUMSQ_IN]) c->dtype[RN_SUMSQ_IN] = RMSNORM_DTYPE_F32;
  c->dtype[RN_RSTD] = f64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32;
  c->dtype[RN_DOT] = c->dtype[RN_SUMSQ] = RMSNORM_DTYPE_F32;
  if (c->op == RMSNORM_OP_FORWARD) {
    c->dtype[RN_DY] = c->dtype[RN_DSUM] = 0;
    keep(c, 1u << RN_Y | 1u << RN_SUM | 1u << RN_Q | 1u << RN_RSTD | 1u << RN_SCALE);
    if (!c->dtype[RN_RESIDUAL]) c->dtype[RN_SUM] = 0;
    if (!c->quant.granularity) c->dtype[RN_Q] = c->dtype[RN_SCALE] = 0;
    if (!c->dtype[RN_Q]) c->want |= 1u << RN_Y;
    if (c->quant.granularity == RMSNORM_QUANT_TENSOR) c->dtype[RN_SCALE_IN] = RMSNORM_DTYPE_F32, c->dtype[RN_SCALE] = 0;
    if (c->quant.granularity == RMSNORM_QUANT_ROW || c->quant.granularity == RMSNORM_QUANT_BLOCK)
      c->dtype[RN_SCALE] = RMSNORM_DTYPE_F32;
    if (c->quant.granularity == RMSNORM_QUANT_MX) c->dtype[RN_SCALE] = RMSNORM_DTYPE_E8M0;
    if (c->split) c->dtype[RN_SUMSQ_IN] = 0;
    c->want |= 1u << RN_Q | 1u << RN_SCALE | 1u << RN_SUM;
    /* round_sum STORED rounds to residual_out's type, so an absent one would be another sum. */
  } else if (c->op == RMSNORM_OP_STATS) {
    c->dtype[RN_DY] = c->dtype[RN_DSUM] = c->dtype[RN_WEIGHT] = c->dtype[RN_SUMSQ_IN] = 0;
    keep(c, 1u << RN_SUMSQ);
    c->want = ~0u;
    n->gate_place = RMSNORM_GATE_BEFORE;
    c->quant.granularity = 0;
    c->divisor = 0;
  } else {
    keep(c, 1u << RN_DX | 1u << RN_DRESIDUAL | 1u << RN_DGATE | 1u << RN_DWEIGHT | 1u << RN_DOT | 1u << RN_SUM);
    /* RN_SUM's type stands for sum_dtype here; there is no such tensor in the call. */
    if (!c->dtype[RN_WEIGHT]) c->dtype[RN_DWEIGHT] = 0;
    if (!n->gate) c->dtype[RN_DGATE] = 0;
    if (f64) c->dtype[RN_DOT] = 0, c->given_dot = false;
    if (c->given_dot) c->want &= ~(1u << RN_DOT);
    if (c->dtype[RN_SUMSQ_IN]) c->saved_rstd = false;
    uint32_t there = 0;
    for (int t = RN_DX; t < RN_WORKSPACE; t++)
      if (c->dtype[t]) there |= 1u << t;
    if (!(c->want & there)) c->want |= 1u << RN_DX;
    c->quant.granularity = 0;
  }
  legalise_alias(c);
}

/* ---- the families ---- */

static void plain(rn_case *c) {
  c->heads = c->groups = 1;
  c->divisor = 0, c->dtype[RN_SUMSQ_IN] = 0;
}

static int64_t power_cols(int64_t i) {
  static const int64_t others[] = {131072, 262144, 12288, 28672,  5120,   7168,
                                   100003, 18432,  50257, 131071, 262145, 65600};
  if (i < 21) return ((int64_t)1 << (10 + i / 3)) - 1 + i % 3; /* 1023 .. 65537 */
  return others[(i - 21) % COUNT(others)];
}

static void family_cols(rn_case *c, int64_t i, rn_random *r) {
  plain(c);
  c->cols = 1 + i % 1100;
  c->rows = 1 + rn_random_below(r, 3);
  c->op = (i + i / 1100) % 3 == 2 ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
}

static void family_powers(rn_case *c, int64_t i, rn_random *r) {
  plain(c);
  c->cols = power_cols(i % 33);
  c->rows = c->cols > 20000 ? 1 : 1 + rn_random_below(r, 3);
  c->op = (i + i / 33) % 3 == 2 ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
  if (c->op == RMSNORM_OP_FORWARD) c->numerics.gate = 0;
}

static void family_random(rn_case *c, int64_t i, rn_random *r) {
  (void)r;
  static const int ops[] = {RMSNORM_OP_FORWARD, RMSNORM_OP_FORWARD,  RMSNORM_OP_BACKWARD,
                            RMSNORM_OP_FORWARD, RMSNORM_OP_BACKWARD, RMSNORM_OP_STATS};
  c->op = ops[i % COUNT(ops)];
}

static void family_rows(rn_case *c, int64_t i, rn_random *r) {
  static const int64_t rows[] = {0,   1,   2,   3,   7,    16,   17,   31,   64,   100,
                                 127, 256, 257, 511, 1000, 1023, 1025, 2047, 4097, 9000};
  static const int64_t widths[] = {1, 2, 3, 4, 5, 8, 16, 17, 24, 33, 48, 63, 64, 65};
  plain(c);
  c->rows = rows[i % COUNT(rows)];
  c->cols = widths[rn_random_below(r, COUNT(widths))];
  if (c->rows < 200 && chance(r, 2)) c->cols = 1 + rn_random_below(r, 600);
  c->heads = chance(r, 4) && c->rows < 1000 ? 2 : 1;
  c->op = i / COUNT(rows) % 4 == 0 ? RMSNORM_OP_FORWARD : RMSNORM_OP_BACKWARD;
}

static void family_offsets(rn_case *c, int64_t i, rn_random *r) {
  plain(c);
  c->op = i / 31 % 2 ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
  c->cols = 1 + rn_random_below(r, 200);
  for (int t = 0; t < RN_TENSORS; t++) {
    c->layout[t].kind = RN_LAYOUT_PACKED, c->layout[t].at_end = false;
    c->layout[t].offset = chance(r, 2) ? (int)(1 + i % 31) : 0;
  }
}

static void family_ends(rn_case *c, int64_t i, rn_random *r) {
  plain(c);
  c->op = i % 3 == 2 ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
  c->cols = 1 + (i + rn_random_below(r, 3)) % 97;
  if (chance(r, 4)) c->cols += 128 * rn_random_below(r, 10);
  for (int t = 0; t < RN_TENSORS; t++) c->layout[t].at_end = true;
}

static void family_heads(rn_case *c, int64_t i, rn_random *r) {
  static const int64_t widths[] = {64, 128, 80, 96, 256, 576, 72};
  c->op = i % 4 == 3 ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
  c->rows = 1 + rn_random_below(r, 7);
  c->heads = 1 + rn_random_below(r, 9);
  c->groups = 1;
  c->cols = widths[i % COUNT(widths)];
  for (int t = 0; t < RN_TENSORS; t++)
    if (rn_tensor_is_strided(t)) c->layout[t].kind = chance(r, 3) ? RN_LAYOUT_HEADS : RN_LAYOUT_SLICE;
  if (i % 5 == 0) c->heads = 1, c->cols = 512, c->layout[RN_X].pad = 64;
}

static void family_groups(rn_case *c, int64_t i, rn_random *r) {
  c->op = i % 3 == 2 ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
  c->groups = 2 + i % 8;
  c->cols = c->groups * (1 + rn_random_below(r, 300));
  c->weight_shape = (int)(i % 3);
}

/* The named roundings: every combination of the four switches, types in turn. */
static void family_roundings(rn_case *c, int64_t i, rn_random *r) {
  c->op = RMSNORM_OP_FORWARD;
  c->numerics.round_sum = i & 1 ? RMSNORM_ROUND_STORED : RMSNORM_ROUND_NONE;
  c->numerics.round_rstd = i >> 1 & 1 ? RMSNORM_ROUND_X : RMSNORM_ROUND_NONE;
  c->numerics.round_xhat = (int)(i >> 2 & 3);
  c->numerics.round_normed = (int)(i >> 4 & 3);
  c->dtype[RN_X] = floats[i / 64 % 3];
  c->dtype[RN_WEIGHT] = floats[i / 192 % 3];
  if (chance(r, 2)) c->dtype[RN_RESIDUAL] = random_float(r);
  c->cols = 1 + rn_random_below(r, 300), c->groups = 1;
  c->data = chance(r, 3) ? RN_DATA_TIES : RN_DATA_NORMAL;
}

static void family_quant(rn_case *c, int64_t i, rn_random *r) {
  static const int data[] = {RN_DATA_NORMAL, RN_DATA_MIXED, RN_DATA_ZERO, RN_DATA_NAN, RN_DATA_TIES, RN_DATA_WIDE};
  c->op = RMSNORM_OP_FORWARD;
  random_quant(r, c, 1 + (int)(i % 4));
  c->data = data[i / 4 % COUNT(data)];
  if (i % 3 == 0) c->want &= ~(1u << RN_Y);
  if (chance(r, 3)) c->cols = 1 + rn_random_below(r, 300), c->groups = 1;
}

static void family_special(rn_case *c, int64_t i, rn_random *r) {
  c->data = (int)(i % RN_DATAS);
  c->op = i / RN_DATAS % 3 == 2 ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
  if (chance(r, 2)) c->numerics.gate = 0;
}

static void family_alias(rn_case *c, int64_t i, rn_random *r) {
  static const int forward[][2] = {{RN_X, -1},          {RN_RESIDUAL, -1},   {-1, RN_RESIDUAL}, {-1, RN_X},
                                   {RN_X, RN_RESIDUAL}, {RN_RESIDUAL, RN_X}, {RN_GATE, -1},     {-1, RN_GATE},
                                   {RN_GATE, RN_X},     {RN_X, RN_GATE}};
  static const int backward[][3] = {{RN_X, -1, -1},           {RN_DY, -1, -1},   {RN_DSUM, -1, RN_GATE},
                                    {RN_RESIDUAL, -1, -1},    {-1, RN_DY, -1},   {RN_DY, RN_DSUM, -1},
                                    {RN_DSUM, RN_X, RN_GATE}, {-1, RN_X, RN_DY}, {RN_GATE, RN_RESIDUAL, RN_X}};
  if (!c->dtype[RN_RESIDUAL]) c->dtype[RN_RESIDUAL] = c->dtype[RN_X];
  if (!c->numerics.gate) c->numerics.gate = RMSNORM_GATE_SILU;
  for (int t = RN_Y; t <= RN_DGATE; t++) c->alias[t] = -1;
  c->want = ~0u;
  if (i % 2 == 0) {
    c->op = RMSNORM_OP_FORWARD;
    c->dtype[RN_SUM] = c->dtype[RN_RESIDUAL];
    const int *f = forward[i / 2 % COUNT(forward)];
    c->alias[RN_Y] = f[0], c->alias[RN_SUM] = f[1];
  } else {
    c->op = RMSNORM_OP_BACKWARD;
    c->dtype[RN_DSUM] = random_float(r);
    const int *b = backward[i / 2 % COUNT(backward)];
    c->alias[RN_DX] = b[0], c->alias[RN_DRESIDUAL] = b[1], c->alias[RN_DGATE] = b[2];
  }
  if (chance(r, 4)) c->cols = 3000 + rn_random_below(r, 3000), c->groups = 1, c->rows = 2, c->heads = 1;
}

static void family_stats(rn_case *c, int64_t i, rn_random *r) {
  if (i % 2 == 0) {
    c->op = RMSNORM_OP_STATS;
  } else {
    c->op = RMSNORM_OP_FORWARD;
    c->split = i % 4 == 1;
    if (c->split)
      c->data = RN_DATA_NORMAL, c->eps = 1e-6;
    else
      c->dtype[RN_SUMSQ_IN] = RMSNORM_DTYPE_F32;
  }
  if (chance(r, 6)) c->cols = 5000 + rn_random_below(r, 9000), c->groups = 1;
}

static void family_subsets(rn_case *c, int64_t i, rn_random *r) {
  c->op = RMSNORM_OP_BACKWARD;
  if (!c->dtype[RN_WEIGHT]) c->dtype[RN_WEIGHT] = random_float(r);
  c->numerics.gate = 1 + (int)(i / 32 % 2), c->numerics.gate_place = (int)(i / 64 % 2);
  static const int outputs[] = {RN_DX, RN_DRESIDUAL, RN_DGATE, RN_DWEIGHT, RN_DOT};
  c->want = ~0u;
  for (int b = 0; b < 5; b++)
    if (!(i >> b & 1)) c->want &= ~(1u << outputs[b]);
  c->given_dot = i / 128 % 2;
}

static void family_threads(rn_case *c, int64_t i, rn_random *r) {
  static const int threads[] = {2, 7, -2, -7, 0};
  plain(c);
  c->threads = threads[i % COUNT(threads)];
  c->op = i / COUNT(threads) % 2 ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
  if (i / 10 % 2)
    c->rows = 1 + rn_random_below(r, 2), c->cols = 30000 + rn_random_below(r, 60000);
  else
    c->rows = 200 + rn_random_below(r, 300), c->cols = 1 + rn_random_below(r, 300);
}

static void family_company(rn_case *c, int64_t i, rn_random *r) {
  (void)r;
  c->op = RMSNORM_OP_FORWARD;
  c->alone = true;
  c->rows = 2 + i % 7;
}

static void family_f64(rn_case *c, int64_t i, rn_random *r) {
  c->op = i % 3 == 2 ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
  for (int t = 0; t < RN_TENSORS; t++)
    if (c->dtype[t] && (t == RN_X || chance(r, 2))) c->dtype[t] = RMSNORM_DTYPE_F64;
  c->cols = 1 + rn_random_below(r, 400), c->groups = 1;
}

/* One type throughout, nothing special: what the kernels have instances for. */
static void usual(rn_case *c, int type) {
  plain(c);
  for (int t = 0; t < RN_TENSORS; t++) {
    if (rn_tensor_is_strided(t) && t != RN_Q) c->dtype[t] = type;
    c->alias[t] = -1;
  }
  c->dtype[RN_WEIGHT] = type;
  c->dtype[RN_RESIDUAL] = c->dtype[RN_SUM] = c->dtype[RN_DSUM] = 0;
  memset(&c->numerics, 0, sizeof c->numerics);
  memset(&c->quant, 0, sizeof c->quant);
  c->weight_shape = RMSNORM_WEIGHT_COLS;
}

void rn_case_usual(rn_case *c, const char *family, int64_t index, int type, uint64_t seed) {
  rn_random r = {seed + (uint64_t)index * 0x2545f4914f6cdd1du};
  memset(c, 0, sizeof *c);
  c->family = family, c->index = index, c->seed = rn_random_next(&r);
  usual(c, type);
  c->dtype[RN_DWEIGHT] = type;
  c->eps = 1e-6, c->threads = 1;
}

/* A pass over all widths has the six pairs of type and operation in turn, each for an odd width and an even one; six
 * passes have them all at every width. */
static void family_widths(rn_case *c, int64_t i, rn_random *r) {
  int64_t pair = (i % 1100 / 2 + i / 1100) % 6;
  (void)r;
  usual(c, floats[pair % 3]);
  c->op = pair / 3 ? RMSNORM_OP_BACKWARD : RMSNORM_OP_FORWARD;
  c->cols = 1 + i % 1100;
  c->rows = 7;
  c->data = RN_DATA_NORMAL, c->threads = 1;
  c->want = 1u << RN_Y | 1u << RN_RSTD | 1u << RN_DX | 1u << RN_DWEIGHT;
  for (int t = 0; t < RN_TENSORS; t++) c->layout[t].kind = RN_LAYOUT_PACKED;
}

/* Bytes of one column of one row that the call moves, and those of them that it writes. */
static int64_t moved(const rn_case *c, int64_t *written) {
  int64_t all = 0;
  *written = 0;
  for (int t = 0; t < RN_WORKSPACE; t++) {
    if (!rn_tensor_is_strided(t) || !c->dtype[t] || (t >= RN_INPUTS && !(c->want & 1u << t))) continue;
    int64_t bytes = (int64_t)rmsnorm_dtype_bytes(c->dtype[t]);
    all += bytes;
    if (t == RN_Y || t == RN_SUM || t == RN_DX) *written += bytes;
  }
  return all;
}

/* Past the sizes at which src/cpu/cpu.c changes its ways: threads from 256 KiB a thread, passes over two rows at once
 * from 2 MiB a thread, stores past the caches from 6 MiB written by a thread, columns shared when rows are few and
 * long.
 */
static void family_large(rn_case *c, int64_t i, rn_random *r) {
  enum { KIB = 1 << 10, THREADED = 300 * KIB, FUSED = 2200 * KIB, STREAMED = 7000 * KIB, FEW = 16 };
  static const int64_t widths[] = {1024, 1500, 3000, 4096, 16387, 131072}, long_widths[] = {50257, 131072, 262147};
  static const int64_t narrow[] = {4, 16, 63, 64, 100, 600};
  static const int crews[] = {1, 2, 7, -3}, pairs[] = {1, 1, 2, -2}, many[] = {2, 7, -3};
  bool streamed = i % 8 == 3, shared = i % 8 == 2, near = i % 8 == 6, odd = i % 8 == 4;
  rmsnorm_numerics numerics = c->numerics;
  rmsnorm_quant quant = c->quant;
  usual(c, floats[i % 3]);
  c->op = i % 5 == 4 ? RMSNORM_OP_BACKWARD : i % 16 == 10 ? RMSNORM_OP_STATS : RMSNORM_OP_FORWARD;
  c->unjudged = true;
  c->threads = streamed ? pick(r, pairs, COUNT(pairs)) : shared ? pick(r, many, COUNT(many)) : crews[i / 2 % 4];
  if (odd) c->numerics = numerics, c->quant = quant;
  if (chance(r, 2)) c->numerics.round_xhat = RMSNORM_ROUND_X;
  if (chance(r, 3)) c->dtype[RN_WEIGHT] = chance(r, 3) ? 0 : RMSNORM_DTYPE_F32;
  if (chance(r, 2)) {
    c->dtype[RN_RESIDUAL] = c->dtype[RN_SUM] = c->dtype[RN_X];
    c->numerics.round_sum = chance(r, 2) ? RMSNORM_ROUND_STORED : RMSNORM_ROUND_NONE;
    if (chance(r, 2)) c->alias[RN_SUM] = RN_RESIDUAL;
  }
  if (chance(r, 4)) c->alias[RN_Y] = c->alias[RN_DX] = RN_X;
  if (chance(r, 12)) c->dtype[RN_SUMSQ_IN] = RMSNORM_DTYPE_F32;
  c->want = ~0u;
  if (c->op == RMSNORM_OP_BACKWARD) {
    if (chance(r, 2)) c->dtype[RN_RESIDUAL] = 0; /* the saved sum is x, as in training */
    if (chance(r, 3)) c->dtype[RN_DSUM] = c->dtype[RN_X];
    if (chance(r, 2)) c->want &= ~(1u << RN_DRESIDUAL | 1u << RN_DOT);
    if (chance(r, 4)) c->want &= ~(1u << RN_DWEIGHT);
  }
  c->data = chance(r, 2) ? RN_DATA_NORMAL : RN_DATA_SOME;
  bool anyhow = chance(r, 3);
  for (int t = 0; t < RN_TENSORS && !anyhow; t++) {
    c->layout[t].kind = RN_LAYOUT_PACKED;
    if (chance(r, 2)) c->layout[t].offset = 0, c->layout[t].at_end = false;
  }
  c->cols = widths[rn_random_below(r, COUNT(widths))];
  if (c->op == RMSNORM_OP_BACKWARD && chance(r, 2)) c->cols = narrow[rn_random_below(r, COUNT(narrow))];
  if (shared) c->cols = long_widths[rn_random_below(r, COUNT(long_widths))];
  rn_case_legalise(c);
  int64_t written, all = moved(c, &written), crew = c->threads < 0 ? -c->threads : c->threads;
  int64_t want =
      streamed && written ? STREAMED * crew / (written * c->cols) : (near ? THREADED : FUSED) * crew / (all * c->cols);
  c->rows = 1 + want + rn_random_below(r, 3);
  if (shared && c->rows < 2) c->rows = 2;
  if (shared && c->rows >= FEW) c->rows = FEW - 1;
  if (!shared && chance(r, 4)) c->heads = 3, c->rows = c->rows / 3 + 1;
}

typedef struct family {
  const char *name, *about;
  int64_t cases[RN_LEVELS];
  void (*pin)(rn_case *c, int64_t index, rn_random *r);
} family;

static const family families[] = {
    {"cols", "every width from 1 to 1100", {1100, 3300, 33000}, family_cols},
    {"powers", "2^k - 1, 2^k, 2^k + 1 up to 65537, then up to 262145", {33, 99, 990}, family_powers},
    {"random", "everything at random", {1200, 6000, 100000}, family_random},
    {"rows", "0 to 9000 rows; the order of dweight over rows", {80, 240, 2400}, family_rows},
    {"offsets", "bases moved by 1 to 31 elements", {124, 248, 2480}, family_offsets},
    {"ends", "last rows that end before a page that may not be touched", {200, 400, 4000}, family_ends},
    {"heads", "heads in packed projections, 512 of 576 columns", {100, 300, 3000}, family_heads},
    {"groups", "several statistics in a row", {72, 216, 2160}, family_groups},
    {"roundings", "every combination of the four roundings and of types", {576, 1152, 5760}, family_roundings},
    {"quant", "every granularity, format, scale and layout", {288, 1152, 11520}, family_quant},
    {"special", "huge, tiny, subnormal, zero, NaN, infinite rows", {132, 396, 3960}, family_special},
    {"alias", "every exact alias the table allows", {120, 360, 3600}, family_alias},
    {"stats", "split statistics and given sums", {80, 240, 2400}, family_stats},
    {"subsets", "every subset of the gradients", {128, 256, 2560}, family_subsets},
    {"threads", "threads, callbacks, long rows", {20, 80, 800}, family_threads},
    {"company", "rows give the same alone and together", {60, 180, 1800}, family_company},
    {"widths", "every width from 1 to 1100 in each type, 7 packed rows", {1100, 6600, 13200}, family_widths},
    {"large", "sizes from which on memory is treated differently", {16, 96, 960}, family_large},
    {"f64", "float64 throughout", {60, 180, 1800}, family_f64},
};

int rn_family_count(void) {
  return (int)COUNT(families);
}
const char *rn_family_name(int f) {
  return families[f].name;
}
const char *rn_family_about(int f) {
  return families[f].about;
}
int64_t rn_family_cases(int f, rn_level level) {
  return families[f].cases[level];
}

void rn_case_make(rn_case *c, int f, int64_t index, uint64_t seed) {
  rn_random r = {seed ^ (uint64_t)(f + 1) * 0xd1342543de82ef95u};
  r.state = rn_random_next(&r) + (uint64_t)index * 0x2545f4914f6cdd1du;
  memset(c, 0, sizeof *c);
  c->family = families[f].name, c->index = index;
  c->seed = rn_random_next(&r);
  random_case(c, &r);
  families[f].pin(c, index, &r);
  rn_case_legalise(c);
}

/* ---- words ---- */

typedef struct writer {
  char *text;
  size_t bytes, at;
} writer;
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
put(writer *w, const char *format, ...) {
  va_list list;
  if (w->at >= w->bytes) return;
  va_start(list, format);
  int n = vsnprintf(w->text + w->at, w->bytes - w->at, format, list);
  va_end(list);
  if (n > 0) w->at += (size_t)n;
}

void rn_case_describe(const rn_case *c, char *text, size_t bytes) {
  static const char *const ops[] = {"forward", "stats", "backward"};
  static const char *const layouts[] = {"packed", "padded", "slice", "heads-outer", "backwards", "repeated"};
  static const char *const datas[] = {"normal", "large", "small", "subnormal", "zero",  "constant",
                                      "nan",    "inf",   "ties",  "wide",      "mixed", "some"};
  static const char *const quants[] = {"none", "tensor", "row", "block", "mx"};
  writer w = {text, bytes, 0};
  if (bytes) text[0] = 0;
  put(&w, "%s/%lld: %s rows %lld heads %lld cols %lld groups %lld eps %g", c->family, (long long)c->index, ops[c->op],
      (long long)c->rows, (long long)c->heads, (long long)c->cols, (long long)c->groups, c->eps);
  if (c->divisor) put(&w, " divisor %lld", (long long)c->divisor);
  const rmsnorm_numerics *n = &c->numerics;
  put(&w, " offset %g round %d%d%d%d", (double)n->weight_offset, n->round_sum, n->round_rstd, n->round_xhat,
      n->round_normed);
  if (n->gate) put(&w, " %s %s", n->gate == RMSNORM_GATE_SILU ? "silu" : "sigmoid", n->gate_place ? "before" : "after");
  if (c->quant.granularity)
    put(&w, " quant %s op %d layout %d e8m0 %d max %g", quants[c->quant.granularity], c->quant.scale_op,
        c->quant.scale_layout, c->quant.e8m0_rounding, (double)c->quant.scale_max);
  if (c->dtype[RN_WEIGHT]) put(&w, " weight-shape %d", c->weight_shape);
  put(&w, " data %s threads %d%s%s%s%s;", datas[c->data], c->threads, c->saved_rstd ? " saved-rstd" : "",
      c->given_dot ? " given-dot" : "", c->split ? " split" : "", c->alone ? " alone" : "");
  for (int t = 0; t < RN_WORKSPACE; t++) {
    if (!c->dtype[t] || (t >= RN_INPUTS && !(c->want & 1u << t))) continue;
    put(&w, " %s %s", tensor_names[t], rmsnorm_dtype_name(c->dtype[t]));
    if (rn_tensor_is_strided(t) && c->alias[t] < 0)
      put(&w, "/%s+%d%s", layouts[c->layout[t].kind], c->layout[t].offset, c->layout[t].at_end ? "/end" : "");
    if (c->alias[t] >= 0) put(&w, "=%s", tensor_names[c->alias[t]]);
  }
}

/* ---- numbers ---- */

static double magnitude_of(int data, int dtype, rn_random *r) {
  bool half = dtype == RMSNORM_DTYPE_F16, wide = dtype == RMSNORM_DTYPE_F64;
  switch (data) {
  case RN_DATA_LARGE:
    return half ? 9000 : wide ? 0x1p600 : 0x1p90;
  case RN_DATA_SMALL:
    return half ? 0x1p-20 : wide ? 0x1p-600 : 0x1p-90;
  case RN_DATA_SUBNORMAL:
    return half ? 0x1p-22 : wide ? 0x1p-1050 : dtype == RMSNORM_DTYPE_BF16 ? 0x1p-130 : 0x1p-140;
  case RN_DATA_WIDE: {
    int range = half ? 13 : wide ? 400 : 50;
    return ldexp(1, (int)rn_random_below(r, 2 * range) - range);
  }
  default:
    return 1;
  }
}

void rn_case_fill(const rn_case *c, int tensor, int64_t row, double *values, int64_t n) {
  rn_random r = {c->seed + (uint64_t)tensor * 0x9fb21c651e98df25u + (uint64_t)row * 0xd6e8feb86659fd93u};
  (void)rn_random_next(&r);
  int data = RN_DATA_NORMAL, dtype = c->dtype[tensor];
  if (tensor == RN_X || tensor == RN_RESIDUAL) {
    data = c->data;
    if (data >= RN_DATA_MIXED) { /* x and residual of a row have the same kind */
      rn_random kind = {c->seed + (uint64_t)row};
      bool normal = data == RN_DATA_SOME && rn_random_below(&kind, 8) != 0;
      data = normal ? RN_DATA_NORMAL : (int)rn_random_below(&kind, RN_DATA_MIXED);
    }
  }
  double constant = rn_random_normal(&r);
  for (int64_t i = 0; i < n; i++) {
    double v = rn_random_normal(&r);
    switch (data) {
    case RN_DATA_ZERO:
      v = rn_random_next(&r) & 1 ? 0.0 : -0.0;
      break;
    case RN_DATA_CONSTANT:
      v = constant;
      break;
    case RN_DATA_TIES:
      v = (double)(256 + rn_random_below(&r, 256)) / (tensor == RN_RESIDUAL ? 256 : 1);
      break;
    default:
      v *= magnitude_of(data, dtype, &r);
    }
    if (tensor == RN_GATE) v *= i % 16 == 5 ? 40 : 3;
    if (tensor == RN_WEIGHT && c->weight_data == 1) { /* as merged checkpoints have them */
      static const double odd[] = {0, -0.0, -1, 65504, 0x1p-100, 0.00390625, 15.8125};
      if (i % 3 == 0) v = odd[rn_random_below(&r, COUNT(odd))];
    } else if (tensor == RN_WEIGHT && c->weight_data == 2) {
      v = i % 2 ? 1 : 3;
    }
    if (tensor == RN_SCALE_IN) v = 0.003 + fabs(v) / 16;
    values[i] = v;
  }
  if (n && (data == RN_DATA_NAN || data == RN_DATA_INF) && tensor == RN_X)
    values[rn_random_below(&r, n)] = data == RN_DATA_NAN ? NAN : rn_random_next(&r) & 1 ? INFINITY : -INFINITY;
}
