// SPDX-License-Identifier: Apache-2.0
// score_select over shapes, dtypes, values, ranges, K, orders, index spaces and outputs (contract sections 1 to 4).
#include "support/checks.hpp"

namespace keysieve::test {
namespace {

class ScoreSelect : public ConformanceTest {};
KEYSIEVE_FOR_EACH_BACKEND(ScoreSelect);

constexpr KeyType kKeyTypes[] = {KeyType::kE4m3, KeyType::kBf16, KeyType::kMxfp4};

TEST_P(ScoreSelect, ShapesAndKeyTypes) {
  const ProblemShape kShapes[] = {
      {1, 8, 64, 1, 1},       {1, 64, 128, 300, 64},  {3, 32, 128, 63, 64},   {5, 16, 64, 64, 63},
      {7, 8, 128, 65, 64},    {2, 128, 128, 127, 7},  {33, 8, 64, 128, 2},    {4, 64, 64, 129, 128},
      {2, 32, 128, 1000, 99}, {17, 8, 128, 257, 256}, {130, 8, 64, 191, 100}, {1, 8, 128, 4100, 2047},
  };
  uint64_t seed = 100;
  for (const ProblemShape& shape : kShapes) {
    for (const KeyType type : kKeyTypes) {
      ProblemSpec spec;
      spec.shape = shape;
      spec.key_type = type;
      spec.seed = ++seed;
      check(spec);
    }
  }
}

/// Head counts and head dims that only some backends have kernels for.
TEST_P(ScoreSelect, AnyHeadsAndHeadDim) {
  const ProblemShape kShapes[] = {{3, 1, 1, 50, 5},    {2, 2, 3, 77, 9},   {3, 3, 17, 100, 10}, {2, 5, 33, 65, 64},
                                  {2, 4, 96, 200, 20}, {2, 48, 32, 90, 9}, {1, 7, 160, 90, 40}, {1, 1, 128, 500, 17}};
  uint64_t seed = 200;
  for (const ProblemShape& shape : kShapes) {
    for (const KeyType type : kKeyTypes) {
      if (type == KeyType::kMxfp4 && shape.head_dim % 32 != 0) {
        continue;
      }
      ProblemSpec spec;
      spec.shape = shape;
      spec.key_type = type;
      spec.seed = ++seed;
      check(spec);
    }
  }
}

TEST_P(ScoreSelect, TiesZerosAndNan) {
  uint64_t seed = 300;
  for (const KeyType type : kKeyTypes) {
    for (const Values values : {Values::kExact, Values::kFewKeys, Values::kZeros, Values::kWithNan}) {
      for (const ProblemShape& shape : {ProblemShape{3, 8, 128, 3000, 512}, ProblemShape{2, 32, 64, 700, 256}}) {
        ProblemSpec spec;
        spec.shape = shape;
        spec.key_type = type;
        spec.values = values;
        spec.ranges = Ranges::kUnaligned;
        spec.seed = ++seed;
        check(spec);
      }
    }
  }
}

TEST_P(ScoreSelect, Ranges) {
  uint64_t seed = 400;
  for (const KeyType type : kKeyTypes) {
    for (const Ranges ranges :
         {Ranges::kNone, Ranges::kEndsOnly, Ranges::kCausal, Ranges::kUnaligned, Ranges::kHostile}) {
      for (const ProblemShape& shape : {ProblemShape{40, 8, 64, 333, 64}, ProblemShape{131, 8, 128, 200, 32}}) {
        ProblemSpec spec;
        spec.shape = shape;
        spec.key_type = type;
        spec.ranges = ranges;
        spec.seed = ++seed;
        check(spec);
      }
    }
  }
}

TEST_P(ScoreSelect, TopK) {
  uint64_t seed = 500;
  for (const int64_t topk : {1, 2, 7, 64, 511, 512, 513, 2047, 2048}) {
    for (const int64_t keys : {topk - 1, topk, topk + 1, 2 * topk + 37}) {
      for (const Values values : {Values::kNormal, Values::kFewKeys}) {
        ProblemSpec spec;
        spec.shape = {2, 8, 64, keys, topk};
        spec.values = values;
        spec.seed = ++seed;
        check(spec);
      }
    }
  }
}

TEST_P(ScoreSelect, OrdersAndIndexSpaces) {
  uint64_t seed = 600;
  for (const int32_t order : {KEYSIEVE_ORDER_ASCENDING, KEYSIEVE_ORDER_ANY, KEYSIEVE_ORDER_SCORE}) {
    for (const int32_t space :
         {KEYSIEVE_INDEX_ROW, KEYSIEVE_INDEX_ABSOLUTE, KEYSIEVE_INDEX_OFFSET, KEYSIEVE_INDEX_SLOT}) {
      for (const Values values : {Values::kNormal, Values::kFewKeys, Values::kWithNan}) {
        ProblemSpec spec;
        spec.shape = {9, 8, 64, 600, 100};
        spec.order = order;
        spec.index_space = space;
        spec.slot_page_size = space == KEYSIEVE_INDEX_SLOT ? (values == Values::kNormal ? 16 : 1) : 0;
        spec.next_n = 3;
        spec.row_request = values == Values::kFewKeys;
        spec.values = values;
        spec.ranges = Ranges::kUnaligned;
        spec.seed = ++seed;
        check(spec);
      }
    }
  }
}

TEST_P(ScoreSelect, OptionalOutputsAndRowGaps) {
  uint64_t seed = 700;
  for (const Poison poison : {Poison::kMinus777, Poison::kFF, Poison::k7F, Poison::kRandom}) {
    for (int present = 0; present < 8; ++present) {
      ProblemSpec spec;
      spec.shape = {5, 8, 64, 257, 33};
      spec.index_space = KEYSIEVE_INDEX_ABSOLUTE;
      spec.ranges = Ranges::kUnaligned;
      spec.seed = ++seed;
      RunSettings settings;
      settings.poison = poison;
      settings.top_scores = (present & 1) != 0;
      settings.row_indices = (present & 2) != 0;
      settings.out_count = (present & 4) != 0;
      settings.row_gap = present % 3 * 5;
      settings.workspace_fence = present % 2 == 0 ? Fence::kAfter : Fence::kBefore;
      check(spec, settings);
    }
  }
}

TEST_P(ScoreSelect, EmptyProblems) {
  for (const ProblemShape& shape :
       {ProblemShape{0, 8, 64, 100, 16}, ProblemShape{3, 8, 64, 0, 16}, ProblemShape{0, 8, 64, 0, 1}}) {
    ProblemSpec spec;
    spec.shape = shape;
    check(spec);
  }
}

}  // namespace
}  // namespace keysieve::test
