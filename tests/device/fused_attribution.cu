// SPDX-License-Identifier: Apache-2.0
// Where the time of fused_sm90 goes, in one run: the kernel; score and select as two launches (own_pair); and the
// kernel with work left out: no-select (windows written, nothing selected), score-only (scores computed and forgotten),
// math-only (products alone).  Checks first that the kernel and the pair write the same bits.
// Built on demand only:
//   ninja fused_attribution
//   fused_attribution [--json FILE COMMIT DATE] [--data NAME ..] [--rows T] [--topk K] [--heads 64|32] [keys ...]
#include "cuda/fused_sm90/launch.cuh"
#include "cuda/kernels.hpp"
#include "device/attribution.cuh"

namespace {

using namespace keysieve::cuda;
using namespace keysieve::attribution;
using keysieve::Call;
using keysieve::Status;

struct Arguments {
  int64_t rows = 4096;
  int64_t topk = 2048;
  int64_t heads = 64;
  int rounds = 17;
  bool controls = true;
  std::vector<std::string> data;
  std::vector<int64_t> keys;
};

/// Key scales that give the scores a shape; the keys themselves stay random unless `data` says "equal".
void shape_scores(const std::string& data, int64_t heads, Case* c) {
  const int64_t keys = c->call.problem.num_keys;
  const int64_t rows = c->call.problem.num_rows;
  std::mt19937 generator(7);
  std::vector<float> scales(static_cast<size_t>(keys), 1.0F / 150.0F);
  std::vector<float> weights(static_cast<size_t>(rows * heads), 0.011F);
  bool same_keys = true;
  for (int64_t n = 0; n < keys; ++n) {
    float& scale = scales[static_cast<size_t>(n)];
    const float place = static_cast<float>(n) / static_cast<float>(keys);
    if (data == "ascending") {
      scale *= 0.5F + place;
    } else if (data == "descending") {
      scale *= 1.5F - place;
    } else if (data == "zero") {
      scale = generator() % 16 == 0 ? scale : 0.0F;
    } else if (data == "low-contrast") {
      scale *= 1.0F + 1.2e-7F * static_cast<float>(generator() % 64);
    } else if (data == "outlier") {
      scale *= n == keys / 2 ? 1e6F : 1.0F + 0.1F * static_cast<float>(generator() % 1024) / 1024.0F;
    } else if (data == "ties") {
      scale *= 1.0F + static_cast<float>(n % 4);
    } else if (data != "equal") {
      same_keys = false;
    }
  }
  require(same_keys, "--data is normal, equal, ascending, descending, zero, low-contrast, outlier or ties");
  std::vector<uint8_t> key(static_cast<size_t>(c->call.problem.head_dim));
  for (uint8_t& byte : key) {
    byte = __nv_fp8_e4m3(static_cast<float>(generator() % 64) - 20.0F).__x;
  }
  std::vector<uint8_t> all(static_cast<size_t>(keys) * key.size());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = key[i % key.size()];
  }
  const auto copy = [](const void* target, const auto& values) {
    require(cudaMemcpy(const_cast<void*>(target), values.data(), values.size() * sizeof(values[0]),
                       cudaMemcpyHostToDevice));
  };
  copy(c->call.k, all);
  copy(c->call.k_scale, scales);
  copy(c->call.weights.data, weights);
}

