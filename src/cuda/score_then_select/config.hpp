// SPDX-License-Identifier: Apache-2.0
// How score_then_select cuts a call into chunks of rows.  Pure functions, no CUDA headers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.hpp"

namespace keysieve::cuda {

/// Scores of a chunk of rows, f32 [rows][stride], fill the workspace.
struct ScoreChunks {
  static constexpr int64_t kAlignmentBytes = 256;
  static constexpr int64_t kStrideAlignment = 64;  // elements: rows start on 256 bytes
  static constexpr int64_t kMinRows = 8;
  static constexpr int64_t kPreferredBytes = int64_t{256} << 20;

  int64_t stride = 0;

  static ScoreChunks make(const Problem& problem) {
    return {(std::max<int64_t>(problem.num_keys, 1) + kStrideAlignment - 1) / kStrideAlignment * kStrideAlignment};
  }

  [[nodiscard]] int64_t row_bytes() const { return stride * static_cast<int64_t>(sizeof(float)); }
  [[nodiscard]] int64_t bytes(int64_t rows) const { return rows * row_bytes() + kAlignmentBytes; }

  [[nodiscard]] WorkspaceSize workspace(const Problem& problem) const {
    const int64_t rows = std::max<int64_t>(problem.num_rows, 1);
    const int64_t min_rows = std::min(rows, kMinRows);
    const int64_t preferred_rows = std::clamp(kPreferredBytes / row_bytes(), min_rows, rows);
    return {static_cast<size_t>(bytes(min_rows)), static_cast<size_t>(bytes(preferred_rows))};
  }

  /// Rows that a workspace of `workspace_bytes` holds.
  [[nodiscard]] int64_t rows_in(size_t workspace_bytes) const {
    return (static_cast<int64_t>(workspace_bytes) - kAlignmentBytes) / row_bytes();
  }
};

/// Rows of the chunk that starts at row `first`: at most `max_rows`, and either whole groups of rows or inside one.
inline int64_t rows_of_chunk(int64_t num_rows, int64_t rows_per_group, int64_t first, int64_t max_rows) {
  const int64_t left = std::min(num_rows - first, max_rows);
  const int64_t in_group = first % rows_per_group;
  if (in_group == 0 && left >= rows_per_group) {
    return first + left == num_rows ? left : left / rows_per_group * rows_per_group;
  }
  return std::min(left, rows_per_group - in_group);
}

}  // namespace keysieve::cuda
