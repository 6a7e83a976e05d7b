// SPDX-License-Identifier: Apache-2.0
// Errors and the current device of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "core/status.hpp"

namespace keysieve::cuda {

/// The error as a Status, taken off the runtime so that the caller's next call does not see it.
inline Status status_of(cudaError_t error, const char* what) noexcept {
  if (error == cudaSuccess) {
    return {};
  }
  (void)cudaGetLastError();
  return Status::error(KEYSIEVE_DEVICE_ERROR, "%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

#define KEYSIEVE_RETURN_IF_CUDA_ERROR(expression) \
  KEYSIEVE_RETURN_IF_ERROR(::keysieve::cuda::status_of((expression), #expression))

/// Makes a device current and puts the one before back.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) noexcept {
    status_ = status_of(cudaGetDevice(&previous_), "cudaGetDevice");
    if (status_.ok() && previous_ != device) {
      status_ = status_of(cudaSetDevice(device), "cudaSetDevice");
      restore_ = true;
    }
  }
  ~DeviceGuard() {
    if (restore_ && cudaSetDevice(previous_) != cudaSuccess) {
      (void)cudaGetLastError();
    }
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  [[nodiscard]] const Status& status() const noexcept { return status_; }

 private:
  Status status_;
  int previous_ = 0;
  bool restore_ = false;
};

}  // namespace keysieve::cuda
