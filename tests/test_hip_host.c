/* test_hip_host.c - the host side of the Triton backend on AMD GPUs against a runtime that writes everything down
 * (fake_hip.c), with a table of kernels that do not exist (triton_fixture.py). No AMD hardware is needed, and none has
 * been used: what is tested is what the library asks the runtime for.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "child.h"
#include "fake_hip.h"
#include "triton_calls.h"

#include <dlfcn.h>
#include <pthread.h>

static fake_hip *fake;
static const char *breach(void) {
  return fake != NULL ? fake->breach : "";
}

/* The bytes of the arguments of a kernel, each at a multiple of its width. */
static size_t bytes_of(const rn_triton_kernel *k) {
  size_t at = 0;
  for (int i = 0; i < k->count + k->hidden; i++)
    at = (at + width_of(k, i) - 1) / width_of(k, i) * width_of(k, i) + width_of(k, i);
  return at;
}

static size_t argument_bytes(const void *image, const char *entry) {
  const rn_triton_kernel *k = kernel_of(image);
  return k != NULL && strcmp(k->entry, entry) == 0 ? bytes_of(k) : 0;
}

static void use_driver(const char *path) {
  setenv("RMSNORM_HIP_DRIVER", path, 1);
}
static void open_fake(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    _exit(2);
  }
  fake = dlsym(library, "fake");
  fake->argument_bytes = argument_bytes;
}
static void use_fake(void) {
  use_driver(RN_FAKE_HIP);
  open_fake(RN_FAKE_HIP);
}

/* ------------------------------------------------------------------------------------------------------------------
 * No runtime, or one that is of no use. */

enum { ROW = 2 }; /* of the table of implementations */

static void expect_unsupported(const char *word) {
  for (int i = 0; i < CALLS; i++) {
    EXPECT(calls[i]() == RMSNORM_ERROR_UNSUPPORTED);
    EXPECT_ERROR(word);
  }
  EXPECT(strcmp(rmsnorm_impl_name(ROW), "triton-hip") == 0 && rmsnorm_impl_device(ROW) == RMSNORM_DEVICE_HIP);
  EXPECT(rmsnorm_impl_why_not(ROW) != NULL && strstr(rmsnorm_impl_why_not(ROW), word) != NULL);
  char text[2048];
  rmsnorm_forward_args a = forward_args(4, 64);
  EXPECT(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text) == RMSNORM_ERROR_UNSUPPORTED);
  EXPECT(strstr(text, word) != NULL && strstr(text, "runs on the CPU, the tensors are on a HIP device") != NULL);
  float x[64] = {1}, y[64];
  a.rows = 1, a.device = RMSNORM_DEVICE_CPU, a.weight = NULL;
  a.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, 64);
  a.y = rmsnorm_output(y, RMSNORM_DTYPE_F32, 64);
  EXPECT(rmsnorm_forward(&a, NULL) == RMSNORM_OK);
}

static void no_file(int number) {
  (void)number;
  use_driver("/nonexistent/libamdhip64.so");
  expect_unsupported("no HIP runtime where RMSNORM_HIP_DRIVER says: /nonexistent/libamdhip64.so");
}
static void other_file(int number) {
  (void)number;
  use_driver("libm.so.6");
  expect_unsupported("libm.so.6 is no HIP runtime");
}
static void old_runtime(int number) {
  (void)number;
  use_fake(), fake->version = 50731921;
  expect_unsupported("the HIP runtime is of ROCm 5.7, 6.0 or later is needed");
  EXPECT(fake->calls == 1);
}
static void lacks_entry(int number) {
  (void)number;
  use_driver(RN_FAKE_HIP_LACKING);
  expect_unsupported("the HIP runtime has no hipModuleLaunchKernel");
}
static void no_device(int number) {
  (void)number;
  use_fake(), fake->devices = 0;
  expect_unsupported("there is no HIP device, or HIP_VISIBLE_DEVICES");
}
static void init_fails(int number) {
  (void)number;
  use_fake(), fake->init_result = 999;
  expect_unsupported("the HIP runtime does not start: hipErrorUnknown (999)");
}
static void test_no_runtime(void **state) {
  (void)state;
  run_in_child(no_file);
  run_in_child(other_file);
  run_in_child(old_runtime);
  run_in_child(lacks_entry);
  run_in_child(no_device);
  run_in_child(init_fails);
}

/* A process that stays on the CPU never looks for a runtime; one that has mapped a runtime gets that one. */
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
  EXPECT(strstr(text, "triton-hip can not: runs on HIP devices, the tensors are on the CPU") != NULL);
  EXPECT(fake->calls == 0);
}
static void mapped(int number) {
  (void)number;
  unsetenv("RMSNORM_HIP_DRIVER");
  open_fake(RN_FAKE_HIP);
  EXPECT(forward() == RMSNORM_OK);
  EXPECT(fake->launches == 1);
}
static void test_which_runtime(void **state) {
  (void)state;
  run_in_child(cpu_only);
  run_in_child(mapped);
}

