// SPDX-License-Identifier: Apache-2.0
// score on CUDA against a float64 reference, through the C ABI: what the kernel's own layout, schedule and order of
// sums could get wrong.  Needs a Hopper GPU; skips where there is none.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/bf16.hpp"
#include "core/fp8.hpp"
#include "keysieve/keysieve.h"

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr double kErrorBound = 1.0 / 1024;  // random operands; the measured worst is 2^-11.9

/// c of the contract's bound for any finite operands (docs/score_sm90.md).
constexpr double error_bound(int64_t dim) {
  return static_cast<double>(dim + dim / 32) / 8192;
}

bool have_cuda() {
  for (int32_t i = 0; i < keysieve_backend_count(); ++i) {
    keysieve_backend_info info = {};
    info.struct_size = sizeof(info);
    if (keysieve_get_backend(i, &info) == KEYSIEVE_OK && std::string(info.name) == "cuda") {
      return info.available != 0;
    }
  }
  return false;
}

/// Device memory with a guard of poison around the values.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_EQ(cudaSuccess, cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(count, 1) * sizeof(T)));
    EXPECT_EQ(cudaSuccess, cudaMemset(data_, 0x7B, count * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { write(values); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  void write(const std::vector<T>& values) {
    EXPECT_EQ(cudaSuccess, cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  [[nodiscard]] T* data() const { return data_; }

 private:
  size_t count_;
  T* data_ = nullptr;
};

/// Decoded once: references decode billions of bytes.
float e4m3_value(uint8_t byte) {
  static const std::vector<float> kValues = [] {
    std::vector<float> values(256);
    for (size_t i = 0; i < 256; ++i) {
      values[i] = keysieve::e4m3_to_float(static_cast<uint8_t>(i));
    }
    return values;
  }();
  return kValues[byte];
}

struct Shape {
  int64_t rows = 1;
  int64_t keys = 1;
  int64_t heads = 64;
  int64_t dim = 128;
};

enum class Values { kNormal, kSmallIntegers };

/// Operands on the host, dense.
struct Operands {
  Shape shape;
  std::vector<uint8_t> q, k;
  std::vector<float> scale, weights;
  std::vector<int32_t> begin, end;  // may be empty: absent

  Operands(const Shape& shape_in, Values values, uint32_t seed) : shape(shape_in) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    // e4m3 codes of -2..2 and random finite codes.
    constexpr uint8_t kIntegers[] = {0x00, 0x38, 0x40, 0xB8, 0xC0};
    const auto random_byte = [&] {
      if (values == Values::kSmallIntegers) {
        return kIntegers[generator() % 5];
      }
      const auto byte = static_cast<uint8_t>(generator());
      return (byte & 0x7FU) == 0x7FU ? uint8_t{0x30} : byte;
    };
    q.resize(static_cast<size_t>(shape.rows * shape.heads * shape.dim));
    k.resize(static_cast<size_t>(shape.keys * shape.dim));
    std::generate(q.begin(), q.end(), random_byte);
    std::generate(k.begin(), k.end(), random_byte);
    scale.resize(static_cast<size_t>(shape.keys));
    weights.resize(static_cast<size_t>(shape.rows * shape.heads));
    std::generate(scale.begin(), scale.end(), [&] { return 0.01F * normal(generator); });
    std::generate(weights.begin(), weights.end(), [&] { return normal(generator); });
  }

  void random_ranges(uint32_t seed) {
    std::mt19937 generator(seed);
    const auto span = static_cast<uint32_t>(shape.keys + 60);
    for (int64_t t = 0; t < shape.rows; ++t) {
      begin.push_back(static_cast<int32_t>(generator() % span) - 30);
      end.push_back(static_cast<int32_t>(generator() % span) - 30);
      if (generator() % 4 != 0 && begin.back() > end.back()) {
        std::swap(begin.back(), end.back());
      }
    }
  }

  [[nodiscard]] int64_t row_begin(int64_t t) const {
    return begin.empty() ? 0 : std::clamp<int64_t>(begin[static_cast<size_t>(t)], 0, shape.keys);
  }
  [[nodiscard]] int64_t row_end(int64_t t) const {
    const int64_t last = end.empty() ? shape.keys : std::clamp<int64_t>(end[static_cast<size_t>(t)], 0, shape.keys);
    return std::max(last, row_begin(t));
  }

  /// Exact score and the scale of its permitted error.
  void reference(int64_t t, int64_t n, double* score, double* magnitude) const {
    *score = 0;
    *magnitude = 0;
    for (int64_t h = 0; h < shape.heads; ++h) {
      double dot = 0;
      double absolute = 0;
      for (int64_t d = 0; d < shape.dim; ++d) {
        const double product = double{e4m3_value(q[static_cast<size_t>((t * shape.heads + h) * shape.dim + d)])} *
                               double{e4m3_value(k[static_cast<size_t>(n * shape.dim + d)])};
        dot += product;
        absolute += std::fabs(product);
      }
      const double weight = weights[static_cast<size_t>(t * shape.heads + h)];
      *score += weight * (dot > 0 || std::isnan(dot) ? dot : 0.0);
      *magnitude += std::fabs(weight) * absolute;
    }
    *score *= scale[static_cast<size_t>(n)];
    *magnitude *= std::fabs(scale[static_cast<size_t>(n)]);
  }

  /// The documented order of float sums, for exact dots (device/tile.cuh).
  [[nodiscard]] float ordered_score(int64_t t, int64_t n) const {
    const auto relu_dot = [&](int64_t h) {
      float dot = 0;
      for (int64_t d = 0; d < shape.dim; ++d) {
        dot += e4m3_value(q[static_cast<size_t>((t * shape.heads + h) * shape.dim + d)]) *
               e4m3_value(k[static_cast<size_t>(n * shape.dim + d)]);
      }
      return std::max(dot, 0.0F);
    };
    const auto weight_of = [&](int64_t h) { return weights[static_cast<size_t>(t * shape.heads + h)]; };
    const auto chain_sum = [&](int64_t first_head, int64_t step) {
      const int64_t second_head = first_head + step;
      if (second_head >= shape.heads) {
        return relu_dot(first_head) * weight_of(first_head);
      }
      float sum = relu_dot(second_head) * weight_of(second_head);
      sum = std::fmaf(relu_dot(first_head), weight_of(first_head), sum);
      for (int64_t h = second_head + step; h < shape.heads; h += step) {
        sum = std::fmaf(relu_dot(h), weight_of(h), sum);
      }
      return sum;
    };
    const float key_scale = scale[static_cast<size_t>(n)];
    const auto four = [&](int64_t first, int64_t between, int64_t step) {
      float z[4];
      for (int64_t c = 0; c < 4; ++c) {
        z[c] = (chain_sum(first + between * c, step) + chain_sum(first + between * c + 1, step)) * key_scale;
      }
      return (z[0] + z[1]) + (z[2] + z[3]);
    };
    return shape.heads == 128 ? four(0, 4, 16) + four(2, 4, 16) : four(0, 2, 8);
  }
};

/// How the operands lie in device memory and what is asked for.
struct Layout {
  bool bf16 = false;
  int64_t compact_width = 0;  // 0: full
  int64_t q_head_pad = 0, q_row_pad = 0, k_pad = 0, score_pad = 0;
  int64_t scale_stride = 1;
  bool shared_weights = false;  // a stride of 0: every row has row 0's weights
  int64_t next_n = 0;           // > 0: q is [B, next_n, H, D] with a gap after each group
  int32_t sm_limit = 0;
};

keysieve_tensor tensor(void* data, int32_t dtype, std::vector<int64_t> shape, std::vector<int64_t> stride) {
  keysieve_tensor result = {};
  result.data = data;
  result.dtype = dtype;
  result.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), result.shape);
  std::copy(stride.begin(), stride.end(), result.stride);
  return result;
}

/// A call with its device memory.
class ScoreCall {
 public:
  ScoreCall(const Operands& operands, const Layout& layout)
      : operands_(operands),
        layout_(layout),
        columns_(layout.compact_width > 0 ? layout.compact_width : operands.shape.keys),
        row_stride_(columns_ + layout.score_pad),
        q_(strided_q()),
        k_(strided_k()),
        scale_(strided_scale()),
        weights_(operands.weights),
        begin_(operands.begin),
        end_(operands.end),
        scores_(static_cast<size_t>(operands.shape.rows * row_stride_) * (layout.bf16 ? 2 : 4)) {
    const Shape& s = operands.shape;
    problem_.struct_size = sizeof(problem_);
    problem_.op = KEYSIEVE_SCORE;
    problem_.device_type = KEYSIEVE_CUDA;
    problem_.num_rows = s.rows;
    problem_.num_heads = s.heads;
    problem_.head_dim = s.dim;
    problem_.num_keys = s.keys;
    problem_.q_dtype = KEYSIEVE_E4M3;
    problem_.k_dtype = KEYSIEVE_E4M3;
    problem_.score_dtype = layout.bf16 ? KEYSIEVE_BF16 : KEYSIEVE_F32;
    problem_.score_layout = layout.compact_width > 0 ? KEYSIEVE_SCORES_COMPACT : KEYSIEVE_SCORES_FULL;
    problem_.score_width = layout.compact_width;
    problem_.next_n = layout.next_n;
    options_.struct_size = sizeof(options_);
    options_.backend = "cuda";
    options_.sm_limit = layout.sm_limit;

    tensors_.struct_size = sizeof(tensors_);
    const int64_t head = s.dim + layout.q_head_pad;
    const int64_t row = s.heads * head + layout.q_row_pad;
    if (layout.next_n > 0) {
      tensors_.q = tensor(q_.data(), KEYSIEVE_E4M3, {s.rows / layout.next_n, layout.next_n, s.heads, s.dim},
                          {layout.next_n * row + kGroupGap, row, head, 1});
    } else {
      tensors_.q = tensor(q_.data(), KEYSIEVE_E4M3, {s.rows, s.heads, s.dim}, {row, head, 1});
    }
    tensors_.k = tensor(k_.data(), KEYSIEVE_E4M3, {s.keys, s.dim}, {s.dim + layout.k_pad, 1});
    tensors_.k_scale = tensor(scale_.data(), KEYSIEVE_F32, {s.keys}, {layout.scale_stride});
    tensors_.weights =
        tensor(weights_.data(), KEYSIEVE_F32, {s.rows, s.heads}, {layout.shared_weights ? 0 : s.heads, 1});
    tensors_.scores =
        tensor(scores_.data(), layout.bf16 ? KEYSIEVE_BF16 : KEYSIEVE_F32, {s.rows, columns_}, {row_stride_, 1});
    if (!operands.begin.empty()) {
      tensors_.row_start = tensor(begin_.data(), KEYSIEVE_I32, {s.rows}, {1});
    }
    if (!operands.end.empty()) {
      tensors_.row_end = tensor(end_.data(), KEYSIEVE_I32, {s.rows}, {1});
    }
  }

  [[nodiscard]] keysieve_status run(cudaStream_t stream = nullptr) {
    return keysieve_run(&problem_, &options_, &tensors_, stream);
  }
  void set_ranges(const std::vector<int32_t>& begin, const std::vector<int32_t>& end) {
    begin_.write(begin);
    end_.write(end);
  }

  /// All cells as floats, padding included; bf16 widened.
  [[nodiscard]] std::vector<float> scores() const {
    const std::vector<uint8_t> bytes = scores_.read();
    std::vector<float> values(static_cast<size_t>(operands_.shape.rows * row_stride_));
    for (size_t i = 0; i < values.size(); ++i) {
      if (layout_.bf16) {
        uint16_t half;
        std::memcpy(&half, &bytes[2 * i], 2);
        values[i] = keysieve::bf16_to_float(half);
      } else {
        std::memcpy(&values[i], &bytes[4 * i], 4);
      }
    }
    return values;
  }
  [[nodiscard]] int64_t row_stride() const { return row_stride_; }
  [[nodiscard]] int64_t columns() const { return columns_; }
  keysieve_tensors& tensors() { return tensors_; }

 private:
  static constexpr int64_t kGroupGap = 4096;

  [[nodiscard]] std::vector<uint8_t> strided_q() const {
    const Shape& s = operands_.shape;
    const int64_t head = s.dim + layout_.q_head_pad;
    const int64_t row = s.heads * head + layout_.q_row_pad;
    const int64_t groups = layout_.next_n > 0 ? s.rows / layout_.next_n : 1;
    std::vector<uint8_t> bytes(static_cast<size_t>(s.rows * row + groups * kGroupGap), 0x7F);  // NaN between
    for (int64_t t = 0; t < s.rows; ++t) {
      const int64_t gap = layout_.next_n > 0 ? t / layout_.next_n * kGroupGap : 0;
      for (int64_t h = 0; h < s.heads; ++h) {
        std::copy_n(&operands_.q[static_cast<size_t>((t * s.heads + h) * s.dim)], s.dim,
                    &bytes[static_cast<size_t>(t * row + gap + h * head)]);
      }
    }
    return bytes;
  }
  [[nodiscard]] std::vector<uint8_t> strided_k() const {
    const Shape& s = operands_.shape;
    std::vector<uint8_t> bytes(static_cast<size_t>(s.keys * (s.dim + layout_.k_pad)), 0x7F);
    for (int64_t n = 0; n < s.keys; ++n) {
      std::copy_n(&operands_.k[static_cast<size_t>(n * s.dim)], s.dim,
                  &bytes[static_cast<size_t>(n * (s.dim + layout_.k_pad))]);
    }
    return bytes;
  }
  [[nodiscard]] std::vector<float> strided_scale() const {
    std::vector<float> values(static_cast<size_t>(operands_.shape.keys * layout_.scale_stride),
                              std::numeric_limits<float>::quiet_NaN());
    for (int64_t n = 0; n < operands_.shape.keys; ++n) {
      values[static_cast<size_t>(n * layout_.scale_stride)] = operands_.scale[static_cast<size_t>(n)];
    }
    return values;
  }

  Operands operands_;
  Layout layout_;
  int64_t columns_;
  int64_t row_stride_;
  DeviceArray<uint8_t> q_, k_;
  DeviceArray<float> scale_, weights_;
  DeviceArray<int32_t> begin_, end_;
  DeviceArray<uint8_t> scores_;
  keysieve_problem problem_ = {};
  keysieve_options options_ = {};
  keysieve_tensors tensors_ = {};
};

/// Largest error seen, in units of the contract's bound c = 1.
double worst_error = 0;

/// Every cell: scores within the bound, -inf outside the row, padding untouched.
void check_all(const Operands& operands, const Layout& layout, const std::string& what) {
  SCOPED_TRACE(what);
  ScoreCall call(operands, layout);
  ASSERT_EQ(KEYSIEVE_OK, call.run()) << keysieve_last_message();
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  const std::vector<float> got = call.scores();
  uint32_t poison_bits = layout.bf16 ? 0x7B7B0000U : 0x7B7B7B7BU;
  float poison;
  std::memcpy(&poison, &poison_bits, 4);
  int failures = 0;
  double worst = 0;
  for (int64_t t = 0; t < operands.shape.rows && failures < 5; ++t) {
    const int64_t begin = operands.row_begin(t);
    const int64_t end = operands.row_end(t);
    for (int64_t column = 0; column < call.row_stride() && failures < 5; ++column) {
      const float cell = got[static_cast<size_t>(t * call.row_stride() + column)];
      const int64_t n = layout.compact_width > 0 ? begin + column : column;
      std::string expected;
      bool ok = false;
      if (column >= call.columns()) {
        ok = cell == poison;
        expected = "untouched padding";
      } else if (n < begin || n >= end) {
        ok = cell == kMinusInfinity;
        expected = "-inf";
      } else {
        double score;
        double magnitude;
        operands.reference(t, n, &score, &magnitude);
        const double rounding = layout.bf16 ? std::fabs(score) / 256 : std::fabs(score) / (1 << 23);
        const double error = std::fabs(double{cell} - score);
        ok = error <= kErrorBound * magnitude + rounding;
        worst = std::max(worst, layout.bf16 || magnitude == 0 ? 0.0 : error / magnitude);
        expected = std::to_string(score);
      }
      if (!ok) {
        ++failures;
        ADD_FAILURE() << "row " << t << " [" << begin << "," << end << ") column " << column << ": " << cell
                      << ", expected " << expected;
      }
    }
  }
  EXPECT_LT(worst, kErrorBound);
  worst_error = std::max(worst_error, worst);
}

class ScoreSm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!have_cuda()) {
      GTEST_SKIP() << "no Hopper GPU";
    }
  }
  static void TearDownTestSuite() {
    if (worst_error > 0) {
      std::printf("largest error: 2^%.2f of |k_scale| * sum |w| * sum |q k|\n", std::log2(worst_error));
    }
  }
};

