// SPDX-License-Identifier: Apache-2.0
// The best scores of a span of scores in global memory, exactly and in order, by one warp.
//
//     sample    a strided part of the span -> a threshold that a bit more than `wanted` scores should reach
//     count     every score into even bins from there on, or the first -> the bin of the wanted-th
//     mark      every score once more: a bit for what lies in that bin (near) or above (sure)
//     settle    the few near ones by (score, position): the worst lose their bits, until `wanted` are left
//     list      the bits' positions, in order
//
// Whatever sample and bins say, the result is right if fewer than `wanted` scores were sure, at least `wanted` were
// marked, and the near ones are few enough to be compared pair by pair: settle knows, and nothing else is trusted.
// If it fails (a sample that misleads, long runs of equal scores) the ordered bits of the scores (core/ordering.hpp)
// are narrowed by a thousandth at a time to the wanted-th score, which needs no luck, and mark then takes what is
// above it and the first of those that equal it.
//
// What a select warp is short of (docs/fused_sm90.md): it shares its scheduler with two math warps, which leave it few
// issue slots; their loop fills the instruction cache, so that a taken branch is dear; and the operands of the tensor
// cores leave a part of the shared memory's bandwidth.  Hence one warp a row (no barriers); long bodies without
// branches, of independent instructions; and nothing stored a score but what is needed.
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

  /// Reached by no score, and above none.
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

/// Collected positions, kQuads times four a lane: quad j has the slots from first_slot + 128 j on.  Positions past the
/// count are any.
template <int kQuads_>
struct CollectedQuads {
  static constexpr int kQuads = kQuads_;

  int first_slot;
  int count;  // of the whole collection
  uint2 positions[kQuads];

  [[nodiscard]] __device__ __forceinline__ int slot(int j) const { return first_slot + 128 * j; }
  [[nodiscard]] __device__ __forceinline__ int position(int j, int i) const {
    const uint32_t pair = i < 2 ? positions[j].x : positions[j].y;
    return static_cast<int>(i % 2 == 0 ? pair & 0xFFFFU : pair >> 16U);
  }
};

class RowSieve {
 public:
  static constexpr int kMaxCollected = 8192;
  static constexpr int kMaxGroups = 16;  // of a span
  static constexpr int kMaxNear = 64;    // compared pair by pair

  struct Smem {
    ScoreStream::Smem stream;
    Histogram::Smem histogram;
    alignas(16) uint32_t marks[kMaxGroups][32];  // bit i of word w: position 32 w + i from the first
    alignas(16) uint16_t order[kMaxCollected];   // positions
    alignas(16) uint64_t near_keys[kMaxNear];    // greater: better
    uint16_t near_positions[kMaxNear];
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
      int count = mark(span, cut);
      if (cut.near != ScoreCut::kBest || settle(span, wanted, &count, last)) {
        list(span);
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
  /// The same, four slots at a time a lane.
  template <int kQuads, class Visit>
  __device__ __forceinline__ void for_each_collected_quad(int count, const Visit& visit) const {
#pragma unroll 1
    for (int first = 0; first < count; first += 128 * kQuads) {
      CollectedQuads<kQuads> batch = {first + 4 * lane_, count, {}};
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        if (batch.slot(j) < count) {
          batch.positions[j] = *reinterpret_cast<const uint2*>(&s_.order[batch.slot(j)]);
        }
      }
      visit(batch);
    }
    __syncwarp();
  }

 private:
  // ---- sample and count ----

  static constexpr int kSampleQuads = 4;  // of a lane
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

  // ---- mark ----

