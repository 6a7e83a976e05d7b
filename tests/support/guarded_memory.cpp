// SPDX-License-Identifier: Apache-2.0
#include "support/guarded_memory.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

namespace keysieve::test {
namespace {

constexpr size_t kMisalignmentUnit = 64;

size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

GuardedMemory::GuardedMemory(size_t bytes, Fence fence, size_t misalignment) : size_(bytes) {
  page_bytes_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t slack = misalignment == 0 ? 0 : round_up(misalignment, kMisalignmentUnit);
  const size_t inner_bytes = round_up(std::max<size_t>(bytes + slack, 1), page_bytes_);
  mapping_bytes_ = inner_bytes + 2 * page_bytes_;
  void* mapping =
      mmap(nullptr, mapping_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
  if (mapping == MAP_FAILED) {
    throw std::bad_alloc();
  }
  mapping_ = static_cast<std::byte*>(mapping);
  std::byte* inner = mapping_ + page_bytes_;
  if (mprotect(inner, inner_bytes, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping_, mapping_bytes_);
    throw std::bad_alloc();
  }
  if (misalignment > 0) {
    data_ = inner + misalignment;
  } else {
    data_ = fence == Fence::kAfter ? inner + (inner_bytes - bytes) : inner;
  }
  std::memset(inner, kSlackByte, static_cast<size_t>(data_ - inner));
  std::memset(data_ + bytes, kSlackByte, static_cast<size_t>(inner + inner_bytes - (data_ + bytes)));
}

GuardedMemory::~GuardedMemory() {
  munmap(mapping_, mapping_bytes_);
}

void GuardedMemory::seal() {
  if (!sealed_) {
    mprotect(mapping_ + page_bytes_, mapping_bytes_ - 2 * page_bytes_, PROT_READ);
    sealed_ = true;
  }
}

void GuardedMemory::unseal() {
  if (sealed_) {
    mprotect(mapping_ + page_bytes_, mapping_bytes_ - 2 * page_bytes_, PROT_READ | PROT_WRITE);
    sealed_ = false;
  }
}

bool GuardedMemory::slack_intact() const {
  const std::byte* inner = mapping_ + page_bytes_;
  const std::byte* inner_end = mapping_ + mapping_bytes_ - page_bytes_;
  const auto is_slack = [](std::byte value) { return value == std::byte{kSlackByte}; };
  return std::all_of(inner, static_cast<const std::byte*>(data_), is_slack) &&
         std::all_of(static_cast<const std::byte*>(data_) + size_, inner_end, is_slack);
}

}  // namespace keysieve::test
