/* values.c - what each parameter of a kernel is called, and where its value comes from.
 *
 * Kernels say what they want by name, so a kernel with a parameter more, or in another order, needs no change here: the
 * order is the manifest's.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "triton.h"

enum source_kind {
  OF_VIEW, /* address, row stride, head stride, type: four in a row */
  OF_PROBLEM,
  OF_PLAN
};

/* Where the value lies, and how it is stored there. */
static const struct source {
  uint8_t from, stored;
  uint16_t place;
  uint8_t part; /* OF_VIEW: which of the four */
} sources[RN_TRITON_NAMES] = {
#define FOUR(view)                                                                                                     \
  {OF_VIEW, RN_TRITON_POINTER, offsetof(rn_problem, view), 0},                                                         \
      {OF_VIEW, RN_TRITON_I64, offsetof(rn_problem, view), 1},                                                         \
      {OF_VIEW, RN_TRITON_I64, offsetof(rn_problem, view), 2},                                                         \
      {OF_VIEW, RN_TRITON_I64, offsetof(rn_problem, view), 3},
#define IN_PROBLEM(name, kind, member) {OF_PROBLEM, RN_TRITON_##kind, offsetof(rn_problem, member), 0},
#define IN_PLAN(name, kind, member)    {OF_PLAN, RN_TRITON_##kind, offsetof(rn_triton_extra, member), 0},
    RN_TRITON_VIEWS(FOUR) RN_TRITON_OF_PROBLEM(IN_PROBLEM) RN_TRITON_OF_PLAN(IN_PLAN)};

static int64_t number_of_view(const rn_view *view, int part, int64_t heads) {
  if (view->data == NULL) return 0;
  switch (part) {
  case 1:
    return view->row_bytes / view->size;
  case 2:
    return heads == 1 ? 0 : view->head_bytes / view->size;
  default:
    return view->dtype;
  }
}

/* The value as it is, before it takes the width of the parameter. */
static rn_triton_value look_up(int name, const rn_problem *p, const rn_triton_extra *extra) {
  const struct source *s = &sources[name];
  const char *at = (s->from == OF_PLAN ? (const char *)extra : (const char *)p) + s->place;
  rn_triton_value value = {0};
  if (s->from == OF_VIEW) {
    const rn_view *view = (const rn_view *)(const void *)at;
    if (s->part == 0)
      value.pointer = view->data;
    else
      value.i64 = number_of_view(view, s->part, p->heads);
    return value;
  }
  switch (s->stored) {
  case RN_TRITON_POINTER:
    memcpy(&value.pointer, at, sizeof value.pointer);
    break;
  case RN_TRITON_I64:
    memcpy(&value.i64, at, sizeof value.i64);
    break;
  case RN_TRITON_I32: {
    int32_t narrow;
    memcpy(&narrow, at, sizeof narrow);
    value.i64 = narrow;
    break;
  }
  default:
    memcpy(&value.f32, at, sizeof value.f32);
  }
  return value;
}

rn_triton_value rn_triton_value_of(const rn_triton_parameter *parameter, const rn_problem *p,
                                   const rn_triton_extra *extra) {
  const rn_triton_value found = look_up(parameter->name, p, extra);
  rn_triton_value value = {0};
  if (parameter->kind == RN_TRITON_I32)
    value.i32 = (int32_t)found.i64;
  else
    value = found;
  return value;
}

bool rn_triton_fits(const rn_triton_kernel *kernel, const rn_problem *p, const rn_triton_extra *extra) {
  for (int i = 0; i < kernel->count; i++) {
    const rn_triton_parameter *parameter = &kernel->parameters[i];
    if (parameter->kind == RN_TRITON_F32 || (parameter->kind != RN_TRITON_I32 && parameter->multiple < 2)) continue;
    const rn_triton_value value = look_up(parameter->name, p, extra);
    if (parameter->kind == RN_TRITON_I32 && (value.i64 > INT32_MAX || value.i64 < INT32_MIN)) return false;
    if (parameter->multiple > 1 && value.i64 % parameter->multiple != 0) return false;
  }
  return true;
}

int rn_triton_values(const rn_triton_kernel *kernel, const rn_problem *p, const rn_triton_extra *extra,
                     rn_triton_value *values) {
  int count = 0;
  for (int i = 0; i < kernel->count; i++) values[count++] = rn_triton_value_of(&kernel->parameters[i], p, extra);
  for (int i = 0; i < kernel->hidden; i++) values[count++] = (rn_triton_value){0};
  return count;
}
