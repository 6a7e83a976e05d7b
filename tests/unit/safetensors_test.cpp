// SPDX-License-Identifier: Apache-2.0
// The reader takes what the format allows and gives every other file its own message.
#include "io/safetensors.hpp"

#include <gtest/gtest.h>
#include <numeric>

#include "unit/safetensors_files.hpp"

namespace keysieve {
namespace {

using testing::FileBytes;
using testing::TemporaryDirectory;

std::string message_of(const FileBytes& bytes) {
  Safetensors file;
  const Status status = Safetensors::parse(bytes.data(), bytes.size(), &file);
  EXPECT_TRUE(status.ok() || status.code() == KEYSIEVE_INVALID_ARGUMENT);
  return status.message();
}

/// A header with one tensor `a`, padded to a multiple of 8.
std::string one(const std::string& fields) {
  std::string header = "{\"a\":{" + fields + "}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  std::string header =
      R"({"__metadata__":{"layer":"3","näme":"wört"},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
      R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"e":{"dtype":"I64","shape":[0,5],"data_offsets":[8,8]},)"
      R"("s":{"dtype":"U8","shape":[],"data_offsets":[11,12]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const FileBytes bytes(header, 12);
  Safetensors file;
  const Status status = Safetensors::parse(bytes.data(), bytes.size(), &file);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.metadata().at("layer"), "3");
  EXPECT_EQ(file.metadata().at("näme"), "wört");
  const FileTensor* a = file.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, FileDtype::kF32);
  EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(a->data, bytes.data() + 8 + header.size());
  EXPECT_EQ(a->bytes, 8U);
  EXPECT_EQ(file.find("b")->data, a->data + 8);
  EXPECT_EQ(file.find("e")->bytes, 0U);
  EXPECT_EQ(file.find("s")->bytes, 1U);
  EXPECT_EQ(file.find("none"), nullptr);
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  EXPECT_EQ(message_of(FileBytes("{}      ")), "");
  EXPECT_EQ(message_of(FileBytes(R"({"__metadata__":{}})")), "");
}

struct BadHeader {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* message;
};

class SafetensorsBadHeader : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsBadHeader, HasItsOwnMessage) {
  const BadHeader& bad = GetParam();
  const std::string message = message_of(FileBytes(bad.header, bad.data_bytes));
  EXPECT_NE(message.find(bad.message), std::string::npos) << "got: " << message;
}

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsBadHeader,
    ::testing::Values(
        BadHeader{"Empty", "", 8, "does not begin with '{'"},
        BadHeader{"LeadingSpace", " {}", 0, "does not begin with '{'"},
        BadHeader{"Array", "[]", 0, "does not begin with '{'"},
        BadHeader{"NotJson", "{\"a\":", 0, "not valid JSON near byte"},
        BadHeader{"TextAfterTheEnd", "{} x", 0, "not valid JSON near byte"},
        BadHeader{"ZeroByte", std::string("{}\0", 3), 0, "zero byte at byte 2 of it"},
        BadHeader{"NotUtf8", "{\"\xff\":1}", 0, "not valid JSON near byte"},
        BadHeader{"TensorIsANumber", R"({"a":1})", 0, "header: \"a\" is a number, expected an object"},
        BadHeader{"TensorIsNull", R"({"a":null})", 0, "header: \"a\" is null, expected an object"},
        BadHeader{"MetadataIsNoText", R"({"__metadata__":{"x":1}})", 0,
                  "__metadata__ \"x\" is a number, expected a string"},
        BadHeader{"MetadataTwice", R"({"__metadata__":{"x":"1","x":"2"}})", 0, "__metadata__ holds \"x\" twice"},
        BadHeader{
            "DuplicateTensor",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2, "the name \"a\" occurs twice"},
        BadHeader{"DuplicateField", one(R"("dtype":"U8","dtype":"U8")"), 0,
                  "tensor \"a\": field \"dtype\" occurs twice"},
        BadHeader{"UnknownField", one(R"("dtype":"U8","stride":[1])"), 0, "unknown field \"stride\""},
        BadHeader{"MissingDtype", one(R"("shape":[1],"data_offsets":[0,1])"), 1, "field dtype is missing"},
        BadHeader{"MissingShape", one(R"("dtype":"U8","data_offsets":[0,1])"), 1, "field shape is missing"},
        BadHeader{"MissingOffsets", one(R"("dtype":"U8","shape":[1])"), 1, "field data_offsets is missing"},
        BadHeader{"UnknownDtype", one(R"("dtype":"F7","shape":[1],"data_offsets":[0,1])"), 1,
                  "unknown dtype \"F7\"; known are BOOL, U8"},
        BadHeader{"DtypeIsANumber", one(R"("dtype":5,"shape":[1],"data_offsets":[0,1])"), 1,
                  "dtype is a number, expected a string"},
        BadHeader{"ShapeIsANumber", one(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), 1,
                  "shape is a number, expected an array"},
        BadHeader{"NegativeShape", one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1,
                  "its shape holds a negative number"},
        BadHeader{"FractionalShape", one(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])"), 1,
                  "its shape holds a number that is not an integer"},
        BadHeader{"NestedShape", one(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])"), 1,
                  "its shape holds an array"},
        BadHeader{"HugeDimension", one(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1])"), 1,
                  "is larger than 2^63 - 1"},
        BadHeader{"SizeOverflows", one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
                  "the size of shape [4294967296, 4294967296] overflows 64 bits"},
        BadHeader{"OneOffset", one(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1, "has 1 numbers, expected two"},
        BadHeader{"ThreeOffsets", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 1,
                  "has more than two numbers"},
        BadHeader{"OffsetIsText", one(R"("dtype":"U8","shape":[1],"data_offsets":["0",1])"), 1,
                  "data_offsets holds a string"},
        BadHeader{"OffsetsReversed", one(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1,
                  "data_offsets [1, 0] end before they begin"},
        BadHeader{"OffsetsTooShort", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 8,
                  "hold 4 bytes, but F32 [2] takes 8"},
        BadHeader{"OffsetsTooLong", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"), 8,
                  "hold 8 bytes, but F32 [1] takes 4"},
        BadHeader{"Truncated", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 7,
                  "ends at byte 8 of the data, but the file has 7: truncated?"},
        BadHeader{"OffsetsAtTheEndOf64Bits",
                  one(R"("dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615])"), 1,
                  "but the file has 1: truncated?"},
        BadHeader{"BytesAfterTheLastTensor", one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), 5,
                  "the last 4 bytes of the file belong to no tensor"},
        BadHeader{"Gap", one(R"("dtype":"U8","shape":[1],"data_offsets":[2,3])"), 3,
                  "bytes [0, 2) before it belong to no tensor"},
        BadHeader{
            "Overlap",
            R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
            3, "tensor \"b\": its bytes overlap those of \"a\""},
        BadHeader{"Misaligned", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
                  "which is not aligned to F32"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, RejectsBadHeaderLengths) {
  EXPECT_NE(message_of(FileBytes(100, "{}", 0)).find("100 bytes long, but only 2 follow"), std::string::npos);
  EXPECT_NE(message_of(FileBytes(~0ULL, "{}", 0)).find("is over the limit of 100000000"), std::string::npos);
  Safetensors file;
  const FileBytes bytes("{}");
  for (size_t size = 0; size < 8; ++size) {
    const Status status = Safetensors::parse(bytes.data(), size, &file);
    EXPECT_NE(std::string(status.message()).find("too short for the 8 bytes"), std::string::npos);
  }
}

