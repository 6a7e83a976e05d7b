// SPDX-License-Identifier: Apache-2.0
// The contract as assertions on one problem.
#pragma once

#include <gtest/gtest.h>

#include "support/backends.hpp"
#include "support/generate.hpp"
#include "support/oracle.hpp"
#include "support/runner.hpp"

namespace keysieve::test {

/// False if the backend refuses the problem.  Fails the test if the support table says it must not.
bool takes(Runner& runner, const Inputs& inputs, const RunSettings& settings = {});

/// Runs and expects success and nothing written that is not the library's.
Outputs run_ok(Runner& runner, const Inputs& inputs, const RunSettings& settings = {});

/// The problem of another operation on the same tensors.
Inputs as_score(const Inputs& inputs, int32_t score_dtype = KEYSIEVE_F32, int32_t score_layout = KEYSIEVE_SCORES_FULL,
                int64_t score_width = 0);
Inputs as_select(const Inputs& inputs, const Tensor& scores, int32_t score_layout = KEYSIEVE_SCORES_FULL);

/// Every row, or an even sample of at most `most` of them with the first and the last.
std::vector<int64_t> sample_rows(int64_t num_rows, int64_t most);

/// select(given scores) equals std::stable_sort, bit for bit.
void expect_select_is_exact(Runner& runner, const Inputs& select, const RunSettings& settings = {});

/// Everything contract sections 1 to 4 and 7 say about one score_select problem:
///   score within c of the reference, -inf outside the ranges; score_select == select(score) == stable sort of score;
///   agreement with the reference.
void expect_conforms(Runner& runner, const Inputs& score_select, const RunSettings& settings = {});

/// A test over all backends that checks generated problems.
class ConformanceTest : public BackendTest {
 protected:
  void check(const ProblemSpec& spec, const RunSettings& settings = {}) {
    SCOPED_TRACE(describe(spec));
    Runner runner(GetParam());
    expect_conforms(runner, make_inputs(spec), settings);
  }
};

}  // namespace keysieve::test
