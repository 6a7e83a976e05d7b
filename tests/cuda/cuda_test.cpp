// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_test.hpp"

#include <cstring>

namespace keysieve::test {

void CudaCases::SetUp() {
  const BackendUnderTest backend = find_backend("cuda");
  if (backend.available) {
    return;
  }
  if (backend_required("cuda")) {
    FAIL() << "backend cuda is required but not available: " << backend.detail;
  }
  GTEST_SKIP() << "backend cuda is not available: " << backend.detail;
}

std::vector<Inputs> CudaCases::operations(const Inputs& score_select) {
  Runner runner("cuda");
  Random random(4711);
  const Tensor scores = random_scores(score_select.problem.num_rows, score_select.problem.num_keys, 500, true, random);
  std::vector<Inputs> taken;
  for (const Inputs& inputs : {score_select, as_score(score_select), as_select(score_select, scores)}) {
    if (takes(runner, inputs)) {
      taken.push_back(inputs);
    }
  }
  return taken;
}

namespace {

/// True if two outputs hold the same bytes: the common case, and a hundred times faster than to compare values.
bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.image_bytes() == b.image_bytes() &&
         (a.image_bytes() == 0 || std::memcmp(a.image(), b.image(), a.image_bytes()) == 0);
}

}  // namespace

void CudaCases::expect_same(const Inputs& inputs, const Outputs& actual, const Outputs& expected) {
  if (same_bytes(actual.scores, expected.scores) && same_bytes(actual.indices, expected.indices) &&
      same_bytes(actual.top_scores, expected.top_scores) && same_bytes(actual.out_count, expected.out_count) &&
      same_bytes(actual.row_indices, expected.row_indices) && same_bytes(actual.cand_out, expected.cand_out)) {
    return;
  }
  if (inputs.problem.op == KEYSIEVE_SCORE) {
    EXPECT_EQ(compare_scores(actual.scores, expected.scores), "");
  } else {
    EXPECT_EQ(compare_selections(inputs, actual, expected), "");
  }
}

Outputs copy_outputs(const Staged& staged) {
  Outputs out;
  const auto copy = [](const Tensor& layout, const keysieve_tensor& view) {
    if (!layout.present()) {
      return Tensor();
    }
    Tensor tensor(layout.dtype(), layout.shape(), layout.layout());
    EXPECT_EQ(cudaMemcpy(tensor.mutable_image(), view.data, tensor.image_bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return tensor;
  };
  out.scores = copy(staged.outputs.scores, staged.tensors.scores);
  out.indices = copy(staged.outputs.indices, staged.tensors.indices);
  out.top_scores = copy(staged.outputs.top_scores, staged.tensors.top_scores);
  out.out_count = copy(staged.outputs.out_count, staged.tensors.out_count);
  out.row_indices = copy(staged.outputs.row_indices, staged.tensors.row_indices);
  out.cand_out = copy(staged.outputs.cand_out, staged.tensors.cand_out);
  return out;
}

}  // namespace keysieve::test
