// SPDX-License-Identifier: Apache-2.0
// The contract as written: double sums, a stable sort, no tricks.  Every other backend is tested against this
// one, so it is never optimised.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "core/backend.hpp"
#include "core/bf16.hpp"
#include "core/fp8.hpp"
#include "core/ordering.hpp"

namespace keysieve {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

/// One key of one row: its channels and their scales in memory.
struct KeyView {
  const uint8_t* bytes = nullptr;   // null: the page id is out of range
  const uint8_t* scales = nullptr;  // f32 for e4m3, e8m0 groups for MXFP4
};

KeyView key_view(const Call& call, int64_t request, int64_t position) {
  const Problem& problem = call.problem;
  const auto* base = static_cast<const uint8_t*>(call.k);
  const auto* scale_base = static_cast<const uint8_t*>(call.k_scale);
  if (!problem.paged) {
    const int64_t element_bytes = problem.k_dtype == Dtype::kBf16 ? 2 : 1;
    const int64_t scale_bytes = problem.k_dtype == Dtype::kE4m3 ? 4 : 1;
    return {base + position * call.k_stride * element_bytes, scale_base + position * call.k_scale_stride * scale_bytes};
  }
  const int64_t page = call.block_table[request * call.block_table_stride + position / KEYSIEVE_PAGE_SIZE];
  if (page < 0 || page >= problem.num_pages) {
    return {};
  }
  const int64_t entry = position % KEYSIEVE_PAGE_SIZE;
  const int64_t plane_bytes = page_key_bytes(problem.k_dtype, problem.head_dim);
  const int64_t scale_bytes = problem.k_dtype == Dtype::kE4m3 ? 4 : problem.head_dim / 32;
  const uint8_t* page_base = base + page * call.k_stride;
  return {page_base + entry * (plane_bytes / KEYSIEVE_PAGE_SIZE), page_base + plane_bytes + entry * scale_bytes};
}

double key_channel(const Problem& problem, const KeyView& key, int64_t d) {
  switch (problem.k_dtype) {
    case Dtype::kBf16: {
      uint16_t half;
      std::memcpy(&half, key.bytes + 2 * d, sizeof(half));
      return bf16_to_float(half);
    }
    case Dtype::kMxfp4: {
      const uint8_t byte = key.bytes[d / 2];
      const auto nibble = static_cast<uint8_t>(d % 2 == 0 ? byte & 15U : byte >> 4U);
      return double{e2m1_to_float(nibble)} * double{e8m0_to_float(key.scales[d / 32])};
    }
    default: return e4m3_to_float(key.bytes[d]);
  }
}

/// Row t of q as doubles, [H,D].
std::vector<double> query_row(const Call& call, int64_t t) {
  const Problem& problem = call.problem;
  std::vector<double> query(problem.num_heads * problem.head_dim);
  for (int64_t h = 0; h < problem.num_heads; ++h) {
    for (int64_t d = 0; d < problem.head_dim; ++d) {
      const int64_t offset = call.q_row(t) + h * call.q_head_stride + d;
      query[h * problem.head_dim + d] = problem.q_dtype == Dtype::kBf16
                                            ? bf16_to_float(static_cast<const uint16_t*>(call.q)[offset])
                                            : e4m3_to_float(static_cast<const uint8_t*>(call.q)[offset]);
    }
  }
  return query;
}

double relu(double x) {
  return x < 0 ? 0 : x;
}  // NaN stays NaN

float score_pair(const Problem& problem, const std::vector<double>& query, const float* weights, const KeyView& key) {
  if (key.bytes == nullptr) {
    return static_cast<float>(kNan);
  }
  std::vector<double> channels(problem.head_dim);
  for (int64_t d = 0; d < problem.head_dim; ++d) {
    channels[d] = key_channel(problem, key, d);
  }
  double sum = 0;
  for (int64_t h = 0; h < problem.num_heads; ++h) {
    double dot = 0;
    for (int64_t d = 0; d < problem.head_dim; ++d) {
      dot += query[h * problem.head_dim + d] * channels[d];
    }
    sum += double{weights[h]} * relu(dot);
  }
  if (problem.k_dtype == Dtype::kE4m3) {
    float scale;
    std::memcpy(&scale, key.scales, sizeof(scale));
    sum *= double{scale};
  }
  return static_cast<float>(sum);
}

float given_score(const Call& call, int64_t t, int64_t column) {
  const int64_t offset = t * call.score_row_stride + column;
  return call.problem.score_dtype == Dtype::kBf16 ? bf16_to_float(static_cast<const uint16_t*>(call.scores)[offset])
                                                  : static_cast<const float*>(call.scores)[offset];
}

/// Scores of a row's keys, [width]: computed, or read from `scores` if the operation is select.
std::vector<float> row_scores(const Call& call, int64_t t, RowRange range) {
  std::vector<float> scores(range.width());
  if (!call.problem.scores_keys()) {
    for (int64_t i = 0; i < range.width(); ++i) {
      scores[i] = given_score(call, t, call.problem.compact_scores ? i : range.begin + i);
    }
    return scores;
  }
  const std::vector<double> query = query_row(call, t);
  const int64_t request = call.problem.paged ? request_of_row(call, t) : 0;
  for (int64_t i = 0; i < range.width(); ++i) {
    scores[i] = score_pair(call.problem, query, call.weights.row(t), key_view(call, request, range.begin + i));
  }
  return scores;
}

void store_scores(const Call& call, int64_t t, RowRange range) {
  const std::vector<float> scores = row_scores(call, t, range);
  const int64_t first = call.problem.compact_scores ? 0 : range.begin;
  for (int64_t column = 0; column < call.problem.score_width; ++column) {
    const bool inside = column >= first && column - first < range.width();
    const float score = inside ? scores[column - first] : kNegativeInfinity;
    const int64_t offset = t * call.score_row_stride + column;
    if (call.problem.score_dtype == Dtype::kBf16) {
      static_cast<uint16_t*>(call.scores)[offset] = float_to_bf16(score);
    } else {
      static_cast<float*>(call.scores)[offset] = score;
    }
  }
}

/// Ids of the `count` best blocks of a row, ascending; the newest block counts and always stays.
std::vector<int64_t> best_blocks(const std::vector<float>& scores, int64_t block_keys, int64_t count) {
  const auto width = static_cast<int64_t>(scores.size());
  const int64_t num_blocks = (width + block_keys - 1) / block_keys;
  std::vector<uint32_t> best(num_blocks, kOrderedNan);
  for (int64_t i = 0; i < width; ++i) {
    best[i / block_keys] = std::max(best[i / block_keys], ordered_bits(scores[i]));
  }
  std::vector<int64_t> ids(num_blocks);
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) {
    const bool newest_a = a == num_blocks - 1;
    const bool newest_b = b == num_blocks - 1;
    return newest_a != newest_b ? newest_a : best[a] > best[b];
  });
  ids.resize(std::min(count, num_blocks));
  std::sort(ids.begin(), ids.end());
  return ids;
}

