// SPDX-License-Identifier: Apache-2.0
// The select role of fused_sm90: three warps that take tasks, one row of one window each, in order of windows and rows.
// Once everything is scored, math warps take tasks too.
//
//     dense run   row of the window -> pick -> output
//     long run    row of the window -> append to the row's list what can still be among its K best
//                 list over 3 K     -> pick -> the K best stay, in order; the threshold is the K-th
//                 last window       -> pick -> output
//     cut runs    kernel.cuh; the parts of a long one are appended like windows
//
// A task waits for the one before of the same row, whose list it continues: with more rows than warps that is done as a
// rule.  Tasks of a block's missing rows, and of rows outside the run, are empty.
//
// Why nothing is lost.  A list is in key order and holds every key so far except those that cannot be among the row's
// K best: when it was cut to K, the others had K better keys before them; and a later key whose score does not exceed
// the K-th of that time has K keys before it that rank higher (equal scores: the lower index wins).  There is room for
// a whole window (of a merge: a part) whenever one is appended, so nothing is dropped for want of space, and a pick is
// exact for any data (device/row_sieve.cuh).  The K best of a run are among the K best of its parts, by the same
// argument.
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
  static_assert(FusedShape::kWindowTiles * kTileKeys <= device::RowSieve::kMaxCollected);
  static_assert(FusedShape::kMaxPicks <= device::RowSieve::kMaxCollected);
  static_assert(FusedShape::kMaxDenseKeys <= device::RowSieve::kMaxGroups * device::ScoreGroup::kWarpScores);

  /// Workers are the select warps, and behind them the helpers.
  __device__ __forceinline__ SelectRole(const FusedParams& params, Smem& smem, int worker)
      : params_(params), s_(smem), lane_(ptx::lane_index()), worker_(worker), sieve_(smem.sieve(worker), lane_) {}

  template <FusedBuild kBuild>
  __device__ __forceinline__ void run(const WindowRing<Config>& ring) {
    if constexpr (kBuild == FusedBuild::kComplete) {
      sieve_.initialise();
      if (worker_ < kWarps) {
        device::pad_empty_rows(params_.output, params_.feed.rows.ranges, params_.feed.blocks.num_rows,
                               static_cast<int64_t>(blockIdx.x) * kWarps + worker_, int64_t{gridDim.x} * kWarps);
      }
    }
    for (;;) {
      const Task task = next_task();
      typename WindowRing<Config>::Cursor cursor(task.window);
      if (!wait_for_window(ring, cursor, task.window)) {
        break;
      }
      if constexpr (kBuild == FusedBuild::kComplete) {
        wait_for_row(task);
        select_row(s_.windows[cursor.slot()], cursor.slot(), task.query);
        __threadfence_block();  // the row's list, before another warp continues it
      }
      __syncwarp();
      if (lane_ == 0) {
        finish_row(task);
        ring.release(cursor);
      }
    }
  }

 private:
  static constexpr uint32_t kFullMask = 0xFFFFFFFFU;

  struct Task {
    uint32_t window;  // number of the window
    int query;        // of its block
  };

  __device__ __forceinline__ Task next_task() const {
    uint32_t number = 0;
    if (lane_ == 0) {
      number = atomicAdd(&s_.next_task, 1U);
    }
    number = __shfl_sync(kFullMask, number, 0);
    constexpr uint32_t kQueries = Config::Tile::kQueries;
    return {number / kQueries, static_cast<int>(number % kQueries)};
  }
  /// False if there is no such window.
  __device__ __forceinline__ bool wait_for_window(const WindowRing<Config>& ring,
                                                  const typename WindowRing<Config>::Cursor& cursor,
                                                  uint32_t window) const {
    while (window < ptx::poll_shared(s_.num_windows)) {
      if (ring.try_wait(cursor)) {
        return true;
      }
    }
    return false;
  }
  /// Until the row's task of the window before is finished.
  __device__ __forceinline__ void wait_for_row(const Task& task) const {
    while (ptx::poll_shared(s_.rows[task.query].finished) != task.window) {
    }
    __threadfence_block();
    __syncwarp();
  }
  __device__ __forceinline__ void finish_row(const Task& task) const {
    volatile uint32_t* s_finished = &s_.rows[task.query].finished;
    *s_finished = task.window + 1;
  }

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

  /// The list of row `query` of the block.
  [[nodiscard]] __device__ __forceinline__ List list_of(int query) const {
    return list_at(params_.cta(static_cast<int>(blockIdx.x)) + params_.scratch.lists_offset() +
                       query * params_.scratch.list_bytes(),
                   params_.scratch.list_capacity);
  }
  /// The list in which this worker merges the parts of a row.
  [[nodiscard]] __device__ __forceinline__ List merge_list() const {
    return list_at(params_.cta(static_cast<int>(blockIdx.x)) + params_.scratch.merges_offset() +
                       worker_ * params_.scratch.merge_bytes(),
                   params_.scratch.merge_capacity);
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

  // ---- rows ----

  /// What is kept of a row of a long run.
  struct RowList {
    List list;
    uint32_t least;  // ordered score that a key must reach to become a candidate
    int count;       // candidates in the list
  };
  /// What happens to a row after a source.
  enum class End { kNone, kPublish, kWrite };

  /// One source of a row, and what to do with it.
  struct Update {
    uint32_t t;
    device::RowKeys keys;
    Source source;
    RowList row;
    List part;  // of a row to be published
    bool dense;
    End end;
  };

  /// A row of a window; after the last row of a long run that was cut, the run's rows from their parts.
  __device__ __forceinline__ void select_row(const FusedWindow& s_window, int slot, int query) const {
    const FusedUnit& s_unit = s_window.unit;
    const bool cut = s_unit.is_cut();
    const bool dense = params_.is_dense(s_unit);
    if (query < s_unit.row_begin || query >= s_unit.row_end || (dense && cut && !s_window.ready)) {
      return;  // a dense run is selected from where its last piece is scored
    }
    const bool last = s_window.end == s_unit.tile_end;
    typename Smem::RowState& s_row = s_.rows[query];
    Update update;
    update.t = s_unit.first_row + static_cast<uint32_t>(query);
    update.keys = params_.output.row_keys(params_.feed.rows.ranges, update.t);
    update.source = window_row(s_window, slot, query, update.keys);
    update.row = {list_of(query), kOrderedNan, 0};
    if (!dense && s_window.begin != s_unit.tile_begin) {
      update.row.least = s_row.least;
      update.row.count = s_row.count;
    }
    update.part = part_of(static_cast<int>(blockIdx.x), own_part(s_unit), query);
    update.dense = dense;
    update.end = !last ? End::kNone : cut && !dense ? End::kPublish : End::kWrite;
    MergeStep merge = {s_unit.row_begin, -1};
    bool merging = false;
#pragma unroll 1
    for (;;) {
      if (update.keys.width > 0) {
        update_row(update);
      }
      if (!merging) {
        if (!dense && lane_ == 0) {
          s_row.least = update.row.least;
          s_row.count = update.row.count;
        }
        if (update.end != End::kPublish) {
          return;
        }
        if (lane_ == 0) {
          *g_part_count(static_cast<int>(blockIdx.x), own_part(s_unit), query) = update.row.count;
        }
        if (!is_last_to_publish(s_unit, slot)) {
          return;
        }
        merging = true;
      }
      if (!next_merge(s_unit, merge, update)) {
        return;
      }
    }
  }

  /// Which of its two parts a share leaves to a cut run.
  [[nodiscard]] static __device__ __forceinline__ int own_part(const FusedUnit& s_unit) {
    return s_unit.first_share == static_cast<int32_t>(blockIdx.x) ? 1 : 0;
  }

  /// Counts a row of this share's part as published; true, in all lanes, for the last row of the last part of the run.
  __device__ __forceinline__ bool is_last_to_publish(const FusedUnit& s_unit, int slot) const {
    __threadfence();
    __syncwarp();
    int last = 0;
    if (lane_ == 0) {
      const int rows = s_unit.row_end - s_unit.row_begin;
      if (atomicAdd(&s_.published_rows[slot], 1) + 1 == rows) {
        s_.published_rows[slot] = 0;  // the slot's next window waits for this task
        last = arrive_at_cut_run(params_, s_unit, s_unit.tile_end - s_unit.tile_begin) ? 1 : 0;
      }
    }
    last = __shfl_sync(kFullMask, last, 0);
    __threadfence();
    return last != 0;
  }

  /// A row of the block and the part that it takes its candidates from.
  struct MergeStep {
    int query;
    int part;
  };
  /// The next part of a row, or of the next one; false if there is none.
  __device__ __forceinline__ bool next_merge(const FusedUnit& s_unit, MergeStep& merge, Update& update) const {
    const int num_parts = s_unit.last_share - s_unit.first_share + 1;
    if (++merge.part == num_parts) {
      merge.part = 0;
      ++merge.query;
    }
    if (merge.query == s_unit.row_end) {
      return false;
    }
    const int share = s_unit.first_share + merge.part;
    const int part = merge.part == 0 ? 1 : 0;
    const List entries = part_of(share, part, merge.query);
    update.t = s_unit.first_row + static_cast<uint32_t>(merge.query);
    update.keys = params_.output.row_keys(params_.feed.rows.ranges, update.t);
    update.source = {{entries.g_scores, 0, __ldcg(g_part_count(share, part, merge.query))}, entries.g_indices, 0};
    if (merge.part == 0) {
      update.row = {merge_list(), kOrderedNan, 0};
    }
    update.end = merge.part == num_parts - 1 ? End::kWrite : End::kNone;
    return true;
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
    source.span.end =
        max(min(keys.begin + keys.width - first_key, (end_tile - first_tile) * kTileKeys), source.span.begin);
    source.g_indices = nullptr;
    source.first_index = first_key - keys.begin;
    return source;
  }

  /// Brings a row up to date with one source: a dense row is that source, a long one adds it to its list.  kWrite: the
  /// row's K best go to the output; kPublish: to `part`.
  __device__ __forceinline__ void update_row(Update& update) const {
    RowList& row = update.row;
    const bool dense = update.dense;
    const End end = update.end;
    const int topk = params_.output.topk;
    // Step 0 adds to the list what can be among the row's best; step 1 picks from the list, or dense row.
#pragma unroll 1
    for (int step = dense ? 1 : 0; step < 2; ++step) {
      const bool adds = step == 0;
      if (!adds && !dense && end == End::kNone && row.count <= 3 * topk) {
        break;
      }
      const Source from =
          adds || dense ? update.source : Source{{row.list.g_scores, 0, row.count}, row.list.g_indices, 0};
      device::ScoreCut cut = device::ScoreCut::everything();
      int wanted = 0;
      if (adds && row.least != kOrderedNan) {
        cut = device::ScoreCut::reaching(row.least);
      } else if (from.span.size() > topk) {
        wanted = topk;
      }
      uint32_t last = 0;
      bool repaired;
      const int count = sieve_.collect(from.span, cut, wanted, &last, &repaired);
      if (wanted > 0) {
        row.least = max(row.least, last + 1);  // later scores must exceed it
        add_stat(device::kStatRepairedRows, repaired ? 1 : 0);
      }
      if (adds) {
        store_list({row.list.g_scores + row.count, row.list.g_indices + row.count}, from, count);
      } else if (end == End::kWrite) {
        write_row(update, from, count);
      } else {
        store_list(end == End::kPublish ? update.part : row.list, from, count);
      }
      row.count = adds ? row.count + count : count;
      if (adds || dense) {
        add_stat(device::kStatKeptCandidates, static_cast<uint32_t>(count));
      } else {
        add_stat(device::kStatRescans, end == End::kNone ? 1 : 0);
      }
    }
  }

  /// Scores and indices of collected positions: all on their way at once, those that a batch lacks too.
  template <int kItems>
  struct Fetched {
    float scores[kItems];
    int32_t indices[kItems];

    __device__ __forceinline__ Fetched(const Source& from, const device::CollectedBatch<kItems>& batch,
                                       bool wants_scores) {
      if (wants_scores) {
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          scores[j] = from.span.score(batch.positions[j]);
        }
      }
      if (from.g_indices != nullptr) {
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          indices[j] = __ldcg(from.g_indices + batch.positions[j]);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          indices[j] = from.first_index + batch.positions[j];
        }
      }
    }
  };

  /// What was collected from a source -> a list, which may be the source: positions never lie before their slots.
  __device__ __forceinline__ void store_list(const List& target, const Source& from, int count) const {
    constexpr int kItems = 8;
    sieve_.template for_each_collected<kItems>(count, [&](const device::CollectedBatch<kItems>& batch) {
      const Fetched<kItems> fetched(from, batch, true);
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (batch.holds(j)) {
          target.g_scores[batch.slot(j)] = fetched.scores[j];
          target.g_indices[batch.slot(j)] = fetched.indices[j];
        }
      }
    });
    __threadfence_block();  // before other lanes read it
    __syncwarp();
  }

  __device__ __forceinline__ void add_stat(int which, uint32_t amount) const {
    if (lane_ == 0) {
      params_.output.add_stat(which, amount);
    }
  }

  // ---- output ----

  /// What was collected from a source -> the row's output.
  __device__ __forceinline__ void write_row(const Update& update, const Source& from, int count) const {
    const device::RowWriter writer(params_.output, update.t, update.keys);
    if (from.g_indices == nullptr && writer.only_aligned_indices()) {
      constexpr int kQuads = 4;
      const int32_t bias = from.first_index;
      sieve_.template for_each_collected_quad<kQuads>(count, [&](const device::CollectedQuads<kQuads>& batch) {
#pragma unroll
        for (int j = 0; j < kQuads; ++j) {
          const int slot = batch.slot(j);
          if (slot + 4 <= count) {
            writer.write_four_indices(slot, make_int4(bias + batch.position(j, 0), bias + batch.position(j, 1),
                                                      bias + batch.position(j, 2), bias + batch.position(j, 3)));
          } else {
            for (int i = 0; i < count - slot; ++i) {
              writer.write_index(slot + i, bias + batch.position(j, i));
            }
          }
        }
      });
    } else if (writer.only_indices()) {
      constexpr int kItems = 16;
      sieve_.template for_each_collected<kItems>(count, [&](const device::CollectedBatch<kItems>& batch) {
        const Fetched<kItems> fetched(from, batch, false);
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          if (batch.holds(j)) {
            writer.write_index(batch.slot(j), fetched.indices[j]);
          }
        }
      });
    } else {
      constexpr int kItems = 4;
      sieve_.template for_each_collected<kItems>(count, [&](const device::CollectedBatch<kItems>& batch) {
        const Fetched<kItems> fetched(from, batch, writer.wants_scores());
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
          if (batch.holds(j)) {
            writer.write(batch.slot(j), fetched.indices[j]);
            if (writer.wants_scores()) {
              writer.write_score(batch.slot(j), fetched.scores[j]);
            }
          }
        }
      });
    }
#pragma unroll 1
    for (int slot = count + lane_; slot < params_.output.topk; slot += 32) {
      writer.pad(slot);
    }
    if (lane_ == 0) {
      writer.write_count(count);
    }
  }

  const FusedParams& params_;
  Smem& s_;
  int lane_;
  int worker_;
  device::RowSieve sieve_;
};

}  // namespace keysieve::cuda
