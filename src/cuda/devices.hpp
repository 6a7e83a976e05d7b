// SPDX-License-Identifier: Apache-2.0
// The CUDA devices of the process.
#pragma once

#include <array>
#include <cstdint>

#include "core/status.hpp"
#include "cuda/device_info.hpp"

namespace keysieve::cuda {

/// What the runtime says of the devices, asked once a process: it does not change, and the queries would cost a small
/// call more than its launch.
class Devices {
 public:
  static const Devices& get() noexcept;

  /// Why there is no device, if there is none.
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  [[nodiscard]] int32_t count() const noexcept { return count_; }
  [[nodiscard]] const DeviceInfo& operator[](int32_t index) const noexcept {
    return devices_[static_cast<size_t>(index)];
  }

 private:
  Devices() noexcept;
  Status read() noexcept;

  static constexpr int32_t kMaxDevices = 64;
  Status status_;
  int32_t count_ = 0;
  std::array<DeviceInfo, kMaxDevices> devices_;
};

/// The device of a problem, if its kernels run there.
[[nodiscard]] Status find_device(int32_t index, DeviceInfo* device) noexcept;

}  // namespace keysieve::cuda
