// SPDX-License-Identifier: Apache-2.0
// The suites of `keysieve bench`.  A new one is a file that defines its function and a line in suites.cpp.
#pragma once

#include <vector>

#include "harness.hpp"

namespace keysieve::bench {

struct Suite {
  const char* name;
  const char* about;
  int32_t device_type;  // enum keysieve_device_type: where it runs
  void (*run)(SuiteContext* context);
};

const std::vector<Suite>& suites();

void run_cpu_suite(SuiteContext* context);
void run_prefill_suite(SuiteContext* context);
void run_score_suite(SuiteContext* context);
void run_select_suite(SuiteContext* context);

}  // namespace keysieve::bench
