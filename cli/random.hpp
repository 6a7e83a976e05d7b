// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every machine: integer arithmetic and exact divisions only.
#pragma once

#include <cstdint>

namespace keysieve::cli {

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31U);
  }

  /// In [0, 1), 24 bits.
  float uniform() { return static_cast<float>(next() >> 40U) * 0x1p-24F; }

  /// In [0, bound).
  int64_t below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }

  /// Mean 0, variance 1: 64 coin flips and a uniform that fills the gap between two counts.
  float normal() {
    const auto heads = static_cast<float>(__builtin_popcountll(next()) - 32);
    return (heads + uniform() - 0.5F) * 0.24935150F;  // 1 / sqrt(16 + 1/12)
  }

 private:
  uint64_t state_;
};

}  // namespace keysieve::cli
