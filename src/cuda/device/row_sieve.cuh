// SPDX-License-Identifier: Apache-2.0
// The best scores of a span of scores in global memory, exactly and in order, by one warp.
//
//     sample   a strided part of the span -> a threshold that a bit more than `wanted` scores should reach
//     filter   every score once: those that reach it go to a list in shared memory, in order, with their positions
//     count    the list into kBins even bins -> the bin that holds the wanted-th score
//     rank     the scores of that bin, by (score, position) -> the cut: the last score picked and its position
//     emit     the list's scores above the cut, in order
//
// The filter is complete if at least `wanted` scores passed and the list held them all: everything that did not pass is
// below everything that did.  Otherwise (a sample that misleads, ties) the span is resolved by the ordered bits of its
// scores (core/ordering.hpp), whatever they are: intervals of a 1024th of the one before until one value is left, and a
// pass that takes what is above it and the first of those equal to it.  No step can fail for both.
//
// Issue slots are what a select warp is short of: it shares its scheduler with two math warps that leave it a third,
// and their loop fills the instruction caches.  Hence one warp a row (no barriers), one look at most scores, and small
// loops whose loads run ahead through shared memory (QuadStream) rather than by unrolling.
#pragma once

#include <cstdint>

#include "core/ordering.hpp"
#include "cuda/ptx/mbarrier.cuh"
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
  [[nodiscard]] __device__ __forceinline__ bool holds(int position) const {
    return position >= begin && position < end;
  }
};

/// Scores that the lanes of a warp hold together: 4 quads a lane, quad i of lane l at 128 i + 4 l.  Enough for the
/// latency of one step to hide behind that of the others.
struct QuadGroup {
  static constexpr int kQuads = 4;
  static constexpr int kScores = 4 * kQuads;        // of a lane
  static constexpr int kWarpScores = 32 * kScores;  // of the warp

  float scores[kScores];

  /// Of score i of the lane, from the group's first.
  static __device__ __forceinline__ int offset(int lane, int i) { return i / 4 * 128 + 4 * lane + i % 4; }
};

/// Reads a span in groups, kAhead of them in flight; a lane copies only what it reads itself.
class QuadStream {
 public:
  static constexpr int kAhead = 2;

  struct Smem {
    float4 quads[kAhead][QuadGroup::kQuads][32];
  };

  __device__ __forceinline__ QuadStream(Smem& smem, int lane)
      : s_quads_(ptx::shared_address(&smem.quads[0][0][lane])), lane_(lane) {}

  /// visit(position of the group's first score, group, whole) for every group of the span, in order, by all lanes;
  /// `whole` (the same in all lanes): all its scores belong to the span.  Returning false ends the pass.
  template <class Visit>
  __device__ __forceinline__ void for_each_group(const ScoreSpan& span, const Visit& visit) const {
    const int begin = span.begin / 4 * 4;
    Fetch fetch = {span.g_scores + begin + 4 * lane_, span.end - begin - 4 * lane_};
    uint32_t s_group = s_quads_;
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) {
      fetch.group(s_quads_ + i * kGroupBytes);
    }
    bool going = true;
#pragma unroll 1
    for (int first = begin; first < span.end && going; first += QuadGroup::kWarpScores) {
      ptx::cp_async_wait<kAhead - 1>();
      const QuadGroup group = read(s_group);
      fetch.group(s_group);
      s_group = s_group == s_quads_ + (kAhead - 1) * kGroupBytes ? s_quads_ : s_group + kGroupBytes;
      going = visit(first, group, first >= span.begin && first + QuadGroup::kWarpScores <= span.end);
    }
    ptx::cp_async_wait<0>();
  }

 private:
  static constexpr uint32_t kQuadBytes = 32 * sizeof(float4);
  static constexpr uint32_t kGroupBytes = QuadGroup::kQuads * kQuadBytes;

  struct Fetch {
    const float* g_next;  // the lane's first quad of the next group
    int left;             // scores from there to the end of the span

    __device__ __forceinline__ void group(uint32_t s_group) {
#pragma unroll
      for (int i = 0; i < QuadGroup::kQuads; ++i) {
        if (left > 128 * i) {
          ptx::cp_async_16(s_group + i * kQuadBytes, g_next + 128 * i);
        }
      }
      ptx::cp_async_commit();
      g_next += QuadGroup::kWarpScores;
      left -= QuadGroup::kWarpScores;
    }
  };

  static __device__ __forceinline__ QuadGroup read(uint32_t s_group) {
    QuadGroup group;
#pragma unroll
    for (int i = 0; i < QuadGroup::kQuads; ++i) {
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(group.scores[4 * i]), "=f"(group.scores[4 * i + 1]), "=f"(group.scores[4 * i + 2]),
                     "=f"(group.scores[4 * i + 3])
                   : "r"(s_group + i * kQuadBytes)
                   : "memory");
    }
    return group;
  }

  uint32_t s_quads_;
  int lane_;
};

