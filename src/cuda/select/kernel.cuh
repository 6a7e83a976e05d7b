// SPDX-License-Identifier: Apache-2.0
// select: the K best scores of each row, exactly, reading every score once.
//
//     for each row (one CTA, or a cluster of CTAs that share the row in contiguous parts):
//       sample   512..4096 scores, one of each stride -> a threshold that about 2K of the row's scores should pass
//       stream   16 scores a thread at a time; those that pass are appended to s_list, in ascending key order
//       merge    (cluster) CTA 0 appends the lists of the others, in order
//       finish   radix selection among the candidates, written in ascending key order
//
// Why the result is exact whatever the threshold is.  Let P be the keys that passed the threshold, U the ones that did
// not.  Every score of P is above every score of U, so if |P| >= K then the K best keys lie in P, and P is in the list.
// If |P| < K the row is streamed again with a lower threshold, at last with one that everything passes.  When the list
// might overflow it is cut to its K best: later keys have higher indices, so from then on only scores strictly above
// the K-th can still enter, and that is the new threshold.  Nothing is ever dropped for want of space.
//
//     virtual position   0 . . lead            lead + width       address of position 0 is 16-byte aligned;
//     row                x x x [0 1 2 3 4 ... width-1] x x x      positions outside the row are never read
//     CTA c of a cluster reads positions [c * part, (c + 1) * part)
#pragma once

#include <cooperative_groups.h>
#include <cstdint>

#include "core/bf16.hpp"
#include "cuda/device/radix_select.cuh"
#include "cuda/device/row_output.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/select/config.hpp"

namespace keysieve::cuda {

using device::BlockSelect;
using device::CandidateList;
using device::CtaGroup;
using device::Cut;
using device::OrderedInterval;
using device::RowKeys;
using device::RowOutput;
using device::RowRanges;
using device::RowWriter;

struct SelectArgs {
  const void* g_scores = nullptr;  // [T,N] or [T,W]
  int64_t row_stride = 0;          // elements
  uint32_t num_rows = 0;
  bool compact = false;  // column n - row_start holds key n
  bool sort_by_score = false;
  RowRanges ranges;
  RowOutput output;
};

template <class Config>
struct SelectSmem {
  using Select = BlockSelect<CtaGroup<Config::kThreads>>;

  alignas(16) uint32_t ordered[Config::kCapacity];  // candidates: raw scores while streaming, then ordered bits
  int32_t indices[Config::kCapacity];               // row-relative
  typename Select::Smem select;
  alignas(16) uint32_t warp_counts[2][Config::kThreads / 32];  // candidates of a chunk by warp, alternating
  uint32_t t;                                                  // the row, kept here to spare registers
  RowKeys keys;                                                // and its keys
  int32_t list_count;                                          // read by the cluster's CTA 0
};

/// What passes: scores >= `score`, and NaN too while everything passes.
struct Threshold {
  float score = 0;
  bool everything = true;

  static __device__ __forceinline__ Threshold at_least(uint32_t ordered) {
    // Between NaN and -inf lies no score.
    return {score_of_ordered_bits(max(ordered, kOrderedNegativeInfinity)), ordered == kOrderedNan};
  }
  __device__ __forceinline__ bool passes(float candidate) const { return candidate >= score || everything; }
};

/// Scores of one row, 16 bytes at a time.
template <typename Score>
struct ScoreRow {
  static constexpr int kVector = 16 / static_cast<int>(sizeof(Score));  // scores a load

  const Score* g_first;  // position 0: aligned down from the row's first score
  uint32_t lead;         // positions before the row
  uint32_t end;          // lead + width

  __device__ __forceinline__ ScoreRow(const Score* g_row, uint32_t width) {
    lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(g_row) % 16U / sizeof(Score));
    g_first = g_row - lead;
    end = lead + width;
  }

  static __device__ __forceinline__ float widen(float score) { return score; }
  static __device__ __forceinline__ float widen(uint16_t score) { return bf16_to_float(score); }

  __device__ __forceinline__ float score(uint32_t relative) const { return widen(__ldg(g_first + lead + relative)); }

