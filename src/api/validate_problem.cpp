// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "api/validate.hpp"

namespace keysieve {
namespace {

constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();

Status check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "problem.%s is %lld, expected %lld..%lld", name,
                         static_cast<long long>(value), static_cast<long long>(low), static_cast<long long>(high));
  }
  return {};
}

Status check_enum(const char* name, int32_t value, int32_t last, const char* names) {
  if (value < 0 || value > last) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "problem.%s is %d, expected 0..%d (%s)", name, value, last, names);
  }
  return {};
}

Status read_enums(const keysieve_problem& in, Problem& out) {
  KEYSIEVE_RETURN_IF_ERROR(check_enum("op", in.op, KEYSIEVE_SELECT, "score_select, score, select"));
  KEYSIEVE_RETURN_IF_ERROR(check_enum("device_type", in.device_type, KEYSIEVE_CUDA, "cpu, cuda"));
  KEYSIEVE_RETURN_IF_ERROR(check_enum("key_layout", in.key_layout, KEYSIEVE_KEYS_PAGED, "contiguous, paged"));
  KEYSIEVE_RETURN_IF_ERROR(check_enum("score_layout", in.score_layout, KEYSIEVE_SCORES_COMPACT, "full, compact"));
  KEYSIEVE_RETURN_IF_ERROR(
      check_enum("index_space", in.index_space, KEYSIEVE_INDEX_SLOT, "row, absolute, offset, slot"));
  KEYSIEVE_RETURN_IF_ERROR(check_enum("order", in.order, KEYSIEVE_ORDER_SCORE, "ascending, any, score"));
  KEYSIEVE_RETURN_IF_ERROR(
      check_enum("candidates", in.candidates, KEYSIEVE_CANDIDATES_CONSUME, "none, publish, consume"));
  out.op = static_cast<Op>(in.op);
  out.device_type = static_cast<DeviceType>(in.device_type);
  out.paged = in.key_layout == KEYSIEVE_KEYS_PAGED;
  out.compact_scores = in.score_layout == KEYSIEVE_SCORES_COMPACT;
  out.index_space = static_cast<IndexSpace>(in.index_space);
  out.order = static_cast<Order>(in.order);
  if (!out.selects()) {  // no indices: no space and no table for them
    out.index_space = IndexSpace::kRow;
    out.order = Order::kAscending;
  }
  out.candidates = static_cast<Candidates>(in.candidates);
  return {};
}

Status read_sizes(const keysieve_problem& in, Problem& out) {
  const int32_t last_device = out.device_type == DeviceType::kCpu ? 0 : 1023;
  KEYSIEVE_RETURN_IF_ERROR(check_range("device_index", in.device_index, 0, last_device));
  KEYSIEVE_RETURN_IF_ERROR(check_range("num_rows", in.num_rows, 0, kMaxCount));
  KEYSIEVE_RETURN_IF_ERROR(check_range("num_keys", in.num_keys, 0, kMaxCount));
  KEYSIEVE_RETURN_IF_ERROR(check_range("next_n", in.next_n, 0, kMaxCount));
  if (out.selects()) {
    const int64_t max_topk = out.op == Op::kSelect ? KEYSIEVE_MAX_TOPK_SELECT : KEYSIEVE_MAX_TOPK;
    KEYSIEVE_RETURN_IF_ERROR(check_range("topk", in.topk, 1, max_topk));
    out.topk = in.topk;
  }
  out.device_index = in.device_index;
  out.num_rows = in.num_rows;
  out.num_keys = in.num_keys;
  out.next_n = in.next_n == 0 ? 1 : in.next_n;
  return {};
}

Status read_keys(const keysieve_problem& in, Problem& out) {
  KEYSIEVE_RETURN_IF_ERROR(check_range("num_heads", in.num_heads, 1, kMaxCount));
  KEYSIEVE_RETURN_IF_ERROR(check_range("head_dim", in.head_dim, 1, kMaxCount));
  const bool legal = (in.q_dtype == KEYSIEVE_E4M3 && (in.k_dtype == KEYSIEVE_E4M3 || in.k_dtype == KEYSIEVE_MXFP4)) ||
                     (in.q_dtype == KEYSIEVE_BF16 && in.k_dtype == KEYSIEVE_BF16);
  if (!legal) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                         "problem.(q_dtype, k_dtype) is (%s, %s), expected (E4M3, E4M3), (BF16, BF16) or (E4M3, MXFP4)",
                         dtype_name(in.q_dtype), dtype_name(in.k_dtype));
  }
  if (in.k_dtype == KEYSIEVE_MXFP4 && in.head_dim % 32 != 0) {
    return Status::error(
        KEYSIEVE_INVALID_ARGUMENT,
        "problem.head_dim is %lld, expected a multiple of 32 with MXFP4 keys (one scale for 32 values)",
        static_cast<long long>(in.head_dim));
  }
  out.num_heads = in.num_heads;
  out.head_dim = in.head_dim;
  out.q_dtype = static_cast<Dtype>(in.q_dtype);
  out.k_dtype = static_cast<Dtype>(in.k_dtype);
  if (out.paged) {
    KEYSIEVE_RETURN_IF_ERROR(check_range("num_pages", in.num_pages, 0, kMaxCount));
    out.num_pages = in.num_pages;
  }
  return {};
}

