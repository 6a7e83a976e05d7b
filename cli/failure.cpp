// SPDX-License-Identifier: Apache-2.0
#include "failure.hpp"

namespace keysieve::cli {

ExitCode exit_code(keysieve_status status) {
  switch (status) {
    case KEYSIEVE_OK: return kExitOk;
    case KEYSIEVE_INVALID_ARGUMENT: return kExitBadInput;
    case KEYSIEVE_UNSUPPORTED:
    case KEYSIEVE_UNAVAILABLE: return kExitUnavailable;
    default: return kExitFault;
  }
}

void require_ok(const std::string& what, keysieve_status status) {
  if (status != KEYSIEVE_OK) {
    throw Failure(exit_code(status), what,
                  std::string(keysieve_status_string(status)) + ": " + keysieve_last_message());
  }
}

void require_ok(const std::string& what, const Status& status) {
  if (!status.ok()) {
    throw Failure(exit_code(status.code()), what, status.message());
  }
}

}  // namespace keysieve::cli
