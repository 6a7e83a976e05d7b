// SPDX-License-Identifier: Apache-2.0
// Runs one case on one backend, in a size that the backend can afford, by every path that the backend has.
#pragma once

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "cases/programmed.hpp"
#include "support/checks.hpp"

namespace keysieve::test {

/// Keys that row t must hold, ascending and absolute; the rest of the row must be -1.
using ExpectedKeys = std::function<std::vector<int64_t>(int64_t t)>;

class CaseRun {
 public:
  CaseRun(const std::string& backend, int64_t work_limit) : runner_(backend), work_limit_(work_limit) {}

  [[nodiscard]] Runner& runner() { return runner_; }
  [[nodiscard]] RunSettings& settings() { return settings_; }

  /// `wanted` with fewer heads, but at least `min_heads`, and then fewer rows, so that the backend has the head count
  /// and the work fits.  Keys and K stay.
  [[nodiscard]] CaseShape fit(CaseShape wanted, int64_t min_heads = 1) const;

  /// Multiply-adds of a problem.
  static int64_t work_of(const CaseShape& shape);

  /// Calls visit(outputs) with the result of score_select and of select(score), whichever the backend takes; the
  /// matrix of the second path only where it is small.
  void each_path(const Inputs& inputs, const std::function<void(const Outputs&)>& visit);

  /// Every path gives these keys, exactly.
  void expect_keys(const Inputs& inputs, const ExpectedKeys& expected);

  /// All paths agree with each other bit for bit and with the reference within c; rows are sampled.
  void expect_agreement(const Inputs& inputs);

 private:
  [[nodiscard]] bool takes_heads(int64_t heads) const;

  Runner runner_;
  RunSettings settings_;
  int64_t work_limit_;
};

/// Multiply-adds that a call of a case may cost on a backend in this build.
int64_t case_work_limit(const std::string& backend);

/// The suite of all cases, over all backends.
class Cases : public BackendTest {
 protected:
  /// A run with the backend's work limit; `most_host_work` caps it where the backend is a CPU's.
  [[nodiscard]] CaseRun make_run(int64_t most_host_work = INT64_MAX) const {
    const int64_t limit = case_work_limit(GetParam());
    return {GetParam(), GetParam() == "cuda" ? limit : std::min(limit, most_host_work)};
  }

  void run(void (*case_function)(CaseRun& run)) {
    CaseRun case_run = make_run();
    case_function(case_run);
  }
};

/// Checks row t of absolute indices.
void expect_row(const Tensor& indices, int64_t t, const std::vector<int64_t>& expected);

/// Keys of [begin, end) for which `wanted` holds.
std::vector<int64_t> keys_where(int64_t begin, int64_t end, const std::function<bool(int64_t n)>& wanted);

/// The `count` best keys of [begin, end) by value, lower key first among equals, ascending.
std::vector<int64_t> best_keys(int64_t begin, int64_t end, int64_t count, const KeyValue& v);

/// The same list for every row.
ExpectedKeys every_row(std::vector<int64_t> keys);

/// A case that is run again with poisoned buffers (B45): its id and what it does.
struct PoisonedCase {
  const char* id;
  void (*run)(CaseRun& run);
};
std::vector<PoisonedCase> numerics_cases();
std::vector<PoisonedCase> bounds_cases();

}  // namespace keysieve::test
