// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <algorithm>

#include "failure.hpp"

namespace keysieve::cli {
namespace {

int64_t element_bytes(int32_t dtype) {
  switch (dtype) {
    case KEYSIEVE_BF16: return 2;
    case KEYSIEVE_F32:
    case KEYSIEVE_I32: return 4;
    case KEYSIEVE_U64: return 8;
    default: return 1;
  }
}

template <typename T>
size_t table_bytes(int64_t rows, int64_t columns) {
  return static_cast<size_t>(rows * columns) * sizeof(T);
}

/// The backend of that name, or the first that can do `problem`; its device type goes into the problem.
keysieve_backend_info choose_backend(Problem problem, keysieve_options options, const std::string& name) {
  std::string reasons;
  for (const keysieve_backend_info& info : backends()) {
    if (!name.empty() && name != info.name) {
      continue;
    }
    problem.device_type = info.device_type;
    options.backend = info.name;
    const keysieve_status status = keysieve_supported(&problem, &options);
    if (status == KEYSIEVE_OK) {
      return info;
    }
    const std::string reason = keysieve_last_message();
    if (!name.empty() || status == KEYSIEVE_INVALID_ARGUMENT) {
      throw Failure(exit_code(status), "backend " + std::string(info.name), reason);
    }
    reasons += (reasons.empty() ? "" : "; ") + reason;
  }
  if (name.empty()) {
    throw Failure(kExitUnavailable, "backend", reasons);
  }
  for (const keysieve_backend_info& info : backends()) {
    reasons += (reasons.empty() ? "" : ", ") + std::string(info.name);
  }
  throw Failure(kExitUnavailable, "backend " + name, "not in this build, which has " + reasons);
}

void require_space_tensors(const Replay& replay, int32_t index_space) {
  if (index_space == KEYSIEVE_INDEX_OFFSET && replay.out_offset.rank == 0) {
    throw Failure(kExitBadInput, "--index-space offset", "the file has no tensor out_offset I32 [Q]");
  }
  if (index_space == KEYSIEVE_INDEX_SLOT && replay.slot_table.rank == 0) {
    throw Failure(kExitBadInput, "--index-space slot", "the file has no tensor slot_table I32 [B,P]");
  }
}

}  // namespace

size_t tensor_bytes(const keysieve_tensor& tensor) {
  int64_t elements = 1;
  for (int32_t axis = 0; axis < tensor.rank; ++axis) {
    elements *= tensor.shape[axis];
  }
  return static_cast<size_t>(elements * element_bytes(tensor.dtype));
}

KeyRange key_range(const Replay& replay, int64_t t) {
  const auto bound = [&](const keysieve_tensor& tensor, int64_t absent) {
    const int64_t value = tensor.rank == 0 ? absent : static_cast<const int32_t*>(tensor.data)[t];
    return std::clamp<int64_t>(value, 0, replay.num_keys);
  };
  KeyRange range{bound(replay.row_start, 0), bound(replay.row_end, replay.num_keys)};
  range.end = std::max(range.begin, range.end);
  return range;
}

int64_t valid_pairs(const Replay& replay) {
  int64_t pairs = 0;
  for (int64_t t = 0; t < replay.num_rows; ++t) {
    pairs += key_range(replay, t).width();
  }
  return pairs;
}

keysieve_tensor rows_of(const keysieve_tensor& tensor, int64_t row_begin, int64_t row_end) {
  keysieve_tensor rows = tensor;
  if (rows.rank > 0) {
    rows.data = static_cast<std::byte*>(rows.data) + row_begin * rows.stride[0] * element_bytes(rows.dtype);
    rows.shape[0] = row_end - row_begin;
  }
  return rows;
}

Problem problem_of(const Replay& replay, keysieve_op op, int64_t num_rows) {
  Problem problem;
  problem.op = op;
  problem.num_rows = num_rows;
  problem.num_heads = replay.num_heads;
  problem.head_dim = replay.head_dim;
  problem.num_keys = replay.num_keys;
  problem.q_dtype = replay.q_dtype;
  problem.k_dtype = replay.k_dtype;
  return problem;
}

Replay load_replay(const std::string& path) {
  Replay replay;
  require_ok("replay file", open_replay(path, &replay));
  return replay;
}

Session::Session(const Replay& replay, const RunOptions& options) : replay_(replay), options_(options) {
  require_space_tensors(replay, options.index_space);
  Problem problem = select_problem();
  backend_ = choose_backend(problem, library_options(), options.backend);
  device_ = open_device(backend_.device_type, options.device_index);
  tensors_.q = place(replay.q);
  tensors_.k = place(replay.k);
  tensors_.k_scale = place(replay.k_scale);
  tensors_.weights = place(replay.weights);
  tensors_.row_start = place(replay.row_start);
  tensors_.row_end = place(replay.row_end);
  if (options.index_space == KEYSIEVE_INDEX_OFFSET) {
    tensors_.out_offset = place(replay.out_offset);
  }
  if (options.index_space == KEYSIEVE_INDEX_SLOT) {
    tensors_.slot_table = place(replay.slot_table);
    tensors_.row_request = place(replay.row_request);
  }
  outputs_ = make_outputs(replay.num_rows);
  attach_outputs(tensors_, outputs_, replay.num_rows, true);

  problem = select_problem();
  const keysieve_options library = library_options();
  size_t preferred_bytes = 0;
  require_ok("workspace", keysieve_workspace_size(&problem, &library, nullptr, &preferred_bytes));
  workspace_ = DeviceBuffer(*device_, preferred_bytes);
  tensors_.workspace = workspace_.data();
  tensors_.workspace_bytes = workspace_.bytes();
}

keysieve_tensor Session::place(const keysieve_tensor& tensor) {
  keysieve_tensor placed = tensor;
  if (tensor.rank > 0 && !device_->is_host()) {
    inputs_.emplace_back(*device_, tensor_bytes(tensor));
    inputs_.back().upload(tensor.data);
    placed.data = inputs_.back().data();
  }
  return placed;
}

keysieve_options Session::library_options() const {
  Options library;
  library.threads = options_.threads;
  library.backend = backend_.name[0] != '\0' ? backend_.name : nullptr;
  library.config = options_.config.empty() ? nullptr : options_.config.c_str();
  return library;
}

Problem Session::select_problem() const {
  Problem problem = problem_of(replay_, KEYSIEVE_SCORE_SELECT, replay_.num_rows);
  problem.device_type = backend_.device_type;
  problem.device_index = options_.device_index;
  problem.topk = options_.topk;
  problem.index_space = options_.index_space;
  problem.order = options_.order;
  if (options_.index_space == KEYSIEVE_INDEX_SLOT) {
    problem.num_requests = replay_.slot_table.shape[0];
    problem.pages_per_request = replay_.slot_table.shape[1];
    problem.slot_page_size = replay_.slot_page_size;
    const int64_t requests = std::max<int64_t>(problem.num_requests, 1);
    problem.next_n = std::max<int64_t>((replay_.num_rows + requests - 1) / requests, 1);
  }
  return problem;
}

std::string Session::explain() const {
  const Problem problem = select_problem();
  const keysieve_options library = library_options();
  return keysieve::explain(problem, &library);
}

Session::OutputBuffers Session::make_outputs(int64_t num_rows) const {
  OutputBuffers outputs;
  outputs.indices = DeviceBuffer(*device_, table_bytes<int32_t>(num_rows, options_.topk));
  outputs.row_indices = DeviceBuffer(*device_, table_bytes<int32_t>(num_rows, options_.topk));
  outputs.scores = DeviceBuffer(*device_, table_bytes<float>(num_rows, options_.topk));
  outputs.counts = DeviceBuffer(*device_, table_bytes<int32_t>(num_rows, 1));
  return outputs;
}

void Session::attach_outputs(Tensors& tensors, const OutputBuffers& outputs, int64_t num_rows, bool row_indices) const {
  tensors.indices = make_view(outputs.indices.data(), KEYSIEVE_I32, {num_rows, options_.topk});
  tensors.top_scores = make_view(outputs.scores.data(), KEYSIEVE_F32, {num_rows, options_.topk});
  tensors.out_count = make_view(outputs.counts.data(), KEYSIEVE_I32, {num_rows});
  if (row_indices && options_.index_space != KEYSIEVE_INDEX_ROW) {
    tensors.row_indices = make_view(outputs.row_indices.data(), KEYSIEVE_I32, {num_rows, options_.topk});
  }
}

void Session::run(const Problem& problem, const Tensors& tensors) const {
  const keysieve_options library = library_options();
  require_ok(backend_.name, keysieve_run(&problem, &library, &tensors, device_->stream()));
}

void Session::enqueue_select() {
  run(select_problem(), tensors_);
}

Selection Session::download(const OutputBuffers& outputs, int64_t num_rows, bool row_indices) const {
  Selection selection;
  selection.num_rows = num_rows;
  selection.topk = options_.topk;
  const auto entries = static_cast<size_t>(num_rows * options_.topk);
  selection.indices.resize(entries);
  selection.scores.resize(entries);
  selection.counts.resize(static_cast<size_t>(num_rows));
  outputs.indices.download(selection.indices.data());
  outputs.scores.download(selection.scores.data());
  outputs.counts.download(selection.counts.data());
  if (row_indices && options_.index_space != KEYSIEVE_INDEX_ROW) {
    selection.row_indices.resize(entries);
    outputs.row_indices.download(selection.row_indices.data());
  } else {
    selection.row_indices = selection.indices;
  }
  return selection;
}

Selection Session::select() {
  enqueue_select();
  return download(outputs_, replay_.num_rows, true);
}

std::vector<double> Session::time_select(int warmup, int repeats) {
  constexpr double kShortCallMs = 0.1;
  constexpr int kCallsPerGraph = 64;
  const auto call = [this] { enqueue_select(); };
  double last_ms = 0;
  for (int i = 0; i < std::max(warmup, 1); ++i) {
    last_ms = device_->time_ms(call);
  }
  std::vector<double> samples;
  samples.reserve(static_cast<size_t>(std::max(repeats, 0)));
  for (int i = 0; i < repeats; ++i) {
    samples.push_back(last_ms < kShortCallMs ? device_->time_graph_ms(call, kCallsPerGraph) : device_->time_ms(call));
  }
  return samples;
}

}  // namespace keysieve::cli
