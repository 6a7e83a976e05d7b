// SPDX-License-Identifier: Apache-2.0
#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "random.hpp"

namespace keysieve::bench {

double quantile(std::vector<double> samples, double q) {
  if (samples.empty()) {
    return 0;
  }
  std::sort(samples.begin(), samples.end());
  const double position = q * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, samples.size() - 1);
  const double part = position - static_cast<double>(below);
  return samples[below] * (1 - part) + samples[above] * part;
}

Summary summarise(const std::vector<double>& samples) {
  Summary summary;
  if (samples.empty()) {
    return summary;
  }
  summary.median = quantile(samples, 0.5);
  summary.min = *std::min_element(samples.begin(), samples.end());
  summary.max = *std::max_element(samples.begin(), samples.end());
  summary.p95 = quantile(samples, 0.95);
  const double count = static_cast<double>(samples.size());
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / count;
  double squares = 0;
  for (const double sample : samples) {
    squares += (sample - mean) * (sample - mean);
  }
  summary.cv = samples.size() > 1 && mean > 0 ? std::sqrt(squares / (count - 1)) / mean : 0;
  return summary;
}

Ratio paired_ratio(const std::vector<double>& baseline, const std::vector<double>& candidate) {
  constexpr int kResamples = 2000;
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(baseline.size(), candidate.size()); ++i) {
    ratios.push_back(baseline[i] / candidate[i]);
  }
  if (ratios.empty()) {
    return {};
  }
  cli::Random random(1);
  std::vector<double> medians;
  std::vector<double> resample(ratios.size());
  for (int i = 0; i < kResamples; ++i) {
    for (double& ratio : resample) {
      ratio = ratios[static_cast<size_t>(random.below(static_cast<int64_t>(ratios.size())))];
    }
    medians.push_back(quantile(resample, 0.5));
  }
  return {quantile(ratios, 0.5), quantile(medians, 0.025), quantile(medians, 0.975)};
}

}  // namespace keysieve::bench
