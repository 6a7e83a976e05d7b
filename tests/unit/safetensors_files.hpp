// SPDX-License-Identifier: Apache-2.0
// safetensors files made by hand, so that tests can make wrong ones.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace keysieve::testing {

/// Bytes of a file: header length, header, `data_bytes` zero bytes.  Kept in 8-byte words, as the parser wants it.
class FileBytes {
 public:
  explicit FileBytes(const std::string& header, size_t data_bytes = 0) : FileBytes(header.size(), header, data_bytes) {}

  FileBytes(uint64_t stated_header_bytes, const std::string& header, size_t data_bytes)
      : size_(8 + header.size() + data_bytes), words_(size_ / 8 + 1, 0) {
    std::memcpy(words_.data(), &stated_header_bytes, 8);
    std::memcpy(reinterpret_cast<char*>(words_.data()) + 8, header.data(), header.size());
  }

  [[nodiscard]] const std::byte* data() const { return reinterpret_cast<const std::byte*>(words_.data()); }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  size_t size_;
  std::vector<uint64_t> words_;
};

/// A directory that is removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "keysieve-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) {
      path_ = pattern;
    }
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

  std::string write(const std::string& name, const void* data, size_t size) const {
    std::ofstream stream(file(name), std::ios::binary);
    stream.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace keysieve::testing
