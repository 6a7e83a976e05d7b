// SPDX-License-Identifier: Apache-2.0
// score: layouts, types, and the cells that belong to nobody (contract sections 1 and 4).
#include <limits>

#include "core/bf16.hpp"
#include "core/ordering.hpp"
#include "support/accuracy.hpp"
#include "support/checks.hpp"

namespace keysieve::test {
namespace {

class Score : public ConformanceTest {};
KEYSIEVE_FOR_EACH_BACKEND(Score);

constexpr KeyType kKeyTypes[] = {KeyType::kE4m3, KeyType::kBf16, KeyType::kMxfp4};
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

/// What `layout` and `dtype` must hold, made from full f32 scores of the same backend.
Tensor expected_scores(const Inputs& inputs, const Tensor& full, int32_t dtype, int64_t width) {
  const bool compact = width > 0;
  const int64_t columns = compact ? width : inputs.problem.num_keys;
  Tensor out(dtype == KEYSIEVE_BF16 ? Dtype::kBf16 : Dtype::kF32, {inputs.problem.num_rows, columns});
  for (int64_t t = 0; t < inputs.problem.num_rows; ++t) {
    const KeyRange range = key_range(inputs, t);
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t n = compact ? range.begin + column : column;
      const float score = n >= range.begin && n < range.end ? full.value<float>(t, n) : kNegativeInfinity;
      if (dtype == KEYSIEVE_BF16) {
        out.mutable_data<uint16_t>()[t * columns + column] = float_to_bf16(score);
      } else {
        out.mutable_data<float>()[t * columns + column] = score;
      }
    }
  }
  return out;
}

/// First score that is not the same number; the sign of a zero is each backend's own.
std::string first_unequal(const Tensor& actual, const Tensor& expected) {
  for (int64_t t = 0; t < actual.shape(0); ++t) {
    for (int64_t n = 0; n < actual.shape(1); ++n) {
      if (ordered_bits(actual.value<float>(t, n)) != ordered_bits(expected.value<float>(t, n))) {
        return "scores[" + std::to_string(t) + "," + std::to_string(n) + "] is " +
               std::to_string(actual.value<float>(t, n)) + ", expected " + std::to_string(expected.value<float>(t, n));
      }
    }
  }
  return {};
}

TEST_P(Score, LayoutsAndTypes) {
  uint64_t seed = 4000;
  Runner runner(GetParam());
  for (const KeyType type : kKeyTypes) {
    for (const Ranges ranges : {Ranges::kNone, Ranges::kCausal, Ranges::kUnaligned, Ranges::kHostile}) {
      ProblemSpec spec;
      spec.shape = {19, 8, 64, 300, 1};
      spec.key_type = type;
      spec.ranges = ranges;
      spec.values = ranges == Ranges::kUnaligned ? Values::kWithNan : Values::kNormal;
      spec.seed = ++seed;
      SCOPED_TRACE(describe(spec));
      const Inputs inputs = make_inputs(spec);
      if (!takes(runner, as_score(inputs))) {
        continue;
      }
      const Outputs full = run_ok(runner, as_score(inputs));
      for (const int32_t dtype : {KEYSIEVE_F32, KEYSIEVE_BF16}) {
        for (const int64_t width : {0, 1, 130, 300, 333}) {
          const Inputs score =
              as_score(inputs, dtype, width > 0 ? KEYSIEVE_SCORES_COMPACT : KEYSIEVE_SCORES_FULL, width);
          if (!takes(runner, score)) {
            continue;
          }
          RunSettings settings;
          settings.row_gap = width % 3 * 4;
          settings.poison = dtype == KEYSIEVE_F32 ? Poison::kRandom : Poison::kFF;
          const Outputs out = run_ok(runner, score, settings);
          EXPECT_EQ(compare_scores(out.scores, expected_scores(inputs, full.scores, dtype, width)), "")
              << "dtype " << dtype << " width " << width;
        }
      }
    }
  }
}

/// select takes both layouts and returns the same indices.
TEST_P(Score, SelectOfBothLayoutsIsTheSame) {
  ProblemSpec spec;
  spec.shape = {9, 32, 128, 500, 77};
  spec.ranges = Ranges::kUnaligned;
  spec.index_space = KEYSIEVE_INDEX_ABSOLUTE;
  spec.seed = 4100;
  const Inputs inputs = make_inputs(spec);
  Runner runner(GetParam());
  const Inputs compact = as_score(inputs, KEYSIEVE_F32, KEYSIEVE_SCORES_COMPACT, 500);
  if (!takes(runner, as_score(inputs)) || !takes(runner, compact)) {
    return;
  }
  const Outputs full_scores = run_ok(runner, as_score(inputs));
  const Outputs compact_scores = run_ok(runner, compact);
  const Inputs full_select = as_select(inputs, full_scores.scores);
  const Inputs compact_select = as_select(inputs, compact_scores.scores, KEYSIEVE_SCORES_COMPACT);
  if (takes(runner, full_select) && takes(runner, compact_select)) {
    EXPECT_EQ(compare_selections(inputs, run_ok(runner, full_select), run_ok(runner, compact_select)), "");
  }
}

/// Inputs whose every partial sum is exact: the scores of all backends are the reference's.
TEST_P(Score, ExactArithmeticGivesTheReferencesScores) {
  uint64_t seed = 4200;
  Runner runner(GetParam());
  for (const KeyType type : kKeyTypes) {
    for (const ProblemShape& shape : {ProblemShape{5, 8, 64, 300, 50}, ProblemShape{3, 32, 128, 257, 50},
                                      ProblemShape{2, 64, 128, 129, 50}, ProblemShape{2, 128, 128, 64, 50}}) {
      for (const Values values : {Values::kExact, Values::kFewKeys, Values::kZeros}) {
        ProblemSpec spec;
        spec.shape = shape;
        spec.key_type = type;
        spec.values = values;
        spec.seed = ++seed;
        SCOPED_TRACE(describe(spec));
        const Inputs inputs = make_inputs(spec);
        std::vector<int64_t> rows(static_cast<size_t>(shape.rows));
        for (size_t t = 0; t < rows.size(); ++t) {
          rows[t] = static_cast<int64_t>(t);
        }
        const Tensor reference = reference_scores(inputs, rows);
        if (takes(runner, as_score(inputs))) {
          EXPECT_EQ(first_unequal(run_ok(runner, as_score(inputs)).scores, reference), "");
        }
        if (takes(runner, inputs)) {  // hence index for index
          EXPECT_EQ(compare_selections(inputs, run_ok(runner, inputs), select_oracle(inputs, reference)), "");
        }
      }
    }
  }
}

/// relu, weights of both signs and the scale after the head sum, by hand.
TEST_P(Score, FollowsTheFormula) {
  ProblemSpec spec;
  spec.shape = {1, 8, 64, 3, 3};
  Inputs inputs = make_inputs(spec);
  inputs.q.fill(0);
  inputs.k.fill(0);
  auto* q = inputs.q.mutable_data<uint8_t>();
  auto* k = inputs.k.mutable_data<uint8_t>();
  auto* w = inputs.weights.mutable_data<float>();
  std::fill(w, w + 8, 3.0F);
  constexpr uint8_t kOne = 0x38;
  constexpr uint8_t kMinusTwo = 0xC0;
  q[0] = kOne;       // head 0 reads channel 0
  q[64 + 1] = kOne;  // head 1 reads channel 1
  w[0] = 2.0F;
  w[1] = -1.0F;
  k[0] = kOne;        // key 0: relu(1), relu(0)
  k[64] = kMinusTwo;  // key 1: relu(-2), relu(1)
  k[64 + 1] = kOne;
  k[128] = kOne;  // key 2: relu(1), relu(1), scale -0.5
  k[128 + 1] = kOne;
  auto* scale = inputs.k_scale.mutable_data<float>();
  scale[0] = 1.5F;
  scale[1] = 4.0F;
  scale[2] = -0.5F;
  Runner runner(GetParam());
  if (!takes(runner, as_score(inputs))) {
    return;
  }
  const Outputs out = run_ok(runner, as_score(inputs));
  EXPECT_EQ(out.scores.value<float>(0, 0), 3.0F);
  EXPECT_EQ(out.scores.value<float>(0, 1), -4.0F);
  EXPECT_EQ(out.scores.value<float>(0, 2), -0.5F);
}

TEST_P(Score, ReportsWorstAccuracy) {
  Runner runner(GetParam());
  for (const KeyType type : kKeyTypes) {
    ProblemSpec spec;
    spec.shape = {4, 64, 128, 2000, 64};
    spec.key_type = type;
    spec.seed = 4300;
    check(spec);
  }
  std::printf("[ keysieve ] %s: largest error is %.3g of the bound's sum, c is %.3g at H=64 D=128\n",
              GetParam().c_str(), worst_accuracy(GetParam()), accuracy_constant(GetParam(), 64, 128));
}

}  // namespace
}  // namespace keysieve::test
