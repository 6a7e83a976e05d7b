// SPDX-License-Identifier: Apache-2.0
// Memory, copies and clock of the device that a backend runs on, so that a verb is written once for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace keysieve::cli {

/// What a benchmark result says about a device.
struct DeviceDescription {
  std::string name;     // "NVIDIA H200"; empty for the host
  int32_t sms = 0;      // multiprocessors
  std::string driver;   // of the CUDA driver
  std::string toolkit;  // of the CUDA runtime
};

/// All functions throw Failure.  Work is enqueued on stream(), which is null on the host.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  [[nodiscard]] virtual bool is_host() const noexcept = 0;
  [[nodiscard]] virtual DeviceDescription describe() const = 0;
  [[nodiscard]] virtual void* stream() const noexcept = 0;

  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;

  /// Sets every byte; on the stream.
  virtual void fill(void* memory, int value, size_t bytes) = 0;

  /// Device time of what `enqueue` puts on the stream, in milliseconds.
  virtual double time_ms(const std::function<void()>& enqueue) = 0;

  /// Device time of one `enqueue`, measured over a graph of `calls` of them.  On the host: one call after another.
  virtual double time_graph_ms(const std::function<void()>& enqueue, int calls) = 0;
};

/// device_type as in enum keysieve_device_type.
std::unique_ptr<Device> open_device(int32_t device_type, int32_t device_index);

/// Memory of a device, released with the object.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device& device, size_t bytes) : device_(&device), memory_(device.allocate(bytes)), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() {
    if (memory_ != nullptr) {
      device_->release(memory_);
    }
  }

  [[nodiscard]] void* data() const { return memory_; }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  void upload(const void* from) { device_->upload(memory_, from, bytes_); }
  void download(void* to) const { device_->download(to, memory_, bytes_); }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
  }

  Device* device_ = nullptr;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace keysieve::cli
