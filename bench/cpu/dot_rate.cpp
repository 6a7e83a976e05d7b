// SPDX-License-Identifier: Apache-2.0
#include "cpu/dot_rate.hpp"

// Vectors of unknown length cannot be array elements; Arm processors with SVE run the NEON kernels.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/dot_rate.cpp"
#include "hwy/foreach_target.h"
// Highway must come after foreach_target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace keysieve::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Two units of latency 4, with room to spare, and fewer than 16 registers.
constexpr int kDotChains = 12;

/// Returns something of the sums, so that they are computed.  flops: of one round.
float f32_dot_rounds(int rounds, double* flops) {
  const hn::ScalableTag<float> df;
  const auto a = hn::Set(df, 0.999F);
  const auto b = hn::Set(df, 1e-3F);
  hn::Vec<decltype(df)> sums[kDotChains];
  HWY_UNROLL(12)
  for (int i = 0; i < kDotChains; ++i) {
    sums[i] = hn::Set(df, static_cast<float>(i));
  }
  for (int round = 0; round < rounds; ++round) {
    HWY_UNROLL(12)
    for (int i = 0; i < kDotChains; ++i) {
      sums[i] = hn::MulAdd(sums[i], a, b);
    }
  }
  auto total = sums[0];
  HWY_UNROLL(12)
  for (int i = 1; i < kDotChains; ++i) {
    total = hn::Add(total, sums[i]);
  }
  *flops = 2.0 * kDotChains * static_cast<double>(hn::Lanes(df));
  return hn::GetLane(total);
}

}  // namespace HWY_NAMESPACE
}  // namespace keysieve::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace keysieve::bench {
namespace {

HWY_EXPORT(f32_dot_rounds);

/// Best of several measurements of `threads` threads that each run `one_thread(rounds, &flops)`.
template <class OneThread>
double best_rate(int threads, const OneThread& one_thread) {
  constexpr int kRounds = 2'000'000;
  double best = 0;
  for (int repeat = 0; repeat < 40; ++repeat) {
    std::vector<double> flops(static_cast<size_t>(threads));
    std::vector<float> results(flops.size());
    std::vector<std::thread> running;
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < flops.size(); ++i) {
      running.emplace_back([&, i] { results[i] = one_thread(kRounds, &flops[i]); });
    }
    for (std::thread& thread : running) {
      thread.join();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, flops[0] * kRounds * threads / seconds * 1e-9);
  }
  return best;
}

bool processor_has_avx512_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

}  // namespace

double f32_dot_gflops(int threads) {
  return best_rate(threads,
                   [](int rounds, double* flops) { return HWY_DYNAMIC_DISPATCH(f32_dot_rounds)(rounds, flops); });
}

double bf16_dot_gflops(int threads) {
  if (!has_avx512_bf16_dot() || !processor_has_avx512_bf16()) {
    return 0;
  }
  return best_rate(threads, [](int rounds, double* flops) {
    *flops = 2.0 * kBf16Chains * 32;  // channel pairs of 16 lanes
    return avx512_bf16_dot_rounds(rounds);
  });
}

double cpu_dot_gflops(int threads) {
  const double bf16 = bf16_dot_gflops(threads);
  return bf16 > 0 ? bf16 : f32_dot_gflops(threads);
}

}  // namespace keysieve::bench
#endif
