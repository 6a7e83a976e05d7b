// SPDX-License-Identifier: Apache-2.0
// Exact selection among candidates that lie in shared memory in ascending key order, by one group of threads.
//
// Scores are compared as ordered bits (core/ordering.hpp).  find_cut narrows an interval [low, high] that holds the
// wanted rank: each round spreads the interval over kBins linear bins, so candidates that passed a threshold, which lie
// in a narrow interval, are resolved to a handful by one round.  At most four rounds whatever the values:
// a round leaves an interval of 1/kBins of the one before, and 2^32 < kBins^4.
//
//     list       k k k k k k k k k k ...  ascending key order, so equal scores are in tie order
//     find_cut   -> Cut: picked = { ordered > cut.ordered } and those equal to it up to position tie_end
//     for_each_picked(list, cut): stable, slot = rank by key order
//
// All threads of the group call every function together.  Arguments must be the same in all of them.
#pragma once

#include <cstdint>

#include "core/ordering.hpp"

namespace keysieve::device {

/// All threads of a CTA; `thread` is threadIdx.x.
template <int kThreads_>
class CtaGroup {
 public:
  static constexpr int kThreads = kThreads_;
  explicit __device__ __forceinline__ CtaGroup(int thread) : thread_(thread) {}
  [[nodiscard]] __device__ __forceinline__ int thread() const { return thread_; }
  __device__ __forceinline__ void sync() const { __syncthreads(); }

 private:
  int thread_;
};

/// A list of candidates: parallel arrays, ascending in `s_indices`.
struct CandidateList {
  uint32_t* s_ordered;  // ordered bits of the score
  int32_t* s_indices;   // row-relative index of the key
};

/// Smallest and largest ordered score of a list.
struct OrderedInterval {
  uint32_t low = 0;
  uint32_t high = 0;
};

/// Which candidates are picked.
struct Cut {
  uint32_t ordered = 0;
  int32_t tie_end = 0;  // positions below it are picked when their score equals the cut's

  __device__ __forceinline__ bool picks(uint32_t candidate, int position) const {
    return candidate > ordered || (candidate == ordered && position < tie_end);
  }
};

template <class Group>
class BlockSelect {
 public:
  static constexpr int kThreads = Group::kThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kBins = 1024;
  static constexpr int kBinBits = 10;
  static constexpr int kBinsPerThread = kBins / kThreads;
  static constexpr int kSmall = 32;  // an interval of so few candidates is ranked by comparing all pairs
  static_assert(kBins % kThreads == 0 && kWarps <= 32);

  struct Smem {
    alignas(16) uint32_t histogram[kBins];  // zero between calls
    uint32_t warp_low[kWarps];              // order_scores: least and
    uint32_t warp_high[kWarps];             // greatest of each warp
    uint32_t warp_bins[kWarps];             // find_bin: candidates in each warp's bins
    uint32_t warp_counts[kWarps];           // exclusive_warp_sum
    uint32_t small[kSmall];                 // candidates of the last interval
    uint32_t small_count;
    uint32_t bin;          // the bin that holds the wanted rank,
    uint32_t bin_above;    // candidates above it
    uint32_t bin_count;    // and in it
    uint32_t cut_ordered;  // rank_small: the cut's score,
    uint32_t cut_needed;   // how many with that score are picked,
    uint32_t cut_ties;     // of how many
    int32_t tie_end;
  };

  __device__ __forceinline__ BlockSelect(Group group, Smem& smem)
      : group_(group),
        s_(smem),
        thread_(group.thread()),
        lane_(thread_ & 31),
        warp_(static_cast<int>(static_cast<uint32_t>(thread_) / 32U)) {}

  /// Once, before anything else; ends with a barrier.
  __device__ __forceinline__ void initialise() {
#pragma unroll 1
    for (int i = thread_; i < kBins; i += kThreads) {
      s_.histogram[i] = 0;
    }
    group_.sync();
  }

