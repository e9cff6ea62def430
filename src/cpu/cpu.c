/* cpu.c - which instruction sets this processor (and its operating system) offers, and how a call is cut into pieces
 * for threads. Compiled for the baseline: only row.c ever sees wider flags.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../numeric.h"
#include "../order.h"
#include "rows.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__AVX__)
#error "cpu.c runs before anything is known about the processor: compile it without AVX"
#endif

/* ------------------------------------------------------------------------------------------------------------------
 * Detection. Done at the first call; two threads that come first together store the same value twice. */

enum { HAS_AVX2 = 1, HAS_AVX512 = 2, HAS_NEON = 4, DETECTED = 8 };

#if defined(__x86_64__)
#include <cpuid.h>

/* XCR0: which register states the operating system saves. Without that, AVX registers lose their contents. */
static uint64_t saved_states(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static int detect(void) {
  uint32_t a, b, c, d, found = DETECTED;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return (int)found;
  const bool osxsave = c & bit_OSXSAVE, fma = c & bit_FMA, f16c = c & bit_F16C;
  if (!osxsave) return (int)found;
  const uint64_t states = saved_states();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return (int)found;
  if ((states & 0x6) == 0x6 && (b & bit_AVX2) && fma && f16c) {
    found |= HAS_AVX2;
    const uint32_t wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((states & 0xe6) == 0xe6 && (b & wanted) == wanted) found |= HAS_AVX512;
  }
  return (int)found;
}
#elif defined(__aarch64__)
static int detect(void) {
  return HAS_NEON | DETECTED; /* part of the base architecture */
}
#else
static int detect(void) {
  return DETECTED;
}
#endif

static int features(void) {
  static _Atomic int known;
  int found = atomic_load_explicit(&known, memory_order_relaxed);
  if (!found) {
    found = detect();
    atomic_store_explicit(&known, found, memory_order_relaxed);
  }
  return found;
}

const char *rn_cpu_features(void) {
  const int found = features();
  if (found & HAS_AVX512) return "avx2 fma f16c avx512f avx512bw avx512dq avx512vl";
  if (found & HAS_AVX2) return "avx2 fma f16c";
  if (found & HAS_NEON) return "neon";
  return "";
}

/* ------------------------------------------------------------------------------------------------------------------
 * Thresholds. None of them can change a result. Measured on two-core AVX-512 machines, see docs/performance.md. */

/* Opening a parallel region costs 1 to 3 us, in which one core moves about 100 KiB through its caches. */
#define THREAD_BYTES (256 * 1024)
/* Streaming stores pay when what is written does not stay in the second-level cache anyway: break-even between 1 and 4
 * MiB a thread, 1.5 to 2 times from 8 MiB on. (The price: who reads y next finds it in memory, not in the third level.)
 */
#define STREAM_BYTES ((int64_t)3 * 1024 * 1024)
/* Rows that come from the second-level cache need no prefetch, and lose by the fused passes. */
#define PREFETCH_BYTES ((int64_t)2 * 1024 * 1024)
/* When the shares of rows are so uneven that the threads are busy for less than this many percent of the time, long
 * rows are shared by columns. At least 1024 columns: the sharing goes by quads of 64-lane blocks. */
#define SHARE_BELOW 87
#define SHARE_COLS  16384

static int64_t row_count(const rn_problem *p) {
  return p->rows * p->heads;
}

static int64_t bytes_of(const rn_problem *p, const rn_view *v) {
  return v->data ? row_count(p) * p->cols * v->size : 0;
}

/* What the call moves. */
static int64_t traffic(const rn_problem *p) {
  return bytes_of(p, &p->x) + bytes_of(p, &p->residual) + bytes_of(p, &p->gate) + bytes_of(p, &p->y) +
         bytes_of(p, &p->residual_out) + bytes_of(p, &p->q) + bytes_of(p, &p->dy) + bytes_of(p, &p->dresidual_out) +
         bytes_of(p, &p->dx) + bytes_of(p, &p->dresidual) + bytes_of(p, &p->dgate);
}

static int useful_threads(const rn_problem *p, int64_t bytes) {
  if (p->threads == 1 || bytes < 2 * THREAD_BYTES) return 1;
  const int threads = rn_threads(p);
  return bytes / THREAD_BYTES < threads ? (int)(bytes / THREAD_BYTES) : threads;
}

static rn_way way_of(int64_t written, int64_t moved) {
  return (rn_way){.stream = written >= STREAM_BYTES, .prefetch = moved >= PREFETCH_BYTES};
}

/* ------------------------------------------------------------------------------------------------------------------
 * Rows shared by threads: part i of `parts` gets rows [rows * i / parts, rows * (i + 1) / parts). */

typedef struct rn_share {
  const rn_problem *p;
  const rn_isa *isa;
  rn_way way;
  int64_t parts;
  /* long rows */
  int64_t first_row;
  int rows;
  int64_t lanes;
  float *sums; /* [rows][lanes / 64] */
  /* dweight */
  int64_t vector, stride, lane_step, lane_count;
  float *scratch;
  int64_t scratch_floats;
  float *part_sums;
} rn_share;

static int64_t cut(int64_t total, int64_t parts, int64_t i) {
  if (parts == 1) return i * total; /* a short call would feel the divisions */
  return total / parts * i + (total % parts < i ? total % parts : i);
}

static void forward_task(void *context, int64_t i) {
  const rn_share *s = context;
  const int64_t rows = row_count(s->p);
  s->isa->forward_rows(s->p, cut(rows, s->parts, i), cut(rows, s->parts, i + 1), s->way);
}
static void backward_task(void *context, int64_t i) {
  const rn_share *s = context;
  const int64_t rows = row_count(s->p);
  s->isa->backward_rows(s->p, cut(rows, s->parts, i), cut(rows, s->parts, i + 1), s->way);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Few long rows: all threads sum their lanes of every row, then all write their columns of every row. */

#define SHARED_ROWS_MAX 16

static void sums_task(void *context, int64_t i) {
  const rn_share *s = context;
  const int64_t blocks = s->lanes / 64, quads = blocks / 4;
  for (int r = 0; r < s->rows; ++r)
    s->isa->block_sums(s->p, s->first_row + r, cut(quads, s->parts, i) * 4, cut(quads, s->parts, i + 1) * 4,
                       s->sums + r * blocks);
}
/* The statistic of a shared row. Every task makes it for itself, which is cheaper than another barrier; the first one
 * writes it out, and does the whole row when it is to be rescued (*whole). */
static float shared_rstd(const rn_share *s, int r, bool first, bool *whole) {
  const rn_problem *p = s->p;
  const int64_t row = s->first_row + r, blocks = s->lanes / 64;
  float sums[RN_BLOCKS_MAX];
  memcpy(sums, s->sums + r * blocks, (size_t)blocks * sizeof(float));
  const float sum = rn_tree(sums, blocks);
  *whole = true;
  if (p->op == RMSNORM_OP_STATS) {
    if (first) p->sumsq_out[row] = sum;
    return 0;
  }
  const float v = sum / (float)p->divisor + (float)p->eps;
  if (!rn_ordinary(v)) {
    if (first) rn_portable_row(p, row);
    return 0;
  }
  *whole = false;
  const float rstd = rn_round_to(p->round_rstd, rn_isqrt(v));
  if (first && p->rstd_out) ((float *)p->rstd_out)[row] = rstd;
  return rstd;
}
/* The columns of the lanes that the task has summed: they are in its core's caches. */
static void apply_task(void *context, int64_t i) {
  const rn_share *s = context;
  const int64_t quads = s->lanes / 256, n = s->p->cols;
  const int64_t first = cut(quads, s->parts, i) * 256, last = cut(quads, s->parts, i + 1) * 256;
  for (int r = 0; r < s->rows; ++r) {
    bool whole;
    const float rstd = shared_rstd(s, r, i == 0, &whole);
    for (int64_t col = first; col < n && first < last && !whole; col += s->lanes)
      s->isa->apply_cols(s->p, s->first_row + r, col, col + last - first < n ? col + last - first : n, rstd, s->way);
  }
}

static void forward_shared(const rn_problem *p, rn_share *s, int threads) {
  static void (*const phases[])(void *, int64_t) = {sums_task, apply_task};
  float sums[SHARED_ROWS_MAX * RN_BLOCKS_MAX];
  s->lanes = rn_lanes(p->cols);
  s->sums = sums, s->parts = threads;
  for (s->first_row = 0; s->first_row < row_count(p); s->first_row += s->rows) {
    const int64_t left = row_count(p) - s->first_row;
    s->rows = left < SHARED_ROWS_MAX ? (int)left : SHARED_ROWS_MAX;
    rn_parallel_phases(p, threads, threads, 2, phases, s);
  }
}

/* A call this small takes one thread and stays in the caches, whatever its tensors and types are: six tensors of 4
 * bytes an element are well below all thresholds. It would feel the adding up of its bytes. */
#define SHORT_ELEMENTS 4096

typedef struct rn_short_call {
  const rn_problem *p;
  const rn_isa *isa;
} rn_short_call;

static void short_task(void *context, int64_t i) {
  const rn_short_call *call = context;
  (void)i;
  call->isa->forward_rows(call->p, 0, row_count(call->p), (rn_way){.stream = false, .prefetch = false});
}

static rmsnorm_status run_forward(const rn_problem *p, const rn_isa *isa) {
  if (row_count(p) * p->cols <= SHORT_ELEMENTS) {
    rn_short_call call = {p, isa};
    rn_parallel_for(p, 1, 1, short_task, &call);
    return RMSNORM_OK;
  }
  const int64_t bytes = traffic(p);
  const int threads = useful_threads(p, bytes);
  rn_share s = {.p = p, .isa = isa, .parts = threads};
  s.way = way_of((bytes_of(p, &p->y) + bytes_of(p, &p->residual_out)) / threads, bytes / threads);
  const int64_t rows = row_count(p), most = (rows + threads - 1) / threads; /* rows of the busiest thread */
  if (most * threads * SHARE_BELOW > rows * 100 && p->cols >= SHARE_COLS && p->groups == 1 && !p->sumsq_in &&
      p->quant == RMSNORM_QUANT_NONE)
    forward_shared(p, &s, threads);
  else
    rn_parallel_for(p, threads, threads, forward_task, &s);
  return RMSNORM_OK;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Backward with dweight: every thread takes a stretch of row lanes whose ends are multiples of a power of two, so that
 * its sum is a subtree of the whole; the parts' sums are added in the same tree at the end. */

static int64_t dweight_stride(const rn_problem *p) {
  return (p->dweight_cols + 63) / 64 * 64;
}

/* Vectors of scratch for one thread: the row lanes of a chunk, and the levels of the counter. */
static int64_t scratch_vectors(const rn_chunks *k) {
  int64_t vectors = k->P + 1;
  for (int64_t lanes = k->C * k->P; lanes > 0; lanes /= 2) ++vectors;
  return vectors;
}

/* The step is the smallest power of two (at least four lanes, and whole chunks) that leaves no more parts than threads.
 */
static int64_t lane_step(const rn_chunks *k, int threads) {
  int64_t step = k->P > 4 ? k->P : 4;
  while ((k->C * k->P + step - 1) / step > threads) step *= 2;
  return step;
}

static int backward_threads(const rn_problem *p) {
  return useful_threads(p, traffic(p));
}

static size_t workspace_bytes(const rn_problem *p) {
  if (p->op != RMSNORM_OP_BACKWARD || !p->dweight || p->dweight_rows == 0) return 0;
  const rn_chunks k = rn_chunks_of(p->dweight_rows, p->dweight_cols);
  return (size_t)backward_threads(p) * (size_t)(scratch_vectors(&k) + 1) * (size_t)dweight_stride(p) * sizeof(float);
}

static void lanes_task(void *context, int64_t i) {
  const rn_share *s = context;
  rn_lane_range range = {.vector = s->vector,
                         .first = i * s->lane_step,
                         .last = (i + 1) * s->lane_step,
                         .scratch = s->scratch + i * s->scratch_floats,
                         .sum = s->part_sums + i * s->stride};
  if (range.last > s->lane_count) range.last = s->lane_count;
  s->isa->backward_lanes(s->p, &range, s->way);
}
static void dweight_task(void *context, int64_t i) {
  const rn_share *s = context;
  (void)i;
  s->isa->dweight_cols(s->p, s->vector, s->part_sums, s->stride, s->parts, 0, s->p->dweight_cols);
}

static rmsnorm_status run_backward(const rn_problem *p, const rn_isa *isa) {
  const int64_t bytes = traffic(p);
  const int threads = backward_threads(p);
  rn_share s = {.p = p, .isa = isa, .parts = threads};
  s.way = way_of(bytes_of(p, &p->dx) / threads, bytes / threads);
  if (!p->dweight) {
    rn_parallel_for(p, threads, threads, backward_task, &s);
    return RMSNORM_OK;
  }
  if (p->dweight_rows == 0) {
    memset(p->dweight, 0, (size_t)(p->dweight_vectors * p->dweight_cols * p->dweight_size));
    return RMSNORM_OK;
  }
  const rn_chunks k = rn_chunks_of(p->dweight_rows, p->dweight_cols);
  s.stride = dweight_stride(p);
  s.scratch_floats = scratch_vectors(&k) * s.stride;
  s.scratch = p->workspace;
  s.part_sums = s.scratch + threads * s.scratch_floats;
  s.lane_count = k.C * k.P;
  s.lane_step = lane_step(&k, threads);
  s.parts = (s.lane_count + s.lane_step - 1) / s.lane_step;
  for (s.vector = 0; s.vector < p->dweight_vectors; ++s.vector) {
    rn_parallel_for(p, threads, s.parts, lanes_task, &s);
    rn_parallel_for(p, 1, 1, dweight_task, &s);
  }
  return RMSNORM_OK;
}

/* ------------------------------------------------------------------------------------------------------------------
 * The rows of the table. */

static const char *row_why_not(const rn_problem *p) {
  if (p->x.dtype == RMSNORM_DTYPE_F64) return "double is computed by the portable implementation alone";
  if (p->groups > RN_GROUPS_MAX) return "more than 512 groups in a row";
  if (p->op == RMSNORM_OP_BACKWARD && p->groups > 1) return "backward takes one group a row";
  return NULL;
}

static rmsnorm_status run_isa(const rn_problem *p, const rn_isa *isa) {
  return p->op == RMSNORM_OP_BACKWARD ? run_backward(p, isa) : run_forward(p, isa);
}

/* What the rows of the table have in common. */
#define CPU_ROW .device = RMSNORM_DEVICE_CPU, .why_not = row_why_not, .workspace_bytes = workspace_bytes

#ifdef RN_HAVE_AVX512
static const char *avx512_machine(void) {
  return features() & HAS_AVX512 ? NULL : "the processor or its operating system has no AVX-512 F, BW, DQ, VL";
}
static rmsnorm_status avx512_run(const rn_problem *p, void *stream) {
  (void)stream;
  return run_isa(p, &rn_isa_avx512);
}
const rn_impl rn_impl_avx512 = {.name = "avx512", CPU_ROW, .machine_why_not = avx512_machine, .run = avx512_run};
#endif

#ifdef RN_HAVE_AVX2
static const char *avx2_machine(void) {
  return features() & HAS_AVX2 ? NULL : "the processor or its operating system has no AVX2 with FMA and F16C";
}
static rmsnorm_status avx2_run(const rn_problem *p, void *stream) {
  (void)stream;
  return run_isa(p, &rn_isa_avx2);
}
const rn_impl rn_impl_avx2 = {.name = "avx2", CPU_ROW, .machine_why_not = avx2_machine, .run = avx2_run};
#endif

#ifdef RN_HAVE_NEON
static const char *neon_machine(void) {
  return features() & HAS_NEON ? NULL : "the processor has no NEON";
}
static rmsnorm_status neon_run(const rn_problem *p, void *stream) {
  (void)stream;
  return run_isa(p, &rn_isa_neon);
}
const rn_impl rn_impl_neon = {.name = "neon", CPU_ROW, .machine_why_not = neon_machine, .run = neon_run};
#endif
