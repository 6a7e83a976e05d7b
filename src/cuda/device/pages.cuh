// SPDX-License-Identifier: Apache-2.0
// Paged keys, as kernels see them (contract section 5): pages of 64 keys, then their scales, found through a table row
// a request.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/device/rows.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::device {

struct PagedKeys {
  static constexpr int kPageKeys = KEYSIEVE_PAGE_SIZE;

  const uint8_t* g_pages = nullptr;
  int64_t page_stride = 0;           // bytes
  const int32_t* g_table = nullptr;  // [B,P]
  int64_t table_stride = 0;
  int32_t num_pages = 0;

  [[nodiscard]] __device__ __forceinline__ const uint8_t* page(int32_t id) const { return g_pages + id * page_stride; }
};

/// Page ids of one request, for a whole warp: 32 are read at a time, one a lane.  Entries of pages that hold none of
/// `keys` are not read.
class PageIds {
 public:
  __device__ __forceinline__ PageIds(const PagedKeys& pages, int32_t request, const KeyRange& keys)
      : g_row_(pages.g_table + request * pages.table_stride),
        begin_(keys.begin / PagedKeys::kPageKeys),
        end_((keys.end - 1) / PagedKeys::kPageKeys + 1) {}

  /// -1: none of the keys, or an id outside the pool.
  [[nodiscard]] __device__ __forceinline__ int32_t operator()(const PagedKeys& pages, int32_t page) {
    if (page < first_ || page >= first_ + 32) {
      first_ = page;
      const int32_t own = page + ptx::lane_index();
      lane_id_ = own >= begin_ && own < end_ ? __ldg(g_row_ + own) : -1;
      lane_id_ = lane_id_ < pages.num_pages ? max(lane_id_, -1) : -1;
    }
    return __shfl_sync(ptx::kAllLanes, lane_id_, page - first_);
  }

 private:
  const int32_t* g_row_;
  int32_t begin_;
  int32_t end_;
  int32_t first_ = -64;  // no page yet
  int32_t lane_id_ = -1;
};

inline PagedKeys make_paged_keys(const Call& call) {
  PagedKeys pages;
  if (call.problem.paged) {
    pages.g_pages = static_cast<const uint8_t*>(call.k);
    pages.page_stride = call.k_stride;
    pages.g_table = call.block_table;
    pages.table_stride = call.block_table_stride;
    pages.num_pages = static_cast<int32_t>(call.problem.num_pages);
  }
  return pages;
}

}  // namespace keysieve::device
