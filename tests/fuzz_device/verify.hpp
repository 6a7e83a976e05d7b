// SPDX-License-Identifier: Apache-2.0
// Fast checks of one fuzzed call: linear in the scores, so that thousands of cases take a minute.
#pragma once

#include <string>

#include "support/oracle.hpp"
#include "support/random.hpp"

namespace keysieve::test {

/// A selection against the given scores ([T,N] or [T,W], f32 or bf16) by nth_element; "" if it is right bit for bit.
std::string verify_selection(const Inputs& inputs, const Tensor& scores, const Outputs& actual);

/// Scores against the double formula in a sample of pairs, and -inf outside of the ranges; "" if right.
std::string verify_scores(const Inputs& inputs, const Tensor& scores, const std::string& backend, Random& random);

/// bf16 scores are the f32 scores rounded once; "" if so.
std::string verify_rounding(const Tensor& halves, const Tensor& scores);

}  // namespace keysieve::test
