// SPDX-License-Identifier: Apache-2.0
// The select role of fused_sm90: three warps that work on one row of a window at a time.
//
//     dense run   row of the window -> pick -> output
//     long run    row of the window -> append to the row's list what can still be among its K best
//                 list over 2 K     -> pick -> the K best stay, in order; the threshold is the K-th
//                 last window       -> pick -> output
//     cut runs    kernel.cuh; the parts of a long one are appended like windows
//
// Why nothing is lost.  A list is in key order and holds every key so far except those that cannot be among the row's
// K best: when it was cut to K, the others had K better keys before them; and a later key whose score does not exceed
// the K-th of that time has K keys before it that rank higher (equal scores: the lower index wins).  There is room for a
// whole window whenever one is appended, so nothing is dropped for want of space, and a pick is exact for any data
// (device/row_pick.cuh).  The K best of a run are among the K best of its parts, by the same argument.
#pragma once

#include <cstdint>

#include "cuda/fused_sm90/layout.cuh"

namespace keysieve::cuda {

template <class Config>
class SelectRole {
 public:
  using Smem = FusedSmem<Config>;
  using Group = typename Config::SelectGroup;
  using Picker = device::RowPicker<Group, typename Config::PickSmem>;
  static constexpr int kThreads = Group::kThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kTileKeys = Config::Tile::kKeys;
  static constexpr int kRowStride = Config::kShape.row_stride();

  __device__ __forceinline__ SelectRole(const FusedParams& params, Smem& smem)
      : params_(params),
        s_(smem),
        group_(static_cast<int>(threadIdx.x) - 32 * Config::kFirstSelectWarp),
        picker_(group_, smem.pick) {}

  template <FusedBuild kBuild>
  __device__ __forceinline__ void run(const WindowRing<Config>& ring) {
    if constexpr (kBuild == FusedBuild::kComplete) {
      picker_.initialise();
      pad_empty_rows();
    }
    typename WindowRing<Config>::Cursor cursor;
    for (;;) {
      ring.wait(cursor);
      const FusedWindow& s_window = s_.windows[cursor.slot()];
      if (s_window.unit.is_end()) {
        break;
      }
      if constexpr (kBuild == FusedBuild::kComplete) {
        select_window(s_window, cursor.slot());
      }
      __syncwarp();
      if (group_.thread() % 32 == 0) {
        ring.release(cursor);
      }
      cursor.advance();
    }
  }

 private:
  static constexpr uint32_t kFullMask = 0xFFFFFFFFU;

  /// Scores to select from or append, and the row-relative indices of their positions.
  struct Source {
    device::ScoreSpan span;
    const int32_t* g_indices;  // of each position; null: first_index + position
    int32_t first_index;

    [[nodiscard]] __device__ __forceinline__ int32_t index(int position) const {
      return g_indices != nullptr ? __ldcg(g_indices + position) : first_index + position;
    }
  };

  /// A list of scores and their row-relative indices in global scratch.
  struct List {
    float* g_scores;
    int32_t* g_indices;
  };

  [[nodiscard]] __device__ __forceinline__ List list_of(int query) const {
    return list_at(params_.cta(static_cast<int>(blockIdx.x)) + params_.scratch.lists_offset() +
                       query * params_.scratch.list_bytes(),
                   params_.scratch.list_capacity);
  }
  /// Of a share's two parts: 0 is of a run that starts in an earlier share.
  [[nodiscard]] __device__ __forceinline__ List part_of(int share, int part, int query) const {
    return list_at(params_.cta(share) + params_.scratch.parts_offset() +
                       (part * Config::Tile::kQueries + query) * params_.scratch.part_bytes(),
                   params_.scratch.part_capacity);
  }
  [[nodiscard]] static __device__ __forceinline__ List list_at(uint8_t* g_bytes, int32_t capacity) {
    return {reinterpret_cast<float*>(g_bytes), reinterpret_cast<int32_t*>(g_bytes) + capacity};
  }
  [[nodiscard]] __device__ __forceinline__ int32_t* g_part_count(int share, int part, int query) const {
    return params_.g_counts + (share * 2 + part) * Config::Tile::kQueries + query;
  }

  // ---- rows without keys ----

