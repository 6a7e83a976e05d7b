// SPDX-License-Identifier: Apache-2.0
// What the command prints: text or JSON on stdout, progress on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace keysieve::cli {

using Json = nlohmann::ordered_json;

/// Writes text as it is, or JSON with two spaces of indent and a newline; invalid UTF-8 is replaced.
/// Throws if stdout cannot take it.
void print(const std::string& text);
void print(const Json& json);

/// A float as JSON: a number if it is finite, else "inf", "-inf" or "nan".
Json json_number(double value);

/// Rows of cells in columns; the first column flush left, the rest flush right.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// Rows of a name and a text, the texts in one column.
std::string fields(const std::vector<std::pair<std::string, std::string>>& rows);

/// 1234567 as "1,234,567".
std::string grouped(int64_t value);

/// A quantity with three significant digits and a prefix: 1.23 G.
std::string scaled(double value, const std::string& unit);

/// Milliseconds with four significant digits: "12.34 ms", "3.210 us".
std::string duration(double milliseconds);

/// A score with six significant digits.
std::string score_text(float score);

/// A bar on stderr for work that takes over a second, if stderr is a terminal.
class Progress {
 public:
  Progress(std::string what, int64_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void advance(int64_t done);

 private:
  std::string what_;
  int64_t total_;
  int64_t done_ = 0;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point next_ = start_ + std::chrono::seconds(1);
};

}  // namespace keysieve::cli
