/* test_cuda_plan.c - every plan for every known GPU is one that the driver takes: block, grid, cluster and shared
 * memory within the limits of the device, kernels that are in the build; and plans are pure functions.
 *
 * Problems are random and come through the checks of the public functions. Nothing is run: no address is real.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "cuda/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Nothing is loaded here. */
const int32_t rn_cuda_capabilities[] = {80, 90, 100, 120, 0};
const void *const rn_cuda_images[RN_CUDA_FAMILY_COUNT] = {NULL};

/* NVIDIA's tables: compute capability, multiprocessors, the most shared memory of a block (CUDA C++ Programming Guide,
 * "Technical Specifications per Compute Capability"). */
enum { EVERYTHING = (1u << RN_CUDA_FAMILY_COUNT) - 1 };
static const struct gpu {
  const char *name;
  rn_cuda_device facts;
} gpus[] = {{"A100", {8, 0, 108, 166912, EVERYTHING, 1}},
            {"A10", {8, 6, 72, 101376, EVERYTHING, 1}},
            {"L4", {8, 9, 58, 101376, EVERYTHING, 1}},
            {"RTX 4090", {8, 9, 128, 101376, EVERYTHING, 1}},
            {"H100 PCIe", {9, 0, 114, 232448, EVERYTHING, 1}},
            {"H200", {9, 0, 132, 232448, EVERYTHING, 1}},
            {"B200", {10, 0, 148, 232448, EVERYTHING, 1}},
            {"RTX 5090", {12, 0, 170, 101376, EVERYTHING, 1}},
            /* A later one, and one that the build has no code for: both run PTX. */
            {"after B200", {11, 0, 148, 232448, EVERYTHING, 0}},
            {"H200, PTX", {9, 0, 132, 232448, EVERYTHING, 0}}};
enum { GPUS = sizeof gpus / sizeof gpus[0] };

static const struct {
  const char *name;
  int family, threads;
} kernels[RN_CUDA_KERNELS] = {
#define TEXT_OF(name)                    #name
#define RN_LISTED(family, name, threads) {TEXT_OF(name), RN_FAMILY_##family, threads},
    RN_CUDA_LIST};

/* ------------------------------------------------------------------------------------------------------------------
 * Random problems. */

static uint64_t state;
static uint64_t next(void) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}
static int64_t below(int64_t n) {
  return (int64_t)(next() % (uint64_t)n);
}
static bool one_in(int64_t n) {
  return below(n) == 0;
}
/* As likely to be small as large. */
static int64_t size(int bits) {
  int64_t v = 1 + below((int64_t)1 << below(bits + 1));
  return one_in(3) ? (int64_t)1 << below(bits + 1) : v;
}

static const int types[] = {RMSNORM_DTYPE_BF16, RMSNORM_DTYPE_F16, RMSNORM_DTYPE_F32};
static int usual_type;
static int type(void) {
  return one_in(8) ? types[below(3)] : usual_type;
}

/* Buffers of 2^44 bytes each; most are aligned, as an allocator's are. */
static uintptr_t next_buffer;
static void *buffer(void) {
  next_buffer += (uintptr_t)1 << 44;
  return (void *)(next_buffer + (one_in(4) ? 4 * (uintptr_t)below(64) : 0));
}
static rmsnorm_input_tensor input(int64_t heads, int64_t cols) {
  int64_t width = one_in(6) ? cols + below(64) : cols;
  return rmsnorm_input_heads(buffer(), type(), one_in(10) ? 0 : width * heads + (one_in(8) ? 8 : 0), width);
}
static rmsnorm_output_tensor output(int64_t heads, int64_t cols) {
  int64_t width = one_in(6) ? cols + below(64) : cols;
  return rmsnorm_output_heads(buffer(), type(), width * heads + (one_in(8) ? 8 : 0), width);
}

typedef struct shape {
  int64_t rows, heads, cols, groups;
} shape;
static shape random_shape(void) {
  shape s;
  next_buffer = 0;
  usual_type = types[below(3)];
  s.groups = one_in(8) ? size(5) : 1;
  s.cols = size(one_in(4) ? 20 : 15);
  if (one_in(3)) s.cols = (s.cols + 63) / 64 * 64;
  s.cols = s.cols * s.groups;
  s.heads = one_in(4) ? size(6) : 1;
  s.rows = size(one_in(20) ? 36 : 22);
  while ((double)s.rows * (double)s.heads * (double)s.cols > 1e12) s.rows = (s.rows + 1) / 2;
  return s;
}

