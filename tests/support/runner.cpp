// SPDX-License-Identifier: Apache-2.0
#include "support/runner.hpp"

#include <cstdlib>
#include <stdexcept>

#include "support/backends.hpp"

namespace keysieve::test {
namespace {

size_t choose_workspace(WorkspaceChoice choice, size_t minimum, size_t preferred) {
  switch (choice) {
    case WorkspaceChoice::kMinimum: return minimum;
    case WorkspaceChoice::kMinimumPlusOne: return minimum + 1;
    case WorkspaceChoice::kMiddle: return minimum + (preferred - minimum) / 2;
    case WorkspaceChoice::kPreferred: return preferred;
  }
  return minimum;
}

Tensor row_output(Dtype dtype, int64_t rows, int64_t columns, int64_t gap) {
  return Tensor(dtype, {rows, columns}, {{columns + gap, 1}});
}

/// Output tensors of a problem, poisoned.
Outputs make_outputs(const keysieve_problem& problem, const RunSettings& settings) {
  Outputs out;
  const int64_t rows = problem.num_rows;
  const int64_t gap = settings.row_gap;
  if (problem.op == KEYSIEVE_SCORE) {
    const Dtype dtype = problem.score_dtype == KEYSIEVE_BF16 ? Dtype::kBf16 : Dtype::kF32;
    const bool compact = problem.score_layout == KEYSIEVE_SCORES_COMPACT;
    out.scores = row_output(dtype, rows, compact ? problem.score_width : problem.num_keys, gap);
  } else {
    out.indices = row_output(Dtype::kI32, rows, problem.topk, gap);
    if (settings.top_scores) {
      out.top_scores = row_output(Dtype::kF32, rows, problem.topk, gap);
    }
    if (settings.row_indices) {
      out.row_indices = row_output(Dtype::kI32, rows, problem.topk, gap);
    }
    if (settings.out_count) {
      out.out_count = Tensor(Dtype::kI32, {rows}, {{1 + gap}});
    }
    if (problem.candidates == KEYSIEVE_CANDIDATES_PUBLISH) {
      out.cand_out = row_output(Dtype::kI32, rows, problem.cand_count, gap);
    }
  }
  for_each_output(out, [&](const char* /*name*/, Tensor& tensor) { tensor.poison(settings.poison); });
  if (settings.stats && problem.op != KEYSIEVE_SCORE) {
    out.stats = Tensor(Dtype::kU64, {KEYSIEVE_NUM_STATS});
    out.stats.fill(0);
  }
  return out;
}

}  // namespace

void for_each_output(Outputs& outputs, const std::function<void(const char*, Tensor&)>& visit) {
  const auto call = [&](const char* name, Tensor& tensor) {
    if (tensor.present()) {
      visit(name, tensor);
    }
  };
  call("scores", outputs.scores);
  call("indices", outputs.indices);
  call("top_scores", outputs.top_scores);
  call("out_count", outputs.out_count);
  call("row_indices", outputs.row_indices);
  call("cand_out", outputs.cand_out);
  call("stats", outputs.stats);
}

Runner::Runner(std::string backend, int32_t device_index) : backend_(std::move(backend)), device_index_(device_index) {
  device_type_ = find_backend(backend_).device_type;
  if (device_type_ == KEYSIEVE_CUDA) {
#if defined(KEYSIEVE_WITH_CUDA)
    space_ = make_cuda_space(device_index);
#else
    throw std::runtime_error("this test was built without CUDA");
#endif
  } else {
    space_ = make_host_space();
  }
}

keysieve_problem Runner::problem_for_backend(const Inputs& inputs) const {
  keysieve_problem problem = inputs.problem;
  problem.struct_size = sizeof(problem);
  problem.device_type = device_type_;
  problem.device_index = device_index_;
  return problem;
}

/// KEYSIEVE_PREFER_CONFIG names a configuration for every score_select that can run with it and asks for none: so all
/// tests can be turned on a kernel that the backend would not choose by itself for their sizes.
keysieve_options Runner::options_for_backend(const Inputs& inputs, const RunSettings& settings) const {
  keysieve_options options{};
  options.struct_size = sizeof(options);
  options.backend = backend_.c_str();
  options.config = settings.config;
  options.threads = settings.threads;
  options.sm_limit = settings.sm_limit;
  options.launch_flags = settings.launch_flags;
  const char* preferred = std::getenv("KEYSIEVE_PREFER_CONFIG");
  if (preferred != nullptr && options.config == nullptr && inputs.problem.op == KEYSIEVE_SCORE_SELECT) {
    const keysieve_problem problem = problem_for_backend(inputs);
    options.config = preferred;
    if (keysieve_supported(&problem, &options) != KEYSIEVE_OK) {
      options.config = nullptr;
    }
  }
  return options;
}

keysieve_status Runner::supported(const Inputs& inputs, const RunSettings& settings) const {
  const keysieve_problem problem = problem_for_backend(inputs);
  const keysieve_options options = options_for_backend(inputs, settings);
  return keysieve_supported(&problem, &options);
}

Staged Runner::stage(const Inputs& inputs, const RunSettings& settings) {
  Staged staged;
  staged.problem = problem_for_backend(inputs);
  staged.options = options_for_backend(inputs, settings);
  staged.settings = settings;
  staged.inputs = inputs;

  size_t minimum = 0;
  size_t preferred = 0;
  staged.outputs.status = keysieve_workspace_size(&staged.problem, &staged.options, &minimum, &preferred);
  if (staged.outputs.status != KEYSIEVE_OK) {
    staged.outputs.message = keysieve_last_message();
    return staged;
  }
  space_->reset();
  staged.outputs = make_outputs(staged.problem, settings);

  keysieve_tensors& views = staged.tensors;
  views.struct_size = sizeof(views);
  const auto input = [&](keysieve_tensor& view, const Tensor& tensor) {
    if (tensor.present()) {
      view = tensor.view(space_->place_input(tensor));
    }
  };
  if (staged.problem.op != KEYSIEVE_SELECT) {
    input(views.q, inputs.q);
    input(views.k, inputs.k);
    input(views.k_scale, inputs.k_scale);
    input(views.weights, inputs.weights);
  } else {
    input(views.scores, inputs.scores);
  }
  input(views.row_start, inputs.row_start);
  input(views.row_end, inputs.row_end);
  input(views.row_request, inputs.row_request);
  input(views.block_table, inputs.block_table);
  input(views.out_offset, inputs.out_offset);
  input(views.slot_table, inputs.slot_table);
  input(views.cand_in, inputs.cand_in);

  const auto output = [&](keysieve_tensor& view, Tensor& tensor) {
    if (tensor.present()) {
      view = tensor.view(space_->place_output(tensor));
    }
  };
  Outputs& out = staged.outputs;
  if (staged.problem.op == KEYSIEVE_SCORE) {
    output(views.scores, out.scores);
  }
  output(views.indices, out.indices);
  output(views.top_scores, out.top_scores);
  output(views.out_count, out.out_count);
  output(views.row_indices, out.row_indices);
  output(views.cand_out, out.cand_out);
  output(views.stats, out.stats);

  staged.workspace_bytes = choose_workspace(settings.workspace, minimum, preferred);
  views.workspace_bytes = staged.workspace_bytes;
  views.workspace = space_->place_workspace(staged.workspace_bytes, settings.poison, settings.workspace_fence);
  space_->end_staging();
  return staged;
}

keysieve_status Runner::launch(Staged& staged, void* stream) {
  if (staged.outputs.status != KEYSIEVE_OK) {
    return staged.outputs.status;
  }
  staged.outputs.status = keysieve_run(&staged.problem, &staged.options, &staged.tensors, stream);
  staged.outputs.message = keysieve_last_message();
  return staged.outputs.status;
}

Outputs Runner::collect(Staged& staged) {
  Outputs& out = staged.outputs;
  if (staged.tensors.struct_size == 0) {
    return out;  // never staged: the problem was refused
  }
  out.violation = space_->finish();
  const keysieve_tensors& views = staged.tensors;
  const auto fetch = [&](Tensor& tensor, const keysieve_tensor& view) {
    if (tensor.present()) {
      space_->fetch(tensor, view.data);
    }
  };
  if (staged.problem.op == KEYSIEVE_SCORE) {
    fetch(out.scores, views.scores);
  }
  fetch(out.indices, views.indices);
  fetch(out.top_scores, views.top_scores);
  fetch(out.out_count, views.out_count);
  fetch(out.row_indices, views.row_indices);
  fetch(out.cand_out, views.cand_out);
  fetch(out.stats, views.stats);
  for_each_output(out, [&](const char* name, Tensor& tensor) {
    if (out.violation.empty() && tensor.dtype() != Dtype::kU64 && !tensor.gaps_hold(staged.settings.poison)) {
      out.violation = std::string("bytes between the rows of ") + name + " were written";
    }
  });
  return out;
}

Outputs Runner::run(const Inputs& inputs, const RunSettings& settings) {
  Staged staged = stage(inputs, settings);
  launch(staged);
  return collect(staged);
}

}  // namespace keysieve::test