void publish_blocks(const Call& call, int64_t t, const std::vector<float>& scores) {
  const std::vector<int64_t> ids = best_blocks(scores, call.problem.cand_block, call.problem.cand_count);
  for (int64_t i = 0; i < call.problem.cand_count; ++i) {
    call.cand_out.row(t)[i] = i < static_cast<int64_t>(ids.size()) ? static_cast<int32_t>(ids[i]) : -1;
  }
}

/// Row-relative keys that may be picked, ascending.
std::vector<int64_t> eligible_keys(const Call& call, int64_t t, int64_t width) {
  std::vector<int64_t> keys;
  if (call.problem.candidates != Candidates::kConsume) {
    keys.resize(width);
    std::iota(keys.begin(), keys.end(), 0);
    return keys;
  }
  const int64_t block_keys = call.problem.cand_block;
  int64_t previous = -1;
  for (int64_t i = 0; i < call.problem.cand_count; ++i) {
    const int64_t block = call.cand_in.row(t)[i];
    if (block <= previous) {  // -1 ends the list; a list that is not ascending is cut where it breaks
      break;
    }
    for (int64_t key = block * block_keys; key < std::min((block + 1) * block_keys, width); ++key) {
      keys.push_back(key);
    }
    previous = block;
  }
  return keys;
}

void select_row(const Call& call, int64_t t) {
  const Problem& problem = call.problem;
  const RowRange range = row_range(call, t);
  const std::vector<float> scores = row_scores(call, t, range);
  if (problem.candidates == Candidates::kPublish) {
    publish_blocks(call, t, scores);
  }

  std::vector<int64_t> picked = eligible_keys(call, t, range.width());
  std::stable_sort(picked.begin(), picked.end(),
                   [&](int64_t a, int64_t b) { return ordered_bits(scores[a]) > ordered_bits(scores[b]); });
  picked.resize(std::min<size_t>(picked.size(), problem.topk));
  if (problem.order != Order::kScore) {
    std::sort(picked.begin(), picked.end());
  }

  const auto count = static_cast<int64_t>(picked.size());
  for (int64_t slot = 0; slot < problem.topk; ++slot) {
    const bool filled = slot < count;
    const int64_t key = filled ? picked[slot] : -1;
    call.indices.row(t)[slot] = filled ? output_index(call, t, range.begin, range.begin + key) : -1;
    if (call.top_scores) {
      call.top_scores.row(t)[slot] = filled ? scores[key] : kNegativeInfinity;
    }
    if (call.row_indices) {
      call.row_indices.row(t)[slot] = static_cast<int32_t>(key);
    }
  }
  if (call.out_count) {
    *call.out_count.row(t) = static_cast<int32_t>(count);
  }
  if (call.stats != nullptr) {
    call.stats[1 * call.stats_stride] += static_cast<uint64_t>(count);
  }
}

class ReferenceBackend final : public Backend {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "reference"; }
  [[nodiscard]] DeviceType device_type() const noexcept override { return DeviceType::kCpu; }
  [[nodiscard]] Status available() const noexcept override { return {}; }
  void describe(char* text, size_t capacity) const noexcept override {
    std::snprintf(text, capacity, "double sums and a stable sort, for checking");
  }
  [[nodiscard]] Status supports(const Problem& /*problem*/, const Options& options) const noexcept override {
    if (options.config != nullptr) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                           "options.config is \"%s\": the reference backend has no configurations", options.config);
    }
    return {};
  }
  [[nodiscard]] WorkspaceSize workspace_size(const Problem& /*problem*/,
                                             const Options& /*options*/) const noexcept override {
    return {};
  }
  void explain(const Problem& /*problem*/, const Options& /*options*/, char* text,
               size_t capacity) const noexcept override {
    std::snprintf(text, capacity, "reference");
  }

  // Host memory for a row comes from the heap here: this backend is for checking, not for serving.
  [[nodiscard]] Status run(const Call& call) const noexcept override {
    try {
      for (int64_t t = 0; t < call.problem.num_rows; ++t) {
        if (call.problem.selects()) {
          select_row(call, t);
        } else {
          store_scores(call, t, row_range(call, t));
        }
      }
    } catch (const std::exception& error) {
      return Status::error(KEYSIEVE_INTERNAL, "reference backend: %s", error.what());
    }
    return {};
  }
};

}  // namespace

const Backend& reference_backend() noexcept {
  static const ReferenceBackend kBackend;
  return kBackend;
}

}  // namespace keysieve
