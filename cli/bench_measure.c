/* bench_measure.c - time one cell: the library, plain copies of the same bytes and the plain loops, interleaved round
 * by round in random order, so that all of them see the same machine.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "cases.h"
#include "naive.h"
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

const char *const rn_bench_op_names[RN_BENCH_OPS] = {"forward",     "residual",  "backward",
                                                     "backward-dx", "quant-row", "gated"};
const char *const rn_bench_who_names[RN_BENCH_WHOS] = {"library", "memcpy", "loop", "stream", "naive", "naive-fast"};

double rn_bench_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- memory: one region for the operation, one for the copies, kept from cell to cell ---- */

typedef struct region {
  char *data;
  size_t bytes;
} region;
static region work, copies;

static bool reserve(region *r, size_t bytes) {
  const size_t huge = (size_t)2 << 20;
  bytes = (bytes + huge - 1) / huge * huge + huge;
  if (bytes <= r->bytes) return true;
  if (r->data) munmap(r->data, r->bytes);
  r->bytes = 0;
  r->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (r->data == MAP_FAILED) return r->data = NULL, false;
#ifdef MADV_HUGEPAGE
  (void)madvise(r->data, bytes, MADV_HUGEPAGE);
#endif
  memset(r->data, 1, bytes);
  return r->bytes = bytes, true;
}

void rn_bench_release(void) {
  if (work.data) munmap(work.data, work.bytes);
  if (copies.data) munmap(copies.data, copies.bytes);
  memset(&work, 0, sizeof work), memset(&copies, 0, sizeof copies);
}

/* ---- what a cell touches ---- */

typedef struct arrays {
  char *x, *second, *y; /* second: residual, dy or gate */
  void *weight, *dweight, *scales, *workspace;
  size_t workspace_bytes;
  size_t x_step, y_step; /* bytes from one call's place to the next */
} arrays;

static bool has_second(rn_bench_op op) {
  return op != RN_BENCH_FORWARD && op != RN_BENCH_QUANT_ROW;
}

int64_t rn_bench_row_bytes(rn_bench_op op, int dtype, int64_t cols) {
  int64_t size = (int64_t)rmsnorm_dtype_bytes(dtype);
  switch (op) {
  case RN_BENCH_FORWARD:
    return cols * 2 * size;
  case RN_BENCH_RESIDUAL:
    return cols * 4 * size;
  case RN_BENCH_QUANT_ROW:
    return cols * (size + 1) + 4;
  default:
    return cols * 3 * size;
  }
}

static rmsnorm_forward_args forward_of(const rn_bench_cell *c, const arrays *a, int64_t set) {
  rmsnorm_forward_args f = RMSNORM_FORWARD_ARGS_INIT;
  f.rows = c->rows, f.cols = c->cols, f.eps = 1e-6, f.threads = c->threads, f.impl = c->impl;
  f.weight = a->weight, f.weight_dtype = c->dtype;
  f.x = rmsnorm_input(a->x + (size_t)set * a->x_step, c->dtype, c->cols);
  char *second = a->second + (size_t)set * a->x_step, *y = a->y + (size_t)set * a->y_step;
  if (c->op == RN_BENCH_RESIDUAL) {
    f.residual = rmsnorm_input(second, c->dtype, c->cols);
    f.residual_out = rmsnorm_output(second, c->dtype, c->cols);
  }
  if (c->op == RN_BENCH_GATED) {
    f.numerics.gate = RMSNORM_GATE_SILU;
    f.gate = rmsnorm_input(second, c->dtype, c->cols);
  }
  if (c->op == RN_BENCH_QUANT_ROW) {
    f.quant.granularity = RMSNORM_QUANT_ROW;
    f.quant.scale_out = (float *)a->scales + set * c->rows;
    f.quant.q = rmsnorm_output(y, RMSNORM_DTYPE_FP8_E4M3, c->cols);
  } else {
    f.y = rmsnorm_output(y, c->dtype, c->cols);
  }
  return f;
}

