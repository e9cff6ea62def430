/* measure_report.c - a measurement in words, and as JSON.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "json.h"
#include "measure.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { BAR = 32 };
/* Shares of the squared difference from which on a factor is worth a line. */
#define FACTOR_SHARE 0.9
/* A cosine below which no rounding and no factor made the one from the other. */
#define UNLIKE 0.8
/* Standard errors beyond which a bias is no chance. */
#define SURE 5

static void print_types(FILE *out, const rn_measured *m) {
  const char *a = rmsnorm_dtype_name(m->dtype_a), *b = rmsnorm_dtype_name(m->dtype_b);
  fprintf(out, "%" PRId64 " x %" PRId64 ", %s against %s", m->rows, m->cols, a, b);
  if (m->rounded)
    fprintf(out, ", compared after rounding to %s", rmsnorm_dtype_name(m->dtype));
  else if (m->narrowed)
    fprintf(out, ", and all values are %s", rmsnorm_dtype_name(m->dtype));
  if (m->reshaped) fprintf(out, "; the shapes differ, the numbers of elements do not");
  fputc('\n', out);
  if (m->narrow_a != m->dtype_a && !m->narrowed)
    fprintf(out, "  every value of a is a value of %s\n", rmsnorm_dtype_name(m->narrow_a));
  if (m->narrow_b != m->dtype_b && !m->narrowed)
    fprintf(out, "  every value of b is a value of %s\n", rmsnorm_dtype_name(m->narrow_b));
}

static void print_place(FILE *out, const rn_measured *m, int64_t i, double a, double b) {
  fprintf(out, "row %" PRId64 ", column %" PRId64 ": %.9g against %.9g", i / m->cols, i % m->cols, a, b);
}

static void print_amount(FILE *out, const rn_measured *m) {
  const char *type = rmsnorm_dtype_name(m->dtype);
  if (m->differ == 0) {
    fprintf(out, "no element differs%s", m->rounded ? " after that rounding" : "");
    if (m->inexact > 0) fprintf(out, "; %" PRId64 " did before", m->inexact);
  } else {
    fprintf(out, "%" PRId64 " of %" PRId64 " elements differ (%.3g %%)", m->differ, m->elements,
            100 * (double)m->differ / (double)m->elements);
    if (m->ulp > 0) fprintf(out, ", by at most %" PRIu64 " ulp of %s", m->ulp, type);
  }
  if (m->zero_signs > 0)
    fprintf(out, "; %" PRId64 " zero%s of the other sign", m->zero_signs, m->zero_signs == 1 ? " is" : "s are");
  fputc('\n', out);
  if (m->first >= 0) {
    fprintf(out, "  first  ");
    print_place(out, m, m->first, m->first_a, m->first_b);
    fputc('\n', out);
  }
  if (m->worst >= 0 && m->worst != m->first) {
    fprintf(out, "  worst  ");
    print_place(out, m, m->worst, m->worst_a, m->worst_b);
    fputc('\n', out);
  }
}

static void print_classes(FILE *out, const rn_measured *m) {
  int64_t most = 1;
  for (int i = 0; i < RN_ULP_CLASSES; i++) most = m->classes[i] > most ? m->classes[i] : most;
  fprintf(out, "distance in ulp of %s\n", rmsnorm_dtype_name(m->dtype));
  for (int i = 0; i < RN_ULP_CLASSES; i++) {
    if (m->classes[i] == 0) continue;
    char bar[BAR + 1] = "";
    const int length = (int)ceil((double)BAR * (double)m->classes[i] / (double)most);
    memset(bar, '#', (size_t)length);
    fprintf(out, "  %11s %12" PRId64 "  %s\n", rn_ulp_class_name(i), m->classes[i], bar);
  }
}

static void print_bias(FILE *out, const rn_measured *m) {
  fprintf(out, "bias  a - b is %+.3g ulp on average, distance %.3g; ", m->bias_ulp, m->mean_ulp);
  if (fabs(m->away_sure) < SURE)
    fprintf(out, "neither nearer to zero nor further from it\n");
  else
    fprintf(out, "%s zero by %.3g ulp (%.3g times the standard error)\n",
            m->away_ulp < 0 ? "nearer to" : "further from", fabs(m->away_ulp), fabs(m->away_sure));
  fprintf(out, "  relative %+.3g on average, rms %.3g, at most %.3g\n", m->relative, m->rms, m->largest_relative);
  if (m->rows_four >= 4 && 10 * m->rows_one_way >= 9 * m->rows_four)
    fprintf(out, "  in %" PRId64 " of %" PRId64 " rows all errors lean one way, towards zero or away from it\n",
            m->rows_one_way, m->rows_four);
}

