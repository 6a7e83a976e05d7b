// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <string>

#include "core/status.hpp"

namespace keysieve {

/// Owns the mapping; movable.  The file must not shrink while it is mapped.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// Maps the regular file at `path`; an empty file gives size() == 0.
  static Status open(const std::string& path, MappedFile* file);

  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace keysieve
