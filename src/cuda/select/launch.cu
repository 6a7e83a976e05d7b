// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "cuda/select/kernel.cuh"
#include "cuda/select/select.hpp"

namespace keysieve::cuda {
namespace {

Status cuda_error(cudaError_t error, const char* what) {
  cudaGetLastError();  // the error is reported here; it must not stick to the caller's context
  return Status::error(KEYSIEVE_DEVICE_ERROR, "select: %s failed: %s (%s)", what, cudaGetErrorName(error),
                       cudaGetErrorString(error));
}

SelectArgs make_select_args(const Call& call) {
  SelectArgs args;
  args.g_scores = call.scores;
  args.row_stride = call.score_row_stride;
  args.score_width = static_cast<int32_t>(call.problem.score_width);
  args.num_rows = static_cast<uint32_t>(call.problem.num_rows);
  args.compact = call.problem.compact_scores;
  args.sort_by_score = call.problem.order == Order::kScore;
  args.ranges = make_row_ranges(call);
  args.output = make_row_output(call);
  return args;
}

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
Status launch(const Call& call, int cluster) {
  const auto kernel = select_kernel<Config, Score>;
  constexpr int kSmemBytes = static_cast<int>(sizeof(SelectSmem<Config>));
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes);
  if (error == cudaSuccess) {  // or the driver may leave room for one CTA only
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  }
  if (error == cudaSuccess && cluster > 8) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (error != cudaSuccess) {
    return cuda_error(error, "cudaFuncSetAttribute");
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
  error = cudaLaunchKernelEx(&config, kernel, make_select_args(call));
  return error == cudaSuccess ? Status() : cuda_error(error, "the launch");
}

template <typename Score>
Status launch_kernel(const Call& call, SelectConfig config) {
  switch (config.kernel) {
    case SelectKernel::kManyRows: return launch<SelectManyRows, Score>(call, config.cluster);
    case SelectKernel::kFewRows: return launch<SelectFewRows, Score>(call, config.cluster);
    case SelectKernel::kLargeK: return launch<SelectLargeK, Score>(call, config.cluster);
  }
  return Status::error(KEYSIEVE_INTERNAL, "select: no such kernel");
}

}  // namespace

Status launch_select(const Call& call, int num_sms) noexcept {
  if (call.problem.num_rows == 0) {
    return {};
  }
  SelectConfig config;
  KEYSIEVE_RETURN_IF_ERROR(resolve_select_config(call.problem, call.options, num_sms, config));
  return call.problem.score_dtype == Dtype::kBf16 ? launch_kernel<uint16_t>(call, config)
                                                  : launch_kernel<float>(call, config);
}

}  // namespace keysieve::cuda
