// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <initializer_list>

#include "api/validate.hpp"

namespace keysieve {
namespace {

int64_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return 2;
    case Dtype::kF32:
    case Dtype::kI32: return 4;
    case Dtype::kU64: return 8;
    default: return 1;
  }
}

/// "[4, 64, 128]" without allocation.
struct ShapeText {
  char text[128] = "[";

  ShapeText(const int64_t* shape, int32_t rank) {
    size_t used = 1;
    for (int32_t i = 0; i < rank; ++i) {
      used +=
          std::snprintf(text + used, sizeof(text) - used, i == 0 ? "%lld" : ", %lld", static_cast<long long>(shape[i]));
    }
    std::snprintf(text + used, sizeof(text) - used, "]");
  }
};

/// Bytes that a tensor occupies, seen as rows of `row_bytes` at distance `row_stride_bytes`.
struct Footprint {
  const char* name = "";
  uintptr_t begin = 0;
  uintptr_t end = 0;  // one past the last byte
  int64_t row_bytes = 0;
  int64_t row_stride_bytes = 0;
  bool output = false;
};

bool overlap(const Footprint& a, const Footprint& b) {
  if (a.begin >= b.end || b.begin >= a.end) {
    return false;
  }
  // Columns of one wide buffer interleave without touching.
  if (a.row_stride_bytes == b.row_stride_bytes && a.row_stride_bytes > 0) {
    const int64_t stride = a.row_stride_bytes;
    const auto distance = static_cast<int64_t>(b.begin - a.begin) % stride;
    const int64_t offset = distance < 0 ? distance + stride : distance;
    return offset < a.row_bytes || offset + b.row_bytes > stride;
  }
  return true;
}

/// What one tensor must look like.
struct Expected {
  const char* name;
  Dtype dtype;
  std::initializer_list<int64_t> shape;
  bool output = false;
  bool optional = false;
  bool any_inner_stride = false;  // vectors: the stride is free
  bool shared_rows = false;       // stride 0 on the first axis is legal
};

