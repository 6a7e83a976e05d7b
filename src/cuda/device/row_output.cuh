// SPDX-License-Identifier: Apache-2.0
// How a row's picks are written (contract section 4), for every selecting kernel.  RowOutput is a plain value that a
// launcher builds from a checked Call and passes as a kernel argument.
//
//     const RowKeys keys = output.row_keys(ranges, t);    // clamped range, empty rows included
//     const RowWriter writer(output, t, keys);            // index space of this row
//     writer.write(slot, relative);  writer.pad(slot);  writer.write_count(count);
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/device/rows.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::device {

/// The keys of one row: key `begin + i` for i < width; `request` is its table row, or -1 without a table.
struct RowKeys {
  int32_t begin = 0;
  int32_t width = 0;
  int32_t request = -1;
};

/// Outputs of a selecting call, and what turns a key into an index.
struct RowOutput {
  RowView<int32_t> indices;      // [T,K]
  RowView<float> top_scores;     // [T,K] or absent
  RowView<int32_t> row_indices;  // [T,K] or absent
  RowView<int32_t> out_count;    // [T] or absent
  RowView<const int32_t> out_offset;
  RowRequests requests;
  const int32_t* g_slot_table = nullptr;  // [B,P]
  int64_t slot_table_stride = 0;
  unsigned long long* g_stats = nullptr;
  int64_t stats_stride = 1;
  int32_t topk = 0;
  int32_t slot_page_shift = 0;
  IndexSpace index_space = IndexSpace::kRow;
  bool uses_table = false;        // a row whose request is not in the table has no keys
  bool slot_of_position = false;  // slots come from the position in the request, not the row-relative index

  __device__ __forceinline__ RowKeys row_keys(const RowRanges& ranges, uint32_t t) const {
    const KeyRange range = ranges(t);
    RowKeys keys{range.begin, range.width(), -1};
    if (uses_table) {
      keys.request = requests(t);
      keys.width = keys.request < 0 ? 0 : keys.width;
    }
    return keys;
  }

  __device__ __forceinline__ void add_stat(int which, uint32_t amount) const {
    if (g_stats != nullptr && amount != 0) {
      atomicAdd(g_stats + which * stats_stride, static_cast<unsigned long long>(amount));
    }
  }
};

enum RowStat : int { kStatRepairedRows = 0, kStatKeptCandidates = 1, kStatRescans = 2 };

/// Writes one row.  Any thread may write any slot.
class RowWriter {
 public:
  __device__ __forceinline__ RowWriter(const RowOutput& output, uint32_t t, const RowKeys& keys)
      : g_indices_(output.indices.row(t)),
        g_scores_(output.top_scores.g_data != nullptr ? output.top_scores.row(t) : nullptr),
        g_relative_(output.row_indices.g_data != nullptr ? output.row_indices.row(t) : nullptr),
        g_count_(output.out_count.g_data != nullptr ? output.out_count.row(t) : nullptr) {
    switch (output.index_space) {
      case IndexSpace::kRow: break;
      case IndexSpace::kAbsolute: bias_ = keys.begin; break;
      case IndexSpace::kOffset: bias_ = keys.width > 0 ? __ldg(output.out_offset.row(t)) : 0; break;
      case IndexSpace::kSlot:
        bias_ = output.slot_of_position ? keys.begin : 0;
        page_shift_ = output.slot_page_shift;
        g_table_row_ = keys.width > 0 ? output.g_slot_table + keys.request * output.slot_table_stride : nullptr;
        break;
    }
  }

  /// True if the indices are all there is to write and none goes through a table: write_index is enough.
  [[nodiscard]] __device__ __forceinline__ bool only_indices() const {
    return g_table_row_ == nullptr && g_relative_ == nullptr && g_scores_ == nullptr;
  }
  /// True if that, and the row starts on 16 bytes: write_four_indices takes slots that are multiples of 4.
  [[nodiscard]] __device__ __forceinline__ bool only_aligned_indices() const {
    return only_indices() && reinterpret_cast<uintptr_t>(g_indices_) % 16 == 0;
  }
  __device__ __forceinline__ void write_four_indices(int slot, int4 relative) const {
    *reinterpret_cast<int4*>(g_indices_ + slot) =
        make_int4(relative.x + bias_, relative.y + bias_, relative.z + bias_, relative.w + bias_);
  }
  __device__ __forceinline__ void write_index(int slot, int32_t relative) const { g_indices_[slot] = relative + bias_; }

  [[nodiscard]] __device__ __forceinline__ bool wants_scores() const { return g_scores_ != nullptr; }

  /// The key at row-relative index `relative` goes to output slot `slot`.
  __device__ __forceinline__ void write(int slot, int32_t relative) const {
    int32_t index = relative + bias_;
    if (g_table_row_ != nullptr) {
      const auto position = static_cast<uint32_t>(index);
      const auto page = static_cast<uint32_t>(__ldg(g_table_row_ + (position >> page_shift_)));
      index = static_cast<int32_t>((page << page_shift_) + (position & ((1U << page_shift_) - 1U)));
    }
    g_indices_[slot] = index;
    if (g_relative_ != nullptr) {
      g_relative_[slot] = relative;
    }
  }
  __device__ __forceinline__ void write_score(int slot, float score) const { g_scores_[slot] = score; }

  /// An output slot without a key.
  __device__ __forceinline__ void pad(int slot) const {
    g_indices_[slot] = -1;
    if (g_relative_ != nullptr) {
      g_relative_[slot] = -1;
    }
    if (g_scores_ != nullptr) {
      g_scores_[slot] = -__int_as_float(0x7F800000);
    }
  }

  /// Called by one thread.
  __device__ __forceinline__ void write_count(int32_t count) const {
    if (g_count_ != nullptr) {
      *g_count_ = count;
    }
  }

 private:
  int32_t* g_indices_;
  float* g_scores_;
  int32_t* g_relative_;
  int32_t* g_count_;
  const int32_t* g_table_row_ = nullptr;
  int32_t bias_ = 0;
  int32_t page_shift_ = 0;
};

/// Pads the rows that have no keys, which no tile leads to.  By all lanes of warp `worker` of `num_workers`.
__device__ __forceinline__ void pad_empty_rows(const RowOutput& output, const RowRanges& ranges, int64_t num_rows,
                                               int64_t worker, int64_t num_workers) {
  const int lane = ptx::lane_index();
#pragma unroll 1
  for (int64_t first = 32 * worker; first < num_rows; first += 32 * num_workers) {
    const bool empty =
        first + lane < num_rows && output.row_keys(ranges, static_cast<uint32_t>(first + lane)).width == 0;
#pragma unroll 1
    for (uint32_t left = __ballot_sync(ptx::kAllLanes, empty); left != 0; left &= left - 1) {
      const auto t = static_cast<uint32_t>(first) + static_cast<uint32_t>(__ffs(static_cast<int>(left)) - 1);
      const RowWriter writer(output, t, {});
      for (int slot = lane; slot < output.topk; slot += 32) {
        writer.pad(slot);
      }
      if (lane == 0) {
        writer.write_count(0);
      }
    }
  }
}

// ---- Host side ----

inline RowOutput make_row_output(const Call& call) {
  const Problem& problem = call.problem;
  RowOutput output;
  output.indices = make_row_view(call.indices);
  output.top_scores = make_row_view(call.top_scores);
  output.row_indices = make_row_view(call.row_indices);
  output.out_count = make_row_view(call.out_count);
  output.out_offset = make_row_view(call.out_offset);
  output.requests = make_row_requests(call);
  output.g_slot_table = problem.slots_from_block_table ? call.block_table : call.slot_table;
  output.slot_table_stride = problem.slots_from_block_table ? call.block_table_stride : call.slot_table_stride;
  output.g_stats = reinterpret_cast<unsigned long long*>(call.stats);
  output.stats_stride = call.stats_stride;
  output.topk = static_cast<int32_t>(problem.topk);
  for (int64_t size = problem.slot_page_size; size > 1; size /= 2) {
    ++output.slot_page_shift;
  }
  output.index_space = problem.index_space;
  output.uses_table = problem.paged || problem.index_space == IndexSpace::kSlot;
  output.slot_of_position = problem.paged;
  return output;
}

}  // namespace keysieve::device
