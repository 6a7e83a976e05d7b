// SPDX-License-Identifier: Apache-2.0
// src/cuda/ptx/mbarrier.cuh for the emulated device.
#pragma once

#include <cstdint>

#include "cuda/ptx/shared.cuh"
#include "emulator/machine.hpp"

namespace keysieve::ptx {

inline emulator::Mbarrier& mbarrier_at(uint32_t barrier) {
  return emulator::Lane::current().block().mbarrier(barrier);
}
inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  mbarrier_at(barrier).init(arrivals);
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(uint32_t barrier) {
  mbarrier_at(barrier).arrive();
}
inline void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  mbarrier_at(barrier).expect(static_cast<int32_t>(bytes));
  mbarrier_at(barrier).arrive();
}
inline void mbarrier_arrive_after_cp_async(uint32_t barrier) {
  emulator::Machine::get().do_sometime(
      [copies = emulator::Lane::current().take_copies(), &reached = mbarrier_at(barrier)] {
        copies();
        reached.arrive();
      });
}
inline bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  const bool done = (mbarrier_at(barrier).phase & 1U) != parity;
  if (!done) {
    emulator::Lane::current().poll("an mbarrier");
  }
  return done;
}

}  // namespace keysieve::ptx
