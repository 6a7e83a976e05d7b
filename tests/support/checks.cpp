// SPDX-License-Identifier: Apache-2.0
#include "support/checks.hpp"

#include <algorithm>

#include "support/backends.hpp"
#include "support/support_table.hpp"

namespace keysieve::test {
namespace {

/// Multiply-adds that the reference may spend on one problem.
constexpr int64_t kReferenceWork = 40'000'000;

std::vector<int64_t> rows_for_reference(const Inputs& inputs) {
  const keysieve_problem& problem = inputs.problem;
  const int64_t row_work = std::max<int64_t>(problem.num_heads * problem.head_dim * problem.num_keys, 1);
  return sample_rows(problem.num_rows, std::max<int64_t>(kReferenceWork / row_work, 2));
}

}  // namespace

bool takes(Runner& runner, const Inputs& inputs, const RunSettings& settings) {
  const keysieve_status status = runner.supported(inputs, settings);
  if (status == KEYSIEVE_OK) {
    note_ran(runner.backend());
    return true;
  }
  const std::string message = keysieve_last_message();
  EXPECT_EQ(status, KEYSIEVE_UNSUPPORTED) << message;
  EXPECT_FALSE(must_support(runner.backend(), inputs.problem)) << runner.backend() << " refused: " << message;
  note_refused(runner.backend(), message);
  return false;
}

Outputs run_ok(Runner& runner, const Inputs& inputs, const RunSettings& settings) {
  Outputs out = runner.run(inputs, settings);
  EXPECT_EQ(out.status, KEYSIEVE_OK) << out.message;
  EXPECT_EQ(out.violation, "");
  return out;
}

Inputs as_score(const Inputs& inputs, int32_t score_dtype, int32_t score_layout, int64_t score_width) {
  Inputs out = inputs;
  out.problem.op = KEYSIEVE_SCORE;
  out.problem.candidates = KEYSIEVE_CANDIDATES_NONE;
  out.problem.score_dtype = score_dtype;
  out.problem.score_layout = score_layout;
  out.problem.score_width = score_width;
  return out;
}

Inputs as_select(const Inputs& inputs, const Tensor& scores, int32_t score_layout) {
  Inputs out = inputs;
  out.problem.op = KEYSIEVE_SELECT;
  out.problem.score_dtype = scores.dtype() == Dtype::kBf16 ? KEYSIEVE_BF16 : KEYSIEVE_F32;
  out.problem.score_layout = score_layout;
  out.problem.score_width = score_layout == KEYSIEVE_SCORES_COMPACT ? scores.shape(1) : 0;
  out.scores = scores;
  return out;
}

std::vector<int64_t> sample_rows(int64_t num_rows, int64_t most) {
  std::vector<int64_t> rows;
  const int64_t count = std::min(num_rows, std::max<int64_t>(most, 2));
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(count == 1 ? 0 : i * (num_rows - 1) / (count - 1));
  }
  return rows;
}

void expect_select_is_exact(Runner& runner, const Inputs& select, const RunSettings& settings) {
  if (!takes(runner, select, settings)) {
    return;
  }
  const Outputs actual = run_ok(runner, select, settings);
  if (actual.status == KEYSIEVE_OK) {
    EXPECT_EQ(compare_selections(select, actual, select_oracle(select, select.scores, settings)), "");
  }
}

void expect_conforms(Runner& runner, const Inputs& score_select, const RunSettings& settings) {
  const Inputs score = as_score(score_select);
  Tensor scores;
  if (takes(runner, score, settings)) {
    Outputs out = run_ok(runner, score, settings);
    if (out.status != KEYSIEVE_OK) {
      return;
    }
    scores = out.scores;
    EXPECT_EQ(check_accuracy(score, scores, rows_for_reference(score), runner.backend()), "");
    expect_select_is_exact(runner, as_select(score_select, scores), settings);
  }
  if (!takes(runner, score_select, settings)) {
    return;
  }
  const Outputs fused = run_ok(runner, score_select, settings);
  if (fused.status != KEYSIEVE_OK) {
    return;
  }
  if (scores.present()) {
    EXPECT_EQ(compare_selections(score_select, fused, select_oracle(score_select, scores, settings)), "");
  }
  if (fused.row_indices.present() && score_select.problem.candidates != KEYSIEVE_CANDIDATES_CONSUME) {
    EXPECT_EQ(check_agreement(score_select, fused.row_indices, rows_for_reference(score_select), runner.backend()), "");
  }
}

}  // namespace keysieve::test
