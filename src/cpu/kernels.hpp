// SPDX-License-Identifier: Apache-2.0
// The kernels of the CPU backend as function pointers: one table an instruction set.
//
// A panel is `panel_keys` keys side by side, one key a SIMD lane.  Both operands are packed so that the dot product
// walks 32-bit words upwards:
//     keys     k[word][panel_keys]
//     queries  q[head group][word][group_heads]      one row; heads past H are zero and their products unused
// A word is one channel as f32, or a pair of channels (even d in the low half) as bf16.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cpu/top_k.hpp"

namespace keysieve::cpu {

inline constexpr int kMaxPanelKeys = 48;
inline constexpr int kAvx512PanelKeys = 48;
inline constexpr int kAvx512GroupHeads = 8;

enum class Words { kF32, kBf16Pairs };

inline int64_t num_words(Words words, int64_t head_dim) {
  return words == Words::kF32 ? head_dim : (head_dim + 1) / 2;
}

inline int64_t key_bytes(Dtype k_dtype, int64_t head_dim) {
  return page_key_bytes(k_dtype, head_dim) / KEYSIEVE_PAGE_SIZE;
}
inline int64_t num_raw_words(Dtype k_dtype, int64_t head_dim) {
  return (key_bytes(k_dtype, head_dim) + 3) / 4;
}

struct PackArgs {
  Dtype k_dtype = Dtype::kNone;
  Words words = Words::kF32;
  int64_t head_dim = 0;
};

/// A panel in a worker's scratch.
struct KeyPanel {
  uint32_t* raw = nullptr;       // [num_raw_words][panel_keys]: the bytes of the keys, transposed
  float* group_scale = nullptr;  // [D/32][panel_keys], MXFP4: scale of a group relative to the key's largest
  float* factor = nullptr;       // [panel_keys]: what the head sum is multiplied by
  uint32_t* words = nullptr;     // [num_words][panel_keys]: raw, decoded
};

struct ScoreArgs {
  const uint32_t* q = nullptr;
  const uint32_t* k = nullptr;
  const float* weights = nullptr;  // [H]
  const float* factor = nullptr;   // [panel_keys]
  int64_t num_heads = 0;
  int64_t num_words = 0;
};

/// Scores of one query row with a panel, [panel_keys].
using ScoreFunction = void (*)(const ScoreArgs& args, float* scores);

struct ScoreKernels {
  const char* isa;
  int panel_keys;
  int group_heads;
  void (*decode_panel)(const PackArgs& args, const KeyPanel& panel);
  ScoreFunction score;  // of f32 words
};

/// Offers scores of the keys first_index, first_index + 1, ... to `top`.
using OfferFunction = void (*)(TopK& top, const float* scores, int64_t count, int64_t first_index);

/// The best kernels among Highway's `targets`, a bit set; the baseline if there are none.
ScoreKernels score_kernels(int64_t targets) noexcept;
OfferFunction offer_function(int64_t targets) noexcept;

/// Scores bf16 pairs with AVX-512 BF16, in panels of kAvx512PanelKeys and groups of kAvx512GroupHeads.  Null if it was
/// not compiled; the caller checks that the processor has the instructions.
ScoreFunction avx512_bf16_score() noexcept;

}  // namespace keysieve::cpu
