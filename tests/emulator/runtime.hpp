// SPDX-License-Identifier: Apache-2.0
// The launch, as nvcc's <cuda_runtime.h> has it; the rest of the CUDA runtime is in runtime.cpp.
#pragma once

#include <cuda_runtime_api.h>
#include <functional>
#include <utility>

namespace emulator {

/// Runs the kernel, or adds it to the graph that the stream captures.
cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> kernel);

/// cudaLaunchKernelEx, whose C function is told nothing of the parameters' types.
template <class... Parameters, class... Arguments>
cudaError_t launch(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), const Arguments&... arguments) {
  return launch(*config, [kernel, ... values = Parameters(arguments)] { kernel(values...); });
}

}  // namespace emulator

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (* /*kernel*/)(Parameters...), cudaFuncAttribute /*attribute*/, int /*value*/) {
  return cudaSuccess;
}
#define cudaLaunchKernelEx ::emulator::launch
