/* diff_statistic.c - rstd of a row under a model, how far float32 may honestly be from it, and the proposals about it.
 *
 * A proposal starts from what theirs used: the fits (diff_fit.c) of the sample rows give an interval for every rstd,
 * and each kind of mistake turns that into its own parameter. Only what all rows agree on is proposed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "diff_parts.h"

#include <float.h>
#include <math.h>
#include <string.h>

double rn_unit(const rn_diff *d) {
  return d->real == RMSNORM_DTYPE_F64 ? 0x1p-53 : 0x1p-24;
}

/* ---- sums of squares ---- */

static double sum_exactly(const double *u, int64_t n) {
  double part[4] = {0};
  for (int64_t i = 0; i < n; i++) part[i & 3] += u[i] * u[i];
  return part[0] + part[1] + (part[2] + part[3]);
}

/* `lanes` partial sums, then a tree; every step rounded to dtype. fused: the product of a float32 sum is not rounded.
 */
static double sum_in(int dtype, int lanes, bool fused, const double *u, int64_t n) {
  double lane[1024] = {0};
  for (int64_t i = 0; i < n; i++) {
    double *to = &lane[i % lanes], square = u[i] * u[i];
    if (dtype == RMSNORM_DTYPE_F32)
      *to = fused ? (double)fmaf((float)u[i], (float)u[i], (float)*to) : (double)(float)(*to + (double)(float)square);
    else
      *to = rn_ref_round(dtype, *to + rn_ref_round(dtype, square));
  }
  for (int half = lanes / 2; half >= 1; half /= 2)
    for (int i = 0; i < half; i++) lane[i] = rn_ref_round(dtype, lane[i] + lane[i + half]);
  return lane[0];
}

static double sum_of_squares(const rn_model *m, const double *u, int64_t n) {
  double sum = 0;
  switch (m->scheme) {
  case RN_SUM_LANES:
    return sum_in(RMSNORM_DTYPE_F32, m->lanes < 0 ? -m->lanes : m->lanes, m->lanes < 0, u, n);
  case RN_SUM_NARROW:
    return sum_in(m->stat_dtype, m->lanes, false, u, n);
  case RN_SUM_SQUARES:
    for (int64_t i = 0; i < n; i++) sum += rn_ref_round(m->stat_dtype, u[i] * u[i]);
    return sum;
  case RN_SUM_F32_RANGE:
    sum = sum_exactly(u, n);
    return sum > (double)FLT_MAX ? INFINITY : sum;
  default:
    return sum_exactly(u, n);
  }
}

/* ---- the root ---- */

static double quake(double v, int steps) {
  float x = (float)v, y;
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits = 0x5f3759dfu - (bits >> 1);
  memcpy(&y, &bits, 4);
  for (int i = 0; i < steps; i++) y = y * (1.5f - 0.5f * x * y * y);
  return (double)y;
}

static double root_of(const rn_model *m, double mean) {
  double v = m->eps_place == RN_EPS_INSIDE ? mean + m->eps : mean;
  if (m->stat_rounds & 2) v = rn_ref_round(m->stat_dtype, v);
  if (m->root == RN_ROOT_ONE) return 1;
  if (m->eps_place == RN_EPS_OUTSIDE) return 1 / (sqrt(v) + m->eps);
  if (m->eps_place == RN_EPS_AT_LEAST) return 1 / fmax(sqrt(v), m->eps);
  if (m->root == RN_ROOT_QUAKE || m->root == RN_ROOT_QUAKE2) return quake(v, m->root == RN_ROOT_QUAKE ? 1 : 2);
  if (v == 0 && m->root != RN_ROOT_BARE) return 0;
  double r = 1 / sqrt(v);
  return m->stat_rounds & 2 ? rn_ref_round(m->stat_dtype, r) : r;
}

double rn_model_rstd(rn_diff *d, const rn_model *m, int64_t row, int64_t group, const double *u) {
  int64_t width = d->cols / m->groups, n = m->columns ? m->columns : width;
  if (m->stat_source != m->source || m->stat_sum_dtype != m->sum_dtype) {
    rn_model other = *m;
    other.source = m->stat_source, other.sum_dtype = m->stat_sum_dtype;
    rn_model_row(d, &other, row, d->stat_u);
    u = d->stat_u;
  }
  const double *from = u + group * width;
  double sum = sum_of_squares(m, from, n);
  if (m->overrun) {
    if (row + 1 >= d->rows) return NAN;
    rn_model next = *m;
    next.overrun = 0;
    rn_model_row(d, &next, row + 1, d->stat_u);
    sum += sum_exactly(d->stat_u, m->overrun);
  }
  double divisor = m->divisor > 0 ? m->divisor : (double)n, mean = sum / divisor;
  if (m->stat_centred) {
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += from[i];
    mean -= total / (double)n * (total / (double)n);
  }
  /* A NaN makes its row NaN, an infinity a row of zeros. */
  mean *= 1 + m->nudge;
  if (m->stat_rounds & 1) mean = rn_ref_round(m->stat_dtype, mean);
  return root_of(m, mean);
}

