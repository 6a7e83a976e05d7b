// SPDX-License-Identifier: Apache-2.0
// A replay file on a backend: its tensors where the backend wants them, and the calls that the verbs make.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device_buffers.hpp"
#include "io/agreement.hpp"
#include "io/replay.hpp"
#include "keysieve/keysieve.hpp"

namespace keysieve::cli {

/// What `run`, `check` and `bench` let one choose.
struct RunOptions {
  std::string backend;  // empty: the first that can do the problem
  std::string config;   // empty: the library's choice
  int32_t threads = 0;  // 0: all
  int32_t device_index = 0;
  int64_t topk = KEYSIEVE_MAX_TOPK;
  int32_t index_space = KEYSIEVE_INDEX_ROW;
  int32_t order = KEYSIEVE_ORDER_ASCENDING;
};

/// A selection of T rows in host memory.
struct Selection {
  int64_t num_rows = 0;
  int64_t topk = 0;
  std::vector<int32_t> indices;      // [T,K] in the index space that was asked for
  std::vector<int32_t> row_indices;  // [T,K] row-relative
  std::vector<float> scores;         // [T,K]
  std::vector<int32_t> counts;       // [T]

  [[nodiscard]] SelectedRow row(int64_t t) const {
    return {row_indices.data() + t * topk, scores.empty() ? nullptr : scores.data() + t * topk, topk};
  }
};

/// Keys [begin, end) of a row, clamped as contract section 2 says.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t width() const { return end - begin; }
};
KeyRange key_range(const Replay& replay, int64_t t);

/// Query-key pairs of all rows.
int64_t valid_pairs(const Replay& replay);

/// Bytes of a dense tensor.
size_t tensor_bytes(const keysieve_tensor& tensor);

/// Rows [row_begin, row_end) of a tensor whose first axis is rows; an absent tensor stays absent.
keysieve_tensor rows_of(const keysieve_tensor& tensor, int64_t row_begin, int64_t row_end);

/// The problem of `replay` for an operation on `num_rows` of its rows.
Problem problem_of(const Replay& replay, keysieve_op op, int64_t num_rows);

/// Opens a replay file or throws.
Replay load_replay(const std::string& path);

/// Bound to one replay, which must outlive it.
class Session {
 public:
  /// Picks the backend and moves the inputs to its device; throws if no backend can do it.
  Session(const Replay& replay, const RunOptions& options);

  [[nodiscard]] const Replay& replay() const { return replay_; }
  [[nodiscard]] const RunOptions& options() const { return options_; }
  [[nodiscard]] const keysieve_backend_info& backend() const { return backend_; }
  [[nodiscard]] Device& device() const { return *device_; }
  [[nodiscard]] size_t workspace_bytes() const { return workspace_.bytes(); }

  /// Kernel configuration of score_select, in the library's words.
  [[nodiscard]] std::string explain() const;

  /// score_select of all rows.
  Selection select();

  /// One score_select of all rows into buffers of this object; no copy, no wait on a device.
  void enqueue_select();

  /// Device times of score_select, in milliseconds; a call under 100 us is timed as many.
  std::vector<double> time_select(int warmup, int repeats);

 private:
  friend class ScoreThenSelect;
  struct OutputBuffers {
    DeviceBuffer indices, row_indices, scores, counts;
  };

  keysieve_tensor place(const keysieve_tensor& tensor);
  [[nodiscard]] keysieve_options library_options() const;
  [[nodiscard]] Problem select_problem() const;
  OutputBuffers make_outputs(int64_t num_rows) const;
  void attach_outputs(Tensors& tensors, const OutputBuffers& outputs, int64_t num_rows, bool row_indices) const;
  Selection download(const OutputBuffers& outputs, int64_t num_rows, bool row_indices) const;
  void run(const Problem& problem, const Tensors& tensors) const;

  const Replay& replay_;
  RunOptions options_;
  keysieve_backend_info backend_ = {};
  std::unique_ptr<Device> device_;
  std::vector<DeviceBuffer> inputs_;
  Tensors tensors_;  // inputs on the device
  OutputBuffers outputs_;
  DeviceBuffer workspace_;
};

/// score into a [rows, N] buffer, then select on it, for some of a session's rows: what score_select must equal bit for
/// bit, and the unfused pair that it is timed against.
class ScoreThenSelect {
 public:
  ScoreThenSelect(Session& session, int64_t row_begin, int64_t row_end);

  /// Both calls; no copy, no wait on a device.
  void enqueue();

  /// Waits, and copies the results of the last enqueue.
  struct Result {
    std::vector<float> scores;  // [rows, N]: column n is key n
    Selection selection;        // row-relative indices
  };
  [[nodiscard]] Result download() const;

 private:
  void attach_workspaces();

  Session& session_;
  int64_t num_rows_;
  Problem score_;
  Problem select_;
  Tensors score_tensors_;
  Tensors select_tensors_;
  DeviceBuffer scores_;
  Session::OutputBuffers outputs_;
  DeviceBuffer score_workspace_;
  DeviceBuffer select_workspace_;
};

}  // namespace keysieve::cli
