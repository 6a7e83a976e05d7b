// SPDX-License-Identifier: Apache-2.0
// The host that the command runs on.
#pragma once

#include <cstdint>
#include <string>

namespace keysieve::cli {

/// Model name of the first processor; the architecture if it is not known.
std::string cpu_model();

/// Processors that this process may use.
int32_t usable_cpus();

/// Highest resident size of this process since reset_peak_rss, in bytes; 0 where the kernel does not say.
int64_t peak_rss_bytes();
int64_t current_rss_bytes();
/// False where the kernel does not allow it; then peak_rss_bytes counts from the start of the process.
bool reset_peak_rss();

/// Date and time in UTC as in 2026-11-29T17:00:00Z.
std::string utc_now();

}  // namespace keysieve::cli