/* The rounding errors of a sum of n squares, in any order, are bounded by n units; they are as good as independent, so
 * that 6 sqrt(n) units are passed about once in a billion rows (Higham and Mary, "A new approach to probabilistic
 * rounding error analysis", 2019). The root halves them; mean, eps, root and quotient add four. */
double rn_model_rstd_bound(const rn_diff *d, const rn_model *m) {
  double n = (double)(m->columns ? m->columns : d->cols / m->groups), terms = fmin(n, 8 + 6 * sqrt(n));
  int p = m->stat_dtype == RMSNORM_DTYPE_F16 ? 11 : 8;
  if (m->root == RN_ROOT_ONE) return 0;
  if (m->root == RN_ROOT_ESTIMATE) return 1.5 * 0x1p-12;
  if (m->root == RN_ROOT_NARROW) return fmin(0.5, (8 + 2 * sqrt(n)) * ldexp(0.5, -p));
  if (m->scheme == RN_SUM_LANES || m->scheme == RN_SUM_NARROW) return 8 * rn_unit(d);
  return (0.5 * terms + 4) * rn_unit(d);
}

/* ---- proposals ---- */

bool rn_target_mean(const rn_diff *d, const rn_model *m, int i, double *low, double *high) {
  const rn_fit *f = &d->target[i * d->target_groups];
  if (f->usable == 0 || f->covered == 0 || !(f->low > 0)) return false;
  double slack = 2 * (4 + fmin(0.25 * (double)d->cols, 2 * sqrt((double)d->cols))) * rn_unit(d);
  double least = f->low * (1 - 0.25 * slack), most = f->high * (1 + 0.25 * slack);
  *low = 1 / (most * most), *high = 1 / (least * least);
  if (m->eps_place != RN_EPS_INSIDE) {
    *low = 1 / most - m->eps, *high = 1 / least - m->eps;
    *low *= *low, *high *= *high;
  } else {
    *low -= m->eps, *high -= m->eps;
  }
  return *high > 0;
}

/* The number with the fewest digits within [low, high]. */
static double roundest(double low, double high) {
  for (int digits = 1; digits < 17; digits++) {
    char text[40];
    double v;
    snprintf(text, sizeof text, "%.*e", digits - 1, 0.5 * (low + high));
    if (sscanf(text, "%lf", &v) == 1 && v >= low && v <= high) return v;
  }
  return 0.5 * (low + high);
}

static void propose_eps(const rn_model *from, rn_proposals *list, double eps, rn_eps_place place) {
  if (place == from->eps_place && (float)eps == (float)from->eps) return;
  rn_model *m = rn_propose(list, from);
  if (!m) return;
  rn_model_parameter(m, "eps_ours", from->eps);
  rn_model_parameter(m, "eps", eps);
  m->eps = eps, m->eps_place = place;
}

/* Every eps that the fits of all rows allow, and how many rows said so. */
static int eps_allowed(const rn_diff *d, const rn_model *from, double *low, double *high) {
  int rows = 0;
  *low = 0, *high = INFINITY;
  for (int i = 0; i < d->samples; i++) {
    double least, most;
    if (from->groups > 1 || !rn_target_mean(d, from, i, &least, &most)) continue;
    double divisor = from->divisor > 0 ? from->divisor : (double)(from->columns ? from->columns : d->cols);
    double mean = d->squares[i * (d->cols + 1) + (from->columns ? from->columns : d->cols)] / divisor;
    least += from->eps - mean, most += from->eps - mean;
    if (least > *low) *low = least;
    if (most < *high) *high = most;
    rows++;
  }
  return rows;
}

void rn_propose_eps(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  static const double usual[] = {1e-5, 1e-6, 0,    1e-8, 1e-7, 1e-12, 1e-10, 1e-4,  1e-3, 1e-2,
                                 1e-9, 5e-6, 2e-5, 5e-5, 1e-1, 1,     1e-15, 1e-20, 1e-16};
  double low, high;
  int rows = eps_allowed(d, from, &low, &high);
  for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
    if (from->groups > 1 || rows == 0 || (usual[i] <= high * 1.01 && usual[i] >= low * 0.99))
      propose_eps(from, list, usual[i], RN_EPS_INSIDE);
  if (rows >= 3 && low > 0 && low <= high && isfinite(high))
    propose_eps(from, list, roundest(low, high), RN_EPS_INSIDE);
}

void rn_propose_eps_default(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  static const struct {
    const char *type;
    double eps;
  } defaults[] = {{"f32", 0x1p-23}, {"f16", 0x1p-10}, {"bf16", 0x1p-7}, {"f64", 0x1p-52}};
  double low, high;
  /* Where 0 fits as well, an epsilon that vanishes says nothing about where it came from. */
  if (eps_allowed(d, from, &low, &high) > 0 && low <= 0) return;
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
    int before = list->count;
    propose_eps(from, list, defaults[i].eps, RN_EPS_INSIDE);
    if (list->count > before) rn_model_note(&list->model[before], "%s", defaults[i].type);
  }
}

