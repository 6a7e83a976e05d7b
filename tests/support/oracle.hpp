// SPDX-License-Identifier: Apache-2.0
// What the contract says the outputs are, written down a second time and independently of every backend.
#pragma once

#include <string>
#include <vector>

#include "support/runner.hpp"

namespace keysieve::test {

/// Keys of query row t: clamped, begin <= end.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;

  [[nodiscard]] int64_t width() const { return end - begin; }
};
KeyRange key_range(const Inputs& inputs, int64_t t);

/// Table row of query row t, or -1.
int64_t table_row(const Inputs& inputs, int64_t t);

/// True if the tensor's first two axes are [B, next_n] although `flat_rank` axes describe a row tensor.
bool is_grouped(const Tensor& tensor, size_t flat_rank);

/// The same problem for the listed query rows alone, flat (rank 3 q, row_request instead of next_n).
Inputs subset_of_rows(const Inputs& inputs, const std::vector<int64_t>& rows);

/// Score of row t's key begin + i, from a [T,N] or [T,W] score tensor, f32 or bf16.
float score_at(const Inputs& inputs, const Tensor& scores, int64_t t, int64_t i);

/// The index that stands for row-relative key `key` of row t (contract section 4).
int64_t index_of_key(const Inputs& inputs, int64_t t, int64_t begin, int64_t key);

/// Outputs of selection from given scores by std::stable_sort, as `settings` asks for them.
Outputs select_oracle(const Inputs& inputs, const Tensor& scores, const RunSettings& settings = {});

/// First difference of two selections; "" if none.  Scores compare bit for bit, any NaN equals any NaN, and with
/// KEYSIEVE_ORDER_ANY a row is compared as a set.
std::string compare_selections(const Inputs& inputs, const Outputs& actual, const Outputs& expected);

/// First difference of the bits of two score tensors of the same shape; "" if none (any NaN equals any NaN).
std::string compare_scores(const Tensor& actual, const Tensor& expected);

/// For every key of row t: |k_scale| * sum_h |w| * sum_d |q*k| over the finite operands.
std::vector<double> bound_sums(const Inputs& inputs, int64_t t);

/// Score of row t's key begin + i by the formula in double, and its bound sum.
struct PairScore {
  double score = 0;
  double bound_sum = 0;
};
PairScore pair_score(const Inputs& inputs, int64_t t, int64_t i);

/// Reference scores of the listed rows, [rows, N] full f32, by the backend "reference".
Tensor reference_scores(const Inputs& inputs, const std::vector<int64_t>& rows);

/// Checks a full f32 score tensor of `backend` in the listed rows against the reference; "" if it is within c.
std::string check_accuracy(const Inputs& inputs, const Tensor& scores, const std::vector<int64_t>& rows,
                           const std::string& backend);

/// Contract section 3, "agrees with the reference", of the row-relative indices of the listed rows; "" if so.
std::string check_agreement(const Inputs& inputs, const Tensor& row_indices, const std::vector<int64_t>& rows,
                            const std::string& backend);

/// Largest |score - reference| / (bound sum) that check_accuracy has met, for reports.
double worst_accuracy(const std::string& backend);

}  // namespace keysieve::test
