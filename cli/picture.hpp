// SPDX-License-Identifier: Apache-2.0
// A picture of a selection: which keys each query picked, queries down, keys across.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "session.hpp"

namespace keysieve::cli {

struct PictureInput {
  std::string title;
  int64_t num_keys = 0;
  const Selection* selection = nullptr;
  std::vector<KeyRange> ranges;  // of each row
};

/// An SVG whose size does not grow with the selection: keys and queries are gathered into cells, a cell's colour is the
/// share of its query-key pairs that were picked.  Transparent background and mid tones: reads on light and on dark.
std::string draw_picture(const PictureInput& input);

}  // namespace keysieve::cli
