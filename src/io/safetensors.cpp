// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/safetensors_header.hpp"
#include "io/text.hpp"

namespace keysieve {
namespace {

constexpr size_t kLengthBytes = 8;

uint64_t read_little_endian_u64(const std::byte* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) {
    value = value << 8U | static_cast<uint64_t>(bytes[i]);
  }
  return value;
}

/// Bytes of a tensor of that shape; false if the product does not fit 64 bits.
bool tensor_bytes(const HeaderEntry& entry, uint64_t* bytes) {
  *bytes = file_dtype_bytes(entry.dtype);
  // A zero dimension makes the tensor empty whatever the others say.
  if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) {
    *bytes = 0;
    return true;
  }
  for (const int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(*bytes, static_cast<uint64_t>(extent), bytes)) {
      return false;
    }
  }
  return true;
}

/// Byte range against dtype, shape, file and alignment.
Status check_entry(const HeaderEntry& entry, uint64_t header_bytes, uint64_t data_bytes) {
  const std::string name = printable(entry.name);
  const auto begin = static_cast<unsigned long long>(entry.begin);
  const auto end = static_cast<unsigned long long>(entry.end);
  if (entry.end < entry.begin) {
    return invalid_argument("tensor %s: data_offsets [%llu, %llu] end before they begin", name.c_str(), begin, end);
  }
  uint64_t expected = 0;
  if (!tensor_bytes(entry, &expected)) {
    return invalid_argument("tensor %s: the size of shape %s overflows 64 bits", name.c_str(),
                            shape_text(entry.shape).c_str());
  }
  if (entry.end - entry.begin != expected) {
    return invalid_argument("tensor %s: data_offsets [%llu, %llu] hold %llu bytes, but %s %s takes %llu", name.c_str(),
                            begin, end, end - begin, file_dtype_name(entry.dtype), shape_text(entry.shape).c_str(),
                            static_cast<unsigned long long>(expected));
  }
  if (entry.end > data_bytes) {
    return invalid_argument("tensor %s: ends at byte %llu of the data, but the file has %llu: truncated?", name.c_str(),
                            end, static_cast<unsigned long long>(data_bytes));
  }
  const unsigned long long file_offset = kLengthBytes + header_bytes + entry.begin;
  if (file_offset % file_dtype_bytes(entry.dtype) != 0) {
    return invalid_argument("tensor %s: begins at byte %llu of the file, which is not aligned to %s", name.c_str(),
                            file_offset, file_dtype_name(entry.dtype));
  }
  return {};
}

/// The sorted entries must cover [0, data_bytes) exactly.
Status check_cover(const std::vector<HeaderEntry>& entries, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const HeaderEntry& entry = entries[i];
    if (entry.begin < covered) {
      return invalid_argument("tensor %s: its bytes overlap those of %s", printable(entry.name).c_str(),
                              printable(entries[i - 1].name).c_str());
    }
    if (entry.begin > covered) {
      return invalid_argument("tensor %s: bytes [%llu, %llu) before it belong to no tensor",
                              printable(entry.name).c_str(), static_cast<unsigned long long>(covered),
                              static_cast<unsigned long long>(entry.begin));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return invalid_argument("the last %llu bytes of the file belong to no tensor",
                            static_cast<unsigned long long>(data_bytes - covered));
  }
  return {};
}

Status locate_header(const std::byte* bytes, size_t size, uint64_t* header_bytes) {
  if (size < kLengthBytes) {
    return invalid_argument("file of %zu bytes: too short for the 8 bytes of a header length", size);
  }
  if (reinterpret_cast<uintptr_t>(bytes) % 8 != 0) {
    return invalid_argument("bytes: not aligned to 8");
  }
  *header_bytes = read_little_endian_u64(bytes);
  const auto length = static_cast<unsigned long long>(*header_bytes);
  if (*header_bytes > Safetensors::kMaxHeaderBytes) {
    return invalid_argument("header: a length of %llu bytes is over the limit of %llu; not a safetensors file?", length,
                            static_cast<unsigned long long>(Safetensors::kMaxHeaderBytes));
  }
  if (*header_bytes > size - kLengthBytes) {
    return invalid_argument("header: %llu bytes long, but only %zu follow its length: truncated?", length,
                            size - kLengthBytes);
  }
  if (*header_bytes == 0 || bytes[kLengthBytes] != std::byte{'{'}) {
    return invalid_argument("header: does not begin with '{'");
  }
  return {};
}

}  // namespace

Status Safetensors::parse(const std::byte* bytes, size_t size, Safetensors* out) {
  uint64_t header_bytes = 0;
  KEYSIEVE_RETURN_IF_ERROR(locate_header(bytes, size, &header_bytes));
  Header header;
  const std::string_view json(reinterpret_cast<const char*>(bytes) + kLengthBytes, header_bytes);
  KEYSIEVE_RETURN_IF_ERROR(parse_header(json, &header));

  const uint64_t data_bytes = size - kLengthBytes - header_bytes;
  for (const HeaderEntry& entry : header.entries) {
    KEYSIEVE_RETURN_IF_ERROR(check_entry(entry, header_bytes, data_bytes));
  }
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  KEYSIEVE_RETURN_IF_ERROR(check_cover(header.entries, data_bytes));

  Safetensors file;
  const std::byte* data = bytes + kLengthBytes + header_bytes;
  for (HeaderEntry& entry : header.entries) {
    file.tensors_.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape), data + entry.begin,
                             static_cast<size_t>(entry.end - entry.begin)});
  }
  file.metadata_ = std::move(header.metadata);
  *out = std::move(file);
  return {};
}

Status Safetensors::open(const std::string& path, Safetensors* out) {
  MappedFile mapped;
  KEYSIEVE_RETURN_IF_ERROR(MappedFile::open(path, &mapped));
  if (const Status status = parse(mapped.data(), mapped.size(), out); !status.ok()) {
    return invalid_argument("%s: %s", printable(path, 200).c_str(), status.message());
  }
  out->file_ = std::move(mapped);
  return {};
}

const FileTensor* Safetensors::find(std::string_view name) const {
  const auto found =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const FileTensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

}  // namespace keysieve
