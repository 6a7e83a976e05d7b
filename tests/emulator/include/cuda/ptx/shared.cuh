// SPDX-License-Identifier: Apache-2.0
// src/cuda/ptx/shared.cuh for the emulated device.
#pragma once

#include <cstdint>
#include <cstring>

#include "emulator/machine.hpp"

namespace keysieve::ptx {

template <class Smem>
Smem& dynamic_shared() {
  return *reinterpret_cast<Smem*>(emulator::Lane::current().block().shared());
}
inline uint32_t shared_address(const void* s_pointer) {
  return emulator::Lane::current().block().address_of(s_pointer);
}
inline uint32_t poll_shared(const uint32_t& s_value) {
  emulator::Lane::current().poll("a word of shared memory");
  return s_value;
}
inline void publish_shared(uint32_t& s_value, uint32_t value) {
  s_value = value;
  emulator::Machine::get().progress();
}
inline void load_shared(uint32_t s_source, float (&values)[4]) {
  std::memcpy(values, emulator::Lane::current().block().at(s_source, 16, 16), 16);
}
inline void store_shared(uint32_t s_target, uint16_t value) {
  std::memcpy(emulator::Lane::current().block().at(s_target, 2, 2), &value, 2);
}
inline void increment_shared(uint32_t s_target) {
  ++*reinterpret_cast<uint32_t*>(emulator::Lane::current().block().at(s_target, 4, 4));
}

}  // namespace keysieve::ptx
