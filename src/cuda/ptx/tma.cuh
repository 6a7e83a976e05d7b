// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies between global and shared memory: tensor maps (TMA), bulk copies and cp.async.
// PTX ISA 8.0 sections 9.7.8.24 and 9.7.8.22.  A tensor map must be a __grid_constant__ kernel parameter.
#pragma once

#include <cstdint>
#include <cuda.h>

namespace keysieve::ptx {

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// L2 policies for the loads below.
__device__ __forceinline__ uint64_t l2_evict_last() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t l2_evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void tma_load_1d(uint32_t s_target, const CUtensorMap& map, uint32_t barrier, int32_t x) {
  asm volatile(
      "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];" ::"r"(
          s_target),
      "l"(&map), "r"(barrier), "r"(x)
      : "memory");
}

__device__ __forceinline__ void tma_load_2d(uint32_t s_target, const CUtensorMap& map, uint32_t barrier, int32_t x,
                                            int32_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          s_target),
      "l"(&map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void tma_load_2d(uint32_t s_target, const CUtensorMap& map, uint32_t barrier, int32_t x,
                                            int32_t y, uint64_t l2_policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4}], "
      "[%2], %5;" ::"r"(s_target),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "l"(l2_policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_3d(uint32_t s_target, const CUtensorMap& map, uint32_t barrier, int32_t x,
                                            int32_t y, int32_t z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(s_target),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

struct Coordinate5d {
  int32_t x, y, z, u, v;
};

__device__ __forceinline__ void tma_load_5d(uint32_t s_target, const CUtensorMap& map, uint32_t barrier,
                                            Coordinate5d at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(s_target),
      "l"(&map), "r"(barrier), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.u), "r"(at.v)
      : "memory");
}

/// Copies `bytes` contiguous bytes; addresses and size are multiples of 16.
__device__ __forceinline__ void bulk_load(uint32_t s_target, const void* g_source, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(s_target),
      "l"(g_source), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Copies `bytes` contiguous bytes out; part of the thread's current bulk group.
__device__ __forceinline__ void bulk_store(void* g_target, uint32_t s_source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(g_target), "r"(s_source), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until at most kPending groups of this thread still read shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Copies 4 bytes, or writes 0 if `valid` is false (g_source is then not read).
__device__ __forceinline__ void cp_async_4(uint32_t s_target, const void* g_source, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(s_target), "l"(g_source), "r"(valid ? 4 : 0)
               : "memory");
}

/// 16 bytes, past L1.
__device__ __forceinline__ void cp_async_16(uint32_t s_target, const void* g_source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(s_target), "l"(g_source) : "memory");
}
/// Ends a group of this thread's cp.async.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kGroups of this thread's latest groups are unfinished.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// Orders this thread's shared-memory stores before later asynchronous-proxy reads (TMA stores, wgmma).
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace keysieve::ptx
