// SPDX-License-Identifier: Apache-2.0
// The C++ wrapper alone, as a user would link it.
#include <array>
#include <gtest/gtest.h>
#include <vector>

#include "keysieve/keysieve.hpp"

namespace {

TEST(Wrapper, ScoresAndSelects) {
  // One head, one channel: the score is k_scale * relu(q * k).
  const std::vector<keysieve::e4m3> q = {{0x38}};                          // 1.0
  const std::vector<keysieve::e4m3> k = {{0x38}, {0x40}, {0xB8}, {0x44}};  // 1, 2, -1, 3
  const std::vector<float> k_scale = {1, 1, 1, 0.5F};
  const std::vector<float> weights = {2};
  std::array<std::int32_t, 2> indices = {-777, -777};
  std::array<float, 2> scores = {};

  keysieve::Problem problem;
  problem.num_rows = 1;
  problem.num_heads = 1;
  problem.head_dim = 1;
  problem.num_keys = 4;
  problem.topk = 2;
  problem.q_dtype = KEYSIEVE_E4M3;
  problem.k_dtype = KEYSIEVE_E4M3;
  keysieve::Tensors tensors;
  tensors.q = keysieve::view(q.data(), {1, 1, 1});
  tensors.k = keysieve::view(k.data(), {4, 1});
  tensors.k_scale = keysieve::view(k_scale.data(), {4});
  tensors.weights = keysieve::view(weights.data(), {1, 1});
  tensors.indices = keysieve::view(indices.data(), {1, 2});
  tensors.top_scores = keysieve::view(scores.data(), {1, 2});
  const keysieve::Workspace workspace(problem);
  workspace.attach(tensors);
  keysieve::run(problem, tensors);

  EXPECT_EQ(indices, (std::array<std::int32_t, 2>{1, 3}));
  EXPECT_EQ(scores, (std::array<float, 2>{4, 3}));
  EXPECT_EQ(keysieve::unsupported_reason(problem), "");
  EXPECT_FALSE(keysieve::explain(problem).empty());
}

TEST(Wrapper, ThrowsWithTheMessage) {
  keysieve::Problem problem;
  problem.op = KEYSIEVE_SELECT;
  problem.topk = 0;
  try {
    (void)keysieve::workspace_size(problem);
    FAIL() << "expected an Error";
  } catch (const keysieve::Error& error) {
    EXPECT_EQ(error.status(), KEYSIEVE_INVALID_ARGUMENT);
    EXPECT_STREQ(error.what(), "invalid argument: problem.topk is 0, expected 1..16384");
  }
}

TEST(Wrapper, ListsBackends) {
  const std::vector<keysieve_backend_info> list = keysieve::backends();
  ASSERT_FALSE(list.empty());
  EXPECT_STREQ(list.back().name, "reference");
  EXPECT_EQ(list.back().available, 1);
}

}  // namespace
