// SPDX-License-Identifier: Apache-2.0
#include "cases/programmed.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/generate.hpp"

namespace keysieve::test {
namespace {

uint8_t* query(Inputs& inputs, int64_t t, int64_t h, int64_t d) {
  return inputs.q.mutable_data<uint8_t>() + inputs.q.offset(t, h, d);
}

uint8_t* key(Inputs& inputs, int64_t n) {
  return inputs.k.mutable_data<uint8_t>() + n * kCaseHeadDim;
}

float& weight(Inputs& inputs, int64_t t, int64_t h) {
  return inputs.weights.mutable_data<float>()[inputs.weights.offset(t, h)];
}

void set_scales(Inputs& inputs, const KeyValue& scale) {
  auto* scales = inputs.k_scale.mutable_data<float>();
  for (int64_t n = 0; n < inputs.problem.num_keys; ++n) {
    scales[n] = scale(n);
  }
}

}  // namespace

Inputs blank_case(const CaseShape& shape) {
  Inputs out;
  keysieve_problem& problem = out.problem;
  problem.op = KEYSIEVE_SCORE_SELECT;
  problem.num_rows = shape.rows;
  problem.num_heads = shape.heads;
  problem.head_dim = kCaseHeadDim;
  problem.num_keys = shape.keys;
  problem.topk = shape.topk;
  problem.q_dtype = KEYSIEVE_E4M3;
  problem.k_dtype = KEYSIEVE_E4M3;
  problem.index_space = KEYSIEVE_INDEX_ABSOLUTE;
  out.q = Tensor(Dtype::kE4m3, {shape.rows, shape.heads, kCaseHeadDim});
  out.k = Tensor(Dtype::kE4m3, {shape.keys, kCaseHeadDim});
  out.k_scale = Tensor(Dtype::kF32, {shape.keys});
  out.weights = Tensor(Dtype::kF32, {shape.rows, shape.heads});
  std::fill_n(out.k_scale.mutable_data<float>(), shape.keys, 1.0F);
  std::fill_n(out.weights.mutable_data<float>(), shape.rows * shape.heads, 3.0F);
  return out;
}

Inputs program_p(const CaseShape& shape, const KeyValue& v) {
  Inputs out = blank_case(shape);
  out.k.fill(kOneE4m3);
  set_scales(out, v);
  for (int64_t t = 0; t < shape.rows; ++t) {
    *query(out, t, t % shape.heads, 7 * t % kCaseHeadDim) = kOneE4m3;
    weight(out, t, t % shape.heads) = 1.0F;
  }
  return out;
}

Inputs program_ps(const CaseShape& shape, const KeyValue& v) {
  Inputs out = blank_case(shape);
  set_scales(out, [&](int64_t n) { return std::fabs(v(n)); });
  for (int64_t n = 0; n < shape.keys; ++n) {
    for (int64_t d = v(n) >= 0 ? 0 : 1; d < kCaseHeadDim; d += 2) {
      key(out, n)[d] = kOneE4m3;
    }
  }
  for (int64_t t = 0; t < shape.rows; ++t) {
    const int64_t positive = t % shape.heads;
    const int64_t negative = (t + 1) % shape.heads;
    *query(out, t, positive, 2 * (t % 64)) = kOneE4m3;
    *query(out, t, negative, 2 * (t % 64) + 1) = kOneE4m3;
    weight(out, t, positive) = 1.0F;
    weight(out, t, negative) = -1.0F;
  }
  return out;
}

Inputs program_row(const CaseShape& shape, const KeyValue& s, const std::function<int64_t(int64_t t)>& row_id) {
  Inputs out = blank_case(shape);
  set_scales(out, s);
  for (int64_t n = 0; n < shape.keys; ++n) {
    key(out, n)[n % kCaseHeadDim] = kOneE4m3;
  }
  for (int64_t t = 0; t < shape.rows; ++t) {
    const int64_t id = row_id(t);
    *query(out, t, id % shape.heads, id % kCaseHeadDim) = kOneE4m3;
    weight(out, t, id % shape.heads) = 1.0F;
  }
  return out;
}

Inputs program_ovf(const CaseShape& shape, float weight_of_head, const std::function<bool(int64_t n)>& infinite,
                   const KeyValue& scale) {
  Inputs out = blank_case(shape);
  set_scales(out, scale);
  for (int64_t n = 0; n < shape.keys; ++n) {
    key(out, n)[0] = infinite(n) ? kMaxE4m3 : kOneE4m3;
  }
  for (int64_t t = 0; t < shape.rows; ++t) {
    *query(out, t, 0, 0) = kMaxE4m3;
    weight(out, t, 0) = weight_of_head;
  }
  return out;
}

Inputs program_rnd(const CaseShape& shape, uint64_t seed) {
  ProblemSpec spec;
  spec.shape = {shape.rows, shape.heads, kCaseHeadDim, shape.keys, shape.topk};
  spec.index_space = KEYSIEVE_INDEX_ABSOLUTE;
  spec.seed = seed;
  return make_inputs(spec);
}

void make_zero_column(Inputs& inputs, int64_t n) {
  std::memset(key(inputs, n), kMinusOneE4m3, kCaseHeadDim);
}

}  // namespace keysieve::test
