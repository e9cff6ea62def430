/* test_emulated_driver.cpp - the emulated driver keeps the rules that programs can break: contexts, limits of launches,
 * capture, memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../../src/cuda/device.h"
#include "driver.h"
#include "expect.h"

#include <cstdlib>

#include <sys/wait.h>
#include <unistd.h>

struct params {
  float *x, *y;
  int n;
};
RN_KERNEL(add_one, params, 256) {
  rn_wait_for_previous();
  if (rn_thread() < p.n) p.y[rn_thread()] = p.x[rn_thread()] + 1;
}
RN_KERNEL(barrier_for_some, params, 256) {
  rn_wait_for_previous();
  if (rn_thread() > 3) rn_barrier();
}

typedef void *handle;
struct attribute {
  int32_t id;
  char pad[4];
  uint32_t value[16];
};
struct config {
  uint32_t blocks[3], threads[3], shared;
  handle stream;
  const attribute *attributes;
  uint32_t count;
};
extern "C" {
int cuInit(unsigned), cuDriverGetVersion(int *), cuDeviceGetCount(int *), cuDeviceGetAttribute(int *, int, int);
int cuDevicePrimaryCtxRetain(handle *, int), cuDevicePrimaryCtxRelease_v2(int), cuCtxCreate_v2(handle *, unsigned, int);
int cuCtxDestroy_v2(handle), cuCtxSetCurrent(handle), cuCtxGetCurrent(handle *), cuCtxGetDevice(int *);
int cuMemAlloc_v2(float **, size_t), cuMemFree_v2(void *), cuMemGetInfo_v2(size_t *, size_t *);
int cuMemcpyHtoD_v2(void *, const void *, size_t), cuMemcpyDtoH_v2(void *, const void *, size_t);
int cuMemcpyDtoDAsync_v2(void *, const void *, size_t, handle), cuMemsetD8_v2(void *, unsigned char, size_t);
int cuMemsetD8Async(void *, unsigned char, size_t, handle);
int cuLibraryLoadData(handle *, const void *, int *, void **, unsigned, int *, void **, unsigned);
int cuLibraryUnload(handle), cuLibraryGetKernel(handle *, handle, const char *), cuFuncLoad(handle);
int cuKernelGetFunction(handle *, handle), cuKernelSetAttribute(int, int, handle, int);
int cuLaunchKernelEx(const config *, handle, void **, void **);
int cuStreamCreate(handle *, unsigned), cuStreamDestroy_v2(handle), cuStreamSynchronize(handle);
int cuStreamBeginCapture_v2(handle, int), cuStreamEndCapture(handle, handle *);
int cuGraphInstantiateWithFlags(handle *, handle, unsigned long long), cuGraphLaunch(handle, handle);
int cuGraphExecDestroy(handle), cuGraphDestroy(handle);
int cuEventCreate(handle *, unsigned), cuEventRecord(handle, handle), cuEventElapsedTime(float *, handle, handle);
int cuEventDestroy_v2(handle), cuGetErrorName(int, const char **);
}

namespace {

handle library, kernel, broken;

int launch(handle which, const params &p, handle stream, uint32_t threads = 32, uint32_t blocks = 1,
           uint32_t in_cluster = 1, uint32_t shared = 0) {
  attribute cluster = {4, {}, {in_cluster, 1, 1}};
  const config c = {{blocks, 1, 1}, {threads, 1, 1}, shared, stream, &cluster, in_cluster > 1};
  params copy = p;
  void *list[] = {&copy};
  return cuLaunchKernelEx(&c, which, list, nullptr);
}

void test_contexts() {
  handle context, other;
  int device, count;
  float *at;
  EXPECT(cuDeviceGetCount(&count) == NOT_INITIALIZED);
  EXPECT(cuInit(0) == SUCCESS);
  EXPECT(cuDeviceGetCount(&count) == SUCCESS && count == 2);
  EXPECT(cuDeviceGetAttribute(&count, 16, 0) == SUCCESS && count == 132);
  EXPECT(cuCtxGetDevice(&device) == INVALID_CONTEXT);
  EXPECT(cuMemAlloc_v2(&at, 4) == INVALID_CONTEXT);
  EXPECT(cuDevicePrimaryCtxRetain(&context, 2) == INVALID_DEVICE);
  EXPECT(cuDevicePrimaryCtxRetain(&context, 1) == SUCCESS);
  EXPECT(cuCtxSetCurrent(context) == SUCCESS);
  EXPECT(cuCtxGetDevice(&device) == SUCCESS && device == 1);
  EXPECT(cuCtxCreate_v2(&other, 0, 0) == SUCCESS);
  EXPECT(cuCtxGetDevice(&device) == SUCCESS && device == 0);
  EXPECT(cuCtxDestroy_v2(other) == SUCCESS);
  EXPECT(cuCtxGetCurrent(&other) == SUCCESS && other == context);
  EXPECT(cuDevicePrimaryCtxRelease_v2(1) == SUCCESS);
  EXPECT(cuCtxSetCurrent(nullptr) == SUCCESS || cuCtxGetDevice(&device) == INVALID_CONTEXT);
}

void test_launches(const params &p) {
  float host[8] = {1, 2, 3, 4, 5, 6, 7, 8}, back[8];
  EXPECT(cuMemcpyHtoD_v2(p.x, host, sizeof host) == SUCCESS);
  EXPECT(cuMemcpyHtoD_v2(p.x, host, 33) == INVALID_VALUE);
  EXPECT(cuMemcpyDtoH_v2(back, host, 4) == INVALID_VALUE);
  EXPECT(launch(kernel, p, nullptr) == SUCCESS);
  EXPECT(cuMemcpyDtoH_v2(back, p.y, sizeof back) == SUCCESS);
  for (int i = 0; i < 8; i++) EXPECT(back[i] == host[i] + 1);
  EXPECT(launch(kernel, p, nullptr, 257) == OUT_OF_RESOURCES);
  EXPECT(launch(kernel, p, nullptr, 1025) == INVALID_VALUE);
  EXPECT(launch(kernel, p, nullptr, 32, 0) == INVALID_VALUE);
  EXPECT(launch(kernel, p, nullptr, 32, 1, 1, 48 * 1024 + 1) == INVALID_VALUE);
  EXPECT(cuKernelSetAttribute(8, 227 * 1024 + 1, kernel, 0) == INVALID_VALUE);
  EXPECT(cuKernelSetAttribute(8, 227 * 1024, kernel, 0) == SUCCESS);
  EXPECT(launch(kernel, p, nullptr, 32, 1, 1, 227 * 1024) == SUCCESS);
  EXPECT(launch(kernel, p, nullptr, 32, 6, 4) == INVALID_CLUSTER_SIZE);
  EXPECT(launch(kernel, p, nullptr, 32, 16, 16) == INVALID_CLUSTER_SIZE);
  EXPECT(cuKernelSetAttribute(14, 1, kernel, 0) == SUCCESS);
  EXPECT(launch(kernel, p, nullptr, 32, 16, 16) == SUCCESS);
  EXPECT(launch(broken, p, nullptr) == LAUNCH_FAILED);
  EXPECT(launch(kernel, {host, p.y, 8}, nullptr) == SUCCESS); /* plain accesses to memory of the host are not seen */
