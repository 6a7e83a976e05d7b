// SPDX-License-Identifier: Apache-2.0
// Candidate blocks (contract section 7): publish, consume, and one after the other.
#include <set>

#include "support/checks.hpp"

namespace keysieve::test {
namespace {

class CandidateBlocks : public ConformanceTest {};
KEYSIEVE_FOR_EACH_BACKEND(CandidateBlocks);

TEST_P(CandidateBlocks, Publish) {
  uint64_t seed = 2000;
  for (const int32_t block : {8, 16}) {
    for (const int64_t count : {1, 2, 5, 31, 200}) {
      for (const Values values : {Values::kNormal, Values::kFewKeys, Values::kZeros, Values::kWithNan}) {
        ProblemSpec spec;
        spec.shape = {7, 8, 64, 777, 64};
        spec.candidates = KEYSIEVE_CANDIDATES_PUBLISH;
        spec.cand_block = block;
        spec.cand_count = count;
        spec.values = values;
        spec.ranges = values == Values::kNormal ? Ranges::kHostile : Ranges::kUnaligned;
        spec.seed = ++seed;
        RunSettings settings;
        settings.row_gap = 3;
        check(spec, settings);
      }
    }
  }
}

TEST_P(CandidateBlocks, Consume) {
  uint64_t seed = 2100;
  for (const KeyType type : {KeyType::kE4m3, KeyType::kBf16, KeyType::kMxfp4}) {
    for (const int32_t block : {8, 16}) {
      for (const int64_t count : {1, 7, 64}) {
        for (const Values values : {Values::kNormal, Values::kFewKeys}) {
          ProblemSpec spec;
          spec.shape = {7, 8, 64, 777, 64};
          spec.key_type = type;
          spec.candidates = KEYSIEVE_CANDIDATES_CONSUME;
          spec.cand_block = block;
          spec.cand_count = count;
          spec.values = values;
          spec.ranges = Ranges::kUnaligned;
          spec.seed = ++seed;
          check(spec);
        }
      }
    }
  }
}

TEST_P(CandidateBlocks, PagedDecode) {
  uint64_t seed = 2200;
  for (const int32_t candidates : {KEYSIEVE_CANDIDATES_PUBLISH, KEYSIEVE_CANDIDATES_CONSUME}) {
    for (const int64_t next_n : {1, 2}) {
      ProblemSpec spec;
      spec.shape = {4 * next_n, 64, 128, 1000, 128};
      spec.paged = true;
      spec.decode = true;
      spec.next_n = next_n;
      spec.ranges = Ranges::kEndsOnly;
      spec.index_space = KEYSIEVE_INDEX_SLOT;
      spec.candidates = candidates;
      spec.cand_count = 40;
      spec.seed = ++seed;
      check(spec);
    }
  }
}

/// What one indexer publishes, the next one consumes: keys outside the published blocks are never picked.
TEST_P(CandidateBlocks, ConsumeWhatWasPublished) {
  ProblemSpec spec;
  spec.shape = {5, 8, 64, 900, 100};
  spec.candidates = KEYSIEVE_CANDIDATES_PUBLISH;
  spec.cand_count = 20;
  spec.ranges = Ranges::kUnaligned;
  spec.seed = 2300;
  const Inputs publish = make_inputs(spec);
  Runner runner(GetParam());
  if (!takes(runner, publish)) {
    return;
  }
  const Outputs published = run_ok(runner, publish);
  Inputs consume = publish;
  consume.problem.candidates = KEYSIEVE_CANDIDATES_CONSUME;
  consume.cand_in = published.cand_out.clone();
  expect_conforms(runner, consume);
}

/// A list that breaks the rules gives some subset of the row, never a duplicate, another key or a bad access.
TEST_P(CandidateBlocks, BrokenListsStayInsideTheRow) {
  ProblemSpec spec;
  spec.shape = {6, 8, 64, 300, 64};
  spec.candidates = KEYSIEVE_CANDIDATES_CONSUME;
  spec.cand_count = 12;
  spec.ranges = Ranges::kUnaligned;
  Random random(2400);
  for (int round = 0; round < 20; ++round) {
    spec.seed = random.next();
    Inputs inputs = make_inputs(spec);
    const int32_t kIds[] = {0, 1, 1, 5, 20, 37, 38, 1000, INT32_MAX, INT32_MIN, -1, -2, INT32_MAX / 8 + 1};
    for (int64_t i = 0; i < 6 * 12; ++i) {
      inputs.cand_in.mutable_data<int32_t>()[i] = random.pick(kIds, 13);
    }
    Runner runner(GetParam());
    if (!takes(runner, inputs)) {
      return;
    }
    const Outputs out = run_ok(runner, inputs);
    for (int64_t t = 0; t < 6; ++t) {
      std::set<int32_t> seen;
      const int64_t width = key_range(inputs, t).width();
      const int32_t count = out.out_count.value<int32_t>(t);
      for (int64_t slot = 0; slot < 64; ++slot) {
        const auto key = out.indices.value<int32_t>(t, slot);
        if (slot >= count) {
          EXPECT_EQ(key, -1);
          continue;
        }
        EXPECT_GE(key, 0);
        EXPECT_LT(key, width);
        EXPECT_TRUE(seen.insert(key).second) << "key " << key << " twice in row " << t;
      }
    }
  }
}

}  // namespace
}  // namespace keysieve::test
