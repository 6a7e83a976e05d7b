// SPDX-License-Identifier: Apache-2.0
// The best scores of a span of scores in global memory, exactly and in order, by one warp.
//
// cut_of: which are they?
//     sample   a strided part of the span -> a threshold that a bit more than `wanted` scores should reach
//     filter   every score once: what reaches it goes to a column of shared memory, one a lane, in no order
//     count    the columns into even bins -> the bin of the wanted-th score
//     rank     the scores of that bin     -> the cut: the wanted-th score, and how many equal to it are picked
// collect: where are they?
//     mark     every score once more: the positions of what the cut picks, in order
//
// The cut is right if at least `wanted` scores reached the threshold and the columns held them all: what did not reach
// it is below all that did.  A sample can mislead, or a value repeat: then the sample's own value of the wanted rank is
// tried as the cut, which a count over the span proves or refutes; and if that fails too the ordered bits of the scores
// (core/ordering.hpp) are narrowed by a thousandth at a time to one value, which needs no luck.
//
// Issue slots are what a select warp is short of: it shares its scheduler with two math warps that leave it a third,
// and their loop fills the instruction caches.  Hence one warp a row (no barriers); hence two looks at every score with
// few instructions each (the first keeps no positions, the second compares with the final cut) instead of one with
// many; and loops whose loads run ahead through shared memory (ScoreStream), not by unrolling.
#pragma once

#include <cstdint>

#include "core/ordering.hpp"
#include "cuda/device/score_histogram.cuh"
#include "cuda/device/score_span.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::device {

/// Picks the scores above `score` and the first `ties` of those equal to it.
struct ScoreCut {
  static constexpr int kAllTies = 0x7FFFFFFF;

  float score;  // NaN: ranks below all
  int ties;

  static __device__ __forceinline__ ScoreCut everything() { return {__int_as_float(0x7FFFFFFF), kAllTies}; }
  /// What reaches ordered bits `least`, but no NaN.
  static __device__ __forceinline__ ScoreCut reaching(uint32_t least) {
    if (least > kOrderedInfinity) {
      return {score_of_ordered_bits(kOrderedInfinity), 0};
    }
    return {score_of_ordered_bits(max(least, kOrderedNegativeInfinity)), kAllTies};
  }
  /// What picks `left` of `count` scores with these ordered bits.
  static __device__ __forceinline__ ScoreCut through(uint32_t ordered, uint32_t left, uint32_t count) {
    return {score_of_ordered_bits(ordered), left == count ? kAllTies : static_cast<int>(left)};
  }
};

/// Four collected positions a lane: item j has slot first_slot + 32 j.
struct CollectedBatch {
  static constexpr int kItems = 4;

  int first_slot;
  int count;  // of the whole collection
  int positions[kItems];

  [[nodiscard]] __device__ __forceinline__ int slot(int j) const { return first_slot + 32 * j; }
  [[nodiscard]] __device__ __forceinline__ bool holds(int j) const { return slot(j) < count; }
};

class RowSieve {
 public:
  static constexpr int kMaxCollected = 4608;

  struct Smem {
    ScoreStream::Smem stream;
    Histogram::Smem histogram;
    union {
      alignas(16) float sample[2048];
      float columns[144][32];
      uint16_t order[kMaxCollected];
    };
    uint32_t ranked[64];  // ordered scores of the found bin
    uint32_t num_ranked;
    uint32_t cut;     // ordered bits of the wanted-th score,
    uint32_t reach;   // and how many of the found bin reach it,
    uint32_t exceed;  // or exceed it
  };

  __device__ __forceinline__ RowSieve(Smem& smem, int lane)
      : s_(smem), stream_(smem.stream, lane), histogram_(smem.histogram, lane), lane_(lane) {}

  /// Once, before anything else.
  __device__ __forceinline__ void initialise() const { histogram_.clear(); }

