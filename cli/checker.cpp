// SPDX-License-Identifier: Apache-2.0
#include "checker.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <mutex>
#include <numeric>

#include "core/ordering.hpp"
#include "failure.hpp"
#include "machine.hpp"
#include "parallel_rows.hpp"

namespace keysieve::cli {
namespace {

constexpr int64_t kBlockScoreBytes = 64 << 20;

std::vector<int64_t> row_list(int64_t begin, int64_t end) {
  std::vector<int64_t> rows(static_cast<size_t>(end - begin));
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

RowSurvey survey_row(const float* scores, int64_t width, int64_t topk) {
  RowSurvey survey;
  survey.width = width;
  survey.picked = std::min(width, topk);
  if (width == 0) {
    return survey;
  }
  const auto by_rank = [](float a, float b) { return ordered_bits(a) < ordered_bits(b); };
  survey.best = *std::max_element(scores, scores + width, by_rank);
  survey.lowest = *std::min_element(scores, scores + width, by_rank);
  survey.kth = kth_score(scores, width, topk);
  survey.zeros = std::count(scores, scores + width, 0.0F);
  survey.tie = cut_tie(scores, width, topk);
  return survey;
}

}  // namespace

std::vector<float> reference_scores(const Replay& replay, int64_t t) {
  std::vector<float> scores(static_cast<size_t>(replay.num_keys));
  const Problem problem = problem_of(replay, KEYSIEVE_SCORE, 1);
  Options options;
  options.backend = "reference";
  options.threads = 1;
  Tensors tensors;
  tensors.q = rows_of(replay.q, t, t + 1);
  tensors.k = replay.k;
  tensors.k_scale = replay.k_scale;
  tensors.weights = rows_of(replay.weights, t, t + 1);
  tensors.row_start = rows_of(replay.row_start, t, t + 1);
  tensors.row_end = rows_of(replay.row_end, t, t + 1);
  tensors.scores = make_view(scores.data(), KEYSIEVE_F32, {1, replay.num_keys});
  size_t workspace_bytes = 0;
  require_ok("reference", keysieve_workspace_size(&problem, &options, nullptr, &workspace_bytes));
  const Workspace workspace(workspace_bytes);
  workspace.attach(tensors);
  require_ok("reference", keysieve_run(&problem, &options, &tensors, nullptr));
  return scores;
}

void TestOutcome::add(int64_t row, int64_t row_begin, const Verdict& verdict) {
  ++rows;
  if (verdict.ok()) {
    return;
  }
  ++wrong;
  if (!first || row < first->row) {
    first = RowFault{row, row_begin, verdict};
  }
}

TestOutcome test_exact(Session& session, const Selection& selection, int32_t order, std::vector<RowSurvey>* survey) {
  const Replay& replay = session.replay();
  const int64_t block_rows =
      std::clamp<int64_t>(kBlockScoreBytes / (4 * std::max<int64_t>(replay.num_keys, 1)), 1, 1024);
  if (survey != nullptr) {
    survey->assign(static_cast<size_t>(replay.num_rows), {});
  }
  TestOutcome outcome;
  Progress progress("exact", replay.num_rows);
  for (int64_t begin = 0; begin < replay.num_rows; begin += block_rows) {
    const int64_t end = std::min(begin + block_rows, replay.num_rows);
    ScoreThenSelect pair(session, begin, end);
    pair.enqueue();
    const ScoreThenSelect::Result block = pair.download();
    for (int64_t t = begin; t < end; ++t) {
      outcome.add(t, key_range(replay, t).begin, check_exact(selection.row(t), block.selection.row(t - begin), order));
    }
    if (survey != nullptr) {
      for_each_row(row_list(begin, end), usable_cpus(), [&](int64_t t) {
        const KeyRange range = key_range(replay, t);
        const float* scores = block.scores.data() + (t - begin) * replay.num_keys + range.begin;
        (*survey)[static_cast<size_t>(t)] = survey_row(scores, range.width(), selection.topk);
      });
    }
    progress.advance(end - begin);
  }
  return outcome;
}

TestOutcome test_agreement(const Replay& replay, const Selection& selection, double error_constant,
                           const std::vector<int64_t>& rows) {
  const ErrorBound bound(replay.q, replay.k, replay.k_scale, replay.weights, replay.k_dtype);
  TestOutcome outcome;
  Progress progress("reference", static_cast<int64_t>(rows.size()));
  std::mutex mutex;
  for_each_row(rows, usable_cpus(), [&](int64_t t) {
    const KeyRange range = key_range(replay, t);
    const std::vector<float> scores = reference_scores(replay, t);
    const double error = error_constant * bound.row(t, range.begin, range.end);
    const Verdict verdict = check_agreement(selection.row(t), scores.data() + range.begin, range.width(), error);
    const std::lock_guard lock(mutex);
    outcome.add(t, range.begin, verdict);
    progress.advance(1);
  });
  return outcome;
}

std::vector<int64_t> spread_rows(int64_t num_rows, int64_t count) {
  if (count >= num_rows) {
    return row_list(0, num_rows);
  }
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(count == 1 ? num_rows - 1 : i * (num_rows - 1) / (count - 1));
  }
  return rows;
}

int64_t affordable_rows(const Replay& replay) {
  constexpr double kMultiplyAdds = 1.5e10;
  const double row = static_cast<double>(std::max<int64_t>(replay.num_keys, 1)) *
                     static_cast<double>(replay.num_heads) * static_cast<double>(replay.head_dim);
  return std::max<int64_t>(static_cast<int64_t>(std::min(kMultiplyAdds / row, 1e9)), 1);
}

std::string outcome_text(const char* name, const char* of_what, const TestOutcome& outcome, int64_t num_rows) {
  const std::string tested = outcome.rows == num_rows
                                 ? fmt::format("all {} rows", grouped(num_rows))
                                 : fmt::format("{} of {} rows", grouped(outcome.rows), grouped(num_rows));
  if (outcome.ok()) {
    return fmt::format("{}: {} {}\n", name, tested, of_what);
  }
  const RowFault& fault = *outcome.first;
  return fmt::format("NOT {}: {} of {} rows tested are wrong; row {} (its keys count from {}) {}\n", name,
                     grouped(outcome.wrong), grouped(outcome.rows), fault.row, fault.row_begin,
                     fault.verdict.message());
}

Json outcome_json(const TestOutcome& outcome) {
  Json json = {{"ok", outcome.ok()}, {"rows_tested", outcome.rows}, {"rows_wrong", outcome.wrong}};
  if (outcome.first) {
    const Verdict& verdict = outcome.first->verdict;
    json["first_wrong"] = {{"row", outcome.first->row},
                           {"row_begin", outcome.first->row_begin},
                           {"slot", verdict.slot},
                           {"key", verdict.key},
                           {"score", json_number(static_cast<double>(verdict.key_score))},
                           {"missed_key", verdict.missed_key},
                           {"missed_score", json_number(static_cast<double>(verdict.missed_score))},
                           {"message", verdict.message()}};
  }
  return json;
}

}  // namespace keysieve::cli
