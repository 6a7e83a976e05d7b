// SPDX-License-Identifier: Apache-2.0
#include "synthetic.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/bf16.hpp"
#include "failure.hpp"
#include "io/encode.hpp"
#include "random.hpp"

namespace keysieve::cli {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kPoolKeys = 64;
constexpr int64_t kGroup = 32;  // channels that share an MXFP4 scale

// Each tensor has its own stream of numbers, so that one does not change with another's size.
enum Stream : uint64_t { kQueryStream = 1, kKeyStream, kScaleStream, kWeightStream, kRowStream, kBaseStream };
Random stream_of(uint64_t seed, uint64_t stream) {
  return Random(seed * 0x9E3779B97F4A7C15ULL + stream);
}

bool is_sorted(DataKind kind) {
  return kind == DataKind::kSortedAscending || kind == DataKind::kSortedDescending;
}

void store_bf16(std::vector<uint8_t>& bytes, int64_t element, float value) {
  const uint16_t half = float_to_bf16(value);
  std::memcpy(bytes.data() + element * 2, &half, 2);
}

std::vector<float> normal_vector(Random& random, int64_t size) {
  std::vector<float> values(static_cast<size_t>(size));
  std::generate(values.begin(), values.end(), [&] { return random.normal(); });
  return values;
}

/// Channels of one group whose sum is `digit` * 0.5, digit < 256, from the magnitudes of e2m1.
void fill_digit(float* channels, int64_t digit, float unit) {
  constexpr int64_t kHalves[] = {12, 8, 6, 4, 3, 2, 1};
  size_t channel = 0;
  for (const int64_t halves : kHalves) {
    for (; digit >= halves; digit -= halves) {
      channels[channel++] = static_cast<float>(halves) * 0.5F * unit;
    }
  }
}

FileTensor file_tensor(const char* name, FileDtype dtype, std::vector<int64_t> shape, const void* data) {
  size_t bytes = file_dtype_bytes(dtype);
  for (const int64_t extent : shape) {
    bytes *= static_cast<size_t>(extent);
  }
  return {name, dtype, std::move(shape), static_cast<const std::byte*>(data), bytes};
}

}  // namespace

const char* data_kind_name(DataKind kind) {
  switch (kind) {
    case DataKind::kNormal: return "normal";
    case DataKind::kTies: return "ties";
    case DataKind::kAllEqual: return "all-equal";
    case DataKind::kZeroPlateau: return "zero-plateau";
    case DataKind::kAllZero: return "all-zero";
    case DataKind::kLowContrast: return "low-contrast";
    case DataKind::kSortedAscending: return "sorted-ascending";
    case DataKind::kSortedDescending: return "sorted-descending";
    case DataKind::kOutliers: return "outliers";
    case DataKind::kNanInf: return "nan-inf";
  }
  return "unknown";
}

const char* row_kind_name(RowKind kind) {
  switch (kind) {
    case RowKind::kCausal: return "causal";
    case RowKind::kFull: return "full";
    case RowKind::kRagged: return "ragged";
  }
  return "unknown";
}

const char* dtype_option_name(int32_t k_dtype) {
  return k_dtype == KEYSIEVE_BF16 ? "bf16" : k_dtype == KEYSIEVE_MXFP4 ? "mxfp4" : "e4m3";
}

Synthetic::Synthetic(const SyntheticSpec& spec) : spec_(spec) {
  if (spec.k_dtype == KEYSIEVE_MXFP4 && spec.head_dim % kGroup != 0) {
    throw Failure(kExitBadInput, "--dim", "MXFP4 keys take a multiple of 32");
  }
  const int64_t query_bytes = spec.k_dtype == KEYSIEVE_BF16 ? 2 : 1;
  q_.resize(static_cast<size_t>(spec.num_rows * spec.num_heads * spec.head_dim * query_bytes));
  if (spec.k_dtype == KEYSIEVE_MXFP4) {
    k_.resize(static_cast<size_t>(spec.num_keys * spec.head_dim / 2));
    k_group_scale_.resize(static_cast<size_t>(spec.num_keys * (spec.head_dim / kGroup)));
  } else {
    k_.resize(static_cast<size_t>(spec.num_keys * spec.head_dim * query_bytes));
  }
  k_scale_.resize(spec.k_dtype == KEYSIEVE_E4M3 ? static_cast<size_t>(spec.num_keys) : 0);
  make_queries();
  make_weights();
  make_rows();
  if (is_sorted(spec.data)) {
    make_sorted_keys();
  } else {
    make_keys();
  }
  if (spec.data == DataKind::kNanInf) {
    spoil();
  }
}

