// SPDX-License-Identifier: Apache-2.0
// A PNG of a few colours, as text for a data URI.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace keysieve::cli {

struct Colour {
  uint8_t red = 0;
  uint8_t green = 0;
  uint8_t blue = 0;
  uint8_t alpha = 255;
};

/// width * height palette indices below 16, row by row; palette of at most 16 colours.  Stored without compression:
/// four bits a pixel.  (PNG: ISO/IEC 15948; zlib and deflate: RFC 1950, RFC 1951.)
std::string make_png(int64_t width, int64_t height, const std::vector<uint8_t>& pixels,
                     const std::vector<Colour>& palette);

std::string base64(const std::string& bytes);

}  // namespace keysieve::cli