  /// Score `element` of a loaded vector.
  static __device__ __forceinline__ float element(const uint4& vector, int element) {
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    if constexpr (sizeof(Score) == 4) {
      return __uint_as_float(words[element]);
    } else {
      const uint32_t word = words[element / 2];
      return __uint_as_float(element % 2 == 0 ? word << 16U : word & 0xFFFF0000U);
    }
  }

  /// Bit e: position + e lies inside [lead, stop).
  [[nodiscard]] __device__ __forceinline__ uint32_t inside(uint32_t position, uint32_t stop) const {
    constexpr uint32_t kAll = (1U << kVector) - 1U;
    const uint32_t skip = position < lead ? lead - position : 0;
    const uint32_t left = position < stop ? stop - position : 0;
    const uint32_t before_stop = left < kVector ? (1U << left) - 1U : kAll;
    return before_stop & (kAll << min(skip, static_cast<uint32_t>(kVector)));
  }

  /// Loads what lies inside [lead, stop), score by score if need be.
  [[nodiscard]] __device__ __forceinline__ uint4 load_inside(uint32_t position, uint32_t stop) const {
    const uint32_t mask = inside(position, stop);
    const Score* g_vector = g_first + position;
    if (mask == (1U << kVector) - 1U) {
      return __ldg(reinterpret_cast<const uint4*>(g_vector));
    }
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      if ((mask >> e & 1U) != 0) {
        const Score value = __ldg(g_vector + e);
        if constexpr (sizeof(Score) == 4) {
          words[e] = __float_as_uint(value);
        } else {
          words[e / 2] |= static_cast<uint32_t>(value) << (e % 2 * 16);
        }
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

template <class Config, typename Score>
class RowSelector {
  using Smem = SelectSmem<Config>;
  using Group = CtaGroup<Config::kThreads>;
  using Row = ScoreRow<Score>;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kVectors = Config::kScoresPerThread / Row::kVector;  // loads a thread and chunk
  static constexpr int kFieldBits = 32 / kVectors;                          // of a warp's count for one vector
  static constexpr uint32_t kFullMask = 0xFFFFFFFFU;
  static constexpr uint32_t kVectorMask = (1U << Row::kVector) - 1U;

 public:
  __device__ __forceinline__ RowSelector(Smem& smem, const SelectArgs& args)
      : s_(smem), args_(args), list_{smem.ordered, smem.indices} {}

  /// Once a kernel.
  __device__ __forceinline__ void initialise() { selection().initialise(); }

  /// Row t as CTA `part` of `parts`; returns this cluster's next row.
  __device__ __forceinline__ uint32_t run(uint32_t t, uint32_t part, uint32_t parts) {
    const RowKeys keys = args_.output.row_keys(args_.ranges, t);
    if (thread_index() == 0) {
      s_.t = t;
      s_.keys = keys;
    }
    const int32_t first_column = args_.compact ? 0 : keys.begin;
    const Row row(static_cast<const Score*>(args_.g_scores) + t * args_.row_stride + first_column, keys.width);

#pragma unroll 1
    for (int attempt = 0;;) {
      collect(row, part, parts, sample_threshold(row, attempt));
      const int wanted = wanted_of(row);
      const int total = join_lists(part, parts, wanted);
      if (part != 0) {
        break;
      }
      if (wanted <= total && total <= Config::kCapacity) {
        const int raw_end = count_;
        count_ = total;
        finish(row, wanted, raw_end);
        break;
      }
      // Too high a threshold, or lists that do not fit in one: this CTA streams the row alone.
      if (total < wanted) {
        add_stat(device::kStatRepairedRows, attempt == 0 ? 1 : 0);
        ++attempt;
      }
      parts = 1;
      __syncthreads();  // the next attempt reuses what this one's slower warps may still read
    }
    const uint32_t next = s_.t + gridDim.x / cooperative_groups::this_cluster().num_blocks();
    __syncthreads();
    return next;
  }

 private:
  // Asked for anew in every phase, so that no phase holds registers of another.
  static __device__ __forceinline__ int thread_index() {
    return ptx::thread_index_again();
  }
  __device__ __forceinline__ typename Smem::Select selection() const {
    return typename Smem::Select(Group(thread_index()), s_.select);
  }

  /// Keys to pick.
  __device__ __forceinline__ int wanted_of(const Row& row) const {
    return min(args_.output.topk, static_cast<int>(row.end - row.lead));
  }

  // ---- sample ----

  /// Position of sample i: one in each stride of the row, at a place that moves with the golden ratio, so that scores
  /// with a period do not fool it.
  static __device__ __forceinline__ uint32_t sample_position(uint32_t i, int size_log2, uint32_t width) {
    const uint32_t place = (i << 16U) | ((i * 40503U) & 0xFFFFU);  // in strides, 16 bits after the point
    return static_cast<uint32_t>((uint64_t{place} * width) >> (16 + size_log2));
  }

  /// Ordered score that about 2K of the row's scores should reach, four times as many in the second attempt; 0, which
  /// all reach, if the row is short or that has failed too.
  __device__ __forceinline__ uint32_t sample_threshold(const Row& row, int attempt) {
    const uint32_t width = row.end - row.lead;
    if (width <= Config::kMaxUnsampled || attempt > 1) {
      return kOrderedNan;
    }
    const int size_log2 = width <= 96 * 1024 ? 9 : width <= 384 * 1024 ? 10 : width <= 1536 * 1024 ? 11 : 12;
    const int size = 1 << size_log2;
    // `expected` of the sample are among the K best; `rank` leaves 3.5 standard deviations and some for small numbers.
    const float expected = static_cast<float>(args_.output.topk) * static_cast<float>(size) / static_cast<float>(width);
    const int rank = static_cast<int>(expected + 3.5F * sqrtf(expected) + 4.0F) << (2 * attempt);
    if (rank >= size) {
      return kOrderedNan;
    }
    const int thread = thread_index();
#pragma unroll 2
    for (int i = thread; i < size; i += kThreads) {
      s_.ordered[i] = __float_as_uint(row.score(sample_position(static_cast<uint32_t>(i), size_log2, width)));
    }
    typename Smem::Select select = selection();
    const OrderedInterval interval = select.order_scores(s_.ordered, 0, size, size);
    const uint32_t ordered = select.find_cut(s_.ordered, size, rank, interval).ordered;
    __syncthreads();
    return ordered;
  }

  // ---- stream ----

  /// Appends what passes in this CTA's part of the row to the empty list.
  __device__ __forceinline__ void collect(const Row& row, uint32_t part, uint32_t parts, uint32_t least) {
    constexpr uint32_t kGrain = 32 * Row::kVector;
    const uint32_t part_size = ((row.end + parts - 1) / parts + kGrain - 1) / kGrain * kGrain;
    auto first = static_cast<uint32_t>(min(uint64_t{part} * part_size, uint64_t{row.end}));
    const uint32_t stop = min(first + part_size, row.end);
    count_ = 0;
    ordered_count_ = 0;
#pragma unroll 1
    while (true) {
      first = stream(row, first, stop, Threshold::at_least(least));
      if (first >= stop) {
        break;
      }
      least = cut_list();
    }
    add_stat(device::kStatKeptCandidates, static_cast<uint32_t>(count_));
  }

  /// This thread's scores of a chunk.
  struct Chunk {
    uint4 vectors[kVectors];
  };

  /// Position of this thread's vector v of a chunk: a warp owns a contiguous slab, a lane kVector scores of each load.
  static __device__ __forceinline__ uint32_t position_of(uint32_t first, uint32_t thread, int v) {
    return first + thread / 32U * (32U * Config::kScoresPerThread) + v * (32U * Row::kVector) +
           thread % 32U * Row::kVector;
  }

  /// True if all positions of a chunk belong to this CTA's part of the row.
  static __device__ __forceinline__ bool is_whole(const Row& row, uint32_t first, uint32_t stop) {
    return first >= row.lead && first + Config::kChunk <= stop;
  }

  static __device__ __forceinline__ void load_chunk(const Row& row, uint32_t first, uint32_t stop, uint32_t thread,
                                                    Chunk& chunk) {
    if (is_whole(row, first, stop)) {
      const auto* g_vectors = reinterpret_cast<const uint4*>(row.g_first + position_of(first, thread, 0));
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        chunk.vectors[v] = __ldg(g_vectors + 32 * v);
      }
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        chunk.vectors[v] = row.load_inside(position_of(first, thread, v), stop);
      }
    }
  }

  /// Appends what passes from position `first` on; returns `stop`, or the chunk whose candidates might not fit.
  __device__ __forceinline__ uint32_t stream(const Row& row, uint32_t first, uint32_t stop, Threshold threshold) {
    const auto thread = static_cast<uint32_t>(thread_index());
    Chunk chunk;
    load_chunk(row, first, stop, thread, chunk);
#pragma unroll 1
    for (; first < stop; first += Config::kChunk) {
      Chunk next;
      load_chunk(row, first + Config::kChunk, stop, thread, next);
      if (!append_chunk(row, first, stop, threshold, thread, chunk)) {
        return first;
      }
      chunk = next;
    }
    return stop;
  }

  /// Appends what passes of `chunk`, which starts at `first`, or nothing if it does not fit.
  __device__ __forceinline__ bool append_chunk(const Row& row, uint32_t first, uint32_t stop, Threshold threshold,
                                               uint32_t thread, const Chunk& chunk) {
    uint32_t passing = passing_scores(threshold, chunk);
    if (!is_whole(row, first, stop)) {
      uint32_t inside = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        inside |= row.inside(position_of(first, thread, v), stop) << (v * Row::kVector);
      }
      passing &= inside;
    }
    uint32_t fields = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      fields |= static_cast<uint32_t>(__popc(passing & (kVectorMask << (v * Row::kVector)))) << (v * kFieldBits);
    }
    uint32_t inclusive;
    int total;
    int slot = count_ + scan_counts(fields, first / Config::kChunk % 2, thread, inclusive, total);
    if (count_ + total > Config::kCapacity) {
      return false;
    }
    count_ += total;
    const uint32_t warp_fields = __shfl_sync(kFullMask, inclusive, 31);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const auto relative = static_cast<int32_t>(position_of(first, thread, v) - row.lead);
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

