// SPDX-License-Identifier: Apache-2.0
#include "output.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <unistd.h>

#include "failure.hpp"

namespace keysieve::cli {
namespace {

constexpr int kBarCells = 32;

/// Characters of a UTF-8 text: bytes that do not continue one.
size_t text_width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Failure(kExitFault, "stdout", "cannot be written");
  }
}

void print(const Json& json) {
  print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Json json_number(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  return value;
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], text_width(row[i]));
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const size_t padding = widths[i] - text_width(row[i]);
      line.append(i == 0 ? 0 : padding + 2, ' ').append(row[i]).append(i == 0 ? padding : 0, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string fields(const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t width = 0;
  for (const auto& row : rows) {
    width = std::max(width, text_width(row.first));
  }
  std::string text;
  for (const auto& [name, value] : rows) {
    text += name;
    text.append(width - text_width(name) + 2, ' ');
    text += value;
    text += '\n';
  }
  return text;
}

std::string grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') {
      out += ',';
    }
    out += digits[i];
  }
  return out;
}

std::string scaled(double value, const std::string& unit) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  while (std::fabs(value) >= 1000.0 && prefix + 1 < std::size(kPrefixes)) {
    value /= 1000.0;
    ++prefix;
  }
  return fmt::format("{:.3g} {}{}", value, kPrefixes[prefix], unit);
}

std::string duration(double milliseconds) {
  if (milliseconds < 1.0) {
    return fmt::format("{:.4g} us", milliseconds * 1e3);
  }
  return milliseconds < 10000.0 ? fmt::format("{:.4g} ms", milliseconds) : fmt::format("{:.4g} s", milliseconds / 1e3);
}

std::string score_text(float score) {
  return fmt::format("{:.6g}", score);
}

Progress::Progress(std::string what, int64_t total)
    : what_(std::move(what)), total_(std::max<int64_t>(total, 1)), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) {
    std::fputs("\r\033[K", stderr);
  }
}

void Progress::advance(int64_t done) {
  done_ = std::min(done_ + done, total_);
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now < next_) {
    return;
  }
  next_ = now + std::chrono::milliseconds(200);
  drawn_ = true;
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  const int filled = static_cast<int>(share * kBarCells);
  const std::string bar =
      std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(kBarCells - filled), '.');
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string left = share > 0 ? fmt::format("{:.0f} s left", seconds * (1 - share) / share) : "";
  fmt::print(stderr, "\r\033[K{} [{}] {:3.0f} %  {}", what_, bar, share * 100, left);
  std::fflush(stderr);
}

}  // namespace keysieve::cli
