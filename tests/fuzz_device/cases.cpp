// SPDX-License-Identifier: Apache-2.0
#include "fuzz_device/cases.hpp"

#include <algorithm>
#include <cmath>

#include "core/bf16.hpp"

namespace keysieve::test {
namespace {

/// Between 1 and `most`, each power of two as likely as the next; sometimes uniform, sometimes a round number +-1.
int64_t any_size(int64_t most, Random& random) {
  const int64_t kind = random.below(10);
  if (kind < 5) {
    return std::min(most, static_cast<int64_t>(std::exp(random.uniform() * std::log(static_cast<double>(most) + 1))));
  }
  if (kind < 8) {
    return random.between(1, most);
  }
  const int64_t round = int64_t{1} << random.below(static_cast<int64_t>(std::log2(most)) + 1);
  return std::clamp<int64_t>(round + random.between(-1, 1), 1, most);
}

ProblemShape any_shape(int32_t op, const FuzzLimits& limits, Random& random) {
  constexpr int64_t kHeads[] = {8, 16, 32, 64, 128, 32, 64, 64};
  ProblemShape shape;
  shape.heads = random.pick(kHeads, 8);
  shape.head_dim = random.chance(70) ? 128 : 64;
  shape.keys = any_size(limits.keys, random);
  shape.rows = any_size(limits.rows, random);
  shape.topk = any_size(KEYSIEVE_MAX_TOPK, random);
  shape.rows = std::clamp<int64_t>(shape.rows, 1, std::max<int64_t>(limits.cells / shape.keys, 1));
  if (op != KEYSIEVE_SELECT) {
    while (shape.rows > 1 && shape.rows * shape.keys * shape.heads * shape.head_dim > limits.work) {
      shape.rows = (shape.rows + 1) / 2;
    }
    while (shape.keys > 1 && shape.keys * shape.heads * shape.head_dim > limits.work) {
      shape.keys /= 2;
    }
  }
  return shape;
}

/// More than 4,096 equal scores at the cut: long rows, and K inside the tie.
void make_big_tie(const FuzzLimits& limits, Random& random, FuzzCase& out) {
  ProblemShape& shape = out.spec.shape;
  shape.keys = random.between(8000, std::max<int64_t>(limits.keys, 8001));
  shape.topk = random.between(800, KEYSIEVE_MAX_TOPK);
  shape.heads = 8;
  shape.rows = std::clamp<int64_t>(limits.work / (shape.keys * shape.heads * shape.head_dim), 1, random.between(1, 16));
  out.spec.values = Values::kZeros;
  out.spec.ranges = Ranges::kNone;
  out.spec.paged = false;
  out.big_tie = true;
}

void choose_outputs(Random& random, FuzzCase& out) {
  constexpr int32_t kOrders[] = {KEYSIEVE_ORDER_ASCENDING, KEYSIEVE_ORDER_ASCENDING, KEYSIEVE_ORDER_ANY,
                                 KEYSIEVE_ORDER_SCORE};
  out.spec.order = random.pick(kOrders, 4);
  out.spec.index_space = static_cast<int32_t>(random.below(4));
  if (out.spec.index_space == KEYSIEVE_INDEX_SLOT) {
    out.spec.slot_page_size = out.spec.paged && random.chance(50) ? 0 : 1 << random.below(11);
  }
  out.settings.top_scores = random.chance(50);
  out.settings.row_indices = random.chance(50);
  out.settings.out_count = random.chance(50);
  out.settings.row_gap = random.chance(30) ? random.between(1, 9) : 0;
  out.settings.poison = static_cast<Poison>(random.below(4));
  out.settings.workspace = static_cast<WorkspaceChoice>(random.below(4));
}

/// Outer strides that differ from the dense ones; multiples of 16 bytes for q and k.
void make_strided(Random& random, Inputs& inputs) {
  if (inputs.q.present() && inputs.q.shape().size() == 3) {
    const int64_t unit = 16 / dtype_bytes(inputs.q.dtype());
    const int64_t head = inputs.q.shape(2) + unit * random.below(3);
    inputs.q = inputs.q.with_layout({{head * inputs.q.shape(1) + unit * random.below(3), head, 1}});
  }
  if (inputs.k.present() && inputs.problem.key_layout == KEYSIEVE_KEYS_CONTIGUOUS) {
    const int64_t unit = 16 / dtype_bytes(inputs.k.dtype());
    inputs.k = inputs.k.with_layout({{inputs.k.shape(1) + unit * random.below(4), 1}});
  }
  if (inputs.weights.present() && inputs.weights.shape().size() == 2) {
    inputs.weights = inputs.weights.with_layout({{inputs.weights.shape(1) + random.below(5), 1}});
  }
  if (inputs.scores.present()) {
    inputs.scores = inputs.scores.with_layout({{inputs.scores.shape(1) + random.below(7), 1}});
  }
  for (Tensor* vector : {&inputs.k_scale, &inputs.row_start, &inputs.row_end, &inputs.out_offset}) {
    if (vector->present() && vector->shape().size() == 1 && random.chance(50)) {
      *vector = vector->with_layout({{random.between(2, 3)}});
    }
  }
}

Tensor fuzz_scores(const FuzzCase& fuzz_case, Random& random) {
  const ProblemSpec& spec = fuzz_case.spec;
  const int64_t columns = spec.score_layout == KEYSIEVE_SCORES_COMPACT ? spec.score_width : spec.shape.keys;
  Tensor scores(Dtype::kF32, {spec.shape.rows, columns});
  if (fuzz_case.big_tie) {
    for (int64_t i = 0; i < spec.shape.rows * columns; ++i) {
      const int64_t kind = random.below(100);
      scores.mutable_data<float>()[i] = kind < 5    ? static_cast<float>(1 + random.below(50))
                                        : kind < 30 ? -static_cast<float>(1 + random.below(50))
                                                    : 0.25F;
    }
  } else {
    scores = random_scores(spec.shape.rows, columns, fuzz_case.distinct_scores, fuzz_case.special_scores, random);
  }
  if (spec.score_dtype != KEYSIEVE_BF16) {
    return scores;
  }
  Tensor halves(Dtype::kBf16, {spec.shape.rows, columns});
  for (int64_t i = 0; i < spec.shape.rows * columns; ++i) {
    halves.mutable_data<uint16_t>()[i] = float_to_bf16(scores.data<float>()[i]);
  }
  return halves;
}

}  // namespace

FuzzCase make_fuzz_case(int32_t op, uint64_t seed, int64_t index, const FuzzLimits& limits) {
  Random random(mix64(seed) ^ mix64(static_cast<uint64_t>(index) + 0x1234567));
  FuzzCase out;
  ProblemSpec& spec = out.spec;
  spec.op = op;
  spec.seed = random.next();
  spec.shape = any_shape(op, limits, random);
  spec.key_type = static_cast<KeyType>(random.below(3));
  spec.paged = random.chance(30);
  spec.ranges = static_cast<Ranges>(random.below(5));
  spec.next_n = random.chance(30) ? random.between(1, 4) : spec.shape.rows;  // few requests: few pages to make
  if (spec.paged) {
    spec.decode = random.chance(50);
    spec.bad_pages = random.chance(10);
    const int64_t requests = (spec.shape.rows + spec.next_n - 1) / spec.next_n;
    if (requests * spec.shape.keys > 200000) {
      spec.next_n = spec.shape.rows;
    }
  }
  spec.row_request = random.chance(30);
  spec.values = Values::kNormal;
  const int64_t kind = random.below(20);
  if (kind < 10) {  // at most 256 different scores
    constexpr int64_t kDistinct[] = {1, 2, 3, 16, 100, 256};
    out.distinct_scores = random.pick(kDistinct, 6);
    spec.values = random.chance(50) ? Values::kFewKeys : Values::kZeros;
  } else if (kind < 12) {
    make_big_tie(limits, random, out);
  } else if (kind < 14) {
    out.special_scores = true;
    spec.values = Values::kWithNan;
  }
  choose_outputs(random, out);
  if (op != KEYSIEVE_SCORE_SELECT) {
    spec.score_dtype = random.chance(30) ? KEYSIEVE_BF16 : KEYSIEVE_F32;
    if (random.chance(30)) {
      spec.score_layout = KEYSIEVE_SCORES_COMPACT;
      spec.score_width = out.big_tie ? spec.shape.keys : any_size(spec.shape.keys + 50, random);
    }
  }
  if (op == KEYSIEVE_SELECT && random.chance(3)) {
    spec.shape.topk = random.between(KEYSIEVE_MAX_TOPK + 1, KEYSIEVE_MAX_TOPK_SELECT);
  }
  if (op != KEYSIEVE_SCORE && random.chance(20)) {
    spec.candidates = static_cast<int32_t>(random.between(1, 2));
    spec.cand_block = random.chance(50) ? 8 : 16;
    spec.cand_count = any_size(random.chance(10) ? KEYSIEVE_MAX_CAND_COUNT : 300, random);
  }
  out.strided = random.chance(30);
  return out;
}

Inputs make_fuzz_inputs(const FuzzCase& fuzz_case) {
  ProblemSpec spec = fuzz_case.spec;
  Random random(spec.seed + 1);
  if (spec.op == KEYSIEVE_SELECT) {
    spec.shape.heads = 1;  // q and k are not used
    spec.shape.head_dim = 32;
    spec.values = Values::kExact;
  }
  Inputs inputs = make_inputs(spec);
  if (spec.op == KEYSIEVE_SELECT) {
    inputs.scores = fuzz_scores(fuzz_case, random);
    inputs.q = {};
    inputs.k = {};
    inputs.k_scale = {};
    inputs.weights = {};
  }
  if (fuzz_case.strided) {
    make_strided(random, inputs);
  }
  return inputs;
}

}  // namespace keysieve::test