static rmsnorm_backward_args backward_of(const rn_bench_cell *c, const arrays *a, int64_t set) {
  rmsnorm_backward_args b = RMSNORM_BACKWARD_ARGS_INIT;
  b.rows = c->rows, b.cols = c->cols, b.eps = 1e-6, b.threads = c->threads, b.impl = c->impl;
  b.weight = a->weight, b.weight_dtype = c->dtype;
  b.x = rmsnorm_input(a->x + (size_t)set * a->x_step, c->dtype, c->cols);
  b.dy = rmsnorm_input(a->second + (size_t)set * a->x_step, c->dtype, c->cols);
  b.dx = rmsnorm_output(a->y + (size_t)set * a->y_step, c->dtype, c->cols);
  if (c->op == RN_BENCH_BACKWARD) b.dweight = a->dweight, b.dweight_dtype = c->dtype;
  b.workspace = a->workspace_bytes ? a->workspace : NULL, b.workspace_bytes = a->workspace_bytes;
  return b;
}

static bool is_backward(rn_bench_op op) {
  return op == RN_BENCH_BACKWARD || op == RN_BENCH_BACKWARD_DX;
}

static rmsnorm_status call_library(const rn_bench_cell *c, const arrays *a, int64_t set) {
  if (is_backward(c->op)) {
    rmsnorm_backward_args b = backward_of(c, a, set);
    return rmsnorm_backward(&b, NULL);
  }
  rmsnorm_forward_args f = forward_of(c, a, set);
  return rmsnorm_forward(&f, NULL);
}

/* ---- copies ---- */

static void copy_loop(char *restrict to, const char *restrict from, size_t bytes) {
  uint64_t *restrict t = (uint64_t *)(void *)to;
  const uint64_t *restrict f = (const uint64_t *)(const void *)from;
  for (size_t i = 0; i < bytes / 8; i++) t[i] = f[i];
#ifdef __GNUC__
  __asm__ volatile("" ::: "memory");
#endif
}

static void copy_stream(char *restrict to, const char *restrict from, size_t bytes) {
#ifdef __SSE2__
  for (size_t i = 0; i + 64 <= bytes; i += 64)
    for (size_t k = 0; k < 64; k += 16)
      _mm_stream_si128((__m128i *)(void *)(to + i + k), _mm_loadu_si128((const __m128i *)(const void *)(from + i + k)));
  _mm_sfence();
#else
  memcpy(to, from, bytes);
#endif
}

static void copy_part(rn_bench_who who, char *to, const char *from, size_t bytes) {
  if (who == RN_BENCH_MEMCPY)
    memcpy(to, from, bytes);
  else if (who == RN_BENCH_LOOP)
    copy_loop(to, from, bytes);
  else
    copy_stream(to, from, bytes);
}

/* Share n units out over threads in contiguous parts, as the library does with rows. */
#ifdef _OPENMP
#define SHARE_OUT(threads, n, first, last, body)                                                                       \
  if ((threads) > 1) {                                                                                                 \
    _Pragma("omp parallel num_threads(threads)") {                                                                     \
      int64_t me_ = omp_get_thread_num(), all_ = omp_get_num_threads();                                                \
      int64_t first = (n)*me_ / all_, last = (n) * (me_ + 1) / all_;                                                   \
      body;                                                                                                            \
    }                                                                                                                  \
  } else {                                                                                                             \
    int64_t first = 0, last = (n);                                                                                     \
    body;                                                                                                              \
  }
#else
#define SHARE_OUT(threads, n, first, last, body)                                                                       \
  {                                                                                                                    \
    (void)(threads);                                                                                                   \
    int64_t first = 0, last = (n);                                                                                     \
    body;                                                                                                              \
  }
#endif

static void call_copy(const rn_bench_cell *c, rn_bench_who who, int64_t set) {
  int64_t half = (c->call_bytes / 2 + 63) / 64 * 64, all = c->sets * half;
  char *from = copies.data + set * half, *to = copies.data + all + 4096 + 512 + set * half;
  int threads = c->call_bytes < 65536 ? 1 : c->threads;
  SHARE_OUT(threads, half / 64, first, last,
            copy_part(who, to + first * 64, from + first * 64, (size_t)(last - first) * 64))
}

/* ---- plain loops ---- */

