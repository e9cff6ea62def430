/* bench_gpu.h - the parts of `rmsnorm bench --device cuda`: one cell of the table, how it is measured, and the copies
 * of the same bytes beside it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CLI_BENCH_GPU_H
#define RN_CLI_BENCH_GPU_H

#include "gpu.h"
#include "options.h"
#include "rmsnorm.h"

/* The operations, named as in tables of peers. Each launch has outputs of its own. */
typedef enum rn_gpu_op {
  RN_GPU_FWD,    /* read x, write y */
  RN_GPU_ADD,    /* read x and residual, write y and the sum */
  RN_GPU_BWD,    /* read dy and x, write dx and dweight */
  RN_GPU_ADDBWD, /* the same, and read the gradient that comes through the sum */
  RN_GPU_Q,      /* read x, write fp8 with one given scale */
  RN_GPU_DYN,    /* read x, write fp8 and a scale per row */
  RN_GPU_DYN8,   /* the same in int8 */
  RN_GPU_ADDQ,   /* read x and residual, write the sum, and fp8 with one given scale */
  RN_GPU_ADDDYN, /* the same with a scale per row */
  RN_GPU_OPS
} rn_gpu_op;
extern const char *const rn_gpu_op_names[RN_GPU_OPS];

typedef struct rn_gpu_settings {
  double budget;   /* seconds a cell */
  int64_t samples; /* launches of a graph at least; 0 = by the budget */
  rmsnorm_launch launch;
  const char *impl;
  size_t l2_bytes;
} rn_gpu_settings;

/* Seconds of one launch inside a graph: the median, the least and the 90th percentile of the replays. */
typedef struct rn_gpu_time {
  double median, least, high;
  int launches, replays;
} rn_gpu_time;

typedef struct rn_gpu_cell {
  rn_gpu_op op;
  int dtype;
  int64_t rows, cols;
  bool hot;      /* one set of buffers, so that they stay in the L2; otherwise sets that pass four times its size */
  char peer[32]; /* the fastest peer, "" = unknown */
  double peer_us, peer_copy_us;
  int64_t bytes; /* that one launch has to move; weights and statistics are not counted */
  int sets;
  rn_gpu_time time;
  double host;                        /* seconds of one call, without waiting */
  const char *copy_name, *mixed_name; /* NULL = none */
  double copy, mixed; /* seconds: as many bytes copied; read and written in the operation's proportion */
  enum { RN_GPU_TIMED, RN_GPU_UNSUPPORTED, RN_GPU_WRONG, RN_GPU_NO_ROOM, RN_GPU_FAILED } outcome;
  char why[240]; /* of any outcome but the first */
} rn_gpu_cell;

int64_t rn_gpu_bytes(rn_gpu_op op, int dtype, int64_t rows, int64_t cols);
/* Whether small cells are measured hot: as the tables of peers do it. */
bool rn_gpu_is_hot(int64_t rows, int64_t bytes);
/* Check one cell, then time it. false: the device is lost, nothing more can be measured. */
bool rn_gpu_measure(rn_gpu_cell *c, const rn_gpu_settings *s);
void rn_gpu_release(void);

/* ---- timing anything that queues work ---- */

typedef bool (*rn_gpu_queue)(void *context, int64_t set, void *stream);
/* Graphs of many launches that go round `sets`, replayed back to back. */
bool rn_gpu_time_it(rn_gpu_queue queue, void *context, int64_t sets, double budget, void *stream, rn_gpu_time *time);

/* ---- copies ---- */

/* The fastest way to move `bytes` through as many streams in and out, all of the same length; known[] of earlier cells
 * is used again. *name: which it was; NULL when there is none for this many streams. */
double rn_gpu_copy(int reads, int writes, int64_t bytes, bool hot, const rn_gpu_settings *s, void *stream,
                   const char **name);
void rn_gpu_copy_release(void);

/* The whole command, once its options are known. */
typedef struct rn_gpu_bench {
  rn_gpu_settings settings;
  rn_where where;
  rn_list ops, dtypes, cols, rows; /* count 0 = not given */
  const char *peers;
  int64_t every;
  bool json, call_cost;
} rn_gpu_bench;
int rn_gpu_bench_run(const rn_gpu_bench *b);

#endif /* RN_CLI_BENCH_GPU_H */