static rmsnorm_launch launch;
static const rmsnorm_launch *random_launch(bool live) {
  launch.dependent = (int32_t)below(2);
  launch.multiprocessors = one_in(3) ? (int32_t)size(8) : 0;
  launch.live_rows = live && one_in(3) ? (const int64_t *)((uintptr_t)1 << 43) : NULL;
  return &launch;
}

static rmsnorm_status random_forward(rn_problem *p) {
  shape s = random_shape();
  rmsnorm_forward_args a = RMSNORM_FORWARD_ARGS_INIT;
  a.rows = s.rows, a.heads = s.heads, a.cols = s.cols, a.groups = s.groups, a.eps = 1e-6;
  a.device = RMSNORM_DEVICE_CUDA, a.launch = random_launch(true);
  a.x = input(s.heads, s.cols), a.y = output(s.heads, s.cols);
  if (!one_in(5)) a.weight = buffer(), a.weight_dtype = type(), a.weight_shape = one_in(4) ? (int)below(3) : 0;
  if (one_in(2)) {
    a.residual = input(s.heads, s.cols);
    if (!one_in(4)) a.residual_out = output(s.heads, s.cols);
    if (one_in(2)) a.numerics.round_sum = RMSNORM_ROUND_STORED;
  }
  if (one_in(4)) a.numerics.round_xhat = (int)below(4), a.numerics.round_normed = (int)below(4);
  if (one_in(8))
    a.gate = input(s.heads, s.cols), a.numerics.gate = 1 + (int)below(2), a.numerics.gate_place = (int)below(2);
  if (one_in(4)) a.rstd = buffer();
  if (one_in(8)) a.sumsq = buffer();
  if (one_in(4)) {
    a.quant.granularity = 1 + (int)below(4);
    a.quant.q = output(s.heads, s.cols), a.quant.q.dtype = RMSNORM_DTYPE_FP8_E4M3;
    if (a.quant.granularity == RMSNORM_QUANT_BLOCK) a.quant.block_cols = 32 << below(3);
    if (a.quant.granularity == RMSNORM_QUANT_TENSOR)
      a.quant.scale = buffer();
    else
      a.quant.scale_out = buffer();
  }
  return rn_check_forward(&a, p);
}
static rmsnorm_status random_stats(rn_problem *p) {
  shape s = random_shape();
  rmsnorm_stats_args a = RMSNORM_STATS_ARGS_INIT;
  a.rows = s.rows, a.heads = s.heads, a.cols = s.cols, a.groups = s.groups;
  a.device = RMSNORM_DEVICE_CUDA, a.launch = random_launch(true);
  a.x = input(s.heads, s.cols);
  a.sumsq = buffer();
  return rn_check_stats(&a, p);
}
static rmsnorm_status random_backward(rn_problem *p) {
  shape s = random_shape();
  rn_regions regions;
  rmsnorm_backward_args a = RMSNORM_BACKWARD_ARGS_INIT;
  a.rows = s.rows, a.heads = s.heads, a.cols = s.cols, a.groups = s.groups, a.eps = 1e-6;
  a.device = RMSNORM_DEVICE_CUDA, a.launch = random_launch(false);
  a.x = input(s.heads, s.cols), a.dy = input(s.heads, s.cols);
  if (!one_in(6)) a.dx = output(s.heads, s.cols);
  if (!one_in(5)) {
    a.weight = buffer(), a.weight_dtype = type(), a.weight_shape = one_in(4) ? (int)below(3) : 0;
    if (!one_in(4)) a.dweight = buffer(), a.dweight_dtype = one_in(2) ? RMSNORM_DTYPE_F32 : type();
  }
  if (one_in(3)) a.dresidual_out = input(s.heads, s.cols);
  if (one_in(5)) a.dresidual = output(s.heads, s.cols);
  if (one_in(2)) a.rstd = buffer();
  if (one_in(8)) a.dot_out = buffer();
  if (one_in(8)) {
    a.gate = input(s.heads, s.cols), a.numerics.gate = 1 + (int)below(2), a.numerics.gate_place = (int)below(2);
    if (one_in(2)) a.dgate = output(s.heads, s.cols);
  }
  rmsnorm_status status = rn_check_backward(&a, RN_CHECK_CALL, p, &regions);
  if (status == RMSNORM_OK) p->workspace = buffer(), p->workspace_bytes = rn_cuda_workspace_bytes(p);
  return status;
}

/* ------------------------------------------------------------------------------------------------------------------
 * What a driver takes. */

