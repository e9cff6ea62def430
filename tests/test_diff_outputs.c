/* test_diff_outputs.c - gradients and quantised outputs for test_diff: loops of their own.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "test_diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

counts gradients(int each, uint64_t seed) {
  static const char *const names[] = {
      NULL, "gradient-mean-term", "gradient-dot-missing", "residual-gradient-missing", "gradient-xhat-rounded", "eps",
      NULL, "dx-over-dy",         "dweight-narrow",       "gradient-xhat-rounded"};
  counts total = {0, 0};
  for (int what = 0; what < 10; what++)
    for (int kind = 0; kind < 3; kind++)
      for (int n = 0; n < each; n++) {
        instance i;
        kernel k;
        rn_diff_input in;
        rn_diff_result result;
        rn_diff_options options = RN_DIFF_OPTIONS_INIT;
        uint64_t at = seed + (uint64_t)(what * 1009 + kind * 101 + n);
        bool weight = what >= 6, rounds = what == 4 || what == 9;
        if ((rounds || what == 8) && kind == 0) continue;
        set_up(&i, &k, kind, LONG, at, &in);
        float *dy = i.r, *out = calloc((size_t)(i.rows * i.cols), sizeof *out),
              *dres = calloc((size_t)(i.rows * i.cols), 4);
        float eps = what == 5 ? 1e-4f : 1e-6f;
        for (int64_t e = 0; e < i.rows * i.cols; e++) {
          dy[e] = to_type(i.x_type, random_normal(&at));
          dres[e] = to_type(i.x_type, random_normal(&at));
        }
        for (int64_t row = 0; row < i.rows; row++) {
          const float *x = i.x + row * i.cols, *g = dy + row * i.cols;
          float ss = 0, dot = 0, mean = 0;
          for (int64_t c = 0; c < i.cols; c++) ss += x[c] * x[c];
          float r = 1 / sqrtf(ss / (float)i.cols + eps);
          for (int64_t c = 0; c < i.cols; c++) {
            float xhat = rounds ? to_type(i.x_type, (double)(x[c] * r)) : x[c] * r;
            dot += g[c] * i.w[c] * xhat, mean += g[c] * i.w[c];
          }
          for (int64_t c = 0; c < i.cols; c++) {
            float xhat = rounds ? to_type(i.x_type, (double)(x[c] * r)) : x[c] * r;
            float dx = r * (g[c] * i.w[c] - (what == 2 ? 0 : xhat * dot / (float)i.cols) -
                            (what == 1 ? mean / (float)i.cols : 0));
            if (!weight) {
              out[row * i.cols + c] = to_type(i.y_type, (double)(dx + (what == 3 ? 0 : dres[row * i.cols + c])));
              continue;
            }
            float p = (what == 7 ? to_type(i.x_type, (double)dx) : g[c]) * xhat;
            if (what == 8)
              out[c] = to_type(i.x_type, (double)(out[c] + to_type(i.x_type, (double)p)));
            else
              out[c] += p;
          }
        }
        for (int64_t c = 0; c < i.cols && weight; c++) out[c] = to_type(i.y_type, (double)out[c]);
        in.subject = weight ? RN_DIFF_DWEIGHT : RN_DIFF_DX;
        in.rows = i.rows, in.heads = 1, in.cols = i.cols, in.eps = 1e-6;
        rn_diff_tensor *tensor[] = {&in.x, &in.dy, &in.dresidual, &in.theirs, &in.weight};
        const float *values[] = {i.x, dy, dres, out, i.w};
        for (int t = 0; t < 5; t++) {
          int64_t length = t == 4 || (t == 3 && weight) ? i.cols : i.rows * i.cols;
          if (t == 2 && weight) continue;
          tensor[t]->dtype = i.x_type, tensor[t]->data = stored(values[t], length, i.x_type);
        }
        if (rn_diff_explain(&in, &options, &result) != 0) exit(2);
        bool hit = names[what] ? named(&result, names[what]) && result.explanation[0].count == 1
                               : result.verdict <= RN_DIFF_BENIGN;
        total.cases++, total.hits += hit;
        if (!hit) tell(names[what] ? names[what] : weight ? "dweight" : "dx", kind, &i, at, &result);
        for (int t = 0; t < 5; t++) free((void *)tensor[t]->data);
        free(out), free(dres), rn_diff_free(&result), instance_free(&i);
      }
  return total;
}

/* e4m3 codes out of a table of all values: to nearest, ties to the even code. */
static uint8_t fp8_code(bool fnuz, bool saturate, float v) {
  int best = 0;
  double off = INFINITY, top = fnuz ? 240 : 448;
  if (!saturate && fabs((double)v) > (fnuz ? 248 : 464)) return fnuz ? 0x80 : 0x7f;
  double m = fmin(fabs((double)v), top);
  for (int code = 0; code < (fnuz ? 0x80 : 0x7f); code++) {
    int e = code >> 3, f = code & 7;
    double value = ldexp(e ? 8 + f : f, (e ? e : 1) - (fnuz ? 8 : 7) - 3);
    if (fabs(value - m) < off || (fabs(value - m) == off && code % 2 == 0)) best = code, off = fabs(value - m);
  }
  return (uint8_t)(best | (v < 0 && (best || !fnuz) ? 0x80 : 0));
}

