// SPDX-License-Identifier: Apache-2.0
// Faults of memory: reads past the end, poisoned buffers, garbage beside the data, scratch, alignment, strides.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include "cases/case_run.hpp"

namespace keysieve::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Every tensor ends exactly at its guard page, then begins exactly at one; widths around tiles and vectors.
TEST_P(Cases, B43_TensorsEndAtTheirPage) {
#if defined(KEYSIEVE_SMALL_TESTS)
  const int64_t kRows[] = {1, 3};
#else
  const int64_t kRows[] = {1, 3, 131, 133};
#endif
  CaseRun run = make_run(GetParam() == "reference" ? 4'000'000 : INT64_MAX);
  uint64_t seed = 43;
  for (const int64_t rows : kRows) {
    for (const int64_t keys : {1, 63, 65, 127, 129, 257, 1000, 4100}) {
      const CaseShape shape = run.fit({rows, rows % 3 == 0 ? 16 : 64, keys, 64});
      Inputs inputs = program_rnd(shape, ++seed);
      run.settings().workspace_fence = Fence::kAfter;
      run.expect_agreement(inputs);
      std::vector<Outputs> expected;
      run.each_path(inputs, [&](const Outputs& out) { expected.push_back(out); });
      for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.k_scale, &inputs.weights}) {
        TensorLayout layout = tensor->layout();
        layout.fence = Fence::kBefore;
        *tensor = tensor->with_layout(layout);
      }
      run.settings().workspace_fence = Fence::kBefore;
      size_t path = 0;
      run.each_path(inputs,
                    [&](const Outputs& out) { EXPECT_EQ(compare_selections(inputs, out, expected[path++]), ""); });
    }
  }
}

/// All inputs of B01 to B36 again with poisoned outputs and workspace.
TEST_P(Cases, B45_PoisonedBuffers) {
  std::vector<PoisonedCase> cases = numerics_cases();
  const std::vector<PoisonedCase> bounds = bounds_cases();
  cases.insert(cases.end(), bounds.begin(), bounds.end());
  const bool reference = GetParam() == "reference";  // slow, and without a workspace
  std::vector<Poison> poisons = {Poison::kRandom};
#if defined(KEYSIEVE_SMALL_TESTS)
  const int64_t work_limit = reference ? 1'000'000 : 4'000'000;
#else
  const int64_t work_limit = reference ? 2'000'000 : 30'000'000;
  if (!reference) {
    poisons.insert(poisons.end(), {Poison::kFF, Poison::k7F});
  }
#endif
  for (const Poison poison : poisons) {
    for (const PoisonedCase& poisoned : cases) {
      SCOPED_TRACE(std::string(poisoned.id) + " poison " + std::to_string(static_cast<int>(poison)));
      CaseRun run(GetParam(), work_limit);
      run.settings().poison = poison;
      poisoned.run(run);
    }
  }
}

/// Garbage in rows and keys that nothing refers to.
TEST_P(Cases, B46_GarbageBesideTheData) {
  CaseRun run = make_run();
  Random random(46);
  CaseShape shape = run.fit({16, 64, 4096, 256});
  shape.rows = 16;
  const Inputs clean = [&] {
    Inputs inputs = program_rnd(shape, 5);
    std::vector<int32_t> starts;
    std::vector<int32_t> ends;
    for (int64_t t = 0; t < 16; ++t) {
      const int64_t a = random.between(64, 3999);
      const int64_t b = random.between(64, 4000);
      starts.push_back(static_cast<int32_t>(t < 12 ? std::min(a, b) : 500));
      ends.push_back(static_cast<int32_t>(t < 12 ? std::max(a, b) : 500));
    }
    inputs.row_start = i32_tensor(starts);
    inputs.row_end = i32_tensor(ends);
    return inputs;
  }();
  const auto dress = [&](uint8_t key_byte, float scale, uint8_t query_byte, float weight) {
    Inputs inputs = clean;
    inputs.q = clean.q.clone();
    inputs.k = clean.k.clone();
    inputs.k_scale = clean.k_scale.clone();
    inputs.weights = clean.weights.clone();
    for (int64_t n = 0; n < 4096; ++n) {
      if (n < 64 || n >= 4000) {
        std::fill_n(inputs.k.mutable_data<uint8_t>() + n * kCaseHeadDim, kCaseHeadDim, key_byte);
        inputs.k_scale.mutable_data<float>()[n] = scale;
      }
    }
    const int64_t row_bytes = shape.heads * kCaseHeadDim;
    std::fill_n(inputs.q.mutable_data<uint8_t>() + 12 * row_bytes, 4 * row_bytes, query_byte);
    std::fill_n(inputs.weights.mutable_data<float>() + 12 * shape.heads, 4 * shape.heads, weight);
    return inputs;
  };
  std::vector<Outputs> zeros;
  run.each_path(dress(0, 0, 0, 0), [&](const Outputs& out) { zeros.push_back(out); });
  size_t path = 0;
  const Inputs garbage = dress(kNanE4m3, kNan, kNanE4m3, kNan);
  run.each_path(garbage, [&](const Outputs& out) {
    EXPECT_EQ(compare_selections(garbage, out, zeros[path++]), "");
    for (int64_t t = 12; t < 16; ++t) {
      expect_row(out.indices, t, {});
    }
  });
  run.expect_agreement(garbage);
}

