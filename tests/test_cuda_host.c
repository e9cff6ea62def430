/* test_cuda_host.c - the host side of the CUDA backend against a driver that writes everything down (fake_driver.c).
 *
 * The library under test is built with the host sources of src/cuda and with images that contain nothing, so neither
 * nvcc nor a GPU is needed. A process opens its driver once: every scenario is a child process of its own.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"
#include "check.h"
#include "child.h"
#include "cuda/host.h"
#include "fake_driver.h"

#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>

/* What the images of the build would be. */
static const char image[64] = "an image without kernels";
#define IMAGE(family) [RN_FAMILY_##family] = image,
const int32_t rn_cuda_capabilities[] = {80, 90, 100, 120, 0};
const void *const rn_cuda_images[RN_CUDA_FAMILY_COUNT] = {RN_CUDA_FAMILIES(IMAGE)};

static fake_driver *fake;

static const char *breach(void) {
  return fake != NULL ? fake->breach : "";
}

static void use_driver(const char *path) {
  setenv("RMSNORM_CUDA_DRIVER", path, 1);
}
/* The fake one, with device 0 current. */
static void use_fake(void) {
  use_driver(RN_FAKE_DRIVER);
  void *library = dlopen(RN_FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    _exit(2);
  }
  fake = dlsym(library, "fake");
  fake->params_bytes = sizeof((rn_cuda_plan *)NULL)->params;
  fake->make_current(0);
}

/* ------------------------------------------------------------------------------------------------------------------
 * No driver, or one that is of no use. Every call says so with a status and a sentence; the CPU is not affected. */

static void expect_unsupported(const char *word) {
  for (int i = 0; i < CALLS; i++) {
    EXPECT(calls[i]() == RMSNORM_ERROR_UNSUPPORTED);
    EXPECT_ERROR(word);
  }
  EXPECT(strcmp(rmsnorm_impl_name(0), "cuda") == 0 && rmsnorm_impl_device(0) == RMSNORM_DEVICE_CUDA);
  EXPECT(rmsnorm_impl_why_not(0) != NULL && strstr(rmsnorm_impl_why_not(0), word) != NULL);
  char text[2048];
  rmsnorm_forward_args a = forward_args(4, 64);
  EXPECT(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text) == RMSNORM_ERROR_UNSUPPORTED);
  EXPECT(strncmp(text, "cuda ", 5) == 0 && strstr(text, word) != NULL);
  EXPECT(strstr(text, "portable") != NULL && strstr(text, "runs on the CPU, the tensors are on a CUDA device") != NULL);
  float x[64] = {1}, y[64];
  a.rows = 1, a.device = RMSNORM_DEVICE_CPU, a.weight = NULL;
  a.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, 64);
  a.y = rmsnorm_output(y, RMSNORM_DTYPE_F32, 64);
  EXPECT(rmsnorm_forward(&a, NULL) == RMSNORM_OK);
  EXPECT(rmsnorm_preload(RMSNORM_DEVICE_CPU) == RMSNORM_OK);
}

static void no_file(int number) {
  (void)number;
  use_driver("/nonexistent/libcuda.so.1");
  expect_unsupported("no CUDA driver where RMSNORM_CUDA_DRIVER says: /nonexistent/libcuda.so.1");
}
static void other_file(int number) {
  (void)number;
  use_driver("libm.so.6");
  expect_unsupported("libm.so.6 is no CUDA driver");
}
static void old_driver(int number) {
  (void)number;
  use_fake(), fake->version = 11080;
  expect_unsupported("the CUDA driver is for CUDA 11.8, 12.0 or later is needed");
  EXPECT(fake->asked_count == 0);
}
static void no_device(int number) {
  (void)number;
  use_fake(), fake->devices = 0;
  expect_unsupported("there is no CUDA device");
}
static void no_device_error(int number) {
  (void)number;
  use_fake(), fake->init_result = 100;
  expect_unsupported("there is no CUDA device");
}
static void init_fails(int number) {
  (void)number;
  use_fake(), fake->init_result = 999;
  expect_unsupported("the CUDA driver does not start: CUDA_ERROR_UNKNOWN (999)");
}
static void lacks_entry(int number) {
  (void)number;
  use_fake(), fake->lacks = "cuLaunchKernelEx";
  expect_unsupported("the CUDA driver has no cuLaunchKernelEx");
}

static void test_no_driver(void **state) {
  (void)state;
  run_in_child(no_file);
  run_in_child(other_file);
  run_in_child(old_driver);
  run_in_child(no_device);
  run_in_child(no_device_error);
  run_in_child(init_fails);
  run_in_child(lacks_entry);
}

