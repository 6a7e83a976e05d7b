// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file as it is written, before its byte ranges are checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"
#include "io/safetensors.hpp"

namespace keysieve {

struct HeaderEntry {
  std::string name;
  FileDtype dtype = FileDtype::kU8;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the end of the header
  uint64_t end = 0;
};

struct Header {
  std::vector<HeaderEntry> entries;
  FileMetadata metadata;
};

/// Parses `json`; every entry has its three fields, every name occurs once.
Status parse_header(std::string_view json, Header* header);

}  // namespace keysieve
