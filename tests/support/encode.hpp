// SPDX-License-Identifier: Apache-2.0
// Rounds numbers to the small formats of the contract, for test inputs.
#pragma once

#include <cstdint>

namespace keysieve::test {

/// Nearest e4m3fn value, ties to even; beyond 448 it saturates; NaN gives 0x7F.
uint8_t to_e4m3(double value);

/// Nearest e2m1 value (0 .5 1 1.5 2 3 4 6), ties to even, saturating; a nibble.
uint8_t to_e2m1(double value);

/// Code of a normal(0,1) variate rounded to e4m3 / bf16, looked up by 16 random bits.
uint8_t normal_e4m3(uint32_t random16);
uint16_t normal_bf16(uint32_t random16);
uint8_t normal_e2m1(uint32_t random16);

}  // namespace keysieve::test
