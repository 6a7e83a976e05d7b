// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "cuda/kernels.hpp"
#include "cuda/raii.hpp"
#include "cuda/select/kernel.cuh"

namespace keysieve::cuda {
namespace {

/// CTAs of the grid: one cluster a row, fewer if the caller limits the multiprocessors.
int64_t grid_size(const Call& call, int cluster) {
  constexpr int64_t kMaxGrid = INT32_MAX;
  int64_t clusters = std::min(call.problem.num_rows, kMaxGrid / cluster);
  if (call.options.sm_limit > 0) {
    // As many CTAs as multiprocessors: wherever they land, they touch no more than that.
    clusters = std::min<int64_t>(clusters, std::max(call.options.sm_limit / cluster, 1));
  }
  return clusters * cluster;
}

template <class Config, typename Score>
Status launch_config(const Call& call, int cluster) {
  const auto kernel = select_kernel<Config, Score>;
  constexpr int kSmemBytes = static_cast<int>(sizeof(SelectSmem<Config>));
  KEYSIEVE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes));
  KEYSIEVE_RETURN_IF_CUDA_ERROR(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  if (cluster > 8) {
    KEYSIEVE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (cluster > 1) {
    attributes[num_attributes].id = cudaLaunchAttributeClusterDimension;
    attributes[num_attributes].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    ++num_attributes;
  }
  if ((call.options.launch_flags & KEYSIEVE_LAUNCH_PDL) != 0) {
    attributes[num_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[num_attributes].val.programmaticStreamSerializationAllowed = 1;
    ++num_attributes;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid_size(call, cluster)));
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = kSmemBytes;
  config.stream = static_cast<cudaStream_t>(call.stream);
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  return status_of(cudaLaunchKernelEx(&config, kernel, make_select_args(call)), "select: cudaLaunchKernelEx");
}

template <typename Score>
Status launch_kernel(const Call& call, SelectConfig config) {
  switch (config.kernel) {
    case SelectKernel::kManyRows: return launch_config<SelectManyRows, Score>(call, config.cluster);
    case SelectKernel::kFewRows: return launch_config<SelectFewRows, Score>(call, config.cluster);
    case SelectKernel::kLargeK: return launch_config<SelectLargeK, Score>(call, config.cluster);
  }
  return Status::error(KEYSIEVE_INTERNAL, "select: no such kernel");
}

Status supports(const Problem& problem, const Options& options) noexcept {
  if (problem.candidates != Candidates::kNone) {
    return Status::error(KEYSIEVE_UNSUPPORTED, "candidates: select on CUDA takes none");
  }
  SelectConfig config;
  return resolve_select_config(problem, options, DeviceInfo(), config);
}

WorkspaceSize workspace(const Problem& /*problem*/, const Options& /*options*/, const DeviceInfo& /*device*/) noexcept {
  return {};
}

void explain(const Problem& problem, const Options& options, const DeviceInfo& device, char* text,
             size_t capacity) noexcept {
  SelectConfig config;
  const Status status = resolve_select_config(problem, options, device, config);
  if (status.ok()) {
    print_select_config(config, text, capacity);
  } else {
    std::snprintf(text, capacity, "%s", status.message());
  }
}

Status launch(const Call& call, const DeviceInfo& device) noexcept {
  if (call.problem.num_rows == 0) {
    return {};
  }
  SelectConfig config;
  KEYSIEVE_RETURN_IF_ERROR(resolve_select_config(call.problem, call.options, device, config));
  return call.problem.score_dtype == Dtype::kBf16 ? launch_kernel<uint16_t>(call, config)
                                                  : launch_kernel<float>(call, config);
}

}  // namespace

const KernelFamily kSelect = {supports, workspace, explain, launch};

}  // namespace keysieve::cuda
