/* check.c - every refusal that the header promises, and the normalised problem that is left when there is none.
 *
 * Nothing is written through a pointer of the caller here, and the one value that is read through one is a quantiser's
 * given scale. Integers are compared as integers and floating-point values by their bits: the caller's floating-point
 * mode is not ours yet, and comparing a NaN would raise a flag in it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <float.h>
#include <inttypes.h>
#include <string.h>

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    rmsnorm_status try_status = (call);                                                                                \
    if (try_status != RMSNORM_OK) return try_status;                                                                   \
  } while (0)

/* ------------------------------------------------------------------------------------------------------------------
 * Types. */

static const uint8_t dtype_bytes[] = {
    [RMSNORM_DTYPE_F32] = 4,      [RMSNORM_DTYPE_F16] = 2,      [RMSNORM_DTYPE_BF16] = 2, [RMSNORM_DTYPE_F64] = 8,
    [RMSNORM_DTYPE_FP8_E4M3] = 1, [RMSNORM_DTYPE_FP8_E5M2] = 1, [RMSNORM_DTYPE_INT8] = 1, [RMSNORM_DTYPE_E8M0] = 1};

static const char *const dtype_names[] = {
    [RMSNORM_DTYPE_F32] = "f32",   [RMSNORM_DTYPE_F16] = "f16",           [RMSNORM_DTYPE_BF16] = "bf16",
    [RMSNORM_DTYPE_F64] = "f64",   [RMSNORM_DTYPE_FP8_E4M3] = "fp8_e4m3", [RMSNORM_DTYPE_FP8_E5M2] = "fp8_e5m2",
    [RMSNORM_DTYPE_INT8] = "int8", [RMSNORM_DTYPE_E8M0] = "e8m0"};

enum { DTYPES = sizeof dtype_bytes };

size_t rmsnorm_dtype_bytes(int dtype) {
  return dtype >= 0 && dtype < DTYPES ? dtype_bytes[dtype] : 0;
}

const char *rmsnorm_dtype_name(int dtype) {
  return dtype >= 0 && dtype < DTYPES && dtype_names[dtype] != NULL ? dtype_names[dtype] : "?";
}

/* Sets of types, one bit each. */
#define BIT(dtype) (1u << RMSNORM_DTYPE_##dtype)
enum {
  FLOATS = BIT(F32) | BIT(F16) | BIT(BF16),
  FLOATS_AND_F64 = FLOATS | BIT(F64),
  QUANTISED = BIT(FP8_E4M3) | BIT(FP8_E5M2) | BIT(INT8)
};

static bool type_in(int32_t dtype, unsigned types) {
  return (uint32_t)dtype < 32 && (types >> dtype & 1) != 0;
}

/* The types a tensor of this call may have: f64 only beside an x in f64. */
static unsigned floats_of(const rn_problem *p) {
  return p->x.dtype == RMSNORM_DTYPE_F64 ? FLOATS_AND_F64 : FLOATS;
}

static rmsnorm_status check_dtype(const char *name, int32_t dtype, unsigned types) {
  if (type_in(dtype, types)) return RMSNORM_OK;
  if (dtype == RMSNORM_DTYPE_F64 && types == FLOATS)
    return rn_error(RMSNORM_ERROR_COMBINATION, "%s: f64 needs an x in f64", name);
  return rn_error(RMSNORM_ERROR_ENUM, "%s: expected %s, found dtype %" PRId32 " (%s)", name,
                  types == QUANTISED ? "fp8_e4m3, fp8_e5m2 or int8"
                                     : (types == FLOATS ? "f32, f16 or bf16" : "f32, f16, bf16 or f64"),
                  dtype, rmsnorm_dtype_name(dtype));
}

/* ------------------------------------------------------------------------------------------------------------------
 * Numbers. */

