// SPDX-License-Identifier: Apache-2.0
// Small floating-point formats, decoded exactly.
// Sources: e4m3fn, OCP OFP8 1.0 table 1; e2m1 and e8m0, OCP Microscaling Formats 1.0 sections 5.3.3 and 5.4.1.
#pragma once

#include <cstdint>

#include "core/bits.hpp"

namespace keysieve {

/// e4m3fn: sign, 4 exponent bits (bias 7), 3 mantissa bits; NaN 0x7F and 0xFF, no infinity.
KEYSIEVE_HOST_DEVICE inline float e4m3_to_float(uint8_t byte) {
  const uint32_t sign = static_cast<uint32_t>(byte & 0x80U) << 24U;
  const uint32_t magnitude = byte & 0x7FU;
  if (magnitude == 0x7FU) {
    return bits_float(sign | 0x7FC00000U);
  }
  if (magnitude < 8U) {  // subnormal: mantissa * 2^-9
    const float value = static_cast<float>(magnitude) * 0.001953125F;
    return bits_float(sign | float_bits(value));
  }
  return bits_float(sign | ((magnitude + (120U << 3U)) << 20U));
}

/// e2m1: 0 .5 1 1.5 2 3 4 6, bit 3 the sign.  `nibble` < 16.
KEYSIEVE_HOST_DEVICE inline float e2m1_to_float(uint8_t nibble) {
  const uint32_t sign = static_cast<uint32_t>(nibble & 8U) << 28U;
  const uint32_t magnitude = nibble & 7U;
  if (magnitude < 2U) {
    return bits_float(sign | (magnitude == 0 ? 0U : 0x3F000000U));
  }
  return bits_float(sign | ((magnitude + (126U << 1U)) << 22U));
}

/// e8m0: 2^(byte - 127), 255 is NaN.
KEYSIEVE_HOST_DEVICE inline float e8m0_to_float(uint8_t byte) {
  if (byte == 255U) {
    return bits_float(0x7FC00000U);
  }
  return bits_float(byte == 0 ? 0x00400000U : static_cast<uint32_t>(byte) << 23U);
}

}  // namespace keysieve