static rn_naive_rows naive_of(const rn_bench_cell *c, bool fast) {
  static const rn_naive_rows table[3][2][2] = {
      {{rn_naive_forward_f32, rn_naive_forward_bf16}, {rn_naive_fast_forward_f32, rn_naive_fast_forward_bf16}},
      {{rn_naive_residual_f32, rn_naive_residual_bf16}, {rn_naive_fast_residual_f32, rn_naive_fast_residual_bf16}},
      {{rn_naive_backward_f32, rn_naive_backward_bf16}, {rn_naive_fast_backward_f32, rn_naive_fast_backward_bf16}}};
  int op = c->op == RN_BENCH_BACKWARD_DX ? 2 : c->op <= RN_BENCH_RESIDUAL ? (int)c->op : -1;
  if (op < 0 || (c->dtype != RMSNORM_DTYPE_F32 && c->dtype != RMSNORM_DTYPE_BF16)) return NULL;
  return table[op][fast][c->dtype == RMSNORM_DTYPE_BF16];
}

static void call_naive(const rn_bench_cell *c, const arrays *a, bool fast, int64_t set) {
  rn_naive n = {a->x + (size_t)set * a->x_step,
                a->second + (size_t)set * a->x_step,
                a->weight,
                a->second + (size_t)set * a->x_step,
                a->y + (size_t)set * a->y_step,
                c->cols,
                1e-6f};
  rn_naive_rows rows = naive_of(c, fast);
  int threads = c->rows < c->threads ? 1 : c->threads;
  SHARE_OUT(threads, c->rows, first, last, rows(&n, first, last))
}

static bool call(const rn_bench_cell *c, const arrays *a, rn_bench_who who, int64_t set) {
  switch (who) {
  case RN_BENCH_LIBRARY:
    return call_library(c, a, set) == RMSNORM_OK;
  case RN_BENCH_NAIVE:
    return call_naive(c, a, false, set), true;
  case RN_BENCH_NAIVE_FAST:
    return call_naive(c, a, true, set), true;
  default:
    return call_copy(c, who, set), true;
  }
}

/* ---- checking before timing ---- */

static bool alike(int dtype, const void *a, const void *b, int64_t n, double most) {
  for (int64_t i = 0; i < n; i++) {
    double p = rn_ref_load(dtype, a, i), q = rn_ref_load(dtype, b, i);
    if (!(fabs(p - q) <= most * (fabs(p) + fabs(q)) + 1e-3 * most)) return false;
  }
  return true;
}

/* The library against portable by bits and against float64 by bounds, the loops against portable roughly, on the first
 * rows of the first place. */
static bool check(const rn_bench_cell *cell, const arrays *a, bool peers, char *why, size_t why_bytes) {
  rn_bench_cell c = *cell;
  int64_t most = 65536 / c.cols + 2;
  if (c.rows > most && c.op != RN_BENCH_BACKWARD) c.rows = most;
  int64_t judged = c.rows > 2 ? 2 : c.rows, elements = c.rows * c.cols;
  int y_dtype = c.op == RN_BENCH_QUANT_ROW ? RMSNORM_DTYPE_FP8_E4M3 : c.dtype;
  size_t y_bytes = (size_t)elements * rmsnorm_dtype_bytes(y_dtype),
         x_bytes = (size_t)elements * rmsnorm_dtype_bytes(c.dtype);
  size_t dweight_bytes = c.op == RN_BENCH_BACKWARD ? (size_t)c.cols * rmsnorm_dtype_bytes(c.dtype) : 0;
  char *got = malloc(y_bytes), *second = malloc(x_bytes);
  char *sum = malloc(x_bytes), *dweight = malloc(dweight_bytes + 1);
  rn_approx *ref = malloc((size_t)(judged * c.cols) * sizeof *ref);
  bool ok = got && second && sum && dweight && ref;
  snprintf(why, why_bytes, "no memory");
  if (!ok) goto done;
  memcpy(second, a->second, x_bytes);
  rmsnorm_status status = call_library(&c, a, 0);
  if (status != RMSNORM_OK) {
    snprintf(why, why_bytes, "%s", rmsnorm_last_error());
    ok = false;
    goto done;
  }
  memcpy(got, a->y, y_bytes);
  memcpy(sum, a->second, x_bytes);
  memcpy(dweight, a->dweight, dweight_bytes);
  memcpy(a->second, second, x_bytes); /* the residual again as it was */
  if (c.op != RN_BENCH_QUANT_ROW) {
    rn_bench_cell few = c;
    few.rows = judged;
    if (is_backward(c.op)) {
      rmsnorm_backward_args b = backward_of(&few, a, 0);
      rn_ref_backward_out out = {.dx = ref};
      rn_ref_backward(&b, &out);
    } else {
      rmsnorm_forward_args f = forward_of(&few, a, 0);
      rn_ref_forward_out out = {.y = ref};
      rn_ref_forward(&f, &out);
    }
    for (int64_t i = 0; ok && i < judged * c.cols; i++) {
      double ulp, share;
      ok = rn_ref_within(c.dtype, RMSNORM_DTYPE_F32, ref[i], rn_ref_load(c.dtype, got, i), &ulp, &share);
    }
    snprintf(why, why_bytes, "the result is not within its bound around float64");
  }
  if (ok) {
    c.impl = "portable";
    ok = call_library(&c, a, 0) == RMSNORM_OK && !memcmp(got, a->y, y_bytes) && !memcmp(sum, a->second, x_bytes) &&
         !memcmp(dweight, a->dweight, dweight_bytes);
    snprintf(why, why_bytes, "the result has other bits than portable's");
    memcpy(a->second, second, x_bytes);
  }
  for (int fast = 0; ok && peers && fast < 2 && naive_of(&c, fast); fast++) {
    call_naive(&c, a, fast, 0);
    ok = alike(c.dtype, got, a->y, elements, c.dtype == RMSNORM_DTYPE_F32 ? 1e-4 : 0.01);
    snprintf(why, why_bytes, "the plain loop's result is wrong");
    memcpy(a->second, second, x_bytes);
  }
done:
  free(got), free(second), free(sum), free(dweight), free(ref);
  return ok;
}