  /// One look at every score -> marks; the near ones are noted if the best of them are wanted.  Returns how many.
  __device__ __forceinline__ int mark(const ScoreSpan& span, const ScoreCut& cut) const {
    if (lane_ == 0) {
      s_.num_near = 0;
    }
    __syncwarp();
    const bool everything = cut.least != cut.least;
    const Reaching least(cut.least);
    const Reaching sure(cut.sure);
    uint32_t s_marks = ptx::shared_address(&s_.marks[0][0]) + sizeof(uint16_t) * static_cast<uint32_t>(lane_);
    int group_number = 0;
    int first_left = cut.near;
    uint32_t mine = 0;
    stream_.for_each_group<Deal::kRuns>(span, [&](const ScoreGroup& group) {
      uint32_t picked = least.mask(group);
      picked = everything ? group.valid : picked;
      if (cut.near != ScoreCut::kAll) {
        const uint32_t near = picked & ~sure.mask(group);
        if (cut.near == ScoreCut::kBest) {
          note_near(near, ScoreGroup::kWarpScores * group_number);
        } else {
          picked &= ~without_first(near, first_left);
        }
      }
      ptx::store_shared(s_marks, static_cast<uint16_t>(picked));
      ptx::store_shared(s_marks + 32 * sizeof(uint16_t), static_cast<uint16_t>(picked >> 16));
      s_marks += sizeof(s_.marks[0]);
      mine += static_cast<uint32_t>(__popc(picked));
      ++group_number;
    });
    return static_cast<int>(__reduce_add_sync(ptx::kAllLanes, mine));
  }

  /// Notes positions of a lane's mask, from the span's first.
  __device__ __forceinline__ void note_near(uint32_t near, int group_position) const {
#pragma unroll 1
    for (; near != 0; near &= near - 1) {
      const int i = __ffs(static_cast<int>(near)) - 1;
      const uint32_t entry = atomicAdd(&s_.num_near, 1U);
      if (entry < kMaxNear) {
        s_.near_positions[entry] = static_cast<uint16_t>(group_position + ScoreGroup::offset<Deal::kRuns>(lane_, i));
      }
    }
    __syncwarp();
  }

  /// Which scores of a group reach a threshold; none reach NaN.  Two instructions a score: the sign of the difference
  /// to the next lower threshold (positive for NaN) is shifted into the mask; no predicates, of which there are few.
  class Reaching {
   public:
    __device__ __forceinline__ explicit Reaching(float threshold)
        : below_(next_below(threshold)), all_numbers_(threshold == score_of_ordered_bits(kOrderedNegativeInfinity)) {}

    /// Bit i: score i of the lane does.
    [[nodiscard]] __device__ __forceinline__ uint32_t mask(const ScoreGroup& group) const {
      uint32_t bytes[4] = {};  // four chains of instructions instead of one
#pragma unroll
      for (int i = 7; i >= 0; --i) {
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) {
          const float difference = __fsub_rn(below_, group.scores[8 * byte + i]);
          bytes[byte] = __funnelshift_l(__float_as_uint(difference), bytes[byte], 1);
        }
      }
      const uint32_t above = (bytes[0] | bytes[1] << 8) | (bytes[2] << 16 | bytes[3] << 24);
      return all_numbers_ ? numbers(group) : above;
    }

   private:
    /// The greatest score that is lower; for -inf and NaN: NaN, above which the sign finds nothing.
    static __device__ __forceinline__ float next_below(float score) {
      const uint32_t ordered = ordered_bits(score);
      const uint32_t zero = ordered_bits(0.0F);
      return score_of_ordered_bits(ordered - (ordered == zero ? 2 : 1));  // zero has two places in the order of bits
    }

    /// Bit i: score i of the lane is not NaN.
    static __device__ __forceinline__ uint32_t numbers(const ScoreGroup& group) {
      uint32_t mask = 0;
#pragma unroll
      for (int i = 0; i < ScoreGroup::kScores; ++i) {
        mask |= group.scores[i] == group.scores[i] ? 1U << i : 0U;
      }
      return mask;
    }

    float below_;
    bool all_numbers_;  // -inf
  };

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

  // ---- settle ----

