/* test_diff_kernel.c - see test_diff_kernel.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "test_diff_kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t random_bits(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double random_unit(uint64_t *state) {
  return (double)(random_bits(state) >> 11) * 0x1p-53;
}

double random_normal(uint64_t *state) {
  double u = random_unit(state), v = random_unit(state);
  return sqrt(-2 * log(u + 1e-300)) * cos(6.283185307179586 * v);
}

static void layout(int dtype, int *digits, int *lowest, double *largest) {
  *digits = dtype == RMSNORM_DTYPE_F16 ? 11 : dtype == RMSNORM_DTYPE_BF16 ? 8 : 24;
  *lowest = dtype == RMSNORM_DTYPE_F16 ? -14 : -126;
  *largest = dtype == RMSNORM_DTYPE_F16 ? 65504 : dtype == RMSNORM_DTYPE_BF16 ? 0x1.fep127 : 0x1.fffffep127;
}

static float convert(int dtype, double v, double (*whole)(double)) {
  int digits, lowest, e;
  double largest;
  layout(dtype, &digits, &lowest, &largest);
  if (v == 0 || !isfinite(v)) return (float)v;
  (void)frexp(v, &e);
  double step = ldexp(1, (e - 1 < lowest ? lowest : e - 1) - digits + 1), r = whole(v / step) * step;
  return (float)(fabs(r) > largest ? copysign(INFINITY, v) : r);
}

float to_type(int dtype, double v) {
  return dtype == RMSNORM_DTYPE_F32 ? (float)v : convert(dtype, v, rint);
}
float to_type_truncated(int dtype, double v) {
  return convert(dtype, v, trunc);
}
static double half_away(double v) {
  return copysign(floor(fabs(v) + 0.5), v);
}

bool instance_make(instance *i, bool small_weights) {
  size_t count = (size_t)(i->rows * i->cols);
  uint64_t state = i->seed;
  i->x = malloc(count * sizeof(float)), i->r = malloc(count * sizeof(float)), i->y = malloc(count * sizeof(float));
  i->w = malloc((size_t)i->cols * sizeof(float)), i->other = malloc((size_t)i->cols * sizeof(float));
  i->gate = malloc(count * sizeof(float));
  if (!i->x || !i->r || !i->y || !i->w || !i->other || !i->gate) return false;
  for (int64_t row = 0; row < i->rows; row++) {
    /* Rows of many sizes, some small enough for eps to matter, some with a mean. */
    double size = ldexp(1, (int)(random_bits(&state) % 5) - 2), mean = 0.4 * random_normal(&state);
    if (row % 3 == 1) size *= 0.01;
    for (int64_t c = 0; c < i->cols; c++) {
      i->x[row * i->cols + c] = to_type(i->x_type, size * (random_normal(&state) + mean));
      i->r[row * i->cols + c] = to_type(i->x_type, 2 * size * random_normal(&state));
    }
  }
  for (int64_t c = 0; c < i->cols; c++) {
    double a = random_normal(&state), b = random_normal(&state);
    i->w[c] = to_type(i->w_type, small_weights ? 0.3 * a : 0.25 * a + 1);
    i->other[c] = to_type(i->w_type, small_weights ? 0.3 * b : 0.25 * b + 1);
  }
  for (size_t e = 0; e < count; e++) i->gate[e] = to_type(i->x_type, 1.5 * random_normal(&state));
  return true;
}

void instance_free(instance *i) {
  free(i->x), free(i->r), free(i->y), free(i->w), free(i->other), free(i->gate);
}

void *stored(const float *v, int64_t count, int dtype) {
  char *to = malloc((size_t)count * 4);
  for (int64_t i = 0; to && i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &v[i], 4);
    uint16_t code = (uint16_t)(bits >> 16);
    if (dtype == RMSNORM_DTYPE_F16) { /* the value is one of f16 */
      double m = fabs((double)v[i]);
      int e;
      code = (uint16_t)(bits >> 31 << 15);
      if (isnan(v[i]))
        code |= 0x7e00;
      else if (isinf(v[i]))
        code |= 0x7c00;
      else if (m >= 0x1p-14)
        (void)frexp(m, &e), code |= (uint16_t)((unsigned)(e + 14) << 10 | ((unsigned)ldexp(m, 11 - e) & 0x3ffu));
      else
        code |= (uint16_t)(m * 0x1p24);
    }
    if (dtype == RMSNORM_DTYPE_F32)
      memcpy(to + 4 * i, &v[i], 4);
    else
      memcpy(to + 2 * i, &code, 2);
  }
  return to;
}

