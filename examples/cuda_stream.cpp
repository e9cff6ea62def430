// cuda_stream.cpp - the norm from C++, on a stream of CUDA, with the bits of the CPU.
//
// The library takes plain pointers: make the context current, hand over device pointers and the stream, and the work is
// queued there. A program with the CUDA runtime writes cudaMalloc, cudaMemcpyAsync and cudaStream_t here; this one asks
// the driver itself, so that it builds and runs on machines without CUDA as well, where it says so and stays on the
// CPU.
//
// SPDX-License-Identifier: Apache-2.0
#include "rmsnorm.h"

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int rows = 8, cols = 4096;

// The few functions of the driver that this needs, and a context and a stream that go away by themselves.
class Device {
public:
  Device() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    int count = 0, device = 0;
    if (library_ == nullptr || call<int(unsigned)>("cuInit")(0) != 0 ||
        call<int(int *)>("cuDeviceGetCount")(&count) != 0 || count == 0)
      return;
    void *context = nullptr;
    check(call<int(int *, int)>("cuDeviceGet")(&device, 0));
    check(call<int(void **, int)>("cuDevicePrimaryCtxRetain")(&context, device));
    check(call<int(void *)>("cuCtxSetCurrent")(context));
    check(call<int(void **, unsigned)>("cuStreamCreate")(&stream_, 0));
    there_ = true;
  }
  ~Device() {
    for (unsigned long long memory : memories_) call<int(unsigned long long)>("cuMemFree_v2")(memory);
    if (there_) call<int(void *)>("cuStreamDestroy_v2")(stream_);
  }
  Device(const Device &) = delete;
  Device &operator=(const Device &) = delete;

  bool there() const { return there_; }
  void *stream() const { return stream_; }

  void *memory(const void *from, size_t bytes) {
    unsigned long long at = 0;
    check(call<int(unsigned long long *, size_t)>("cuMemAlloc_v2")(&at, bytes));
    memories_.push_back(at);
    if (from != nullptr) check(call<int(unsigned long long, const void *, size_t)>("cuMemcpyHtoD_v2")(at, from, bytes));
    return reinterpret_cast<void *>(at);
  }
  void fetch(void *to, const void *from, size_t bytes) {
    check(call<int(void *)>("cuStreamSynchronize")(stream_));
    check(call<int(void *, unsigned long long, size_t)>("cuMemcpyDtoH_v2")(
        to, reinterpret_cast<unsigned long long>(from), bytes));
  }

private:
  template <typename Function> Function *call(const char *name) {
    return reinterpret_cast<Function *>(dlsym(library_, name));
  }
  static void check(int result) {
    if (result != 0) throw std::runtime_error("the driver said " + std::to_string(result));
  }

  void *library_;
  void *stream_ = nullptr;
  bool there_ = false;
  std::vector<unsigned long long> memories_;
};

void norm(const float *x, const float *weight, float *y, int32_t device, void *stream) {
  rmsnorm_forward_args args = RMSNORM_FORWARD_ARGS_INIT;
  args.rows = rows;
  args.cols = cols;
  args.eps = 1e-6;
  args.x = rmsnorm_input(x, RMSNORM_DTYPE_F32, cols);
  args.weight = weight;
  args.weight_dtype = RMSNORM_DTYPE_F32;
  args.y = rmsnorm_output(y, RMSNORM_DTYPE_F32, cols);
  args.device = device;
  if (rmsnorm_forward(&args, stream) != RMSNORM_OK) throw std::runtime_error(rmsnorm_last_error());
}

} // namespace

int main() try {
  std::vector<float> x(rows * cols), weight(cols, 0.5f), y(rows * cols), from_device(rows * cols);
  for (size_t i = 0; i < x.size(); i++)
    x[i] = static_cast<float>(static_cast<int>(i * 2654435761u % 2001) - 1000) / 256;
  norm(x.data(), weight.data(), y.data(), RMSNORM_DEVICE_CPU, nullptr);
  std::printf("on the CPU: %.4f %.4f ...\n", y[0], y[1]);

  Device device;
  if (!device.there()) {
    std::printf("no CUDA device here: that was all\n");
    return 0;
  }
  if (rmsnorm_preload(RMSNORM_DEVICE_CUDA) != RMSNORM_OK) {
    std::printf("a device, but %s\n", rmsnorm_last_error());
    return 0;
  }
  const auto *device_x = static_cast<const float *>(device.memory(x.data(), x.size() * sizeof(float)));
  const auto *device_weight = static_cast<const float *>(device.memory(weight.data(), weight.size() * sizeof(float)));
  auto *device_y = static_cast<float *>(device.memory(nullptr, y.size() * sizeof(float)));
  norm(device_x, device_weight, device_y, RMSNORM_DEVICE_CUDA, device.stream());
  device.fetch(from_device.data(), device_y, y.size() * sizeof(float));
  const bool same = std::memcmp(y.data(), from_device.data(), y.size() * sizeof(float)) == 0;
  std::printf("on the device: %s\n", same ? "the same bits" : "OTHER BITS");
  return same ? 0 : 1;
} catch (const std::exception &problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