/// What a pick found out besides what it emitted.
struct RowCut {
  uint32_t ordered;  // ordered bits of the last score picked
  bool by_bits;      // the sample misled
};

/// Which scores of a group are picked, and the slots they get.
struct Picks {
  uint32_t mask = 0;             // bit i: score i of the lane
  int slots[QuadGroup::kQuads];  // of the first one picked of each quad; the others follow

  [[nodiscard]] __device__ __forceinline__ bool holds(int i) const { return (mask & (1U << i)) != 0; }
  __device__ __forceinline__ void add(int i, bool picked) { mask |= picked ? 1U << i : 0U; }

  /// store(slot, i) for each.
  template <class Store>
  __device__ __forceinline__ void for_each(const Store& store) const {
#pragma unroll
    for (int quad = 0; quad < QuadGroup::kQuads; ++quad) {
      int slot = slots[quad];
#pragma unroll
      for (int i = 4 * quad; i < 4 * quad + 4; ++i) {
        if (holds(i)) {
          store(slot, i);
          ++slot;
        }
      }
    }
  }
};

/// Positions of a group's scores in a span, by number of the lane's score.
struct GroupPositions {
  int lane;
  int first;
  __device__ __forceinline__ int operator()(int i) const { return first + QuadGroup::offset(lane, i); }
};

class RowSieve {
 public:
  static constexpr int kBins = 1024;
  static constexpr int kCapacity = 3072;  // of the list: whole groups
  static constexpr int kMaxRanked = 64;   // scores of the found bin that are ranked pair by pair
  struct Smem {
    QuadStream::Smem stream;
    alignas(16) uint32_t histogram[kBins];  // zero between calls
    alignas(16) float scores[kCapacity];    // the list
    alignas(16) uint16_t positions[kCapacity];
    uint32_t ranked[kMaxRanked];  // ordered scores of the found bin
    uint16_t ranked_position[kMaxRanked];
    uint32_t num_ranked;
    uint32_t cut;           // ordered bits of the last score picked,
    uint32_t cut_position;  // and its position
    bool cuts_ties;         // later ones have the same score
  };

  __device__ __forceinline__ RowSieve(Smem& smem, int lane) : s_(smem), stream_(smem.stream, lane), lane_(lane) {}

  /// Once, before anything else.
  __device__ __forceinline__ void initialise() const {
    clear_histogram();
    __syncwarp();
  }

  /// emit(picks, positions, group) for the best `wanted` scores of the span: slots from 0 on ascend with positions;
  /// 1 <= wanted < span.size().  Among equal scores the lower position wins.  By all lanes.
  template <class Emit>
  __device__ __forceinline__ RowCut pick(const ScoreSpan& span, int wanted, const Emit& emit) const {
    Bins bins;
    const float threshold = sample_threshold(span, wanted, bins);
    bool fits;
    const int count = filter_to_list(span, threshold, &fits);
    if (count >= wanted) {
      cut_list(count, wanted, bins);
      emit_list(count, emit);
      return {s_.cut, false};
    }
    return {pick_by_bits(span, wanted, emit), true};
  }

