// SPDX-License-Identifier: Apache-2.0
// The best scores of a span of scores in global memory, exactly, by a few warps: which positions they have, in order.
//
//     range    least and greatest of a strided sample -> kBins even bins between them; what lies outside joins an end
//     count    every score into its bin (4 histograms side by side, so that equal scores meet less)
//     find     the bin that holds the wanted-th score; all higher bins are picked, of this one a few
//     mark     a bit for every picked score; scores of the found bin go to a short list
//     rank     the list, by (score, position)
//     gather   bits -> ascending positions
//
// The map from score to bin is monotone and the same in count and mark, so the picked set is exact whatever the range.
// A bad range only makes the found bin too full for the list.  Then its scores are told apart by their ordered bits
// (core/ordering.hpp): intervals of a 1024th of the one before, until what is left fits or is one value, of which the
// lowest positions are taken.  At most four rounds, for any data.
//
// Lanes read 16 bytes: positions come in quads, and quad q has byte q of `marks` (bit e: picked, bit 4 + e: a tie).
//
// Instructions are what a select warp is short of: the math warps' loop fills the instruction caches, so code that is
// executed once pays for its fetch.  Hence small loops, and the loads of a loop run ahead of it through shared memory
// (QuadStream) and not through unrolling.
#pragma once

#include <cstdint>

#include "core/ordering.hpp"
#include "cuda/device/radix_select.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::device {

/// Warps of a CTA that meet at named barrier kBarrier; `thread` counts from the first of them.
template <int kThreads_, int kBarrier>
class WarpsGroup {
 public:
  static constexpr int kThreads = kThreads_;
  explicit __device__ __forceinline__ WarpsGroup(int thread) : thread_(thread) {}
  [[nodiscard]] __device__ __forceinline__ int thread() const { return thread_; }
  __device__ __forceinline__ void sync() const { ptx::named_barrier_sync(kBarrier, kThreads); }

 private:
  int thread_;
};

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
  [[nodiscard]] __device__ __forceinline__ int first_quad() const { return begin / 4; }
  [[nodiscard]] __device__ __forceinline__ int num_quads() const { return size() > 0 ? (end + 3) / 4 - begin / 4 : 0; }
};

/// Reads the quads of a span again and again, kAhead of each thread in flight.  A thread copies only what it reads
/// itself, so no barrier is needed.
///
///     open(span); pass(visit, again = true); ...; pass(visit, again = false)
///
/// Quads are dealt to threads round robin; a thread's quads come in strides, so that its first kAhead are spread over
/// the span.
template <int kThreads>
class QuadStream {
 public:
  static constexpr int kAhead = 12;
  static constexpr int kGroup = 2;  // quads a step
  static_assert(kAhead % kGroup == 0);

  struct Smem {
    float4 quads[kAhead][kThreads];
  };

  __device__ __forceinline__ QuadStream(Smem& smem, int thread)
      : s_quads_(ptx::shared_address(&smem.quads[0][thread])), thread_(thread) {}

  /// Starts the loads of a span's first pass.
  __device__ __forceinline__ void open(const ScoreSpan& span) {
    ptx::cp_async_wait<0>();  // what an earlier span's last pass did not read
    g_quads_ = span.g_scores + 4 * (span.first_quad() + thread_);
    count_ = span.num_quads() - thread_;
    steps_ = (span.num_quads() + kThreads * kGroup - 1) / (kThreads * kGroup) * kGroup;
    stride_ = (steps_ + kAhead - 1) / kAhead;
    fetch_ = {};
    slot_ = 0;
#pragma unroll 1
    for (int i = 0; i < kAhead / kGroup; ++i) {
      fetch_group(true);
    }
  }

