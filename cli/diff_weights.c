/* diff_weights.c - proposals about the weight. What theirs multiplied a column by can be seen: it is the same in every
 * row. Those weights are read from a few rows, and compared with ours moved, strided, repeated, reread.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <math.h>
#include <stdlib.h>

static rn_model *propose_weight(rn_proposals *list, const rn_model *from, rn_weight_kind kind, int64_t param,
                                const char *name) {
  rn_model *m = from->weight == RN_WEIGHT_PLAIN ? rn_propose(list, from) : NULL;
  if (!m) return NULL;
  m->weight = kind, m->weight_param = param;
  if (name) rn_model_parameter(m, name, (double)param);
  return m;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Factor of each column of head `head`, as the sample rows show it: the median of theirs / (u * rstd); 0 = not seen. */
static int implied(const rn_diff *d, const rn_model *from, int64_t head, double *factor) {
  rn_diff *scratch = (rn_diff *)d; /* only its scratch row changes */
  double *seen = calloc((size_t)(d->cols * RN_SAMPLE_MOST), sizeof *seen);
  int rows = 0;
  if (!seen) return 0;
  for (int i = 0; i < d->samples && rows < 33; i++) {
    if (d->in->weight_shape == RMSNORM_WEIGHT_HEADS_COLS && d->sample[i] % d->in->heads != head) continue;
    rn_model_row(scratch, from, d->sample[i], d->u);
    double rstd = rn_model_rstd(scratch, from, d->sample[i], 0, d->u);
    if (!(rstd > 0) || !isfinite(rstd)) continue;
    for (int64_t c = 0; c < d->cols; c++) {
      double t = rn_diff_theirs(d, d->sample[i], c), f = t / (d->u[c] * rstd);
      seen[c * RN_SAMPLE_MOST + rows] = isfinite(f) && fabs(d->u[c] * rstd) > 0x1p-10 ? f : NAN;
    }
    rows++;
  }
  for (int64_t c = 0; c < d->cols; c++) {
    double *column = seen + c * RN_SAMPLE_MOST;
    int count = 0;
    for (int i = 0; i < rows; i++)
      if (!isnan(column[i])) column[count++] = column[i];
    qsort(column, (size_t)count, sizeof *column, ascending);
    factor[c] = count ? count % 2 ? column[count / 2] : 0.5 * (column[count / 2 - 1] + column[count / 2]) : 0;
  }
  free(seen);
  return rows;
}

/* How badly the factors fit ours moved by `shift`: the mean distance of the ratios from their median, each counted up
 * to what roundings explain. */
static double misfit(const rn_diff *d, const rn_model *from, const double *factor, int64_t shift) {
  double ratio[48], sorted[48], sum = 0;
  int count = 0;
  for (int k = 0; k < 48; k++) {
    int64_t c = d->cols <= 48 ? k : k * d->cols / 48 + (k * 7) % (d->cols / 48), at = c + shift;
    if (c >= d->cols || at < 0 || at >= d->cols || factor[c] == 0) continue;
    double w = rn_ref_load(d->in->weight.dtype, d->in->weight.data, at) + from->offset;
    if (w == 0) continue;
    ratio[count] = sorted[count] = factor[c] / w;
    count++;
  }
  if (count < 12) return INFINITY;
  qsort(sorted, (size_t)count, sizeof *sorted, ascending);
  for (int k = 0; k < count; k++) sum += fmin(fabs(ratio[k] / sorted[count / 2] - 1), d->close);
  return sum / count;
}

void rn_propose_weights_shift(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  enum { KEPT = 6 };
  double best[KEPT], *factor = malloc(sizeof *factor * (size_t)d->cols);
  int64_t shift[KEPT];
  int kept = 0;
  if (from->weight != RN_WEIGHT_PLAIN || !d->in->weight.data || !factor || d->in->weight_shape != RMSNORM_WEIGHT_COLS ||
      !implied(d, from, 0, factor)) {
    free(factor);
    return;
  }
  for (int64_t s = 1 - d->cols; s < d->cols; s++) {
    double off = s ? misfit(d, from, factor, s) : INFINITY;
    if (!(off < 0.75 * d->close)) continue;
    int at = kept < KEPT ? kept++ : KEPT;
    for (; at > 0 && off < best[at - 1]; at--)
      if (at < KEPT) best[at] = best[at - 1], shift[at] = shift[at - 1];
    if (at < KEPT) best[at] = off, shift[at] = s;
  }
  for (int i = 0; i < kept; i++) propose_weight(list, from, RN_WEIGHT_SHIFTED, shift[i], "shift");
  propose_weight(list, from, RN_WEIGHT_REVERSED, 0, NULL);
  free(factor);
}

void rn_propose_weights_stride(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  if (!d->in->weight.data) return;
  for (int64_t k = 2; k <= 128 && k < d->cols; k += k < 16 ? 1 : k)
    propose_weight(list, from, RN_WEIGHT_STRIDED, k, "stride");
  if (d->in->weight_shape == RMSNORM_WEIGHT_HEADS_COLS)
    propose_weight(list, from, RN_WEIGHT_STRIDED, d->in->heads, "stride");
}

