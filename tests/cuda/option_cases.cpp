// SPDX-License-Identifier: Apache-2.0
// What options, kernels and sizes must not change, and what they may cost on a device.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "cuda/cuda_test.hpp"

namespace keysieve::test {
namespace {

/// Times work that is put on a stream.
class StreamTimer {
 public:
  StreamTimer() {
    EXPECT_EQ(cudaEventCreate(&begin_), cudaSuccess);
    EXPECT_EQ(cudaEventCreate(&end_), cudaSuccess);
  }
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;
  ~StreamTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  template <typename Work>
  float milliseconds(const Stream& stream, const Work& work) {
    float elapsed = 0;
    EXPECT_EQ(cudaEventRecord(begin_, stream.get()), cudaSuccess);
    work();
    EXPECT_EQ(cudaEventRecord(end_, stream.get()), cudaSuccess);
    stream.wait();
    EXPECT_EQ(cudaEventElapsedTime(&elapsed, begin_, end_), cudaSuccess);
    return elapsed;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

float median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// select by every kernel, cluster and grid: the reference's set, bit for bit.
TEST_F(CudaCases, SelectByEveryKernelAndGrid) {
  constexpr int64_t kRows = 23;
  Random random(71);
  Runner reference("reference");
  Runner runner("cuda");
  for (const int64_t keys : {3000, 6000, 70000}) {
    for (const int64_t distinct : {7, 100000}) {
      for (const int64_t topk : {100, 2048}) {
        const Tensor scores = random_scores(kRows, keys, distinct, true, random);
        Inputs inputs = as_select(blank_case({kRows, 1, keys, topk}), scores);
        std::vector<int32_t> starts;
        std::vector<int32_t> ends;
        for (int64_t t = 0; t < kRows; ++t) {  // the first rows whole, the others anywhere
          starts.push_back(t < 3 ? 0 : static_cast<int32_t>(random.below(keys)));
          ends.push_back(t < 3 ? static_cast<int32_t>(keys) : static_cast<int32_t>(random.below(keys)));
        }
        inputs.row_start = i32_tensor(starts);
        inputs.row_end = i32_tensor(ends);
        const Outputs expected = run_ok(reference, inputs);
        for (const std::string kernel : {"many_rows", "few_rows", "large_k"}) {
          for (const int cluster : {1, 2, 4, 8, 16}) {
            for (const int32_t sm_limit : {0, 1, 7, 48}) {
              const std::string config = "select/" + kernel + " cluster=" + std::to_string(cluster);
              SCOPED_TRACE(config + " sm_limit " + std::to_string(sm_limit) + " N " + std::to_string(keys));
              RunSettings settings;
              settings.config = config.c_str();
              settings.sm_limit = sm_limit;
              ASSERT_EQ(compare_selections(inputs, run_ok(runner, inputs, settings), expected), "");
            }
          }
        }
      }
    }
  }
}

/// No option and no layout sends a call down a slow path.
TEST_F(CudaCases, B69_NoSlowOption) {
  using Change = std::function<void(Inputs&, RunSettings&)>;
  const Inputs plain = program_rnd({1024, 64, 131072, 2048}, 69);
  Runner runner("cuda");
  if (!takes(runner, plain)) {
    GTEST_SKIP() << "no score_select on this backend";
  }
  const std::pair<const char*, Change> kVariants[] = {
      {"default", [](Inputs&, RunSettings&) {}},
      {"programmatic dependent launch",
       [](Inputs&, RunSettings& settings) { settings.launch_flags = KEYSIEVE_LAUNCH_PDL; }},
      {"order any", [](Inputs& inputs, RunSettings&) { inputs.problem.order = KEYSIEVE_ORDER_ANY; }},
      {"order score", [](Inputs& inputs, RunSettings&) { inputs.problem.order = KEYSIEVE_ORDER_SCORE; }},
      {"row indices", [](Inputs& inputs, RunSettings&) { inputs.problem.index_space = KEYSIEVE_INDEX_ROW; }},
      {"indices alone",
       [](Inputs&, RunSettings& settings) { settings.top_scores = settings.out_count = settings.row_indices = false; }},
      {"output rows 4 bytes apart", [](Inputs&, RunSettings& settings) { settings.row_gap = 1; }},
      {"scales 4 bytes off",
       [](Inputs& inputs, RunSettings&) {
         inputs.k_scale = inputs.k_scale.with_layout({{}, 4});
       }},
      {"scales 8 bytes apart",
       [](Inputs& inputs, RunSettings&) { inputs.k_scale = inputs.k_scale.with_layout({{2}}); }},
      {"weights 4 bytes off",
       [](Inputs& inputs, RunSettings&) {
         inputs.weights = inputs.weights.with_layout({{}, 4});
       }},
      {"queries 16 bytes off",
       [](Inputs& inputs, RunSettings&) {
         inputs.q = inputs.q.with_layout({{}, 16});
       }},
      {"keys 144 bytes apart", [](Inputs& inputs, RunSettings&) {
         inputs.k = inputs.k.with_layout({{144, 1}});
       }}};
  Stream stream;
  StreamTimer timer;
  float normal = 0;
  for (const auto& [name, change] : kVariants) {
    Inputs inputs = plain;
    RunSettings settings;
    settings.workspace = WorkspaceChoice::kPreferred;
    change(inputs, settings);
    Staged staged = runner.stage(inputs, settings);
    std::vector<float> times;
    for (int call = 0; call < 8; ++call) {
      times.push_back(timer.milliseconds(
          stream, [&] { EXPECT_EQ(runner.launch(staged, stream.get()), KEYSIEVE_OK) << staged.outputs.message; }));
    }
    const float typical = median(std::move(times));
    normal = normal == 0 ? typical : normal;
    std::printf("%-30s %.3f ms\n", name, typical);
    EXPECT_LT(typical, 1.3F * normal) << name;
  }
}

/// After a handful of calls no size, K or row count meets a kernel that is not ready.
TEST_F(CudaCases, B70_NoSlowFirstCall) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kKeys = 40000;
  constexpr int64_t kTopk = 2048;
  constexpr float kShort = 0.1F;  // milliseconds; what is shorter hides in the launch
  RunSettings settings;
  settings.top_scores = settings.out_count = settings.row_indices = false;
  settings.workspace = WorkspaceChoice::kPreferred;
  Stream stream;
  StreamTimer timer;
  Random random(70);
  for (const Inputs& inputs : operations(program_rnd({kRows, 64, kKeys, kTopk}, 70))) {
    Runner runner("cuda");
    Staged staged = runner.stage(inputs, settings);
    const auto call = [&](int64_t rows, int64_t keys, int64_t topk) {
      staged.problem.num_rows = rows;
      staged.problem.num_keys = keys;
      staged.problem.topk = topk;
      keysieve_tensors& tensors = staged.tensors;
      tensors.q.shape[0] = tensors.weights.shape[0] = tensors.scores.shape[0] = tensors.indices.shape[0] = rows;
      tensors.k.shape[0] = tensors.k_scale.shape[0] = tensors.scores.shape[1] = keys;
      tensors.indices.shape[1] = topk;
      return timer.milliseconds(
          stream, [&] { EXPECT_EQ(runner.launch(staged, stream.get()), KEYSIEVE_OK) << staged.outputs.message; });
    };
    for (const int64_t rows : {int64_t{1}, kRows}) {
      for (const int64_t keys : {int64_t{1000}, kKeys}) {
        call(rows, keys, kTopk);
      }
    }
    std::map<int, std::vector<float>> size_classes;
    for (int i = 0; i < 500 && !HasFailure(); ++i) {
      const int64_t rows = random.between(1, kRows);
      const int64_t keys = random.between(1, kKeys);
      const auto size_class = static_cast<int>(std::log2(static_cast<double>(rows * keys)));
      size_classes[size_class].push_back(call(rows, keys, random.between(1, kTopk)));
    }
    for (const auto& [size_class, times] : size_classes) {
      EXPECT_LT(*std::max_element(times.begin(), times.end()), 20 * std::max(median(times), kShort))
          << "2^" << size_class << " scores";
    }
  }
}

}  // namespace
}  // namespace keysieve::test
