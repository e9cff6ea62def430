/* test_triton_host.c - the host side of the Triton backend on NVIDIA GPUs against a driver that writes everything down
 * (fake_driver.c), with a table of kernels that do not exist (triton_fixture.py), in a build without hand CUDA kernels.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "child.h"
#include "fake_driver.h"
#include "triton_calls.h"

#include <dlfcn.h>
#include <pthread.h>

static fake_driver *fake;
static const char *breach(void) {
  return fake != NULL ? fake->breach : "";
}

static size_t width(const void *image, const char *entry, size_t i) {
  const rn_triton_kernel *k = kernel_of(image);
  if (k == NULL || strcmp(k->entry, entry) != 0 || i >= (size_t)k->count + k->hidden) return 0;
  return width_of(k, (int)i);
}

/* With device 0 current: 9.0; device 1 is an 8.9, which takes the kernels for 8.0. */
static void use_fake(void) {
  setenv("RMSNORM_CUDA_DRIVER", RN_FAKE_DRIVER, 1);
  void *library = dlopen(RN_FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    _exit(2);
  }
  fake = dlsym(library, "fake");
  fake->width = width;
  fake->make_current(0);
}

enum { ROW = 1 }; /* of the table of implementations */

/* ------------------------------------------------------------------------------------------------------------------
 * Without hand CUDA kernels Triton is what runs. */

static void no_driver(int number) {
  (void)number;
  setenv("RMSNORM_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1);
  for (int i = 0; i < CALLS; i++) {
    EXPECT(calls[i]() == RMSNORM_ERROR_UNSUPPORTED);
    EXPECT_ERROR("no CUDA driver where RMSNORM_CUDA_DRIVER says");
  }
}
static void choice(int number) {
  (void)number;
  use_fake();
  char text[2048];
  const char *name = NULL;
  rmsnorm_forward_args a = forward_args(4, 64);
  EXPECT(strcmp(rmsnorm_impl_name(ROW), "triton") == 0 && rmsnorm_impl_device(ROW) == RMSNORM_DEVICE_CUDA);
  EXPECT(rmsnorm_impl_why_not(ROW) == NULL && rmsnorm_impl_why_not(0) != NULL);
  EXPECT(rmsnorm_impl_for(RMSNORM_OP_FORWARD, &a, &name) == RMSNORM_OK && strcmp(name, "triton") == 0);
  EXPECT(rmsnorm_explain(RMSNORM_OP_FORWARD, &a, text, sizeof text) == RMSNORM_OK);
  EXPECT(strstr(text, "triton     runs: the first that takes this\n") != NULL);
  EXPECT(strstr(text, "cuda       can not: this build has no CUDA kernels") != NULL);
  EXPECT(strstr(text, "triton-hip can not: runs on HIP devices, the tensors are on a CUDA device") != NULL);
  a.impl = "triton";
  EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_OK && fake->launches == 1);
  a.impl = "triton-hip";
  EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_ERROR_UNSUPPORTED);
  a.impl = NULL, a.x.dtype = a.y.dtype = a.weight_dtype = RMSNORM_DTYPE_F64;
  EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_ERROR_UNSUPPORTED);
  EXPECT_ERROR("\"triton\": x is f64: only portable takes it");
  fake->make_current(-1);
  EXPECT(forward() == RMSNORM_ERROR_DEVICE);
  EXPECT_ERROR("CUDA_ERROR_INVALID_CONTEXT (201); a CUDA context has to be current in the calling thread");
}
static void other_gpu(int number) {
  use_fake(), fake->major[0] = number;
  rmsnorm_status (*const own[])(void) = {forward, stats, backward, preload};
  for (int i = 0; i < 4; i++) {
    EXPECT(own[i]() == RMSNORM_ERROR_UNSUPPORTED);
    EXPECT_ERROR(number < 8 ? "has compute capability 7.0, 8.0 or later is needed" : "RMSNORM_TRITON_TARGETS");
  }
  EXPECT(fake->loads == 0 && fake->launches == 0);
}
static void test_choice(void **state) {
  (void)state;
  run_in_child(no_driver);
  run_in_child(choice);
  assert_int_equal(in_child(other_gpu, 12), 0);
  assert_int_equal(in_child(other_gpu, 11), 0);
}

