// SPDX-License-Identifier: Apache-2.0
#include "failure.hpp"
#include "session.hpp"

namespace keysieve::cli {

ScoreThenSelect::ScoreThenSelect(Session& session, int64_t row_begin, int64_t row_end)
    : session_(session), num_rows_(row_end - row_begin) {
  const Replay& replay = session.replay_;
  scores_ = DeviceBuffer(*session.device_, static_cast<size_t>(num_rows_ * replay.num_keys) * sizeof(float));
  outputs_ = session.make_outputs(num_rows_);
  const Tensors& all = session.tensors_;

  score_ = problem_of(replay, KEYSIEVE_SCORE, num_rows_);
  score_.device_type = session.backend_.device_type;
  score_.device_index = session.options_.device_index;
  score_tensors_.q = rows_of(all.q, row_begin, row_end);
  score_tensors_.k = all.k;
  score_tensors_.k_scale = all.k_scale;
  score_tensors_.weights = rows_of(all.weights, row_begin, row_end);
  score_tensors_.row_start = rows_of(all.row_start, row_begin, row_end);
  score_tensors_.row_end = rows_of(all.row_end, row_begin, row_end);
  score_tensors_.scores = make_view(scores_.data(), KEYSIEVE_F32, {num_rows_, replay.num_keys});

  select_ = score_;
  select_.op = KEYSIEVE_SELECT;
  select_.topk = session.options_.topk;
  select_.order = session.options_.order;
  select_tensors_.scores = score_tensors_.scores;
  select_tensors_.row_start = score_tensors_.row_start;
  select_tensors_.row_end = score_tensors_.row_end;
  session.attach_outputs(select_tensors_, outputs_, num_rows_, false);
  attach_workspaces();
}

void ScoreThenSelect::attach_workspaces() {
  const keysieve_options library = session_.library_options();
  const auto attach = [&](const Problem& problem, Tensors& tensors, DeviceBuffer& workspace) {
    size_t bytes = 0;
    require_ok("workspace", keysieve_workspace_size(&problem, &library, nullptr, &bytes));
    workspace = DeviceBuffer(*session_.device_, bytes);
    tensors.workspace = workspace.data();
    tensors.workspace_bytes = workspace.bytes();
  };
  attach(score_, score_tensors_, score_workspace_);
  attach(select_, select_tensors_, select_workspace_);
}

void ScoreThenSelect::enqueue() {
  session_.run(score_, score_tensors_);
  session_.run(select_, select_tensors_);
}

ScoreThenSelect::Result ScoreThenSelect::download() const {
  Result result;
  result.scores.resize(static_cast<size_t>(num_rows_ * session_.replay_.num_keys));
  scores_.download(result.scores.data());
  result.selection = session_.download(outputs_, num_rows_, false);
  return result;
}

}  // namespace keysieve::cli
