// SPDX-License-Identifier: Apache-2.0
// Problem and Call: what the C structs say, after src/api/validate.cpp has checked every word of it.
// Backends trust these and check nothing but their own limits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "keysieve/keysieve.h"

namespace keysieve {

enum class Dtype : int32_t {
  kNone = KEYSIEVE_DTYPE_NONE,
  kE4m3 = KEYSIEVE_E4M3,
  kBf16 = KEYSIEVE_BF16,
  kMxfp4 = KEYSIEVE_MXFP4,
  kF32 = KEYSIEVE_F32,
  kU8 = KEYSIEVE_U8,
  kI32 = KEYSIEVE_I32,
  kU64 = KEYSIEVE_U64,
};
enum class DeviceType : int32_t { kCpu = KEYSIEVE_CPU, kCuda = KEYSIEVE_CUDA };
enum class Op : int32_t { kScoreSelect = KEYSIEVE_SCORE_SELECT, kScore = KEYSIEVE_SCORE, kSelect = KEYSIEVE_SELECT };
enum class IndexSpace : int32_t {
  kRow = KEYSIEVE_INDEX_ROW,
  kAbsolute = KEYSIEVE_INDEX_ABSOLUTE,
  kOffset = KEYSIEVE_INDEX_OFFSET,
  kSlot = KEYSIEVE_INDEX_SLOT,
};
enum class Order : int32_t {
  kAscending = KEYSIEVE_ORDER_ASCENDING,
  kAny = KEYSIEVE_ORDER_ANY,
  kScore = KEYSIEVE_ORDER_SCORE,
};
enum class Candidates : int32_t {
  kNone = KEYSIEVE_CANDIDATES_NONE,
  kPublish = KEYSIEVE_CANDIDATES_PUBLISH,
  kConsume = KEYSIEVE_CANDIDATES_CONSUME,
};

/// keysieve_problem with its defaults filled in.
struct Problem {
  Op op = Op::kScoreSelect;
  DeviceType device_type = DeviceType::kCpu;
  int32_t device_index = 0;

  int64_t num_rows = 0;   // T
  int64_t num_heads = 0;  // H
  int64_t head_dim = 0;   // D
  int64_t num_keys = 0;   // N
  int64_t topk = 0;       // K

  Dtype q_dtype = Dtype::kNone;
  Dtype k_dtype = Dtype::kNone;
  Dtype score_dtype = Dtype::kF32;

  bool paged = false;
  int64_t num_pages = 0;
  int64_t num_requests = 0;       // B
  int64_t pages_per_request = 0;  // P
  int64_t next_n = 1;

  bool compact_scores = false;
  int64_t score_width = 0;  // columns of `scores`: N when full, W when compact

  IndexSpace index_space = IndexSpace::kRow;
  Order order = Order::kAscending;
  int64_t slot_page_size = 0;  // entries a page of the table that makes slots (block_table: 64)
  bool slots_from_block_table = false;

  Candidates candidates = Candidates::kNone;
  int64_t cand_block = 0;
  int64_t cand_count = 0;

  [[nodiscard]] bool scores_keys() const { return op != Op::kSelect; }
  [[nodiscard]] bool selects() const { return op != Op::kScore; }
};

/// Key bytes at the front of a page; its scales follow.
inline int64_t page_key_bytes(Dtype k_dtype, int64_t head_dim) {
  switch (k_dtype) {
    case Dtype::kBf16: return KEYSIEVE_PAGE_SIZE * 2 * head_dim;
    case Dtype::kMxfp4: return KEYSIEVE_PAGE_SIZE * head_dim / 2;
    default: return KEYSIEVE_PAGE_SIZE * head_dim;
  }
}

/// Bytes of a page: 64 keys, then their scales (contract section 5).
inline int64_t page_bytes(Dtype k_dtype, int64_t head_dim) {
  switch (k_dtype) {
    case Dtype::kBf16: return page_key_bytes(k_dtype, head_dim);
    case Dtype::kMxfp4: return page_key_bytes(k_dtype, head_dim) + KEYSIEVE_PAGE_SIZE * (head_dim / 32);
    default: return page_key_bytes(k_dtype, head_dim) + KEYSIEVE_PAGE_SIZE * 4;
  }
}

/// keysieve_options with its defaults filled in.
struct Options {
  int32_t threads = 0;
  const char* backend = nullptr;
  const char* config = nullptr;
  int32_t sm_limit = 0;
  int32_t launch_flags = 0;
};

/// Element offset of row t in a tensor whose rows are laid out as [T] or as [B, next_n].
struct RowStride {
  int64_t group = 0;           // stride of B (or of T)
  int64_t row = 0;             // stride of next_n
  int64_t rows_per_group = 1;  // next_n (or 1)