  /// append(slot, position, score) for the scores of the span that are >= threshold, in order, slots from 0 on. Returns
  /// how many, or -1 and nothing is appended if they are more than a list holds.  By all lanes.
  template <class Append>
  __device__ __forceinline__ int filter_few(const ScoreSpan& span, float threshold, const Append& append) const {
    bool fits;
    const int count = filter_to_list(span, threshold, &fits);
    if (!fits) {
      return -1;
    }
#pragma unroll 1
    for (int i = lane_; i < count; i += 32) {
      append(i, static_cast<int>(s_.positions[i]), s_.scores[i]);
    }
    __syncwarp();
    return count;
  }

  /// emit(picks, positions, group) for the scores of the span that are >= threshold (all, NaN too, if `everything`), in
  /// order, slots from `slot` on.  Returns the slot after the last.  By all lanes.
  template <class Emit>
  __device__ __forceinline__ int filter(const ScoreSpan& span, float threshold, bool everything, int slot,
                                        const Emit& emit) const {
    stream_.for_each_group(span, [&](int first, const QuadGroup& group, bool whole) {
      Picks picks;
#pragma unroll
      for (int i = 0; i < QuadGroup::kScores; ++i) {
        picks.add(i, group.scores[i] >= threshold || everything);
      }
      picks.mask &= whole ? ~0U : inside(span, first);
      place(picks, slot);
      emit(picks, GroupPositions{lane_, first}, group);
      return true;
    });
    return slot;
  }

 private:
  static constexpr uint32_t kFullMask = 0xFFFFFFFFU;

  /// Score -> bin, monotone for any finite scale >= 0 and offset: a fused multiply-add that saturates to [0, 1] (NaN to
  /// 0), and one whose sum's low bits are the bin.
  struct Bins {
    float scale = 0.0F;
    float offset = 0.0F;

    static __device__ __forceinline__ Bins between(float low, float high) {
      const float scale = 1.0F / (high - low);
      Bins bins;
      if (scale > 0.0F && scale < 1e30F) {  // neither infinite ends nor equal ones
        bins.scale = scale;
        bins.offset = -low * scale;
      }
      return bins;
    }
    __device__ __forceinline__ uint32_t operator()(float score) const {
      constexpr float kAlign = 8388608.0F;  // 2^23: a unit in the last place is 1
      const float place = __saturatef(__fmaf_rn(score, scale, offset));
      return __float_as_uint(__fmaf_rn(place, static_cast<float>(kBins - 1), kAlign)) & (kBins - 1);
    }
  };

  /// Where the wanted rank lies.
  struct Found {
    uint32_t bin;
    uint32_t above;  // scores in higher bins
    uint32_t count;  // in this one
  };

  /// Bit i: score i of the lane belongs to the span.
  [[nodiscard]] __device__ __forceinline__ uint32_t inside(const ScoreSpan& span, int first) const {
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < QuadGroup::kScores; ++i) {
      mask |= span.holds(first + QuadGroup::offset(lane_, i)) ? 1U << i : 0U;
    }
    return mask;
  }

  /// Gives the picked ones slots from `slot` on, ascending with positions; moves `slot` past the last.
  __device__ __forceinline__ void place(Picks& picks, int& slot) const {
    uint32_t counts = 0;  // a byte a quad: at most 128 in a warp
#pragma unroll
    for (int quad = 0; quad < QuadGroup::kQuads; ++quad) {
      counts |= static_cast<uint32_t>(__popc(picks.mask & (0xFU << (4 * quad)))) << (8 * quad);
    }
    uint32_t inclusive = counts;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint32_t other = __shfl_up_sync(kFullMask, inclusive, offset);
      inclusive += lane_ >= offset ? other : 0;
    }
    const uint32_t totals = __shfl_sync(kFullMask, inclusive, 31);
