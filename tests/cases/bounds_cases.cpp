// SPDX-License-Identifier: Apache-2.0
// Faults of size: rows around K, empty and negative ranges, requests packed in one call, offsets beyond 2^31 and 2^32.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "cases/case_run.hpp"

namespace keysieve::test {

KEYSIEVE_FOR_EACH_BACKEND(Cases);

namespace {

bool any_key(int64_t /*n*/) {
  return true;
}

std::vector<int32_t> row_list(int64_t rows, const std::function<int64_t(int64_t t)>& value) {
  std::vector<int32_t> list;
  for (int64_t t = 0; t < rows; ++t) {
    list.push_back(static_cast<int32_t>(value(t)));
  }
  return list;
}

/// Rows [start(t), end(t)) of P(v): the contract gives the best min(K, width) keys of each.
void expect_ranges(CaseRun& run, Inputs inputs, const std::vector<int32_t>& starts, const std::vector<int32_t>& ends,
                   const KeyValue& v) {
  const int64_t keys = inputs.problem.num_keys;
  if (!starts.empty()) {
    inputs.row_start = i32_tensor(starts);
  }
  inputs.row_end = i32_tensor(ends);
  run.expect_keys(inputs, [&](int64_t t) {
    const int64_t begin = starts.empty() ? 0 : std::clamp<int64_t>(starts[t], 0, keys);
    const int64_t end = std::clamp<int64_t>(ends[t], 0, keys);
    return best_keys(begin, end, inputs.problem.topk, v);
  });
}

/// Exactly K valid keys, one less, one more.
void b24(CaseRun& run) {
  for (const int64_t topk : {2048, 2047, 512, 1}) {
    const CaseShape shape = run.fit({4, 64, 4096, topk});
    const KeyValue v = [](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(perm(n, 4096)), -12); };
    expect_ranges(run, program_p(shape, v), {}, row_list(shape.rows, [&](int64_t t) { return topk - 1 + t; }), v);
  }
}

/// Fewer keys than K: all of them, then -1, and the output keeps its width.
void b25(CaseRun& run) {
  for (const int64_t keys : {249, 64, 1, 2048}) {
    const CaseShape shape = run.fit({249, 64, keys, 2048});
    const Inputs inputs = program_rnd(shape, 25);
    Inputs causal = inputs;
    causal.row_end = i32_tensor(row_list(shape.rows, [&](int64_t t) { return std::min(t + 1, keys); }));
    run.expect_keys(causal, [&](int64_t t) { return keys_where(0, std::min(t + 1, keys), any_key); });
  }
}

/// A row that ends inside a vector.
void b26(CaseRun& run) {
  const float kValues[] = {4, 9, 3, 1, 10, 20, 2, 5};
  for (int32_t end = 0; end <= 8; ++end) {
    const KeyValue v = [&](int64_t n) { return kValues[n]; };
    const Inputs inputs = program_p(run.fit({1, 64, 8, 4}), v);
    if (end == 5) {
      Inputs reported = inputs;
      reported.row_end = i32_tensor({5});
      run.expect_keys(reported, every_row({0, 1, 2, 4}));
    }
    expect_ranges(run, inputs, {}, {end}, v);
  }
}

/// Rows much shorter than the buffer is wide.
void b27(CaseRun& run) {
  const int32_t kEnds[] = {0, 1, 2047, 2048, 2049, 4096, 65537, 131072};
  const int64_t keys = 131072;
  const KeyValue v = [=](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(perm(n, keys, 40503)), -18); };
  const CaseShape shape = run.fit({8, 64, keys, 2048});
  // With fewer rows than eight, the longest and the shortest stay.
  expect_ranges(run, program_p(shape, v), {},
                row_list(shape.rows, [&](int64_t t) { return kEnds[t % 2 == 0 ? 7 - t / 2 : t / 2]; }), v);
}

/// Lengths that speculative decoding makes negative.
void b28(CaseRun& run) {
  const CaseShape shape = run.fit({12, 64, 64, 4});
  const KeyValue v = [](int64_t n) { return static_cast<float>(n); };
  const Inputs inputs = program_p(shape, v);
  const std::vector<int32_t> kDraining = {-1, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto start = std::chrono::steady_clock::now();
  expect_ranges(run, inputs, {}, row_list(shape.rows, [&](int64_t t) { return kDraining[t]; }), v);
  for (const int32_t end : {3, INT32_MIN, -1, 0, 10, INT32_MAX}) {
    expect_ranges(run, inputs, row_list(shape.rows, [](int64_t /*t*/) { return 10; }),
                  row_list(shape.rows, [&](int64_t /*t*/) { return end; }), v);
  }
  expect_ranges(run, inputs, row_list(shape.rows, [](int64_t /*t*/) { return INT32_MIN; }),
                row_list(shape.rows, [](int64_t /*t*/) { return INT32_MAX; }), v);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20)
      << "an empty row must not hang";
}

