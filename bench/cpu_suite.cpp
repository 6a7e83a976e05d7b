// SPDX-License-Identifier: Apache-2.0
// score_select on the CPU: T=64, H=64, D=128, K=2048, N=8,192 and 131,072, random data and the shapes of data that
// selectors fear, against our own unfused pair and, where OpenBLAS was found, the public one.
#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <memory>
#include <thread>

#include "checker.hpp"
#include "core/bf16.hpp"
#include "core/fp8.hpp"
#include "cpu/dot_rate.hpp"
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
    {8192, DataKind::kAllEqual, KEYSIEVE_E4M3},
    {8192, DataKind::kZeroPlateau, KEYSIEVE_E4M3},
    {8192, DataKind::kAllZero, KEYSIEVE_E4M3},
    {8192, DataKind::kSortedAscending, KEYSIEVE_E4M3},
    {8192, DataKind::kSortedDescending, KEYSIEVE_E4M3},
    {131072, DataKind::kAllEqual, KEYSIEVE_E4M3},
    {131072, DataKind::kAllZero, KEYSIEVE_E4M3},
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
           cli::test_agreement(replay, selection,
                               accuracy_constant(session.backend().name, replay.num_heads, replay.head_dim),
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
Contender own_pair_contender(Session& session, cli::ScoreThenSelect& pair, const Case& inputs, double flop) {
  Contender contender;
  contender.who = "own_pair";
  contender.variant = "score, then select";
  contender.inputs = inputs;
  contender.flop = flop;
  contender.sample_ms = [&session, &pair] { return session.device().time_ms([&pair] { pair.enqueue(); }); };
  contender.check = [&session, &pair] {  // the reference judges score_select, which must hold the same keys
    pair.enqueue();
    const Selection fused = session.select();
    const Selection own = pair.download().selection;
    return own.indices == fused.indices && own.counts == fused.counts;
  };
  return contender;
}

#if defined(KEYSIEVE_WITH_OPENBLAS)
constexpr bool kPublicPair = true;

/// Dense f32 values of a replay tensor's channels.
std::vector<float> decoded(const keysieve_tensor& tensor, const Replay& replay) {
  std::vector<float> values;
  const auto* bytes = static_cast<const uint8_t*>(tensor.data);
  const int64_t rows = tensor.shape[0] * (tensor.rank == 3 ? tensor.shape[1] : 1);
  for (int64_t i = 0; i < rows * replay.head_dim; ++i) {
    if (tensor.dtype == KEYSIEVE_BF16) {
      values.push_back(bf16_to_float(static_cast<const uint16_t*>(tensor.data)[i]));
    } else if (tensor.dtype == KEYSIEVE_E4M3) {
      values.push_back(e4m3_to_float(bytes[i]));
    } else {  // MXFP4: with its group's scale
      const auto nibble = static_cast<uint8_t>(i % 2 == 0 ? bytes[i / 2] & 15U : bytes[i / 2] >> 4U);
      values.push_back(e2m1_to_float(nibble) * e8m0_to_float(static_cast<const uint8_t*>(replay.k_scale.data)[i / 32]));
    }
  }
  return values;
}

/// The public pair on decoded copies of a replay's tensors; its row ranges must be full.
class OpenblasContender {
 public:
  OpenblasContender(const Replay& replay, int64_t topk, int32_t threads)
      : replay_(replay),
        q_(decoded(replay.q, replay)),
        k_(decoded(replay.k, replay)),
        k_scale_(static_cast<size_t>(replay.num_keys), 1.0F) {
    if (replay.k_dtype == KEYSIEVE_E4M3) {
      const auto* scales = static_cast<const float*>(replay.k_scale.data);
      k_scale_.assign(scales, scales + replay.num_keys);
    }
    selection_.num_rows = replay.num_rows;
    selection_.topk = topk;
    selection_.row_indices.resize(static_cast<size_t>(replay.num_rows * topk));
    OpenblasPairInputs inputs;
    inputs.num_rows = replay.num_rows;
    inputs.num_heads = replay.num_heads;
    inputs.head_dim = replay.head_dim;
    inputs.num_keys = replay.num_keys;
    inputs.topk = topk;
    inputs.q = q_.data();
    inputs.k = k_.data();
    inputs.k_scale = k_scale_.data();
    inputs.weights = static_cast<const float*>(replay.weights.data);
    inputs.threads = threads > 0 ? threads : cli::usable_cpus();
    pair_ = std::make_unique<OpenblasPair>(inputs);
  }

  Contender contender(const Case& inputs, double flop) {
    Contender contender;
    contender.who = "openblas_pair";
    contender.variant = std::string("sgemm ") + openblas_core_name() + ", reduce, nth_element";
    contender.inputs = inputs;
    contender.inputs.dtype = "f32 of " + inputs.dtype;
    contender.flop = flop;
    contender.sample_ms = [this] {
      const auto start = std::chrono::steady_clock::now();
      times_ = pair_->run(selection_.row_indices.data());
      const auto stop = std::chrono::steady_clock::now();
      // OpenBLAS's idle threads spin for 2^26 cycles: they would take a core from whoever is timed next.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return std::chrono::duration<double, std::milli>(stop - start).count();
    };
    contender.check = [this] {
      pair_->run(selection_.row_indices.data());
      return cli::test_agreement(replay_, selection_, accuracy_constant("cpu", replay_.num_heads, replay_.head_dim),
                                 cli::spread_rows(replay_.num_rows, 2))
          .ok();
    };
    contender.annotate = [this](Json& entry) {
      entry["last_round_ms"] = {{"gemm", times_.gemm_ms}, {"reduce", times_.reduce_ms}, {"select", times_.select_ms}};
    };
    return contender;
  }

 private:
  const Replay& replay_;
  std::vector<float> q_;
  std::vector<float> k_;
  std::vector<float> k_scale_;
  Selection selection_;
  std::unique_ptr<OpenblasPair> pair_;
  OpenblasPairTimes times_;
};
#else
constexpr bool kPublicPair = false;
#endif

void run_case(const CpuCase& cpu_case, SuiteContext* context) {
  cli::SyntheticSpec spec;
  spec.data = cpu_case.data;
  spec.rows = cli::RowKind::kFull;  // the public pair knows no ranges
  spec.k_dtype = cpu_case.k_dtype;
  spec.num_keys = cpu_case.num_keys;
  Case inputs;
  inputs.T = spec.num_rows;
  inputs.N = spec.num_keys;
  inputs.H = spec.num_heads;
  inputs.D = spec.head_dim;
  inputs.K = KEYSIEVE_MAX_TOPK;
  inputs.rows = cli::row_kind_name(spec.rows);
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

  cli::ScoreThenSelect own_pair(session, 0, replay.num_rows);
  std::vector<Contender> contenders;
  contenders.push_back(fused_contender(session, inputs, flop, kPublicPair ? "openblas_pair" : "own_pair"));
  contenders.push_back(own_pair_contender(session, own_pair, inputs, flop));
#if defined(KEYSIEVE_WITH_OPENBLAS)
  OpenblasContender public_pair(replay, inputs.K, context->threads);
  contenders.push_back(public_pair.contender(inputs, flop));
#endif
  measure(contenders, context);
}

}  // namespace

void run_cpu_suite(SuiteContext* context) {
#if !defined(KEYSIEVE_WITH_OPENBLAS)
  context->skipped.emplace_back("openblas_pair: OpenBLAS was not found when this was built");
#endif
  context->ceilings.cpu_dot_gflops = cpu_dot_gflops(context->threads > 0 ? context->threads : cli::usable_cpus());
  for (const CpuCase& cpu_case : kCases) {
    run_case(cpu_case, context);
  }
}

}  // namespace keysieve::bench
