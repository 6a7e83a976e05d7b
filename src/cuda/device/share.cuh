// SPDX-License-Identifier: Apache-2.0
// Cuts the line of all tiles (core/schedule.hpp) into equal shares, one a CTA, from row ranges in device memory.
//
// Every CTA adds up the tiles of all blocks by itself, which costs no second launch and no atomics, and follows changed
// ranges when a graph is replayed.  All shares differ by at most one tile, so no order of rows is better than another
// for balance.  For locality a share starts with its first whole block and leaves the rest of a block that it cuts for
// the end: the CTAs then walk the keys in step and read them from L2.
#pragma once

#include <cstdint>

#include "core/schedule.hpp"
#include "cuda/device/rows.cuh"

namespace keysieve::device {

/// The tiles that rows need.  Tiles of paged keys are numbered through all requests: those of request r start at
/// r * request_tiles, and a gap behind them keeps rows of two requests out of one run.
struct RowTiles {
  RowRanges ranges;
  RowRequests requests;
  int32_t request_tiles = 0;  // of a request, with the gap; 0: contiguous keys, which need no request

  struct Row {
    KeyRange range;
    int32_t first_tile;  // of the row's request
  };
  [[nodiscard]] __device__ __forceinline__ bool are_paged() const { return request_tiles > 0; }
  [[nodiscard]] __device__ __forceinline__ Row operator()(int64_t t) const {
    Row row = {ranges(t), 0};
    if (are_paged()) {
      const int32_t request = requests(t);
      row.range.end = request < 0 ? row.range.begin : row.range.end;
      row.first_tile = max(request, 0) * request_tiles;
    }
    return row;
  }
  template <int kTileKeys>
  [[nodiscard]] static __device__ __forceinline__ TileRun tiles_of(const Row& row) {
    TileRun tiles = tiles_of_keys(row.range.begin, row.range.end, kTileKeys);
    tiles.begin += row.first_tile;
    tiles.end += row.first_tile;
    return tiles;
  }
};

/// `tiles` tiles of the line from tile `skip` of block `block` on.
struct ShareSegment {
  int64_t block;
  int64_t skip;
  int64_t tiles;
};

struct Share {
  ShareSegment segments[2];  // in the order of work
  int64_t line_begin;        // place on the line of the share's first tile,
  int64_t line_tiles;        // and tiles of the whole line
};

/// Cooperative over all kThreads threads of the CTA.
template <int kThreads, int kRowsPerBlock, int kTileKeys>
class SharePlanner {
 public:
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kLoadsInFlight = 12;  // 4,096 rows of 384 threads in one go

  /// Shared memory that the planner works in; `s_tiles` may be overwritten afterwards by anyone.
  struct Scratch {
    TileRun* s_tiles;
    int32_t tiles_capacity;
    int64_t* s_warp_sums;  // [kWarps]
    Share* s_share;
  };

  __device__ __forceinline__ SharePlanner(const RowBlocks& blocks, const RowTiles& rows, const Scratch& scratch)
      : blocks_(blocks),
        rows_(rows),
        ranges_(rows.ranges),
        scratch_(scratch),
        chunk_blocks_(scratch.tiles_capacity / kRowsPerBlock) {}

  /// Writes *s_share for share `index` of `shares`.  Ends with a __syncthreads.
  __device__ __forceinline__ void plan(int64_t shares, int64_t index) {
    const int64_t num_blocks = blocks_.count();
    if (threadIdx.x == 0) {
      *scratch_.s_share = Share{};
    }
    // Pass 0 adds up the line; pass 1 walks it again to the share's first tile, unless it fits in one chunk.  Code is
    // cold here and its size counts: one loop for both.
    const bool one_chunk = num_blocks <= chunk_blocks_;
    int64_t slice = 0;
    int64_t before = 0;
    int64_t passed = 0;
    int64_t begin = 0;
    int64_t end = 0;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
#pragma unroll 1
      for (int64_t first = 0; first < num_blocks && (pass == 0 || (passed <= begin && begin < end));
           first += chunk_blocks_) {
        if (pass == 0 || !one_chunk) {
          load_chunk(first, num_blocks);
          slice = tiles_of_slice();
          int64_t chunk_tiles;
          before = passed + scan(slice, &chunk_tiles);
          passed += chunk_tiles;
        }
        if (pass == 1 && before <= begin && begin < before + slice) {
          find(first, before, begin, end);
        }
        if (!one_chunk) {
          __syncthreads();  // the next chunk overwrites what find reads
        }
      }
      if (pass == 0) {
        begin = share_begin(passed, shares, index);
        end = share_begin(passed, shares, index + 1);
        if (threadIdx.x == 0) {
          scratch_.s_share->line_begin = begin;
          scratch_.s_share->line_tiles = passed;
        }
        passed = 0;
      }
    }
    __syncthreads();
  }

 private:
  __device__ __forceinline__ void load_chunk(int64_t first, int64_t num_blocks) {
    const int64_t left = num_blocks - first;
    loaded_blocks_ = static_cast<int32_t>(left < chunk_blocks_ ? left : chunk_blocks_);
    if (blocks_.single_group() && ranges_.has_one_stride() && !rows_.are_paged()) {
      load_strided_rows(first * kRowsPerBlock, loaded_blocks_ * kRowsPerBlock);
    } else {
      load_grouped_chunk(blocks_, rows_, first, loaded_blocks_, scratch_.s_tiles);
    }
    __syncthreads();
  }

