// SPDX-License-Identifier: Apache-2.0
// keysieve bench: runs a suite of bench/ and prints or writes its result.
#include <fmt/format.h>
#include <memory>

#include "failure.hpp"
#include "output.hpp"
#include "result_file.hpp"
#include "suites.hpp"
#include "verbs.hpp"

namespace keysieve::cli {
namespace {

struct BenchArguments {
  std::string suite;
  bench::SuiteContext context;
  std::string out;
  std::string results;
  bool list = false;
  bool json = false;
};

std::string suite_list() {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const bench::Suite& suite : bench::suites()) {
    rows.emplace_back(suite.name, suite.about);
  }
  return fields(rows);
}

const bench::Suite& find_suite(const std::string& name) {
  std::string names;
  for (const bench::Suite& suite : bench::suites()) {
    if (name == suite.name) {
      return suite;
    }
    names += (names.empty() ? "" : ", ") + std::string(suite.name);
  }
  throw Failure(kExitBadInput, "suite " + name, "unknown; there are " + names);
}

std::string command_text(const BenchArguments& arguments) {
  std::string text =
      fmt::format("keysieve bench {} --rounds {} --warmup {} --threads {}", arguments.suite,
                  arguments.context.measure.rounds, arguments.context.measure.warmup, arguments.context.threads);
  return arguments.context.filter.empty() ? text : text + " --filter '" + arguments.context.filter + "'";
}

std::string case_text(const bench::Json& entry) {
  const bench::Json& c = entry["case"];
  return fmt::format("{} T={} N={} {} {}", entry["op"].get<std::string>(), c["T"].get<int64_t>(), c["N"].get<int64_t>(),
                     c["dtype"].get<std::string>(), c["data"].get<std::string>());
}

void print_text(const bench::Json& result) {
  std::vector<std::vector<std::string>> rows = {
      {"case", "who", "median", "min", "p95", "cv %", "TFLOP/s", "ratio", "95 %", "checked"}};
  for (const bench::Json& entry : result["entries"]) {
    const bool has_ratio = !entry["ratio"].is_null();
    rows.push_back(
        {case_text(entry), entry["who"].get<std::string>(), duration(entry["median_ms"].get<double>()),
         duration(entry["min_ms"].get<double>()), duration(entry["p95_ms"].get<double>()),
         fmt::format("{:.2g}", entry["cv"].get<double>() * 100),
         entry["tflops"].is_null() ? "" : fmt::format("{:.4g}", entry["tflops"].get<double>()),
         has_ratio ? fmt::format("{:.3g} x {}", entry["ratio"].get<double>(), entry["ratio_of"].get<std::string>())
                   : "",
         has_ratio
             ? fmt::format("{:.3g}..{:.3g}", entry["ratio_ci95"][0].get<double>(), entry["ratio_ci95"][1].get<double>())
             : "",
         entry["checked"].get<bool>() ? "yes" : "no"});
  }
  std::string text = table(rows);
  for (const auto& [name, value] : result["ceilings"].items()) {
    text += value.is_null() ? "" : fmt::format("ceiling {}: {:.4g}\n", name, value.get<double>());
  }
  for (const bench::Json& skipped : result["skipped"]) {
    text += "skipped: " + skipped.get<std::string>() + "\n";
  }
  print(text);
}

int bench_verb(BenchArguments& arguments) {
  if (arguments.list || arguments.suite.empty()) {
    if (!arguments.list) {
      throw Failure(kExitBadInput, "bench", "name a suite; keysieve bench --list shows them");
    }
    print(suite_list());
    return kExitOk;
  }
  const bench::Suite& suite = find_suite(arguments.suite);
  suite.run(&arguments.context);
  const bench::Json result = bench::result_json(suite, arguments.context, command_text(arguments));
  std::string path = arguments.out;
  if (path.empty() && !arguments.results.empty()) {
    path = arguments.results + "/" + bench::machine_folder(result) + "/" + suite.name + ".json";
  }
  if (!path.empty()) {
    bench::write_result(path, result);
  }
  if (arguments.json) {
    print(result);
  } else {
    print_text(result);
    print(path.empty() ? "" : "result: " + path + "\n");
  }
  return kExitOk;
}

constexpr const char* kFooter =
    R"(Every contender is compared with the reference before it is timed.  Rounds rotate the order of the contenders; a ratio
is the median over rounds of the other's time by its own, with a bootstrap interval.

Examples:
  keysieve bench --list
  keysieve bench cpu --threads 2
  keysieve bench cpu --filter N=8192 --rounds 5 --json
  keysieve bench cpu --threads 2 --results results)";

}  // namespace

void add_bench(CommandLine* command_line) {
  Verb verb = command_line->add_verb("bench", "Time a suite against its baselines");
  const auto arguments = std::make_shared<BenchArguments>();
  bench::SuiteContext& context = arguments->context;
  verb.text("suite", &arguments->suite, "Suite to run, see --list", "SUITE");
  verb.flag("--list", &arguments->list, "List the suites");
  verb.number("--rounds", &context.measure.rounds, "Timed rounds", 1, 100000);
  verb.number("--warmup", &context.measure.warmup, "Rounds before them", 0, 100000);
  verb.number("--threads", &context.threads, "CPU threads; 0: all");
  verb.number("--device", &context.device_index, "CUDA device");
  verb.text("--filter", &context.filter, "Only cases whose text holds this, such as N=8192");
  verb.text("--out", &arguments->out, "Write the result as JSON", "FILE");
  verb.text("--results", &arguments->results, "Write it to DIR/<machine>/<suite>.json", "DIR");
  verb.flag("--json", &arguments->json, "Print JSON");
  verb.footer(kFooter);
  verb.action([arguments] { return bench_verb(*arguments); });
}

}  // namespace keysieve::cli
