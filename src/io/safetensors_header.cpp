// SPDX-License-Identifier: Apache-2.0
// A streaming parser: unlike a tree it sees duplicate names, and it cannot be driven into deep recursion.
#include "io/safetensors_header.hpp"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "io/text.hpp"

namespace keysieve {
namespace {

struct DtypeRow {
  FileDtype dtype;
  const char* name;
  size_t bytes;
};
constexpr DtypeRow kDtypes[] = {
    {FileDtype::kBool, "BOOL", 1},      {FileDtype::kU8, "U8", 1},          {FileDtype::kI8, "I8", 1},
    {FileDtype::kF8E5M2, "F8_E5M2", 1}, {FileDtype::kF8E4M3, "F8_E4M3", 1}, {FileDtype::kF8E8M0, "F8_E8M0", 1},
    {FileDtype::kI16, "I16", 2},        {FileDtype::kU16, "U16", 2},        {FileDtype::kF16, "F16", 2},
    {FileDtype::kBf16, "BF16", 2},      {FileDtype::kI32, "I32", 4},        {FileDtype::kU32, "U32", 4},
    {FileDtype::kF32, "F32", 4},        {FileDtype::kI64, "I64", 8},        {FileDtype::kU64, "U64", 8},
    {FileDtype::kF64, "F64", 8},
};

const DtypeRow& dtype_row(FileDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)];
}

std::string dtype_list() {
  std::string list;
  for (const DtypeRow& row : kDtypes) {
    list += (list.empty() ? "" : ", ") + std::string(row.name);
  }
  return list;
}

class HeaderReader {
 public:
  explicit HeaderReader(Header* header) : header_(header) {}

  [[nodiscard]] const Status& status() const { return status_; }

  // The interface that nlohmann::json::sax_parse calls; false stops it.
  bool null() { return value_of_wrong_kind("null"); }
  bool boolean(bool) { return value_of_wrong_kind("a boolean"); }
  bool number_integer(int64_t) { return value_of_wrong_kind("a negative number"); }
  bool number_float(double, const std::string&) { return value_of_wrong_kind("a number that is not an integer"); }
  bool binary(nlohmann::json::binary_t&) { return value_of_wrong_kind("binary data"); }

  bool number_unsigned(uint64_t value) {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return fail(invalid_argument("tensor %s: dimension %llu of its shape is larger than 2^63 - 1", tensor().c_str(),
                                     static_cast<unsigned long long>(value)));
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (num_offsets_ == 2) {
        return fail(invalid_argument("tensor %s: data_offsets has more than two numbers", tensor().c_str()));
      }
      (num_offsets_ == 0 ? entry_.begin : entry_.end) = value;
      ++num_offsets_;
      return true;
    }
    return value_of_wrong_kind("a number");
  }

  bool string(std::string& text) {
    if (place_ == Place::kMetadata) {
      header_->metadata.emplace(key_, std::move(text));
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") {
      return value_of_wrong_kind("a string");
    }
    for (const DtypeRow& row : kDtypes) {
      if (text == row.name) {
        entry_.dtype = row.dtype;
        return true;
      }
    }
    return fail(invalid_argument("tensor %s: unknown dtype %s; known are %s", tensor().c_str(),
                                 printable(text, 24).c_str(), dtype_list().c_str()));
  }

  bool start_object(size_t) {
    switch (place_) {
      case Place::kOutside: place_ = Place::kTop; return true;
      case Place::kTop:
        fields_.clear();
        if (key_ == "__metadata__") {
          place_ = Place::kMetadata;
        } else {
          place_ = Place::kTensor;
          entry_ = HeaderEntry{};
          entry_.name = key_;
        }
        return true;
      default: return value_of_wrong_kind("an object");
    }
  }

  bool key(std::string& name) {
    if (place_ == Place::kTop && !names_.insert(name).second) {
      return fail(invalid_argument("header: the name %s occurs twice", printable(name).c_str()));
    }
    if (place_ != Place::kTop && !fields_.insert(name).second) {
      return place_ == Place::kMetadata
                 ? fail(invalid_argument("header: __metadata__ holds %s twice", printable(name).c_str()))
                 : fail(
                       invalid_argument("tensor %s: field %s occurs twice", tensor().c_str(), printable(name).c_str()));
    }
    if (place_ == Place::kTensor && name != "dtype" && name != "shape" && name != "data_offsets") {
      return fail(invalid_argument("tensor %s: unknown field %s; expected dtype, shape and data_offsets",
                                   tensor().c_str(), printable(name).c_str()));
    }
    key_ = std::move(name);
    return true;
  }

  bool end_object() {
    switch (place_) {
      case Place::kTensor:
        for (const char* field : {"dtype", "shape", "data_offsets"}) {
          if (fields_.count(field) == 0) {
            return fail(invalid_argument("tensor %s: field %s is missing", tensor().c_str(), field));
          }
        }
        header_->entries.push_back(std::move(entry_));
        place_ = Place::kTop;
        return true;
      case Place::kMetadata: place_ = Place::kTop; return true;
      default: place_ = Place::kOutside; return true;
    }
  }

  bool start_array(size_t) {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      num_offsets_ = 0;
      return true;
    }
    return value_of_wrong_kind("an array");
  }

  bool end_array() {
    if (place_ == Place::kOffsets && num_offsets_ != 2) {
      return fail(
          invalid_argument("tensor %s: data_offsets has %d numbers, expected two", tensor().c_str(), num_offsets_));
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    return fail(invalid_argument("header: not valid JSON near byte %zu of it", position));
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets };

  [[nodiscard]] std::string tensor() const { return printable(entry_.name); }

  bool fail(const Status& status) {
    status_ = status;
    return false;
  }

  bool value_of_wrong_kind(const char* got) {
    switch (place_) {
      case Place::kOutside: return fail(invalid_argument("header: its top is %s, expected an object", got));
      case Place::kTop:
        return fail(invalid_argument("header: %s is %s, expected an object", printable(key_).c_str(), got));
      case Place::kMetadata:
        return fail(invalid_argument("header: __metadata__ %s is %s, expected a string", printable(key_).c_str(), got));
      case Place::kShape: return fail(invalid_argument("tensor %s: its shape holds %s", tensor().c_str(), got));
      case Place::kOffsets: return fail(invalid_argument("tensor %s: data_offsets holds %s", tensor().c_str(), got));
      case Place::kTensor: break;
    }
    return fail(invalid_argument("tensor %s: %s is %s, expected %s", tensor().c_str(), key_.c_str(), got,
                                 key_ == "dtype" ? "a string" : "an array"));
  }

  Header* header_;
  Status status_;
  Place place_ = Place::kOutside;
  std::string key_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  HeaderEntry entry_;
  int num_offsets_ = 0;
};

}  // namespace

const char* file_dtype_name(FileDtype dtype) {
  return dtype_row(dtype).name;
}
size_t file_dtype_bytes(FileDtype dtype) {
  return dtype_row(dtype).bytes;
}

Status parse_header(std::string_view json, Header* header) {
  // The JSON library takes a zero byte for the end of its input; whatever follows would go unread.
  if (const size_t zero = json.find('\0'); zero != std::string_view::npos) {
    return invalid_argument("header: zero byte at byte %zu of it", zero);
  }
  HeaderReader reader(header);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader) && reader.status().ok()) {
    return Status::error(KEYSIEVE_INVALID_ARGUMENT, "header: not valid JSON");
  }
  return reader.status();
}

}  // namespace keysieve