counts quantised(int each, uint64_t seed) {
  static const char *const names[] = {
      NULL, "fp8-codes", "fp8-largest", "scale-operation", "scale-rounded", "saturation", "scale-transposed"};
  counts total = {0, 0};
  for (int what = 0; what < 7; what++)
    for (int kind = 0; kind < 3; kind++)
      for (int n = 0; n < each; n++) {
        instance i;
        kernel k;
        rn_diff_input in;
        rn_diff_result result;
        rn_diff_options options = RN_DIFF_OPTIONS_INIT;
        uint64_t at = seed + (uint64_t)(what * 2003 + kind * 211 + n);
        if (what == 4 && kind == 0) continue;
        set_up(&i, &k, kind, LONG, at, &in);
        bool blocks = what == 6 || n % 2;
        int64_t width = blocks ? 128 : i.cols, per_row = (i.cols + width - 1) / width;
        uint8_t *codes = calloc((size_t)(i.rows * i.cols), 1);
        float *scale = calloc((size_t)(i.rows * per_row), sizeof *scale);
        rmsnorm_preset("fp32", &in.numerics), in.preset = "fp32";
        /* Division and reciprocal part only near the middle of two codes: rows made of nothing else. */
        for (int64_t e = 0; what == 3 && e < i.rows * i.cols; e++) {
          uint64_t bits = random_bits(&at);
          i.x[e] = e % width == 0
                       ? 448
                       : (float)ldexp(8.5 + (double)(bits % 8), (int)(bits / 8 % 5)) * (bits & 4096 ? 1 : -1);
          i.w[e % i.cols] = 1;
        }
        for (int64_t row = 0; row < i.rows; row++) {
          const float *x = i.x + row * i.cols;
          double ss = 0;
          for (int64_t c = 0; c < i.cols; c++) ss += (double)x[c] * (double)x[c];
          float r = (float)(1 / sqrt(ss / (double)i.cols + 1e-6));
          for (int64_t b = 0; b < per_row; b++) {
            float amax = 0, s;
            for (int64_t c = b * width; c < i.cols && c < (b + 1) * width; c++) {
              float v = x[c] * r * i.w[c];
              if (what == 4) v = to_type(i.x_type, (double)v);
              amax = fmaxf(amax, fabsf(v));
            }
            s = amax / (what == 1 || what == 2 ? 240 : 448);
            if (what == 5) s = 0.005f; /* one scale for all, too small for some values */
            scale[what == 6 ? b * i.rows + row : row * per_row + b] = s;
            for (int64_t c = b * width; c < i.cols && c < (b + 1) * width; c++) {
              float v = x[c] * r * i.w[c];
              if (what == 4) v = to_type(i.x_type, (double)v);
              codes[row * i.cols + c] = fp8_code(what == 1, what != 5, what == 3 ? v * (1 / s) : v / s);
            }
          }
        }
        in.subject = RN_DIFF_Q, in.rows = i.rows, in.heads = 1, in.cols = i.cols, in.eps = 1e-6;
        in.quant.q.dtype = RMSNORM_DTYPE_FP8_E4M3;
        in.quant.granularity = blocks ? RMSNORM_QUANT_BLOCK : RMSNORM_QUANT_ROW, in.quant.block_cols = blocks ? 128 : 0;
        in.theirs.data = codes, in.theirs.dtype = RMSNORM_DTYPE_FP8_E4M3, in.scale.data = scale, in.scale.dtype = F32;
        in.x.dtype = i.x_type, in.x.data = stored(i.x, i.rows * i.cols, i.x_type);
        in.weight.dtype = i.w_type, in.weight.data = stored(i.w, i.cols, i.w_type);
        if (what == 5) in.quant.granularity = RMSNORM_QUANT_TENSOR, in.quant.block_cols = 0;
        if (rn_diff_explain(&in, &options, &result) != 0) exit(2);
        bool hit = names[what] ? named(&result, names[what]) : result.verdict <= RN_DIFF_BENIGN;
        total.cases++, total.hits += hit;
        if (!hit) tell(names[what] ? names[what] : "quantised", kind, &i, at, &result);
        free(codes), free(scale), free((void *)in.x.data), free((void *)in.weight.data);
        rn_diff_free(&result), instance_free(&i);
      }
  return total;
}
