// SPDX-License-Identifier: Apache-2.0
// score_sm90: the scores of query rows against contiguous e4m3 keys, written as f32 or bf16.
//
//     score[t,n] = k_scale[n] * sum_h w[t,h] * relu( q[t,h,:] . k[n,:] )      (tile and order of sums: device/tile.cuh)
//
// One persistent CTA a multiprocessor, three warpgroups:
//
//     warps 0-7   math      wgmma of 64 keys x 256 columns a warpgroup and tile, head sums, stores
//     warp  8     producer  units, their queries and weights; key tiles and their scales
//     warps 9-11  fill      -inf outside the rows' ranges, independent of the others; then they leave
//
//     producer : Q(0) K K K K K K K K Q(1) K ..           8 key tiles ahead
//     math 0   : [wgmma first|second half][sums of the second] ..   sums of the first half run under the second's wgmma
//     math 1   :      [wgmma ...                                     the tensor cores alternate between the two
//
// A unit is one block of query rows and consecutive key tiles.  Which tiles a CTA takes: device/share.cuh.
// Must hold: launch with kThreads threads, sizeof(ScoreSmem) dynamic shared memory, any grid size >= 1.
#pragma once

#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include <type_traits>

#include "cuda/device/ring.cuh"
#include "cuda/device/rows.cuh"
#include "cuda/device/share.cuh"
#include "cuda/device/tile.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::cuda {

using device::KeyRange;

/// What is built: the kernel, or one with work left out to find what that work costs (never in the library).
enum class ScoreBuild { kComplete, kNoStore, kMathOnly };

template <int kHeads, int kHeadDim, class OutputT>
struct ScoreKernelConfig {
  using Tile = device::TileShape<kHeads, kHeadDim>;
  using Output = OutputT;
  static constexpr int kThreads = 384;
  static constexpr int kProducerWarp = 8;
  static constexpr int kFirstFillWarp = 9;
  static constexpr int kFillWarps = 3;
  // 384 threads launch with 168 registers; the pool of 64,512 is dealt anew: 256 x 216 + 128 x 72.
  static constexpr int kMathRegisters = 216;
  static constexpr int kAuxiliaryRegisters = 72;
  static constexpr int kUnitStages = 2;
  static constexpr int kKeyStages = 8;
  static constexpr int kMaxQueries = 32;
};

/// A row of the output as the math warps need it: key n goes to g_row[n] if n - begin < width (unsigned).
template <class Output>
struct RowTarget {
  int32_t begin;
  uint32_t width;
  Output* g_row;
};

/// Tiles [tile_begin, tile_end) of the block whose queries are in the same stage; empty: no more work.
struct ScoreUnit {
  int32_t tile_begin;
  int32_t tile_end;
};

template <class Config>
struct ScoreSmem {
  using Tile = typename Config::Tile;
  alignas(1024) uint8_t queries[Config::kUnitStages][Tile::kQueryBytes];  // [256][D] swizzled; TMA -> wgmma
  alignas(1024) uint8_t keys[Config::kKeyStages][Tile::kKeyBytes];        // [128][D] swizzled; TMA -> wgmma
  alignas(16) float scales[Config::kKeyStages][Tile::kKeys];              // TMA or producer -> math
  alignas(16) float weights[Config::kUnitStages][Tile::kWeightFloats];    // [query][kWeightStride]; producer -> math
  RowTarget<typename Config::Output> rows[Config::kUnitStages][Tile::kQueries];  // producer -> math
  ScoreUnit units[Config::kUnitStages];                                          // producer -> math
  // full: producer (and its copies; 32 more arrivals where lanes copy themselves); empty: each math warp once.
  device::RingBarriers<Config::kUnitStages> unit_barriers;
  device::RingBarriers<Config::kKeyStages> key_barriers;
  uint64_t start_barrier;  // arrives: math warp 0 once, when its first unit is there; the fill warps wait for it
  device::Share share;     // planner -> producer
  int64_t warp_sums[Config::kThreads / 32];  // planner
};

