// SPDX-License-Identifier: Apache-2.0
// Workspace and configuration of fused_sm90 are pure functions: no GPU here.
#include <gtest/gtest.h>

#include "cuda/fused_sm90/config.hpp"

namespace keysieve::cuda {
namespace {

Problem fused_problem(int64_t rows, int64_t keys, int64_t heads, int64_t topk) {
  Problem problem;
  problem.num_rows = rows;
  problem.num_keys = keys;
  problem.num_heads = heads;
  problem.head_dim = 128;
  problem.topk = topk;
  return problem;
}

TEST(FusedConfig, WorkspaceIsBoundedWhateverTheKeys) {
  const DeviceInfo device;
  for (const int64_t heads : {32, 64, 128}) {
    int64_t bytes = 0;
    for (const int64_t keys : {int64_t{32768}, int64_t{131072}, int64_t{1} << 23}) {
      const FusedConfig config = choose_fused_config(fused_problem(8192, keys, heads, 2048), {}, device);
      EXPECT_LE(config.scratch.bytes(config.num_ctas), int64_t{320} << 20) << heads;
      EXPECT_TRUE(bytes == 0 || bytes == config.scratch.bytes(config.num_ctas)) << "grows with N";
      bytes = config.scratch.bytes(config.num_ctas);
    }
  }
}

TEST(FusedConfig, CtasFitInTheWorkspace) {
  for (const int64_t topk : {1, 450, 2048}) {
    const FusedScratch scratch = FusedScratch::make(topk, 4);
    for (const int64_t ctas : {1, 2, 57, 132}) {
      EXPECT_EQ(ctas, scratch.ctas_in(scratch.bytes(ctas), 132));
      EXPECT_EQ(ctas - 1, scratch.ctas_in(scratch.bytes(ctas) - 1, 132));
    }
    EXPECT_EQ(3, scratch.ctas_in(scratch.bytes(132), 3));
  }
}

TEST(FusedConfig, ScratchDoesNotOverlap) {
  for (const int32_t queries : {2, 4, 8}) {
    const FusedScratch scratch = FusedScratch::make(2048, queries);
    EXPECT_EQ(0, scratch.row_stride % FusedShape::kTileKeys);
    EXPECT_GE(scratch.list_capacity, 3 * 2048 + FusedShape::kWindowTiles * FusedShape::kTileKeys);
    EXPECT_LE(FusedShape::kWindowTiles * FusedShape::kTileKeys, scratch.row_stride);
    EXPECT_EQ(2 * scratch.window_bytes(), scratch.cut_offset());
    EXPECT_GE(scratch.lists_offset(), scratch.cut_offset() + scratch.window_bytes());
    EXPECT_GE(scratch.cta_bytes(), scratch.parts_offset() + 2 * queries * scratch.part_bytes());
  }
}

TEST(FusedConfig, EveryRunIsLongOnRequest) {
  Options options;
  EXPECT_EQ(128, choose_fused_config(fused_problem(4096, 65536, 64, 2048), options, {}).dense_tiles);
  options.config = kFusedLongName;
  EXPECT_EQ(0, choose_fused_config(fused_problem(4096, 65536, 64, 2048), options, {}).dense_tiles);
}

}  // namespace
}  // namespace keysieve::cuda
