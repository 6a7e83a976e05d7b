// SPDX-License-Identifier: Apache-2.0
// select: the K best scores of each row, exactly, reading every score once.
//
//     for each row (one CTA, or a cluster of CTAs that share the row in contiguous parts):
//       sample   512..4096 scores, one of each stride -> a threshold that about 2K of the row's scores should pass
//       stream   16 scores a thread at a time; those that pass are appended to a list, in ascending key order
//       merge    (cluster) CTA 0 appends the lists of the others, in order
//       finish   radix selection among the candidates, written in ascending key order
//
// Why the result is exact whatever the threshold is.  Let P be the keys that passed the threshold, U the ones that did
// not.  Every score of P is above every score of U, so if |P| >= K then the K best keys lie in P, and P is in the list.
// If |P| < K the row is streamed again with a lower threshold, at last with one that everything passes.  When the list
// might overflow it is cut to its K best: later keys have higher indices, so from then on only scores strictly above
// the K-th can still enter, and that is the new threshold.  Nothing is ever dropped for want of space.
#pragma once

#include <cooperative_groups.h>
#include <cstdint>

#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/select/row_selector.cuh"

namespace keysieve::cuda {

/// Grid: any multiple of the cluster size; a cluster takes every (gridDim / cluster)-th row.
template <class Config, typename Score>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    select_kernel(const __grid_constant__ SelectArgs args) {
  auto& smem = ptx::dynamic_shared<SelectSmem<Config>>();
  RowSelector<Config, Score>(smem, args).initialise();
  ptx::wait_for_previous_grid();
  const uint32_t parts = cooperative_groups::this_cluster().num_blocks();
  uint32_t t = blockIdx.x / parts;
  while (t < args.num_rows) {
    t = RowSelector<Config, Score>(smem, args).run(t, blockIdx.x % parts, parts);
  }
}

}  // namespace keysieve::cuda
