// SPDX-License-Identifier: Apache-2.0
#include "suites.hpp"

#include "keysieve/keysieve.h"

namespace keysieve::bench {

const std::vector<Suite>& suites() {
  static const std::vector<Suite> kSuites = {
      {"cpu", "score_select on the CPU against the unfused pair (SGEMM, head sum, nth_element)", KEYSIEVE_CPU,
       run_cpu_suite},
      {"prefill", "score_select on a GPU against our own score, then select", KEYSIEVE_CUDA, run_prefill_suite},
      {"score", "scores alone on a GPU", KEYSIEVE_CUDA, run_score_suite},
      {"select", "selection alone on a GPU, from given scores", KEYSIEVE_CUDA, run_select_suite},
  };
  return kSuites;
}

}  // namespace keysieve::bench
