// SPDX-License-Identifier: Apache-2.0
// Shared memory by its 32-bit address: loops that walk it keep one register a pointer.
#pragma once

#include <cstdint>

namespace keysieve::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* s_pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(s_pointer));
}

/// The block's dynamic shared memory.
template <class Smem>
__device__ __forceinline__ Smem& dynamic_shared() {
  extern __shared__ __align__(1024) uint8_t s_bytes[];
  return *reinterpret_cast<Smem*>(s_bytes);
}

/// A word that another warp may change while this one looks at it again and again.
__device__ __forceinline__ uint32_t poll_shared(const uint32_t& s_value) {
  return *static_cast<const volatile uint32_t*>(&s_value);
}

/// Writes what others look at with poll_shared, after what this thread wrote before.
__device__ __forceinline__ void publish_shared(uint32_t& s_value, uint32_t value) {
  __threadfence_block();
  *static_cast<volatile uint32_t*>(&s_value) = value;
}

/// Four floats at a 16-byte aligned address.
__device__ __forceinline__ void load_shared(uint32_t s_source, float (&values)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
               : "r"(s_source)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t s_target, uint16_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(s_target), "h"(value) : "memory");
}

__device__ __forceinline__ void increment_shared(uint32_t s_target) {
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(s_target) : "memory");
}

}  // namespace keysieve::ptx