void rn_propose_weights_repeat(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  rn_model *m;
  if (!d->in->weight.data) return;
  if ((m = propose_weight(list, from, RN_WEIGHT_REPEATED, 1, NULL)) != NULL)
    rn_model_note(m, "weight[0] stands for every column");
  for (int64_t k = 2; k < d->cols; k++) {
    if ((k & (k - 1)) != 0 && (k >= 16 || d->cols % k != 0)) continue; /* powers of two, small divisors */
    if ((m = propose_weight(list, from, RN_WEIGHT_REPEATED, k, "period")) != NULL)
      rn_model_note(m, "the first %lld weights are repeated, weight[c %% %lld]", (long long)k, (long long)k);
    if ((m = propose_weight(list, from, RN_WEIGHT_BLOCKED, k, "block")) != NULL)
      rn_model_note(m, "each weight serves %lld columns, weight[c / %lld]", (long long)k, (long long)k);
  }
  for (int64_t k = 2; k <= 64 && k < d->cols; k++) {
    if (d->cols % k || (d->cols / k & (d->cols / k - 1)) == 0 || d->cols / k < 16) continue;
    if ((m = propose_weight(list, from, RN_WEIGHT_REPEATED, d->cols / k, "period")) != NULL)
      rn_model_note(m, "the first %lld weights are repeated", (long long)(d->cols / k));
  }
  if (d->in->weight_shape == RMSNORM_WEIGHT_COLS && d->rows > 1 &&
      (m = propose_weight(list, from, RN_WEIGHT_BY_ROW, 0, NULL)) != NULL)
    rn_model_note(m, "row r was multiplied by weight[r], broadcast along the wrong axis");
}

void rn_propose_weights_other(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  for (int i = 0; i < d->in->other_count; i++) {
    rn_model *m = propose_weight(list, from, RN_WEIGHT_OTHER, i, NULL);
    if (m) rn_model_note(m, "%.200s", d->in->others[i].name);
  }
  if (d->in->weight_shape != RMSNORM_WEIGHT_HEADS_COLS) return;
  for (int64_t k = 1; k < d->in->heads && k < 64; k++) {
    rn_model *m = propose_weight(list, from, RN_WEIGHT_HEAD, k, "heads_on");
    if (m) rn_model_note(m, "the head %lld further on", (long long)k);
  }
}

void rn_propose_weights_bytes(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  static const int types[] = {RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16, RMSNORM_DTYPE_F32};
  for (int i = 0; i < 3 && d->in->weight.data; i++) {
    rn_model *m = types[i] == d->in->weight.dtype ? NULL : propose_weight(list, from, RN_WEIGHT_BYTES, types[i], NULL);
    if (m)
      rn_model_note(m, "%s bytes read as %s", rmsnorm_dtype_name(d->in->weight.dtype), rmsnorm_dtype_name(types[i]));
  }
}

/* Nothing known of the weight that was used, but every row has to agree on it. */
void rn_propose_weights_free(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  rn_diff *scratch = (rn_diff *)d;
  int64_t heads = d->in->weight_shape == RMSNORM_WEIGHT_HEADS_COLS ? d->in->heads : 1;
  int rows = 0;
  double off = 0;
  if (d->rows < 8 || from->groups > 1 || from->weight != RN_WEIGHT_PLAIN) return;
  for (int64_t h = 0; h < heads; h++) {
    rows = implied(d, from, h, d->free_weight + h * d->cols);
    if (rows < 6) return;
  }
  int type = d->weight_type ? d->weight_type : d->y_type;
  for (int64_t i = 0; i < heads * d->cols; i++) {
    double w = d->free_weight[i], near = rn_ref_round(type, w);
    if (w != 0) off += fabs(near - w) / rn_ref_ulp(type, w);
  }
  scratch->free_slack = ldexp(1, -d->digits) / sqrt(rows) * 4;
  /* A quarter of an ulp is the mean distance of numbers that are not of that type. */
  if (type != RMSNORM_DTYPE_F32 && off / (double)(heads * d->cols) < 0.15) {
    for (int64_t i = 0; i < heads * d->cols; i++) d->free_weight[i] = rn_ref_round(type, d->free_weight[i]);
    scratch->free_slack = ldexp(1, -d->digits); /* of a few rows the next number may have been taken */
  }
  /* Another weight, and not ours with noise on it. */
  int64_t other = 0;
  for (int64_t h = 0; h < heads; h++) {
    scratch->w_of = NULL;
    rn_model_weights(scratch, from, h);
    for (int64_t c = 0; c < d->cols; c++)
      other += fabs(d->free_weight[h * d->cols + c] - d->w[c]) > 3 * d->close * fabs(d->w[c]);
  }
  if (4 * other > heads * d->cols) propose_weight(list, from, RN_WEIGHT_FREE, 0, NULL);
}

void rn_propose_weights_offset(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  double offset = from->offset;
  bool missing = list->entry == rn_entry_named("offset-missing");
  if (!d->in->weight.data || (missing && offset == 0)) return;
  rn_model *m = rn_propose(list, from);
  if (!m) return;
  m->offset = missing ? 0 : offset + 1;
  rn_model_parameter(m, "offset", m->offset);
  rn_model_parameter(m, "offset_ours", offset);
}