struct ScoreParams {
  CUtensorMap q_map;      // {D, heads of a box, rows of a group, groups of heads, groups of rows}
  CUtensorMap k_map;      // {D, N}
  CUtensorMap scale_map;  // {N}, if scales_by_tma
  const float* g_scales;
  int64_t scale_stride;
  bool scales_by_tma;
  bool compact;
  device::RowView<const float> weights;
  device::RowRanges ranges;
  RowBlocks blocks;
  void* g_scores;
  int64_t score_row_stride;
  int64_t score_width;
};

template <class Config>
struct ScoreRings {
  device::Ring<Config::kUnitStages> units;
  device::Ring<Config::kKeyStages> keys;

  __device__ __forceinline__ explicit ScoreRings(ScoreSmem<Config>& smem)
      : units(smem.unit_barriers, "units"), keys(smem.key_barriers, "keys") {}
};

template <class Config>
__device__ __forceinline__ RowTarget<typename Config::Output> row_target(const ScoreParams& params, int64_t row,
                                                                         const KeyRange& range) {
  using Output = typename Config::Output;
  RowTarget<Output> target;
  target.begin = range.begin;
  target.width = static_cast<uint32_t>(range.width());
  target.g_row =
      static_cast<Output*>(params.g_scores) + row * params.score_row_stride - (params.compact ? range.begin : 0);
  return target;
}

// ---- producer ----

/// Hands a unit to the math warps: its queries, weights and row targets.  By all lanes; lane i has row i's range.
template <class Config>
__device__ __forceinline__ void produce_unit(const ScoreParams& params, ScoreSmem<Config>& smem,
                                             const device::Ring<Config::kUnitStages>& ring,
                                             const typename device::Ring<Config::kUnitStages>::Cursor& cursor,
                                             const RowBlock& block, const KeyRange& lane_range, const ScoreUnit& unit) {
  using Tile = typename Config::Tile;
  const int lane = ptx::lane_index();
  const int stage = cursor.slot();
  ring.acquire(cursor);
  if (lane < Tile::kQueries) {
    smem.rows[stage][lane] = row_target<Config>(params, block.first_row + lane, lane_range);
  }
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
    smem.units[stage] = unit;
    ring.commit(cursor, Tile::kQueryBytes);
#pragma unroll
    for (int box = 0; box < Tile::kQueriesPerLane; ++box) {
      const ptx::Coordinate5d at = {0, 0, static_cast<int32_t>(block.row_in_group) + box * Tile::kBoxQueries, 0,
                                    static_cast<int32_t>(block.group)};
      ptx::tma_load_5d(ptx::shared_address(smem.queries[stage] + box * Tile::kBoxBytes), params.q_map,
                       ring.full_barrier(cursor), at);
    }
  }
}

/// Fetches one tile of keys and their scales.  By all lanes.
template <class Config>
__device__ __forceinline__ void produce_keys(const ScoreParams& params, ScoreSmem<Config>& smem,
                                             const device::Ring<Config::kKeyStages>& ring,
                                             const typename device::Ring<Config::kKeyStages>::Cursor& cursor,
                                             int32_t first_key) {
  using Tile = typename Config::Tile;
  const int stage = cursor.slot();
  const int lane = ptx::lane_index();
  ring.acquire(cursor);
  if (lane == 0) {
    const uint32_t barrier = ring.full_barrier(cursor);
    ring.commit(cursor, Tile::kKeyBytes + (params.scales_by_tma ? sizeof(smem.scales[0]) : 0));
    ptx::tma_load_2d(ptx::shared_address(smem.keys[stage]), params.k_map, barrier, 0, first_key);
    if (params.scales_by_tma) {
      ptx::tma_load_1d(ptx::shared_address(smem.scales[stage]), params.scale_map, barrier, first_key);
    }
  }
  if (!params.scales_by_tma) {
    for (int i = lane; i < Tile::kKeys; i += 32) {
      const int64_t key = static_cast<int64_t>(first_key) + i;
      const bool valid = key < params.ranges.num_keys;
      ptx::cp_async_4(ptx::shared_address(&smem.scales[stage][i]),
                      params.g_scales + (valid ? key : 0) * params.scale_stride, valid);
    }
    ptx::mbarrier_arrive_after_cp_async(ring.full_barrier(cursor));
  }
}

