// SPDX-License-Identifier: Apache-2.0
// Host side of score_sm90: parameters, tensor maps, launch.  A header, so that experiment builds can launch their own.
#pragma once

#include <cuda_runtime.h>

#include "cuda/raii.hpp"
#include "cuda/score_sm90/config.hpp"
#include "cuda/score_sm90/kernel.cuh"
#include "cuda/tensor_map.hpp"

namespace keysieve::cuda {

/// q as rows of groups: one group if the rows have one stride, else the groups of a [B, next_n] tensor.
struct QueryGroups {
  int64_t num_groups = 1;
  int64_t rows_per_group = 1;
  int64_t group_stride = 0;
  int64_t row_stride = 0;
};

inline QueryGroups query_groups(const Call& call) {
  const RowStride& stride = call.q_row;
  const int64_t num_rows = call.problem.num_rows;
  if (stride.rows_per_group <= 1) {
    return {1, num_rows, 0, stride.group};
  }
  if (stride.group == stride.row * stride.rows_per_group || num_rows <= stride.rows_per_group) {
    return {1, num_rows, 0, stride.row};
  }
  return {(num_rows + stride.rows_per_group - 1) / stride.rows_per_group, stride.rows_per_group, stride.group,
          stride.row};
}

template <class Tile>
Status encode_score_maps(const Call& call, const QueryGroups& groups, ScoreParams* params) noexcept {
  const Problem& problem = call.problem;
  constexpr uint64_t kUnusedStride = 16;
  const auto stride_or_unused = [](int64_t count, int64_t stride) {
    return count > 1 ? static_cast<uint64_t>(stride) : kUnusedStride;
  };
  TensorMapSpec q;
  q.argument = "q";
  q.data = call.q;
  q.swizzle = swizzle_of_row_bytes(Tile::kRowBytes);
  const auto head_bytes = static_cast<uint64_t>(call.q_head_stride);
  q.add(Tile::kRowBytes, 1, Tile::kRowBytes);
  q.add(Tile::kBoxHeads, head_bytes, Tile::kBoxHeads);
  q.add(static_cast<uint64_t>(groups.rows_per_group), stride_or_unused(groups.rows_per_group, groups.row_stride),
        Tile::kBoxQueries);
  q.add(Tile::kBoxGroups, Tile::kBoxHeads * head_bytes, Tile::kBoxGroups);
  q.add(static_cast<uint64_t>(groups.num_groups), stride_or_unused(groups.num_groups, groups.group_stride), 1);
  KEYSIEVE_RETURN_IF_ERROR(encode_tensor_map(q, &params->q_map));

  TensorMapSpec k;
  k.argument = "k";
  k.data = call.k;
  k.swizzle = swizzle_of_row_bytes(Tile::kRowBytes);
  k.add(Tile::kRowBytes, 1, Tile::kRowBytes);
  k.add(static_cast<uint64_t>(problem.num_keys), stride_or_unused(problem.num_keys, call.k_stride), Tile::kKeys);
  KEYSIEVE_RETURN_IF_ERROR(encode_tensor_map(k, &params->k_map));

  TensorMapSpec scale;
  scale.argument = "k_scale";
  scale.data = call.k_scale;
  scale.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  scale.element_bytes = sizeof(float);
  scale.add(static_cast<uint64_t>(problem.num_keys), sizeof(float), Tile::kKeys);
  params->scales_by_tma = call.k_scale_stride == 1 && fits_tensor_map(scale);
  if (params->scales_by_tma) {
    KEYSIEVE_RETURN_IF_ERROR(encode_tensor_map(scale, &params->scale_map));
  }
  return {};
}

template <class Config, ScoreBuild kBuild = ScoreBuild::kComplete>
Status launch_score(const Call& call, const ScoreConfig& config) noexcept {
  using Tile = typename Config::Tile;
  const Problem& problem = call.problem;
  const QueryGroups groups = query_groups(call);
  ScoreParams params = {};
  if (problem.num_keys > 0) {
    KEYSIEVE_RETURN_IF_ERROR(encode_score_maps<Tile>(call, groups, &params));
  }
  params.g_scales = static_cast<const float*>(call.k_scale);
  params.scale_stride = call.k_scale_stride;
  params.compact = problem.compact_scores;
  params.weights = device::make_row_view(call.weights);
  params.ranges = device::make_row_ranges(call);
  if (problem.compact_scores && problem.score_width < params.ranges.max_width) {
    params.ranges.max_width = static_cast<int32_t>(problem.score_width);
  }
  params.blocks = RowBlocks::make(problem.num_rows, groups.rows_per_group, Tile::kQueries);
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
