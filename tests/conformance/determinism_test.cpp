// SPDX-License-Identifier: Apache-2.0
// One score per pair and one set per row, whatever surrounds them: repeats, threads, workspace, other rows, other keys
// (contract sections 1, 3 and 6).
#include <algorithm>

#include "core/bits.hpp"
#include "support/checks.hpp"

namespace keysieve::test {
namespace {

class Determinism : public BackendTest {
 protected:
  /// Problems that cover the key types, layouts and candidate modes.
  static std::vector<ProblemSpec> problems() {
    std::vector<ProblemSpec> specs;
    for (const KeyType type : {KeyType::kE4m3, KeyType::kBf16, KeyType::kMxfp4}) {
      for (const bool paged : {false, true}) {
        ProblemSpec spec;
#if defined(KEYSIEVE_SMALL_TESTS)
        spec.shape = {37, 8, 64, 300, 50};
#else
        spec.shape = {37, 32, 128, 1500, 200};
#endif
        spec.key_type = type;
        spec.paged = paged;
        spec.next_n = paged ? 10 : 1;
        spec.ranges = Ranges::kUnaligned;
        spec.values = paged ? Values::kFewKeys : Values::kNormal;
        spec.candidates = paged ? KEYSIEVE_CANDIDATES_PUBLISH : KEYSIEVE_CANDIDATES_NONE;
        spec.cand_count = 50;
        spec.seed = 5000 + specs.size();
        specs.push_back(spec);
      }
    }
    return specs;
  }

  /// The problem as given, without candidates where the backend has none, as score, and as select.
  static std::vector<Inputs> variants(Runner& runner, const ProblemSpec& spec) {
    std::vector<Inputs> taken;
    const Inputs fused = make_inputs(spec);
    Inputs plain = fused;
    plain.problem.candidates = KEYSIEVE_CANDIDATES_NONE;
    Random random(spec.seed);
    const Tensor scores = random_scores(spec.shape.rows, spec.shape.keys, 64, true, random);
    for (const Inputs& inputs : {fused, plain, as_score(fused), as_select(fused, scores), as_select(plain, scores)}) {
      if (takes(runner, inputs)) {
        taken.push_back(inputs);
      }
    }
    return taken;
  }

