/* measure.c - one pass over two arrays, in which everything of measure.h is counted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "measure_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A background of small errors hides the plan of large ones, so rows and columns are counted above each of these. */
static const int64_t floors[] = {0, 1, 4, 16, 256, 65536, 1 << 24};
enum { FLOORS = sizeof floors / sizeof *floors };
/* Counting above all of them is for planes; arrays of very many rows or columns are counted once. */
enum { FLOORS_LENGTH = 1 << 22 };
/* Fewer than this for each factor, and it takes away a share of any noise. */
enum { FACTOR_ELEMENTS = 8 };
/* Fewer errors above a floor than this are the outliers of the ones below. */
enum { FLOOR_ERRORS = 16 };

/* d = a - b and b, summed over a row, a column or everything: what a factor would take away of the squares of d. */
typedef struct sums {
  double dd, db, bb;
} sums;

typedef struct counts {
  int floors; /* how many of them are counted */
  int64_t *rows[FLOORS], *cols[FLOORS];
  sums *col_sums;      /* NULL where there are too few rows for factors of columns */
  bool *col_a, *col_b; /* a column with something other than zero */
  uint64_t *hash_a, *hash_b;
  sums whole, rows_left; /* rows_left.dd: what remains when every row has its factor */
  double ulps, signed_ulps, away, away_squares, lean, size;
  int64_t finite;
  void *block;
} counts;

int rn_ulp_class(uint64_t ulp) {
  int class = 0;
  if (ulp <= 2) return (int)ulp;
  for (uint64_t most = 2; ulp > most && class < RN_ULP_CLASS_NONFINITE - 3; most *= 2) class ++;
  return class + 2;
}

const char *rn_ulp_class_name(int class) {
  static const char *const names[RN_ULP_CLASSES] = {"0",         "1",         "2",         "3-4",       "5-8",
                                                    "9-16",      "17-32",     "33-64",     "65-128",    "129-256",
                                                    "257-512",   "513-1024",  "1025-2048", "2049-4096", "4097-8192",
                                                    "8193-2^14", "2^14-2^15", "2^15-2^16", "over 2^16", "NaN or Inf"};
  return class >= 0 && class < RN_ULP_CLASSES ? names[class] : "?";
}

static bool make_counts(counts *t, int64_t rows, int64_t cols) {
  const size_t r = (size_t)rows, c = (size_t)cols, sums_of = rows >= FACTOR_ELEMENTS ? c : 0;
  memset(t, 0, sizeof *t);
  t->floors = r + c > FLOORS_LENGTH ? 1 : FLOORS;
  const size_t bytes = ((size_t)t->floors * (r + c) + 2 * r) * sizeof(int64_t) + sums_of * sizeof(sums) + 2 * c;
  char *at = t->block = calloc(1, bytes ? bytes : 1);
  if (at == NULL) return false;
  for (int f = 0; f < t->floors; f++) {
    t->rows[f] = (int64_t *)(void *)at, at += r * sizeof(int64_t);
    t->cols[f] = (int64_t *)(void *)at, at += c * sizeof(int64_t);
  }
  t->hash_a = (uint64_t *)(void *)at, at += r * sizeof(uint64_t);
  t->hash_b = (uint64_t *)(void *)at, at += r * sizeof(uint64_t);
  t->col_sums = sums_of ? (sums *)(void *)at : NULL, at += sums_of * sizeof(sums);
  t->col_a = (bool *)(void *)at, at += c;
  t->col_b = (bool *)(void *)at;
  return true;
}

static void add(sums *s, double d, double b) {
  s->dd += d * d, s->db += d * b, s->bb += b * b;
}
/* What is left of the squares of d when a is divided by the best factor, and that factor. */
static double left(const sums *s, double *factor) {
  *factor = s->bb > 0 ? 1 + s->db / s->bb : 1;
  return s->bb > 0 ? s->dd - s->db * s->db / s->bb : s->dd;
}