  /// visit(number of the quad in the span, quad) for every quad of this thread; `again`: another pass follows.
  template <class Visit>
  __device__ __forceinline__ void pass(bool again, const Visit& visit) {
    Place place;
#pragma unroll 1
    for (int step = 0; step < steps_; step += kGroup) {
      ptx::cp_async_wait<kAhead / kGroup - 1>();
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (place.index * kThreads < count_) {
          visit(place.index * kThreads + thread_, read(slot_ + i));
        }
        place.advance(stride_, steps_);
      }
      fetch_group(again || step + kAhead < steps_);
    }
  }

  /// visit(quad) for some of this thread's quads, spread over the span, after open and before the first pass.
  template <class Visit>
  __device__ __forceinline__ void sample(const Visit& visit) const {
    constexpr int kSampled = 4;
    ptx::cp_async_wait<0>();
    Place place = {};
#pragma unroll 1
    for (int step = 0; step < min(steps_, kAhead); ++step) {
      if (step % (kAhead / kSampled) == 0 && place.index * kThreads < count_) {
        visit(read(step));
      }
      place.advance(stride_, steps_);
    }
  }

 private:
  /// Walks 0, s, 2s .. 1, 1 + s .. through `steps` numbers, and starts again.
  struct Place {
    int index = 0;
    int phase = 0;
    __device__ __forceinline__ void advance(int stride, int steps) {
      index += stride;
      if (index >= steps) {
        phase = phase + 1 < stride ? phase + 1 : 0;
        index = phase;
      }
    }
  };

  __device__ __forceinline__ float4 read(int slot) const {
    float4 quad;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(quad.x), "=f"(quad.y), "=f"(quad.z), "=f"(quad.w)
                 : "r"(s_quads_ + static_cast<uint32_t>(slot) * (16U * kThreads)));
    return quad;
  }

  /// Starts the next kGroup loads, into the slots just read.
  __device__ __forceinline__ void fetch_group(bool wanted) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (wanted && fetch_.index * kThreads < count_) {
        ptx::cp_async_16(s_quads_ + static_cast<uint32_t>(slot_ + i) * (16U * kThreads),
                         g_quads_ + fetch_.index * (4 * kThreads));
      }
      fetch_.advance(stride_, steps_);
    }
    ptx::cp_async_commit();
    slot_ = slot_ + kGroup < kAhead ? slot_ + kGroup : 0;
  }

  uint32_t s_quads_;
  int thread_;
  const float* g_quads_ = nullptr;
  int count_ = 0;   // quads from this thread's first on
  int steps_ = 0;   // of a pass
  int stride_ = 0;
  Place fetch_;     // of the next load
  int slot_ = 0;    // next to be read, and then fetched into
};

/// Shared memory of a RowPicker.
template <int kThreads, int kMaxSpan, int kMaxPicks>
struct RowPickSmem {
  static constexpr int kBins = 1024;
  static constexpr int kCopies = 4;
  static constexpr int kMaxBoundary = 256;
  static constexpr int kMaxWarps = 8;

  alignas(16) uint32_t histogram[kBins][kCopies];  // zero between calls
  typename QuadStream<kThreads>::Smem stream;
  union {
    alignas(16) float4 open_quads[kMaxBoundary];  // quads with scores of the found bin
    uint16_t positions[kMaxPicks];                // the result
  };
  alignas(16) uint32_t marks[kMaxSpan / 16 + 2];  // a byte a quad
  uint32_t open_masks[kMaxBoundary];              // 16 * quad number + which of its scores
  uint32_t boundary[kMaxBoundary];                // ordered scores of the found bin, one by one
  uint16_t boundary_position[kMaxBoundary];
  uint32_t num_open;
  uint32_t boundary_count;
  uint32_t warp_low[kMaxWarps];
  uint32_t warp_high[kMaxWarps];
  uint32_t warp_count[kMaxWarps];
  uint32_t bin;        // the bin that holds the wanted rank,
  uint32_t bin_above;  // scores above it
  uint32_t bin_count;  // and in it
  uint32_t cut;        // ordered bits of the last score picked
};

/// What a pick found out besides the positions.
struct PickResult {
  uint32_t cut;  // ordered bits of the least score picked
  bool by_bits;  // the bins did not tell the scores apart
};

template <class Group, class Smem>
class RowPicker {
 public:
  static constexpr int kThreads = Group::kThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kBins = Smem::kBins;
  static constexpr int kBinBits = 10;
  static_assert(kWarps <= Smem::kMaxWarps);

  __device__ __forceinline__ RowPicker(Group group, Smem& smem)
      : group_(group),
        s_(smem),
        stream_(smem.stream, group.thread()),
        thread_(group.thread()),
        lane_(thread_ & 31),
        warp_(thread_ >> 5) {}

  /// Once, before anything else; ends with a barrier.
  __device__ __forceinline__ void initialise() {
    for (int i = thread_; i < kBins; i += kThreads) {
      *reinterpret_cast<uint4*>(s_.histogram[i]) = make_uint4(0, 0, 0, 0);
    }
    group_.sync();
  }

