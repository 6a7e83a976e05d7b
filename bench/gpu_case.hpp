// SPDX-License-Identifier: Apache-2.0
// One shape on a GPU: its tensors, the three operations over them, and how their time is taken.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device_buffers.hpp"
#include "io/replay.hpp"
#include "keysieve/keysieve.hpp"

namespace keysieve::bench {

/// Holds every output and workspace, so that a call only launches.
class GpuCase {
 public:
  GpuCase(const Replay& replay, int64_t topk, int32_t device_index);

  /// Empty, or why the library has no kernel for `op` on this shape.
  [[nodiscard]] std::string unsupported(keysieve_op op) const;
  [[nodiscard]] std::string explain(keysieve_op op) const;

  /// Puts one call on the stream.  select reads what score wrote.
  void enqueue(keysieve_op op);

  /// Time of one call of each of `ops`, one after the other.  Under 100 us many calls share a graph; with `flushed`
  /// the L2 is overwritten before each call and the time of doing so is taken off.
  double sample_ms(const std::vector<keysieve_op>& ops, bool flushed);

  /// select(score) of sampled rows against a sort of the scores on the host; score_select against select, bit for bit
  /// on all rows.
  bool select_is_exact();
  bool fused_is_select();
  /// Scores of the last row against the reference, within the backend's bound.
  bool scores_are_close();

  [[nodiscard]] uint64_t repaired_rows();

 private:
  struct Step {
    Problem problem;
    Tensors tensors;
    cli::DeviceBuffer workspace;
    cli::DeviceBuffer indices;
  };

  keysieve_tensor place(const keysieve_tensor& tensor);
  Step make_step(keysieve_op op);
  Step& step(keysieve_op op);
  std::vector<int32_t> indices_of(keysieve_op op);
  std::vector<float> score_row(int64_t row);

  const Replay& replay_;
  int64_t topk_;
  int32_t device_index_;
  std::unique_ptr<cli::Device> device_;
  std::vector<cli::DeviceBuffer> inputs_;
  Tensors shared_;  // inputs of every operation
  cli::DeviceBuffer scores_, stats_, flush_;
  std::vector<std::unique_ptr<Step>> steps_;  // by enum keysieve_op; null: unsupported
};

}  // namespace keysieve::bench