/* ---- the kernel ---- */

static float flushed(const kernel *k, float v) {
  return k->flush && fabsf(v) < 0x1p-126f ? 0 : v;
}

static float narrowed(const kernel *k, int dtype, float v) {
  if (dtype == RMSNORM_DTYPE_F32) return flushed(k, v);
  float r = k->truncate ? to_type_truncated(dtype, (double)v)
            : k->away   ? convert(dtype, (double)v, half_away)
                        : to_type(dtype, (double)v);
  if (k->flush && fabsf(r) < (dtype == RMSNORM_DTYPE_F16 ? 0x1p-14f : 0x1p-126f)) return 0;
  return r;
}

static float row_sum(const instance *in, const kernel *k, const float *h, int64_t n, int64_t extra) {
  int lanes = k->lanes ? k->lanes : 32, t = in->x_type;
  float lane[1024] = {0};
  double wide = 0;
  for (int64_t c = 0; c < n + extra; c++) {
    float square = h[c] * h[c];
    if (k->half_squares || k->half_sum) square = to_type(t, (double)square);
    lane[c % lanes] += square;
    if (k->half_sum) lane[c % lanes] = to_type(t, (double)lane[c % lanes]);
    wide += (double)h[c] * (double)h[c];
  }
  if (k->wide) return (float)wide;
  for (int half = lanes / 2; half; half /= 2)
    for (int l = 0; l < half; l++) {
      lane[l] += lane[l + half];
      if (k->half_sum) lane[l] = to_type(t, (double)lane[l]);
    }
  return lane[0];
}

static float inverse_root(const kernel *k, float v) {
  if (k->quake) {
    uint32_t bits;
    float y;
    memcpy(&bits, &v, 4);
    bits = 0x5f3759df - (bits >> 1);
    memcpy(&y, &bits, 4);
    return y * (1.5f - 0.5f * v * y * y);
  }
  float r = 1 / sqrtf(v);
  /* An estimate of twelve bits: a table over the upper bits of the mantissa. */
  if (k->approximate) {
    uint32_t bits;
    memcpy(&bits, &r, 4);
    bits = (bits + 0x400u) & ~0x7ffu;
    memcpy(&r, &bits, 4);
  }
  return r;
}

static float weight_at(const instance *in, const kernel *k, int64_t row, int64_t c, bool *junk) {
  int64_t at = c;
  if (k->weight_shift) at = c + k->weight_shift;
  if (k->weight_stride) at = c * k->weight_stride;
  if (k->weight_period) at = c % k->weight_period;
  if (k->weight_block) at = c / k->weight_block;
  if (k->weight_by_row) at = row;
  *junk = at < 0 || at >= in->cols;
  if (*junk) return 1.25f;
  float w = k->other_weight ? in->other[at] : in->w[at];
  if (k->weight_bytes) { /* f32 in memory, read as bf16 */
    uint32_t bits;
    memcpy(&bits, &in->w[c / 2], 4);
    bits = c % 2 ? bits & 0xffff0000u : bits << 16;
    memcpy(&w, &bits, 4);
  }
  float offset = k->offset + (k->offset_added_twice ? 1 : 0);
  if (offset != 0) w = offset + w;
  if (k->offset_in_half) w = to_type(in->w_type, (double)w);
  return k->weight_squared ? w * w : w;
}

static float activation(const kernel *k, float z) {
  double sigmoid = 1 / (1 + exp(-(double)z));
  return (float)(k->gate == 1 ? (double)z * sigmoid : sigmoid);
}