static uint64_t bits_of_double(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static const uint32_t FLOAT_INFINITY_BITS = 0x7f800000u;
static const uint64_t DOUBLE_INFINITY_BITS = 0x7ff0000000000000u;
static const uint64_t FLT_MAX_AS_DOUBLE_BITS = 0x47efffffe0000000u;

static bool is_positive_finite(float value) {
  uint32_t bits = bits_of_float(value);
  return bits > 0 && bits < FLOAT_INFINITY_BITS;
}

static rmsnorm_status check_eps(double eps, rn_problem *p) {
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

static rmsnorm_status check_range(const char *name, int32_t value, int32_t last) {
  if ((uint32_t)value <= (uint32_t)last) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_ENUM, "%s: unknown value %" PRId32 ", the largest known one is %" PRId32, name, value,
                  last);
}

/* ------------------------------------------------------------------------------------------------------------------
 * What all operations have. */

static rmsnorm_status check_struct(const void *args, size_t found, size_t known) {
  if (args == NULL) return rn_error(RMSNORM_ERROR_NULL, "args: is NULL");
  if (found == known) return RMSNORM_OK;
  if (found == 0) return rn_error(RMSNORM_ERROR_STRUCT_SIZE, "struct_size: is 0; start from the initialiser");
  return rn_error(RMSNORM_ERROR_STRUCT_SIZE, "struct_size: this library knows %zu bytes, found %zu%s", known, found,
                  found > known ? "; the program was compiled with a newer rmsnorm.h" : "");
}

static rmsnorm_status check_sizes(rn_problem *p, int64_t rows, int64_t heads, int64_t cols, int64_t groups,
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

static rmsnorm_status check_execution(rn_problem *p, const rmsnorm_parallel *parallel, int32_t threads, int32_t device,
                                      const char *impl) {
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
  return check_range("device", device, RMSNORM_DEVICE_HIP);
}

static rmsnorm_status check_numerics(const rmsnorm_numerics *n) {
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

static rmsnorm_status check_gate_pair(const void *gate, int32_t kind, const char *kind_name) {
  if ((gate != NULL) == (kind != RMSNORM_GATE_NONE)) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_COMBINATION,
                  gate != NULL ? "gate: is given, but %s is NONE" : "gate: is absent, but %s is not NONE", kind_name);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Buffers. */

/* Stands for inputs that a workspace query need not set. Never read. */
static const char unset_input[64];

static rmsnorm_status check_alignment(const char *name, const void *data, int64_t size) {
  if (((uintptr_t)data & (uintptr_t)(size - 1)) == 0) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_ALIGNMENT, "%s: %p is not aligned to its element of %" PRId64 " bytes", name, data,
                  size);
}

/* A packed array of count elements; count * size has no overflow (check_sizes). */
static rmsnorm_status check_packed(const char *name, const void *data, int64_t count, int64_t size, rn_region *region) {
  TRY(check_alignment(name, data, size));
  uintptr_t first = (uintptr_t)data;
  uint64_t bytes = (uint64_t)(count * size);
  if (bytes > UINTPTR_MAX - first)
    return rn_error(RMSNORM_ERROR_SIZE, "%s: %" PRIu64 " bytes from %p on pass the end of memory", name, bytes, data);
  *region = (rn_region){first, first + (uintptr_t)bytes, name, NULL, (int64_t)bytes};
  return RMSNORM_OK;
}

/* A strided tensor; col_stride and dtype have been looked at. Makes its view and its region. */
static inline rmsnorm_status check_layout(const rn_problem *p, const char *name, const void *data, int64_t row_stride,
                                          int64_t head_stride, int32_t dtype, rn_view *view, rn_region *region) {
  int64_t size = dtype_bytes[dtype];
  int64_t row_bytes = 0, head_bytes = 0, row_span = 0, head_span = 0;
  int64_t width = p->cols * size;
  int64_t low, high;
  if ((p->rows > 1 && (__builtin_mul_overflow(row_stride, size, &row_bytes) ||
                       __builtin_mul_overflow(row_bytes, p->rows - 1, &row_span))) ||
      (p->heads > 1 && (__builtin_mul_overflow(head_stride, size, &head_bytes) ||
                        __builtin_mul_overflow(head_bytes, p->heads - 1, &head_span))) ||
      __builtin_add_overflow(row_span < 0 ? row_span : 0, head_span < 0 ? head_span : 0, &low) ||
      __builtin_add_overflow(row_span > 0 ? row_span : 0, head_span > 0 ? head_span : 0, &high) ||
      __builtin_add_overflow(high, width, &high))
    return rn_error(RMSNORM_ERROR_STRIDE, "%s: row_stride %" PRId64 " or head_stride %" PRId64 " overflows", name,
                    row_stride, head_stride);
  uintptr_t start = (uintptr_t)data;
  if (0 - (uint64_t)low > start || (uint64_t)high > UINTPTR_MAX - start)
    return rn_error(RMSNORM_ERROR_STRIDE, "%s: strides %" PRId64 ", %" PRId64 " lead out of memory from %p", name,
                    row_stride, head_stride, data);
  view->data = (char *)(uintptr_t)data;
  view->row_bytes = row_bytes;
  view->head_bytes = head_bytes;
  view->dtype = dtype;
  view->size = (int32_t)size;
  region->first = start - (uintptr_t)(0 - (uint64_t)low);
  region->last = start + (uintptr_t)high;
  region->name = name;
  region->view = view;
  region->width = width;
  return RMSNORM_OK;
}

static rmsnorm_status check_col_stride(const char *name, int64_t col_stride) {
  if (col_stride == 1) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_COL_STRIDE, "%s: col_stride must be 1, is %" PRId64, name, col_stride);
}

static rmsnorm_status check_reserved(const char *name, int32_t reserved) {
  if (reserved == 0) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_VALUE, "%s: reserved must be 0, is %" PRId32, name, reserved);
}

