// SPDX-License-Identifier: Apache-2.0
// How the command ends: exit codes, and the exception that carries one to main.
#pragma once

#include <stdexcept>
#include <string>

#include "core/status.hpp"
#include "keysieve/keysieve.h"

namespace keysieve::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitMismatch = 1,     // the command ran and found a wrong selection
  kExitBadInput = 2,     // usage, or a file that is not what it should be
  kExitUnavailable = 3,  // the backend is missing here, or cannot do this problem
  kExitFault = 4         // device error, output that cannot be written, fault of keysieve
};

/// Printed as one line on stderr: "keysieve: <what>: <why>".
class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& what, const std::string& why)
      : std::runtime_error(what + ": " + why), code_(code) {}
  [[nodiscard]] ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// The exit code that goes with a status of the library.
ExitCode exit_code(keysieve_status status);

/// Throws if the status of a library call is not ok, with the library's message.
void require_ok(const std::string& what, keysieve_status status);

/// Throws if a status of the file readers is not ok.
void require_ok(const std::string& what, const Status& status);

}  // namespace keysieve::cli