#ifndef RN_EMULATED_ASAN                                      /* which ends the program, with a report of its own */
  EXPECT(launch(kernel, {p.x, p.y, 128}, nullptr, 256) == LAUNCH_FAILED);
#endif
  EXPECT(cuLibraryGetKernel(&library, nullptr, "add_one") == INVALID_HANDLE);
}

void test_capture(const params &p) {
  handle stream, graph, ready, event, function;
  float host[8] = {}, back[8], *at;
  EXPECT(cuStreamCreate(&stream, 1) == SUCCESS && cuEventCreate(&event, 0) == SUCCESS);
  EXPECT(cuMemcpyHtoD_v2(p.x, host, sizeof host) == SUCCESS);
  EXPECT(cuStreamBeginCapture_v2(stream, 0) == SUCCESS);
  EXPECT(cuMemsetD8Async(p.y, 0, 32, stream) == SUCCESS);
  EXPECT(launch(kernel, p, stream) == SUCCESS);
  EXPECT(cuMemcpyDtoDAsync_v2(p.x, p.y, 32, stream) == SUCCESS);
  EXPECT(cuStreamEndCapture(stream, &graph) == SUCCESS);
  EXPECT(cuMemcpyDtoH_v2(back, p.x, sizeof back) == SUCCESS && back[0] == 0);
  EXPECT(cuGraphInstantiateWithFlags(&ready, graph, 0) == SUCCESS && cuGraphDestroy(graph) == SUCCESS);
  for (int times = 1; times <= 3; times++) {
    EXPECT(cuGraphLaunch(ready, stream) == SUCCESS);
    EXPECT(cuMemcpyDtoH_v2(back, p.x, sizeof back) == SUCCESS && back[7] == (float)times);
  }
  EXPECT(cuGraphExecDestroy(ready) == SUCCESS);

  /* What a capture forbids makes it invalid. */
  EXPECT(cuStreamBeginCapture_v2(stream, 0) == SUCCESS);
  EXPECT(cuMemAlloc_v2(&at, 4) == CAPTURE_UNSUPPORTED);
  EXPECT(launch(kernel, p, stream) == CAPTURE_INVALIDATED);
  EXPECT(cuStreamEndCapture(stream, &graph) == CAPTURE_INVALIDATED && !graph);
  EXPECT(cuStreamBeginCapture_v2(stream, 0) == SUCCESS);
  EXPECT(cuStreamSynchronize(stream) == CAPTURE_UNSUPPORTED);
  EXPECT(cuStreamEndCapture(stream, &graph) == CAPTURE_INVALIDATED);
  EXPECT(cuStreamEndCapture(stream, &graph) == CAPTURE_UNMATCHED);

  /* A kernel that this context has not loaded. */
  handle context, other_stream;
  EXPECT(cuCtxCreate_v2(&context, 0, 0) == SUCCESS && cuStreamCreate(&other_stream, 1) == SUCCESS);
  EXPECT(launch(kernel, p, stream) == INVALID_HANDLE); /* a stream of the first context */
  EXPECT(launch(kernel, p, nullptr) == LAUNCH_FAILED); /* memory of the first context */
  EXPECT(cuStreamDestroy_v2(other_stream) == SUCCESS && cuCtxDestroy_v2(context) == SUCCESS);
  EXPECT(cuCtxCreate_v2(&context, 0, 0) == SUCCESS && cuStreamCreate(&other_stream, 1) == SUCCESS);
  EXPECT(cuStreamBeginCapture_v2(other_stream, 0) == SUCCESS);
  EXPECT(launch(kernel, p, other_stream) == CAPTURE_UNSUPPORTED);
  EXPECT(cuStreamEndCapture(other_stream, &graph) == CAPTURE_INVALIDATED);
  EXPECT(cuKernelGetFunction(&function, kernel) == SUCCESS && cuFuncLoad(function) == SUCCESS);
  EXPECT(cuStreamBeginCapture_v2(other_stream, 0) == SUCCESS);
  EXPECT(launch(kernel, p, other_stream) == SUCCESS);
  EXPECT(cuStreamEndCapture(other_stream, &graph) == SUCCESS && cuGraphDestroy(graph) == SUCCESS);
  EXPECT(cuStreamDestroy_v2(other_stream) == SUCCESS && cuCtxDestroy_v2(context) == SUCCESS);
  EXPECT(cuStreamDestroy_v2(stream) == SUCCESS && cuStreamDestroy_v2(stream) == INVALID_HANDLE);
  EXPECT(cuEventDestroy_v2(event) == SUCCESS);
}