  static __device__ __forceinline__ uint32_t field(uint32_t packed, int v) {
    return (packed >> (v * kFieldBits)) & ((1U << kFieldBits) - 1U);
  }

  /// Bit i: score i of this thread passes.
  static __device__ __forceinline__ uint32_t passing_scores(Threshold threshold, const Chunk& chunk) {
    uint32_t passing = 0;
#pragma unroll
    for (int i = 0; i < Config::kScoresPerThread; ++i) {
      const float score = Row::element(chunk.vectors[i / Row::kVector], i % Row::kVector);
      passing |= threshold.passes(score) ? 1U << i : 0U;
    }
    return passing;
  }

  /// Prefix sums of the packed counts: over this warp's lanes in `inclusive`, over earlier warps in the result.
  /// One barrier; warp_counts alternates, so the next chunk's counts do not meet readers of this one's.
  __device__ __forceinline__ int scan_counts(uint32_t mine, uint32_t parity, uint32_t thread, uint32_t& inclusive,
                                             int& total) {
    const uint32_t lane = thread % 32U;
    const uint32_t warp = thread / 32U;
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

  /// Cuts the list to its K best and returns the least ordered score that can still enter.
  __device__ __forceinline__ uint32_t cut_list() {
    typename Smem::Select select = selection();
    const OrderedInterval interval = select.order_scores(s_.ordered, ordered_count_, count_, count_);
    const Cut cut = select.find_cut(s_.ordered, count_, args_.output.topk, interval);
    select.compact(list_, count_, cut);
    count_ = args_.output.topk;
    ordered_count_ = count_;
    add_stat(device::kStatRescans, 1);
    return cut.ordered + 1;
  }

  __device__ __forceinline__ void add_stat(int which, uint32_t amount) const {
    if (thread_index() == 0) {
      args_.output.add_stat(which, amount);
    }
  }

  // ---- merge ----

  /// Appends the lists of the CTAs 1.. to CTA 0's, as ordered bits, unless they are too few or do not fit.  Returns the
  /// candidates of all.
  __device__ __forceinline__ int join_lists(uint32_t part, uint32_t parts, int wanted) {
    if (parts == 1) {
      return count_;
    }
    const int thread = thread_index();
    const auto cluster = cooperative_groups::this_cluster();
    if (thread == 0) {
      s_.list_count = count_;
    }
    cluster.sync();  // every list is complete
    const uint32_t lane = static_cast<uint32_t>(thread) % 32U;
    const int lane_count = lane < parts ? *cluster.map_shared_rank(&s_.list_count, lane) : 0;
    const auto total = static_cast<int>(__reduce_add_sync(kFullMask, static_cast<uint32_t>(lane_count)));
    const auto start =
        static_cast<int>(__reduce_add_sync(kFullMask, static_cast<uint32_t>(lane < part ? lane_count : 0)));
    if (part != 0 && wanted <= total && total <= Config::kCapacity) {
      uint32_t* s_joined_ordered = cluster.map_shared_rank(s_.ordered, 0) + start;
      int32_t* s_joined_indices = cluster.map_shared_rank(s_.indices, 0) + start;
#pragma unroll 1
      for (int i = thread; i < count_; i += kThreads) {
        const uint32_t value = s_.ordered[i];
        s_joined_ordered[i] = i < ordered_count_ ? value : ordered_bits(__uint_as_float(value));
        s_joined_indices[i] = s_.indices[i];
      }
    }
    cluster.sync();  // the lists have arrived, and the counts were read
    return total;
  }

  // ---- finish ----

  /// Picks the `wanted` best of the list, of which [ordered_count_, raw_end) are raw scores.
  __device__ __forceinline__ void finish(const Row& row, int wanted, int raw_end) {
    __syncthreads();
    const RowWriter writer(args_.output, s_.t, s_.keys);
    typename Smem::Select select = selection();
    const int thread = thread_index();
    if (wanted > 0) {
      const OrderedInterval interval = select.order_scores(s_.ordered, ordered_count_, raw_end, count_);
      Cut cut{kOrderedNan, count_};
      if (count_ > wanted) {
        cut = select.find_cut(s_.ordered, count_, wanted, interval);
      }
      if (args_.sort_by_score) {
        select.compact(list_, count_, cut);
        select.sort_by_score(list_, wanted);
#pragma unroll 1
        for (int slot = thread; slot < wanted; slot += kThreads) {
          write(row, writer, slot, slot);
        }
      } else if (writer.only_indices()) {
        select.for_each_picked(s_.ordered, count_, cut,
                               [&](int slot, int position) { writer.write_index(slot, s_.indices[position]); });
      } else {
        select.for_each_picked(s_.ordered, count_, cut,
                               [&](int slot, int position) { write(row, writer, slot, position); });
      }
    }
#pragma unroll 1
    for (int slot = wanted + thread; slot < args_.output.topk; slot += kThreads) {
      writer.pad(slot);
    }
    if (thread == 0) {
      writer.write_count(wanted);
    }
  }

  __device__ __forceinline__ void write(const Row& row, const RowWriter& writer, int slot, int position) const {
    const int32_t relative = s_.indices[position];
    writer.write(slot, relative);
    if (writer.wants_scores()) {
      const uint32_t ordered = s_.ordered[position];
      // Ordered bits do not know the sign of a zero or what kind of NaN it was.
      const bool ambiguous = ordered == kOrderedNan || ordered == ordered_bits(0.0F);
      writer.write_score(slot, ambiguous ? row.score(static_cast<uint32_t>(relative)) : score_of_ordered_bits(ordered));
    }
  }

  Smem& s_;
  const SelectArgs& args_;
  CandidateList list_;
  int count_ = 0;          // candidates in the list
  int ordered_count_ = 0;  // of which this many are ordered bits already
};

/// Grid: any multiple of the cluster size; a cluster takes every (gridDim / cluster)-th row.
template <class Config, typename Score>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    select_kernel(const __grid_constant__ SelectArgs args) {
  extern __shared__ __align__(16) unsigned char s_bytes[];
  auto& smem = *reinterpret_cast<SelectSmem<Config>*>(s_bytes);
  RowSelector<Config, Score>(smem, args).initialise();
  ptx::wait_for_previous_grid();
  const uint32_t parts = cooperative_groups::this_cluster().num_blocks();
  uint32_t t = blockIdx.x / parts;
  while (t < args.num_rows) {
    t = RowSelector<Config, Score>(smem, args).run(t, blockIdx.x % parts, parts);
  }
}

}  // namespace keysieve::cuda
