// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "cpu/top_k.hpp"

namespace keysieve::cpu {
namespace {

/// Ordered scores of a stream: many ties, sorted either way, equal, or random.
std::vector<uint32_t> stream(int kind, int64_t count) {
  std::mt19937 random(7);
  std::vector<uint32_t> ordered(count);
  for (int64_t i = 0; i < count; ++i) {
    const auto position = static_cast<uint32_t>(i);
    const uint32_t kinds[] = {static_cast<uint32_t>(random()),
                              position,
                              1000000U - position,
                              0x80000000U,
                              0xBF800000U + static_cast<uint32_t>(random() % 5),
                              0};
    ordered[i] = kinds[kind];
  }
  return ordered;
}

TEST(TopK, KeepsTheBestOfAnyStreamInOrderOfArrival) {
  for (int kind = 0; kind < 6; ++kind) {
    const std::vector<uint32_t> ordered = stream(kind, 20000);
    for (const int64_t limit : {1, 2, 100, 2048, 19999, 20000, 30000}) {
      std::vector<uint64_t> memory(TopK::capacity_for(limit));
      TopK top;
      top.ranks = memory.data();
      top.capacity = TopK::capacity_for(limit);
      top.limit = limit;
      std::vector<uint64_t> all;
      for (size_t i = 0; i < ordered.size(); ++i) {
        all.push_back(rank_of(ordered[i], static_cast<int64_t>(i)));
        top.push(all.back());
      }
      top.cut(0);
      std::sort(all.begin(), all.end(), std::greater<>());
      all.resize(std::min<size_t>(all.size(), limit));
      std::sort(all.begin(), all.end(), [](uint64_t a, uint64_t b) { return index_of(a) < index_of(b); });
      ASSERT_EQ(std::vector<uint64_t>(top.ranks, top.ranks + top.count), all) << "kind " << kind << " limit " << limit;
    }
  }
}

TEST(TopK, NthLargestLeavesAtMostTheSlack) {
  std::mt19937_64 random(3);
  std::vector<uint64_t> ranks(5000);
  for (uint64_t& rank : ranks) {
    rank = random() >> (random() % 40);
  }
  for (const int64_t n : {1, 10, 2500, 5000}) {
    for (const int64_t slack : {0, 7, 500}) {
      const uint64_t last = nth_largest(ranks.data(), 5000, n, slack);
      const auto kept = std::count_if(ranks.begin(), ranks.end(), [last](uint64_t rank) { return rank >= last; });
      EXPECT_GE(kept, n);
      EXPECT_LE(kept, n + slack);
    }
  }
}

}  // namespace
}  // namespace keysieve::cpu
