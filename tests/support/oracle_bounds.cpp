// SPDX-License-Identifier: Apache-2.0
// Comparison with the reference: the bound of contract section 1 and the agreement of section 3.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <mutex>

#include "core/bf16.hpp"
#include "core/fp8.hpp"
#include "core/ordering.hpp"
#include "support/accuracy.hpp"
#include "support/oracle.hpp"

namespace keysieve::test {
namespace {

double finite_magnitude(double value) {
  return std::isfinite(value) ? std::fabs(value) : 0;
}

/// |q[h,d]| weighted by |w[h]|, summed over h: [D].
std::vector<double> channel_weights(const Inputs& inputs, int64_t t) {
  const int64_t num_heads = inputs.problem.num_heads;
  const int64_t head_dim = inputs.problem.head_dim;
  const bool bf16 = inputs.problem.q_dtype == KEYSIEVE_BF16;
  const bool q_grouped = is_grouped(inputs.q, 3);
  const int64_t q_row = inputs.q.row_offset(t, q_grouped);
  const int64_t q_head = inputs.q.stride(q_grouped ? 2 : 1);
  const float* weights = inputs.weights.data<float>() + inputs.weights.row_offset(t, is_grouped(inputs.weights, 2));
  std::vector<double> sums(static_cast<size_t>(head_dim), 0);
  for (int64_t h = 0; h < num_heads; ++h) {
    const double weight = finite_magnitude(weights[h]);
    for (int64_t d = 0; d < head_dim; ++d) {
      const int64_t at = q_row + h * q_head + d;
      const float value =
          bf16 ? bf16_to_float(inputs.q.data<uint16_t>()[at]) : e4m3_to_float(inputs.q.data<uint8_t>()[at]);
      sums[d] += weight * finite_magnitude(value);
    }
  }
  return sums;
}

/// Bytes of key `position` of table row `request`, and of its scales; null for a page that does not exist.
struct KeyBytes {
  const uint8_t* key = nullptr;
  const uint8_t* scale = nullptr;
};

KeyBytes key_bytes(const Inputs& inputs, int64_t request, int64_t position) {
  const keysieve_problem& problem = inputs.problem;
  const auto* base = inputs.k.data<uint8_t>();
  if (problem.key_layout != KEYSIEVE_KEYS_PAGED) {
    KeyBytes bytes = {base + position * inputs.k.stride(0) * dtype_bytes(inputs.k.dtype()), nullptr};
    if (inputs.k_scale.present()) {
      bytes.scale =
          inputs.k_scale.data<uint8_t>() + position * inputs.k_scale.stride(0) * dtype_bytes(inputs.k_scale.dtype());
    }
    return bytes;
  }
  const int64_t page = inputs.block_table.value<int32_t>(request, position / KEYSIEVE_PAGE_SIZE);
  if (page < 0 || page >= problem.num_pages) {
    return {};
  }
  const int64_t entry = position % KEYSIEVE_PAGE_SIZE;
  const bool fp4 = problem.k_dtype == KEYSIEVE_MXFP4;
  const int64_t entry_bytes =
      fp4 ? problem.head_dim / 2 : problem.head_dim * (problem.k_dtype == KEYSIEVE_BF16 ? 2 : 1);
  const uint8_t* page_base = base + page * inputs.k.stride(0);
  return {page_base + entry * entry_bytes,
          page_base + KEYSIEVE_PAGE_SIZE * entry_bytes + entry * (fp4 ? problem.head_dim / 32 : 4)};
}

double key_channel(const Inputs& inputs, const KeyBytes& bytes, int64_t d) {
  switch (inputs.problem.k_dtype) {
    case KEYSIEVE_BF16: {
      uint16_t half = 0;
      std::memcpy(&half, bytes.key + 2 * d, sizeof(half));
      return bf16_to_float(half);
    }
    case KEYSIEVE_MXFP4: {
      const uint8_t pair = bytes.key[d / 2];
      const auto nibble = static_cast<uint8_t>(d % 2 == 0 ? pair & 15U : pair >> 4U);
      return double{e2m1_to_float(nibble)} * double{e8m0_to_float(bytes.scale[d / 32])};
    }
    default: return e4m3_to_float(bytes.key[d]);
  }
}

struct WorstRatios {
  std::mutex mutex;
  std::map<std::string, double> by_backend;
};

WorstRatios& worst_ratios() {
  static WorstRatios ratios;
  return ratios;
}

void record_ratio(const std::string& backend, double ratio) {
  WorstRatios& worst = worst_ratios();
  const std::lock_guard<std::mutex> lock(worst.mutex);
  worst.by_backend[backend] = std::max(worst.by_backend[backend], ratio);
}

/// What f32 itself cannot hold: results below its normal range.
constexpr double kUnderflow = 1e-37;

}  // namespace

double worst_accuracy(const std::string& backend) {
  WorstRatios& worst = worst_ratios();
  const std::lock_guard<std::mutex> lock(worst.mutex);
  return worst.by_backend[backend];
}

std::vector<double> bound_sums(const Inputs& inputs, int64_t t) {
  const KeyRange range = key_range(inputs, t);
  const std::vector<double> weights = channel_weights(inputs, t);
  const int64_t request = inputs.problem.key_layout == KEYSIEVE_KEYS_PAGED ? table_row(inputs, t) : 0;
  std::vector<double> sums(static_cast<size_t>(range.width()), 0);
  for (int64_t i = 0; i < range.width(); ++i) {
    const KeyBytes bytes = key_bytes(inputs, request, range.begin + i);
    if (bytes.key == nullptr) {
      continue;
    }
    double sum = 0;
    for (int64_t d = 0; d < inputs.problem.head_dim; ++d) {
      sum += weights[d] * finite_magnitude(key_channel(inputs, bytes, d));
    }
    if (inputs.problem.k_dtype == KEYSIEVE_E4M3) {
      float scale = 0;
      std::memcpy(&scale, bytes.scale, sizeof(scale));
      sum *= finite_magnitude(scale);
    }
    sums[i] = sum;
  }
  return sums;
}

PairScore pair_score(const Inputs& inputs, int64_t t, int64_t i) {
  const keysieve_problem& problem = inputs.problem;
  const int64_t request = problem.key_layout == KEYSIEVE_KEYS_PAGED ? table_row(inputs, t) : 0;
  const KeyBytes bytes = key_bytes(inputs, request, key_range(inputs, t).begin + i);
  if (bytes.key == nullptr) {
    return {std::nan(""), 0};
  }
  float scale = 1;
  if (problem.k_dtype == KEYSIEVE_E4M3) {
    std::memcpy(&scale, bytes.scale, sizeof(scale));
  }
  std::vector<double> key(static_cast<size_t>(problem.head_dim));
  for (int64_t d = 0; d < problem.head_dim; ++d) {
    key[d] = key_channel(inputs, bytes, d);
  }
  const bool q_grouped = is_grouped(inputs.q, 3);
  const float* weights = inputs.weights.data<float>() + inputs.weights.row_offset(t, is_grouped(inputs.weights, 2));
  PairScore out;
  for (int64_t h = 0; h < problem.num_heads; ++h) {
    double dot = 0;
    double magnitude = 0;
    for (int64_t d = 0; d < problem.head_dim; ++d) {
      const int64_t at = inputs.q.row_offset(t, q_grouped) + h * inputs.q.stride(q_grouped ? 2 : 1) + d;
      const float q = problem.q_dtype == KEYSIEVE_BF16 ? bf16_to_float(inputs.q.data<uint16_t>()[at])
                                                       : e4m3_to_float(inputs.q.data<uint8_t>()[at]);
      dot += double{q} * key[d];
      magnitude += finite_magnitude(double{q} * key[d]);
    }
    out.score += double{weights[h]} * (dot < 0 ? 0 : dot);
    out.bound_sum += finite_magnitude(weights[h]) * magnitude;
  }
  out.score *= scale;
  out.bound_sum *= finite_magnitude(scale);
  return out;
}

Tensor reference_scores(const Inputs& inputs, const std::vector<int64_t>& rows) {
  Inputs subset = subset_of_rows(inputs, rows);
  subset.problem.op = KEYSIEVE_SCORE;
  subset.problem.candidates = KEYSIEVE_CANDIDATES_NONE;
  subset.problem.score_dtype = KEYSIEVE_F32;
  subset.problem.score_layout = KEYSIEVE_SCORES_FULL;
  Runner reference("reference");
  Outputs out = reference.run(subset);
  if (out.status != KEYSIEVE_OK) {
    ADD_FAILURE() << "the reference refused: " << out.message;
  }
  return out.scores;
}

std::string check_accuracy(const Inputs& inputs, const Tensor& scores, const std::vector<int64_t>& rows,
                           const std::string& backend) {
  const Tensor expected = reference_scores(inputs, rows);
  const double c = accuracy_constant(backend, inputs.problem.num_heads, inputs.problem.head_dim);
  for (size_t r = 0; r < rows.size(); ++r) {
    const KeyRange range = key_range(inputs, rows[r]);
    const std::vector<double> sums = bound_sums(inputs, rows[r]);
    for (int64_t n = 0; n < inputs.problem.num_keys; ++n) {
      const float score = scores.value<float>(rows[r], n);
      const float reference = expected.value<float>(static_cast<int64_t>(r), n);
      const bool inside = n >= range.begin && n < range.end;
      bool right = false;
      if (!inside || std::isinf(reference)) {
        right = score == reference;
      } else if (std::isnan(reference)) {
        right = std::isnan(score);
      } else {
        const double error = std::fabs(double{score} - double{reference});
        const double sum = sums[n - range.begin];
        right = error <= c * sum + kUnderflow;
        if (sum > 1e-30) {
          record_ratio(backend, error / sum);
        }
      }
      if (!right) {
        return "scores[" + std::to_string(rows[r]) + "," + std::to_string(n) + "] is " + std::to_string(score) +
               ", the reference has " + std::to_string(reference) + ", and c * sum is " +
               std::to_string(inside ? c * sums[n - range.begin] : 0.0);
      }
    }
  }
  return {};
}

std::string check_agreement(const Inputs& inputs, const Tensor& row_indices, const std::vector<int64_t>& rows,
                            const std::string& backend) {
  const Tensor reference = reference_scores(inputs, rows);
  const double c = accuracy_constant(backend, inputs.problem.num_heads, inputs.problem.head_dim);
  const int64_t topk = inputs.problem.topk;
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::string where = "row " + std::to_string(rows[r]) + ": ";
    const KeyRange range = key_range(inputs, rows[r]);
    const int64_t width = range.width();
    const int64_t count = std::min(topk, width);
    std::vector<bool> held(static_cast<size_t>(width), false);
    for (int64_t slot = 0; slot < topk; ++slot) {
      const int64_t key = row_indices.value<int32_t>(rows[r], slot);
      if (slot >= count ? key != -1 : key < 0 || key >= width || held[key]) {
        return where + "slot " + std::to_string(slot) + " holds " + std::to_string(key) + " in a row of " +
               std::to_string(width) + " keys";
      }
      if (slot < count) {
        held[key] = true;
      }
    }
    if (count == width) {
      continue;
    }
    const float* row = reference.data<float>() + static_cast<int64_t>(r) * reference.stride(0) + range.begin;
    std::vector<uint32_t> ordered(static_cast<size_t>(width));
    std::transform(row, row + width, ordered.begin(), ordered_bits);
    std::nth_element(ordered.begin(), ordered.begin() + (count - 1), ordered.end(), std::greater<>());
    const uint32_t kth_bits = ordered[count - 1];
    const double kth = score_of_ordered_bits(kth_bits);
    const std::vector<double> sums = bound_sums(inputs, rows[r]);
    const double e = c * *std::max_element(sums.begin(), sums.end()) + kUnderflow;
    for (int64_t key = 0; key < width; ++key) {
      const double score = row[key];
      const bool fine = held[key] ? ordered_bits(row[key]) >= kth_bits || score >= kth - e
                                  : ordered_bits(row[key]) <= kth_bits || score <= kth + e;
      if (!fine) {
        return where + (held[key] ? "holds key " : "misses key ") + std::to_string(key) + " with reference score " +
               std::to_string(score) + ", the K-th is " + std::to_string(kth) + " and e is " + std::to_string(e);
      }
    }
  }
  return {};
}

}  // namespace keysieve::test