  /// Starts the loads for the next pick or pick_reaching.
  __device__ __forceinline__ void open(const ScoreSpan& span) { stream_.open(span); }

  /// smem.positions[0, wanted) = positions of the best `wanted` scores of the opened span, ascending;
  /// 1 <= wanted < span.size().  Among equal scores the lower position wins.  `read()` is called when the span has been
  /// read: another may be opened.  By all threads of the group; ends with a barrier.
  template <class Read>
  __device__ __forceinline__ PickResult pick(const ScoreSpan& span, int wanted, const Read& read) {
    begin_marks(span);
    const LinearBins bins = count_linear(span);
    find_bin(static_cast<uint32_t>(wanted));
    auto left = static_cast<uint32_t>(wanted) - s_.bin_above;  // to be picked from the found bin
    const uint32_t code = s_.bin * LinearBins::kUnit;
    const bool by_bits = s_.bin_count > Smem::kMaxBoundary;
    if (by_bits) {
      left = mark_by_bits(span, bins, code, left);
    } else {
      mark(span, false, [&](float score, bool& higher, bool& open) {
        const uint32_t own = bins.code(score);
        higher = own > code;
        open = own == code;
      });
    }
    read();
    if (left > 0) {
      rank_boundary(span, left);
    }
    gather(span);
    return {s_.cut, by_bits};
  }

  /// smem.positions = positions of the scores >= threshold of the opened span, ascending; returns how many.  NaN
  /// reaches nothing.  `read` as above.  Ends with a barrier.
  template <class Read>
  __device__ __forceinline__ int pick_reaching(const ScoreSpan& span, float threshold, const Read& read) {
    begin_marks(span);
    mark(span, false, [&](float score, bool& higher, bool& open) {
      higher = score >= threshold;
      open = false;
    });
    read();
    return gather(span);
  }

 private:
  static constexpr uint32_t kFullMask = 0xFFFFFFFFU;

  /// Score -> kUnit * bin, monotone for any finite scale >= 0 and offset: a fused multiply-add that saturates to
  /// [0, 1] (NaN to 0), and one that aligns the bin with a field of the sum's bits.
  struct LinearBins {
    static constexpr uint32_t kUnit = 16;  // bytes of a bin's histograms
    float scale = 0.0F;
    float offset = 0.0F;

    __device__ __forceinline__ uint32_t code(float score) const {
      constexpr float kAlign = 524288.0F;  // 2^19: a unit in the last place is 1 / kUnit
      const float place = __saturatef(__fmaf_rn(score, scale, offset));
      return __float_as_uint(__fmaf_rn(place, static_cast<float>(kBins - 1), kAlign)) & ((kBins - 1) * kUnit);
    }
  };

  __device__ __forceinline__ uint8_t* mark_bytes() const { return reinterpret_cast<uint8_t*>(s_.marks); }

