// SPDX-License-Identifier: Apache-2.0
#include "support/tensor.hpp"

#include <cstring>

#include "support/random.hpp"

namespace keysieve::test {
namespace {

/// Calls visit(element offset in a, element offset in b) for every index of all axes but the innermost.
template <typename Visit>
void for_each_run(const std::vector<int64_t>& shape, const Tensor& a, const Tensor& b, const Visit& visit) {
  for (const int64_t extent : shape) {
    if (extent == 0) {
      return;
    }
  }
  const size_t outer_axes = shape.size() - 1;
  std::vector<int64_t> index(outer_axes, 0);
  while (true) {
    int64_t offset_a = 0;
    int64_t offset_b = 0;
    for (size_t axis = 0; axis < outer_axes; ++axis) {
      offset_a += index[axis] * a.stride(axis);
      offset_b += index[axis] * b.stride(axis);
    }
    visit(offset_a, offset_b);
    size_t axis = outer_axes;
    while (axis > 0 && ++index[axis - 1] == shape[axis - 1]) {
      index[--axis] = 0;
    }
    if (axis == 0) {
      return;
    }
  }
}

}  // namespace

uint8_t poison_byte(Poison poison, size_t offset) {
  switch (poison) {
    case Poison::kMinus777: {
      constexpr auto kBits = static_cast<uint32_t>(-777);
      return static_cast<uint8_t>(kBits >> (8 * (offset % 4)));
    }
    case Poison::kFF: return 0xFF;
    case Poison::k7F: return 0x7F;
    case Poison::kRandom: return static_cast<uint8_t>(mix64(offset / 8 + 0x5EED) >> (8 * (offset % 8)));
  }
  return 0;
}

void poison_memory(Poison poison, void* data, size_t bytes) {
  auto* out = static_cast<uint8_t*>(data);
  if (poison == Poison::kFF || poison == Poison::k7F) {
    if (bytes > 0) {
      std::memset(data, poison_byte(poison, 0), bytes);
    }
    return;
  }
  for (size_t i = 0; i < bytes; ++i) {
    out[i] = poison_byte(poison, i);
  }
}

int64_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return 2;
    case Dtype::kF32:
    case Dtype::kI32: return 4;
    case Dtype::kU64: return 8;
    default: return 1;
  }
}

Tensor::Tensor(Dtype dtype, std::vector<int64_t> shape, TensorLayout layout)
    : dtype_(dtype), shape_(std::move(shape)), layout_(std::move(layout)) {
  if (layout_.stride.empty()) {
    layout_.stride.resize(shape_.size());
    int64_t stride = 1;
    for (size_t axis = shape_.size(); axis-- > 0;) {
      layout_.stride[axis] = stride;
      stride *= std::max<int64_t>(shape_[axis], 1);
    }
  }
  allocate();
}

void Tensor::allocate() {
  int64_t elements = 1;
  for (size_t axis = 0; axis < shape_.size(); ++axis) {
    if (shape_[axis] == 0) {
      elements = 0;
      break;
    }
    elements += (shape_[axis] - 1) * layout_.stride[axis];
  }
  memory_ = std::make_shared<GuardedMemory>(static_cast<size_t>(elements * dtype_bytes(dtype_)), layout_.fence,
                                            layout_.misalignment);
}

std::byte* Tensor::mutable_image() {
  if (memory_ == nullptr) {
    return nullptr;
  }
  memory_->unseal();
  return memory_->data();
}

int64_t Tensor::offset(int64_t i, int64_t j, int64_t k, int64_t l) const {
  const int64_t index[] = {i, j, k, l};
  int64_t sum = 0;
  for (size_t axis = 0; axis < shape_.size(); ++axis) {
    sum += index[axis] * layout_.stride[axis];
  }
  return sum;
}

int64_t Tensor::row_offset(int64_t t, bool grouped) const {
  return grouped ? t / shape_[1] * layout_.stride[0] + t % shape_[1] * layout_.stride[1] : t * layout_.stride[0];
}

