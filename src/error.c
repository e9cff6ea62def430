/* error.c - the status of a refused call in words: one line per status, one sentence per refusal.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

/* Long enough for the longest sentence with all its numbers; longer ones (a forced name of the caller's) are cut. */
static _Thread_local char last_error[512];

rmsnorm_status rn_error(rmsnorm_status status, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(last_error, sizeof last_error, format, list);
  va_end(list);
  return status;
}

const char *rmsnorm_last_error(void) {
  return last_error;
}

const char *rmsnorm_status_string(int status) {
  switch (status) {
  case RMSNORM_OK:
    return "RMSNORM_OK: success";
  case RMSNORM_ERROR_NULL:
    return "RMSNORM_ERROR_NULL: a pointer that is needed is NULL";
  case RMSNORM_ERROR_STRUCT_SIZE:
    return "RMSNORM_ERROR_STRUCT_SIZE: struct_size is not that of this library's version; use the initialiser";
  case RMSNORM_ERROR_SIZE:
    return "RMSNORM_ERROR_SIZE: a size or count is out of range, or a product overflows";
  case RMSNORM_ERROR_STRIDE:
    return "RMSNORM_ERROR_STRIDE: rows of an output overlap each other, or a stride overflows";
  case RMSNORM_ERROR_COL_STRIDE:
    return "RMSNORM_ERROR_COL_STRIDE: the last dimension does not have stride 1";
  case RMSNORM_ERROR_ALIGNMENT:
    return "RMSNORM_ERROR_ALIGNMENT: a pointer is not aligned to its element";
  case RMSNORM_ERROR_OVERLAP:
    return "RMSNORM_ERROR_OVERLAP: an output overlaps another buffer in a way that is not allowed";
  case RMSNORM_ERROR_ENUM:
    return "RMSNORM_ERROR_ENUM: an unknown type, rounding, gate, format, device or preset";
  case RMSNORM_ERROR_VALUE:
    return "RMSNORM_ERROR_VALUE: a number is negative, NaN or infinite where that has no meaning";
  case RMSNORM_ERROR_WORKSPACE:
    return "RMSNORM_ERROR_WORKSPACE: the workspace is NULL, misaligned or too small";
  case RMSNORM_ERROR_COMBINATION:
    return "RMSNORM_ERROR_COMBINATION: two arguments exclude each other, or one needs another";
  case RMSNORM_ERROR_UNSUPPORTED:
    return "RMSNORM_ERROR_UNSUPPORTED: legal, but no implementation here, or not the one forced, takes it";
  case RMSNORM_ERROR_UNKNOWN_IMPL:
    return "RMSNORM_ERROR_UNKNOWN_IMPL: this build has no implementation of that name";
  case RMSNORM_ERROR_DEVICE:
    return "RMSNORM_ERROR_DEVICE: the runtime of a device failed";
  case RMSNORM_ERROR_BUFFER:
    return "RMSNORM_ERROR_BUFFER: the text buffer is too small";
  default:
    return "unknown status";
  }
}
