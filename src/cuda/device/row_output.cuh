// SPDX-License-Identifier: Apache-2.0
// Which keys a row has and how its picks are written (contract sections 2 and 4), for every selecting kernel.
// Both structs are plain values that a launcher builds from a checked Call and passes as kernel arguments.
//
//     const RowKeys keys = ranges.row_keys(t);            // clamped range, empty rows included
//     const RowWriter writer(output, ranges, t, keys);    // index space of this row
//     writer.write(slot, relative, score);  writer.pad(slot);  writer.finish(count);
#pragma once

#include <cstdint>

#include "core/problem.hpp"

namespace keysieve::cuda {

/// RowTensor for device code: one row per query, laid out as [T] or [B, next_n].
template <typename T>
struct DeviceRows {
  T* g_data = nullptr;
  int64_t group_stride = 0;
  int64_t row_stride = 0;
  uint32_t rows_per_group = 1;

  __device__ __forceinline__ T* row(uint32_t t) const {
    if (rows_per_group == 1) {
      return g_data + static_cast<int64_t>(t) * group_stride;
    }
    return g_data + static_cast<int64_t>(t / rows_per_group) * group_stride +
           static_cast<int64_t>(t % rows_per_group) * row_stride;
  }
  __device__ __forceinline__ explicit operator bool() const { return g_data != nullptr; }
};

/// The keys of one row: key `begin + i` for i < width; `request` is its table row, or -1 without a table.
struct RowKeys {
  int32_t begin = 0;
  int32_t width = 0;
  int32_t request = -1;
};

/// Row ranges of a call.
struct RowRanges {
  DeviceRows<const int32_t> row_start;
  DeviceRows<const int32_t> row_end;
  DeviceRows<const int32_t> row_request;
  int32_t num_keys = 0;
  int32_t num_requests = 0;
  uint32_t next_n = 1;
  bool uses_table = false;  // a row whose request is not in the table has no keys

  __device__ __forceinline__ int32_t clamp(int32_t position) const { return min(max(position, 0), num_keys); }

  __device__ __forceinline__ RowKeys row_keys(uint32_t t) const {
    RowKeys keys;
    keys.begin = row_start ? clamp(*row_start.row(t)) : 0;
    const int32_t end = row_end ? clamp(*row_end.row(t)) : num_keys;
    keys.width = max(end - keys.begin, 0);
    if (uses_table) {
      const int32_t request = row_request ? *row_request.row(t) : static_cast<int32_t>(t / next_n);
      keys.request = request >= 0 && request < num_requests ? request : -1;
      keys.width = keys.request < 0 ? 0 : keys.width;
    }
    return keys;
  }
};

/// Outputs of a selecting call.
struct RowOutput {
  DeviceRows<int32_t> indices;      // [T,K]
  DeviceRows<float> top_scores;     // [T,K] or absent
  DeviceRows<int32_t> row_indices;  // [T,K] or absent
  DeviceRows<int32_t> out_count;    // [T] or absent
  DeviceRows<const int32_t> out_offset;
  const int32_t* g_slot_table = nullptr;  // [B,P]
  int64_t slot_table_stride = 0;
  unsigned long long* g_stats = nullptr;
  int64_t stats_stride = 1;
  int32_t topk = 0;
  int32_t slot_page_shift = 0;
  IndexSpace index_space = IndexSpace::kRow;
  bool slot_of_position = false;  // slots come from the position in the request, not the row-relative index

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
        g_scores_(output.top_scores ? output.top_scores.row(t) : nullptr),
        g_relative_(output.row_indices ? output.row_indices.row(t) : nullptr),
        g_count_(output.out_count ? output.out_count.row(t) : nullptr) {
    switch (output.index_space) {
      case IndexSpace::kRow: break;
      case IndexSpace::kAbsolute: bias_ = keys.begin; break;
      case IndexSpace::kOffset: bias_ = keys.width > 0 ? *output.out_offset.row(t) : 0; break;
      case IndexSpace::kSlot:
        bias_ = output.slot_of_position ? keys.begin : 0;
        page_shift_ = output.slot_page_shift;
        g_table_row_ = keys.width > 0 ? output.g_slot_table + keys.request * output.slot_table_stride : nullptr;
        break;
    }
  }

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

// ---- Host side ----

template <typename T>
DeviceRows<T> device_rows(const RowTensor<T>& tensor) {
  return {tensor.data, tensor.stride.group, tensor.stride.row, static_cast<uint32_t>(tensor.stride.rows_per_group)};
}

inline RowRanges make_row_ranges(const Call& call) {
  const Problem& problem = call.problem;
  RowRanges ranges;
  ranges.row_start = device_rows(call.row_start);
  ranges.row_end = device_rows(call.row_end);
  ranges.row_request = device_rows(call.row_request);
  ranges.num_keys = static_cast<int32_t>(problem.num_keys);
  ranges.num_requests = static_cast<int32_t>(problem.num_requests);
  ranges.next_n = static_cast<uint32_t>(problem.next_n);
  ranges.uses_table = problem.paged || problem.index_space == IndexSpace::kSlot;
  return ranges;
}

inline RowOutput make_row_output(const Call& call) {
  const Problem& problem = call.problem;
  RowOutput output;
  output.indices = device_rows(call.indices);
  output.top_scores = device_rows(call.top_scores);
  output.row_indices = device_rows(call.row_indices);
  output.out_count = device_rows(call.out_count);
  output.out_offset = device_rows(call.out_offset);
  output.g_slot_table = problem.slots_from_block_table ? call.block_table : call.slot_table;
  output.slot_table_stride = problem.slots_from_block_table ? call.block_table_stride : call.slot_table_stride;
  output.g_stats = reinterpret_cast<unsigned long long*>(call.stats);
  output.stats_stride = call.stats_stride;
  output.topk = static_cast<int32_t>(problem.topk);
  for (int64_t size = problem.slot_page_size; size > 1; size /= 2) {
    ++output.slot_page_shift;
  }
  output.index_space = problem.index_space;
  output.slot_of_position = problem.paged;
  return output;
}

}  // namespace keysieve::cuda
