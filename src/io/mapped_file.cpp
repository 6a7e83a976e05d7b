// SPDX-License-Identifier: Apache-2.0
#include "io/mapped_file.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "io/text.hpp"

namespace keysieve {
namespace {

Status file_error(const std::string& path, const char* what) {
  return Status::error(KEYSIEVE_INVALID_ARGUMENT, "%s: %s", printable(path, 200).c_str(), what);
}

}  // namespace

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

Status MappedFile::open(const std::string& path, MappedFile* file) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return file_error(path, std::strerror(errno));
  }
  MappedFile mapped;
  Status status;
  struct stat info = {};
  if (fstat(descriptor, &info) != 0) {
    status = file_error(path, std::strerror(errno));
  } else if (!S_ISREG(info.st_mode)) {
    status = file_error(path, "not a regular file");
  } else if (info.st_size > 0) {
    mapped.size_ = static_cast<size_t>(info.st_size);
    void* data = mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED) {
      status = file_error(path, std::strerror(errno));
    } else {
      mapped.data_ = static_cast<std::byte*>(data);
    }
  }
  ::close(descriptor);
  if (status.ok()) {
    *file = std::move(mapped);
  }
  return status;
}

}  // namespace keysieve
