// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: finds the device, picks the kernel family, restores the caller's device.
#include <cstdio>
#include <cuda_runtime_api.h>
#include <iterator>

#include "core/backend.hpp"
#include "cuda/kernels.hpp"
#include "cuda/pointer_check.hpp"
#include "cuda/raii.hpp"

namespace keysieve {
namespace {

using cuda::DeviceInfo;
using cuda::KernelFamily;

Status read_device(int32_t index, DeviceInfo* device) noexcept {
  int major = 0;
  int minor = 0;
  int num_sms = 0;
  int shared_bytes = 0;
  KEYSIEVE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  KEYSIEVE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  KEYSIEVE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, index));
  KEYSIEVE_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  device->index = index;
  device->compute_major = major;
  device->compute_minor = minor;
  device->num_sms = num_sms;
  device->max_shared_bytes = static_cast<size_t>(shared_bytes);
  return {};
}

/// Number of devices, or why there is none.
Status count_devices(int* count) noexcept {
  *count = 0;
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    *count = 0;
    if (error == cudaErrorNoDevice) {
      return Status::error(KEYSIEVE_UNAVAILABLE, "no CUDA device");
    }
    return Status::error(KEYSIEVE_UNAVAILABLE, "no usable CUDA driver: %s", cudaGetErrorString(error));
  }
  return *count > 0 ? Status{} : Status::error(KEYSIEVE_UNAVAILABLE, "no CUDA device");
}

/// The device of a problem, if its kernels run there.
Status find_device(int32_t index, DeviceInfo* device) noexcept {
  int count = 0;
  KEYSIEVE_RETURN_IF_ERROR(count_devices(&count));
  if (index < 0 || index >= count) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "device_index is %d, expected 0..%d", index, count - 1);
  }
  KEYSIEVE_RETURN_IF_ERROR(read_device(index, device));
  if (!device->is_sm90()) {
    return Status::error(KEYSIEVE_UNSUPPORTED,
                         "CUDA device %d has compute capability %d.%d; the kernels need 9.0 (Hopper)", index,
                         device->compute_major, device->compute_minor);
  }
  return {};
}

/// The first family that takes the problem; the reason of the last one if none does.
Status find_family(const Problem& problem, const Options& options, const KernelFamily** family) noexcept {
  Status status = Status::error(KEYSIEVE_UNSUPPORTED, "the CUDA backend has no kernel for this operation");
  for (const KernelFamily* candidate : cuda::families_for(problem.op)) {
    status = candidate->supports(problem, options);
    if (status.ok()) {
      *family = candidate;
      return {};
    }
  }
  return status;
}

class CudaBackend final : public Backend {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "cuda"; }
  [[nodiscard]] DeviceType device_type() const noexcept override { return DeviceType::kCuda; }

  [[nodiscard]] Status available() const noexcept override {
    int count = 0;
    KEYSIEVE_RETURN_IF_ERROR(count_devices(&count));
    DeviceInfo device;
    for (int index = 0; index < count; ++index) {
      KEYSIEVE_RETURN_IF_ERROR(read_device(index, &device));
      if (device.is_sm90()) {
        return {};
      }
    }
    return Status::error(KEYSIEVE_UNAVAILABLE,
                         "none of %d CUDA devices has compute capability 9.0 (Hopper); device %d has %d.%d", count,
                         device.index, device.compute_major, device.compute_minor);
  }

  void describe(char* text, size_t capacity) const noexcept override {
    const Status status = available();
    if (!status.ok()) {
      std::snprintf(text, capacity, "%s", status.message());
      return;
    }
    int count = 0;
    int num_hopper = 0;
    DeviceInfo hopper;
    (void)count_devices(&count).ok();
    for (int index = 0; index < count; ++index) {
      DeviceInfo device;
      if (read_device(index, &device).ok() && device.is_sm90()) {
        hopper = num_hopper == 0 ? device : hopper;
        num_hopper += 1;
      }
    }
    std::snprintf(text, capacity, "%d device(s) of compute capability 9.0; device %d has %d multiprocessors",
                  num_hopper, hopper.index, hopper.num_sms);
  }

  [[nodiscard]] Status supports(const Problem& problem, const Options& options) const noexcept override {
    const KernelFamily* family = nullptr;
    KEYSIEVE_RETURN_IF_ERROR(find_family(problem, options, &family));
    DeviceInfo device;
    return find_device(problem.device_index, &device);
  }

  [[nodiscard]] WorkspaceSize workspace_size(const Problem& problem, const Options& options) const noexcept override {
    const KernelFamily* family = nullptr;
    DeviceInfo device;
    if (!find_family(problem, options, &family).ok() || !find_device(problem.device_index, &device).ok()) {
      return {};
    }
    return family->workspace(problem, options, device);
  }

  void explain(const Problem& problem, const Options& options, char* text, size_t capacity) const noexcept override {
    const KernelFamily* family = nullptr;
    DeviceInfo device;
    Status status = find_family(problem, options, &family);
    if (status.ok()) {
      status = find_device(problem.device_index, &device);
    }
    if (!status.ok()) {
      std::snprintf(text, capacity, "%s", status.message());
      return;
    }
    family->explain(problem, options, device, text, capacity);
  }

  [[nodiscard]] Status run(const Call& call) const noexcept override {
    const KernelFamily* family = nullptr;
    KEYSIEVE_RETURN_IF_ERROR(find_family(call.problem, call.options, &family));
    DeviceInfo device;
    KEYSIEVE_RETURN_IF_ERROR(find_device(call.problem.device_index, &device));
    const cuda::DeviceGuard guard(device.index);
    KEYSIEVE_RETURN_IF_ERROR(guard.status());
    KEYSIEVE_RETURN_IF_ERROR(cuda::check_pointers(call, device.index));
    return family->launch(call, device);
  }
};

}  // namespace

namespace cuda {

// One line a family: this is where a new kernel family is plugged in.
KernelFamilies families_for(Op op) noexcept {
  static constexpr const KernelFamily* kScore[] = {&kScoreSm90};
  static constexpr const KernelFamily* kSelectFamilies[] = {&kSelect};
  static constexpr const KernelFamily* kScoreSelect[] = {&kFusedSm90, &kScoreThenSelect};
  switch (op) {
    case Op::kScore: return {kScore, static_cast<int32_t>(std::size(kScore))};
    case Op::kSelect: return {kSelectFamilies, static_cast<int32_t>(std::size(kSelectFamilies))};
    case Op::kScoreSelect: return {kScoreSelect, static_cast<int32_t>(std::size(kScoreSelect))};
  }
  return {};
}

}  // namespace cuda

const Backend& cuda_backend() noexcept {
  static const CudaBackend backend;
  return backend;
}

}  // namespace keysieve