TEST_F(ScoreSm90, EveryShapeMatchesTheReference) {
  uint32_t seed = 1;
  for (const int64_t heads : {8, 16, 32, 64, 128}) {
    for (const int64_t dim : {64, 128}) {
      Operands operands({37, 517, heads, dim}, Values::kNormal, seed++);
      const std::string name = "H=" + std::to_string(heads) + " D=" + std::to_string(dim);
      check_all(operands, {}, name + " dense");
      operands.random_ranges(seed++);
      Layout layout;
      layout.bf16 = seed % 4 == 0;
      layout.score_pad = 3;
      layout.q_head_pad = 16;
      layout.q_row_pad = 48;
      layout.k_pad = 16;
      layout.scale_stride = 2;
      check_all(operands, layout, name + " strided ranges");
      Layout compact;
      compact.bf16 = seed % 4 != 0;
      compact.compact_width = 301;
      compact.sm_limit = 5;
      check_all(operands, compact, name + " compact");
    }
  }
}

TEST_F(ScoreSm90, RowsOfManyRequestsInOneCall) {
  std::mt19937 generator(7);
  for (const int64_t heads : {32, 64}) {
    Operands operands({203, 4001, heads, 64}, Values::kNormal, 70);
    int32_t at = 0;
    while (operands.begin.size() < 203) {
      const int32_t length = static_cast<int32_t>(generator() % 300);
      const int32_t base = at % 3700;
      for (uint32_t i = 0; i < 1 + generator() % 7 && operands.begin.size() < 203; ++i) {
        operands.begin.push_back(base);
        operands.end.push_back(base + length);
      }
      at += 613;
    }
    check_all(operands, {}, "requests H=" + std::to_string(heads));
    for (size_t t = 0; t < operands.begin.size(); ++t) {  // neighbours alternate between two far ranges
      operands.begin[t] = t % 2 == 0 ? 5 : 3000;
      operands.end[t] = operands.begin[t] + 140;
    }
    check_all(operands, {}, "alternating H=" + std::to_string(heads));
  }
}

