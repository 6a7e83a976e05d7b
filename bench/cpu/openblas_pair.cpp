// SPDX-License-Identifier: Apache-2.0
#include "cpu/openblas_pair.hpp"

#include <algorithm>
#include <cblas.h>
#include <chrono>
#include <functional>
#include <thread>

#include "core/ordering.hpp"

namespace keysieve::bench {
namespace {

constexpr int64_t kReduceKeys = 2048;  // sums that stay in a core's first-level cache

// One copy for every instruction set, so that the baseline is vectorised as well as the library is.
#if defined(__x86_64__)
#define KEYSIEVE_VECTORISED __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define KEYSIEVE_VECTORISED
#endif

/// scores[n] = k_scale[n] * sum_h weights[h] * max(products[h][n], 0) for n < count.
KEYSIEVE_VECTORISED
void reduce_heads(const float* products, int64_t stride, const float* weights, int64_t num_heads, const float* k_scale,
                  int64_t count, float* __restrict scores) {
  std::fill_n(scores, count, 0.0F);
  for (int64_t h = 0; h < num_heads; ++h) {
    const float* row = products + h * stride;
    const float weight = weights[h];
    for (int64_t n = 0; n < count; ++n) {
      scores[n] += weight * (row[n] > 0 ? row[n] : 0.0F);
    }
  }
  for (int64_t n = 0; n < count; ++n) {
    scores[n] *= k_scale[n];
  }
}

/// body(first, last) on equal shares of [0, count).
template <class Body>
void split(int threads, int64_t count, const Body& body) {
  std::vector<std::thread> others;
  for (int64_t i = 1; i < threads; ++i) {
    others.emplace_back(body, count * i / threads, count * (i + 1) / threads);
  }
  body(int64_t{0}, count / threads);
  for (std::thread& other : others) {
    other.join();
  }
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

OpenblasPair::OpenblasPair(const OpenblasPairInputs& inputs, int64_t product_bytes) : inputs_(inputs) {
  const int64_t row_bytes = inputs.num_heads * inputs.num_keys * static_cast<int64_t>(sizeof(float));
  chunk_rows_ = std::clamp<int64_t>(product_bytes / std::max<int64_t>(row_bytes, 1), 1, inputs.num_rows);
  products_.resize(static_cast<size_t>(chunk_rows_ * inputs.num_heads * inputs.num_keys));
  scores_.resize(static_cast<size_t>(chunk_rows_ * inputs.num_keys));
}

OpenblasPairTimes OpenblasPair::run(int32_t* indices) {
  OpenblasPairTimes times;
  for (int64_t first = 0; first < inputs_.num_rows; first += chunk_rows_) {
    const int64_t rows = std::min(chunk_rows_, inputs_.num_rows - first);
    auto start = std::chrono::steady_clock::now();
    multiply(first, rows);
    times.gemm_ms += milliseconds_since(start);
    start = std::chrono::steady_clock::now();
    reduce(first, rows);
    times.reduce_ms += milliseconds_since(start);
    start = std::chrono::steady_clock::now();
    select(first, rows, indices + first * inputs_.topk);
    times.select_ms += milliseconds_since(start);
  }
  return times;
}

void OpenblasPair::multiply(int64_t first_row, int64_t num_rows) {
  openblas_set_num_threads(inputs_.threads);
  const auto m = static_cast<blasint>(num_rows * inputs_.num_heads);
  const auto n = static_cast<blasint>(inputs_.num_keys);
  const auto d = static_cast<blasint>(inputs_.head_dim);
  const float* q = inputs_.q + first_row * inputs_.num_heads * inputs_.head_dim;
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, d, 1.0F, q, d, inputs_.k, d, 0.0F, products_.data(), n);
}

void OpenblasPair::reduce(int64_t first_row, int64_t num_rows) {
  const int64_t num_keys = inputs_.num_keys;
  split(inputs_.threads, num_rows, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* weights = inputs_.weights + (first_row + row) * inputs_.num_heads;
      for (int64_t n = 0; n < num_keys; n += kReduceKeys) {
        const float* products = products_.data() + row * inputs_.num_heads * num_keys + n;
        reduce_heads(products, num_keys, weights, inputs_.num_heads, inputs_.k_scale + n,
                     std::min(kReduceKeys, num_keys - n), scores_.data() + row * num_keys + n);
      }
    }
  });
}

void OpenblasPair::select(int64_t /*first_row*/, int64_t num_rows, int32_t* indices) {
  const int64_t num_keys = inputs_.num_keys;
  split(inputs_.threads, num_rows, [&](int64_t first, int64_t last) {
    std::vector<uint64_t> ranks(static_cast<size_t>(num_keys));
    for (int64_t row = first; row < last; ++row) {
      for (int64_t n = 0; n < num_keys; ++n) {
        const uint64_t ordered = ordered_bits(scores_[row * num_keys + n]);
        ranks[n] = ordered << 32U | static_cast<uint32_t>(~n);
      }
      std::nth_element(ranks.begin(), ranks.begin() + inputs_.topk - 1, ranks.end(), std::greater<>());
      for (int64_t i = 0; i < inputs_.topk; ++i) {
        indices[row * inputs_.topk + i] = static_cast<int32_t>(static_cast<uint32_t>(~ranks[i]));
      }
    }
  });
}

const char* openblas_core_name() {
  return openblas_get_corename();
}

}  // namespace keysieve::bench