class TensorChecker {
 public:
  /// Checks a tensor and remembers its footprint.  An absent optional tensor leaves `present` false.
  Status check(const keysieve_tensor& tensor, const Expected& expected, bool* present = nullptr) {
    const bool absent = tensor.rank == 0;
    if (present != nullptr) {
      *present = !absent;
    }
    if (absent && expected.optional) {
      return {};
    }
    const std::initializer_list<int64_t>& shape = expected.shape;
    const auto rank = static_cast<int32_t>(shape.size());
    if (absent) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s is missing, expected %s %s", expected.name,
                           dtype_name(static_cast<int32_t>(expected.dtype)), ShapeText(shape.begin(), rank).text);
    }
    if (tensor.dtype != static_cast<int32_t>(expected.dtype)) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s.dtype is %s, expected %s", expected.name,
                           dtype_name(tensor.dtype), dtype_name(static_cast<int32_t>(expected.dtype)));
    }
    if (tensor.rank < 0 || tensor.rank > KEYSIEVE_MAX_RANK || tensor.rank != rank) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s.rank is %d, expected %d: %s", expected.name, tensor.rank,
                           rank, ShapeText(shape.begin(), rank).text);
    }
    if (!std::equal(shape.begin(), shape.end(), tensor.shape)) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s.shape is %s, expected %s", expected.name,
                           ShapeText(tensor.shape, rank).text, ShapeText(shape.begin(), rank).text);
    }
    return check_memory(tensor, expected);
  }

  Status add_workspace(const void* data, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    if (bytes > UINTPTR_MAX - begin) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                           "workspace_bytes is %zu, expected a range inside the address space", bytes);
    }
    return add({"workspace", begin, begin + bytes, static_cast<int64_t>(bytes), 0, true});
  }

 private:
  Status check_memory(const keysieve_tensor& tensor, const Expected& expected) {
    const int64_t element_bytes = dtype_bytes(expected.dtype);
    bool empty = false;
    for (int32_t i = 0; i < tensor.rank; ++i) {
      empty = empty || tensor.shape[i] == 0;
    }
    if (empty) {
      return {};
    }
    if (tensor.data == nullptr) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s.data is null, expected memory for %s", expected.name,
                           ShapeText(tensor.shape, tensor.rank).text);
    }
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data);
    if (begin % element_bytes != 0) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s.data is %p, expected a multiple of %lld bytes", expected.name,
                           tensor.data, static_cast<long long>(element_bytes));
    }
    int64_t last_element = 0;
    KEYSIEVE_RETURN_IF_ERROR(check_strides(tensor, expected, last_element));
    int64_t bytes = 0;
    if (__builtin_mul_overflow(last_element + 1, element_bytes, &bytes) ||
        static_cast<uint64_t>(bytes) > UINTPTR_MAX - begin) {
      return overflow(tensor, expected);
    }
    const int32_t last_axis = tensor.rank - 1;
    Footprint footprint = {expected.name, begin, begin + static_cast<uintptr_t>(bytes), bytes, 0, expected.output};
    if (tensor.rank == 1) {
      footprint.row_bytes = element_bytes;
      footprint.row_stride_bytes = tensor.stride[0] * element_bytes;
    } else if (tensor.rank == 2) {
      footprint.row_bytes = ((tensor.shape[last_axis] - 1) * tensor.stride[last_axis] + 1) * element_bytes;
      footprint.row_stride_bytes = tensor.stride[0] * element_bytes;
    }
    return add(footprint);
  }

  static Status overflow(const keysieve_tensor& tensor, const Expected& expected) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                         "%s with shape %s and strides %s overflows the address space, expected at most 2^63 - 1 bytes",
                         expected.name, ShapeText(tensor.shape, tensor.rank).text,
                         ShapeText(tensor.stride, tensor.rank).text);
  }

  /// Strides of axes with one element are never used, so they may be anything.
  static Status check_strides(const keysieve_tensor& tensor, const Expected& expected, int64_t& last_element) {
    for (int32_t i = 0; i < tensor.rank; ++i) {
      const int64_t stride = tensor.stride[i];
      const bool innermost = i == tensor.rank - 1;
      if (tensor.shape[i] <= 1) {
        continue;
      }
      if (innermost && !expected.any_inner_stride && stride != 1) {
        return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s.stride[%d] is %lld, expected 1 on the innermost axis",
                             expected.name, i, static_cast<long long>(stride));
      }
      const bool shared = stride == 0 && i == 0 && expected.shared_rows;
      if (stride < 1 && !shared) {
        return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s.stride[%d] is %lld, expected a positive stride",
                             expected.name, i, static_cast<long long>(stride));
      }
      if (expected.output && i == 0 && tensor.rank == 2 && stride < tensor.shape[1]) {
        return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                             "%s.stride[0] is %lld, expected at least %lld so that rows do not overlap", expected.name,
                             static_cast<long long>(stride), static_cast<long long>(tensor.shape[1]));
      }
      int64_t extent = 0;
      if (__builtin_mul_overflow(tensor.shape[i] - 1, stride, &extent) ||
          __builtin_add_overflow(last_element, extent, &last_element) || last_element == INT64_MAX) {
        return overflow(tensor, expected);
      }
    }
    return {};
  }

  Status add(const Footprint& footprint) {
    if (footprint.begin == footprint.end) {
      return {};
    }
    for (int32_t i = 0; i < num_footprints_; ++i) {
      const Footprint& other = footprints_[i];
      if ((footprint.output || other.output) && overlap(footprint, other)) {
        const Footprint& written = footprint.output ? footprint : other;
        const Footprint& touched = footprint.output ? other : footprint;
        return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                             "%s overlaps %s in memory, expected outputs and workspace apart from every other tensor",
                             written.name, touched.name);
      }
    }
    footprints_[num_footprints_++] = footprint;
    return {};
  }

  std::array<Footprint, 24> footprints_{};
  int32_t num_footprints_ = 0;
};

/// Fills a Call; every function takes one group of tensors.
class CallBuilder {
 public:
  CallBuilder(const keysieve_tensors& in, const Problem& problem, Call& out) : in_(in), problem_(problem), out_(out) {}

  Status build(size_t workspace_min_bytes) {
    if (problem_.scores_keys()) {
      KEYSIEVE_RETURN_IF_ERROR(read_queries());
      KEYSIEVE_RETURN_IF_ERROR(read_keys());
    }
    if (problem_.op != Op::kScoreSelect) {
      KEYSIEVE_RETURN_IF_ERROR(read_scores());
    }
    KEYSIEVE_RETURN_IF_ERROR(read_rows());
    KEYSIEVE_RETURN_IF_ERROR(read_tables());
    if (problem_.selects()) {
      KEYSIEVE_RETURN_IF_ERROR(read_candidates());
      KEYSIEVE_RETURN_IF_ERROR(read_selection());
    }
    return read_workspace(workspace_min_bytes);
  }

 private:
  [[nodiscard]] int64_t groups() const { return problem_.num_rows / problem_.next_n; }

  /// Rows as [B, next_n]: only where they divide evenly.
  [[nodiscard]] bool grouped(const keysieve_tensor& tensor, int32_t flat_rank) const {
    return tensor.rank == flat_rank + 1 && problem_.num_rows % problem_.next_n == 0;
  }

  [[nodiscard]] RowStride row_stride(const keysieve_tensor& tensor, bool is_grouped) const {
    return is_grouped ? RowStride{tensor.stride[0], tensor.stride[1], problem_.next_n}
                      : RowStride{tensor.stride[0], 0, 1};
  }

