// SPDX-License-Identifier: Apache-2.0
#include "cuda/devices.hpp"

#include <algorithm>
#include <cuda_runtime_api.h>

#include "cuda/raii.hpp"

namespace keysieve::cuda {
namespace {

Status read_device(int32_t index, DeviceInfo* device) noexcept {
  int shared_bytes = 0;
  device->index = index;
  KEYSIEVE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&device->compute_major, cudaDevAttrComputeCapabilityMajor, index));
  KEYSIEVE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&device->compute_minor, cudaDevAttrComputeCapabilityMinor, index));
  KEYSIEVE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&device->num_sms, cudaDevAttrMultiProcessorCount, index));
  KEYSIEVE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  device->max_shared_bytes = static_cast<size_t>(shared_bytes);
  return {};
}

}  // namespace

Devices::Devices() noexcept {
  status_ = read();
  if (!status_.ok()) {
    count_ = 0;
  }
}

Status Devices::read() noexcept {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess && error != cudaErrorNoDevice) {
    (void)cudaGetLastError();
    return Status::error(KEYSIEVE_UNAVAILABLE, "no usable CUDA driver: %s", cudaGetErrorString(error));
  }
  if (error == cudaErrorNoDevice || count == 0) {
    (void)cudaGetLastError();
    return Status::error(KEYSIEVE_UNAVAILABLE, "no CUDA device");
  }
  count_ = std::min(count, kMaxDevices);
  for (int32_t index = 0; index < count_; ++index) {
    KEYSIEVE_RETURN_IF_ERROR(read_device(index, &devices_[static_cast<size_t>(index)]));
  }
  return {};
}

const Devices& Devices::get() noexcept {
  static const Devices devices;
  return devices;
}

Status find_device(int32_t index, DeviceInfo* device) noexcept {
  const Devices& devices = Devices::get();
  KEYSIEVE_RETURN_IF_ERROR(devices.status());
  if (index < 0 || index >= devices.count()) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "device_index is %d, expected 0..%d", index, devices.count() - 1);
  }
  *device = devices[index];
  if (!device->is_sm90()) {
    return Status::error(KEYSIEVE_UNSUPPORTED,
                         "CUDA device %d has compute capability %d.%d; the kernels need 9.0 (Hopper)", index,
                         device->compute_major, device->compute_minor);
  }
  return {};
}

}  // namespace keysieve::cuda
