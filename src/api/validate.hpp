// SPDX-License-Identifier: Apache-2.0
// Every check of caller input that does not depend on a backend, done once: C structs in, Problem and Call out.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "core/problem.hpp"
#include "core/status.hpp"

namespace keysieve {

/// Name of a keysieve_dtype, for messages.
inline const char* dtype_name(int32_t dtype) noexcept {
  static constexpr std::array<const char*, 8> kNames = {"none", "E4M3", "BF16", "MXFP4", "F32", "U8", "I32", "U64"};
  return dtype >= 0 && dtype < static_cast<int32_t>(kNames.size()) ? kNames[dtype] : "unknown";
}

Status validate_problem(const keysieve_problem* problem, Problem& out) noexcept;
Status validate_options(const keysieve_options* options, Options& out) noexcept;

/// Fills everything of `out` but problem, options and stream from `tensors`; `workspace_min_bytes` is the backend's.
Status validate_tensors(const keysieve_tensors* tensors, const Problem& problem, size_t workspace_min_bytes,
                        Call& out) noexcept;

/// No version of a struct will be larger.
inline constexpr size_t kMostStructBytes = 16384;

/// Copies a versioned struct: fields the caller does not know become 0, fields this library does not know must be 0.
template <typename Struct>
Status read_struct(const Struct* given, const char* name, size_t first_version_bytes, Struct& out) noexcept {
  if (given == nullptr) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s is null, expected a struct", name);
  }
  const size_t bytes = given->struct_size;
  if (bytes < first_version_bytes) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s.struct_size is %zu, expected sizeof = %zu", name, bytes,
                         sizeof(Struct));
  }
  if (bytes > kMostStructBytes) {  // an uninitialised field, not a newer caller
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s.struct_size is %zu, expected sizeof = %zu, at most %zu", name,
                         bytes, sizeof(Struct), kMostStructBytes);
  }
  const auto* raw = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Struct); i < bytes; ++i) {
    if (raw[i] != 0) {
      return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                           "%s has a non-zero field at byte %zu, which this library (version %d.%d) does not know; "
                           "its struct has %zu bytes",
                           name, i, KEYSIEVE_VERSION_MAJOR, KEYSIEVE_VERSION_MINOR, sizeof(Struct));
    }
  }
  out = Struct{};
  std::memcpy(&out, given, std::min(bytes, sizeof(Struct)));
  return {};
}

}  // namespace keysieve
