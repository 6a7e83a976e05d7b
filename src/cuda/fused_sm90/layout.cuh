// SPDX-License-Identifier: Apache-2.0
// What the roles of fused_sm90 share: configuration, units and windows, shared memory, parameters.  See kernel.cuh.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/device/row_output.cuh"
#include "cuda/device/row_sieve.cuh"
#include "cuda/device/tile.cuh"
#include "cuda/device/tile_feed.cuh"
#include "cuda/fused_sm90/config.hpp"
#include "cuda/ptx/warp.cuh"

namespace keysieve::cuda {

/// What is built: the kernel, or one with work left out to find what that work costs (never in the library).
enum class FusedBuild {
  kComplete,
  kNoSelect,  // windows are written and handed over, and then forgotten
  kNoStore,   // scores are computed and forgotten
  kMathOnly,  // products alone
};

template <int kHeads, int kHeadDim, class Operands = ptx::E4m3Operands>
struct FusedKernelConfig {
  using Tile = device::TileShape<kHeads, kHeadDim, Operands>;
  static constexpr int kThreads = 384;
  static constexpr int kProducerWarp = 8;
  static constexpr int kFirstSelectWarp = 9;
  static constexpr int kSelectWarps = FusedShape::kSelectWarps;
  static constexpr int kMathBarrier = 1;
  static constexpr int kHelperWarpgroupWarps = 4;
  // 384 threads launch with 168 registers; the pool of 64,512 is dealt anew: 256 x 208 + 128 x 88.
  static constexpr int kMathRegisters = 208;
  static constexpr int kAuxiliaryRegisters = 88;
  static constexpr int kUnitStages = Tile::kPlanes == 1 ? 2 : 1;  // what shared memory holds
  static constexpr int kKeyStages = Tile::kPlanes == 1 ? 4 : 2;
  static constexpr int kWindows = 2;
  static constexpr FusedShape kShape = {Tile::kQueries};

  using Feed = device::TileFeedSmem<Tile, kUnitStages, kKeyStages>;
  // Math warps that select at the end: as many as have room where queries and keys were.
  static constexpr int kHelpers = std::min<int>(
      FusedShape::kMaxHelpers, (sizeof(Feed::queries) + sizeof(Feed::keys)) / sizeof(device::RowSieve::Smem));
};

/// A unit as math and select need it.  No tiles: there is no more work for math.
struct FusedUnit {
  uint32_t first_row;  // of the block
  int32_t row_begin;   // the block's rows [row_begin, row_end) are those of the run
  int32_t row_end;
  TileRun run;
  int32_t tile_begin;  // the unit: tiles [tile_begin, tile_end) of the run
  int32_t tile_end;
  int32_t first_share;  // shares [first_share, last_share] hold the run
  int32_t last_share;

  [[nodiscard]] __device__ __forceinline__ bool is_cut() const { return first_share != last_share; }
};

/// Scores of tiles [begin, end) of a unit.
struct FusedWindow {
  FusedUnit unit;
  int32_t begin;
  int32_t end;
  bool ready;  // dense and cut: all pieces of the run are there, and this CTA selects
};

template <class Config>
struct FusedSmem : Config::Feed {
  FusedUnit units[Config::kUnitStages];   // producer -> math
  FusedWindow windows[Config::kWindows];  // math -> select
  device::RingBarriers<Config::kWindows> window_barriers;
  device::RowSieve::Smem sieves[Config::kSelectWarps];  // select
  struct RowState {
    uint32_t finished;                       // tasks of this row of the block, windows counted from the kernel's start
    uint32_t least;                          // ordered score that a key must reach to become a candidate
    int32_t count;                           // candidates in the list
  } rows[Config::Tile::kQueries];            // select
  uint32_t next_task;                        // select: tasks taken
  uint32_t written_windows;                  // math
  uint32_t num_windows;                      // math -> select: of the kernel, once known; until then the largest number
  int32_t published_rows[Config::kWindows];  // select: of the cut unit whose last window is in the slot

  /// Of select warp or, behind those, helper `worker`; helpers work where queries and keys were.
  [[nodiscard]] __device__ __forceinline__ device::RowSieve::Smem& sieve(int worker) {
    return worker < Config::kSelectWarps
               ? sieves[worker]
               : reinterpret_cast<device::RowSieve::Smem*>(this->queries)[worker - Config::kSelectWarps];
  }
};

struct FusedParams {
  device::TileFeedParams feed;
  device::RowOutput output;
  FusedScratch scratch;
  int32_t dense_tiles;
  uint32_t* g_arrivals;  // [ctas], zero at the start
  int32_t* g_counts;     // [ctas][2][queries]
  uint8_t* g_ctas;       // [ctas][scratch.cta_bytes()]

  [[nodiscard]] __device__ __forceinline__ bool is_dense(const FusedUnit& unit) const {
    return unit.run.size() <= dense_tiles;
  }
  [[nodiscard]] __device__ __forceinline__ uint8_t* cta(int index) const {
    return g_ctas + index * scratch.cta_bytes();
  }
};

template <class Config>
using FusedRings = device::TileFeedRings<typename Config::Feed>;
template <class Config>
using WindowRing = device::Ring<Config::kWindows>;

/// Where scores [query][key] of a dense or long unit go; row stride Config::kShape.row_stride().
template <class Config>
__device__ __forceinline__ float* g_window_of(const FusedParams& params, const FusedUnit& unit, int slot) {
  if (unit.is_cut() && params.is_dense(unit)) {
    return reinterpret_cast<float*>(params.cta(unit.first_share) + params.scratch.cut_offset());
  }
  return reinterpret_cast<float*>(params.cta(static_cast<int>(blockIdx.x)) + slot * params.scratch.window_bytes());
}

/// Tile that position 0 of a window belongs to.
__device__ __forceinline__ int32_t first_tile_of(const FusedParams& params, const FusedUnit& unit, int32_t begin) {
  return unit.is_cut() && params.is_dense(unit) ? unit.run.begin : begin;
}

/// Counts `tiles` of a cut run as done; true if they were the last.  By one thread, after a barrier that all writers of
/// results passed with a fence before it.
__device__ __forceinline__ bool arrive_at_cut_run(const FusedParams& params, const FusedUnit& unit, int32_t tiles) {
  __threadfence();
  const uint32_t before = atomicAdd(params.g_arrivals + unit.first_share, static_cast<uint32_t>(tiles));
  __threadfence();
  return before + static_cast<uint32_t>(tiles) == static_cast<uint32_t>(unit.run.size());
}

}  // namespace keysieve::cuda