  /// Which scores of quad `number` belong to the span.
  static __device__ __forceinline__ uint32_t inside(const ScoreSpan& span, int number) {
    const int position = 4 * (span.first_quad() + number);
    uint32_t mask = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      mask |= span.holds(position + e) ? 1U << e : 0U;
    }
    return mask;
  }

  /// visit(score) for the scores of a quad that belong to the span.
  template <class Visit>
  static __device__ __forceinline__ void for_each_inside(const ScoreSpan& span, int number, const float4& quad,
                                                         const Visit& visit) {
    const uint32_t mask = inside(span, number);
    const float scores[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if ((mask & (1U << e)) != 0) {
        visit(scores[e]);
      }
    }
  }

  /// Least and greatest over the group.  One barrier; another must follow before the next call.
  __device__ __forceinline__ OrderedInterval reduce_interval(uint32_t low, uint32_t high) const {
    low = __reduce_min_sync(kFullMask, low);
    high = __reduce_max_sync(kFullMask, high);
    if (lane_ == 0) {
      s_.warp_low[warp_] = low;
      s_.warp_high[warp_] = high;
    }
    group_.sync();
    OrderedInterval interval = {s_.warp_low[0], s_.warp_high[0]};
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      interval.low = min(interval.low, s_.warp_low[w]);
      interval.high = max(interval.high, s_.warp_high[w]);
    }
    return interval;
  }

  /// A position's bin of this lane's copy of the histogram, from a code.
  __device__ __forceinline__ uint32_t* s_counter(uint32_t code) const {
    return reinterpret_cast<uint32_t*>(reinterpret_cast<uint8_t*>(s_.histogram) +
                                       lane_ % Smem::kCopies * sizeof(uint32_t) + code);
  }

  /// Fills the histogram with bins that span a sample of the scores.  Ends with a barrier.
  __device__ __forceinline__ LinearBins count_linear(const ScoreSpan& span) {
    float least = __int_as_float(0x7F800000);
    float greatest = -least;
    stream_.sample([&](const float4& quad) {
      least = fminf(least, fminf(fminf(quad.x, quad.y), fminf(quad.z, quad.w)));
      greatest = fmaxf(greatest, fmaxf(fmaxf(quad.x, quad.y), fmaxf(quad.z, quad.w)));
    });
    const OrderedInterval interval = reduce_interval(ordered_bits(least), ordered_bits(greatest));
    const float low = score_of_ordered_bits(interval.low);
    const float scale = 1.0F / (score_of_ordered_bits(interval.high) - low);
    LinearBins bins;
    if (scale > 0.0F && scale < 1e30F) {  // neither infinite ends nor equal ones
      bins.scale = scale;
      bins.offset = -low * scale;
    }
    stream_.pass(true, [&](int, const float4& quad) {
      atomicAdd(s_counter(bins.code(quad.x)), 1U);
      atomicAdd(s_counter(bins.code(quad.y)), 1U);
      atomicAdd(s_counter(bins.code(quad.z)), 1U);
      atomicAdd(s_counter(bins.code(quad.w)), 1U);
    });
    // Take back what the first and last quad have outside the span: at most 3 positions on each side.
    if (thread_ < 8) {
      const int position = thread_ < 4 ? 4 * span.first_quad() + thread_ : (span.end - 1) / 4 * 4 + thread_ - 4;
      const bool outside = thread_ < 4 ? position < span.begin : position >= span.end;
      if (outside) {
        atomicSub(s_counter(bins.code(span.score(position))), 1U);
      }
    }
    group_.sync();
    return bins;
  }

  /// Finds the bin that holds the wanted rank counted from the top, and clears the histogram.  Ends with a barrier.
  __device__ __forceinline__ void find_bin(uint32_t wanted) {
    // Thread 0 owns the highest bins, so that a prefix sum over threads counts from the top.
    constexpr int kBinsPerThread = (kBins + kThreads - 1) / kThreads;
    const int last_bin = kBins - 1 - thread_ * kBinsPerThread;
    const int first_bin = max(last_bin - kBinsPerThread, -1);
    const auto count_of = [&](int bin) {
      const uint4 copies = *reinterpret_cast<const uint4*>(s_.histogram[bin]);
      return copies.x + copies.y + copies.z + copies.w;
    };
    uint32_t mine = 0;
#pragma unroll 1
    for (int bin = last_bin; bin > first_bin; --bin) {
      mine += count_of(bin);
    }
    uint32_t inclusive = mine;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint32_t other = __shfl_up_sync(kFullMask, inclusive, offset);
      inclusive += lane_ >= offset ? other : 0;
    }
    if (lane_ == 31) {
      s_.warp_count[warp_] = inclusive;
    }
    group_.sync();
    uint32_t above = inclusive - mine;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      above += w < warp_ ? s_.warp_count[w] : 0;
    }
    if (above < wanted && wanted <= above + mine) {
      int bin = last_bin;
      uint32_t count = count_of(bin);
#pragma unroll 1
      while (above + count < wanted) {
        above += count;
        --bin;
        count = count_of(bin);
      }
      s_.bin = static_cast<uint32_t>(bin);
      s_.bin_above = above;
      s_.bin_count = count;
    }
