// SPDX-License-Identifier: Apache-2.0
// The verbs of the command: each adds its subcommand and sets `exit_code` when it runs.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <string>

#include "session.hpp"

namespace keysieve::cli {

void add_info(CLI::App& app, int* exit_code);
void add_gen(CLI::App& app, int* exit_code);
void add_run(CLI::App& app, int* exit_code);
void add_check(CLI::App& app, int* exit_code);
void add_bench(CLI::App& app, int* exit_code);

/// Options of `run` and `check` that say how to select.
void add_run_options(CLI::App& verb, RunOptions* options);

/// "row", "absolute", "offset", "slot"; "ascending", "any", "score".
const char* index_space_name(int32_t index_space);
const char* order_name(int32_t order);

/// The value of such a name, -1 if it is none.
int32_t index_space_of(const std::string& name);
int32_t order_of(const std::string& name);

}  // namespace keysieve::cli