static rmsnorm_status check_input(const rn_problem *p, rn_check_mode mode, const char *name,
                                  const rmsnorm_input_tensor *tensor, rn_view *view, rn_regions *regions) {
  const void *data = tensor->data;
  TRY(check_dtype(name, tensor->dtype, floats_of(p)));
  TRY(check_col_stride(name, tensor->col_stride));
  TRY(check_reserved(name, tensor->reserved));
  if (mode == RN_CHECK_SIZES)
    data = unset_input;
  else
    TRY(check_alignment(name, data, dtype_bytes[tensor->dtype]));
  if (mode == RN_CHECK_CALL)
    return check_layout(p, name, data, tensor->row_stride, tensor->head_stride, tensor->dtype, view,
                        &regions->input[regions->inputs++]);
  /* Strides that fit around some address: start in the middle of memory. */
  rn_region anywhere;
  rmsnorm_status status = check_layout(p, name, (const void *)(UINTPTR_MAX / 2 + 1), tensor->row_stride,
                                       tensor->head_stride, tensor->dtype, view, &anywhere);
  view->data = (char *)(uintptr_t)data;
  return status;
}

static int64_t magnitude(int64_t value) {
  return value < 0 ? -value : value;
}

/* No two rows of an output share an element. Only layouts in which one dimension nests in the other are taken. */
static rmsnorm_status check_rows_apart(const rn_problem *p, const rn_view *view, const char *name) {
  /* Nothing overflows: check_layout has seen the whole extent. */
  uint64_t width = (uint64_t)(p->cols * view->size), nested = width;
  uint64_t row = magnitude(view->row_bytes), head = magnitude(view->head_bytes);
  bool apart = true;
  if (p->rows > 1 && p->heads > 1) {
    bool heads_inside = head <= row;
    uint64_t inner = heads_inside ? head : row, outer = heads_inside ? row : head;
    nested += inner * (uint64_t)((heads_inside ? p->heads : p->rows) - 1);
    apart = inner >= width && outer >= nested;
  } else if (p->rows > 1) {
    apart = row >= width;
  } else if (p->heads > 1) {
    apart = head >= width;
  }
  if (apart) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_STRIDE,
                  "%s: its rows overlap each other: %" PRId64 " cols, row_stride %" PRId64 ", head_stride %" PRId64,
                  name, p->cols, view->row_bytes / view->size, view->head_bytes / view->size);
}

static rmsnorm_status check_output(const rn_problem *p, rn_check_mode mode, const char *name,
                                   const rmsnorm_output_tensor *tensor, unsigned types, rn_view *view,
                                   rn_regions *regions) {
  TRY(check_dtype(name, tensor->dtype, types));
  TRY(check_col_stride(name, tensor->col_stride));
  TRY(check_reserved(name, tensor->reserved));
  const void *data = tensor->data;
  if (mode == RN_CHECK_CALL)
    TRY(check_alignment(name, data, dtype_bytes[tensor->dtype]));
  else
    data = (const void *)(UINTPTR_MAX / 2 + 1);
  TRY(check_layout(p, name, data, tensor->row_stride, tensor->head_stride, tensor->dtype, view,
                   &regions->output[regions->outputs++]));
  view->data = tensor->data;
  return check_rows_apart(p, view, name);
}

static rmsnorm_status check_weight_pointer(rn_problem *p, rn_check_mode mode, const void *weight, int32_t dtype,
                                           int32_t shape, rn_regions *regions) {
  TRY(check_dtype("weight", dtype, floats_of(p)));
  int64_t size = dtype_bytes[dtype];
  int64_t count = shape == RMSNORM_WEIGHT_GROUP ? p->group_cols : p->cols;
  p->weight = weight;
  p->weight_dtype = dtype;
  p->weight_size = (int32_t)size;
  p->weight_group_bytes = shape == RMSNORM_WEIGHT_GROUP ? 0 : p->group_cols * size;
  if (shape == RMSNORM_WEIGHT_HEADS_COLS && p->heads > 1) {
    p->weight_head_bytes = p->cols * size;
    count *= p->heads;
  }
  if (mode == RN_CHECK_SIZES) {
    p->weight = unset_input;
    return RMSNORM_OK;
  }
  return check_packed("weight", weight, count, size, &regions->input[regions->inputs++]);
}

