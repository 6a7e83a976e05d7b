// SPDX-License-Identifier: Apache-2.0
#include "io/replay.hpp"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <utility>

#include "io/text.hpp"

namespace keysieve {
namespace {

constexpr int64_t kMaxAxis = std::numeric_limits<int32_t>::max();

std::string describe(const FileTensor& tensor) {
  return std::string(file_dtype_name(tensor.dtype)) + " " + shape_text(tensor.shape);
}

Status require(const Safetensors& file, const char* name, const char* expected, const FileTensor** tensor) {
  *tensor = file.find(name);
  if (*tensor == nullptr) {
    return invalid_argument("replay: tensor %s is missing; expected %s", name, expected);
  }
  return {};
}

/// What a tensor must be: one of `dtypes`, of exactly this shape; `axes` names the shape, such as "[Q,H]".
struct Expected {
  const char* name;
  std::initializer_list<FileDtype> dtypes;
  std::vector<int64_t> shape;
  const char* axes;
};

Status check(const FileTensor& tensor, const Expected& expected) {
  if (std::find(expected.dtypes.begin(), expected.dtypes.end(), tensor.dtype) == expected.dtypes.end()) {
    std::string list;
    for (const FileDtype dtype : expected.dtypes) {
      list += (list.empty() ? "" : " or ") + std::string(file_dtype_name(dtype));
    }
    return invalid_argument("replay: %s is %s, expected %s", expected.name, describe(tensor).c_str(), list.c_str());
  }
  if (tensor.shape != expected.shape) {
    return invalid_argument("replay: %s is %s, expected shape %s = %s", expected.name, describe(tensor).c_str(),
                            expected.axes, shape_text(expected.shape).c_str());
  }
  return {};
}

keysieve_tensor view_of(const FileTensor& tensor, int32_t dtype) {
  keysieve_tensor view = {};
  view.data = const_cast<std::byte*>(tensor.data);  // inputs are never written through a view
  view.dtype = dtype;
  view.rank = static_cast<int32_t>(tensor.shape.size());
  int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.shape[axis] = tensor.shape[static_cast<size_t>(axis)];
    view.stride[axis] = stride;
    stride *= std::max<int64_t>(view.shape[axis], 1);
  }
  return view;
}

Status take_queries(Replay* replay) {
  const FileTensor* q = nullptr;
  KEYSIEVE_RETURN_IF_ERROR(require(replay->file, "q", "F8_E4M3 or BF16 [Q,H,D]", &q));
  if (q->shape.size() != 3) {
    return invalid_argument("replay: q is %s, expected three dimensions [Q,H,D]", describe(*q).c_str());
  }
  if (q->dtype != FileDtype::kF8E4M3 && q->dtype != FileDtype::kBf16) {
    return invalid_argument("replay: q is %s, expected F8_E4M3 or BF16", describe(*q).c_str());
  }
  if (q->shape[1] < 1 || q->shape[2] < 1 || *std::max_element(q->shape.begin(), q->shape.end()) > kMaxAxis) {
    return invalid_argument("replay: q is %s, expected Q >= 0, H >= 1, D >= 1, each below 2^31", describe(*q).c_str());
  }
  replay->num_rows = q->shape[0];
  replay->num_heads = q->shape[1];
  replay->head_dim = q->shape[2];
  replay->q_dtype = q->dtype == FileDtype::kBf16 ? KEYSIEVE_BF16 : KEYSIEVE_E4M3;
  replay->q = view_of(*q, replay->q_dtype);
  return {};
}

Status take_keys(Replay* replay) {
  const FileTensor* k = nullptr;
  KEYSIEVE_RETURN_IF_ERROR(require(replay->file, "k", "F8_E4M3 or BF16 [N,D] or U8 [N,D/2]", &k));
  if (k->shape.size() != 2 || k->shape[0] > kMaxAxis) {
    return invalid_argument("replay: k is %s, expected two dimensions [N,D], N below 2^31", describe(*k).c_str());
  }
  replay->num_keys = k->shape[0];
  const bool bf16 = replay->q_dtype == KEYSIEVE_BF16;
  const bool mxfp4 = k->dtype == FileDtype::kU8 && !bf16;
  if (mxfp4 && replay->head_dim % 32 != 0) {
    return invalid_argument("replay: D = %lld with MXFP4 keys (k is U8), expected a multiple of 32",
                            static_cast<long long>(replay->head_dim));
  }
  const int64_t columns = mxfp4 ? replay->head_dim / 2 : replay->head_dim;
  const char* axes = mxfp4 ? "[N,D/2]" : "[N,D]";
  if (bf16) {
    KEYSIEVE_RETURN_IF_ERROR(check(*k, {"k", {FileDtype::kBf16}, {replay->num_keys, columns}, axes}));
  } else {
    KEYSIEVE_RETURN_IF_ERROR(check(*k, {"k", {FileDtype::kF8E4M3, FileDtype::kU8}, {replay->num_keys, columns}, axes}));
  }
  replay->k_dtype = bf16 ? KEYSIEVE_BF16 : mxfp4 ? KEYSIEVE_MXFP4 : KEYSIEVE_E4M3;
  replay->k = view_of(*k, mxfp4 ? KEYSIEVE_U8 : replay->k_dtype);
  return {};
}

Status take_key_scales(Replay* replay) {
  const FileTensor* scale = replay->file.find("k_scale");
  if (replay->k_dtype == KEYSIEVE_BF16) {
    return scale == nullptr ? Status{} : invalid_argument("replay: k_scale is given, but BF16 keys have none");
  }
  const bool mxfp4 = replay->k_dtype == KEYSIEVE_MXFP4;
  KEYSIEVE_RETURN_IF_ERROR(require(replay->file, "k_scale", mxfp4 ? "U8 [N,D/32]" : "F32 [N]", &scale));
  if (mxfp4) {
    KEYSIEVE_RETURN_IF_ERROR(check(
        *scale,
        {"k_scale", {FileDtype::kU8, FileDtype::kF8E8M0}, {replay->num_keys, replay->head_dim / 32}, "[N,D/32]"}));
  } else {
    KEYSIEVE_RETURN_IF_ERROR(check(*scale, {"k_scale", {FileDtype::kF32}, {replay->num_keys}, "[N]"}));
  }
  replay->k_scale = view_of(*scale, mxfp4 ? KEYSIEVE_U8 : KEYSIEVE_F32);
  return {};
}

Status take_weights(Replay* replay) {
  const FileTensor* weights = nullptr;
  KEYSIEVE_RETURN_IF_ERROR(require(replay->file, "weights", "F32 [Q,H]", &weights));
  KEYSIEVE_RETURN_IF_ERROR(
      check(*weights, {"weights", {FileDtype::kF32}, {replay->num_rows, replay->num_heads}, "[Q,H]"}));
  replay->weights = view_of(*weights, KEYSIEVE_F32);
  return {};
}

Status take_optional_row_values(Replay* replay, const char* name, keysieve_tensor* view) {
  const FileTensor* tensor = replay->file.find(name);
  if (tensor == nullptr) {
    return {};
  }
  KEYSIEVE_RETURN_IF_ERROR(check(*tensor, {name, {FileDtype::kI32}, {replay->num_rows}, "[Q]"}));
  *view = view_of(*tensor, KEYSIEVE_I32);
  return {};
}

Status take_slot_table(Replay* replay) {
  const FileTensor* table = replay->file.find("slot_table");
  if (table == nullptr) {
    return {};
  }
  if (table->dtype != FileDtype::kI32 || table->shape.size() != 2 || table->shape[0] > kMaxAxis ||
      table->shape[1] > kMaxAxis) {
    return invalid_argument("replay: slot_table is %s, expected I32 [B,P], each below 2^31", describe(*table).c_str());
  }
  const auto entry = replay->file.metadata().find("slot_page_size");
  if (entry == replay->file.metadata().end()) {
    return invalid_argument("replay: slot_table is given, but the metadata has no slot_page_size");
  }
  const std::string& text = entry->second;
  int32_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc{} || end != text.data() + text.size() || size < 1 || (size & (size - 1)) != 0) {
    return invalid_argument("replay: slot_page_size is %s, expected a power of two", printable(text).c_str());
  }
  replay->slot_page_size = size;
  replay->slot_table = view_of(*table, KEYSIEVE_I32);
  return {};
}

}  // namespace

