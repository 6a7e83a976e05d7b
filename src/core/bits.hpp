// SPDX-License-Identifier: Apache-2.0
// The bits of a float, on host and device.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/host_device.hpp"

namespace keysieve {

KEYSIEVE_HOST_DEVICE inline uint32_t float_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

KEYSIEVE_HOST_DEVICE inline float bits_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

}  // namespace keysieve
