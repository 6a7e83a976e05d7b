// SPDX-License-Identifier: Apache-2.0
#include "gpu_case.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "checker.hpp"
#include "failure.hpp"
#include "io/agreement.hpp"
#include "session.hpp"

namespace keysieve::bench {
namespace {

constexpr double kShortCallMs = 0.1;
constexpr int kCallsPerGraph = 64;
constexpr size_t kFlushBytes = size_t{256} << 20U;  // several times the L2
constexpr int64_t kSampledRows = 32;

keysieve_tensor table(void* data, int32_t dtype, int64_t rows, int64_t columns) {
  const int64_t shape[] = {rows, columns};
  return view_of(data, dtype, shape);
}

}  // namespace

GpuCase::GpuCase(const Replay& replay, int64_t topk, int32_t device_index)
    : replay_(replay),
      topk_(topk),
      device_index_(device_index),
      device_(cli::open_device(KEYSIEVE_CUDA, device_index)) {
  shared_.q = place(replay.q);
  shared_.k = place(replay.k);
  shared_.k_scale = place(replay.k_scale);
  shared_.weights = place(replay.weights);
  shared_.row_start = place(replay.row_start);
  shared_.row_end = place(replay.row_end);
  scores_ = cli::DeviceBuffer(
      *device_, static_cast<size_t>(replay.num_rows) * static_cast<size_t>(replay.num_keys) * sizeof(float));
  stats_ = cli::DeviceBuffer(*device_, KEYSIEVE_NUM_STATS * sizeof(uint64_t));
  flush_ = cli::DeviceBuffer(*device_, kFlushBytes);
  for (const keysieve_op op : {KEYSIEVE_SCORE_SELECT, KEYSIEVE_SCORE, KEYSIEVE_SELECT}) {
    steps_.push_back(unsupported(op).empty() ? std::make_unique<Step>(make_step(op)) : nullptr);
  }
}

keysieve_tensor GpuCase::place(const keysieve_tensor& tensor) {
  keysieve_tensor placed = tensor;
  if (tensor.rank > 0) {
    inputs_.emplace_back(*device_, cli::tensor_bytes(tensor));
    inputs_.back().upload(tensor.data);
    placed.data = inputs_.back().data();
  }
  return placed;
}

std::string GpuCase::unsupported(keysieve_op op) const {
  Problem problem = cli::problem_of(replay_, op, replay_.num_rows);
  problem.device_type = KEYSIEVE_CUDA;
  problem.device_index = device_index_;
  problem.topk = topk_;
  return unsupported_reason(problem);
}

std::string GpuCase::explain(keysieve_op op) const {
  const auto& made = steps_[static_cast<size_t>(op)];
  return made ? keysieve::explain(made->problem) : std::string();
}

GpuCase::Step GpuCase::make_step(keysieve_op op) {
  Step made;
  made.problem = cli::problem_of(replay_, op, replay_.num_rows);
  made.problem.device_type = KEYSIEVE_CUDA;
  made.problem.device_index = device_index_;
  made.problem.topk = topk_;
  made.workspace = cli::DeviceBuffer(*device_, std::max<size_t>(workspace_size(made.problem).preferred_bytes, 1));
  made.tensors = shared_;
  made.tensors.workspace = made.workspace.data();
  made.tensors.workspace_bytes = made.workspace.bytes();
  if (op == KEYSIEVE_SELECT) {
    made.tensors.q = made.tensors.k = made.tensors.k_scale = made.tensors.weights = {};
  }
  if (op != KEYSIEVE_SCORE_SELECT) {
    made.tensors.scores = table(scores_.data(), KEYSIEVE_F32, replay_.num_rows, replay_.num_keys);
  }
  if (op != KEYSIEVE_SCORE) {
    made.indices = cli::DeviceBuffer(*device_, static_cast<size_t>(replay_.num_rows * topk_) * sizeof(int32_t));
    made.tensors.indices = table(made.indices.data(), KEYSIEVE_I32, replay_.num_rows, topk_);
  }
  return made;
}

GpuCase::Step& GpuCase::step(keysieve_op op) {
  const auto& made = steps_[static_cast<size_t>(op)];
  if (!made) {
    throw cli::Failure(cli::kExitUnavailable, "bench", unsupported(op));
  }
  return *made;
}

void GpuCase::enqueue(keysieve_op op) {
  const Step& made = step(op);
  keysieve::run(made.problem, made.tensors, nullptr, device_->stream());
}

double GpuCase::sample_ms(const std::vector<keysieve_op>& ops, bool flushed) {
  const auto calls = [&] {
    for (const keysieve_op op : ops) {
      enqueue(op);
    }
  };
  const auto flush = [&] { device_->fill(flush_.data(), 0, flush_.bytes()); };
  if (flushed) {
    const double both = device_->time_graph_ms([&] { flush(), calls(); }, kCallsPerGraph);
    return std::max(0.0, both - device_->time_graph_ms(flush, kCallsPerGraph));
  }
  const double eager_ms = device_->time_ms(calls);
  return device_->time_graph_ms(calls, eager_ms < kShortCallMs ? kCallsPerGraph : 1);
}

std::vector<int32_t> GpuCase::indices_of(keysieve_op op) {
  const Step& made = step(op);
  std::vector<int32_t> indices(static_cast<size_t>(replay_.num_rows * topk_), INT32_MIN);
  device_->upload(made.indices.data(), indices.data(), made.indices.bytes());  // what is not written shows
  enqueue(op);
  made.indices.download(indices.data());
  return indices;
}

std::vector<float> GpuCase::score_row(int64_t row) {
  std::vector<float> scores(static_cast<size_t>(replay_.num_keys));
  const auto* device_row = static_cast<const float*>(scores_.data()) + row * replay_.num_keys;
  device_->download(scores.data(), device_row, scores.size() * sizeof(float));
  return scores;
}

bool GpuCase::select_is_exact() {
  device_->time_ms([&] { enqueue(KEYSIEVE_SCORE); });
  const std::vector<int32_t> indices = indices_of(KEYSIEVE_SELECT);
  for (const int64_t row : cli::spread_rows(replay_.num_rows, kSampledRows)) {
    const cli::KeyRange range = cli::key_range(replay_, row);
    const std::vector<float> scores = score_row(row);
    std::vector<int32_t> best(static_cast<size_t>(range.width()));
    std::iota(best.begin(), best.end(), 0);
    const auto count = static_cast<size_t>(std::min(topk_, range.width()));
    const auto before = [&](int32_t a, int32_t b) {
      const float score_a = scores[static_cast<size_t>(range.begin + a)];
      const float score_b = scores[static_cast<size_t>(range.begin + b)];
      return score_a != score_b ? score_a > score_b : a < b;  // the benchmark's data holds no NaN
    };
    std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(count), best.end(), before);
    best.resize(count);
    std::sort(best.begin(), best.end());
    best.resize(static_cast<size_t>(topk_), -1);
    if (!std::equal(best.begin(), best.end(), indices.begin() + row * topk_)) {
      return false;
    }
  }
  return true;
}

