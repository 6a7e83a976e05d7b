// SPDX-License-Identifier: Apache-2.0
// Inputs whose scores are chosen.  All are exact in every backend: each dot product has one nonzero term.
// Keys are e4m3, D = 128, indices absolute.
#pragma once

#include <functional>

#include "support/runner.hpp"

namespace keysieve::test {

inline constexpr int64_t kCaseHeadDim = 128;
inline constexpr uint8_t kOneE4m3 = 0x38;
inline constexpr uint8_t kMinusOneE4m3 = 0xB8;
inline constexpr uint8_t kMaxE4m3 = 0x7E;  // 448
inline constexpr uint8_t kNanE4m3 = 0x7F;

struct CaseShape {
  int64_t rows = 1;
  int64_t heads = 64;
  int64_t keys = 1;
  int64_t topk = 1;
};

using KeyValue = std::function<float(int64_t n)>;

/// score_select with q = 0, k = 0, k_scale = 1 and w = 3.
Inputs blank_case(const CaseShape& shape);

/// score[t,n] = v(n), any f32 v >= 0: k[n,:] = 1, k_scale = v, and row t reads head t mod H, channel 7t mod 128.
Inputs program_p(const CaseShape& shape, const KeyValue& v);

/// score[t,n] = v(n) of either sign, H >= 2: even channels carry what is positive, odd ones what is negative.
Inputs program_ps(const CaseShape& shape, const KeyValue& v);

/// score[t,n] = s(n) if n = row id (mod 128), else 0; `row_id` says which row a row stands for.
Inputs program_row(const CaseShape& shape, const KeyValue& s, const std::function<int64_t(int64_t t)>& row_id);

/// Products that overflow f32: column n scores +inf (or -inf with a negative weight) where `infinite(n)`, else
/// 448 * weight * scale(n).
Inputs program_ovf(const CaseShape& shape, float weight, const std::function<bool(int64_t n)>& infinite,
                   const KeyValue& scale);

/// q, k normal(0,1) in e4m3, k_scale uniform(0.5,1.5)/128, w normal(0,1).
Inputs program_rnd(const CaseShape& shape, uint64_t seed);

/// Makes column n score exactly 0 in every row: k[n,:] = -1.
void make_zero_column(Inputs& inputs, int64_t n);

/// p(n) = a*n mod N.
inline int64_t perm(int64_t n, int64_t num_keys, int64_t a = 7919) {
  return a * n % num_keys;
}

}  // namespace keysieve::test