  template <typename T>
  Status read_row_values(const keysieve_tensor& tensor, const char* name, RowTensor<T>& out, bool output = false) {
    bool present = false;
    const bool is_grouped = grouped(tensor, 1);
    const Expected flat = {name, Dtype::kI32, {problem_.num_rows}, output, true, true, false};
    const Expected pairs = {name, Dtype::kI32, {groups(), problem_.next_n}, output, true, true, false};
    KEYSIEVE_RETURN_IF_ERROR(checker_.check(tensor, is_grouped ? pairs : flat, &present));
    if (present) {
      out = {static_cast<T*>(tensor.data), row_stride(tensor, is_grouped)};
    }
    return {};
  }

  template <typename T>
  Status read_matrix(const keysieve_tensor& tensor, const Expected& expected, RowTensor<T>& out) {
    bool present = false;
    KEYSIEVE_RETURN_IF_ERROR(checker_.check(tensor, expected, &present));
    if (present) {
      out = {static_cast<T*>(tensor.data), row_stride(tensor, false)};
    }
    return {};
  }

  Status read_queries() {
    const Problem& p = problem_;
    const bool q_grouped = grouped(in_.q, 3);
    const Expected q_flat = {"q", p.q_dtype, {p.num_rows, p.num_heads, p.head_dim}};
    const Expected q_pairs = {"q", p.q_dtype, {groups(), p.next_n, p.num_heads, p.head_dim}};
    KEYSIEVE_RETURN_IF_ERROR(checker_.check(in_.q, q_grouped ? q_pairs : q_flat));
    out_.q = in_.q.data;
    out_.q_row = row_stride(in_.q, q_grouped);
    out_.q_head_stride = in_.q.stride[q_grouped ? 2 : 1];

    const bool w_grouped = grouped(in_.weights, 2);
    const Expected w_flat = {"weights", Dtype::kF32, {p.num_rows, p.num_heads}, false, false, false, true};
    const Expected w_pairs = {"weights", Dtype::kF32, {groups(), p.next_n, p.num_heads}, false, false, false, true};
    KEYSIEVE_RETURN_IF_ERROR(checker_.check(in_.weights, w_grouped ? w_pairs : w_flat));
    out_.weights = {static_cast<const float*>(in_.weights.data), row_stride(in_.weights, w_grouped)};
    return {};
  }

  Status read_keys() {
    const Problem& p = problem_;
    out_.k = in_.k.data;
    out_.k_stride = in_.k.stride[0];
    if (p.paged) {
      KEYSIEVE_RETURN_IF_ERROR(
          checker_.check(in_.k, {"k", Dtype::kU8, {p.num_pages, page_bytes(p.k_dtype, p.head_dim)}}));
      return expect_absent(in_.k_scale, "k_scale", "paged keys hold their scales");
    }
    if (p.k_dtype == Dtype::kMxfp4) {
      KEYSIEVE_RETURN_IF_ERROR(checker_.check(in_.k, {"k", Dtype::kU8, {p.num_keys, p.head_dim / 2}}));
      KEYSIEVE_RETURN_IF_ERROR(checker_.check(in_.k_scale, {"k_scale", Dtype::kU8, {p.num_keys, p.head_dim / 32}}));
    } else {
      KEYSIEVE_RETURN_IF_ERROR(checker_.check(in_.k, {"k", p.k_dtype, {p.num_keys, p.head_dim}}));
      if (p.k_dtype == Dtype::kBf16) {
        return expect_absent(in_.k_scale, "k_scale", "BF16 keys have no scale");
      }
      KEYSIEVE_RETURN_IF_ERROR(
          checker_.check(in_.k_scale, {"k_scale", Dtype::kF32, {p.num_keys}, false, false, true, false}));
    }
    out_.k_scale = in_.k_scale.data;
    out_.k_scale_stride = in_.k_scale.stride[0];
    return {};
  }

  Status read_scores() {
    const bool output = problem_.op == Op::kScore;
    KEYSIEVE_RETURN_IF_ERROR(checker_.check(
        in_.scores, {"scores", problem_.score_dtype, {problem_.num_rows, problem_.score_width}, output}));
    out_.scores = in_.scores.data;
    out_.score_row_stride = in_.scores.stride[0];
    return {};
  }

  Status read_rows() {
    KEYSIEVE_RETURN_IF_ERROR(read_row_values(in_.row_start, "row_start", out_.row_start));
    return read_row_values(in_.row_end, "row_end", out_.row_end);
  }

  Status read_table(const keysieve_tensor& tensor, const char* name, const int32_t*& data, int64_t& stride) {
    KEYSIEVE_RETURN_IF_ERROR(
        checker_.check(tensor, {name, Dtype::kI32, {problem_.num_requests, problem_.pages_per_request}}));
    data = static_cast<const int32_t*>(tensor.data);
    stride = tensor.stride[0];
    return {};
  }

