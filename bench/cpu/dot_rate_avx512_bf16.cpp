// SPDX-License-Identifier: Apache-2.0
#include "cpu/dot_rate.hpp"

#if defined(__AVX512F__) && defined(__AVX512BF16__)
#include <immintrin.h>

namespace keysieve::bench {

bool has_avx512_bf16_dot() {
  return true;
}

float avx512_bf16_dot_rounds(int rounds) {
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3F803F80));  // pairs of 1
  const auto b = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3A803A80));  // pairs of 2^-10
  __m512 sums[kBf16Chains];
#pragma GCC unroll 24
  for (int i = 0; i < kBf16Chains; ++i) {
    sums[i] = _mm512_set1_ps(static_cast<float>(i));
  }
  for (int round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kBf16Chains; ++i) {
      sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
    }
  }
  __m512 total = sums[0];
#pragma GCC unroll 24
  for (int i = 1; i < kBf16Chains; ++i) {
    total = _mm512_add_ps(total, sums[i]);
  }
  return _mm512_cvtss_f32(total);
}

}  // namespace keysieve::bench

#else

namespace keysieve::bench {

bool has_avx512_bf16_dot() {
  return false;
}
float avx512_bf16_dot_rounds(int /*rounds*/) {
  return 0;
}

}  // namespace keysieve::bench

#endif