  /// Takes the marks of the worst near ones until `wanted` are left.  False, and nothing is changed, if the best
  /// `wanted` are not among those marked or cannot be told.
  __device__ __forceinline__ bool settle(const ScoreSpan& span, int wanted, int* count, uint32_t* last) const {
    const uint32_t num_near = s_.num_near;
    const uint32_t sure = static_cast<uint32_t>(*count) - num_near;
    const uint32_t left = static_cast<uint32_t>(wanted) - sure;  // of the near ones
    if (num_near > kMaxNear || sure >= static_cast<uint32_t>(wanted) || left > num_near) {
      return false;
    }
    const int first = ScoreStream::first_position(span);
#pragma unroll 1
    for (auto i = static_cast<uint32_t>(lane_); i < num_near; i += 32) {
      const uint32_t position = s_.near_positions[i];
      const uint64_t ordered = ordered_bits(span.score(first + static_cast<int>(position)));
      s_.near_keys[i] = ordered << 32 | (0xFFFFFFFFU - position);
    }
    __syncwarp();
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
        const uint32_t position = s_.near_positions[i];
        atomicAnd(&s_.marks[0][0] + position / 32, ~(1U << position % 32));
      } else {
        worst = min(worst, static_cast<uint32_t>(mine >> 32));
      }
    }
    *last = __reduce_min_sync(ptx::kAllLanes, worst);
    *count = wanted;
    __syncwarp();
    return true;
  }

  // ---- list ----

  /// Marks -> positions in order.  A lane lists a word of each of two groups from their last bits on.
  __device__ __forceinline__ void list(const ScoreSpan& span) const {
    const int first = ScoreStream::first_position(span);
    const int num_groups = (span.end - first + ScoreGroup::kWarpScores - 1) / ScoreGroup::kWarpScores;
    uint32_t s_order = ptx::shared_address(s_.order);
    uint32_t position = static_cast<uint32_t>(first + 32 * lane_);
#pragma unroll 1
    for (int group = 0; group < num_groups; group += 2) {
      Word words[2] = {
          {s_.marks[group][lane_], 0, position},
          {group + 1 < num_groups ? s_.marks[group + 1][lane_] : 0, 0, position + ScoreGroup::kWarpScores}};
      const auto counts = static_cast<uint32_t>(__popc(words[0].bits) | __popc(words[1].bits) << 16);
      const uint32_t upto = ptx::sum_of_lanes_before(counts) + counts;
      const uint32_t totals = __shfl_sync(ptx::kAllLanes, upto, 31);
      words[0].s_end = s_order + sizeof(uint16_t) * (upto & 0xFFFFU);
      s_order += sizeof(uint16_t) * (totals & 0xFFFFU);
      words[1].s_end = s_order + sizeof(uint16_t) * (upto >> 16);
      s_order += sizeof(uint16_t) * (totals >> 16);
#pragma unroll 1
      while (__any_sync(ptx::kAllLanes, (words[0].bits | words[1].bits) != 0) != 0) {
#pragma unroll
        for (int i = 0; i < 2 * kListedAtOnce; ++i) {
          words[i % 2].list_last();
        }
      }
      position += 2 * ScoreGroup::kWarpScores;
    }
    __syncwarp();
  }
  static constexpr int kListedAtOnce = 4;  // of a word, between branches

  /// 32 marks of which the last are still to be listed.
  struct Word {
    uint32_t bits;
    uint32_t s_end;     // where the list of its positions ends
    uint32_t position;  // of bit 0

    __device__ __forceinline__ void list_last() {
      const uint32_t bit = 31U - static_cast<uint32_t>(__clz(static_cast<int>(bits)));
      const uint32_t s_slot = s_end - sizeof(uint16_t);
      if (bits != 0) {
        ptx::store_shared(s_slot, static_cast<uint16_t>(position + bit));
      }
      s_end = bits != 0 ? s_slot : s_end;
      bits &= ~(1U << (bit % 32));
    }
  };

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
