// SPDX-License-Identifier: Apache-2.0
// Test tensors on a CUDA device.  Guard pages do not exist there: red zones between tensors are checked after every
// call, and with KEYSIEVE_TEST_EXACT_ALLOC every tensor has an allocation of exactly its size for compute-sanitizer.
#include <algorithm>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <stdexcept>
#include <vector>

#include "support/memory_space.hpp"

namespace keysieve::test {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kRedZoneBytes = 256;
constexpr size_t kChunkBytes = size_t{64} << 20U;
constexpr size_t kPatternBytes = size_t{1} << 20U;

void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

/// Makes a device current while it lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    require(cudaGetDevice(&previous_), "cudaGetDevice");
    require(cudaSetDevice(device), "cudaSetDevice");
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() { cudaSetDevice(previous_); }

 private:
  int previous_ = 0;
};

struct Chunk {
  std::byte* base = nullptr;
  size_t bytes = 0;
};

class CudaSpace final : public MemorySpace {
 public:
  explicit CudaSpace(int device) : device_(device), exact_(std::getenv("KEYSIEVE_TEST_EXACT_ALLOC") != nullptr) {}

  ~CudaSpace() override {
    try {
      const CurrentDevice current(device_);
      release(chunks_);
      release(exact_allocations_);
    } catch (const std::exception&) {
      // The context is gone, and its memory with it.
    }
  }

  void reset() override {
    const CurrentDevice current(device_);
    release(exact_allocations_);
    red_zones_.clear();
    if (chunks_.size() > 1) {  // one chunk that holds what the last call needed
      size_t total = 0;
      for (const Chunk& chunk : chunks_) {
        total += chunk.bytes;
      }
      release(chunks_);
      add_chunk(total);
    }
    used_ = 0;
  }

  void* place_input(const Tensor& tensor) override { return place(tensor); }
  void* place_output(Tensor& tensor) override { return place(tensor); }

  void* place_workspace(size_t bytes, Poison poison, Fence /*fence*/) override {
    const CurrentDevice current(device_);
    std::byte* base = allocate(bytes, 0);
    const std::vector<uint8_t> pattern = [&] {
      std::vector<uint8_t> block(std::min(bytes, kPatternBytes));
      poison_memory(poison, block.data(), block.size());
      return block;
    }();
    for (size_t offset = 0; offset < bytes; offset += kPatternBytes) {
      const size_t count = std::min(kPatternBytes, bytes - offset);
      if (offset == 0) {
        require(cudaMemcpy(base, pattern.data(), count, cudaMemcpyHostToDevice), "poison of the workspace");
      } else {
        require(cudaMemcpyAsync(base + offset, base, count, cudaMemcpyDeviceToDevice), "poison of the workspace");
      }
    }
    return base;
  }

  void end_staging() override {
    const CurrentDevice current(device_);
    require(cudaDeviceSynchronize(), "staging of test tensors");
  }

  std::string finish() override {
    const CurrentDevice current(device_);
    if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) {
      return std::string("the device reports ") + cudaGetErrorString(error);
    }
    if (const cudaError_t error = cudaPeekAtLastError(); error != cudaSuccess) {
      cudaGetLastError();
      return std::string("a sticky CUDA error was left behind: ") + cudaGetErrorString(error);
    }
    std::vector<uint8_t> zone;
    for (const Chunk& red_zone : red_zones_) {
      zone.resize(red_zone.bytes);
      require(cudaMemcpy(zone.data(), red_zone.base, zone.size(), cudaMemcpyDeviceToHost), "reading a red zone");
      if (std::any_of(zone.begin(), zone.end(), [](uint8_t byte) { return byte != kSlackByte; })) {
        return "bytes next to a tensor or the workspace were written";
      }
    }
    return {};
  }

  void fetch(Tensor& tensor, const void* placed) override {
    const CurrentDevice current(device_);
    if (tensor.image_bytes() > 0) {
      require(cudaMemcpy(tensor.mutable_image(), placed, tensor.image_bytes(), cudaMemcpyDeviceToHost),
              "fetching an output");
    }
  }

 private:
  static void release(std::vector<Chunk>& chunks) {
    for (const Chunk& chunk : chunks) {
      cudaFree(chunk.base);
    }
    chunks.clear();
  }

  void add_chunk(size_t bytes) {
    Chunk chunk;
    chunk.bytes = std::max(bytes, kChunkBytes);
    require(cudaMalloc(reinterpret_cast<void**>(&chunk.base), chunk.bytes), "cudaMalloc of test tensors");
    chunks_.push_back(chunk);
    used_ = 0;
  }

  void* place(const Tensor& tensor) {
    const CurrentDevice current(device_);
    std::byte* base = allocate(tensor.image_bytes(), tensor.layout().misalignment);
    if (tensor.image_bytes() > 0) {
      require(cudaMemcpy(base, tensor.image(), tensor.image_bytes(), cudaMemcpyHostToDevice), "placing a tensor");
    }
    return base;
  }

  /// `bytes` at `misalignment` past a multiple of 256, with a red zone before and after.
  std::byte* allocate(size_t bytes, size_t misalignment) {
    if (exact_) {
      Chunk chunk;
      chunk.bytes = std::max<size_t>(bytes + misalignment, 1);
      require(cudaMalloc(reinterpret_cast<void**>(&chunk.base), chunk.bytes), "cudaMalloc of a test tensor");
      exact_allocations_.push_back(chunk);
      return chunk.base + misalignment;
    }
    const size_t aligned_bytes = (bytes + misalignment + kAlignment - 1) / kAlignment * kAlignment;
    const size_t needed = kRedZoneBytes + aligned_bytes + kRedZoneBytes;
    if (chunks_.empty() || used_ + needed > chunks_.back().bytes) {
      add_chunk(needed);
    }
    std::byte* base = chunks_.back().base + used_ + kRedZoneBytes + misalignment;
    used_ += needed;
    add_red_zone(base - misalignment - kRedZoneBytes, base);
    add_red_zone(base + bytes, chunks_.back().base + used_);
    return base;
  }

  void add_red_zone(std::byte* begin, std::byte* end) {
    require(cudaMemsetAsync(begin, kSlackByte, static_cast<size_t>(end - begin)), "filling a red zone");
    red_zones_.push_back({begin, static_cast<size_t>(end - begin)});
  }

  int device_;
  bool exact_;
  std::vector<Chunk> chunks_;
  size_t used_ = 0;  // of the last chunk
  std::vector<Chunk> exact_allocations_;
  std::vector<Chunk> red_zones_;
};

}  // namespace

std::unique_ptr<MemorySpace> make_cuda_space(int device) {
  return std::make_unique<CudaSpace>(device);
}

}  // namespace keysieve::test