  /// The cut that picks the best `wanted` scores of the span, 1 <= wanted < span.size(); among equal ones the first.
  /// `repaired`: the sample misled.  By all lanes.
  __device__ __forceinline__ ScoreCut cut_of(const ScoreSpan& span, int wanted, bool* repaired) const {
    const auto rank = static_cast<uint32_t>(wanted);
    ScoreCut cut;
    *repaired = false;
    if (cut_by_columns(span, rank, &cut)) {
      return cut;
    }
    *repaired = true;
    if (cut_at_sampled(span, rank, &cut)) {
      return cut;
    }
    return narrow(kOrderedNan, kOrderedInfinity, rank, [&](const auto& visit) { for_each_of_span(span, visit); });
  }

  /// Collects the positions of what the cut picks, at most kMaxCollected, in order.  Returns how many.  By all lanes.
  __device__ __forceinline__ int collect(const ScoreSpan& span, const ScoreCut& cut) const {
    const bool everything = cut.score != cut.score;
    int position = ScoreStream::first_position(span) + ScoreGroup::offset<Deal::kRuns>(lane_, 0);
    int count = 0;
    int ties_left = cut.ties;
    stream_.for_each_group<Deal::kRuns>(span, [&](const ScoreGroup& group) {
      uint32_t picked = 0;
#pragma unroll
      for (int i = 0; i < ScoreGroup::kScores; ++i) {
        picked |= group.scores[i] >= cut.score ? 1U << i : 0U;
      }
      picked = everything ? group.valid : picked;
      if (cut.ties != ScoreCut::kAllTies) {
        picked &= ~late_ties(group, cut, ties_left);
      }
      const auto mine = static_cast<uint32_t>(__popc(picked));
      const uint32_t before = ptx::sum_of_lanes_before(mine);
      uint32_t s_slot = ptx::shared_address(&s_.order[count]) + sizeof(uint16_t) * before;
#pragma unroll
      for (int i = 0; i < ScoreGroup::kScores; ++i) {
        if ((picked >> i & 1U) != 0) {
          ptx::store_shared(s_slot, static_cast<uint16_t>(position + i));
          s_slot += sizeof(uint16_t);
        }
      }
      count += static_cast<int>(__shfl_sync(ptx::kAllLanes, before + mine, 31));
      position += ScoreGroup::kWarpScores;
      return true;
    });
    return count;
  }

  /// visit(batch) for what the last call collected.
  template <class Visit>
  __device__ __forceinline__ void for_each_collected(int count, const Visit& visit) const {
#pragma unroll 1
    for (int first = 0; first < count; first += 32 * CollectedBatch::kItems) {
      CollectedBatch batch = {first + lane_, count, {}};
#pragma unroll
      for (int j = 0; j < CollectedBatch::kItems; ++j) {
        batch.positions[j] = batch.holds(j) ? s_.order[batch.slot(j)] : 0;
      }
      visit(batch);
    }
    __syncwarp();
  }

 private:
  static constexpr int kColumnEntries = sizeof(Smem::columns) / sizeof(Smem::columns[0]);
  static constexpr uint32_t kColumnStep = sizeof(Smem::columns[0]);  // bytes from an entry to the next
  static constexpr int kMaxRanked = sizeof(Smem::ranked) / sizeof(Smem::ranked[0]);

  // ---- sample ----

  /// What a sample of the span says of a rank.
  struct Sampled {
    float value;  // somewhat below the sample's score of that rank
    float least;  // of the sample
    float greatest;
  };

  /// Scores of a sample: 1,024 of a span of up to 8K, else 2,048.
  static __device__ __forceinline__ int log_sample_size(const ScoreSpan& span) {
    return span.size() <= 8192 ? 10 : 11;
  }