  Status read_tables() {
    const Problem& p = problem_;
    const bool slots = p.selects() && p.index_space == IndexSpace::kSlot;
    const bool block_table = (p.paged && p.scores_keys()) || p.slots_from_block_table;
    if (block_table) {
      KEYSIEVE_RETURN_IF_ERROR(read_table(in_.block_table, "block_table", out_.block_table, out_.block_table_stride));
    }
    if (slots && !p.slots_from_block_table) {
      KEYSIEVE_RETURN_IF_ERROR(read_table(in_.slot_table, "slot_table", out_.slot_table, out_.slot_table_stride));
    }
    if (!slots && !p.paged) {
      return {};
    }
    KEYSIEVE_RETURN_IF_ERROR(read_row_values(in_.row_request, "row_request", out_.row_request));
    const int64_t table_rows = p.num_requests * p.next_n;
    if (!out_.row_request && table_rows < p.num_rows) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                           "problem.num_requests * next_n is %lld, expected at least num_rows = %lld, or row_request",
                           static_cast<long long>(table_rows), static_cast<long long>(p.num_rows));
    }
    return {};
  }

  Status read_candidates() {
    const Problem& p = problem_;
    if (p.candidates == Candidates::kPublish) {
      return read_matrix(in_.cand_out, {"cand_out", Dtype::kI32, {p.num_rows, p.cand_count}, true}, out_.cand_out);
    }
    if (p.candidates == Candidates::kConsume) {
      return read_matrix(in_.cand_in, {"cand_in", Dtype::kI32, {p.num_rows, p.cand_count}}, out_.cand_in);
    }
    return {};
  }

  Status read_selection() {
    const Problem& p = problem_;
    if (p.index_space == IndexSpace::kOffset) {
      if (in_.out_offset.rank == 0) {
        return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                             "out_offset is missing, expected I32 [%lld] for index space offset",
                             static_cast<long long>(p.num_rows));
      }
      KEYSIEVE_RETURN_IF_ERROR(read_row_values(in_.out_offset, "out_offset", out_.out_offset));
    }
    KEYSIEVE_RETURN_IF_ERROR(
        read_matrix(in_.indices, {"indices", Dtype::kI32, {p.num_rows, p.topk}, true}, out_.indices));
    KEYSIEVE_RETURN_IF_ERROR(
        read_matrix(in_.top_scores, {"top_scores", Dtype::kF32, {p.num_rows, p.topk}, true, true}, out_.top_scores));
    KEYSIEVE_RETURN_IF_ERROR(
        read_matrix(in_.row_indices, {"row_indices", Dtype::kI32, {p.num_rows, p.topk}, true, true}, out_.row_indices));
    KEYSIEVE_RETURN_IF_ERROR(read_row_values(in_.out_count, "out_count", out_.out_count, true));
    bool present = false;
    KEYSIEVE_RETURN_IF_ERROR(
        checker_.check(in_.stats, {"stats", Dtype::kU64, {KEYSIEVE_NUM_STATS}, true, true, true}, &present));
    if (present) {
      out_.stats = static_cast<uint64_t*>(in_.stats.data);
      out_.stats_stride = in_.stats.stride[0];
    }
    return {};
  }

  Status read_workspace(size_t min_bytes) {
    if (in_.workspace_bytes < min_bytes) {
      return Status::error(KEYSIEVE_WORKSPACE_TOO_SMALL, "workspace_bytes is %zu, expected at least %zu",
                           in_.workspace_bytes, min_bytes);
    }
    if (in_.workspace == nullptr && in_.workspace_bytes > 0) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT, "workspace is null, expected %zu bytes", in_.workspace_bytes);
    }
    KEYSIEVE_RETURN_IF_ERROR(checker_.add_workspace(in_.workspace, in_.workspace_bytes));
    out_.workspace = static_cast<std::byte*>(in_.workspace);
    out_.workspace_bytes = in_.workspace_bytes;
    return {};
  }

  static Status expect_absent(const keysieve_tensor& tensor, const char* name, const char* why) {
    if (tensor.rank != 0) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s is given, expected none: %s", name, why);
    }
    return {};
  }

  const keysieve_tensors& in_;
  const Problem& problem_;
  Call& out_;
  TensorChecker checker_;
};

}  // namespace

Status validate_tensors(const keysieve_tensors* tensors, const Problem& problem, size_t workspace_min_bytes,
                        Call& out) noexcept {
  keysieve_tensors in = {};
  KEYSIEVE_RETURN_IF_ERROR(read_struct(tensors, "tensors", sizeof(keysieve_tensors), in));
  if (in.reserved != 0) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "tensors.reserved is %u, expected 0", in.reserved);
  }
  return CallBuilder(in, problem, out).build(workspace_min_bytes);
}

}  // namespace keysieve
