// SPDX-License-Identifier: Apache-2.0
// The choice of a CUDA configuration is a pure function: no GPU here.
#include <gtest/gtest.h>

#include "cuda/score_sm90/config.hpp"

namespace keysieve::cuda {
namespace {

Problem score_problem(int64_t rows, int64_t keys, int64_t heads) {
  Problem problem;
  problem.op = Op::kScore;
  problem.num_rows = rows;
  problem.num_keys = keys;
  problem.num_heads = heads;
  problem.head_dim = 128;
  problem.score_width = keys;
  return problem;
}

TEST(ScoreConfig, FillsTheDeviceWhenThereIsWork) {
  const DeviceInfo device;
  EXPECT_EQ(132, choose_score_config(score_problem(4096, 8192, 64), {}, device).num_ctas);
  EXPECT_EQ(132, choose_score_config(score_problem(1, 131072, 64), {}, device).num_ctas);
  EXPECT_EQ(132, choose_score_config(score_problem(1000000, 1, 8), {}, device).num_ctas);
}

TEST(ScoreConfig, TakesNoMoreCtasThanTiles) {
  const DeviceInfo device;
  EXPECT_EQ(1, choose_score_config(score_problem(4, 128, 64), {}, device).num_ctas);
  EXPECT_EQ(6, choose_score_config(score_problem(8, 300, 64), {}, device).num_ctas);
  EXPECT_EQ(1, choose_score_config(score_problem(3, 0, 64), {}, device).num_ctas);
}

TEST(ScoreConfig, HonoursTheLimitOfMultiprocessors) {
  Options options;
  options.sm_limit = 20;
  EXPECT_EQ(20, choose_score_config(score_problem(4096, 8192, 64), options, DeviceInfo{}).num_ctas);
  options.sm_limit = 500;
  EXPECT_EQ(132, choose_score_config(score_problem(4096, 8192, 64), options, DeviceInfo{}).num_ctas);
}

TEST(ScoreConfig, ABlockAlwaysHas256Columns) {
  for (const int32_t heads : {8, 16, 32, 64, 128}) {
    EXPECT_EQ(256, heads * choose_score_config(score_problem(5, 5, heads), {}, DeviceInfo{}).queries_per_block);
  }
}

}  // namespace
}  // namespace keysieve::cuda
