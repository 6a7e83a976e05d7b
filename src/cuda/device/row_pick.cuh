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
#pragma once

#include <cstdint>

#include "core/ordering.hpp"
#include "cuda/device/radix_select.cuh"
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
  [[nodiscard]] __device__ __forceinline__ float4 quad(int position) const {
    return __ldcg(reinterpret_cast<const float4*>(g_scores + position));
  }
  [[nodiscard]] __device__ __forceinline__ bool holds(int position) const {
    return position >= begin && position < end;
  }
};

/// Shared memory of a RowPicker.
template <int kMaxSpan, int kMaxPicks>
struct RowPickSmem {
  static constexpr int kBins = 1024;
  static constexpr int kCopies = 4;
  static constexpr int kMaxBoundary = 256;
  static constexpr int kMaxWarps = 8;

  alignas(16) uint32_t histogram[kBins][kCopies];  // zero between calls
  union {
    alignas(16) float4 open_quads[kMaxBoundary];  // quads with scores of the found bin
    uint16_t positions[kMaxPicks];    // the result
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
  uint32_t cut;      // ordered bits of the least score picked
  bool by_bits;      // the bins did not tell the scores apart
};

template <class Group, class Smem>
class RowPicker {
 public:
  static constexpr int kThreads = Group::kThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kBins = Smem::kBins;
  static constexpr int kBinBits = 10;
  static constexpr int kQuadsInFlight = 8;
  static_assert(kWarps <= Smem::kMaxWarps);

  __device__ __forceinline__ RowPicker(Group group, Smem& smem)
      : group_(group), s_(smem), thread_(group.thread()), lane_(thread_ & 31), warp_(thread_ >> 5) {}

  /// Once, before anything else; ends with a barrier.
  __device__ __forceinline__ void initialise() {
    for (int i = thread_; i < kBins; i += kThreads) {
      *reinterpret_cast<uint4*>(s_.histogram[i]) = make_uint4(0, 0, 0, 0);
    }
    group_.sync();
  }

  /// smem.positions[0, wanted) = positions of the best `wanted` scores, ascending; 1 <= wanted < span.size().
  /// Among equal scores the lower position wins.  By all threads of the group; ends with a barrier.
  __device__ __forceinline__ PickResult pick(const ScoreSpan& span, int wanted) {
    const int first_quad = span.begin / 4;
    const Quads quads = {first_quad, (span.end + 3) / 4 - first_quad};
    if (thread_ == 0) {
      s_.num_open = 0;
      s_.boundary_count = 0;
    }
    if (thread_ < 4) {  // the last word's bytes past the span
      mark_bytes()[quads.count + thread_] = 0;
    }
    const LinearBins bins = count_linear(span, quads);
    find_bin(static_cast<uint32_t>(wanted));
    auto left = static_cast<uint32_t>(wanted) - s_.bin_above;  // to be picked from the found bin
    const uint32_t code = s_.bin * LinearBins::kUnit;
    const bool by_bits = s_.bin_count > Smem::kMaxBoundary;
    if (by_bits) {
      left = mark_by_bits(span, quads, bins, code, left);
    } else {
      mark(span, quads, false, [&](float score, bool& higher, bool& open) {
        const uint32_t own = bins.code(score);
        higher = own > code;
        open = own == code;
      });
    }
    if (left > 0) {
      rank_boundary(left, quads);
    }
    gather(quads);
    return {s_.cut, by_bits};
  }

 private:
  static constexpr uint32_t kFullMask = 0xFFFFFFFFU;

  /// Quads [first, first + count) of a span.
  struct Quads {
    int first;
    int count;
    [[nodiscard]] __device__ __forceinline__ int words() const { return (count + 3) / 4; }
  };

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

  /// visit(quad number, quad, which of its scores belong to the span) for each quad; prepare(batch, quads of this thread)
  /// before each batch of kQuadsInFlight.  Every batch is spread over the whole span.
  template <class Prepare, class Visit>
  __device__ __forceinline__ void for_each_quad(const ScoreSpan& span, const Quads& quads, const Prepare& prepare,
                                                const Visit& visit) const {
    // Threads 0 and 1 take the first and last quad if they are not whole, the others go round.
    const int whole_begin = span.begin % 4 != 0 ? 1 : 0;
    const int whole_end = span.end % 4 != 0 ? quads.count - 1 : quads.count;
    const int edge = thread_ == 0 ? 0 : quads.count - 1;
    const bool has_edge = thread_ == 0 ? whole_begin == 1 : thread_ == 1 && whole_end < quads.count && edge >= whole_begin;
    float4 edge_quad;
    if (has_edge) {
      edge_quad = span.quad(4 * (quads.first + edge));
    }
    const int count = whole_end - whole_begin;
    const int batches = (count + kQuadsInFlight * kThreads - 1) / (kQuadsInFlight * kThreads);
    const int step = batches * kThreads;
#pragma unroll 1
    for (int batch = 0; batch < batches; ++batch) {
      // All loads before the first use of one: a lane's instructions are issued in order.
      const int first = batch * kThreads + thread_;
      float4 loaded[kQuadsInFlight];
#pragma unroll
      for (int j = 0; j < kQuadsInFlight; ++j) {
        loaded[j] = span.quad(4 * (quads.first + whole_begin + min(first + j * step, count - 1)));
      }
      prepare(batch, loaded);
#pragma unroll
      for (int j = 0; j < kQuadsInFlight; ++j) {
        if (first + j * step < count) {
          visit(whole_begin + first + j * step, loaded[j], 0xFU);
        }
      }
    }
    if (has_edge) {
      const int position = 4 * (quads.first + edge);
      uint32_t inside = 0;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        inside |= span.holds(position + e) ? 1U << e : 0U;
      }
      visit(edge, edge_quad, inside);
    }
  }

