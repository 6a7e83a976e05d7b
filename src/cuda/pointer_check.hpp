// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/problem.hpp"
#include "core/status.hpp"

namespace keysieve::cuda {

/// Ok if every tensor of the call and the workspace lie in memory of `device`; otherwise names the first that does not.
/// A query of the driver's address map: no synchronisation, legal while a stream is captured.
Status check_pointers(const Call& call, int device) noexcept;

}  // namespace keysieve::cuda
