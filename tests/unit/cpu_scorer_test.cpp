// SPDX-License-Identifier: Apache-2.0
// The bf16 route of the CPU backend on any machine: operands packed in pairs, a stand-in for the AVX-512 kernel that
// treats numbers as VDPBF16PS does, and the f32 kernel for pairs with a subnormal.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "core/bf16.hpp"
#include "core/bits.hpp"
#include "cpu/scorer.hpp"

namespace keysieve::cpu {
namespace {

int panel_keys = 0;
int group_heads = 0;

float bf16_operand(uint32_t half) {
  const float value = bf16_to_float(static_cast<uint16_t>(half & 0xFFFFU));
  return std::fpclassify(value) == FP_SUBNORMAL ? 0.0F : value;
}

/// avx512_bf16.cpp in plain words, with this machine's panel and group.
void score_pairs(const ScoreArgs& args, float* scores) {
  for (int lane = 0; lane < panel_keys; ++lane) {
    float sum = 0;
    for (int64_t h = 0; h < args.num_heads; ++h) {
      float dot = 0;
      for (int64_t word = 0; word < args.num_words; ++word) {
        const int64_t group_offset = h / group_heads * group_heads * args.num_words;
        const uint32_t q = args.q[group_offset + word * group_heads + h % group_heads];
        const uint32_t k = args.k[word * panel_keys + lane];
        dot = std::fma(bf16_operand(q >> 16U), bf16_operand(k >> 16U), dot);
        dot = std::fma(bf16_operand(q), bf16_operand(k), dot);
      }
      sum = std::fma(args.weights[h], dot < 0 ? 0.0F : dot, sum);
    }
    scores[lane] = args.factor[lane] * sum;
  }
}

/// One query row and some keys whose sums are all exact.
class CpuScorerTest : public testing::TestWithParam<Dtype> {
 protected:
  static constexpr int64_t kHeads = 11;
  static constexpr int64_t kKeys = 20;

  void SetUp() override {
    ASSERT_TRUE(choose_isa("avx2", &f32_).ok() || choose_isa("sse4", &f32_).ok() || choose_isa(nullptr, &f32_).ok());
    f32_.bf16_score = nullptr;
    pairs_ = f32_;
    pairs_.bf16_score = &score_pairs;
    panel_keys = f32_.f32.panel_keys;
    group_heads = f32_.f32.group_heads;

    Problem& problem = call_.problem;
    problem.num_rows = 1;
    problem.num_heads = kHeads;
    problem.head_dim = GetParam() == Dtype::kMxfp4 ? 64 : 37;
    problem.num_keys = kKeys;
    problem.k_dtype = GetParam();
    problem.q_dtype = GetParam() == Dtype::kBf16 ? Dtype::kBf16 : Dtype::kE4m3;
    const int64_t dim = problem.head_dim;
    q_.resize(kHeads * dim * 2);
    k_.resize(kKeys * dim * 2);
    scales_.assign(kKeys * 64, 1.0F);
    weights_.assign(kHeads, 1.0F);
    for (int64_t i = 0; i < kHeads * dim; ++i) {
      put(q_, i, problem.q_dtype);
    }
    for (int64_t i = 0; i < kKeys * dim; ++i) {
      put(k_, i, GetParam());
    }
    if (GetParam() == Dtype::kMxfp4) {
      std::memset(scales_.data(), 127, scales_.size() * sizeof(float));
    }
    call_.q = q_.data();
    call_.q_row = {kHeads * dim, 0, 1};
    call_.q_head_stride = dim;
    call_.k = k_.data();
    call_.k_stride = GetParam() == Dtype::kMxfp4 ? dim / 2 : dim;
    call_.k_scale = GetParam() == Dtype::kBf16 ? nullptr : scales_.data();
    call_.k_scale_stride = GetParam() == Dtype::kMxfp4 ? 2 : 1;
    call_.weights = {weights_.data(), {}};
  }

  /// A small integer, or any two e2m1 values.
  void put(std::vector<uint8_t>& tensor, int64_t i, Dtype dtype) {
    const uint8_t e4m3[] = {0x00, 0x38, 0xB8, 0x40, 0xC4, 0x48};  // 0 1 -1 2 -3 4
    const float values[] = {0, 1, -1, 2, -3, 4};
    const size_t choice = random_() % 6;
    if (dtype == Dtype::kBf16) {
      put_bf16(tensor, i, values[choice]);
    } else {
      tensor[i] = dtype == Dtype::kE4m3 ? e4m3[choice] : static_cast<uint8_t>(random_());
    }
  }
  static void put_bf16(std::vector<uint8_t>& tensor, int64_t i, float value) {
    const uint16_t half = float_to_bf16(value);
    std::memcpy(tensor.data() + 2 * i, &half, sizeof(half));
  }

  std::vector<float> scores(const Isa& isa) const {
    Arena counter(nullptr);
    const Scorer measured(call_, isa, 1, counter);
    std::vector<std::byte> memory(counter.used());
    Arena arena(memory.data());
    Scorer scorer(call_, isa, 1, arena);
    std::vector<float> result;
    scorer.load_row(0, 0);
    for (int64_t first = 0; first < kKeys; first += panel_keys) {
      int64_t positions[kMaxPanelKeys];
      float panel[kMaxPanelKeys];
      const int count = static_cast<int>(std::min<int64_t>(panel_keys, kKeys - first));
      for (int lane = 0; lane < count; ++lane) {
        positions[lane] = first + lane;
      }
      scorer.load_keys(0, positions, count);
      scorer.score(0, panel);
      result.insert(result.end(), panel, panel + count);
    }
    return result;
  }

  Isa f32_, pairs_;
  Call call_;
  std::mt19937 random_{11};
  std::vector<uint8_t> q_, k_;
  std::vector<float> scales_, weights_;
};

TEST_P(CpuScorerTest, PairsGiveTheExactSumsOfF32) {
  EXPECT_EQ(scores(pairs_), scores(f32_));
}

TEST_P(CpuScorerTest, SubnormalsTakeTheF32Kernel) {
  if (GetParam() != Dtype::kBf16) {
    GTEST_SKIP() << "only bf16 inputs can be subnormal";
  }
  const int64_t dim = call_.problem.head_dim;
  for (int64_t d = 0; d < dim; ++d) {
    put_bf16(k_, 3 * dim + d, 1e-39F);  // one key is subnormal throughout
    put_bf16(q_, d, 1e36F);             // and one head makes its products count
  }
  EXPECT_EQ(scores(pairs_), scores(f32_));
  EXPECT_GT(scores(pairs_)[3], 0);
  put_bf16(q_, dim, 1e-39F);  // now the row has one: every pair goes to f32
  EXPECT_EQ(scores(pairs_), scores(f32_));
}

INSTANTIATE_TEST_SUITE_P(KeyTypes, CpuScorerTest, testing::Values(Dtype::kE4m3, Dtype::kBf16, Dtype::kMxfp4));

}  // namespace
}  // namespace keysieve::cpu
