// SPDX-License-Identifier: Apache-2.0
// Tensor maps of the emulated device: what cuTensorMapEncodeTiled was told, in the 128 bytes of a CUtensorMap.
#pragma once

#include <cstdint>
#include <cuda.h>

namespace emulator {

struct TensorMap {
  const uint8_t* data;
  int64_t stride_bytes[5];
  uint32_t size[5];
  uint16_t box[5];
  uint8_t rank;
  uint8_t element_bytes;
  uint8_t swizzle_row_bytes;  // 0: none

  [[nodiscard]] static const TensorMap& of(const CUtensorMap& map) {
    static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));
    return reinterpret_cast<const TensorMap&>(map);
  }

  [[nodiscard]] int32_t box_bytes() const;
  /// Copies the box at `x` to shared address `target`, outside elements as zeros.
  void copy_box(class Block& block, uint32_t target, const int32_t (&x)[5]) const;
};

/// Shared addresses of a swizzled tile: bits 4.. are exchanged with those of the row within a group of 8.
inline uint32_t swizzled(uint32_t address, uint32_t row_bytes) {
  switch (row_bytes) {
    case 128: return address ^ ((address >> 7U & 7U) << 4U);
    case 64: return address ^ ((address >> 7U & 3U) << 4U);
    default: return address;
  }
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* size,
                      const cuuint64_t* stride_bytes, const cuuint32_t* box, const cuuint32_t* element_strides,
                      CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                      CUtensorMapFloatOOBfill fill);

}  // namespace emulator
