/* harness_judge.c - judging the reference call: its results against the float64 reference and the staged model.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "harness_parts.h"

#include <stdio.h>
#include <stdlib.h>

static void measure(rn_harness *h, int t, rn_approx ref, int64_t at, double got) {
  const rn_case *c = h->c;
  const rmsnorm_numerics *n = &c->numerics;
  int compute = c->dtype[RN_X] == RMSNORM_DTYPE_F64 && t != RN_DOT ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32;
  bool staged = c->op == RMSNORM_OP_FORWARD && t != RN_SUM && (n->round_rstd || n->round_xhat || n->round_normed);
  double ulp, share;
  if (!rn_ref_within(c->dtype[t], compute, ref, got, &ulp, &share))
    rn_found_value(h, RN_FOUND_FLOAT64, t, at, got, (double)ref.value);
  rn_measure *m = &h->measured[staged][t][c->dtype[t]];
  m->elements++;
  if (share > m->share) m->share = share;
  if (ulp > m->ulp) {
    rn_finding f = {.tensor = t};
    rn_locate(h, &f, at);
    m->ulp = ulp;
    snprintf(m->where, sizeof m->where, "%s/%lld row %lld head %lld col %lld", c->family, (long long)c->index,
             (long long)f.row, (long long)f.head, (long long)f.col);
  }
}

static void measure_all(rn_harness *h, int t, const rn_approx *ref) {
  for (int64_t i = 0; i < h->count[t]; i++) measure(h, t, ref[i], i, rn_ref_load(h->c->dtype[t], h->packed[t], i));
}

/* A row counts as skipped when one of its groups is. */
static void skip_rows(const rn_case *c, uint8_t *skipped) {
  for (int64_t r = 0; r < c->rows * c->heads; r++) {
    uint8_t any = 0;
    for (int64_t g = 0; g < c->groups; g++) any |= skipped[r * c->groups + g];
    skipped[r] = any; /* r <= r * groups: read before it is written */
  }
}

static bool judge_quant(rn_harness *h, const rmsnorm_forward_args *a, const rn_approx *y, const rn_approx *amax) {
  const rn_case *c = h->c;
  const rmsnorm_quant *q = &a->quant;
  int64_t blocks = rn_ref_blocks(q, c->cols), block = rn_ref_block_cols(q, c->cols);
  for (int64_t i = 0; c->dtype[RN_SCALE] && i < h->count[RN_SCALE]; i++) {
    bool mx = q->granularity == RMSNORM_QUANT_MX;
    double got =
        mx ? ((const uint8_t *)h->packed[RN_SCALE])[i] : rn_ref_load(RMSNORM_DTYPE_F32, h->packed[RN_SCALE], i);
    double ulp;
    rn_measure *m = &h->measured[0][RN_SCALE][c->dtype[RN_SCALE]];
    if (!rn_ref_scale_ok(q, amax[i], got, &ulp))
      rn_found_value(h, RN_FOUND_FLOAT64, RN_SCALE, i, got, (double)amax[i].value);
    m->elements++;
    if (ulp > m->ulp) m->ulp = ulp;
  }
  for (int64_t i = 0; i < h->count[RN_Q]; i++) {
    int64_t at = i / c->cols * blocks + i % c->cols / block;
    double scale =
        q->granularity == RMSNORM_QUANT_TENSOR ? *q->scale : rn_ref_load(c->dtype[RN_SCALE], h->packed[RN_SCALE], at);
    measure(h, RN_Q, rn_ref_quantised(q, y[i], scale), i, rn_ref_load(c->dtype[RN_Q], h->packed[RN_Q], i));
  }
  return true;
}