/* ------------------------------------------------------------------------------------------------------------------
 * What is queued. */

static void expect_values(const fake_launch *l, int64_t rows, int64_t cols) {
  const rn_triton_kernel *k = kernel_of(l->image);
  EXPECT(k != NULL);
  for (int i = 0; k != NULL && i < k->count + k->hidden; i++) {
    uint64_t found;
    memcpy(&found, l->params + 8 * i, sizeof found);
    const int name = i < k->count ? k->parameters[i].name : -1;
    if (name == RN_TRITON_scale_max) continue;
    const uint64_t wanted = name < 0 ? 0 : expected_of_forward(name, rows, cols);
    if (found != wanted)
      fprintf(stderr, "%s, parameter %d (name %d): %llx, not %llx\n", k->name, i, name, (unsigned long long)found,
              (unsigned long long)wanted);
    EXPECT(found == wanted);
  }
}

static void marshalling(int number) {
  use_fake(), fake->version = number;
  static const int64_t all[] = {64, 72, 77, 4096, 4100, 8192, 65536};
  for (int device = 0; device < 2; device++)
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
      const int64_t cols = all[i];
      fake->make_current(device);
      fake->launches = 0;
      const rmsnorm_launch wishes = {1, 0, NULL};
      rmsnorm_forward_args a = forward_args(33, cols);
      a.residual = rmsnorm_input(AT(8), RMSNORM_DTYPE_BF16, cols + 8);
      a.residual_out = rmsnorm_output(AT(9), RMSNORM_DTYPE_BF16, cols + 16);
      a.launch = &wishes;
      EXPECT(rmsnorm_forward(&a, stream) == RMSNORM_OK && fake->launches == 1);
      const fake_launch *l = &fake->launch[0];
      const rn_triton_kernel *k = kernel_of(l->image);
      EXPECT(k->family == (cols % 8 != 0  ? RN_TRITON_general_forward
                           : cols >= 8192 ? RN_TRITON_forward_long
                           : cols == 4096 ? RN_TRITON_forward_few
                                          : RN_TRITON_forward_row));
      EXPECT(l->device == device && l->stream == stream);
      EXPECT(l->blocks[1] == 1 && l->blocks[2] == 1 && l->threads[1] == 1 && l->threads[2] == 1);
      EXPECT(l->threads[0] == 32u * k->warps && l->shared == k->shared && strcmp(l->kernel, k->entry) == 0);
      const uint32_t of_block = k->family == RN_TRITON_forward_row ? (uint32_t)k->tile_rows : 1;
      EXPECT(l->blocks[0] == (33 + of_block - 1) / of_block);
      /* These kernels make no promise to wait, so they are never launched early. */
      EXPECT(l->attributes == 0 && l->dependent == 0 && l->cluster == 1);
      expect_values(l, 33, cols);
    }
  EXPECT(fake->attributes_set[0] == 2 && fake->attributes_set[1] == 2); /* the kernels with more than 48 KiB */
  EXPECT(no_rows() == RMSNORM_OK && fake->memsets == 1);
  EXPECT(fake->memset8[0].at == (uintptr_t)AT(4) && fake->memset8[0].value == 0);
  EXPECT(fake->memset8[0].bytes == 4096 * 2 && fake->memset8[0].stream == stream);
  fake->launches = 0;
  EXPECT(backward() == RMSNORM_OK && fake->launches == 2);
  EXPECT(strcmp(fake->launch[0].kernel, "backward_rows") == 0 && strcmp(fake->launch[1].kernel, "dweight_sum") == 0);
  fake->launches = 0;
  EXPECT(stats() == RMSNORM_OK && fake->launches == 1 && strcmp(fake->launch[0].kernel, "general_forward") == 0);
}

