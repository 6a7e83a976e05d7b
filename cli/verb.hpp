// SPDX-License-Identifier: Apache-2.0
// A verb's options.  CLI11 stays behind this wall: it is a header of templates, and compiles once, in verb.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace keysieve::cli {

constexpr int64_t kMaxCount = INT32_MAX;

/// The values pointed to are set while the command line is read; their first values are the defaults, shown in --help.
class Verb {
 public:
  Verb(CLI::App* app, int* exit_code) : app_(app), exit_code_(exit_code) {}

  /// A positional argument that must be there.
  void required(const char* name, std::string* value, const char* help, const char* type_name);
  void text(const char* name, std::string* value, const char* help, const char* type_name = nullptr);
  void number(const char* name, int32_t* value, const char* help, int64_t low = 0, int64_t high = kMaxCount);
  void number(const char* name, int64_t* value, const char* help, int64_t low = 0, int64_t high = kMaxCount);
  void seed(const char* name, uint64_t* value, const char* help);
  void flag(const char* name, bool* value, const char* help);

  /// One of some names.
  template <class T>
  void choice(const char* name, T* value, const std::map<std::string, T>& names, const char* help) {
    std::map<std::string, int> numbers;
    for (const auto& [text, number] : names) {
      numbers[text] = static_cast<int>(number);
    }
    add_choice(
        name, static_cast<int>(*value), numbers, [value](int chosen) { *value = static_cast<T>(chosen); }, help);
  }

  /// Shown below the options in --help.
  void footer(const char* text);
  /// What the verb does; returns the exit code.
  void action(std::function<int()> run);
  bool given(const char* name) const;

 private:
  void add_choice(const char* name, int value, const std::map<std::string, int>& names,
                  const std::function<void(int)>& choose, const char* help);

  CLI::App* app_;
  int* exit_code_;
};

/// The whole command line.
class CommandLine {
 public:
  CommandLine(const char* name, const char* version, const char* description, const char* footer);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  Verb add_verb(const char* name, const char* description);

  /// Runs the verb and returns its exit code; prints what --help and --version ask for.  Wrong usage is a Failure.
  int run(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
  int exit_code_ = 0;
};

}  // namespace keysieve::cli