  [[nodiscard]] int64_t operator()(int64_t t) const { return t / rows_per_group * group + t % rows_per_group * row; }
};

/// A tensor with one row per query.  Absent: data == nullptr.
template <typename T>
struct RowTensor {
  T* data = nullptr;
  RowStride stride;

  [[nodiscard]] T* row(int64_t t) const { return data + stride(t); }
  [[nodiscard]] std::remove_const_t<T> value(int64_t t) const { return data[stride(t)]; }
  explicit operator bool() const { return data != nullptr; }
};

/// Keys of a row, clamped: begin <= end, both in [0, N].
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  [[nodiscard]] int64_t width() const { return end - begin; }
};

struct WorkspaceSize {
  size_t min_bytes = 0;
  size_t preferred_bytes = 0;
};

/// One checked call.  Pointers are null where the problem does not use the tensor or the caller gave none.
/// Strides count elements of the tensor's dtype (bytes for MXFP4 and paged keys).
struct Call {
  Problem problem;
  Options options;

  const void* q = nullptr;  // [T,H,D]
  RowStride q_row;
  int64_t q_head_stride = 0;
  const void* k = nullptr;  // [N,D] or pages
  int64_t k_stride = 0;     // key to key, or page to page
  const void* k_scale = nullptr;
  int64_t k_scale_stride = 0;
  RowTensor<const float> weights;  // [T,H]

  void* scores = nullptr;  // [T,N] or [T,W]
  int64_t score_row_stride = 0;

  RowTensor<const int32_t> row_start;
  RowTensor<const int32_t> row_end;
  RowTensor<const int32_t> row_request;
  const int32_t* block_table = nullptr;  // [B,P]
  int64_t block_table_stride = 0;
  RowTensor<const int32_t> out_offset;
  const int32_t* slot_table = nullptr;  // [B,P]
  int64_t slot_table_stride = 0;

  RowTensor<const int32_t> cand_in;
  RowTensor<int32_t> cand_out;

  RowTensor<int32_t> indices;
  RowTensor<float> top_scores;
  RowTensor<int32_t> out_count;
  RowTensor<int32_t> row_indices;
  uint64_t* stats = nullptr;
  int64_t stats_stride = 1;

  std::byte* workspace = nullptr;
  size_t workspace_bytes = 0;
  void* stream = nullptr;
};

// ---- Access for the backends that run on a host (CUDA kernels have their own). ----

/// Table row of query row t, or -1 if row_request names none (such a row has no keys).
inline int64_t request_of_row(const Call& call, int64_t t) {
  const int64_t request = call.row_request ? call.row_request.value(t) : t / call.problem.next_n;
  return request >= 0 && request < call.problem.num_requests ? request : -1;
}

inline RowRange row_range(const Call& call, int64_t t) {
  const int64_t num_keys = call.problem.num_keys;
  const auto clamp = [num_keys](int64_t position) { return std::clamp<int64_t>(position, 0, num_keys); };
  RowRange range;
  range.begin = call.row_start ? clamp(call.row_start.value(t)) : 0;
  range.end = call.row_end ? clamp(call.row_end.value(t)) : num_keys;
  const bool uses_table = call.problem.paged || call.problem.index_space == IndexSpace::kSlot;
  if (call.problem.op == Op::kSelect && call.problem.compact_scores) {
    range.end = std::min(range.end, range.begin + call.problem.score_width);  // nothing lies past column W
  }
  if (range.end < range.begin || (uses_table && request_of_row(call, t) < 0)) {
    range.end = range.begin;
  }
  return range;
}

/// The index written for the key at `position` of a row that starts at `begin` (contract section 4).
inline int32_t output_index(const Call& call, int64_t t, int64_t begin, int64_t position) {
  const Problem& problem = call.problem;
  const int64_t relative = position - begin;
  switch (problem.index_space) {
    case IndexSpace::kRow: return static_cast<int32_t>(relative);
    case IndexSpace::kAbsolute: return static_cast<int32_t>(position);
    case IndexSpace::kOffset: return static_cast<int32_t>(relative + call.out_offset.value(t));
    case IndexSpace::kSlot: {
      const int64_t p = problem.paged ? position : relative;
      const int32_t* table = problem.slots_from_block_table
                                 ? call.block_table + request_of_row(call, t) * call.block_table_stride
                                 : call.slot_table + request_of_row(call, t) * call.slot_table_stride;
      const int64_t page = table[p / problem.slot_page_size];
      return static_cast<int32_t>(page * problem.slot_page_size + p % problem.slot_page_size);
    }
  }
  return -1;
}

}  // namespace keysieve
