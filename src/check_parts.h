/* check_parts.h - the checks that every operation shares and the call path can not afford a function call for.
 *
 * Nothing is written through a pointer of the caller, and none is read. Integers are compared as integers and
 * floating-point values by their bits: the caller's floating-point mode is not ours yet, and comparing a NaN would
 * raise a flag in it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef RN_CHECK_PARTS_H
#define RN_CHECK_PARTS_H

#include "check.h"

#include <inttypes.h>
#include <string.h>

/* Inlined at every optimisation level: out of line these comparisons cost a one-row call a third of its time. */
#define RN_INLINE static inline __attribute__((always_inline))

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    rmsnorm_status try_status = (call);                                                                                \
    if (try_status != RMSNORM_OK) return try_status;                                                                   \
  } while (0)

/* check_buffer.c: the checks of a whole buffer. */

/* Stands for inputs that a workspace query need not set. Never read. */
extern const char rn_unset_input[64];
/* Bytes of every known type. */
extern const uint8_t rn_dtype_bytes[RMSNORM_DTYPE_E8M0 + 1];
/* A strided tensor that is there: its view, and its region at the end of the list. check_input and check_output below
 * are the short way to the same. */
rmsnorm_status rn_check_input(const rn_problem *p, rn_check_mode mode, const char *name,
                              const rmsnorm_input_tensor *tensor, rn_view *view, rn_regions *regions);
rmsnorm_status rn_check_output(const rn_problem *p, rn_check_mode mode, const char *name,
                               const rmsnorm_output_tensor *tensor, unsigned types, rn_view *view, rn_regions *regions);
/* The refusals of check_dtype and check_packed. */
rmsnorm_status rn_refuse_dtype(const char *name, int32_t dtype, unsigned types);
rmsnorm_status rn_refuse_packed(const char *name, const void *data, uint64_t bytes, int64_t size);
/* (rows, heads), heads > 1, become one dimension where the tensors allow it. */
void rn_collapse_heads(rn_problem *p, rn_regions *regions);

/* Sets of types, one bit each. */
#define BIT(dtype) (1u << RMSNORM_DTYPE_##dtype)
enum {
  FLOATS = BIT(F32) | BIT(F16) | BIT(BF16),
  FLOATS_AND_F64 = FLOATS | BIT(F64),
  QUANTISED = BIT(FP8_E4M3) | BIT(FP8_E5M2) | BIT(INT8)
};

RN_INLINE bool type_in(int32_t dtype, unsigned types) {
  return (uint32_t)dtype < 32 && (types >> dtype & 1) != 0;
}

/* The types a tensor of this call may have: f64 only beside an x in f64. */
RN_INLINE unsigned floats_of(const rn_problem *p) {
  return p->x.dtype == RMSNORM_DTYPE_F64 ? FLOATS_AND_F64 : FLOATS;
}

