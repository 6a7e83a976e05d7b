// SPDX-License-Identifier: Apache-2.0
// keysieve run: selects the keys of a replay file, says what was picked, checks it, saves and draws it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <memory>

#include "checker.hpp"
#include "failure.hpp"
#include "output.hpp"
#include "picture.hpp"
#include "selection_file.hpp"
#include "statistics.hpp"
#include "verbs.hpp"

namespace keysieve::cli {
namespace {

enum class CheckMode { kAuto, kAll, kNone };

struct RunArguments {
  std::string path;
  RunOptions options;
  std::string out;
  std::string picture;
  CheckMode check = CheckMode::kAuto;
  int repeats = 5;
  bool json = false;
};

struct RunResult {
  Selection selection;
  std::vector<RowSurvey> survey;  // empty without a check
  TestOutcome exact;
  TestOutcome agreement;
  bench::Summary time;
};

RunResult select_and_check(Session& session, const RunArguments& arguments) {
  RunResult result;
  result.time = bench::summarise(session.time_select(1, arguments.repeats));
  result.selection = session.select();
  if (arguments.check != CheckMode::kNone) {
    const Replay& replay = session.replay();
    result.exact = test_exact(session, result.selection, arguments.options.order, &result.survey);
    const int64_t rows = arguments.check == CheckMode::kAll ? replay.num_rows : affordable_rows(replay);
    result.agreement = test_agreement(replay, result.selection,
                                      accuracy_constant(session.backend().name, replay.num_heads, replay.head_dim),
                                      spread_rows(replay.num_rows, rows));
  }
  return result;
}

/// min, median and max of one number of each row.
template <typename Value>
std::vector<double> spread(const std::vector<RowSurvey>& survey, const Value& value) {
  std::vector<double> values;
  for (const RowSurvey& row : survey) {
    if (row.width > 0) {
      values.push_back(static_cast<double>(value(row)));
    }
  }
  if (values.empty()) {
    return {NAN, NAN, NAN};
  }
  std::sort(values.begin(), values.end(),
            [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); });
  return {values.front(), values[values.size() / 2], values.back()};
}

struct SpreadRow {
  const char* name;
  const char* json_name;
  std::vector<double> values;
  bool count;
};

std::vector<SpreadRow> spread_rows_of(const std::vector<RowSurvey>& survey) {
  return {
      {"keys in the row", "keys", spread(survey, [](const RowSurvey& row) { return row.width; }), true},
      {"keys picked", "picked", spread(survey, [](const RowSurvey& row) { return row.picked; }), true},
      {"best score", "best_score", spread(survey, [](const RowSurvey& row) { return row.best; }), false},
      {"lowest score picked", "cut_score", spread(survey, [](const RowSurvey& row) { return row.kth; }), false},
      {"lowest score", "lowest_score", spread(survey, [](const RowSurvey& row) { return row.lowest; }), false},
      {"scores that are 0, %", "zero_percent",
       spread(survey,
              [](const RowSurvey& row) {
                return 100.0 * static_cast<double>(row.zeros) / static_cast<double>(row.width);
              }),
       false},
      {"keys tied at the cut", "tied_at_cut", spread(survey, [](const RowSurvey& row) { return row.tie.tied; }), true},
  };
}

int64_t rows_cut_in_a_tie(const std::vector<RowSurvey>& survey) {
  return std::count_if(survey.begin(), survey.end(),
                       [](const RowSurvey& row) { return row.tie.selected < row.tie.tied; });
}

double scores_per_second(const Replay& replay, double ms) {
  return static_cast<double>(valid_pairs(replay)) / ms * 1e3;
}

double flop(const Replay& replay) {
  return 2.0 * static_cast<double>(replay.num_heads) * static_cast<double>(replay.head_dim) *
         static_cast<double>(valid_pairs(replay));
}

std::string problem_text(const Replay& replay) {
  const auto name = [](int32_t dtype) {
    return dtype == KEYSIEVE_BF16 ? "bf16" : dtype == KEYSIEVE_MXFP4 ? "MXFP4" : "e4m3";
  };
  return fmt::format("{} queries x {} keys, {} heads of {}, {} queries, {} keys", grouped(replay.num_rows),
                     grouped(replay.num_keys), replay.num_heads, replay.head_dim, name(replay.q_dtype),
                     name(replay.k_dtype));
}

void print_text(const Session& session, const RunArguments& arguments, const RunResult& result) {
  const Replay& replay = session.replay();
  std::string text = fields({
      {"file", arguments.path},
      {"problem", problem_text(replay)},
      {"selected", fmt::format("{} keys a row, order {}, index space {}", arguments.options.topk,
                               order_name(arguments.options.order), index_space_name(arguments.options.index_space))},
      {"backend", fmt::format("{} ({}): {}", session.backend().name, session.backend().detail, session.explain())},
      {"time", fmt::format("{} (median of {}, {} to {}): {}, {}", duration(result.time.median), arguments.repeats,
                           duration(result.time.min), duration(result.time.max),
                           scaled(scores_per_second(replay, result.time.median), "scores/s"),
                           scaled(flop(replay) / result.time.median * 1e3, "FLOP/s"))},
      {"workspace", scaled(static_cast<double>(session.workspace_bytes()), "B")},
  });
  if (!result.survey.empty()) {
    std::vector<std::vector<std::string>> rows = {{"of all rows", "min", "median", "max"}};
    for (const SpreadRow& row : spread_rows_of(result.survey)) {
      rows.push_back({row.name});
      for (const double value : row.values) {
        rows.back().push_back(row.count && std::isfinite(value) ? grouped(static_cast<int64_t>(value))
                                                                : fmt::format("{:.5g}", value));
      }
    }
    text += fmt::format("\n{}rows cut inside a tie: {} of {}\n", table(rows), grouped(rows_cut_in_a_tie(result.survey)),
                        grouped(replay.num_rows));
  }
  text += "\n";
  if (arguments.check == CheckMode::kNone) {
    text += "not checked (--check none)\n";
  } else {
    text +=
        outcome_text("exact", "equal select(score) of the same backend, bit for bit", result.exact, replay.num_rows);
    text += outcome_text("agrees with the reference", "within the error bound", result.agreement, replay.num_rows);
  }
  for (const auto& [what, path] :
       {std::pair{"indices and scores", arguments.out}, std::pair{"picture", arguments.picture}}) {
    text += path.empty() ? "" : fmt::format("{}: {}\n", what, path);
  }
  print(text);
}

void print_json(const Session& session, const RunArguments& arguments, const RunResult& result) {
  const Replay& replay = session.replay();
  Json json = {{"file", arguments.path},
               {"T", replay.num_rows},
               {"N", replay.num_keys},
               {"H", replay.num_heads},
               {"D", replay.head_dim},
               {"K", arguments.options.topk},
               {"order", order_name(arguments.options.order)},
               {"index_space", index_space_name(arguments.options.index_space)},
               {"backend", session.backend().name},
               {"config", session.explain()},
               {"workspace_bytes", session.workspace_bytes()},
               {"time_ms", {{"median", result.time.median}, {"min", result.time.min}, {"max", result.time.max}}},
               {"scores_per_second", scores_per_second(replay, result.time.median)},
               {"tflops", flop(replay) / result.time.median * 1e-9}};
  if (arguments.check != CheckMode::kNone) {
    for (const SpreadRow& row : spread_rows_of(result.survey)) {
      json["rows"][row.json_name] = {{"min", json_number(row.values[0])},
                                     {"median", json_number(row.values[1])},
                                     {"max", json_number(row.values[2])}};
    }
    json["rows"]["cut_in_a_tie"] = rows_cut_in_a_tie(result.survey);
    json["exact"] = outcome_json(result.exact);
    json["agrees_with_reference"] = outcome_json(result.agreement);
  }
  json["out"] = arguments.out.empty() ? Json(nullptr) : Json(arguments.out);
  json["picture"] = arguments.picture.empty() ? Json(nullptr) : Json(arguments.picture);
  print(json);
}

void save_picture(const RunArguments& arguments, const Replay& replay, const Selection& selection) {
  PictureInput input;
  input.title = arguments.path.substr(arguments.path.find_last_of('/') + 1);
  input.num_keys = replay.num_keys;
  input.selection = &selection;
  for (int64_t t = 0; t < replay.num_rows; ++t) {
    input.ranges.push_back(key_range(replay, t));
  }
  const std::string svg = draw_picture(input);
  std::FILE* file = std::fopen(arguments.picture.c_str(), "wb");
  bool written = file != nullptr && std::fwrite(svg.data(), 1, svg.size(), file) == svg.size();
  written = file != nullptr && std::fclose(file) == 0 && written;
  if (!written) {
    throw Failure(kExitFault, "picture " + arguments.picture, "cannot be written");
  }
}

int run_verb(const RunArguments& arguments) {
  const Replay replay = load_replay(arguments.path);
  Session session(replay, arguments.options);
  const RunResult result = select_and_check(session, arguments);
  if (!arguments.out.empty()) {
    save_selection(arguments.out, result.selection, session, arguments.path);
  }
  if (!arguments.picture.empty()) {
    save_picture(arguments, replay, result.selection);
  }
  if (arguments.json) {
    print_json(session, arguments, result);
  } else {
    print_text(session, arguments, result);
  }
  return result.exact.ok() && result.agreement.ok() ? kExitOk : kExitMismatch;
}

constexpr const char* kFooter =
    R"(The selection is checked twice (docs/contract.md, section 3): "exact" means that it equals select(score) of the
same backend bit for bit; "agrees with the reference" that no key held or missed is off by more than the error bound.
auto tests as many rows against the reference as take some seconds.

Examples:
  keysieve run queries.safetensors
  keysieve run queries.safetensors --topk 512 --backend cpu --threads 2 --order score
  keysieve run queries.safetensors --out selected.safetensors --picture selected.svg
  keysieve run queries.safetensors --check none --repeats 20 --json)";

}  // namespace

void add_run(CommandLine* command_line) {
  Verb verb = command_line->add_verb("run", "Select the keys of a replay file, check and show the result");
  const auto arguments = std::make_shared<RunArguments>();
  verb.required("file", &arguments->path, "Replay file", "FILE");
  add_run_options(&verb, &arguments->options);
  verb.text("--out", &arguments->out, "Write indices and scores as safetensors", "FILE");
  verb.text("--picture", &arguments->picture, "Draw which keys each query picked, as SVG", "FILE");
  verb.choice("--check", &arguments->check,
              {{"auto", CheckMode::kAuto}, {"all", CheckMode::kAll}, {"none", CheckMode::kNone}},
              "Rows to compare with the reference: auto, all or none");
  verb.number("--repeats", &arguments->repeats, "Timed calls, after a warm-up", 1, 1000000);
  verb.flag("--json", &arguments->json, "Print JSON");
  verb.footer(kFooter);
  verb.action([arguments] { return run_verb(*arguments); });
}

}  // namespace keysieve::cli
