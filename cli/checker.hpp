// SPDX-License-Identifier: Apache-2.0
// The two tests of contract section 3 over a whole selection, and what its rows look like.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/agreement.hpp"
#include "output.hpp"
#include "session.hpp"

namespace keysieve::cli {

/// The first wrong row of a test.
struct RowFault {
  int64_t row = 0;
  int64_t row_begin = 0;  // what the row's key indices count from
  Verdict verdict;
};

/// Outcome of one test.
struct TestOutcome {
  int64_t rows = 0;   // tested
  int64_t wrong = 0;  // of them
  std::optional<RowFault> first;

  [[nodiscard]] bool ok() const { return wrong == 0; }
  void add(int64_t row, int64_t row_begin, const Verdict& verdict);
};

/// What one row's scores look like.
struct RowSurvey {
  int64_t width = 0;
  int64_t picked = 0;
  float best = 0;
  float kth = 0;     // the cut: lowest score picked
  float lowest = 0;  // of all keys
  int64_t zeros = 0;
  CutTie tie;
};

/// Tests `selection` against select(score()) of the session's own backend, bit for bit, on all rows.  Fills `survey`
/// (one entry a row) if it is not null.
TestOutcome test_exact(Session& session, const Selection& selection, int32_t order, std::vector<RowSurvey>* survey);

/// Tests the named rows against the scores of the reference.  `error_constant` is c of contract section 1.
TestOutcome test_agreement(const Replay& replay, const Selection& selection, double error_constant,
                           const std::vector<int64_t>& rows);

/// Scores of row t by the reference, [N].
std::vector<float> reference_scores(const Replay& replay, int64_t t);

/// `count` rows spread over all of them, the first and the last among them.
std::vector<int64_t> spread_rows(int64_t num_rows, int64_t count);

/// As many rows as the reference scores in some seconds; at least one.
int64_t affordable_rows(const Replay& replay);

/// "exact: ..." and "agrees with the reference: ..." for people, with the first wrong row.
std::string outcome_text(const char* name, const char* of_what, const TestOutcome& outcome, int64_t num_rows);
Json outcome_json(const TestOutcome& outcome);

}  // namespace keysieve::cli
