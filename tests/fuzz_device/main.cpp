// SPDX-License-Identifier: Apache-2.0
// Random problems against fast oracles, on any backend:
//   fuzz_device --backend cuda --op score_select --cases 10000 --seed 1 --seconds-limit 120
// A failing case prints its number; --first NUMBER --cases 1 with the same seed runs it again.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#if defined(KEYSIEVE_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

#include "fuzz_device/cases.hpp"
#include "fuzz_device/verify.hpp"
#include "support/backends.hpp"
#include "support/checks.hpp"

namespace keysieve::test {
namespace {

struct FuzzOptions {
  std::string backend = "cuda";
  std::string op = "all";
  int64_t cases = 10000;
  int64_t first = 0;
  uint64_t seed = 1;
  double seconds_limit = 600;
  int64_t max_work = 0;
  int workers = 0;
};

struct FuzzTotals {
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> ran{0};
  std::atomic<int64_t> refused{0};
  std::atomic<int64_t> failed{0};
  std::atomic<int64_t> big_ties{0};
  std::atomic<int64_t> few_values{0};
  std::mutex print;
};

constexpr int64_t kMostFailures = 10;
constexpr const char* kUsage =
    "usage: fuzz_device [--backend NAME] [--op score|select|score_select|all] [--cases N] [--first N] [--seed S]\n"
    "                   [--seconds-limit S] [--max-work MULTIPLY_ADDS] [--workers N]\n";

int32_t op_of_case(const std::string& name, int64_t index) {
  constexpr int32_t kAll[] = {KEYSIEVE_SCORE, KEYSIEVE_SELECT, KEYSIEVE_SCORE_SELECT};
  if (name == "score") {
    return KEYSIEVE_SCORE;
  }
  if (name == "select") {
    return KEYSIEVE_SELECT;
  }
  return name == "score_select" ? KEYSIEVE_SCORE_SELECT : kAll[index % 3];
}

/// One worker: its own runner, and on CUDA its own stream.
class Worker {
 public:
  explicit Worker(const FuzzOptions& options) : options_(options), runner_(options.backend) {
#if defined(KEYSIEVE_WITH_CUDA)
    if (runner_.on_cuda()) {
      cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(&stream_), cudaStreamNonBlocking);
    }
#endif
  }

  /// "" if the case is right; sets `refused` if the backend does not take it.
  std::string run_case(const FuzzCase& fuzz_case, bool* refused) {
    const Inputs planned = planned_inputs(fuzz_case);
    if (runner_.supported(planned, fuzz_case.settings) != KEYSIEVE_OK) {
      *refused = true;
      return {};
    }
    const Inputs inputs = make_fuzz_inputs(fuzz_case);
    Outputs out = run(inputs, fuzz_case.settings);
    if (std::string fault = fault_of(out); !fault.empty()) {
      return fault;
    }
    Random random(fuzz_case.spec.seed + 2);
    switch (fuzz_case.spec.op) {
      case KEYSIEVE_SELECT: return verify_selection(inputs, inputs.scores, out);
      case KEYSIEVE_SCORE: return check_score(inputs, fuzz_case, out, random);
      default: break;
    }
    const Inputs score = as_score(inputs);
    if (runner_.supported(score) != KEYSIEVE_OK) {
      return {};
    }
    const Outputs scores = run(score, RunSettings{});
    if (std::string fault = fault_of(scores); !fault.empty()) {
      return "score: " + fault;
    }
    if (std::string fault = verify_scores(score, scores.scores, options_.backend, random); !fault.empty()) {
      return fault;
    }
    return verify_selection(inputs, scores.scores, out);
  }

 private:
  static Inputs planned_inputs(const FuzzCase& fuzz_case) {
    Inputs planned;
    planned.problem = plan_problem(fuzz_case.spec);
    return planned;
  }

  static std::string fault_of(const Outputs& out) {
    return out.status != KEYSIEVE_OK ? "refused after keysieve_supported took it: " + out.message : out.violation;
  }

  Outputs run(const Inputs& inputs, const RunSettings& settings) {
    RunSettings local = settings;
    local.threads = 1;  // the workers are the threads
    Staged staged = runner_.stage(inputs, local);
    runner_.launch(staged, stream_);
    return runner_.collect(staged);
  }

