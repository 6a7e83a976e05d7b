// SPDX-License-Identifier: Apache-2.0
// select: the K best scores of each row, exactly, reading every score once.
//
//     for each row (one CTA, or a cluster of CTAs that share the row in contiguous parts):
//       sample   512..4096 evenly strided scores -> a threshold that about 2K of the row's scores should pass
//       stream   16 scores a thread at a time; those that pass are appended to s_list, in ascending key order
//       merge    (cluster) CTA 0 appends the lists of the others, in order
//       finish   radix selection among the candidates, written in ascending key order
//
// Why the result is exact whatever the threshold is.  Let P be the keys that passed the threshold, U the ones that did
// not.  Every score of P is above every score of U, so if |P| >= K then the K best keys lie in P, and P is in the list.
// If |P| < K the row is streamed again with a threshold that everything passes.  When the list might overflow it is cut
// to its K best: later keys have higher indices, so from then on only scores strictly above the K-th can still enter,
// and that is the new threshold.  Nothing is ever dropped for want of space.
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

  __device__ __forceinline__ uint4 load(uint32_t position) const {
    return __ldg(reinterpret_cast<const uint4*>(g_first + position));
  }
  /// Loads what lies inside [lead, stop), score by score if need be; bit e of `inside` says that score e does.
  __device__ __forceinline__ uint4 load_inside(uint32_t position, uint32_t stop, uint32_t& inside) const {
    constexpr uint32_t kAll = (1U << kVector) - 1U;
    const uint32_t skip = position < lead ? lead - position : 0;
    const uint32_t left = position < stop ? stop - position : 0;
    inside = left < kVector ? (1U << left) - 1U : kAll;
    inside &= kAll << min(skip, static_cast<uint32_t>(kVector));
    if (inside == kAll) {
      return load(position);
    }
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      if ((inside >> e & 1U) != 0) {
        const Score value = __ldg(g_first + position + e);
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
  static constexpr uint32_t kAllInside = (1U << Config::kScoresPerThread) - 1U;
  static constexpr uint32_t kVectorMask = (1U << Row::kVector) - 1U;

 public:
  __device__ __forceinline__ RowSelector(Smem& smem, const SelectArgs& args)
      : s_(smem),
        args_(args),
        thread_(ptx::thread_index_again()),
        select_(Group(thread_), smem.select),
        list_{smem.ordered, smem.indices} {}

  /// Once a kernel.
  __device__ __forceinline__ void initialise() { select_.initialise(); }

  /// One row: CTA `part` of `parts`.
  __device__ __forceinline__ void run(uint32_t t, uint32_t part, uint32_t parts) {
    const RowKeys keys = args_.output.row_keys(args_.ranges, t);
    const int32_t first_column = args_.compact ? 0 : keys.begin;
    const Row row(static_cast<const Score*>(args_.g_scores) + t * args_.row_stride + first_column, keys.width);
    const int wanted = min(args_.output.topk, keys.width);

    Threshold threshold = Threshold::at_least(sample_threshold(row, keys.width));
    collect(row, part, parts, threshold);
    int total = publish_count(parts);
    while (total < wanted) {  // too high a threshold: everything passes the second time
      if (part == 0 && thread_ == 0) {
        args_.output.add_stat(device::kStatRepairedRows, 1);
      }
      end_of_lists(parts);
      threshold = Threshold::at_least(kOrderedNan);
      collect(row, part, parts, threshold);
      total = publish_count(parts);
    }
    if (part == 0 && parts > 1) {
      merge(threshold, parts, total);
    }
    end_of_lists(parts);
    if (part == 0) {
      finish(row, RowWriter(args_.output, t, keys), wanted);
    }
    __syncthreads();
  }

 private:
  // ---- sample ----

  /// Ordered score that about 2K of the row's scores should reach; 0 if the whole row fits the list.
  __device__ __forceinline__ uint32_t sample_threshold(const Row& row, int32_t width) {
    if (width <= Config::kCapacity) {
      return kOrderedNan;
    }
    const int size_log2 = width <= 96 * 1024 ? 9 : width <= 384 * 1024 ? 10 : width <= 1536 * 1024 ? 11 : 12;
    const int size = 1 << size_log2;
    // `expected` of the sample are among the K best; `rank` leaves 3.5 standard deviations and some for small numbers.
    const float expected = static_cast<float>(args_.output.topk) * static_cast<float>(size) / static_cast<float>(width);
    const int rank = static_cast<int>(expected + 3.5F * sqrtf(expected) + 4.0F);
    if (rank >= size) {
      return kOrderedNan;
    }
    for (int i = thread_; i < size; i += kThreads) {
      const uint64_t twice_middle = static_cast<uint64_t>(2 * i + 1) * static_cast<uint32_t>(width);
      s_.ordered[i] = __float_as_uint(row.score(static_cast<uint32_t>(twice_middle >> (size_log2 + 1))));
    }
    const OrderedInterval interval = select_.order_scores(s_.ordered, 0, size);
    const uint32_t ordered = select_.find_cut(s_.ordered, size, rank, interval).ordered;
    __syncthreads();
    return ordered;
  }

  // ---- stream ----

  /// Appends what passes in this CTA's part of the row.
  __device__ __forceinline__ void collect(const Row& row, uint32_t part, uint32_t parts, Threshold& threshold) {
    constexpr uint32_t kGrain = 32 * Row::kVector;
    const uint32_t part_size = ((row.end + parts - 1) / parts + kGrain - 1) / kGrain * kGrain;
    const auto begin = static_cast<uint32_t>(min(uint64_t{part} * part_size, uint64_t{row.end}));
    const uint32_t stop = min(begin + part_size, row.end);
    count_ = 0;
    ordered_count_ = 0;
    for (uint32_t first = stream(row, begin, stop, threshold); first < stop;) {
      threshold = Threshold::at_least(cut_list());
      first = stream(row, first, stop, threshold);
    }
    if (thread_ == 0) {
      args_.output.add_stat(device::kStatKeptCandidates, count_);
    }
  }

  /// This thread's scores of a chunk; bit i of `inside` says that score i belongs to the CTA's part of the row.
  struct Chunk {
    uint4 vectors[kVectors];
    uint32_t inside;
  };

  /// Position of this thread's vector v of a chunk: a warp owns a contiguous slab, a lane kVector scores of each load.
  __device__ __forceinline__ uint32_t position_of(uint32_t first, int v) const {
    const uint32_t warp = static_cast<uint32_t>(thread_) / 32U;
    const uint32_t lane = static_cast<uint32_t>(thread_) % 32U;
    return first + warp * (32U * Config::kScoresPerThread) + v * (32U * Row::kVector) + lane * Row::kVector;
  }

  __device__ __forceinline__ void load_chunk(const Row& row, uint32_t first, uint32_t stop, Chunk& chunk) const {
    if (first >= row.lead && first + Config::kChunk <= stop) {
      const auto* g_vectors = reinterpret_cast<const uint4*>(row.g_first + position_of(first, 0));
      chunk.inside = kAllInside;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        chunk.vectors[v] = __ldg(g_vectors + 32 * v);
      }
    } else {
      chunk.inside = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        uint32_t inside;
        chunk.vectors[v] = row.load_inside(position_of(first, v), stop, inside);
        chunk.inside |= inside << (v * Row::kVector);
      }
    }
  }

  /// Appends what passes from position `first` on; returns `stop`, or the chunk whose candidates might not fit.
  __device__ __forceinline__ uint32_t stream(const Row& row, uint32_t first, uint32_t stop, Threshold threshold) {
    Chunk chunk;
    load_chunk(row, first, stop, chunk);
    for (; first < stop; first += Config::kChunk) {
      Chunk next;
      load_chunk(row, first + Config::kChunk, stop, next);
      if (!append_chunk(row, first, threshold, chunk)) {
        return first;
      }
      chunk = next;
    }
    return stop;
  }

  /// Appends what passes of `chunk`, which starts at `first`, or nothing if it does not fit.
  __device__ __forceinline__ bool append_chunk(const Row& row, uint32_t first, Threshold threshold,
                                               const Chunk& chunk) {
    const uint32_t passing = passing_scores(threshold, chunk);
    uint32_t fields = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      fields |= static_cast<uint32_t>(__popc(passing & (kVectorMask << (v * Row::kVector)))) << (v * kFieldBits);
    }
    uint32_t inclusive;
    int total;
    int slot = count_ + scan_counts(fields, inclusive, total);
    if (count_ + total > Config::kCapacity) {
      return false;
    }
    count_ += total;
    const uint32_t warp_fields = __shfl_sync(kFullMask, inclusive, 31);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const auto relative = static_cast<int32_t>(position_of(first, v) - row.lead);
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
    return passing & chunk.inside;
  }

  /// Prefix sums of the packed counts: over this warp's lanes in `inclusive`, over earlier warps in the result.
  /// One barrier; warp_counts alternates, so the next chunk's counts do not meet readers of this one's.
  __device__ __forceinline__ int scan_counts(uint32_t mine, uint32_t& inclusive, int& total) {
    const uint32_t lane = static_cast<uint32_t>(thread_) % 32U;
    const uint32_t warp = static_cast<uint32_t>(thread_) / 32U;
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
      s_.warp_counts[parity_][warp] = sum;
    }
    __syncthreads();
    const uint32_t count = lane < kWarps ? s_.warp_counts[parity_][lane % kWarps] : 0;
    parity_ ^= 1;
    total = static_cast<int>(__reduce_add_sync(kFullMask, count));
    return static_cast<int>(__reduce_add_sync(kFullMask, lane < warp ? count : 0));
  }

  /// Cuts the list to its K best and returns the least ordered score that can still enter.
  __device__ __forceinline__ uint32_t cut_list() {
    const OrderedInterval interval = select_.order_scores(s_.ordered, ordered_count_, count_);
    const Cut cut = select_.find_cut(s_.ordered, count_, args_.output.topk, interval);
    select_.compact(list_, count_, cut);
    count_ = args_.output.topk;
    ordered_count_ = count_;
    if (thread_ == 0) {
      args_.output.add_stat(device::kStatRescans, 1);
    }
    return cut.ordered + 1;
  }

  // ---- merge ----

  /// Candidates of all CTAs of the row.  After it, CTA 0 may read the lists of the others.
  __device__ __forceinline__ int publish_count(uint32_t parts) {
    if (parts == 1) {
      return count_;
    }
    if (count_ > 0) {
      select_.order_scores(s_.ordered, ordered_count_, count_);
      ordered_count_ = count_;
    }
    if (thread_ == 0) {
      s_.list_count = count_;
    }
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    const uint32_t lane = static_cast<uint32_t>(thread_) % 32U;
    const int count = lane < parts ? *cluster.map_shared_rank(&s_.list_count, lane) : 0;
    return static_cast<int>(__reduce_add_sync(kFullMask, static_cast<uint32_t>(count)));
  }

  /// Nobody reads another CTA's list after it.
  __device__ __forceinline__ void end_of_lists(uint32_t parts) {
    if (parts > 1) {
      cooperative_groups::this_cluster().sync();
    }
  }

  /// CTA 0 appends the lists of the CTAs 1.. to its own.
  __device__ __forceinline__ void merge(Threshold threshold, uint32_t parts, int total) {
    const auto cluster = cooperative_groups::this_cluster();
    const uint32_t lane = static_cast<uint32_t>(thread_) % 32U;
    const int lane_count = lane < parts ? *cluster.map_shared_rank(&s_.list_count, lane) : 0;
    if (total <= Config::kCapacity) {
      copy_lists(parts, lane_count);
      count_ = total;
      ordered_count_ = total;
      return;
    }
    uint32_t least = threshold.everything ? kOrderedNan : ordered_bits(threshold.score);
    for (uint32_t part = 1; part < parts; ++part) {
      const int part_count = __shfl_sync(kFullMask, lane_count, static_cast<int>(part));
      least = append_list(cluster.map_shared_rank(s_.ordered, part), cluster.map_shared_rank(s_.indices, part),
                          part_count, least);
    }
  }

  /// All lists fit: entry i of the joined list comes from the part whose entries start last at or before i.
  __device__ __forceinline__ void copy_lists(uint32_t parts, int lane_count) {
    const auto cluster = cooperative_groups::this_cluster();
    for (uint32_t part = 1, start = static_cast<uint32_t>(count_); part < parts; ++part) {
      const auto part_count = static_cast<uint32_t>(__shfl_sync(kFullMask, lane_count, static_cast<int>(part)));
      const uint32_t* s_ordered = cluster.map_shared_rank(s_.ordered, part);
      const int32_t* s_indices = cluster.map_shared_rank(s_.indices, part);
      for (auto i = static_cast<uint32_t>(thread_); i < part_count; i += kThreads) {
        s_.ordered[start + i] = s_ordered[i];
        s_.indices[start + i] = s_indices[i];
      }
      start += part_count;
    }
  }

  /// Appends what reaches `least` of another CTA's list, cutting this one when it is full; returns the new least.
  __device__ __forceinline__ uint32_t append_list(const uint32_t* s_ordered, const int32_t* s_indices, int part_count,
                                                  uint32_t least) {
    for (int base = 0; base < part_count; base += kThreads) {
      const int i = base + thread_;
      const uint32_t ordered = i < part_count ? s_ordered[i] : 0;
      const int32_t index = i < part_count ? s_indices[i] : 0;
      if (count_ + kThreads > Config::kCapacity) {
        least = max(least, cut_list());
      }
      const bool enters = i < part_count && ordered >= least;
      uint32_t inclusive;
      int total;
      const int slot = count_ + scan_counts(enters ? 1 : 0, inclusive, total);
      if (enters) {
        s_.ordered[slot + inclusive - 1] = ordered;
        s_.indices[slot + inclusive - 1] = index;
      }
      count_ += total;
      ordered_count_ = count_;
    }
    return least;
  }

  // ---- finish ----

  __device__ __forceinline__ void finish(const Row& row, const RowWriter& writer, int wanted) {
    if (wanted > 0) {
      const OrderedInterval interval = select_.order_scores(s_.ordered, ordered_count_, count_);
      Cut cut{kOrderedNan, count_};
      if (count_ > wanted) {
        cut = select_.find_cut(s_.ordered, count_, wanted, interval);
      }
      if (args_.sort_by_score) {
        select_.compact(list_, count_, cut);
        select_.sort_by_score(list_, wanted);
        for (int slot = thread_; slot < wanted; slot += kThreads) {
          write(row, writer, slot, slot);
        }
      } else {
        select_.for_each_picked(s_.ordered, count_, cut,
                                [&](int slot, int position) { write(row, writer, slot, position); });
      }
    }
    for (int slot = wanted + thread_; slot < args_.output.topk; slot += kThreads) {
      writer.pad(slot);
    }
    if (thread_ == 0) {
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
  int thread_;
  typename Smem::Select select_;
  CandidateList list_;
  int count_ = 0;          // candidates in the list
  int ordered_count_ = 0;  // of which this many are ordered bits already
  uint32_t parity_ = 0;
};

/// Grid: any multiple of the cluster size; a cluster takes every (gridDim / cluster)-th row.
template <class Config, typename Score>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    select_kernel(const __grid_constant__ SelectArgs args) {
  extern __shared__ __align__(16) unsigned char s_bytes[];
  ptx::wait_for_previous_grid();
  auto& smem = *reinterpret_cast<SelectSmem<Config>*>(s_bytes);
  RowSelector<Config, Score>(smem, args).initialise();
  const uint32_t parts = cooperative_groups::this_cluster().num_blocks();
  for (uint32_t t = blockIdx.x / parts; t < args.num_rows; t += gridDim.x / parts) {
    RowSelector<Config, Score>(smem, args).run(t, blockIdx.x % parts, parts);
  }
}

}  // namespace keysieve::cuda