RN_INLINE rmsnorm_status check_dtype(const char *name, int32_t dtype, unsigned types) {
  return type_in(dtype, types) ? RMSNORM_OK : rn_refuse_dtype(name, dtype, types);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Numbers. */

RN_INLINE uint64_t bits_of_double(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

RN_INLINE uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static const uint32_t FLOAT_INFINITY_BITS = 0x7f800000u;
static const uint64_t DOUBLE_INFINITY_BITS = 0x7ff0000000000000u;
static const uint64_t FLT_MAX_AS_DOUBLE_BITS = 0x47efffffe0000000u;

RN_INLINE bool is_positive_finite(float value) {
  uint32_t bits = bits_of_float(value);
  return bits > 0 && bits < FLOAT_INFINITY_BITS;
}

RN_INLINE rmsnorm_status check_eps(double eps, rn_problem *p) {
  uint64_t bits = bits_of_double(eps);
  bool f64 = p->x.dtype == RMSNORM_DTYPE_F64;
  if (bits == (uint64_t)1 << 63) bits = 0; /* -0 is as good as 0 */
  if (bits == RMSNORM_EPS_UNSET_BITS)
    return rn_error(RMSNORM_ERROR_VALUE, "eps: is not set; it has no default, take it from the checkpoint's config");
  if (f64 ? bits >= DOUBLE_INFINITY_BITS : bits > FLT_MAX_AS_DOUBLE_BITS)
    return rn_error(RMSNORM_ERROR_VALUE, "eps: must be >= 0 and finite%s, is %g", f64 ? "" : " in float32", eps);
  memcpy(&p->eps, &bits, sizeof bits);
  return RMSNORM_OK;
}

RN_INLINE rmsnorm_status check_range(const char *name, int32_t value, int32_t last) {
  if ((uint32_t)value <= (uint32_t)last) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_ENUM, "%s: unknown value %" PRId32 ", the largest known one is %" PRId32, name, value,
                  last);
}

/* ------------------------------------------------------------------------------------------------------------------
 * What all operations have. */

/* For a length that it knows gcc writes "rep stos" here, which takes three times as long as memset. */
RN_INLINE void clear(rn_problem *p) {
  size_t bytes = sizeof *p;
  __asm__("" : "+r"(bytes));
  memset(p, 0, bytes);
}

RN_INLINE rmsnorm_status check_struct(const void *args, size_t found, size_t known) {
  if (args == NULL) return rn_error(RMSNORM_ERROR_NULL, "args: is NULL");
  if (found == known) return RMSNORM_OK;
  if (found == 0) return rn_error(RMSNORM_ERROR_STRUCT_SIZE, "struct_size: is 0; start from the initialiser");
  return rn_error(RMSNORM_ERROR_STRUCT_SIZE, "struct_size: this library knows %zu bytes, found %zu%s", known, found,
                  found > known ? "; the program was compiled with a newer rmsnorm.h" : "");
}

RN_INLINE rmsnorm_status check_sizes(rn_problem *p, int64_t rows, int64_t heads, int64_t cols, int64_t groups,
                                     int64_t divisor) {
  if (rows < 0) return rn_error(RMSNORM_ERROR_SIZE, "rows: must be >= 0, is %" PRId64, rows);
  if (heads < 1) return rn_error(RMSNORM_ERROR_SIZE, "heads: must be >= 1, is %" PRId64, heads);
  if (cols < 1) return rn_error(RMSNORM_ERROR_SIZE, "cols: must be >= 1, is %" PRId64, cols);
  if (groups < 1) return rn_error(RMSNORM_ERROR_SIZE, "groups: must be >= 1, is %" PRId64, groups);
  int64_t group_cols = cols;
  if (groups != 1) {
    group_cols = cols / groups;
    if (group_cols * groups != cols)
      return rn_error(RMSNORM_ERROR_SIZE, "groups: %" PRId64 " does not divide cols, which is %" PRId64, groups, cols);
  }
  if (divisor < 0) return rn_error(RMSNORM_ERROR_SIZE, "divisor: must be >= 0, is %" PRId64, divisor);
  /* One product bounds the bytes of every packed array, with rows == 0 those of dweight. */
  int64_t total;
  if (__builtin_mul_overflow(rows > 0 ? rows : 1, heads, &total) || __builtin_mul_overflow(total, cols, &total) ||
      __builtin_mul_overflow(total, 8, &total))
    return rn_error(RMSNORM_ERROR_SIZE, "rows * heads * cols: %" PRId64 " * %" PRId64 " * %" PRId64 " is too large",
                    rows, heads, cols);
  p->rows = rows;
  p->heads = heads;
  p->cols = cols;
  p->groups = groups;
  p->group_cols = group_cols;
  p->divisor = divisor > 0 ? divisor : group_cols;
  return RMSNORM_OK;
}

/* What a CPU call may not have, and the options of a device; live_rows itself joins the regions later. */
RN_INLINE rmsnorm_status check_launch(rn_problem *p, const rmsnorm_launch *launch) {
  p->live_factor = 1;
  if (launch == NULL) return RMSNORM_OK;
  TRY(check_range("launch->dependent", launch->dependent, 1));
  if (launch->multiprocessors < 0)
    return rn_error(RMSNORM_ERROR_SIZE, "launch->multiprocessors: must be >= 0, is %" PRId32, launch->multiprocessors);
  if (launch->live_rows != NULL && p->op == RMSNORM_OP_BACKWARD)
    return rn_error(RMSNORM_ERROR_COMBINATION, "launch->live_rows: backward takes all rows; leave it NULL");
  if (p->device == RMSNORM_DEVICE_CPU &&
      (launch->dependent != 0 || launch->multiprocessors != 0 || launch->live_rows != NULL))
    return rn_error(RMSNORM_ERROR_COMBINATION, "launch: the CPU has no launches; leave it NULL, or all of it 0");
  p->launch = *launch;
  return RMSNORM_OK;
}

RN_INLINE rmsnorm_status check_execution(rn_problem *p, const rmsnorm_parallel *parallel, int32_t threads,
                                         int32_t device, const char *impl, const rmsnorm_launch *launch) {
  if (threads < 0) return rn_error(RMSNORM_ERROR_SIZE, "threads: must be >= 0, is %" PRId32, threads);
  if (parallel != NULL) {
    if (parallel->run == NULL) return rn_error(RMSNORM_ERROR_NULL, "parallel->run: is NULL");
    if (parallel->threads < 1)
      return rn_error(RMSNORM_ERROR_SIZE, "parallel->threads: must be >= 1, is %" PRId32, parallel->threads);
    if (parallel->reserved != 0)
      return rn_error(RMSNORM_ERROR_VALUE, "parallel->reserved: must be 0, is %" PRId32, parallel->reserved);
  }
  p->parallel = parallel;
  p->threads = threads;
  p->device = device;
  p->impl = impl;
  TRY(check_range("device", device, RMSNORM_DEVICE_HIP));
  return check_launch(p, launch);
}

RN_INLINE rmsnorm_status check_numerics(const rmsnorm_numerics *n) {
  /* Float32 throughout is the usual case. */
  if ((n->round_sum | n->round_rstd | n->round_xhat | n->round_normed | n->gate | n->gate_place) == 0)
    return RMSNORM_OK;
  if (n->round_sum != RMSNORM_ROUND_NONE && n->round_sum != RMSNORM_ROUND_STORED)
    return rn_error(RMSNORM_ERROR_ENUM, "numerics.round_sum: expected NONE (0) or STORED (4), found %" PRId32,
                    n->round_sum);
  if (n->round_rstd != RMSNORM_ROUND_NONE && n->round_rstd != RMSNORM_ROUND_X)
    return rn_error(RMSNORM_ERROR_ENUM, "numerics.round_rstd: expected NONE (0) or X (1), found %" PRId32,
                    n->round_rstd);
  TRY(check_range("numerics.round_xhat", n->round_xhat, RMSNORM_ROUND_PROMOTED));
  TRY(check_range("numerics.round_normed", n->round_normed, RMSNORM_ROUND_PROMOTED));
  TRY(check_range("numerics.gate", n->gate, RMSNORM_GATE_SIGMOID));
  return check_range("numerics.gate_place", n->gate_place, RMSNORM_GATE_BEFORE);
}

RN_INLINE rmsnorm_status check_gate_pair(const void *gate, int32_t kind, const char *kind_name) {
  if ((gate != NULL) == (kind != RMSNORM_GATE_NONE)) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_COMBINATION,
                  gate != NULL ? "gate: is given, but %s is NONE" : "gate: is absent, but %s is not NONE", kind_name);
}

