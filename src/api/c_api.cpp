// SPDX-License-Identifier: Apache-2.0
// The C ABI: reads structs, picks a backend, keeps the message of the last failure.
#include <cstring>

#include "api/validate.hpp"
#include "core/backend.hpp"

#define KEYSIEVE_STRINGIFY_(x) #x
#define KEYSIEVE_STRINGIFY(x) KEYSIEVE_STRINGIFY_(x)

namespace keysieve {
namespace {

thread_local Status last_status;

keysieve_status report(const Status& status) noexcept {
  last_status = status;
  return status.code();
}

const char* device_name(DeviceType type) {
  return type == DeviceType::kCuda ? "cuda" : "cpu";
}

Status check_backend(const Backend& backend, const Problem& problem, const Options& options) noexcept {
  KEYSIEVE_RETURN_IF_ERROR(backend.available());
  return backend.supports(problem, options);
}

Status find_named_backend(const Problem& problem, const Options& options, const Backend*& out) noexcept {
  char names[256] = "";
  size_t used = 0;
  for (const Backend* backend : backends()) {
    if (std::strcmp(backend->name(), options.backend) == 0) {
      if (backend->device_type() != problem.device_type) {
        return Status::error(KEYSIEVE_INVALID_ARGUMENT, "options.backend is \"%s\", expected a backend for %s tensors",
                             options.backend, device_name(problem.device_type));
      }
      out = backend;
      return check_backend(*backend, problem, options);
    }
    used += std::snprintf(names + used, sizeof(names) - used, used == 0 ? "%s" : ", %s", backend->name());
  }
  return Status::error(KEYSIEVE_UNAVAILABLE, "options.backend is \"%s\", expected one of %s", options.backend, names);
}

/// The first backend that takes the problem; if none does, the reason of the first for its device.
Status find_backend(const Problem& problem, const Options& options, const Backend*& out) noexcept {
  if (options.backend != nullptr) {
    return find_named_backend(problem, options, out);
  }
  Status reason = Status::error(KEYSIEVE_UNAVAILABLE, "no backend for %s tensors is built into this library",
                                device_name(problem.device_type));
  bool found = false;
  for (const Backend* backend : backends()) {
    if (backend->device_type() != problem.device_type) {
      continue;
    }
    const Status status = check_backend(*backend, problem, options);
    if (status.ok()) {
      out = backend;
      return {};
    }
    if (!found) {
      reason = status;
      found = true;
    }
  }
  return reason;
}

/// A checked problem and the backend that takes it.
struct Plan {
  Problem problem;
  Options options;
  const Backend* backend = &reference_backend();
};

/// What every entry point does first.
Status make_plan(const keysieve_problem* problem, const keysieve_options* options, Plan& plan) noexcept {
  KEYSIEVE_RETURN_IF_ERROR(validate_problem(problem, plan.problem));
  KEYSIEVE_RETURN_IF_ERROR(validate_options(options, plan.options));
  return find_backend(plan.problem, plan.options, plan.backend);
}

Status run(const keysieve_problem* problem, const keysieve_options* options, const keysieve_tensors* tensors,
           void* stream) noexcept {
  Plan plan;
  KEYSIEVE_RETURN_IF_ERROR(make_plan(problem, options, plan));
  Call call;
  call.problem = plan.problem;
  call.options = plan.options;
  call.stream = stream;
  const WorkspaceSize workspace = plan.backend->workspace_size(call.problem, call.options);
  KEYSIEVE_RETURN_IF_ERROR(validate_tensors(tensors, call.problem, workspace.min_bytes, call));
  if (call.problem.device_type == DeviceType::kCpu && stream != nullptr) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "stream is %p, expected null for cpu tensors", stream);
  }
  if (call.problem.num_rows == 0) {
    return {};
  }
  return plan.backend->run(call);
}

}  // namespace
}  // namespace keysieve

using keysieve::report;
using keysieve::Status;