static rmsnorm_status check_weight_offset(rn_problem *p, float offset) {
  uint32_t bits = bits_of_float(offset);
  if ((bits & FLOAT_INFINITY_BITS) == FLOAT_INFINITY_BITS)
    return rn_error(RMSNORM_ERROR_VALUE, "numerics.weight_offset: must be finite, is %g", (double)offset);
  if ((bits & 0x7fffffffu) != 0) p->weight_offset = offset;
  return RMSNORM_OK;
}

/* (rows, heads) become one dimension where every present tensor steps from the last head of a row to the first of the
 * next as it does between heads, and the weight does not tell heads apart. */
static void collapse_heads(rn_problem *p, rn_regions *regions) {
  if (p->heads == 1 || p->weight_head_bytes != 0) return;
  rn_region *lists[2] = {regions->output, regions->input};
  int counts[2] = {regions->outputs, regions->inputs};
  for (int k = 0; k < 2 && p->rows > 1; k++)
    for (int i = 0; i < counts[k]; i++) {
      const rn_view *view = lists[k][i].view;
      int64_t step;
      if (view != NULL && (__builtin_mul_overflow(view->head_bytes, p->heads, &step) || step != view->row_bytes))
        return;
    }
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < counts[k]; i++) {
      rn_view *view = lists[k][i].view;
      if (view != NULL) {
        view->row_bytes = view->head_bytes;
        view->head_bytes = 0;
      }
    }
  p->rows *= p->heads;
  p->heads = 1;
}

/* ------------------------------------------------------------------------------------------------------------------
 * Rounding points as types. */

/* The type computed in: what "not rounded" is called. */
static int32_t full_type(const rn_problem *p) {
  return p->x.dtype == RMSNORM_DTYPE_F64 ? RMSNORM_DTYPE_F64 : RMSNORM_DTYPE_F32;
}

static int32_t promoted(const rn_problem *p, int32_t a, int32_t b) {
  return a == b ? a : full_type(p);
}

