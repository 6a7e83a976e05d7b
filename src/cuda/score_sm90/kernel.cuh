// SPDX-License-Identifier: Apache-2.0
// score_sm90: the scores of query rows against e4m3 or bf16 keys, contiguous or paged, written as f32 or bf16.
//
//     score[t,n] = k_scale[n] * sum_h w[t,h] * relu( q[t,h,:] . k[n,:] )      (tile and order of sums: device/tile.cuh)
//
// One persistent CTA a multiprocessor, three warpgroups:
//
//     warps 0-7   math      wgmma of 64 keys x 256 columns a warpgroup and tile, head sums, stores
//     warp  8     producer  operands of units and key tiles (device/tile_feed.cuh)
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
#include <cuda_bf16.h>
#include <type_traits>

#include "cuda/device/tile.cuh"
#include "cuda/device/tile_feed.cuh"
#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::cuda {

using device::KeyRange;

/// What is built: the kernel, or one with work left out to find what that work costs (never in the library).
enum class ScoreBuild { kComplete, kNoStore, kMathOnly };

template <int kHeads, int kHeadDim, class OutputT, class Operands = ptx::E4m3Operands>
struct ScoreKernelConfig {
  using Tile = device::TileShape<kHeads, kHeadDim, Operands>;
  using Output = OutputT;
  static constexpr int kThreads = 384;
  static constexpr int kProducerWarp = 8;
  static constexpr int kFirstFillWarp = 9;
  static constexpr int kFillWarps = 3;
  // 384 threads launch with 168 registers; the pool of 64,512 is dealt anew: 256 x 216 + 128 x 72.
  static constexpr int kMathRegisters = 216;
  static constexpr int kAuxiliaryRegisters = 72;
  static constexpr int kUnitStages = 2;
  static constexpr int kKeyStages = Tile::kPlanes == 1 ? 8 : 2;  // what shared memory holds
  static constexpr int kMaxQueries = 32;
  using Feed = device::TileFeedSmem<Tile, kUnitStages, kKeyStages>;
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
struct ScoreSmem : Config::Feed {
  using Tile = typename Config::Tile;
  RowTarget<typename Config::Output> rows[Config::kUnitStages][Tile::kQueries];  // producer -> math
  ScoreUnit units[Config::kUnitStages];                                          // producer -> math
  uint64_t start_barrier;  // arrives: math warp 0 once, when its first unit is there; the fill warps wait for it
};

template <class Config>
using ScoreRings = device::TileFeedRings<typename Config::Feed>;

struct ScoreParams {
  device::TileFeedParams feed;
  bool compact;
  void* g_scores;
  int64_t score_row_stride;
  int64_t score_width;
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

template <class Config>
__device__ __forceinline__ void producer_role(const ScoreParams& params, ScoreSmem<Config>& smem,
                                              const ScoreRings<Config>& rings) {
  const int lane = ptx::lane_index();
  const auto describe = [&](int stage, const device::WorkUnit& unit, const KeyRange& lane_range) {
    if (lane < Config::Tile::kQueries) {
      smem.rows[stage][lane] = row_target<Config>(params, unit.block.first_row + lane, lane_range);
    }
    if (lane == 0) {
      smem.units[stage] = {unit.tile_begin, unit.tile_end};
    }
  };
  device::produce_share<typename Config::Feed>(params.feed, smem, rings, describe, [&](int stage) {
    smem.units[stage] = {0, 0};
  });
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
  const int first_key = Tile::first_key_of_lane(warp, lane);
  const auto units = rings.units.uniform();
  const auto keys = rings.keys.uniform();
  device::OperandReader<typename Config::Feed> operands(smem);
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
    operands.take_unit(unit_stage);
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
      const device::TileOperands& tile_operands = operands.take_tile(stage);
      const auto release = [&] {
        if (lane == 0) {
          keys.release(key_cursor);
        }
      };
      if constexpr (kBuild == ScoreBuild::kMathOnly) {
        device::multiply_tile<Tile>(tile_operands, release, [&](float dot) { sink += dot; });
      } else {
        device::score_tile<Tile>(tile_operands, weights, release, [&](int u, int s, float score) {
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
  while (row < params.feed.blocks.num_rows) {
    const int64_t first = piece * kPieceColumns;
    const int64_t last = min(first + kPieceColumns, params.score_width);
    const KeyRange range = params.feed.rows(row).range;
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
  auto& smem = ptx::dynamic_shared<ScoreSmem<Config>>();
  const ScoreRings<Config> rings(smem);
  const int warp = ptx::warp_index();

  if (threadIdx.x == 0) {
    rings.init(params.feed.scales_by_tma);
    ptx::mbarrier_init(ptx::shared_address(&smem.start_barrier), 1);
    ptx::mbarrier_init_fence();
  }
  device::plan_share<Config::kThreads>(params.feed, smem);

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
