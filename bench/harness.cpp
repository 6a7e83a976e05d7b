// SPDX-License-Identifier: Apache-2.0
#include "harness.hpp"

#include <fmt/format.h>

#include "failure.hpp"

namespace keysieve::bench {
namespace {

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json case_json(const Case& c) {
  return {
      {"T", c.T},         {"N", c.N},       {"H", c.H},           {"D", c.D},          {"K", c.K},
      {"dtype", c.dtype}, {"rows", c.rows}, {"data", c.data},     {"B", or_null(c.B)}, {"next_n", or_null(c.next_n)},
      {"paged", c.paged}, {"out", c.out},   {"layout", c.layout}, {"l2", c.l2},        {"order", c.order}};
}

/// Three decimals more than the clock resolves would only be noise in a diff.
double rounded(double value) {
  return value == 0 ? 0 : std::stod(fmt::format("{:.5g}", value));
}

Json entry_json(const Contender& contender, const std::vector<double>& samples, bool checked) {
  const Summary summary = summarise(samples);
  return {{"op", contender.op},
          {"who", contender.who},
          {"variant", contender.variant},
          {"mode", contender.mode},
          {"case", case_json(contender.inputs)},
          {"median_ms", rounded(summary.median)},
          {"min_ms", rounded(summary.min)},
          {"p95_ms", rounded(summary.p95)},
          {"cv", rounded(summary.cv)},
          {"rounds", samples.size()},
          {"tflops", contender.flop > 0 ? Json(rounded(contender.flop / summary.median * 1e-9)) : Json(nullptr)},
          {"tb_s", contender.bytes > 0 ? Json(rounded(contender.bytes / summary.median * 1e-9)) : Json(nullptr)},
          {"checked", checked},
          {"flagged_rows", 0},
          {"ratio_of", nullptr},
          {"ratio", nullptr},
          {"ratio_ci95", nullptr}};
}

void add_ratio(const std::vector<Contender>& contenders, const std::vector<std::vector<double>>& samples, size_t index,
               Json* entry) {
  for (size_t other = 0; other < contenders.size(); ++other) {
    if (other != index && contenders[other].who == contenders[index].ratio_of) {
      const Ratio ratio = paired_ratio(samples[other], samples[index]);
      (*entry)["ratio_of"] = contenders[other].who;
      (*entry)["ratio"] = rounded(ratio.median);
      (*entry)["ratio_ci95"] = {rounded(ratio.low), rounded(ratio.high)};
      return;
    }
  }
}

}  // namespace

std::string Case::text() const {
  return fmt::format("T={} N={} H={} D={} K={} {} {} {}{}", T, N, H, D, K, dtype, rows, data, paged ? " paged" : "");
}

void measure(const std::vector<Contender>& contenders, SuiteContext* context) {
  for (const Contender& contender : contenders) {
    if (contender.check && !contender.check()) {
      throw cli::Failure(cli::kExitMismatch, "bench",
                         contender.who + " " + contender.variant + ": wrong result for " + contender.inputs.text());
    }
  }
  const size_t count = contenders.size();
  const MeasureOptions& options = context->measure;
  std::vector<std::vector<double>> samples(count);
  cli::Progress progress(contenders.empty() ? "" : contenders.front().inputs.text(),
                         static_cast<int64_t>(count) * (options.rounds + options.warmup));
  for (int round = -options.warmup; round < options.rounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      const size_t index = (i + static_cast<size_t>(round + options.warmup)) % count;
      const double milliseconds = contenders[index].sample_ms();
      if (round >= 0) {
        samples[index].push_back(milliseconds);
      }
      progress.advance(1);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    Json entry = entry_json(contenders[i], samples[i], static_cast<bool>(contenders[i].check));
    add_ratio(contenders, samples, i, &entry);
    if (contenders[i].annotate) {
      contenders[i].annotate(entry);
    }
    context->entries.push_back(std::move(entry));
  }
}

}  // namespace keysieve::bench
