// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime functions that the project calls, on the emulated device.  Work is done when it is enqueued, or put
// into the graph that the stream captures.
#include "emulator/runtime.hpp"

#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "emulator/machine.hpp"
#include "emulator/tensor_map.hpp"

struct CUstream_st {};
struct CUgraph_st {
  std::vector<std::function<void()>> nodes;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> nodes;
};

namespace emulator {
namespace {

struct State {
  std::recursive_mutex mutex;  // one device, one thing at a time
  std::map<const uint8_t*, size_t> allocations;
  std::map<cudaStream_t, CUgraph_st> captures;
  thread_local static cudaError_t last_error;

  static State& get() {
    static State state;
    return state;
  }
};
thread_local cudaError_t State::last_error = cudaSuccess;

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) {
    State::last_error = error;
  }
  return error;
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  State& state = State::get();
  const std::lock_guard<std::recursive_mutex> lock(state.mutex);
  const auto capture = state.captures.find(stream);
  if (capture != state.captures.end()) {
    capture->second.nodes.push_back(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> kernel) {
  unsigned cluster_size = 1;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) {
      cluster_size = config.attrs[i].val.clusterDim.x;
    }
  }
  return enqueue(config.stream,
                 [grid = config.gridDim, threads = config.blockDim.x, cluster_size, bytes = config.dynamicSmemBytes,
                  kernel = std::move(kernel)] { Machine::get().launch(grid, threads, cluster_size, bytes, kernel); });
}

}  // namespace emulator

using emulator::enqueue;
using emulator::report;
using emulator::State;

extern "C" {

// ---- device ----

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return report(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = emulator::Machine::kMultiprocessors; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = emulator::Machine::kSharedBytes; return cudaSuccess;
    default: return report(cudaErrorInvalidValue);
  }
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* /*kernel*/, cudaFuncAttribute /*attribute*/, int /*value*/) {
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  return cudaRuntimeGetVersion(version);
}

// ---- errors ----

cudaError_t cudaGetLastError() {
  return std::exchange(State::last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return State::last_error;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the emulated device";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaError";
}

// ---- memory ----

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  State& state = State::get();
  const std::lock_guard<std::recursive_mutex> lock(state.mutex);
  *pointer = std::aligned_alloc(256, (bytes + 511) / 256 * 256);
  if (*pointer == nullptr) {
    return report(cudaErrorMemoryAllocation);
  }
  state.allocations[static_cast<const uint8_t*>(*pointer)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  State& state = State::get();
  const std::lock_guard<std::recursive_mutex> lock(state.mutex);
  state.allocations.erase(static_cast<const uint8_t*>(pointer));
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  State& state = State::get();
  const std::lock_guard<std::recursive_mutex> lock(state.mutex);
  const auto* address = static_cast<const uint8_t*>(pointer);
  auto found = state.allocations.upper_bound(address);
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  if (found != state.allocations.begin() && address <= std::prev(found)->first + std::prev(found)->second) {
    attributes->type = cudaMemoryTypeDevice;
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  return enqueue(stream, [=] { std::memcpy(target, source, bytes); });
}
cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(target, source, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memset(target, value, bytes); });
}

// ---- streams and graphs ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  State::get().captures[stream] = {};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = new CUgraph_st(std::move(State::get().captures[stream]));
  State::get().captures.erase(stream);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long /*flags*/) {
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return enqueue(stream, [exec] {
    for (const auto& node : exec->nodes) {
      node();
    }
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

// ---- driver ----

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned /*version*/,
                                             unsigned long long /*flags*/, cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&emulator::encode_tiled) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
