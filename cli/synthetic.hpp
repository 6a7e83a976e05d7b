// SPDX-License-Identifier: Apache-2.0
// Synthetic replay files: inputs whose scores have a known shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/replay.hpp"

namespace keysieve::cli {

enum class DataKind {
  kNormal,            // q, k, weights normal
  kTies,              // every key is one of 64: long runs of equal scores
  kAllEqual,          // every key is the same: equal scores in each row
  kZeroPlateau,       // nine keys in ten score exactly 0
  kAllZero,           // all do
  kLowContrast,       // all keys nearly equal
  kSortedAscending,   // scores rise with the key
  kSortedDescending,  // and fall
  kOutliers,          // few keys, heads and weights a hundred times as large
  kNanInf,            // NaN keys, a NaN query, infinite scores of both signs
};
enum class RowKind {
  kCausal,  // the last T of N positions
  kFull,    // every key
  kRagged,  // any start and end, empty and inverted rows too
};

struct SyntheticSpec {
  DataKind data = DataKind::kNormal;
  RowKind rows = RowKind::kCausal;
  int32_t k_dtype = KEYSIEVE_E4M3;  // BF16: queries too
  int64_t num_rows = 64;
  int64_t num_keys = 8192;
  int64_t num_heads = 64;
  int64_t head_dim = 128;
  uint64_t seed = 1;
};

/// The tensors of a replay file; `tensors` point into the vectors.
class Synthetic {
 public:
  explicit Synthetic(const SyntheticSpec& spec);
  Synthetic(const Synthetic&) = delete;
  Synthetic& operator=(const Synthetic&) = delete;

  [[nodiscard]] std::vector<FileTensor> tensors() const;
  [[nodiscard]] FileMetadata metadata() const;

  /// Views of the same memory; `this` must outlive it.
  [[nodiscard]] Replay replay() const;

 private:
  void make_queries();
  void make_weights();
  void make_rows();
  void make_keys();
  void make_sorted_keys();
  void store_key(int64_t n, const std::vector<float>& channels, float scale);
  void store_mxfp4_key(int64_t n, const std::vector<float>& channels);
  void store_query(int64_t element, float value);
  void spoil();

  SyntheticSpec spec_;
  std::vector<uint8_t> q_;
  std::vector<uint8_t> k_;
  std::vector<float> k_scale_;
  std::vector<uint8_t> k_group_scale_;
  std::vector<float> weights_;
  std::vector<int32_t> row_start_;
  std::vector<int32_t> row_end_;
};

const char* data_kind_name(DataKind kind);
const char* row_kind_name(RowKind kind);
const char* dtype_option_name(int32_t k_dtype);

}  // namespace keysieve::cli
