// SPDX-License-Identifier: Apache-2.0
// fused_sm90: score and select in one launch; the scores of a row exist only in windows of a few thousand keys that
// pass through L2.
//
//     score[t,n] = k_scale[n] * sum_h w[t,h] * relu( q[t,h,:] . k[n,:] )      (bits of score_sm90: device/tile.cuh)
//     indices[t] = the K best keys of row t, ascending
//
// One persistent CTA a multiprocessor, three warpgroups:
//
//     warp role      what it does
//     0-7  math      the main loop of score_sm90; stores every score of a window, knows no row, range or threshold
//     0-3            then select, as helpers: the rows of the last windows are all that is left
//     8    producer  operands of units and key tiles (device/tile_feed.cuh)
//     9-11 select    one window behind: reads the rows of the window from L2 and keeps their best
//
//     producer : Q K K K K K K K K Q K ..
//     math     : [ window 0 ][ window 1 ][ window 2 ] ..
//     select   :             [ window 0 ][ window 1 ] ..       select_role.cuh
//     helpers  :                              (end) [ .. ]
//
//   barrier        arrivals                     protects
//   windows.full   8: math warps                scores of a window and its description
//   windows.empty  queries: finished tasks      the same
//   named 1        256: math warps              a cut dense run: all its stores, before it is counted
//   (units, keys: device/tile_feed.cuh)
//
// A run of tiles (core/schedule.hpp) is
//   dense  if its rows fit in a window: the window is the whole unit, and select picks from it directly;
//   long   otherwise: windows of kWindowTiles tiles, from which select keeps a list of candidates a row.
// Shares of the work cut some runs.  The pieces of a dense one are stored side by side in the buffer of the CTA whose
// share holds its first tile, and whoever scores the last piece selects; of a long one each piece leaves its own best
// K, and whoever leaves the last merges.  No CTA waits for another, so the kernel cannot hang whatever else is on the
// device.
#pragma once

#include <cstdint>

#include "cuda/fused_sm90/layout.cuh"
#include "cuda/fused_sm90/select_role.cuh"