TEST(Safetensors, DeepNestingIsAnErrorAndNotAStackOverflow) {
  EXPECT_NE(message_of(FileBytes("{\"a\":" + std::string(1'000'000, '['))), "");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) {
    objects += "{\"a\":";
  }
  EXPECT_NE(message_of(FileBytes(objects)), "");
}

TEST(Safetensors, EveryTruncationOfAFileIsAnError) {
  const FileBytes bytes(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,12])"), 12);
  Safetensors file;
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Safetensors::parse(bytes.data(), size, &file).ok()) << size;
  }
  EXPECT_TRUE(Safetensors::parse(bytes.data(), bytes.size(), &file).ok());
}

TEST(Safetensors, NamesInMessagesArePrintable) {
  const std::string message = message_of(FileBytes("{\"\\u0007\xc3\xa4\\n\":1}"));
  EXPECT_NE(message.find("\"\\x07\xc3\xa4\\x0A\""), std::string::npos) << message;
}

TEST(Safetensors, WritesWhatItReads) {
  const TemporaryDirectory directory;
  std::vector<float> floats(6);
  std::iota(floats.begin(), floats.end(), 1.0F);
  const std::vector<uint8_t> bytes = {1, 2, 3};
  const std::vector<uint64_t> words = {~0ULL};
  const auto tensor = [](const char* name, FileDtype dtype, std::vector<int64_t> shape, const auto& values) {
    return FileTensor{name, dtype, std::move(shape), reinterpret_cast<const std::byte*>(values.data()),
                      values.size() * sizeof(values[0])};
  };
  const std::string path = directory.file("out.safetensors");
  const Status written =
      write_safetensors(path,
                        {tensor("bytes", FileDtype::kU8, {3}, bytes), tensor("floats", FileDtype::kF32, {2, 3}, floats),
                         tensor("words", FileDtype::kU64, {1}, words)},
                        {{"who", "tëst"}});
  ASSERT_TRUE(written.ok()) << written.message();
  Safetensors file;
  const Status read = Safetensors::open(path, &file);
  ASSERT_TRUE(read.ok()) << read.message();
  EXPECT_EQ(file.metadata().at("who"), "tëst");
  EXPECT_EQ(std::memcmp(file.find("floats")->data, floats.data(), 24), 0);
  EXPECT_EQ(std::memcmp(file.find("bytes")->data, bytes.data(), 3), 0);
  EXPECT_EQ(std::memcmp(file.find("words")->data, words.data(), 8), 0);
  EXPECT_EQ(file.find("floats")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(Safetensors, OpenNamesTheFile) {
  const TemporaryDirectory directory;
  Safetensors file;
  const auto message = [&](const std::string& path) { return std::string(Safetensors::open(path, &file).message()); };
  EXPECT_NE(message(directory.file("none")).find("No such file"), std::string::npos);
  EXPECT_NE(message(directory.file("")).find("not a regular file"), std::string::npos);
  EXPECT_NE(message(directory.write("empty", "", 0)).find("empty\": file of 0 bytes"), std::string::npos);
  EXPECT_FALSE(write_safetensors(directory.file("no/such/directory"), {}, {}).ok());
}

}  // namespace
}  // namespace keysieve
