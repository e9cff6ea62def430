/* check_buffer.c - the checks of one buffer: its type, its strides, its place in memory; and what can be simplified
 * when all of them are known.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "check_parts.h"

/* ------------------------------------------------------------------------------------------------------------------
 * Types. */

const uint8_t rn_dtype_bytes[] = {
    [RMSNORM_DTYPE_F32] = 4,      [RMSNORM_DTYPE_F16] = 2,      [RMSNORM_DTYPE_BF16] = 2, [RMSNORM_DTYPE_F64] = 8,
    [RMSNORM_DTYPE_FP8_E4M3] = 1, [RMSNORM_DTYPE_FP8_E5M2] = 1, [RMSNORM_DTYPE_INT8] = 1, [RMSNORM_DTYPE_E8M0] = 1};

static const char *const dtype_names[] = {
    [RMSNORM_DTYPE_F32] = "f32",   [RMSNORM_DTYPE_F16] = "f16",           [RMSNORM_DTYPE_BF16] = "bf16",
    [RMSNORM_DTYPE_F64] = "f64",   [RMSNORM_DTYPE_FP8_E4M3] = "fp8_e4m3", [RMSNORM_DTYPE_FP8_E5M2] = "fp8_e5m2",
    [RMSNORM_DTYPE_INT8] = "int8", [RMSNORM_DTYPE_E8M0] = "e8m0"};

enum { DTYPES = sizeof rn_dtype_bytes };

size_t rmsnorm_dtype_bytes(int dtype) {
  return dtype >= 0 && dtype < DTYPES ? rn_dtype_bytes[dtype] : 0;
}

const char *rmsnorm_dtype_name(int dtype) {
  return dtype >= 0 && dtype < DTYPES && dtype_names[dtype] != NULL ? dtype_names[dtype] : "?";
}

rmsnorm_status rn_refuse_dtype(const char *name, int32_t dtype, unsigned types) {
  if (dtype == RMSNORM_DTYPE_F64 && types == FLOATS)
    return rn_error(RMSNORM_ERROR_COMBINATION, "%s: f64 needs an x in f64", name);
  return rn_error(RMSNORM_ERROR_ENUM, "%s: expected %s, found dtype %" PRId32 " (%s)", name,
                  types == QUANTISED ? "fp8_e4m3, fp8_e5m2 or int8"
                                     : (types == FLOATS ? "f32, f16 or bf16" : "f32, f16, bf16 or f64"),
                  dtype, rmsnorm_dtype_name(dtype));
}

/* ------------------------------------------------------------------------------------------------------------------
 * Buffers. */

/* Stands for inputs that a workspace query need not set. Never read. */
const char rn_unset_input[64];

static rmsnorm_status check_alignment(const char *name, const void *data, int64_t size) {
  if (((uintptr_t)data & (uintptr_t)(size - 1)) == 0) return RMSNORM_OK;
  return rn_error(RMSNORM_ERROR_ALIGNMENT, "%s: %p is not aligned to its element of %" PRId64 " bytes", name, data,
                  size);
}

rmsnorm_status rn_refuse_packed(const char *name, const void *data, uint64_t bytes, int64_t size) {
  TRY(check_alignment(name, data, size));
  return rn_error(RMSNORM_ERROR_SIZE, "%s: %" PRIu64 " bytes from %p on pass the end of memory", name, bytes, data);
}

/* A strided tensor; col_stride and dtype have been looked at. Makes its view and its region. */
static inline rmsnorm_status check_layout(const rn_problem *p, const char *name, const void *data, int64_t row_stride,
                                          int64_t head_stride, int32_t dtype, rn_view *view, rn_region *region) {
  int64_t size = rn_dtype_bytes[dtype];
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

/* Some address in the middle of memory, around which the strides of a workspace query have to fit. */
static const void *anywhere(void) {
  return (const void *)(UINTPTR_MAX / 2 + 1);
}

rmsnorm_status rn_check_input(const rn_problem *p, rn_check_mode mode, const char *name,
                              const rmsnorm_input_tensor *tensor, rn_view *view, rn_regions *regions) {
  const void *data = mode == RN_CHECK_CALL ? tensor->data : anywhere();
  TRY(check_dtype(name, tensor->dtype, floats_of(p)));
  TRY(check_col_stride(name, tensor->col_stride));
  TRY(check_reserved(name, tensor->reserved));
  TRY(check_alignment(name, data, rn_dtype_bytes[tensor->dtype]));
  TRY(check_layout(p, name, data, tensor->row_stride, tensor->head_stride, tensor->dtype, view,
                   &regions->input[regions->inputs++]));
  if (mode == RN_CHECK_SIZES) view->data = (char *)(uintptr_t)rn_unset_input;
  return RMSNORM_OK;
}

static uint64_t magnitude(int64_t value) {
  return value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
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

rmsnorm_status rn_check_output(const rn_problem *p, rn_check_mode mode, const char *name,
                               const rmsnorm_output_tensor *tensor, unsigned types, rn_view *view,
                               rn_regions *regions) {
  TRY(check_dtype(name, tensor->dtype, types));
  TRY(check_col_stride(name, tensor->col_stride));
  TRY(check_reserved(name, tensor->reserved));
  const void *data = mode == RN_CHECK_CALL ? tensor->data : anywhere();
  TRY(check_alignment(name, data, rn_dtype_bytes[tensor->dtype]));
  TRY(check_layout(p, name, data, tensor->row_stride, tensor->head_stride, tensor->dtype, view,
                   &regions->output[regions->outputs++]));
  view->data = tensor->data;
  return check_rows_apart(p, view, name);
}

/* (rows, heads) become one dimension where every present tensor steps from the last head of a row to the first of the
 * next as it does between heads, and the weight does not tell heads apart. */
void rn_collapse_heads(rn_problem *p, rn_regions *regions) {
  if (p->weight_head_bytes != 0) return;
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
  p->live_factor = p->heads;
  p->heads = 1;
}
