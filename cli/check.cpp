// SPDX-License-Identifier: Apache-2.0
// keysieve check: row by row against the reference, or against a saved selection.
#include <algorithm>
#include <fmt/format.h>
#include <memory>

#include "checker.hpp"
#include "failure.hpp"
#include "output.hpp"
#include "selection_file.hpp"
#include "verbs.hpp"

namespace keysieve::cli {
namespace {

struct CheckArguments {
  std::string path;
  RunOptions options;
  std::string against = "reference";
  int64_t rows = 0;  // 0: all
  bool topk_given = false;
  bool json = false;
};

/// How a saved selection compares with the one made now.
struct SavedComparison {
  int64_t same_rows = 0;           // the same keys
  std::vector<int64_t> differing;  // the others
  TestOutcome agreement;           // of the saved rows that differ
};

bool same_keys(const SelectedRow& a, const SelectedRow& b) {
  return check_exact({a.indices, nullptr, a.topk}, {b.indices, nullptr, b.topk}, KEYSIEVE_ORDER_ANY).ok();
}

SavedComparison compare_saved(const Replay& replay, const Selection& selection, const Selection& saved,
                              double error_constant) {
  SavedComparison comparison;
  for (int64_t t = 0; t < replay.num_rows; ++t) {
    if (same_keys(selection.row(t), saved.row(t))) {
      ++comparison.same_rows;
    } else {
      comparison.differing.push_back(t);
    }
  }
  comparison.agreement = test_agreement(replay, saved, error_constant, comparison.differing);
  return comparison;
}

std::string saved_text(const SavedComparison& comparison, const std::string& path, int64_t num_rows) {
  const auto differing = static_cast<int64_t>(comparison.differing.size());
  std::string text =
      fmt::format("{}: {} of {} rows hold the same keys", path, grouped(comparison.same_rows), grouped(num_rows));
  if (differing > 0 && comparison.agreement.ok()) {
    text += fmt::format("; the other {} differ within the error bound", grouped(differing));
  }
  text += "\n";
  if (!comparison.agreement.ok()) {
    const RowFault& fault = *comparison.agreement.first;
    text += fmt::format("{}: {} rows are wrong; row {} (its keys count from {}) {}\n", path,
                        grouped(comparison.agreement.wrong), fault.row, fault.row_begin, fault.verdict.message());
  }
  return text;
}

Json saved_json(const SavedComparison& comparison, const std::string& path) {
  return {{"file", path},
          {"same_rows", comparison.same_rows},
          {"differing_rows", comparison.differing.size()},
          {"differing_agree", outcome_json(comparison.agreement)}};
}

int check_verb(CheckArguments arguments) {
  const Replay replay = load_replay(arguments.path);
  std::unique_ptr<SavedSelection> saved;
  if (arguments.against != "reference") {
    saved = std::make_unique<SavedSelection>(load_selection(arguments.against, replay, arguments.options.index_space));
    const int64_t saved_topk = saved->selection.topk;
    if (arguments.topk_given && arguments.options.topk != saved_topk) {
      throw Failure(kExitBadInput, arguments.against,
                    fmt::format("holds {} keys a row, but --topk is {}", saved_topk, arguments.options.topk));
    }
    arguments.options.topk = saved_topk;
    arguments.options.index_space = KEYSIEVE_INDEX_ROW;
  }
  Session session(replay, arguments.options);
  const Selection selection = session.select();
  const double error_constant = accuracy_constant(session.backend().name, replay.num_heads, replay.head_dim);
  const TestOutcome exact = test_exact(session, selection, arguments.options.order, nullptr);
  const std::vector<int64_t> rows =
      spread_rows(replay.num_rows, arguments.rows == 0 ? replay.num_rows : arguments.rows);
  const TestOutcome agreement = test_agreement(replay, selection, error_constant, rows);
  SavedComparison comparison;
  if (saved) {
    const double saved_constant =
        saved->backend.empty() ? error_constant : accuracy_constant(saved->backend, replay.num_heads, replay.head_dim);
    comparison = compare_saved(replay, selection, saved->selection, std::max(error_constant, saved_constant));
  }
  if (arguments.json) {
    Json json = {{"file", arguments.path},
                 {"against", arguments.against},
                 {"backend", session.backend().name},
                 {"config", session.explain()},
                 {"K", arguments.options.topk},
                 {"exact", outcome_json(exact)},
                 {"agrees_with_reference", outcome_json(agreement)}};
    if (saved) {
      json["saved"] = saved_json(comparison, arguments.against);
    }
    print(json);
  } else {
    std::string text = fmt::format("{}: {} keys a row, backend {} ({})\n", arguments.path, arguments.options.topk,
                                   session.backend().name, session.explain());
    text += outcome_text("exact", "equal select(score) of the same backend, bit for bit", exact, replay.num_rows);
    text += outcome_text("agrees with the reference", "within the error bound", agreement, replay.num_rows);
    text += saved ? saved_text(comparison, arguments.against, replay.num_rows) : "";
    print(text);
  }
  return exact.ok() && agreement.ok() && comparison.agreement.ok() ? kExitOk : kExitMismatch;
}

constexpr const char* kFooter =
    R"(Two tests (docs/contract.md, section 3): "exact" means that the selection equals select(score) of the same backend bit
for bit; "agrees with the reference" that every key held scores, by the reference, at least the K-th score minus the
error bound, and every key missed at most the K-th plus it.  Ties at the cut are right either way.

A saved selection comes from `keysieve run --out` or another tool: tensor indices I32 [Q,K], -1 for no key.  Rows that
hold other keys are judged by the reference's scores.

Examples:
  keysieve check queries.safetensors
  keysieve check queries.safetensors --backend cpu --topk 512 --rows 16
  keysieve check queries.safetensors --against selected.safetensors --json)";

}  // namespace

void add_check(CommandLine* command_line) {
  Verb verb = command_line->add_verb("check", "Compare a selection with the reference or with a saved one, row by row");
  const auto arguments = std::make_shared<CheckArguments>();
  verb.required("file", &arguments->path, "Replay file", "FILE");
  add_run_options(&verb, &arguments->options);
  verb.text("--against", &arguments->against, "reference, or a saved selection", "reference|FILE");
  verb.number("--rows", &arguments->rows, "Rows to compare with the reference, spread over all; 0: all");
  verb.flag("--json", &arguments->json, "Print JSON");
  verb.footer(kFooter);
  verb.action([arguments, verb] {
    arguments->topk_given = verb.given("--topk");
    return check_verb(*arguments);
  });
}

}  // namespace keysieve::cli
