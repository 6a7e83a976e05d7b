// SPDX-License-Identifier: Apache-2.0
// The kernel families as the backend sees them: plain host functions, one struct of them each.
//
// launch() is called with the problem's device current and its stream in call.stream.  It enqueues work and returns; it
// allocates nothing, synchronises nothing and reports the error of its own launches.  supports() says kUnsupported with
// the list of what the family takes; it and the others are pure functions.
#pragma once

#include "core/problem.hpp"
#include "core/status.hpp"
#include "cuda/device_info.hpp"

namespace keysieve::cuda {

struct KernelFamily {
  Status (*supports)(const Problem& problem, const Options& options) noexcept;
  WorkspaceSize (*workspace)(const Problem& problem, const Options& options, const DeviceInfo& device) noexcept;
  void (*explain)(const Problem& problem, const Options& options, const DeviceInfo& device, char* text,
                  size_t capacity) noexcept;
  Status (*launch)(const Call& call, const DeviceInfo& device) noexcept;
};

/// Families in order of preference for each operation; the first that supports a problem runs it.
struct KernelFamilies {
  const KernelFamily* const* begin_ = nullptr;
  int32_t size_ = 0;

  [[nodiscard]] const KernelFamily* const* begin() const { return begin_; }
  [[nodiscard]] const KernelFamily* const* end() const { return begin_ + size_; }
};
KernelFamilies families_for(Op op) noexcept;

extern const KernelFamily kScoreSm90;
extern const KernelFamily kSelect;
extern const KernelFamily kFusedSm90;
extern const KernelFamily kSplitSm90;
extern const KernelFamily kScoreThenSelect;

}  // namespace keysieve::cuda