Status read_scores(const keysieve_problem& in, Problem& out) {
  if (in.score_dtype != KEYSIEVE_DTYPE_NONE && in.score_dtype != KEYSIEVE_F32 && in.score_dtype != KEYSIEVE_BF16) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "problem.score_dtype is %s, expected F32 or BF16",
                         dtype_name(in.score_dtype));
  }
  out.score_dtype = in.score_dtype == KEYSIEVE_BF16 ? Dtype::kBf16 : Dtype::kF32;
  out.score_width = in.num_keys;
  if (out.compact_scores) {
    KEYSIEVE_RETURN_IF_ERROR(check_range("score_width", in.score_width, 0, kMaxCount));
    out.score_width = in.score_width;
  }
  return {};
}

/// Block tables of paged keys and tables that make slots.
Status read_tables(const keysieve_problem& in, Problem& out) {
  const bool slots = out.selects() && out.index_space == IndexSpace::kSlot;
  const bool paged_keys = out.paged && out.scores_keys();
  if (!slots && !out.paged) {
    return {};
  }
  KEYSIEVE_RETURN_IF_ERROR(check_range("num_requests", in.num_requests, 0, kMaxCount));
  KEYSIEVE_RETURN_IF_ERROR(check_range("pages_per_request", in.pages_per_request, 0, kMaxCount));
  out.num_requests = in.num_requests;
  out.pages_per_request = in.pages_per_request;
  if (slots) {
    const int32_t size = in.slot_page_size;
    if (size < 0 || (size & (size - 1)) != 0 || (size == 0 && !out.paged)) {
      return Status::error(
          KEYSIEVE_INVALID_ARGUMENT,
          "problem.slot_page_size is %d, expected a power of two (0, slots from block_table, only with "
          "paged keys)",
          size);
    }
    out.slots_from_block_table = size == 0;
    out.slot_page_size = size == 0 ? KEYSIEVE_PAGE_SIZE : size;
  }
  const auto check_capacity = [&](int64_t page_entries, const char* table) -> Status {
    const long long capacity = in.pages_per_request * page_entries;
    if (in.num_keys > capacity) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                           "problem.num_keys is %lld, expected at most pages_per_request * %lld = %lld, what a row of "
                           "%s holds",
                           static_cast<long long>(in.num_keys), static_cast<long long>(page_entries), capacity, table);
    }
    return {};
  };
  if (paged_keys) {
    KEYSIEVE_RETURN_IF_ERROR(check_capacity(KEYSIEVE_PAGE_SIZE, "block_table"));
  }
  if (slots) {
    KEYSIEVE_RETURN_IF_ERROR(
        check_capacity(out.slot_page_size, out.slots_from_block_table ? "block_table" : "slot_table"));
  }
  return {};
}

Status read_candidates(const keysieve_problem& in, Problem& out) {
  if (out.candidates == Candidates::kNone) {
    return {};
  }
  if (!out.selects()) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                         "problem.candidates is %d, expected 0 (none) with op score: blocks belong to a selection",
                         in.candidates);
  }
  if (in.cand_block != 8 && in.cand_block != 16) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "problem.cand_block is %d, expected 8 or 16", in.cand_block);
  }
  KEYSIEVE_RETURN_IF_ERROR(check_range("cand_count", in.cand_count, 1, KEYSIEVE_MAX_CAND_COUNT));
  out.cand_block = in.cand_block;
  out.cand_count = in.cand_count;
  return {};
}

}  // namespace

Status validate_problem(const keysieve_problem* problem, Problem& out) noexcept {
  keysieve_problem in = {};
  KEYSIEVE_RETURN_IF_ERROR(read_struct(problem, "problem", sizeof(keysieve_problem), in));
  out = Problem{};
  KEYSIEVE_RETURN_IF_ERROR(read_enums(in, out));
  KEYSIEVE_RETURN_IF_ERROR(read_sizes(in, out));
  if (out.scores_keys()) {
    KEYSIEVE_RETURN_IF_ERROR(read_keys(in, out));
  }
  if (out.op != Op::kScoreSelect) {
    KEYSIEVE_RETURN_IF_ERROR(read_scores(in, out));
  } else {
    out.compact_scores = false;
  }
  KEYSIEVE_RETURN_IF_ERROR(read_tables(in, out));
  return read_candidates(in, out);
}

Status validate_options(const keysieve_options* options, Options& out) noexcept {
  out = Options{};
  if (options == nullptr) {
    return {};
  }
  keysieve_options in = {};
  KEYSIEVE_RETURN_IF_ERROR(read_struct(options, "options", sizeof(keysieve_options), in));
  const auto check = [](const char* name, int32_t value, int32_t low, int32_t high) -> Status {
    if (value < low || value > high) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT, "options.%s is %d, expected %d..%d", name, value, low, high);
    }
    return {};
  };
  KEYSIEVE_RETURN_IF_ERROR(check("threads", in.threads, 0, 4096));
  KEYSIEVE_RETURN_IF_ERROR(check("sm_limit", in.sm_limit, 0, 4096));
  KEYSIEVE_RETURN_IF_ERROR(check("force_first", in.force_first, 0, 0));
  KEYSIEVE_RETURN_IF_ERROR(check("force_last", in.force_last, 0, 0));
  KEYSIEVE_RETURN_IF_ERROR(check("launch_flags", in.launch_flags, 0, KEYSIEVE_LAUNCH_PDL));
  out.threads = in.threads;
  out.backend = in.backend;
  out.config = in.config;
  out.sm_limit = in.sm_limit;
  out.launch_flags = in.launch_flags;
  return {};
}

}  // namespace keysieve
