// SPDX-License-Identifier: Apache-2.0
// Kernel configurations of `select`, and which problem takes which: pure functions, tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "core/problem.hpp"
#include "core/status.hpp"
#include "cuda/device_info.hpp"

namespace keysieve::cuda {

/// One compiled kernel.  A CTA reads its part of a row in chunks of kChunk scores and keeps the candidates of the row
/// in shared memory; when a chunk's might not fit, the list is cut to the best K, so it must hold K and one chunk.
template <int kThreads_, int kMaxTopk_, int kCtasPerSm_>
struct SelectKernelConfig {
  static constexpr int kThreads = kThreads_;
  static constexpr int kMaxTopk = kMaxTopk_;
  static constexpr int kCtasPerSm = kCtasPerSm_;
  static constexpr int kScoresPerThread = 16;
  static constexpr int kChunk = kThreads * kScoresPerThread;
  static constexpr int kCapacity = kMaxTopk + kChunk;
  /// The launch writes the scores itself: they may not come from the read-only cache.
  static constexpr bool kFreshScores = false;
};

// Many rows: four small CTAs an SM, so that one row's selection runs under the others' loads.
using SelectManyRows = SelectKernelConfig<256, 2048, 4>;
// Few rows: a cluster of CTAs a row, more loads in flight in each.
using SelectFewRows = SelectKernelConfig<512, 2048, 2>;
// K over 2048: one CTA an SM, because the list takes its shared memory.
using SelectLargeK = SelectKernelConfig<512, 16384, 1>;

enum class SelectKernel : int { kManyRows = 0, kFewRows = 1, kLargeK = 2 };
inline constexpr const char* kSelectKernelNames[] = {"many_rows", "few_rows", "large_k"};
inline constexpr int kMaxSelectCluster = 16;

struct SelectConfig {
  SelectKernel kernel = SelectKernel::kManyRows;
  int cluster = 1;  // CTAs a row: a power of two up to 16
};

/// A cluster pays from this many scores a CTA on; below, the exchange of lists costs more than the reading it saves.
inline constexpr int64_t kMinScoresPerCta = 8192;

/// True if `num_rows` clusters of `cluster` CTAs run at once, and well, on `slots` places for CTAs.  Clusters stay
/// inside a group of multiprocessors, which leaves places over: of 264 places on an H200, 132 clusters of 2, 62 of 4,
/// 30 of 8 and 14 of 16 can be filled.  Those of 16 then share multiprocessors, so they are for a handful of rows.
inline bool fits_at_once(int64_t num_rows, int64_t cluster, int64_t slots) {
  const int64_t usable = cluster <= 2 ? slots : cluster <= 8 ? slots * 7 / 8 : slots / 4;
  return num_rows * cluster <= usable;
}

inline SelectConfig choose_select_config(const Problem& problem, const Options& options, const DeviceInfo& device) {
  SelectConfig config;
  const bool large_k = problem.topk > SelectFewRows::kMaxTopk;
  const int64_t ctas_per_sm = large_k ? SelectLargeK::kCtasPerSm : SelectFewRows::kCtasPerSm;
  const int64_t slots = ctas_per_sm * usable_sms(device, options.sm_limit);
  while (config.cluster < kMaxSelectCluster && fits_at_once(problem.num_rows, config.cluster * 2, slots) &&
         problem.score_width >= kMinScoresPerCta * config.cluster * 2) {
    config.cluster *= 2;
  }
  if (large_k) {
    config.kernel = SelectKernel::kLargeK;
  } else if (config.cluster > 1 || options.sm_limit > 0 ||  // a limited grid has one CTA a multiprocessor
             (problem.num_rows <= slots && problem.score_width > kMinScoresPerCta * 2)) {
    config.kernel = SelectKernel::kFewRows;
  }
  return config;
}

inline void print_select_config(const SelectConfig& config, char* text, size_t capacity) {
  std::snprintf(text, capacity, "select/%s cluster=%d", kSelectKernelNames[static_cast<int>(config.kernel)],
                config.cluster);
}

/// Reads what print_select_config writes.
inline Status parse_select_config(const char* text, int64_t topk, SelectConfig& config) {
  char name[32] = "";
  int cluster = 0;
  int end = 0;
  const bool complete =
      std::sscanf(text, "select/%31[a-z_] cluster=%d%n", name, &cluster, &end) == 2 && text[end] == '\0';
  int kernel = -1;
  for (int i = 0; i < 3; ++i) {
    kernel = std::strcmp(name, kSelectKernelNames[i]) == 0 ? i : kernel;
  }
  if (!complete || kernel < 0 || cluster < 1 || cluster > kMaxSelectCluster || (cluster & (cluster - 1)) != 0) {
    return Status::error(
        KEYSIEVE_INVALID_ARGUMENT,
        "options.config is \"%s\": expected \"select/KERNEL cluster=S\" with KERNEL many_rows, few_rows "
        "or large_k and S 1, 2, 4, 8 or 16",
        text);
  }
  config.kernel = static_cast<SelectKernel>(kernel);
  config.cluster = cluster;
  if (config.kernel != SelectKernel::kLargeK && topk > SelectFewRows::kMaxTopk) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT,
                         "options.config is \"%s\": topk is %lld, this kernel takes at most %d", text,
                         static_cast<long long>(topk), SelectFewRows::kMaxTopk);
  }
  return {};
}

/// The configuration of a call: the one asked for, or the chosen one.
inline Status resolve_select_config(const Problem& problem, const Options& options, const DeviceInfo& device,
                                    SelectConfig& config) {
  config = choose_select_config(problem, options, device);
  return options.config == nullptr ? Status() : parse_select_config(options.config, problem.topk, config);
}

}  // namespace keysieve::cuda
