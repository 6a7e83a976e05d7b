// SPDX-License-Identifier: Apache-2.0
// The benchmark harness: contenders that do the same work are checked, warmed up, then timed in rounds whose order
// rotates, so that a drift of the clock hits all of them alike.  A result is a ratio inside one run.
//
// A suite is a function that makes contenders and hands them to `measure`; suites.cpp lists them.  Entries follow the
// schema keysieve-bench/1 (bench/schema/check_results.py).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "output.hpp"
#include "statistics.hpp"

namespace keysieve::bench {

using Json = cli::Json;

/// The inputs of an entry, as the schema names them.
struct Case {
  int64_t T = 0;
  int64_t N = 0;
  int64_t H = 0;
  int64_t D = 0;
  int64_t K = 0;
  std::string dtype = "e4m3";
  std::string rows = "causal";
  std::string data = "normal";
  std::optional<int64_t> B;
  std::optional<int64_t> next_n;
  bool paged = false;
  std::string out = "none";
  std::string layout = "none";
  std::string l2 = "hot";
  std::string order = "ascending";

  [[nodiscard]] std::string text() const;  // "T=64 N=8192 H=64 D=128 K=2048 e4m3 causal normal"
};

/// One implementation of one case.
struct Contender {
  std::string op = "score_select";
  std::string who = "keysieve";
  std::string variant;
  std::string mode = "eager";  // or graph
  Case inputs;
  double flop = 0;                      // useful FLOPs of a call; 0: none are reported
  double bytes = 0;                     // moved by a call; 0: none are reported
  std::string ratio_of;                 // `who` of the contender in the same group that it is compared with
  std::function<double()> sample_ms;    // makes one call and returns its time
  std::function<bool()> check;          // compares the result with the oracle; absent: unchecked
  std::function<void(Json&)> annotate;  // adds keys to the entry
};

struct MeasureOptions {
  int rounds = 20;
  int warmup = 2;
};

/// Ceilings of the machine, in the schema's units; absent ones are null.
struct Ceilings {
  std::optional<double> fp8_gemm_tflops;
  std::optional<double> bf16_gemm_tflops;
  std::optional<double> copy_tb_s;
  std::optional<double> cpu_dot_gflops;
};

/// What a suite is given and leaves.
struct SuiteContext {
  MeasureOptions measure;
  int32_t threads = 0;
  int32_t device_index = 0;
  std::string filter;  // only cases whose text holds it
  Ceilings ceilings;
  std::vector<Json> entries;
  std::vector<std::string> skipped;  // what was left out and why

  [[nodiscard]] bool wanted(const Case& inputs) const { return inputs.text().find(filter) != std::string::npos; }
};

/// Times the contenders of one group and appends their entries; throws if a check fails.
void measure(const std::vector<Contender>& contenders, SuiteContext* context);

}  // namespace keysieve::bench
