// SPDX-License-Identifier: Apache-2.0
// Robust statistics of timings.
#pragma once

#include <vector>

namespace keysieve::bench {

struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
  double p95 = 0;
  double cv = 0;  // standard deviation / mean
};

/// Quantile q in [0,1] of the samples, linear between neighbours; 0 without samples.
double quantile(std::vector<double> samples, double q);

Summary summarise(const std::vector<double>& samples);

/// Median of baseline[i] / candidate[i] over rounds and its 95 % interval by bootstrap over rounds (fixed seed).
struct Ratio {
  double median = 0;
  double low = 0;
  double high = 0;
};
Ratio paired_ratio(const std::vector<double>& baseline, const std::vector<double>& candidate);

}  // namespace keysieve::bench
