// SPDX-License-Identifier: Apache-2.0
// split_sm90: score and select for few rows, in one launch: the keys of every row are split over all CTAs.
//
//     score   the roles of score_sm90: equal shares of the line of all key tiles, one a CTA; scores go to L2
//     count   each CTA adds the tiles of its share to the counter of the rows that they belong to
//     select  who completes a row's counter selects it, with all its threads, as `select` does
//
//     CTA 0   [ score ........ ][count][select row 3]
//     CTA 1   [ score ........ ][count]
//     CTA 2   [ score ........ ][count][select row 0]       No CTA waits for another, so the kernel cannot hang
//     whatever
//     ..                                                    else is on the device.
//
//     warps 0-7    math       scores
//     warp  8      producer   operands (device/tile_feed.cuh): contiguous keys or pages
//     warps 9-11   pad        rows without keys
//     warps 12-15  nothing while scores are computed
//
// Why a selection sees every score of its row.  A row's tiles are those that hold its keys; the shares cut the line of
// tiles, so each of them is in one share.  A CTA counts after all its stores (fence, barrier), so when the counter has
// reached the row's tiles every score is in L2, where the select phase reads it (not from the read-only cache).
#pragma once

#include <cstdint>

#include "cuda/score_sm90/kernel.cuh"
#include "cuda/select/row_selector.cuh"

namespace keysieve::cuda {

template <int kHeads, int kHeadDim, class Operands>
struct SplitKernelConfig : ScoreKernelConfig<kHeads, kHeadDim, float, Operands> {
  // 512 threads launch with 128 registers: while scores are computed 256 x 208 + 128 x 72 + 128 x 24.
  static constexpr int kThreads = 512;
  static constexpr int kLaunchRegisters = 128;
  static constexpr int kMathRegisters = 208;
  static constexpr int kIdleRegisters = 24;
  static constexpr int kFirstPadWarp = 9;
  static constexpr int kFirstIdleWarp = 12;

  struct Select : SelectKernelConfig<kThreads, 2048, 1> {
    static constexpr bool kFreshScores = true;
  };
};

template <class Config>
struct SplitSmem : ScoreSmem<Config> {
  uint32_t finished_rows;  // of a unit's block: whose counters this CTA completed

  /// What the select phase works in: queries and keys are no longer needed.
  [[nodiscard]] __device__ __forceinline__ SelectSmem<typename Config::Select>& select() {
    static_assert(sizeof(SelectSmem<typename Config::Select>) <= sizeof(this->queries) + sizeof(this->keys));
    return *reinterpret_cast<SelectSmem<typename Config::Select>*>(this->queries);
  }
};

struct SplitParams {
  ScoreParams score;
  SelectArgs select;
  uint32_t* g_scored_tiles;  // [T], zero at the start
};

/// Counts the scored tiles of a unit for each row of its block; bit i of the result: row i has all now.  By all lanes
/// of a warp.
template <class Config>
__device__ __forceinline__ uint32_t count_tiles(const SplitParams& params, const device::WorkUnit& unit,
                                                const KeyRange& lane_range) {
  const int lane = ptx::lane_index();
  const TileRun tiles = tiles_of_keys(lane_range.begin, lane_range.end, Config::Tile::kKeys);
  const int32_t scored = min(tiles.end, unit.tile_end) - max(tiles.begin, unit.tile_begin);
  bool finished = false;
  if (lane >= unit.row_begin && lane < unit.row_end && scored > 0) {
    const uint32_t before =
        atomicAdd(params.g_scored_tiles + unit.block.first_row + lane, static_cast<uint32_t>(scored));
    finished = before + static_cast<uint32_t>(scored) == static_cast<uint32_t>(tiles.size());
  }
  return __ballot_sync(ptx::kAllLanes, finished);
}

/// Counts the share's units and selects the rows that they complete.  By all threads, after a barrier behind which
/// every score of the share is visible.
template <class Config>
__device__ __forceinline__ void select_finished_rows(const SplitParams& params, SplitSmem<Config>& smem) {
  using Selector = RowSelector<typename Config::Select, float>;
  Selector(smem.select(), params.select).initialise();
  // All warps walk the same units.
  device::for_each_unit<typename Config::Tile>(
      params.score.feed, smem.share, [&](const device::WorkUnit& unit, const KeyRange& lane_range) {
        if (ptx::warp_index() == 0) {
          const uint32_t finished = count_tiles<Config>(params, unit, lane_range);
          if (ptx::lane_index() == 0) {
            smem.finished_rows = finished;
          }
          __threadfence();  // the counters, before the scores that they promise
        }
        __syncthreads();
        const uint32_t finished = smem.finished_rows;
#pragma unroll 1
        for (uint32_t left = finished; left != 0; left &= left - 1) {
          const int row = __ffs(static_cast<int>(left)) - 1;
          Selector(smem.select(), params.select).run(static_cast<uint32_t>(unit.block.first_row) + row, 0, 1);
        }
        __syncthreads();  // the next unit's rows overwrite this one's
      });
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) split_sm90(const __grid_constant__ SplitParams params) {
  auto& smem = ptx::dynamic_shared<SplitSmem<Config>>();
  const ScoreRings<Config> rings(smem);
  const int warp = ptx::warp_index();

  if (threadIdx.x == 0) {
    rings.init(params.score.feed.scales_by_tma);
    ptx::mbarrier_init(ptx::shared_address(&smem.start_barrier), 1);
    ptx::mbarrier_init_fence();
  }
  device::plan_share<Config::kThreads>(params.score.feed, smem);

  if (warp >= Config::kFirstIdleWarp) {
    ptx::shrink_registers<Config::kIdleRegisters>();
  } else if (warp >= Config::kProducerWarp) {
    ptx::shrink_registers<Config::kAuxiliaryRegisters>();
    if (warp == Config::kProducerWarp) {
      producer_role<Config>(params.score, smem, rings);
    } else {
      constexpr int kPadWarps = Config::kFirstIdleWarp - Config::kFirstPadWarp;
      const int worker = (warp - Config::kFirstPadWarp) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
      device::pad_empty_rows(params.select.output, params.select.ranges, params.select.num_rows, worker,
                             kPadWarps * static_cast<int>(gridDim.x));
    }
  } else {
    ptx::grow_registers<Config::kMathRegisters>();
    math_role<Config, ScoreBuild::kComplete>(smem, rings, nullptr);
    __threadfence();  // scores, before they are counted
  }
  __syncthreads();  // before anyone takes registers back: the math warps may still have to get theirs
  if (warp < Config::kProducerWarp) {
    ptx::shrink_registers<Config::kLaunchRegisters>();
  } else {
    ptx::grow_registers<Config::kLaunchRegisters>();
  }
  select_finished_rows<Config>(params, smem);
}

}  // namespace keysieve::cuda
