// SPDX-License-Identifier: Apache-2.0
// keysieve: the command line.  One verb, its result on stdout, errors as one line on stderr.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "failure.hpp"
#include "verbs.hpp"

namespace keysieve::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  keysieve info
  keysieve run examples/replay/ext4-l3-n8192-q64.safetensors --out selected.safetensors --picture selected.svg
  keysieve check examples/replay/ext4-l3-n8192-q64.safetensors --against reference
  keysieve gen ties.safetensors --data ties --rows 64 --keys 8192
  keysieve bench cpu
  keysieve VERB --help

Exit codes:
  0  done; what was checked is right
  1  a selection is wrong
  2  wrong usage, or a file that is not what it should be
  3  the backend is missing on this machine, or cannot do the problem
  4  device error, output that cannot be written, or a fault of keysieve)";

int report(int code, std::string message) {
  std::replace_if(
      message.begin(), message.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  std::fprintf(stderr, "keysieve: %s\n", message.c_str());
  return code;
}

int run_command(int argc, char** argv) {
  CommandLine command_line("keysieve", keysieve_version_string(),
                           "Exact top-K selection of keys by a lightning indexer, in one pass.", kFooter);
  add_info(&command_line);
  add_gen(&command_line);
  add_run(&command_line);
  add_check(&command_line);
  add_bench(&command_line);
  return command_line.run(argc, argv);
}

}  // namespace
}  // namespace keysieve::cli

int main(int argc, char** argv) {
  using namespace keysieve::cli;
  try {
    return run_command(argc, argv);
  } catch (const Failure& failure) {
    return report(failure.code(), failure.what());
  } catch (const keysieve::Error& error) {
    return report(exit_code(error.status()), error.what());
  } catch (const std::bad_alloc&) {
    return report(kExitFault, "memory: not enough");
  } catch (const std::exception& error) {
    return report(kExitFault, std::string("fault: ") + error.what());
  } catch (...) {
    return report(kExitFault, "fault: unknown exception");
  }
}
