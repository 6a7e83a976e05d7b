// SPDX-License-Identifier: Apache-2.0
// safetensors files: 8 bytes of little-endian header length, a JSON header, then the tensors' bytes.
//
//     {"__metadata__": {"name": "text", ...},
//      "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//
// Format: https://huggingface.co/docs/safetensors.  The reader takes what the format allows and nothing else: the
// tensors must cover the data without gap or overlap, and their byte ranges must fit dtype and shape.  It never
// trusts a length, so any bytes give either tensors that lie inside the file or a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"
#include "io/mapped_file.hpp"

namespace keysieve {

enum class FileDtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

/// The name in the header, such as "F8_E4M3".
const char* file_dtype_name(FileDtype dtype);
size_t file_dtype_bytes(FileDtype dtype);

struct FileTensor {
  std::string name;
  FileDtype dtype = FileDtype::kU8;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

using FileMetadata = std::map<std::string, std::string>;

/// The tensors of one file.  `data` pointers live as long as this object (or, after parse, as the caller's bytes).
class Safetensors {
 public:
  /// Longest header that is read, as in the reference implementation of the format.
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;

  /// Maps and checks the file at `path`.
  static Status open(const std::string& path, Safetensors* out);

  /// Checks `size` bytes in memory, which must be aligned to 8 bytes.
  static Status parse(const std::byte* bytes, size_t size, Safetensors* out);

  /// In the order of their data.
  [[nodiscard]] const std::vector<FileTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const FileMetadata& metadata() const { return metadata_; }

  /// The tensor of that name, or null.
  [[nodiscard]] const FileTensor* find(std::string_view name) const;

 private:
  MappedFile file_;
  std::vector<FileTensor> tensors_;
  FileMetadata metadata_;
};

/// Writes the tensors (their `data` and `bytes`) and the metadata to `path`, through a temporary file beside it, so
/// that a reader never sees half a file.  Tensors are ordered by element size, so that each is aligned to it.
Status write_safetensors(const std::string& path, std::vector<FileTensor> tensors, const FileMetadata& metadata);

}  // namespace keysieve
