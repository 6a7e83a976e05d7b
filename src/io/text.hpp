// SPDX-License-Identifier: Apache-2.0
// Text for messages: names that come out of files are cut and made printable before they reach a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"

namespace keysieve {

/// `text` in double quotes, control characters as \xNN, cut at a character boundary after `max_bytes`.
/// `text` is taken to be UTF-8; bytes that are not are shown as \xNN.
std::string printable(std::string_view text, size_t max_bytes = 64);

/// "[2, 3, 4]"; at most eight dimensions are shown.
std::string shape_text(const std::vector<int64_t>& shape);

/// A status KEYSIEVE_INVALID_ARGUMENT with that message.
[[gnu::format(printf, 1, 2)]] Status invalid_argument(const char* format, ...);

}  // namespace keysieve