RN_INLINE rmsnorm_status check_col_stride(const char *name, int64_t col_stride) {
  if (col_stride == 1) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_COL_STRIDE, "%s: col_stride must be 1, is %" PRId64, name, col_stride);
}

RN_INLINE rmsnorm_status check_reserved(const char *name, int32_t reserved) {
  if (reserved == 0) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_VALUE, "%s: reserved must be 0, is %" PRId32, name, reserved);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Buffers. */

/* A packed array of count elements; count * size has no overflow (check_sizes). */
RN_INLINE rmsnorm_status check_packed(const char *name, const void *data, int64_t count, int64_t size,
                                      rn_region *region) {
  uintptr_t first = (uintptr_t)data;
  uint64_t bytes = (uint64_t)(count * size);
  *region = (rn_region){first, first + (uintptr_t)bytes, name, NULL, (int64_t)bytes};
  if ((first & (uintptr_t)(size - 1)) != 0 || bytes > UINTPTR_MAX - first)
    return rn_refuse_packed(name, data, bytes, size);
  return RMSNORM_OK;
}

/* The caller's row count in the memory of a device. */
RN_INLINE rmsnorm_status check_live_rows(const rn_problem *p, rn_regions *regions) {
  if (p->launch.live_rows == NULL) return RMSNORM_OK;
  return check_packed("launch->live_rows", p->launch.live_rows, 1, 8, &regions->input[regions->inputs++]);
}

