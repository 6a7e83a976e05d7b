// SPDX-License-Identifier: Apache-2.0
// Host side of fused_sm90: parameters and launch.  A header, so that experiment builds can launch their own.
#pragma once

#include <cuda_runtime.h>

#include "cuda/fused_sm90/config.hpp"
#include "cuda/fused_sm90/kernel.cuh"
#include "cuda/raii.hpp"
#include "cuda/tile_feed_params.cuh"

namespace keysieve::cuda {

/// Lays the scratch out in the call's workspace, for as many CTAs as are wanted and fit.
inline void place_scratch(const Call& call, const FusedConfig& config, FusedParams* params, int32_t* num_ctas) {
  const FusedScratch& scratch = config.scratch;
  const auto base = reinterpret_cast<uintptr_t>(call.workspace);
  constexpr auto kAlignment = static_cast<uintptr_t>(FusedScratch::kAlignmentBytes);
  auto* g_base = reinterpret_cast<uint8_t*>((base + kAlignment - 1) / kAlignment * kAlignment);
  *num_ctas = static_cast<int32_t>(scratch.ctas_in(static_cast<int64_t>(call.workspace_bytes), config.num_ctas));
  params->scratch = scratch;
  params->g_arrivals = reinterpret_cast<uint32_t*>(g_base);
  params->g_counts = reinterpret_cast<int32_t*>(g_base + scratch.arrival_bytes(*num_ctas));
  params->g_ctas = g_base + scratch.header_bytes(*num_ctas);
}

template <class Config, FusedBuild kBuild = FusedBuild::kComplete>
Status launch_fused(const Call& call, const FusedConfig& config) noexcept {
  FusedParams params = {};
  KEYSIEVE_RETURN_IF_ERROR(make_tile_feed_params<typename Config::Tile>(call, &params.feed));
  params.output = device::make_row_output(call);
  params.dense_tiles = config.dense_tiles;
  int32_t num_ctas = 0;
  place_scratch(call, config, &params, &num_ctas);

  const auto kernel = fused_sm90<Config, kBuild>;
  constexpr size_t kSharedBytes = sizeof(FusedSmem<Config>);
  static_assert(kSharedBytes <= 232448, "more shared memory than a block can have");
  KEYSIEVE_RETURN_IF_CUDA_ERROR(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const auto stream = static_cast<cudaStream_t>(call.stream);
  KEYSIEVE_RETURN_IF_CUDA_ERROR(
      cudaMemsetAsync(params.g_arrivals, 0, static_cast<size_t>(num_ctas) * sizeof(uint32_t), stream));
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(num_ctas));
  launch.blockDim = dim3(Config::kThreads);
  launch.dynamicSmemBytes = kSharedBytes;
  launch.stream = stream;
  return status_of(cudaLaunchKernelEx(&launch, kernel, params), "launch of fused_sm90");
}

}  // namespace keysieve::cuda
