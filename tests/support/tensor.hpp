// SPDX-License-Identifier: Apache-2.0
// A tensor of a test: owns guarded host memory, knows its strides, and can be viewed at any base address.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/problem.hpp"
#include "support/guarded_memory.hpp"

namespace keysieve::test {

/// What the bytes of an output or a workspace hold before a call.
enum class Poison { kMinus777, kFF, k7F, kRandom };

/// Byte `offset` of memory that is poisoned.
uint8_t poison_byte(Poison poison, size_t offset);
void poison_memory(Poison poison, void* data, size_t bytes);

int64_t dtype_bytes(Dtype dtype);

struct TensorLayout {
  std::vector<int64_t> stride;  // elements; empty: dense
  size_t misalignment = 0;      // bytes past a multiple of 64; 0: the memory ends at its guard page
  Fence fence = Fence::kAfter;
};

/// Copies share their memory; clone() does not.  Default-constructed: absent (rank 0).
class Tensor {
 public:
  Tensor() = default;
  Tensor(Dtype dtype, std::vector<int64_t> shape, TensorLayout layout = {});

  [[nodiscard]] bool present() const { return !shape_.empty(); }
  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] const std::vector<int64_t>& shape() const { return shape_; }
  [[nodiscard]] int64_t shape(size_t axis) const { return shape_[axis]; }
  [[nodiscard]] int64_t stride(size_t axis) const { return layout_.stride[axis]; }
  [[nodiscard]] const TensorLayout& layout() const { return layout_; }

  /// First byte of the first element to last byte of the last one, gaps between rows included.
  [[nodiscard]] size_t image_bytes() const { return memory_ == nullptr ? 0 : memory_->size(); }
  [[nodiscard]] const std::byte* image() const { return memory_ == nullptr ? nullptr : memory_->data(); }
  [[nodiscard]] std::byte* mutable_image();
  [[nodiscard]] GuardedMemory& memory() const { return *memory_; }

  template <typename T>
  [[nodiscard]] const T* data() const {
    return reinterpret_cast<const T*>(image());
  }
  template <typename T>
  [[nodiscard]] T* mutable_data() {
    return reinterpret_cast<T*>(mutable_image());
  }

  /// Element offset of an index tuple.
  [[nodiscard]] int64_t offset(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) const;
  template <typename T>
  [[nodiscard]] T value(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) const {
    return data<T>()[offset(i, j, k, l)];
  }

  /// Element offset of row t of a tensor laid out as [T, ...] or as [B, next_n, ...].
  [[nodiscard]] int64_t row_offset(int64_t t, bool grouped) const;

  /// The C view of this tensor with its first element at `base`.
  [[nodiscard]] keysieve_tensor view(void* base) const;

  /// The same layout and content in its own memory.
  [[nodiscard]] Tensor clone() const;

  /// The same values in memory with another layout.
  [[nodiscard]] Tensor with_layout(TensorLayout layout) const;

  /// Dense copy [rows, ...] of the listed query rows; `grouped`: the first two axes are [B, next_n].
  [[nodiscard]] Tensor rows(const std::vector<int64_t>& which, bool grouped) const;

  void fill(uint8_t byte);
  void poison(Poison poison);

  /// True if every byte between rows of a [T,K] tensor still holds `poison` (rank 1: between elements).
  [[nodiscard]] bool gaps_hold(Poison poison) const;

 private:
  void allocate();

  Dtype dtype_ = Dtype::kNone;
  std::vector<int64_t> shape_;
  TensorLayout layout_;
  std::shared_ptr<GuardedMemory> memory_;
};

}  // namespace keysieve::test