/* Nothing is asked of the driver but what is needed, and nothing that would change what is current, allocate or wait
 * (test_cuda_host holds the whole list). */
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
  use_fake(), fake->version = number;
  EXPECT(preload() == RMSNORM_OK);
  EXPECT(fake->loads == kernels_for(90) && fake->functions_loaded == fake->loads);
  EXPECT(preload() == RMSNORM_OK && fake->loads == kernels_for(90));
  for (int i = 0; i < CALLS - 1; i++) {
    int before = fake->calls, queued = fake->launches + fake->memsets;
    EXPECT(calls[i]() == RMSNORM_OK);
    queued = fake->launches + fake->memsets - queued;
    EXPECT(fake->calls - before <= 2 + queued);
  }
}

/* Binaries that take other parameters than the manifest says: one wider, one more, one less. */
static int wrong_way;
static size_t wrong_width(const void *image, const char *entry, size_t i) {
  const size_t right = width(image, entry, i);
  if (wrong_way == 0) return i == 3 && right != 0 ? 12 - right : right;
  if (wrong_way == 1) return right != 0 || i == 0 || width(image, entry, i - 1) == 0 ? right : 8;
  return width(image, entry, i + 1) != 0 ? right : 0;
}
static void parameters_differ(int number) {
  use_fake();
  wrong_way = number, fake->width = wrong_width;
  EXPECT(forward() == RMSNORM_ERROR_DEVICE);
  EXPECT_ERROR(number == 1 ? "has more parameters than its manifest" : "is not the one of its manifest");
  EXPECT(fake->launches == 0);
}

static void test_calls(void **state) {
  (void)state;
  assert_int_equal(in_child(marshalling, 12000), 0);
  assert_int_equal(in_child(marshalling, 12040), 0);
  run_in_child(steady_state);
  assert_int_equal(in_child(preloading, 12000), 0);
  assert_int_equal(in_child(preloading, 13000), 0);
  for (int i = 0; i < 3; i++) assert_int_equal(in_child(parameters_differ, i), 0);
}

/* ------------------------------------------------------------------------------------------------------------------
 * Failures: each call to the driver fails once. */

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
    if (rmsnorm_impl_why_not(ROW) != NULL) opened = false;
  }
  if (fake->calls < number) _exit(failures == 0 ? NO_MORE : 1);
  EXPECT(refused <= 1 || (!opened && refused == CALLS));
  /* Three may fail unnoticed: the choice looks at device 0 instead, two entry points have a substitute, and past the
   * last parameter an error is what is expected. */
  EXPECT(refused > 0 || strcmp(fake->failed_call, "cuCtxGetDevice") == 0 ||
         strcmp(fake->failed_call, "cuKernelGetParamInfo") == 0 ||
         (strcmp(fake->failed_call, "cuGetProcAddress_v2") == 0 && rmsnorm_impl_why_not(ROW) == NULL));
  fake->fail_at = 0;
  for (int i = 0; i < CALLS; i++) EXPECT(calls[i]() == (opened ? RMSNORM_OK : RMSNORM_ERROR_UNSUPPORTED));
  EXPECT(fake->loads - fake->unloads == (opened ? kernels_for(90) : 0));
}
static void test_failures(void **state) {
  (void)state;
  /* Of the many calls that ask for parameters one after the other, every twenty-ninth. */
  int number = 1, result;
  while ((result = in_child(failing, number)) == 0) number += number < 120 ? 1 : 29;
  if (result != NO_MORE) fail_msg("call %d of the driver", number);
  assert_true(number > 100);
  print_message("failures were injected into a sequence of %d calls of the driver\n", number - 1);
}

/* ------------------------------------------------------------------------------------------------------------------
 * First calls from many threads at once, on two devices. */

enum { THREADS = 8 };
static pthread_barrier_t start;

static void *first_calls(void *context) {
  const int number = (int)(intptr_t)context;
  int wrong = 0;
  fake->make_current(number % FAKE_DEVICES);
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
  EXPECT(fake->loads - fake->unloads == kernels_for(80) + kernels_for(90));
  EXPECT(fake->unloads > 0); /* there were threads that came too late */
}
static void test_threads(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) run_in_child(together);
}

int main(void) {
  calls_device = RMSNORM_DEVICE_CUDA, breach_of_child = breach;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_choice), cmocka_unit_test(test_calls),
                                     cmocka_unit_test(test_failures), cmocka_unit_test(test_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
