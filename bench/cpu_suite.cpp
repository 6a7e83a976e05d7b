// SPDX-License-Identifier: Apache-2.0
// score_select on the CPU: T=64, H=64, D=128, K=2048, N=8,192 and 131,072, random data and the shapes of data that
// selectors fear, against our own unfused pair and, where OpenBLAS was found, the public one.
#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <memory>

#include "checker.hpp"
#include "failure.hpp"
#include "machine.hpp"
#include "session.hpp"
#include "suites.hpp"
#include "synthetic.hpp"

#if defined(KEYSIEVE_WITH_OPENBLAS)
#include "cpu/openblas_pair.hpp"
#endif

namespace keysieve::bench {
namespace {

using cli::DataKind;
using cli::Selection;
using cli::Session;

struct CpuCase {
  int64_t num_keys;
  DataKind data;
  int32_t k_dtype;
};

constexpr CpuCase kCases[] = {
    {8192, DataKind::kNormal, KEYSIEVE_E4M3},
    {131072, DataKind::kNormal, KEYSIEVE_E4M3},
    {8192, DataKind::kNormal, KEYSIEVE_BF16},
    {8192, DataKind::kNormal, KEYSIEVE_MXFP4},
    {8192, DataKind::kTies, KEYSIEVE_E4M3},
    {8192, DataKind::kZeroPlateau, KEYSIEVE_E4M3},
    {8192, DataKind::kSortedAscending, KEYSIEVE_E4M3},
    {8192, DataKind::kSortedDescending, KEYSIEVE_E4M3},
    {131072, DataKind::kZeroPlateau, KEYSIEVE_E4M3},
    {131072, DataKind::kSortedAscending, KEYSIEVE_E4M3},
};

/// Peak memory of one call beyond what it was given, with its workspace.
int64_t peak_extra_bytes(Session& session) {
  cli::reset_peak_rss();
  const int64_t before = cli::current_rss_bytes();
  session.enqueue_select();
  return std::max<int64_t>(cli::peak_rss_bytes() - before, 0) + static_cast<int64_t>(session.workspace_bytes());
}

Contender fused_contender(Session& session, const Case& inputs, double flop, const char* ratio_of) {
  Contender contender;
  contender.variant = session.explain();
  contender.inputs = inputs;
  contender.flop = flop;
  contender.ratio_of = ratio_of;
  contender.sample_ms = [&session] { return session.device().time_ms([&session] { session.enqueue_select(); }); };
  contender.check = [&session] {
    const Selection selection = session.select();
    const Replay& replay = session.replay();
    return cli::test_exact(session, selection, session.options().order, nullptr).ok() &&
           cli::test_agreement(replay, selection, accuracy_constant(session.backend().name),
                               cli::spread_rows(replay.num_rows, 2))
               .ok();
  };
  contender.annotate = [&session](Json& entry) {
    entry["workspace_bytes"] = session.workspace_bytes();
    entry["peak_extra_bytes"] = peak_extra_bytes(session);
  };
  return contender;
}

/// Our own score, then our own select, with the [T,N] scores between them.
Contender own_pair_contender(Session& session, const Case& inputs, double flop) {
  Contender contender;
  contender.who = "own_pair";
  contender.variant = "score, then select";
  contender.inputs = inputs;
  contender.flop = flop;
  contender.sample_ms = [&session] {
    return session.device().time_ms([&session] { session.score_then_select(0, session.replay().num_rows); });
  };
  return contender;
}

void run_case(const CpuCase& cpu_case, SuiteContext* context) {
  cli::SyntheticSpec spec;
  spec.data = cpu_case.data;
  spec.rows = cli::RowKind::kCausal;
  spec.k_dtype = cpu_case.k_dtype;
  spec.num_keys = cpu_case.num_keys;
  Case inputs;
  inputs.T = spec.num_rows;
  inputs.N = spec.num_keys;
  inputs.H = spec.num_heads;
  inputs.D = spec.head_dim;
  inputs.K = KEYSIEVE_MAX_TOPK;
  inputs.dtype = cli::dtype_option_name(spec.k_dtype);
  inputs.data = cli::data_kind_name(spec.data);
  if (!context->wanted(inputs)) {
    return;
  }
  const cli::Synthetic synthetic(spec);
  const Replay replay = synthetic.replay();
  cli::RunOptions options;
  options.backend = "cpu";
  options.threads = context->threads;
  options.topk = inputs.K;
  Session session(replay, options);
  const double flop = 2.0 * static_cast<double>(inputs.H * inputs.D) * static_cast<double>(cli::valid_pairs(replay));

  std::vector<Contender> contenders;
#if defined(KEYSIEVE_WITH_OPENBLAS)
  const bool public_pair = true;
#else
  const bool public_pair = false;
#endif
  contenders.push_back(fused_contender(session, inputs, flop, public_pair ? "openblas_pair" : "own_pair"));
  contenders.push_back(own_pair_contender(session, inputs, flop));
  measure(contenders, context);
}

}  // namespace

void run_cpu_suite(SuiteContext* context) {
#if !defined(KEYSIEVE_WITH_OPENBLAS)
  context->skipped.emplace_back("openblas_pair: OpenBLAS was not found when this was built");
#endif
  for (const CpuCase& cpu_case : kCases) {
    run_case(cpu_case, context);
  }
}

}  // namespace keysieve::bench
