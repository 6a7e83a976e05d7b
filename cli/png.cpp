// SPDX-License-Identifier: Apache-2.0
#include "png.hpp"

#include <algorithm>

namespace keysieve::cli {
namespace {

void append_big_endian(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>(value >> shift & 255U);
  }
}

uint32_t crc32(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1U) != 0 ? crc >> 1U ^ 0xEDB88320U : crc >> 1U;
    }
  }
  return ~crc;
}

uint32_t adler32(const std::string& bytes) {
  uint32_t low = 1;
  uint32_t high = 0;
  for (const char c : bytes) {
    low = (low + static_cast<unsigned char>(c)) % 65521U;
    high = (high + low) % 65521U;
  }
  return high << 16U | low;
}

void append_chunk(std::string& out, const std::string& type, const std::string& data) {
  append_big_endian(out, static_cast<uint32_t>(data.size()));
  out += type + data;
  append_big_endian(out, crc32(type + data));
}

/// zlib stream of stored deflate blocks.
std::string stored_zlib(const std::string& bytes) {
  constexpr size_t kMaxBlock = 65535;
  std::string out = "\x78\x01";
  size_t position = 0;
  do {
    const size_t size = std::min(kMaxBlock, bytes.size() - position);
    const bool last = position + size == bytes.size();
    out += static_cast<char>(last ? 1 : 0);
    for (const size_t value : {size, ~size}) {
      out += static_cast<char>(value & 255U);
      out += static_cast<char>(value >> 8U & 255U);
    }
    out.append(bytes, position, size);
    position += size;
  } while (position < bytes.size());
  append_big_endian(out, adler32(bytes));
  return out;
}

}  // namespace

std::string make_png(int64_t width, int64_t height, const std::vector<uint8_t>& pixels,
                     const std::vector<Colour>& palette) {
  std::string header;
  append_big_endian(header, static_cast<uint32_t>(width));
  append_big_endian(header, static_cast<uint32_t>(height));
  header += std::string("\x04\x03\x00\x00\x00", 5);  // 4 bits, palette, deflate, no filter, not interlaced
  std::string colours;
  std::string alphas;
  for (const Colour& colour : palette) {
    colours += {static_cast<char>(colour.red), static_cast<char>(colour.green), static_cast<char>(colour.blue)};
    alphas += static_cast<char>(colour.alpha);
  }
  std::string rows;
  for (int64_t y = 0; y < height; ++y) {
    rows += '\0';  // filter: none
    for (int64_t x = 0; x < width; x += 2) {
      const auto high = static_cast<unsigned>(pixels[static_cast<size_t>(y * width + x)]);
      const unsigned low = x + 1 < width ? pixels[static_cast<size_t>(y * width + x + 1)] : 0U;
      rows += static_cast<char>(high << 4U | low);
    }
  }
  std::string png = "\x89PNG\r\n\x1a\n";
  append_chunk(png, "IHDR", header);
  append_chunk(png, "PLTE", colours);
  append_chunk(png, "tRNS", alphas);
  append_chunk(png, "IDAT", stored_zlib(rows));
  append_chunk(png, "IEND", "");
  return png;
}

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t j = 0; j < 3; ++j) {
      word = word << 8U | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += i + j > bytes.size() ? '=' : kDigits[word >> (18 - 6 * j) & 63U];
    }
  }
  return out;
}

}  // namespace keysieve::cli
