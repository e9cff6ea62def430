/* internal.h - what the rooms of the library share: the normalised problem, the table row, and the seams between them.
 *
 * The way of a call: rmsnorm.c checks the arguments and makes an rn_problem; select.c picks the first implementation
 * that takes it; that implementation's run() does the work. Nothing else is passed between the rooms.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_INTERNAL_H
#define RN_INTERNAL_H

#include "rmsnorm.h"

#include <stdbool.h>

/* A tensor after the checks: byte strides, outer dimensions collapsed to one where that is possible. */
typedef struct rn_view {
  char *data; /* NULL = absent. Inputs are never written through it */
  int64_t row_bytes;
  int64_t head_bytes;
  int32_t dtype;
  int32_t size; /* bytes of one element */
} rn_view;

/* One call, ready to run. Everything in here has been checked; implementations do not check again.
 * When every present tensor allows it, (rows, heads) has been collapsed to (rows * heads, 1). Arrays that are packed
 * over (row, head) are not affected by that. */
typedef struct rn_problem {
  int32_t op;     /* rmsnorm_op */
  int32_t device; /* rmsnorm_device */
  int64_t rows, heads;
  int64_t cols;
  int64_t groups;
  int64_t group_cols; /* cols / groups: the length of one statistic */
  int64_t divisor;    /* > 0 */
  double eps;         /* as given; float32 implementations use (float)eps */
  const char *impl;   /* forced implementation, or NULL */

  rn_view x, residual, gate;
  rn_view y, residual_out;      /* forward */
  rn_view dy, dresidual_out;    /* backward inputs */
  rn_view dx, dresidual, dgate; /* backward outputs */

  const char *weight; /* NULL = ones */
  int32_t weight_dtype;
  int32_t weight_size;
  int64_t weight_head_bytes;  /* from one head's weight to the next; 0 = shared */
  int64_t weight_group_bytes; /* from one group's weight to the next; 0 = shared */
  float weight_offset;        /* -0.0f stands for "none": adding it changes no bit. 0.0f never occurs */

  int32_t round_sum;    /* resolved dtype the sum is rounded to, F32 (F64) = not rounded; never set without residual */
  int32_t round_rstd;   /* likewise */
  int32_t round_xhat;   /* likewise */
  int32_t round_normed; /* likewise; not rounded when rounding to y's type follows at once anyway */
  int32_t gate_kind;    /* rmsnorm_gate */
  int32_t gate_before;  /* bool */

  void *rstd_out;        /* f32 (f64 for f64 x) [rows * heads * groups] */
  const void *rstd_in;   /* backward */
  const float *sumsq_in; /* given sums */
  float *sumsq_out;      /* stats */
  const float *dot_in;   /* backward */
  float *dot_out;        /* backward */

  int32_t quant; /* rmsnorm_quant_granularity */
  int32_t quant_dtype;
  int64_t block_cols; /* BLOCK and MX; blocks start at column 0 of the row, over all groups */
  int64_t blocks;     /* ceil(cols / block_cols) */
  int32_t scale_op, e8m0_rounding;
  float scale_max; /* FLT_MAX when there is none */
  const float *scale_in;
  char *scale_out;
  int64_t scale_row_stride, scale_block_stride; /* elements of scale_out; index = row * a + block * b */
  rn_view q;

  char *dweight; /* NULL = not wanted */
  int32_t dweight_dtype;
  int32_t dweight_size;
  int64_t dweight_vectors; /* how many weight vectors: heads for HEADS_COLS, else 1 */
  int64_t dweight_cols;    /* length of one: cols, or group_cols for WEIGHT_GROUP */
  int64_t dweight_rows;    /* rows that contribute to each one */
  void *workspace;
  size_t workspace_bytes;

  const rmsnorm_parallel *parallel;
  int32_t threads;

  rmsnorm_launch launch; /* all zero on the CPU */
  int64_t live_factor;   /* rows of this problem per row of the caller: heads where they were collapsed, else 1 */
} rn_problem;

/* One row of the table of implementations. */
typedef struct rn_impl {
  const char *name;
  int32_t device; /* rmsnorm_device: where the tensors have to be */
  /* NULL when this machine can run it at all, otherwise the reason (static text). */
  const char *(*machine_why_not)(void);
  /* NULL when it takes the problem, otherwise the reason (static text). Not asked when the machine can not run it. */
  const char *(*why_not)(const rn_problem *p);
  size_t (*workspace_bytes)(const rn_problem *p);
  rmsnorm_status (*run)(const rn_problem *p, void *stream);
  /* Of an implementation for a device other than the CPU; else NULL. Asked only when the machine can run it. */
  rmsnorm_status (*zero)(void *data, size_t bytes, void *stream); /* queues zeros */
  rmsnorm_status (*preload)(void);
} rn_impl;

/* select.c */
const rn_impl *rn_impl_at(int i); /* NULL past the last */
const rn_impl *rn_impl_named(const char *name);
/* The first implementation for this device that the machine can run; NULL with *status and last_error set. */
const rn_impl *rn_impl_for_device(int32_t device, rmsnorm_status *status);
/* All kernels of all implementations for this device that the machine can run. */
rmsnorm_status rn_preload(int32_t device);
/* The first implementation that takes p, or the forced one; NULL with *status and last_error set. */
const rn_impl *rn_select(const rn_problem *p, rmsnorm_status *status);
rmsnorm_status rn_explain(const rn_problem *p, char *text, size_t bytes);

/* error.c */
rmsnorm_status rn_error(rmsnorm_status status, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 2, 3), cold))
#endif
    ;

/* parallel.c */
/* How many threads this problem may use: the caller's callback, OpenMP, or 1. */
int rn_threads(const rn_problem *p);
/* task(context, i) for every i in [0, tasks), through the caller's callback, OpenMP or serially; returns when all are
 * done. Every task runs under rn_fp_enter/rn_fp_leave. */
void rn_parallel_for(const rn_problem *p, int threads, int64_t tasks, void (*task)(void *context, int64_t index),
                     void *context);

/* The same for several phases in a row: no task of a phase starts before every task of the one before it is done. */
void rn_parallel_phases(const rn_problem *p, int threads, int64_t tasks, int phases,
                        void (*const *phase)(void *context, int64_t index), void *context);

/* portable.c: the plain C implementation is the definition of every bit. The vector implementations hand it the rows
 * they do not take themselves (overflowed, vanished, not finite). */
extern const rn_impl rn_impl_portable;
/* Forward (or stats) of the single row `row` = token * heads + head, everything written. */
void rn_portable_row(const rn_problem *p, int64_t row);
/* The statistic of a rescued row's group for backward, not rounded: xhat = (u * *factor) * *r. */
void rn_portable_statistic(const rn_problem *p, int64_t row, int64_t group, float *factor, float *r);

/* cuda/cuda.c */
extern const rn_impl rn_impl_cuda;

/* triton/cuda_triton.c, hip_triton.c */
extern const rn_impl rn_impl_triton, rn_impl_triton_hip;

/* cpu/cpu.c */
extern const rn_impl rn_impl_avx512, rn_impl_avx2, rn_impl_neon;
const char *rn_cpu_features(void);

static inline char *rn_row(const rn_view *v, int64_t heads, int64_t row) {
  return heads == 1 ? v->data + row * v->row_bytes
                    : v->data + (row / heads) * v->row_bytes + (row % heads) * v->head_bytes;
}

#endif /* RN_INTERNAL_H */
