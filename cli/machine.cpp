// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <sys/utsname.h>
#include <thread>

namespace keysieve::cli {
namespace {

/// The kB value of a line such as "VmHWM:  1234 kB" in /proc/self/status, in bytes.
int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(name + ":", 0) == 0) {
      int64_t kilobytes = 0;
      std::istringstream(line.substr(name.size() + 1)) >> kilobytes;
      return kilobytes * 1024;
    }
  }
  return 0;
}

}  // namespace

std::string cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  while (std::getline(cpuinfo, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  utsname name = {};
  return uname(&name) == 0 ? name.machine : "unknown";
}

int32_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(CPU_COUNT(&set), 1);
  }
  return std::max(static_cast<int32_t>(std::thread::hardware_concurrency()), 1);
}

int64_t peak_rss_bytes() {
  return status_bytes("VmHWM");
}
int64_t current_rss_bytes() {
  return status_bytes("VmRSS");
}

bool reset_peak_rss() {
  std::ofstream refs("/proc/self/clear_refs");
  refs << "5";
  refs.flush();
  return refs.good();
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace keysieve::cli
