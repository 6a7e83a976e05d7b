// SPDX-License-Identifier: Apache-2.0
// select against std::stable_sort: every kind of row, bit for bit (contract section 3).
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/bf16.hpp"
#include "support/checks.hpp"

namespace keysieve::test {
namespace {

class Select : public BackendTest {
 protected:
  /// A select problem over `scores`, rows as `ranges` says.
  static Inputs make_select(const Tensor& scores, int64_t topk, Ranges ranges, uint64_t seed) {
    ProblemSpec spec;
    spec.shape = {scores.shape(0), 1, 1, scores.shape(1), topk};
    spec.ranges = ranges;
    spec.seed = seed;
    return as_select(make_inputs(spec), scores);
  }

  void check(const Inputs& inputs, const RunSettings& settings = {}) {
    Runner runner(GetParam());
    expect_select_is_exact(runner, inputs, settings);
  }
};
KEYSIEVE_FOR_EACH_BACKEND(Select);

Tensor to_bf16(const Tensor& scores) {
  Tensor out(Dtype::kBf16, scores.shape());
  for (int64_t i = 0; i < scores.shape(0) * scores.shape(1); ++i) {
    out.mutable_data<uint16_t>()[i] = float_to_bf16(scores.data<float>()[i]);
  }
  return out;
}

TEST_P(Select, RandomRows) {
  Random random(3000);
  const int64_t kWidths[] = {1, 2, 31, 32, 33, 1000, 2047, 2048, 2049, 4096, 5000, 20000};
  const int64_t kTopk[] = {1, 2, 7, 64, 512, 2047, 2048};
  for (const int64_t width : kWidths) {
    for (const int64_t topk : kTopk) {
      const int64_t distinct = random.pick(std::initializer_list<int64_t>{0, 1, 2, 16, 256}.begin(), 5);
      const Tensor scores = random_scores(3, width, distinct, random.chance(30), random);
      SCOPED_TRACE("width " + std::to_string(width) + " K " + std::to_string(topk) + " distinct " +
                   std::to_string(distinct));
      check(make_select(scores, topk, Ranges::kUnaligned, random.next()));
      check(make_select(to_bf16(scores), topk, Ranges::kHostile, random.next()));
    }
  }
}

TEST_P(Select, LargeTopK) {
  Random random(3100);
  for (const int64_t topk : {2049, 4096, 8191, 16383, 16384}) {
    for (const int64_t width : {topk - 1, topk, topk + 1, int64_t{40000}}) {
      SCOPED_TRACE("width " + std::to_string(width) + " K " + std::to_string(topk));
      const Tensor scores = random_scores(2, width, random.chance(50) ? 256 : 0, false, random);
      check(make_select(scores, topk, Ranges::kNone, 1));
    }
  }
}

/// Rows that defeat a selection which guesses: every pattern with every order.
TEST_P(Select, AdversarialRows) {
  constexpr int64_t kWidth = 20000;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto pattern = [](int kind, int64_t n) -> float {
    const auto x = static_cast<float>(n);
    switch (kind) {
      case 0: return 1.0F;                                                                 // all equal
      case 1: return 0.0F;                                                                 // all zero
      case 2: return x;                                                                    // ascending
      case 3: return -x;                                                                   // descending
      case 4: return 1.0F + x * 0x1.0p-20F;                                                // low contrast
      case 5: return n == 12345 ? 1e6F : x * 1e-6F;                                        // one outlier
      case 6: return static_cast<float>(n % 2);                                            // interleaved ties
      case 7: return n % 2 == 0 ? 0.0F : -0.0F;                                            // both zeros
      case 8: return n % 3 == 0 ? kInfinity : -kInfinity;                                  // infinities
      case 9: return n % 5 == 0 ? x : std::nanf("");                                       // NaN-heavy
      case 10: return std::nanf("");                                                       // nothing but NaN
      case 11: return -kInfinity;                                                          // nothing but -inf
      case 12: return bits_float(static_cast<uint32_t>(n));                                // denormals
      case 13: return bits_float(0x3F800000U + static_cast<uint32_t>(n * 7919 % kWidth));  // neighbouring floats
      case 14: return n < kWidth / 2 ? 65504.0F + x : -65504.0F - x;                       // beyond the range of fp16
      default: return std::ldexp(1.0F, static_cast<int>(n % 250) - 125);                   // every exponent
    }
  };
  for (int kind = 0; kind < 16; ++kind) {
    SCOPED_TRACE("pattern " + std::to_string(kind));
    Tensor scores(Dtype::kF32, {2, kWidth});
    for (int64_t i = 0; i < 2 * kWidth; ++i) {
      scores.mutable_data<float>()[i] = pattern(kind, i % kWidth);
    }
    for (const int64_t topk : {1, 512, 2048}) {
      Inputs inputs = make_select(scores, topk, Ranges::kNone, 1);
      inputs.row_start = i32_tensor({0, 333});
      inputs.problem.order = topk == 512 ? KEYSIEVE_ORDER_SCORE : KEYSIEVE_ORDER_ASCENDING;
      check(inputs);
      inputs.scores = to_bf16(scores);
      inputs.problem.score_dtype = KEYSIEVE_BF16;
      check(inputs);
    }
  }
}

/// More equal scores at the cut than any tie buffer holds.
TEST_P(Select, ThousandsOfTiesAtTheCut) {
  Random random(3200);
  for (const int64_t ties : {1023, 1024, 1025, 4095, 4096, 4097, 9000}) {
    for (const int64_t above : {0, 1, 100, 1024}) {
      constexpr int64_t kWidth = 12000;
      Tensor scores(Dtype::kF32, {2, kWidth});
      for (int64_t i = 0; i < 2 * kWidth; ++i) {
        const int64_t at = mix64(static_cast<uint64_t>(i) * 3 + 11) % kWidth;
        scores.mutable_data<float>()[i] = at < above          ? 2.0F + static_cast<float>(at)
                                          : at < above + ties ? 1.0F
                                                              : -static_cast<float>(at);
      }
      SCOPED_TRACE("ties " + std::to_string(ties) + " above " + std::to_string(above));
      check(make_select(scores, 1024, Ranges::kNone, 1));
    }
  }
}

TEST_P(Select, LongRows) {
  Random random(3300);
#if defined(KEYSIEVE_SMALL_TESTS)
  const int64_t kWidths[] = {70000};
#else
  const int64_t kWidths[] = {65535, 131072, 262209, 1048576};
#endif
  for (const int64_t width : kWidths) {
    for (const int64_t distinct : {0, 200}) {
      SCOPED_TRACE("width " + std::to_string(width) + " distinct " + std::to_string(distinct));
      const Tensor scores = random_scores(2, width, distinct, false, random);
      Inputs inputs = make_select(scores, 2048, Ranges::kNone, 1);
      inputs.row_start = i32_tensor({0, 17});
      check(inputs);
    }
  }
}

TEST_P(Select, CompactScores) {
  Random random(3400);
  for (const int64_t width : {1, 64, 100, 257}) {
    for (const Ranges ranges : {Ranges::kUnaligned, Ranges::kHostile, Ranges::kNone}) {
      ProblemSpec spec;
      spec.shape = {17, 1, 1, 300, 40};
      spec.ranges = ranges;
      spec.seed = random.next();
      const Tensor scores = random_scores(17, width, 8, true, random);
      for (const int32_t order : {KEYSIEVE_ORDER_ASCENDING, KEYSIEVE_ORDER_ANY, KEYSIEVE_ORDER_SCORE}) {
        for (const int32_t space : {KEYSIEVE_INDEX_ROW, KEYSIEVE_INDEX_ABSOLUTE, KEYSIEVE_INDEX_OFFSET}) {
          spec.order = order;
          spec.index_space = space;
          check(as_select(make_inputs(spec), scores, KEYSIEVE_SCORES_COMPACT));
        }
      }
    }
  }
}

TEST_P(Select, StridedScoresAndOutputs) {
  Random random(3500);
  const Tensor dense = random_scores(9, 501, 32, true, random);
  for (const int64_t stride : {501, 502, 512, 1000}) {
    for (const Poison poison : {Poison::kMinus777, Poison::kFF, Poison::k7F, Poison::kRandom}) {
      Inputs inputs = make_select(dense.with_layout({{stride, 1}}), 100, Ranges::kUnaligned, 5);
      RunSettings settings;
      settings.row_gap = stride - 501;
      settings.poison = poison;
      check(inputs, settings);
    }
  }
}

TEST_P(Select, SlotsOfPagedAndFlatRows) {
  Random random(3600);
  for (const bool paged : {false, true}) {
    for (const int32_t slot_page_size : {0, 1, 8, 64, 1024}) {
      if (!paged && slot_page_size == 0) {
        continue;
      }
      ProblemSpec spec;
      spec.shape = {12, 8, 64, 400, 60};
      spec.paged = paged;
      spec.next_n = 3;
      spec.ranges = Ranges::kUnaligned;
      spec.index_space = KEYSIEVE_INDEX_SLOT;
      spec.slot_page_size = slot_page_size;
      spec.row_request = random.chance(50);
      spec.seed = random.next();
      check(as_select(make_inputs(spec), random_scores(12, 400, 16, true, random)));
    }
  }
}

TEST_P(Select, CandidateBlocks) {
  Random random(3700);
  for (const int32_t candidates : {KEYSIEVE_CANDIDATES_PUBLISH, KEYSIEVE_CANDIDATES_CONSUME}) {
    for (const int64_t count : {1, 3, 60, 4096}) {
      ProblemSpec spec;
      spec.shape = {5, 1, 1, 3000, 64};
      spec.ranges = Ranges::kHostile;
      spec.candidates = candidates;
      spec.cand_block = count == 3 ? 16 : 8;
      spec.cand_count = count;
      spec.seed = random.next();
      check(as_select(make_inputs(spec), random_scores(5, 3000, 16, true, random)));
    }
  }
}

/// 64-bit offsets: the last row lies beyond 2^31 elements (a sparse mapping; only the rows are touched).
TEST_P(Select, RowStrideBeyondTwoToThe31) {
  if (GetParam() == "cuda") {
    GTEST_SKIP() << "the device has no sparse memory; the cases test it with real memory";
  }
  constexpr int64_t kStride = (int64_t{1} << 30) + 77;
  Random random(3800);
  const Tensor dense = random_scores(4, 900, 0, true, random);
  Tensor sparse(Dtype::kF32, {4, 900}, {{kStride, 1}});
  for (int64_t t = 0; t < 4; ++t) {
    std::copy_n(dense.data<float>() + t * 900, 900, sparse.mutable_data<float>() + t * kStride);
  }
  check(make_select(sparse, 100, Ranges::kNone, 1));
}

}  // namespace
}  // namespace keysieve::test
