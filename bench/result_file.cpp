// SPDX-License-Identifier: Apache-2.0
#include "result_file.hpp"

#include <cctype>
#include <filesystem>
#include <fstream>

#include "build_info.hpp"
#include "device_buffers.hpp"
#include "failure.hpp"
#include "keysieve/keysieve.h"
#include "machine.hpp"

namespace keysieve::bench {
namespace {

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json machine_json(const Suite& suite, const SuiteContext& context) {
  Json machine = {{"gpu", nullptr}, {"sms", nullptr}, {"driver", nullptr}, {"toolkit", nullptr}};
  if (suite.device_type == KEYSIEVE_CUDA) {
    const cli::DeviceDescription device = cli::open_device(KEYSIEVE_CUDA, context.device_index)->describe();
    machine = {{"gpu", device.name}, {"sms", device.sms}, {"driver", device.driver}, {"toolkit", device.toolkit}};
  }
  machine["cpu"] = cli::cpu_model();
  machine["threads"] = context.threads > 0 ? context.threads : cli::usable_cpus();
  return machine;
}

/// Lower-case letters and digits, the rest as single dashes.
std::string folder_name(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) {
      out += static_cast<char>(std::tolower(byte));
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && out.back() == '-') {
    out.pop_back();
  }
  return out.empty() ? "unknown" : out;
}

}  // namespace

Json result_json(const Suite& suite, const SuiteContext& context, const std::string& command) {
  return {{"schema", "keysieve-bench/1"},
          {"suite", suite.name},
          {"commit", cli::kBuildInfo.commit},
          {"dirty", cli::kBuildInfo.dirty},
          {"date", cli::utc_now()},
          {"command", command},
          {"machine", machine_json(suite, context)},
          {"ceilings",
           {{"fp8_gemm_tflops", or_null(context.ceilings.fp8_gemm_tflops)},
            {"bf16_gemm_tflops", or_null(context.ceilings.bf16_gemm_tflops)},
            {"copy_tb_s", or_null(context.ceilings.copy_tb_s)},
            {"cpu_dot_gflops", or_null(context.ceilings.cpu_dot_gflops)}}},
          {"clocks", {{"sm_mhz_median", nullptr}, {"power_w_median", nullptr}}},
          {"skipped", context.skipped},
          {"entries", context.entries}};
}

std::string machine_folder(const Json& result) {
  const Json& machine = result.at("machine");
  if (machine.at("gpu").is_null()) {
    return "cpu-" + folder_name(machine.at("cpu").get<std::string>());
  }
  const std::string gpu = machine.at("gpu").get<std::string>();
  const size_t space = gpu.rfind(' ');
  return folder_name(space == std::string::npos ? gpu : gpu.substr(space + 1));
}

void write_result(const std::string& path, const Json& result) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, error);
  }
  std::ofstream file(path, std::ios::binary);
  file << result.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  file.close();
  if (!file) {
    throw cli::Failure(cli::kExitFault, "bench " + path, "cannot be written");
  }
}

}  // namespace keysieve::bench
