// SPDX-License-Identifier: Apache-2.0
// split_sm90 as a kernel family of the backend: what it takes and which configuration runs.
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>
#include <tuple>

#include "cuda/kernels.hpp"
#include "cuda/raii.hpp"
#include "cuda/split_sm90/config.hpp"
#include "cuda/split_sm90/kernel.cuh"
#include "cuda/tile_feed_params.cuh"

namespace keysieve::cuda {
namespace {

template <class Operands>
using ConfigsOf = std::tuple<SplitKernelConfig<8, 64, Operands>, SplitKernelConfig<16, 64, Operands>,
                             SplitKernelConfig<32, 64, Operands>, SplitKernelConfig<64, 64, Operands>,
                             SplitKernelConfig<128, 64, Operands>, SplitKernelConfig<8, 128, Operands>,
                             SplitKernelConfig<16, 128, Operands>, SplitKernelConfig<32, 128, Operands>,
                             SplitKernelConfig<64, 128, Operands>, SplitKernelConfig<128, 128, Operands>>;

Status supports(const Problem& problem, const Options& options) noexcept {
  if (options.config == nullptr || std::strcmp(options.config, kSplitName) != 0) {  // until measured: on request only
    return Status::error(KEYSIEVE_UNSUPPORTED, "options.config: this kernel runs as \"%s\"", kSplitName);
  }
  if (problem.candidates != Candidates::kNone) {
    return Status::error(KEYSIEVE_UNSUPPORTED, "candidates: %s has no candidate blocks", kSplitName);
  }
  if (!SplitScratch::make(problem).fits()) {
    return Status::error(KEYSIEVE_UNSUPPORTED, "num_rows is %lld and num_keys is %lld: %s keeps %lld MiB of scores",
                         static_cast<long long>(problem.num_rows), static_cast<long long>(problem.num_keys), kSplitName,
                         static_cast<long long>(SplitScratch::kMaxBytes >> 20U));
  }
  Options any = options;
  any.config = nullptr;
  return kScoreSm90.supports(problem, any);
}

WorkspaceSize workspace(const Problem& problem, const Options&, const DeviceInfo&) noexcept {
  const auto bytes = static_cast<size_t>(SplitScratch::make(problem).bytes());
  return {bytes, bytes};
}

void explain(const Problem& problem, const Options& options, const DeviceInfo& device, char* text,
             size_t capacity) noexcept {
  std::snprintf(text, capacity, "%s: %s H=%lld D=%lld, keys split over %d CTAs", kSplitName,
                problem.k_dtype == Dtype::kBf16 ? "bf16" : "e4m3", static_cast<long long>(problem.num_heads),
                static_cast<long long>(problem.head_dim), choose_split_ctas(problem, options, device));
}

template <class Config>
Status launch_split(const Call& call, const DeviceInfo& device) noexcept {
  const SplitScratch scratch = SplitScratch::make(call.problem);
  constexpr auto kAlignment = static_cast<uintptr_t>(SplitScratch::kAlignmentBytes);
  const auto base = reinterpret_cast<uintptr_t>(call.workspace);
  auto* g_base = reinterpret_cast<uint8_t*>((base + kAlignment - 1) / kAlignment * kAlignment);
  Call scored = call;  // into the workspace
  scored.scores = g_base + scratch.counter_bytes();
  scored.score_row_stride = scratch.row_stride;

  SplitParams params = {};
  KEYSIEVE_RETURN_IF_ERROR(make_tile_feed_params<typename Config::Tile>(call, &params.score.feed));
  params.score.g_scores = scored.scores;
  params.score.score_row_stride = scored.score_row_stride;
  params.score.score_width = call.problem.num_keys;
  params.select = make_select_args(scored);
  params.g_scored_tiles = reinterpret_cast<uint32_t*>(g_base);

  const auto kernel = split_sm90<Config>;
  constexpr size_t kSharedBytes = sizeof(SplitSmem<Config>);
  static_assert(kSharedBytes <= 232448, "more shared memory than a block can have");
  KEYSIEVE_RETURN_IF_CUDA_ERROR(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const auto stream = static_cast<cudaStream_t>(call.stream);
  KEYSIEVE_RETURN_IF_CUDA_ERROR(
      cudaMemsetAsync(params.g_scored_tiles, 0, static_cast<size_t>(scratch.counter_bytes()), stream));
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(choose_split_ctas(call.problem, call.options, device)));
  launch.blockDim = dim3(Config::kThreads);
  launch.dynamicSmemBytes = kSharedBytes;
  launch.stream = stream;
  return status_of(cudaLaunchKernelEx(&launch, kernel, params), "launch of split_sm90");
}

template <class... Configs>
Status launch_matching(const Call& call, const DeviceInfo& device, std::tuple<Configs...>*) noexcept {
  Status status = Status::error(KEYSIEVE_INTERNAL, "no kernel for a supported problem");
  ((Configs::Tile::kHeads == call.problem.num_heads && Configs::Tile::kHeadDim == call.problem.head_dim &&
    (status = launch_split<Configs>(call, device), true)) ||
   ...);
  return status;
}

Status launch(const Call& call, const DeviceInfo& device) noexcept {
  if (call.problem.num_rows == 0) {
    return {};
  }
  return call.problem.k_dtype == Dtype::kBf16
             ? launch_matching(call, device, static_cast<ConfigsOf<ptx::Bf16Operands>*>(nullptr))
             : launch_matching(call, device, static_cast<ConfigsOf<ptx::E4m3Operands>*>(nullptr));
}

}  // namespace

const KernelFamily kSplitSm90 = {supports, workspace, explain, launch};

}  // namespace keysieve::cuda
