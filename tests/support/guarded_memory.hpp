// SPDX-License-Identifier: Apache-2.0
// Host memory between two inaccessible pages, so that a read or write outside of it faults at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace keysieve::test {

/// Which end of the memory touches its guard page exactly.  The other end has less than a page of slack, filled with
/// kSlackByte and checked for writes.
enum class Fence { kAfter, kBefore };

/// NaN as e4m3, huge as f32 and i32: what lies in slack changes a result that reads it.
inline constexpr uint8_t kSlackByte = 0x7F;

class GuardedMemory {
 public:
  /// Zero-filled and mapped lazily: a large sparse buffer costs only the pages that are touched.
  /// With `misalignment` > 0 the base is `misalignment` bytes past a multiple of 64, with slack on both sides.
  explicit GuardedMemory(size_t bytes, Fence fence = Fence::kAfter, size_t misalignment = 0);
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }

  /// Makes the memory read-only: a write to an input faults.
  void seal();
  void unseal();
  [[nodiscard]] bool sealed() const { return sealed_; }

  [[nodiscard]] bool slack_intact() const;

 private:
  std::byte* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  size_t page_bytes_ = 0;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool sealed_ = false;
};

}  // namespace keysieve::test
