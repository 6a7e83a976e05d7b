// SPDX-License-Identifier: Apache-2.0
// score_sm90 as a kernel family of the backend: what it takes and which configuration runs.
#include <cstdio>
#include <cstring>
#include <tuple>

#include "cuda/kernels.hpp"
#include "cuda/score_sm90/launch.cuh"

namespace keysieve::cuda {
namespace {

template <class Operands>
using TilesOf = std::tuple<device::TileShape<8, 64, Operands>, device::TileShape<16, 64, Operands>,
                           device::TileShape<32, 64, Operands>, device::TileShape<64, 64, Operands>,
                           device::TileShape<128, 64, Operands>, device::TileShape<8, 128, Operands>,
                           device::TileShape<16, 128, Operands>, device::TileShape<32, 128, Operands>,
                           device::TileShape<64, 128, Operands>, device::TileShape<128, 128, Operands>>;
using E4m3Tiles = TilesOf<ptx::E4m3Operands>;
using Bf16Tiles = TilesOf<ptx::Bf16Operands>;

template <class Tile>
constexpr bool matches(int64_t heads, int64_t head_dim) {
  return Tile::kHeads == heads && Tile::kHeadDim == head_dim;
}

template <class... Tiles>
bool is_built(const Problem& problem, std::tuple<Tiles...>*) {
  return (matches<Tiles>(problem.num_heads, problem.head_dim) || ...);
}

constexpr const char* kName = "score_sm90";

Status supports(const Problem& problem, const Options& options) noexcept {
  if (options.config != nullptr && std::strcmp(options.config, kName) != 0) {
    return Status::error(KEYSIEVE_UNSUPPORTED, "options.config is \"%s\"; score on CUDA has \"%s\"", options.config,
                         kName);
  }
  constexpr const char* kTakes = "score on CUDA takes e4m3 keys with e4m3 queries, H 8, 16, 32, 64 or 128, D 64 or 128";
  if (problem.q_dtype != Dtype::kE4m3 || problem.k_dtype != Dtype::kE4m3) {
    return Status::error(KEYSIEVE_UNSUPPORTED, "q_dtype, k_dtype: %s", kTakes);
  }
  if (!is_built(problem, static_cast<E4m3Tiles*>(nullptr))) {
    return Status::error(KEYSIEVE_UNSUPPORTED, "num_heads is %lld and head_dim is %lld; %s",
                         static_cast<long long>(problem.num_heads), static_cast<long long>(problem.head_dim), kTakes);
  }
  return check_request_tiles<device::TileShape<64, 128>>(problem);
}

WorkspaceSize workspace(const Problem&, const Options&, const DeviceInfo&) noexcept {
  return {};
}

void explain(const Problem& problem, const Options& options, const DeviceInfo& device, char* text,
             size_t capacity) noexcept {
  const ScoreConfig config = choose_score_config(problem, options, device);
  std::snprintf(text, capacity, "%s: %s H=%d D=%d, %s scores, tile of %d keys x %d queries, %d CTAs", kName,
                problem.k_dtype == Dtype::kBf16 ? "bf16" : "e4m3", config.heads, config.head_dim,
                config.bf16_scores ? "bf16" : "f32", kScoreTileKeys, config.queries_per_block, config.num_ctas);
}

template <class Tile>
Status launch_tile(const Call& call, const ScoreConfig& config) noexcept {
  if (config.bf16_scores) {
    return launch_score<ScoreKernelConfig<Tile::kHeads, Tile::kHeadDim, __nv_bfloat16, typename Tile::Operands>>(
        call, config);
  }
  return launch_score<ScoreKernelConfig<Tile::kHeads, Tile::kHeadDim, float, typename Tile::Operands>>(call, config);
}

template <class... Tiles>
Status launch_matching(const Call& call, const ScoreConfig& config, std::tuple<Tiles...>*) noexcept {
  Status status = Status::error(KEYSIEVE_INTERNAL, "no kernel for a supported problem");
  ((matches<Tiles>(config.heads, config.head_dim) && (status = launch_tile<Tiles>(call, config), true)) || ...);
  return status;
}

Status launch(const Call& call, const DeviceInfo& device) noexcept {
  const Problem& problem = call.problem;
  if (problem.num_rows == 0 || problem.score_width == 0) {
    return {};
  }
  const ScoreConfig config = choose_score_config(problem, call.options, device);
  return problem.k_dtype == Dtype::kBf16 ? launch_matching(call, config, static_cast<Bf16Tiles*>(nullptr))
                                         : launch_matching(call, config, static_cast<E4m3Tiles*>(nullptr));
}

}  // namespace

const KernelFamily kScoreSm90 = {supports, workspace, explain, launch};

}  // namespace keysieve::cuda
