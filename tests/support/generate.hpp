// SPDX-License-Identifier: Apache-2.0
// Random problems over everything the contract allows.
#pragma once

#include <string>

#include "support/random.hpp"
#include "support/runner.hpp"

namespace keysieve::test {

enum class KeyType { kE4m3, kBf16, kMxfp4 };

enum class Values {
  kNormal,   // q, k and w normal(0,1), scales uniform(0.5,1.5)/128
  kExact,    // small integers and power-of-two scales: every partial sum is exact, even with 13 bits of mantissa
  kFewKeys,  // keys drawn from 16 different ones: large ties
  kZeros,    // almost every score is exactly 0
  kWithNan,  // kNormal with NaN in some keys, scales and queries
};

enum class Ranges {
  kNone,       // no row_start, no row_end
  kEndsOnly,   // row_end alone, anything from 0 to N
  kCausal,     // row_end = what a causal mask leaves
  kUnaligned,  // starts and ends anywhere
  kHostile     // empty, negative, INT_MIN, INT_MAX, beyond N, end before start
};

struct ProblemShape {
  int64_t rows = 1;
  int64_t heads = 8;
  int64_t head_dim = 64;
  int64_t keys = 100;
  int64_t topk = 16;
};

struct ProblemSpec {
  ProblemShape shape;
  int32_t op = KEYSIEVE_SCORE_SELECT;
  KeyType key_type = KeyType::kE4m3;
  Values values = Values::kNormal;
  Ranges ranges = Ranges::kNone;
  bool paged = false;
  bool bad_pages = false;    // some page ids of a row are outside the pool
  bool decode = false;       // q as [B,next_n,H,D], lengths as [B,next_n]
  int64_t next_n = 1;        // rows a request
  bool row_request = false;  // rows name their request in any order
  int32_t index_space = KEYSIEVE_INDEX_ROW;
  int32_t slot_page_size = 0;
  int32_t order = KEYSIEVE_ORDER_ASCENDING;
  int32_t candidates = KEYSIEVE_CANDIDATES_NONE;
  int32_t cand_block = 8;
  int64_t cand_count = 16;
  int32_t score_dtype = KEYSIEVE_F32;
  int32_t score_layout = KEYSIEVE_SCORES_FULL;
  int64_t score_width = 0;  // compact: W
  uint64_t seed = 1;
};

/// Inputs of a problem; for select, `scores` is left out.
Inputs make_inputs(const ProblemSpec& spec);

/// The problem alone, with capacities that make_inputs would choose or more: enough to ask whether it is supported.
keysieve_problem plan_problem(const ProblemSpec& spec);

/// "T=3 H=8 ..." with everything needed to make the problem again.
std::string describe(const ProblemSpec& spec);

// Parts, for tests that build their own problems.
Tensor random_queries(KeyType type, std::vector<int64_t> shape, Values values, Random& random);
void fill_keys(KeyType type, Values values, uint8_t* keys, int64_t channels, Random& random);
Tensor random_weights(std::vector<int64_t> shape, Values values, Random& random);

/// f32 scores [rows, columns] from at most `distinct` values (0: any bits that are not NaN; special: with NaN,
/// infinities and both zeros too).
Tensor random_scores(int64_t rows, int64_t columns, int64_t distinct, bool special, Random& random);

Tensor i32_tensor(const std::vector<int32_t>& values);

}  // namespace keysieve::test
