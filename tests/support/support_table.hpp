// SPDX-License-Identifier: Apache-2.0
// What every backend must take.  A combination listed here fails its test when the backend refuses it, so that
// support cannot shrink unnoticed; others count as refused and are summed up at the end.
#pragma once

#include <initializer_list>
#include <string>

#include "keysieve/keysieve.h"

namespace keysieve::test {

inline bool one_of(int64_t value, std::initializer_list<int64_t> list) {
  for (const int64_t item : list) {
    if (item == value) {
      return true;
    }
  }
  return false;
}

/// What the CUDA backend has kernels for.
inline bool cuda_must_support(const keysieve_problem& problem) {
  if (problem.candidates != KEYSIEVE_CANDIDATES_NONE) {
    return false;
  }
  if (problem.op == KEYSIEVE_SELECT) {
    return true;
  }
  const bool plain_keys = problem.k_dtype == KEYSIEVE_E4M3 && problem.key_layout == KEYSIEVE_KEYS_CONTIGUOUS;
  const bool tile = one_of(problem.num_heads, {8, 16, 32, 64, 128}) && one_of(problem.head_dim, {64, 128});
  return plain_keys && tile;
}

inline bool must_support(const std::string& backend, const keysieve_problem& problem) {
  return backend == "cuda" ? cuda_must_support(problem) : true;  // reference and cpu take the whole contract
}

}  // namespace keysieve::test