/* (SMALL * SMALL + SMALL) * 8 bytes do not overflow. */
#define SMALL ((int64_t)1 << 28)

RN_INLINE bool is_small(int64_t count) {
  return (uint64_t)count - 1 < (uint64_t)SMALL; /* 1 ... SMALL */
}

/* The short way for the layout that nearly every tensor has: one outer dimension, walked upwards, and sizes that are
 * far from any overflow. It makes the view and the region, or says false: then rn_check_input or rn_check_output have
 * to look, which refuse with the reason or find that the layout is good after all. */
RN_INLINE bool plain_layout(const rn_problem *p, const char *name, const void *data, int64_t row_stride,
                            int64_t least_stride, int32_t dtype, rn_view *view, rn_region *region) {
  if (p->heads != 1 || !is_small(p->rows) || !is_small(p->cols)) return false;
  int64_t size = rn_dtype_bytes[dtype], width = p->cols * size, row_bytes = 0;
  uint64_t bytes = (uint64_t)width;
  if (p->rows > 1) {
    if (row_stride < least_stride || row_stride > SMALL) return false;
    row_bytes = row_stride * size;
    bytes += (uint64_t)((p->rows - 1) * row_bytes);
  }
  uintptr_t first = (uintptr_t)data;
  if ((first & (uintptr_t)(size - 1)) != 0 || bytes > UINTPTR_MAX - first) return false;
  *view = (rn_view){(char *)first, row_bytes, 0, dtype, (int32_t)size};
  *region = (rn_region){first, first + (uintptr_t)bytes, name, view, width};
  return true;
}

RN_INLINE bool plain_input(const rn_problem *p, const char *name, const rmsnorm_input_tensor *t, unsigned types,
                           rn_view *view, rn_region *region) {
  return t->col_stride == 1 && t->reserved == 0 && type_in(t->dtype, types) &&
         plain_layout(p, name, t->data, t->row_stride, 0, t->dtype, view, region);
}

/* The rows of an output have to lie apart. */
RN_INLINE bool plain_output(const rn_problem *p, const char *name, const rmsnorm_output_tensor *t, unsigned types,
                            rn_view *view, rn_region *region) {
  return t->col_stride == 1 && t->reserved == 0 && type_in(t->dtype, types) &&
         plain_layout(p, name, t->data, t->row_stride, p->cols, t->dtype, view, region);
}

