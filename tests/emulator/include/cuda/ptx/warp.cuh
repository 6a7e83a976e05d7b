// SPDX-License-Identifier: Apache-2.0
// src/cuda/ptx/warp.cuh for the emulated device.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <limits>

#include "emulator/machine.hpp"

namespace keysieve::ptx {

inline constexpr uint32_t kAllLanes = 0xFFFFFFFFU;

inline int warp_index() {
  return static_cast<int>(emulator::Lane::current().thread() / 32U);
}
inline int lane_index() {
  return static_cast<int>(emulator::Lane::current().lane());
}
inline int32_t uniform(int32_t value) {
  const uint64_t* values = emulator::Lane::current().meet("uniform", static_cast<uint32_t>(value));
  uint64_t all = 0;
  for (int lane = 0; lane < 32; ++lane) {
    all |= values[lane];
  }
  return static_cast<int32_t>(all);
}
inline int thread_index_again() {
  return static_cast<int>(emulator::Lane::current().thread());
}
inline uint32_t sum_of_lanes_before(uint32_t value) {
  const uint64_t* values = emulator::Lane::current().meet("sum_of_lanes_before", value);
  uint32_t sum = 0;
  for (unsigned lane = 0; lane < emulator::Lane::current().lane(); ++lane) {
    sum += static_cast<uint32_t>(values[lane]);
  }
  return sum;
}
inline float max_nan(float a, float b) {
  return a != a || b != b ? std::numeric_limits<float>::quiet_NaN() : a > b ? a : b;
}
inline void set_registers(int registers, bool grows) {
  emulator::Lane& lane = emulator::Lane::current();
  if (grows ? registers < lane.registers() : registers > lane.registers()) {
    emulator::fail("setmaxnreg from %d to %d registers: the wrong direction", lane.registers(), registers);
  }
  lane.block().set_registers(lane, registers);
}
template <int kRegisters>
void grow_registers() {
  set_registers(kRegisters, true);
}
template <int kRegisters>
void shrink_registers() {
  set_registers(kRegisters, false);
}

inline void named_barrier_sync(int id, int threads) {
  emulator::Lane::current().block().barrier(id).sync("a named barrier", static_cast<unsigned>(threads));
}
inline void named_barrier_arrive(int id, int threads) {
  (void)emulator::Lane::current().block().barrier(id).arrive(static_cast<unsigned>(threads));
}
inline void wait_for_previous_grid() {}
inline void allow_next_grid() {}

template <class T>
void store_global(T* g_target, T value) {
  *g_target = value;
}

}  // namespace keysieve::ptx
