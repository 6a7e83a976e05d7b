// SPDX-License-Identifier: Apache-2.0
#include "cuda/tensor_map.hpp"

#include <atomic>
#include <cuda_runtime_api.h>

#include "cuda/raii.hpp"

namespace keysieve::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found at run time so that the library loads where there is no driver, and kept: the search
/// takes longer than the encoding.
Status find_encode_tiled(EncodeTiled* function) noexcept {
  static std::atomic<EncodeTiled> found_before{nullptr};
  *function = found_before.load(std::memory_order_relaxed);
  if (*function != nullptr) {
    return {};
  }
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSinceCuda12 = 12000;
  KEYSIEVE_RETURN_IF_CUDA_ERROR(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, kSinceCuda12, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
    return Status::error(KEYSIEVE_UNAVAILABLE,
                         "the CUDA driver has no cuTensorMapEncodeTiled; it must support CUDA 12.0");
  }
  *function = reinterpret_cast<EncodeTiled>(entry);
  found_before.store(*function, std::memory_order_relaxed);
  return {};
}

}  // namespace

bool fits_tensor_map(const TensorMapSpec& spec) noexcept {
  constexpr uint64_t kAlignment = 16;
  constexpr uint64_t kStrideLimit = uint64_t{1} << 40U;
  if (reinterpret_cast<uintptr_t>(spec.data) % kAlignment != 0) {
    return false;
  }
  for (size_t i = 1; i < static_cast<size_t>(spec.rank); ++i) {
    if (spec.stride_bytes[i] % kAlignment != 0 || spec.stride_bytes[i] >= kStrideLimit) {
      return false;
    }
  }
  return true;
}

Status encode_tensor_map(const TensorMapSpec& spec, CUtensorMap* map) noexcept {
  if (!fits_tensor_map(spec)) {
    return Status::error(
        KEYSIEVE_UNSUPPORTED,
        "%s: base address %p and outer strides must be multiples of 16 bytes, strides below 2^40 bytes", spec.argument,
        spec.data);
  }
  EncodeTiled encode = nullptr;
  KEYSIEVE_RETURN_IF_ERROR(find_encode_tiled(&encode));
  constexpr std::array<cuuint32_t, 5> kEveryElement = {1, 1, 1, 1, 1};
  const std::array<cuuint64_t, 5> size = {spec.size[0], spec.size[1], spec.size[2], spec.size[3], spec.size[4]};
  const std::array<cuuint64_t, 4> stride = {spec.stride_bytes[1], spec.stride_bytes[2], spec.stride_bytes[3],
                                            spec.stride_bytes[4]};
  const CUresult result =
      encode(map, spec.type, static_cast<cuuint32_t>(spec.rank), const_cast<void*>(spec.data), size.data(),
             stride.data(), spec.box.data(), kEveryElement.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, spec.swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Status::error(KEYSIEVE_INTERNAL, "%s: cuTensorMapEncodeTiled refused the tensor (CUresult %d)",
                         spec.argument, static_cast<int>(result));
  }
  return {};
}

}  // namespace keysieve::cuda
