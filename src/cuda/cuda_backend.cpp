// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: picks the kernel family, restores the caller's device.
#include <cstdio>
#include <iterator>

#include "core/backend.hpp"
#include "cuda/devices.hpp"
#include "cuda/kernels.hpp"
#include "cuda/pointer_check.hpp"
#include "cuda/raii.hpp"

namespace keysieve {
namespace {

using cuda::DeviceInfo;
using cuda::Devices;
using cuda::find_device;
using cuda::KernelFamily;

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
    const Devices& devices = Devices::get();
    KEYSIEVE_RETURN_IF_ERROR(devices.status());
    for (int32_t index = 0; index < devices.count(); ++index) {
      if (devices[index].is_sm90()) {
        return {};
      }
    }
    return Status::error(KEYSIEVE_UNAVAILABLE,
                         "none of %d CUDA devices has compute capability 9.0 (Hopper); device 0 has %d.%d",
                         devices.count(), devices[0].compute_major, devices[0].compute_minor);
  }

  void describe(char* text, size_t capacity) const noexcept override {
    const Status status = available();
    if (!status.ok()) {
      std::snprintf(text, capacity, "%s", status.message());
      return;
    }
    const Devices& devices = Devices::get();
    int num_hopper = 0;
    const DeviceInfo* first = nullptr;
    for (int32_t index = 0; index < devices.count(); ++index) {
      if (devices[index].is_sm90()) {
        first = num_hopper == 0 ? &devices[index] : first;
        num_hopper += 1;
      }
    }
    std::snprintf(text, capacity, "%d device(s) of compute capability 9.0; device %d has %d multiprocessors",
                  num_hopper, first->index, first->num_sms);
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
  static constexpr const KernelFamily* kScoreSelect[] = {&kSplitSm90, &kFusedSm90, &kScoreThenSelect};
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
