// SPDX-License-Identifier: Apache-2.0
// Faults of time: results that depend on the run, and calls that disturb each other.  These run under ThreadSanitizer.
#include <algorithm>
#include <atomic>
#include <thread>

#include "cases/case_run.hpp"

namespace keysieve::test {

KEYSIEVE_FOR_EACH_BACKEND(Cases);

namespace {

#if defined(KEYSIEVE_SMALL_TESTS)
constexpr int kRepeats = 4;
constexpr int kCalls = 25;
constexpr int64_t kWork = 50'000'000;
#else
constexpr int kRepeats = 20;
constexpr int kCalls = 500;
constexpr int64_t kWork = 300'000'000;
#endif

/// Ties at the cut go to the lowest keys, every time, whatever runs beside.
TEST_P(Cases, B54_SameSetEveryTime) {
#if defined(KEYSIEVE_SMALL_TESTS)
  constexpr int64_t kKeys = 16384;
#else
  constexpr int64_t kKeys = 131072;
#endif
  constexpr int64_t kEqual = kKeys / 256;
  constexpr int64_t kTopk = 3 * kEqual + kEqual * 464 / 512;
  CaseRun run = make_run(kWork);
  const CaseShape shape = run.fit({16, 64, kKeys, kTopk});
  const auto level = [](int64_t n) { return 40503 * n % kKeys % 256; };
  const Inputs inputs = program_p(shape, [&](int64_t n) { return static_cast<float>(level(n)) / 256; });
  int64_t ties = kTopk - 3 * kEqual;
  const std::vector<int64_t> expected =
      keys_where(0, kKeys, [&](int64_t n) { return level(n) >= 253 || (level(n) == 252 && ties-- > 0); });

  std::atomic<bool> stop{false};
  std::thread noise([&] {  // another call, over and over, with its own buffers
    CaseRun other = make_run(kWork);
    const Inputs small = program_rnd(other.fit({8, 64, 2000, 100}), 54);
    while (!stop) {
      other.each_path(small, [](const Outputs& /*out*/) {});
    }
  });
  const int repeats = GetParam() == "reference" ? 2 : kRepeats;
  for (int repeat = 0; repeat < repeats && !HasFailure(); ++repeat) {
    run.settings().threads = repeat % 5;
    run.expect_keys(inputs, every_row(expected));
  }
  stop = true;
  noise.join();
}

/// Two host threads with different K and N at once.
TEST_P(Cases, B64_TwoCallsAtOnce) {
  struct Side {
    int64_t topk;
    int64_t keys;
    uint64_t seed;
  };
  const Side kSides[] = {{512, 3000, 64}, {2048, 5003, 65}};
  CaseRun plan = make_run(8'000'000);
  std::vector<std::thread> threads;
  std::vector<std::string> faults(4);
  std::atomic<int64_t> calls{0};
  const int repeats = GetParam() == "reference" ? kCalls / 25 : kCalls;
  for (size_t worker = 0; worker < faults.size(); ++worker) {
    const Side side = kSides[worker % 2];
    const CaseShape shape = plan.fit({4, 8, side.keys, side.topk});
    Inputs inputs = program_rnd(shape, side.seed);
    if (plan.runner().supported(inputs) != KEYSIEVE_OK) {  // no fused kernel: select alone
      Random random(side.seed);
      inputs = as_select(inputs, random_scores(shape.rows, side.keys, 100, true, random));
    }
    const Outputs serial = plan.runner().run(inputs);
    ASSERT_EQ(serial.status, KEYSIEVE_OK) << serial.message;
    threads.emplace_back([&, worker, inputs, serial] {
      Runner runner(GetParam());
      for (int call = 0; call < repeats && faults[worker].empty(); ++call) {
        RunSettings settings;
        settings.threads = 1 + call % 3;
        const Outputs out = runner.run(inputs, settings);
        faults[worker] = out.status != KEYSIEVE_OK ? out.message
                         : !out.violation.empty()  ? out.violation
                                                   : compare_selections(inputs, out, serial);
        ++calls;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& fault : faults) {
    EXPECT_EQ(fault, "");
  }
  EXPECT_EQ(calls, repeats * 4);
}

/// The message of a failure belongs to the thread that failed.
TEST(NoBackend, MessagesBelongToTheirThread) {
  std::atomic<int> wrong{0};
  const auto fail = [&](int32_t topk) {
    keysieve_problem problem = blank_case({1, 1, 1, 1}).problem;
    problem.struct_size = sizeof(problem);
    problem.topk = topk;
    const std::string expected = "problem.topk is " + std::to_string(topk) + ", expected 1..2048";
    for (int i = 0; i < 1000; ++i) {
      if (keysieve_supported(&problem, nullptr) != KEYSIEVE_INVALID_ARGUMENT || keysieve_last_message() != expected) {
        ++wrong;
      }
    }
  };
  std::thread first(fail, 5000);
  std::thread second(fail, -7);
  first.join();
  second.join();
  EXPECT_EQ(wrong, 0);
}

/// One call on 1 to 16 threads.
TEST_P(Cases, ThreadCountSweep) {
  CaseRun run = make_run(kWork);
  const CaseShape shape = run.fit({37, 16, 3001, 300});
  Inputs inputs = program_rnd(shape, 99);
  std::vector<int32_t> ends;
  for (int64_t t = 0; t < shape.rows; ++t) {
    ends.push_back(static_cast<int32_t>(t * 97 % 3001));
  }
  inputs.row_end = i32_tensor(ends);
  std::vector<Outputs> first;
  for (int32_t threads = 1; threads <= 16; ++threads) {
    run.settings().threads = threads;
    run.settings().workspace = static_cast<WorkspaceChoice>(threads % 4);
    size_t path = 0;
    run.each_path(inputs, [&](const Outputs& out) {
      if (threads == 1) {
        first.push_back(out);
      } else {
        EXPECT_EQ(compare_selections(inputs, out, first[path++]), "") << threads << " threads";
      }
    });
  }
}

}  // namespace
}  // namespace keysieve::test
