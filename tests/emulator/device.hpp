// SPDX-License-Identifier: Apache-2.0
// What nvcc gives device code, for a C++ compiler: included before every file of src/cuda that has kernels.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cuda_runtime.h>

#include "emulator/machine.hpp"
#include "emulator/runtime.hpp"

// The toolkit's own headers turn most qualifiers into nothing already.
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __global__
#define __global__
#define __noinline__ __attribute__((noinline))

namespace emulator {

/// threadIdx, blockIdx and gridDim: launches have one dimension.
template <unsigned (*kNumber)()>
struct Dimension {
  struct {
    operator unsigned() const { return kNumber(); }
  } x;
};
inline unsigned thread_number() {
  return Lane::current().thread();
}
inline unsigned block_number() {
  return Lane::current().block().index().x;
}
inline unsigned num_blocks() {
  return Lane::current().block().grid().x;
}

inline constexpr uint32_t kAllLanes = 0xFFFFFFFFU;

/// What a value is in the 64 bits that lanes exchange, and back.
template <class T>
uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline Lane& lane_of_full_warp(uint32_t mask) {
  if (mask != kAllLanes) {
    fail("a warp operation of lanes %08x: only whole warps are known here", mask);
  }
  return Lane::current();
}

template <class Combine>
uint32_t reduce(uint32_t mask, const char* operation, uint32_t value, const Combine& combine) {
  const uint64_t* values = lane_of_full_warp(mask).meet(operation, value);
  auto result = static_cast<uint32_t>(values[0]);
  for (int i = 1; i < 32; ++i) {
    result = combine(result, static_cast<uint32_t>(values[i]));
  }
  return result;
}

}  // namespace emulator

inline constexpr emulator::Dimension<emulator::thread_number> threadIdx = {};
inline constexpr emulator::Dimension<emulator::block_number> blockIdx = {};
inline constexpr emulator::Dimension<emulator::num_blocks> gridDim = {};

// ---- warps ----

inline void __syncwarp(uint32_t mask = emulator::kAllLanes) {
  emulator::lane_of_full_warp(mask).meet("__syncwarp", 0);
}
template <class T>
T __shfl_sync(uint32_t mask, T value, int source) {
  const uint64_t* values = emulator::lane_of_full_warp(mask).meet("__shfl_sync", emulator::to_bits(value));
  return emulator::from_bits<T>(values[source % 32]);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned distance) {
  emulator::Lane& lane = emulator::lane_of_full_warp(mask);
  const uint64_t* values = lane.meet("__shfl_up_sync", emulator::to_bits(value));
  return lane.lane() < distance ? value : emulator::from_bits<T>(values[lane.lane() - distance]);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned distance) {
  emulator::Lane& lane = emulator::lane_of_full_warp(mask);
  const uint64_t* values = lane.meet("__shfl_down_sync", emulator::to_bits(value));
  return lane.lane() + distance > 31 ? value : emulator::from_bits<T>(values[lane.lane() + distance]);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lanes) {
  emulator::Lane& lane = emulator::lane_of_full_warp(mask);
  const uint64_t* values = lane.meet("__shfl_xor_sync", emulator::to_bits(value));
  return emulator::from_bits<T>(values[lane.lane() ^ static_cast<unsigned>(lanes)]);
}
inline uint32_t __ballot_sync(uint32_t mask, bool value) {
  const uint64_t* values = emulator::lane_of_full_warp(mask).meet("__ballot_sync", value ? 1 : 0);
  uint32_t ballot = 0;
  for (int i = 0; i < 32; ++i) {
    ballot |= values[i] != 0 ? 1U << i : 0U;
  }
  return ballot;
}
inline bool __any_sync(uint32_t mask, bool value) {
  return __ballot_sync(mask, value) != 0;
}
inline bool __all_sync(uint32_t mask, bool value) {
  return __ballot_sync(mask, value) == emulator::kAllLanes;
}
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value) {
  return emulator::reduce(mask, "__reduce_add_sync", value, [](uint32_t a, uint32_t b) { return a + b; });
}
inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t value) {
  return emulator::reduce(mask, "__reduce_or_sync", value, [](uint32_t a, uint32_t b) { return a | b; });
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t value) {
  return emulator::reduce(mask, "__reduce_min_sync", value, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
  return emulator::reduce(mask, "__reduce_max_sync", value, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}

// ---- blocks and memory ----

inline void __syncthreads() {
  emulator::Block& block = emulator::Lane::current().block();
  block.barrier(0).sync("__syncthreads", block.threads());
}
inline void __threadfence() {
  emulator::Lane::current().maybe_yield();
}
inline void __threadfence_block() {
  emulator::Lane::current().maybe_yield();
}
template <class T>
T __ldg(const T* source) {
  return *source;
}
template <class T>
T __ldcg(const T* source) {
  return *source;
}
template <class T>
T atomicAdd(T* target, T value) {
  emulator::Lane::current().maybe_yield();
  const T before = *target;
  *target = before + value;
  return before;
}
template <class T>
T atomicAnd(T* target, T value) {
  emulator::Lane::current().maybe_yield();
  const T before = *target;
  *target = before & value;
  return before;
}
template <class T>
T atomicMax(T* target, T value) {
  emulator::Lane::current().maybe_yield();
  const T before = *target;
  *target = before > value ? before : value;
  return before;
}
inline int64_t clock64() {
  return static_cast<int64_t>(emulator::Machine::get().progress_so_far());
}
[[noreturn]] inline void __trap() {
  emulator::fail("__trap");
}

// ---- arithmetic ----

inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __saturatef(float value) {
  return value > 0.0F ? (value < 1.0F ? value : 1.0F) : 0.0F;
}
inline uint32_t __float_as_uint(float value) {
  return std::bit_cast<uint32_t>(value);
}
inline int32_t __float_as_int(float value) {
  return std::bit_cast<int32_t>(value);
}
inline float __uint_as_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline float __int_as_float(int32_t bits) {
  return std::bit_cast<float>(bits);
}
inline int __popc(uint32_t bits) {
  return std::popcount(bits);
}
inline int __clz(int bits) {
  return std::countl_zero(static_cast<uint32_t>(bits));
}
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<uint32_t>(bits)) + 1;
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>(((uint64_t{high} << 32U | low) << (shift % 32)) >> 32U);
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
