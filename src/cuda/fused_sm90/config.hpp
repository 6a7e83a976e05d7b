// SPDX-License-Identifier: Apache-2.0
// Numbers of fused_sm90 that host and device share, and the choice of a launch.  No CUDA headers: tests choose without
// a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/problem.hpp"
#include "cuda/device_info.hpp"

namespace keysieve::cuda {

/// How a run of key tiles passes from math to select (see kernel.cuh).
struct FusedShape {
  static constexpr int32_t kTileKeys = 128;
  static constexpr int32_t kColumns = 256;  // heads times queries of a block
  static constexpr int32_t kMaxPicks = 2048;
  static constexpr int32_t kMaxDenseKeys = 16384;  // a row's place in a window
  static constexpr int32_t kWindowTiles = 64;      // of a long run
  static constexpr int32_t kSelectWarps = 3;
  static constexpr int32_t kMaxHelpers = 4;  // math warps that select once there is nothing left to score

  int32_t queries = 4;  // of a block

  [[nodiscard]] constexpr int32_t row_stride() const { return std::min(kMaxDenseKeys, 65536 / queries); }
};

/// Where things are in the workspace: the header, then for each CTA what its roles write.  All 16-byte aligned.
///
///     header     arrivals[ctas]  tiles of the cut run that starts in this CTA's share, of those scored so far
///                counts[ctas][2][queries]  entries of the parts
///     per CTA    windows[2][queries][row_stride]     f32: scores on their way from math to select
///                cut[queries][row_stride]            f32: scores of a dense run cut by shares, from all of them
///                lists[queries]                      scores f32[list_capacity], indices i32[list_capacity]
///                merges[select warps + helpers]      scores f32[merge_capacity], indices i32[merge_capacity]
///                parts[2][queries]                   scores f32[part_capacity], indices i32[part_capacity]
struct FusedScratch {
  static constexpr int64_t kAlignmentBytes = 256;

  int32_t queries = 4;
  int32_t row_stride = 0;
  int32_t list_capacity = 0;
  int32_t merge_capacity = 0;
  int32_t part_capacity = 0;

  static constexpr FusedScratch make(int64_t topk, int32_t queries) {
    FusedScratch scratch;
    scratch.queries = queries;
    scratch.row_stride = FusedShape{queries}.row_stride();
    scratch.part_capacity = static_cast<int32_t>((topk + 3) / 4 * 4);
    // A list is cut when it holds more than 3 K, so this much and a window fit; of a merge: this much and a part.
    scratch.list_capacity = 3 * scratch.part_capacity + FusedShape::kWindowTiles * FusedShape::kTileKeys;
    scratch.merge_capacity = 4 * scratch.part_capacity;
    return scratch;
  }

  [[nodiscard]] constexpr int64_t window_bytes() const { return int64_t{4} * queries * row_stride; }
  [[nodiscard]] constexpr int64_t list_bytes() const { return int64_t{8} * list_capacity; }
  [[nodiscard]] constexpr int64_t merge_bytes() const { return int64_t{8} * merge_capacity; }
  [[nodiscard]] constexpr int64_t part_bytes() const { return int64_t{8} * part_capacity; }
  [[nodiscard]] constexpr int64_t cut_offset() const { return 2 * window_bytes(); }
  [[nodiscard]] constexpr int64_t lists_offset() const { return 3 * window_bytes(); }
  [[nodiscard]] constexpr int64_t merges_offset() const { return lists_offset() + queries * list_bytes(); }
  [[nodiscard]] constexpr int64_t parts_offset() const {
    return merges_offset() + (FusedShape::kSelectWarps + FusedShape::kMaxHelpers) * merge_bytes();
  }
  [[nodiscard]] constexpr int64_t cta_bytes() const { return align(parts_offset() + 2 * queries * part_bytes()); }
  [[nodiscard]] constexpr int64_t arrival_bytes(int64_t ctas) const { return align(4 * ctas); }
  [[nodiscard]] constexpr int64_t header_bytes(int64_t ctas) const {
    return arrival_bytes(ctas) + align(int64_t{4} * 2 * queries * ctas);
  }
  /// What `ctas` CTAs need of a workspace with any alignment.
  [[nodiscard]] constexpr int64_t bytes(int64_t ctas) const {
    return kAlignmentBytes + header_bytes(ctas) + ctas * cta_bytes();
  }
  /// CTAs that a workspace holds.
  [[nodiscard]] constexpr int64_t ctas_in(int64_t workspace_bytes, int64_t most) const {
    int64_t ctas = std::min(most, workspace_bytes / cta_bytes());
    while (ctas > 0 && bytes(ctas) > workspace_bytes) {
      --ctas;
    }
    return ctas;
  }

 private:
  static constexpr int64_t align(int64_t bytes) {
    return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  }
};

/// What distinguishes one launch of fused_sm90 from another.
struct FusedConfig {
  int32_t heads = 64;
  int32_t head_dim = 128;
  int32_t num_ctas = 1;
  int32_t dense_tiles = 0;  // runs of at most so many tiles are dense
  FusedScratch scratch;
};

/// Names for options.config.  The second treats every run as a long one, which only tests and experiments want.
inline constexpr const char* kFusedName = "fused_sm90";
inline constexpr const char* kFusedLongName = "fused_sm90_long";

/// A pure function of capacities: the kernel itself deals the work, by the row ranges in device memory.
inline FusedConfig choose_fused_config(const Problem& problem, const Options& options, const DeviceInfo& device) {
  FusedConfig config;
  config.heads = static_cast<int32_t>(problem.num_heads);
  config.head_dim = static_cast<int32_t>(problem.head_dim);
  const int32_t queries = FusedShape::kColumns / config.heads;
  config.scratch = FusedScratch::make(problem.topk, queries);
  const bool all_long = options.config != nullptr && std::strcmp(options.config, kFusedLongName) == 0;
  config.dense_tiles = all_long ? 0 : config.scratch.row_stride / FusedShape::kTileKeys;
  // No more CTAs than tiles of keys.
  const int64_t blocks = (problem.num_rows + queries - 1) / queries;
  const int64_t tiles_per_block = (problem.num_keys + FusedShape::kTileKeys - 1) / FusedShape::kTileKeys;
  const int64_t sms = usable_sms(device, options.sm_limit);
  const bool many = blocks >= sms || tiles_per_block >= sms;
  config.num_ctas = static_cast<int32_t>(many ? sms : std::clamp<int64_t>(blocks * tiles_per_block, 1, sms));
  return config;
}

}  // namespace keysieve::cuda