template <class Config>
__device__ __forceinline__ void producer_role(const ScoreParams& params, ScoreSmem<Config>& smem,
                                              const ScoreRings<Config>& rings) {
  using Tile = typename Config::Tile;
  const int lane = ptx::lane_index();
  typename device::Ring<Config::kUnitStages>::Cursor unit_cursor;
  typename device::Ring<Config::kKeyStages>::Cursor key_cursor;

  for (const device::ShareSegment& segment : smem.share.segments) {
    int64_t skip = segment.skip;
    int64_t left = segment.tiles;
    for (int64_t block_index = segment.block; left > 0; ++block_index) {
      const RowBlock block = params.blocks(block_index);
      KeyRange range = {0, 0};
      if (lane < block.num_rows) {
        range = params.ranges(block.first_row + lane);
      }
      const TileRun lane_tiles = tiles_of_keys(range.begin, range.end, Tile::kKeys);
      const auto tiles_of_row = [&lane_tiles](int32_t row) {
        return TileRun{__shfl_sync(0xFFFFFFFFU, lane_tiles.begin, row), __shfl_sync(0xFFFFFFFFU, lane_tiles.end, row)};
      };
      int32_t row = 0;
      TileRun run;
      while (left > 0 && next_run(tiles_of_row, Tile::kQueries, row, run)) {
        if (skip >= run.size()) {
          skip -= run.size();
          continue;
        }
        ScoreUnit unit;
        unit.tile_begin = run.begin + static_cast<int32_t>(skip);
        unit.tile_end = run.end - unit.tile_begin > left ? unit.tile_begin + static_cast<int32_t>(left) : run.end;
        skip = 0;
        left -= unit.tile_end - unit.tile_begin;
        produce_unit<Config>(params, smem, rings.units, unit_cursor, block, range, unit);
        unit_cursor.advance();
        for (int32_t tile = unit.tile_begin; tile < unit.tile_end; ++tile) {
          produce_keys<Config>(params, smem, rings.keys, key_cursor, tile * Tile::kKeys);
          key_cursor.advance();
        }
      }
    }
  }
  // The empty unit ends the math warps' loop.
  rings.units.acquire(unit_cursor);
  if (lane == 0) {
    smem.units[unit_cursor.slot()] = {0, 0};
    rings.units.commit(unit_cursor);
  }
  ptx::mbarrier_arrive_after_cp_async(rings.units.full_barrier(unit_cursor));
}

// ---- math ----

/// Where a lane's scores of one query go, walking along the keys.
template <class Output>
struct LaneTarget {
  uint32_t key_in_row;
  uint32_t width;
  Output* g_out;

  LaneTarget() = default;
  __device__ __forceinline__ LaneTarget(const RowTarget<Output>& row, int32_t first_key)
      : key_in_row(static_cast<uint32_t>(first_key - row.begin)), width(row.width), g_out(row.g_row + first_key) {}

  __device__ __forceinline__ void advance(int32_t keys) {
    key_in_row += static_cast<uint32_t>(keys);
    g_out += keys;
  }
  /// Score number s of the lane: 8 * s keys further.
  __device__ __forceinline__ void store(int s, float score) const {
    if (key_in_row + 8U * static_cast<uint32_t>(s) < width) {
      if constexpr (std::is_same_v<Output, float>) {
        ptx::store_global(g_out + 8 * s, score);
      } else {
        ptx::store_global(g_out + 8 * s, __float2bfloat16_rn(score));
      }
    }
  }
};