extern "C" {

int32_t keysieve_version(void) {
  return KEYSIEVE_VERSION_MAJOR * 10000 + KEYSIEVE_VERSION_MINOR * 100 + KEYSIEVE_VERSION_PATCH;
}

const char* keysieve_version_string(void) {
  return KEYSIEVE_STRINGIFY(KEYSIEVE_VERSION_MAJOR) "." KEYSIEVE_STRINGIFY(
      KEYSIEVE_VERSION_MINOR) "." KEYSIEVE_STRINGIFY(KEYSIEVE_VERSION_PATCH);
}

const char* keysieve_status_string(int32_t status) {
  switch (status) {
    case KEYSIEVE_OK: return "ok";
    case KEYSIEVE_INVALID_ARGUMENT: return "invalid argument";
    case KEYSIEVE_UNSUPPORTED: return "unsupported";
    case KEYSIEVE_WORKSPACE_TOO_SMALL: return "workspace too small";
    case KEYSIEVE_UNAVAILABLE: return "unavailable";
    case KEYSIEVE_DEVICE_ERROR: return "device error";
    case KEYSIEVE_INTERNAL: return "internal error";
    default: return "unknown status";
  }
}

const char* keysieve_last_message(void) {
  return keysieve::last_status.message();
}

int32_t keysieve_backend_count(void) {
  return keysieve::backends().size();
}

keysieve_status keysieve_get_backend(int32_t index, keysieve_backend_info* info) {
  keysieve_backend_info out = {};
  if (const Status status = keysieve::read_struct(info, "info", sizeof(out), out); !status.ok()) {
    return report(status);
  }
  const keysieve::BackendList list = keysieve::backends();
  if (index < 0 || index >= list.size()) {
    return report(Status::error(KEYSIEVE_INVALID_ARGUMENT, "index is %d, expected 0..%d", index, list.size() - 1));
  }
  const keysieve::Backend& backend = *list.begin()[index];
  const Status available = backend.available();
  info->device_type = static_cast<int32_t>(backend.device_type());
  info->available = available.ok() ? 1 : 0;
  std::snprintf(info->name, sizeof(info->name), "%s", backend.name());
  if (available.ok()) {
    backend.describe(info->detail, sizeof(info->detail));
  } else {
    std::snprintf(info->detail, sizeof(info->detail), "%.*s", static_cast<int>(sizeof(info->detail)) - 1,
                  available.message());
  }
  return report({});
}

keysieve_status keysieve_supported(const keysieve_problem* problem, const keysieve_options* options) {
  keysieve::Plan plan;
  return report(keysieve::make_plan(problem, options, plan));
}

keysieve_status keysieve_workspace_size(const keysieve_problem* problem, const keysieve_options* options,
                                        size_t* min_bytes, size_t* preferred_bytes) {
  keysieve::Plan plan;
  const Status status = keysieve::make_plan(problem, options, plan);
  keysieve::WorkspaceSize size;
  if (status.ok()) {
    size = plan.backend->workspace_size(plan.problem, plan.options);
  }
  if (min_bytes != nullptr) {
    *min_bytes = size.min_bytes;
  }
  if (preferred_bytes != nullptr) {
    *preferred_bytes = size.preferred_bytes;
  }
  return report(status);
}

keysieve_status keysieve_explain(const keysieve_problem* problem, const keysieve_options* options, char* text,
                                 size_t capacity) {
  if (text == nullptr || capacity == 0) {
    return report(Status::error(KEYSIEVE_INVALID_ARGUMENT, "text is %p with capacity %zu, expected a buffer",
                                static_cast<void*>(text), capacity));
  }
  text[0] = '\0';
  keysieve::Plan plan;
  const Status status = keysieve::make_plan(problem, options, plan);
  if (status.ok()) {
    plan.backend->explain(plan.problem, plan.options, text, capacity);
  }
  return report(status);
}

keysieve_status keysieve_run(const keysieve_problem* problem, const keysieve_options* options,
                             const keysieve_tensors* tensors, void* stream) {
  return report(keysieve::run(problem, options, tensors, stream));
}

}  // extern "C"