static void take_special(rn_specials *s, double a, double b, int64_t i, bool *row_a, bool *row_b) {
  if (a != a && s->nan_a++ == 0) s->first_nan_a = i;
  if (b != b && s->nan_b++ == 0) s->first_nan_b = i;
  s->nan_both += a != a && b != b;
  if (isinf(a) && s->inf_a++ == 0) s->first_inf_a = i;
  if (isinf(b) && s->inf_b++ == 0) s->first_inf_b = i;
  s->inf_both += isinf(a) && a == b;
  *row_a = *row_a || a != a, *row_b = *row_b || b != b;
}

static void take_difference(rn_measured *m, counts *t, int64_t gap, double a, double b, int64_t row, int64_t c) {
  const int64_t i = row * m->cols + c;
  const uint64_t ulp = gap == RN_GAP_NONFINITE ? UINT64_MAX : (uint64_t)(gap < 0 ? -gap : gap);
  if (m->differ++ == 0) m->first = i, m->first_a = a, m->first_b = b;
  if (gap == RN_GAP_NONFINITE) {
    m->classes[RN_ULP_CLASS_NONFINITE]++;
  } else {
    m->classes[rn_ulp_class(ulp)]++;
    if (ulp > m->ulp) m->ulp = ulp, m->worst = i, m->worst_a = a, m->worst_b = b;
  }
  for (int f = 0; f < t->floors && ulp > (uint64_t)floors[f]; f++) t->rows[f][row]++, t->cols[f][c]++;
}

static void take_finite(rn_measured *m, counts *t, int64_t gap, double a, double b, int64_t c, sums *row) {
  const double d = a - b, g = (double)gap, away = (b != 0 ? b < 0 : a < 0) ? -g : g;
  t->finite++;
  t->lean += b < 0 ? -d : d, t->size += fabs(b);
  if (fabs(d) > m->largest_relative * fabs(b) && b != 0) m->largest_relative = fabs(d / b);
  t->ulps += fabs(g), t->signed_ulps += g, t->away += away, t->away_squares += away * away;
  add(row, d, b), add(&t->whole, d, b);
  if (t->col_sums != NULL) add(&t->col_sums[c], d, b);
}

static void take_row(rn_measured *m, counts *t, rn_pair *p, int64_t row) {
  sums s = {0, 0, 0};
  int64_t out = 0, in = 0; /* errors away from zero and towards it */
  bool nan_a = false, nan_b = false, any_a = false, any_b = false, full_a = m->cols > 0;
  double factor;
  rn_pair_row(p, row);
  t->hash_a[row] = p->hash_a, t->hash_b[row] = p->hash_b;
  for (int64_t c = 0, i = row * m->cols; c < m->cols; c++, i++) {
    const double a = p->row_a[c], b = p->row_b[c];
    const int64_t gap = p->gap[c];
    if (a != 0) any_a = t->col_a[c] = true;
    if (b != 0) any_b = t->col_b[c] = true;
    full_a = full_a && a != a;
    if (isfinite(a) && isfinite(b))
      take_finite(m, t, gap, a, b, c, &s);
    else
      take_special(&m->specials, a, b, i, &nan_a, &nan_b);
    if (gap != 0) {
      take_difference(m, t, gap, a, b, row, c);
      if (gap != RN_GAP_NONFINITE) *(((gap > 0) == (b != 0 ? b > 0 : a > 0)) ? &out : &in) += 1;
    } else {
      m->classes[0]++;
      m->inexact += a != b && a == a;
      m->zero_signs += a == 0 && b == 0 && !signbit(a) != !signbit(b);
    }
  }
  m->specials.rows_nan_a += nan_a, m->specials.rows_nan_b += nan_b, m->specials.rows_full_nan_a += full_a;
  m->specials.zero_rows_a += !any_a, m->specials.zero_rows_b += !any_b;
  if (out + in >= 4) m->rows_four++, m->rows_one_way += out == 0 || in == 0;
  t->rows_left.dd += left(&s, &factor);
  if (s.bb > 0) {
    if (factor < m->factors.row_least) m->factors.row_least = factor;
    if (factor > m->factors.row_most) m->factors.row_most = factor;
  }
}

