// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/bf16.hpp"
#include "core/fp8.hpp"
#include "io/agreement.hpp"

namespace keysieve {
namespace {

double magnitude_or_zero(float value) {
  return std::isfinite(value) ? std::fabs(static_cast<double>(value)) : 0.0;
}

/// |value| of all 256 bytes as e4m3.
const double* e4m3_magnitudes() {
  static const std::vector<double> kTable = [] {
    std::vector<double> table(256);
    for (int byte = 0; byte < 256; ++byte) {
      table[static_cast<size_t>(byte)] = magnitude_or_zero(e4m3_to_float(static_cast<uint8_t>(byte)));
    }
    return table;
  }();
  return kTable.data();
}

double magnitude_at(const keysieve_tensor& tensor, int64_t element) {
  switch (tensor.dtype) {
    case KEYSIEVE_E4M3: return e4m3_magnitudes()[static_cast<const uint8_t*>(tensor.data)[element]];
    case KEYSIEVE_BF16: return magnitude_or_zero(bf16_to_float(static_cast<const uint16_t*>(tensor.data)[element]));
    default: return magnitude_or_zero(static_cast<const float*>(tensor.data)[element]);
  }
}

/// Views of q [B,next_n,H,D] and weights [B,next_n,H] are taken as rows too.
int64_t row_offset(const keysieve_tensor& tensor, int64_t t, int32_t row_axes) {
  return row_axes == 1 ? t * tensor.stride[0]
                       : t / tensor.shape[1] * tensor.stride[0] + t % tensor.shape[1] * tensor.stride[1];
}

}  // namespace

ErrorBound::ErrorBound(const keysieve_tensor& q, const keysieve_tensor& k, const keysieve_tensor& k_scale,
                       const keysieve_tensor& weights, int32_t k_dtype)
    : q_(q), k_(k), k_scale_(k_scale), weights_(weights), k_dtype_(k_dtype) {}

double ErrorBound::key_sum(int64_t n, const std::vector<double>& channel_weight) const {
  const auto head_dim = static_cast<int64_t>(channel_weight.size());
  double sum = 0;
  if (k_dtype_ == KEYSIEVE_MXFP4) {
    const auto* bytes = static_cast<const uint8_t*>(k_.data) + n * k_.stride[0];
    const auto* scales = static_cast<const uint8_t*>(k_scale_.data) + n * k_scale_.stride[0];
    for (int64_t d = 0; d < head_dim; ++d) {
      const auto nibble = static_cast<uint8_t>(d % 2 == 0 ? bytes[d / 2] & 15U : bytes[d / 2] >> 4U);
      const double scale = magnitude_or_zero(e8m0_to_float(scales[d / 32 * k_scale_.stride[1]]));
      sum += channel_weight[static_cast<size_t>(d)] * magnitude_or_zero(e2m1_to_float(nibble)) * scale;
    }
    return sum;
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    sum += channel_weight[static_cast<size_t>(d)] * magnitude_at(k_, n * k_.stride[0] + d);
  }
  return k_dtype_ == KEYSIEVE_E4M3 ? sum * magnitude_at(k_scale_, n * k_scale_.stride[0]) : sum;
}

double ErrorBound::row(int64_t t, int64_t begin, int64_t end) const {
  const int32_t row_axes = q_.rank - 2;
  const int64_t num_heads = q_.shape[row_axes];
  const int64_t head_dim = q_.shape[row_axes + 1];
  const int64_t q_row = row_offset(q_, t, row_axes);
  const int64_t w_row = row_offset(weights_, t, row_axes);
  std::vector<double> channel_weight(static_cast<size_t>(head_dim), 0.0);
  for (int64_t h = 0; h < num_heads; ++h) {
    const double weight = magnitude_at(weights_, w_row + h * weights_.stride[row_axes]);
    for (int64_t d = 0; d < head_dim; ++d) {
      channel_weight[static_cast<size_t>(d)] += weight * magnitude_at(q_, q_row + h * q_.stride[row_axes] + d);
    }
  }
  double bound = 0;
  for (int64_t n = begin; n < end; ++n) {
    bound = std::max(bound, key_sum(n, channel_weight));
  }
  return bound;
}

}  // namespace keysieve
