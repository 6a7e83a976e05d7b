// SPDX-License-Identifier: Apache-2.0
// Host side of score_sm90: parameters and launch.  A header, so that experiment builds can launch their own.
#pragma once

#include <cuda_runtime.h>

#include "cuda/raii.hpp"
#include "cuda/score_sm90/config.hpp"
#include "cuda/score_sm90/kernel.cuh"
#include "cuda/tile_feed_params.cuh"

namespace keysieve::cuda {

template <class Config, ScoreBuild kBuild = ScoreBuild::kComplete>
Status launch_score(const Call& call, const ScoreConfig& config) noexcept {
  using Tile = typename Config::Tile;
  const Problem& problem = call.problem;
  ScoreParams params = {};
  KEYSIEVE_RETURN_IF_ERROR(make_tile_feed_params<Tile>(call, &params.feed));
  params.compact = problem.compact_scores;
  if (problem.compact_scores && problem.score_width < params.feed.rows.ranges.max_width) {
    params.feed.rows.ranges.max_width = static_cast<int32_t>(problem.score_width);
  }
  params.g_scores = call.scores;
  params.score_row_stride = call.score_row_stride;
  params.score_width = problem.score_width;

  const auto kernel = score_sm90<Config, kBuild>;
  constexpr size_t kSharedBytes = sizeof(ScoreSmem<Config>);
  static_assert(kSharedBytes <= 232448, "more shared memory than a block can have");
  KEYSIEVE_RETURN_IF_CUDA_ERROR(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(config.num_ctas));
  launch.blockDim = dim3(Config::kThreads);
  launch.dynamicSmemBytes = kSharedBytes;
  launch.stream = static_cast<cudaStream_t>(call.stream);
  return status_of(cudaLaunchKernelEx(&launch, kernel, params), "launch of score_sm90");
}

}  // namespace keysieve::cuda
