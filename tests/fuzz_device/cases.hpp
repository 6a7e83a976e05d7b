// SPDX-License-Identifier: Apache-2.0
// The distribution of fuzzed problems.
#pragma once

#include <string>

#include "support/generate.hpp"

namespace keysieve::test {

struct FuzzLimits {
  int64_t work = 0;  // multiply-adds a case
  int64_t cells = int64_t{4} << 20U;
  int64_t keys = 40000;
  int64_t rows = 300;
};

struct FuzzCase {
  ProblemSpec spec;
  RunSettings settings;
  int64_t distinct_scores = 0;  // select: 0 = all different
  bool special_scores = false;
  bool big_tie = false;  // more than 4,096 equal scores at the cut
  bool strided = false;
};

/// Case number `index` of a run: the same numbers give the same case.
FuzzCase make_fuzz_case(int32_t op, uint64_t seed, int64_t index, const FuzzLimits& limits);

/// Inputs of a case; select's scores included.
Inputs make_fuzz_inputs(const FuzzCase& fuzz_case);

}  // namespace keysieve::test
