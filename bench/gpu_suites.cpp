// SPDX-License-Identifier: Apache-2.0
// Suites on a GPU without Python or peers: prefill (fused against score + select), score, select.  bench/peers does the
// same beside the public kernels.
#include <fmt/format.h>

#include "gpu_case.hpp"
#include "session.hpp"
#include "suites.hpp"
#include "synthetic.hpp"

namespace keysieve::bench {
namespace {

struct Shape {
  int64_t num_rows;
  int64_t num_keys;
  int64_t num_heads = 64;
  int64_t topk = 2048;
  bool flushed = false;  // L2 overwritten before each call
};

constexpr int64_t kKi = 1024;
constexpr Shape kManyRows[] = {
    {4096, 8 * kKi},   {4096, 16 * kKi},          {4096, 32 * kKi},           {4096, 64 * kKi},
    {4096, 128 * kKi}, {4096, 160 * kKi},         {8192, 16 * kKi},           {8192, 64 * kKi},
    {8192, 128 * kKi}, {4096, 64 * kKi, 32, 512}, {4096, 128 * kKi, 32, 512},
};
constexpr Shape kFewRows[] = {
    {1, 8 * kKi},
    {8, 8 * kKi},
    {64, 8 * kKi},
    {512, 8 * kKi},
    {1, 128 * kKi},
    {8, 128 * kKi},
    {64, 128 * kKi},
    {512, 128 * kKi},
    {1, 128 * kKi, 64, 2048, true},
    {8, 128 * kKi, 64, 2048, true},
};

Case case_of(const Shape& shape) {
  Case inputs;
  inputs.T = shape.num_rows;
  inputs.N = shape.num_keys;
  inputs.H = shape.num_heads;
  inputs.D = 128;
  inputs.K = shape.topk;
  inputs.l2 = shape.flushed ? "flushed" : "hot";
  return inputs;
}

const char* name_of(keysieve_op op) {
  return op == KEYSIEVE_SCORE ? "score" : op == KEYSIEVE_SELECT ? "select" : "score_select";
}

Contender contender(GpuCase& gpu, const Shape& shape, keysieve_op op, double pairs) {
  Contender one;
  one.op = name_of(op);
  one.variant = gpu.explain(op);
  one.mode = "graph";
  one.inputs = case_of(shape);
  if (op == KEYSIEVE_SELECT) {
    one.bytes = 4 * pairs;
  } else {
    one.flop = 2.0 * static_cast<double>(shape.num_heads * 128) * pairs;
  }
  if (op == KEYSIEVE_SCORE) {
    one.inputs.out = "f32";
    one.inputs.layout = "full";
  }
  one.sample_ms = [&gpu, op, flushed = shape.flushed] { return gpu.sample_ms({op}, flushed); };
  return one;
}

/// What `op` is checked by.
void add_check(GpuCase& gpu, keysieve_op op, Contender* one) {
  if (op == KEYSIEVE_SCORE) {
    one->check = [&gpu] { return gpu.scores_are_close(); };
  } else if (op == KEYSIEVE_SELECT) {
    one->check = [&gpu] { return gpu.select_is_exact(); };
  } else {
    one->check = [&gpu] { return gpu.select_is_exact() && gpu.fused_is_select(); };
    one->ratio_of = "own_pair";
    one->annotate = [&gpu](Json& entry) { entry["flagged_rows"] = gpu.repaired_rows(); };
  }
}

void run_shape(const Shape& shape, keysieve_op op, SuiteContext* context) {
  if (!context->wanted(case_of(shape))) {
    return;
  }
  cli::SyntheticSpec spec;
  spec.num_rows = shape.num_rows;
  spec.num_keys = shape.num_keys;
  spec.num_heads = shape.num_heads;
  const cli::Synthetic synthetic(spec);
  const Replay replay = synthetic.replay();
  GpuCase gpu(replay, shape.topk, context->device_index);
  for (const keysieve_op needed : {op, KEYSIEVE_SCORE, KEYSIEVE_SELECT}) {
    const std::string reason = gpu.unsupported(needed);
    if (!reason.empty() && (needed != KEYSIEVE_SELECT || op != KEYSIEVE_SCORE)) {
      context->skipped.push_back(fmt::format("{}: {}: {}", case_of(shape).text(), name_of(needed), reason));
      return;
    }
  }
  const auto pairs = static_cast<double>(cli::valid_pairs(replay));
  std::vector<Contender> contenders = {contender(gpu, shape, op, pairs)};
  add_check(gpu, op, &contenders.front());
  if (op == KEYSIEVE_SCORE_SELECT) {
    Contender own_pair = contender(gpu, shape, op, pairs);
    own_pair.who = "own_pair";
    own_pair.variant = gpu.explain(KEYSIEVE_SCORE) + " + " + gpu.explain(KEYSIEVE_SELECT);
    own_pair.check = [&gpu] { return gpu.scores_are_close() && gpu.select_is_exact(); };
    own_pair.sample_ms = [&gpu, flushed = shape.flushed] {
      return gpu.sample_ms({KEYSIEVE_SCORE, KEYSIEVE_SELECT}, flushed);
    };
    contenders.push_back(own_pair);
  }
  if (op == KEYSIEVE_SELECT) {
    gpu.enqueue(KEYSIEVE_SCORE);  // what it selects from
  }
  measure(contenders, context);
}

void run_shapes(keysieve_op op, SuiteContext* context) {
  for (const Shape& shape : kManyRows) {
    run_shape(shape, op, context);
  }
  for (const Shape& shape : kFewRows) {
    run_shape(shape, op, context);
  }
}

}  // namespace

void run_prefill_suite(SuiteContext* context) {
  run_shapes(KEYSIEVE_SCORE_SELECT, context);
}
void run_score_suite(SuiteContext* context) {
  run_shapes(KEYSIEVE_SCORE, context);
}
void run_select_suite(SuiteContext* context) {
  run_shapes(KEYSIEVE_SELECT, context);
}

}  // namespace keysieve::bench
