// SPDX-License-Identifier: Apache-2.0
// Where the time of score_sm90 goes: the kernel, the kernel without its stores, and its products alone, in one run.
// Built on demand only:  ninja score_attribution;  score_attribution [--json FILE COMMIT DATE] [keys ...]
// Prints useful TFLOP/s (2 * H * D for each key in a row's range; causal suffix rows) as medians of graph replays, and
// writes them as JSON of the schema keysieve-bench/1.
#include "core/fp8.hpp"
#include "cuda/score_sm90/launch.cuh"
#include "device/attribution.cuh"

namespace {

using namespace keysieve::cuda;
using namespace keysieve::attribution;
using keysieve::Call;

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
  constexpr const char* kKernel = "score_sm90";
  const auto with = [&](auto launch) { return [=](const Call& call) { return launch(call, config); }; };
  std::vector<Variant> variants = {{"keysieve", with(launch_score<Config, ScoreBuild::kComplete>), kKernel},
                                   {"no-store", with(launch_score<Config, ScoreBuild::kNoStore>), kKernel},
                                   {"math-only", with(launch_score<Config, ScoreBuild::kMathOnly>), kKernel}};
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream));
  c.call.stream = stream;
  require(variants[0].launch(c.call));
  require(cudaStreamSynchronize(stream));
  require(scores_are_right<kHeads, Config::Tile::kHeadDim>(c), "wrong scores");
  measure_variants(c.call, &variants, 17);
  report(c, "score", variants, entries);
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
    write_json(argv[2], "score_attribution", argv[3], argv[4], entries);
  }
  return 0;
}
