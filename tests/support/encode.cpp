// SPDX-License-Identifier: Apache-2.0
#include "support/encode.hpp"

#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/bf16.hpp"
#include "core/fp8.hpp"
#include "support/random.hpp"

namespace keysieve::test {
namespace {

/// Index of the nearest of `count` ascending magnitudes, ties to the even index.
template <typename Decode>
uint8_t nearest_code(double magnitude, int count, const Decode& decode) {
  int low = 0;
  int high = count - 1;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (decode(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - decode(low);
  const double above = decode(high) - magnitude;
  if (below == above) {
    return static_cast<uint8_t>(low % 2 == 0 ? low : high);
  }
  return static_cast<uint8_t>(below < above ? low : high);
}

/// Inverse of the normal distribution function by bisection; used only to fill a table.
double normal_quantile(double probability) {
  double low = -9;
  double high = 9;
  for (int step = 0; step < 60; ++step) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle * std::numbers::sqrt2 / 2) < probability ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

constexpr int kTableSize = 1 << 16;

const std::vector<float>& quantiles() {
  static const std::vector<float> kTable = [] {
    std::vector<float> table(kTableSize);
    for (int i = 0; i < kTableSize / 2; ++i) {  // symmetric: one half is computed
      const double value = normal_quantile((i + 0.5) / kTableSize);
      table[i] = static_cast<float>(value);
      table[kTableSize - 1 - i] = static_cast<float>(-value);
    }
    return table;
  }();
  return kTable;
}

template <typename Code, typename Encode>
std::vector<Code> code_table(const Encode& encode) {
  std::vector<Code> table(kTableSize);
  for (int i = 0; i < kTableSize; ++i) {
    table[i] = encode(quantiles()[i]);
  }
  return table;
}

}  // namespace

double Random::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

uint8_t to_e4m3(double value) {
  if (std::isnan(value)) {
    return 0x7F;
  }
  const auto decode = [](int code) { return double{e4m3_to_float(static_cast<uint8_t>(code))}; };
  const uint8_t magnitude = std::fabs(value) >= 448 ? 0x7E : nearest_code(std::fabs(value), 0x7F, decode);
  return static_cast<uint8_t>(magnitude | (std::signbit(value) ? 0x80U : 0U));
}

uint8_t to_e2m1(double value) {
  const auto decode = [](int code) { return double{e2m1_to_float(static_cast<uint8_t>(code))}; };
  const uint8_t magnitude = std::fabs(value) >= 6 ? 7 : nearest_code(std::fabs(value), 8, decode);
  return static_cast<uint8_t>(magnitude | (std::signbit(value) ? 8U : 0U));
}

uint8_t normal_e4m3(uint32_t random16) {
  static const std::vector<uint8_t> kTable = code_table<uint8_t>([](float x) { return to_e4m3(x); });
  return kTable[random16 & 0xFFFFU];
}

uint16_t normal_bf16(uint32_t random16) {
  static const std::vector<uint16_t> kTable = code_table<uint16_t>([](float x) { return float_to_bf16(x); });
  return kTable[random16 & 0xFFFFU];
}

uint8_t normal_e2m1(uint32_t random16) {
  static const std::vector<uint8_t> kTable = code_table<uint8_t>([](float x) { return to_e2m1(x); });
  return kTable[random16 & 0xFFFFU];
}

}  // namespace keysieve::test