static void settle_factors(rn_measured *m, const counts *t) {
  rn_factors *f = &m->factors;
  double whole = left(&t->whole, &f->factor), by_col = 0, factor;
  for (int64_t c = 0; c < m->cols && t->col_sums != NULL; c++) {
    by_col += left(&t->col_sums[c], &factor);
    if (!(t->col_sums[c].bb > 0)) continue;
    if (factor < f->col_least) f->col_least = factor;
    if (factor > f->col_most) f->col_most = factor;
  }
  const double aa = t->whole.bb + 2 * t->whole.db + t->whole.dd, product = sqrt(aa) * sqrt(t->whole.bb);
  m->cosine = product > 0 && isfinite(product) ? (t->whole.bb + t->whole.db) / product : t->whole.dd > 0 ? 0 : 1;
  m->rms = t->whole.bb > 0 ? sqrt(t->whole.dd / t->whole.bb) : t->whole.dd > 0 ? INFINITY : 0;
  if (!(t->whole.dd > 0) || !isfinite(t->whole.dd + t->whole.bb)) return;
  if (m->elements >= FACTOR_ELEMENTS) f->whole = 1 - whole / t->whole.dd;
  if (m->cols >= FACTOR_ELEMENTS) f->by_row = 1 - t->rows_left.dd / t->whole.dd;
  if (t->col_sums != NULL) f->by_col = 1 - by_col / t->whole.dd;
}

static void settle_bias(rn_measured *m, const counts *t) {
  if (t->finite == 0) return;
  const double n = (double)t->finite;
  m->mean_ulp = t->ulps / n, m->bias_ulp = t->signed_ulps / n, m->away_ulp = t->away / n;
  m->relative = t->size > 0 ? t->lean / t->size : 0;
  const double variance = t->away_squares / n - m->away_ulp * m->away_ulp;
  if (variance > 0)
    m->away_sure = m->away_ulp / sqrt(variance / n);
  else if (m->away_ulp != 0 && t->finite > 1)
    m->away_sure = m->away_ulp * sqrt(n); /* all alike */
}

static bool is_plan(const rn_extent *e) {
  return e->kind != RN_EXTENT_NONE && e->kind != RN_EXTENT_ALL && e->kind != RN_EXTENT_SCATTERED;
}

/* 2: a plan; 1: one that stands out of other errors; 0: none. */
static int plan_rank(const rn_extent *rows, const rn_extent *cols) {
  const bool row_plan = is_plan(rows), col_plan = is_plan(cols);
  if (!row_plan && !col_plan) return 0;
  return (row_plan && rows->denser) || (col_plan && cols->denser) ? 1 : 2;
}

/* The lowest floor above which rows or columns show a plan; else all errors count. */
static bool settle_extents(rn_measured *m, const counts *t) {
  int chosen = 0, best = -1;
  for (int f = 0; f < t->floors && best < 2; f++) {
    int64_t above = 0;
    for (int64_t r = 0; r < m->rows; r++) above += t->rows[f][r];
    if (f > 0 && (above < FLOOR_ERRORS || above == m->above)) continue;
    const rn_extent rows = rn_extent_find(t->rows[f], m->rows, m->cols);
    const rn_extent cols = rn_extent_find(t->cols[f], m->cols, m->rows);
    const int rank = plan_rank(&rows, &cols);
    if (rank <= best) continue;
    chosen = f, best = rank;
    m->floor = (uint64_t)floors[f], m->above = above, m->row_extent = rows, m->col_extent = cols;
  }
  const size_t rows = (size_t)m->rows * sizeof(int64_t), cols = (size_t)m->cols * sizeof(int64_t);
  m->row_errors = malloc(rows ? rows : 1), m->col_errors = malloc(cols ? cols : 1);
  if (m->row_errors == NULL || m->col_errors == NULL) return false;
  memcpy(m->row_errors, t->rows[chosen], rows);
  memcpy(m->col_errors, t->cols[chosen], cols);
  return true;
}

