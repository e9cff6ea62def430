/* triton.h - the Triton kernels as the library has them: compiled ahead of time, chosen by facts, filled in by name.
 *
 * src/triton/aot.py compiles the kernels, table.py turns what it says of them (manifest.json) into the table below.
 * plan_triton.c makes launches of a problem and the facts of a device, values.c knows what each parameter of a kernel
 * is called and where its value comes from; both are pure. cuda_triton.c and hip_triton.c load and launch.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_TRITON_H
#define RN_TRITON_H

#include "../internal.h"
#include "../order.h"

#include <stdatomic.h>

/* ------------------------------------------------------------------------------------------------------------------
 * The names of parameters. */

/* Each is four: its address, NAME_row_stride, NAME_head_stride (in elements), NAME_type. */
#define RN_TRITON_VIEWS(X)                                                                                             \
  X(x)                                                                                                                 \
  X(residual)                                                                                                          \
  X(gate)                                                                                                              \
  X(y)                                                                                                                 \
  X(residual_out)                                                                                                      \
  X(q)                                                                                                                 \
  X(dy)                                                                                                                \
  X(dresidual_out)                                                                                                     \
  X(dx)                                                                                                                \
  X(dresidual)                                                                                                         \
  X(dgate)
/* X(name, how it is stored, member of the problem): as the call has them. */
#define RN_TRITON_OF_PROBLEM(X)                                                                                        \
  X(weight, POINTER, weight)                                                                                           \
  X(rstd_out, POINTER, rstd_out)                                                                                       \
  X(sumsq_in, POINTER, sumsq_in)                                                                                       \
  X(sumsq_out, POINTER, sumsq_out)                                                                                     \
  X(dot_in, POINTER, dot_in)                                                                                           \
  X(dot_out, POINTER, dot_out)                                                                                         \
  X(scale_in, POINTER, scale_in)                                                                                       \
  X(scale_out, POINTER, scale_out)                                                                                     \
  X(scale_row_stride, I64, scale_row_stride)                                                                           \
  X(scale_block_stride, I64, scale_block_stride)                                                                       \
  X(scale_max, F32, scale_max)                                                                                         \
  X(scale_op, I32, scale_op)                                                                                           \
  X(e8m0_rounding, I32, e8m0_rounding)                                                                                 \
  X(block_cols, I64, block_cols)                                                                                       \
  X(quant, I32, quant)                                                                                                 \
  X(quant_type, I32, quant_dtype)                                                                                      \
  X(dweight, POINTER, dweight)                                                                                         \
  X(dweight_rows, I64, dweight_rows)                                                                                   \
  X(dweight_cols, I64, dweight_cols)                                                                                   \
  X(dweight_vectors, I64, dweight_vectors)                                                                             \
  X(rows, I64, rows)                                                                                                   \
  X(heads, I64, heads)                                                                                                 \
  X(groups, I64, groups)                                                                                               \
  X(cols, I64, cols)                                                                                                   \
  X(group_cols, I64, group_cols)                                                                                       \
  X(gate_kind, I32, gate_kind)                                                                                         \
  X(gate_before, I32, gate_before)
/* Likewise, members of rn_triton_extra: what a plan adds. */
#define RN_TRITON_OF_PLAN(X)                                                                                           \
  X(weight_head_stride, I64, weight_head_stride)                                                                       \
  X(weight_group_stride, I64, weight_group_stride)                                                                     \
  X(weight_type, I32, weight_type)                                                                                     \
  X(weight_offset, F32, weight_offset)                                                                                 \
  X(dweight_type, I32, dweight_type)                                                                                   \
  X(rstd_in, POINTER, rstd_in)                                                                                         \
  X(units, I64, units)                                                                                                 \
  X(lanes, I64, lanes)                                                                                                 \
  X(divisor, F32, divisor)                                                                                             \
  X(eps, F32, eps)                                                                                                     \
  X(round_sum, I32, round_sum)                                                                                         \
  X(round_rstd, I32, round_rstd)                                                                                       \
  X(round_xhat, I32, round_xhat)                                                                                       \
  X(round_normed, I32, round_normed)                                                                                   \
  X(live_rows, POINTER, live_rows)                                                                                     \
  X(live_most, I64, live_most)                                                                                         \
  X(live_factor, I64, live_factor)                                                                                     \
  X(sums, POINTER, sums)                                                                                               \
  X(partials, POINTER, partials)                                                                                       \
  X(has_sums, I32, has_sums)                                                                                           \
  X(chunks, I64, chunks)                                                                                               \
  X(chunk_step, I64, chunk_step)                                                                                       \
  X(row_lanes, I64, row_lanes)                                                                                         \
  X(unit_rows, I64, unit_rows)

