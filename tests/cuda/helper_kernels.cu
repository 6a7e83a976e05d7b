// SPDX-License-Identifier: Apache-2.0
#include "cuda/helper_kernels.hpp"

namespace keysieve::test {
namespace {

constexpr int kThreads = 256;
constexpr int kWholeMultiprocessor = 200 * 1024;  // bytes of shared memory that leave no room for a second block

__global__ void spin(unsigned long long nanoseconds) {
  unsigned long long start;
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

__global__ void copy_bytes(unsigned char* target, const unsigned char* source, size_t bytes) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += step) {
    target[i] = source[i];
  }
}

__global__ void gather(int32_t* out, const int32_t* table, int64_t table_size, const int32_t* indices, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    const int32_t index = indices[i];
    out[i] = index >= 0 && index < table_size ? table[index] : -1;
  }
}

}  // namespace

cudaError_t launch_spinner(int blocks, int milliseconds, cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, kWholeMultiprocessor);
  if (error != cudaSuccess) {
    return error;
  }
  spin<<<blocks, kThreads, kWholeMultiprocessor, stream>>>(1'000'000ULL * milliseconds);
  return cudaGetLastError();
}

cudaError_t launch_copy(void* target, const void* source, size_t bytes, cudaStream_t stream) {
  copy_bytes<<<64, kThreads, 0, stream>>>(static_cast<unsigned char*>(target),
                                          static_cast<const unsigned char*>(source), bytes);
  return cudaGetLastError();
}

cudaError_t launch_gather(int32_t* out, const int32_t* table, int64_t table_size, const int32_t* indices, int64_t count,
                          cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  gather<<<blocks, kThreads, 0, stream>>>(out, table, table_size, indices, count);
  return cudaGetLastError();
}

}  // namespace keysieve::test