  /// All loads of a thread are in flight together: the latency of device memory is most of the plan's time.
  __device__ __forceinline__ void load_strided_rows(int64_t first_row, int32_t num_slots) {
    const int64_t left = blocks_.num_rows - first_row;
    const int32_t num_rows = static_cast<int32_t>(left < num_slots ? left : num_slots);
    const int32_t* g_start = ranges_.start.g_data;
    const int32_t* g_end = ranges_.end.g_data;
    for (int32_t base = static_cast<int32_t>(threadIdx.x); base < num_slots; base += kLoadsInFlight * kThreads) {
      const int32_t* g_row_start = g_start + (first_row + base) * ranges_.start.row_stride;
      const int32_t* g_row_end = g_end + (first_row + base) * ranges_.end.row_stride;
      int32_t first_key[kLoadsInFlight];
      int32_t last_key[kLoadsInFlight];
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) {
        const int32_t slot = base + i * kThreads;
        first_key[i] = 0;
        last_key[i] = ranges_.num_keys;
        if (slot < num_rows && g_start != nullptr) {
          first_key[i] = __ldg(g_row_start);
        }
        if (slot < num_rows && g_end != nullptr) {
          last_key[i] = __ldg(g_row_end);
        }
        g_row_start += kThreads * ranges_.start.row_stride;
        g_row_end += kThreads * ranges_.end.row_stride;
      }
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; ++i) {
        const int32_t slot = base + i * kThreads;
        if (slot < num_slots) {
          const KeyRange range = ranges_.clamped(first_key[i], slot < num_rows ? last_key[i] : 0);
          scratch_.s_tiles[slot] = tiles_of_keys(range.begin, range.end, kTileKeys);
        }
      }
    }
  }

  /// Rows in groups and requests need divisions; apart, because the usual call should not read that code.
  __device__ __noinline__ static void load_grouped_chunk(const RowBlocks& blocks, const RowTiles& rows, int64_t first,
                                                         int32_t num_blocks, TileRun* s_tiles) {
#pragma unroll 1
    for (int slot = static_cast<int>(threadIdx.x); slot < num_blocks * kRowsPerBlock; slot += kThreads) {
      const RowBlock block = blocks(first + slot / kRowsPerBlock);
      const int row = slot % kRowsPerBlock;
      s_tiles[slot] = row < block.num_rows ? RowTiles::tiles_of<kTileKeys>(rows(block.first_row + row)) : TileRun{0, 0};
    }
  }

  /// Blocks [begin, end) of the loaded chunk that this thread adds up.
  __device__ __forceinline__ int32_t slice_begin() const {
    const int32_t blocks_per_thread = (loaded_blocks_ + kThreads - 1) / kThreads;
    return min(static_cast<int32_t>(threadIdx.x) * blocks_per_thread, loaded_blocks_);
  }
  __device__ __forceinline__ int32_t slice_end() const {
    const int32_t blocks_per_thread = (loaded_blocks_ + kThreads - 1) / kThreads;
    return min(static_cast<int32_t>(threadIdx.x + 1) * blocks_per_thread, loaded_blocks_);
  }

  __device__ __forceinline__ int32_t tiles_of_block(int32_t block_in_chunk) const {
    const TileRun* s_rows = scratch_.s_tiles + block_in_chunk * kRowsPerBlock;
    return tiles_of_all_runs<kRowsPerBlock>([s_rows](int32_t row) { return s_rows[row]; });
  }

  __device__ int64_t tiles_of_slice() const {
    int64_t tiles = 0;
    for (int32_t block = slice_begin(); block < slice_end(); ++block) {
      tiles += tiles_of_block(block);
    }
    return tiles;
  }

  /// Sum of `value` over the threads before this one; *total over all.  Contains two __syncthreads.
  __device__ int64_t scan(int64_t value, int64_t* total) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32);
    int64_t inclusive = value;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int64_t other = __shfl_up_sync(0xFFFFFFFFU, inclusive, distance);
      inclusive += lane >= distance ? other : 0;
    }
    if (lane == 31) {
      scratch_.s_warp_sums[warp] = inclusive;
    }
    __syncthreads();
    int64_t before_warp = 0;
    int64_t all = 0;
    for (int w = 0; w < kWarps; ++w) {
      before_warp += w < warp ? scratch_.s_warp_sums[w] : 0;
      all += scratch_.s_warp_sums[w];
    }
    __syncthreads();
    *total = all;
    return before_warp + inclusive - value;
  }

  /// By the one thread whose slice holds tile `begin`; `before` is the slice's first tile.
  __device__ void find(int64_t first, int64_t before, int64_t begin, int64_t end) const {
    int32_t block = slice_begin();
    int64_t tiles = tiles_of_block(block);
    while (before + tiles <= begin) {
      before += tiles;
      ++block;
      tiles = tiles_of_block(block);
    }
    const int64_t skip = begin - before;
    const int64_t block_end = before + tiles < end ? before + tiles : end;
    ShareSegment* s_segments = scratch_.s_share->segments;
    if (skip == 0) {
      s_segments[0] = {first + block, 0, end - begin};
    } else {
      s_segments[0] = {first + block + 1, 0, end - block_end};
      s_segments[1] = {first + block, skip, block_end - begin};
    }
  }

  const RowBlocks& blocks_;
  const RowTiles& rows_;
  const RowRanges& ranges_;
  Scratch scratch_;
  int32_t chunk_blocks_;
  int32_t loaded_blocks_ = 0;
};

}  // namespace keysieve::device
