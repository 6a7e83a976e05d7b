// SPDX-License-Identifier: Apache-2.0
// What the attribution programs share: cases on the device, graph replays in rotated order, result files.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "core/status.hpp"

namespace keysieve::attribution {

inline void require(bool ok, const char* what) {
  if (!ok) {
    std::fprintf(stderr, "attribution: %s\n", what);
    std::exit(1);
  }
}
inline void require(cudaError_t error) {
  require(error == cudaSuccess, cudaGetErrorString(error));
}
inline void require(const Status& status) {
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
inline std::vector<uint8_t> random_e4m3(size_t count, float scale, std::mt19937& generator) {
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
  std::string data = "normal";
};

template <int kHeads, int kHeadDim>
Case make_case(int64_t rows, int64_t keys) {
  std::mt19937 generator(1);
  Case result;
  Call& call = result.call;
  call.problem.op = Op::kScore;
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

inline void free_case(const Case& c) {
  for (const void* pointer : {c.call.q, c.call.k, c.call.k_scale, static_cast<const void*>(c.call.weights.data),
                              static_cast<const void*>(c.call.row_end.data), static_cast<const void*>(c.call.scores)}) {
    require(cudaFree(const_cast<void*>(pointer)));
  }
}

using Launch = std::function<Status(const Call&)>;

struct Variant {
  const char* name;
  Launch launch;
  const char* kernel = "";  // "variant" of the result file
  cudaGraphExec_t graph = nullptr;
  std::vector<float> milliseconds;
};

/// One entry of the result file.
inline std::string entry_json(const Variant& variant, const Case& c, const char* op, bool checked) {
  const std::vector<float>& times = variant.milliseconds;  // sorted
  double mean = 0;
  double square = 0;
  for (const float time : times) {
    mean += time / static_cast<double>(times.size());
    square += static_cast<double>(time) * time / static_cast<double>(times.size());
  }
  const double median = times[times.size() / 2];
  const Problem& p = c.call.problem;
  char text[1024];
  std::snprintf(
      text, sizeof(text),
      "    {\"op\": \"%s\", \"who\": \"%s\", \"variant\": \"%s\", \"mode\": \"graph\",\n"
      "     \"case\": {\"T\": %lld, \"N\": %lld, \"H\": %lld, \"D\": %lld, \"K\": %lld, \"dtype\": \"e4m3\", "
      "\"rows\": \"causal\", \"data\": \"%s\", \"B\": null, \"next_n\": null, \"paged\": false, "
      "\"out\": \"f32\", \"layout\": \"full\", \"l2\": \"hot\", \"order\": \"ascending\"},\n"
      "     \"median_ms\": %.5f, \"min_ms\": %.5f, \"p95_ms\": %.5f, \"cv\": %.5f, \"rounds\": %zu, "
      "\"tflops\": %.1f, \"tb_s\": null,\n"
      "     \"checked\": %s, \"flagged_rows\": null, \"ratio_of\": null, \"ratio\": null, \"ratio_ci95\": null}",
      op, variant.name, variant.kernel, static_cast<long long>(p.num_rows), static_cast<long long>(p.num_keys),
      static_cast<long long>(p.num_heads), static_cast<long long>(p.head_dim), static_cast<long long>(p.topk),
      c.data.c_str(), median, double{times.front()}, double{times[times.size() * 95 / 100]},
      std::sqrt(std::max(square - mean * mean, 0.0)) / mean, times.size(), c.flops / median / 1e9,
      checked ? "true" : "false");
  return text;
}

inline void write_json(const char* path, const char* suite, const char* commit, const char* date,
                       const std::vector<std::string>& entries) {
  cudaDeviceProp properties = {};
  int driver = 0;
  require(cudaGetDeviceProperties(&properties, 0));
  require(cudaDriverGetVersion(&driver));
  std::FILE* file = std::fopen(path, "w");
  require(file != nullptr, "cannot write the result file");
  std::fprintf(file,
               "{\n  \"schema\": \"keysieve-bench/1\", \"suite\": \"%s\", \"commit\": \"%s\", "
               "\"dirty\": false, \"date\": \"%s\",\n  \"command\": \"%s\",\n"
               "  \"machine\": {\"gpu\": \"%s\", \"sms\": %d, \"driver\": \"CUDA %d.%d\", \"toolkit\": \"%d.%d\", "
               "\"cpu\": null, \"threads\": null},\n"
               "  \"ceilings\": {\"fp8_gemm_tflops\": null, \"bf16_gemm_tflops\": null, \"copy_tb_s\": null, "
               "\"cpu_dot_gflops\": null},\n"
               "  \"clocks\": {\"sm_mhz_median\": null, \"power_w_median\": null},\n  \"entries\": [\n",
               suite, commit, date, suite, properties.name, properties.multiProcessorCount, driver / 1000,
               driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  for (size_t i = 0; i < entries.size(); ++i) {
    std::fprintf(file, "%s%s\n", entries[i].c_str(), i + 1 < entries.size() ? "," : "");
  }
  std::fprintf(file, "  ]\n}\n");
  std::fclose(file);
}

/// Medians of graph replays, in rotated order; fills every variant's times, sorted.
inline void measure_variants(const Call& call, std::vector<Variant>* variants, int rounds) {
  const auto stream = static_cast<cudaStream_t>(call.stream);
  for (Variant& variant : *variants) {
    require(variant.launch(call));  // loads the module before the capture
    cudaGraph_t graph = nullptr;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    require(variant.launch(call));
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&variant.graph, graph, 0));
    require(cudaGraphDestroy(graph));
  }
  cudaEvent_t before = nullptr;
  cudaEvent_t after = nullptr;
  require(cudaEventCreate(&before));
  require(cudaEventCreate(&after));
  for (int round = 0; round < rounds + 2; ++round) {
    for (size_t i = 0; i < variants->size(); ++i) {
      Variant& variant = (*variants)[(i + static_cast<size_t>(round)) % variants->size()];
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
  for (Variant& variant : *variants) {
    std::sort(variant.milliseconds.begin(), variant.milliseconds.end());
    require(cudaGraphExecDestroy(variant.graph));
  }
  require(cudaEventDestroy(before));
  require(cudaEventDestroy(after));
}

/// Prints a case's line and appends its entries; the first variant's results were checked.
inline void report(const Case& c, const char* op, const std::vector<Variant>& variants,
                   std::vector<std::string>* entries) {
  const Problem& p = c.call.problem;
  std::printf("%s H=%lld D=%lld K=%lld rows %lld keys %lld:", c.data.c_str(), static_cast<long long>(p.num_heads),
              static_cast<long long>(p.head_dim), static_cast<long long>(p.topk), static_cast<long long>(p.num_rows),
              static_cast<long long>(p.num_keys));
  for (const Variant& variant : variants) {
    const float median = variant.milliseconds[variant.milliseconds.size() / 2];
    std::printf("  %s %.4f ms (min %.4f) %.0f", variant.name, median, variant.milliseconds[0], c.flops / median / 1e9);
    entries->push_back(entry_json(variant, c, op, &variant == &variants[0]));
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace keysieve::attribution
