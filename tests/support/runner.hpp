// SPDX-License-Identifier: Apache-2.0
// "Run this problem with these host tensors on backend X and give me the outputs", for every backend.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "support/memory_space.hpp"
#include "support/tensor.hpp"

namespace keysieve::test {

/// A problem and its inputs in host memory.
struct Inputs {
  keysieve_problem problem{};
  Tensor q;
  Tensor k;
  Tensor k_scale;
  Tensor weights;
  Tensor scores;  // of select
  Tensor row_start;
  Tensor row_end;
  Tensor row_request;
  Tensor block_table;
  Tensor out_offset;
  Tensor slot_table;
  Tensor cand_in;
};

enum class WorkspaceChoice { kMinimum, kMinimumPlusOne, kMiddle, kPreferred };

struct RunSettings {
  Poison poison = Poison::kMinus777;
  bool top_scores = true;
  bool out_count = true;
  bool row_indices = true;
  bool stats = false;
  int64_t row_gap = 0;  // elements between rows of an output that are not the library's
  WorkspaceChoice workspace = WorkspaceChoice::kMinimum;
  Fence workspace_fence = Fence::kAfter;
  int32_t threads = 0;
  int32_t sm_limit = 0;
  int32_t launch_flags = 0;
  const char* config = nullptr;
};

struct Outputs {
  keysieve_status status = KEYSIEVE_OK;
  std::string message;    // keysieve_last_message
  std::string violation;  // what was written that is not the library's; empty if nothing
  Tensor scores;          // of score
  Tensor indices;
  Tensor top_scores;
  Tensor out_count;
  Tensor row_indices;
  Tensor cand_out;
  Tensor stats;
};

/// A call whose tensors lie where the backend wants them.  Views stay valid until the next stage() of the Runner.
struct Staged {
  keysieve_problem problem{};
  keysieve_options options{};
  keysieve_tensors tensors{};
  RunSettings settings;
  Inputs inputs;
  Outputs outputs;
  size_t workspace_bytes = 0;
};

/// Runs calls on one backend; not thread-safe, so every thread has its own.
class Runner {
 public:
  explicit Runner(std::string backend, int32_t device_index = 0);

  [[nodiscard]] const std::string& backend() const { return backend_; }
  [[nodiscard]] bool on_cuda() const { return device_type_ == KEYSIEVE_CUDA; }
  [[nodiscard]] int32_t device_type() const { return device_type_; }
  [[nodiscard]] MemorySpace& space() { return *space_; }

  /// keysieve_supported for this backend; the message is keysieve_last_message().
  [[nodiscard]] keysieve_status supported(const Inputs& inputs, const RunSettings& settings = {}) const;

  [[nodiscard]] Staged stage(const Inputs& inputs, const RunSettings& settings = {});
  keysieve_status launch(Staged& staged, void* stream = nullptr);
  /// Waits for the call, copies its outputs back and checks what surrounds them.
  Outputs collect(Staged& staged);

  Outputs run(const Inputs& inputs, const RunSettings& settings = {});

 private:
  [[nodiscard]] keysieve_problem problem_for_backend(const Inputs& inputs) const;
  [[nodiscard]] keysieve_options options_for_backend(const Inputs& inputs, const RunSettings& settings) const;

  std::string backend_;
  int32_t device_type_ = KEYSIEVE_CPU;
  int32_t device_index_ = 0;
  std::unique_ptr<MemorySpace> space_;
};

/// Calls visit(name, tensor) for every output of a call.
void for_each_output(Outputs& outputs, const std::function<void(const char*, Tensor&)>& visit);

}  // namespace keysieve::test