void Synthetic::store_query(int64_t element, float value) {
  if (spec_.k_dtype == KEYSIEVE_BF16) {
    store_bf16(q_, element, value);
  } else {
    q_[static_cast<size_t>(element)] = float_to_e4m3(value);
  }
}

void Synthetic::make_queries() {
  Random random = stream_of(spec_.seed, kQueryStream);
  const int64_t elements = spec_.num_rows * spec_.num_heads * spec_.head_dim;
  for (int64_t i = 0; i < elements; ++i) {
    float value = is_sorted(spec_.data) ? 1.0F : random.normal();
    if (spec_.data == DataKind::kZeroPlateau || spec_.data == DataKind::kAllZero) {
      value = std::fabs(value);
    }
    if (spec_.data == DataKind::kOutliers && i / spec_.head_dim % spec_.num_heads % 16 == 0) {
      value *= 64.0F;
    }
    store_query(i, value);
  }
}

void Synthetic::make_weights() {
  Random random = stream_of(spec_.seed, kWeightStream);
  weights_ = normal_vector(random, spec_.num_rows * spec_.num_heads);
  for (float& weight : weights_) {
    if (is_sorted(spec_.data)) {
      weight = std::fabs(weight) + 0.125F;
    }
    if (spec_.data == DataKind::kOutliers && random.below(100) == 0) {
      weight *= 100.0F;
    }
  }
}

void Synthetic::make_rows() {
  Random random = stream_of(spec_.seed, kRowStream);
  const int64_t num_keys = spec_.num_keys;
  for (int64_t t = 0; t < spec_.num_rows; ++t) {
    int64_t start = 0;
    int64_t end = num_keys;
    if (spec_.rows == RowKind::kCausal) {
      end = num_keys - spec_.num_rows + t + 1;
    } else if (spec_.rows == RowKind::kRagged) {
      start = random.below(num_keys + 1);
      end = start + random.below(num_keys + 1);  // may end past the last key
      switch (t % 16) {
        case 3: end = start; break;
        case 7: std::swap(start, end); break;
        case 11: start = -random.below(num_keys + 1); break;
        case 15: end = -1; break;
        default: break;
      }
    }
    row_start_.push_back(static_cast<int32_t>(start));
    row_end_.push_back(static_cast<int32_t>(std::min<int64_t>(end, std::numeric_limits<int32_t>::max())));
  }
}

void Synthetic::store_mxfp4_key(int64_t n, const std::vector<float>& channels) {
  const int64_t groups = spec_.head_dim / kGroup;
  for (int64_t g = 0; g < groups; ++g) {
    const float* group = channels.data() + g * kGroup;
    float largest = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
      largest = std::fabs(group[i]) <= largest ? largest : std::fabs(group[i]);  // NaN stays
    }
    uint8_t& scale = k_group_scale_[static_cast<size_t>(n * groups + g)];
    if (!std::isfinite(largest)) {
      scale = 255;
      continue;
    }
    int exponent = 0;  // largest = [0.5,1) * 2^exponent; e2m1 holds up to 6 = 0.75 * 2^3
    std::frexp(largest, &exponent);
    exponent = largest > 0 ? std::clamp(exponent - 3, -127, 127) : 0;
    scale = static_cast<uint8_t>(exponent + 127);
    for (int64_t i = 0; i < kGroup; i += 2) {
      const uint8_t low = float_to_e2m1(std::ldexp(group[i], -exponent));
      const uint8_t high = float_to_e2m1(std::ldexp(group[i + 1], -exponent));
      k_[static_cast<size_t>((n * spec_.head_dim + g * kGroup + i) / 2)] = static_cast<uint8_t>(low | high << 4U);
    }
  }
}

