// SPDX-License-Identifier: Apache-2.0
// The verbs of the command.
#pragma once

#include <string>

#include "session.hpp"
#include "verb.hpp"

namespace keysieve::cli {

void add_info(CommandLine* command_line);
void add_gen(CommandLine* command_line);
void add_run(CommandLine* command_line);
void add_check(CommandLine* command_line);
void add_bench(CommandLine* command_line);

/// Options of `run` and `check` that say how to select.
void add_run_options(Verb* verb, RunOptions* options);

/// "row", "absolute", "offset", "slot"; "ascending", "any", "score".
const char* index_space_name(int32_t index_space);
const char* order_name(int32_t order);

/// The value of such a name, -1 if it is none.
int32_t index_space_of(const std::string& name);
int32_t order_of(const std::string& name);

}  // namespace keysieve::cli