  static void expect_same(const Inputs& inputs, const Outputs& actual, const Outputs& expected) {
    if (inputs.problem.op == KEYSIEVE_SCORE) {
      EXPECT_EQ(compare_scores(actual.scores, expected.scores), "");
    } else {
      EXPECT_EQ(compare_selections(inputs, actual, expected), "");
    }
  }
};
KEYSIEVE_FOR_EACH_BACKEND(Determinism);

TEST_P(Determinism, Repeats) {
#if defined(KEYSIEVE_SMALL_TESTS)
  constexpr int kRepeats = 3;
#else
  const int kRepeats = GetParam() == "reference" ? 2 : GetParam() == "cuda" ? 100 : 20;
#endif
  Runner runner(GetParam());
  for (const ProblemSpec& spec : problems()) {
    SCOPED_TRACE(describe(spec));
    for (const Inputs& inputs : variants(runner, spec)) {
      const Outputs first = run_ok(runner, inputs);
      for (int repeat = 1; repeat < kRepeats; ++repeat) {
        RunSettings settings;
        settings.poison = static_cast<Poison>(repeat % 4);
        expect_same(inputs, run_ok(runner, inputs, settings), first);
      }
    }
  }
}

TEST_P(Determinism, ThreadsAndWorkspace) {
  Runner runner(GetParam());
  for (const ProblemSpec& spec : problems()) {
    SCOPED_TRACE(describe(spec));
    for (const Inputs& inputs : variants(runner, spec)) {
      RunSettings settings;
      settings.threads = 1;
      const Outputs first = run_ok(runner, inputs, settings);
      for (const int32_t threads : {2, 3, 7, 64, 0}) {
        for (const WorkspaceChoice workspace : {WorkspaceChoice::kMinimum, WorkspaceChoice::kMinimumPlusOne,
                                                WorkspaceChoice::kMiddle, WorkspaceChoice::kPreferred}) {
          if (GetParam() == "reference" && (threads != 2 || workspace != WorkspaceChoice::kMiddle)) {
            continue;  // it has neither threads nor a workspace
          }
          settings.threads = threads;
          settings.workspace = workspace;
          settings.poison = static_cast<Poison>(threads % 4);
          SCOPED_TRACE("threads " + std::to_string(threads) + " workspace " +
                       std::to_string(static_cast<int>(workspace)));
          expect_same(inputs, run_ok(runner, inputs, settings), first);
        }
      }
    }
  }
}

/// A workspace one byte under the minimum is refused by name and size.
TEST_P(Determinism, WorkspaceBelowTheMinimum) {
  Runner runner(GetParam());
  for (const ProblemSpec& spec : problems()) {
    for (const Inputs& inputs : variants(runner, spec)) {
      Staged staged = runner.stage(inputs);
      if (staged.workspace_bytes == 0) {
        continue;
      }
      staged.tensors.workspace_bytes = staged.workspace_bytes - 1;
      EXPECT_EQ(runner.launch(staged), KEYSIEVE_WORKSPACE_TOO_SMALL);
      EXPECT_NE(staged.outputs.message.find(std::to_string(staged.workspace_bytes)), std::string::npos)
          << staged.outputs.message;
      EXPECT_NE(staged.outputs.message.find(std::to_string(staged.workspace_bytes - 1)), std::string::npos)
          << staged.outputs.message;
    }
  }
}

/// A row alone, in another order, or among fewer rows has the same scores and the same selection.
TEST_P(Determinism, RowsDoNotDependOnEachOther) {
  Runner runner(GetParam());
  const std::vector<std::vector<int64_t>> kSubsets = {{0}, {36}, {5, 4, 3}, {1, 1, 1, 2}, {35, 0, 17, 18, 19, 20, 21}};
  for (const ProblemSpec& spec : problems()) {
    SCOPED_TRACE(describe(spec));
    for (const Inputs& inputs : variants(runner, spec)) {
      const Outputs whole = run_ok(runner, inputs);
      for (const std::vector<int64_t>& rows : kSubsets) {
        const Inputs subset = subset_of_rows(inputs, rows);
        if (!takes(runner, subset)) {
          continue;
        }
        const Outputs part = run_ok(runner, subset);
        Outputs expected;
        expected.scores = whole.scores.rows(rows, false);
        expected.indices = whole.indices.rows(rows, false);
        expected.top_scores = whole.top_scores.rows(rows, false);
        expected.row_indices = whole.row_indices.rows(rows, false);
        expected.out_count = whole.out_count.rows(rows, false);
        expected.cand_out = whole.cand_out.rows(rows, false);
        expect_same(subset, part, expected);
      }
    }
  }
}

/// The score of a key does not depend on where it stands or on its neighbours.
TEST_P(Determinism, ScoresDoNotDependOnNeighbours) {
  Runner runner(GetParam());
  for (const KeyType type : {KeyType::kE4m3, KeyType::kBf16, KeyType::kMxfp4}) {
    ProblemSpec spec;
    spec.shape = {3, 32, 128, 700, 10};
    spec.key_type = type;
    spec.seed = 5200;
    const Inputs inputs = make_inputs(spec);
    if (!takes(runner, as_score(inputs))) {
      continue;
    }
    const Outputs whole = run_ok(runner, as_score(inputs));
    for (const int64_t first : {1, 5, 63, 64, 129}) {
      for (const int64_t count : {1, 2, 65, 300}) {
        std::vector<int64_t> keys(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) {
          keys[i] = first + i;
        }
        std::reverse(keys.begin(), keys.end());
        Inputs part = inputs;
        part.problem.num_keys = count;
        part.k = inputs.k.rows(keys, false);
        part.k_scale = inputs.k_scale.rows(keys, false);
        const Outputs out = run_ok(runner, as_score(part));
        for (int64_t t = 0; t < 3; ++t) {
          for (int64_t i = 0; i < count; ++i) {
            EXPECT_EQ(float_bits(out.scores.value<float>(t, i)), float_bits(whole.scores.value<float>(t, keys[i])));
          }
        }
      }
    }
  }
}

/// Where the keys of a row lie in the matrix does not change what is picked.
TEST_P(Determinism, RangesCutTheSameScores) {
  Runner runner(GetParam());
  ProblemSpec spec;
  spec.shape = {40, 8, 64, 1000, 50};
  spec.ranges = Ranges::kHostile;
  spec.seed = 5300;
  const Inputs ranged = make_inputs(spec);
  Inputs open = ranged;
  open.row_start = {};
  open.row_end = {};
  if (!takes(runner, as_score(ranged))) {
    return;
  }
  const Outputs all = run_ok(runner, as_score(open));
  const Outputs cut = run_ok(runner, as_score(ranged));
  for (int64_t t = 0; t < 40; ++t) {
    const KeyRange range = key_range(ranged, t);
    for (int64_t n = range.begin; n < range.end; ++n) {
      EXPECT_EQ(float_bits(cut.scores.value<float>(t, n)), float_bits(all.scores.value<float>(t, n)));
    }
  }
}

}  // namespace
}  // namespace keysieve::test