void rn_propose_divisor(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  int64_t width = d->cols / from->groups, tried[96];
  int count = 0;
  double low = 0, high = INFINITY;
  int rows = 0;
  tried[count++] = 1, tried[count++] = width - 1, tried[count++] = width + 1;
  for (int64_t k = 2; k <= 64; k += k < 10 ? 1 : k) {
    if (width % k == 0) tried[count++] = width / k;
    tried[count++] = width * k;
  }
  for (int64_t k = 8; k <= 4096; k *= 2) tried[count++] = (width + k - 1) / k * k; /* padded to whole blocks */
  for (int64_t k = 1; k < INT64_C(1) << 40; k *= 2)
    if (k >= width) {
      tried[count++] = k;
      break;
    }
  if (from->groups > 1) tried[count++] = d->cols;
  for (int i = 0; i < d->samples && from->groups == 1; i++) {
    double least, most;
    if (!rn_target_mean(d, from, i, &least, &most) || !(least > 0)) continue;
    double sum = d->squares[i * (d->cols + 1) + (from->columns ? from->columns : d->cols)];
    low = fmax(low, sum / most), high = fmin(high, sum / least);
    rows++;
  }
  if (rows >= 3 && high - low < 0.75 && floor(high) >= low && floor(high) > 1) tried[count++] = (int64_t)floor(high);
  for (int i = 0; i < count; i++) {
    bool again = tried[i] < 1 || (double)tried[i] == (from->divisor > 0 ? from->divisor : (double)width);
    for (int k = 0; k < i; k++) again = again || tried[k] == tried[i];
    rn_model *m = again ? NULL : rn_propose(list, from);
    if (!m) continue;
    m->divisor = (double)tried[i];
    rn_model_parameter(m, "divisor", m->divisor);
    rn_model_parameter(m, "divisor_ours", from->divisor > 0 ? from->divisor : (double)width);
  }
}

/* How round a number is: the largest power of two that divides it. */
static int64_t roundness(int64_t v) {
  return v & -v;
}

/* The number of columns whose squares make up theirs' sum, divided by all columns or by those. */
void rn_propose_tail(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  if (from->groups > 1 || from->columns) return;
  for (int kind = 0; kind < 2; kind++) {
    int64_t best = 0;
    for (int64_t n = 1; n < d->cols; n++) {
      int rows = 0;
      bool fits = best == 0 || roundness(n) > roundness(best);
      for (int i = 0; i < d->samples && fits; i++) {
        double low, high;
        if (!rn_target_mean(d, from, i, &low, &high)) continue;
        double over = kind == 0 ? (from->divisor > 0 ? from->divisor : (double)d->cols) : (double)n;
        double mean = d->squares[i * (d->cols + 1) + n] / over;
        fits = mean >= low && mean <= high;
        rows++;
      }
      if (fits && rows) best = n;
    }
    rn_model *m = best ? rn_propose(list, from) : NULL;
    if (!m) continue;
    m->columns = best, m->divisor = kind == 0 ? (from->divisor > 0 ? from->divisor : (double)d->cols) : 0;
    rn_model_parameter(m, "column", (double)best);
    rn_model_parameter(m, "missing", (double)(d->cols - best));
  }
}

void rn_propose_overrun(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  (void)d;
  if (from->groups > 1 || from->columns || from->overrun || d->rows < 2) return;
  for (int64_t k = 1; k <= 256 && k <= d->cols; k += k < 32 ? 1 : k < 64 ? 8 : 32) {
    rn_model *m = rn_propose(list, from);
    if (!m) return;
    m->overrun = k;
    m->divisor = from->divisor > 0 ? from->divisor : (double)d->cols;
    rn_model_parameter(m, "extra", (double)k);
  }
}

void rn_propose_narrow(const rn_diff *d, const rn_model *from, rn_proposals *list) {
  static const int types[] = {RMSNORM_DTYPE_F16, RMSNORM_DTYPE_BF16},
                   lanes[] = {0, 1, 4, 8, 16, 32, 64, 128, 256, 1024};
  (void)d;
  for (size_t t = 0; t < 2; t++)
    for (size_t l = 0; l < sizeof lanes / sizeof *lanes; l++)
      for (int rounds = 0; rounds < 4; rounds += rounds ? 2 : 1) {
        rn_model *m = rounds == 0 && lanes[l] ? NULL : rn_propose(list, from);
        if (!m) continue;
        m->scheme = lanes[l] ? RN_SUM_NARROW : RN_SUM_SQUARES;
        m->lanes = lanes[l], m->stat_dtype = types[t], m->stat_rounds = rounds;
        rn_model_note(m, "%s", rmsnorm_dtype_name(types[t]));
      }
}