template <class Config, ScoreBuild kBuild>
__device__ __forceinline__ void math_role(ScoreSmem<Config>& smem, const ScoreRings<Config>& rings, void* g_sink) {
  using Tile = typename Config::Tile;
  using Output = typename Config::Output;
  constexpr bool kTargetsInRegisters = Tile::kQueriesPerLane <= 2;
  const int lane = ptx::lane_index();
  const int warp = ptx::warp_index();
  const int warpgroup = warp / 4;
  const int first_key = Tile::first_key_of_lane(warp, lane);
  const int scale_key = warp * 16 + lane / 4;
  const auto units = rings.units.uniform();
  const auto keys = rings.keys.uniform();
  const auto s_keys = static_cast<uint32_t>(
      ptx::uniform(static_cast<int32_t>(ptx::shared_address(smem.keys)) + warpgroup * 64 * Tile::kRowBytes));
  const auto s_queries = static_cast<uint32_t>(ptx::uniform(static_cast<int32_t>(ptx::shared_address(smem.queries))));
  typename device::Ring<Config::kUnitStages>::Cursor unit_cursor;
  typename device::Ring<Config::kKeyStages>::Cursor key_cursor;
  device::LaneWeights<Tile> weights;
  float sink = 0.0F;

  units.wait(unit_cursor);
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive(ptx::shared_address(&smem.start_barrier));
  }
  for (;;) {
    units.wait(unit_cursor);
    const int unit_stage = unit_cursor.slot();
    // One lane reads for all: it is also the one that releases the stage.
    const ScoreUnit read = lane == 0 ? smem.units[unit_stage] : ScoreUnit{0, 0};
    const ScoreUnit unit = {ptx::uniform(read.tile_begin), ptx::uniform(read.tile_end)};
    if (unit.tile_begin == unit.tile_end) {
      break;
    }
    weights.load(smem.weights[unit_stage], lane);
    device::TileOperands operands;
    operands.queries = ptx::matrix_descriptor<Tile::kRowBytes>(s_queries + unit_stage * Tile::kQueryBytes);
    int32_t key = unit.tile_begin * Tile::kKeys + first_key;
    LaneTarget<Output> targets[kTargetsInRegisters ? Tile::kQueriesPerLane : 1];
    if constexpr (kTargetsInRegisters) {
#pragma unroll
      for (int u = 0; u < Tile::kQueriesPerLane; ++u) {
        targets[u] = LaneTarget<Output>(smem.rows[unit_stage][Tile::query_of_lane(lane, u)], key);
      }
    }

#pragma unroll 1
    for (int32_t tile = unit.tile_begin; tile < unit.tile_end; ++tile) {
      keys.wait(key_cursor);
      const int stage = key_cursor.slot();
      operands.keys = ptx::matrix_descriptor<Tile::kRowBytes>(s_keys + stage * Tile::kKeyBytes);
      operands.scale[0] = smem.scales[stage][scale_key];
      operands.scale[1] = smem.scales[stage][scale_key + 8];
      const auto release = [&] {
        if (lane == 0) {
          keys.release(key_cursor);
        }
      };
      if constexpr (kBuild == ScoreBuild::kMathOnly) {
        device::multiply_tile<Tile>(operands, release, [&](float dot) { sink += dot; });
      } else {
        device::score_tile<Tile>(operands, weights, release, [&](int u, int s, float score) {
          if constexpr (kBuild == ScoreBuild::kNoStore) {
            sink += score;
          } else if constexpr (kTargetsInRegisters) {
            targets[u].store(s, score);
          } else {
            LaneTarget<Output>(smem.rows[unit_stage][Tile::query_of_lane(lane, u)], key).store(s, score);
          }
        });
      }
      key_cursor.advance();
      key += Tile::kKeys;
      if constexpr (kTargetsInRegisters) {
#pragma unroll
        for (int u = 0; u < Tile::kQueriesPerLane; ++u) {
          targets[u].advance(Tile::kKeys);
        }
      }
    }
    __syncwarp();
    if (lane == 0) {
      units.release(unit_cursor);
    }
    unit_cursor.advance();
  }
  if constexpr (kBuild != ScoreBuild::kComplete) {
    if (sink == -12345.0F) {  // never, but the compiler cannot know
      *static_cast<float*>(g_sink) = sink;
    }
  }
}

// ---- fill ----

/// Writes -inf to `count` elements.  By all lanes of a warp.
template <class Output>
__device__ __forceinline__ void fill_minus_infinity(Output* g_out, int64_t count) {
  constexpr bool kF32 = std::is_same_v<Output, float>;
  constexpr uint32_t kWord = kF32 ? 0xFF800000U : 0xFF80FF80U;
  constexpr int kElementsPerVector = 16 / sizeof(Output);
  const Output minus_infinity = kF32 ? Output(__uint_as_float(0xFF800000U)) : Output(-__int_as_float(0x7F800000));
  const int lane = ptx::lane_index();
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(g_out) % 16 / sizeof(Output));
  const int64_t head = min(misaligned == 0 ? int64_t{0} : kElementsPerVector - misaligned, count);
  if (lane < head) {
    g_out[lane] = minus_infinity;
  }
  const int64_t vectors = (count - head) / kElementsPerVector;
  auto* g_vectors = reinterpret_cast<uint4*>(g_out + head);
  for (int64_t i = lane; i < vectors; i += 32) {
    g_vectors[i] = make_uint4(kWord, kWord, kWord, kWord);
  }
  const int64_t tail_begin = head + vectors * kElementsPerVector;
  if (tail_begin + lane < count) {
    g_out[tail_begin + lane] = minus_infinity;
  }
}

