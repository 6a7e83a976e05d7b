// SPDX-License-Identifier: Apache-2.0
#include "device_buffers.hpp"

#include <chrono>
#include <cstring>
#include <new>

#include "failure.hpp"
#include "keysieve/keysieve.h"

namespace keysieve::cli {
namespace {

constexpr std::align_val_t kHostAlignment{64};

class HostDevice final : public Device {
 public:
  [[nodiscard]] bool is_host() const noexcept override { return true; }
  [[nodiscard]] DeviceDescription describe() const override { return {}; }
  [[nodiscard]] void* stream() const noexcept override { return nullptr; }

  void* allocate(size_t bytes) override { return ::operator new(bytes, kHostAlignment); }
  void release(void* memory) noexcept override { ::operator delete(memory, kHostAlignment); }
  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }

  void fill(void* memory, int value, size_t bytes) override { std::memset(memory, value, bytes); }

  double time_ms(const std::function<void()>& enqueue) override {
    const auto start = std::chrono::steady_clock::now();
    enqueue();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  double time_graph_ms(const std::function<void()>& enqueue, int calls) override {
    return time_ms([&] {
             for (int i = 0; i < calls; ++i) {
               enqueue();
             }
           }) /
           calls;
  }

 private:
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }
};

}  // namespace

#if defined(KEYSIEVE_WITH_CUDA)
std::unique_ptr<Device> open_cuda_device(int32_t device_index);
#endif

std::unique_ptr<Device> open_device(int32_t device_type, [[maybe_unused]] int32_t device_index) {
  if (device_type == KEYSIEVE_CPU) {
    return std::make_unique<HostDevice>();
  }
#if defined(KEYSIEVE_WITH_CUDA)
  return open_cuda_device(device_index);
#else
  throw Failure(kExitUnavailable, "device", "this keysieve was built without CUDA");
#endif
}

}  // namespace keysieve::cli
