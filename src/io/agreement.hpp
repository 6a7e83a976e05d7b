// SPDX-License-Identifier: Apache-2.0
// Is a selection right?  The two tests of contract section 3:
//
//   exact                      it equals select(score) of the same backend, bit for bit
//   agrees with the reference  every key it holds scores, by the reference, at least the reference's K-th minus e, and
//                              every key it misses at most the K-th plus e, where e is the row's error bound
//
// Keys here are row-relative indices.  All functions are pure and may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "keysieve/keysieve.h"

namespace keysieve {

/// c of contract section 1: |score - reference| <= c * |k_scale| * sum_h |w| * sum_d |q*k|.
double accuracy_constant(std::string_view backend, int64_t num_heads, int64_t head_dim);

/// The sums of section 1's bound over the contiguous keys of a call; every tensor lies in host memory.
/// sum_h |w| sum_d |q*k| = sum_d |k[d]| * (sum_h |w[h]| |q[h,d]|), so a row costs N*D and not N*H*D.
class ErrorBound {
 public:
  ErrorBound(const keysieve_tensor& q, const keysieve_tensor& k, const keysieve_tensor& k_scale,
             const keysieve_tensor& weights, int32_t k_dtype);

  /// max over n in [begin, end) of |k_scale[n]| * sum_h |w[t,h]| * sum_d |q[t,h,d] * k[n,d]|, times c this is e.
  /// Operands that are not finite count as 0: the bound is about the finite ones.
  [[nodiscard]] double row(int64_t t, int64_t begin, int64_t end) const;

 private:
  [[nodiscard]] double key_sum(int64_t n, const std::vector<double>& channel_weight) const;

  keysieve_tensor q_;
  keysieve_tensor k_;
  keysieve_tensor k_scale_;
  keysieve_tensor weights_;
  int32_t k_dtype_;
};

enum class Fault {
  kNone,
  kOutOfRange,     // an index that is neither -1 nor a key of the row
  kDuplicate,      // a key twice
  kCount,          // not min(K, width) keys, or a key after a -1
  kOrder,          // not ascending where that was asked for
  kHeldTooLow,     // a key is held that is too far below the K-th score
  kMissedTooHigh,  // a key is missed that is too far above the K-th score
  kDifferentKey,   // not the key of the other selection
  kDifferentScore  // same key, other bits
};

/// The first fault of a row.  Fields that do not apply are -1.
struct Verdict {
  Fault fault = Fault::kNone;
  int64_t slot = -1;          // of the wrong entry
  int64_t key = -1;           // held but wrong
  int64_t missed_key = -1;    // should have been held
  float key_score = 0.0F;     // of `key`
  float missed_score = 0.0F;  // of `missed_key`
  float kth_score = 0.0F;     // lowest score that is picked
  int64_t expected_count = -1;

  [[nodiscard]] bool ok() const { return fault == Fault::kNone; }

  /// "holds key 17 (score 1.25), below the K-th score 3.5 by more than the bound; misses key 99 (score 4)".
  [[nodiscard]] std::string message() const;
};

/// One row of a selection: K row-relative indices, and their scores or null.
struct SelectedRow {
  const int32_t* indices = nullptr;
  const float* scores = nullptr;
  int64_t topk = 0;
};

/// Checks what holds for every selection of a row of `width` keys: range, no duplicate, min(K, width) keys, then -1;
/// ascending keys too if `order` is KEYSIEVE_ORDER_ASCENDING.
Verdict check_shape(const SelectedRow& row, int64_t width, int32_t order);

/// The K-th best of `width` scores in the contract's order; topk is cut to width; -inf for an empty row.
float kth_score(const float* scores, int64_t width, int64_t topk);

/// Agreement with the reference's scores of the row (`width` of them), `error` = c times the row's bound.
Verdict check_agreement(const SelectedRow& row, const float* reference_scores, int64_t width, double error);

/// Bitwise equality with another selection of the same row (any NaN equals any NaN); entry by entry, or as sets if
/// `order` is KEYSIEVE_ORDER_ANY.
Verdict check_exact(const SelectedRow& row, const SelectedRow& expected, int32_t order);

/// Ties of a row's scores at its K-th.
struct CutTie {
  int64_t tied = 0;      // keys that score exactly the K-th
  int64_t selected = 0;  // of them picked; fewer than `tied`: the row is cut inside a tie
};
CutTie cut_tie(const float* scores, int64_t width, int64_t topk);

}  // namespace keysieve