/// Resets and reads the peak of this process's resident memory, in bytes; 0 where the system does not tell.
void reset_peak_memory() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(field, 0) == 0) {
      return std::stoll(line.substr(field.size() + 1)) * 1024;
    }
  }
  return 0;
}

/// A million keys and thousands of rows: the scores would be 32.8 GB.
TEST_P(Cases, B47_MemoryOfAMillionKeys) {
  constexpr int64_t kKeys = 1000000;
  CaseRun run = make_run(20'000'000'000);
  Inputs large;
  large.problem = blank_case({1, 1, 1, 2048}).problem;
  large.problem.num_rows = 8192;
  large.problem.num_keys = kKeys;
  large.problem.num_heads = run.fit({1, 64, 1, 1}).heads;
  if (!takes(run.runner(), large)) {
    GTEST_SKIP() << "no score_select on this backend";
  }
  keysieve_options options{};
  options.struct_size = sizeof(options);
  options.backend = GetParam().c_str();
  keysieve_problem problem = large.problem;
  problem.struct_size = sizeof(problem);
  problem.device_type = run.runner().device_type();
  size_t minimum = 0;
  size_t preferred = 0;
  ASSERT_EQ(keysieve_workspace_size(&problem, &options, &minimum, &preferred), KEYSIEVE_OK);
  EXPECT_LE(minimum, preferred);
  EXPECT_LE(preferred, size_t{320} << 20U);

  CaseShape shape = run.fit({8192, 64, kKeys, 2048});
  const Inputs inputs = program_p(shape, [](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(n), -21); });
  Staged staged = run.runner().stage(inputs);
  reset_peak_memory();
  const int64_t before = status_bytes("VmRSS:");
  ASSERT_EQ(run.runner().launch(staged), KEYSIEVE_OK) << staged.outputs.message;
  const Outputs out = run.runner().collect(staged);
  const int64_t peak = status_bytes("VmHWM:");
  EXPECT_EQ(out.violation, "");
  const std::vector<int64_t> expected = keys_where(kKeys - 2048, kKeys, [](int64_t /*n*/) { return true; });
  for (int64_t t = 0; t < shape.rows; ++t) {
    expect_row(out.indices, t, expected);
  }
#if !defined(KEYSIEVE_SMALL_TESTS)
  if (GetParam() == "cpu" && before > 0) {
    EXPECT_LT(peak - before, int64_t{16} << 20U) << "beyond inputs and outputs";
  }
#endif
  static_cast<void>(before);
  static_cast<void>(peak);
}