#pragma unroll 1
    for (int bin = last_bin; bin > first_bin; --bin) {
      *reinterpret_cast<uint4*>(s_.histogram[bin]) = make_uint4(0, 0, 0, 0);
    }
    group_.sync();
  }

  /// Before mark; a barrier must lie between.
  __device__ __forceinline__ void begin_marks(const ScoreSpan& span) {
    if (thread_ == 0) {
      s_.num_open = 0;
      s_.boundary_count = 0;
    }
    if (thread_ < 4) {  // the last word's bytes past the span
      mark_bytes()[span.num_quads() + thread_] = 0;
    }
  }

  /// Writes the marks of every quad.  judge(score, higher, open): `higher` ones are picked; `open` ones become tie marks
  /// if `ties`, else their quads go to the list, those outside the span too.  Contains a barrier; another must follow
  /// before marks are read.
  template <class Judge>
  __device__ __forceinline__ void mark(const ScoreSpan& span, bool ties, const Judge& judge) {
    stream_.pass(false, [&](int number, const float4& quad) {
      const float scores[4] = {quad.x, quad.y, quad.z, quad.w};
      uint32_t picked = 0;
      uint32_t opened = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        bool higher;
        bool open;
        judge(scores[e], higher, open);
        picked |= higher ? 1U << e : 0U;
        opened |= open ? 1U << e : 0U;
      }
      if (opened != 0) {
        if (ties) {
          picked |= opened << 4U;
        } else if (const uint32_t own = opened & inside(span, number); own != 0) {
          const uint32_t slot = atomicAdd(&s_.num_open, 1U);
          s_.open_quads[slot] = quad;
          s_.open_masks[slot] = 16U * static_cast<uint32_t>(number) + own;
        }
      }
      mark_bytes()[number] = static_cast<uint8_t>(picked);
    });
    group_.sync();
    if (thread_ < 2) {
      const int number = thread_ == 0 ? 0 : span.num_quads() - 1;
      if (thread_ == 0 || number > 0) {
        mark_bytes()[number] &= static_cast<uint8_t>(inside(span, number) * 17U);
      }
    }
  }

  /// Marks the best `wanted` of the listed scores.  Contains a barrier; ends without.
  __device__ __forceinline__ void rank_boundary(const ScoreSpan& span, uint32_t wanted) {
    const uint32_t num_open = s_.num_open;
#pragma unroll 1
    for (uint32_t i = static_cast<uint32_t>(thread_) / 4; i < num_open; i += kThreads / 4) {
      const uint32_t element = static_cast<uint32_t>(thread_) % 4;
      const uint32_t mask = s_.open_masks[i];
      if ((mask >> element & 1U) != 0) {
        const uint32_t slot = atomicAdd(&s_.boundary_count, 1U);
        s_.boundary[slot] = ordered_bits(reinterpret_cast<const float*>(&s_.open_quads[i])[element]);
        s_.boundary_position[slot] = static_cast<uint16_t>(mask / 16 * 4 + element);
      }
    }
    group_.sync();
    const auto count = static_cast<int>(s_.boundary_count);
#pragma unroll 1
    for (int i = thread_; i < count; i += kThreads) {
      const uint32_t mine = s_.boundary[i];
      const uint32_t place = s_.boundary_position[i];  // from the first quad
      uint32_t rank = 0;
#pragma unroll 2
      for (int other = 0; other < count; ++other) {
        const uint32_t ordered = s_.boundary[other];
        rank += ordered > mine || (ordered == mine && s_.boundary_position[other] < place) ? 1U : 0U;
      }
      if (rank < wanted) {
        atomicOr(&s_.marks[place / 16], 1U << (place / 4 % 4 * 8 + place % 4));
      }
      if (rank == wanted - 1) {
        s_.cut = mine;
      }
    }
  }

  /// As mark, for a bin with more scores than the list holds: narrows an interval of ordered bits first.  Returns how
  /// many of the listed scores are still to be picked.
  __device__ __forceinline__ uint32_t mark_by_bits(const ScoreSpan& span, const LinearBins& bins, uint32_t code,
                                                   uint32_t wanted) {
    uint32_t population = s_.bin_count;
    OrderedInterval interval = {0xFFFFFFFFU, 0};
    stream_.pass(true, [&](int number, const float4& quad) {
      for_each_inside(span, number, quad, [&](float score) {
        const uint32_t ordered = ordered_bits(score);
        const bool in_bin = bins.code(score) == code;
        interval.low = min(interval.low, in_bin ? ordered : 0xFFFFFFFFU);
        interval.high = max(interval.high, in_bin ? ordered : 0U);
      });
    });
    interval = reduce_interval(interval.low, interval.high);
#pragma unroll 1
    while (population > Smem::kMaxBoundary && interval.low < interval.high) {
      const uint32_t width = interval.high - interval.low;
      const int shift = max(0, 32 - __clz(static_cast<int>(width)) - kBinBits);
      stream_.pass(true, [&](int number, const float4& quad) {
        for_each_inside(span, number, quad, [&](float score) {
          const uint32_t distance = ordered_bits(score) - interval.low;
          if (distance <= width) {
            atomicAdd(s_counter((distance >> shift) * LinearBins::kUnit), 1U);
          }
        });
      });
      group_.sync();
      find_bin(wanted);
      wanted -= s_.bin_above;
      population = s_.bin_count;
      interval.low += s_.bin << shift;
      interval.high = min(interval.high, interval.low + ((1U << shift) - 1U));
    }
    const bool ties = population > Smem::kMaxBoundary;  // all equal, too many to list
    mark(span, ties, [&](float score, bool& higher, bool& open) {
      const uint32_t ordered = ordered_bits(score);
      higher = ordered > interval.high;
      open = !higher && ordered >= interval.low;
    });
    if (!ties) {
      return wanted;
    }
    take_ties(span, wanted);
    s_.cut = interval.low;  // by all threads, the same
    return 0;
  }

  /// use(word number, word, sum of count(word) over the words before) for every word of marks; each warp takes a
  /// contiguous part.  Returns the sum over all.  Starts with a barrier and contains another.
  template <class Count, class Use>
  __device__ __forceinline__ uint32_t scan_marks(const ScoreSpan& span, const Count& count, const Use& use) {
    const int words = (span.num_quads() + 3) / 4;
    const int part = (words + kWarps - 1) / kWarps;
    const int begin = min(warp_ * part, words);
    const int end = min(begin + part, words);
    group_.sync();
    uint32_t mine = 0;
#pragma unroll 1
    for (int i = begin + lane_; i < end; i += 32) {
      mine += count(s_.marks[i]);
    }
    mine = __reduce_add_sync(kFullMask, mine);
    if (lane_ == 0) {
      s_.warp_count[warp_] = mine;
    }
    group_.sync();
    uint32_t before = 0;
    uint32_t total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      before += w < warp_ ? s_.warp_count[w] : 0;
      total += s_.warp_count[w];
    }
