// SPDX-License-Identifier: Apache-2.0
// The building blocks of the CUDA kernels, each in a small kernel of its own.  Skips without a Hopper GPU.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "core/fp8.hpp"
#include "cuda/device/ring.cuh"
#include "cuda/device/share.cuh"
#include "cuda/device/tile.cuh"
#include "cuda/ptx/tma.cuh"

namespace {

using namespace keysieve;

class DeviceBlocks : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    int major = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0 ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
      (void)cudaGetLastError();
      GTEST_SKIP() << "no Hopper GPU";
    }
  }
};

template <typename T>
T* managed(size_t count) {
  T* data = nullptr;
  EXPECT_EQ(cudaSuccess, cudaMallocManaged(&data, count * sizeof(T)));
  std::memset(static_cast<void*>(data), 0, count * sizeof(T));
  return data;
}

// ---- ring ----

constexpr int kRingSlots = 3;

/// Warp 0 sends numbers through the ring, warps 1 and 2 add what they receive.
__global__ void ring_kernel(int items, unsigned long long* g_sums) {
  __shared__ device::RingBarriers<kRingSlots> s_barriers;
  __shared__ int s_values[kRingSlots];
  const device::Ring<kRingSlots> ring(s_barriers, "test");
  if (threadIdx.x == 0) {
    ring.init(1, 2);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warp = ptx::warp_index();
  device::Ring<kRingSlots>::Cursor cursor;
  unsigned long long sum = 0;
  for (int item = 0; item < items; ++item) {
    if (warp == 0) {
      ring.acquire(cursor);
      if (ptx::lane_index() == 0) {
        s_values[cursor.slot()] = item;
        ring.commit(cursor);
      }
    } else {
      ring.wait(cursor);
      int value = 0;
      if (ptx::lane_index() == 0) {
        value = s_values[cursor.slot()];
        ring.release(cursor);
      }
      sum = sum * 31 + static_cast<unsigned>(ptx::uniform(value));
    }
    cursor.advance();
  }
  g_sums[threadIdx.x] = sum;
}

TEST_F(DeviceBlocks, RingDeliversEveryItemInOrderToEveryConsumer) {
  auto* sums = managed<unsigned long long>(96);
  constexpr int kItems = 1000;
  ring_kernel<<<1, 96>>>(kItems, sums);
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  unsigned long long expected = 0;
  for (int item = 0; item < kItems; ++item) {
    expected = expected * 31 + static_cast<unsigned>(item);
  }
  for (int thread = 32; thread < 96; ++thread) {
    EXPECT_EQ(expected, sums[thread]);
  }
  cudaFree(sums);
}

// ---- shares ----

constexpr int kPlanThreads = 128;
constexpr int kPlanRows = 64;  // so that a few hundred rows take several chunks
constexpr int kPlanTileKeys = 128;
constexpr int kPlanRowsPerBlock = 4;

__global__ void share_kernel(const __grid_constant__ RowBlocks blocks, const __grid_constant__ device::RowTiles rows,
                             device::Share* g_shares) {
  __shared__ TileRun s_tiles[kPlanRows];
  __shared__ int64_t s_warp_sums[kPlanThreads / 32];
  __shared__ device::Share s_share;
  device::SharePlanner<kPlanThreads, kPlanRowsPerBlock, kPlanTileKeys> planner(
      blocks, rows, {s_tiles, kPlanRows, s_warp_sums, &s_share});
  planner.plan(gridDim.x, blockIdx.x);
  if (threadIdx.x == 0) {
    g_shares[blockIdx.x] = s_share;
  }
}

void check_shares(int64_t num_rows, int64_t rows_per_group, int shares, uint32_t seed) {
  std::mt19937 generator(seed);
  auto* begin = managed<int32_t>(static_cast<size_t>(num_rows));
  auto* end = managed<int32_t>(static_cast<size_t>(num_rows));
  auto* result = managed<device::Share>(static_cast<size_t>(shares));
  for (int64_t t = 0; t < num_rows; ++t) {
    begin[t] = static_cast<int32_t>(generator() % 3000);
    end[t] = begin[t] + static_cast<int32_t>(generator() % 4000) - 500;
  }
  const RowBlocks blocks = RowBlocks::make(num_rows, rows_per_group, kPlanRowsPerBlock);
  device::RowRanges ranges;
  ranges.start.g_data = begin;
  ranges.start.row_stride = 1;
  ranges.end.g_data = end;
  ranges.end.row_stride = 1;
  ranges.num_keys = 5000;
  share_kernel<<<static_cast<unsigned>(shares), kPlanThreads>>>(blocks, {ranges}, result);
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());

  std::vector<int64_t> tiles(static_cast<size_t>(blocks.count()));
  int64_t total = 0;
  for (int64_t b = 0; b < blocks.count(); ++b) {
    const RowBlock block = blocks(b);
    const auto tiles_of_row = [&](int32_t row) {
      const int64_t t = block.first_row + row;
      return row < block.num_rows ? tiles_of_keys(std::min(begin[t], 5000), std::min(end[t], 5000), kPlanTileKeys)
                                  : TileRun{};
    };
    int32_t row = 0;
    TileRun run;
    while (next_run(tiles_of_row, kPlanRowsPerBlock, row, run)) {
      tiles[static_cast<size_t>(b)] += run.size();
    }
    total += tiles[static_cast<size_t>(b)];
  }
  // Every tile of every block is in exactly one segment.
  std::vector<std::vector<int>> taken(tiles.size());
  for (size_t b = 0; b < tiles.size(); ++b) {
    taken[b].resize(static_cast<size_t>(tiles[b]));
  }
  for (int i = 0; i < shares; ++i) {
    int64_t size = 0;
    for (const device::ShareSegment& segment : result[i].segments) {
      size += segment.tiles;
      auto block = static_cast<size_t>(segment.block);
      auto tile = static_cast<size_t>(segment.skip);
      for (int64_t k = 0; k < segment.tiles; ++k) {
        while (tile >= taken.at(block).size()) {
          ++block;
          tile = 0;
        }
        ++taken[block][tile++];
      }
    }
    EXPECT_EQ(share_begin(total, shares, i + 1) - share_begin(total, shares, i), size);
  }
  for (const std::vector<int>& block : taken) {
    for (const int times : block) {
      ASSERT_EQ(1, times);
    }
  }
  cudaFree(begin);
  cudaFree(end);
  cudaFree(result);
}

