// SPDX-License-Identifier: Apache-2.0
// src/cuda/ptx/wgmma.cuh for the emulated device.  A product is formed when it is waited for, from what shared memory
// holds then.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "emulator/machine.hpp"
#include "emulator/tensor_map.hpp"

namespace keysieve::ptx {

template <int kRowBytes>
uint64_t matrix_descriptor(uint32_t s_address) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  constexpr uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2;
  constexpr uint64_t kGroupStride = 8 * kRowBytes / 16;
  return (static_cast<uint64_t>(s_address & 0x3FFFFU) >> 4U) | (kGroupStride << 32U) | (kSwizzle << 62U);
}

inline void wgmma_fence() {}
inline void wgmma_commit() {
  emulator::Lane::current().commit_products();
}
template <int kPending>
void wgmma_wait() {
  emulator::Lane::current().finish_products(kPending);
}
template <int kCount>
void pin_registers(float (&/*values*/)[kCount]) {}

struct E4m3Operands {
  static constexpr int kValues = 32;  // of 32 bytes
  static float value(const uint8_t* s_bytes, int i) {
    static const auto table = [] {
      struct {
        float of[256];
      } values;
      for (int bits = 0; bits < 256; ++bits) {
        const int exponent = bits >> 3 & 15;
        const int mantissa = bits & 7;
        const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                         : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
        const bool nan = (bits & 127) == 127;
        values.of[bits] = nan ? std::numeric_limits<float>::quiet_NaN() : bits > 127 ? -size : size;
      }
      return values;
    }();
    return table.of[s_bytes[i]];
  }
};
struct Bf16Operands {
  static constexpr int kValues = 16;
  static float value(const uint8_t* s_bytes, int i) {
    return std::bit_cast<float>(static_cast<uint32_t>(s_bytes[2 * i] << 16 | s_bytes[2 * i + 1] << 24));
  }
};

/// 32 bytes of a matrix's row, as numbers.
template <class Operands>
void read_row_step(emulator::Block& block, uint64_t descriptor, uint32_t row, float (&values)[Operands::kValues]) {
  const uint32_t row_bytes = descriptor >> 62U == 1 ? 128 : 64;
  const auto start = static_cast<uint32_t>((descriptor & 0x3FFFU) << 4U);
  const auto group_stride = static_cast<uint32_t>((descriptor >> 32U & 0x3FFFU) << 4U);
  const uint32_t address = start + row / 8 * group_stride + row % 8 * row_bytes;
  uint8_t bytes[32];
  for (uint32_t part = 0; part < 32; part += 16) {  // a swizzle moves 16 bytes together
    std::memcpy(bytes + part, block.at(emulator::swizzled(address + part, row_bytes), 16, 16), 16);
  }
  for (int i = 0; i < Operands::kValues; ++i) {
    values[i] = Operands::value(bytes, i);
  }
}

template <class Operands, int kColumns>
void form_product(emulator::Block& block, const emulator::Product& product, float* const (&d)[128]) {
  constexpr int kValues = Operands::kValues;
  float a[64][kValues];
  float b[kValues][kColumns];
  float dots[64][kColumns];
  for (uint32_t row = 0; row < 64; ++row) {
    read_row_step<Operands>(block, product.a, row, a[row]);
  }
  for (uint32_t column = 0; column < kColumns; ++column) {
    float values[kValues];
    read_row_step<Operands>(block, product.b, column, values);
    for (int i = 0; i < kValues; ++i) {
      b[i][column] = values[i];
    }
  }
  emulator::multiply(&a[0][0], &b[0][0], &dots[0][0], 64, kValues, kColumns);
  for (int thread = 0; thread < 128; ++thread) {
    for (int j = 0; j < kColumns / 8; ++j) {
      for (int r = 0; r < 2; ++r) {
        for (int p = 0; p < 2; ++p) {
          float& element = d[thread][4 * j + 2 * r + p];
          const float dot = dots[thread / 32 * 16 + thread % 32 / 4 + 8 * r][8 * j + thread % 4 * 2 + p];
          element = product.accumulate ? element + dot : dot;
        }
      }
    }
  }
}

template <class Operands, int kColumns>
void wgmma(float (&d)[kColumns / 2], uint64_t a, uint64_t b, int accumulate) {
  emulator::Lane::current().multiply_later({a, b, accumulate != 0, d, form_product<Operands, kColumns>});
}

}  // namespace keysieve::ptx