/// Every cell of the output that holds no key.
template <class Config>
__device__ __forceinline__ void fill_role(const ScoreParams& params, int worker, int num_workers) {
  using Output = typename Config::Output;
  constexpr int64_t kPieceColumns = 8192;
  const int64_t pieces_per_row = (params.score_width + kPieceColumns - 1) / kPieceColumns;
  const int64_t rows_per_step = num_workers / pieces_per_row;
  const int64_t pieces_per_step = num_workers - rows_per_step * pieces_per_row;
  int64_t row = worker / pieces_per_row;
  int64_t piece = worker - row * pieces_per_row;
  while (row < params.blocks.num_rows) {
    const int64_t first = piece * kPieceColumns;
    const int64_t last = min(first + kPieceColumns, params.score_width);
    const KeyRange range = params.ranges(row);
    const int64_t begin = params.compact ? 0 : range.begin;
    const int64_t end = params.compact ? range.width() : range.end;
    Output* g_row = static_cast<Output*>(params.g_scores) + row * params.score_row_stride;
    fill_minus_infinity(g_row + first, max(min(last, begin) - first, int64_t{0}));
    const int64_t after = max(first, end);
    fill_minus_infinity(g_row + after, max(last - after, int64_t{0}));
    row += rows_per_step;
    piece += pieces_per_step;
    if (piece >= pieces_per_row) {
      piece -= pieces_per_row;
      row += 1;
    }
  }
}

// ---- entry ----

template <class Config, ScoreBuild kBuild>
__global__ void __launch_bounds__(Config::kThreads, 1) score_sm90(const __grid_constant__ ScoreParams params) {
  using Tile = typename Config::Tile;
  extern __shared__ __align__(1024) uint8_t s_bytes[];
  auto& smem = *reinterpret_cast<ScoreSmem<Config>*>(s_bytes);
  const ScoreRings<Config> rings(smem);
  const int warp = ptx::warp_index();

  if (threadIdx.x == 0) {
    rings.units.init(1 + 32, Tile::kMathWarps);
    rings.keys.init(params.scales_by_tma ? 1 : 1 + 32, Tile::kMathWarps);
    ptx::mbarrier_init(ptx::shared_address(&smem.start_barrier), 1);
    ptx::mbarrier_init_fence();
  }
  using Planner = device::SharePlanner<Config::kThreads, Tile::kQueries, Tile::kKeys>;
  constexpr auto kPlanRows = static_cast<int32_t>(sizeof(smem.keys) / sizeof(TileRun));
  Planner planner(params.blocks, params.ranges,
                  {reinterpret_cast<TileRun*>(smem.keys), kPlanRows, smem.warp_sums, &smem.share});
  planner.plan(gridDim.x, blockIdx.x);
  ptx::fence_proxy_async_shared();  // the planner's stores to smem.keys, before the copies that overwrite them
  __syncthreads();

  if (warp >= Config::kProducerWarp) {
    ptx::shrink_registers<Config::kAuxiliaryRegisters>();
    if (warp == Config::kProducerWarp) {
      producer_role<Config>(params, smem, rings);
    } else if constexpr (kBuild == ScoreBuild::kComplete) {
      // Stores at full speed would hold up the first loads that the tensor cores wait for.
      while (!ptx::mbarrier_try_wait(ptx::shared_address(&smem.start_barrier), 0)) {
      }
      const int worker = (warp - Config::kFirstFillWarp) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
      fill_role<Config>(params, worker, Config::kFillWarps * static_cast<int>(gridDim.x));
    }
  } else {
    ptx::grow_registers<Config::kMathRegisters>();
    math_role<Config, kBuild>(smem, rings, params.g_scores);
  }
}

}  // namespace keysieve::cuda