namespace keysieve::cuda {

// ---- producer ----

template <class Config>
__device__ __forceinline__ void producer_role(const FusedParams& params, FusedSmem<Config>& smem,
                                              const FusedRings<Config>& rings) {
  const device::Share& s_share = smem.share;
  const auto describe = [&](int stage, const device::WorkUnit& unit, const device::KeyRange&) {
    if (ptx::lane_index() == 0) {
      FusedUnit described;
      described.first_row = static_cast<uint32_t>(unit.block.first_row);
      described.row_begin = unit.row_begin;
      described.row_end = unit.row_end;
      described.run = unit.run;
      described.tile_begin = unit.tile_begin;
      described.tile_end = unit.tile_end;
      described.first_share = static_cast<int32_t>(blockIdx.x);
      described.last_share = described.first_share;
      if (unit.tile_end - unit.tile_begin != unit.run.size()) {
        const int64_t last = unit.run_line + unit.run.size() - 1;
        described.first_share = static_cast<int32_t>(share_of(s_share.line_tiles, gridDim.x, unit.run_line));
        described.last_share = static_cast<int32_t>(share_of(s_share.line_tiles, gridDim.x, last));
      }
      smem.units[stage] = described;
    }
  };
  device::produce_share<typename Config::Feed>(params.feed, smem, rings, describe, [&](int stage) {
    smem.units[stage].tile_begin = 0;
    smem.units[stage].tile_end = 0;
  });
}

// ---- math ----

template <class Config, FusedBuild kBuild>
__device__ __forceinline__ void math_role(const FusedParams& params, FusedSmem<Config>& smem,
                                          const FusedRings<Config>& rings, const WindowRing<Config>& window_ring) {
  using Tile = typename Config::Tile;
  constexpr int kRowStride = Config::kShape.row_stride();
  constexpr bool kStores = kBuild == FusedBuild::kComplete || kBuild == FusedBuild::kNoSelect;
  const int lane = ptx::lane_index();
  const int warp = ptx::warp_index();
  const int lane_offset = Tile::query_of_lane(lane, 0) * kRowStride + Tile::first_key_of_lane(warp, lane);
  const auto units = rings.units.uniform();
  const auto keys = rings.keys.uniform();
  const auto windows = window_ring.uniform();
  device::OperandReader<typename Config::Feed> operands(smem);
  typename Config::Feed::Units::Cursor unit_cursor;
  typename Config::Feed::Keys::Cursor key_cursor;
  typename WindowRing<Config>::Cursor window_cursor;
  device::LaneWeights<Tile> weights;
  float sink = 0.0F;

  for (;;) {
    units.wait(unit_cursor);
    const int unit_stage = unit_cursor.slot();
    const FusedUnit& s_unit = smem.units[unit_stage];
    const int32_t unit_end = ptx::uniform(s_unit.tile_end);
    int32_t begin = ptx::uniform(s_unit.tile_begin);
    if (begin == unit_end) {
      break;
    }
    weights.load(smem.weights[unit_stage], lane);
    operands.take_unit(unit_stage);

#pragma unroll 1
    while (begin < unit_end) {
      const int32_t tiles =
          ptx::uniform(params.is_dense(s_unit) ? unit_end - begin : min(FusedShape::kWindowTiles, unit_end - begin));
      const int slot = window_cursor.slot();
      windows.acquire(window_cursor);
      float* g_out = g_window_of<Config>(params, s_unit, slot) + lane_offset +
                     (begin - first_tile_of(params, s_unit, begin)) * Tile::kKeys;

#pragma unroll 1
      for (int32_t left = tiles; left > 0; --left) {
        keys.wait(key_cursor);
        const int stage = key_cursor.slot();
        const device::TileOperands& tile_operands = operands.take_tile(stage);
        const auto release = [&] {
          if (lane == 0) {
            keys.release(key_cursor);
          }
        };
        if constexpr (kBuild == FusedBuild::kMathOnly) {
          device::multiply_tile<Tile>(tile_operands, release, [&](float dot) { sink += dot; });
        } else {
          device::score_tile<Tile>(tile_operands, weights, release, [&](int u, int s, float score) {
            if constexpr (kStores) {
              ptx::store_global(g_out + 4 * u * kRowStride + 8 * s, score);
            } else {
              sink += score;
            }
          });
        }
        key_cursor.advance();
        g_out += Tile::kKeys;
      }

      // The window's description, by one thread: what it needs of the unit is in shared memory already.
      const bool is_counted = s_unit.is_cut() && params.is_dense(s_unit);
      if (is_counted) {
        __threadfence();
        ptx::named_barrier_sync(Config::kMathBarrier, 32 * Tile::kMathWarps);
      }
      if (threadIdx.x == 0) {
        FusedWindow& s_window = smem.windows[slot];
        s_window.unit = s_unit;
        s_window.begin = begin;
        s_window.end = begin + tiles;
        s_window.ready = is_counted && arrive_at_cut_run(params, s_unit, tiles);
        smem.written_windows += 1;
      }
      __syncwarp();
      if (lane == 0) {
        windows.commit(window_cursor);
      }
      window_cursor.advance();
      begin += tiles;
    }
    __syncwarp();
    if (lane == 0) {
      units.release(unit_cursor);
    }
    unit_cursor.advance();
  }
  if constexpr (!kStores) {
    if (sink == -12345.0F) {  // never, but the compiler cannot know
      *reinterpret_cast<float*>(params.g_ctas) = sink;
    }
  }
}

/// After the last tile: tells the select role how many windows there are.  By all math warps; afterwards nobody reads
/// queries and keys, and every helper knows the number: one that did not could run more than a lap ahead of the ring
/// and take an old window's parity for that of one that never comes.
template <class Config>
__device__ __forceinline__ void finish_math(FusedSmem<Config>& smem) {
  if (threadIdx.x == 0) {
    ptx::publish_shared(smem.num_windows, smem.written_windows);
  }
  ptx::named_barrier_sync(Config::kMathBarrier, 32 * Config::Tile::kMathWarps);
}

// ---- entry ----

template <class Config, FusedBuild kBuild>
__global__ void __launch_bounds__(Config::kThreads, 1) fused_sm90(const __grid_constant__ FusedParams params) {
  auto& smem = ptx::dynamic_shared<FusedSmem<Config>>();
  const FusedRings<Config> rings(smem);
  const WindowRing<Config> windows(smem.window_barriers, "windows");
  const int warp = ptx::warp_index();

  if (threadIdx.x == 0) {
    rings.init(params.feed.scales_by_tma);
    windows.init(Config::Tile::kMathWarps, Config::Tile::kQueries);
    smem.next_task = 0;
    smem.written_windows = 0;
    smem.num_windows = 0xFFFFFFFF;
    for (int32_t& rows : smem.published_rows) {
      rows = 0;
    }
    for (auto& row : smem.rows) {
      row.finished = 0;
    }
    ptx::mbarrier_init_fence();
  }
  device::plan_share<Config::kThreads>(params.feed, smem);

  int worker = warp - Config::kFirstSelectWarp;
  if (warp < Config::kProducerWarp) {
    ptx::grow_registers<Config::kMathRegisters>();
    math_role<Config, kBuild>(params, smem, rings, windows);
    finish_math<Config>(smem);
    if (warp >= Config::kHelperWarpgroupWarps) {
      return;
    }
    worker = Config::kSelectWarps + warp;
  }
  ptx::shrink_registers<Config::kAuxiliaryRegisters>();
  if (warp == Config::kProducerWarp) {
    producer_role<Config>(params, smem, rings);
  } else if (worker < Config::kSelectWarps + Config::kHelpers) {
    SelectRole<Config>(params, smem, worker).template run<kBuild>(windows);
  }
}

}  // namespace keysieve::cuda
