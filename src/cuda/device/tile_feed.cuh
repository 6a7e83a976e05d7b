// SPDX-License-Identifier: Apache-2.0
// What feeds the main loop of tile.cuh, for every kernel that scores keys: the shared memory of its operands, the
// walk over a CTA's share of the work, and the producer warp's copies.
//
//   unit    queries and weights of one block of rows, and which consecutive key tiles to score with them
//   keys    tiles of 128 keys and their scales: contiguous, or two pages of one request (device/pages.cuh)
//
//     producer : unit 0 . keys keys keys ..  unit 1 . keys ..      kKeyStages tiles and kUnitStages units ahead
//     math     :          [ tile ][ tile ] ..                      device/tile.cuh
//
//   barrier      arrivals                                                       protects
//   units.full   33 + query bytes: the producer's lanes (weights) and lane 0    queries, weights, the unit's
//   description units.empty  8: math warps                                                  the same, until all have
//   finished it keys.full    1 + key and scale bytes (33 if lanes copy the scales)          a key tile and its scales
//   keys.empty   8: math warps                                                  the same
#pragma once

#include <cstdint>
#include <cuda.h>

#include "core/schedule.hpp"
#include "cuda/device/pages.cuh"
#include "cuda/device/ring.cuh"
#include "cuda/device/rows.cuh"
#include "cuda/device/share.cuh"
#include "cuda/device/tile.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::device {

struct TileFeedParams {
  CUtensorMap q_map;      // {D, heads of a box, rows of a group, groups of heads, groups of rows}
  CUtensorMap k_map;      // {D, N}, or {D, 64, pages}
  CUtensorMap scale_map;  // {N}, if scales_by_tma
  const float* g_scales;
  int64_t scale_stride;
  bool scales_by_tma;  // or no scales, or those of pages: lanes copy none
  PagedKeys pages;
  RowView<const float> weights;
  RowTiles rows;
  RowBlocks blocks;
};

/// A piece of one run of tiles (core/schedule.hpp), scored in one go.
struct WorkUnit {
  RowBlock block;
  int32_t row_begin;  // the block's rows [row_begin, row_end) made the run
  int32_t row_end;
  TileRun run;
  int64_t run_line;    // place of the run's first tile on the line of all tiles
  int32_t tile_begin;  // the piece: tiles [tile_begin, tile_end) of the run
  int32_t tile_end;
  int32_t request;  // paged keys: whose tiles these are,
  KeyRange keys;    // and the keys that the run's rows need
};

template <class TileT, int kUnitStages, int kKeyStages>
struct TileFeedSmem {
  using Tile = TileT;
  using Units = Ring<kUnitStages>;
  using Keys = Ring<kKeyStages>;

  alignas(1024) uint8_t queries[kUnitStages][Tile::kQueryBytes];             // [256][D] swizzled; TMA -> wgmma
  alignas(1024) uint8_t keys[kKeyStages][Tile::kKeyBytes];                   // [128][D] swizzled; TMA -> wgmma
  alignas(16) float scales[kKeyStages][Tile::kHasScales ? Tile::kKeys : 4];  // TMA or producer -> math
  alignas(16) float weights[kUnitStages][Tile::kWeightFloats];               // [query][kWeightStride]; producer -> math
  RingBarriers<kUnitStages> unit_barriers;
  RingBarriers<kKeyStages> key_barriers;
  Share share;            // planner -> producer
  int64_t warp_sums[16];  // planner
};

/// The two rings of a TileFeedSmem.
template <class Smem>
struct TileFeedRings {
  typename Smem::Units units;
  typename Smem::Keys keys;

  __device__ __forceinline__ explicit TileFeedRings(Smem& smem)
      : units(smem.unit_barriers, "units"), keys(smem.key_barriers, "keys") {}

  /// By one thread; a mbarrier_init_fence and a __syncthreads follow.
  __device__ __forceinline__ void init(bool scales_by_tma) const {
    units.init(1 + 32, Smem::Tile::kMathWarps);
    keys.init(scales_by_tma ? 1 : 1 + 32, Smem::Tile::kMathWarps);
  }
};