  /// Turns the raw floats at [raw_begin, raw_end) into ordered bits; returns the interval of [0, count).  count >= 1.
  /// s_scores is 16-byte aligned and has room for a multiple of four (so everywhere).
  /// Begins with a barrier; the list may be read after it.
  __device__ __forceinline__ OrderedInterval order_scores(uint32_t* s_scores, int raw_begin, int raw_end, int count) {
    group_.sync();
    OrderedInterval interval{0xFFFFFFFFU, 0};
    const auto order_score = [&](uint32_t& value, int i) {
      value = i >= raw_begin && i < raw_end ? ordered_bits(__uint_as_float(value)) : value;
      interval.low = min(interval.low, i < count ? value : 0xFFFFFFFFU);
      interval.high = max(interval.high, i < count ? value : 0U);
    };
#pragma unroll 1  // here and below: code that runs once a row costs more in instruction fetches than in loop overhead
    for (int i = 4 * thread_; i < count; i += 4 * kThreads) {
      auto& s_quad = *reinterpret_cast<uint4*>(s_scores + i);
      uint4 quad = s_quad;
      order_score(quad.x, i);
      order_score(quad.y, i + 1);
      order_score(quad.z, i + 2);
      order_score(quad.w, i + 3);
      s_quad = quad;
    }
    interval.low = __reduce_min_sync(kFullMask, interval.low);
    interval.high = __reduce_max_sync(kFullMask, interval.high);
    if (lane_ == 0) {
      s_.warp_low[warp_] = interval.low;
      s_.warp_high[warp_] = interval.high;
    }
    if (thread_ == 0) {
      s_.small_count = 0;
    }
    group_.sync();
    interval.low = __reduce_min_sync(kFullMask, s_.warp_low[lane_ % kWarps]);
    interval.high = __reduce_max_sync(kFullMask, s_.warp_high[lane_ % kWarps]);
    return interval;
  }

  /// The cut that picks `rank` of the list's first `count` candidates, 1 <= rank <= count; `interval` holds them all.
  /// Follows a barrier; ends without one, but nobody reads the list any more unless equal scores are cut.
  __device__ __forceinline__ Cut find_cut(const uint32_t* s_ordered, int count, int rank, OrderedInterval interval) {
    auto wanted = static_cast<uint32_t>(rank);       // rank inside the interval
    auto population = static_cast<uint32_t>(count);  // candidates inside the interval
#pragma unroll 1
    while (interval.low != interval.high) {
      if (population <= kSmall) {
        return rank_small(s_ordered, count, wanted, population, interval);
      }
      const uint32_t span = interval.high - interval.low;
      const int shift = max(0, 32 - __clz(static_cast<int>(span)) - kBinBits);
      count_bins(s_ordered, count, interval.low, span, shift);
      find_bin(wanted);
      wanted -= s_.bin_above;
      population = s_.bin_count;
      interval.low += s_.bin << shift;
      interval.high = min(interval.high, interval.low + ((1U << shift) - 1U));
    }
    return break_ties(s_ordered, count, interval.low, wanted, population);
  }

  /// Calls visit(slot, position) for every picked candidate; slots ascend with positions.  Returns nothing; the caller
  /// knows how many are picked.  Follows a barrier; no barrier at the end.
  template <class Visit>
  __device__ __forceinline__ void for_each_picked(const uint32_t* s_ordered, int count, Cut cut, Visit visit) {
    const WarpSpan span = warp_span(count);
    int total;
    int slot = exclusive_warp_sum(count_if(span, [&](int i) { return cut.picks(s_ordered[i], i); }), total);
    constexpr int kBatch = 4;  // so many loads in flight
#pragma unroll 1
    for (int base = span.begin; base < span.end; base += 32 * kBatch) {
      uint32_t ordered[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int position = base + 32 * b + lane_;
        ordered[b] = position < span.end ? s_ordered[position] : 0;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int position = base + 32 * b + lane_;
        const bool picked = position < span.end && cut.picks(ordered[b], position);
        const uint32_t ballot = __ballot_sync(kFullMask, picked);
        if (picked) {
          visit(slot + __popc(ballot & lanes_below()), position);
        }
        slot += __popc(ballot);
      }
    }
  }

  /// Moves the picked candidates to the front of the list, keeping their order.  Follows a barrier, ends with one.
  __device__ __forceinline__ void compact(CandidateList list, int count, Cut cut) {
    int kept = 0;
#pragma unroll 1
    for (int base = 0; base < count; base += kThreads) {
      const int position = base + thread_;
      const uint32_t ordered = position < count ? list.s_ordered[position] : 0;
      const int32_t index = position < count ? list.s_indices[position] : 0;
      const bool picked = position < count && cut.picks(ordered, position);
      const uint32_t ballot = __ballot_sync(kFullMask, picked);
      int total;
      const int before = exclusive_warp_sum(__popc(ballot), total);  // its barrier ends the reads of this round
      if (picked) {
        const int slot = kept + before + __popc(ballot & lanes_below());
        list.s_ordered[slot] = ordered;
        list.s_indices[slot] = index;
      }
      kept += total;
      group_.sync();
    }
  }