template <class Config>
void measure(const Arguments& arguments, const std::string& data, int64_t keys, std::vector<std::string>* entries) {
  Case c = make_case<Config::Tile::kHeads, Config::Tile::kHeadDim>(arguments.rows, keys);
  Call& call = c.call;
  require(cudaFree(const_cast<void*>(static_cast<const void*>(call.scores))));
  call.scores = nullptr;
  call.problem.op = keysieve::Op::kScoreSelect;
  call.problem.topk = arguments.topk;
  c.data = data;
  if (data != "normal") {
    shape_scores(data, Config::Tile::kHeads, &c);
  }
  const DeviceInfo device;
  const FusedConfig config = choose_fused_config(call.problem, call.options, device);
  call.workspace_bytes =
      std::max<size_t>(kScoreThenSelect.workspace(call.problem, call.options, device).preferred_bytes,
                       static_cast<size_t>(config.scratch.bytes(config.num_ctas)));
  require(cudaMalloc(&call.workspace, call.workspace_bytes));
  const auto entries_of_output = static_cast<size_t>(arguments.rows * arguments.topk);
  int32_t* g_indices[2] = {};
  for (int32_t*& g_output : g_indices) {
    require(cudaMalloc(&g_output, entries_of_output * sizeof(int32_t)));
    require(cudaMemset(g_output, 0x55, entries_of_output * sizeof(int32_t)));
  }
  require(cudaMalloc(&call.stats, KEYSIEVE_NUM_STATS * sizeof(uint64_t)));
  require(cudaMemset(call.stats, 0, KEYSIEVE_NUM_STATS * sizeof(uint64_t)));
  call.stats_stride = 1;
  call.indices.stride.group = arguments.topk;
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream));
  call.stream = stream;

  const auto with = [&](auto launch) { return [=](const Call& one) { return launch(one, config); }; };
  const auto pair = [&](const Call& one) { return kScoreThenSelect.launch(one, device); };
  call.indices.data = g_indices[0];
  require(kScoreThenSelect.launch(call, device));
  require(cudaStreamSynchronize(stream));
  require(cudaMemset(call.stats, 0, KEYSIEVE_NUM_STATS * sizeof(uint64_t)));
  call.indices.data = g_indices[1];
  require(launch_fused<Config>(call, config));
  require(cudaStreamSynchronize(stream));
  std::vector<int32_t> expected(entries_of_output);
  std::vector<int32_t> got(entries_of_output);
  uint64_t stats[KEYSIEVE_NUM_STATS];
  require(cudaMemcpy(expected.data(), g_indices[0], entries_of_output * sizeof(int32_t), cudaMemcpyDefault));
  require(cudaMemcpy(got.data(), g_indices[1], entries_of_output * sizeof(int32_t), cudaMemcpyDefault));
  require(cudaMemcpy(stats, call.stats, sizeof(stats), cudaMemcpyDefault));
  int64_t wrong_rows = 0;
  for (int64_t t = 0; t < arguments.rows; ++t) {
    const auto first = static_cast<size_t>(t * arguments.topk);
    wrong_rows +=
        std::equal(expected.begin() + static_cast<std::ptrdiff_t>(first),
                   expected.begin() + static_cast<std::ptrdiff_t>(first + static_cast<size_t>(arguments.topk)),
                   got.begin() + static_cast<std::ptrdiff_t>(first))
            ? 0
            : 1;
  }
  std::printf("%s: %lld wrong rows, %llu repaired, %llu candidates, %llu cuts\n", data.c_str(),
              static_cast<long long>(wrong_rows), static_cast<unsigned long long>(stats[0]),
              static_cast<unsigned long long>(stats[1]), static_cast<unsigned long long>(stats[2]));
  require(wrong_rows == 0, "the kernel and the pair differ");

  std::vector<Variant> variants = {{"keysieve", with(launch_fused<Config>), kFusedName},
                                   {"own_pair", pair, "score_then_select"}};
  if (arguments.controls) {
    variants.push_back({"no-select", with(launch_fused<Config, FusedBuild::kNoSelect>), kFusedName});
    variants.push_back({"score-only", with(launch_fused<Config, FusedBuild::kNoStore>), kFusedName});
    variants.push_back({"math-only", with(launch_fused<Config, FusedBuild::kMathOnly>), kFusedName});
  }
  measure_variants(call, &variants, arguments.rounds);
  report(c, "score_select", variants, entries);
  require(cudaStreamDestroy(stream));
  for (int32_t* g_output : g_indices) {
    require(cudaFree(g_output));
  }
  require(cudaFree(call.workspace));
  require(cudaFree(call.stats));
  free_case(c);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  const char* json[3] = {};
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&] {
      require(i + 1 < argc, "an option lacks its value");
      return argv[++i];
    };
    if (option == "--json") {
      for (const char*& word : json) {
        word = value();
      }
    } else if (option == "--data") {
      arguments.data.emplace_back(value());
    } else if (option == "--rows") {
      arguments.rows = std::atoll(value());
    } else if (option == "--topk") {
      arguments.topk = std::atoll(value());
    } else if (option == "--heads") {
      arguments.heads = std::atoll(value());
    } else if (option == "--rounds") {
      arguments.rounds = std::atoi(value());
    } else if (option == "--no-controls") {
      arguments.controls = false;
    } else {
      arguments.keys.push_back(std::atoll(option.c_str()));
    }
  }
  if (arguments.keys.empty()) {
    arguments.keys = {8192, 16384, 32768, 65536, 131072, 163840};
  }
  if (arguments.data.empty()) {
    arguments.data = {"normal"};
  }
  require(arguments.heads == 64 || arguments.heads == 32, "--heads is 64 or 32");
  std::vector<std::string> entries;
  for (const std::string& data : arguments.data) {
    for (const int64_t keys : arguments.keys) {
      if (arguments.heads == 64) {
        measure<FusedKernelConfig<64, 128>>(arguments, data, keys, &entries);
      } else {
        measure<FusedKernelConfig<32, 128>>(arguments, data, keys, &entries);
      }
    }
  }
  if (json[0] != nullptr) {
    write_json(json[0], "fused_attribution", json[1], json[2], entries);
  }
  return 0;
}