keysieve_tensor Tensor::view(void* base) const {
  keysieve_tensor out{};
  if (!present()) {
    return out;
  }
  out.data = base;
  out.dtype = static_cast<int32_t>(dtype_);
  out.rank = static_cast<int32_t>(shape_.size());
  for (size_t axis = 0; axis < shape_.size(); ++axis) {
    out.shape[axis] = shape_[axis];
    out.stride[axis] = layout_.stride[axis];
  }
  return out;
}

Tensor Tensor::clone() const {
  if (!present()) {
    return {};
  }
  Tensor copy(dtype_, shape_, layout_);
  if (image_bytes() > 0) {
    std::memcpy(copy.mutable_image(), image(), image_bytes());
  }
  return copy;
}

Tensor Tensor::with_layout(TensorLayout layout) const {
  Tensor copy(dtype_, shape_, std::move(layout));
  copy.fill(kSlackByte);
  const int64_t element_bytes = dtype_bytes(dtype_);
  std::byte* target = copy.mutable_image();
  const size_t inner = shape_.size() - 1;
  for_each_run(shape_, copy, *this, [&](int64_t to, int64_t from) {
    if (copy.stride(inner) == 1 && stride(inner) == 1) {
      std::memcpy(target + to * element_bytes, image() + from * element_bytes,
                  static_cast<size_t>(shape_[inner] * element_bytes));
      return;
    }
    for (int64_t i = 0; i < shape_[inner]; ++i) {
      std::memcpy(target + (to + i * copy.stride(inner)) * element_bytes,
                  image() + (from + i * stride(inner)) * element_bytes, static_cast<size_t>(element_bytes));
    }
  });
  return copy;
}

Tensor Tensor::rows(const std::vector<int64_t>& which, bool grouped) const {
  if (!present()) {
    return {};
  }
  const size_t row_axes = grouped ? 2 : 1;
  std::vector<int64_t> shape = {static_cast<int64_t>(which.size())};
  shape.insert(shape.end(), shape_.begin() + static_cast<int64_t>(row_axes), shape_.end());
  Tensor copy(dtype_, shape);
  const auto element_bytes = static_cast<size_t>(dtype_bytes(dtype_));
  int64_t row_elements = 1;
  for (size_t axis = row_axes; axis < shape_.size(); ++axis) {
    row_elements *= shape_[axis];
  }
  std::byte* target = copy.mutable_image();
  const bool dense_rows = shape_.size() == row_axes + 1 && layout_.stride.back() == 1;
  for (const int64_t t : which) {
    if (dense_rows) {
      const auto row_bytes = static_cast<size_t>(row_elements) * element_bytes;
      std::memcpy(target, image() + static_cast<size_t>(row_offset(t, grouped)) * element_bytes, row_bytes);
      target += row_bytes;
      continue;
    }
    for (int64_t e = 0; e < row_elements; ++e) {
      int64_t rest = e;
      int64_t from = row_offset(t, grouped);
      for (size_t axis = shape_.size(); axis-- > row_axes;) {
        from += rest % shape_[axis] * layout_.stride[axis];
        rest /= shape_[axis];
      }
      std::memcpy(target, image() + static_cast<size_t>(from) * element_bytes, element_bytes);
      target += element_bytes;
    }
  }
  return copy;
}

void Tensor::fill(uint8_t byte) {
  if (image_bytes() > 0) {
    std::memset(mutable_image(), byte, image_bytes());
  }
}

void Tensor::poison(Poison poison) {
  poison_memory(poison, mutable_image(), image_bytes());
}

bool Tensor::gaps_hold(Poison poison) const {
  if (!present() || image_bytes() == 0) {
    return true;
  }
  const int64_t element_bytes = dtype_bytes(dtype_);
  const int64_t row_elements = shape_.size() == 1 ? 1 : shape_[1];
  const int64_t row_bytes = row_elements * element_bytes;
  const int64_t stride_bytes = layout_.stride[0] * element_bytes;
  const auto* bytes = reinterpret_cast<const uint8_t*>(image());
  for (int64_t row = 0; row + 1 < shape_[0]; ++row) {
    for (int64_t i = row * stride_bytes + row_bytes; i < (row + 1) * stride_bytes; ++i) {
      if (bytes[i] != poison_byte(poison, static_cast<size_t>(i))) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace keysieve::test
