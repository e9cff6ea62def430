/* test_triton_plan.c - every plan for every known GPU is one that its driver takes and that does the whole problem, or
 * there is none for a reason; plans are pure functions; parameters have the values of the call.
 *
 * The table of kernels is that of triton_fixture.py, which no Triton is needed for; where the build has kernels, the
 * tests of random problems run on its own table, too. Nothing is run: no address is real.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "random_problem.h"
#include "triton/triton.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* NVIDIA: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". AMD: the ISA documents and
 * ROCm's table of hardware (compute units, wave size, LDS). */
static const struct gpu {
  const char *name;
  rn_triton_device facts;
} gpus[] = {{"A100", {RMSNORM_DEVICE_CUDA, 0, 80, 32, 108, 166912}},
            {"A10", {RMSNORM_DEVICE_CUDA, 1, 86, 32, 72, 101376}},
            {"L4", {RMSNORM_DEVICE_CUDA, 0, 89, 32, 58, 101376}},
            {"H100 PCIe", {RMSNORM_DEVICE_CUDA, 0, 90, 32, 114, 232448}},
            {"H200", {RMSNORM_DEVICE_CUDA, 7, 90, 32, 132, 232448}},
            {"B200", {RMSNORM_DEVICE_CUDA, 0, 100, 32, 148, 232448}},
            {"B300", {RMSNORM_DEVICE_CUDA, 0, 103, 32, 148, 232448}},
            {"RTX 5090", {RMSNORM_DEVICE_CUDA, 0, 120, 32, 170, 101376}},
            {"GB10", {RMSNORM_DEVICE_CUDA, 0, 121, 32, 48, 101376}},
            {"MI100", {RMSNORM_DEVICE_HIP, 0, 0x908, 64, 120, 65536}},
            {"MI210", {RMSNORM_DEVICE_HIP, 0, 0x90a, 64, 104, 65536}},
            {"MI300A", {RMSNORM_DEVICE_HIP, 3, 0x942, 64, 228, 65536}},
            {"MI300X", {RMSNORM_DEVICE_HIP, 0, 0x942, 64, 304, 65536}},
            {"MI355X", {RMSNORM_DEVICE_HIP, 0, 0x950, 64, 256, 163840}},
            {"RX 7900 XTX", {RMSNORM_DEVICE_HIP, 0, 0x1100, 32, 96, 65536}},
            /* A driver that answers with the other wave size. */
            {"MI300X, waves of 32", {RMSNORM_DEVICE_HIP, 0, 0x942, 32, 304, 65536}}};
enum { GPUS = sizeof gpus / sizeof gpus[0] };

/* ------------------------------------------------------------------------------------------------------------------
 * What a kernel does with the blocks it is given. */

