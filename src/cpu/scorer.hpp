// SPDX-License-Identifier: Apache-2.0
// One worker's scores: some packed query rows, one panel of keys at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"
#include "core/status.hpp"
#include "cpu/kernels.hpp"

namespace keysieve::cpu {

/// The kernels of one call.
struct Isa {
  const char* name = "";
  ScoreKernels f32 = {};
  ScoreFunction bf16_score = nullptr;  // null: all operands are f32
  OfferFunction offer = nullptr;

  [[nodiscard]] Words words() const { return bf16_score == nullptr ? Words::kF32 : Words::kBf16Pairs; }
};

/// The best this processor has, or the one that `config` names (options.config; null: the best).
Status choose_isa(const char* config, Isa* isa) noexcept;

/// Hands out 64-byte aligned pieces of a workspace.  Without memory it only counts.
class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  explicit Arena(std::byte* memory) : next_(memory) {}

  template <class T>
  T* take(int64_t count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    auto* piece = reinterpret_cast<T*>(next_);
    next_ = next_ == nullptr ? nullptr : next_ + bytes;
    used_ += bytes;
    return piece;
  }
  [[nodiscard]] bool has_memory() const { return next_ != nullptr; }
  [[nodiscard]] size_t used() const { return used_; }

 private:
  std::byte* next_;
  size_t used_ = 0;
};

class Scorer {
 public:
  /// Takes its scratch from `arena`: room for `max_rows` query rows.
  Scorer(const Call& call, const Isa& isa, int64_t max_rows, Arena& arena);

  [[nodiscard]] int panel_keys() const { return isa_->f32.panel_keys; }

  /// Packs query row t into a slot in [0, max_rows).
  void load_row(int64_t slot, int64_t t);

  /// Packs the keys at up to panel_keys() positions of a request.
  void load_keys(int64_t request, const int64_t* positions, int count);

  /// Scores of the row in `slot` with the loaded keys.
  void score(int64_t slot, float* scores);

 private:
  [[nodiscard]] bool watches_subnormals() const;
  void score_exactly_f32(int64_t slot, float* scores);

  const Call* call_;
  const Isa* isa_;
  int64_t row_words_ = 0;  // packed words of one query row
  uint32_t* rows_ = nullptr;
  int64_t* row_index_ = nullptr;  // t of each slot
  bool* row_is_subnormal_ = nullptr;
  KeyPanel panel_;

  // AVX-512 BF16 takes subnormal inputs as zero, so a pair with one in its row or its key is scored in f32.
  uint64_t subnormal_keys_ = 0;  // bit a lane
  bool f32_panel_ready_ = false;
  uint32_t* f32_row_ = nullptr;
  uint32_t* f32_words_ = nullptr;
};

}  // namespace keysieve::cpu
