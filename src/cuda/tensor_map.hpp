// SPDX-License-Identifier: Apache-2.0
// Tensor maps: descriptions of strided tensors that the copy engine (TMA) of Hopper reads.
#pragma once

#include <array>
#include <cstdint>
#include <cuda.h>

#include "core/status.hpp"

namespace keysieve::cuda {

/// A tensor of up to 5 dimensions, innermost first, and the box that one copy moves.  Elements outside the tensor read
/// as 0 and touch no memory.
struct TensorMapSpec {
  const char* argument = "";  // for messages
  const void* data = nullptr;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  int32_t element_bytes = 1;
  int32_t rank = 0;
  std::array<uint64_t, 5> size{};          // elements
  std::array<uint64_t, 5> stride_bytes{};  // [0] is the element's own size and is not read
  std::array<uint32_t, 5> box{};           // elements
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;

  void add(uint64_t elements, uint64_t bytes_between, uint32_t box_elements) {
    size[static_cast<size_t>(rank)] = elements;
    stride_bytes[static_cast<size_t>(rank)] = bytes_between;
    box[static_cast<size_t>(rank)] = box_elements;
    rank += 1;
  }
};

/// True if address and outer strides suit a tensor map (multiples of 16 bytes, strides below 2^40).
[[nodiscard]] bool fits_tensor_map(const TensorMapSpec& spec) noexcept;

/// Encodes on the host; no device is touched.
[[nodiscard]] Status encode_tensor_map(const TensorMapSpec& spec, CUtensorMap* map) noexcept;

/// Swizzle of rows of 64 or 128 bytes.
inline CUtensorMapSwizzle swizzle_of_row_bytes(int64_t row_bytes) {
  return row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
}

}  // namespace keysieve::cuda
