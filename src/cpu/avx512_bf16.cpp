// SPDX-License-Identifier: Apache-2.0
// The tile of score.cpp with VDPBF16PS, which Highway has no target for.  Compiled with its own flags, so it calls no
// inline function of a header: the linker could hand that copy to code that runs on every processor.
//
// VDPBF16PS adds the products of a pair, odd channel first, each with one rounding to nearest even, and takes
// subnormal operands as zero; the caller keeps those away (scorer.cpp).
#include "cpu/kernels.hpp"

#if defined(__AVX512F__) && defined(__AVX512BF16__)
#include <immintrin.h>

namespace keysieve::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kVectors = 3;
static_assert(kAvx512PanelKeys == kVectors * kLanes);

void score(const ScoreArgs& args, float* scores) {
  const __m512 zero = _mm512_setzero_ps();
  const uint32_t* q = args.q;
  __m512 sums[kVectors] = {zero, zero, zero};
  for (int64_t h = 0; h < args.num_heads; h += kAvx512GroupHeads) {
    const uint32_t* k = args.k;
    __m512 acc[kAvx512GroupHeads][kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kAvx512GroupHeads; ++i) {
      acc[i][0] = acc[i][1] = acc[i][2] = zero;
    }
    for (int64_t word = 0; word < args.num_words; ++word) {
      const auto key0 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(k));
      const auto key1 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(k + kLanes));
      const auto key2 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(k + 2 * kLanes));
#pragma GCC unroll 8
      for (int i = 0; i < kAvx512GroupHeads; ++i) {
        const auto query = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(q[i])));
        acc[i][0] = _mm512_dpbf16_ps(acc[i][0], query, key0);
        acc[i][1] = _mm512_dpbf16_ps(acc[i][1], query, key1);
        acc[i][2] = _mm512_dpbf16_ps(acc[i][2], query, key2);
      }
      k += kAvx512PanelKeys;
      q += kAvx512GroupHeads;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kAvx512GroupHeads; ++i) {
      if (h + i < args.num_heads) {
        const __m512 weight = _mm512_set1_ps(args.weights[h + i]);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) {
          // VMAXPS returns its second operand if either is NaN: a NaN product stays NaN.
          sums[v] = _mm512_fmadd_ps(weight, _mm512_max_ps(zero, acc[i][v]), sums[v]);
        }
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const __m512 factor = _mm512_loadu_ps(args.factor + v * kLanes);
    _mm512_storeu_ps(scores + v * kLanes, _mm512_mul_ps(factor, sums[v]));
  }
}

}  // namespace

ScoreFunction avx512_bf16_score() noexcept {
  return &score;
}

}  // namespace keysieve::cpu

#else

namespace keysieve::cpu {

ScoreFunction avx512_bf16_score() noexcept {
  return nullptr;
}

}  // namespace keysieve::cpu

#endif
