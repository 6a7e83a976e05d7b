// SPDX-License-Identifier: Apache-2.0
// How score_then_select cuts rows into chunks: pure functions, so no GPU is needed.
#include <gtest/gtest.h>

#include "cuda/score_then_select/config.hpp"

namespace keysieve::cuda {
namespace {

Problem problem(int64_t rows, int64_t keys) {
  Problem result;
  result.num_rows = rows;
  result.num_keys = keys;
  return result;
}

TEST(ScoreChunks, WorkspaceIsBoundedAndHoldsWholeRows) {
  for (const int64_t rows : {1, 7, 4096, 1 << 20}) {
    for (const int64_t keys : {0, 1, 8192, 131072, 1 << 23}) {
      const ScoreChunks chunks = ScoreChunks::make(problem(rows, keys));
      EXPECT_GE(chunks.stride, keys);
      const WorkspaceSize size = chunks.workspace(problem(rows, keys));
      EXPECT_LE(size.min_bytes, size.preferred_bytes);
      EXPECT_GE(chunks.rows_in(size.min_bytes), 1);
      EXPECT_LE(chunks.rows_in(size.preferred_bytes), rows);
      EXPECT_EQ(chunks.bytes(chunks.rows_in(size.preferred_bytes)), static_cast<int64_t>(size.preferred_bytes));
    }
  }
  EXPECT_LE(ScoreChunks::make(problem(8192, 131072)).workspace(problem(8192, 131072)).preferred_bytes, 320U << 20);
}

/// Chunks cover the rows once, in order, and are whole groups or lie inside one.
TEST(ScoreChunks, ChunksAreWholeGroupsOrLieInOne) {
  for (const int64_t rows_per_group : {1, 2, 3, 7, 64}) {
    for (const int64_t num_rows : {1, 2, 6, 63, 64, 65, 448}) {
      for (const int64_t max_rows : {1, 2, 5, 8, 64, 1000}) {
        int64_t first = 0;
        while (first < num_rows) {
          const int64_t rows = rows_of_chunk(num_rows, rows_per_group, first, max_rows);
          ASSERT_GE(rows, 1);
          ASSERT_LE(rows, max_rows);
          const int64_t in_group = first % rows_per_group;
          const bool inside = in_group + rows <= rows_per_group;
          const bool whole = in_group == 0 && (rows % rows_per_group == 0 || first + rows == num_rows);
          ASSERT_TRUE(inside || whole) << num_rows << " " << rows_per_group << " " << max_rows << " " << first;
          first += rows;
        }
        ASSERT_EQ(first, num_rows);
      }
    }
  }
}

}  // namespace
}  // namespace keysieve::cuda
