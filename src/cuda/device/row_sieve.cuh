// SPDX-License-Identifier: Apache-2.0
// The best scores of a span of scores in global memory, exactly and in order, by one warp.
//
//     sample    a strided part of the span -> a threshold that a bit more than `wanted` scores should reach
//     count     every score into even bins from there on, or the first -> the bin of the wanted-th
//     collect   every score once more: positions of what lies in that bin (near) or above (sure), in order
//     settle    the few near ones by (score, position): the worst go, until `wanted` are left
//
// Whatever sample and bins say, the result is right if fewer than `wanted` scores were sure, at least `wanted` were
// collected, and the near ones are few enough to be compared pair by pair: settle knows, and nothing else is trusted.
// If it fails (a sample that misleads, long runs of equal scores) the ordered bits of the scores (core/ordering.hpp)
// are narrowed by a thousandth at a time to the wanted-th score, which needs no luck, and collect then takes what is
// above it and the first of those that equal it.
//
// What a select warp is short of (docs/performance.md): it shares its scheduler with two math warps, which leave it an
// instruction in four cycles; their loop fills the instruction cache, so that a taken branch costs forty; and the
// operands of the tensor cores leave a quarter of the shared memory's bandwidth.  Hence one warp a row (no barriers);
// long bodies without branches, of independent instructions; and nothing stored a score but what is needed.
#pragma once

#include <cstdint>

#include "core/ordering.hpp"
#include "cuda/device/score_histogram.cuh"
#include "cuda/device/score_span.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::device {

/// Which scores to collect: those that reach `sure`, and of those in [least, sure) the first `near` or, if kBest, the
/// best.
struct ScoreCut {
  static constexpr int kAll = 0x7FFFFFFF;
  static constexpr int kBest = -1;

  float least;  // NaN: everything, NaN too
  float sure;
  int near;

  static __device__ __forceinline__ ScoreCut everything() { return {nan(), nan(), kAll}; }
  /// What reaches ordered bits `least`.
  static __device__ __forceinline__ ScoreCut reaching(uint32_t least) {
    // Between NaN and -inf lies no score; beyond +inf neither.
    const float infinity = score_of_ordered_bits(kOrderedInfinity);
    return least > kOrderedInfinity
               ? ScoreCut{infinity, nan(), 0}
               : ScoreCut{score_of_ordered_bits(max(least, kOrderedNegativeInfinity)), nan(), kAll};
  }
  /// The first `left` of `count` scores with these ordered bits, and what is above.
  static __device__ __forceinline__ ScoreCut at(uint32_t ordered, uint32_t left, uint32_t count) {
    return {score_of_ordered_bits(ordered),
            ordered < kOrderedInfinity ? score_of_ordered_bits(max(ordered + 1, kOrderedNegativeInfinity)) : nan(),
            left == count ? kAll : static_cast<int>(left)};
  }

  /// Reached by no score.
  static __device__ __forceinline__ float nan() { return __int_as_float(0x7FFFFFFF); }
};

/// Collected positions, kItems a lane: item j has slot first_slot + 32 j.
template <int kItems_>
struct CollectedBatch {
  static constexpr int kItems = kItems_;

  int first_slot;
  int count;  // of the whole collection
  int positions[kItems];

  [[nodiscard]] __device__ __forceinline__ int slot(int j) const { return first_slot + 32 * j; }
  [[nodiscard]] __device__ __forceinline__ bool holds(int j) const { return slot(j) < count; }
};

class RowSieve {
 public:
  static constexpr int kMaxCollected = 8192;
  static constexpr int kMaxNear = 64;  // compared pair by pair

  struct Smem {
    ScoreStream::Smem stream;
    Histogram::Smem histogram;
    alignas(16) uint16_t order[kMaxCollected];  // positions
    alignas(16) uint64_t near_keys[kMaxNear];   // greater: better
    uint16_t near_slots[kMaxNear];              // in `order`
    uint32_t num_near;
  };

  __device__ __forceinline__ RowSieve(Smem& smem, int lane)
      : s_(smem), stream_(smem.stream, lane), histogram_(smem.histogram, lane), lane_(lane) {}

  /// Once, before anything else.
  __device__ __forceinline__ void initialise() const { histogram_.clear(); }

  /// Collects the positions of what the cut takes, at most kMaxCollected, in order, and returns how many.
  ///
  /// wanted > 0: instead the best `wanted` scores of the span, which has more, among equal ones the first; *last are
  /// the ordered bits of the worst; *repaired: the sample misled.  By all lanes.
  __device__ __forceinline__ int collect(const ScoreSpan& span, ScoreCut cut, int wanted, uint32_t* last,
                                         bool* repaired) const {
    *repaired = wanted > 0 && !guess(span, wanted, &cut);
#pragma unroll 1
    for (;;) {
      if (*repaired) {
        cut = narrow(span, wanted, last);
      }
      int count = pass(span, cut);
      if (cut.near != ScoreCut::kBest || settle(span, wanted, &count, last)) {
        return count;
      }
      *repaired = true;
    }
  }

