// SPDX-License-Identifier: Apache-2.0
#include "cases/case_run.hpp"

#include <algorithm>

namespace keysieve::test {

namespace {

/// Multiply-adds of a case that is cut down.
constexpr int64_t kReducedWork = 2'000'000'000;

/// Scores that the second path may hold at once.
constexpr int64_t kMostCells = int64_t{1} << 25U;

keysieve_problem score_problem(int64_t heads) {
  keysieve_problem problem = blank_case({1, heads, 1, 1}).problem;
  problem.op = KEYSIEVE_SCORE;
  return problem;
}

}  // namespace

int64_t case_work_limit(const std::string& backend) {
  if (backend == "cuda") {
    return INT64_MAX;
  }
#if defined(KEYSIEVE_SMALL_TESTS)
  return backend == "reference" ? 5'000'000 : 60'000'000;
#else
  return backend == "reference" ? 20'000'000 : 200'000'000'000;
#endif
}

int64_t CaseRun::work_of(const CaseShape& shape) {
  return shape.rows * shape.heads * shape.keys * kCaseHeadDim;
}

bool CaseRun::takes_heads(int64_t heads) const {
  Inputs inputs;
  inputs.problem = score_problem(heads);
  return runner_.supported(inputs) == KEYSIEVE_OK;
}

CaseShape CaseRun::fit(CaseShape wanted, int64_t min_heads) const {
  // A case that does not fit at full size does not need to fill the limit.
  const int64_t limit = work_of(wanted) <= work_limit_ ? work_limit_ : std::min(work_limit_, kReducedWork);
  CaseShape shape = wanted;
  bool found = false;
  for (int64_t heads = wanted.heads; heads >= min_heads; heads = heads / 2) {
    if (!takes_heads(heads)) {
      continue;
    }
    shape.heads = heads;
    found = true;
    if (work_of(shape) <= limit) {
      break;
    }
  }
  for (int64_t heads = 1; !found && heads <= 128; heads *= 2) {  // the smallest that the backend has
    if (heads >= min_heads && takes_heads(heads)) {
      shape.heads = heads;
      found = true;
    }
  }
  const int64_t row_work = std::max<int64_t>(work_of({1, shape.heads, shape.keys, 1}), 1);
  shape.rows = std::min(shape.rows, std::max<int64_t>(limit / row_work, 1));
  return shape;
}

void CaseRun::each_path(const Inputs& inputs, const std::function<void(const Outputs&)>& visit) {
  const auto call = [&](const Outputs& out) {
    if (out.status == KEYSIEVE_OK) {
      visit(out);
    }
  };
  if (takes(runner_, inputs, settings_)) {
    SCOPED_TRACE("score_select");
    call(run_ok(runner_, inputs, settings_));
  }
  const Inputs score = as_score(inputs);
  if (inputs.problem.num_rows * inputs.problem.num_keys <= kMostCells && takes(runner_, score, settings_)) {
    const Outputs scores = run_ok(runner_, score, settings_);
    const Inputs select = as_select(inputs, scores.scores);
    if (scores.status == KEYSIEVE_OK && takes(runner_, select, settings_)) {
      SCOPED_TRACE("select(score)");
      call(run_ok(runner_, select, settings_));
    }
  }
}

void CaseRun::expect_keys(const Inputs& inputs, const ExpectedKeys& expected) {
  each_path(inputs, [&](const Outputs& out) {
    for (int64_t t = 0; t < inputs.problem.num_rows; ++t) {
      const std::vector<int64_t> keys = expected(t);
      expect_row(out.indices, t, keys);
      EXPECT_EQ(out.out_count.value<int32_t>(t), static_cast<int32_t>(keys.size())) << "row " << t;
      if (testing::Test::HasFailure()) {
        return;  // one wrong row says enough
      }
    }
  });
}

void CaseRun::expect_agreement(const Inputs& inputs) {
  std::vector<Outputs> results;
  each_path(inputs, [&](const Outputs& out) { results.push_back(out); });
  if (results.empty()) {
    return;
  }
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(compare_selections(inputs, results[i], results[0]), "");
  }
  if (runner_.backend() == "reference") {
    return;
  }
  const int64_t row_work = std::max<int64_t>(work_of({1, inputs.problem.num_heads, inputs.problem.num_keys, 1}), 1);
  const std::vector<int64_t> rows =
      sample_rows(inputs.problem.num_rows, std::max<int64_t>(case_work_limit("reference") / row_work, 1));
  EXPECT_EQ(check_agreement(inputs, results[0].row_indices, rows, runner_.backend()), "");
}

void expect_row(const Tensor& indices, int64_t t, const std::vector<int64_t>& expected) {
  const int64_t topk = indices.shape(1);
  for (int64_t slot = 0; slot < topk; ++slot) {
    const int64_t wanted = slot < static_cast<int64_t>(expected.size()) ? expected[slot] : -1;
    if (indices.value<int32_t>(t, slot) != wanted) {
      ADD_FAILURE() << "row " << t << " slot " << slot << " is " << indices.value<int32_t>(t, slot) << ", expected "
                    << wanted;
      return;
    }
  }
}

std::vector<int64_t> keys_where(int64_t begin, int64_t end, const std::function<bool(int64_t n)>& wanted) {
  std::vector<int64_t> keys;
  for (int64_t n = begin; n < end; ++n) {
    if (wanted(n)) {
      keys.push_back(n);
    }
  }
  return keys;
}

std::vector<int64_t> best_keys(int64_t begin, int64_t end, int64_t count, const KeyValue& v) {
  std::vector<std::pair<float, int64_t>> ranked;
  for (int64_t n = begin; n < end; ++n) {
    ranked.emplace_back(v(n), n);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < std::min<int64_t>(count, static_cast<int64_t>(ranked.size())); ++i) {
    keys.push_back(ranked[i].second);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

ExpectedKeys every_row(std::vector<int64_t> keys) {
  return [keys = std::move(keys)](int64_t /*t*/) { return keys; };
}

}  // namespace keysieve::test