TEST_F(DeviceBlocks, SharesCoverTheLineOnce) {
  uint32_t seed = 1;
  for (const int64_t num_rows : {1, 3, 40, 333, 1000}) {
    for (const int shares : {1, 5, 132}) {
      check_shares(num_rows, num_rows, shares, seed++);
      check_shares(num_rows, 3, shares, seed++);
    }
  }
}

// ---- tile ----

/// One warpgroup multiplies 64 keys with 128 columns; swizzle and accumulator layout as ptx/wgmma.cuh documents them.
template <int kRowBytes>
__global__ void product_kernel(const uint8_t* g_keys, const uint8_t* g_queries, float* g_dots) {
  __shared__ alignas(1024) uint8_t s_keys[64 * kRowBytes];
  __shared__ alignas(1024) uint8_t s_queries[128 * kRowBytes];
  const auto swizzled = [](int row, int byte) {  // the 16-byte chunk number is xored with row bits, as TMA does
    constexpr int kRowsPer128 = 128 / kRowBytes;
    const int chunk = byte / 16 ^ (row / kRowsPer128) % (kRowBytes / 16);
    return row * kRowBytes + chunk * 16 + byte % 16;
  };
  for (int i = static_cast<int>(threadIdx.x); i < 128 * kRowBytes; i += 128) {
    if (i < 64 * kRowBytes) {
      s_keys[swizzled(i / kRowBytes, i % kRowBytes)] = g_keys[i];
    }
    s_queries[swizzled(i / kRowBytes, i % kRowBytes)] = g_queries[i];
  }
  ptx::fence_proxy_async_shared();
  __syncthreads();
  float dots[64];
  const uint64_t keys = ptx::matrix_descriptor<kRowBytes>(ptx::shared_address(s_keys));
  const uint64_t queries = ptx::matrix_descriptor<kRowBytes>(ptx::shared_address(s_queries));
  ptx::pin_registers(dots);
  ptx::wgmma_fence();
  for (int step = 0; step < kRowBytes / 32; ++step) {
    ptx::wgmma<ptx::E4m3Operands, 128>(dots, keys + 2 * step, queries + 2 * step, step);
  }
  ptx::wgmma_commit();
  ptx::pin_registers(dots);
  ptx::wgmma_wait<0>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int j = 0; j < 16; ++j) {
    for (int r = 0; r < 2; ++r) {
      for (int p = 0; p < 2; ++p) {
        const int key = 16 * warp + lane / 4 + 8 * r;
        g_dots[key * 128 + 8 * j + 2 * (lane % 4) + p] = dots[4 * j + 2 * r + p];
      }
    }
  }
}

template <int kRowBytes>
void check_product() {
  std::mt19937 generator(3);
  auto* keys = managed<uint8_t>(64 * kRowBytes);
  auto* queries = managed<uint8_t>(128 * kRowBytes);
  auto* dots = managed<float>(64 * 128);
  constexpr uint8_t kIntegers[] = {0x00, 0x38, 0x40, 0xB8, 0xC0};  // 0 1 2 -1 -2: every sum is exact
  for (int i = 0; i < 128 * kRowBytes; ++i) {
    queries[i] = kIntegers[generator() % 5];
    if (i < 64 * kRowBytes) {
      keys[i] = kIntegers[generator() % 5];
    }
  }
  product_kernel<kRowBytes><<<1, 128>>>(keys, queries, dots);
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  for (int key = 0; key < 64; ++key) {
    for (int column = 0; column < 128; ++column) {
      float expected = 0;
      for (int d = 0; d < kRowBytes; ++d) {
        expected += e4m3_to_float(keys[key * kRowBytes + d]) * e4m3_to_float(queries[column * kRowBytes + d]);
      }
      ASSERT_EQ(expected, dots[key * 128 + column]) << key << " " << column;
    }
  }
  cudaFree(keys);
  cudaFree(queries);
  cudaFree(dots);
}

TEST_F(DeviceBlocks, ProductsOf128ByteRows) {
  check_product<128>();
}
TEST_F(DeviceBlocks, ProductsOf64ByteRows) {
  check_product<64>();
}

}  // namespace