  /// visit(score) for every score of the span.
  template <class Visit>
  __device__ __forceinline__ void for_each_score(const ScoreSpan& span, const Quads& quads, const Visit& visit) const {
    for_each_score(span, quads, [](int, const float4(&)[kQuadsInFlight]) {}, visit);
  }
  template <class Prepare, class Visit>
  __device__ __forceinline__ void for_each_score(const ScoreSpan& span, const Quads& quads, const Prepare& prepare,
                                                 const Visit& visit) const {
    for_each_quad(span, quads, prepare, [&](int, const float4& quad, uint32_t inside) {
      const float scores[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if ((inside & (1U << e)) != 0) {
          visit(scores[e]);
        }
      }
    });
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

  /// Fills the histogram with bins that span the first batch's scores.  Ends with a barrier.
  __device__ __forceinline__ LinearBins count_linear(const ScoreSpan& span, const Quads& quads) {
    LinearBins bins;
    uint8_t* s_histogram = reinterpret_cast<uint8_t*>(s_.histogram) + lane_ % Smem::kCopies * sizeof(uint32_t);
    const auto count = [&](float score) {
      atomicAdd(reinterpret_cast<uint32_t*>(s_histogram + bins.code(score)), 1U);
    };
    const auto measure = [&](int batch, const float4(&sample)[kQuadsInFlight]) {
      if (batch > 0) {
        return;
      }
      float least = __int_as_float(0x7F800000);
      float greatest = -least;
#pragma unroll
      for (const float4& quad : sample) {
        least = fminf(least, fminf(fminf(quad.x, quad.y), fminf(quad.z, quad.w)));
        greatest = fmaxf(greatest, fmaxf(fmaxf(quad.x, quad.y), fmaxf(quad.z, quad.w)));
      }
      const OrderedInterval interval = reduce_interval(ordered_bits(least), ordered_bits(greatest));
      const float low = score_of_ordered_bits(interval.low);
      const float scale = 1.0F / (score_of_ordered_bits(interval.high) - low);
      if (scale > 0.0F && scale < 1e30F) {  // neither infinite ends nor equal ones
        bins.scale = scale;
        bins.offset = -low * scale;
      }
    };
    for_each_score(span, quads, measure, count);
    group_.sync();
    return bins;
  }

  /// Finds the bin that holds the wanted rank counted from the top, and clears the histogram.  Ends with a barrier.
  __device__ __forceinline__ void find_bin(uint32_t wanted) {
    // Thread 0 owns the highest bins, so that a prefix sum over threads counts from the top.
    constexpr int kBinsPerThread = (kBins + kThreads - 1) / kThreads;
    const int last_bin = kBins - 1 - thread_ * kBinsPerThread;
    uint32_t counts[kBinsPerThread];
    uint32_t mine = 0;
#pragma unroll
    for (int b = 0; b < kBinsPerThread; ++b) {
      counts[b] = 0;
      if (last_bin - b >= 0) {
        auto* s_copies = reinterpret_cast<uint4*>(s_.histogram[last_bin - b]);
        const uint4 copies = *s_copies;
        *s_copies = make_uint4(0, 0, 0, 0);
        counts[b] = copies.x + copies.y + copies.z + copies.w;
      }
      mine += counts[b];
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
#pragma unroll
      for (int b = 0; b < kBinsPerThread; ++b) {
        if (above < wanted && wanted <= above + counts[b]) {
          s_.bin = static_cast<uint32_t>(last_bin - b);
          s_.bin_above = above;
          s_.bin_count = counts[b];
        }
        above += counts[b];
      }
    }
    group_.sync();
  }

  /// Writes the marks of every quad.  judge(score, higher, open): `higher` ones are picked; `open` ones become tie marks
  /// if `ties`, else their quads go to the list.  No barrier.
  template <class Judge>
  __device__ __forceinline__ void mark(const ScoreSpan& span, const Quads& quads, bool ties, const Judge& judge) {
    for_each_quad(
        span, quads, [](int, const float4(&)[kQuadsInFlight]) {},
        [&](int number, const float4& quad, uint32_t inside) {
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
          picked &= inside;
          opened &= inside;
          if (opened != 0) {
            if (ties) {
              picked |= opened << 4U;
            } else {
              const uint32_t slot = atomicAdd(&s_.num_open, 1U);
              s_.open_quads[slot] = quad;
              s_.open_masks[slot] = 16U * static_cast<uint32_t>(number) + opened;
            }
          }
          mark_bytes()[number] = static_cast<uint8_t>(picked);
        });
  }

  /// Marks the best `wanted` of the listed scores.  Starts with a barrier; ends without.
  __device__ __forceinline__ void rank_boundary(uint32_t wanted, const Quads& quads) {
    group_.sync();
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
#pragma unroll 4
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
  __device__ __forceinline__ uint32_t mark_by_bits(const ScoreSpan& span, const Quads& quads, const LinearBins& bins,
                                                   uint32_t code, uint32_t wanted) {
    uint32_t population = s_.bin_count;
    OrderedInterval interval = {0xFFFFFFFFU, 0};
    for_each_score(span, quads, [&](float score) {
      const uint32_t ordered = ordered_bits(score);
      const bool inside = bins.code(score) == code;
      interval.low = min(interval.low, inside ? ordered : 0xFFFFFFFFU);
      interval.high = max(interval.high, inside ? ordered : 0U);
    });
    interval = reduce_interval(interval.low, interval.high);
#pragma unroll 1
    while (population > Smem::kMaxBoundary && interval.low < interval.high) {
      const uint32_t width = interval.high - interval.low;
      const int shift = max(0, 32 - __clz(static_cast<int>(width)) - kBinBits);
      for_each_score(span, quads, [&](float score) {
        const uint32_t distance = ordered_bits(score) - interval.low;
        if (distance <= width) {
          atomicAdd(&s_.histogram[distance >> shift][lane_ % Smem::kCopies], 1U);
        }
      });
      group_.sync();
      find_bin(wanted);
      wanted -= s_.bin_above;
      population = s_.bin_count;
      interval.low += s_.bin << shift;
      interval.high = min(interval.high, interval.low + ((1U << shift) - 1U));
    }
    const bool ties = population > Smem::kMaxBoundary;  // all equal, too many to list
    mark(span, quads, ties, [&](float score, bool& higher, bool& open) {
      const uint32_t ordered = ordered_bits(score);
      higher = ordered > interval.high;
      open = !higher && ordered >= interval.low;
    });
    if (!ties) {
      return wanted;
    }
    take_ties(wanted, quads);
    s_.cut = interval.low;  // by all threads, the same
    return 0;
  }

  /// use(word number, word, sum of count(word) over the words before) for every word of marks; each warp takes a
  /// contiguous part.  Starts with a barrier and contains another.
  template <class Count, class Use>
  __device__ __forceinline__ void scan_marks(const Quads& quads, const Count& count, const Use& use) {
    const int words = quads.words();
    const int part = (words + kWarps - 1) / kWarps;
    const int begin = min(warp_ * part, words);
    const int end = min(begin + part, words);
    group_.sync();
    uint32_t mine = 0;
#pragma unroll 2
    for (int i = begin + lane_; i < end; i += 32) {
      mine += count(s_.marks[i]);
    }
    mine = __reduce_add_sync(kFullMask, mine);
    if (lane_ == 0) {
      s_.warp_count[warp_] = mine;
    }
    group_.sync();
    uint32_t before = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      before += w < warp_ ? s_.warp_count[w] : 0;
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
  }

  /// Turns the first `wanted` tie marks into marks.
  __device__ __forceinline__ void take_ties(uint32_t wanted, const Quads& quads) {
    const auto ties_of = [](uint32_t word) { return word & 0xF0F0F0F0U; };
    scan_marks(
        quads, [&](uint32_t word) { return static_cast<uint32_t>(__popc(ties_of(word))); },
        [&](int i, uint32_t word, uint32_t before) {
          uint32_t ties = ties_of(word);
          for (uint32_t surplus = before + __popc(ties) > wanted ? before + __popc(ties) - wanted : 0;
               surplus > 0 && ties != 0; --surplus) {
            ties &= ~(0x80000000U >> __clz(static_cast<int>(ties)));
          }
          s_.marks[i] = (word & 0x0F0F0F0FU) | ties >> 4U;
        });
  }

  /// Marks -> positions.  Starts and ends with a barrier.
  __device__ __forceinline__ void gather(const Quads& quads) {
    scan_marks(
        quads, [](uint32_t word) { return static_cast<uint32_t>(__popc(word)); },
        [&](int i, uint32_t word, uint32_t slot) {
          const uint32_t first = 4U * static_cast<uint32_t>(quads.first) + 16U * static_cast<uint32_t>(i);
          while (word != 0) {
            const auto bit = static_cast<uint32_t>(__ffs(static_cast<int>(word)) - 1);
            word &= word - 1;
            s_.positions[slot++] = static_cast<uint16_t>(first + bit / 8 * 4 + bit % 8);
          }
        });
    group_.sync();
  }

  Group group_;
  Smem& s_;
  int thread_;
  int lane_;
  int warp_;
};

}  // namespace keysieve::device
