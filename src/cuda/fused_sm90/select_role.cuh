// SPDX-License-Identifier: Apache-2.0
// The select role of fused_sm90: three warps, each with rows of its own (row mod 3).
//
//     dense run   row of the window -> pick -> output
//     long run    row of the window -> append to the row's list what can still be among its K best
//                 list over 3 K     -> pick -> the K best stay, in order; the threshold is the K-th
//                 last window       -> pick -> output
//     cut runs    kernel.cuh; the parts of a long one are appended like windows
//
// Why nothing is lost.  A list is in key order and holds every key so far except those that cannot be among the row's
// K best: when it was cut to K, the others had K better keys before them; and a later key whose score does not exceed
// the K-th of that time has K keys before it that rank higher (equal scores: the lower index wins).  There is room for a
// whole window whenever one is appended, so nothing is dropped for want of space, and a pick is exact for any data
// (device/row_sieve.cuh).  The K best of a run are among the K best of its parts, by the same argument.
#pragma once

#include <cstdint>

#include "cuda/fused_sm90/layout.cuh"

namespace keysieve::cuda {

template <class Config>
class SelectRole {
 public:
  using Smem = FusedSmem<Config>;
  static constexpr int kWarps = Config::kSelectWarps;
  static constexpr int kTileKeys = Config::Tile::kKeys;
  static constexpr int kRowStride = Config::kShape.row_stride();

  __device__ __forceinline__ SelectRole(const FusedParams& params, Smem& smem)
      : params_(params),
        s_(smem),
        lane_(ptx::lane_index()),
        warp_(ptx::warp_index() - Config::kFirstSelectWarp),
        sieve_(smem.sieves[warp_], lane_) {}

