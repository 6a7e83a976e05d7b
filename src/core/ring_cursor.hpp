// SPDX-License-Identifier: Apache-2.0
// The position of one role in a ring of buffers.  All slot and phase arithmetic of the kernels is here.
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

namespace keysieve {

/// Walks slots 0 .. kSlots-1 again and again.  `lap_parity` is 0 on the first lap, then alternates.
///
/// A barrier's phase with parity p completes on laps of that parity, so a consumer waits for `full` with
/// lap_parity().  A producer waits for `empty` with the opposite parity: on its first lap that is the phase before
/// the first, which counts as complete, so it fills the whole ring without waiting.
template <int kSlots>
class RingCursor {
 public:
  static_assert(kSlots >= 1);

  RingCursor() = default;
  /// At step `number` of the walk, from 0 on.
  KEYSIEVE_HOST_DEVICE explicit RingCursor(uint32_t number)
      : slot_(static_cast<int>(number % kSlots)), lap_parity_(number / kSlots % 2U) {}

  KEYSIEVE_HOST_DEVICE void advance() {
    slot_ += 1;
    if (slot_ == kSlots) {
      slot_ = 0;
      lap_parity_ ^= 1U;
    }
  }

  [[nodiscard]] KEYSIEVE_HOST_DEVICE int slot() const { return slot_; }
  [[nodiscard]] KEYSIEVE_HOST_DEVICE uint32_t full_parity() const { return lap_parity_; }
  [[nodiscard]] KEYSIEVE_HOST_DEVICE uint32_t empty_parity() const { return lap_parity_ ^ 1U; }

 private:
  int slot_ = 0;
  uint32_t lap_parity_ = 0;
};

}  // namespace keysieve
