// SPDX-License-Identifier: Apache-2.0
#include "suites.hpp"

#include "keysieve/keysieve.h"

namespace keysieve::bench {

const std::vector<Suite>& suites() {
  static const std::vector<Suite> kSuites = {
      {"cpu", "score_select on the CPU against the unfused pair (SGEMM, head sum, nth_element)", KEYSIEVE_CPU,
       run_cpu_suite},
  };
  return kSuites;
}

}  // namespace keysieve::bench