RN_INLINE rmsnorm_status check_input(const rn_problem *p, const char *name, const rmsnorm_input_tensor *tensor,
                                     rn_view *view, rn_regions *regions) {
  if (!plain_input(p, name, tensor, floats_of(p), view, &regions->input[regions->inputs]))
    return rn_check_input(p, RN_CHECK_CALL, name, tensor, view, regions);
  regions->inputs++;
  return RMSNORM_OK;
}

RN_INLINE rmsnorm_status check_output(const rn_problem *p, const char *name, const rmsnorm_output_tensor *tensor,
                                      unsigned types, rn_view *view, rn_regions *regions) {
  if (!plain_output(p, name, tensor, types, view, &regions->output[regions->outputs]))
    return rn_check_output(p, RN_CHECK_CALL, name, tensor, types, view, regions);
  regions->outputs++;
  return RMSNORM_OK;
}

RN_INLINE rmsnorm_status check_weight_offset(rn_problem *p, float offset) {
  uint32_t bits = bits_of_float(offset);
  if ((bits & FLOAT_INFINITY_BITS) == FLOAT_INFINITY_BITS)
    return rn_error(RMSNORM_ERROR_VALUE, "numerics.weight_offset: must be finite, is %g", (double)offset);
  if ((bits & 0x7fffffffu) != 0) p->weight_offset = offset;
  return RMSNORM_OK;
}

/* The weight that is there; *region is made in a call only. */
RN_INLINE rmsnorm_status check_weight(rn_problem *p, rn_check_mode mode, const void *weight, int32_t dtype,
                                      unsigned types, int32_t shape, float offset, rn_region *region) {
  TRY(check_dtype("weight", dtype, types));
  TRY(check_weight_offset(p, offset));
  int64_t size = rn_dtype_bytes[dtype];
  int64_t count = shape == RMSNORM_WEIGHT_GROUP ? p->group_cols : p->cols;
  p->weight = mode == RN_CHECK_CALL ? weight : rn_unset_input;
  p->weight_dtype = dtype;
  p->weight_size = (int32_t)size;
  p->weight_group_bytes = shape == RMSNORM_WEIGHT_GROUP ? 0 : p->group_cols * size;
  if (shape == RMSNORM_WEIGHT_HEADS_COLS && p->heads > 1) {
    p->weight_head_bytes = p->cols * size;
    count *= p->heads;
  }
  return mode == RN_CHECK_CALL ? check_packed("weight", weight, count, size, region) : RMSNORM_OK;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Rounding points as types. */

/* The type computed in: what "not rounded" is called. */
RN_INLINE int32_t full_type(const rn_problem *p) {
  return p->x.dtype == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32;
}

RN_INLINE int32_t promoted(const rn_problem *p, int32_t a, int32_t b) {
  return a == b ? a : full_type(p);
}

RN_INLINE int32_t rounding_type(const rn_problem *p, int32_t rounding) {
  switch (rounding) {
  case RMSNORM_ROUND_X:
    return p->x.dtype;
  case RMSNORM_ROUND_WEIGHT:
    return p->weight != NULL && p->weight_size == 2 ? p->weight_dtype : full_type(p);
  case RMSNORM_ROUND_PROMOTED:
    return p->weight != NULL ? promoted(p, p->x.dtype, p->weight_dtype) : p->x.dtype;
  default:
    return full_type(p);
  }
}

/* stored: the type of residual_out, NONE = not known, then x and residual decide. */
RN_INLINE int32_t sum_type(const rn_problem *p, int32_t round_sum, int32_t stored) {
  if (p->residual.data == NULL || round_sum == RMSNORM_ROUND_NONE) return full_type(p);
  return stored != RMSNORM_DTYPE_NONE ? stored : promoted(p, p->x.dtype, p->residual.dtype);
}

RN_INLINE rmsnorm_status check_sum_dtype(const rn_problem *p, int32_t dtype) {
  return dtype == RMSNORM_DTYPE_NONE ? RMSNORM_OK : check_dtype("sum_dtype", dtype, floats_of(p));
}

#endif /* RN_CHECK_PARTS_H */
