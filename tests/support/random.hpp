// SPDX-License-Identifier: Apache-2.0
// Small deterministic generators: the same seed gives the same numbers on every machine and compiler.
#pragma once

#include <cstdint>

namespace keysieve::test {

/// One step of splitmix64 (Steele, Lea and Flood 2014): a good hash of a counter.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix64(seed)) {}

  uint64_t next() { return mix64(state_++); }

  /// Uniform in [0, bound).
  int64_t below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }

  /// Uniform in [low, high].
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }

  bool chance(int percent) { return below(100) < percent; }

  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  /// Normal(0, 1) by Box and Muller.
  double normal();

  template <typename T>
  const T& pick(const T* first, int64_t count) {
    return first[below(count)];
  }

 private:
  uint64_t state_;
};

}  // namespace keysieve::test