  /// Looks for rank(size of the sample), 1 for the greatest; beyond the sample it is -inf.
  template <class Rank>
  __device__ __forceinline__ Sampled sample(const ScoreSpan& span, const Rank& rank_of) const {
    const float infinity = __int_as_float(0x7F800000);
    const int log_size = log_sample_size(span);
    const int size = 1 << log_size;
    const auto whole_quads = static_cast<uint32_t>(max(span.end / 4 - (span.begin + 3) / 4, 0));
    const float* g_first = span.g_scores + (span.begin + 3) / 4 * 4;
#pragma unroll 2
    for (int i = 4 * lane_; i < size; i += 128) {  // quads spread evenly
      const uint32_t quad = whole_quads * static_cast<uint32_t>(i) >> log_size;
      ptx::cp_async_16(ptx::shared_address(&s_.sample[i]), g_first + 4 * quad);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    float least = infinity;
    float greatest = -infinity;
    for_each_sampled(size, [&](float score) {
      least = fminf(least, score);
      greatest = fmaxf(greatest, score);
    });
    least = score_of_ordered_bits(__reduce_min_sync(ptx::kAllLanes, ordered_bits(least)));
    greatest = score_of_ordered_bits(__reduce_max_sync(ptx::kAllLanes, ordered_bits(greatest)));

    const float rank = rank_of(static_cast<float>(size));
    if (rank >= static_cast<float>(size)) {
      return {-infinity, least, greatest};
    }
    // Outliers stretch the bins: then once more, and again, within the bin that was found.  What lies outside still
    // counts, in the first or last bin, so the rank stays.
    float low = least;
    float high = greatest;
#pragma unroll 1
    for (int round = 0; round < kSampleRounds; ++round) {
      const ScoreBins bins = ScoreBins::between(low, high);
      for_each_sampled(size, [&](float score) { histogram_.add(bins(score)); });
      const FoundBin found = histogram_.find(max(static_cast<uint32_t>(rank), 1U));
      const float step = (high - low) / static_cast<float>(ScoreBins::kBins - 1);
      const float middle = low + step * static_cast<float>(found.bin);
      low = fmaxf(low, middle - 0.51F * step);  // a bin reaches half a step down and up
      high = fminf(high, middle + 0.51F * step);
      if (found.count <= kFewSampled || !(low < high)) {
        break;
      }
    }
    __syncwarp();
    return {low, least, greatest};
  }
  static constexpr int kSampleRounds = 4;
  static constexpr uint32_t kFewSampled = 8;

  template <class Visit>
  __device__ __forceinline__ void for_each_sampled(int size, const Visit& visit) const {
#pragma unroll 1
    for (int i = 4 * lane_; i < size; i += 128) {
      const float4 quad = *reinterpret_cast<const float4*>(&s_.sample[i]);
      visit(quad.x);
      visit(quad.y);
      visit(quad.z);
      visit(quad.w);
    }
  }

  // ---- cut ----

  /// The cut, if at least `wanted` scores reach the sample's threshold and fit in the columns.
  __device__ __forceinline__ bool cut_by_columns(const ScoreSpan& span, uint32_t wanted, ScoreCut* cut) const {
    const float share = static_cast<float>(wanted) / static_cast<float>(span.size());
    const Sampled sampled = sample(span, [&](float size) {
      // `expected` of the sample are among the best; 3.5 standard deviations more, and some for small numbers.
      const float expected = share * size;
      return expected + 3.5F * sqrtf(expected) + 4.0F;
    });
    const float threshold = sampled.value;
    int entries;
    if (!filter_to_columns(span, threshold, &entries) ||
        __reduce_add_sync(ptx::kAllLanes, static_cast<uint32_t>(entries)) < wanted) {
      return false;
    }
    const int rows = fill_columns(entries);
    const ScoreBins bins = ScoreBins::between(fmaxf(threshold, sampled.least), sampled.greatest);
    for_each_of_columns(rows, [&](float score) { histogram_.add(bins(score)); });  // what fills them up: in bin 0
    const FoundBin found = histogram_.find(wanted);
    if (found.count <= kMaxRanked) {
      *cut = rank_in_bin(rows, wanted - found.above, [&](float score) { return bins(score) == found.bin; });
    } else {
      // Ordered bits 0, which fill the columns up, lie outside.
      *cut = narrow(ordered_bits(threshold), kOrderedInfinity, wanted, [&](const auto& visit) {
        for_each_of_columns(rows, [&](float score) { visit(ordered_bits(score)); });
      });
    }
    return true;
  }

  /// Scores that reach the threshold -> the lane's column; false if one is full.
  __device__ __forceinline__ bool filter_to_columns(const ScoreSpan& span, float threshold, int* entries) const {
    const uint32_t s_column = ptx::shared_address(&s_.columns[0][lane_]);
    const uint32_t s_last = s_column + (kColumnEntries - ScoreGroup::kScores) * kColumnStep;
    uint32_t s_next = s_column;
    bool fits = true;
    stream_.for_each_group<Deal::kQuads>(span, [&](const ScoreGroup& group) {
#pragma unroll
      for (int i = 0; i < ScoreGroup::kScores; ++i) {
        if (group.scores[i] >= threshold) {
          ptx::store_shared(s_next, group.scores[i]);
          s_next += kColumnStep;
        }
      }
      fits = __all_sync(ptx::kAllLanes, s_next <= s_last) != 0;  // room for another group
      return fits;
    });
    *entries = static_cast<int>((s_next - s_column) / kColumnStep);
    return fits;
  }

  /// Fills the columns with NaN up to the same length, a multiple of 4, and returns it.
  __device__ __forceinline__ int fill_columns(int entries) const {
    const int rows = (static_cast<int>(__reduce_max_sync(ptx::kAllLanes, static_cast<uint32_t>(entries))) + 3) / 4 * 4;
#pragma unroll 1
    for (int row = entries; row < rows; ++row) {
      s_.columns[row][lane_] = __int_as_float(0x7FFFFFFF);
    }
    __syncwarp();
    return rows;
  }

  template <class Visit>
  __device__ __forceinline__ void for_each_of_columns(int rows, const Visit& visit) const {
#pragma unroll 1
    for (int row = 0; row < rows; row += 4) {
      float scores[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[i] = s_.columns[row + i][lane_];
      }
#pragma unroll
      for (const float score : scores) {
        visit(score);
      }
    }
  }

  /// The cut at the left-th of the columns' scores that `belongs` holds for, at most kMaxRanked and NaN, by comparing
  /// all pairs.
  template <class Belongs>
  __device__ __forceinline__ ScoreCut rank_in_bin(int rows, uint32_t left, const Belongs& belongs) const {
    if (lane_ == 0) {
      s_.num_ranked = 0;
    }
    __syncwarp();
    for_each_of_columns(rows, [&](float score) {
      if (belongs(score)) {
        s_.ranked[atomicAdd(&s_.num_ranked, 1U)] = ordered_bits(score);
      }
    });
    __syncwarp();
    const uint32_t num_ranked = s_.num_ranked;
#pragma unroll 1
    for (auto i = static_cast<uint32_t>(lane_); i < num_ranked; i += 32) {
      const uint32_t mine = s_.ranked[i];
      uint32_t exceed = 0;
      uint32_t reach = 0;
#pragma unroll 2
      for (uint32_t other = 0; other < num_ranked; ++other) {
        exceed += s_.ranked[other] > mine ? 1U : 0U;
        reach += s_.ranked[other] >= mine ? 1U : 0U;
      }
      if (exceed < left && left <= reach) {  // the same for all that are equal
        s_.cut = mine;
        s_.exceed = exceed;
        s_.reach = reach;
      }
    }
    __syncwarp();
    return ScoreCut::through(s_.cut, left - s_.exceed, s_.reach - s_.exceed);
  }

  /// The cut at the sample's own score of the wanted rank, if the span agrees: what long runs of equal scores need.
  __device__ __forceinline__ bool cut_at_sampled(const ScoreSpan& span, uint32_t wanted, ScoreCut* cut) const {
    const float share = static_cast<float>(wanted) / static_cast<float>(span.size());
    const Sampled sampled = sample(span, [&](float size) { return share * size; });
    uint32_t ordered = kOrderedInfinity;
    for_each_sampled(1 << log_sample_size(span), [&](float score) {
      ordered = score >= sampled.value ? min(ordered, ordered_bits(score)) : ordered;
    });
    ordered = __reduce_min_sync(ptx::kAllLanes, ordered);
    const float score = score_of_ordered_bits(ordered);
    uint32_t exceed = 0;
    uint32_t reach = 0;
    stream_.for_each_group<Deal::kQuads>(span, [&](const ScoreGroup& group) {
#pragma unroll
      for (int i = 0; i < ScoreGroup::kScores; ++i) {
        exceed += group.scores[i] > score ? 1U : 0U;
        reach += group.scores[i] >= score ? 1U : 0U;
      }
      return true;
    });
    exceed = __reduce_add_sync(ptx::kAllLanes, exceed);
    reach = __reduce_add_sync(ptx::kAllLanes, reach);
    *cut = ScoreCut::through(ordered, wanted - exceed, reach - exceed);
    return exceed < wanted && wanted <= reach;
  }

  /// The cut at the wanted-th of the scores whose ordered bits for_each(visit) visits, which lies in [low, high]; none
  /// is above.  Each round keeps one of 1,024 parts.
  template <class ForEach>
  __device__ __forceinline__ ScoreCut narrow(uint32_t low, uint32_t high, uint32_t wanted,
                                             const ForEach& for_each) const {
    uint32_t left = wanted;  // to be picked from [low, high]
    uint32_t count = 0;      // of it
    do {
      const uint32_t width = high - low;
      const int shift = max(0, 22 - __clz(static_cast<int>(width)));
      for_each([&](uint32_t ordered) {
        if (ordered - low <= width) {
          histogram_.add((ordered - low) >> shift);
        }
      });
      const FoundBin found = histogram_.find(left);
      left -= found.above;
      count = found.count;
      low += found.bin << shift;
      high = min(high, low + ((1U << shift) - 1U));
    } while (low < high);
    return ScoreCut::through(low, left, count);
  }

  /// visit(ordered bits) for every score of the span.
  template <class Visit>
  __device__ __forceinline__ void for_each_of_span(const ScoreSpan& span, const Visit& visit) const {
    stream_.for_each_group<Deal::kQuads>(span, [&](const ScoreGroup& group) {
#pragma unroll
      for (int i = 0; i < ScoreGroup::kScores; ++i) {
        if ((group.valid >> i & 1U) != 0) {
          visit(ordered_bits(group.scores[i]));
        }
      }
      return true;
    });
  }

  // ---- collect ----

  /// Which scores of a group equal the cut and come after the first `ties_left` that do; counts those down.
  static __device__ __forceinline__ uint32_t late_ties(const ScoreGroup& group, const ScoreCut& cut, int& ties_left) {
    uint32_t tied = 0;
#pragma unroll
    for (int i = 0; i < ScoreGroup::kScores; ++i) {
      const float score = group.scores[i];
      tied |= score == cut.score || (score != score && cut.score != cut.score) ? 1U << i : 0U;
    }
    tied &= group.valid;
    const int mine = __popc(tied);
    const auto before = static_cast<int>(ptx::sum_of_lanes_before(static_cast<uint32_t>(mine)));
    for (int kept = min(ties_left - before, mine); kept > 0; --kept) {
      tied &= tied - 1;
    }
    ties_left = max(ties_left - __shfl_sync(ptx::kAllLanes, before + mine, 31), 0);
    return tied;
  }

  Smem& s_;
  ScoreStream stream_;
  Histogram histogram_;
  int lane_;
};

}  // namespace keysieve::device
