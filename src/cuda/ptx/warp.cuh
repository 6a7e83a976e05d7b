// SPDX-License-Identifier: Apache-2.0
// Warp and warpgroup housekeeping.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

namespace keysieve::ptx {

inline constexpr uint32_t kAllLanes = 0xFFFFFFFFU;

/// Index of the calling warp, in a form that the compiler knows to be the same in all lanes.
__device__ __forceinline__ int warp_index() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / 32U), 0);
}
__device__ __forceinline__ int lane_index() {
  return static_cast<int>(threadIdx.x % 32U);
}

/// The value, which is the same in all lanes, in a form that the compiler knows to be so.  Loop bounds that pass
/// through here let it keep addresses and descriptors in uniform registers, which saves a fifth of a tile's
/// instructions.
__device__ __forceinline__ int32_t uniform(int32_t value) {
  return static_cast<int32_t>(__reduce_or_sync(kAllLanes, static_cast<uint32_t>(value)));
}

/// threadIdx.x, as a value that the compiler computes anew at every call: inside a loop it keeps what depends on the
/// thread alone from being computed before the loop and kept in registers throughout.
__device__ __forceinline__ int thread_index_again() {
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  return thread;
}

/// Sum of `value` over the lanes before this one; by all lanes of a warp.
__device__ __forceinline__ uint32_t sum_of_lanes_before(uint32_t value) {
  const int lane = lane_index();
  uint32_t sum = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, sum, distance);
    sum += lane >= distance ? other : 0;
  }
  return sum - value;
}

/// The larger of both; NaN if one is.
__device__ __forceinline__ float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

/// Sets the register budget of a warpgroup.  The pool is what the launch allocated: threads * registers at launch.
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Barrier number `id` (1..15; 0 is __syncthreads) among `threads` threads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Programmatic dependent launch: waits for the kernel before this one in the stream, if it let us start early.
__device__ __forceinline__ void wait_for_previous_grid() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void allow_next_grid() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Stores to global memory; a pointer that came through shared memory would otherwise take the slower generic path.
__device__ __forceinline__ void store_global(float* g_target, float value) {
  asm volatile("st.global.f32 [%0], %1;" ::"l"(g_target), "f"(value) : "memory");
}
__device__ __forceinline__ void store_global(__nv_bfloat16* g_target, __nv_bfloat16 value) {
  asm volatile("st.global.b16 [%0], %1;" ::"l"(g_target), "h"(__bfloat16_as_ushort(value)) : "memory");
}

}  // namespace keysieve::ptx