/* ------------------------------------------------------------------------------------------------------------------
 * What is queued. */

static void expect_values(const fake_hip_launch *l, int64_t rows, int64_t cols) {
  const rn_triton_kernel *k = kernel_of(l->image);
  EXPECT(k != NULL && l->bytes == bytes_of(k));
  size_t at = 0;
  for (int i = 0; k != NULL && i < k->count + k->hidden; i++) {
    const size_t width = width_of(k, i);
    uint64_t found = 0;
    at = (at + width - 1) / width * width;
    memcpy(&found, l->arguments + at, width);
    at += width;
    const int name = i < k->count ? k->parameters[i].name : -1;
    const uint64_t wanted = name < 0 ? 0 : expected_of_forward(name, rows, cols);
    if (name == RN_TRITON_scale_max) continue;
    if (found != wanted)
      fprintf(stderr, "%s, parameter %d (name %d): %llx, not %llx\n", k->name, i, name, (unsigned long long)found,
              (unsigned long long)wanted);
    EXPECT(found == wanted);
  }
}

static void marshalling(int number) {
  (void)number;
  use_fake();
  static const int64_t all[] = {64, 72, 77, 4096, 4100, 8192, 65536};
  for (int device = 0; device < 2; device++)
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
      const int64_t cols = all[i];
      fake->make_current(device);
      fake->launches = 0;
      rmsnorm_forward_args a = forward_args(33, cols);
      a.residual = rmsnorm_input(AT(8), RMSNORM_DTYPE_BF16, cols + 8);
      a.residual_out = rmsnorm_output(AT(9), RMSNORM_DTYPE_BF16, cols + 16);
      EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_OK);
      EXPECT(fake->launches == 1);
      const fake_hip_launch *l = &fake->launch[0];
      const rn_triton_kernel *k = kernel_of(l->image);
      const bool fast = cols % 8 == 0;
      EXPECT(k->family == (!fast          ? RN_TRITON_general_forward
                           : cols >= 8192 ? RN_TRITON_forward_long
                           : cols == 4096 ? RN_TRITON_forward_few
                                          : RN_TRITON_forward_row));
      EXPECT(l->device == device && l->stream == stream);
      EXPECT(l->blocks[1] == 1 && l->blocks[2] == 1 && l->threads[1] == 1 && l->threads[2] == 1);
      EXPECT(l->threads[0] == 64u * k->warps && l->shared == k->shared);
      const uint32_t of_block = k->family == RN_TRITON_forward_row ? (uint32_t)k->tile_rows : 1;
      EXPECT(l->blocks[0] == (33 + of_block - 1) / of_block);
      expect_values(l, 33, cols);
    }
  /* Each device has modules of its own. */
  EXPECT(fake->loads >= 8 && fake->loads % 2 == 0 && fake->unloads == 0);
  EXPECT(no_rows() == RMSNORM_OK && fake->memsets == 1);
  EXPECT(fake->memset8[0].at == AT(4) && fake->memset8[0].value == 0);
  EXPECT(fake->memset8[0].bytes == 4096 * 2 && fake->memset8[0].stream == stream);
}

/* Two devices of a kind: modules belong to the one that was current when they were loaded. */
static void twins(int number) {
  (void)number;
  use_fake();
  snprintf(fake->arch[1], sizeof fake->arch[1], "gfx942");
  for (int i = 0; i < 4; i++) {
    fake->make_current(i % 2);
    EXPECT(forward() == RMSNORM_OK && fake->launch[i].device == i % 2);
  }
  EXPECT(fake->loads == 2 && fake->launches == 4 && fake->launch[0].image == fake->launch[1].image);
}

/* Nothing is asked of the runtime but what is needed. */
static void steady_state(int number) {
  (void)number;
  use_fake();
  EXPECT(forward() == RMSNORM_OK);
  int before = fake->calls, launches = fake->launches;
  EXPECT(forward() == RMSNORM_OK);
  EXPECT(fake->launches == launches + 1);
  EXPECT(fake->calls - before == 3); /* the current device, to choose and to run; the launch */
}

static void preloading(int number) {
  (void)number;
  use_fake();
  EXPECT(preload() == RMSNORM_OK);
  EXPECT(fake->loads == kernels_for(0x942) && fake->functions == fake->loads);
  EXPECT(preload() == RMSNORM_OK && fake->loads == kernels_for(0x942));
  fake->make_current(1);
  EXPECT(preload() == RMSNORM_OK && fake->loads == kernels_for(0x942) + kernels_for(0x90a));
  /* From now on nothing is loaded any more: a capture sees launches only. */
  for (int i = 0; i < CALLS - 1; i++) {
    int before = fake->calls, queued = fake->launches + fake->memsets;
    EXPECT(calls[i]() == RMSNORM_OK);
    queued = fake->launches + fake->memsets - queued;
    EXPECT(fake->calls - before <= 2 + queued);
  }
}

