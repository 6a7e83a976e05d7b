// SPDX-License-Identifier: Apache-2.0
#include "io/agreement.hpp"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "core/fp8.hpp"
#include "io/encode.hpp"
#include "io/replay.hpp"

namespace keysieve {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Verdict agreement(const std::vector<int32_t>& indices, const std::vector<float>& scores, double error = 0) {
  const SelectedRow row{indices.data(), nullptr, static_cast<int64_t>(indices.size())};
  return check_agreement(row, scores.data(), static_cast<int64_t>(scores.size()), error);
}

TEST(Agreement, AcceptsTheTopKeysInAnyOrder) {
  const std::vector<float> scores = {5, 1, 4, 2, 3};
  EXPECT_TRUE(agreement({0, 2}, scores).ok());
  EXPECT_TRUE(agreement({2, 0}, scores).ok());
  EXPECT_TRUE(agreement({0, 1, 2, 3, 4, -1}, scores).ok());
}

TEST(Agreement, NamesWhatIsHeldAndMissed) {
  const Verdict verdict = agreement({0, 3}, {5, 1, 4, 2, 3});
  EXPECT_EQ(verdict.fault, Fault::kHeldTooLow);
  EXPECT_EQ(verdict.slot, 1);
  EXPECT_EQ(verdict.key, 3);
  EXPECT_EQ(verdict.missed_key, 2);
  EXPECT_EQ(verdict.kth_score, 4);
  EXPECT_EQ(verdict.message(),
            "holds key 3 (score 2) in slot 1, below the K-th score 4 by more than the bound; misses key 2 (score 4)");
}

TEST(Agreement, ForgivesWhatLiesInTheBound) {
  EXPECT_TRUE(agreement({0, 3}, {5, 1, 4, 3.5F, 3}, 0.5).ok());
  EXPECT_EQ(agreement({2, 3}, {5, 1, 4, 3.75F, 3}, 0.5).fault, Fault::kMissedTooHigh);
  EXPECT_FALSE(agreement({0, 3}, {5, 1, 4, 3.25F, 3}, 0.5).ok());
}

TEST(Agreement, AnyKeyOfATieAtTheCutAgrees) {
  EXPECT_TRUE(agreement({0, 4}, {5, 0, 0, 0, -0.0F}).ok());
  EXPECT_TRUE(agreement({0, 1}, {5, 0, 0, 0, 0}).ok());
}

TEST(Agreement, RanksInfinityAndNan) {
  EXPECT_TRUE(agreement({1}, {kNan, -kInf, kNan}).ok());
  EXPECT_FALSE(agreement({0}, {kNan, -kInf, kNan}, 1.0).ok());
  EXPECT_TRUE(agreement({0, 1}, {kNan, -kInf, kNan}).ok());
  EXPECT_TRUE(agreement({0, 2}, {kInf, 1, kInf}).ok());
  EXPECT_FALSE(agreement({0, 1}, {kInf, 1, kInf}, 100.0).ok());
  EXPECT_FALSE(agreement({0, 1}, {kInf, -kInf, 1}, 100.0).ok());
}

TEST(Agreement, ShapeFaults) {
  const auto shape = [](const std::vector<int32_t>& indices, int64_t width, int32_t order) {
    return check_shape({indices.data(), nullptr, static_cast<int64_t>(indices.size())}, width, order).fault;
  };
  EXPECT_EQ(shape({0, 2, -1}, 2, KEYSIEVE_ORDER_ANY), Fault::kOutOfRange);
  EXPECT_EQ(shape({-777, 0}, 2, KEYSIEVE_ORDER_ANY), Fault::kOutOfRange);
  EXPECT_EQ(shape({1, 1}, 4, KEYSIEVE_ORDER_ANY), Fault::kDuplicate);
  EXPECT_EQ(shape({1, -1}, 4, KEYSIEVE_ORDER_ANY), Fault::kCount);
  EXPECT_EQ(shape({-1, 1}, 4, KEYSIEVE_ORDER_ANY), Fault::kCount);
  EXPECT_EQ(shape({1, 0}, 4, KEYSIEVE_ORDER_ASCENDING), Fault::kOrder);
  EXPECT_EQ(shape({1, 0}, 4, KEYSIEVE_ORDER_SCORE), Fault::kNone);
  EXPECT_EQ(shape({-1, -1}, 0, KEYSIEVE_ORDER_ASCENDING), Fault::kNone);
}

TEST(Exact, ComparesBits) {
  const std::vector<int32_t> keys = {1, 3, -1};
  const std::vector<float> scores = {2, kNan, -kInf};
  const std::vector<float> other = {std::nextafter(2.0F, 3.0F), kNan, -kInf};
  const SelectedRow row{keys.data(), scores.data(), 3};
  EXPECT_TRUE(check_exact(row, row, KEYSIEVE_ORDER_ASCENDING).ok());
  EXPECT_EQ(check_exact(row, {keys.data(), other.data(), 3}, KEYSIEVE_ORDER_ASCENDING).fault, Fault::kDifferentScore);
  const std::vector<int32_t> swapped = {3, 1, -1};
  const std::vector<float> swapped_scores = {kNan, 2, -kInf};
  const SelectedRow turned{swapped.data(), swapped_scores.data(), 3};
  EXPECT_EQ(check_exact(row, turned, KEYSIEVE_ORDER_ASCENDING).fault, Fault::kDifferentKey);
  EXPECT_TRUE(check_exact(row, turned, KEYSIEVE_ORDER_ANY).ok());
}

TEST(CutTie, CountsTheKeysAtTheKthScore) {
  const std::vector<float> scores = {1, 0, -0.0F, 0, -1};
  const CutTie tie = cut_tie(scores.data(), 5, 3);
  EXPECT_EQ(tie.tied, 3);
  EXPECT_EQ(tie.selected, 2);
  EXPECT_EQ(kth_score(scores.data(), 5, 1), 1.0F);
  EXPECT_EQ(kth_score(scores.data(), 5, 100), -1.0F);
}

TEST(ErrorBound, IsTheLargestSumOfTheRow) {
  // Two heads, 32 channels: q = 1 in channel 0 of head 0 and 2 in channel 1 of head 1.
  std::vector<uint8_t> q(64, 0);
  q[0] = float_to_e4m3(1);
  q[33] = float_to_e4m3(-2);
  std::vector<uint8_t> k(96, 0);
  k[0] = float_to_e4m3(3);      // key 0: 1*|3|*1 = 3
  k[33] = float_to_e4m3(1.5F);  // key 1: 4*|2*1.5| = 12, scaled 0.5
  k[64] = 0x7F;                 // key 2: NaN counts as 0
  const std::vector<float> scale = {1, -0.5F, 1};
  const std::vector<float> weights = {1, -4};
  const ErrorBound bound(make_view(q.data(), KEYSIEVE_E4M3, {1, 2, 32}), make_view(k.data(), KEYSIEVE_E4M3, {3, 32}),
                         make_view(scale.data(), KEYSIEVE_F32, {3}), make_view(weights.data(), KEYSIEVE_F32, {1, 2}),
                         KEYSIEVE_E4M3);
  EXPECT_EQ(bound.row(0, 0, 1), 3.0);
  EXPECT_EQ(bound.row(0, 0, 3), 6.0);
  EXPECT_EQ(bound.row(0, 2, 3), 0.0);
  EXPECT_EQ(bound.row(0, 1, 1), 0.0);
}

TEST(Encode, IsTheInverseOfDecodeAndRoundsToEven) {
  for (int byte = 0; byte < 256; ++byte) {
    if ((byte & 0x7F) != 0x7F) {
      EXPECT_EQ(float_to_e4m3(e4m3_to_float(static_cast<uint8_t>(byte))), byte);
    }
  }
  for (int nibble = 0; nibble < 16; ++nibble) {
    EXPECT_EQ(float_to_e2m1(e2m1_to_float(static_cast<uint8_t>(nibble))), nibble);
  }
  for (int byte = 0; byte < 0x7E; ++byte) {
    const float low = e4m3_to_float(static_cast<uint8_t>(byte));
    const float high = e4m3_to_float(static_cast<uint8_t>(byte + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(float_to_e4m3(middle), byte + byte % 2);
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, low)), byte);
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, high)), byte + 1);
  }
  EXPECT_EQ(float_to_e4m3(1e9F), 0x7E);
  EXPECT_EQ(float_to_e4m3(-1e9F), 0xFE);
  EXPECT_EQ(float_to_e4m3(kNan) & 0x7F, 0x7F);
  EXPECT_EQ(float_to_e2m1(2.5F), 4);
  EXPECT_EQ(float_to_e2m1(3.5F), 6);
  EXPECT_EQ(float_to_e2m1(-100.0F), 15);
}

}  // namespace
}  // namespace keysieve
