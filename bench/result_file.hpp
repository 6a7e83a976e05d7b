// SPDX-License-Identifier: Apache-2.0
// A suite's result as JSON of the schema keysieve-bench/1.
#pragma once

#include <string>

#include "harness.hpp"
#include "suites.hpp"

namespace keysieve::bench {

/// The whole document.  `command` is the command line that made it.
Json result_json(const Suite& suite, const SuiteContext& context, const std::string& command);

/// "h200" or "cpu-<model>": the folder under results/.
std::string machine_folder(const Json& result);

/// Writes to `path`; throws if that fails.  Folders are made.
void write_result(const std::string& path, const Json& result);

}  // namespace keysieve::bench