/* A process that stays on the CPU never looks for a driver. */
static void cpu_only(int number) {
  (void)number;
  use_fake();
  float x[64] = {1}, y[64];
  rmsnorm_forward_args a = forward_args(1, 64);
  a.device = RMSNORM_DEVICE_CPU, a.weight = NULL;
  a.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, 64);
  a.y = rmsnorm_output(y, RMSNORM_DTYPE_F32, 64);
  char text[2048];
  EXPECT(rmsnorm_forward(&a, NULL) == RMSNORM_OK);
  EXPECT(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text) == RMSNORM_OK);
  EXPECT(strstr(text, "runs on CUDA devices, the tensors are on the CPU") != NULL);
  a.impl = "cuda";
  EXPECT(rmsnorm_forward(&a, NULL) == RMSNORM_ERROR_UNSUPPORTED);
  EXPECT_ERROR("impl forces \"cuda\", which does not take this: runs on CUDA devices, the tensors are on the CPU");
  EXPECT(fake->calls == 0);
}
static void forced_cpu(int number) {
  (void)number;
  use_fake();
  rmsnorm_forward_args a = forward_args(4, 64);
  a.impl = "portable";
  EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_ERROR_UNSUPPORTED);
  EXPECT_ERROR("impl forces \"portable\", which does not take this: runs on the CPU, the tensors are on a CUDA device");
  setenv("RMSNORM_IMPL", "portable", 1);
  a.impl = NULL;
  EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_ERROR_UNSUPPORTED);
  EXPECT_ERROR("RMSNORM_IMPL forces \"portable\"");
  a.impl = "cuda"; /* the argument goes before the environment */
  EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_OK);
}
static void test_devices_apart(void **state) {
  (void)state;
  run_in_child(cpu_only);
  run_in_child(forced_cpu);
}

/* ------------------------------------------------------------------------------------------------------------------
 * What is queued is the plan, with the caller's pointers, stream and wishes. */

/* The launches from `first` on are the steps of the plan that the problem has on device `device`. */
static void expect_plan(const rn_problem *p, int first, int device, bool dependent) {
  const rn_cuda_device facts = {.major = fake->major[device],
                                .minor = device == 0 ? 0 : 9,
                                .multiprocessors = device == 0 ? 132 : 58,
                                .shared_bytes = fake->shared_bytes[device],
                                .families = rn_cuda_families(),
                                .native = 1};
  const rn_cuda_options options = {p->launch.multiprocessors, p->launch.live_rows};
  rn_cuda_plan plan;
  EXPECT(rn_cuda_plan_of(p, &options, &facts, &plan) == NULL);
  EXPECT(fake->launches - first == plan.steps);
  for (int i = 0; i < plan.steps && first + i < fake->launches; i++) {
    const fake_launch *l = &fake->launch[first + i];
    const rn_cuda_step *step = &plan.step[i];
    const bool waits = facts.major >= 9 && (i == 0 ? dependent : step->dependent && fake->version >= 12030);
    EXPECT(l->device == device && l->stream == stream);
    EXPECT(l->blocks[0] == step->blocks && l->blocks[1] == 1 && l->blocks[2] == 1);
    EXPECT(l->threads[0] == step->threads && l->threads[1] == 1 && l->threads[2] == 1);
    EXPECT(l->shared == step->shared);
    EXPECT(l->cluster == (step->cluster > 1 ? step->cluster : 1));
    EXPECT(l->dependent == waits);
    EXPECT(l->attributes == (uint32_t)(step->cluster > 1) + (uint32_t)waits);
  }
}

/* The struct that the kernel gets is found by what only it can contain. */
static bool contains(const fake_launch *l, const void *pointer) {
  for (size_t i = 0; i + sizeof pointer <= fake->params_bytes; i += sizeof pointer)
    if (memcmp(l->params + i, &pointer, sizeof pointer) == 0) return true;
  return false;
}

