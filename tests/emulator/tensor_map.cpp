// SPDX-License-Identifier: Apache-2.0
#include "emulator/tensor_map.hpp"

#include <cstring>

#include "emulator/machine.hpp"

namespace emulator {

int32_t TensorMap::box_bytes() const {
  int32_t bytes = element_bytes;
  for (int i = 0; i < rank; ++i) {
    bytes *= box[i];
  }
  return bytes;
}

void TensorMap::copy_box(Block& block, uint32_t target, const int32_t (&x)[5]) const {
  const int32_t row_bytes = box[0] * element_bytes;
  if (swizzle_row_bytes != 0 && row_bytes > swizzle_row_bytes) {
    fail("a box's row of %d bytes is wider than its swizzle", row_bytes);
  }
  block.at(target, static_cast<size_t>(box_bytes()), 128);
  const int32_t rows = box_bytes() / row_bytes;
  for (int32_t row = 0; row < rows; ++row) {
    int32_t rest = row;
    bool inside = true;
    int64_t offset = 0;
    for (int i = 1; i < rank; ++i) {
      const int64_t at = int64_t{x[i]} + rest % box[i];
      rest /= box[i];
      inside = inside && at >= 0 && at < size[i];
      offset += at * stride_bytes[i];
    }
    for (int32_t column = 0; column < box[0]; ++column) {
      const int64_t at = int64_t{x[0]} + column;
      const auto bytes_before = static_cast<uint32_t>(row * row_bytes + column * element_bytes);
      uint8_t* s_element = block.at(swizzled(target + bytes_before, swizzle_row_bytes), element_bytes, element_bytes);
      if (inside && at >= 0 && at < size[0]) {
        std::memcpy(s_element, data + offset + at * element_bytes, element_bytes);
      } else {
        std::memset(s_element, 0, element_bytes);
      }
    }
  }
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* size,
                      const cuuint64_t* stride_bytes, const cuuint32_t* box, const cuuint32_t* /*element_strides*/,
                      CUtensorMapInterleave /*interleave*/, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion /*promotion*/, CUtensorMapFloatOOBfill /*fill*/) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || rank == 0 || rank > 5) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  TensorMap encoded = {};
  encoded.data = static_cast<const uint8_t*>(data);
  encoded.rank = static_cast<uint8_t>(rank);
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: encoded.element_bytes = 1; break;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: encoded.element_bytes = 2; break;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: encoded.element_bytes = 4; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (size[i] == 0 || size[i] > (uint64_t{1} << 32U) - 1 || box[i] == 0 || box[i] > 256) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    encoded.size[i] = static_cast<uint32_t>(size[i]);
    encoded.box[i] = static_cast<uint16_t>(box[i]);
    if (i > 0) {
      if (stride_bytes[i - 1] % 16 != 0) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      encoded.stride_bytes[i] = static_cast<int64_t>(stride_bytes[i - 1]);
    }
  }
  encoded.swizzle_row_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                              : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                                     : 0;
  std::memcpy(map, &encoded, sizeof(encoded));
  return CUDA_SUCCESS;
}

}  // namespace emulator