bool rn_judge_forward(rn_harness *h) {
  const rn_case *c = h->c;
  rn_binding b[RN_TENSORS];
  rn_bind_packed(h, b);
  rmsnorm_forward_args a = rn_bind_forward(c, b);
  size_t elements = (size_t)h->count[RN_X] + 1, rows = (size_t)(c->rows * c->heads) + 1;
  size_t blocks = (size_t)rn_ref_blocks(&c->quant, c->cols);
  rn_approx *y = malloc(elements * sizeof *y), *sum = malloc(elements * sizeof *sum);
  rn_approx *rstd = malloc(rows * (size_t)c->groups * sizeof *rstd), *amax = malloc(rows * blocks * sizeof *amax);
  char *staged = malloc(elements * 8 * 3 + rows * blocks * 4);
  float *staged_rstd = malloc(rows * (size_t)c->groups * sizeof *staged_rstd);
  double *v = malloc((size_t)c->cols * sizeof *v);
  uint8_t *skipped = malloc(rows * (size_t)c->groups);
  bool ok = y && sum && rstd && amax && staged && staged_rstd && v && skipped;
  if (ok) {
    rn_ref_forward_out out = {y, c->dtype[RN_SUM] ? sum : NULL, rstd, NULL, c->dtype[RN_Q] ? amax : NULL};
    rn_ref_forward(&a, &out);
    if (h->all & 1u << RN_Y) measure_all(h, RN_Y, y);
    if (c->dtype[RN_SUM]) measure_all(h, RN_SUM, sum);
    measure_all(h, RN_RSTD, rstd);
    if (c->dtype[RN_Q]) judge_quant(h, &a, y, amax);
    rn_staged_forward_out s = {
        staged, staged + elements * 8, staged + elements * 16, staged + elements * 24, staged_rstd, skipped};
    if (!c->dtype[RN_SUMSQ_IN]) s.rstd = NULL;
    if (!c->dtype[RN_SUM]) s.residual_out = NULL;
    if (!(h->all & 1u << RN_Y)) s.y = NULL;
    rn_staged_forward(&a, h->packed[RN_RSTD], v, &s);
    skip_rows(c, skipped);
    if (s.rstd) rn_compare_bits(h, RN_FOUND_STAGED, RN_RSTD, h->packed[RN_RSTD], s.rstd, NULL);
    if (s.y) rn_compare_bits(h, RN_FOUND_STAGED, RN_Y, h->packed[RN_Y], s.y, skipped);
    if (s.residual_out) rn_compare_bits(h, RN_FOUND_STAGED, RN_SUM, h->packed[RN_SUM], s.residual_out, NULL);
    if (c->dtype[RN_Q]) rn_compare_bits(h, RN_FOUND_STAGED, RN_Q, h->packed[RN_Q], s.q, skipped);
    if (c->dtype[RN_SCALE]) rn_compare_bits(h, RN_FOUND_STAGED, RN_SCALE, h->packed[RN_SCALE], s.scale, skipped);
  }
  free(y), free(sum), free(rstd), free(amax), free(staged), free(staged_rstd), free(v), free(skipped);
  return ok;
}

bool rn_judge_stats(rn_harness *h) {
  rn_binding b[RN_TENSORS];
  rn_bind_packed(h, b);
  rmsnorm_stats_args a = rn_bind_stats(h->c, b);
  rn_approx *sumsq = malloc(((size_t)h->count[RN_SUMSQ] + 1) * sizeof *sumsq);
  if (!sumsq) return false;
  rn_ref_stats(&a, sumsq);
  measure_all(h, RN_SUMSQ, sumsq);
  free(sumsq);
  return true;
}

bool rn_judge_backward(rn_harness *h) {
  const rn_case *c = h->c;
  rn_binding b[RN_TENSORS];
  rn_bind_packed(h, b);
  rmsnorm_backward_args a = rn_bind_backward(c, b);
  a.dot = NULL;
  size_t elements = (size_t)h->count[RN_X] + 1, rows = (size_t)(c->rows * c->heads) + 1;
  rn_approx *dx = malloc(elements * sizeof *dx), *dgate = malloc(elements * sizeof *dgate);
  rn_approx *dweight = malloc(((size_t)h->count[RN_DWEIGHT] + 1) * sizeof *dweight);
  rn_approx *dot = malloc(rows * (size_t)c->groups * sizeof *dot);
  char *staged = malloc(elements * 8 * 3);
  uint8_t *skipped = malloc(rows * (size_t)c->groups);
  bool ok = dx && dgate && dweight && dot && staged && skipped;
  if (ok) {
    rn_ref_backward_out out = {dx, c->dtype[RN_DGATE] ? dgate : NULL, c->dtype[RN_DWEIGHT] ? dweight : NULL, dot};
    rn_ref_backward(&a, &out);
    measure_all(h, RN_DX, dx), measure_all(h, RN_DRESIDUAL, dx);
    if (c->dtype[RN_DGATE]) measure_all(h, RN_DGATE, dgate);
    if (c->dtype[RN_DWEIGHT]) measure_all(h, RN_DWEIGHT, dweight);
    if (c->dtype[RN_DOT]) {
      measure_all(h, RN_DOT, dot);
      rn_staged_backward_out s = {staged, staged + elements * 8, staged + elements * 16, skipped};
      if (!c->dtype[RN_DGATE]) s.dgate = NULL;
      rn_staged_backward(&a, h->packed[RN_RSTD], h->packed[RN_DOT], &s);
      skip_rows(c, skipped);
      rn_compare_bits(h, RN_FOUND_STAGED, RN_DX, h->packed[RN_DX], s.dx, skipped);
      rn_compare_bits(h, RN_FOUND_STAGED, RN_DRESIDUAL, h->packed[RN_DRESIDUAL], s.dresidual, skipped);
      if (s.dgate) rn_compare_bits(h, RN_FOUND_STAGED, RN_DGATE, h->packed[RN_DGATE], s.dgate, skipped);
    }
  }
  free(dx), free(dgate), free(dweight), free(dot), free(staged), free(skipped);
  return ok;
}
