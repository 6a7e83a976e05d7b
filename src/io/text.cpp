// SPDX-License-Identifier: Apache-2.0
#include "io/text.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace keysieve {
namespace {

/// Bytes of the UTF-8 character at `position`, 0 if the bytes there are none (RFC 3629: no overlong forms,
/// no surrogates, nothing above U+10FFFF).
size_t character_bytes(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) {
    return position + i < text.size() ? static_cast<unsigned char>(text[position + i]) : 0U;
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80U) {
    return 1;
  }
  if (lead >= 0xC2U && lead <= 0xDFU) {
    return continues(1) ? 2 : 0;
  }
  if (lead >= 0xE0U && lead <= 0xEFU) {
    const bool overlong = lead == 0xE0U && byte(1) < 0xA0U;
    const bool surrogate = lead == 0xEDU && byte(1) > 0x9FU;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0U && lead <= 0xF4U) {
    const bool overlong = lead == 0xF0U && byte(1) < 0x90U;
    const bool too_large = lead == 0xF4U && byte(1) > 0x8FU;
    return continues(1) && continues(2) && continues(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

void append_escape(std::string& out, unsigned char byte) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  out += "\\x";
  out += kHex[byte >> 4U];
  out += kHex[byte & 15U];
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out = "\"";
  size_t position = 0;
  while (position < text.size()) {
    const size_t bytes = character_bytes(text, position);
    if (position + std::max<size_t>(bytes, 1) > max_bytes) {
      out += "...";
      break;
    }
    const auto first = static_cast<unsigned char>(text[position]);
    if (bytes == 0 || first < 0x20U || first == 0x7FU) {
      append_escape(out, first);
      ++position;
    } else {
      out += text.substr(position, bytes);
      position += bytes;
    }
  }
  return out + "\"";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  constexpr size_t kShown = 8;
  std::string out = "[";
  for (size_t i = 0; i < std::min(shape.size(), kShown); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return out + (shape.size() > kShown ? ", ...]" : "]");
}

Status invalid_argument(const char* format, ...) {
  char message[Status::kMessageBytes];
  va_list args;
  va_start(args, format);
  std::vsnprintf(message, sizeof(message), format, args);
  va_end(args);
  return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s", message);
}

}  // namespace keysieve