/* Whether nearly all rows of a are rows of b, so many rows further on: and b's rows are not all alike. */
static bool shifted_by(const rn_measured *m, const counts *t, int64_t shift) {
  int64_t same = 0, own = 0, pairs = 0;
  for (int64_t r = 0; r < m->rows; r++) {
    if (r + shift < 0 || r + shift >= m->rows) continue;
    pairs++;
    same += t->hash_a[r] == t->hash_b[r + shift];
    own += t->hash_b[r] == t->hash_b[r + shift];
  }
  return pairs >= 2 && 10 * same >= 9 * pairs && 10 * own < pairs;
}

static void find_shift(rn_measured *m, const counts *t) {
  enum { TRIES = 8 };                 /* rows of b that are like the one looked for; many are, where all are alike */
  const int64_t middle = m->rows / 2; /* a row that a shift by less than half has not moved out */
  if (m->differ == 0 || m->rows < 4 || m->cols < 2) return;
  for (int64_t r = 0, tries = 0; r < m->rows && tries < TRIES && m->row_shift == 0; r++) {
    if (r == middle || t->hash_b[r] != t->hash_a[middle]) continue;
    tries++;
    if (shifted_by(m, t, r - middle)) m->row_shift = r - middle;
  }
}

static void find_transpose(rn_measured *m, const rn_pair *p) {
  const int last = p->b->rank - 1;
  if (m->differ == 0 || m->rows < 2 || m->cols < 2 || last < 1 || p->b->shape[last] != m->rows) return;
  for (int64_t r = 0; r < m->rows; r++)
    for (int64_t c = 0; c < m->cols; c++) {
      const double a = rn_pair_a(p, r * m->cols + c), b = rn_pair_b(p, c * m->rows + r);
      if (a != b && (a == a || b == b)) return;
    }
  m->transposed = true;
}

bool rn_measure(const rn_tensor *a, const rn_tensor *b, rn_measured *m, FILE *err) {
  rn_pair p;
  counts t;
  memset(m, 0, sizeof *m);
  if (!rn_pair_open(&p, a, b, err)) return false;
  m->dtype_a = a->dtype, m->dtype_b = b->dtype, m->dtype = p.dtype;
  m->rounded = p.rounded, m->narrowed = p.narrowed, m->narrow_a = p.narrow_a, m->narrow_b = p.narrow_b;
  m->reshaped = p.reshaped, m->rows = p.rows, m->cols = p.cols, m->elements = a->count;
  m->first = m->worst = -1;
  m->specials.first_nan_a = m->specials.first_nan_b = m->specials.first_inf_a = m->specials.first_inf_b = -1;
  m->factors = (rn_factors){-1, -1, -1, 1, INFINITY, -INFINITY, INFINITY, -INFINITY};
  bool good = make_counts(&t, m->rows, m->cols);
  if (good) {
    for (int64_t r = 0; r < m->rows; r++) take_row(m, &t, &p, r);
    for (int64_t c = 0; c < m->cols && m->rows > 0; c++)
      m->specials.zero_cols_a += !t.col_a[c], m->specials.zero_cols_b += !t.col_b[c];
    settle_bias(m, &t);
    settle_factors(m, &t);
    find_shift(m, &t);
    find_transpose(m, &p);
    good = settle_extents(m, &t);
  }
  if (!good) {
    fprintf(err, "there is no memory to compare %" PRId64 " elements\n", a->count);
    rn_measured_free(m);
  }
  free(t.block);
  rn_pair_close(&p);
  return good;
}

void rn_measured_free(rn_measured *m) {
  free(m->row_errors), free(m->col_errors);
  m->row_errors = m->col_errors = NULL;
}

bool rn_measured_equal(const rn_measured *m) {
  return m->differ == 0;
}
