// SPDX-License-Identifier: Apache-2.0
// radix_select.cuh and row_output.cuh, each in a small kernel of its own.  Skips without a Hopper GPU.
#include <algorithm>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "core/ordering.hpp"
#include "cuda/device/radix_select.cuh"
#include "cuda/device/row_output.cuh"

namespace {

using namespace keysieve;

constexpr int kThreads = 256;
constexpr int kCapacity = 8192;
using Select = device::BlockSelect<device::CtaGroup<kThreads>>;

class SelectBlocks : public ::testing::Test {
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

struct ListSmem {
  alignas(16) uint32_t ordered[kCapacity];
  int32_t indices[kCapacity];
  Select::Smem select;
};

enum class Mode { kPick, kCompact, kSort };

/// Picks the `rank` best of g_scores, twice, so that what one use leaves behind is seen by the next.
__global__ void select_list(const float* g_scores, int count, int rank, Mode mode, int32_t* g_picked) {
  extern __shared__ __align__(16) unsigned char s_bytes[];
  auto& smem = *reinterpret_cast<ListSmem*>(s_bytes);
  const int thread = static_cast<int>(threadIdx.x);
  Select select(device::CtaGroup<kThreads>(thread), smem.select);
  select.initialise();
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (int i = thread; i < count; i += kThreads) {
      smem.ordered[i] = __float_as_uint(g_scores[i]);
      smem.indices[i] = i;
    }
    const device::OrderedInterval interval = select.order_scores(smem.ordered, 0, count, count);
    const device::Cut cut = select.find_cut(smem.ordered, count, rank, interval);
    const device::CandidateList list{smem.ordered, smem.indices};
    if (mode == Mode::kPick) {
      select.for_each_picked(smem.ordered, count, cut,
                             [&](int slot, int position) { g_picked[slot] = smem.indices[position]; });
    } else {
      select.compact(list, count, cut);
      if (mode == Mode::kSort) {
        select.sort_by_score(list, rank);
      }
      for (int slot = thread; slot < rank; slot += kThreads) {
        g_picked[slot] = smem.indices[slot];
      }
    }
    __syncthreads();
  }
}

std::vector<int32_t> best(const std::vector<float>& scores, int rank, bool by_score) {
  std::vector<int32_t> keys(scores.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<int32_t>(i);
  }
  std::stable_sort(keys.begin(), keys.end(),
                   [&](int32_t a, int32_t b) { return ordered_bits(scores[a]) > ordered_bits(scores[b]); });
  keys.resize(rank);
  if (!by_score) {
    std::sort(keys.begin(), keys.end());
  }
  return keys;
}

/// Scores of a kind: random bits (NaN and infinities among them), normal, few values, one value, sorted, nearly equal.
std::vector<float> scores_of(int kind, int count) {
  std::mt19937 random(static_cast<uint32_t>(kind * 100003 + count));
  std::normal_distribution<float> normal;
  std::vector<float> scores(count);
  for (int i = 0; i < count; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const float kinds[] = {bits_float(bits),
                           normal(random),
                           static_cast<float>(bits % 7),
                           bits % 2 == 0 ? 0.0F : -0.0F,
                           static_cast<float>(i),
                           1.0F + static_cast<float>(bits % 4096) * 0x1p-20F};
    scores[i] = kinds[kind];
  }
  return scores;
}

TEST_F(SelectBlocks, PickCompactAndSortAgreeWithAStableSort) {
  ASSERT_EQ(cudaSuccess,
            cudaFuncSetAttribute(select_list, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(ListSmem)));
  auto* g_scores = managed<float>(kCapacity);
  auto* g_picked = managed<int32_t>(kCapacity);
  for (int kind = 0; kind < 6; ++kind) {
    for (const int count : {1, 2, 31, 33, 255, 1000, 4097, kCapacity}) {
      const std::vector<float> scores = scores_of(kind, count);
      std::copy(scores.begin(), scores.end(), g_scores);
      for (const int rank : {1, 2, count / 3, count / 2, count - 1, count}) {
        if (rank < 1 || rank > count) {
          continue;
        }
        for (const Mode mode : {Mode::kPick, Mode::kCompact, Mode::kSort}) {
          std::fill_n(g_picked, kCapacity, -777);
          select_list<<<1, kThreads, sizeof(ListSmem)>>>(g_scores, count, rank, mode, g_picked);
          ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
          ASSERT_EQ(best(scores, rank, mode == Mode::kSort), std::vector<int32_t>(g_picked, g_picked + rank))
              << "kind " << kind << " count " << count << " rank " << rank;
        }
      }
    }
  }
  cudaFree(g_scores);
  cudaFree(g_picked);
}

/// Writes key 0, key 5 and a pad of every row.
__global__ void write_rows(device::RowRanges ranges, device::RowOutput output, int num_rows) {
  for (int t = 0; t < num_rows; ++t) {
    const device::RowKeys keys = output.row_keys(ranges, static_cast<uint32_t>(t));
    const device::RowWriter writer(output, static_cast<uint32_t>(t), keys);
    if (keys.width > 5) {
      writer.write(0, 0);
      writer.write(1, 5);
      writer.write_score(0, 1.5F);
      writer.write_score(1, -2.0F);
    } else {
      writer.pad(0);
      writer.pad(1);
    }
    writer.pad(2);
    writer.write_count(keys.width);
  }
}

TEST_F(SelectBlocks, RowOutputWritesEveryIndexSpace) {
  constexpr int kRows = 6;
  constexpr int kTopk = 3;
  constexpr int kStride = 5;
  constexpr int kPages = 8;
  auto* row_start = managed<int32_t>(kRows);
  auto* row_end = managed<int32_t>(kRows);
  auto* out_offset = managed<int32_t>(kRows);
  auto* table = managed<int32_t>(3 * kPages);
  auto* indices = managed<int32_t>(kRows * kStride);
  auto* relative = managed<int32_t>(kRows * kStride);
  auto* top_scores = managed<float>(kRows * kStride);
  auto* counts = managed<int32_t>(kRows);
  const int32_t starts[kRows] = {0, 7, -3, 50, 20, 99};
  const int32_t ends[kRows] = {100, 60, 500, 40, 30, 101};
  for (int t = 0; t < kRows; ++t) {
    row_start[t] = starts[t];
    row_end[t] = ends[t];
    out_offset[t] = 1000 * t;
  }
  for (int i = 0; i < 3 * kPages; ++i) {
    table[i] = 100 - i;
  }
  Call call;
  call.problem.num_keys = 100;
  call.problem.topk = kTopk;
  call.problem.num_requests = 3;
  call.problem.next_n = 2;
  call.problem.slot_page_size = 4;
  call.row_start = {row_start, {1, 0, 1}};
  call.row_end = {row_end, {2, 1, 2}};  // [B, next_n]
  call.out_offset = {out_offset, {1, 0, 1}};
  call.slot_table = table;
  call.slot_table_stride = kPages;
  call.indices = {indices, {kStride, 0, 1}};
  call.row_indices = {relative, {kStride, 0, 1}};
  call.top_scores = {top_scores, {kStride, 0, 1}};
  call.out_count = {counts, {1, 0, 1}};
  for (const IndexSpace space : {IndexSpace::kRow, IndexSpace::kAbsolute, IndexSpace::kOffset, IndexSpace::kSlot}) {
    call.problem.index_space = space;
    std::fill_n(indices, kRows * kStride, -777);
    write_rows<<<1, 1>>>(device::make_row_ranges(call), device::make_row_output(call), kRows);
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    for (int t = 0; t < kRows; ++t) {
      const RowRange range = row_range(call, t);
      ASSERT_EQ(range.width(), counts[t]);
      const int32_t keys[kTopk] = {range.width() > 5 ? 0 : -1, range.width() > 5 ? 5 : -1, -1};
      for (int slot = 0; slot < kTopk; ++slot) {
        const int32_t key = keys[slot];
        EXPECT_EQ(key < 0 ? -1 : output_index(call, t, range.begin, range.begin + key), indices[t * kStride + slot]);
        EXPECT_EQ(key, relative[t * kStride + slot]);
      }
      EXPECT_EQ(-777, indices[t * kStride + kTopk]);
      EXPECT_EQ(-HUGE_VALF, top_scores[t * kStride + 2]);
    }
  }
  for (void* data : {static_cast<void*>(row_start), static_cast<void*>(row_end), static_cast<void*>(out_offset),
                     static_cast<void*>(table), static_cast<void*>(indices), static_cast<void*>(relative),
                     static_cast<void*>(top_scores), static_cast<void*>(counts)}) {
    cudaFree(data);
  }
}

}  // namespace
