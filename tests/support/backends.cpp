// SPDX-License-Identifier: Apache-2.0
#include "support/backends.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace keysieve::test {
namespace {

/// Prints, once all tests ran, how many combinations every backend took and refused.
class CombinationSummary final : public testing::Environment {
 public:
  struct Counts {
    int64_t ran = 0;
    std::map<std::string, int64_t> refused;  // by message
  };

  void TearDown() override {
    for (const auto& [backend, counts] : counts_) {
      int64_t refused = 0;
      for (const auto& [message, count] : counts.refused) {
        refused += count;
      }
      std::printf("[ keysieve ] %s: %lld combinations ran, %lld refused as unsupported\n", backend.c_str(),
                  static_cast<long long>(counts.ran), static_cast<long long>(refused));
      for (const auto& [message, count] : counts.refused) {
        std::printf("[ keysieve ]   %lld x %s\n", static_cast<long long>(count), message.c_str());
      }
    }
  }

  Counts& of(const std::string& backend) { return counts_[backend]; }
  std::mutex& mutex() { return mutex_; }

 private:
  std::map<std::string, Counts> counts_;
  std::mutex mutex_;
};

CombinationSummary& summary() {
  // GoogleTest owns and deletes environments.
  static auto* const kSummary =
      static_cast<CombinationSummary*>(testing::AddGlobalTestEnvironment(new CombinationSummary));
  return *kSummary;
}

/// Registered before the tests start, so that its TearDown runs.
const bool kSummaryRegistered = (summary(), true);

}  // namespace

std::vector<std::string> backend_names() {
  std::vector<std::string> names = {"reference", "cpu", "cuda"};
  for (int32_t i = 0; i < keysieve_backend_count(); ++i) {
    keysieve_backend_info info{};
    info.struct_size = sizeof(info);
    if (keysieve_get_backend(i, &info) == KEYSIEVE_OK &&
        std::find(names.begin(), names.end(), info.name) == names.end()) {
      names.emplace_back(info.name);
    }
  }
  return names;
}

BackendUnderTest find_backend(const std::string& name) {
  for (int32_t i = 0; i < keysieve_backend_count(); ++i) {
    keysieve_backend_info info{};
    info.struct_size = sizeof(info);
    if (keysieve_get_backend(i, &info) == KEYSIEVE_OK && name == info.name) {
      return {name, info.device_type, info.available == 1, info.detail};
    }
  }
  return {name, KEYSIEVE_CPU, false, "not built into this library"};
}

bool backend_required(const std::string& name) {
  const char* const required = std::getenv("KEYSIEVE_REQUIRE_BACKEND");
  if (required == nullptr) {
    return false;
  }
  const std::string list = std::string(",") + required + ",";
  return list.find("," + name + ",") != std::string::npos;
}

void note_refused(const std::string& backend, const std::string& message) {
  const std::lock_guard<std::mutex> lock(summary().mutex());
  ++summary().of(backend).refused[message];
}

void note_ran(const std::string& backend) {
  const std::lock_guard<std::mutex> lock(summary().mutex());
  ++summary().of(backend).ran;
}

}  // namespace keysieve::test