  template <FusedBuild kBuild>
  __device__ __forceinline__ void run(const WindowRing<Config>& ring) {
    if constexpr (kBuild == FusedBuild::kComplete) {
      sieve_.initialise();
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
      if (lane_ == 0) {
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

  /// Number of this warp's list for its row `query` of a block.
  [[nodiscard]] __device__ __forceinline__ int list_number(int query) const {
    return warp_ * Config::kScratch.rows_per_warp() + query / kWarps;
  }
  [[nodiscard]] __device__ __forceinline__ List list_of(int query) const {
    return list_at(params_.cta(static_cast<int>(blockIdx.x)) + params_.scratch.lists_offset() +
                       list_number(query) * params_.scratch.list_bytes(),
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
    const int lane = lane_;
    const auto worker = static_cast<int64_t>(blockIdx.x) * kWarps + warp_;
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
        if (t % kWarps != static_cast<uint32_t>(warp_)) {
          continue;
        }
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
        sync_warps();
        if (warp_ == 0 && lane_ == 0) {
          s_.is_last = arrive_at_cut_run(params_, s_unit, s_unit.tile_end - s_unit.tile_begin) ? 1 : 0;
        }
        sync_warps();
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
    typename Smem::RowState& s_row = s_.rows[list_number(query)];
    const List list = list_of(query);
    Source kept = from;  // what to pick from
    uint32_t least = kOrderedNan;
    int count = from.span.size();
    if (!dense) {
      count = 0;
      if (!fresh) {
        least = s_row.least;
        count = s_row.count;
      }
      const int before = count;
      count = append(from, list, count, least);
      add_stat(device::kStatKeptCandidates, static_cast<uint32_t>(count - before));
      kept = {{list.g_scores, 0, count}, list.g_indices, 0};
    } else {
      add_stat(device::kStatKeptCandidates, static_cast<uint32_t>(count));
    }

    if (last || publish || count > 3 * params_.output.topk) {
      const int wanted = min(params_.output.topk, count);
      const device::RowWriter writer(params_.output, t, keys);
      const List target = publish ? part_of(static_cast<int>(blockIdx.x), part, query) : list;
      __threadfence();  // the list's entries are in L2 before the copies that read it past this warp's stores
      const auto store = [&](const device::Picks& picks, const auto& position_of, const device::QuadGroup& group) {
        int32_t indices[device::QuadGroup::kScores];
#pragma unroll
        for (int i = 0; i < device::QuadGroup::kScores; ++i) {
          indices[i] = kept.first_index + position_of(i);
          if (kept.g_indices != nullptr && picks.holds(i)) {
            indices[i] = __ldcg(kept.g_indices + position_of(i));
          }
        }
        if (last && writer.only_indices()) {
          picks.for_each([&](int slot, int i) { writer.write_index(slot, indices[i]); });
        } else if (last) {
          picks.for_each([&](int slot, int i) { write(writer, slot, indices[i], group.scores[i]); });
        } else {
          __syncwarp();  // all lanes have their indices: the target may be the list itself
          picks.for_each([&](int slot, int i) {
            target.g_scores[slot] = group.scores[i];
            target.g_indices[slot] = indices[i];
          });
        }
      };
      if (wanted == count) {
        sieve_.filter(kept.span, 0.0F, true, 0, store);
      } else {
        const device::RowCut cut = sieve_.pick(kept.span, wanted, store);
        least = cut.ordered + 1;  // later scores must exceed it
        add_stat(device::kStatRepairedRows, cut.by_bits ? 1 : 0);
      }
      if (last) {
        pad(writer, wanted);
      } else {
        add_stat(device::kStatRescans, publish ? 0 : 1);
        count = wanted;
        if (publish && lane_ == 0) {
          *g_part_count(static_cast<int>(blockIdx.x), part, query) = wanted;
        }
      }
    }
    __syncwarp();  // the list is complete, and everyone has read the row's state
    if (!dense && lane_ == 0) {
      s_row = {least, count};
    }
    __syncwarp();
  }

  __device__ __forceinline__ void add_stat(int which, uint32_t amount) const {
    if (lane_ == 0) {
      params_.output.add_stat(which, amount);
    }
  }

  /// All select warps.
  __device__ __forceinline__ void sync_warps() const {
    ptx::named_barrier_sync(Config::kSelectBarrier, 32 * kWarps);
  }

  /// Appends what reaches `least` and may be among the row's K best to entries [count, ..) of the list, in order;
  /// returns the new count, and raises `least` if the source alone has K that good.
  __device__ __forceinline__ int append(const Source& from, const List& list, int count, uint32_t& least) const {
    const List end = {list.g_scores + count, list.g_indices + count};
    const auto append_one = [&](int slot, int position, float score) {
      end.g_scores[slot] = score;
      end.g_indices[slot] = from.index(position);
    };
    const auto append_picks = [&](const device::Picks& picks, const auto& position_of, const device::QuadGroup& group) {
      picks.for_each([&](int slot, int i) { append_one(slot, position_of(i), group.scores[i]); });
    };
    if (least != kOrderedNan) {
      // Between NaN and -inf lies no score.
      const float threshold = score_of_ordered_bits(max(least, kOrderedNegativeInfinity));
      const int appended = sieve_.filter_few(from.span, threshold, append_one);
      if (appended >= 0) {
        return count + appended;
      }
    }
    const int wanted = params_.output.topk;
    if (from.span.size() <= wanted) {
      return count + sieve_.filter(from.span, 0.0F, true, 0, append_picks);
    }
    // Only its K best can be among the row's.
    const device::RowCut cut = sieve_.pick(from.span, wanted, append_picks);
    least = max(least, cut.ordered + 1);  // later scores must exceed it
    return count + wanted;
  }

  // ---- output ----

  static __device__ __forceinline__ void write(const device::RowWriter& writer, int slot, int32_t index, float score) {
    writer.write(slot, index);
    if (writer.wants_scores()) {
      writer.write_score(slot, score);
    }
  }

  __device__ __forceinline__ void pad(const device::RowWriter& writer, int wanted) const {
#pragma unroll 1
    for (int slot = wanted + lane_; slot < params_.output.topk; slot += 32) {
      writer.pad(slot);
    }
    if (lane_ == 0) {
      writer.write_count(wanted);
    }
  }

  const FusedParams& params_;
  Smem& s_;
  int lane_;
  int warp_;
  device::RowSieve sieve_;
};

}  // namespace keysieve::cuda
