// SPDX-License-Identifier: Apache-2.0
// The choice of a select configuration: a pure function, so no GPU is needed.
#include <gtest/gtest.h>
#include <string>

#include "cuda/select/config.hpp"

namespace keysieve::cuda {
namespace {

Problem problem(int64_t rows, int64_t width, int64_t topk) {
  Problem result;
  result.op = Op::kSelect;
  result.num_rows = rows;
  result.num_keys = width;
  result.score_width = width;
  result.topk = topk;
  return result;
}

std::string chosen(int64_t rows, int64_t width, int64_t topk, const Options& options = {}) {
  SelectConfig config;
  EXPECT_TRUE(resolve_select_config(problem(rows, width, topk), options, DeviceInfo(), config).ok());
  char text[64];
  print_select_config(config, text, sizeof(text));
  return text;
}

TEST(SelectConfig, ManyRowsTakeOneCtaARow) {
  for (const int64_t width : {8192, 131072}) {
    EXPECT_EQ(chosen(4096, width, 2048), "select/many_rows cluster=1");
  }
}

TEST(SelectConfig, FewLongRowsTakeAClusterARow) {
  EXPECT_EQ(chosen(1, 1 << 20, 2048), "select/few_rows cluster=16");
  EXPECT_EQ(chosen(64, 131072, 2048), "select/few_rows cluster=2");
  EXPECT_EQ(chosen(8, 131072, 2048), "select/few_rows cluster=8");
  EXPECT_EQ(chosen(1, 8192, 2048), "select/many_rows cluster=1");
}

TEST(SelectConfig, LargeKHasItsOwnKernel) {
  EXPECT_EQ(chosen(4096, 65536, 2049), "select/large_k cluster=1");
  EXPECT_EQ(chosen(1, 1 << 20, 16384), "select/large_k cluster=16");
}

TEST(SelectConfig, ClustersRunAtOnceAndInsideTheLimit) {
  for (int64_t rows = 1; rows <= 400; ++rows) {
    for (const int sm_limit : {0, 1, 7, 64}) {
      Options options;
      options.sm_limit = sm_limit;
      const SelectConfig config = choose_select_config(problem(rows, 1 << 20, 2048), options, DeviceInfo());
      const int64_t slots = int64_t{2} * usable_sms(DeviceInfo(), sm_limit);
      EXPECT_TRUE(config.cluster == 1 || rows * config.cluster <= slots) << rows << " " << sm_limit;
    }
  }
}

TEST(SelectConfig, TextIsReadBack) {
  for (const char* text : {"select/many_rows cluster=1", "select/few_rows cluster=8", "select/large_k cluster=2"}) {
    Options options;
    options.config = text;
    EXPECT_EQ(chosen(4, 5000, 100, options), text);
  }
}

TEST(SelectConfig, BadTextIsAnErrorThatNamesIt) {
  for (const char* text :
       {"", "select", "select/many_rows", "select/many_rows cluster=3", "select/many_rows cluster=32",
        "select/no_rows cluster=1", "select/many_rows cluster=1 ", "score_sm90"}) {
    Options options;
    options.config = text;
    SelectConfig config;
    const Status status = resolve_select_config(problem(1, 10, 5), options, DeviceInfo(), config);
    EXPECT_EQ(status.code(), KEYSIEVE_INVALID_ARGUMENT) << text;
    EXPECT_NE(std::string(status.message()).find("options.config"), std::string::npos);
  }
  Options options;
  options.config = "select/few_rows cluster=1";
  SelectConfig config;
  EXPECT_EQ(resolve_select_config(problem(1, 10000, 4096), options, DeviceInfo(), config).code(),
            KEYSIEVE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace keysieve::cuda