  /// Sorts the list: best first, equal scores by lower index.  The list has room for the next power of two of `count`.
  /// Follows a barrier, ends with one.
  __device__ __forceinline__ void sort_by_score(CandidateList list, int count) {
    int size = 1;
    while (size < count) {
      size *= 2;
    }
#pragma unroll 1
    for (int i = count + thread_; i < size; i += kThreads) {
      list.s_ordered[i] = 0;
      list.s_indices[i] = INT32_MAX;
    }
    group_.sync();
    for (int run = 2; run <= size; run *= 2) {
      for (int distance = run / 2; distance > 0; distance /= 2) {
#pragma unroll 1
        for (int i = thread_; i < size / 2; i += kThreads) {
          const int a = 2 * i - (i & (distance - 1));
          exchange(list, a, a + distance, (a & run) == 0);
        }
        group_.sync();
      }
    }
  }

 private:
  static constexpr uint32_t kFullMask = 0xFFFFFFFFU;

  struct WarpSpan {
    int begin;
    int end;
  };

  __device__ __forceinline__ uint32_t lanes_below() const {
    return (1U << lane_) - 1U;
  }

  /// Contiguous part of a list that belongs to this warp.
  __device__ __forceinline__ WarpSpan warp_span(int count) const {
    const int per_warp = (count + kThreads - 1) / kThreads * 32;
    const int begin = min(warp_ * per_warp, count);
    return {begin, min(begin + per_warp, count)};
  }

  /// visit(ordered, present) for the list and up to three more, four at a time; in no order.
  template <class Visit>
  __device__ __forceinline__ void for_each_quad(const uint32_t* s_ordered, int count, Visit visit) const {
#pragma unroll 1
    for (int i = 4 * thread_; i < count; i += 4 * kThreads) {
      const uint4 quad = *reinterpret_cast<const uint4*>(s_ordered + i);
      visit(quad.x, true);
      visit(quad.y, i + 1 < count);
      visit(quad.z, i + 2 < count);
      visit(quad.w, i + 3 < count);
    }
  }

  template <class Predicate>
  __device__ __forceinline__ int count_if(WarpSpan span, Predicate predicate) const {
    int mine = 0;
#pragma unroll 2
    for (int i = span.begin + lane_; i < span.end; i += 32) {
      mine += predicate(i) ? 1 : 0;
    }
    return static_cast<int>(__reduce_add_sync(kFullMask, static_cast<uint32_t>(mine)));
  }

  /// Sum of the values of the warps before this one, and of all.  One barrier; another must follow before the next
  /// call.
  __device__ __forceinline__ int exclusive_warp_sum(int value, int& total) {
    if (lane_ == 0) {
      s_.warp_counts[warp_] = static_cast<uint32_t>(value);
    }
    group_.sync();
    const uint32_t mine = lane_ < kWarps ? s_.warp_counts[lane_ % kWarps] : 0;
    total = static_cast<int>(__reduce_add_sync(kFullMask, mine));
    return static_cast<int>(__reduce_add_sync(kFullMask, lane_ < warp_ ? mine : 0));
  }

  __device__ __forceinline__ void count_bins(const uint32_t* s_ordered, int count, uint32_t low, uint32_t span,
                                             int shift) {
    for_each_quad(s_ordered, count, [&](uint32_t ordered, bool present) {
      const uint32_t distance = ordered - low;
      if (present && distance <= span) {
        atomicAdd(&s_.histogram[distance >> shift], 1U);
      }
    });
    group_.sync();
  }