/// Writes smem.share for this CTA of the grid.  By all kThreads threads of the CTA; ends with a __syncthreads.
/// The key stages are scratch: call it before any copy.
template <int kThreads, class Smem>
__device__ __forceinline__ void plan_share(const TileFeedParams& params, Smem& smem) {
  using Tile = typename Smem::Tile;
  static_assert(kThreads / 32 <= sizeof(smem.warp_sums) / sizeof(smem.warp_sums[0]));
  constexpr auto kPlanRows = static_cast<int32_t>(sizeof(smem.keys) / sizeof(TileRun));
  SharePlanner<kThreads, Tile::kQueries, Tile::kKeys> planner(
      params.blocks, params.rows, {reinterpret_cast<TileRun*>(smem.keys), kPlanRows, smem.warp_sums, &smem.share});
  planner.plan(gridDim.x, blockIdx.x);
  ptx::fence_proxy_async_shared();  // the planner's stores to smem.keys, before the copies that overwrite them
  __syncthreads();
}

/// Finds the request of a unit of paged keys and numbers its tiles from that request's first.  Rows of the block that
/// are not of the run may be of another request: they get no keys.  By all lanes.
__device__ __forceinline__ void place_in_request(const RowTiles& rows, WorkUnit& unit, KeyRange& lane_range) {
  const int lane = ptx::lane_index();
  if (lane < unit.row_begin || lane >= unit.row_end) {
    lane_range = {0, 0};
  }
  unit.request = unit.run.begin / rows.request_tiles;
  const int32_t first_tile = unit.request * rows.request_tiles;
  unit.run.begin -= first_tile;
  unit.run.end -= first_tile;
  unit.tile_begin -= first_tile;
  unit.tile_end -= first_tile;
  const bool counts = lane_range.width() > 0;
  unit.keys.begin = static_cast<int32_t>(__reduce_min_sync(ptx::kAllLanes, counts ? lane_range.begin : 0x7FFFFFFFU));
  unit.keys.end = static_cast<int32_t>(__reduce_max_sync(ptx::kAllLanes, counts ? lane_range.end : 0U));
}

/// visit(unit, lane_range) for each unit of the share, in the order of work.  By all lanes of a warp; lane i gets the
/// keys of row i of the unit's block (contiguous keys: also if the row is of another run, as its scores are the same).
template <class Tile, class Visit>
__device__ __forceinline__ void for_each_unit(const TileFeedParams& params, const Share& s_share, const Visit& visit) {
  const int lane = ptx::lane_index();
  for (const ShareSegment& segment : s_share.segments) {
    int64_t skip = segment.skip;
    int64_t left = segment.tiles;
    // A segment that starts inside a block is the share's beginning; one that starts a block ends with the share.
    int64_t line = skip > 0 ? s_share.line_begin - skip : s_share.line_begin + s_share.segments[1].tiles;
    for (int64_t block_index = segment.block; left > 0; ++block_index) {
      WorkUnit unit;
      unit.block = params.blocks(block_index);
      RowTiles::Row lane_row = {{0, 0}, 0};
      if (lane < unit.block.num_rows) {
        lane_row = params.rows(unit.block.first_row + lane);
      }
      const KeyRange range = lane_row.range;
      const TileRun lane_tiles = RowTiles::tiles_of<Tile::kKeys>(lane_row);
      const auto tiles_of_row = [&lane_tiles](int32_t row) {
        return TileRun{__shfl_sync(0xFFFFFFFFU, lane_tiles.begin, row), __shfl_sync(0xFFFFFFFFU, lane_tiles.end, row)};
      };
      int32_t row = 0;
      for (unit.row_begin = 0; left > 0 && next_run(tiles_of_row, Tile::kQueries, row, unit.run);
           unit.row_begin = row) {
        unit.row_end = min(row, unit.block.num_rows);
        unit.run_line = line;
        line += unit.run.size();
        if (skip >= unit.run.size()) {
          skip -= unit.run.size();
          continue;
        }
        unit.tile_begin = unit.run.begin + static_cast<int32_t>(skip);
        unit.tile_end =
            unit.run.end - unit.tile_begin > left ? unit.tile_begin + static_cast<int32_t>(left) : unit.run.end;
        skip = 0;
        left -= unit.tile_end - unit.tile_begin;
        KeyRange lane_range = range;
        if (params.rows.are_paged()) {
          place_in_request(params.rows, unit, lane_range);
        }
        visit(unit, lane_range);
      }
    }
  }
}

// ---- math warps ----

/// What a math warp multiplies, from the stages of its unit and its tile.
template <class Smem>
class OperandReader {
 public:
  using Tile = typename Smem::Tile;

  __device__ __forceinline__ explicit OperandReader(const Smem& smem)
      : s_(smem), scale_key_(ptx::warp_index() * 16 + ptx::lane_index() / 4) {
    const int warpgroup = ptx::warp_index() / 4;
    s_keys_ = static_cast<uint32_t>(
        ptx::uniform(static_cast<int32_t>(ptx::shared_address(smem.keys)) + warpgroup * 64 * Tile::kPlaneBytes));
    s_queries_ = static_cast<uint32_t>(ptx::uniform(static_cast<int32_t>(ptx::shared_address(smem.queries))));
  }

