// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "io/safetensors.hpp"
#include "io/text.hpp"

namespace keysieve {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

/// The header, padded with spaces so that the data starts at a multiple of 8.
std::string make_header(const std::vector<FileTensor>& tensors, const FileMetadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  size_t offset = 0;
  for (const FileTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", file_dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

bool write_all(std::FILE* file, const void* data, size_t bytes) {
  return bytes == 0 || std::fwrite(data, 1, bytes, file) == bytes;
}

bool write_file(std::FILE* file, const std::string& header, const std::vector<FileTensor>& tensors) {
  unsigned char length[8];
  for (size_t i = 0; i < 8; ++i) {
    length[i] = static_cast<unsigned char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  }
  return write_all(file, length, sizeof(length)) && write_all(file, header.data(), header.size()) &&
         std::all_of(tensors.begin(), tensors.end(),
                     [file](const FileTensor& tensor) { return write_all(file, tensor.data, tensor.bytes); }) &&
         std::fflush(file) == 0;
}

}  // namespace

Status write_safetensors(const std::string& path, std::vector<FileTensor> tensors, const FileMetadata& metadata) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const FileTensor& a, const FileTensor& b) {
    return file_dtype_bytes(a.dtype) > file_dtype_bytes(b.dtype);
  });
  const std::string partial = path + ".partial";
  const auto write_error = [&path] {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s: cannot be written: %s", printable(path, 200).c_str(),
                         std::strerror(errno));
  };
  std::unique_ptr<std::FILE, CloseFile> file(std::fopen(partial.c_str(), "wb"));
  if (file == nullptr) {
    return write_error();
  }
  bool written = write_file(file.get(), make_header(tensors, metadata), tensors);
  written = std::fclose(file.release()) == 0 && written;
  if (!written || std::rename(partial.c_str(), path.c_str()) != 0) {
    const Status status = write_error();
    std::remove(partial.c_str());
    return status;
  }
  return {};
}

}  // namespace keysieve
