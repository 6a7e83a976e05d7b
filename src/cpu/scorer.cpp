// SPDX-License-Identifier: Apache-2.0
#include "cpu/scorer.hpp"

#include <cstring>

#include "cpu/keys.hpp"
#include "hwy/targets.h"

namespace keysieve::cpu {
namespace {

bool has_avx512_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

/// Asked once: CPUID is slow on virtual machines.
int64_t supported_targets() {
  static const int64_t kTargets = hwy::SupportedTargets();
  return kTargets;
}

constexpr const char* kAvx512Bf16 = "avx512_bf16";

Isa isa_of_targets(int64_t targets) {
  Isa isa;
  isa.f32 = score_kernels(targets);
  isa.offer = offer_function(targets);
  isa.name = isa.f32.isa;
  return isa;
}

}  // namespace

Status choose_isa(const char* config, Isa* isa) noexcept {
  const int64_t supported = supported_targets();
  *isa = isa_of_targets(supported);
  const bool bf16_runs = isa->f32.panel_keys == kAvx512PanelKeys && isa->f32.group_heads == kAvx512GroupHeads &&
                         avx512_bf16_score() != nullptr && has_avx512_bf16();
  if (bf16_runs && (config == nullptr || std::strcmp(config, kAvx512Bf16) == 0)) {
    isa->bf16_score = avx512_bf16_score();
    isa->name = kAvx512Bf16;
    return {};
  }
  if (config == nullptr) {
    return {};
  }
  char known[128] = "";
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    *isa = isa_of_targets(rest & -rest);
    if (std::strcmp(config, isa->name) == 0) {
      return {};
    }
    if (std::strstr(known, isa->name) == nullptr) {
      std::strncat(known, known[0] == '\0' ? "" : ", ", sizeof(known) - std::strlen(known) - 1);
      std::strncat(known, isa->name, sizeof(known) - std::strlen(known) - 1);
    }
  }
  return Status::error(KEYSIEVE_UNSUPPORTED, "options.config is \"%s\"; the cpu backend has %s%s on this machine",
                       config, bf16_runs ? "avx512_bf16, " : "", known);
}

Scorer::Scorer(const Call& call, const Isa& isa, int64_t max_rows, Arena& arena) : call_(&call), isa_(&isa) {
  const Problem& problem = call.problem;
  const int64_t lanes = isa.f32.panel_keys;
  const int64_t heads = (problem.num_heads + isa.f32.group_heads - 1) / isa.f32.group_heads * isa.f32.group_heads;
  const int64_t words = num_words(isa.words(), problem.head_dim);
  row_words_ = heads * words;
  rows_ = arena.take<uint32_t>(max_rows * row_words_);
  row_index_ = arena.take<int64_t>(max_rows);
  row_is_subnormal_ = arena.take<bool>(max_rows);
  panel_.raw = arena.take<uint32_t>(num_raw_words(problem.k_dtype, problem.head_dim) * lanes);
  panel_.words = arena.take<uint32_t>(words * lanes);
  panel_.factor = arena.take<float>(lanes);
  if (problem.k_dtype == Dtype::kMxfp4) {
    panel_.group_scale = arena.take<float>(problem.head_dim / 32 * lanes);
  }
  if (watches_subnormals()) {
    f32_row_ = arena.take<uint32_t>(heads * problem.head_dim);
    f32_words_ = arena.take<uint32_t>(problem.head_dim * lanes);
  }
}

bool Scorer::watches_subnormals() const {
  return isa_->words() == Words::kBf16Pairs && call_->problem.k_dtype == Dtype::kBf16;
}

void Scorer::load_row(int64_t slot, int64_t t) {
  const Problem& problem = call_->problem;
  row_index_[slot] = t;
  row_is_subnormal_[slot] = false;
  pack_query_row(*call_, t, isa_->words(), isa_->f32.group_heads, rows_ + slot * row_words_);
  if (watches_subnormals()) {
    const auto* row = static_cast<const uint8_t*>(call_->q) + 2 * call_->q_row(t);
    for (int64_t h = 0; h < problem.num_heads; ++h) {
      row_is_subnormal_[slot] |= has_bf16_subnormal(row + 2 * h * call_->q_head_stride, problem.head_dim);
    }
  }
}

void Scorer::load_keys(int64_t request, const int64_t* positions, int count) {
  const Problem& problem = call_->problem;
  subnormal_keys_ = 0;
  f32_panel_ready_ = false;
  for (int lane = 0; lane < panel_keys(); ++lane) {
    const KeyRef key = lane < count ? find_key(*call_, request, positions[lane]) : KeyRef{};
    stage_key(problem, key, panel_keys(), lane, panel_);
    if (watches_subnormals() && key.values != nullptr) {
      subnormal_keys_ |= uint64_t{has_bf16_subnormal(key.values, problem.head_dim)} << lane;
    }
  }
  isa_->f32.decode_panel({problem.k_dtype, isa_->words(), problem.head_dim}, panel_);
}

void Scorer::score(int64_t slot, float* scores) {
  const Problem& problem = call_->problem;
  ScoreArgs args;
  args.q = rows_ + slot * row_words_;
  args.k = panel_.words;
  args.weights = call_->weights.row(row_index_[slot]);
  args.factor = panel_.factor;
  args.num_heads = problem.num_heads;
  args.num_words = num_words(isa_->words(), problem.head_dim);
  if (isa_->bf16_score == nullptr) {
    isa_->f32.score(args, scores);
    return;
  }
  isa_->bf16_score(args, scores);
  if (subnormal_keys_ != 0 || row_is_subnormal_[slot]) {
    score_exactly_f32(slot, scores);
  }
}

/// Replaces the scores of the pairs that hold a subnormal.
void Scorer::score_exactly_f32(int64_t slot, float* scores) {
  const Problem& problem = call_->problem;
  if (!f32_panel_ready_) {
    KeyPanel f32_panel = panel_;
    f32_panel.words = f32_words_;
    isa_->f32.decode_panel({problem.k_dtype, Words::kF32, problem.head_dim}, f32_panel);
    f32_panel_ready_ = true;
  }
  const int64_t t = row_index_[slot];
  pack_query_row(*call_, t, Words::kF32, isa_->f32.group_heads, f32_row_);
  float f32_scores[kMaxPanelKeys];
  isa_->f32.score({f32_row_, f32_words_, call_->weights.row(t), panel_.factor, problem.num_heads, problem.head_dim},
                  f32_scores);
  for (int lane = 0; lane < panel_keys(); ++lane) {
    if (row_is_subnormal_[slot] || (subnormal_keys_ >> lane & 1U) != 0) {
      scores[lane] = f32_scores[lane];
    }
  }
}

}  // namespace keysieve::cpu