  __device__ __forceinline__ void take_unit(int stage) {
    operands_.queries = ptx::matrix_descriptor<Tile::kPlaneBytes>(s_queries_ + stage * Tile::kQueryBytes);
  }
  __device__ __forceinline__ const TileOperands& take_tile(int stage) {
    operands_.keys = ptx::matrix_descriptor<Tile::kPlaneBytes>(s_keys_ + stage * Tile::kKeyBytes);
    operands_.scale[0] = Tile::kHasScales ? s_.scales[stage][scale_key_] : 1.0F;
    operands_.scale[1] = Tile::kHasScales ? s_.scales[stage][scale_key_ + 8] : 1.0F;
    return operands_;
  }

 private:
  const Smem& s_;
  int scale_key_;
  uint32_t s_keys_;
  uint32_t s_queries_;
  TileOperands operands_;
};

// ---- producer warp ----

/// Hands queries and weights of a block to the math warps; `describe(stage)` writes whatever else they need to know of
/// the unit.  By all lanes.
template <class Smem, class Describe>
__device__ __forceinline__ void produce_unit(const TileFeedParams& params, Smem& smem, const typename Smem::Units& ring,
                                             const typename Smem::Units::Cursor& cursor, const RowBlock& block,
                                             const Describe& describe) {
  using Tile = typename Smem::Tile;
  const int lane = ptx::lane_index();
  const int stage = cursor.slot();
  ring.acquire(cursor);
  describe(stage);
#pragma unroll 2
  for (int i = 0; i < Tile::kColumns / 32; ++i) {
    const int query = (32 * i + lane) / Tile::kHeads;
    const int head = (32 * i + lane) % Tile::kHeads;
    const bool valid = query < block.num_rows;
    const float* g_weight = params.weights.row(block.first_row + (valid ? query : 0)) + head;
    ptx::cp_async_4(ptx::shared_address(&smem.weights[stage][query * Tile::kWeightStride + head]), g_weight, valid);
  }
  ptx::mbarrier_arrive_after_cp_async(ring.full_barrier(cursor));
  __syncwarp();
  if (lane == 0) {
    ring.commit(cursor, Tile::kQueryBytes);
#pragma unroll
    for (int plane = 0; plane < Tile::kPlanes; ++plane) {
#pragma unroll
      for (int box = 0; box < Tile::kQueriesPerLane; ++box) {
        const ptx::Coordinate5d at = {plane * Tile::kPlaneBytes, 0,
                                      static_cast<int32_t>(block.row_in_group) + box * Tile::kBoxQueries, 0,
                                      static_cast<int32_t>(block.group)};
        const int offset = plane * Tile::kQueryPlaneBytes + box * Tile::kBoxBytes;
        ptx::tma_load_5d(ptx::shared_address(smem.queries[stage] + offset), params.q_map, ring.full_barrier(cursor),
                         at);
      }
    }
  }
}

/// Fetches one tile of keys and their scales.  By all lanes.
template <class Smem>
__device__ __forceinline__ void produce_keys(const TileFeedParams& params, Smem& smem, const typename Smem::Keys& ring,
                                             const typename Smem::Keys::Cursor& cursor, int32_t first_key) {
  using Tile = typename Smem::Tile;
  const int stage = cursor.slot();
  const int lane = ptx::lane_index();
  ring.acquire(cursor);
  if (lane == 0) {
    const uint32_t barrier = ring.full_barrier(cursor);
    const bool copies_scales = Tile::kHasScales && params.scales_by_tma;
    ring.commit(cursor, Tile::kKeyBytes + (copies_scales ? sizeof(smem.scales[0]) : 0));
#pragma unroll
    for (int plane = 0; plane < Tile::kPlanes; ++plane) {
      ptx::tma_load_2d(ptx::shared_address(smem.keys[stage] + plane * Tile::kKeyPlaneBytes), params.k_map, barrier,
                       plane * Tile::kPlaneBytes, first_key);
    }
    if (copies_scales) {
      ptx::tma_load_1d(ptx::shared_address(smem.scales[stage]), params.scale_map, barrier, first_key);
    }
  }
  if (Tile::kHasScales && !params.scales_by_tma) {
    for (int i = lane; i < Tile::kKeys; i += 32) {
      const int64_t key = static_cast<int64_t>(first_key) + i;
      const bool valid = key < params.rows.ranges.num_keys;
      ptx::cp_async_4(ptx::shared_address(&smem.scales[stage][i]),
                      params.g_scales + (valid ? key : 0) * params.scale_stride, valid);
    }
    ptx::mbarrier_arrive_after_cp_async(ring.full_barrier(cursor));
  }
}