void Synthetic::store_key(int64_t n, const std::vector<float>& channels, float scale) {
  if (spec_.k_dtype == KEYSIEVE_MXFP4) {
    store_mxfp4_key(n, channels);
    return;
  }
  for (int64_t d = 0; d < spec_.head_dim; ++d) {
    const int64_t element = n * spec_.head_dim + d;
    if (spec_.k_dtype == KEYSIEVE_BF16) {
      store_bf16(k_, element, channels[static_cast<size_t>(d)]);
    } else {
      k_[static_cast<size_t>(element)] = float_to_e4m3(channels[static_cast<size_t>(d)]);
    }
  }
  if (spec_.k_dtype == KEYSIEVE_E4M3) {
    k_scale_[static_cast<size_t>(n)] = scale;
  }
}

void Synthetic::make_keys() {
  Random random = stream_of(spec_.seed, kKeyStream);
  Random scales = stream_of(spec_.seed, kScaleStream);
  Random base_random = stream_of(spec_.seed, kBaseStream);
  const std::vector<float> base = normal_vector(base_random, spec_.head_dim * kPoolKeys);
  const float unit = 1.0F / static_cast<float>(spec_.head_dim);
  std::vector<float> channels;
  for (int64_t n = 0; n < spec_.num_keys; ++n) {
    channels = normal_vector(random, spec_.head_dim);
    float scale = (0.5F + scales.uniform()) * unit;
    switch (spec_.data) {
      case DataKind::kTies: {
        const int64_t pick = scales.below(kPoolKeys) * spec_.head_dim;
        channels.assign(base.begin() + pick, base.begin() + pick + spec_.head_dim);
        scale = unit;
        break;
      }
      case DataKind::kAllEqual:
        channels.assign(base.begin(), base.begin() + spec_.head_dim);
        scale = unit;
        break;
      case DataKind::kAllZero:
        std::for_each(channels.begin(), channels.end(), [](float& x) { x = -std::fabs(x); });
        break;
      case DataKind::kZeroPlateau: {
        const float sign = scales.below(10) == 0 ? 1.0F : -1.0F;
        std::for_each(channels.begin(), channels.end(), [sign](float& x) { x = sign * std::fabs(x); });
        break;
      }
      case DataKind::kLowContrast:
        for (size_t d = 0; d < channels.size(); ++d) {
          channels[d] = base[d] + 0.05F * channels[d];
        }
        scale = unit;
        break;
      case DataKind::kOutliers:
        if (scales.below(1000) == 0) {
          std::for_each(channels.begin(), channels.end(), [](float& x) { x *= 100.0F; });
        }
        break;
      default: break;
    }
    store_key(n, channels, scale);
  }
}

void Synthetic::make_sorted_keys() {
  const bool ascending = spec_.data == DataKind::kSortedAscending;
  const int64_t num_keys = spec_.num_keys;
  for (int64_t n = 0; n < num_keys; ++n) {
    const int64_t level = ascending ? n : num_keys - 1 - n;
    const float value = 1.0F + static_cast<float>(level) / static_cast<float>(num_keys);
    std::vector<float> channels(static_cast<size_t>(spec_.head_dim), 0.0F);
    if (spec_.k_dtype == KEYSIEVE_MXFP4) {  // digits of the level in base 256, one a group, the highest first
      const int64_t groups = std::min<int64_t>(spec_.head_dim / kGroup, 3);
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t place = groups - 1 - g;
        const int64_t digit = std::min<int64_t>(level >> (8 * place), g == 0 ? 255 : level >> (8 * place) & 255);
        fill_digit(channels.data() + g * kGroup, digit, std::ldexp(1.0F, static_cast<int>(8 * place)));
      }
    } else if (spec_.k_dtype == KEYSIEVE_BF16) {  // a value and what its rounding left
      channels[0] = bf16_to_float(float_to_bf16(value));
      if (spec_.head_dim > 1) {
        channels[1] = value - channels[0];
      }
    } else {
      std::fill(channels.begin(), channels.end(), 1.0F);
    }
    store_key(n, channels, value / static_cast<float>(spec_.head_dim));
  }
}