static void marshalling(int number) {
  use_fake();
  fake->version = number;
  for (int device = 0; device < 2; device++)
    for (int64_t cols = 7; cols < 300000; cols = cols * 3 + 1)
      for (int dependent = 0; dependent < 2; dependent++) {
        fake->make_current(device);
        fake->launches = 0;
        const rmsnorm_launch wishes = {dependent, cols % 2 == 0 ? 8 : 0, AT(9)};
        rmsnorm_forward_args a = forward_args(33, cols);
        a.launch = &wishes;
        EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_OK);
        rn_problem p;
        EXPECT(rn_check_forward(&a, &p) == RMSNORM_OK);
        expect_plan(&p, 0, device, dependent != 0);
        EXPECT(contains(&fake->launch[0], AT(1)) && contains(&fake->launch[0], AT(2)));
        EXPECT(contains(&fake->launch[0], AT(3)) && contains(&fake->launch[0], AT(9)));
        EXPECT(!contains(&fake->launch[0], AT(8)));

        fake->launches = 0;
        rmsnorm_backward_args b = backward_args(33, cols);
        const rmsnorm_launch backward_wishes = {dependent, 0, NULL};
        b.launch = &backward_wishes;
        EXPECT(rmsnorm_backward(&b, stream) == RMSNORM_OK);
        rn_regions regions;
        EXPECT(rn_check_backward(&b, RN_CHECK_CALL, &p, &regions) == RMSNORM_OK);
        p.workspace = b.workspace, p.workspace_bytes = b.workspace_bytes;
        expect_plan(&p, 0, device, dependent != 0);
        EXPECT(contains(&fake->launch[0], AT(1)) && contains(&fake->launch[0], AT(2)));
      }
  EXPECT(fake->attributes_set[0] >= 2 && fake->attributes_set[1] >= 1);
  EXPECT(no_rows() == RMSNORM_OK && fake->memsets == 1);
  EXPECT(fake->memset8[0].at == (uintptr_t)AT(4) && fake->memset8[0].value == 0);
  EXPECT(fake->memset8[0].bytes == 4096 * 2 && fake->memset8[0].stream == stream);
  /* Rows of heads that were collapsed: the device's count is in the caller's rows. */
  rmsnorm_forward_args a = forward_args(5, 64);
  a.heads = 3, a.x.row_stride = a.y.row_stride = 3 * 64, a.x.head_stride = a.y.head_stride = 64;
  rn_problem p;
  EXPECT(rn_check_forward(&a, &p) == RMSNORM_OK && p.rows == 15 && p.heads == 1 && p.live_factor == 3);
  a.x.row_stride = 4 * 64;
  EXPECT(rn_check_forward(&a, &p) == RMSNORM_OK && p.rows == 5 && p.heads == 3 && p.live_factor == 1);
}
/* Nothing is asked of the driver but what is needed, and nothing that would change what is current, allocate or wait.
 */