  /// No run visits them.
  __device__ __forceinline__ void pad_empty_rows() const {
    const int lane = group_.thread() % 32;
    const auto worker = static_cast<int64_t>(blockIdx.x) * kWarps + group_.thread() / 32;
    const int64_t num_rows = params_.feed.blocks.num_rows;
#pragma unroll 1
    for (int64_t first = 32 * worker; first < num_rows; first += 32 * static_cast<int64_t>(gridDim.x) * kWarps) {
      const bool empty =
          first + lane < num_rows &&
          params_.output.row_keys(params_.feed.ranges, static_cast<uint32_t>(first + lane)).width == 0;
#pragma unroll 1
      for (uint32_t left = __ballot_sync(kFullMask, empty); left != 0; left &= left - 1) {
        const auto t = static_cast<uint32_t>(first) + static_cast<uint32_t>(__ffs(static_cast<int>(left)) - 1);
        const device::RowWriter writer(params_.output, t, {});
        for (int slot = lane; slot < params_.output.topk; slot += 32) {
          writer.pad(slot);
        }
        if (lane == 0) {
          writer.write_count(0);
        }
      }
    }
  }

  // ---- windows ----

  __device__ __forceinline__ void select_window(const FusedWindow& s_window, int slot) {
    const FusedUnit& s_unit = s_window.unit;
    const bool dense = params_.is_dense(s_unit);
    const bool cut = s_unit.is_cut();
    if (dense && cut && !s_window.ready) {
      return;  // whoever scores the last piece selects
    }
    const bool last_of_unit = s_window.end == s_unit.tile_end;
    const int part = s_unit.first_share == static_cast<int32_t>(blockIdx.x) ? 1 : 0;
    // Source -1 is the window; if this CTA merges a long run, source i is part i of the run.
    int num_parts = 0;
#pragma unroll 1
    for (int source = -1; source < num_parts; ++source) {
      const bool is_window = source < 0;
      const bool fresh = is_window ? s_window.begin == s_unit.tile_begin : source == 0;
      const bool publish = is_window && cut && !dense && last_of_unit;
      const bool last = is_window ? last_of_unit && !publish : source == num_parts - 1;
#pragma unroll 1
      for (int query = s_unit.row_begin; query < s_unit.row_end; ++query) {
        const uint32_t t = s_unit.first_row + static_cast<uint32_t>(query);
        const device::RowKeys keys = params_.output.row_keys(params_.feed.ranges, t);
        if (keys.width == 0) {
          continue;
        }
        const Source from =
            is_window ? window_row(s_window, slot, query, keys) : part_row(s_unit.first_share + source, source, query);
        process_row(t, keys, query, from, dense, fresh, publish, last, part);
      }
      if (publish) {
        __threadfence();
        group_.sync();
        if (group_.thread() == 0) {
          s_.is_last = arrive_at_cut_run(params_, s_unit, s_unit.tile_end - s_unit.tile_begin) ? 1 : 0;
        }
        group_.sync();
        num_parts = s_.is_last != 0 ? s_unit.last_share - s_unit.first_share + 1 : 0;
      }
    }
  }

  /// The row's keys that lie in the window.
  [[nodiscard]] __device__ __forceinline__ Source window_row(const FusedWindow& s_window, int slot, int query,
                                                             const device::RowKeys& keys) const {
    const FusedUnit& s_unit = s_window.unit;
    const bool whole_run = s_unit.is_cut() && params_.is_dense(s_unit);
    const int32_t first_tile = whole_run ? s_unit.run.begin : s_window.begin;
    const int32_t end_tile = whole_run ? s_unit.run.end : s_window.end;
    const int32_t first_key = first_tile * kTileKeys;
    Source source;
    source.span.g_scores = g_window_of<Config>(params_, s_unit, slot) + query * kRowStride;
    source.span.begin = max(keys.begin - first_key, 0);
    // Not end_tile * kTileKeys - first_key: that may not fit.
    source.span.end = max(min(keys.begin + keys.width - first_key, (end_tile - first_tile) * kTileKeys),
                          source.span.begin);
    source.g_indices = nullptr;
    source.first_index = first_key - keys.begin;
    return source;
  }

  /// Entries that part `source` of a long run kept of a row.
  [[nodiscard]] __device__ __forceinline__ Source part_row(int share, int source, int query) const {
    const int part = source == 0 ? 1 : 0;
    const List list = part_of(share, part, query);
    return {{list.g_scores, 0, __ldcg(g_part_count(share, part, query))}, list.g_indices, 0};
  }