/// One row cut into many parts: canaries around a workspace of exactly the documented size.
TEST_P(Cases, B49_WorkspaceOfLongRows) {
#if defined(KEYSIEVE_SMALL_TESTS)
  constexpr int64_t kKeys = 65536;
#else
  constexpr int64_t kKeys = 1048576;
#endif
  CaseRun run = make_run(2'000'000'000);
  const KeyValue v = [](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(perm(n, kKeys)), -21); };
  for (const int64_t topk : {512, 2048}) {
    if (GetParam() == "reference" && topk == 512) {
      continue;
    }
    const std::vector<int64_t> expected =
        keys_where(0, kKeys, [=](int64_t n) { return perm(n, kKeys) >= kKeys - topk; });
    for (const int64_t rows : {1, 2, 3}) {
      CaseShape shape = run.fit({rows, 64, kKeys, topk});
      shape.rows = GetParam() == "reference" ? shape.rows : rows;
      const Inputs inputs = program_p(shape, v);
      for (const WorkspaceChoice workspace : {WorkspaceChoice::kMinimum, WorkspaceChoice::kPreferred}) {
        run.settings().workspace = workspace;
        run.settings().workspace_fence = rows == 2 ? Fence::kBefore : Fence::kAfter;
        run.expect_keys(inputs, every_row(expected));
        if (GetParam() == "reference") {
          return;  // one row is slow enough
        }
      }
    }
  }
}

/// Runs `changed`; it must give what `dense` gave, or be refused before launch with a message that names `argument`.
void expect_same_or_refused(CaseRun& run, const Inputs& changed, const Outputs& dense, const std::string& argument) {
  SCOPED_TRACE(argument);
  if (!takes(run.runner(), changed, run.settings())) {
    return;
  }
  const Outputs out = run.runner().run(changed, run.settings());
  EXPECT_EQ(out.violation, "");
  if (out.status == KEYSIEVE_OK) {
    EXPECT_EQ(compare_selections(changed, out, dense), "");
    return;
  }
  EXPECT_TRUE(out.status == KEYSIEVE_INVALID_ARGUMENT || out.status == KEYSIEVE_UNSUPPORTED) << out.message;
  EXPECT_NE(out.message.find(argument), std::string::npos) << out.message;
  EXPECT_FALSE(run.runner().device_type() == KEYSIEVE_CPU)
      << "a CPU backend takes every legal alignment: " << out.message;
}

/// Compares scores instead where the backend has no score_select.
void expect_layouts_agree(CaseRun& run, const Inputs& dense,
                          const std::vector<std::pair<std::string, std::function<void(Inputs&)>>>& changes) {
  if (takes(run.runner(), dense, run.settings())) {
    const Outputs expected = run_ok(run.runner(), dense, run.settings());
    for (const auto& [argument, change] : changes) {
      Inputs changed = dense;
      change(changed);
      expect_same_or_refused(run, changed, expected, argument);
    }
  }
  const Inputs score = as_score(dense);
  if (takes(run.runner(), score)) {
    const Outputs expected = run_ok(run.runner(), score);
    for (const auto& [argument, change] : changes) {
      Inputs changed = score;
      change(changed);
      const Outputs out = run.runner().run(changed);
      EXPECT_EQ(out.violation, "");
      if (out.status == KEYSIEVE_OK) {
        EXPECT_EQ(compare_scores(out.scores, expected.scores), "") << argument;
      } else {
        EXPECT_NE(out.message.find(argument), std::string::npos) << out.message;
      }
    }
  }
}

/// Slices of larger tensors: bases that are not aligned.
TEST_P(Cases, B50_MisalignedSlices) {
  CaseRun run = make_run(GetParam() == "reference" ? 4'000'000 : INT64_MAX);
  const CaseShape shape = run.fit({33, 64, 1000, 64});
  const Inputs dense = program_rnd(shape, 7);
  std::vector<std::pair<std::string, std::function<void(Inputs&)>>> changes;
  for (const size_t offset : {128, 16, 8, 1, 63}) {
    changes.emplace_back("k", [offset](Inputs& inputs) { inputs.k = inputs.k.with_layout({{}, offset}); });
    changes.emplace_back("q", [offset](Inputs& inputs) { inputs.q = inputs.q.with_layout({{}, offset}); });
  }
  for (const size_t offset : {4, 12, 20}) {
    changes.emplace_back("k_scale", [offset](Inputs& inputs) {
      inputs.k_scale = inputs.k_scale.with_layout({{}, offset});
    });
    changes.emplace_back("weights", [offset](Inputs& inputs) {
      inputs.weights = inputs.weights.with_layout({{}, offset});
    });
  }
  changes.emplace_back("q", [&](Inputs& inputs) {  // one row into a larger tensor
    inputs.q = inputs.q.with_layout({{}, static_cast<size_t>(shape.heads * kCaseHeadDim)});
  });
  changes.emplace_back("weights", [&](Inputs& inputs) {
    inputs.weights = inputs.weights.with_layout({{shape.heads + 1, 1}});
  });
  expect_layouts_agree(run, dense, changes);
}

