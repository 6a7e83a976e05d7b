// SPDX-License-Identifier: Apache-2.0
// Streams a part of a row through registers and appends what passes a threshold to the list in shared memory, in
// ascending key order.
//
//     chunk     kThreads * 16 scores; warp w owns the w-th slab of 512, a lane kVector scores of each 16-byte load
//     order     (warp, load, lane, element) ascends with the key
//     counts    one packed word a lane, a field a load -> prefix sums by shuffles; warps through s_.warp_counts
//     next      the loads of the next chunk are in flight meanwhile
#pragma once

#include <cstdint>

#include "cuda/select/score_row.cuh"
#include "cuda/select/smem.cuh"

namespace keysieve::cuda {

template <class Config, typename Score>
class CandidateStream {
  using Smem = SelectSmem<Config>;
  using Row = ScoreRow<Score, Config::kFreshScores>;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kVectors = Config::kScoresPerThread / Row::kVector;  // loads a thread and chunk
  static constexpr int kFieldBits = 32 / kVectors;                          // of a warp's count for one vector
  static constexpr uint32_t kFullMask = 0xFFFFFFFFU;
  static constexpr uint32_t kVectorMask = (1U << Row::kVector) - 1U;

 public:
  /// Positions up to `stop` belong to this CTA; thread is threadIdx.x.
  __device__ __forceinline__ CandidateStream(Smem& smem, const Row& row, uint32_t stop, Threshold threshold, int thread)
      : s_(smem), row_(row), stop_(stop), threshold_(threshold), thread_(static_cast<uint32_t>(thread)) {}

  /// Appends what passes from position `first` on to the `count` candidates of the list.  Returns `stop` or beyond, or
  /// the chunk whose candidates might not fit.
  __device__ __forceinline__ uint32_t append_from(uint32_t first, int& count) {
    Chunk chunk;
    load(first, chunk);
#pragma unroll 1
    for (; first < stop_; first += Config::kChunk) {
      Chunk next;
      load(first + Config::kChunk, next);
      if (!append(first, chunk, count)) {
        break;
      }
      chunk = next;
    }
    return first;
  }

 private:
  /// This thread's scores of a chunk.
  struct Chunk {
    uint4 vectors[kVectors];
  };

  /// Position of this thread's vector v of a chunk.
  __device__ __forceinline__ uint32_t position_of(uint32_t first, int v) const {
    return first + thread_ / 32U * (32U * Config::kScoresPerThread) + v * (32U * Row::kVector) +
           thread_ % 32U * Row::kVector;
  }

  /// True if all positions of a chunk belong to this CTA's part of the row.
  __device__ __forceinline__ bool is_whole(uint32_t first) const {
    return first >= row_.lead && first + Config::kChunk <= stop_;
  }

  /// Also past the row's end, where nothing is read: with a third way through here the compiler waits for the loads
  /// where the ways meet, and the next chunk is no longer in flight.
  __device__ __forceinline__ void load(uint32_t first, Chunk& chunk) const {
    if (is_whole(first)) {
      const auto* g_vectors = reinterpret_cast<const uint4*>(row_.g_first + position_of(first, 0));
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        chunk.vectors[v] = Row::load(g_vectors + 32 * v);
      }
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        chunk.vectors[v] = row_.load_inside(position_of(first, v), stop_);
      }
    }
  }

  /// Appends what passes of `chunk`, which starts at `first`, or nothing if it does not fit.
  __device__ __forceinline__ bool append(uint32_t first, const Chunk& chunk, int& count) {
    uint32_t passing = passing_scores(chunk);
    if (!is_whole(first)) {
      passing &= inside(first);
    }
    uint32_t fields = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      fields |= static_cast<uint32_t>(__popc(passing & (kVectorMask << (v * Row::kVector)))) << (v * kFieldBits);
    }
    uint32_t inclusive;
    int total;
    int slot = count + scan_counts(fields, first / Config::kChunk % 2, inclusive, total);
    if (count + total > Config::kCapacity) {
      return false;
    }
    count += total;
    const uint32_t warp_fields = __shfl_sync(kFullMask, inclusive, 31);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const auto relative = static_cast<int32_t>(position_of(first, v) - row_.lead);
      int lane_slot = slot + static_cast<int>(field(inclusive - fields, v));
#pragma unroll
      for (int e = 0; e < Row::kVector; ++e) {
        if ((passing & (1U << (v * Row::kVector + e))) != 0) {
          s_.ordered[lane_slot] = __float_as_uint(Row::element(chunk.vectors[v], e));
          s_.indices[lane_slot] = relative + e;
          ++lane_slot;
        }
      }
      slot += static_cast<int>(field(warp_fields, v));
    }
    return true;
  }

  /// Bit i: score i of this thread passes.
  __device__ __forceinline__ uint32_t passing_scores(const Chunk& chunk) const {
    uint32_t passing = 0;
#pragma unroll
    for (int i = 0; i < Config::kScoresPerThread; ++i) {
      const float score = Row::element(chunk.vectors[i / Row::kVector], i % Row::kVector);
      passing |= threshold_.passes(score) ? 1U << i : 0U;
    }
    return passing;
  }

  /// Bit i: score i of this thread belongs to this CTA's part of the row.
  __device__ __forceinline__ uint32_t inside(uint32_t first) const {
    uint32_t inside = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      inside |= row_.inside(position_of(first, v), stop_) << (v * Row::kVector);
    }
    return inside;
  }

  static __device__ __forceinline__ uint32_t field(uint32_t packed, int v) {
    return (packed >> (v * kFieldBits)) & ((1U << kFieldBits) - 1U);
  }

  /// Prefix sums of the packed counts: over this warp's lanes in `inclusive`, over earlier warps in the result.
  /// One barrier; warp_counts alternates, so the next chunk's counts do not meet readers of this one's.
  __device__ __forceinline__ int scan_counts(uint32_t mine, uint32_t parity, uint32_t& inclusive, int& total) {
    const uint32_t lane = thread_ % 32U;
    const uint32_t warp = thread_ / 32U;
    inclusive = mine;
#pragma unroll
    for (uint32_t offset = 1; offset < 32; offset *= 2) {
      const uint32_t other = __shfl_up_sync(kFullMask, inclusive, offset);
      inclusive += lane >= offset ? other : 0;
    }
    if (lane == 31) {
      uint32_t sum = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        sum += field(inclusive, v);
      }
      s_.warp_counts[parity][warp] = sum;
    }
    __syncthreads();
    const uint32_t count = lane < kWarps ? s_.warp_counts[parity][lane % kWarps] : 0;
    total = static_cast<int>(__reduce_add_sync(kFullMask, count));
    return static_cast<int>(__reduce_add_sync(kFullMask, lane < warp ? count : 0));
  }

  Smem& s_;
  const Row& row_;
  uint32_t stop_;
  Threshold threshold_;
  uint32_t thread_;
};

}  // namespace keysieve::cuda