TEST_F(ScoreSm90, QueriesOfGroupsWithoutOneRowStride) {
  for (const int64_t next_n : {2, 3, 5}) {
    Operands operands({next_n * 7, 300, 64, 128}, Values::kNormal, 80);
    operands.random_ranges(81);
    Layout layout;
    layout.next_n = next_n;
    check_all(operands, layout, "next_n=" + std::to_string(next_n));
  }
}

TEST_F(ScoreSm90, SharedWeights) {
  Operands operands({9, 200, 32, 128}, Values::kNormal, 90);
  for (size_t i = 32; i < operands.weights.size(); ++i) {
    operands.weights[i] = operands.weights[i % 32];
  }
  Layout layout;
  layout.shared_weights = true;
  check_all(operands, layout, "weights stride 0");
}

TEST_F(ScoreSm90, SumsInTheDocumentedOrder) {
  for (const int64_t heads : {8, 16, 32, 64, 128}) {
    SCOPED_TRACE(heads);
    const Operands operands({19, 261, heads, 128}, Values::kSmallIntegers, 30);
    ScoreCall call(operands, {});
    ASSERT_EQ(KEYSIEVE_OK, call.run()) << keysieve_last_message();
    const std::vector<float> got = call.scores();
    int failures = 0;
    for (int64_t t = 0; t < 19 && failures < 3; ++t) {
      for (int64_t n = 0; n < 261 && failures < 3; ++n) {
        const float expected = operands.ordered_score(t, n);
        const float cell = got[static_cast<size_t>(t * 261 + n)];
        if (std::memcmp(&expected, &cell, 4) != 0 && !(expected == 0 && cell == 0)) {
          ++failures;
          ADD_FAILURE() << "row " << t << " key " << n << ": " << cell << ", expected " << expected;
        }
      }
    }
  }
}