#pragma unroll
    for (int quad = 0; quad < QuadGroup::kQuads; ++quad) {
      picks.slots[quad] = slot + static_cast<int>((inclusive - counts) >> (8 * quad) & 0xFFU);
      slot += static_cast<int>(totals >> (8 * quad) & 0xFFU);
    }
  }

  __device__ __forceinline__ void clear_histogram() const {
#pragma unroll 1
    for (int bin = 4 * lane_; bin < kBins; bin += 128) {
      *reinterpret_cast<uint4*>(&s_.histogram[bin]) = make_uint4(0, 0, 0, 0);
    }
  }

  /// The bin that holds the wanted rank counted from the top; clears the histogram.
  __device__ __forceinline__ Found find_bin(uint32_t wanted) const {
    __syncwarp();
    // First which 32 bins: lane i sums the i-th 32 from the top, read in an order without bank conflicts.
    uint32_t mine = 0;
#pragma unroll 4
    for (int i = 0; i < 8; ++i) {
      const uint4 four =
          *reinterpret_cast<const uint4*>(&s_.histogram[kBins - 32 * (lane_ + 1) + 4 * ((i + lane_) % 8)]);
      mine += four.x + four.y + four.z + four.w;
    }
    uint32_t above;
    const int group = lane_of_rank(mine, wanted, above);
    const uint32_t own = s_.histogram[kBins - 32 * group - 1 - lane_];
    uint32_t above_in_group;
    const int place = lane_of_rank(own, wanted - above, above_in_group);
    const Found found = {static_cast<uint32_t>(kBins - 32 * group - 1 - place), above + above_in_group,
                         __shfl_sync(kFullMask, own, place)};
    __syncwarp();
    clear_histogram();
    __syncwarp();
    return found;
  }

  /// The lane whose count holds rank `wanted` >= 1; `above`: the counts of the lanes before it.
  __device__ __forceinline__ int lane_of_rank(uint32_t count, uint32_t wanted, uint32_t& above) const {
    uint32_t inclusive = count;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint32_t other = __shfl_up_sync(kFullMask, inclusive, offset);
      inclusive += lane_ >= offset ? other : 0;
    }
    const int lane = __ffs(static_cast<int>(__ballot_sync(kFullMask, inclusive >= wanted))) - 1;
    above = __shfl_sync(kFullMask, inclusive - count, lane);
    return lane;
  }

  /// A score that somewhat more than `wanted` of the span should reach, and bins from there to the sample's greatest.
  __device__ __forceinline__ float sample_threshold(const ScoreSpan& span, int wanted, Bins& bins) const {
    const float infinity = __int_as_float(0x7F800000);
    // 1,024 scores of a span of up to 8K, else 2,048: quads spread evenly, in the memory of the list.
    const int rounds = span.size() <= 8192 ? 8 : 16;
    const auto whole_quads = static_cast<uint32_t>(max(span.end / 4 - (span.begin + 3) / 4, 0));
    const float* g_first = span.g_scores + (span.begin + 3) / 4 * 4;
#pragma unroll 2
    for (int i = 0; i < rounds; ++i) {
      const auto number = static_cast<uint32_t>(i * 32 + lane_);
      const uint32_t quad = whole_quads * number / (32U * static_cast<uint32_t>(rounds));
      ptx::cp_async_16(ptx::shared_address(&s_.scores[4 * number]), g_first + 4 * quad);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    float least = infinity;
    float greatest = -infinity;
#pragma unroll 1
    for (int i = 0; i < rounds; ++i) {
      const float4 quad = *reinterpret_cast<const float4*>(&s_.scores[4 * (32 * i + lane_)]);
      least = fminf(least, fminf(fminf(quad.x, quad.y), fminf(quad.z, quad.w)));
      greatest = fmaxf(greatest, fmaxf(fmaxf(quad.x, quad.y), fmaxf(quad.z, quad.w)));
    }
    least = score_of_ordered_bits(__reduce_min_sync(kFullMask, ordered_bits(least)));
    greatest = score_of_ordered_bits(__reduce_max_sync(kFullMask, ordered_bits(greatest)));
    const auto size = static_cast<float>(128 * rounds);
    // `expected` of the sample are among the best; 3.5 standard deviations more, and some for small numbers.
    const float expected = static_cast<float>(wanted) * size / static_cast<float>(span.size());
    const float rank = expected + 3.5F * sqrtf(expected) + 4.0F;
    float threshold = -infinity;
    if (rank < size) {
      const Bins sample_bins = Bins::between(least, greatest);
#pragma unroll 1
      for (int i = 0; i < rounds; ++i) {
        const float4 quad = *reinterpret_cast<const float4*>(&s_.scores[4 * (32 * i + lane_)]);
        atomicAdd(&s_.histogram[sample_bins(quad.x)], 1U);
        atomicAdd(&s_.histogram[sample_bins(quad.y)], 1U);
        atomicAdd(&s_.histogram[sample_bins(quad.z)], 1U);
        atomicAdd(&s_.histogram[sample_bins(quad.w)], 1U);
      }
      const Found found = find_bin(static_cast<uint32_t>(rank));
      threshold = least + (greatest - least) * (static_cast<float>(found.bin) / static_cast<float>(kBins - 1));
    }
    __syncwarp();
    bins = Bins::between(fmaxf(threshold, least), greatest);
    return threshold;
  }

  /// What reaches the threshold -> the list; returns how many, 0 if they do not fit.
  __device__ __forceinline__ int filter_to_list(const ScoreSpan& span, float threshold, bool* fits) const {
    int count = 0;
    *fits = true;
    stream_.for_each_group(span, [&](int first, const QuadGroup& group, bool whole) {
      Picks picks;
#pragma unroll
      for (int i = 0; i < QuadGroup::kScores; ++i) {
        picks.add(i, group.scores[i] >= threshold);
      }
      picks.mask &= whole ? ~0U : inside(span, first);
      place(picks, count);
      if (count > kCapacity) {
        *fits = false;
        count = 0;
        return false;
      }
      picks.for_each([&](int slot, int i) {
        s_.scores[slot] = group.scores[i];
        s_.positions[slot] = static_cast<uint16_t>(first + QuadGroup::offset(lane_, i));
      });
      return true;
    });
    // The list's last group is filled up with NaN, which is never picked.
#pragma unroll 1
    for (int i = count + lane_; i < groups_of(count) * QuadGroup::kWarpScores; i += 32) {
      s_.scores[i] = __int_as_float(0x7FFFFFFF);
    }
    __syncwarp();
    return count;
  }

  static __device__ __forceinline__ int groups_of(int count) {
    return (count + QuadGroup::kWarpScores - 1) / QuadGroup::kWarpScores;
  }

  /// visit(entry of the group's first score, group) for the list's groups.
  template <class Visit>
  __device__ __forceinline__ void for_each_list_group(int count, const Visit& visit) const {
#pragma unroll 1
    for (int first = 0; first < count; first += QuadGroup::kWarpScores) {
      QuadGroup group;
#pragma unroll
      for (int quad = 0; quad < QuadGroup::kQuads; ++quad) {
        const float4 four = *reinterpret_cast<const float4*>(&s_.scores[first + QuadGroup::offset(lane_, 4 * quad)]);
        group.scores[4 * quad] = four.x;
        group.scores[4 * quad + 1] = four.y;
        group.scores[4 * quad + 2] = four.z;
        group.scores[4 * quad + 3] = four.w;
      }
      visit(first, group);
    }
  }
  /// visit(score) for all scores of the list, and NaN.
  template <class Visit>
  __device__ __forceinline__ void for_each_listed(int count, const Visit& visit) const {
    for_each_list_group(count, [&](int, const QuadGroup& group) {
#pragma unroll
      for (const float score : group.scores) {
        visit(score);
      }
    });
  }

  /// Finds the cut that picks `wanted` of the list's scores, none of which is NaN.
  __device__ __forceinline__ void cut_list(int count, int wanted, const Bins& bins) const {
    // What fills up the list goes to the lowest bin, below all.
    for_each_listed(count, [&](float score) { atomicAdd(&s_.histogram[bins(score)], 1U); });
    const Found found = find_bin(static_cast<uint32_t>(wanted));
    const uint32_t left = static_cast<uint32_t>(wanted) - found.above;
    if (found.count <= kMaxRanked) {
      rank_entries(count, left, [&](float score) { return bins(score) == found.bin && score == score; });
    } else {
      narrow_list(count, left, [&](float score) { return bins(score) == found.bin && score == score; });
    }
  }

  /// The left-th of the entries that `belongs` holds for, at most kMaxRanked, by comparing all pairs -> cut.
  template <class Belongs>
  __device__ __forceinline__ void rank_entries(int count, uint32_t left, const Belongs& belongs) const {
    if (lane_ == 0) {
      s_.num_ranked = 0;
      s_.cuts_ties = false;
    }
    __syncwarp();
    for_each_list_group(count, [&](int first, const QuadGroup& group) {
      uint32_t mask = 0;
#pragma unroll
      for (int i = 0; i < QuadGroup::kScores; ++i) {
        mask |= belongs(group.scores[i]) ? 1U << i : 0U;
      }
#pragma unroll 1
      for (; mask != 0; mask &= mask - 1) {
        const int entry = first + QuadGroup::offset(lane_, __ffs(static_cast<int>(mask)) - 1);
        const uint32_t slot = atomicAdd(&s_.num_ranked, 1U);
        s_.ranked[slot] = ordered_bits(s_.scores[entry]);
        s_.ranked_position[slot] = s_.positions[entry];
      }
    });
    __syncwarp();
    const auto num_ranked = static_cast<int>(s_.num_ranked);
#pragma unroll 1
    for (int i = lane_; i < num_ranked; i += 32) {
      const uint32_t mine = s_.ranked[i];
      const uint32_t position = s_.ranked_position[i];
      uint32_t rank = 1;
      uint32_t last_equal = 0;
#pragma unroll 2
      for (int other = 0; other < num_ranked; ++other) {
        const uint32_t ordered = s_.ranked[other];
        const uint32_t other_position = s_.ranked_position[other];
        rank += ordered > mine || (ordered == mine && other_position < position) ? 1U : 0U;
        last_equal = ordered == mine ? max(last_equal, other_position) : last_equal;
      }
      if (rank == left) {
        s_.cut = mine;
        s_.cut_position = position;
        s_.cuts_ties = last_equal > position;
      }
    }
    __syncwarp();
  }

  /// The same for any number of entries: an interval of ordered bits is narrowed to one value, whose left-th entry in
  /// order is the cut.
  template <class Belongs>
  __device__ __forceinline__ void narrow_list(int count, uint32_t left, const Belongs& belongs) const {
    uint32_t low = 0xFFFFFFFFU;
    uint32_t high = 0;
    for_each_listed(count, [&](float score) {
      const uint32_t ordered = ordered_bits(score);
      low = belongs(score) ? min(low, ordered) : low;
      high = belongs(score) ? max(high, ordered) : high;
    });
    low = __reduce_min_sync(kFullMask, low);
    high = __reduce_max_sync(kFullMask, high);
#pragma unroll 1
    while (low < high) {
      const uint32_t width = high - low;
      const int shift = max(0, 22 - __clz(static_cast<int>(width)));
      for_each_listed(count, [&](float score) {
        const uint32_t distance = ordered_bits(score) - low;
        if (distance <= width) {
          atomicAdd(&s_.histogram[distance >> shift], 1U);
        }
      });
      const Found found = find_bin(left);
      left -= found.above;
      low += found.bin << shift;
      high = min(high, low + ((1U << shift) - 1U));
    }
    int ties = 0;
    for_each_list_group(count, [&](int first, const QuadGroup& group) {
      Picks tied;
#pragma unroll
      for (int i = 0; i < QuadGroup::kScores; ++i) {
        tied.add(i, ordered_bits(group.scores[i]) == low);
      }
      place(tied, ties);
      tied.for_each([&](int slot, int i) {
        if (slot + 1 == static_cast<int>(left)) {
          s_.cut = low;
          s_.cut_position = s_.positions[first + QuadGroup::offset(lane_, i)];
        }
      });
    });
    s_.cuts_ties = ties > static_cast<int>(left);  // by all lanes, the same
    __syncwarp();
  }

  /// Emits the list's scores down to the cut.
  template <class Emit>
  __device__ __forceinline__ void emit_list(int count, const Emit& emit) const {
    const float last = score_of_ordered_bits(s_.cut);
    const auto last_position = static_cast<int>(s_.cut_position);
    const bool cuts_ties = s_.cuts_ties;
    int slot = 0;
    for_each_list_group(count, [&](int first, const QuadGroup& group) {
      const auto position_of = [&](int i) {
        return static_cast<int>(s_.positions[first + QuadGroup::offset(lane_, i)]);
      };
      Picks picks;
#pragma unroll
      for (int i = 0; i < QuadGroup::kScores; ++i) {
        picks.add(i, group.scores[i] >= last);
      }
      if (cuts_ties) {
#pragma unroll
        for (int i = 0; i < QuadGroup::kScores; ++i) {
          picks.mask &= group.scores[i] == last && position_of(i) > last_position ? ~(1U << i) : ~0U;
        }
      }
      place(picks, slot);
      emit(picks, position_of, group);
    });
    __syncwarp();
  }

  /// visit(ordered bits) for every score of the span.
  template <class Visit>
  __device__ __forceinline__ void for_each_ordered(const ScoreSpan& span, const Visit& visit) const {
    stream_.for_each_group(span, [&](int first, const QuadGroup& group, bool) {
      const uint32_t mask = inside(span, first);
#pragma unroll
      for (int i = 0; i < QuadGroup::kScores; ++i) {
        if ((mask & (1U << i)) != 0) {
          visit(ordered_bits(group.scores[i]));
        }
      }
      return true;
    });
  }

  /// pick for any data; returns the ordered bits of the last score picked.
  template <class Emit>
  __device__ __forceinline__ uint32_t pick_by_bits(const ScoreSpan& span, int wanted, const Emit& emit) const {
    uint32_t low = 0xFFFFFFFFU;
    uint32_t high = 0;
    for_each_ordered(span, [&](uint32_t ordered) {
      low = min(low, ordered);
      high = max(high, ordered);
    });
    low = __reduce_min_sync(kFullMask, low);
    high = __reduce_max_sync(kFullMask, high);
    auto left = static_cast<uint32_t>(wanted);  // to be picked from [low, high]
#pragma unroll 1
    while (low < high) {
      const uint32_t width = high - low;
      const int shift = max(0, 22 - __clz(static_cast<int>(width)));
      for_each_ordered(span, [&](uint32_t ordered) {
        if (ordered - low <= width) {
          atomicAdd(&s_.histogram[(ordered - low) >> shift], 1U);
        }
      });
      const Found found = find_bin(left);
      left -= found.above;
      low += found.bin << shift;
      high = min(high, low + ((1U << shift) - 1U));
    }
    int slot = 0;
    int ties = 0;
    stream_.for_each_group(span, [&](int first, const QuadGroup& group, bool) {
      Picks picks;
      Picks tied;
#pragma unroll
      for (int i = 0; i < QuadGroup::kScores; ++i) {
        const uint32_t ordered = ordered_bits(group.scores[i]);
        picks.add(i, ordered > low);
        tied.add(i, ordered == low);
      }
      const uint32_t mask = inside(span, first);
      picks.mask &= mask;
      tied.mask &= mask;
      place(tied, ties);
      tied.for_each([&](int tie, int i) { picks.add(i, tie < static_cast<int>(left)); });
      place(picks, slot);
      emit(picks, GroupPositions{lane_, first}, group);
      return true;
    });
    __syncwarp();
    return low;
  }

  Smem& s_;
  QuadStream stream_;
  int lane_;
};

}  // namespace keysieve::device
