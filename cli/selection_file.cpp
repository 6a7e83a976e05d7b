// SPDX-License-Identifier: Apache-2.0
#include "selection_file.hpp"

#include <cstring>
#include <fmt/format.h>

#include "build_info.hpp"
#include "failure.hpp"
#include "io/text.hpp"
#include "verbs.hpp"

namespace keysieve::cli {
namespace {

template <typename T>
FileTensor file_tensor(const char* name, FileDtype dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  return {name, dtype, std::move(shape), reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

std::string metadata_value(const Safetensors& file, const char* name) {
  const auto found = file.metadata().find(name);
  return found == file.metadata().end() ? "" : found->second;
}

/// The [T,K] tensor of that name; K is set by the first one.
const FileTensor& table_tensor(const Safetensors& file, const std::string& path, const char* name, FileDtype dtype,
                               int64_t num_rows) {
  const FileTensor* tensor = file.find(name);
  if (tensor == nullptr) {
    throw Failure(kExitBadInput, path, fmt::format("tensor {} is missing; not a saved selection?", name));
  }
  if (tensor->dtype != dtype || tensor->shape.size() != 2 || tensor->shape[0] != num_rows || tensor->shape[1] < 1) {
    throw Failure(kExitBadInput, path,
                  fmt::format("{} is {} {}, expected {} [{},K]", name, file_dtype_name(tensor->dtype),
                              shape_text(tensor->shape), file_dtype_name(dtype), num_rows));
  }
  return *tensor;
}

template <typename T>
std::vector<T> values_of(const FileTensor& tensor) {
  std::vector<T> values(tensor.bytes / sizeof(T));
  if (!values.empty()) {
    std::memcpy(values.data(), tensor.data, tensor.bytes);
  }
  return values;
}

}  // namespace

void save_selection(const std::string& path, const Selection& selection, const Session& session,
                    const std::string& source) {
  const std::vector<int64_t> shape = {selection.num_rows, selection.topk};
  std::vector<FileTensor> tensors = {file_tensor("indices", FileDtype::kI32, shape, selection.indices),
                                     file_tensor("scores", FileDtype::kF32, shape, selection.scores),
                                     file_tensor("count", FileDtype::kI32, {selection.num_rows}, selection.counts)};
  const RunOptions& options = session.options();
  if (options.index_space != KEYSIEVE_INDEX_ROW) {
    tensors.push_back(file_tensor("row_indices", FileDtype::kI32, shape, selection.row_indices));
  }
  const FileMetadata metadata = {{"producer", std::string("keysieve ") + keysieve_version_string()},
                                 {"commit", kBuildInfo.commit},
                                 {"source", source},
                                 {"backend", session.backend().name},
                                 {"config", session.explain()},
                                 {"topk", std::to_string(selection.topk)},
                                 {"index_space", index_space_name(options.index_space)},
                                 {"order", order_name(options.order)}};
  if (const Status status = write_safetensors(path, std::move(tensors), metadata); !status.ok()) {
    throw Failure(kExitFault, "output", status.message());
  }
}

SavedSelection load_selection(const std::string& path, const Replay& replay, int32_t index_space) {
  Safetensors file;
  require_ok("saved selection", Safetensors::open(path, &file));
  if (const std::string space = metadata_value(file, "index_space"); !space.empty()) {
    index_space = index_space_of(space);
  }
  const bool given = file.find("row_indices") != nullptr;
  if (!given && index_space != KEYSIEVE_INDEX_ROW && index_space != KEYSIEVE_INDEX_ABSOLUTE) {
    throw Failure(kExitBadInput, path, "has no row_indices, and its index space is neither row nor absolute");
  }
  const FileTensor& indices =
      table_tensor(file, path, given ? "row_indices" : "indices", FileDtype::kI32, replay.num_rows);
  SavedSelection saved;
  saved.backend = metadata_value(file, "backend");
  saved.order = order_of(metadata_value(file, "order"));
  saved.order = saved.order < 0 ? int32_t{KEYSIEVE_ORDER_ANY} : saved.order;
  Selection& selection = saved.selection;
  selection.num_rows = replay.num_rows;
  selection.topk = indices.shape[1];
  selection.row_indices = values_of<int32_t>(indices);
  if (file.find("scores") != nullptr) {
    const FileTensor& scores = table_tensor(file, path, "scores", FileDtype::kF32, replay.num_rows);
    if (scores.shape != indices.shape) {
      throw Failure(kExitBadInput, path, "scores and indices differ in shape");
    }
    selection.scores = values_of<float>(scores);
  }
  for (int64_t t = 0; t < selection.num_rows && !given && index_space == KEYSIEVE_INDEX_ABSOLUTE; ++t) {
    const int64_t begin = key_range(replay, t).begin;
    for (int64_t k = 0; k < selection.topk; ++k) {
      int32_t& index = selection.row_indices[static_cast<size_t>(t * selection.topk + k)];
      if (index != -1) {  // a key before the row's first must not turn into padding
        index = index < begin ? -2 : static_cast<int32_t>(index - begin);
      }
    }
  }
  return saved;
}

}  // namespace keysieve::cli
