// SPDX-License-Identifier: Apache-2.0
// Where the time of score_sm90 goes: the kernel, the kernel without its stores, and its products alone, in one run.
// Built on demand only:  ninja score_attribution;  score_attribution [rows] [keys ...]
// Prints useful TFLOP/s (2 * H * D for each key in a row's range; causal suffix rows) as medians of graph replays.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_fp8.h>
#include <random>
#include <vector>

#include "cuda/score_sm90/launch.cuh"

namespace {

using keysieve::Call;
using keysieve::Status;
using namespace keysieve::cuda;

void require(bool ok, const char* what) {
  if (!ok) {
    std::fprintf(stderr, "score_attribution: %s\n", what);
    std::exit(1);
  }
}
void require(cudaError_t error) {
  require(error == cudaSuccess, cudaGetErrorString(error));
}
void require(const Status& status) {
  require(status.ok(), status.message());
}

template <typename T>
T* upload(const std::vector<T>& values) {
  T* g_values = nullptr;
  require(cudaMalloc(&g_values, values.size() * sizeof(T)));
  require(cudaMemcpy(g_values, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return g_values;
}

/// Random e4m3 bytes without NaN, roughly normal.
std::vector<uint8_t> random_e4m3(size_t count, float scale, std::mt19937& generator) {
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<uint8_t> pool(size_t{1} << 20U);
  for (uint8_t& byte : pool) {
    byte = __nv_fp8_e4m3(normal(generator)).__x;
  }
  std::vector<uint8_t> values(count);
  for (size_t i = 0; i < count; i += 4096) {
    const size_t from = generator() % (pool.size() - 4096);
    std::copy_n(pool.data() + from, std::min<size_t>(4096, count - i), values.data() + i);
  }
  return values;
}

struct Case {
  Call call;
  double flops = 0;
};

template <int kHeads, int kHeadDim>
Case make_case(int64_t rows, int64_t keys) {
  std::mt19937 generator(1);
  Case result;
  Call& call = result.call;
  call.problem.op = keysieve::Op::kScore;
  call.problem.num_rows = rows;
  call.problem.num_heads = kHeads;
  call.problem.head_dim = kHeadDim;
  call.problem.num_keys = keys;
  call.problem.score_width = keys;
  call.q = upload(random_e4m3(static_cast<size_t>(rows * kHeads * kHeadDim), 1.0F, generator));
  call.q_row.group = kHeads * kHeadDim;
  call.q_head_stride = kHeadDim;
  call.k = upload(random_e4m3(static_cast<size_t>(keys * kHeadDim), 150.0F, generator));
  call.k_stride = kHeadDim;
  std::normal_distribution<float> normal;
  std::vector<float> scales(static_cast<size_t>(keys));
  for (float& scale : scales) {
    scale = 1.0F / 150.0F * (1.0F + 0.1F * normal(generator));
  }
  call.k_scale = upload(scales);
  call.k_scale_stride = 1;
  std::vector<float> weights(static_cast<size_t>(rows * kHeads));
  for (float& weight : weights) {
    weight = 0.011F * normal(generator);
  }
  call.weights.data = upload(weights);
  call.weights.stride.group = kHeads;
  std::vector<int32_t> ends(static_cast<size_t>(rows));
  for (int64_t t = 0; t < rows; ++t) {
    ends[static_cast<size_t>(t)] = static_cast<int32_t>(keys - rows + t + 1);
    result.flops += 2.0 * kHeads * kHeadDim * static_cast<double>(keys - rows + t + 1);
  }
  call.row_end.data = upload(ends);
  call.row_end.stride.group = 1;
  float* g_scores = nullptr;
  require(cudaMalloc(&g_scores, static_cast<size_t>(rows * keys) * sizeof(float)));
  call.scores = g_scores;
  call.score_row_stride = keys;
  return result;
}

void free_case(const Case& c) {
  for (const void* pointer : {c.call.q, c.call.k, c.call.k_scale, static_cast<const void*>(c.call.weights.data),
                              static_cast<const void*>(c.call.row_end.data), static_cast<const void*>(c.call.scores)}) {
    require(cudaFree(const_cast<void*>(pointer)));
  }
}

using Launch = Status (*)(const Call&, const ScoreConfig&);

struct Variant {
  const char* name;
  Launch launch;
  cudaGraphExec_t graph = nullptr;
  std::vector<float> milliseconds;
};

template <class Config>
void measure(int64_t rows, int64_t keys) {
  constexpr int kHeads = Config::Tile::kHeads;
  Case c = make_case<kHeads, Config::Tile::kHeadDim>(rows, keys);
  const ScoreConfig config = choose_score_config(c.call.problem, c.call.options, DeviceInfo{});
  std::vector<Variant> variants = {{"complete", launch_score<Config, ScoreBuild::kComplete>},
                                   {"no store", launch_score<Config, ScoreBuild::kNoStore>},
                                   {"math only", launch_score<Config, ScoreBuild::kMathOnly>}};
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream));
  c.call.stream = stream;
  for (Variant& variant : variants) {
    require(variant.launch(c.call, config));  // loads the module before the capture
    cudaGraph_t graph = nullptr;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    require(variant.launch(c.call, config));
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&variant.graph, graph, 0));
    require(cudaGraphDestroy(graph));
  }
  cudaEvent_t before = nullptr;
  cudaEvent_t after = nullptr;
  require(cudaEventCreate(&before));
  require(cudaEventCreate(&after));
  constexpr int kRounds = 17;
  for (int round = 0; round < kRounds + 2; ++round) {
    for (size_t i = 0; i < variants.size(); ++i) {
      Variant& variant = variants[(i + static_cast<size_t>(round)) % variants.size()];
      require(cudaEventRecord(before, stream));
      require(cudaGraphLaunch(variant.graph, stream));
      require(cudaEventRecord(after, stream));
      require(cudaEventSynchronize(after));
      float milliseconds = 0;
      require(cudaEventElapsedTime(&milliseconds, before, after));
      if (round >= 2) {
        variant.milliseconds.push_back(milliseconds);
      }
    }
  }
  std::printf("H=%d D=%d rows %lld keys %lld:", kHeads, Config::Tile::kHeadDim, static_cast<long long>(rows),
              static_cast<long long>(keys));
  for (Variant& variant : variants) {
    std::sort(variant.milliseconds.begin(), variant.milliseconds.end());
    const float median = variant.milliseconds[variant.milliseconds.size() / 2];
    std::printf("  %s %.4f ms (min %.4f) %.0f TFLOP/s", variant.name, median, variant.milliseconds[0],
                c.flops / median / 1e9);
    require(cudaGraphExecDestroy(variant.graph));
  }
  std::printf("\n");
  require(cudaEventDestroy(before));
  require(cudaEventDestroy(after));
  require(cudaStreamDestroy(stream));
  free_case(c);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t rows = argc > 1 ? std::atoll(argv[1]) : 4096;
  std::vector<int64_t> sizes;
  for (int i = 2; i < argc; ++i) {
    sizes.push_back(std::atoll(argv[i]));
  }
  if (sizes.empty()) {
    sizes = {8192, 16384, 32768, 65536, 131072, 163840};
  }
  for (const int64_t keys : sizes) {
    measure<ScoreKernelConfig<64, 128, float>>(rows, keys);
  }
  measure<ScoreKernelConfig<32, 128, float>>(rows, 65536);
  return 0;
}
