// SPDX-License-Identifier: Apache-2.0
// fused_sm90 as a kernel family of the backend: what it takes and which configuration runs.
#include <cstdio>
#include <cstring>
#include <tuple>

#include "cuda/fused_sm90/launch.cuh"
#include "cuda/kernels.hpp"

namespace keysieve::cuda {
namespace {

template <class Operands>
using ConfigsOf = std::tuple<FusedKernelConfig<32, 64, Operands>, FusedKernelConfig<64, 64, Operands>,
                             FusedKernelConfig<128, 64, Operands>, FusedKernelConfig<32, 128, Operands>,
                             FusedKernelConfig<64, 128, Operands>, FusedKernelConfig<128, 128, Operands>>;
using E4m3Configs = ConfigsOf<ptx::E4m3Operands>;
using Bf16Configs = ConfigsOf<ptx::Bf16Operands>;

template <class Config>
constexpr bool matches(int64_t heads, int64_t head_dim) {
  return Config::Tile::kHeads == heads && Config::Tile::kHeadDim == head_dim;
}

template <class... Configs>
bool is_built(const Problem& problem, std::tuple<Configs...>*) {
  return (matches<Configs>(problem.num_heads, problem.head_dim) || ...);
}

Status supports(const Problem& problem, const Options& options) noexcept {
  const bool asked_for = options.config != nullptr;
  if (asked_for && std::strcmp(options.config, kFusedName) != 0 && std::strcmp(options.config, kFusedLongName) != 0) {
    return Status::error(KEYSIEVE_UNSUPPORTED, "options.config is \"%s\"; this kernel has \"%s\" and \"%s\"",
                         options.config, kFusedName, kFusedLongName);
  }
  const auto refuse = [](const char* argument) {
    return Status::error(
        KEYSIEVE_UNSUPPORTED,
        "%s: fused_sm90 takes e4m3 or bf16 keys with queries of the same type, H 32, 64 or 128, D 64 or 128, "
        "topk up to %d, order ascending or any, no candidate blocks",
        argument, FusedShape::kMaxPicks);
  };
  if (problem.q_dtype != problem.k_dtype || (problem.k_dtype != Dtype::kE4m3 && problem.k_dtype != Dtype::kBf16)) {
    return refuse("q_dtype, k_dtype");
  }
  if (!is_built(problem, static_cast<E4m3Configs*>(nullptr))) {
    return refuse("num_heads, head_dim");
  }
  if (problem.topk > FusedShape::kMaxPicks) {
    return refuse("topk");
  }
  if (problem.order == Order::kScore) {
    return refuse("order");
  }
  if (problem.candidates != Candidates::kNone) {
    return refuse("candidates");
  }
  if (!asked_for) {  // slower than score_then_select so far: docs/fused_sm90.md
    return refuse("options.config");
  }
  return check_request_tiles<device::TileShape<64, 128>>(problem);
}

WorkspaceSize workspace(const Problem& problem, const Options& options, const DeviceInfo& device) noexcept {
  const FusedConfig config = choose_fused_config(problem, options, device);
  return {static_cast<size_t>(config.scratch.bytes(1)), static_cast<size_t>(config.scratch.bytes(config.num_ctas))};
}

void explain(const Problem& problem, const Options& options, const DeviceInfo& device, char* text,
             size_t capacity) noexcept {
  const FusedConfig config = choose_fused_config(problem, options, device);
  std::snprintf(text, capacity, "%s: %s H=%d D=%d, tile of %d keys x %d queries, rows of up to %d keys dense, %d CTAs",
                kFusedName, problem.k_dtype == Dtype::kBf16 ? "bf16" : "e4m3", config.heads, config.head_dim,
                FusedShape::kTileKeys, config.scratch.queries, config.dense_tiles * FusedShape::kTileKeys,
                config.num_ctas);
}

template <class... Configs>
Status launch_matching(const Call& call, const FusedConfig& config, std::tuple<Configs...>*) noexcept {
  Status status = Status::error(KEYSIEVE_INTERNAL, "no kernel for a supported problem");
  ((matches<Configs>(config.heads, config.head_dim) && (status = launch_fused<Configs>(call, config), true)) || ...);
  return status;
}

Status launch(const Call& call, const DeviceInfo& device) noexcept {
  if (call.problem.num_rows == 0) {
    return {};
  }
  const FusedConfig config = choose_fused_config(call.problem, call.options, device);
  return call.problem.k_dtype == Dtype::kBf16 ? launch_matching(call, config, static_cast<Bf16Configs*>(nullptr))
                                              : launch_matching(call, config, static_cast<E4m3Configs*>(nullptr));
}

}  // namespace

const KernelFamily kFusedSm90 = {supports, workspace, explain, launch};

}  // namespace keysieve::cuda
