/* hip_emulator.c - a HIP runtime whose device is the memory of the host, and whose kernels are the portable
 * implementation, told what to do by nothing but the arguments they are handed.
 *
 * It is a shared library by the name of the real one. The kernels are those of triton_fixture.py, which do not exist:
 * an image is no more than the name of its file, and the table says what each argument is called. From these a problem
 * is put together again. So the whole of `rmsnorm check --device hip` runs without AMD hardware: every value has to
 * arrive in its place, every launch has to come in its order, and the command's own calls to the runtime have to be
 * right.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "triton/triton.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_HANDLE = 400, NOT_FOUND = 500, BYTES = 1024, MOST = 4096 };

/* ------------------------------------------------------------------------------------------------------------------
 * Work: a launch, a fill or a copy; done at once, or kept in a graph. */

typedef struct work {
  const rn_triton_kernel *kernel; /* NULL: a fill or a copy */
  unsigned blocks, threads;
  unsigned char arguments[BYTES];
  void *to;
  const void *from; /* NULL: filled with value */
  int value;
  size_t bytes;
} work;

typedef struct graph {
  int count;
  work list[MOST];
} graph;

typedef struct stream {
  graph *into; /* what is queued is captured there */
} stream;

static stream null_stream;

/* ------------------------------------------------------------------------------------------------------------------
 * From arguments to a problem. */

typedef struct values {
  uint64_t of[RN_TRITON_NAMES];
} values;

static void unpack(const work *w, values *v) {
  size_t at = 0;
  memset(v, 0, sizeof *v);
  for (int i = 0; i < w->kernel->count; i++) {
    const rn_triton_parameter *q = &w->kernel->parameters[i];
    const size_t width = q->kind == RN_TRITON_I32 || q->kind == RN_TRITON_F32 ? 4 : 8;
    at = (at + width - 1) / width * width;
    memcpy(&v->of[q->name], w->arguments + at, width);
    if (q->kind == RN_TRITON_I32) v->of[q->name] = (uint64_t)(int64_t)(int32_t)v->of[q->name];
    at += width;
  }
}

