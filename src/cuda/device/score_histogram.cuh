// SPDX-License-Identifier: Apache-2.0
// A histogram of one warp in shared memory, and bins for scores.
#pragma once

#include <cstdint>

#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::device {

/// Score -> bin, monotone for any finite scale >= 0 and offset: a fused multiply-add that saturates to [0, 1] (NaN to
/// 0), and one whose sum's low bits are the bin.  What lies outside [low, high] goes to the first or last
/// bin.
struct ScoreBins {
  static constexpr int kBins = 1024;

  float scale = 0.0F;
  float offset = 0.0F;

  static __device__ __forceinline__ ScoreBins between(float low, float high) {
    const float scale = 1.0F / (high - low);
    ScoreBins bins;
    if (scale > 0.0F && scale < 1e30F) {  // neither infinite ends nor equal ones
      bins.scale = scale;
      bins.offset = -low * scale;
    }
    return bins;
  }
  /// kAlignedBits + the bin: what adds to an address with one instruction.
  __device__ __forceinline__ uint32_t aligned(float score) const {
    const float place = __saturatef(__fmaf_rn(score, scale, offset));
    return __float_as_uint(__fmaf_rn(place, static_cast<float>(kBins - 1), kAlign));
  }

  /// Ends of a bin of between(low, high), or a little outside.
  struct Edges {
    float low;
    float high;
  };
  static __device__ __forceinline__ Edges edges(float low, float high, uint32_t bin) {
    const float step = (high - low) / static_cast<float>(kBins - 1);
    const float middle = low + step * static_cast<float>(bin);
    return {fmaxf(low, middle - 0.51F * step), fminf(high, middle + 0.51F * step)};
  }

  static constexpr float kAlign = 8388608.0F;            // 2^23: a unit in the last place is 1
  static constexpr uint32_t kAlignedBits = 0x4B000000U;  // of kAlign
};

/// Where a rank lies.
struct FoundBin {
  uint32_t bin;
  uint32_t above;  // counts of higher bins
  uint32_t count;  // of this one
};

class Histogram {
 public:
  static constexpr int kBins = ScoreBins::kBins;

  struct Smem {
    alignas(16) uint32_t counts[kBins];  // zero between uses
  };

  __device__ __forceinline__ Histogram(Smem& smem, int lane)
      : s_counts_(smem.counts),
        s_aligned_(ptx::shared_address(smem.counts) -
                   static_cast<uint32_t>(sizeof(uint32_t)) * ScoreBins::kAlignedBits),
        lane_(lane) {}

  __device__ __forceinline__ void clear() const {
#pragma unroll
    for (int i = 0; i < kBins; i += 128) {
      *reinterpret_cast<uint4*>(&s_counts_[i + 4 * lane_]) = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void add(uint32_t bin) const {
    atomicAdd(&s_counts_[bin], 1U);
  }
  __device__ __forceinline__ void add(const ScoreBins& bins, float score) const {
    ptx::increment_shared(s_aligned_ + sizeof(uint32_t) * bins.aligned(score));
  }

  /// The bin of rank `wanted` (1: the highest); count 0 if there are fewer.  Clears the histogram.
  __device__ __forceinline__ FoundBin find(uint32_t wanted) const {
    __syncwarp();
    // First which 32 bins: lane i sums the i-th 32 from the top, read in an order without bank conflicts.
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 four = *reinterpret_cast<const uint4*>(&s_counts_[kBins - 32 * (lane_ + 1) + 4 * ((i + lane_) % 8)]);
      mine += four.x + four.y + four.z + four.w;
    }
    uint32_t above;
    const int group = lane_of_rank(mine, wanted, above);
    const uint32_t own = s_counts_[kBins - 32 * max(group, 0) - 1 - lane_];
    uint32_t above_in_group;
    const int place = lane_of_rank(own, wanted - above, above_in_group);
    FoundBin found = {static_cast<uint32_t>(kBins - 32 * group - 1 - place), above + above_in_group,
                      __shfl_sync(ptx::kAllLanes, own, place)};
    if (group < 0) {
      found.count = 0;
    }
    __syncwarp();
    clear();
    return found;
  }

 private:
  /// The lane whose count holds rank `wanted` >= 1, -1 if none does; `above`: the counts of the lanes before it.
  static __device__ __forceinline__ int lane_of_rank(uint32_t count, uint32_t wanted, uint32_t& above) {
    const uint32_t before = ptx::sum_of_lanes_before(count);
    const int lane = __ffs(static_cast<int>(__ballot_sync(ptx::kAllLanes, before + count >= wanted))) - 1;
    above = __shfl_sync(ptx::kAllLanes, before, lane);
    return lane;
  }

  uint32_t* s_counts_;
  uint32_t s_aligned_;  // where bin -kAlignedBits would be
  int lane_;
};

}  // namespace keysieve::device
