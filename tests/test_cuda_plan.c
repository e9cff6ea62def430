/* test_cuda_plan.c - every plan for every known GPU is one that the driver takes: block, grid, cluster and shared
 * memory within the limits of the device, kernels that are in the build; and plans are pure functions.
 *
 * Problems are random and come through the checks of the public functions. Nothing is run: no address is real.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "cuda/plan.h"
#include "random_problem.h"

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
    random_seed(seed + (uint64_t)i);
    rn_problem p;
    if (random_problem(&p) != RMSNORM_OK) continue;
    if (p.op == RMSNORM_OP_BACKWARD) p.workspace = buffer(), p.workspace_bytes = rn_cuda_workspace_bytes(&p);
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
  random_state = 5;
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