static int64_t number(const values *v, int name) {
  return (int64_t)v->of[name];
}
static void *pointer(const values *v, int name) {
  return (void *)(uintptr_t)v->of[name];
}
static float real(const values *v, int name) {
  const uint32_t bits = (uint32_t)v->of[name];
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* The four names of a tensor follow each other. Those of a fast kernel are all of its type. */
static rn_view view_of(const values *v, int name, int type) {
  rn_view view = {.data = pointer(v, name), .dtype = type != 0 ? type : (int32_t)number(v, name + 3)};
  view.size = (int32_t)rmsnorm_dtype_bytes(view.dtype);
  view.row_bytes = number(v, name + 1) * view.size;
  view.head_bytes = number(v, name + 2) * view.size;
  return view;
}

static int64_t rows_of(const values *v, const rn_problem *p) {
  const int64_t *live = pointer(v, RN_TRITON_live_rows);
  int64_t rows = number(v, RN_TRITON_units) / p->heads / p->groups;
  if (live == NULL) return rows;
  rows = *live < 0 ? 0 : *live;
  if (rows > number(v, RN_TRITON_live_most)) rows = number(v, RN_TRITON_live_most);
  return rows * number(v, RN_TRITON_live_factor);
}

static void fill_quant(const values *v, rn_problem *p) {
  p->quant = (int32_t)number(v, RN_TRITON_quant);
  p->quant_dtype = (int32_t)number(v, RN_TRITON_quant_type);
  p->q.dtype = p->quant_dtype, p->q.size = 1;
  p->q.row_bytes = number(v, RN_TRITON_q_row_stride), p->q.head_bytes = number(v, RN_TRITON_q_head_stride);
  p->block_cols = number(v, RN_TRITON_block_cols);
  p->blocks = p->block_cols != 0 ? (p->cols + p->block_cols - 1) / p->block_cols : 1;
  p->scale_op = (int32_t)number(v, RN_TRITON_scale_op);
  p->e8m0_rounding = (int32_t)number(v, RN_TRITON_e8m0_rounding);
  p->scale_max = real(v, RN_TRITON_scale_max);
  p->scale_in = pointer(v, RN_TRITON_scale_in), p->scale_out = pointer(v, RN_TRITON_scale_out);
  p->scale_row_stride = number(v, RN_TRITON_scale_row_stride);
  p->scale_block_stride = number(v, RN_TRITON_scale_block_stride);
}

static void fill_weight(const values *v, rn_problem *p) {
  p->weight_dtype = (int32_t)number(v, RN_TRITON_weight_type);
  p->weight = p->weight_dtype != 0 ? pointer(v, RN_TRITON_weight) : NULL;
  p->weight_size = (int32_t)rmsnorm_dtype_bytes(p->weight_dtype);
  p->weight_head_bytes = number(v, RN_TRITON_weight_head_stride) * p->weight_size;
  p->weight_group_bytes = number(v, RN_TRITON_weight_group_stride) * p->weight_size;
  p->weight_offset = real(v, RN_TRITON_weight_offset);
}

/* What forward_few does not ask, because it knows. */
static void fill_few(const work *w, const values *v, rn_problem *p) {
  p->rows = w->blocks, p->heads = p->groups = 1, p->cols = p->group_cols;
  p->weight = pointer(v, RN_TRITON_weight), p->weight_dtype = w->kernel->type, p->weight_offset = -0.0f;
  p->weight_size = (int32_t)rmsnorm_dtype_bytes(p->weight_dtype);
  p->round_rstd = RMSNORM_DTYPE_F32;
}

static void problem_of(const work *w, const values *v, rn_problem *p) {
  const int type = w->kernel->type;
  memset(p, 0, sizeof *p);
#define VIEW(name) p->name = view_of(v, RN_TRITON_##name, type);
  RN_TRITON_VIEWS(VIEW)
  p->heads = v->of[RN_TRITON_heads] != 0 ? number(v, RN_TRITON_heads) : 1;
  p->groups = v->of[RN_TRITON_groups] != 0 ? number(v, RN_TRITON_groups) : 1;
  p->group_cols = number(v, RN_TRITON_group_cols);
  p->cols = p->groups * p->group_cols;
  p->rows = rows_of(v, p);
  p->divisor = (int64_t)real(v, RN_TRITON_divisor);
  p->eps = (double)real(v, RN_TRITON_eps);
  p->rstd_out = pointer(v, RN_TRITON_rstd_out), p->rstd_in = pointer(v, RN_TRITON_rstd_in);
  p->sumsq_in = pointer(v, RN_TRITON_sumsq_in), p->sumsq_out = pointer(v, RN_TRITON_sumsq_out);
  p->dot_in = pointer(v, RN_TRITON_dot_in), p->dot_out = pointer(v, RN_TRITON_dot_out);
  p->round_sum = (int32_t)number(v, RN_TRITON_round_sum), p->round_rstd = (int32_t)number(v, RN_TRITON_round_rstd);
  p->round_xhat = (int32_t)number(v, RN_TRITON_round_xhat);
  p->round_normed = type != 0 ? RMSNORM_DTYPE_F32 : (int32_t)number(v, RN_TRITON_round_normed);
  p->gate_kind = (int32_t)number(v, RN_TRITON_gate_kind), p->gate_before = (int32_t)number(v, RN_TRITON_gate_before);
  p->live_factor = 1, p->threads = 1;
  fill_weight(v, p);
  fill_quant(v, p);
  if (w->kernel->family == RN_TRITON_forward_few) fill_few(w, v, p);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Kernels. */

static void run_forward(rn_problem *p) {
  p->op = p->sumsq_out != NULL ? RMSNORM_OP_STATS : RMSNORM_OP_FORWARD;
  if (p->quant == RMSNORM_QUANT_NONE) p->q.data = NULL;
  if (p->rows > 0) rn_impl_portable.run(p, NULL);
}

static void run_backward(rn_problem *p) {
  p->op = RMSNORM_OP_BACKWARD;
  p->workspace_bytes = p->dweight != NULL ? rn_impl_portable.workspace_bytes(p) : 0;
  p->workspace = aligned_alloc(64, p->workspace_bytes / 64 * 64 + 64);
  rn_impl_portable.run(p, NULL);
  free(p->workspace);
}

static void without_dweight(rn_problem *p) {
  p->dweight = NULL;
  if (p->dx.data != NULL || p->dresidual.data != NULL || p->dgate.data != NULL || p->dot_out != NULL) run_backward(p);
}

/* dweight before it is rounded lies where the sums of the first chunk would. */
static void into_partials(rn_problem *p, const values *v, int64_t vectors, int64_t cols, int64_t rows) {
  p->dx.data = p->dresidual.data = p->dgate.data = NULL, p->dot_out = NULL;
  p->dweight = pointer(v, RN_TRITON_partials), p->dweight_dtype = RMSNORM_DTYPE_F32, p->dweight_size = 4;
  p->dweight_vectors = vectors, p->dweight_cols = cols, p->dweight_rows = rows;
  if (p->dweight != NULL) run_backward(p);
}

static void out_of_partials(const values *v) {
  const float *from = pointer(v, RN_TRITON_partials);
  char *to = pointer(v, RN_TRITON_dweight);
  const int64_t count = number(v, RN_TRITON_dweight_cols) * number(v, RN_TRITON_dweight_vectors);
  const int type = (int)number(v, RN_TRITON_dweight_type);
  const size_t size = rmsnorm_dtype_bytes(type);
  /* One row of a forward without a statistic is a conversion: 0.5 is its sum of squares, and rstd is 1. */
  const float one = 0.5f;
  rn_problem p = {.op = RMSNORM_OP_FORWARD,
                  .rows = 1,
                  .heads = 1,
                  .cols = count,
                  .groups = 1,
                  .group_cols = count,
                  .divisor = 1,
                  .eps = 0.5,
                  .sumsq_in = &one,
                  .round_sum = 1,
                  .round_rstd = 1,
                  .round_xhat = 1,
                  .round_normed = 1,
                  .weight_offset = -0.0f,
                  .blocks = 1,
                  .live_factor = 1,
                  .threads = 1};
  p.x = (rn_view){(char *)(uintptr_t)from, 0, 0, RMSNORM_DTYPE_F32, 4};
  p.y = (rn_view){to, 0, 0, type, (int32_t)size};
  rn_impl_portable.run(&p, NULL);
}

static void run_kernel(const work *w) {
  values v;
  rn_problem p;
  unpack(w, &v);
  if (w->kernel->family == RN_TRITON_dweight_fold) return; /* all is in the first chunk already */
  if (w->kernel->family == RN_TRITON_dweight_sum) {
    out_of_partials(&v);
    return;
  }
  problem_of(w, &v, &p);
  const rn_problem whole = p;
  switch (w->kernel->family) {
  case RN_TRITON_backward_rows:
  case RN_TRITON_backward_long:
    into_partials(&p, &v, 1, p.cols, p.rows * p.heads);
    p = whole;
    without_dweight(&p);
    break;
  case RN_TRITON_general_backward_dweight:
    into_partials(&p, &v, number(&v, RN_TRITON_dweight_vectors), number(&v, RN_TRITON_dweight_cols),
                  number(&v, RN_TRITON_dweight_rows));
    break;
  case RN_TRITON_general_backward_sums: /* they would be kept for the next two; here only the dots are asked for */
    p.dx.data = p.dresidual.data = p.dgate.data = NULL;
    without_dweight(&p);
    break;
  case RN_TRITON_backward_long_sums: /* likewise, and there are no dots to ask for */
    break;
  case RN_TRITON_backward_long_dx:
  case RN_TRITON_general_backward_dx:
    without_dweight(&p);
    break;
  default:
    run_forward(&p);
  }
}

static void run_work(const work *w) {
  if (w->kernel != NULL)
    run_kernel(w);
  else if (w->from != NULL)
    memmove(w->to, w->from, w->bytes);
  else
    memset(w->to, w->value, w->bytes);
}

static int queue(const work *w, void *on) {
  graph *into = on != NULL ? ((stream *)on)->into : NULL;
  if (into == NULL) {
    run_work(w);
    return SUCCESS;
  }
  if (into->count == MOST) return INVALID_VALUE;
  into->list[into->count++] = *w;
  return SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------------------
 * The runtime, with the types that AMD documents. */

#define FUNCTION(name, ...)                                                                                            \
  EXPORT int name(__VA_ARGS__);                                                                                        \
  EXPORT int name(__VA_ARGS__)

EXPORT const char *hipGetErrorName(int error);
EXPORT const char *hipGetErrorName(int error) {
  return error == SUCCESS ? "hipSuccess" : "an error of the emulated runtime";
}
FUNCTION(hipDrvGetErrorName, int error, const char **name) {
  *name = hipGetErrorName(error);
  return SUCCESS;
}
FUNCTION(hipDrvGetErrorString, int error, const char **text) {
  return hipDrvGetErrorName(error, text);
}
FUNCTION(hipRuntimeGetVersion, int *version) {
  *version = 60443483;
  return SUCCESS;
}
FUNCTION(hipInit, unsigned flags) {
  return flags == 0 ? SUCCESS : INVALID_VALUE;
}
FUNCTION(hipGetDeviceCount, int *count) {
  *count = 1;
  return SUCCESS;
}
FUNCTION(hipGetDevice, int *device) {
  *device = 0;
  return SUCCESS;
}
FUNCTION(hipSetDevice, int device) {
  return device == 0 ? SUCCESS : 101;
}
FUNCTION(hipDeviceGet, int *device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? SUCCESS : 101;
}
FUNCTION(hipDeviceGetName, char *name, int bytes, int device) {
  snprintf(name, (size_t)bytes, "emulated MI300X %d", device);
  return SUCCESS;
}
FUNCTION(hipDeviceGetAttribute, int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 63 ? 304 : attribute == 19 ? 4 << 20 : attribute == 23 ? 9 : attribute == 61 ? 4 : -1;
  return *value >= 0 ? SUCCESS : INVALID_VALUE;
}
FUNCTION(hipDeviceTotalMem, size_t *bytes, int device) {
  (void)device;
  *bytes = (size_t)1 << 30;
  return SUCCESS;
}
FUNCTION(hipGetDevicePropertiesR0600, void *properties, int device) {
  char *p = properties;
  const size_t shared = 65536;
  const int wave = 64, units = 304;
  memset(p, 0, 1472);
  memcpy(p + 296, &shared, sizeof shared);
  memcpy(p + 308, &wave, sizeof wave);
  memcpy(p + 388, &units, sizeof units);
  snprintf(p + 1160, 256, "gfx942:sramecc+:xnack-");
  return device == 0 ? SUCCESS : 101;
}
FUNCTION(hipDeviceSynchronize, void) {
  return SUCCESS;
}
FUNCTION(hipMemGetInfo, size_t *available, size_t *total) {
  *available = *total = (size_t)1 << 30;
  return SUCCESS;
}

FUNCTION(hipMalloc, void **data, size_t bytes) {
  *data = aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *data != NULL ? SUCCESS : 2;
}
FUNCTION(hipFree, void *data) {
  free(data);
  return SUCCESS;
}
FUNCTION(hipMemAllocHost, void **data, size_t bytes) {
  return hipMalloc(data, bytes);
}
FUNCTION(hipHostFree, void *data) {
  return hipFree(data);
}
FUNCTION(hipMemcpyHtoD, void *to, const void *from, size_t bytes) {
  memcpy(to, from, bytes);
  return SUCCESS;
}
FUNCTION(hipMemcpyDtoH, void *to, void *from, size_t bytes) {
  memcpy(to, from, bytes);
  return SUCCESS;
}
FUNCTION(hipMemsetD8, void *to, unsigned char value, size_t bytes) {
  memset(to, value, bytes);
  return SUCCESS;
}
FUNCTION(hipMemcpyDtoDAsync, void *to, void *from, size_t bytes, void *on) {
  const work w = {.to = to, .from = from, .bytes = bytes};
  return queue(&w, on);
}
FUNCTION(hipMemsetAsync, void *to, int value, size_t bytes, void *on) {
  const work w = {.to = to, .value = value, .bytes = bytes};
  return queue(&w, on);
}

FUNCTION(hipStreamCreateWithFlags, void **handle, unsigned flags) {
  *handle = calloc(1, sizeof(stream));
  return flags == 1 && *handle != NULL ? SUCCESS : INVALID_VALUE;
}
FUNCTION(hipStreamSynchronize, void *handle) {
  const stream *s = handle != NULL ? handle : &null_stream;
  return s->into == NULL ? SUCCESS : 900;
}
FUNCTION(hipStreamDestroy, void *handle) {
  free(handle);
  return SUCCESS;
}
FUNCTION(hipStreamBeginCapture, void *handle, int mode) {
  stream *s = handle;
  if (s == NULL || s->into != NULL || mode != 0) return INVALID_VALUE;
  s->into = calloc(1, sizeof(graph));
  return s->into != NULL ? SUCCESS : 2;
}
FUNCTION(hipStreamEndCapture, void *handle, void **captured) {
  stream *s = handle;
  *captured = s->into;
  s->into = NULL;
  return *captured != NULL ? SUCCESS : INVALID_VALUE;
}
FUNCTION(hipGraphInstantiateWithFlags, void **exec, void *captured, unsigned long long flags) {
  *exec = flags == 0 ? malloc(sizeof(graph)) : NULL;
  if (*exec == NULL) return INVALID_VALUE;
  memcpy(*exec, captured, sizeof(graph));
  return SUCCESS;
}
FUNCTION(hipGraphDestroy, void *captured) {
  free(captured);
  return SUCCESS;
}
FUNCTION(hipGraphLaunch, void *exec, void *handle) {
  const graph *g = exec;
  (void)handle;
  for (int i = 0; i < g->count; i++) run_work(&g->list[i]);
  return SUCCESS;
}
FUNCTION(hipGraphExecDestroy, void *exec) {
  free(exec);
  return SUCCESS;
}

FUNCTION(hipEventCreateWithFlags, void **event, unsigned flags) {
  *event = calloc(1, sizeof(struct timespec));
  return flags == 0 && *event != NULL ? SUCCESS : INVALID_VALUE;
}
FUNCTION(hipEventRecord, void *event, void *handle) {
  (void)handle;
  clock_gettime(CLOCK_MONOTONIC, event);
  return SUCCESS;
}
FUNCTION(hipEventSynchronize, void *event) {
  return event != NULL ? SUCCESS : INVALID_HANDLE;
}
FUNCTION(hipEventElapsedTime, float *milliseconds, void *from, void *to) {
  const struct timespec *a = from, *b = to;
  *milliseconds = 1e3f * (float)(b->tv_sec - a->tv_sec) + 1e-6f * (float)(b->tv_nsec - a->tv_nsec);
  return SUCCESS;
}
FUNCTION(hipEventDestroy, void *event) {
  free(event);
  return SUCCESS;
}

/* A module is its image, a function its kernel. */
FUNCTION(hipModuleLoadData, void **module, const void *image) {
  *module = (void *)(uintptr_t)image;
  return SUCCESS;
}
FUNCTION(hipModuleUnload, void *module) {
  (void)module;
  return SUCCESS;
}
FUNCTION(hipModuleGetFunction, void **function, void *module, const char *entry) {
  for (const rn_triton_target *t = rn_triton_targets; t->count != 0; t++)
    for (int32_t i = t->first; i < t->first + t->count; i++) {
      const rn_triton_kernel *k = &rn_triton_kernels[i];
      if (strcmp((const char *)k->image, module) != 0 || strcmp(k->entry, entry) != 0) continue;
      *function = (void *)(uintptr_t)k;
      return SUCCESS;
    }
  return NOT_FOUND;
}
FUNCTION(hipModuleLaunchKernel, void *function, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty,
         unsigned tz, unsigned shared, void *on, void **params, void **extra) {
  const rn_triton_kernel *k = function;
  if (params != NULL || by != 1 || bz != 1 || ty != 1 || tz != 1 || bx < 1) return INVALID_VALUE;
  if (tx != 64u * k->warps || shared != k->shared || *(const size_t *)extra[3] > BYTES) return INVALID_VALUE;
  work w = {.kernel = k, .blocks = bx, .threads = tx};
  memcpy(w.arguments, extra[1], *(const size_t *)extra[3]);
  return queue(&w, on);
}
