// SPDX-License-Identifier: Apache-2.0
// Any bytes give either tensors that lie inside the input, or a message; then the replay reader takes them.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "io/replay.hpp"
#include "io/safetensors.hpp"

namespace {

void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

/// Touches every byte, so that a sanitizer sees a tensor that leaves the input.
void check_tensors(const keysieve::Safetensors& file, const std::byte* begin, size_t size) {
  static volatile unsigned sink = 0;
  for (const keysieve::FileTensor& tensor : file.tensors()) {
    require(tensor.data >= begin && tensor.bytes <= size && tensor.data + tensor.bytes <= begin + size);
    require(reinterpret_cast<uintptr_t>(tensor.data) % keysieve::file_dtype_bytes(tensor.dtype) == 0);
    for (size_t i = 0; i < tensor.bytes; ++i) {
      sink = sink + static_cast<unsigned>(tensor.data[i]);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  // A copy of exactly `size` bytes: aligned, and a read past the end is a read past the allocation.
  const std::unique_ptr<std::byte[]> copy(new std::byte[size]);
  const std::byte* begin = copy.get();
  if (size > 0) {
    std::memcpy(copy.get(), bytes, size);
  }
  keysieve::Safetensors file;
  const keysieve::Status status = keysieve::Safetensors::parse(begin, size, &file);
  require(status.ok() == (status.message()[0] == '\0'));
  if (!status.ok()) {
    return 0;
  }
  check_tensors(file, begin, size);
  keysieve::Replay replay;
  const keysieve::Status taken = keysieve::make_replay(std::move(file), &replay);
  require(taken.ok() == (taken.message()[0] == '\0'));
  return 0;
}