  /// Brings the row up to date with one source.  `fresh`: the first of them; `last`: write the row; `publish`: leave
  /// what is kept in this share's part number `part`.
  __device__ __forceinline__ void process_row(uint32_t t, const device::RowKeys& keys, int query, const Source& from,
                                              bool dense, bool fresh, bool publish, bool last, int part) {
    typename Smem::RowState& s_row = s_.rows[query];
    const List list = list_of(query);
    Source kept = from;  // what to pick from
    if (!dense) {
      uint32_t least = kOrderedNan;
      int count = 0;
      if (!fresh) {
        least = s_row.least;
        count = s_row.count;
      }
      const int appended = append(from, list, count, least);
      add_stat(device::kStatKeptCandidates, static_cast<uint32_t>(appended));
      count += appended;
      group_.sync();  // the list is complete, and everyone has read the row's state
      if (group_.thread() == 0) {
        s_row = {least, count};
      }
      kept = {{list.g_scores, 0, count}, list.g_indices, 0};
      if (!last && !publish && count <= 2 * params_.output.topk) {
        return;
      }
    } else {
      add_stat(device::kStatKeptCandidates, static_cast<uint32_t>(from.span.size()));
    }

    const int wanted = min(params_.output.topk, kept.span.size());
    const bool all = wanted == kept.span.size();
    uint32_t cut = kOrderedNan;
    if (!all) {
      picker_.open(kept.span);
      const device::PickResult picked = picker_.pick(kept.span, wanted, [] {});
      cut = picked.cut + 1;  // later keys must exceed it
      add_stat(device::kStatRepairedRows, picked.by_bits ? 1 : 0);
    }
    const auto position_of = [&](int slot) {
      return all ? kept.span.begin + slot : static_cast<int>(s_.pick.positions[slot]);
    };
    if (last) {
      write_row(t, keys, kept, wanted, position_of);
    } else {
      move(kept, publish ? part_of(static_cast<int>(blockIdx.x), part, query) : list, wanted, position_of);
      add_stat(device::kStatRescans, publish ? 0 : 1);
      if (group_.thread() == 0) {
        s_row = {all ? s_row.least : cut, wanted};
        if (publish) {
          *g_part_count(static_cast<int>(blockIdx.x), part, query) = wanted;
        }
      }
    }
    group_.sync();  // positions are read, the list and the state are written
  }

  __device__ __forceinline__ void add_stat(int which, uint32_t amount) const {
    if (group_.thread() == 0) {
      params_.output.add_stat(which, amount);
    }
  }

  // ---- lists ----

  /// Appends what reaches `least` to entries [count, ..) of the list, in order; returns how many.  The caller's barrier
  /// completes it.
  __device__ __forceinline__ int append(const Source& from, const List& list, int count, uint32_t least) {
    const List end = {list.g_scores + count, list.g_indices + count};
    if (from.span.size() == 0) {
      return 0;
    }
    if (least == kOrderedNan) {
      move(from, end, from.span.size(), [&](int slot) { return from.span.begin + slot; });
      return from.span.size();
    }
    // Between NaN and -inf lies no score.
    const float threshold = score_of_ordered_bits(max(least, kOrderedNegativeInfinity));
    picker_.open(from.span);
    const int appended = picker_.pick_reaching(from.span, threshold, [] {});
    move(from, end, appended, [&](int slot) { return static_cast<int>(s_.pick.positions[slot]); });
    return appended;
  }

  /// Copies the picked entries to the front of `target`, in order; it may be the list they come from, since an entry
  /// never moves up and what a round writes was read before its barrier.
  template <class PositionOf>
  __device__ __forceinline__ void move(const Source& from, const List& target, int wanted,
                                       const PositionOf& position_of) const {
    constexpr int kInFlight = 4;
#pragma unroll 1
    for (int base = group_.thread(); base - group_.thread() < wanted; base += kInFlight * kThreads) {
      float scores[kInFlight];
      int32_t indices[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int slot = base + i * kThreads;
        if (slot < wanted) {
          const int position = position_of(slot);
          scores[i] = from.span.score(position);
          indices[i] = from.index(position);
        }
      }
      group_.sync();
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int slot = base + i * kThreads;
        if (slot < wanted) {
          target.g_scores[slot] = scores[i];
          target.g_indices[slot] = indices[i];
        }
      }
    }
  }

  // ---- output ----

  template <class PositionOf>
  __device__ __forceinline__ void write_row(uint32_t t, const device::RowKeys& keys, const Source& from, int wanted,
                                            const PositionOf& position_of) const {
    const device::RowWriter writer(params_.output, t, keys);
    if (writer.only_indices()) {
#pragma unroll 4
      for (int slot = group_.thread(); slot < wanted; slot += kThreads) {
        writer.write_index(slot, from.index(position_of(slot)));
      }
    } else {
#pragma unroll 1
      for (int slot = group_.thread(); slot < wanted; slot += kThreads) {
        const int position = position_of(slot);
        writer.write(slot, from.index(position));
        if (writer.wants_scores()) {
          writer.write_score(slot, from.span.score(position));
        }
      }
    }
#pragma unroll 1
    for (int slot = wanted + group_.thread(); slot < params_.output.topk; slot += kThreads) {
      writer.pad(slot);
    }
    if (group_.thread() == 0) {
      writer.write_count(wanted);
    }
  }

  const FusedParams& params_;
  Smem& s_;
  Group group_;
  Picker picker_;
};

}  // namespace keysieve::cuda
