// SPDX-License-Identifier: Apache-2.0
// Configurations of score_sm90 and the choice among them.  No CUDA headers: tests choose without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.hpp"
#include "cuda/device_info.hpp"

namespace keysieve::cuda {

/// What distinguishes one launch of score_sm90 from another.
struct ScoreConfig {
  int32_t heads = 64;
  int32_t head_dim = 128;
  bool bf16_scores = false;
  int32_t queries_per_block = 4;
  int32_t num_ctas = 1;
};

inline constexpr int32_t kScoreTileKeys = 128;
inline constexpr int32_t kScoreColumns = 256;  // heads times queries of a block

/// A pure function of capacities: the kernel itself deals the work, by the row ranges in device memory.
inline ScoreConfig choose_score_config(const Problem& problem, const Options& options, const DeviceInfo& device) {
  ScoreConfig config;
  config.heads = static_cast<int32_t>(problem.num_heads);
  config.head_dim = static_cast<int32_t>(problem.head_dim);
  config.bf16_scores = problem.score_dtype == Dtype::kBf16;
  config.queries_per_block = kScoreColumns / config.heads;
  // No more CTAs than tiles of keys, or than pieces of a row's fill.
  // (Rows of paged keys share a block only if they are of one request.)
  const int64_t rows_per_block = problem.paged ? 1 : config.queries_per_block;
  const int64_t blocks = (problem.num_rows + rows_per_block - 1) / rows_per_block;
  const int64_t columns = std::max(problem.num_keys, problem.score_width);
  const int64_t tiles_per_block = (columns + kScoreTileKeys - 1) / kScoreTileKeys;
  const int64_t sms = usable_sms(device, options.sm_limit);
  const bool many = blocks >= sms || tiles_per_block >= sms;
  config.num_ctas = static_cast<int32_t>(many ? sms : std::clamp<int64_t>(blocks * tiles_per_block, 1, sms));
  return config;
}

}  // namespace keysieve::cuda
