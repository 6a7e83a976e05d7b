// SPDX-License-Identifier: Apache-2.0
// The most that a dot product can reach on this machine: multiply-adds on registers alone, no loads, no epilogue.
#pragma once

namespace keysieve::bench {

/// f32 fused multiply-adds, in GFLOP/s of `threads` threads together.
double f32_dot_gflops(int threads);

/// bf16 dot products (VDPBF16PS); 0 where the processor has none.
double bf16_dot_gflops(int threads);

/// The rate of the instruction that the CPU backend multiplies with on this machine.
double cpu_dot_gflops(int threads);

// One thread's inner loop with VDPBF16PS: `rounds` times kBf16Chains independent instructions on whole vectors.  Call
// it only on a processor that has them.
inline constexpr int kBf16Chains = 24;
float avx512_bf16_dot_rounds(int rounds);
bool has_avx512_bf16_dot();  // false: not compiled

}  // namespace keysieve::bench
