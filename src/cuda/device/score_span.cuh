// SPDX-License-Identifier: Apache-2.0
// Spans of scores in global memory, and how one warp streams them.
#pragma once

#include <cstdint>

#include "cuda/ptx/shared.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::device {

/// Scores at positions [begin, end) of g_scores, which is 16-byte aligned; the quads around both ends are readable.
struct ScoreSpan {
  const float* g_scores;
  int begin;
  int end;

  [[nodiscard]] __device__ __forceinline__ int size() const { return end - begin; }
  /// The score at a position; from L2, where another multiprocessor may have put it.
  [[nodiscard]] __device__ __forceinline__ float score(int position) const { return __ldcg(g_scores + position); }
};

/// How the lanes of a warp share the scores of a group.
enum class Deal {
  kRuns,   // of each half 16 in a row: order within a lane is order of positions
  kQuads,  // quads in turn: clusters of high scores spread over the lanes
};

/// 1,024 scores in a row, 32 a lane.
struct ScoreGroup {
  static constexpr int kQuads = 8;
  static constexpr int kScores = 4 * kQuads;  // of a lane; 16 of each half
  static constexpr int kHalfScores = 32 * kScores / 2;
  static constexpr int kWarpScores = 32 * kScores;

  float scores[kScores];  // NaN outside the span
  uint32_t valid;         // bit i: score i is of the span

  /// Of score i of a lane, from the group's first.
  template <Deal kDeal>
  static __device__ __forceinline__ int offset(int lane, int i) {
    return kDeal == Deal::kRuns ? i / 16 * kHalfScores + 16 * lane + i % 16 : i / 4 * 128 + 4 * lane + i % 4;
  }
};

/// Reads a span in groups, kAhead of them on their way from L2.  Copies are coalesced, a quad a lane; the swizzle of
/// the quads lets each lane read its own of either deal without bank conflicts.
class ScoreStream {
 public:
  static constexpr int kAhead = 2;

  struct Smem {
    alignas(128) float4 quads[kAhead][ScoreGroup::kQuads * 32];
  };

  __device__ __forceinline__ ScoreStream(Smem& smem, int lane)
      : s_groups_(ptx::shared_address(&smem.quads[0][0])), lane_(lane) {}

  /// Position of the first score of the first group.
  static __device__ __forceinline__ int first_position(const ScoreSpan& span) { return span.begin / 4 * 4; }

  /// visit(group) for every group of the span, in order, by all lanes.
  template <Deal kDeal, class Visit>
  __device__ __forceinline__ void for_each_group(const ScoreSpan& span, const Visit& visit) const {
    const uint32_t s_copied = s_groups_ + 16 * quad_slot(lane_);
    const uint32_t s_read = kDeal == Deal::kQuads ? s_copied : s_groups_ + 16 * quad_slot(4 * lane_);
    const int begin = first_position(span);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      fetch(span, begin + i * ScoreGroup::kWarpScores, s_copied + i * kGroupBytes);
    }
    uint32_t offset = 0;
#pragma unroll 1
    for (int first = begin; first < span.end; first += ScoreGroup::kWarpScores) {
      ptx::cp_async_wait<kAhead - 1>();
      __syncwarp();
      ScoreGroup group;
      read<kDeal>(s_read + offset, group);
      group.valid = 0xFFFFFFFFU;
      if (first < span.begin || first + ScoreGroup::kWarpScores > span.end) {
        hide_outside<kDeal>(span, first, group);
      }
      __syncwarp();
      fetch(span, first + kAhead * ScoreGroup::kWarpScores, s_copied + offset);
      offset = (offset + kGroupBytes) % (kAhead * kGroupBytes);
      visit(group);
    }
    ptx::cp_async_wait<0>();
    __syncwarp();
  }

 private:
  static constexpr uint32_t kQuadRowBytes = 32 * sizeof(float4);
  static constexpr uint32_t kGroupBytes = ScoreGroup::kQuads * kQuadRowBytes;

  /// Where quad `quad` of a group is.  Quads 4 l of eight lanes l in a row fall on eight different groups of banks, and
  /// so do eight quads in a row.
  static __device__ __forceinline__ uint32_t quad_slot(int quad) {
    return static_cast<uint32_t>(quad ^ (quad / 8 % 4));
  }

  /// Starts to copy the group whose first score is at position `first`; an empty copy past the end.
  __device__ __forceinline__ void fetch(const ScoreSpan& span, int first, uint32_t s_target) const {
    const float* g_quad = span.g_scores + first + 4 * lane_;
    const int left = span.end - first - 4 * lane_;
#pragma unroll
    for (int i = 0; i < ScoreGroup::kQuads; ++i) {
      if (left > 128 * i) {
        ptx::cp_async_16(s_target + i * kQuadRowBytes, g_quad + 128 * i);
      }
    }
    ptx::cp_async_commit();
  }

  template <Deal kDeal>
  static __device__ __forceinline__ void read(uint32_t s_first, ScoreGroup& group) {
#pragma unroll
    for (int i = 0; i < ScoreGroup::kQuads; ++i) {
      const uint32_t s_half = s_first + i / 4 * (kGroupBytes / 2);
      float quad[4];
      ptx::load_shared(kDeal == Deal::kQuads ? s_first + i * kQuadRowBytes : s_half ^ (16U * (i % 4)), quad);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        group.scores[4 * i + j] = quad[j];
      }
    }
  }

  template <Deal kDeal>
  __device__ __forceinline__ void hide_outside(const ScoreSpan& span, int first, ScoreGroup& group) const {
#pragma unroll
    for (int i = 0; i < ScoreGroup::kScores; ++i) {
      const int position = first + ScoreGroup::offset<kDeal>(lane_, i);
      if (position < span.begin || position >= span.end) {
        group.scores[i] = __int_as_float(0x7FFFFFFF);
        group.valid &= ~(1U << i);
      }
    }
  }

  uint32_t s_groups_;
  int lane_;
};

}  // namespace keysieve::device