void Synthetic::spoil() {
  const int64_t row_queries = spec_.num_heads * spec_.head_dim;
  for (int64_t t = 0; t < spec_.num_rows; ++t) {
    // Rows 1, 5, ...: most scores overflow to +inf; rows 2, 6, ...: to both infinities, and NaN where they meet.
    for (int64_t h = 0; h < spec_.num_heads && t % 4 != 0 && t % 4 != 3; ++h) {
      weights_[static_cast<size_t>(t * spec_.num_heads + h)] = t % 4 == 2 && h % 2 == 1 ? -3e38F : 3e38F;
    }
    if (t % 8 == 7) {
      store_query(t * row_queries, kNan);
    }
  }
  const std::vector<float> nan_key(static_cast<size_t>(spec_.head_dim), kNan);
  for (int64_t n = 13; n < spec_.num_keys; n += 97) {
    store_key(n, nan_key, 1.0F);
  }
  for (int64_t n = 7; n < spec_.num_keys && spec_.k_dtype == KEYSIEVE_E4M3; n += 101) {
    k_scale_[static_cast<size_t>(n)] = kNan;
  }
}

std::vector<FileTensor> Synthetic::tensors() const {
  const SyntheticSpec& s = spec_;
  const bool bf16 = s.k_dtype == KEYSIEVE_BF16;
  const bool mxfp4 = s.k_dtype == KEYSIEVE_MXFP4;
  const FileDtype q_dtype = bf16 ? FileDtype::kBf16 : FileDtype::kF8E4M3;
  std::vector<FileTensor> list;
  list.push_back(file_tensor("weights", FileDtype::kF32, {s.num_rows, s.num_heads}, weights_.data()));
  list.push_back(file_tensor("row_start", FileDtype::kI32, {s.num_rows}, row_start_.data()));
  list.push_back(file_tensor("row_end", FileDtype::kI32, {s.num_rows}, row_end_.data()));
  list.push_back(file_tensor("q", q_dtype, {s.num_rows, s.num_heads, s.head_dim}, q_.data()));
  if (mxfp4) {
    list.push_back(file_tensor("k", FileDtype::kU8, {s.num_keys, s.head_dim / 2}, k_.data()));
    list.push_back(file_tensor("k_scale", FileDtype::kU8, {s.num_keys, s.head_dim / kGroup}, k_group_scale_.data()));
  } else {
    list.push_back(file_tensor("k", q_dtype, {s.num_keys, s.head_dim}, k_.data()));
    if (!bf16) {
      list.push_back(file_tensor("k_scale", FileDtype::kF32, {s.num_keys}, k_scale_.data()));
    }
  }
  return list;
}

FileMetadata Synthetic::metadata() const {
  return {{"data", data_kind_name(spec_.data)},
          {"rows", row_kind_name(spec_.rows)},
          {"seed", std::to_string(spec_.seed)},
          {"producer", std::string("keysieve ") + keysieve_version_string()}};
}

Replay Synthetic::replay() const {
  const SyntheticSpec& s = spec_;
  const bool bf16 = s.k_dtype == KEYSIEVE_BF16;
  const bool mxfp4 = s.k_dtype == KEYSIEVE_MXFP4;
  Replay replay;
  replay.num_rows = s.num_rows;
  replay.num_heads = s.num_heads;
  replay.head_dim = s.head_dim;
  replay.num_keys = s.num_keys;
  replay.q_dtype = bf16 ? KEYSIEVE_BF16 : KEYSIEVE_E4M3;
  replay.k_dtype = s.k_dtype;
  replay.q = make_view(q_.data(), replay.q_dtype, {s.num_rows, s.num_heads, s.head_dim});
  replay.weights = make_view(weights_.data(), KEYSIEVE_F32, {s.num_rows, s.num_heads});
  replay.row_start = make_view(row_start_.data(), KEYSIEVE_I32, {s.num_rows});
  replay.row_end = make_view(row_end_.data(), KEYSIEVE_I32, {s.num_rows});
  if (mxfp4) {
    replay.k = make_view(k_.data(), KEYSIEVE_U8, {s.num_keys, s.head_dim / 2});
    replay.k_scale = make_view(k_group_scale_.data(), KEYSIEVE_U8, {s.num_keys, s.head_dim / kGroup});
  } else {
    replay.k = make_view(k_.data(), s.k_dtype, {s.num_keys, s.head_dim});
    if (!bf16) {
      replay.k_scale = make_view(k_scale_.data(), KEYSIEVE_F32, {s.num_keys});
    }
  }
  return replay;
}

}  // namespace keysieve::cli