#pragma unroll 1
    for (int base = begin; base < end; base += 32) {
      const int i = base + lane_;
      const uint32_t word = i < end ? s_.marks[i] : 0;
      const uint32_t own = count(word);
      uint32_t inclusive = own;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const uint32_t other = __shfl_up_sync(kFullMask, inclusive, offset);
        inclusive += lane_ >= offset ? other : 0;
      }
      if (i < end) {
        use(i, word, before + inclusive - own);
      }
      before += __shfl_sync(kFullMask, inclusive, 31);
    }
    return total;
  }

  /// Turns the first `wanted` tie marks into marks.
  __device__ __forceinline__ void take_ties(const ScoreSpan& span, uint32_t wanted) {
    const auto ties_of = [](uint32_t word) { return word & 0xF0F0F0F0U; };
    const auto count = [&](uint32_t word) { return static_cast<uint32_t>(__popc(ties_of(word))); };
    scan_marks(span, count, [&](int i, uint32_t word, uint32_t before) {
      uint32_t ties = ties_of(word);
      const uint32_t upto = before + count(word);
#pragma unroll 1
      for (uint32_t surplus = upto > wanted ? upto - wanted : 0; surplus > 0 && ties != 0; --surplus) {
        ties &= ~(0x80000000U >> __clz(static_cast<int>(ties)));
      }
      s_.marks[i] = (word & 0x0F0F0F0FU) | ties >> 4U;
    });
  }

  /// Marks -> positions; returns how many.  Starts and ends with a barrier.
  __device__ __forceinline__ int gather(const ScoreSpan& span) {
    const uint32_t count = scan_marks(
        span, [](uint32_t word) { return static_cast<uint32_t>(__popc(word)); },
        [&](int i, uint32_t word, uint32_t slot) {
          const uint32_t first = 4U * static_cast<uint32_t>(span.first_quad()) + 16U * static_cast<uint32_t>(i);
#pragma unroll 1
          while (word != 0) {
            const auto bit = static_cast<uint32_t>(__ffs(static_cast<int>(word)) - 1);
            word &= word - 1;
            s_.positions[slot++] = static_cast<uint16_t>(first + bit / 8 * 4 + bit % 8);
          }
        });
    group_.sync();
    return static_cast<int>(count);
  }

  Group group_;
  Smem& s_;
  QuadStream<kThreads> stream_;
  int thread_;
  int lane_;
  int warp_;
};

}  // namespace keysieve::device
