// SPDX-License-Identifier: Apache-2.0
// Faults of time on a device: launches that race, hangs beside other kernels, graphs, consumers, devices, huge offsets.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "cuda/cuda_test.hpp"
#include "cuda/helper_kernels.hpp"

namespace keysieve::test {
namespace {

constexpr int32_t kLaunchFlags[] = {KEYSIEVE_LAUNCH_DEFAULT, KEYSIEVE_LAUNCH_PDL};

/// No rows, inside of a capture.
TEST_F(CudaCases, B30_NoRowsInACapture) {
  for (const Inputs& inputs : operations(program_rnd({0, 64, 128, 16}, 30))) {
    Runner runner("cuda");
    Stream stream;
    Staged staged = runner.stage(inputs);
    const CapturedGraph graph(stream, [&] { EXPECT_EQ(runner.launch(staged, stream.get()), KEYSIEVE_OK); });
    EXPECT_EQ(runner.collect(staged).violation, "");
  }
}

/// The same launch again and again, beside a busy stream.
TEST_F(CudaCases, B53_SameBytesEveryLaunch) {
  struct Shape {
    int64_t rows;
    int64_t keys;
  };
  Stream busy;
  Stream stream;
  DeviceBuffer noise_source(size_t{8} << 20U);
  DeviceBuffer noise_target(size_t{8} << 20U);
  for (const Shape& shape : {Shape{128, 4096}, Shape{1, 65536}, Shape{17, 260}, Shape{1000, 1000}}) {
    for (const int64_t heads : {16, 32, 64}) {
      for (const Inputs& inputs : operations(program_rnd({shape.rows, heads, shape.keys, 512}, 11))) {
        Runner runner("cuda");
        const Outputs first = run_ok(runner, inputs);
        if (inputs.problem.op == KEYSIEVE_SCORE) {
          EXPECT_EQ(check_accuracy(inputs, first.scores, sample_rows(shape.rows, 2), "cuda"), "");
        }
        for (const int32_t flags : kLaunchFlags) {
          RunSettings settings;
          settings.launch_flags = flags;
          Staged staged = runner.stage(inputs, settings);
          for (int launch = 0; launch < 50 && !HasFailure(); ++launch) {
            launch_copy(noise_target.data(), noise_source.data(), noise_source.bytes(), busy.get());
            ASSERT_EQ(runner.launch(staged, stream.get()), KEYSIEVE_OK) << staged.outputs.message;
            stream.wait();
            expect_same(inputs, copy_outputs(staged), first);
          }
          EXPECT_EQ(runner.collect(staged).violation, "");
        }
      }
    }
  }
}

/// All multiprocessors but one are taken for a while: the call waits its turn, finishes, and the next one is right.
TEST_F(CudaCases, B55_NoHangBesideASpinner) {
  int multiprocessors = 0;
  KEYSIEVE_ASSERT_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  Stream spinner;
  Stream stream;
  for (const CaseShape& shape : {CaseShape{8, 64, 16384, 1024}, CaseShape{1, 64, 1048576, 1024}}) {
    for (const Inputs& inputs : operations(program_rnd(shape, 55))) {
      for (const int32_t sm_limit : {0, 8}) {
        RunSettings settings;
        settings.sm_limit = sm_limit;
        Runner runner("cuda");
        const Outputs expected = run_ok(runner, inputs);
        Staged staged = runner.stage(inputs, settings);
        KEYSIEVE_ASSERT_CUDA(launch_spinner(multiprocessors - 1, 400, spinner.get()));
        ASSERT_EQ(runner.launch(staged, stream.get()), KEYSIEVE_OK) << staged.outputs.message;
        spinner.wait();
        const auto start = std::chrono::steady_clock::now();
        stream.wait();
        EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 1.0);
        expect_same(inputs, runner.collect(staged), expected);
        expect_same(inputs, run_ok(runner, inputs, settings), expected);
      }
    }
  }
}

/// Captured with short rows, replayed with long ones: the lengths are read on the device, each time.
TEST_F(CudaCases, B57_ReplayWithOtherLengths) {
  constexpr int64_t kRows = 8;
  constexpr int64_t kKeys = 65536;
  Inputs problem = program_rnd({kRows, 64, kKeys, 512}, 57);
  problem.row_end = i32_tensor(std::vector<int32_t>(kRows, 1000));
  for (const Inputs& inputs : operations(problem)) {
    const std::vector<std::vector<int32_t>> kLengths = {
        std::vector<int32_t>(kRows, 1000), std::vector<int32_t>(kRows, 65536), {0, -5, 1, 511, 512, 513, 65535, 70000}};
    Runner eager("cuda");
    std::vector<Outputs> expected;
    for (const std::vector<int32_t>& lengths : kLengths) {
      Inputs changed = inputs;
      changed.row_end = i32_tensor(lengths);
      expected.push_back(run_ok(eager, changed));
    }
    Runner runner("cuda");
    Stream stream;
    Staged staged = runner.stage(inputs);
    const CapturedGraph graph(stream, [&] { EXPECT_EQ(runner.launch(staged, stream.get()), KEYSIEVE_OK); });
    for (int replay = 0; replay < 50 && !HasFailure(); ++replay) {
      const size_t which = static_cast<size_t>(replay) % kLengths.size();
      KEYSIEVE_ASSERT_CUDA(cudaMemcpyAsync(staged.tensors.row_end.data, kLengths[which].data(), 4 * kRows,
                                           cudaMemcpyHostToDevice, stream.get()));
      graph.launch(stream);
      stream.wait();
      expect_same(inputs, copy_outputs(staged), expected[which]);
    }
    EXPECT_EQ(runner.collect(staged).violation, "");
  }
}

/// Two calls in one graph; between replays, memory comes and goes around them.
TEST_F(CudaCases, B60_ReplayWhileMemoryMoves) {
  Random random(60);
  for (const Inputs& inputs : operations(program_rnd({16, 64, 20000, 512}, 60))) {
    Runner first("cuda");
    Runner second("cuda");
    const Outputs expected = run_ok(first, inputs);
    Stream stream;
    Staged one = first.stage(inputs);
    Staged two = second.stage(inputs);
    DeviceBuffer temporary(size_t{64} << 20U);
    const CapturedGraph graph(stream, [&] {
      EXPECT_EQ(first.launch(one, stream.get()), KEYSIEVE_OK);
      EXPECT_EQ(cudaMemsetAsync(temporary.data(), 0xFF, temporary.bytes(), stream.get()), cudaSuccess);
      EXPECT_EQ(second.launch(two, stream.get()), KEYSIEVE_OK);
    });
    for (int replay = 0; replay < 100 && !HasFailure(); ++replay) {
      std::vector<std::unique_ptr<DeviceBuffer>> others;
      for (int i = 0; i < 10; ++i) {
        others.push_back(std::make_unique<DeviceBuffer>(static_cast<size_t>(random.between(1, 1 << 22))));
        cudaMemsetAsync(others.back()->data(), 0x7F, others.back()->bytes(), stream.get());
      }
      graph.launch(stream);
      stream.wait();
    }
    expect_same(inputs, first.collect(one), expected);
    expect_same(inputs, second.collect(two), expected);
  }
}

/// A producer just before the call and a consumer just after it, two thousand times without a synchronisation.
TEST_F(CudaCases, B61_ProducerCallConsumer) {
  constexpr int kRounds = 2000;
  constexpr int64_t kRows = 4;
  constexpr int64_t kKeys = 3000;
  constexpr int64_t kTopk = 64;
  const Inputs problem = program_rnd({kRows, 64, kKeys, kTopk}, 61);
  const Inputs other = program_rnd({kRows, 64, kKeys, kTopk}, 62);
  std::vector<int32_t> numbers(kKeys);
  for (int64_t n = 0; n < kKeys; ++n) {
    numbers[n] = static_cast<int32_t>(3 * n + 1);
  }
  const DeviceBuffer table(i32_tensor(numbers));
  for (const Inputs& inputs : operations(problem)) {
    if (inputs.problem.op == KEYSIEVE_SCORE) {
      continue;  // it has no indices to gather by
    }
    const bool select = inputs.problem.op == KEYSIEVE_SELECT;
    Random random(63);
    Inputs changed = inputs;
    changed.q = other.q;
    changed.scores = select ? random_scores(kRows, kKeys, 500, true, random) : Tensor();
    for (const int32_t flags : kLaunchFlags) {
      RunSettings settings;
      settings.launch_flags = flags;
      Runner runner("cuda");
      const Outputs expected[] = {run_ok(runner, inputs, settings), run_ok(runner, changed, settings)};
      const DeviceBuffer sources[] = {DeviceBuffer(select ? inputs.scores : inputs.q),
                                      DeviceBuffer(select ? changed.scores : changed.q)};
      const DeviceBuffer gathered(size_t{4} * kRounds * kRows * kTopk);
      Staged staged = runner.stage(inputs, settings);
      Stream stream;
      void* input = select ? staged.tensors.scores.data : staged.tensors.q.data;
      for (int round = 0; round < kRounds; ++round) {
        const DeviceBuffer& source = sources[round % 2];
        launch_copy(input, source.data(), source.bytes(), stream.get());
        ASSERT_EQ(runner.launch(staged, stream.get()), KEYSIEVE_OK) << staged.outputs.message;
        launch_gather(static_cast<int32_t*>(gathered.data()) + round * kRows * kTopk,
                      static_cast<const int32_t*>(table.data()), kKeys,
                      static_cast<const int32_t*>(staged.tensors.indices.data), kRows * kTopk, stream.get());
      }
      stream.wait();
      std::vector<int32_t> host(static_cast<size_t>(kRounds * kRows * kTopk));
      KEYSIEVE_ASSERT_CUDA(cudaMemcpy(host.data(), gathered.data(), gathered.bytes(), cudaMemcpyDeviceToHost));
      for (int64_t i = 0; i < static_cast<int64_t>(host.size()); ++i) {
        const int64_t round = i / (kRows * kTopk);
        const int64_t cell = i % (kRows * kTopk);
        const int32_t index = expected[round % 2].indices.data<int32_t>()[cell];
        ASSERT_EQ(host[i], index < 0 ? -1 : numbers[index]) << "round " << round << " cell " << cell;
      }
    }
  }
}

/// Tensors of device 1 while device 0 is current.
TEST_F(CudaCases, B62_AnotherDeviceIsCurrent) {
  int devices = 0;
  KEYSIEVE_ASSERT_CUDA(cudaGetDeviceCount(&devices));
  if (devices < 2) {
    GTEST_SKIP() << "this machine has one GPU";
  }
  KEYSIEVE_ASSERT_CUDA(cudaSetDevice(0));
  for (const Inputs& inputs : operations(program_rnd({9, 64, 5000, 300}, 13))) {
    Runner here("cuda", 0);
    Runner there("cuda", 1);
    const Outputs expected = run_ok(here, inputs);
    expect_same(inputs, run_ok(there, inputs), expected);
    int current = -1;
    KEYSIEVE_ASSERT_CUDA(cudaGetDevice(&current));
    EXPECT_EQ(current, 0);

    Staged mixed = there.stage(inputs);
    const DeviceBuffer wrong(inputs.problem.op == KEYSIEVE_SELECT ? inputs.scores : inputs.q);
    (inputs.problem.op == KEYSIEVE_SELECT ? mixed.tensors.scores : mixed.tensors.q).data = wrong.data();
    EXPECT_EQ(there.launch(mixed), KEYSIEVE_INVALID_ARGUMENT);
    EXPECT_NE(mixed.outputs.message.find(inputs.problem.op == KEYSIEVE_SELECT ? "scores" : "q"), std::string::npos)
        << mixed.outputs.message;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
}

/// Host memory where device memory is expected: an error that names the tensor, and no sticky CUDA error.
TEST_F(CudaCases, B62_HostMemoryIsRefused) {
  for (const Inputs& inputs : operations(program_rnd({3, 64, 500, 30}, 14))) {
    Runner runner("cuda");
    Staged staged = runner.stage(inputs);
    const bool score = inputs.problem.op == KEYSIEVE_SCORE;
    std::vector<float> host(3 * 500 + 64);
    (score ? staged.tensors.scores : staged.tensors.indices).data = host.data();
    EXPECT_EQ(runner.launch(staged), KEYSIEVE_INVALID_ARGUMENT);
    EXPECT_NE(staged.outputs.message.find(score ? "scores" : "indices"), std::string::npos) << staged.outputs.message;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
}

/// A device that does not exist.
TEST_F(CudaCases, DeviceIndexBeyondTheLast) {
  int devices = 0;
  KEYSIEVE_ASSERT_CUDA(cudaGetDeviceCount(&devices));
  keysieve_problem problem = program_rnd({1, 64, 64, 1}, 1).problem;
  problem.struct_size = sizeof(problem);
  problem.op = KEYSIEVE_SELECT;
  problem.device_type = KEYSIEVE_CUDA;
  problem.device_index = devices;
  EXPECT_NE(keysieve_supported(&problem, nullptr), KEYSIEVE_OK);
  EXPECT_NE(std::string(keysieve_last_message()).find(std::to_string(devices)), std::string::npos)
      << keysieve_last_message();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

/// A [32769, 131072] f32 matrix is 17 GB: every score of the sampled rows, and the selection from them.
TEST_F(CudaCases, B38_MatrixBeyondTwoToThe32) {
  constexpr int64_t kRows = 32769;
  constexpr int64_t kKeys = 131072;
  constexpr int64_t kTopk = 512;
  const KeyValue s = [](int64_t n) { return 1.0F + std::ldexp(static_cast<float>(n), -18); };
  const Inputs score = as_score(program_row({kRows, 64, kKeys, kTopk}, s, [](int64_t t) { return t; }));
  Runner runner("cuda");
  if (!takes(runner, score)) {
    GTEST_SKIP() << "no score on this backend";
  }
  const DeviceBuffer matrix(sizeof(float) * kRows * kKeys);
  const DeviceBuffer q(score.q);
  const DeviceBuffer k(score.k);
  const DeviceBuffer k_scale(score.k_scale);
  const DeviceBuffer weights(score.weights);
  const DeviceBuffer indices(size_t{4} * kRows * kTopk);
  if (matrix.data() == nullptr) {
    GTEST_SKIP() << "no 17 GB of device memory";
  }
  keysieve_tensors tensors{};
  tensors.struct_size = sizeof(tensors);
  tensors.q = score.q.view(q.data());
  tensors.k = score.k.view(k.data());
  tensors.k_scale = score.k_scale.view(k_scale.data());
  tensors.weights = score.weights.view(weights.data());
  tensors.scores.data = matrix.data();
  tensors.scores.dtype = KEYSIEVE_F32;
  tensors.scores.rank = 2;
  tensors.scores.shape[0] = kRows;
  tensors.scores.shape[1] = kKeys;
  tensors.scores.stride[0] = kKeys;
  tensors.scores.stride[1] = 1;
  keysieve_options options{};
  options.struct_size = sizeof(options);
  options.backend = "cuda";
  keysieve_problem problem = score.problem;
  problem.struct_size = sizeof(problem);
  problem.device_type = KEYSIEVE_CUDA;
  const auto run = [&] {
    size_t bytes = 0;
    EXPECT_EQ(keysieve_workspace_size(&problem, &options, &bytes, nullptr), KEYSIEVE_OK) << keysieve_last_message();
    const DeviceBuffer workspace(std::max<size_t>(bytes, 1));
    tensors.workspace = workspace.data();
    tensors.workspace_bytes = bytes;
    EXPECT_EQ(keysieve_run(&problem, &options, &tensors, nullptr), KEYSIEVE_OK) << keysieve_last_message();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  };
  run();
  const std::vector<int64_t> rows = {0, 1, 16383, 16384, 32766, 32767, 32768};
  std::vector<float> row(kKeys);
  for (const int64_t t : rows) {
    KEYSIEVE_ASSERT_CUDA(cudaMemcpy(row.data(), static_cast<float*>(matrix.data()) + t * kKeys, sizeof(float) * kKeys,
                                    cudaMemcpyDeviceToHost));
    for (int64_t n = 0; n < kKeys; ++n) {
      ASSERT_EQ(row[n], n % 128 == t % 128 ? s(n) : 0.0F) << "row " << t << " key " << n;
    }
  }
  problem.op = KEYSIEVE_SELECT;
  tensors.indices = Tensor(Dtype::kI32, {kRows, kTopk}).view(indices.data());
  if (keysieve_supported(&problem, &options) != KEYSIEVE_OK) {
    return;
  }
  run();
  Tensor picked(Dtype::kI32, {kRows, kTopk});
  KEYSIEVE_ASSERT_CUDA(cudaMemcpy(picked.mutable_image(), indices.data(), indices.bytes(), cudaMemcpyDeviceToHost));
  for (const int64_t t : rows) {
    expect_row(picked, t, keys_where(kKeys / 2, kKeys, [&](int64_t n) { return n % 128 == t % 128; }));
  }
}

}  // namespace
}  // namespace keysieve::test
