// SPDX-License-Identifier: Apache-2.0
// score_then_select: score_select as score and select of one chunk of rows after the other, through the workspace.  It
// takes whatever score and select take, so that every shape has a kernel.
#include <cstdio>
#include <cstring>

#include "cuda/kernels.hpp"
#include "cuda/score_then_select/config.hpp"

namespace keysieve::cuda {
namespace {

Problem score_problem(const Problem& problem, int64_t num_rows) {
  Problem score = problem;
  score.op = Op::kScore;
  score.num_rows = num_rows;
  score.score_dtype = Dtype::kF32;
  score.compact_scores = false;
  score.score_width = problem.num_keys;
  return score;
}

Problem select_problem(const Problem& problem, int64_t num_rows) {
  Problem select = score_problem(problem, num_rows);
  select.op = Op::kSelect;
  return select;
}

constexpr const char* kName = "score_then_select";

/// The options for score and select, whose configurations have other names.
Options inner_options(const Options& options) {
  Options inner = options;
  inner.config = nullptr;
  return inner;
}

Status supports(const Problem& problem, const Options& options) noexcept {
  if (options.config != nullptr && std::strcmp(options.config, kName) != 0) {
    return Status::error(KEYSIEVE_UNSUPPORTED, "options.config is \"%s\"; score_select on CUDA has \"%s\"",
                         options.config, kName);
  }
  if (problem.candidates != Candidates::kNone) {
    return Status::error(KEYSIEVE_UNSUPPORTED, "candidates: score_then_select has no candidate blocks");
  }
  KEYSIEVE_RETURN_IF_ERROR(kScoreSm90.supports(score_problem(problem, problem.num_rows), inner_options(options)));
  return kSelect.supports(select_problem(problem, problem.num_rows), inner_options(options));
}

WorkspaceSize workspace(const Problem& problem, const Options&, const DeviceInfo&) noexcept {
  return ScoreChunks::make(problem).workspace(problem);
}

void explain(const Problem& problem, const Options& options, const DeviceInfo& device, char* text,
             size_t capacity) noexcept {
  const ScoreChunks chunks = ScoreChunks::make(problem);
  const int64_t rows = chunks.rows_in(chunks.workspace(problem).preferred_bytes);
  char score[256] = "";
  char select[256] = "";
  kScoreSm90.explain(score_problem(problem, rows), inner_options(options), device, score, sizeof(score));
  kSelect.explain(select_problem(problem, rows), inner_options(options), device, select, sizeof(select));
  std::snprintf(text, capacity, "%s, chunks of %lld rows: %s; %s", kName, static_cast<long long>(rows), score, select);
}

/// Rows [first, first + num_rows) of a tensor; see rows_of_chunk for what they may be.
template <typename T>
RowTensor<T> slice(const RowTensor<T>& tensor, int64_t first, int64_t num_rows) {
  RowTensor<T> part = tensor;
  if (!tensor) {
    return part;
  }
  part.data = tensor.row(first);
  const int64_t in_group = first % tensor.stride.rows_per_group;
  if (in_group + num_rows <= tensor.stride.rows_per_group && tensor.stride.rows_per_group > 1) {
    part.stride = {tensor.stride.row, 0, 1};
  }
  return part;
}

template <typename Element>
void slice_queries(const Call& call, int64_t first, int64_t num_rows, Call* part) {
  const RowTensor<const Element> q = {static_cast<const Element*>(call.q), call.q_row};
  const RowTensor<const Element> rows = slice(q, first, num_rows);
  part->q = rows.data;
  part->q_row = rows.stride;
}

/// The call for rows [first, first + num_rows).  Tables move along if rows name their request by their place.
Call slice_rows(const Call& call, int64_t first, int64_t num_rows) {
  Call part = call;
  part.weights = slice(call.weights, first, num_rows);
  part.row_start = slice(call.row_start, first, num_rows);
  part.row_end = slice(call.row_end, first, num_rows);
  part.row_request = slice(call.row_request, first, num_rows);
  part.out_offset = slice(call.out_offset, first, num_rows);
  part.indices = slice(call.indices, first, num_rows);
  part.top_scores = slice(call.top_scores, first, num_rows);
  part.out_count = slice(call.out_count, first, num_rows);
  part.row_indices = slice(call.row_indices, first, num_rows);
  if (call.problem.q_dtype == Dtype::kBf16) {
    slice_queries<uint16_t>(call, first, num_rows, &part);
  } else {
    slice_queries<uint8_t>(call, first, num_rows, &part);
  }
  if (!call.row_request) {
    const int64_t first_request = first / call.problem.next_n;
    part.problem.num_requests = std::max<int64_t>(call.problem.num_requests - first_request, 0);
    if (call.slot_table != nullptr) {
      part.slot_table += first_request * call.slot_table_stride;
    }
    if (call.block_table != nullptr) {
      part.block_table += first_request * call.block_table_stride;
    }
    if (first % call.problem.next_n != 0) {  // then all rows are of one request
      part.problem.next_n = num_rows;
    }
  }
  return part;
}

Status launch(const Call& call, const DeviceInfo& device) noexcept {
  const ScoreChunks chunks = ScoreChunks::make(call.problem);
  const int64_t max_rows = chunks.rows_in(call.workspace_bytes);
  const auto base = reinterpret_cast<uintptr_t>(call.workspace);
  constexpr auto kAlignment = static_cast<uintptr_t>(ScoreChunks::kAlignmentBytes);
  void* g_scores = reinterpret_cast<void*>((base + kAlignment - 1) / kAlignment * kAlignment);
  // Groups of rows: those of a [B, next_n] tensor and of requests named by place.
  const int64_t rows_per_group = call.problem.next_n;
  int64_t num_rows = 0;
  for (int64_t first = 0; first < call.problem.num_rows; first += num_rows) {
    num_rows = rows_of_chunk(call.problem.num_rows, rows_per_group, first, max_rows);
    Call part = slice_rows(call, first, num_rows);
    part.options = inner_options(call.options);
    part.scores = g_scores;
    part.score_row_stride = chunks.stride;
    const Problem problem = part.problem;
    part.problem = score_problem(problem, num_rows);
    KEYSIEVE_RETURN_IF_ERROR(kScoreSm90.launch(part, device));
    part.problem = select_problem(problem, num_rows);
    KEYSIEVE_RETURN_IF_ERROR(kSelect.launch(part, device));
  }
  return {};
}

}  // namespace

const KernelFamily kScoreThenSelect = {supports, workspace, explain, launch};

}  // namespace keysieve::cuda
