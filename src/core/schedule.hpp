// SPDX-License-Identifier: Apache-2.0
// How query rows and key tiles become units of work.  Pure functions, the same on host and device.
//
//   row block   up to `rows_per_block` consecutive rows whose queries are one tile
//   tile run    consecutive key tiles that some consecutive rows of one block need
//   unit        one block, one run (or a piece of it)
//
// The tiles of all runs of all blocks, in order, form one line; it is cut into equal shares, one a CTA.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace keysieve {

struct RowBlock {
  int64_t group = 0;
  int64_t row_in_group = 0;
  int64_t first_row = 0;
  int32_t num_rows = 0;  // that exist: 1 .. rows_per_block
};

/// Cuts T rows, in groups of `rows_per_group` (one group if the rows have one stride), into blocks inside groups.
struct RowBlocks {
  int64_t num_rows = 0;
  int64_t rows_per_group = 1;
  int64_t blocks_per_group = 1;
  int32_t rows_per_block = 1;

  KEYSIEVE_HOST_DEVICE static RowBlocks make(int64_t num_rows, int64_t rows_per_group, int32_t rows_per_block) {
    RowBlocks blocks;
    blocks.num_rows = num_rows;
    blocks.rows_per_group = rows_per_group > 0 ? rows_per_group : 1;
    blocks.blocks_per_group = (blocks.rows_per_group + rows_per_block - 1) / rows_per_block;
    blocks.rows_per_block = rows_per_block;
    return blocks;
  }

  [[nodiscard]] KEYSIEVE_HOST_DEVICE int64_t count() const {
    return single_group() ? blocks_per_group : (num_rows + rows_per_group - 1) / rows_per_group * blocks_per_group;
  }
  /// All rows in one group, the usual case: row and block numbers need no (slow) division.
  [[nodiscard]] KEYSIEVE_HOST_DEVICE bool single_group() const { return num_rows <= rows_per_group; }
  [[nodiscard]] KEYSIEVE_HOST_DEVICE int64_t group(int64_t block) const {
    return single_group() ? 0 : block / blocks_per_group;
  }
  [[nodiscard]] KEYSIEVE_HOST_DEVICE RowBlock operator()(int64_t block) const {
    RowBlock result;
    result.group = group(block);
    result.row_in_group = (block - result.group * blocks_per_group) * rows_per_block;
    result.first_row = result.group * rows_per_group + result.row_in_group;
    int64_t left = rows_per_group - result.row_in_group;
    const int64_t left_in_tensor = num_rows - result.first_row;
    left = left < left_in_tensor ? left : left_in_tensor;
    result.num_rows = static_cast<int32_t>(left < rows_per_block ? left : rows_per_block);
    return result;
  }
};

/// Tiles [begin, end) of one run, or of one row; empty if begin >= end.
struct TileRun {
  int32_t begin = 0;
  int32_t end = 0;

  [[nodiscard]] KEYSIEVE_HOST_DEVICE int32_t size() const { return end > begin ? end - begin : 0; }
};

/// Tiles of `tile_keys` keys, aligned to key 0, that hold keys [begin, end); begin >= 0.
KEYSIEVE_HOST_DEVICE inline TileRun tiles_of_keys(int32_t begin, int32_t end, int32_t tile_keys) {
  TileRun tiles;
  if (begin < end) {
    tiles.begin = static_cast<int32_t>(static_cast<uint32_t>(begin) / static_cast<uint32_t>(tile_keys));
    tiles.end = static_cast<int32_t>((static_cast<uint32_t>(end) + static_cast<uint32_t>(tile_keys - 1)) /
                                     static_cast<uint32_t>(tile_keys));
  }
  return tiles;
}

/// Grows `run` by the tiles of a row if they overlap or touch it, or if it is empty.  False if the row starts a new
/// run.
KEYSIEVE_HOST_DEVICE inline bool join_run(TileRun& run, const TileRun& tiles) {
  if (tiles.size() == 0) {
    return true;
  }
  if (run.size() == 0) {
    run = tiles;
    return true;
  }
  if (tiles.begin > run.end || run.begin > tiles.end) {
    return false;
  }
  run.begin = run.begin < tiles.begin ? run.begin : tiles.begin;
  run.end = run.end > tiles.end ? run.end : tiles.end;
  return true;
}

/// The next run of a block: rows are taken in order while they join the run so far; rows without keys are passed over.
/// `row` moves past the rows taken.  False when the block has no more tiles. `tiles_of_row(i)` gives the TileRun of the
/// block's row i.
template <class TilesOfRow>
KEYSIEVE_HOST_DEVICE inline bool next_run(const TilesOfRow& tiles_of_row, int32_t num_rows, int32_t& row,
                                          TileRun& run) {
  run = TileRun{};
  while (row < num_rows && join_run(run, tiles_of_row(row))) {
    ++row;
  }
  return run.size() > 0;
}

/// Tiles of all runs of a block together.  kRows: rows of a block, for unrolling.
template <int kRows, class TilesOfRow>
KEYSIEVE_HOST_DEVICE inline int32_t tiles_of_all_runs(const TilesOfRow& tiles_of_row) {
  int32_t tiles = 0;
  TileRun run;
#if defined(__CUDA_ARCH__)
#pragma unroll(kRows <= 4 ? kRows : 1)
#endif
  for (int32_t row = 0; row < kRows; ++row) {
    const TileRun next = tiles_of_row(row);
    if (!join_run(run, next)) {
      tiles += run.size();
      run = next;
    }
  }
  return tiles + run.size();
}

/// Start of share `index` when `total` things are cut into `shares` nearly equal parts.
KEYSIEVE_HOST_DEVICE inline int64_t share_begin(int64_t total, int64_t shares, int64_t index) {
  const int64_t base = total / shares;
  const int64_t rest = total % shares;
  return base * index + (index < rest ? index : rest);
}

/// Share that thing `position` of the `total` falls in: share_begin(share) <= position < share_begin(share + 1).
KEYSIEVE_HOST_DEVICE inline int64_t share_of(int64_t total, int64_t shares, int64_t position) {
  const int64_t base = total / shares;
  const int64_t rest = total % shares;
  const int64_t in_larger = rest * (base + 1);  // the first `rest` shares have one thing more
  return position < in_larger ? position / (base + 1) : rest + (position - in_larger) / base;
}

}  // namespace keysieve