/// Columns and slices: strides that are not the dense ones, one argument at a time, then all at once.
TEST_P(Cases, B52_StridedArguments) {
  CaseRun run = make_run(GetParam() == "reference" ? 4'000'000 : INT64_MAX);
  const CaseShape shape = run.fit({70, 64, 3000, 128});
  Random random(9);
  Inputs dense = program_rnd(shape, 9);
  std::vector<int32_t> starts;
  std::vector<int32_t> ends;
  for (int64_t t = 0; t < shape.rows; ++t) {
    const auto a = static_cast<int32_t>(random.between(0, 3000));
    const auto b = static_cast<int32_t>(random.between(0, 3000));
    starts.push_back(std::min(a, b));
    ends.push_back(std::max(a, b));
  }
  dense.row_start = i32_tensor(starts);
  dense.row_end = i32_tensor(ends);
  std::vector<std::pair<std::string, std::function<void(Inputs&)>>> changes;
  const auto row_columns = [](Inputs& inputs) {
    inputs.row_start = inputs.row_start.with_layout({{2}});
    inputs.row_end = inputs.row_end.with_layout({{3}});
  };
  const auto scale_column = [](Inputs& inputs) { inputs.k_scale = inputs.k_scale.with_layout({{2}}); };
  const auto wide_weights = [&](Inputs& inputs) {
    inputs.weights = inputs.weights.with_layout({{3 * shape.heads + 1, 1}});
  };
  const auto fused_q = [&](Inputs& inputs) {  // heads 3 .. 3+H-1 of a wider projection
    inputs.q = inputs.q.with_layout({{(shape.heads + 7) * kCaseHeadDim, kCaseHeadDim, 1}});
  };
  const auto wide_heads = [&](Inputs& inputs) { inputs.q = inputs.q.with_layout({{shape.heads * 192 + 64, 192, 1}}); };
  const auto wide_keys = [](Inputs& inputs) { inputs.k = inputs.k.with_layout({{kCaseHeadDim + 16, 1}}); };
  changes = {{"row_", row_columns}, {"k_scale", scale_column}, {"weights", wide_weights},
             {"q", fused_q},        {"q", wide_heads},         {"k", wide_keys}};
  changes.emplace_back("", [=](Inputs& inputs) {
    row_columns(inputs);
    scale_column(inputs);
    wide_weights(inputs);
    wide_heads(inputs);
    wide_keys(inputs);
  });
  changes.emplace_back("k", [](Inputs& inputs) {  // legal on a CPU, refused where copies want 16 bytes
    inputs.k = inputs.k.with_layout({{kCaseHeadDim + 1, 1}});
  });
  expect_layouts_agree(run, dense, changes);
}

/// One row of weights shared by all queries: stride 0.
TEST_P(Cases, B52_SharedWeights) {
  CaseRun run = make_run();
  const CaseShape shape = run.fit({20, 64, 700, 64});
  Inputs dense = program_rnd(shape, 52);
  Tensor shared(Dtype::kF32, {shape.rows, shape.heads}, {{0, 1}});
  std::copy_n(dense.weights.data<float>(), shape.heads, shared.mutable_data<float>());
  for (int64_t t = 0; t < shape.rows; ++t) {
    std::copy_n(shared.data<float>(), shape.heads, dense.weights.mutable_data<float>() + t * shape.heads);
  }
  expect_layouts_agree(run, dense, {{"weights", [&](Inputs& inputs) { inputs.weights = shared; }}});
}

}  // namespace
}  // namespace keysieve::test
