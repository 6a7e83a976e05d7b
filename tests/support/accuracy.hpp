// SPDX-License-Identifier: Apache-2.0
// c of contract section 1, one a backend: |score - reference| <= c * |k_scale| * sum_h |w| * sum_d |q*k|.
#pragma once

#include <cstdint>
#include <string>

namespace keysieve::test {

inline double accuracy_constant(const std::string& backend, int64_t num_heads, int64_t head_dim) {
  if (backend == "reference") {
    return 0;  // it is what the others are compared with
  }
  if (backend == "cuda") {
    return 0x1.0p-10;  // the short accumulator of Hopper's FP8 tensor cores
  }
  // f32 sums in any order: one rounding for each of the D + H additions, H products, the scale and the result.
  return static_cast<double>(head_dim + 2 * num_heads + 8) * 0x1.0p-24;
}

}  // namespace keysieve::test