TEST_F(ScoreSm90, BitsDependOnRowAndKeyAlone) {
  for (const int64_t heads : {8, 32, 64, 128}) {
    SCOPED_TRACE(heads);
    const Operands all({70, 3001, heads, 128}, Values::kNormal, 40);
    ScoreCall whole(all, {});
    ASSERT_EQ(KEYSIEVE_OK, whole.run()) << keysieve_last_message();
    const std::vector<float> expected = whole.scores();
    std::mt19937 generator(41);
    for (int round = 0; round < 12; ++round) {
      const auto first_row = static_cast<int64_t>(generator() % 60);
      const auto first_key = static_cast<int64_t>(generator() % 2500);
      Operands part({1 + static_cast<int64_t>(generator() % (70 - first_row)),
                     1 + static_cast<int64_t>(generator() % (3001 - first_key)), heads, 128},
                    Values::kNormal, 1);
      const Shape& s = part.shape;
      part.q.assign(all.q.begin() + first_row * heads * 128, all.q.begin() + (first_row + s.rows) * heads * 128);
      part.k.assign(all.k.begin() + first_key * 128, all.k.begin() + (first_key + s.keys) * 128);
      part.scale.assign(all.scale.begin() + first_key, all.scale.begin() + first_key + s.keys);
      part.weights.assign(all.weights.begin() + first_row * heads, all.weights.begin() + (first_row + s.rows) * heads);
      part.random_ranges(static_cast<uint32_t>(generator()));
      Layout layout;
      layout.sm_limit = round % 3 == 0 ? 0 : static_cast<int32_t>(1 + generator() % 20);
      layout.scale_stride = 1 + round % 2;
      ScoreCall call(part, layout);
      ASSERT_EQ(KEYSIEVE_OK, call.run()) << keysieve_last_message();
      const std::vector<float> got = call.scores();
      int64_t differing = 0;
      for (int64_t t = 0; t < s.rows; ++t) {
        for (int64_t n = part.row_begin(t); n < part.row_end(t); ++n) {
          differing += std::memcmp(&got[static_cast<size_t>(t * s.keys + n)],
                                   &expected[static_cast<size_t>((first_row + t) * 3001 + first_key + n)], 4) != 0;
        }
      }
      EXPECT_EQ(0, differing) << "rows " << first_row << "+" << s.rows << " keys " << first_key << "+" << s.keys;
    }
  }
}

