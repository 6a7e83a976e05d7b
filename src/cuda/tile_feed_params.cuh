// SPDX-License-Identifier: Apache-2.0
// Host side of device/tile_feed.cuh: tensor maps and parameters of a call that scores keys.
#pragma once

#include <algorithm>

#include "cuda/device/tile_feed.cuh"
#include "cuda/tensor_map.hpp"

namespace keysieve::cuda {

/// q as rows of groups: one group if the rows have one stride, else the groups of a [B, next_n] tensor.  Rows of paged
/// keys that name their request by their place are in groups too, so that no block of rows has keys of two requests.
struct QueryGroups {
  int64_t num_groups = 1;
  int64_t rows_per_group = 1;
  int64_t group_stride = 0;
  int64_t row_stride = 0;
};

inline QueryGroups query_groups(const Call& call) {
  const RowStride& stride = call.q_row;
  const int64_t num_rows = call.problem.num_rows;
  if (call.problem.paged && !call.row_request) {
    const int64_t next_n = call.problem.next_n;
    const int64_t num_groups = (num_rows + next_n - 1) / next_n;
    return stride.rows_per_group <= 1 ? QueryGroups{num_groups, next_n, next_n * stride.group, stride.group}
                                      : QueryGroups{num_groups, next_n, stride.group, stride.row};
  }
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
Status encode_tile_maps(const Call& call, const QueryGroups& groups, device::TileFeedParams* params) noexcept {
  const Problem& problem = call.problem;
  constexpr uint64_t kUnusedStride = 16;
  const auto stride_or_unused = [](int64_t count, int64_t stride) {
    return count > 1 ? static_cast<uint64_t>(stride) : kUnusedStride;
  };
  TensorMapSpec q;
  q.argument = "q";
  q.data = call.q;
  q.swizzle = swizzle_of_row_bytes(Tile::kPlaneBytes);
  const auto head_bytes = static_cast<uint64_t>(Tile::kElementBytes * call.q_head_stride);
  q.add(Tile::kRowBytes, 1, Tile::kPlaneBytes);
  q.add(Tile::kBoxHeads, head_bytes, Tile::kBoxHeads);
  q.add(static_cast<uint64_t>(groups.rows_per_group),
        stride_or_unused(groups.rows_per_group, Tile::kElementBytes * groups.row_stride), Tile::kBoxQueries);
  q.add(Tile::kBoxGroups, Tile::kBoxHeads * head_bytes, Tile::kBoxGroups);
  q.add(static_cast<uint64_t>(groups.num_groups),
        stride_or_unused(groups.num_groups, Tile::kElementBytes * groups.group_stride), 1);
  KEYSIEVE_RETURN_IF_ERROR(encode_tensor_map(q, &params->q_map));

  TensorMapSpec k;
  k.argument = "k";
  k.data = call.k;
  k.swizzle = swizzle_of_row_bytes(Tile::kPlaneBytes);
  k.add(Tile::kRowBytes, 1, Tile::kPlaneBytes);
  if (problem.paged) {
    if (problem.num_pages == 0) {
      k.data = call.q;  // a map needs some memory; no page id is inside the pool
    }
    k.add(KEYSIEVE_PAGE_SIZE, Tile::kRowBytes, KEYSIEVE_PAGE_SIZE);
    k.add(static_cast<uint64_t>(std::max<int64_t>(problem.num_pages, 1)),
          stride_or_unused(problem.num_pages, call.k_stride), 1);
    params->scales_by_tma = true;
    return encode_tensor_map(k, &params->k_map);
  }
  k.add(static_cast<uint64_t>(problem.num_keys),
        stride_or_unused(problem.num_keys, Tile::kElementBytes * call.k_stride), Tile::kKeys);
  KEYSIEVE_RETURN_IF_ERROR(encode_tensor_map(k, &params->k_map));

  if constexpr (!Tile::kHasScales) {
    params->scales_by_tma = true;
    return {};
  }
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

/// Tiles of a request of paged keys, and one that no request has.
template <class Tile>
int64_t request_tiles(const Problem& problem) {
  return (problem.num_keys + Tile::kKeys - 1) / Tile::kKeys + 1;
}

/// Tiles of paged keys are numbered through all requests, in 32 bits.
template <class Tile>
Status check_request_tiles(const Problem& problem) noexcept {
  const int64_t tiles = request_tiles<Tile>(problem);
  if (problem.paged && problem.num_requests > 0x7FFFFFFF / tiles) {
    return Status::error(KEYSIEVE_UNSUPPORTED, "num_requests is %lld with num_keys %lld; on CUDA at most %lld requests",
                         static_cast<long long>(problem.num_requests), static_cast<long long>(problem.num_keys),
                         static_cast<long long>(0x7FFFFFFF / tiles));
  }
  return {};
}

/// Everything that feeds the main loop.
template <class Tile>
Status make_tile_feed_params(const Call& call, device::TileFeedParams* params) noexcept {
  const QueryGroups groups = query_groups(call);
  if (call.problem.num_keys > 0) {
    KEYSIEVE_RETURN_IF_ERROR(encode_tile_maps<Tile>(call, groups, params));
  }
  params->g_scales = static_cast<const float*>(call.k_scale);
  params->scale_stride = call.k_scale_stride;
  params->pages = device::make_paged_keys(call);
  params->weights = device::make_row_view(call.weights);
  params->rows.ranges = device::make_row_ranges(call);
  if (call.problem.paged) {
    params->rows.requests = device::make_row_requests(call);
    params->rows.request_tiles = static_cast<int32_t>(request_tiles<Tile>(call.problem));
  }
  params->blocks = RowBlocks::make(call.problem.num_rows, groups.rows_per_group, Tile::kQueries);
  return {};
}

}  // namespace keysieve::cuda
