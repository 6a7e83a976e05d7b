// SPDX-License-Identifier: Apache-2.0
// C++20 over the C ABI of keysieve.h, header only: typed views, defaults that are set, errors that throw.
//
//     keysieve::Problem problem;                       // keysieve_problem with struct_size set
//     problem.num_rows = T; ...
//     keysieve::Tensors tensors;
//     tensors.q = keysieve::view<keysieve::e4m3>(q, {T, H, D});
//     tensors.indices = keysieve::view(indices, {T, K});
//     keysieve::Workspace workspace(problem);          // host memory of the preferred size
//     workspace.attach(tensors);
//     keysieve::run(problem, tensors);
//
// Every function that can fail throws keysieve::Error.  Shapes, dtypes and rules are those of keysieve.h.
#ifndef KEYSIEVE_KEYSIEVE_HPP_
#define KEYSIEVE_KEYSIEVE_HPP_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "keysieve/keysieve.h"

namespace keysieve {
// Its own symbols: the library has a keysieve::Problem too, and a program may hold both.
inline namespace wrapper {

/// Thrown for every status but KEYSIEVE_OK; what() is keysieve_last_message().
class Error : public std::runtime_error {
 public:
  Error(keysieve_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  [[nodiscard]] keysieve_status status() const noexcept { return status_; }

 private:
  keysieve_status status_;
};

inline void check(keysieve_status status) {
  if (status != KEYSIEVE_OK) {
    throw Error(status, std::string(keysieve_status_string(status)) + ": " + keysieve_last_message());
  }
}

// Storage types of the formats that C++ has no type for.
struct e4m3 {
  std::uint8_t bits;
};
struct bf16 {
  std::uint16_t bits;
};

template <typename T>
constexpr std::int32_t dtype_of() {
  using Value = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Value, e4m3>) {
    return KEYSIEVE_E4M3;
  } else if constexpr (std::is_same_v<Value, bf16>) {
    return KEYSIEVE_BF16;
  } else if constexpr (std::is_same_v<Value, float>) {
    return KEYSIEVE_F32;
  } else if constexpr (std::is_same_v<Value, std::uint8_t>) {
    return KEYSIEVE_U8;
  } else if constexpr (std::is_same_v<Value, std::int32_t>) {
    return KEYSIEVE_I32;
  } else {
    static_assert(std::is_same_v<Value, std::uint64_t>, "not a dtype of keysieve");
    return KEYSIEVE_U64;
  }
}

/// View of `data` with any strides (in elements); no strides given: contiguous.
inline keysieve_tensor view_of(void* data, std::int32_t dtype, std::span<const std::int64_t> shape,
                               std::span<const std::int64_t> strides = {}) {
  if (shape.empty() || shape.size() > KEYSIEVE_MAX_RANK || (!strides.empty() && strides.size() != shape.size())) {
    throw Error(KEYSIEVE_INVALID_ARGUMENT, "a view has " + std::to_string(shape.size()) + " axes and " +
                                               std::to_string(strides.size()) +
                                               " strides, expected 1..4 axes and as many strides or none");
  }
  keysieve_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    tensor.shape[axis] = shape[axis];
    tensor.stride[axis] = strides.empty() ? stride : strides[axis];
    stride *= shape[axis];
  }
  return tensor;
}

template <typename T>
keysieve_tensor view(T* data, std::initializer_list<std::int64_t> shape,
                     std::initializer_list<std::int64_t> strides = {}) {
  return view_of(const_cast<std::remove_cv_t<T>*>(data), dtype_of<T>(), {shape.begin(), shape.size()},
                 {strides.begin(), strides.size()});
}

/// One-dimensional view of a span.
template <typename T>
keysieve_tensor view(std::span<T> data) {
  return view(data.data(), {static_cast<std::int64_t>(data.size())});
}

// The structs of keysieve.h with struct_size set and everything else 0, which is every field's default.
struct Problem : keysieve_problem {
  Problem() : keysieve_problem{} { struct_size = sizeof(keysieve_problem); }
};
struct Options : keysieve_options {
  Options() : keysieve_options{} { struct_size = sizeof(keysieve_options); }
};
struct Tensors : keysieve_tensors {
  Tensors() : keysieve_tensors{} { struct_size = sizeof(keysieve_tensors); }
};

struct WorkspaceSizes {
  std::size_t min_bytes = 0;
  std::size_t preferred_bytes = 0;
};

inline WorkspaceSizes workspace_size(const keysieve_problem& problem, const keysieve_options* options = nullptr) {
  WorkspaceSizes sizes;
  check(keysieve_workspace_size(&problem, options, &sizes.min_bytes, &sizes.preferred_bytes));
  return sizes;
}

/// Host memory for a call on CPU tensors.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : bytes_(bytes), data_(std::make_unique<std::byte[]>(bytes)) {}
  explicit Workspace(const keysieve_problem& problem, const keysieve_options* options = nullptr)
      : Workspace(workspace_size(problem, options).preferred_bytes) {}

  void attach(keysieve_tensors& tensors) const {
    tensors.workspace = data_.get();
    tensors.workspace_bytes = bytes_;
  }

 private:
  std::size_t bytes_;
  std::unique_ptr<std::byte[]> data_;
};

/// Empty if the problem is supported, else the reason.
inline std::string unsupported_reason(const keysieve_problem& problem, const keysieve_options* options = nullptr) {
  return keysieve_supported(&problem, options) == KEYSIEVE_OK ? std::string() : keysieve_last_message();
}

inline std::string explain(const keysieve_problem& problem, const keysieve_options* options = nullptr) {
  char text[512];
  check(keysieve_explain(&problem, options, text, sizeof(text)));
  return text;
}

inline std::vector<keysieve_backend_info> backends() {
  std::vector<keysieve_backend_info> list(static_cast<std::size_t>(keysieve_backend_count()));
  for (std::size_t i = 0; i < list.size(); ++i) {
    list[i] = {};
    list[i].struct_size = sizeof(keysieve_backend_info);
    check(keysieve_get_backend(static_cast<std::int32_t>(i), &list[i]));
  }
  return list;
}

inline void run(const keysieve_problem& problem, const keysieve_tensors& tensors,
                const keysieve_options* options = nullptr, void* stream = nullptr) {
  check(keysieve_run(&problem, options, &tensors, stream));
}

}  // namespace wrapper
}  // namespace keysieve

#endif  // KEYSIEVE_KEYSIEVE_HPP_
