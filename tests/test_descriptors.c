/* test_descriptors.c - random argument structs, most of them wrong somewhere: never a crash, never a byte written by a
 * refused call, and never a byte outside the outputs by one that succeeds.
 *
 * Every case is first only asked about (rmsnorm_impl_for follows no tensor). It is run when it was refused, or when
 * every byte it names lies in the arena, which this program works out from the descriptors by itself.
 *
 *   test_descriptors [seed [cases]]
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "rmsnorm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA = 16384, WORK = 1 << 20 };
static _Alignas(64) unsigned char arena[ARENA], before[ARENA], allowed[ARENA];
static _Alignas(64) unsigned char work[WORK];

static uint64_t random_state;

/* splitmix64 (S. Vigna, public domain) */
static uint64_t random64(void) {
  uint64_t z = random_state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static int below(int n) {
  return (int)(random64() % (uint64_t)n);
}
/* True once in n. */
static int rarely(int n) {
  return below(n) == 0;
}

static int64_t wild(void) {
  static const int64_t values[] = {0,         -1,        1,         2,         INT64_MAX,    INT64_MIN,
                                   INT32_MAX, INT32_MIN, 1LL << 40, 1LL << 61, -(1LL << 61), INT64_MAX / 8};
  return rarely(3) ? (int64_t)random64() : values[below((int)(sizeof values / sizeof values[0]))];
}

typedef struct sizes {
  int64_t rows, heads, cols, groups;
} sizes;

static int64_t size_of_dimension(int most) {
  return rarely(60) ? wild() : 1 + below(most);
}

static int any_dtype(int x_dtype) {
  if (rarely(60)) return below(16) - 2;
  if (x_dtype == RMSNORM_DTYPE_F64) return 1 + below(4);
  return 1 + below(3);
}

/* Mostly a place of its own for slot i, sometimes anywhere at all. */
static void *pointer(int i) {
  if (rarely(40)) return NULL;
  if (rarely(25)) return arena + below(ARENA);
  if (rarely(25)) return arena + below(14) * 1024;
  return arena + i * 1024 + 8 * below(8);
}

static void strides(const sizes *s, int64_t *row, int64_t *head, int64_t *col) {
  *head = s->cols;
  *row = (int64_t)((uint64_t)s->cols * (uint64_t)s->heads);
  if (rarely(4)) *row = (int64_t)((uint64_t)*row + (uint64_t)below(5));
  if (rarely(12)) *row = 0;
  if (rarely(12)) *row = (int64_t)(0 - (uint64_t)*row);
  if (rarely(12)) {
    *row = s->cols;
    *head = (int64_t)((uint64_t)s->cols * (uint64_t)s->rows);
  }
  if (rarely(40)) *row = wild();
  if (rarely(40)) *head = wild();
  *col = rarely(60) ? wild() : 1;
}

static rmsnorm_input_tensor input(int i, const sizes *s, int x_dtype) {
  int64_t row, head, col;
  strides(s, &row, &head, &col);
  rmsnorm_input_tensor t = rmsnorm_input_heads(pointer(i), any_dtype(x_dtype), row, head);
  t.col_stride = col;
  t.reserved = rarely(100);
  return t;
}

static rmsnorm_output_tensor output(int i, const sizes *s, int x_dtype) {
  rmsnorm_input_tensor in = input(i, s, x_dtype);
  rmsnorm_output_tensor t = rmsnorm_output_heads(pointer(i), in.dtype, in.row_stride, in.head_stride);
  t.col_stride = in.col_stride;
  return t;
}

static rmsnorm_output_tensor same_as(rmsnorm_input_tensor in) {
  return rmsnorm_output_heads((void *)(uintptr_t)in.data, in.dtype, in.row_stride, in.head_stride);
}

/* ------------------------------------------------------------------------------------------------------------------
 * What a case may touch. Sizes are small by now (the case was accepted and inside_arena bounds them). */

/* written_twice: two outputs, or two rows of one, share a byte. */
static int inside_arena, written_twice;

static void touch(const void *data, int64_t offset_bytes, int64_t bytes, int writes) {
  int64_t start = (int64_t)((const unsigned char *)data - arena);
  if (offset_bytes > ARENA || offset_bytes < -ARENA || bytes > ARENA || start + offset_bytes < 0 ||
      start + offset_bytes + bytes > ARENA) {
    inside_arena = 0;
    return;
  }
  for (int64_t i = start + offset_bytes; writes && i < start + offset_bytes + bytes; i++) {
    written_twice |= allowed[i];
    allowed[i] = 1;
  }
}

static void touch_tensor(const sizes *s, const void *data, int64_t row, int64_t head, int dtype, int writes) {
  if (data == NULL) return;
  int64_t size = (int64_t)rmsnorm_dtype_bytes(dtype);
  for (int64_t r = 0; r < s->rows && inside_arena; r++)
    for (int64_t h = 0; h < s->heads && inside_arena; h++) {
      int64_t offset, part;
      if (__builtin_mul_overflow(r, row, &offset) || __builtin_mul_overflow(h, head, &part) ||
          __builtin_add_overflow(offset, part, &offset) || __builtin_mul_overflow(offset, size, &offset))
        inside_arena = 0;
      else
        touch(data, offset, s->cols * size, writes);
    }
}

static void touch_input(const sizes *s, const rmsnorm_input_tensor *t) {
  touch_tensor(s, t->data, t->row_stride, t->head_stride, t->dtype, 0);
}
static void touch_output(const sizes *s, const rmsnorm_output_tensor *t) {
  touch_tensor(s, t->data, t->row_stride, t->head_stride, t->dtype, 1);
}
static void touch_packed(const void *data, int64_t count, int64_t size, int writes) {
  if (data != NULL) touch(data, 0, count * size, writes);
}

static int64_t weight_count(const sizes *s, int shape) {
  return shape == RMSNORM_WEIGHT_HEADS_COLS ? s->heads * s->cols
                                            : (shape == RMSNORM_WEIGHT_GROUP ? s->cols / s->groups : s->cols);
}

static int is_small(const sizes *s) {
  return s->rows >= 0 && s->rows < 100 && s->heads > 0 && s->heads < 100 && s->cols > 0 && s->cols < 4096 &&
         s->groups > 0 && s->groups < 4096;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void run_in_turn(void *context, int64_t tasks, void (*task)(void *, int64_t), void *task_context) {
  (void)context;
  for (int64_t i = 0; i < tasks; i++) task(task_context, i);
}
static const rmsnorm_parallel parallels[] = {{NULL, 3, 0, run_in_turn}, {NULL, 0, 0, run_in_turn}, {NULL, 2, 0, NULL}};

static const rmsnorm_parallel *any_parallel(void) {
  if (rarely(3)) return &parallels[0];
  return rarely(60) ? &parallels[1 + below(2)] : NULL;
}

static const char *any_impl(void) {
  if (rarely(60)) return "unheard-of";
  return rarely(4) ? "portable" : NULL;
}

static int any_switch(int last) {
  return rarely(60) ? below(12) - 3 : below(last + 1);
}

static rmsnorm_numerics any_numerics(void) {
  rmsnorm_numerics n;
  n.weight_offset = rarely(2) ? 0.0f : 1.0f;
  n.round_sum = rarely(2) ? 0 : (rarely(40) ? below(9) : RMSNORM_ROUND_STORED);
  n.round_rstd = any_switch(RMSNORM_ROUND_X);
  n.round_xhat = any_switch(RMSNORM_ROUND_PROMOTED);
  n.round_normed = any_switch(RMSNORM_ROUND_PROMOTED);
  n.gate = rarely(2) ? any_switch(RMSNORM_GATE_SIGMOID) : RMSNORM_GATE_NONE;
  n.gate_place = any_switch(RMSNORM_GATE_BEFORE);
  return n;
}

static sizes any_sizes(void) {
  sizes s = {rarely(30) ? 0 : size_of_dimension(4), size_of_dimension(3), size_of_dimension(20), 1};
  if (rarely(3) && s.cols > 0 && s.cols < 4096) {
    s.groups = 1 + below(3);
    s.cols *= s.groups;
  }
  if (rarely(60)) s.groups = wild();
  return s;
}

static double any_eps(void) {
  return rarely(60) ? (rarely(2) ? -1.0 : 1e300) : 1e-6;
}

typedef union any_args {
  rmsnorm_forward_args forward;
  rmsnorm_stats_args stats;
  rmsnorm_backward_args backward;
} any_args;

static void make_forward(rmsnorm_forward_args *a, const sizes *s) {
  *a = rmsnorm_forward_args_init();
  a->rows = s->rows, a->heads = s->heads, a->cols = s->cols, a->groups = s->groups, a->eps = any_eps();
  a->divisor = rarely(10) ? wild() : 0;
  a->numerics = any_numerics();
  int x_dtype = any_dtype(RMSNORM_DTYPE_F64);
  a->x = input(0, s, x_dtype);
  a->x.dtype = x_dtype;
  if (rarely(2)) a->residual = input(1, s, x_dtype);
  if (a->numerics.gate != RMSNORM_GATE_NONE || rarely(60)) a->gate = input(2, s, x_dtype);
  if (!rarely(5)) {
    a->weight = pointer(3);
    a->weight_dtype = any_dtype(x_dtype);
    a->weight_shape = any_switch(RMSNORM_WEIGHT_GROUP);
  }
  a->y = rarely(4) ? same_as(rarely(2) ? a->x : a->residual) : output(4, s, x_dtype);
  if (a->residual.data != NULL && rarely(2))
    a->residual_out = rarely(4) ? same_as(rarely(2) ? a->x : a->residual) : output(5, s, x_dtype);
  if (rarely(3)) a->rstd = pointer(6);
  if (rarely(8)) a->sumsq = pointer(7);
  if (rarely(3)) {
    rmsnorm_quant *q = &a->quant;
    q->granularity = any_switch(RMSNORM_QUANT_MX);
    q->block_cols = q->granularity == RMSNORM_QUANT_BLOCK ? 32 << below(3) : 0;
    q->scale_op = any_switch(RMSNORM_SCALE_RECIPROCAL);
    q->scale_layout = any_switch(RMSNORM_SCALE_COL_MAJOR);
    q->e8m0_rounding = any_switch(RMSNORM_E8M0_CEIL);
    if (q->granularity == RMSNORM_QUANT_TENSOR)
      q->scale = pointer(8);
    else
      q->scale_out = pointer(8);
    q->scale_stride = rarely(3) ? (rarely(4) ? wild() : 1 + below(30)) : 0;
    q->q = output(9, s, x_dtype);
    q->q.dtype = rarely(30) ? below(14) : RMSNORM_DTYPE_FP8_E4M3 + below(3);
  }
  a->parallel = any_parallel();
  a->threads = rarely(40) ? below(9) - 4 : below(3);
  a->device = rarely(60) ? below(6) - 1 : 0;
  a->impl = any_impl();
  if (rarely(100)) a->struct_size = (size_t)below(1000);
}

static void touch_forward(const rmsnorm_forward_args *a, const sizes *s) {
  touch_input(s, &a->x);
  touch_input(s, &a->residual);
  touch_input(s, &a->gate);
  touch_packed(a->weight, weight_count(s, a->weight_shape), (int64_t)rmsnorm_dtype_bytes(a->weight_dtype), 0);
  touch_output(s, &a->y);
  touch_output(s, &a->residual_out);
  int64_t statistics = s->rows * s->heads * s->groups;
  touch_packed(a->rstd, statistics, a->x.dtype == RMSNORM_DTYPE_F64 ? 8 : 4, 1);
  touch_packed(a->sumsq, statistics, 4, 0);
  const rmsnorm_quant *q = &a->quant;
  if (q->granularity == RMSNORM_QUANT_NONE) return;
  touch_output(s, &q->q);
  int64_t rows = s->rows * s->heads, size = q->granularity == RMSNORM_QUANT_MX ? 1 : 4;
  int64_t block = q->granularity == RMSNORM_QUANT_MX ? 32 : q->block_cols;
  int64_t blocks = block != 0 ? (s->cols + block - 1) / block : 1;
  int by_column = block != 0 && q->scale_layout == RMSNORM_SCALE_COL_MAJOR;
  int64_t lines = by_column ? blocks : rows, length = by_column ? rows : blocks;
  int64_t stride = block != 0 && q->scale_stride != 0 ? q->scale_stride : length;
  if (q->granularity == RMSNORM_QUANT_TENSOR)
    touch_packed(q->scale, 1, 4, 0);
  else
    for (int64_t i = 0; i < lines && inside_arena; i++) {
      int64_t offset;
      if (__builtin_mul_overflow(i * size, stride, &offset))
        inside_arena = 0;
      else
        touch(q->scale_out, offset, length * size, 1);
    }
}

static void make_stats(rmsnorm_stats_args *a, const sizes *s) {
  *a = rmsnorm_stats_args_init();
  a->rows = s->rows, a->heads = s->heads, a->cols = s->cols, a->groups = s->groups;
  int x_dtype = any_dtype(0);
  a->x = input(0, s, x_dtype);
  if (rarely(2)) a->residual = input(1, s, x_dtype);
  a->round_sum = rarely(2) ? RMSNORM_ROUND_STORED : 0;
  a->sum_dtype = rarely(2) ? any_dtype(x_dtype) : 0;
  a->gate_kind = rarely(3) ? any_switch(RMSNORM_GATE_SIGMOID) : 0;
  if (a->gate_kind != 0) a->gate = input(2, s, x_dtype);
  a->sumsq = pointer(3);
  a->parallel = any_parallel();
  a->threads = below(3);
  a->impl = any_impl();
}

static void touch_stats(const rmsnorm_stats_args *a, const sizes *s) {
  touch_input(s, &a->x);
  touch_input(s, &a->residual);
  touch_input(s, &a->gate);
  touch_packed(a->sumsq, s->rows * s->heads * s->groups, 4, 1);
}

static void make_backward(rmsnorm_backward_args *a, const sizes *s) {
  *a = rmsnorm_backward_args_init();
  a->rows = s->rows, a->heads = s->heads, a->cols = s->cols, a->groups = s->groups, a->eps = any_eps();
  a->numerics = any_numerics();
  int x_dtype = any_dtype(RMSNORM_DTYPE_F64);
  a->x = input(0, s, x_dtype);
  a->x.dtype = x_dtype;
  a->dy = input(1, s, x_dtype);
  if (rarely(2)) a->residual = input(2, s, x_dtype);
  if (a->numerics.gate != RMSNORM_GATE_NONE) a->gate = input(3, s, x_dtype);
  if (rarely(2)) a->dresidual_out = input(4, s, x_dtype);
  if (!rarely(5)) {
    a->weight = pointer(5);
    a->weight_dtype = any_dtype(x_dtype);
    a->weight_shape = any_switch(RMSNORM_WEIGHT_GROUP);
    if (rarely(2)) {
      a->dweight = pointer(6);
      a->dweight_dtype = any_dtype(x_dtype);
    }
  }
  a->sum_dtype = rarely(2) ? any_dtype(x_dtype) : 0;
  if (rarely(4)) a->rstd = pointer(7);
  if (rarely(8)) a->sumsq = pointer(8);
  if (rarely(8)) a->dot = pointer(9);
  if (rarely(4)) a->dot_out = pointer(10);
  if (!rarely(4)) a->dx = rarely(3) ? same_as(rarely(2) ? a->dy : a->x) : output(11, s, x_dtype);
  if (rarely(3)) a->dresidual = rarely(3) ? same_as(a->dresidual_out) : output(12, s, x_dtype);
  if (rarely(3)) a->dgate = rarely(3) ? same_as(a->gate) : output(13, s, x_dtype);
  a->workspace = rarely(40) ? (void *)(work + below(70)) : work;
  a->workspace_bytes = rarely(40) ? (size_t)below(500) : WORK;
  a->parallel = any_parallel();
  a->threads = below(3);
  a->impl = any_impl();
}

static void touch_backward(const rmsnorm_backward_args *a, const sizes *s) {
  const rmsnorm_input_tensor *inputs[] = {&a->x, &a->dy, &a->residual, &a->gate, &a->dresidual_out};
  const rmsnorm_output_tensor *outputs[] = {&a->dx, &a->dresidual, &a->dgate};
  for (int i = 0; i < 5; i++) touch_input(s, inputs[i]);
  for (int i = 0; i < 3; i++) touch_output(s, outputs[i]);
  int64_t count = weight_count(s, a->weight_shape), statistics = s->rows * s->heads * s->groups;
  touch_packed(a->weight, count, (int64_t)rmsnorm_dtype_bytes(a->weight_dtype), 0);
  touch_packed(a->dweight, count, (int64_t)rmsnorm_dtype_bytes(a->dweight_dtype), 1);
  touch_packed(a->rstd, statistics, a->x.dtype == RMSNORM_DTYPE_F64 ? 8 : 4, 0);
  touch_packed(a->sumsq, statistics, 4, 0);
  touch_packed(a->dot, statistics, 4, 0);
  touch_packed(a->dot_out, statistics, 4, 1);
}

static rmsnorm_status call(int op, const any_args *args) {
  switch (op) {
  case RMSNORM_OP_FORWARD:
    return rmsnorm_forward(&args->forward, NULL);
  case RMSNORM_OP_STATS:
    return rmsnorm_stats(&args->stats, NULL);
  default:
    return rmsnorm_backward(&args->backward, NULL);
  }
}

static int same_but_allowed(void) {
  if (memcmp(arena, before, ARENA) == 0) return 1;
  for (int i = 0; i < ARENA; i++)
    if (arena[i] != before[i] && !allowed[i]) return 0;
  return 1;
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 20250101;
  long cases = argc > 2 ? strtol(argv[2], NULL, 0) : 100000;
  long counts[64] = {0}, ran = 0;
  printf("test_descriptors: seed %" PRIu64 ", %ld cases\n", seed, cases);
  for (long i = 0; i < cases; i++) {
    random_state = seed + (uint64_t)i * 0x632be59bd9b4e019u;
    for (int k = 0; k < ARENA; k += 8) {
      uint64_t bits = random64() & 0x3fff3fff3fff3fffu; /* positive and finite in every type */
      memcpy(arena + k, &bits, 8);
    }
    memcpy(before, arena, ARENA);
    memset(allowed, 0, ARENA);
    int op = below(3);
    sizes s = any_sizes();
    any_args args;
    memset(&args, 0, sizeof args);
    if (op == RMSNORM_OP_FORWARD)
      make_forward(&args.forward, &s);
    else if (op == RMSNORM_OP_STATS)
      make_stats(&args.stats, &s);
    else
      make_backward(&args.backward, &s);

    const char *name = NULL;
    char text[2048];
    size_t bytes = 0;
    rmsnorm_status asked = rmsnorm_impl_for(op, &args, &name);
    rmsnorm_status explained = rmsnorm_explain(op, &args, text, sizeof text);
    if (op == RMSNORM_OP_BACKWARD) (void)rmsnorm_backward_workspace_bytes(&args.backward, &bytes);
    rmsnorm_status found = asked;
    inside_arena = 1;
    written_twice = 0;
    if (asked == RMSNORM_OK && s.rows > 0) {
      if (!is_small(&s))
        inside_arena = 0;
      else if (op == RMSNORM_OP_FORWARD)
        touch_forward(&args.forward, &s);
      else if (op == RMSNORM_OP_STATS)
        touch_stats(&args.stats, &s);
      else
        touch_backward(&args.backward, &s);
    } else if (s.rows == 0 && op == RMSNORM_OP_BACKWARD && args.backward.dweight != NULL) {
      /* The gradient of no rows is written though nothing is selected. */
      if (is_small(&s))
        touch_packed(args.backward.dweight, weight_count(&s, args.backward.weight_shape),
                     (int64_t)rmsnorm_dtype_bytes(args.backward.dweight_dtype), 1);
      else
        inside_arena = 0;
    }
    if (inside_arena) {
      found = call(op, &args);
      ran += found == RMSNORM_OK;
      if (found != RMSNORM_OK) memset(allowed, 0, ARENA);
    }
    const char *wrong = NULL;
    if (explained != asked) wrong = "rmsnorm_explain and rmsnorm_impl_for disagree";
    /* With no rows nothing is selected, and a workspace is looked at by the call alone. */
    else if (found != asked && s.rows > 0 && !(op == RMSNORM_OP_BACKWARD && found == RMSNORM_ERROR_WORKSPACE))
      wrong = "the call and rmsnorm_impl_for disagree";
    else if (found != RMSNORM_OK && (rmsnorm_last_error()[0] == 0 || found < 10))
      wrong = "a refusal without a reason";
    else if (found == RMSNORM_OK && written_twice)
      wrong = "outputs that overlap were taken";
    else if (!same_but_allowed())
      wrong = found == RMSNORM_OK ? "bytes outside the outputs changed" : "a refused call wrote";
    if (wrong != NULL) {
      printf("case %ld, op %d, status %d (%s): %s\n%s", i, op, found, rmsnorm_last_error(), wrong, text);
      return EXIT_FAILURE;
    }
    counts[found < 64 ? found : 63]++;
  }
  for (int i = 0; i < 64; i++)
    if (counts[i] > 0) printf("%8ld  %s\n", counts[i], rmsnorm_status_string(i));
  printf("%8ld  ran\n", ran);
  /* A generator that is refused nearly always, or never in some way, tests nothing. */
  static const int wanted[] = {RMSNORM_ERROR_NULL,      RMSNORM_ERROR_STRUCT_SIZE, RMSNORM_ERROR_SIZE,
                               RMSNORM_ERROR_STRIDE,    RMSNORM_ERROR_COL_STRIDE,  RMSNORM_ERROR_ALIGNMENT,
                               RMSNORM_ERROR_OVERLAP,   RMSNORM_ERROR_ENUM,        RMSNORM_ERROR_VALUE,
                               RMSNORM_ERROR_WORKSPACE, RMSNORM_ERROR_COMBINATION, RMSNORM_ERROR_UNKNOWN_IMPL};
  int missing = 0;
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) missing += counts[wanted[i]] == 0;
  if (cases >= 10000 && (missing > 0 || ran < cases / 20)) {
    printf("the cases are not varied enough: %d kinds of refusal never came up\n", missing);
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
