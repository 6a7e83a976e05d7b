// SPDX-License-Identifier: Apache-2.0
#include "verb.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <utility>

#include "failure.hpp"

namespace keysieve::cli {
namespace {

template <class Number>
void add_number(CLI::App* app, const char* name, Number* value, const char* help, int64_t low, int64_t high) {
  app->add_option(name, *value, help)
      ->capture_default_str()
      ->check(CLI::Range(static_cast<Number>(low), static_cast<Number>(high)).description(""));
}

}  // namespace

void Verb::required(const char* name, std::string* value, const char* help, const char* type_name) {
  app_->add_option(name, *value, help)->required()->type_name(type_name);
}

void Verb::text(const char* name, std::string* value, const char* help, const char* type_name) {
  CLI::Option* option = app_->add_option(name, *value, help)->capture_default_str();
  if (type_name != nullptr) {
    option->type_name(type_name);
  }
}

void Verb::number(const char* name, int32_t* value, const char* help, int64_t low, int64_t high) {
  add_number(app_, name, value, help, low, high);
}

void Verb::number(const char* name, int64_t* value, const char* help, int64_t low, int64_t high) {
  add_number(app_, name, value, help, low, high);
}

void Verb::seed(const char* name, uint64_t* value, const char* help) {
  app_->add_option(name, *value, help)->capture_default_str();
}

void Verb::flag(const char* name, bool* value, const char* help) {
  app_->add_flag(name, *value, help);
}

void Verb::add_choice(const char* name, int value, const std::map<std::string, int>& names,
                      const std::function<void(int)>& choose, const char* help) {
  CLI::Option* option =
      app_->add_option_function<int>(name, choose, help)->transform(CLI::CheckedTransformer(names))->type_name("NAME");
  for (const auto& [text, number] : names) {
    if (number == value) {
      option->default_str(text);
    }
  }
}

void Verb::footer(const char* text) {
  app_->footer(text);
}

void Verb::action(std::function<int()> run) {
  app_->callback([exit_code = exit_code_, run = std::move(run)] { *exit_code = run(); });
}

bool Verb::given(const char* name) const {
  return app_->count(name) > 0;
}

CommandLine::CommandLine(const char* name, const char* version, const char* description, const char* footer)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->set_version_flag("--version", std::string(name) + " " + version);
  app_->require_subcommand(1);
  app_->footer(footer);
}

CommandLine::~CommandLine() = default;

Verb CommandLine::add_verb(const char* name, const char* description) {
  return {app_->add_subcommand(name, description), &exit_code_};
}

int CommandLine::run(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app_->exit(error);  // --help, --version
    }
    throw Failure(kExitBadInput, "usage", std::string(error.what()) + " (see keysieve --help)");
  }
  return exit_code_;
}

}  // namespace keysieve::cli