TEST_F(ScoreSm90, NanKeysAndQueriesGiveNan) {
  Operands operands({10, 300, 64, 128}, Values::kNormal, 50);
  operands.k[static_cast<size_t>(131 * 128 + 77)] = 0x7F;
  operands.q[static_cast<size_t>((6 * 64 + 63) * 128 + 5)] = 0xFF;
  ScoreCall call(operands, {});
  ASSERT_EQ(KEYSIEVE_OK, call.run()) << keysieve_last_message();
  const std::vector<float> got = call.scores();
  for (int64_t t = 0; t < 10; ++t) {
    for (int64_t n = 0; n < 300; ++n) {
      EXPECT_EQ(t == 6 || n == 131, std::isnan(got[static_cast<size_t>(t * 300 + n)])) << t << " " << n;
    }
  }
}

TEST_F(ScoreSm90, EmptySizes) {
  Operands no_keys({5, 0, 64, 128}, Values::kNormal, 60);
  Layout compact;
  compact.compact_width = 77;
  check_all(no_keys, compact, "N=0 compact");
  Operands no_rows({0, 100, 64, 128}, Values::kNormal, 61);
  check_all(no_rows, {}, "T=0");
}

TEST_F(ScoreSm90, GraphReplayFollowsChangedRanges) {
  Operands operands({130, 2000, 64, 128}, Values::kNormal, 62);
  operands.random_ranges(63);
  ScoreCall call(operands, {});
  ASSERT_EQ(KEYSIEVE_OK, call.run()) << keysieve_last_message();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamCreate(&stream));
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  ASSERT_EQ(KEYSIEVE_OK, call.run(stream)) << keysieve_last_message();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(stream, &graph));
  ASSERT_EQ(cudaSuccess, cudaGraphInstantiate(&executable, graph, 0));
  for (uint32_t seed = 64; seed < 68; ++seed) {
    operands.begin.clear();
    operands.end.clear();
    operands.random_ranges(seed);
    call.set_ranges(operands.begin, operands.end);
    ASSERT_EQ(cudaSuccess, cudaGraphLaunch(executable, stream));
    ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
    ScoreCall eager(operands, {});
    ASSERT_EQ(KEYSIEVE_OK, eager.run()) << keysieve_last_message();
    const std::vector<float> a = call.scores();
    const std::vector<float> b = eager.scores();
    EXPECT_EQ(0, std::memcmp(a.data(), b.data(), a.size() * sizeof(float))) << seed;
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_F(ScoreSm90, ManyRepeatsGiveTheSameBits) {
  Operands operands({300, 5000, 64, 128}, Values::kNormal, 65);
  operands.random_ranges(66);
  ScoreCall call(operands, {});
  std::vector<float> first;
  for (int repeat = 0; repeat < 100; ++repeat) {
    ASSERT_EQ(KEYSIEVE_OK, call.run()) << keysieve_last_message();
    std::vector<float> got = call.scores();
    if (repeat == 0) {
      first = got;
    }
    ASSERT_EQ(0, std::memcmp(first.data(), got.data(), got.size() * sizeof(float))) << repeat;
  }
}

TEST_F(ScoreSm90, MoreThanTwoToThe32Cells) {
  // 515 rows x 2^23 keys, sampled; the operands repeat one megabyte.
  const int64_t rows = 515;
  const int64_t keys = int64_t{1} << 23U;
  const Operands block({rows, 16384, 8, 64}, Values::kNormal, 67);
  DeviceArray<uint8_t> q(block.q);
  DeviceArray<uint8_t> k(static_cast<size_t>(keys * 64));
  DeviceArray<float> scale(static_cast<size_t>(keys));
  DeviceArray<float> weights(block.weights);
  DeviceArray<float> scores(static_cast<size_t>(rows * keys));
  for (int64_t n = 0; n < keys; n += 16384) {
    ASSERT_EQ(cudaSuccess, cudaMemcpy(k.data() + n * 64, block.k.data(), block.k.size(), cudaMemcpyHostToDevice));
    ASSERT_EQ(cudaSuccess, cudaMemcpy(scale.data() + n, block.scale.data(), 16384 * 4, cudaMemcpyHostToDevice));
  }
  keysieve_problem problem = {};
  problem.struct_size = sizeof(problem);
  problem.op = KEYSIEVE_SCORE;
  problem.device_type = KEYSIEVE_CUDA;
  problem.num_rows = rows;
  problem.num_heads = 8;
  problem.head_dim = 64;
  problem.num_keys = keys;
  problem.q_dtype = KEYSIEVE_E4M3;
  problem.k_dtype = KEYSIEVE_E4M3;
  keysieve_tensors tensors = {};
  tensors.struct_size = sizeof(tensors);
  tensors.q = tensor(q.data(), KEYSIEVE_E4M3, {rows, 8, 64}, {512, 64, 1});
  tensors.k = tensor(k.data(), KEYSIEVE_E4M3, {keys, 64}, {64, 1});
  tensors.k_scale = tensor(scale.data(), KEYSIEVE_F32, {keys}, {1});
  tensors.weights = tensor(weights.data(), KEYSIEVE_F32, {rows, 8}, {8, 1});
  tensors.scores = tensor(scores.data(), KEYSIEVE_F32, {rows, keys}, {keys, 1});
  ASSERT_EQ(KEYSIEVE_OK, keysieve_run(&problem, nullptr, &tensors, nullptr)) << keysieve_last_message();
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  std::mt19937_64 generator(68);
  for (int sample = 0; sample < 300; ++sample) {
    const auto t = sample < 100 ? rows - 1 : static_cast<int64_t>(generator() % rows);
    const auto n = static_cast<int64_t>(generator() % keys);
    float cell = 0;
    ASSERT_EQ(cudaSuccess, cudaMemcpy(&cell, scores.data() + t * keys + n, 4, cudaMemcpyDeviceToHost));
    double score;
    double magnitude;
    block.reference(t, n % 16384, &score, &magnitude);
    EXPECT_NEAR(score, cell, kErrorBound * magnitude) << t << " " << n;
  }
}

TEST_F(ScoreSm90, SmallProductsBesideALargeOne) {
  // The worst case of the tensor core's sum: one product of 2^12 and D - 1 products of 2^-s each, all of which lie
  // below the bits that it keeps.  Key s has them; the large product comes first or last.
  constexpr int kKeys = 19;
  for (const int64_t dim : {64, 128}) {
    for (const bool first : {true, false}) {
      Operands operands({1, kKeys, 8, dim}, Values::kSmallIntegers, 74);
      std::fill(operands.weights.begin(), operands.weights.end(), 0.0F);
      std::fill(operands.scale.begin(), operands.scale.end(), 1.0F);
      operands.weights[0] = 1.0F;
      std::fill_n(operands.q.begin(), dim, uint8_t{0x38});          // 1
      operands.q[static_cast<size_t>(first ? 0 : dim - 1)] = 0x58;  // 16
      for (int key = 0; key < kKeys; ++key) {
        const int exponent = 9 - key;  // 2^8 .. 2^-9 in e4m3
        const int clamped = std::min(exponent, 8);
        const auto byte = static_cast<uint8_t>(clamped >= -6 ? (clamped + 7) << 3 : 1 << (clamped + 9));
        std::fill_n(operands.k.begin() + key * dim, dim, byte);
        operands.k[static_cast<size_t>(key * dim + (first ? 0 : dim - 1))] = 0x78;  // 256
      }
      ScoreCall call(operands, {});
      ASSERT_EQ(KEYSIEVE_OK, call.run()) << keysieve_last_message();
      const std::vector<float> got = call.scores();
      double worst = 0;
      for (int key = 0; key < kKeys; ++key) {
        double score;
        double magnitude;
        operands.reference(0, key, &score, &magnitude);
        worst = std::max(worst, std::fabs(double{got[static_cast<size_t>(key)]} - score) / magnitude);
      }
      std::printf("D=%d, large product %s: largest error 2^%.2f\n", static_cast<int>(dim), first ? "first" : "last",
                  std::log2(worst));
      EXPECT_LT(worst, error_bound(dim));
    }
  }
}

TEST_F(ScoreSm90, TwoStreamsAtOnce) {
  Operands operands({200, 3000, 64, 128}, Values::kNormal, 71);
  operands.random_ranges(72);
  ScoreCall alone(operands, {});
  ASSERT_EQ(KEYSIEVE_OK, alone.run()) << keysieve_last_message();
  const std::vector<float> expected = alone.scores();
  Layout half;
  half.sm_limit = 66;
  ScoreCall first(operands, half);
  ScoreCall second(operands, half);
  cudaStream_t streams[2] = {};
  ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&streams[0], cudaStreamNonBlocking));
  ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(KEYSIEVE_OK, first.run(streams[0])) << keysieve_last_message();
    ASSERT_EQ(KEYSIEVE_OK, second.run(streams[1])) << keysieve_last_message();
  }
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  for (const ScoreCall* call : {&first, &second}) {
    const std::vector<float> got = call->scores();
    EXPECT_EQ(0, std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)));
  }
  cudaStreamDestroy(streams[0]);
  cudaStreamDestroy(streams[1]);
}