enum rn_triton_name {
#define RN_NAMES_OF_VIEW(view)                                                                                         \
  RN_TRITON_##view, RN_TRITON_##view##_row_stride, RN_TRITON_##view##_head_stride, RN_TRITON_##view##_type,
#define RN_NAME_OF_FIELD(name, kind, member) RN_TRITON_##name,
  RN_TRITON_VIEWS(RN_NAMES_OF_VIEW) RN_TRITON_OF_PROBLEM(RN_NAME_OF_FIELD) RN_TRITON_OF_PLAN(RN_NAME_OF_FIELD)
      RN_TRITON_NAMES
};

typedef struct rn_triton_extra {
  int64_t weight_head_stride, weight_group_stride; /* elements */
  int32_t weight_type, dweight_type;
  float weight_offset; /* -0.0f without weight, too */
  float divisor, eps;
  const void *rstd_in; /* NULL where it may not be used */
  int64_t units;       /* (row, head, group) */
  int64_t lanes;
  int32_t round_sum, round_rstd, round_xhat, round_normed; /* F32 = not rounded, never 0 */
  const int64_t *live_rows;
  int64_t live_most, live_factor;
  void *sums, *partials; /* places in the workspace */
  int32_t has_sums;
  int64_t chunks, row_lanes, unit_rows;
  int64_t chunk_step; /* every so many chunks there is one to be added */
} rn_triton_extra;

/* ------------------------------------------------------------------------------------------------------------------
 * The table of kernels. */

enum rn_triton_kind { RN_TRITON_POINTER, RN_TRITON_I64, RN_TRITON_I32, RN_TRITON_F32 };

typedef struct rn_triton_parameter {
  uint8_t name, kind;
  uint16_t multiple; /* of what the kernel takes the value to be: bytes of an address, or a number; 0, 1: of nothing */
} rn_triton_parameter;

enum { RN_TRITON_EITHER = 2 };
enum rn_triton_family {
  RN_TRITON_forward_row,
  RN_TRITON_forward_few,
  RN_TRITON_forward_long,
  RN_TRITON_backward_rows,
  RN_TRITON_backward_long_sums,
  RN_TRITON_backward_long,
  RN_TRITON_backward_long_dx,
  RN_TRITON_dweight_fold,
  RN_TRITON_dweight_sum,
  RN_TRITON_general_forward,
  RN_TRITON_general_backward_sums,
  RN_TRITON_general_backward_dweight,
  RN_TRITON_general_backward_dx,
  RN_TRITON_FAMILIES
};

typedef struct rn_triton_kernel {
  const char *name, *entry;
  const unsigned char *image; /* a cubin or a code object */
  const rn_triton_parameter *parameters;
  uint8_t count;    /* of them */
  uint8_t hidden;   /* pointers behind them that Triton adds; NULL is what they want */
  uint8_t family;   /* enum rn_triton_family */
  uint8_t any_grid; /* bool: it goes round with as many programs as there are */
  uint16_t warps, wave;
  uint32_t shared;
  /* Facts: what it was compiled for; 0 = of no meaning in its family. residual: 0, 1, or RN_TRITON_EITHER. */
  int32_t type, residual, lanes, steps, row_lanes;
  int32_t tile_rows, tile_cols;
} rn_triton_kernel;

/* A kind of GPU and its kernels, which lie together in the table. */
typedef struct rn_triton_target {
  int32_t device; /* rmsnorm_device */
  int32_t arch;   /* 90 for compute capability 9.0; 0x942 for gfx942 */
  int32_t first, count;
  int32_t family[RN_TRITON_FAMILIES + 1]; /* where each begins behind `first`; they lie in the order of the enum */
} rn_triton_target;