/// Fetches one tile of paged keys: two pages and their scales.  By all lanes.
template <class Smem>
__device__ __forceinline__ void produce_pages(const TileFeedParams& params, Smem& smem, const typename Smem::Keys& ring,
                                              const typename Smem::Keys::Cursor& cursor, int32_t first_key,
                                              PageIds& ids) {
  using Tile = typename Smem::Tile;
  constexpr int kPages = Tile::kKeys / PagedKeys::kPageKeys;
  constexpr uint32_t kPageKeyBytes = Tile::kKeyBytes / kPages;
  constexpr uint32_t kPageScaleBytes = Tile::kHasScales ? sizeof(float) * PagedKeys::kPageKeys : 0;
  constexpr int kPageRowBytes = PagedKeys::kPageKeys * Tile::kPlaneBytes;
  const int stage = cursor.slot();
  ring.acquire(cursor);
  int32_t id[kPages];
  uint32_t bytes = 0;
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    id[i] = ids(params.pages, first_key / PagedKeys::kPageKeys + i);
    bytes += id[i] >= 0 ? kPageKeyBytes + kPageScaleBytes : 0;
    if (id[i] < 0) {  // no such page: keys of NaN, whose scores are NaN
      for (int plane = 0; plane < Tile::kPlanes; ++plane) {
        auto* s_vectors = reinterpret_cast<uint4*>(smem.keys[stage] + plane * Tile::kKeyPlaneBytes + i * kPageRowBytes);
        for (int vector = ptx::lane_index(); vector < kPageRowBytes / 16; vector += 32) {
          s_vectors[vector] = make_uint4(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF);
        }
      }
      ptx::fence_proxy_async_shared();
    }
  }
  __syncwarp();
  if (ptx::lane_index() == 0) {
    const uint32_t barrier = ring.full_barrier(cursor);
    ring.commit(cursor, bytes);
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      if (id[i] < 0) {
        continue;
      }
#pragma unroll
      for (int plane = 0; plane < Tile::kPlanes; ++plane) {
        ptx::tma_load_3d(ptx::shared_address(smem.keys[stage] + plane * Tile::kKeyPlaneBytes + i * kPageRowBytes),
                         params.k_map, barrier, plane * Tile::kPlaneBytes, 0, id[i]);
      }
      if constexpr (Tile::kHasScales) {
        ptx::bulk_load(ptx::shared_address(smem.scales[stage] + i * PagedKeys::kPageKeys),
                       params.pages.page(id[i]) + kPageKeyBytes, kPageScaleBytes, barrier);
      }
    }
  }
}

/// The whole role: every unit of the share and its tiles.  `describe(stage, unit, lane_range)` describes a unit,
/// `describe_end(stage)` the one after the last, which has no operands.
template <class Smem, class Describe, class DescribeEnd>
__device__ __forceinline__ void produce_share(const TileFeedParams& params, Smem& smem,
                                              const TileFeedRings<Smem>& rings, const Describe& describe,
                                              const DescribeEnd& describe_end) {
  typename Smem::Units::Cursor unit_cursor;
  typename Smem::Keys::Cursor key_cursor;
  for_each_unit<typename Smem::Tile>(params, smem.share, [&](const WorkUnit& unit, const KeyRange& range) {
    produce_unit(params, smem, rings.units, unit_cursor, unit.block, [&](int stage) { describe(stage, unit, range); });
    unit_cursor.advance();
    PageIds ids(params.pages, unit.request, unit.keys);
    for (int32_t tile = unit.tile_begin; tile < unit.tile_end; ++tile) {
      const int32_t first_key = tile * Smem::Tile::kKeys;
      if (params.rows.are_paged()) {
        produce_pages(params, smem, rings.keys, key_cursor, first_key, ids);
      } else {
        produce_keys(params, smem, rings.keys, key_cursor, first_key);
      }
      key_cursor.advance();
    }
  });
  rings.units.acquire(unit_cursor);
  if (ptx::lane_index() == 0) {
    describe_end(unit_cursor.slot());
    rings.units.commit(unit_cursor);
  }
  ptx::mbarrier_arrive_after_cp_async(rings.units.full_barrier(unit_cursor));
}

}  // namespace keysieve::device
