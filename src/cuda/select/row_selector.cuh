// SPDX-License-Identifier: Apache-2.0
// The phases of one row of `select`, in the order of kernel.cuh:
//
//     sample_threshold -> collect (CandidateStream, cut_list) -> join_lists (cluster) -> finish (CTA 0)
#pragma once

#include <cooperative_groups.h>
#include <cstdint>

#include "cuda/ptx/warp.cuh"
#include "cuda/select/candidate_stream.cuh"
#include "cuda/select/config.hpp"

namespace keysieve::cuda {

struct SelectArgs {
  const void* g_scores = nullptr;  // [T,N] or [T,W]
  int64_t row_stride = 0;          // elements
  uint32_t num_rows = 0;
  bool compact = false;  // column n - row_start holds key n
  bool sort_by_score = false;
  device::RowRanges ranges;
  device::RowOutput output;
};

inline SelectArgs make_select_args(const Call& call) {
  SelectArgs args;
  args.g_scores = call.scores;
  args.row_stride = call.score_row_stride;
  args.num_rows = static_cast<uint32_t>(call.problem.num_rows);
  args.compact = call.problem.compact_scores;
  args.sort_by_score = call.problem.order == Order::kScore;
  args.ranges = device::make_row_ranges(call);
  if (args.compact) {  // keys past the columns have no score
    args.ranges.max_width = static_cast<int32_t>(call.problem.score_width);
  }
  args.output = device::make_row_output(call);
  return args;
}

template <class Config, typename Score>
class RowSelector {
  using Smem = SelectSmem<Config>;
  using Select = typename Smem::Select;
  using Row = ScoreRow<Score, Config::kFreshScores>;
  static constexpr int kThreads = Config::kThreads;
  static constexpr uint32_t kFullMask = 0xFFFFFFFFU;

 public:
  __device__ __forceinline__ RowSelector(Smem& smem, const SelectArgs& args)
      : s_(smem), args_(args), list_{smem.ordered, smem.indices} {}

  /// Once a kernel.
  __device__ __forceinline__ void initialise() { selection().initialise(); }

  /// Row t as CTA `part` of `parts`; returns this cluster's next row.
  __device__ __forceinline__ uint32_t run(uint32_t t, uint32_t part, uint32_t parts) {
    const device::RowKeys keys = args_.output.row_keys(args_.ranges, t);
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
  __device__ __forceinline__ Select selection() const {
    return Select(device::CtaGroup<kThreads>(thread_index()), s_.select);
  }

  /// Keys to pick.
  __device__ __forceinline__ int wanted_of(const Row& row) const {
    return min(args_.output.topk, static_cast<int>(row.end - row.lead));
  }

  // ---- sample ----

  /// A sample takes about as long as a thousand candidates do, and leaves K and a quarter of them at least.
  __device__ __forceinline__ uint32_t max_unsampled_width() const {
    const auto topk = static_cast<uint32_t>(args_.output.topk);
    return topk + topk / 4 + 1024;
  }

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
    if (width <= max_unsampled_width() || attempt > 1) {
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
    Select select = selection();
    const device::OrderedInterval interval = select.order_scores(s_.ordered, 0, size, size);
    const uint32_t ordered = select.find_cut(s_.ordered, size, rank, interval).ordered;
    __syncthreads();
    return ordered;
  }

  // ---- collect ----

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
      first = CandidateStream<Config, Score>(s_, row, stop, Threshold::at_least(least), thread_index())
                  .append_from(first, count_);
      if (first >= stop) {
        break;
      }
      least = cut_list();
    }
    add_stat(device::kStatKeptCandidates, static_cast<uint32_t>(count_));
  }

  /// Cuts the list to its K best and returns the least ordered score that can still enter.
  __device__ __forceinline__ uint32_t cut_list() {
    Select select = selection();
    const device::OrderedInterval interval = select.order_scores(s_.ordered, ordered_count_, count_, count_);
    const device::Cut cut = select.find_cut(s_.ordered, count_, args_.output.topk, interval);
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
    const device::RowWriter writer(args_.output, s_.t, s_.keys);
    Select select = selection();
    const int thread = thread_index();
    if (wanted > 0) {
      const device::OrderedInterval interval = select.order_scores(s_.ordered, ordered_count_, raw_end, count_);
      device::Cut cut{kOrderedNan, count_};
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

  __device__ __forceinline__ void write(const Row& row, const device::RowWriter& writer, int slot, int position) const {
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
  device::CandidateList list_;
  int count_ = 0;          // candidates in the list
  int ordered_count_ = 0;  // of which this many are ordered bits already
};

}  // namespace keysieve::cuda
