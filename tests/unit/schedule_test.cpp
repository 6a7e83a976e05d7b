// SPDX-License-Identifier: Apache-2.0
// Units of work of the CUDA kernels: blocks of rows, runs of tiles, shares, ring positions.
#include "core/schedule.hpp"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <set>
#include <vector>

#include "core/ring_cursor.hpp"

namespace keysieve {
namespace {

TEST(RowBlocks, EveryRowIsInOneBlock) {
  for (const int64_t rows_per_group : {1, 2, 3, 4, 5, 8, 9, 100}) {
    for (const int64_t num_rows : {0, 1, 4, 7, 45, 100}) {
      for (const int32_t rows_per_block : {2, 4, 32}) {
        const RowBlocks blocks = RowBlocks::make(num_rows, rows_per_group, rows_per_block);
        int64_t next = 0;
        for (int64_t b = 0; b < blocks.count(); ++b) {
          const RowBlock block = blocks(b);
          if (block.num_rows <= 0) {
            continue;  // the last group may be short
          }
          EXPECT_EQ(next, block.first_row);
          EXPECT_LE(block.num_rows, rows_per_block);
          EXPECT_EQ(block.first_row / rows_per_group, block.group);
          EXPECT_EQ((block.first_row + block.num_rows - 1) / rows_per_group, block.group);
          EXPECT_EQ(block.first_row % rows_per_group, block.row_in_group);
          next += block.num_rows;
        }
        EXPECT_EQ(num_rows, next) << rows_per_group << " " << rows_per_block;
      }
    }
  }
}

TEST(TilesOfKeys, CoverTheKeysAndNoMore) {
  for (int32_t begin = 0; begin < 20; ++begin) {
    for (int32_t end = 0; end < 20; ++end) {
      const TileRun tiles = tiles_of_keys(begin, end, 4);
      if (begin >= end) {
        EXPECT_EQ(0, tiles.size());
      } else {
        EXPECT_EQ(begin / 4, tiles.begin);
        EXPECT_EQ((end - 1) / 4 + 1, tiles.end);
      }
    }
  }
  EXPECT_EQ(1 << 24, tiles_of_keys(0, 0x7FFFFFFF, 128).end);
}

TEST(NextRun, CoversEveryRowWithoutGaps) {
  std::mt19937 generator(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<TileRun> rows(1 + generator() % 8);
    for (TileRun& row : rows) {
      row.begin = static_cast<int32_t>(generator() % 30);
      row.end = row.begin + static_cast<int32_t>(generator() % 6) - 1;
    }
    const auto tiles_of_row = [&rows](int32_t row) { return rows[static_cast<size_t>(row)]; };
    std::set<int32_t> needed;
    for (const TileRun& row : rows) {
      for (int32_t tile = row.begin; tile < row.end; ++tile) {
        needed.insert(tile);
      }
    }
    std::set<int32_t> scanned;
    int32_t row = 0;
    TileRun run;
    while (next_run(tiles_of_row, static_cast<int32_t>(rows.size()), row, run)) {
      ASSERT_GT(run.size(), 0);
      for (int32_t tile = run.begin; tile < run.end; ++tile) {
        scanned.insert(tile);
      }
    }
    EXPECT_EQ(needed, scanned);

    int32_t in_runs = 0;
    row = 0;
    while (next_run(tiles_of_row, static_cast<int32_t>(rows.size()), row, run)) {
      in_runs += run.size();
    }
    const auto eight_rows = [&rows](int32_t i) {
      return static_cast<size_t>(i) < rows.size() ? rows[static_cast<size_t>(i)] : TileRun{};
    };
    EXPECT_EQ(in_runs, tiles_of_all_runs<8>(eight_rows));
  }
}

TEST(NextRun, RowsOfTwoRequestsAreTwoRuns) {
  const TileRun rows[] = {{0, 3}, {0, 4}, {90, 95}, {90, 96}};
  const auto tiles_of_row = [&rows](int32_t row) { return rows[row]; };
  int32_t row = 0;
  TileRun run;
  ASSERT_TRUE(next_run(tiles_of_row, 4, row, run));
  EXPECT_EQ(0, run.begin);
  EXPECT_EQ(4, run.end);
  ASSERT_TRUE(next_run(tiles_of_row, 4, row, run));
  EXPECT_EQ(90, run.begin);
  EXPECT_EQ(96, run.end);
  EXPECT_FALSE(next_run(tiles_of_row, 4, row, run));
}

TEST(ShareBegin, SharesAreEqualToOne) {
  for (const int64_t total : {int64_t{0}, int64_t{1}, int64_t{131}, int64_t{132}, int64_t{1000}, int64_t{1} << 50U}) {
    for (const int64_t shares : {1, 7, 132}) {
      EXPECT_EQ(0, share_begin(total, shares, 0));
      EXPECT_EQ(total, share_begin(total, shares, shares));
      for (int64_t i = 0; i < shares; ++i) {
        const int64_t size = share_begin(total, shares, i + 1) - share_begin(total, shares, i);
        EXPECT_TRUE(size == total / shares || size == total / shares + 1);
      }
    }
  }
}

TEST(ShareOf, IsTheShareThatHoldsAPosition) {
  for (const int64_t total : {int64_t{1}, int64_t{131}, int64_t{132}, int64_t{1000}, int64_t{1} << 50U}) {
    for (const int64_t shares : {1, 7, 132}) {
      for (int64_t i = 0; i < shares; ++i) {
        const int64_t begin = share_begin(total, shares, i);
        const int64_t end = share_begin(total, shares, i + 1);
        if (begin < end) {
          EXPECT_EQ(i, share_of(total, shares, begin));
          EXPECT_EQ(i, share_of(total, shares, end - 1));
        }
      }
    }
  }
}

TEST(RingCursor, StartsAnywhereOnTheWalk) {
  RingCursor<3> walking;
  for (uint32_t number = 0; number < 20; ++number) {
    const RingCursor<3> started(number);
    EXPECT_EQ(walking.slot(), started.slot());
    EXPECT_EQ(walking.full_parity(), started.full_parity());
    walking.advance();
  }
}

TEST(RingCursor, ProducerAndConsumerNeverShareASlot) {
  // A model of mbarriers: `full` and `empty` count completed phases; a wait on parity p passes if the phase of that
  // parity has completed, that is, if the count of completed phases is odd for p == 0 and even for p == 1.
  constexpr int kSlots = 3;
  int full[kSlots] = {};
  int empty[kSlots] = {};
  const auto passes = [](int completed, uint32_t parity) { return (completed % 2 != 0) == (parity == 0); };
  RingCursor<kSlots> producer;
  RingCursor<kSlots> consumer;
  std::mt19937 generator(2);
  int produced = 0;
  int consumed = 0;
  for (int step = 0; step < 10000; ++step) {
    if (generator() % 2 == 0) {
      if (passes(empty[producer.slot()], producer.empty_parity())) {
        ++full[producer.slot()];
        ++produced;
        producer.advance();
      }
    } else if (passes(full[consumer.slot()], consumer.full_parity())) {
      ++empty[consumer.slot()];
      ++consumed;
      consumer.advance();
    }
    ASSERT_GE(produced, consumed);
    ASSERT_LE(produced, consumed + kSlots);
  }
  EXPECT_GT(consumed, 3000);
}

}  // namespace
}  // namespace keysieve
