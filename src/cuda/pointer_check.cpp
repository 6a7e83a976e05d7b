// SPDX-License-Identifier: Apache-2.0
#include "cuda/pointer_check.hpp"

#include <cuda_runtime_api.h>

namespace keysieve::cuda {
namespace {

const char* memory_name(cudaMemoryType type) noexcept {
  switch (type) {
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged: return "device";
    case cudaMemoryTypeHost: return "pinned host";
    default: return "host";
  }
}

Status check_pointer(const char* name, const void* pointer, int device) noexcept {
  if (pointer == nullptr) {  // not given, or without elements
    return {};
  }
  cudaPointerAttributes attributes{};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, pointer);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    attributes.type = cudaMemoryTypeUnregistered;
  }
  const bool managed = attributes.type == cudaMemoryTypeManaged;
  if (managed || (attributes.type == cudaMemoryTypeDevice && attributes.device == device)) {
    return {};
  }
  if (attributes.type == cudaMemoryTypeDevice) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s is memory of device %d, expected device %d, the problem's",
                         name, attributes.device, device);
  }
  return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s is %s memory, expected memory of device %d", name,
                       memory_name(attributes.type), device);
}

}  // namespace

Status check_pointers(const Call& call, int device) noexcept {
  const struct {
    const char* name;
    const void* pointer;
  } kTensors[] = {
      {"q", call.q},
      {"k", call.k},
      {"k_scale", call.k_scale},
      {"weights", call.weights.data},
      {"scores", call.scores},
      {"row_start", call.row_start.data},
      {"row_end", call.row_end.data},
      {"row_request", call.row_request.data},
      {"block_table", call.block_table},
      {"out_offset", call.out_offset.data},
      {"slot_table", call.slot_table},
      {"cand_in", call.cand_in.data},
      {"cand_out", call.cand_out.data},
      {"indices", call.indices.data},
      {"top_scores", call.top_scores.data},
      {"out_count", call.out_count.data},
      {"row_indices", call.row_indices.data},
      {"stats", call.stats},
      {"workspace", call.workspace},
  };
  for (const auto& tensor : kTensors) {
    KEYSIEVE_RETURN_IF_ERROR(check_pointer(tensor.name, tensor.pointer, device));
  }
  return {};
}

}  // namespace keysieve::cuda