static int64_t ceil_of(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

static void check_work(const rn_problem *p, const rn_triton_extra *e, const rn_triton_kernel *k,
                       const rn_triton_step *step) {
  const int64_t units = p->rows * p->heads * p->groups, blocks = step->blocks;
  switch (k->family) {
  case RN_TRITON_forward_row:
    assert_int_equal(blocks, ceil_of(units, k->tile_rows));
    assert_true((int64_t)k->lanes * k->steps >= p->group_cols);
    /* fall through */
  case RN_TRITON_forward_long:
    if (k->family == RN_TRITON_forward_long) assert_true(blocks == units && p->group_cols >= k->tile_cols);
    /* fall through */
  case RN_TRITON_forward_few:
    if (k->family == RN_TRITON_forward_few) {
      assert_true(blocks == units && (int64_t)k->lanes * k->steps >= p->cols && p->heads == 1 && p->groups == 1);
      assert_true(p->weight != NULL && p->weight_dtype == p->x.dtype && e->live_rows == NULL);
      assert_true(e->weight_offset == 0 && signbit(e->weight_offset) && e->round_rstd == RMSNORM_DTYPE_F32);
      assert_int_equal(p->residual.data != NULL, p->residual_out.data != NULL);
    }
    assert_int_equal(k->type, p->x.dtype);
    assert_int_equal(k->type, p->y.dtype);
    assert_true(k->residual == RN_TRITON_EITHER || k->residual == (p->residual.data != NULL));
    assert_true(p->gate.data == NULL && p->quant == 0 && p->sumsq_in == NULL);
    assert_true(p->round_normed == RMSNORM_DTYPE_F32);
    break;
  case RN_TRITON_backward_rows:
    assert_true((int64_t)k->lanes * k->steps >= p->cols && p->groups == 1 && p->weight_head_bytes == 0);
    assert_true(p->residual.data == NULL && p->gate.data == NULL && p->dresidual.data == NULL);
    assert_int_equal(k->row_lanes, e->row_lanes);
    assert_true(blocks == ceil_of(e->chunks, k->tile_rows) || k->any_grid);
    if (p->dweight != NULL) assert_int_equal(e->chunks, rn_chunks_of(p->dweight_rows, p->dweight_cols).C);
    if (p->dweight == NULL) assert_true(e->unit_rows == 1);
    break;
  case RN_TRITON_backward_long_sums:
  case RN_TRITON_backward_long:
  case RN_TRITON_backward_long_dx:
    assert_true(k->any_grid && p->groups == 1 && p->weight_head_bytes == 0 && p->residual.data == NULL);
    assert_true(p->gate.data == NULL && p->dresidual.data == NULL && p->dot_out == NULL);
    assert_int_equal(p->dweight == NULL, k->family == RN_TRITON_backward_long_dx);
    if (k->family != RN_TRITON_backward_long)
      assert_true(e->lanes % k->tile_cols == 0);
    else
      assert_true(e->chunks == rn_chunks_of(p->dweight_rows, p->dweight_cols).C && e->row_lanes == 1 &&
                  e->unit_rows == 1 && e->sums == p->workspace);
    break;
  case RN_TRITON_dweight_fold:
    assert_true(k->any_grid && k->tile_rows > 1 && e->chunk_step == k->tile_rows);
    break;
  case RN_TRITON_dweight_sum:
    assert_true(blocks == p->dweight_vectors * ceil_of(p->dweight_cols, k->tile_cols) || k->any_grid);
    break;
  default:
    assert_true(k->any_grid);
    if (k->family == RN_TRITON_general_backward_dweight)
      assert_int_equal(k->row_lanes, rn_chunks_of(p->dweight_rows, p->dweight_cols).P);
  }
  if (k->family == RN_TRITON_forward_row || k->family == RN_TRITON_forward_few || k->family == RN_TRITON_forward_long ||
      (k->family >= RN_TRITON_backward_rows && k->family <= RN_TRITON_backward_long_dx)) {
    assert_true(p->group_cols * p->x.size % 16 == 0 && (uintptr_t)p->x.data % 16 == 0);
    assert_int_equal(k->type, p->x.dtype);
  }
}

static void check_step(const rn_problem *p, const rn_triton_plan *plan, int i, const rn_triton_device *device) {
  const rn_triton_target *target = rn_triton_target_of(device);
  const rn_triton_step *step = &plan->step[i];
  assert_in_range(step->kernel, target->first, target->first + target->count - 1);
  const rn_triton_kernel *k = &rn_triton_kernels[step->kernel];
  assert_int_equal(step->threads, k->warps * device->wave);
  assert_in_range(step->threads, 32, 1024);
  assert_in_range(step->blocks, 1, INT32_MAX);
  if (device->device == RMSNORM_DEVICE_HIP) assert_true((uint64_t)step->blocks * step->threads < (uint64_t)1 << 32);
  assert_true(k->shared <= (uint32_t)device->shared_bytes);
  if (p->launch.multiprocessors > 0) assert_in_range(step->blocks, 1, (uint32_t)p->launch.multiprocessors);
  check_work(p, &plan->extra, k, step);
}

/* Each family that is wanted is there, in an order in which each finds what it needs. */
static void check_order(const rn_problem *p, const rn_triton_plan *plan, const rn_triton_target *target) {
  int at[RN_TRITON_FAMILIES];
  for (int f = 0; f < RN_TRITON_FAMILIES; f++) at[f] = -1;
  for (int i = 0; i < plan->steps; i++) at[rn_triton_kernels[plan->step[i].kernel].family] = i;
  const bool dweight = p->op == RMSNORM_OP_BACKWARD && p->dweight != NULL;
  assert_int_equal(at[RN_TRITON_dweight_sum], dweight ? plan->steps - 1 : -1);
  /* A build may have been made with some variants only. */
  const bool has_fold = target->family[RN_TRITON_dweight_fold] < target->family[RN_TRITON_dweight_fold + 1];
  const bool folds = dweight && has_fold && plan->extra.chunks >= 256;
  assert_int_equal(at[RN_TRITON_dweight_fold], folds ? plan->steps - 2 : -1);
  if (!folds) assert_int_equal(plan->extra.chunk_step, 1);
  assert_int_equal(at[RN_TRITON_backward_long], at[RN_TRITON_backward_long_sums] < 0 ? -1 : 1);
  assert_int_equal(at[RN_TRITON_general_backward_sums] >= 0, at[RN_TRITON_general_backward_dweight] >= 0);
  if (at[RN_TRITON_general_backward_dweight] >= 0) {
    assert_true(at[RN_TRITON_general_backward_sums] < at[RN_TRITON_general_backward_dweight]);
    assert_true(at[RN_TRITON_general_backward_dx] < 0 ||
                at[RN_TRITON_general_backward_dx] > at[RN_TRITON_general_backward_dweight]);
    assert_int_equal(at[RN_TRITON_general_backward_dx] >= 0,
                     p->dx.data != NULL || p->dresidual.data != NULL || p->dgate.data != NULL);
    assert_true(plan->extra.has_sums == 1 && plan->extra.sums == p->workspace);
  }
}

static bool same(const rn_triton_plan *a, const rn_triton_plan *b) {
  return a->steps == b->steps && memcmp(a->step, b->step, (size_t)a->steps * sizeof a->step[0]) == 0 &&
         a->extra.chunks == b->extra.chunks && a->extra.partials == b->extra.partials;
}

static int planned, refused;
static void check_plans(const rn_problem *p) {
  const rn_problem before = *p;
  for (int i = 0; i < GPUS; i++) {
    static rn_triton_plan plan, again;
    memset(&plan, 0x5a, sizeof plan);
    memset(&again, 0xa5, sizeof again);
    if (gpus[i].facts.device != random_device) continue;
    const rn_triton_target *target = rn_triton_target_of(&gpus[i].facts);
    const char *reason = rn_triton_plan_of(p, &gpus[i].facts, &plan);
    assert_int_equal(reason == rn_triton_no_target, target == NULL);
    if (target == NULL) continue;
    if (reason != NULL) {
      refused++;
      if (rn_triton_kernels[target->first].wave != gpus[i].facts.wave)
        assert_string_equal(reason, "the device's waves are of another size");
      else
        fail_msg("%s: %s", gpus[i].name, reason);
      continue;
    }
    planned++;
    assert_in_range(plan.steps, 1, RN_TRITON_STEPS);
    for (int k = 0; k < plan.steps; k++) check_step(p, &plan, k, &gpus[i].facts);
    check_order(p, &plan, target);
    assert_null(rn_triton_plan_of(p, &gpus[i].facts, &again));
    assert_true(same(&plan, &again));
  }
  assert_memory_equal(&before, p, sizeof before);
}

enum { ROUNDS = 5000 };
static void run(const char *name, rmsnorm_status (*random_problem)(rn_problem *), uint64_t seed) {
  int accepted = 0;
  planned = refused = 0;
  for (int i = 0; i < ROUNDS; i++) {
    random_seed(seed + (uint64_t)i);
    random_device = i % 2 == 0 ? RMSNORM_DEVICE_CUDA : RMSNORM_DEVICE_HIP;
    rn_problem p;
    if (random_problem(&p) != RMSNORM_OK) continue;
    if (p.op == RMSNORM_OP_BACKWARD) {
      p.workspace = (void *)((uintptr_t)buffer() / 64 * 64);
      p.workspace_bytes = rn_triton_workspace_bytes(&p);
    }
    accepted++;
    check_plans(&p);
  }
  print_message("%s: %d problems, %d plans, %d refusals, seed %llu\n", name, accepted, planned, refused,
                (unsigned long long)seed);
  assert_true(accepted > ROUNDS / 2);
}
static void test_forward(void **state) {
  (void)state;
  run("forward", random_forward, 1);
}
static void test_stats(void **state) {
  (void)state;
  run("stats", random_stats, 2);
}
static void test_backward(void **state) {
  (void)state;
  run("backward", random_backward, 3);
}

/* How the value of each name is stored. */
static const int kinds[RN_TRITON_NAMES] = {
#define KINDS_OF_VIEW(view)                                                                                            \
  [RN_TRITON_##view] = RN_TRITON_POINTER, [RN_TRITON_##view##_row_stride] = RN_TRITON_I64,                             \
  [RN_TRITON_##view##_head_stride] = RN_TRITON_I64, [RN_TRITON_##view##_type] = RN_TRITON_I64,
#define KIND_OF(name, kind, member) [RN_TRITON_##name] = RN_TRITON_##kind,
    RN_TRITON_VIEWS(KINDS_OF_VIEW) RN_TRITON_OF_PROBLEM(KIND_OF) RN_TRITON_OF_PLAN(KIND_OF)};

static bool is_number(int kind) {
  return kind == RN_TRITON_I32 || kind == RN_TRITON_I64;
}

/* A kernel says how its parameters are stored; that has to be how the values are. */
static void test_kinds(void **state) {
  (void)state;
  for (const rn_triton_target *t = rn_triton_targets; t->count != 0; t++)
    for (int32_t i = t->first; i < t->first + t->count; i++) {
      const rn_triton_kernel *k = &rn_triton_kernels[i];
      assert_true(k->count > 0 && k->count + k->hidden <= RN_TRITON_PARAMETERS);
      assert_true(i - t->first >= t->family[k->family] && i - t->first < t->family[k->family + 1]);
      assert_true(k->warps >= 1 && k->wave == (t->device == RMSNORM_DEVICE_HIP ? 64 : 32));
      for (int n = 0; n < k->count; n++) {
        const rn_triton_parameter *q = &k->parameters[n];
        if (q->kind != kinds[q->name] && !(is_number(q->kind) && is_number(kinds[q->name])))
          fail_msg("%s: parameter %d is stored in another way than its value", k->name, n);
      }
    }
}

/* ------------------------------------------------------------------------------------------------------------------
 * The fixture's kernels: which one a problem gets. */
#ifdef RN_FIXTURE

static const rn_triton_device *const h200 = &gpus[4].facts, *const mi300 = &gpus[12].facts;

static rmsnorm_forward_args forward_args(int64_t rows, int64_t cols) {
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  next_buffer = 0, random_seed(1);
  a.rows = rows, a.cols = cols, a.eps = 1e-6, a.device = RMSNORM_DEVICE_CUDA;
  a.x = rmsnorm_input((void *)0x100000000000, RMSNORM_DTYPE_BF16, cols);
  a.y = rmsnorm_output((void *)0x200000000000, RMSNORM_DTYPE_BF16, cols);
  a.weight = (void *)0x300000000000, a.weight_dtype = RMSNORM_DTYPE_BF16;
  return a;
}
static const rn_triton_kernel *first_of(const rmsnorm_forward_args *a, const rn_triton_device *device,
                                        rn_triton_plan *plan) {
  rn_problem p;
  assert_int_equal(rn_check_forward(a, &p), RMSNORM_OK);
  assert_null(rn_triton_plan_of(&p, device, plan));
  assert_int_equal(plan->steps, 1);
  return &rn_triton_kernels[plan->step[0].kernel];
}
static void expect_forward(const rmsnorm_forward_args *a, int family, int lanes, int steps) {
  rn_triton_plan plan;
  const rn_triton_kernel *k = first_of(a, h200, &plan);
  assert_int_equal(k->family, family);
  assert_int_equal(k->lanes, lanes);
  assert_int_equal(k->steps, steps);
}

static void expect_long(const rmsnorm_forward_args *a, int32_t least) {
  rn_triton_plan plan;
  const rn_triton_kernel *k = first_of(a, h200, &plan);
  assert_int_equal(k->family, RN_TRITON_forward_long);
  assert_int_equal(k->tile_cols, least);
}

static void test_choice(void **state) {
  (void)state;
  rmsnorm_forward_args a = forward_args(2000, 4096);
  expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a = forward_args(100, 4104), expect_forward(&a, RN_TRITON_forward_row, 1024, 8);
  a = forward_args(100, 4100), expect_forward(&a, RN_TRITON_general_forward, 0, 0); /* 8 bytes over a word */
  a = forward_args(100, 64), expect_forward(&a, RN_TRITON_forward_row, 64, 1);
  a = forward_args(100, 72), expect_forward(&a, RN_TRITON_forward_row, 64, 8);
  a = forward_args(100, 1024), expect_forward(&a, RN_TRITON_general_forward, 0, 0); /* 256 lanes: there is none */
  a = forward_args(100, 65536), expect_forward(&a, RN_TRITON_forward_long, 0, 0);
  a = forward_args(100, 65544), expect_forward(&a, RN_TRITON_forward_long, 0, 0);
  a = forward_args(100, 32760), expect_long(&a, 8192);
  a = forward_args(100, 32768), expect_long(&a, 32768);
  a = forward_args(2000, 4096);
  a.x.data = (const char *)a.x.data + 2, expect_forward(&a, RN_TRITON_general_forward, 0, 0);
  a = forward_args(2000, 4096), a.x.row_stride = 4100, expect_forward(&a, RN_TRITON_general_forward, 0, 0);
  a = forward_args(2000, 4096), a.weight = (const char *)a.weight + 8;
  expect_forward(&a, RN_TRITON_general_forward, 0, 0);
  a = forward_args(2000, 4096), a.rstd = (void *)0x400000000004, expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a.x.head_stride = 3; /* of one head: not looked at */
  expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a.weight_dtype = RMSNORM_DTYPE_F32, expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a.weight_dtype = RMSNORM_DTYPE_F16, expect_forward(&a, RN_TRITON_general_forward, 0, 0);
  a = forward_args(2000, 4096), a.y.dtype = RMSNORM_DTYPE_F16, expect_forward(&a, RN_TRITON_general_forward, 0, 0);
  a = forward_args((int64_t)1 << 31, 4096), expect_forward(&a, RN_TRITON_general_forward, 0, 0);
  a = forward_args(((int64_t)1 << 31) - 1, 4096), expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  /* Fewer programs than 2^31, but a number of rows that 32 bits do not hold. */
  a = forward_args((int64_t)1 << 31, 64), expect_forward(&a, RN_TRITON_general_forward, 0, 0);
  a = forward_args(((int64_t)1 << 31) - 1, 64), expect_forward(&a, RN_TRITON_forward_row, 64, 1);
}

/* Few rows, and one thing more than forward_few does. */
static void test_few(void **state) {
  (void)state;
  const int64_t live = 7;
  const rmsnorm_launch with_live = {.multiprocessors = 0, .live_rows = &live};
  rmsnorm_forward_args a = forward_args(1024, 4096);
  expect_forward(&a, RN_TRITON_forward_few, 1024, 4);
  a.rstd = (void *)0x400000000004, expect_forward(&a, RN_TRITON_forward_few, 1024, 4);
  a.numerics.round_xhat = RMSNORM_ROUND_X, expect_forward(&a, RN_TRITON_forward_few, 1024, 4);
  a.numerics.round_rstd = RMSNORM_ROUND_X, expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a = forward_args(1025, 4096), expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a = forward_args(100, 4096), a.weight = NULL, expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a = forward_args(100, 4096), a.weight_dtype = RMSNORM_DTYPE_F32, expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a = forward_args(100, 4096), a.numerics.weight_offset = 1, expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a = forward_args(100, 4096), a.launch = &with_live, expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a = forward_args(100, 4096), a.residual = a.x, expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a.residual_out = a.y, a.residual_out.data = (char *)a.y.data + ((int64_t)1 << 40);
  expect_forward(&a, RN_TRITON_forward_few, 1024, 4);
  a = forward_args(10, 8192), a.heads = 2, a.x.head_stride = a.y.head_stride = 4096, a.cols = 4096;
  a.x.row_stride = 3 * 4096; /* heads that lie as rows do are rows */
  expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
  a = forward_args(10, 8192), a.groups = 2, expect_forward(&a, RN_TRITON_forward_row, 1024, 4);
}

static void test_limits(void **state) {
  (void)state;
  rn_triton_plan plan;
  rmsnorm_launch launch_of = {1, 5, NULL};
  rmsnorm_forward_args a = forward_args(2000, 4096);
  a.launch = &launch_of;
  assert_int_equal(first_of(&a, h200, &plan)->family, RN_TRITON_general_forward);
  assert_int_equal(plan.step[0].blocks, 5);
  launch_of.multiprocessors = 2000;
  assert_int_equal(first_of(&a, h200, &plan)->family, RN_TRITON_forward_row);
  launch_of.multiprocessors = 0, launch_of.live_rows = (const int64_t *)0x500000000000;
  assert_int_equal(first_of(&a, h200, &plan)->family, RN_TRITON_forward_row);
  assert_ptr_equal(plan.extra.live_rows, launch_of.live_rows);
  assert_int_equal(plan.extra.live_most, 2000);
  /* 2^24 rows of 256 threads are 2^32: one block a row is too many for HIP, and not for CUDA. */
  a = forward_args((int64_t)1 << 24, 4096), a.device = RMSNORM_DEVICE_HIP;
  assert_int_equal(first_of(&a, mi300, &plan)->family, RN_TRITON_general_forward);
  assert_int_equal(first_of(&a, h200, &plan)->family, RN_TRITON_forward_row);
  a.rows--;
  assert_int_equal(first_of(&a, mi300, &plan)->family, RN_TRITON_forward_row);
  /* A device with less shared memory than a kernel wants. */
  rn_triton_device small = *h200;
  small.shared_bytes = 59999;
  a = forward_args(100, 65536);
  assert_int_equal(first_of(&a, &small, &plan)->family, RN_TRITON_general_forward);
}

static void test_targets(void **state) {
  (void)state;
  static const struct {
    int device, arch, target;
  } cases[] = {{1, 80, 80},   {1, 86, 80}, {1, 89, 80},       {1, 90, 90},       {1, 100, 100},
               {1, 103, 0},   {1, 120, 0}, {2, 0x90a, 0x90a}, {2, 0x942, 0x942}, {2, 0x908, 0},
               {2, 0x950, 0}, {2, 90, 0},  {1, 0x942, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const rn_triton_device device = {cases[i].device, 0, cases[i].arch, 32, 100, 65536};
    const rn_triton_target *t = rn_triton_target_of(&device);
    assert_int_equal(t != NULL ? t->arch : 0, cases[i].target);
  }
}

static void test_backward_choice(void **state) {
  (void)state;
  rn_problem p;
  rn_regions regions;
  rn_triton_plan plan;
  rmsnorm_backward_args b = RMSNORM_BACKWARD_ARGS_INIT;
  b.rows = 1000, b.cols = 4096, b.eps = 1e-6, b.device = RMSNORM_DEVICE_CUDA;
  b.x = rmsnorm_input((void *)0x100000000000, RMSNORM_DTYPE_BF16, 4096);
  b.dy = rmsnorm_input((void *)0x200000000000, RMSNORM_DTYPE_BF16, 4096);
  b.dx = rmsnorm_output((void *)0x300000000000, RMSNORM_DTYPE_BF16, 4096);
  b.weight = (void *)0x400000000000, b.weight_dtype = b.dweight_dtype = RMSNORM_DTYPE_BF16;
  b.dweight = (void *)0x500000000000, b.rstd = (void *)0x600000000000;
  assert_int_equal(rn_check_backward(&b, RN_CHECK_CALL, &p, &regions), RMSNORM_OK);
  p.workspace = (void *)0x700000000000;
  assert_null(rn_triton_plan_of(&p, h200, &plan));
  assert_int_equal(plan.steps, 3);
  assert_int_equal(rn_triton_kernels[plan.step[0].kernel].family, RN_TRITON_backward_rows);
  assert_int_equal(rn_triton_kernels[plan.step[1].kernel].family, RN_TRITON_dweight_fold);
  assert_int_equal(plan.step[1].blocks, rn_chunks_of(1000, 4096).C / 32 * 4096 / 64);
  assert_int_equal(plan.step[0].blocks, rn_chunks_of(1000, 4096).C);
  assert_ptr_equal(plan.extra.rstd_in, b.rstd);
  assert_int_equal((uintptr_t)plan.extra.partials - (uintptr_t)p.workspace, 1000 * 12 / 64 * 64 + 64);
  assert_true((uintptr_t)plan.extra.partials + (size_t)plan.extra.chunks * 4096 * 4 ==
              (uintptr_t)p.workspace + rn_triton_workspace_bytes(&p));
  p.group_cols = p.cols = p.dweight_cols = p.divisor = 65536; /* sums, columns of chunks, dweight */
  assert_null(rn_triton_plan_of(&p, h200, &plan));
  assert_int_equal(plan.steps, 3);
  assert_int_equal(rn_triton_kernels[plan.step[0].kernel].family, RN_TRITON_backward_long_sums);
  assert_int_equal(plan.step[0].blocks, 1000);
  assert_int_equal(rn_triton_kernels[plan.step[0].kernel].tile_cols, 1024); /* many rows: small programs */
  assert_int_equal(rn_triton_kernels[plan.step[1].kernel].family, RN_TRITON_backward_long);
  assert_int_equal(plan.step[1].blocks, rn_chunks_of(1000, 65536).C * 65536 / 2048);
  p.dweight = NULL;
  assert_null(rn_triton_plan_of(&p, h200, &plan));
  assert_int_equal(plan.steps, 1);
  assert_int_equal(rn_triton_kernels[plan.step[0].kernel].family, RN_TRITON_backward_long_dx);
  p.group_cols = p.cols = p.dweight_cols = p.divisor = 4096, p.dweight = b.dweight;
  p.launch.multiprocessors = 3;
  assert_null(rn_triton_plan_of(&p, h200, &plan)); /* backward_rows wants a block for each chunk */
  assert_int_equal(plan.steps, 5);
  for (int i = 0; i < 5; i++) assert_int_equal(plan.step[i].blocks, 3);
  p.launch.multiprocessors = 0, p.round_rstd = RMSNORM_DTYPE_BF16;
  assert_null(rn_triton_plan_of(&p, h200, &plan));
  assert_null(plan.extra.rstd_in);
  p.x.dtype = RMSNORM_DTYPE_F64;
  assert_string_equal(rn_triton_plan_of(&p, h200, &plan), "x is f64: only portable takes it");
}

/* ---- values by name ---- */

static rn_triton_value value(int name, int kind, const rn_problem *p, const rn_triton_extra *e) {
  const rn_triton_parameter parameter = {(uint8_t)name, (uint8_t)kind, 0};
  return rn_triton_value_of(&parameter, p, e);
}
static void test_values(void **state) {
  (void)state;
  rn_triton_plan plan;
  rn_problem p;
  rmsnorm_forward_args a = forward_args(7, 96);
  a.heads = 3, a.groups = 2, a.divisor = 55, a.eps = 0.125;
  a.x.row_stride = 1000, a.x.head_stride = 200, a.y.row_stride = 3 * 104, a.y.head_stride = 104;
  a.weight_shape = RMSNORM_WEIGHT_HEADS_COLS, a.numerics.weight_offset = 1, a.weight_dtype = RMSNORM_DTYPE_F32;
  a.numerics.round_xhat = RMSNORM_ROUND_X;
  assert_int_equal(rn_check_forward(&a, &p), RMSNORM_OK);
  assert_null(rn_triton_plan_of(&p, h200, &plan));
  const rn_triton_extra *e = &plan.extra;
  assert_ptr_equal(value(RN_TRITON_x, RN_TRITON_POINTER, &p, e).pointer, a.x.data);
  assert_int_equal(value(RN_TRITON_x_row_stride, RN_TRITON_I64, &p, e).i64, 1000);
  assert_int_equal(value(RN_TRITON_x_head_stride, RN_TRITON_I64, &p, e).i64, 200);
  assert_int_equal(value(RN_TRITON_y_row_stride, RN_TRITON_I32, &p, e).i32, 312);
  assert_int_equal(value(RN_TRITON_y_head_stride, RN_TRITON_I64, &p, e).i64, 104);
  assert_int_equal(value(RN_TRITON_x_type, RN_TRITON_I32, &p, e).i32, RMSNORM_DTYPE_BF16);
  assert_null(value(RN_TRITON_residual, RN_TRITON_POINTER, &p, e).pointer);
  assert_int_equal(value(RN_TRITON_residual_row_stride, RN_TRITON_I64, &p, e).i64, 0);
  assert_int_equal(value(RN_TRITON_gate_type, RN_TRITON_I32, &p, e).i32, 0);
  assert_int_equal(value(RN_TRITON_weight_head_stride, RN_TRITON_I64, &p, e).i64, 96);
  assert_int_equal(value(RN_TRITON_weight_group_stride, RN_TRITON_I64, &p, e).i64, 48);
  assert_int_equal(value(RN_TRITON_weight_type, RN_TRITON_I32, &p, e).i32, RMSNORM_DTYPE_F32);
  assert_int_equal(value(RN_TRITON_rows, RN_TRITON_I64, &p, e).i64, 7);
  assert_int_equal(value(RN_TRITON_heads, RN_TRITON_I32, &p, e).i32, 3);
  assert_int_equal(value(RN_TRITON_groups, RN_TRITON_I32, &p, e).i32, 2);
  assert_int_equal(value(RN_TRITON_units, RN_TRITON_I32, &p, e).i32, 42);
  assert_int_equal(value(RN_TRITON_group_cols, RN_TRITON_I32, &p, e).i32, 48);
  assert_int_equal(value(RN_TRITON_lanes, RN_TRITON_I32, &p, e).i32, 64);
  assert_true(value(RN_TRITON_divisor, RN_TRITON_F32, &p, e).f32 == 55);
  assert_true(value(RN_TRITON_eps, RN_TRITON_F32, &p, e).f32 == 0.125f);
  assert_true(value(RN_TRITON_weight_offset, RN_TRITON_F32, &p, e).f32 == 1);
  assert_int_equal(value(RN_TRITON_round_xhat, RN_TRITON_I32, &p, e).i32, RMSNORM_DTYPE_BF16);
  assert_int_equal(value(RN_TRITON_round_sum, RN_TRITON_I32, &p, e).i32, RMSNORM_DTYPE_F32);
  assert_int_equal(value(RN_TRITON_live_most, RN_TRITON_I64, &p, e).i64, 7);
  /* Narrow values fill four bytes alone; the others are nothing. */
  assert_true(value(RN_TRITON_heads, RN_TRITON_I32, &p, e).bits == 3);
  /* Heads that lie one after the other become rows; how many of them live is still counted in the caller's rows. */
  a = forward_args(7, 96), a.heads = 3;
  a.x.row_stride = a.y.row_stride = 3 * 96, a.x.head_stride = a.y.head_stride = 96;
  assert_int_equal(rn_check_forward(&a, &p), RMSNORM_OK);
  assert_null(rn_triton_plan_of(&p, h200, &plan));
  assert_int_equal(value(RN_TRITON_rows, RN_TRITON_I64, &p, e).i64, 21);
  assert_int_equal(value(RN_TRITON_live_most, RN_TRITON_I64, &p, e).i64, 7);
  assert_int_equal(value(RN_TRITON_live_factor, RN_TRITON_I64, &p, e).i64, 3);
  a.weight = NULL, a.numerics.weight_offset = 1;
  assert_int_equal(rn_check_forward(&a, &p), RMSNORM_OK);
  assert_null(rn_triton_plan_of(&p, h200, &plan));
  assert_int_equal(value(RN_TRITON_weight_offset, RN_TRITON_F32, &p, e).i32, INT32_MIN); /* -0 */
  assert_int_equal(value(RN_TRITON_weight_type, RN_TRITON_I32, &p, e).i32, 0);
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_forward),         cmocka_unit_test(test_stats),
      cmocka_unit_test(test_backward),        cmocka_unit_test(test_kinds),
#ifdef RN_FIXTURE
      cmocka_unit_test(test_choice),          cmocka_unit_test(test_few),
      cmocka_unit_test(test_limits),          cmocka_unit_test(test_targets),
      cmocka_unit_test(test_backward_choice), cmocka_unit_test(test_values),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