  std::string check_score(const Inputs& inputs, const FuzzCase& fuzz_case, const Outputs& out, Random& random) {
    if (fuzz_case.spec.score_dtype != KEYSIEVE_BF16) {
      return verify_scores(inputs, out.scores, options_.backend, random);
    }
    Inputs f32 = inputs;
    f32.problem.score_dtype = KEYSIEVE_F32;
    const Outputs scores = run(f32, RunSettings{});
    if (std::string fault = fault_of(scores); !fault.empty()) {
      return fault;
    }
    std::string fault = verify_scores(f32, scores.scores, options_.backend, random);
    return fault.empty() ? verify_rounding(out.scores, scores.scores) : fault;
  }

  const FuzzOptions& options_;
  Runner runner_;
  void* stream_ = nullptr;
};

FuzzLimits limits_of(const FuzzOptions& options) {
  FuzzLimits limits;
  limits.work = options.max_work;
  if (limits.work == 0) {
    limits.work = options.backend == "cuda"  ? int64_t{40'000'000'000}
                  : options.backend == "cpu" ? int64_t{300'000'000}
                                             : int64_t{5'000'000};
  }
  return limits;
}

void work(const FuzzOptions& options, FuzzTotals& totals) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const FuzzLimits limits = limits_of(options);
  Worker worker(options);
  while (totals.failed < kMostFailures) {
    const int64_t index = options.first + totals.next++;
    const bool late = std::chrono::duration<double>(Clock::now() - start).count() > options.seconds_limit;
    // A case that the backend refuses does not count, so more are drawn until enough ran.
    if (late || totals.ran >= options.cases || index >= options.first + 20 * options.cases) {
      return;
    }
    const FuzzCase fuzz_case = make_fuzz_case(op_of_case(options.op, index), options.seed, index, limits);
    bool refused = false;
    const std::string fault = worker.run_case(fuzz_case, &refused);
    totals.refused += refused ? 1 : 0;
    totals.ran += refused ? 0 : 1;
    totals.big_ties += !refused && fuzz_case.big_tie ? 1 : 0;
    totals.few_values += !refused && fuzz_case.distinct_scores > 0 ? 1 : 0;
    if (!fault.empty()) {
      ++totals.failed;
      const std::lock_guard<std::mutex> lock(totals.print);
      std::printf("FAILED seed %llu case %lld: %s\n  %s%s\n", static_cast<unsigned long long>(options.seed),
                  static_cast<long long>(index), fault.c_str(), describe(fuzz_case.spec).c_str(),
                  fuzz_case.strided ? " strided" : "");
      std::fflush(stdout);
    }
  }
}

bool parse(int argc, char** argv, FuzzOptions& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--backend") {
      options.backend = value;
    } else if (name == "--op") {
      options.op = value;
    } else if (name == "--cases") {
      options.cases = std::atoll(value);
    } else if (name == "--first") {
      options.first = std::atoll(value);
    } else if (name == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--seconds-limit") {
      options.seconds_limit = std::atof(value);
    } else if (name == "--max-work") {
      options.max_work = std::atoll(value);
    } else if (name == "--workers") {
      options.workers = std::atoi(value);
    } else {
      return false;
    }
  }
  const char* const kOps[] = {"score", "select", "score_select", "all"};
  return argc % 2 == 1 &&
         std::any_of(std::begin(kOps), std::end(kOps), [&](const char* op) { return options.op == op; });
}

int fuzz(const FuzzOptions& options) {
  const BackendUnderTest backend = find_backend(options.backend);
  if (!backend.available) {
    std::printf("SKIPPED: backend %s is not available: %s\n", options.backend.c_str(), backend.detail.c_str());
    return backend_required(options.backend) ? 1 : 0;
  }
  const auto start = std::chrono::steady_clock::now();
  FuzzTotals totals;
  std::vector<std::thread> workers;
  const int count =
      options.workers > 0 ? options.workers : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16);
  for (int i = 0; i < count; ++i) {
    workers.emplace_back([&] { work(options, totals); });
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "fuzz_device: backend %s op %s seed %llu: %lld cases in %.1f s (%lld refused as unsupported), %lld with at "
      "most 256 scores, %lld with a tie over 4096, %lld failed\n",
      options.backend.c_str(), options.op.c_str(), static_cast<unsigned long long>(options.seed),
      static_cast<long long>(totals.ran), seconds, static_cast<long long>(totals.refused),
      static_cast<long long>(totals.few_values), static_cast<long long>(totals.big_ties),
      static_cast<long long>(totals.failed));
  return totals.failed == 0 && totals.ran > 0 ? 0 : 1;
}

int main_of(int argc, char** argv) {
  FuzzOptions options;
  if (!parse(argc, argv, options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  return fuzz(options);
}

}  // namespace
}  // namespace keysieve::test

int main(int argc, char** argv) {
  return keysieve::test::main_of(argc, argv);
}
