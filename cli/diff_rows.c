/* diff_rows.c - proposals about which part of x a row was made from: a row stride that is not that of x, heads and rows
 * changed places. Where a row of theirs lies in x is found by a few of its elements, whose proportions are those of x.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <math.h>

enum { MARKS = 10 };

/* The first element of x from which the row `row` of theirs can have been read, -1: none, -2: more than one. */
static int64_t find_row(rn_diff *d, const rn_model *from, int64_t row) {
  const rn_diff_input *in = d->in;
  int64_t count = d->rows * d->cols, most = fmin((double)count, 16.0 * (double)d->cols + 65536), found = -1;
  int64_t col[MARKS];
  double mark[MARKS];
  int marks = 0;
  d->w_of = NULL;
  bool weighted = rn_model_weights(d, from, row);
  (void)weighted;
  for (int64_t k = 0; k < d->cols && marks < MARKS; k++) {
    int64_t c = d->cols < 64 ? k : k * (d->cols / 64) + k % (d->cols / 64);
    if (c >= d->cols) break;
    double t = rn_diff_theirs(d, row, c) / d->w[c];
    if (isfinite(t) && fabs(t) > 0.05) col[marks] = c, mark[marks++] = t;
  }
  if (marks < 6) return -1;
  for (int64_t o = 0; o < most && o + d->cols <= count; o++) {
    double first = rn_ref_load(in->x.dtype, in->x.data, o + col[0]) / mark[0];
    bool same = first > 0;
    for (int k = 1; k < marks && same; k++) {
      double x = rn_ref_load(in->x.dtype, in->x.data, o + col[k]);
      same = fabs(x - first * mark[k]) <= 2 * d->close * fabs(x);
    }
    if (!same) continue;
    if (found >= 0) return -2;
    found = o;
  }
  return found;
}

static void propose_map(const rn_model *from, rn_proposals *list, int64_t base, int64_t step, int64_t cols) {
  if (base == 0 && step == cols) return;
  rn_model *m = rn_propose(list, from);
  if (!m) return;
  m->row_base = base, m->row_step = step;
  rn_model_parameter(m, "stride", (double)step);
  rn_model_parameter(m, "cols", (double)cols);
  rn_model_parameter(m, "start", (double)base);
}

void rn_propose_rows(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  rn_diff *scratch = (rn_diff *)d;
  rn_model *m;
  if (from->row_step != d->cols || from->transposed || d->rows < 2 || from->centred) return;
  if (list->entry == rn_entry_named("heads-transposed")) {
    for (int way = 1; way <= 2 && d->in->heads > 1 && d->in->rows > 1; way++)
      if ((m = rn_propose(list, from)) != NULL) m->transposed = way;
    return;
  }
  propose_map(from, list, 0, 0, d->cols);
  if (d->in->residual.data || d->in->gate.data || from->weight == RN_WEIGHT_FREE) return;
  /* Two neighbouring rows give the stride; the first may lie before x. */
  for (int64_t row = 0; row < 3 && row + 1 < d->rows; row++) {
    int64_t one = find_row(scratch, from, row), two = one < 0 ? -1 : find_row(scratch, from, row + 1);
    if (one < 0 || two < 0) continue;
    propose_map(from, list, one - row * (two - one), two - one, d->cols);
    return;
  }
}
