// SPDX-License-Identifier: Apache-2.0
// Where the time of score_sm90 goes: the kernel, the kernel without its stores, and its products alone, in one run.
// Built on demand only:  ninja score_attribution;  score_attribution [--json FILE COMMIT DATE] [keys ...]
// Prints useful TFLOP/s (2 * H * D for each key in a row's range; causal suffix rows) as medians of graph replays, and
// writes them as JSON of the schema keysieve-bench/1.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_fp8.h>
#include <random>
#include <string>
#include <vector>

#include "core/fp8.hpp"
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

/// One entry of the result file.
std::string entry_json(const Variant& variant, const Case& c, bool checked) {
  const std::vector<float>& times = variant.milliseconds;  // sorted
  double mean = 0;
  double square = 0;
  for (const float time : times) {
    mean += time / static_cast<double>(times.size());
    square += static_cast<double>(time) * time / static_cast<double>(times.size());
  }
  const double median = times[times.size() / 2];
  const keysieve::Problem& p = c.call.problem;
  char text[1024];
  std::snprintf(
      text, sizeof(text),
      "    {\"op\": \"score\", \"who\": \"%s\", \"variant\": \"score_sm90\", \"mode\": \"graph\",\n"
      "     \"case\": {\"T\": %lld, \"N\": %lld, \"H\": %lld, \"D\": %lld, \"K\": 0, \"dtype\": \"e4m3\", "
      "\"rows\": \"causal\", \"data\": \"normal\", \"B\": null, \"next_n\": null, \"paged\": false, "
      "\"out\": \"f32\", \"layout\": \"full\", \"l2\": \"hot\", \"order\": \"ascending\"},\n"
      "     \"median_ms\": %.5f, \"min_ms\": %.5f, \"p95_ms\": %.5f, \"cv\": %.5f, \"rounds\": %zu, "
      "\"tflops\": %.1f, \"tb_s\": null,\n"
      "     \"checked\": %s, \"flagged_rows\": null, \"ratio_of\": null, \"ratio\": null, \"ratio_ci95\": null}",
      variant.name, static_cast<long long>(p.num_rows), static_cast<long long>(p.num_keys),
      static_cast<long long>(p.num_heads), static_cast<long long>(p.head_dim), median, double{times.front()},
      double{times[times.size() * 95 / 100]}, std::sqrt(std::max(square - mean * mean, 0.0)) / mean, times.size(),
      c.flops / median / 1e9, checked ? "true" : "false");
  return text;
}