/// No rows at all.
void b30(CaseRun& run) {
  run.expect_keys(program_p(run.fit({0, 64, 128, 16}), [](int64_t /*n*/) { return 1.0F; }), every_row({}));
}

/// K that no vector width and no thread count divides.
void b32(CaseRun& run) {
  for (const int64_t topk : {1, 3, 705, 704, 706}) {
    const CaseShape shape = run.fit({235, 64, 705, topk});
    const KeyValue v = [](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(perm(n, 705)), -10); };
    expect_ranges(run, program_p(shape, v), {}, row_list(shape.rows, [](int64_t t) { return 3 * (t + 1); }), v);
  }
  for (const int64_t topk : {2047, 2045, 1999}) {
    const CaseShape shape = run.fit({3, 64, 4096, topk});
    const KeyValue v = [](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(perm(n, 4096)), -12); };
    run.expect_keys(program_p(shape, v), every_row(best_keys(0, 4096, topk, v)));
  }
}

/// Two requests in one call do not see each other's keys.
void b34(CaseRun& run) {
  const CaseShape shape = run.fit({77, 64, 77, 16});
  const KeyValue v = [](int64_t n) { return static_cast<float>(77 - n); };
  const std::vector<int32_t> starts = row_list(shape.rows, [](int64_t t) { return t < 40 ? 0 : 40; });
  const std::vector<int32_t> ends = row_list(shape.rows, [](int64_t t) { return t + 1; });
  const Inputs inputs = program_p(shape, v);
  expect_ranges(run, inputs, starts, ends, v);
  if (shape.rows == 77) {
    Inputs packed = inputs;
    packed.row_start = i32_tensor(starts);
    packed.row_end = i32_tensor(ends);
    run.each_path(packed, [](const Outputs& out) {
      expect_row(out.indices, 40, {40});
      expect_row(out.indices, 76, keys_where(40, 56, any_key));
    });
  }
}

/// A causal prefill in chunks: the default workspace and the smallest one.
void b36(CaseRun& run) {
  for (const WorkspaceChoice workspace : {WorkspaceChoice::kPreferred, WorkspaceChoice::kMinimum}) {
    run.settings().workspace = workspace;
    const CaseShape shape = run.fit({5000, 64, 5000, 64});
    const int64_t stride = 5000 / shape.rows;  // fewer rows: spread over the prefix lengths
    Inputs inputs = program_p(shape, [](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(n), -13); });
    const auto end_of = [&](int64_t t) { return (t + 1) * stride; };
    inputs.row_end = i32_tensor(row_list(shape.rows, end_of));
    run.expect_keys(inputs,
                    [&](int64_t t) { return keys_where(std::max<int64_t>(0, end_of(t) - 64), end_of(t), any_key); });
  }
  run.settings().workspace = WorkspaceChoice::kMinimum;
}

/// Leaves every row empty but the listed ones, so that T and N keep their size and the work does not.
void keep_rows(Inputs& inputs, const std::vector<int64_t>& rows) {
  std::vector<int32_t> ends(static_cast<size_t>(inputs.problem.num_rows), 0);
  for (const int64_t t : rows) {
    ends[t] = static_cast<int32_t>(inputs.problem.num_keys);
  }
  inputs.row_end = i32_tensor(ends);
}

TEST(NoBackend, PermutationsHitEveryKey) {
  for (const auto& [keys, a] : std::vector<std::pair<int64_t, int64_t>>{{262144, 40503}, {262209, 7919}, {705, 7919}}) {
    std::vector<bool> seen(static_cast<size_t>(keys), false);
    for (int64_t n = 0; n < keys; ++n) {
      seen[perm(n, keys, a)] = true;
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), keys);
  }
}

TEST_P(Cases, B24_ExactlyKKeys) {
  run(b24);
}
TEST_P(Cases, B25_FewerKeysThanK) {
  run(b25);
}
TEST_P(Cases, B26_RowEndsInsideAVector) {
  run(b26);
}
TEST_P(Cases, B27_RowsShorterThanTheBuffer) {
  run(b27);
}
TEST_P(Cases, B28_NegativeLengths) {
  run(b28);
}
TEST_P(Cases, B30_NoRows) {
  run(b30);
}
TEST_P(Cases, B32_OddK) {
  run(b32);
}
TEST_P(Cases, B34_TwoRequestsInOneCall) {
  run(b34);
}
TEST_P(Cases, B36_CausalChunks) {
  run(b36);
}

