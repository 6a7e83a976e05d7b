// SPDX-License-Identifier: Apache-2.0
// The one interface of everything that can score and select.
#pragma once

#include "core/problem.hpp"
#include "core/status.hpp"

namespace keysieve {

/// A backend allocates no device memory, does not synchronise, keeps no mutable state and never throws.
/// Every function may be called from any thread.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  [[nodiscard]] virtual const char* name() const noexcept = 0;
  [[nodiscard]] virtual DeviceType device_type() const noexcept = 0;

  /// Ok if this machine can run the backend, else why not.
  [[nodiscard]] virtual Status available() const noexcept = 0;

  /// Instruction set or devices, for people; written to `text`.
  virtual void describe(char* text, size_t capacity) const noexcept = 0;

  /// Ok if `run` takes the problem; otherwise kUnsupported with the list of what it takes.
  [[nodiscard]] virtual Status supports(const Problem& problem, const Options& options) const noexcept = 0;

  /// A function of capacities and options alone.
  [[nodiscard]] virtual WorkspaceSize workspace_size(const Problem& problem, const Options& options) const noexcept = 0;

  /// Names the kernel configuration that `run` would use; written to `text`.
  virtual void explain(const Problem& problem, const Options& options, char* text, size_t capacity) const noexcept = 0;

  /// Runs one checked call; call.problem.op says which operation.
  [[nodiscard]] virtual Status run(const Call& call) const noexcept = 0;
};

/// All compiled-in backends in order of preference.
struct BackendList {
  const Backend* const* begin_ = nullptr;
  int32_t size_ = 0;

  [[nodiscard]] const Backend* const* begin() const { return begin_; }
  [[nodiscard]] const Backend* const* end() const { return begin_ + size_; }
  [[nodiscard]] int32_t size() const { return size_; }
};
BackendList backends() noexcept;

const Backend& reference_backend() noexcept;
const Backend& cpu_backend() noexcept;
const Backend& cuda_backend() noexcept;

}  // namespace keysieve