void write_json(const char* path, const char* commit, const char* date, const std::vector<std::string>& entries) {
  cudaDeviceProp properties = {};
  int driver = 0;
  require(cudaGetDeviceProperties(&properties, 0));
  require(cudaDriverGetVersion(&driver));
  std::FILE* file = std::fopen(path, "w");
  require(file != nullptr, "cannot write the result file");
  std::fprintf(file,
               "{\n  \"schema\": \"keysieve-bench/1\", \"suite\": \"score_attribution\", \"commit\": \"%s\", "
               "\"dirty\": false, \"date\": \"%s\",\n  \"command\": \"score_attribution\",\n"
               "  \"machine\": {\"gpu\": \"%s\", \"sms\": %d, \"driver\": \"CUDA %d.%d\", \"toolkit\": \"%d.%d\", "
               "\"cpu\": null, \"threads\": null},\n"
               "  \"ceilings\": {\"fp8_gemm_tflops\": null, \"bf16_gemm_tflops\": null, \"copy_tb_s\": null, "
               "\"cpu_dot_gflops\": null},\n"
               "  \"clocks\": {\"sm_mhz_median\": null, \"power_w_median\": null},\n  \"entries\": [\n",
               commit, date, properties.name, properties.multiProcessorCount, driver / 1000, driver % 1000 / 10,
               CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  for (size_t i = 0; i < entries.size(); ++i) {
    std::fprintf(file, "%s%s\n", entries[i].c_str(), i + 1 < entries.size() ? "," : "");
  }
  std::fprintf(file, "  ]\n}\n");
  std::fclose(file);
}

/// Compares sampled scores with float64.
template <int kHeads, int kHeadDim>
bool scores_are_right(const Case& c) {
  const Call& call = c.call;
  const int64_t rows = call.problem.num_rows;
  const int64_t keys = call.problem.num_keys;
  std::mt19937_64 generator(5);
  std::vector<uint8_t> q(kHeads * kHeadDim);
  std::vector<uint8_t> k(kHeadDim);
  std::vector<float> weights(kHeads);
  for (int sample = 0; sample < 64; ++sample) {
    const auto t = static_cast<int64_t>(generator() % static_cast<uint64_t>(rows));
    const auto n = static_cast<int64_t>(generator() % static_cast<uint64_t>(keys));
    float scale = 0;
    float got = 0;
    const auto* g_scores = static_cast<const float*>(call.scores);
    require(
        cudaMemcpy(q.data(), static_cast<const uint8_t*>(call.q) + t * kHeads * kHeadDim, q.size(), cudaMemcpyDefault));
    require(cudaMemcpy(k.data(), static_cast<const uint8_t*>(call.k) + n * kHeadDim, k.size(), cudaMemcpyDefault));
    require(cudaMemcpy(weights.data(), call.weights.data + t * kHeads, kHeads * sizeof(float), cudaMemcpyDefault));
    require(cudaMemcpy(&scale, static_cast<const float*>(call.k_scale) + n, sizeof(float), cudaMemcpyDefault));
    require(cudaMemcpy(&got, g_scores + t * keys + n, sizeof(float), cudaMemcpyDefault));
    double score = 0;
    double magnitude = 0;
    for (int h = 0; h < kHeads; ++h) {
      double dot = 0;
      double absolute = 0;
      for (int d = 0; d < kHeadDim; ++d) {
        const double product = double{keysieve::e4m3_to_float(q[static_cast<size_t>(h * kHeadDim + d)])} *
                               double{keysieve::e4m3_to_float(k[static_cast<size_t>(d)])};
        dot += product;
        absolute += std::abs(product);
      }
      score += weights[static_cast<size_t>(h)] * std::max(dot, 0.0);
      magnitude += std::abs(double{weights[static_cast<size_t>(h)]}) * absolute;
    }
    const bool valid = n < keys - rows + t + 1;
    const bool right =
        valid ? std::abs(got - score * scale) <= magnitude * std::abs(scale) / 1024 : std::isinf(got) && got < 0;
    if (!right) {
      return false;
    }
  }
  return true;
}

template <class Config>
void measure(int64_t rows, int64_t keys, std::vector<std::string>* entries) {
  constexpr int kHeads = Config::Tile::kHeads;
  Case c = make_case<kHeads, Config::Tile::kHeadDim>(rows, keys);
  const ScoreConfig config = choose_score_config(c.call.problem, c.call.options, DeviceInfo{});
  std::vector<Variant> variants = {{"keysieve", launch_score<Config, ScoreBuild::kComplete>},
                                   {"no-store", launch_score<Config, ScoreBuild::kNoStore>},
                                   {"math-only", launch_score<Config, ScoreBuild::kMathOnly>}};
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
  require(variants[0].launch(c.call, config));
  require(cudaStreamSynchronize(stream));
  const bool right = scores_are_right<kHeads, Config::Tile::kHeadDim>(c);
  require(right, "wrong scores");
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
    entries->push_back(entry_json(variant, c, &variant == &variants[0] && right));
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
  constexpr int64_t kRows = 4096;
  int next = 1;
  const bool writes_json = argc > 4 && std::strcmp(argv[1], "--json") == 0;
  if (writes_json) {
    next = 5;
  }
  std::vector<int64_t> sizes;
  for (; next < argc; ++next) {
    sizes.push_back(std::atoll(argv[next]));
  }
  if (sizes.empty()) {
    sizes = {8192, 16384, 32768, 65536, 131072, 163840};
  }
  std::vector<std::string> entries;
  for (const int64_t keys : sizes) {
    measure<ScoreKernelConfig<64, 128, float>>(kRows, keys, &entries);
  }
  measure<ScoreKernelConfig<32, 128, float>>(kRows, 65536, &entries);
  if (writes_json) {
    write_json(argv[2], argv[3], argv[4], entries);
  }
  return 0;
}