static void check_step(const rn_cuda_step *step, const rn_cuda_device *device, const rn_cuda_options *options) {
  assert_in_range(step->kernel, 0, RN_CUDA_KERNELS - 1);
  assert_true(device->families >> kernels[step->kernel].family & 1);
  assert_in_range(step->threads, 32, kernels[step->kernel].threads);
  assert_int_equal(step->threads % 32, 0);
  assert_in_range(step->blocks, 1, INT32_MAX);
  assert_true(step->shared <= (uint32_t)device->shared_bytes);
  uint32_t cluster = step->cluster > 1 ? step->cluster : 1;
  assert_true(cluster <= 16 && (cluster == 1 || (device->major >= 9 && device->native)));
  assert_int_equal(step->blocks % cluster, 0);
  assert_true(step->dependent <= 1);
  /* 32 blocks are the most that a multiprocessor holds; a cluster is never cut. */
  if (options->multiprocessors > 0)
    assert_true(step->blocks <= (uint32_t)options->multiprocessors * 32 || step->blocks == cluster);
}

static bool same_steps(const rn_cuda_plan *a, const rn_cuda_plan *b) {
  return a->steps == b->steps && memcmp(a->step, b->step, (size_t)a->steps * sizeof a->step[0]) == 0;
}

/* The kernels that any problem got, over all tests. */
static bool used[RN_CUDA_KERNELS];

static void check_plans(const rn_problem *p) {
  const rn_cuda_options options = {p->launch.multiprocessors, p->launch.live_rows};
  const rn_problem before = *p;
  for (int i = 0; i < GPUS; i++) {
    static rn_cuda_plan plan, again;
    memset(&plan, 0x5a, sizeof plan);
    memset(&again, 0xa5, sizeof again);
    const char *reason = rn_cuda_plan_of(p, &options, &gpus[i].facts, &plan);
    if (reason != NULL) fail_msg("%s: %s", gpus[i].name, reason);
    assert_in_range(plan.steps, 1, RN_CUDA_STEPS);
    for (int k = 0; k < plan.steps; k++) {
      check_step(&plan.step[k], &gpus[i].facts, &options);
      used[plan.step[k].kernel] = true;
    }
    assert_null(rn_cuda_plan_of(p, &options, &gpus[i].facts, &again));
    assert_true(same_steps(&plan, &again));
    /* Without the fast kernels the general ones take it. */
    rn_cuda_device plain = gpus[i].facts;
    plain.families = 1u << RN_FAMILY_general;
    assert_null(rn_cuda_plan_of(p, &options, &plain, &again));
    for (int k = 0; k < again.steps; k++) check_step(&again.step[k], &plain, &options);
  }
  assert_memory_equal(&before, p, sizeof before);
}

enum { ROUNDS = 20000 };
static void run(const char *name, rmsnorm_status (*random_problem)(rn_problem *), uint64_t seed) {
  int accepted = 0;
  for (int i = 0; i < ROUNDS; i++) {
    state = (seed + (uint64_t)i) * 0x9e3779b97f4a7c15u | 1;
    next(), next();
    rn_problem p;
    if (random_problem(&p) != RMSNORM_OK) continue;
    accepted++;
    check_plans(&p);
  }
  print_message("%s: plans for %d problems, seed %llu\n", name, accepted, (unsigned long long)seed);
  assert_true(accepted > ROUNDS / 2);
}
static void test_forward(void **context) {
  (void)context;
  run("forward", random_forward, 1);
}
static void test_stats(void **context) {
  (void)context;
  run("stats", random_stats, 2);
}
static void test_backward(void **context) {
  (void)context;
  run("backward", random_backward, 3);
}

static void test_no_kernels(void **context) {
  (void)context;
  rn_problem p;
  state = 5;
  while (random_forward(&p) != RMSNORM_OK) continue;
  rn_cuda_device device = gpus[0].facts;
  const rn_cuda_options options = {0, NULL};
  rn_cuda_plan plan;
  device.families = 0;
  assert_string_equal(rn_cuda_plan_of(&p, &options, &device, &plan),
                      "this build has no kernels for it (RMSNORM_KERNELS)");
  p.x.dtype = RMSNORM_DTYPE_F64;
  assert_string_equal(rn_cuda_plan_of(&p, &options, &gpus[0].facts, &plan), "x is f64: only portable takes it");
}

static void test_all_used(void **context) {
  (void)context;
  int count[RN_CUDA_FAMILY_COUNT][2] = {{0}};
  for (int i = 0; i < RN_CUDA_KERNELS; i++) count[kernels[i].family][used[i]]++;
#define FAMILY(family)                                                                                                 \
  print_message(#family ": %d kernels used, %d not\n", count[RN_FAMILY_##family][1], count[RN_FAMILY_##family][0]);
  RN_CUDA_FAMILIES(FAMILY)
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_forward), cmocka_unit_test(test_stats),
                                     cmocka_unit_test(test_backward), cmocka_unit_test(test_no_kernels),
                                     cmocka_unit_test(test_all_used)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