  /// Finds the bin that holds the wanted rank counted from the top, and clears the histogram.  Ends with a barrier.
  __device__ __forceinline__ void find_bin(uint32_t wanted) {
    // Thread 0 owns the highest bins, so that a prefix sum over threads counts from the top.
    const int first_bin = kBins - (thread_ + 1) * kBinsPerThread;
    uint32_t counts[kBinsPerThread];
    uint32_t mine = 0;
#pragma unroll
    for (int b = 0; b < kBinsPerThread; ++b) {
      counts[b] = s_.histogram[first_bin + b];
      s_.histogram[first_bin + b] = 0;
      mine += counts[b];
    }
    uint32_t inclusive = mine;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint32_t other = __shfl_up_sync(kFullMask, inclusive, offset);
      inclusive += lane_ >= offset ? other : 0;
    }
    if (lane_ == 31) {
      s_.warp_bins[warp_] = inclusive;
    }
    group_.sync();
    uint32_t above = __reduce_add_sync(kFullMask, lane_ < warp_ ? s_.warp_bins[lane_ % kWarps] : 0);
    above += inclusive - mine;
    if (above < wanted && wanted <= above + mine) {
#pragma unroll
      for (int b = kBinsPerThread - 1; b >= 0; --b) {
        if (above < wanted && wanted <= above + counts[b]) {
          s_.bin = static_cast<uint32_t>(first_bin + b);
          s_.bin_above = above;
          s_.bin_count = counts[b];
        }
        above += counts[b];
      }
    }
    group_.sync();
  }

  /// The cut when at most kSmall candidates lie in the interval: one warp ranks them, one a lane.
  __device__ __forceinline__ Cut rank_small(const uint32_t* s_ordered, int count, uint32_t wanted, uint32_t population,
                                            OrderedInterval interval) {
    for_each_quad(s_ordered, count, [&](uint32_t ordered, bool present) {
      if (present && ordered - interval.low <= interval.high - interval.low) {
        s_.small[atomicAdd(&s_.small_count, 1U)] = ordered;
      }
    });
    group_.sync();
    if (warp_ == 0) {
      const bool present = static_cast<uint32_t>(lane_) < population;
      const uint32_t mine = present ? s_.small[lane_] : 0;
      uint32_t greater = 0;
      uint32_t equal = 0;
#pragma unroll 4
      for (uint32_t other = 0; other < population; ++other) {
        const uint32_t value = s_.small[other];
        greater += value > mine ? 1 : 0;
        equal += value == mine ? 1 : 0;
      }
      if (present && greater < wanted && wanted <= greater + equal) {  // equal lanes write the same
        s_.cut_ordered = mine;
        s_.cut_needed = wanted - greater;
        s_.cut_ties = equal;
      }
    }
    group_.sync();
    return break_ties(s_ordered, count, s_.cut_ordered, s_.cut_needed, s_.cut_ties);
  }

  /// Of `ties` candidates that equal the cut, the first `needed` are picked.
  __device__ __forceinline__ Cut break_ties(const uint32_t* s_ordered, int count, uint32_t ordered, uint32_t needed,
                                            uint32_t ties) {
    if (needed == ties) {
      return {ordered, count};
    }
    const WarpSpan span = warp_span(count);
    const auto is_tie = [&](int i) { return s_ordered[i] == ordered; };
    const int mine = count_if(span, is_tie);
    int total;
    int before = exclusive_warp_sum(mine, total);
    const auto wanted = static_cast<int>(needed);
    if (before < wanted && wanted <= before + mine) {
      for (int base = span.begin; base < span.end && before < wanted; base += 32) {
        const int position = base + lane_;
        const bool tie = position < span.end && is_tie(position);
        const uint32_t ballot = __ballot_sync(kFullMask, tie);
        if (tie && before + __popc(ballot & lanes_below()) == wanted - 1) {
          s_.tie_end = position + 1;
        }
        before += __popc(ballot);
      }
    }
    group_.sync();
    return {ordered, s_.tie_end};
  }

  __device__ __forceinline__ void exchange(CandidateList list, int a, int b, bool best_first) {
    const uint32_t ordered_a = list.s_ordered[a];
    const uint32_t ordered_b = list.s_ordered[b];
    const int32_t index_a = list.s_indices[a];
    const int32_t index_b = list.s_indices[b];
    if (ranks_before(ordered_b, index_b, ordered_a, index_a) == best_first) {
      list.s_ordered[a] = ordered_b;
      list.s_ordered[b] = ordered_a;
      list.s_indices[a] = index_b;
      list.s_indices[b] = index_a;
    }
  }

  Group group_;
  Smem& s_;
  int thread_;
  int lane_;
  int warp_;
};

}  // namespace keysieve::device