static void print_factors(FILE *out, const rn_measured *m) {
  const rn_factors *f = &m->factors;
  if (f->whole >= FACTOR_SHARE)
    fprintf(out, "factor  a is b times %.9g: that takes %.3g %% of the squared difference away\n", f->factor,
            100 * f->whole);
  else if (f->by_row >= FACTOR_SHARE && f->by_row >= f->by_col)
    fprintf(out, "factor  every row has its own, %.6g to %.6g: %.3g %% of the squared difference goes away\n",
            f->row_least, f->row_most, 100 * f->by_row);
  else if (f->by_col >= FACTOR_SHARE)
    fprintf(out, "factor  every column has its own, %.6g to %.6g: %.3g %% of the squared difference goes away\n",
            f->col_least, f->col_most, 100 * f->by_col);
}

static void print_alike(FILE *out, const rn_measured *m) {
  if (m->cosine < UNLIKE)
    fprintf(out, "cosine  %.3f: a and b are hardly the same quantity, or in another order\n", m->cosine);
}

static void print_special(FILE *out, const rn_measured *m) {
  const rn_specials *s = &m->specials;
  if (s->nan_a + s->nan_b > 0) {
    fprintf(out, "NaN  %" PRId64 " in a, %" PRId64 " in b, %" PRId64 " in the same place", s->nan_a, s->nan_b,
            s->nan_both);
    if (s->nan_a > 0)
      fprintf(out, "; a: from row %" PRId64 ", column %" PRId64 " on, in %" PRId64 " rows, %" PRId64 " of them whole",
              s->first_nan_a / m->cols, s->first_nan_a % m->cols, s->rows_nan_a, s->rows_full_nan_a);
    fputc('\n', out);
  }
  if (s->inf_a + s->inf_b > 0) {
    fprintf(out, "Inf  %" PRId64 " in a, %" PRId64 " in b, %" PRId64 " in the same place with the same sign", s->inf_a,
            s->inf_b, s->inf_both);
    if (s->inf_a > 0)
      fprintf(out, "; a: from row %" PRId64 ", column %" PRId64 " on", s->first_inf_a / m->cols,
              s->first_inf_a % m->cols);
    fputc('\n', out);
  }
  if (s->zero_rows_a != s->zero_rows_b)
    fprintf(out, "zeros  %" PRId64 " rows of a and %" PRId64 " of b are nothing else\n", s->zero_rows_a,
            s->zero_rows_b);
  if (s->zero_cols_a != s->zero_cols_b)
    fprintf(out, "zeros  %" PRId64 " columns of a and %" PRId64 " of b are nothing else\n", s->zero_cols_a,
            s->zero_cols_b);
}

static void print_plan(FILE *out, const rn_measured *m) {
  char text[RN_EXTENT_TEXT];
  if (m->differ == 0) return;
  if (m->floor > 0)
    fprintf(out, "errors above %" PRIu64 " ulp (%" PRId64 ") lie in\n", m->floor, m->above);
  else
    fprintf(out, "errors lie in\n");
  rn_extent_say(&m->row_extent, "row", text);
  fprintf(out, "  rows     %s\n", text);
  rn_extent_say(&m->col_extent, "column", text);
  fprintf(out, "  columns  %s\n", text);
  if (m->row_shift != 0)
    fprintf(out, "  row r of a is row r %c %" PRId64 " of b\n", m->row_shift < 0 ? '-' : '+',
            m->row_shift < 0 ? -m->row_shift : m->row_shift);
  if (m->transposed) fprintf(out, "  a is the transpose of b\n");
}

void rn_measured_print(FILE *out, const rn_measured *m) {
  print_types(out, m);
  print_amount(out, m);
  if (m->differ > 0) {
    print_classes(out, m);
    print_bias(out, m);
    print_factors(out, m);
    print_alike(out, m);
  }
  print_special(out, m);
  print_plan(out, m);
}

/* ------------------------------------------------------------------------------------------------------------------
 * JSON, which has no NaN and no infinity. */

static void put_number(FILE *out, const char *name, double v) {
  if (isfinite(v))
    fprintf(out, ",\"%s\":%.9g", name, v);
  else
    fprintf(out, ",\"%s\":null", name);
}
static void put_count(FILE *out, const char *name, int64_t v) {
  fprintf(out, ",\"%s\":%" PRId64, name, v);
}

