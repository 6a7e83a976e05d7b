// SPDX-License-Identifier: Apache-2.0
// Shared memory of a CTA of `select`.
#pragma once

#include <cstdint>

#include "cuda/device/radix_select.cuh"
#include "cuda/device/row_output.cuh"

namespace keysieve::cuda {

template <class Config>
struct SelectSmem {
  using Select = device::BlockSelect<device::CtaGroup<Config::kThreads>>;

  alignas(16) uint32_t ordered[Config::kCapacity];  // candidates: raw scores while streaming, then ordered bits
  int32_t indices[Config::kCapacity];               // row-relative
  typename Select::Smem select;
  alignas(16) uint32_t warp_counts[2][Config::kThreads / 32];  // candidates of a chunk by warp, alternating
  uint32_t t;                                                  // the row, kept here to spare registers
  device::RowKeys keys;                                        // and its keys
  int32_t list_count;                                          // read by the cluster's CTA 0
};

}  // namespace keysieve::cuda
