// SPDX-License-Identifier: Apache-2.0
// Kernels that stand for a caller's own work around a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

namespace keysieve::test {

/// Keeps `blocks` multiprocessors busy for `milliseconds`: each block takes a whole one.
cudaError_t launch_spinner(int blocks, int milliseconds, cudaStream_t stream);

/// Copies bytes by a kernel: what a producer just before a call does.
cudaError_t launch_copy(void* target, const void* source, size_t bytes, cudaStream_t stream);

/// out[i] = table[indices[i]], or -1 where indices[i] is not in [0, table_size): what a consumer just after a call
/// does.
cudaError_t launch_gather(int32_t* out, const int32_t* table, int64_t table_size, const int32_t* indices, int64_t count,
                          cudaStream_t stream);

}  // namespace keysieve::test