/* ---- timing ---- */

/* Values of a plain layer. A residual that is added to again and again must not grow: x is small beside it. */
static void fill(char *to, int dtype, int64_t elements, double scale, uint64_t seed) {
  enum { BLOCK = 1 << 16 };
  rn_random r = {seed};
  int64_t size = (int64_t)rmsnorm_dtype_bytes(dtype), block = elements < BLOCK ? elements : BLOCK;
  for (int64_t i = 0; i < block; i++) rn_ref_store(dtype, to, i, rn_random_normal(&r) * scale);
  for (int64_t done = block; done < elements; done += block)
    memcpy(to + done * size, to, (size_t)((elements - done < block ? elements - done : block) * size));
}

static int by_value(const void *a, const void *b) {
  double p = *(const double *)a, q = *(const double *)b;
  return (p > q) - (p < q);
}

enum { LEAST_ROUNDS = 7, MOST_ROUNDS = 61 };

static bool prepare(rn_bench_cell *c, arrays *a) {
  size_t size = rmsnorm_dtype_bytes(c->dtype), elements = (size_t)(c->rows * c->cols);
  size_t out = c->op == RN_BENCH_QUANT_ROW ? 1 : size;
  memset(a, 0, sizeof *a);
  /* Different places in a page, so that no two streams fall into the same cache sets. */
  a->x_step = elements * size, a->y_step = elements * out;
  size_t x_bytes = a->x_step * (size_t)c->sets, y_bytes = a->y_step * (size_t)c->sets;
  size_t weight_bytes = ((size_t)c->cols * size + 127) / 64 * 64, scale_bytes = (size_t)(c->rows * c->sets) * 4 + 64;
  if (is_backward(c->op)) {
    arrays none = *a;
    none.dweight = &none, none.y = (char *)&none;
    rmsnorm_backward_args b = backward_of(c, &none, 0);
    b.x.data = b.dy.data = b.weight = &none;
    if (rmsnorm_backward_workspace_bytes(&b, &a->workspace_bytes) != RMSNORM_OK) return false;
  }
  size_t total = x_bytes * (has_second(c->op) ? 2 : 1) + y_bytes + 2 * weight_bytes + scale_bytes + a->workspace_bytes +
                 8 * (4096 + 576);
  if (!reserve(&work, total) || !reserve(&copies, (size_t)c->sets * (size_t)(c->call_bytes + 256) + 8192)) return false;
  char *at = work.data;
#define PLACE(to, bytes) (to) = (void *)at, at += ((bytes) + 4095) / 4096 * 4096 + 576
  PLACE(a->x, x_bytes);
  PLACE(a->y, y_bytes);
  a->second = a->x;
  if (has_second(c->op)) PLACE(a->second, x_bytes);
  PLACE(a->weight, weight_bytes);
  PLACE(a->dweight, weight_bytes);
  PLACE(a->scales, scale_bytes);
  PLACE(a->workspace, a->workspace_bytes);
#undef PLACE
  int64_t all = c->rows * c->cols * c->sets;
  fill(a->x, c->dtype, all, c->op == RN_BENCH_RESIDUAL ? 0x1p-13 : 1, 1);
  if (has_second(c->op)) fill(a->second, c->dtype, all, 1, 2);
  fill(a->weight, c->dtype, c->cols, 1, 3);
  return true;
}

