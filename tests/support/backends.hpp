// SPDX-License-Identifier: Apache-2.0
// Which backends a test runs over, and what happens where one is missing.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "keysieve/keysieve.h"

namespace keysieve::test {

struct BackendUnderTest {
  std::string name;
  int32_t device_type = KEYSIEVE_CPU;
  bool available = false;
  std::string detail;  // why it is not available
};

/// reference, cpu and cuda, and whatever else the registry holds.
std::vector<std::string> backend_names();

BackendUnderTest find_backend(const std::string& name);

/// True if the environment says that this backend must not be skipped (KEYSIEVE_REQUIRE_BACKEND, a comma list).
bool backend_required(const std::string& name);

/// A test that runs once for every backend.  A backend that is missing skips with its reason, or fails if required.
class BackendTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const BackendUnderTest backend = find_backend(GetParam());
    if (backend.available) {
      return;
    }
    if (backend_required(backend.name)) {
      FAIL() << "backend " << backend.name << " is required but not available: " << backend.detail;
    }
    GTEST_SKIP() << "backend " << backend.name << " is not available: " << backend.detail;
  }
};

inline std::string backend_test_name(const testing::TestParamInfo<std::string>& info) {
  return info.param;
}

#define KEYSIEVE_FOR_EACH_BACKEND(Suite)                                                  \
  INSTANTIATE_TEST_SUITE_P(, Suite, testing::ValuesIn(::keysieve::test::backend_names()), \
                           ::keysieve::test::backend_test_name)

/// Counts a combination that a backend refused; a summary is printed at the end of the binary.
void note_refused(const std::string& backend, const std::string& message);
void note_ran(const std::string& backend);

}  // namespace keysieve::test