bool GpuCase::fused_is_select() {
  device_->time_ms([&] { enqueue(KEYSIEVE_SCORE); });
  return indices_of(KEYSIEVE_SCORE_SELECT) == indices_of(KEYSIEVE_SELECT);
}

bool GpuCase::scores_are_close() {
  device_->time_ms([&] { enqueue(KEYSIEVE_SCORE); });
  const ErrorBound bound(replay_.q, replay_.k, replay_.k_scale, replay_.weights, replay_.k_dtype);
  const double constant = accuracy_constant("cuda", replay_.num_heads, replay_.head_dim);
  const int64_t row = replay_.num_rows - 1;
  const cli::KeyRange range = cli::key_range(replay_, row);
  const double error = constant * bound.row(row, range.begin, range.end);
  const std::vector<float> reference = cli::reference_scores(replay_, row);
  const std::vector<float> scores = score_row(row);
  for (int64_t n = range.begin; n < range.end; ++n) {
    const auto at = static_cast<size_t>(n);
    if (!(std::fabs(double{scores[at]} - double{reference[at]}) <= error)) {
      return false;
    }
  }
  return true;
}

uint64_t GpuCase::repaired_rows() {
  uint64_t stats[KEYSIEVE_NUM_STATS] = {};
  stats_.upload(stats);
  Tensors tensors = step(KEYSIEVE_SCORE_SELECT).tensors;
  const int64_t shape[] = {KEYSIEVE_NUM_STATS};
  tensors.stats = view_of(stats_.data(), KEYSIEVE_U64, shape);
  keysieve::run(step(KEYSIEVE_SCORE_SELECT).problem, tensors, nullptr, device_->stream());
  stats_.download(stats);
  return stats[0];
}

}  // namespace keysieve::bench