static void other_gpus(int number) {
  static const char *const names[] = {"gfx1100", "gfx908:sramecc+:xnack-", "", "something else", "gfx942x", "gfx"};
  static const char *const said[] = {"gfx1100", "gfx908", "gfx0", "gfx0", "gfx0", "gfx0"};
  use_fake();
  snprintf(fake->arch[0], sizeof fake->arch[0], "%s", names[number]);
  rmsnorm_status (*const own[])(void) = {forward, stats, backward, preload};
  for (int i = 0; i < 4; i++) {
    EXPECT(own[i]() == RMSNORM_ERROR_UNSUPPORTED);
    EXPECT_ERROR("this build has Triton kernels for gfx90a gfx942 sm_100 sm_80 sm_90, and none for this GPU");
  }
  EXPECT_ERROR(said[number]);
  EXPECT(fake->loads == 0 && fake->launches == 0);
  fake->make_current(1);
  EXPECT(forward() == RMSNORM_OK);
}

/* A kernel that reads another number of bytes than the library hands over: the runtime's refusal is ours. */
static size_t one_more(const void *image, const char *entry) {
  return argument_bytes(image, entry) + 8;
}
static void argument_size(int number) {
  (void)number;
  use_fake(), fake->argument_bytes = one_more;
  EXPECT(forward() == RMSNORM_ERROR_DEVICE);
  EXPECT_ERROR("HIP: launching forward_few_");
  EXPECT_ERROR("hipErrorInvalidValue (1)");
}

static void test_calls(void **state) {
  (void)state;
  run_in_child(marshalling);
  run_in_child(twins);
  run_in_child(steady_state);
  run_in_child(preloading);
  for (int i = 0; i < 6; i++) assert_int_equal(in_child(other_gpus, i), 0);
  run_in_child(argument_size);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Failures: each call to the runtime fails once. */

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
    if (status == RMSNORM_ERROR_DEVICE) EXPECT_ERROR("hipErrorUnknown (999)");
    if (rmsnorm_impl_why_not(ROW) != NULL) opened = false;
  }
  if (fake->calls < number) _exit(failures == 0 ? NO_MORE : 1);
  EXPECT(refused <= 1 || (!opened && refused == CALLS));
  /* One may fail unnoticed: the choice looks at device 0 instead. */
  EXPECT(refused > 0 || strcmp(fake->failed_call, "hipGetDevice") == 0);
  fake->fail_at = 0;
  for (int i = 0; i < CALLS; i++) EXPECT(calls[i]() == (opened ? RMSNORM_OK : RMSNORM_ERROR_UNSUPPORTED));
  EXPECT(fake->loads - fake->unloads == (opened ? kernels_for(0x942) : 0));
}
static void test_failures(void **state) {
  (void)state;
  int number = 1, result;
  while ((result = in_child(failing, number)) == 0) number++;
  if (result != NO_MORE) fail_msg("call %d of the runtime", number);
  assert_true(number > 40);
  print_message("failures were injected into a sequence of %d calls of the runtime\n", number - 1);
}

static void hints(int number) {
  use_fake();
  EXPECT(rmsnorm_impl_why_not(ROW) == NULL);
  fake->fail_with = number;
  fake->fail_at = fake->calls + 4; /* twice the device, once its properties, the module */
  EXPECT(forward() == RMSNORM_ERROR_DEVICE);
  EXPECT(strcmp(fake->last_call, "hipModuleLoadData") == 0);
  EXPECT_ERROR("HIP: loading forward_few");
  if (number == 209) EXPECT_ERROR("hipErrorNoBinaryForGpu (209); the kernels of this build are not for this device");
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

enum { THREADS = 8 };
static pthread_barrier_t start;

static void *first_calls(void *context) {
  const int number = (int)(intptr_t)context;
  int wrong = 0;
  fake->make_current(number % FAKE_HIP_DEVICES);
  pthread_barrier_wait(&start);
  for (int i = 0; i < CALLS; i++) wrong += calls[(i + number) % CALLS]() != RMSNORM_OK;
  return (void *)(intptr_t)wrong;
}
static void together(int number) {
  (void)number;
  use_fake(), fake->load_us = 500;
  pthread_t thread[THREADS];
  pthread_barrier_init(&start, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, first_calls, (void *)(intptr_t)i);
  for (int i = 0; i < THREADS; i++) {
    void *wrong;
    pthread_join(thread[i], &wrong);
    EXPECT(wrong == NULL);
  }
  EXPECT(fake->loads - fake->unloads == kernels_for(0x942) + kernels_for(0x90a));
  EXPECT(fake->unloads > 0); /* there were threads that came too late */
}
static void test_threads(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) run_in_child(together);
}

int main(void) {
  calls_device = RMSNORM_DEVICE_HIP, breach_of_child = breach;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_runtime), cmocka_unit_test(test_which_runtime),
                                     cmocka_unit_test(test_calls),      cmocka_unit_test(test_failures),
                                     cmocka_unit_test(test_hints),      cmocka_unit_test(test_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
