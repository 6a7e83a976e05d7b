// SPDX-License-Identifier: Apache-2.0
// Small formats against their definitions, and the order of scores against contract section 3.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "core/bf16.hpp"
#include "core/fp8.hpp"
#include "core/ordering.hpp"

namespace keysieve {
namespace {

TEST(E4m3, FollowsTheOcpTable) {
  for (int byte = 0; byte < 256; ++byte) {
    const float decoded = e4m3_to_float(static_cast<uint8_t>(byte));
    const int exponent = (byte >> 3) & 15;
    const int mantissa = byte & 7;
    if ((byte & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(decoded)) << byte;
      continue;
    }
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(decoded, static_cast<float>((byte & 0x80) != 0 ? -magnitude : magnitude)) << byte;
    EXPECT_EQ(std::signbit(decoded), (byte & 0x80) != 0) << byte;
  }
  EXPECT_EQ(e4m3_to_float(0x7E), 448.0F);
}

TEST(E2m1, HasEightMagnitudes) {
  const float magnitudes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (uint8_t nibble = 0; nibble < 16; ++nibble) {
    const float decoded = e2m1_to_float(nibble);
    EXPECT_EQ(std::fabs(decoded), magnitudes[nibble & 7U]);
    EXPECT_EQ(std::signbit(decoded), nibble >= 8);
  }
}

TEST(E8m0, IsAPowerOfTwo) {
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(byte)), std::ldexp(1.0F, byte - 127)) << byte;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(bits_float(0x3F808000U)), 0x3F80U);  // tie to even, down
  EXPECT_EQ(float_to_bf16(bits_float(0x3F818000U)), 0x3F82U);  // tie to even, up
  EXPECT_EQ(float_to_bf16(bits_float(0x3F808001U)), 0x3F81U);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80U);
  EXPECT_EQ(float_to_bf16(-std::numeric_limits<float>::infinity()), 0xFF80U);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bits_float(0x7F800001U)))));
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = bf16_to_float(static_cast<uint16_t>(half));
    if (!std::isnan(value)) {
      EXPECT_EQ(float_to_bf16(value), half);
    }
  }
}

TEST(Ordering, RanksInfinityFiniteNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float max = std::numeric_limits<float>::max();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<float> ascending = {std::nanf(""), -infinity, -max, -1.0F, -tiny, 0.0F, tiny, 1.0F, max, infinity};
  for (size_t i = 0; i + 1 < ascending.size(); ++i) {
    EXPECT_LT(ordered_bits(ascending[i]), ordered_bits(ascending[i + 1])) << i;
  }
  EXPECT_EQ(ordered_bits(-0.0F), ordered_bits(0.0F));
  EXPECT_EQ(ordered_bits(-std::nanf("")), kOrderedNan);
  EXPECT_EQ(ordered_bits(bits_float(0x7F800001U)), kOrderedNan);
  EXPECT_EQ(ordered_bits(-infinity), kOrderedNegativeInfinity);
}

TEST(Ordering, InverseGivesTheScoreBack) {
  for (uint32_t step = 0; step < 65536; ++step) {
    const float score = bits_float(step * 65537U);
    const float back = score_of_ordered_bits(ordered_bits(score));
    if (std::isnan(score)) {
      EXPECT_TRUE(std::isnan(back));
    } else {
      EXPECT_EQ(back, score);
    }
  }
}

TEST(Ordering, TiesGoToTheLowerIndex) {
  EXPECT_TRUE(ranks_before(5, 1, 5, 2));
  EXPECT_FALSE(ranks_before(5, 2, 5, 1));
  EXPECT_TRUE(ranks_before(6, 9, 5, 1));
}

}  // namespace
}  // namespace keysieve
