// SPDX-License-Identifier: Apache-2.0
// keysieve info: what this build and this machine can do.
#include <fmt/format.h>

#include "build_info.hpp"
#include "failure.hpp"
#include "machine.hpp"
#include "output.hpp"
#include "verbs.hpp"

namespace keysieve::cli {
namespace {

Json device_json(const keysieve_backend_info& info) {
  if (info.device_type != KEYSIEVE_CUDA || info.available == 0) {
    return nullptr;
  }
  try {
    const DeviceDescription device = open_device(KEYSIEVE_CUDA, 0)->describe();
    return {{"name", device.name}, {"sms", device.sms}, {"driver", device.driver}, {"toolkit", device.toolkit}};
  } catch (const Failure&) {
    return nullptr;
  }
}

Json collect() {
  Json json = {{"version", keysieve_version_string()},
               {"commit", kBuildInfo.commit},
               {"dirty", kBuildInfo.dirty},
               {"cpu", cpu_model()},
               {"threads", usable_cpus()},
               {"backends", Json::array()}};
  for (const keysieve_backend_info& info : backends()) {
    json["backends"].push_back({{"name", info.name},
                                {"available", info.available != 0},
                                {"device_type", info.device_type == KEYSIEVE_CUDA ? "cuda" : "cpu"},
                                {"detail", info.detail},
                                {"device", device_json(info)}});
  }
#if defined(KEYSIEVE_WITH_CUDA)
  json["cuda_built"] = true;
#else
  json["cuda_built"] = false;
#endif
  return json;
}

void print_text(const Json& json) {
  std::string text = fields({
      {"version", json["version"].get<std::string>()},
      {"commit", json["commit"].get<std::string>() + (json["dirty"].get<bool>() ? " with changes" : "")},
      {"processor", fmt::format("{}, {} threads", json["cpu"].get<std::string>(), json["threads"].get<int>())},
  });
  text += "\nbackends, in the order in which they are tried:\n";
  std::vector<std::vector<std::string>> rows;
  for (const Json& backend : json["backends"]) {
    text += fmt::format("  {:<10} {}: {}\n", backend["name"].get<std::string>(),
                        backend["available"].get<bool>() ? "available" : "unavailable",
                        backend["detail"].get<std::string>());
    if (const Json& device = backend["device"]; !device.is_null()) {
      text += fmt::format("  {:<10} device 0: {}, {} multiprocessors, driver for CUDA {}, runtime {}\n", "",
                          device["name"].get<std::string>(), device["sms"].get<int>(),
                          device["driver"].get<std::string>(), device["toolkit"].get<std::string>());
    }
  }
  if (!json["cuda_built"].get<bool>()) {
    text += fmt::format("  {:<10} unavailable: not in this build, which was made without nvcc\n", "cuda");
  }
  print(text);
}

}  // namespace

void add_info(CommandLine* command_line) {
  Verb verb = command_line->add_verb("info", "Backends, devices and versions, and why something is unavailable");
  const auto json = std::make_shared<bool>(false);
  verb.flag("--json", json.get(), "Print JSON");
  verb.footer("Examples:\n  keysieve info\n  keysieve info --json");
  verb.action([json] {
    const Json collected = collect();
    if (*json) {
      print(collected);
    } else {
      print_text(collected);
    }
    return kExitOk;
  });
}

}  // namespace keysieve::cli
