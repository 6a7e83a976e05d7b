// SPDX-License-Identifier: Apache-2.0
// The CUDA device, through the static runtime; compiled where nvcc is.
#include <cuda_runtime_api.h>
#include <memory>
#include <type_traits>

#include "device_buffers.hpp"
#include "failure.hpp"

namespace keysieve::cli {
namespace {

void require_cuda(const char* what, cudaError_t error) {
  if (error != cudaSuccess) {
    cudaGetLastError();  // do not leave it for the next call
    const bool absent = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver;
    throw Failure(absent ? kExitUnavailable : kExitFault, what, cudaGetErrorString(error));
  }
}

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
struct DestroyGraphExec {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;
using GraphExec = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraphExec>;

Event make_event() {
  cudaEvent_t event = nullptr;
  require_cuda("CUDA event", cudaEventCreate(&event));
  return Event(event);
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int32_t device_index) : device_index_(device_index) {
    require_cuda("CUDA device", cudaSetDevice(device_index));
    require_cuda("CUDA stream", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CudaDevice() override { cudaStreamDestroy(stream_); }

  [[nodiscard]] bool is_host() const noexcept override { return false; }
  [[nodiscard]] void* stream() const noexcept override { return stream_; }

  [[nodiscard]] DeviceDescription describe() const override {
    cudaDeviceProp properties = {};
    int driver = 0;
    int runtime = 0;
    require_cuda("CUDA device", cudaGetDeviceProperties(&properties, device_index_));
    require_cuda("CUDA driver", cudaDriverGetVersion(&driver));
    require_cuda("CUDA runtime", cudaRuntimeGetVersion(&runtime));
    return {properties.name, properties.multiProcessorCount, version_text(driver), version_text(runtime)};
  }

  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    require_cuda("device memory", cudaMalloc(&memory, bytes > 0 ? bytes : 1));
    return memory;
  }
  void release(void* memory) noexcept override { cudaFree(memory); }
  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes, cudaMemcpyHostToDevice); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes, cudaMemcpyDeviceToHost); }

  void fill(void* memory, int value, size_t bytes) override {
    require_cuda("fill", cudaMemsetAsync(memory, value, bytes, stream_));
  }

  double time_ms(const std::function<void()>& enqueue) override {
    const Event start = make_event();
    const Event stop = make_event();
    require_cuda("CUDA event", cudaEventRecord(start.get(), stream_));
    enqueue();
    require_cuda("CUDA event", cudaEventRecord(stop.get(), stream_));
    require_cuda("CUDA stream", cudaStreamSynchronize(stream_));
    float milliseconds = 0;
    require_cuda("CUDA event", cudaEventElapsedTime(&milliseconds, start.get(), stop.get()));
    return static_cast<double>(milliseconds);
  }

  double time_graph_ms(const std::function<void()>& enqueue, int calls) override {
    require_cuda("CUDA graph", cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t captured = nullptr;
    try {
      for (int i = 0; i < calls; ++i) {
        enqueue();
      }
    } catch (...) {
      cudaStreamEndCapture(stream_, &captured);
      cudaGraphDestroy(captured);
      throw;
    }
    require_cuda("CUDA graph", cudaStreamEndCapture(stream_, &captured));
    const Graph graph(captured);
    cudaGraphExec_t instantiated = nullptr;
    require_cuda("CUDA graph", cudaGraphInstantiate(&instantiated, graph.get(), 0));
    const GraphExec executable(instantiated);
    const auto launch = [&] { require_cuda("CUDA graph", cudaGraphLaunch(executable.get(), stream_)); };
    launch();  // the first launch uploads the graph
    return time_ms(launch) / calls;
  }

 private:
  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    require_cuda("copy", cudaMemcpyAsync(to, from, bytes, kind, stream_));
    require_cuda("copy", cudaStreamSynchronize(stream_));
  }

  int32_t device_index_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Device> open_cuda_device(int32_t device_index) {
  return std::make_unique<CudaDevice>(device_index);
}

}  // namespace keysieve::cli