TEST_F(ScoreSm90, AnotherDeviceMayBeCurrent) {
  int count = 0;
  ASSERT_EQ(cudaSuccess, cudaGetDeviceCount(&count));
  if (count < 2) {
    GTEST_SKIP() << "one GPU";
  }
  const Operands operands({50, 700, 64, 128}, Values::kNormal, 73);
  ASSERT_EQ(cudaSuccess, cudaSetDevice(0));
  ScoreCall call(operands, {});
  ASSERT_EQ(KEYSIEVE_OK, call.run()) << keysieve_last_message();
  const std::vector<float> expected = call.scores();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamCreate(&stream));
  ASSERT_EQ(cudaSuccess, cudaSetDevice(1));
  ASSERT_EQ(KEYSIEVE_OK, call.run(stream)) << keysieve_last_message();
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
  int current = -1;
  ASSERT_EQ(cudaSuccess, cudaGetDevice(&current));
  EXPECT_EQ(1, current);
  const std::vector<float> got = call.scores();
  EXPECT_EQ(0, std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)));
  ASSERT_EQ(cudaSuccess, cudaSetDevice(0));
  cudaStreamDestroy(stream);
}

TEST_F(ScoreSm90, MisalignedTensorsAreNamed) {
  Operands operands({4, 100, 64, 128}, Values::kNormal, 69);
  Layout layout;
  layout.k_pad = 8;
  ScoreCall call(operands, layout);
  EXPECT_NE(KEYSIEVE_OK, call.run());
  EXPECT_NE(std::string::npos, std::string(keysieve_last_message()).find("k")) << keysieve_last_message();
  EXPECT_EQ(cudaSuccess, cudaGetLastError());
}

}  // namespace