static void steady_state(int number) {
  (void)number;
  use_fake();
  EXPECT(forward() == RMSNORM_OK);
  int before = fake->calls, launches = fake->launches;
  EXPECT(forward() == RMSNORM_OK);
  EXPECT(fake->launches == launches + 1);
  EXPECT(fake->calls - before == 3); /* the current device, to choose and to run; the launch */
  static const char *const known[] = {"cuGetErrorName",       "cuInit",
                                      "cuDeviceGetCount",     "cuDeviceGetAttribute",
                                      "cuCtxGetDevice",       "cuLibraryLoadData",
                                      "cuLibraryUnload",      "cuLibraryGetKernel",
                                      "cuKernelGetAttribute", "cuKernelSetAttribute",
                                      "cuKernelGetFunction",  "cuFuncGetAttribute",
                                      "cuFuncLoad",           "cuLaunchKernelEx",
                                      "cuMemsetD8Async",      "cuKernelGetParamInfo"};
  for (int i = 0; i < fake->asked_count; i++) {
    bool found = false;
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) found |= strcmp(fake->asked[i], known[k]) == 0;
    expect(found, fake->asked[i], __FILE__, __LINE__);
  }
}
/* Rounding modes and flags of the caller: neither in nor out. */
static void rounding_mode(int number) {
  (void)number;
  use_fake();
  EXPECT(forward() == RMSNORM_OK);
  fesetround(FE_UPWARD);
  feclearexcept(FE_ALL_EXCEPT);
  EXPECT(forward() == RMSNORM_OK && backward() == RMSNORM_OK);
  EXPECT(fegetround() == FE_UPWARD && fetestexcept(FE_ALL_EXCEPT) == 0);
  char text[2048];
  rmsnorm_forward_args a = forward_args(4, 4096);
  EXPECT(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text) == RMSNORM_OK);
  EXPECT(fetestexcept(FE_ALL_EXCEPT) == 0);
  fesetround(FE_TONEAREST);
  EXPECT(memcmp(fake->launch[0].params, fake->launch[1].params, sizeof(rn_view)) == 0);
}
static void preloading(int number) {
  use_fake(), fake->version = number;
  EXPECT(preload() == RMSNORM_OK);
  EXPECT(fake->functions_loaded == RN_CUDA_KERNELS);
  EXPECT(fake->loads == RN_CUDA_FAMILY_COUNT);
  EXPECT(preload() == RMSNORM_OK && fake->loads == RN_CUDA_FAMILY_COUNT);
  /* From now on nothing is loaded or prepared any more: a capture sees launches only. */
  fake->fail_with = 900;
  for (int i = 0; i < CALLS - 1; i++) {
    int before = fake->calls, queued = fake->launches + fake->memsets;
    EXPECT(calls[i]() == RMSNORM_OK);
    queued = fake->launches + fake->memsets - queued;
    EXPECT(fake->calls - before <= 2 + queued);
  }
  EXPECT(rmsnorm_preload(RMSNORM_DEVICE_HIP) == RMSNORM_ERROR_UNSUPPORTED);
  EXPECT(rmsnorm_preload(3) == RMSNORM_ERROR_ENUM && rmsnorm_preload(-1) == RMSNORM_ERROR_ENUM);
}
static void no_context(int number) {
  (void)number;
  use_fake();
  fake->make_current(-1);
  for (int i = 0; i < CALLS; i++) {
    EXPECT(calls[i]() == RMSNORM_ERROR_DEVICE);
    EXPECT_ERROR("CUDA_ERROR_INVALID_CONTEXT (201); a CUDA context has to be current in the calling thread");
  }
  char text[2048];
  const char *name = NULL;
  size_t bytes = 0;
  rmsnorm_forward_args a = forward_args(4, 64);
  rmsnorm_backward_args b = backward_args(64, 4096);
  EXPECT(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text) == RMSNORM_OK);
  EXPECT(strncmp(text, "cuda       runs: the first that takes this\n", 43) == 0);
  EXPECT(rmsnorm_impl_for(RMSNORM_OP_BACKWARD, &b, &name) == RMSNORM_OK && strcmp(name, "cuda") == 0);
  EXPECT(rmsnorm_backward_workspace_bytes(&b, &bytes) == RMSNORM_OK && bytes > 0 && bytes <= b.workspace_bytes);
  EXPECT(fake->launches == 0 && fake->loads == 0);
  fake->make_current(1);
  EXPECT(forward() == RMSNORM_OK);
}
static void refusals(int number) {
  (void)number;
  use_fake();
  rmsnorm_forward_args a = forward_args(4, 64);
  a.x.dtype = a.y.dtype = a.weight_dtype = RMSNORM_DTYPE_F64;
  EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_ERROR_UNSUPPORTED);
  EXPECT_ERROR("\"cuda\": x is f64: only portable takes it");
  /* A scale on the device is not looked at. */
  a = forward_args(4, 64);
  a.quant.granularity = RMSNORM_QUANT_TENSOR;
  a.quant.scale = AT(6);
  a.quant.q = rmsnorm_output(AT(7), RMSNORM_DTYPE_FP8_E4M3, 64);
  EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_OK);
  rmsnorm_launch wishes = {0, 0, AT(2)};
  a = forward_args(4, 64), a.launch = &wishes;
  EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_ERROR_OVERLAP);
  fake->major[1] = 7;
  fake->make_current(1);
  EXPECT(forward() == RMSNORM_ERROR_UNSUPPORTED);
  EXPECT_ERROR("CUDA device 1 has compute capability 7.9, 8.0 or later is needed");
}
static void test_calls(void **state) {
  (void)state;
  assert_int_equal(in_child(marshalling, 12000), 0);
  assert_int_equal(in_child(marshalling, 12040), 0);
  run_in_child(steady_state);
  run_in_child(rounding_mode);
  assert_int_equal(in_child(preloading, 12000), 0);
  assert_int_equal(in_child(preloading, 13000), 0);
  run_in_child(no_context);
  run_in_child(refusals);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Failures: each call to the driver fails once. The call of ours that needed it says so; once the driver is well again,
 * so is everything that did not depend on opening it. */

enum { NO_MORE = 42 };

static void failing(int number) {
  use_fake(), fake->fail_at = number, fake->fail_with = 999;
  bool opened = true;
  int refused = 0;
  for (int i = 0; i < CALLS; i++) {
    rmsnorm_status status = calls[i]();
    if (status == RMSNORM_OK) continue;
    refused++;
    EXPECT(status == RMSNORM_ERROR_DEVICE || status == RMSNORM_ERROR_UNSUPPORTED);
    EXPECT(rmsnorm_last_error()[0] != 0);
    if (status == RMSNORM_ERROR_DEVICE) EXPECT_ERROR("CUDA_ERROR_UNKNOWN (999)");
    if (rmsnorm_impl_why_not(0) != NULL) opened = false;
  }
  if (fake->calls < number) _exit(failures == 0 ? NO_MORE : 1);
  EXPECT(refused <= 1 || (!opened && refused == CALLS));
  /* Two may fail unnoticed: the choice looks at device 0 instead, and cuFuncLoad has a substitute. */
  EXPECT(refused > 0 || strcmp(fake->failed_call, "cuCtxGetDevice") == 0 ||
         (strcmp(fake->failed_call, "cuGetProcAddress_v2") == 0 && rmsnorm_impl_why_not(0) == NULL));
  fake->fail_at = 0;
  for (int i = 0; i < CALLS; i++) EXPECT(calls[i]() == (opened ? RMSNORM_OK : RMSNORM_ERROR_UNSUPPORTED));
  EXPECT(fake->loads - fake->unloads <= RN_CUDA_FAMILY_COUNT);
}
static void test_failures(void **state) {
  (void)state;
  /* Of the many calls that load the kernels one after the other, every thirteenth. */
  int number = 1, result;
  while ((result = in_child(failing, number)) == 0) number += number < 200 ? 1 : 13;
  if (result != NO_MORE) fail_msg("call %d of the driver", number);
  assert_true(number > 100);
  print_message("failures were injected into a sequence of %d calls of the driver\n", number - 1);
}

static void hints(int number) {
  use_fake();
  EXPECT(rmsnorm_impl_why_not(0) == NULL);
  fake->fail_with = number;
  fake->fail_at = fake->calls + 7; /* twice the device, its four facts, the image */
  EXPECT(forward() == RMSNORM_ERROR_DEVICE);
  EXPECT(strcmp(fake->last_call, "cuLibraryLoadData") == 0);
  EXPECT_ERROR("loading the kernels of ");
  if (number == 209) EXPECT_ERROR("CUDA_ERROR_NO_BINARY_FOR_GPU (209); the kernels of this build are not for");
  if (number == 900) EXPECT_ERROR("(900); call rmsnorm_preload before a graph is captured");
  if (number == 2) EXPECT_ERROR(": error (2)");
}
static void test_hints(void **state) {
  (void)state;
  assert_int_equal(in_child(hints, 209), 0);
  assert_int_equal(in_child(hints, 900), 0);
  assert_int_equal(in_child(hints, 2), 0);
}

/* ------------------------------------------------------------------------------------------------------------------
 * First calls from many threads at once, on two devices. */

enum { THREADS = 8, ROUNDS = 2 };
static pthread_barrier_t start;

static void *first_calls(void *context) {
  const int number = (int)(intptr_t)context;
  int wrong = 0;
  fake->make_current(number % FAKE_DEVICES);
  pthread_barrier_wait(&start);
  for (int i = 0; i < CALLS * ROUNDS; i++) wrong += calls[(i + number) % CALLS]() != RMSNORM_OK;
  return (void *)(intptr_t)wrong;
}
static void together(int number) {
  (void)number;
  use_fake(), fake->load_us = 2000;
  pthread_t thread[THREADS];
  pthread_barrier_init(&start, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, first_calls, (void *)(intptr_t)i);
  for (int i = 0; i < THREADS; i++) {
    void *wrong;
    pthread_join(thread[i], &wrong);
    EXPECT(wrong == NULL);
  }
  EXPECT(fake->loads - fake->unloads == RN_CUDA_FAMILY_COUNT);
  EXPECT(fake->unloads > 0); /* there were threads that came too late */
  EXPECT(fake->attributes_set[0] > 0 && fake->attributes_set[1] > 0);
  EXPECT(fake->memsets == THREADS * ROUNDS);
  EXPECT(fake->functions_loaded == THREADS * ROUNDS * RN_CUDA_KERNELS);
  int on[FAKE_DEVICES] = {0};
  for (int i = 0; i < fake->launches; i++) on[fake->launch[i].device]++;
  EXPECT(on[0] > 0 && on[1] > 0);
}
static void test_threads(void **state) {
  (void)state;
  for (int i = 0; i < 10; i++) run_in_child(together);
}

int main(void) {
  calls_device = RMSNORM_DEVICE_CUDA, breach_of_child = breach;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_driver), cmocka_unit_test(test_devices_apart),
                                     cmocka_unit_test(test_calls),     cmocka_unit_test(test_failures),
                                     cmocka_unit_test(test_hints),     cmocka_unit_test(test_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
