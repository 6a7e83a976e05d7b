// SPDX-License-Identifier: Apache-2.0
#include "cpu/keys.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/bf16.hpp"
#include "core/fp8.hpp"

namespace keysieve::cpu {
namespace {

constexpr int64_t kGroupChannels = 32;  // MXFP4: channels under one scale
constexpr int64_t kGroupBytes = kGroupChannels / 2;

float load_f32(const uint8_t* bytes) {
  float value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

bool has_nonzero_e2m1(const uint8_t* bytes) {
  uint64_t halves[kGroupBytes / 8];
  std::memcpy(halves, bytes, sizeof(halves));
  return ((halves[0] | halves[1]) & 0x7777777777777777U) != 0;
}

/// Splits the scales of an MXFP4 key into a factor, the largest scale of a group that is not all zeros, and scales
/// relative to it.  The dot product then neither overflows nor sinks below f32's normal range because the whole key
/// is large or small.  Returns the factor.
float split_group_scales(const Problem& problem, const KeyRef& key, int panel_keys, int lane, float* group_scale) {
  const int64_t num_groups = problem.head_dim / kGroupChannels;
  int largest = -1;
  for (int64_t g = 0; g < num_groups; ++g) {
    if (key.scales[g] == 255U) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    if (has_nonzero_e2m1(key.values + g * kGroupBytes)) {
      largest = std::max<int>(largest, key.scales[g]);
    }
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    const int exponent = std::min(key.scales[g] - largest, 0);  // above 0: a group of zeros
    group_scale[g * panel_keys + lane] = std::ldexp(1.0F, exponent);
  }
  return largest < 0 ? 1.0F : e8m0_to_float(static_cast<uint8_t>(largest));
}

const std::array<float, 256>& e4m3_table() {
  static const std::array<float, 256> kTable = [] {
    std::array<float, 256> table{};
    for (size_t byte = 0; byte < table.size(); ++byte) {
      table[byte] = e4m3_to_float(static_cast<uint8_t>(byte));
    }
    return table;
  }();
  return kTable;
}

}  // namespace

KeyRef find_key(const Call& call, int64_t request, int64_t position) {
  const Problem& problem = call.problem;
  const auto* base = static_cast<const uint8_t*>(call.k);
  if (!problem.paged) {
    const auto* scale_base = static_cast<const uint8_t*>(call.k_scale);
    const int64_t element_bytes = problem.k_dtype == Dtype::kBf16 ? 2 : 1;
    const int64_t scale_bytes = problem.k_dtype == Dtype::kE4m3 ? 4 : 1;
    return {base + position * call.k_stride * element_bytes,
            scale_base == nullptr ? nullptr : scale_base + position * call.k_scale_stride * scale_bytes};
  }
  const int64_t page = call.block_table[request * call.block_table_stride + position / KEYSIEVE_PAGE_SIZE];
  if (page < 0 || page >= problem.num_pages) {
    return {};
  }
  const int64_t entry = position % KEYSIEVE_PAGE_SIZE;
  const int64_t scale_bytes = problem.k_dtype == Dtype::kE4m3 ? 4 : problem.head_dim / kGroupChannels;
  const uint8_t* page_base = base + page * call.k_stride;
  return {page_base + entry * key_bytes(problem.k_dtype, problem.head_dim),
          page_base + page_key_bytes(problem.k_dtype, problem.head_dim) + entry * scale_bytes};
}

void stage_key(const Problem& problem, const KeyRef& key, int panel_keys, int lane, const KeyPanel& panel) {
  const int64_t raw_words = num_raw_words(problem.k_dtype, problem.head_dim);
  uint32_t* raw = panel.raw + lane;
  if (key.values == nullptr) {
    for (int64_t j = 0; j < raw_words; ++j) {
      raw[j * panel_keys] = 0;
    }
    panel.factor[lane] = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const int64_t bytes = key_bytes(problem.k_dtype, problem.head_dim);
  const int64_t whole_words = bytes / 4;
  for (int64_t j = 0; j < whole_words; ++j) {
    uint32_t word;
    std::memcpy(&word, key.values + 4 * j, sizeof(word));
    raw[j * panel_keys] = word;
  }
  if (whole_words < raw_words) {
    uint32_t word = 0;
    std::memcpy(&word, key.values + 4 * whole_words, static_cast<size_t>(bytes % 4));
    raw[whole_words * panel_keys] = word;
  }
  switch (problem.k_dtype) {
    case Dtype::kE4m3: panel.factor[lane] = load_f32(key.scales); break;
    case Dtype::kMxfp4:
      panel.factor[lane] = split_group_scales(problem, key, panel_keys, lane, panel.group_scale);
      break;
    default: panel.factor[lane] = 1.0F;
  }
}

void pack_query_row(const Call& call, int64_t t, Words words, int group_heads, uint32_t* out) {
  const Problem& problem = call.problem;
  const int64_t row_words = num_words(words, problem.head_dim);
  const int64_t num_groups = (problem.num_heads + group_heads - 1) / group_heads;
  std::memset(out, 0, static_cast<size_t>(num_groups * group_heads * row_words) * sizeof(*out));
  const bool is_bf16 = problem.q_dtype == Dtype::kBf16;
  const std::array<float, 256>& e4m3 = e4m3_table();
  for (int64_t h = 0; h < problem.num_heads; ++h) {
    const int64_t offset = call.q_row(t) + h * call.q_head_stride;
    const auto* bytes = static_cast<const uint8_t*>(call.q) + offset * (is_bf16 ? 2 : 1);
    uint32_t* head = out + h / group_heads * group_heads * row_words + h % group_heads;
    for (int64_t d = 0; d < problem.head_dim; ++d) {
      uint32_t bits;
      if (is_bf16) {
        uint16_t half;
        std::memcpy(&half, bytes + 2 * d, sizeof(half));
        bits = static_cast<uint32_t>(half) << 16U;
      } else {
        bits = float_bits(e4m3[bytes[d]]);
      }
      if (words == Words::kF32) {
        head[d * group_heads] = bits;
      } else {  // e4m3 and bf16 values have nothing in the lower half
        head[d / 2 * group_heads] |= d % 2 == 0 ? bits >> 16U : bits;
      }
    }
  }
}

bool has_bf16_subnormal(const uint8_t* values, int64_t count) {
  bool found = false;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t half;
    std::memcpy(&half, values + 2 * i, sizeof(half));
    const uint32_t magnitude = half & 0x7FFFU;
    found |= magnitude - 1U < 0x7FU;
  }
  return found;
}

}  // namespace keysieve::cpu
