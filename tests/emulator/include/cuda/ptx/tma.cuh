// SPDX-License-Identifier: Apache-2.0
// src/cuda/ptx/tma.cuh for the emulated device.
#pragma once

#include <cstdint>
#include <cstring>
#include <cuda.h>

#include "emulator/machine.hpp"
#include "emulator/tensor_map.hpp"

namespace keysieve::ptx {

inline void prefetch_tensor_map(const CUtensorMap& /*map*/) {}
inline uint64_t l2_evict_last() {
  return 0;
}
inline uint64_t l2_evict_first() {
  return 0;
}

struct Coordinate5d {
  int32_t x, y, z, u, v;
};

inline void tma_load(int rank, uint32_t s_target, const CUtensorMap& encoded, uint32_t barrier, Coordinate5d at) {
  emulator::Block& block = emulator::Lane::current().block();
  const emulator::TensorMap map = emulator::TensorMap::of(encoded);
  if (map.rank != rank) {
    emulator::fail("a %d-d copy with a tensor map of %d dimensions", rank, map.rank);
  }
  emulator::Machine::get().do_sometime([&block, map, s_target, barrier, at] {
    map.copy_box(block, s_target, {at.x, at.y, at.z, at.u, at.v});
    block.mbarrier(barrier).complete(map.box_bytes());
  });
}
inline void tma_load_1d(uint32_t s_target, const CUtensorMap& map, uint32_t barrier, int32_t x) {
  tma_load(1, s_target, map, barrier, {x, 0, 0, 0, 0});
}
inline void tma_load_2d(uint32_t s_target, const CUtensorMap& map, uint32_t barrier, int32_t x, int32_t y) {
  tma_load(2, s_target, map, barrier, {x, y, 0, 0, 0});
}
inline void tma_load_2d(uint32_t s_target, const CUtensorMap& map, uint32_t barrier, int32_t x, int32_t y,
                        uint64_t /*l2_policy*/) {
  tma_load(2, s_target, map, barrier, {x, y, 0, 0, 0});
}
inline void tma_load_3d(uint32_t s_target, const CUtensorMap& map, uint32_t barrier, int32_t x, int32_t y, int32_t z) {
  tma_load(3, s_target, map, barrier, {x, y, z, 0, 0});
}
inline void tma_load_5d(uint32_t s_target, const CUtensorMap& map, uint32_t barrier, Coordinate5d at) {
  tma_load(5, s_target, map, barrier, at);
}

inline void check_bulk(const void* g_pointer, uint32_t bytes) {
  if (reinterpret_cast<uintptr_t>(g_pointer) % 16 != 0 || bytes % 16 != 0) {
    emulator::fail("a bulk copy of %u bytes at %p: both must be multiples of 16", bytes, g_pointer);
  }
}
inline void bulk_load(uint32_t s_target, const void* g_source, uint32_t bytes, uint32_t barrier) {
  check_bulk(g_source, bytes);
  emulator::Block& block = emulator::Lane::current().block();
  emulator::Machine::get().do_sometime([&block, s_target, g_source, bytes, barrier] {
    std::memcpy(block.at(s_target, bytes, 16), g_source, bytes);
    block.mbarrier(barrier).complete(static_cast<int32_t>(bytes));
  });
}
inline void bulk_store(void* g_target, uint32_t s_source, uint32_t bytes) {
  check_bulk(g_target, bytes);
  emulator::Lane& lane = emulator::Lane::current();
  lane.store_later([&block = lane.block(), g_target, s_source, bytes] {
    std::memcpy(g_target, block.at(s_source, bytes, 16), bytes);
  });
}
inline void bulk_commit() {
  emulator::Lane::current().commit_stores();
}
template <int kPending>
void bulk_wait_read() {
  emulator::Lane::current().finish_stores(kPending);
}

inline void copy_later(uint32_t s_target, const void* g_source, uint32_t bytes, bool valid) {
  if (reinterpret_cast<uintptr_t>(g_source) % bytes != 0) {
    emulator::fail("cp.async of %u bytes from %p: not aligned", bytes, g_source);
  }
  emulator::Lane& lane = emulator::Lane::current();
  lane.copy_later([&block = lane.block(), s_target, g_source, bytes, valid] {
    uint8_t* s_bytes = block.at(s_target, bytes, bytes);
    if (valid) {
      std::memcpy(s_bytes, g_source, bytes);
    } else {
      std::memset(s_bytes, 0, bytes);
    }
  });
}
inline void cp_async_4(uint32_t s_target, const void* g_source, bool valid) {
  copy_later(s_target, g_source, 4, valid);
}
inline void cp_async_16(uint32_t s_target, const void* g_source) {
  copy_later(s_target, g_source, 16, true);
}
inline void cp_async_commit() {
  emulator::Lane::current().commit_copies();
}
template <int kGroups>
void cp_async_wait() {
  emulator::Lane::current().finish_copies(kGroups);
}
inline void fence_proxy_async_shared() {}

}  // namespace keysieve::ptx
