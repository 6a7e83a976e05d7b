// SPDX-License-Identifier: Apache-2.0
// Host entry of the select kernels.
#pragma once

#include "core/problem.hpp"
#include "core/status.hpp"

namespace keysieve::cuda {

/// Enqueues `select` on call.stream of the current device.  Needs no workspace.
Status launch_select(const Call& call, int num_sms) noexcept;

}  // namespace keysieve::cuda