keysieve_tensor make_view(const void* data, int32_t dtype, std::initializer_list<int64_t> shape) {
  FileTensor tensor;
  tensor.shape = shape;
  tensor.data = static_cast<const std::byte*>(data);
  return view_of(tensor, dtype);
}

Status make_replay(Safetensors file, Replay* replay) {
  Replay checked;
  checked.file = std::move(file);
  KEYSIEVE_RETURN_IF_ERROR(take_queries(&checked));
  KEYSIEVE_RETURN_IF_ERROR(take_keys(&checked));
  KEYSIEVE_RETURN_IF_ERROR(take_key_scales(&checked));
  KEYSIEVE_RETURN_IF_ERROR(take_weights(&checked));
  KEYSIEVE_RETURN_IF_ERROR(take_optional_row_values(&checked, "row_start", &checked.row_start));
  KEYSIEVE_RETURN_IF_ERROR(take_optional_row_values(&checked, "row_end", &checked.row_end));
  KEYSIEVE_RETURN_IF_ERROR(take_optional_row_values(&checked, "row_request", &checked.row_request));
  KEYSIEVE_RETURN_IF_ERROR(take_optional_row_values(&checked, "out_offset", &checked.out_offset));
  KEYSIEVE_RETURN_IF_ERROR(take_slot_table(&checked));
  *replay = std::move(checked);
  return {};
}

Status open_replay(const std::string& path, Replay* replay) {
  Safetensors file;
  KEYSIEVE_RETURN_IF_ERROR(Safetensors::open(path, &file));
  if (const Status status = make_replay(std::move(file), replay); !status.ok()) {
    return invalid_argument("%s: %s", printable(path, 200).c_str(), status.message());
  }
  return {};
}

}  // namespace keysieve