static int32_t rounding_type(const rn_problem *p, int32_t rounding) {
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
static int32_t sum_type(const rn_problem *p, int32_t round_sum, int32_t stored) {
  if (p->residual.data == NULL || round_sum == RMSNORM_ROUND_NONE) return full_type(p);
  return stored != RMSNORM_DTYPE_NONE ? stored : promoted(p, p->x.dtype, p->residual.dtype);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Forward. */

static rmsnorm_status check_quant_values(const rn_problem *p, const rmsnorm_quant *quant) {
  int32_t granularity = quant->granularity;
  bool bounded = granularity == RMSNORM_QUANT_ROW || granularity == RMSNORM_QUANT_BLOCK;
  bool blocked = granularity == RMSNORM_QUANT_BLOCK || granularity == RMSNORM_QUANT_MX;
  TRY(check_range("quant.granularity", granularity, RMSNORM_QUANT_MX));
  TRY(check_range("quant.scale_op", quant->scale_op, RMSNORM_SCALE_RECIPROCAL));
  TRY(check_range("quant.scale_layout", quant->scale_layout, RMSNORM_SCALE_COL_MAJOR));
  TRY(check_range("quant.e8m0_rounding", quant->e8m0_rounding, RMSNORM_E8M0_CEIL));
  if (granularity == RMSNORM_QUANT_BLOCK) {
    if (quant->block_cols != 32 && quant->block_cols != 64 && quant->block_cols != 128)
      return rn_error(RMSNORM_ERROR_SIZE, "quant.block_cols: must be 32, 64 or 128, is %" PRId32, quant->block_cols);
  } else if (quant->block_cols != 0) {
    return rn_error(RMSNORM_ERROR_COMBINATION, "quant.block_cols: is %" PRId32 ", but only BLOCK has it; leave it 0",
                    quant->block_cols);
  }
  uint32_t max_bits = bits_of_float(quant->scale_max);
  if (max_bits != 0 && !is_positive_finite(quant->scale_max))
    return rn_error(RMSNORM_ERROR_VALUE, "quant.scale_max: must be 0 (none) or positive and finite, is %g",
                    (double)quant->scale_max);
  if (max_bits != 0 && !bounded)
    return rn_error(RMSNORM_ERROR_COMBINATION, "quant.scale_max: only ROW and BLOCK bound their scales; leave it 0");
  if (blocked && quant->scale_stride != 0) {
    int64_t block = granularity == RMSNORM_QUANT_MX ? 32 : quant->block_cols;
    int64_t least =
        quant->scale_layout == RMSNORM_SCALE_COL_MAJOR ? p->rows * p->heads : p->cols / block + (p->cols % block != 0);
    if (quant->scale_stride < least)
      return rn_error(RMSNORM_ERROR_STRIDE, "quant.scale_stride: must be 0 or at least %" PRId64 ", is %" PRId64, least,
                      quant->scale_stride);
  }
  TRY(check_dtype("quant.q", quant->q.dtype, QUANTISED));
  if (granularity == RMSNORM_QUANT_MX && quant->q.dtype == RMSNORM_DTYPE_INT8)
    return rn_error(RMSNORM_ERROR_COMBINATION, "quant.q: MX takes fp8_e4m3 or fp8_e5m2, found int8");
  return RMSNORM_OK;
}

/* The scales of ROW, BLOCK and MX: their layout as the problem has it, and their region. */
static rmsnorm_status check_scale_out(rn_problem *p, const rmsnorm_quant *quant, rn_regions *regions) {
  int64_t rows = p->rows * p->heads;
  int64_t size = quant->granularity == RMSNORM_QUANT_MX ? 1 : 4;
  int64_t blocks = p->blocks, stride = quant->scale_stride, extent;
  bool by_column = quant->granularity != RMSNORM_QUANT_ROW && quant->scale_layout == RMSNORM_SCALE_COL_MAJOR;
  int64_t lines = by_column ? blocks : rows, length = by_column ? rows : blocks;
  if (quant->granularity == RMSNORM_QUANT_ROW || stride == 0) stride = length;
  if (__builtin_mul_overflow(stride, lines - 1, &extent) || __builtin_add_overflow(extent, length, &extent) ||
      __builtin_mul_overflow(extent, size, &extent))
    return rn_error(RMSNORM_ERROR_STRIDE, "quant.scale_stride: %" PRId64 " overflows", stride);
  p->scale_out = quant->scale_out;
  p->scale_row_stride = by_column ? 1 : stride;
  p->scale_block_stride = by_column ? stride : 1;
  rn_region *region = &regions->output[regions->outputs++];
  TRY(check_packed("quant.scale_out", quant->scale_out, extent / size, size, region));
  int64_t row_bytes;
  if (!by_column && !__builtin_mul_overflow(stride * size, p->heads, &row_bytes)) {
    /* Scales may lie between the rows of q in one buffer. The dtype is NONE so that they never pass for a tensor. */
    regions->scale = (rn_view){quant->scale_out, p->rows > 1 ? row_bytes : 0, p->heads > 1 ? stride * size : 0,
                               RMSNORM_DTYPE_NONE, (int32_t)size};
    region->view = &regions->scale;
    region->width = length * size;
  }
  return RMSNORM_OK;
}

static rmsnorm_status check_quant(rn_problem *p, const rmsnorm_quant *quant, rn_regions *regions) {
  bool given = quant->granularity == RMSNORM_QUANT_TENSOR;
  if (quant->q.data == NULL) return rn_error(RMSNORM_ERROR_NULL, "quant.q: is NULL, but quant.granularity is not NONE");
  if (given ? quant->scale == NULL : quant->scale_out == NULL)
    return rn_error(RMSNORM_ERROR_NULL, "quant.%s: is NULL, but quant.granularity needs it",
                    given ? "scale" : "scale_out");
  if (given ? quant->scale_out != NULL : quant->scale != NULL)
    return rn_error(RMSNORM_ERROR_COMBINATION, "quant.%s: is given, but this quant.granularity does not use it",
                    given ? "scale_out" : "scale");
  p->quant = quant->granularity;
  p->quant_dtype = quant->q.dtype;
  p->scale_op = quant->scale_op;
  p->e8m0_rounding = quant->e8m0_rounding;
  p->scale_max = bits_of_float(quant->scale_max) == 0 ? FLT_MAX : quant->scale_max;
  p->block_cols = quant->granularity == RMSNORM_QUANT_MX ? 32 : quant->block_cols;
  p->blocks = p->block_cols != 0 ? p->cols / p->block_cols + (p->cols % p->block_cols != 0) : 1;
  TRY(check_output(p, RN_CHECK_CALL, "quant.q", &quant->q, QUANTISED, &p->q, regions));
  if (!given) return check_scale_out(p, quant, regions);
  p->scale_in = quant->scale;
  TRY(check_packed("quant.scale", quant->scale, 1, 4, &regions->input[regions->inputs++]));
  if (p->device == RMSNORM_DEVICE_CPU && !is_positive_finite(quant->scale[0]))
    return rn_error(RMSNORM_ERROR_VALUE, "quant.scale: must be positive and finite, is %g", (double)quant->scale[0]);
  return RMSNORM_OK;
}

rmsnorm_status rn_check_forward(const rmsnorm_forward_args *a, rn_problem *p) {
  TRY(check_struct(a, a != NULL ? a->struct_size : 0, sizeof *a));
  const rmsnorm_numerics *n = &a->numerics;
  memset(p, 0, sizeof *p);
  p->op = RMSNORM_OP_FORWARD;
  p->weight_offset = -0.0f;
  TRY(check_sizes(p, a->rows, a->heads, a->cols, a->groups, a->divisor));
  TRY(check_execution(p, a->parallel, a->threads, a->device, a->impl));
  TRY(check_dtype("x", a->x.dtype, FLOATS_AND_F64));
  p->x.dtype = a->x.dtype;
  TRY(check_eps(a->eps, p));
  TRY(check_numerics(n));
  TRY(check_range("weight_shape", a->weight_shape, RMSNORM_WEIGHT_GROUP));
  if (a->quant.granularity != RMSNORM_QUANT_NONE) TRY(check_quant_values(p, &a->quant));
  if (a->rows == 0) return RMSNORM_OK;

  if (a->x.data == NULL) return rn_error(RMSNORM_ERROR_NULL, "x: is NULL");
  if (a->y.data == NULL && a->quant.granularity == RMSNORM_QUANT_NONE)
    return rn_error(RMSNORM_ERROR_NULL, "y: is NULL, and there is no quant.q either");
  if (a->residual_out.data != NULL && a->residual.data == NULL)
    return rn_error(RMSNORM_ERROR_COMBINATION, "residual_out: is given, but residual is absent");
  TRY(check_gate_pair(a->gate.data, n->gate, "numerics.gate"));

  rn_regions regions;
  regions.inputs = regions.outputs = 0;
  TRY(check_input(p, RN_CHECK_CALL, "x", &a->x, &p->x, &regions));
  if (a->weight != NULL) {
    TRY(check_weight_pointer(p, RN_CHECK_CALL, a->weight, a->weight_dtype, a->weight_shape, &regions));
    TRY(check_weight_offset(p, n->weight_offset));
  }
  if (a->residual.data != NULL) TRY(check_input(p, RN_CHECK_CALL, "residual", &a->residual, &p->residual, &regions));
  if (a->gate.data != NULL) TRY(check_input(p, RN_CHECK_CALL, "gate", &a->gate, &p->gate, &regions));
  if (a->y.data != NULL) TRY(check_output(p, RN_CHECK_CALL, "y", &a->y, floats_of(p), &p->y, &regions));
  if (a->residual_out.data != NULL)
    TRY(check_output(p, RN_CHECK_CALL, "residual_out", &a->residual_out, floats_of(p), &p->residual_out, &regions));
  int64_t statistics = p->rows * p->heads * p->groups;
  if (a->rstd != NULL) {
    p->rstd_out = a->rstd;
    TRY(check_packed("rstd", a->rstd, statistics, dtype_bytes[full_type(p)], &regions.output[regions.outputs++]));
  }
  if (a->sumsq != NULL) {
    p->sumsq_in = a->sumsq;
    TRY(check_packed("sumsq", a->sumsq, statistics, 4, &regions.input[regions.inputs++]));
  }
  if (a->quant.granularity != RMSNORM_QUANT_NONE) TRY(check_quant(p, &a->quant, &regions));

  p->gate_kind = n->gate;
  p->gate_before = n->gate != RMSNORM_GATE_NONE && n->gate_place == RMSNORM_GATE_BEFORE;
  p->round_sum = sum_type(p, n->round_sum, p->residual_out.dtype);
  p->round_rstd = rounding_type(p, n->round_rstd);
  p->round_xhat = rounding_type(p, n->round_xhat);
  p->round_normed = rounding_type(p, n->round_normed);
  /* Where y is all that follows, its own rounding is this one. */
  if (p->round_normed == p->y.dtype && p->quant == RMSNORM_QUANT_NONE &&
      (p->gate_kind == RMSNORM_GATE_NONE || p->gate_before))
    p->round_normed = full_type(p);

  collapse_heads(p, &regions);
  return rn_check_overlaps(p, &regions);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Split statistics. */

static rmsnorm_status check_sum_dtype(const rn_problem *p, int32_t dtype) {
  return dtype == RMSNORM_DTYPE_NONE ? RMSNORM_OK : check_dtype("sum_dtype", dtype, floats_of(p));
}

rmsnorm_status rn_check_stats(const rmsnorm_stats_args *a, rn_problem *p) {
  TRY(check_struct(a, a != NULL ? a->struct_size : 0, sizeof *a));
  memset(p, 0, sizeof *p);
  p->op = RMSNORM_OP_STATS;
  p->weight_offset = -0.0f;
  TRY(check_sizes(p, a->rows, a->heads, a->cols, a->groups, 0));
  TRY(check_execution(p, a->parallel, a->threads, a->device, a->impl));
  if (a->x.dtype == RMSNORM_DTYPE_F64)
    return rn_error(RMSNORM_ERROR_COMBINATION, "x: is f64, but split statistics are float32");
  TRY(check_dtype("x", a->x.dtype, FLOATS));
  p->x.dtype = a->x.dtype;
  if (a->round_sum != RMSNORM_ROUND_NONE && a->round_sum != RMSNORM_ROUND_STORED)
    return rn_error(RMSNORM_ERROR_ENUM, "round_sum: expected NONE (0) or STORED (4), found %" PRId32, a->round_sum);
  TRY(check_sum_dtype(p, a->sum_dtype));
  TRY(check_range("gate_kind", a->gate_kind, RMSNORM_GATE_SIGMOID));
  TRY(check_reserved("args", a->reserved));
  if (a->rows == 0) return RMSNORM_OK;

  if (a->x.data == NULL) return rn_error(RMSNORM_ERROR_NULL, "x: is NULL");
  if (a->sumsq == NULL) return rn_error(RMSNORM_ERROR_NULL, "sumsq: is NULL");
  TRY(check_gate_pair(a->gate.data, a->gate_kind, "gate_kind"));
  rn_regions regions;
  regions.inputs = regions.outputs = 0;
  TRY(check_input(p, RN_CHECK_CALL, "x", &a->x, &p->x, &regions));
  if (a->residual.data != NULL) TRY(check_input(p, RN_CHECK_CALL, "residual", &a->residual, &p->residual, &regions));
  if (a->gate.data != NULL) TRY(check_input(p, RN_CHECK_CALL, "gate", &a->gate, &p->gate, &regions));
  p->sumsq_out = a->sumsq;
  TRY(check_packed("sumsq", a->sumsq, p->rows * p->heads * p->groups, 4, &regions.output[regions.outputs++]));

  p->gate_kind = a->gate_kind;
  p->gate_before = a->gate_kind != RMSNORM_GATE_NONE;
  p->round_sum = sum_type(p, a->round_sum, a->sum_dtype);
  p->round_rstd = p->round_xhat = p->round_normed = full_type(p);
  collapse_heads(p, &regions);
  return rn_check_overlaps(p, &regions);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Backward. */

/* A workspace query may leave the pointers of inputs out; then their types tell which of them there will be. */
static bool is_present(const void *data, int32_t dtype, rn_check_mode mode) {
  return data != NULL || (mode == RN_CHECK_SIZES && dtype != RMSNORM_DTYPE_NONE);
}

static rmsnorm_status check_dweight(rn_problem *p, rn_check_mode mode, const rmsnorm_backward_args *a,
                                    rn_regions *regions) {
  if (!is_present(a->weight, a->weight_dtype, mode))
    return rn_error(RMSNORM_ERROR_COMBINATION, "dweight: is wanted, but weight is absent");
  TRY(check_dtype("dweight", a->dweight_dtype, floats_of(p)));
  bool per_head = a->weight_shape == RMSNORM_WEIGHT_HEADS_COLS, per_group = a->weight_shape == RMSNORM_WEIGHT_GROUP;
  p->dweight = a->dweight;
  p->dweight_dtype = a->dweight_dtype;
  p->dweight_size = dtype_bytes[a->dweight_dtype];
  p->dweight_vectors = per_head ? p->heads : 1;
  p->dweight_cols = per_group ? p->group_cols : p->cols;
  p->dweight_rows = (per_head ? p->rows : p->rows * p->heads) * (per_group ? p->groups : 1);
  if (mode == RN_CHECK_SIZES) return RMSNORM_OK;
  return check_packed("dweight", a->dweight, p->dweight_vectors * p->dweight_cols, p->dweight_size,
                      &regions->output[regions->outputs++]);
}

rmsnorm_status rn_check_backward(const rmsnorm_backward_args *a, rn_check_mode mode, rn_problem *p,
                                 rn_regions *regions) {
  TRY(check_struct(a, a != NULL ? a->struct_size : 0, sizeof *a));
  const rmsnorm_numerics *n = &a->numerics;
  memset(p, 0, sizeof *p);
  p->op = RMSNORM_OP_BACKWARD;
  p->weight_offset = -0.0f;
  regions->inputs = regions->outputs = 0;
  TRY(check_sizes(p, a->rows, a->heads, a->cols, a->groups, a->divisor));
  TRY(check_execution(p, a->parallel, a->threads, a->device, a->impl));
  TRY(check_dtype("x", a->x.dtype, FLOATS_AND_F64));
  p->x.dtype = a->x.dtype;
  TRY(check_eps(a->eps, p));
  TRY(check_numerics(n));
  TRY(check_range("weight_shape", a->weight_shape, RMSNORM_WEIGHT_GROUP));
  TRY(check_sum_dtype(p, a->sum_dtype));
  if (a->dweight != NULL) TRY(check_dweight(p, mode, a, regions));
  if (a->rows == 0) return RMSNORM_OK;

  if (mode == RN_CHECK_CALL) {
    if (a->x.data == NULL) return rn_error(RMSNORM_ERROR_NULL, "x: is NULL");
    if (a->dy.data == NULL) return rn_error(RMSNORM_ERROR_NULL, "dy: is NULL");
    TRY(check_gate_pair(a->gate.data, n->gate, "numerics.gate"));
  }
  if (a->dx.data == NULL && a->dresidual.data == NULL && a->dgate.data == NULL && a->dweight == NULL &&
      a->dot_out == NULL)
    return rn_error(RMSNORM_ERROR_NULL, "dx, dresidual, dgate, dweight, dot_out: all are NULL, nothing is wanted");
  if (a->dgate.data != NULL && n->gate == RMSNORM_GATE_NONE)
    return rn_error(RMSNORM_ERROR_COMBINATION, "dgate: is wanted, but numerics.gate is NONE");

  TRY(check_input(p, mode, "x", &a->x, &p->x, regions));
  TRY(check_input(p, mode, "dy", &a->dy, &p->dy, regions));
  if (is_present(a->weight, a->weight_dtype, mode)) {
    TRY(check_weight_pointer(p, mode, a->weight, a->weight_dtype, a->weight_shape, regions));
    TRY(check_weight_offset(p, n->weight_offset));
  }
  if (is_present(a->residual.data, a->residual.dtype, mode))
    TRY(check_input(p, mode, "residual", &a->residual, &p->residual, regions));
  if (n->gate != RMSNORM_GATE_NONE) TRY(check_input(p, mode, "gate", &a->gate, &p->gate, regions));
  if (is_present(a->dresidual_out.data, a->dresidual_out.dtype, mode))
    TRY(check_input(p, mode, "dresidual_out", &a->dresidual_out, &p->dresidual_out, regions));
  unsigned floats = floats_of(p);
  if (a->dx.data != NULL) TRY(check_output(p, mode, "dx", &a->dx, floats, &p->dx, regions));
  if (a->dresidual.data != NULL) TRY(check_output(p, mode, "dresidual", &a->dresidual, floats, &p->dresidual, regions));
  if (a->dgate.data != NULL) TRY(check_output(p, mode, "dgate", &a->dgate, floats, &p->dgate, regions));

  p->gate_kind = n->gate;
  p->gate_before = n->gate != RMSNORM_GATE_NONE && n->gate_place == RMSNORM_GATE_BEFORE;
  p->round_sum = sum_type(p, n->round_sum, a->sum_dtype);
  /* The gradient is that of the formula without these three. */
  p->round_rstd = p->round_xhat = p->round_normed = full_type(p);
  /* A rounded rstd is not the one of that formula. */
  p->rstd_in = rounding_type(p, n->round_rstd) == full_type(p) ? a->rstd : NULL;
  p->sumsq_in = a->sumsq;
  p->dot_in = a->dot;
  p->dot_out = a->dot_out;
  if (mode == RN_CHECK_CALL) {
    int64_t statistics = p->rows * p->heads * p->groups;
    if (a->rstd != NULL)
      TRY(check_packed("rstd", a->rstd, statistics, dtype_bytes[full_type(p)], &regions->input[regions->inputs++]));
    if (a->sumsq != NULL) TRY(check_packed("sumsq", a->sumsq, statistics, 4, &regions->input[regions->inputs++]));
    if (a->dot != NULL) TRY(check_packed("dot", a->dot, statistics, 4, &regions->input[regions->inputs++]));
    if (a->dot_out != NULL)
      TRY(check_packed("dot_out", a->dot_out, statistics, 4, &regions->output[regions->outputs++]));
  }
  collapse_heads(p, regions);
  return mode == RN_CHECK_CALL ? rn_check_overlaps(p, regions) : RMSNORM_OK;
}
