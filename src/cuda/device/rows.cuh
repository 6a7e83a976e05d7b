// SPDX-License-Identifier: Apache-2.0
// Per-row tensors and key ranges, as kernels see them.
#pragma once

#include <cstdint>

#include "core/problem.hpp"

namespace keysieve::device {

/// RowTensor for device code: row t at data + t * row_stride, or t / rows_per_group * group_stride + t % ... when the
/// rows of a [B, next_n] tensor have no single stride.
template <typename T>
struct RowView {
  T* g_data = nullptr;
  int64_t group_stride = 0;
  int64_t row_stride = 0;
  int32_t rows_per_group = 0;  // 0: one stride for all rows

  [[nodiscard]] __device__ __forceinline__ T* row(int64_t t) const {
    if (rows_per_group == 0) {
      return g_data + t * row_stride;
    }
    const auto group = static_cast<int64_t>(static_cast<uint32_t>(t) / static_cast<uint32_t>(rows_per_group));
    return g_data + group * group_stride + (t - group * rows_per_group) * row_stride;
  }
};

template <typename T>
RowView<T> make_row_view(const RowTensor<T>& tensor) {
  RowView<T> view;
  view.g_data = tensor.data;
  view.group_stride = tensor.stride.group;
  view.row_stride = tensor.stride.row;
  view.rows_per_group = static_cast<int32_t>(tensor.stride.rows_per_group);
  if (tensor.stride.rows_per_group <= 1) {
    view.row_stride = tensor.stride.group;
    view.rows_per_group = 0;
  } else if (tensor.stride.group == tensor.stride.row * tensor.stride.rows_per_group) {
    view.rows_per_group = 0;
  }
  return view;
}

/// Keys [begin, end) of a row, clamped to [0, num_keys]; begin == end if the row is empty.
struct KeyRange {
  int32_t begin;
  int32_t end;

  [[nodiscard]] __device__ __forceinline__ int32_t width() const { return end - begin; }
};

struct RowRanges {
  RowView<const int32_t> start;  // no data: 0
  RowView<const int32_t> end;    // no data: num_keys
  int32_t num_keys = 0;
  int32_t max_width = 0x7FFFFFFF;  // keys of a row past this many are dropped (compact scores)

  [[nodiscard]] __device__ __forceinline__ KeyRange operator()(int64_t t) const {
    KeyRange range;
    range.begin = start.g_data == nullptr ? 0 : min(max(__ldg(start.row(t)), 0), num_keys);
    range.end = end.g_data == nullptr ? num_keys : min(max(__ldg(end.row(t)), 0), num_keys);
    range.end = max(range.end, range.begin);
    range.end = range.end - range.begin > max_width ? range.begin + max_width : range.end;
    return range;
  }
};

inline RowRanges make_row_ranges(const Call& call) {
  RowRanges ranges;
  ranges.start = make_row_view(call.row_start);
  ranges.end = make_row_view(call.row_end);
  ranges.num_keys = static_cast<int32_t>(call.problem.num_keys);
  return ranges;
}

}  // namespace keysieve::device
