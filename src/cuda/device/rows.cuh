// SPDX-License-Identifier: Apache-2.0
// Per-row tensors and key ranges, as kernels see them.
#pragma once

#include <cstdint>

#include "core/problem.hpp"

namespace keysieve::device {

/// Offset of row t of a [B, next_n] tensor.  Apart, so that the division does not swell every reader of a row.
__device__ __noinline__ inline int64_t grouped_row_offset(uint32_t t, uint32_t rows_per_group, int64_t group_stride,
                                                          int64_t row_stride) {
  const uint32_t group = t / rows_per_group;
  return group * group_stride + (t - group * rows_per_group) * row_stride;
}

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
    return g_data + grouped_row_offset(static_cast<uint32_t>(t), static_cast<uint32_t>(rows_per_group), group_stride,
                                       row_stride);
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

/// Key range from the two bounds of a row, either of which may be absent.
struct RowRanges {
  RowView<const int32_t> start;  // no data: 0
  RowView<const int32_t> end;    // no data: num_keys
  int32_t num_keys = 0;
  int32_t max_width = 0x7FFFFFFF;  // keys of a row past this many are dropped (compact scores)

  [[nodiscard]] __device__ __forceinline__ KeyRange operator()(int64_t t) const {
    return clamped(start.g_data == nullptr ? 0 : __ldg(start.row(t)),
                   end.g_data == nullptr ? num_keys : __ldg(end.row(t)));
  }

  /// Both tensors have one row stride (and no group arithmetic).
  [[nodiscard]] __device__ __forceinline__ bool has_one_stride() const {
    return start.rows_per_group == 0 && end.rows_per_group == 0;
  }

  [[nodiscard]] __device__ __forceinline__ KeyRange clamped(int32_t first, int32_t last) const {
    KeyRange range;
    range.begin = min(max(first, 0), num_keys);
    range.end = max(min(last, num_keys), range.begin);
    range.end = range.end - range.begin > max_width ? range.begin + max_width : range.end;
    return range;
  }
};

/// The row of a page or slot table that a query row uses (contract section 5).
struct RowRequests {
  RowView<const int32_t> given;  // no data: t / next_n
  int32_t num_requests = 0;
  int32_t next_n = 1;

  /// -1: not in the table; such a row has no keys.
  [[nodiscard]] __device__ __forceinline__ int32_t operator()(int64_t t) const {
    const int32_t request = given.g_data != nullptr ? __ldg(given.row(t)) : static_cast<int32_t>(t) / next_n;
    return request >= 0 && request < num_requests ? request : -1;
  }
};

inline RowRequests make_row_requests(const Call& call) {
  RowRequests requests;
  requests.given = make_row_view(call.row_request);
  requests.num_requests = static_cast<int32_t>(call.problem.num_requests);
  requests.next_n = static_cast<int32_t>(call.problem.next_n);
  return requests;
}

inline RowRanges make_row_ranges(const Call& call) {
  RowRanges ranges;
  ranges.start = make_row_view(call.row_start);
  ranges.end = make_row_view(call.row_end);
  ranges.num_keys = static_cast<int32_t>(call.problem.num_keys);
  return ranges;
}

}  // namespace keysieve::device
