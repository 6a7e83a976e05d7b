// SPDX-License-Identifier: Apache-2.0
// Where a backend's tensors live: in the test's own guarded memory on a CPU, in copies on a CUDA device.
#pragma once

#include <memory>
#include <string>

#include "support/tensor.hpp"

namespace keysieve::test {

class MemorySpace {
 public:
  MemorySpace() = default;
  MemorySpace(const MemorySpace&) = delete;
  MemorySpace& operator=(const MemorySpace&) = delete;
  virtual ~MemorySpace() = default;

  /// Forgets everything that was placed before.
  virtual void reset() = 0;

  /// Address of the tensor's first element for the backend.  Content is the tensor's.
  virtual void* place_input(const Tensor& tensor) = 0;
  virtual void* place_output(Tensor& tensor) = 0;
  virtual void* place_workspace(size_t bytes, Poison poison, Fence fence) = 0;

  /// After the last place_*: everything is visible to every stream.
  virtual void end_staging() = 0;

  /// Waits for all work; returns what went wrong on the device, or what was written around a tensor; "" if nothing.
  virtual std::string finish() = 0;

  /// Copies an output back into its tensor; after finish().
  virtual void fetch(Tensor& tensor, const void* placed) = 0;
};

std::unique_ptr<MemorySpace> make_host_space();

#if defined(KEYSIEVE_WITH_CUDA)
/// Tensors of `device` in one arena with red zones between them; with KEYSIEVE_TEST_EXACT_ALLOC set, each in an
/// allocation of exactly its size, for compute-sanitizer.
std::unique_ptr<MemorySpace> make_cuda_space(int device = 0);
#endif

}  // namespace keysieve::test