/* A host program that reads memory of the device is stopped, and told why. */
void test_host_access(const params &p) {
  fflush(stdout);
  const pid_t child = fork();
  if (!child) {
    volatile float v = p.x[0];
    _exit(v == 0 ? 0 : 1);
  }
  int status;
  waitpid(child, &status, 0);
  EXPECT(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) > 1));
}

} // namespace

int main() {
  setenv("RMSNORM_EMULATED_DEVICES", "2", 1);
  test_contexts();
  handle context;
  params p = {nullptr, nullptr, 8};
  EXPECT(cuCtxCreate_v2(&context, 0, 0) == SUCCESS);
  EXPECT(cuLibraryLoadData(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0) == INVALID_VALUE);
  EXPECT(cuLibraryLoadData(&library, "an image", nullptr, nullptr, 0, nullptr, nullptr, 0) == SUCCESS);
  EXPECT(cuLibraryGetKernel(&kernel, library, "unheard_of") == NOT_FOUND);
  EXPECT(cuLibraryGetKernel(&kernel, library, "add_one") == SUCCESS);
  EXPECT(cuLibraryGetKernel(&broken, library, "barrier_for_some") == SUCCESS);
  EXPECT(cuMemAlloc_v2(&p.x, 32) == SUCCESS && cuMemAlloc_v2(&p.y, 32) == SUCCESS);
  const handle used = library;
  test_launches(p);
  test_capture(p);
  test_host_access(p);
  size_t available, total;
  EXPECT(cuMemFree_v2(p.x) == SUCCESS && cuMemFree_v2(p.x) == INVALID_VALUE && cuMemFree_v2(p.y) == SUCCESS);
  EXPECT(cuMemGetInfo_v2(&available, &total) == SUCCESS && available == total);
  EXPECT(cuLibraryUnload(used) == SUCCESS);
  EXPECT(cuCtxDestroy_v2(context) == SUCCESS);
  printf("test_emulated_driver: %d failures\n", failures);
  return failures != 0;
}
