// SPDX-License-Identifier: Apache-2.0
// Synthetic data and the two tests of a selection, on the reference backend.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>

#include "checker.hpp"
#include "failure.hpp"
#include "selection_file.hpp"
#include "synthetic.hpp"
#include "unit/safetensors_files.hpp"

namespace keysieve::cli {
namespace {

SyntheticSpec small_spec(DataKind data, int32_t k_dtype, RowKind rows = RowKind::kCausal) {
  SyntheticSpec spec;
  spec.data = data;
  spec.rows = rows;
  spec.k_dtype = k_dtype;
  spec.num_rows = 17;
  spec.num_keys = 300;
  spec.num_heads = 4;
  spec.head_dim = 64;
  return spec;
}

RunOptions reference_options(int64_t topk) {
  RunOptions options;
  options.backend = "reference";
  options.topk = topk;
  return options;
}

std::vector<int64_t> all_rows(const Replay& replay) {
  return spread_rows(replay.num_rows, replay.num_rows);
}

class SyntheticData : public ::testing::TestWithParam<std::tuple<DataKind, int32_t>> {};

TEST_P(SyntheticData, IsAReplayFileWhoseSelectionIsRight) {
  const auto [data, k_dtype] = GetParam();
  for (const RowKind rows : {RowKind::kCausal, RowKind::kFull, RowKind::kRagged}) {
    const Synthetic synthetic(small_spec(data, k_dtype, rows));
    const testing::TemporaryDirectory directory;
    const std::string path = directory.file("synthetic.safetensors");
    const Status written = write_safetensors(path, synthetic.tensors(), synthetic.metadata());
    ASSERT_TRUE(written.ok()) << written.message();
    const Replay replay = load_replay(path);
    Session session(replay, reference_options(40));
    const Selection selection = session.select();
    std::vector<RowSurvey> survey;
    EXPECT_TRUE(test_exact(session, selection, KEYSIEVE_ORDER_ASCENDING, &survey).ok());
    EXPECT_TRUE(test_agreement(replay, selection, 0, all_rows(replay)).ok());
    EXPECT_EQ(survey.size(), 17U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SyntheticData,
                         ::testing::Combine(::testing::Values(DataKind::kNormal, DataKind::kTies,
                                                              DataKind::kZeroPlateau, DataKind::kLowContrast,
                                                              DataKind::kSortedAscending, DataKind::kSortedDescending,
                                                              DataKind::kOutliers, DataKind::kNanInf),
                                            ::testing::Values(KEYSIEVE_E4M3, KEYSIEVE_BF16, KEYSIEVE_MXFP4)),
                         [](const auto& test) {
                           std::string name = std::string(data_kind_name(std::get<0>(test.param))) + "_" +
                                              dtype_option_name(std::get<1>(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Scores of the last row, which sees all keys when rows are causal.
std::vector<float> last_row_scores(const SyntheticSpec& spec) {
  const Synthetic synthetic(spec);
  const Replay replay = synthetic.replay();
  Session session(replay, reference_options(1));
  ScoreThenSelect pair(session, replay.num_rows - 1, replay.num_rows);
  pair.enqueue();
  return pair.download().scores;
}

TEST(Synthetic, HasTheScoresItNames) {
  for (const int32_t k_dtype : {KEYSIEVE_E4M3, KEYSIEVE_BF16, KEYSIEVE_MXFP4}) {
    const std::vector<float> up = last_row_scores(small_spec(DataKind::kSortedAscending, k_dtype));
    EXPECT_TRUE(std::is_sorted(up.begin(), up.end())) << k_dtype;
    EXPECT_LT(up.front(), up.back());
    const std::vector<float> down = last_row_scores(small_spec(DataKind::kSortedDescending, k_dtype));
    EXPECT_TRUE(std::is_sorted(down.rbegin(), down.rend())) << k_dtype;

    const std::vector<float> zeros = last_row_scores(small_spec(DataKind::kZeroPlateau, k_dtype));
    EXPECT_GT(std::count(zeros.begin(), zeros.end(), 0.0F), 240) << k_dtype;

    std::vector<float> ties = last_row_scores(small_spec(DataKind::kTies, k_dtype));
    std::sort(ties.begin(), ties.end());
    EXPECT_LE(std::unique(ties.begin(), ties.end()) - ties.begin(), 64) << k_dtype;

    const std::vector<float> spoilt = last_row_scores(small_spec(DataKind::kNanInf, k_dtype));
    EXPECT_TRUE(std::any_of(spoilt.begin(), spoilt.end(), [](float score) { return std::isnan(score); })) << k_dtype;
  }
}

TEST(Synthetic, IsAFunctionOfItsSeed) {
  SyntheticSpec spec = small_spec(DataKind::kNormal, KEYSIEVE_E4M3);
  const auto bytes = [&spec] {
    const Synthetic synthetic(spec);
    std::vector<std::byte> all;
    for (const FileTensor& tensor : synthetic.tensors()) {
      all.insert(all.end(), tensor.data, tensor.data + tensor.bytes);
    }
    return all;
  };
  const auto first = bytes();
  EXPECT_EQ(first, bytes());
  spec.seed = 2;
  EXPECT_NE(first, bytes());
}

TEST(Checker, NamesTheFirstWrongRow) {
  const Synthetic synthetic(small_spec(DataKind::kNormal, KEYSIEVE_E4M3, RowKind::kFull));
  const Replay replay = synthetic.replay();
  Session session(replay, reference_options(8));
  Selection selection = session.select();
  for (const int64_t row : {12, 5}) {  // replace the last key by one that was not picked
    int32_t* keys = selection.row_indices.data() + row * 8;
    int32_t other = 299;
    while (std::find(keys, keys + 8, other) != keys + 8) {
      --other;
    }
    keys[7] = other;
  }
  const TestOutcome exact = test_exact(session, selection, KEYSIEVE_ORDER_ASCENDING, nullptr);
  EXPECT_EQ(exact.rows, 17);
  EXPECT_EQ(exact.wrong, 2);
  EXPECT_EQ(exact.first->row, 5);
  const TestOutcome agreement = test_agreement(replay, selection, 0, all_rows(replay));
  EXPECT_EQ(agreement.wrong, 2);
  EXPECT_EQ(agreement.first->row, 5);
  EXPECT_EQ(agreement.first->verdict.key, selection.row_indices[5 * 8 + 7]);
  const std::string text = outcome_text("agrees", "x", agreement, 17);
  EXPECT_NE(text.find("NOT agrees: 2 of 17 rows tested are wrong; row 5"), std::string::npos) << text;
  EXPECT_EQ(outcome_json(agreement)["first_wrong"]["row"], 5);
}

TEST(Checker, SpreadsRows) {
  EXPECT_EQ(spread_rows(5, 9), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(spread_rows(5, 3), (std::vector<int64_t>{0, 2, 4}));
  EXPECT_EQ(spread_rows(5, 1), (std::vector<int64_t>{4}));
  EXPECT_TRUE(spread_rows(0, 3).empty());
}

TEST(SelectionFile, ComesBackInEveryIndexSpace) {
  const testing::TemporaryDirectory directory;
  const Synthetic synthetic(small_spec(DataKind::kNormal, KEYSIEVE_E4M3, RowKind::kRagged));
  const Replay replay = synthetic.replay();
  for (const int32_t space : {KEYSIEVE_INDEX_ROW, KEYSIEVE_INDEX_ABSOLUTE}) {
    RunOptions options = reference_options(8);
    options.index_space = space;
    Session session(replay, options);
    const Selection selection = session.select();
    const std::string path = directory.file("selection.safetensors");
    save_selection(path, selection, session, "synthetic");
    const SavedSelection saved = load_selection(path, replay, KEYSIEVE_INDEX_ROW);
    EXPECT_EQ(saved.backend, "reference");
    EXPECT_EQ(saved.order, KEYSIEVE_ORDER_ASCENDING);
    EXPECT_EQ(saved.selection.row_indices, selection.row_indices);
    EXPECT_EQ(saved.selection.scores, selection.scores);
  }
}

TEST(SelectionFile, TakesPlainAbsoluteIndicesOfOtherTools) {
  const testing::TemporaryDirectory directory;
  const std::vector<int32_t> starts = {0, 40};
  const std::vector<int32_t> indices = {3, -1, 42, 7};
  Replay replay;
  replay.num_rows = 2;
  replay.num_keys = 100;
  replay.row_start = make_view(starts.data(), KEYSIEVE_I32, {2});
  const std::string path = directory.file("other.safetensors");
  const Status written = write_safetensors(
      path, {{"indices", FileDtype::kI32, {2, 2}, reinterpret_cast<const std::byte*>(indices.data()), 16}}, {});
  ASSERT_TRUE(written.ok());
  const SavedSelection saved = load_selection(path, replay, KEYSIEVE_INDEX_ABSOLUTE);
  EXPECT_EQ(saved.selection.row_indices, (std::vector<int32_t>{3, -1, 2, -2}));
  EXPECT_THROW(load_selection(path, replay, KEYSIEVE_INDEX_SLOT), Failure);
  replay.num_rows = 3;
  EXPECT_THROW(load_selection(path, replay, KEYSIEVE_INDEX_ROW), Failure);
}

TEST(Session, SaysWhatIsMissing) {
  const Synthetic synthetic(small_spec(DataKind::kNormal, KEYSIEVE_E4M3));
  const Replay replay = synthetic.replay();
  const auto code_of = [&replay](RunOptions options) {
    try {
      Session session(replay, options);
    } catch (const Failure& failure) {
      return static_cast<int>(failure.code());
    }
    return 0;
  };
  RunOptions options = reference_options(8);
  EXPECT_EQ(code_of(options), kExitOk);
  options.backend = "abacus";
  EXPECT_EQ(code_of(options), kExitUnavailable);
  options = reference_options(0);
  EXPECT_EQ(code_of(options), kExitBadInput);
  options = reference_options(8);
  options.index_space = KEYSIEVE_INDEX_SLOT;
  EXPECT_EQ(code_of(options), kExitBadInput);
}

}  // namespace
}  // namespace keysieve::cli
