// SPDX-License-Identifier: Apache-2.0
// Numbers of split_sm90 that host and device share, and the choice of a launch.  No CUDA headers: tests choose without
// a GPU.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/device_info.hpp"
#include "cuda/score_sm90/config.hpp"
#include "cuda/score_then_select/config.hpp"

namespace keysieve::cuda {

/// Name for options.config.
inline constexpr const char* kSplitName = "split_sm90";

/// Where things are in the workspace: how many tiles of each row are scored, u32 [T], and the scores, f32 [T][stride].
struct SplitScratch {
  static constexpr int64_t kAlignmentBytes = 256;
  static constexpr int64_t kMaxBytes = int64_t{256} << 20U;  // more rows or keys than that are not few

  int64_t num_rows = 0;
  int64_t row_stride = 0;

  static SplitScratch make(const Problem& problem) { return {problem.num_rows, ScoreChunks::make(problem).stride}; }

  [[nodiscard]] int64_t counter_bytes() const {
    return (4 * num_rows + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  }
  /// In a workspace with any alignment.
  [[nodiscard]] int64_t bytes() const { return kAlignmentBytes + counter_bytes() + 4 * num_rows * row_stride; }
  [[nodiscard]] bool fits() const { return row_stride <= kMaxBytes && bytes() <= kMaxBytes; }
};

/// CTAs: a pure function of capacities; the kernel itself deals the work, by the row ranges in device memory.
inline int32_t choose_split_ctas(const Problem& problem, const Options& options, const DeviceInfo& device) {
  return choose_score_config(problem, options, device).num_ctas;
}

}  // namespace keysieve::cuda