/* One sample: `calls` calls that go round the places, seconds a call. */
static double sample(const rn_bench_cell *c, const arrays *a, rn_bench_who who, int64_t calls, int64_t *place) {
  double start = rn_bench_now();
  for (int64_t i = 0; i < calls; i++) {
    (void)call(c, a, who, *place);
    if (++*place == c->sets) *place = 0;
  }
  return (rn_bench_now() - start) / (double)calls;
}

bool rn_bench_measure(rn_bench_cell *c, double budget, bool peers, char *why, size_t why_bytes) {
  static double times[RN_BENCH_WHOS][MOST_ROUNDS];
  arrays a;
  rn_random random = {(uint64_t)c->cols * 31 + (uint64_t)c->op};
  rn_bench_who who[RN_BENCH_WHOS];
  int64_t calls[RN_BENCH_WHOS], place = 0;
  int candidates = 0;
  c->call_bytes = c->rows * rn_bench_row_bytes(c->op, c->dtype, c->cols);
  if (!prepare(c, &a)) {
    snprintf(why, why_bytes, "no memory for %lld bytes", (long long)c->set_bytes);
    return false;
  }
  if (!check(c, &a, peers, why, why_bytes)) return false;
  const char *ran = "?";
  rmsnorm_forward_args f = forward_of(c, &a, 0);
  rmsnorm_backward_args b = backward_of(c, &a, 0);
  if (is_backward(c->op))
    (void)rmsnorm_impl_for(RMSNORM_OP_BACKWARD, &b, &ran);
  else
    (void)rmsnorm_impl_for(RMSNORM_OP_FORWARD, &f, &ran);
  snprintf(c->ran, sizeof c->ran, "%s", ran);
  for (int w = 0; w < RN_BENCH_WHOS; w++) {
    c->least[w] = c->median[w] = 0;
    if ((w == RN_BENCH_NAIVE || w == RN_BENCH_NAIVE_FAST) && (!peers || !naive_of(c, w == RN_BENCH_NAIVE_FAST)))
      continue;
    who[candidates++] = (rn_bench_who)w;
    /* A sample lasts at least 200 microseconds, and goes round all places where that is not long. */
    calls[w] = c->sets;
    double once = sample(c, &a, (rn_bench_who)w, calls[w], &place) * (double)calls[w];
    while (once < 100e-6 && calls[w] < 1 << 20) {
      calls[w] *= 2;
      once = sample(c, &a, (rn_bench_who)w, calls[w], &place) * (double)calls[w];
    }
    if (once < 200e-6) calls[w] *= 2;
  }
  double end = rn_bench_now() + budget;
  int round = 0;
  for (; round < MOST_ROUNDS && (round < LEAST_ROUNDS || rn_bench_now() < end); round++) {
    for (int i = candidates - 1; i > 0; i--) {
      int64_t k = rn_random_below(&random, i + 1);
      rn_bench_who kept = who[i];
      who[i] = who[k], who[k] = kept;
    }
    for (int i = 0; i < candidates; i++) {
      /* The one before has left its own data in the caches; where the set fits, warm up. */
      if (c->set_bytes <= (int64_t)64 << 20) (void)sample(c, &a, who[i], c->sets, &place);
      times[who[i]][round] = sample(c, &a, who[i], calls[who[i]], &place);
    }
  }
  for (int i = 0; i < candidates; i++) {
    double *t = times[who[i]];
    qsort(t, (size_t)round, sizeof *t, by_value);
    c->least[who[i]] = t[0], c->median[who[i]] = t[round / 2];
  }
  c->rounds = round;
  return true;
}

rn_bench_who rn_bench_best_copy(const rn_bench_cell *c) {
  rn_bench_who best = RN_BENCH_MEMCPY;
  for (int w = RN_BENCH_LOOP; w <= RN_BENCH_STREAM; w++)
    if (c->least[w] < c->least[best]) best = (rn_bench_who)w;
  return best;
}