  /// visit(batch) for what the last call collected.
  template <int kItems, class Visit>
  __device__ __forceinline__ void for_each_collected(int count, const Visit& visit) const {
#pragma unroll 1
    for (int first = 0; first < count; first += 32 * kItems) {
      CollectedBatch<kItems> batch = {first + lane_, count, {}};
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        batch.positions[j] = batch.holds(j) ? s_.order[batch.slot(j)] : 0;
      }
      visit(batch);
    }
    __syncwarp();
  }

 private:
  static constexpr uint16_t kGap = 0xFFFF;  // of no position

  // ---- sample and count ----

  static constexpr int kSampleQuads = 8;  // of a lane
  static constexpr int kSampleSize = 4 * kSampleQuads * 32;
  static constexpr int kSampleRounds = 4;
  static constexpr uint32_t kFewSampled = 8;

  struct Sampled {
    float threshold;
    float least;
    float greatest;
  };

  /// A score that somewhat more than `wanted` of the span should reach.
  __device__ __forceinline__ Sampled sample(const ScoreSpan& span, int wanted) const {
    const float infinity = score_of_ordered_bits(kOrderedInfinity);
    const auto whole_quads = static_cast<uint32_t>(max(span.end / 4 - (span.begin + 3) / 4, 0));
    const auto* g_first = reinterpret_cast<const float4*>(span.g_scores) + (span.begin + 3) / 4;
#pragma unroll
    for (int i = 0; i < kSampleQuads; ++i) {  // quads spread evenly
      const uint32_t quad = whole_quads * static_cast<uint32_t>(32 * i + lane_) / (32 * kSampleQuads);
      ptx::cp_async_16(ptx::shared_address(&s_.stream.quads[0][32 * i + lane_]), g_first + quad);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    float least = infinity;
    float greatest = -infinity;
    for_each_sampled([&](float score) {
      least = fminf(least, score);
      greatest = fmaxf(greatest, score);
    });
    least = score_of_ordered_bits(__reduce_min_sync(ptx::kAllLanes, ordered_bits(least)));
    greatest = score_of_ordered_bits(__reduce_max_sync(ptx::kAllLanes, ordered_bits(greatest)));

    // `expected` of the sample are among the best; 3.5 standard deviations more, and some for small numbers.
    const float expected = static_cast<float>(wanted) / static_cast<float>(span.size()) * kSampleSize;
    const float rank = expected + 3.5F * sqrtf(expected) + 4.0F;
    if (rank >= kSampleSize) {
      return {-infinity, least, greatest};
    }
    // Outliers stretch the bins: then once more, and again, within the bin that was found.  What lies outside still
    // counts, in the first or last bin, so the rank stays.
    float low = least;
    float high = greatest;
#pragma unroll 1
    for (int round = 0; round < kSampleRounds; ++round) {
      const ScoreBins bins = ScoreBins::between(low, high);
      for_each_sampled([&](float score) { histogram_.add(bins, score); });
      const FoundBin found = histogram_.find(static_cast<uint32_t>(rank));
      const ScoreBins::Edges edges = ScoreBins::edges(low, high, found.bin);
      low = edges.low;
      high = edges.high;
      if (found.count <= kFewSampled || !(low < high)) {
        break;
      }
    }
    return {low, least, greatest};
  }

  /// visit(score) for those of the sample that the lane copied.
  template <class Visit>
  __device__ __forceinline__ void for_each_sampled(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kSampleQuads; ++i) {
      const float4 quad = s_.stream.quads[0][32 * i + lane_];
      visit(quad.x);
      visit(quad.y);
      visit(quad.z);
      visit(quad.w);
    }
  }

  /// Looks for the wanted-th score: cut.near == kBest.  False if there is no use in trying.
  __device__ __forceinline__ bool guess(const ScoreSpan& span, int wanted, ScoreCut* cut) const {
    const Sampled sampled = sample(span, wanted);
    const float low = fmaxf(sampled.threshold, sampled.least);
    const ScoreBins bins = ScoreBins::between(low, sampled.greatest);
    stream_.for_each_group<Deal::kQuads>(span, [&](const ScoreGroup& group) {
#pragma unroll
      for (const float score : group.scores) {
        histogram_.add(bins, score);  // below the threshold: the first bin
      }
    });
    const FoundBin found = histogram_.find(static_cast<uint32_t>(wanted));
    const ScoreBins::Edges edges = ScoreBins::edges(low, sampled.greatest, found.bin);
    cut->least = found.bin == 0 ? sampled.threshold : edges.low;
    cut->sure = found.bin == ScoreBins::kBins - 1 ? ScoreCut::nan() : edges.high;
    cut->near = ScoreCut::kBest;
    return found.count > 0 && found.count <= kMaxNear;
  }

  // ---- collect ----

  /// One look at every score; the near ones are noted if the best of them are wanted.
  __device__ __forceinline__ int pass(const ScoreSpan& span, const ScoreCut& cut) const {
    if (lane_ == 0) {
      s_.num_near = 0;
    }
    __syncwarp();
    const bool everything = cut.least != cut.least;
    uint32_t position =
        static_cast<uint32_t>(ScoreStream::first_position(span) + ScoreGroup::offset<Deal::kRuns>(lane_, 0));
    int count = 0;
    int first_left = cut.near;
    stream_.for_each_group<Deal::kRuns>(span, [&](const ScoreGroup& group) {
      uint32_t picked = mask_of(group, [&](float score) { return score >= cut.least; });
      picked = everything ? group.valid : picked;
      uint32_t near = 0;
      if (cut.near != ScoreCut::kAll) {
        near = picked & ~mask_of(group, [&](float score) { return score >= cut.sure; });
        if (cut.near != ScoreCut::kBest) {
          picked &= ~without_first(near, first_left);
          near = 0;
        }
      }
      const HalfRanks ranks = rank_halves(picked);
      const uint32_t s_order = ptx::shared_address(s_.order) + sizeof(uint16_t) * static_cast<uint32_t>(count);
      const uint32_t s_low = s_order + sizeof(uint16_t) * ranks.before_low;
      const uint32_t s_high = s_order + sizeof(uint16_t) * ranks.before_high;
      store_positions(picked & 0xFFFFU, s_low, position);
      store_positions(picked >> 16, s_high, position + ScoreGroup::kHalfScores);
      if (__any_sync(ptx::kAllLanes, near != 0) != 0) {
#pragma unroll 1
        for (; near != 0; near &= near - 1) {
          const uint32_t below = picked & ((near & (0U - near)) - 1);
          const bool low = (near & 0xFFFFU) != 0;
          const uint32_t slot = static_cast<uint32_t>(count) + (low ? ranks.before_low : ranks.before_high) +
                                static_cast<uint32_t>(__popc(low ? below : below >> 16));
          const uint32_t i = atomicAdd(&s_.num_near, 1U);
          if (i < kMaxNear) {
            s_.near_slots[i] = static_cast<uint16_t>(slot);
          }
        }
        __syncwarp();
      }
      count += static_cast<int>(ranks.total);
      position += ScoreGroup::kWarpScores;
    });
    return count;
  }

  /// Bit i: `belongs` holds for score i of the lane.
  template <class Belongs>
  static __device__ __forceinline__ uint32_t mask_of(const ScoreGroup& group, const Belongs& belongs) {
    uint32_t parts[4] = {};  // four chains of instructions instead of one
#pragma unroll
    for (int i = 0; i < ScoreGroup::kScores; ++i) {
      parts[i % 4] |= belongs(group.scores[i]) ? 1U << i : 0U;
    }
    return (parts[0] | parts[1]) | (parts[2] | parts[3]);
  }

  /// Where the entries of a lane's mask stand among those of the warp: first halves of all lanes, then second halves.
  struct HalfRanks {
    uint32_t before_low;   // entries before the lane's first of the first half
    uint32_t before_high;  // and of the second
    uint32_t total;
  };
  static __device__ __forceinline__ HalfRanks rank_halves(uint32_t mask) {
    const auto counts = static_cast<uint32_t>(__popc(mask & 0xFFFFU) | __popc(mask >> 16) << 16);
    const uint32_t before = ptx::sum_of_lanes_before(counts);
    const uint32_t totals = __shfl_sync(ptx::kAllLanes, before + counts, 31);
    const uint32_t total_low = totals & 0xFFFFU;
    return {before & 0xFFFFU, total_low + (before >> 16), total_low + (totals >> 16)};
  }

  /// The mask's entries but for the first `left` of the warp's, which is counted down.
  static __device__ __forceinline__ uint32_t without_first(uint32_t mask, int& left) {
    const HalfRanks ranks = rank_halves(mask);
    uint32_t low = mask & 0xFFFFU;
    uint32_t high = mask & 0xFFFF0000U;
#pragma unroll 1
    for (int skip = left - static_cast<int>(ranks.before_low); skip > 0 && low != 0; --skip) {
      low &= low - 1;
    }
#pragma unroll 1
    for (int skip = left - static_cast<int>(ranks.before_high); skip > 0 && high != 0; --skip) {
      high &= high - 1;
    }
    left = max(left - static_cast<int>(ranks.total), 0);
    return low | high;
  }

  /// Stores positions first + i of the mask's 16 bits i one after the other.
  static __device__ __forceinline__ void store_positions(uint32_t mask, uint32_t s_next, uint32_t first) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t bit = mask & (1U << i);
      if (bit != 0) {
        ptx::store_shared(s_next, static_cast<uint16_t>(first + static_cast<uint32_t>(i)));
      }
      s_next += i == 0 ? bit * 2 : bit >> (i - 1);
    }
  }

  // ---- settle ----

  /// Removes the worst of the near ones until `wanted` are left.  False, and nothing is changed, if the best `wanted`
  /// are not among those collected or cannot be told.
  __device__ __forceinline__ bool settle(const ScoreSpan& span, int wanted, int* count, uint32_t* last) const {
    const uint32_t num_near = s_.num_near;
    const uint32_t sure = static_cast<uint32_t>(*count) - num_near;
    const uint32_t left = static_cast<uint32_t>(wanted) - sure;  // of the near ones
    if (num_near > kMaxNear || sure >= static_cast<uint32_t>(wanted) || left > num_near) {
      return false;
    }
#pragma unroll 1
    for (auto i = static_cast<uint32_t>(lane_); i < num_near; i += 32) {
      const uint32_t slot = s_.near_slots[i];
      const uint64_t ordered = ordered_bits(span.score(s_.order[slot]));
      s_.near_keys[i] = ordered << 32 | (0xFFFFFFFFU - slot);
    }
    __syncwarp();
    int first_gap = *count;
    uint32_t worst = 0xFFFFFFFFU;  // of those that stay
#pragma unroll 1
    for (auto i = static_cast<uint32_t>(lane_); i < num_near; i += 32) {
      const uint64_t mine = s_.near_keys[i];
      uint32_t better = 0;
#pragma unroll 4
      for (uint32_t other = 0; other < num_near; ++other) {
        better += s_.near_keys[other] > mine ? 1U : 0U;
      }
      if (better >= left) {
        const int slot = s_.near_slots[i];
        s_.order[slot] = kGap;
        first_gap = min(first_gap, slot);
      } else {
        worst = min(worst, static_cast<uint32_t>(mine >> 32));
      }
    }
    *last = __reduce_min_sync(ptx::kAllLanes, worst);
    __syncwarp();
    if (left < num_near) {
      close_gaps(static_cast<int>(__reduce_min_sync(ptx::kAllLanes, static_cast<uint32_t>(first_gap))), *count);
      *count = wanted;
    }
    return true;
  }

  /// Closes up the collected positions from the first gap on.
  __device__ __forceinline__ void close_gaps(int first_gap, int count) const {
    constexpr int kRows = 8;
    const uint32_t lanes_before = (1U << lane_) - 1;
    int target = first_gap;
#pragma unroll 1
    for (int first = first_gap; first < count; first += 32 * kRows) {
      uint16_t positions[kRows];
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int slot = first + 32 * j + lane_;
        positions[j] = slot < count ? s_.order[slot] : kGap;
      }
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const uint32_t stay = __ballot_sync(ptx::kAllLanes, positions[j] != kGap);
        if (positions[j] != kGap) {
          s_.order[target + __popc(stay & lanes_before)] = positions[j];
        }
        target += __popc(stay);
      }
      __syncwarp();
    }
  }

  // ---- narrow ----

  /// The cut at the wanted-th score of the span, whatever the data: a histogram of ordered bits a thousandth as wide
  /// each time.
  __device__ __forceinline__ ScoreCut narrow(const ScoreSpan& span, int wanted, uint32_t* last) const {
    uint32_t low = kOrderedNan;
    uint32_t high = kOrderedInfinity;
    auto left = static_cast<uint32_t>(wanted);  // to be picked from [low, high]
    uint32_t count = 0;                         // of it
#pragma unroll 1
    while (low < high) {
      const uint32_t width = high - low;
      const int shift = max(0, 22 - __clz(static_cast<int>(width)));
      stream_.for_each_group<Deal::kQuads>(span, [&](const ScoreGroup& group) {
#pragma unroll
        for (int i = 0; i < ScoreGroup::kScores; ++i) {
          const uint32_t distance = ordered_bits(group.scores[i]) - low;
          if ((group.valid >> i & 1U) != 0 && distance <= width) {
            histogram_.add(distance >> shift);
          }
        }
      });
      const FoundBin found = histogram_.find(left);
      left -= found.above;
      count = found.count;
      low += found.bin << shift;
      high = min(high, low + ((1U << shift) - 1U));
    }
    *last = low;
    return ScoreCut::at(low, left, count);
  }

  Smem& s_;
  ScoreStream stream_;
  Histogram histogram_;
  int lane_;
};

}  // namespace keysieve::device