static void put_extent(FILE *out, const char *name, const char *what, const rn_extent *e) {
  static const char *const kinds[] = {"none", "all", "one", "prefix", "suffix", "range", "periodic", "scattered"};
  char text[RN_EXTENT_TEXT];
  rn_extent_say(e, what, text);
  fprintf(out, ",\"%s\":{\"kind\":\"%s\",\"denser\":%s", name, kinds[e->kind], e->denser ? "true" : "false");
  put_count(out, "length", e->length), put_count(out, "hit", e->hit);
  put_count(out, "first", e->first), put_count(out, "last", e->last);
  if (e->kind == RN_EXTENT_PERIODIC)
    put_count(out, "period", e->period), put_count(out, "phase", e->phase), put_count(out, "run", e->run);
  fprintf(out, ",\"text\":");
  rn_json_put(out, text);
  fputc('}', out);
}

static void put_place(FILE *out, const char *name, const rn_measured *m, int64_t i, double a, double b) {
  if (i < 0) {
    fprintf(out, ",\"%s\":null", name);
    return;
  }
  fprintf(out, ",\"%s\":{\"row\":%" PRId64 ",\"column\":%" PRId64, name, i / m->cols, i % m->cols);
  put_number(out, "a", a), put_number(out, "b", b);
  fputc('}', out);
}

void rn_measured_json(FILE *out, const rn_measured *m) {
  const rn_specials *s = &m->specials;
  const char *comma = "";
  fprintf(out, "{\"rows\":%" PRId64 ",\"cols\":%" PRId64 ",\"dtype_a\":\"%s\",\"dtype_b\":\"%s\",\"dtype\":\"%s\"",
          m->rows, m->cols, rmsnorm_dtype_name(m->dtype_a), rmsnorm_dtype_name(m->dtype_b),
          rmsnorm_dtype_name(m->dtype));
  fprintf(out, ",\"rounded\":%s,\"narrowed\":%s,\"reshaped\":%s", m->rounded ? "true" : "false",
          m->narrowed ? "true" : "false", m->reshaped ? "true" : "false");
  put_count(out, "elements", m->elements), put_count(out, "differ", m->differ);
  put_count(out, "inexact", m->inexact), put_count(out, "zero_signs", m->zero_signs);
  fprintf(out, ",\"ulp\":%" PRIu64, m->ulp);
  put_place(out, "first", m, m->first, m->first_a, m->first_b);
  put_place(out, "worst", m, m->worst, m->worst_a, m->worst_b);
  fprintf(out, ",\"classes\":[");
  for (int i = 0; i < RN_ULP_CLASSES; i++) {
    if (m->classes[i] == 0) continue;
    fprintf(out, "%s{\"ulp\":\"%s\",\"count\":%" PRId64 "}", comma, rn_ulp_class_name(i), m->classes[i]);
    comma = ",";
  }
  fputc(']', out);
  put_number(out, "mean_ulp", m->mean_ulp), put_number(out, "bias_ulp", m->bias_ulp);
  put_number(out, "away_ulp", m->away_ulp), put_number(out, "away_sure", m->away_sure);
  put_number(out, "relative", m->relative), put_number(out, "largest_relative", m->largest_relative);
  put_number(out, "rms", m->rms), put_number(out, "cosine", m->cosine);
  put_count(out, "rows_four", m->rows_four), put_count(out, "rows_one_way", m->rows_one_way);
  fprintf(out, ",\"factors\":{\"factor\":%.9g", m->factors.factor);
  put_number(out, "whole", m->factors.whole), put_number(out, "by_row", m->factors.by_row);
  put_number(out, "by_col", m->factors.by_col);
  fprintf(out, "},\"nan\":{\"a\":%" PRId64 ",\"b\":%" PRId64 ",\"both\":%" PRId64, s->nan_a, s->nan_b, s->nan_both);
  fprintf(out, "},\"inf\":{\"a\":%" PRId64 ",\"b\":%" PRId64 ",\"both\":%" PRId64, s->inf_a, s->inf_b, s->inf_both);
  fprintf(out, "},\"zero_rows\":{\"a\":%" PRId64 ",\"b\":%" PRId64, s->zero_rows_a, s->zero_rows_b);
  fprintf(out, "},\"zero_columns\":{\"a\":%" PRId64 ",\"b\":%" PRId64 "}", s->zero_cols_a, s->zero_cols_b);
  fprintf(out, ",\"floor\":%" PRIu64, m->floor);
  put_count(out, "above", m->above);
  put_extent(out, "row_extent", "row", &m->row_extent);
  put_extent(out, "col_extent", "column", &m->col_extent);
  put_count(out, "row_shift", m->row_shift);
  fprintf(out, ",\"transposed\":%s}", m->transposed ? "true" : "false");
}