/* What loading leaves behind. A kernel of CUDA has one handle for all contexts, of[0]; on HIP each device its own. */
enum { RN_TRITON_DEVICES = 64, RN_TRITON_PARAMETERS = 96 };
typedef struct rn_triton_loaded {
  _Atomic(void *) of[RN_TRITON_DEVICES];
  _Atomic uint64_t prepared; /* CUDA, bit i: on device i */
} rn_triton_loaded;

/* triton_table.c, made by the build; NULL entries nowhere, the last target has count 0 */
extern const rn_triton_kernel rn_triton_kernels[];
extern const rn_triton_target rn_triton_targets[];
extern rn_triton_loaded rn_triton_loads[];
extern const char rn_triton_no_target[]; /* why there is nothing for a GPU: which ones there is something for */

/* ------------------------------------------------------------------------------------------------------------------
 * Plans. */

typedef struct rn_triton_device {
  int32_t device; /* rmsnorm_device */
  int32_t number, arch, wave, multiprocessors, shared_bytes;
} rn_triton_device;

typedef struct rn_triton_step {
  int32_t kernel; /* in the table */
  uint32_t blocks, threads;
} rn_triton_step;

enum { RN_TRITON_STEPS = 5 };
typedef struct rn_triton_plan {
  int32_t steps;
  rn_triton_step step[RN_TRITON_STEPS];
  rn_triton_extra extra;
} rn_triton_plan;

/* The kernels for a device, NULL when there are none. */
const rn_triton_target *rn_triton_target_of(const rn_triton_device *device);
/* Fills *plan and returns NULL, or returns why not (static text). */
const char *rn_triton_plan_of(const rn_problem *p, const rn_triton_device *device, rn_triton_plan *plan);
/* How much workspace backward wants: a function of the problem alone. */
size_t rn_triton_workspace_bytes(const rn_problem *p);

/* The value of a parameter: an address, a number, or the bits of a float; as wide as its kind from the start of the
 * eight bytes. */
typedef union rn_triton_value {
  uint64_t bits;
  const void *pointer;
  int64_t i64;
  int32_t i32;
  float f32;
} rn_triton_value;
rn_triton_value rn_triton_value_of(const rn_triton_parameter *parameter, const rn_problem *p,
                                   const rn_triton_extra *extra);
/* Whether all values have the widths and are the multiples that the kernel takes them to be. */
bool rn_triton_fits(const rn_triton_kernel *kernel, const rn_problem *p, const rn_triton_extra *extra);
/* The values of all parameters in order, the hidden ones included; returns how many. */
int rn_triton_values(const rn_triton_kernel *kernel, const rn_problem *p, const rn_triton_extra *extra,
                     rn_triton_value *values);

/* ------------------------------------------------------------------------------------------------------------------
 * What cuda_triton.c and hip_triton.c have in common. */

typedef struct rn_triton_gpu {
  const char *name; /* of the row of the table */
  rmsnorm_status (*device_of_thread)(rn_triton_device *device);
  bool (*device_to_explain)(rn_triton_device *device);
  /* The handle of a kernel on the device, loaded if it has not been. */
  rmsnorm_status (*ready)(int32_t kernel, const rn_triton_device *device, void **handle);
  /* Where a handle alone is not yet a kernel in memory; or NULL. */
  rmsnorm_status (*load_now)(int32_t kernel, void *handle);
  rmsnorm_status (*launch)(const rn_triton_step *step, void *handle, const rn_triton_value *values, int count,
                           void *stream);
} rn_triton_gpu;

const char *rn_triton_why_not(const rn_triton_gpu *gpu, const rn_problem *p);
rmsnorm_status rn_triton_run(const rn_triton_gpu *gpu, const rn_problem *p, void *stream);
rmsnorm_status rn_triton_preload(const rn_triton_gpu *gpu);
/* Whether the build has kernels for any GPU of that rmsnorm_device. */
bool rn_triton_has(int32_t device);

#endif /* RN_TRITON_H */
