// SPDX-License-Identifier: Apache-2.0
// Status: a code and a message, without allocation, so that a noexcept backend can always report.
#pragma once

#include <cstdarg>
#include <cstdio>

#include "keysieve/keysieve.h"

namespace keysieve {

class [[nodiscard]] Status {
 public:
  static constexpr int kMessageBytes = 512;

  Status() noexcept = default;

  [[gnu::format(printf, 2, 3)]] static Status error(keysieve_status code, const char* format, ...) noexcept {
    Status status;
    status.code_ = code;
    va_list args;
    va_start(args, format);
    std::vsnprintf(status.message_, sizeof(status.message_), format, args);
    va_end(args);
    return status;
  }

  [[nodiscard]] bool ok() const noexcept { return code_ == KEYSIEVE_OK; }
  [[nodiscard]] keysieve_status code() const noexcept { return code_; }
  [[nodiscard]] const char* message() const noexcept { return message_; }

 private:
  keysieve_status code_ = KEYSIEVE_OK;
  char message_[kMessageBytes] = "";
};

/// Returns from the enclosing function if `expression` is not ok.
#define KEYSIEVE_RETURN_IF_ERROR(expression)                                        \
  do {                                                                              \
    if (::keysieve::Status returned_status = (expression); !returned_status.ok()) { \
      return returned_status;                                                       \
    }                                                                               \
  } while (false)

}  // namespace keysieve
