// SPDX-License-Identifier: Apache-2.0
// Streams, graphs, device memory and the problems that the CUDA backend takes today.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <vector>

#include "cases/case_run.hpp"

namespace keysieve::test {

#define KEYSIEVE_ASSERT_CUDA(expression) ASSERT_EQ(expression, cudaSuccess) << cudaGetErrorString(cudaPeekAtLastError())

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }

  [[nodiscard]] cudaStream_t get() const { return stream_; }
  void wait() const { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) {
    if (cudaMalloc(&data_, bytes) != cudaSuccess) {
      cudaGetLastError();
      data_ = nullptr;
    }
  }
  explicit DeviceBuffer(const Tensor& tensor) : DeviceBuffer(tensor.image_bytes()) {
    if (data_ != nullptr) {
      EXPECT_EQ(cudaMemcpy(data_, tensor.image(), tensor.image_bytes(), cudaMemcpyHostToDevice), cudaSuccess);
    }
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }

  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// A captured graph, ready to launch.
class CapturedGraph {
 public:
  /// Captures what `work` puts on `stream`.
  template <typename Work>
  CapturedGraph(const Stream& stream, const Work& work) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
    work();
    EXPECT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    if (graph != nullptr) {
      EXPECT_EQ(cudaGraphInstantiate(&graph_, graph, 0), cudaSuccess);
      cudaGraphDestroy(graph);
    }
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph() {
    if (graph_ != nullptr) {
      cudaGraphExecDestroy(graph_);
    }
  }

  void launch(const Stream& stream) const { EXPECT_EQ(cudaGraphLaunch(graph_, stream.get()), cudaSuccess); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

class CudaCases : public testing::Test {
 protected:
  void SetUp() override;

  /// score, select and score_select of one problem, those that the backend takes; select's scores are random with ties.
  static std::vector<Inputs> operations(const Inputs& score_select);

  static void expect_same(const Inputs& inputs, const Outputs& actual, const Outputs& expected);
};

/// Outputs of a finished call, copied to the host without the checks of Runner::collect.
Outputs copy_outputs(const Staged& staged);

}  // namespace keysieve::test