/// More than 2^32 scores in one call.
TEST_P(Cases, B38_ScoresBeyondTwoToThe32) {
  CaseRun run = make_run();
  constexpr int64_t kKeys = 131072;
#if defined(KEYSIEVE_SMALL_TESTS)
  constexpr int64_t kTopk = 16;  // T*N keeps its size; the output shrinks
#else
  constexpr int64_t kTopk = 512;
#endif
  const KeyValue s = [](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(n), -18); };
  const int64_t heads = run.fit({32769, 64, kKeys, kTopk}).heads;
  Inputs inputs = program_row({32769, heads, kKeys, kTopk}, s, [](int64_t t) { return t; });
  const std::vector<int64_t> rows = {0, 16384, 32767, 32768};
  keep_rows(inputs, rows);
  if (!takes(run.runner(), inputs)) {
    GTEST_SKIP() << "no score_select on this backend";
  }
  const Outputs out = run_ok(run.runner(), inputs);
  for (const int64_t t : rows) {
    // 1,024 keys of row t score above 0; the best kTopk of them are the highest columns.
    std::vector<int64_t> expected = keys_where(0, kKeys, [&](int64_t n) { return n % 128 == t % 128; });
    expected.erase(expected.begin(), expected.end() - kTopk);
    expect_row(out.indices, t, expected);
  }
  expect_row(out.indices, 1, {});
}

TEST_P(Cases, B38_LongRowsManyTimes) {
  CaseRun run = make_run();
  constexpr int64_t kKeys = 262209;
  const CaseShape fitted = run.fit({4096, 64, kKeys, 2048});
  const bool full = fitted.rows == 4096;
  const KeyValue v = [](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(perm(n, kKeys)), -19); };
  Inputs inputs = program_p({4096, fitted.heads, kKeys, 2048}, v);
  if (!full) {
    keep_rows(inputs, {0, 4095});
  }
  if (!takes(run.runner(), inputs)) {
    GTEST_SKIP() << "no score_select on this backend";
  }
  const Outputs out = run_ok(run.runner(), inputs);
  const std::vector<int64_t> expected = keys_where(0, kKeys, [](int64_t n) { return perm(n, kKeys) >= kKeys - 2048; });
  for (int64_t t = 0; t < 4096; ++t) {
    expect_row(out.indices, t, full || t == 0 || t == 4095 ? expected : std::vector<int64_t>{});
    if (HasFailure()) {
      return;
    }
  }
}

/// select on a [32769, 131072] matrix: 17 GB of addresses, of which only the rows that are read exist.
TEST_P(Cases, B38_SelectFromAHugeMatrix) {
  if (GetParam() == "cuda") {
    GTEST_SKIP() << "the device has no sparse memory";
  }
  constexpr int64_t kKeys = 131072;
  const std::vector<int64_t> rows = {0, 16383, 16384, 32767, 32768};
  Inputs inputs = blank_case({1, 1, 1, 100});
  inputs.problem.num_rows = 32769;
  inputs.problem.num_keys = kKeys;
  inputs.scores = Tensor(Dtype::kF32, {32769, kKeys});
  for (const int64_t t : rows) {
    for (int64_t n = 0; n < kKeys; ++n) {
      inputs.scores.mutable_data<float>()[t * kKeys + n] = static_cast<float>(perm(n + t, kKeys));
    }
  }
  keep_rows(inputs, rows);
  inputs = as_select(inputs, inputs.scores);
  Runner runner(GetParam());
  ASSERT_TRUE(takes(runner, inputs));
  const Outputs out = run_ok(runner, inputs);
  for (const int64_t t : rows) {
    expect_row(out.indices, t, keys_where(0, kKeys, [&](int64_t n) { return perm(n + t, kKeys) >= kKeys - 100; }));
  }
  expect_row(out.indices, 1, {});
}

/// Keys 16,384 bytes apart: the last ones lie beyond 2^31 bytes.
TEST_P(Cases, B40_KeysOfAWideCache) {
  constexpr int64_t kKeys = 140000;
  CaseRun run = make_run();
  const CaseShape shape = run.fit({2, 64, kKeys, 2048});
  const Inputs dense = program_p(shape, [](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(n), -18); });
  Inputs wide = dense;
  wide.k = Tensor(Dtype::kE4m3, {kKeys, kCaseHeadDim}, {{16384, 1}});
  auto* keys = wide.k.mutable_data<uint8_t>();
  for (int64_t n = 0; n < kKeys; ++n) {
    std::fill_n(keys + n * 16384, kCaseHeadDim, kOneE4m3);
    if (n + 1 < kKeys) {  // what lies beside a key; the rest of its 16,384 bytes stays unmapped
      std::fill_n(keys + n * 16384 + kCaseHeadDim, 256, kNanE4m3);
    }
  }
  const std::vector<int64_t> expected = keys_where(kKeys - 2048, kKeys, any_key);
  run.expect_keys(dense, every_row(expected));
  run.expect_keys(wide, every_row(expected));
}

}  // namespace

std::vector<PoisonedCase> bounds_cases() {
  return {{"B24", b24}, {"B25", b25}, {"B26", b26}, {"B27", b27}, {"B28", b28},
          {"B30", b30}, {"B32", b32}, {"B34", b34}, {"B36", b36}};
}

}  // namespace keysieve::test