/* h of one row, and with it what lies behind it in memory. */
static void load_row(const instance *in, const kernel *k, int64_t row, float *h, float *s) {
  int64_t stride = k->row_stride ? k->row_stride : in->cols, all = in->rows * in->cols;
  int64_t from = k->transposed ? row % in->heads * (in->rows / in->heads) + row / in->heads : row;
  for (int64_t c = 0; c < in->cols + k->overrun; c++) {
    int64_t at = from * stride + c;
    float x = at < all ? in->x[at] : 3.5f, r = at < all ? in->r[at] : 3.5f;
    h[c] = flushed(k, x);
    if (in->residual) {
      h[c] = k->no_residual ? x : k->only_residual ? r : x + r;
      if (k->sum_rounded) h[c] = narrowed(k, in->x_type, h[c]);
      if (k->residual_twice) h[c] = h[c] + r;
      if (k->x_twice) h[c] = h[c] + x;
      if (k->sum_rounded) h[c] = narrowed(k, in->x_type, h[c]);
    }
    if (k->gate && k->gate_first) h[c] = h[c] * activation(k, in->gate[row * in->cols + c]);
    s[c] = k->statistic_of_x ? x : h[c];
  }
}

static void norm_row(const instance *in, const kernel *k, int64_t row, float *h, float *s, float *y) {
  int64_t groups = k->groups ? k->groups : 1, width = in->cols / groups;
  for (int64_t g = 0; g < groups; g++) {
    float *u = h + g * width, mean = 0;
    int64_t n = k->tail ? k->tail : width;
    for (int64_t c = 0; c < n; c++) mean += s[g * width + c];
    mean /= (float)n;
    if (k->centred)
      for (int64_t c = 0; c < width; c++) u[c] -= mean, s[g * width + c] -= mean;
    float ms = row_sum(in, k, s + g * width, n, k->overrun) / (float)(k->divisor ? k->divisor : width);
    if (k->variance) ms -= mean * mean;
    if (k->half_mean) ms = to_type(in->x_type, (double)ms);
    float v = k->eps_place == 0 ? ms + k->eps : ms;
    if (k->half_root) v = to_type(in->x_type, (double)v);
    float rstd = inverse_root(k, v);
    if (k->half_root || k->rstd_rounded) rstd = to_type(in->x_type, (double)rstd);
    if (k->eps_place == 1) rstd = 1 / (sqrtf(ms) + k->eps);
    if (k->eps_place == 2) rstd = 1 / fmaxf(sqrtf(ms), k->eps);
    if (k->no_norm) rstd = 1;
    for (int64_t c = 0; c < width; c++) {
      bool junk;
      float w = flushed(k, weight_at(in, k, row, g * width + c, &junk)), t;
      bool weighted = in->weighted && !k->no_weight;
      if (!weighted) w = 1;
      if (k->product == 1)
        t = u[c] * (rstd * w);
      else if (k->product == 2)
        t = u[c] * w * rstd;
      else if (k->product == 3)
        t = u[c] / sqrtf(v) * w;
      else {
        t = u[c] * rstd;
        if (k->xhat_rounded) t = narrowed(k, in->x_type, t);
        if (k->xhat_to_weight) t = narrowed(k, in->w_type, t);
        t = t * w;
      }
      if (k->normed_rounded) t = narrowed(k, in->x_type, t);
      if (k->gate && !k->gate_first) t = t * activation(k, in->gate[row * in->cols + g * width + c]);
      if (k->wide) t = (float)((double)u[c] / sqrt((double)ms + (double)k->eps) * (double)w);
      y[g * width + c] = narrowed(k, in->y_type, t);
      if (k->weight_by_caller) y[g * width + c] = narrowed(k, in->y_type, y[g * width + c] * w);
    }
  }
}

void run_kernel(const instance *in, const kernel *k) {
  size_t bytes = sizeof(float) * (size_t)(in->cols + k->overrun);
  float *h = malloc(bytes), *s = malloc(bytes);
  for (int64_t row = 0; row < in->rows; row++) {
    float *y = in->y + row * in->cols;
    load_row(in, k, row, h, s);
    norm_row(in, k, row, h, s, y);
    if (k->twice) {
      memcpy(h, y, sizeof(float) * (size_t)in->cols), memcpy(s, y, sizeof(float) * (size_t)in->cols);
      norm_row(in, k, row, h, s, y);
    }
    bool unwritten = k->rows_written && row >= k->rows_written;
    uint64_t junk = in->seed + (uint64_t)row;
    for (int64_t c = 0; c < in->cols; c++)
      if (unwritten || (k->cols_written && c >= k->cols_written))
        y[c] = isnan(k->poison) ? to_type(in->y_type, random_normal(&junk)) : k->poison;
  }
  free(h), free(s);
}
