// SPDX-License-Identifier: Apache-2.0
#include "io/replay.hpp"

#include <gtest/gtest.h>

#include "unit/safetensors_files.hpp"

namespace keysieve {
namespace {

using testing::TemporaryDirectory;

/// A set of zero tensors that a test can change before it writes them.
class ReplayFile {
 public:
  ReplayFile() { e4m3(); }

  void set(const std::string& name, FileDtype dtype, std::vector<int64_t> shape) {
    erase(name);
    size_t bytes = file_dtype_bytes(dtype);
    for (const int64_t extent : shape) {
      bytes *= static_cast<size_t>(extent);
    }
    tensors_.push_back({name, dtype, std::move(shape), zeros_, bytes});
  }
  void erase(const std::string& name) {
    std::erase_if(tensors_, [&](const FileTensor& tensor) { return tensor.name == name; });
  }
  void e4m3() {
    set("q", FileDtype::kF8E4M3, {2, 3, 32});
    set("k", FileDtype::kF8E4M3, {5, 32});
    set("k_scale", FileDtype::kF32, {5});
    set("weights", FileDtype::kF32, {2, 3});
    set("row_start", FileDtype::kI32, {2});
    set("row_end", FileDtype::kI32, {2});
  }
  void mxfp4() {
    set("k", FileDtype::kU8, {5, 16});
    set("k_scale", FileDtype::kU8, {5, 1});
  }
  void bf16() {
    set("q", FileDtype::kBf16, {2, 3, 32});
    set("k", FileDtype::kBf16, {5, 32});
    erase("k_scale");
  }

  FileMetadata metadata;

  std::string read(Replay* replay) const {
    const std::string path = directory_.file("replay.safetensors");
    const Status written = write_safetensors(path, tensors_, metadata);
    EXPECT_TRUE(written.ok()) << written.message();
    return open_replay(path, replay).message();
  }

 private:
  alignas(8) static constexpr std::byte zeros_[4096] = {};
  TemporaryDirectory directory_;
  std::vector<FileTensor> tensors_;
};

TEST(Replay, ReadsE4m3) {
  Replay replay;
  EXPECT_EQ(ReplayFile().read(&replay), "");
  EXPECT_EQ(replay.num_rows, 2);
  EXPECT_EQ(replay.num_heads, 3);
  EXPECT_EQ(replay.head_dim, 32);
  EXPECT_EQ(replay.num_keys, 5);
  EXPECT_EQ(replay.q_dtype, KEYSIEVE_E4M3);
  EXPECT_EQ(replay.k_dtype, KEYSIEVE_E4M3);
  EXPECT_EQ(replay.q.rank, 3);
  EXPECT_EQ(replay.q.stride[0], 96);
  EXPECT_EQ(replay.q.stride[1], 32);
  EXPECT_EQ(replay.q.stride[2], 1);
  EXPECT_EQ(replay.k_scale.dtype, KEYSIEVE_F32);
  EXPECT_EQ(replay.row_start.dtype, KEYSIEVE_I32);
}

TEST(Replay, ReadsMxfp4AndBf16) {
  ReplayFile file;
  file.mxfp4();
  Replay replay;
  EXPECT_EQ(file.read(&replay), "");
  EXPECT_EQ(replay.k_dtype, KEYSIEVE_MXFP4);
  EXPECT_EQ(replay.k.dtype, KEYSIEVE_U8);
  EXPECT_EQ(replay.k.shape[1], 16);
  file.set("k_scale", FileDtype::kF8E8M0, {5, 1});
  EXPECT_EQ(file.read(&replay), "");
  EXPECT_EQ(replay.k_scale.dtype, KEYSIEVE_U8);

  ReplayFile bf16;
  bf16.bf16();
  EXPECT_EQ(bf16.read(&replay), "");
  EXPECT_EQ(replay.k_dtype, KEYSIEVE_BF16);
  EXPECT_EQ(replay.k_scale.rank, 0);
}

TEST(Replay, RowRangesAreOptional) {
  ReplayFile file;
  file.erase("row_start");
  file.erase("row_end");
  Replay replay;
  EXPECT_EQ(file.read(&replay), "");
  EXPECT_EQ(replay.row_start.rank, 0);
  EXPECT_EQ(replay.row_end.rank, 0);
}

TEST(Replay, ReadsASlotTable) {
  ReplayFile file;
  file.set("slot_table", FileDtype::kI32, {1, 4});
  file.metadata["slot_page_size"] = "2";
  Replay replay;
  EXPECT_EQ(file.read(&replay), "");
  EXPECT_EQ(replay.slot_page_size, 2);
  for (const char* bad : {"", "3", "0", "-2", "2x", "99999999999"}) {
    file.metadata["slot_page_size"] = bad;
    EXPECT_NE(file.read(&replay).find("expected a power of two"), std::string::npos) << bad;
  }
  file.metadata.clear();
  EXPECT_NE(file.read(&replay).find("has no slot_page_size"), std::string::npos);
}

struct BadReplay {
  const char* name;
  void (*change)(ReplayFile&);
  const char* message;
};

class ReplayBad : public ::testing::TestWithParam<BadReplay> {};

TEST_P(ReplayBad, HasItsOwnMessage) {
  ReplayFile file;
  GetParam().change(file);
  Replay replay;
  const std::string message = file.read(&replay);
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << "got: " << message;
}

using D = FileDtype;
INSTANTIATE_TEST_SUITE_P(
    All, ReplayBad,
    ::testing::Values(
        BadReplay{"NoQ", [](ReplayFile& f) { f.erase("q"); }, "tensor q is missing"},
        BadReplay{"NoK", [](ReplayFile& f) { f.erase("k"); }, "tensor k is missing"},
        BadReplay{"NoScale", [](ReplayFile& f) { f.erase("k_scale"); }, "tensor k_scale is missing; expected F32 [N]"},
        BadReplay{"NoWeights", [](ReplayFile& f) { f.erase("weights"); }, "tensor weights is missing"},
        BadReplay{"QRank",
                  [](ReplayFile& f) {
                    f.set("q", D::kF8E4M3, {2, 96});
                  },
                  "expected three dimensions [Q,H,D]"},
        BadReplay{"QDtype",
                  [](ReplayFile& f) {
                    f.set("q", D::kF32, {2, 3, 32});
                  },
                  "q is F32 [2, 3, 32], expected F8_E4M3 or BF16"},
        BadReplay{"QNoHeads",
                  [](ReplayFile& f) {
                    f.set("q", D::kF8E4M3, {2, 0, 32});
                  },
                  "expected Q >= 0, H >= 1"},
        BadReplay{"KRank", [](ReplayFile& f) { f.set("k", D::kF8E4M3, {5}); }, "expected two dimensions [N,D]"},
        BadReplay{"KDtype",
                  [](ReplayFile& f) {
                    f.set("k", D::kBf16, {5, 32});
                  },
                  "k is BF16 [5, 32], expected F8_E4M3 or U8"},
        BadReplay{"KShape",
                  [](ReplayFile& f) {
                    f.set("k", D::kF8E4M3, {5, 31});
                  },
                  "k is F8_E4M3 [5, 31], expected shape [N,D] = [5, 32]"},
        BadReplay{"Bf16WithE4m3Keys",
                  [](ReplayFile& f) {
                    f.set("q", D::kBf16, {2, 3, 32});
                  },
                  "k is F8_E4M3 [5, 32], expected BF16"},
        BadReplay{"Bf16WithScale",
                  [](ReplayFile& f) {
                    f.bf16();
                    f.set("k_scale", D::kF32, {5});
                  },
                  "k_scale is given, but BF16 keys have none"},
        BadReplay{"Mxfp4OddDimension",
                  [](ReplayFile& f) {
                    f.set("q", D::kF8E4M3, {2, 3, 48});
                    f.set("k", D::kU8, {5, 24});
                  },
                  "D = 48 with MXFP4 keys (k is U8), expected a multiple of 32"},
        BadReplay{"Mxfp4KShape",
                  [](ReplayFile& f) {
                    f.mxfp4();
                    f.set("k", D::kU8, {5, 32});
                  },
                  "expected shape [N,D/2] = [5, 16]"},
        BadReplay{"Mxfp4Scale",
                  [](ReplayFile& f) {
                    f.mxfp4();
                    f.set("k_scale", D::kF32, {5});
                  },
                  "k_scale is F32 [5], expected U8 or F8_E8M0"},
        BadReplay{"ScaleShape", [](ReplayFile& f) { f.set("k_scale", D::kF32, {4}); },
                  "k_scale is F32 [4], expected shape [N] = [5]"},
        BadReplay{"WeightsDtype",
                  [](ReplayFile& f) {
                    f.set("weights", D::kBf16, {2, 3});
                  },
                  "weights is BF16 [2, 3], expected F32"},
        BadReplay{"WeightsShape",
                  [](ReplayFile& f) {
                    f.set("weights", D::kF32, {3, 2});
                  },
                  "expected shape [Q,H] = [2, 3]"},
        BadReplay{"RowStartDtype", [](ReplayFile& f) { f.set("row_start", D::kI64, {2}); },
                  "row_start is I64 [2], expected I32"},
        BadReplay{"RowEndShape", [](ReplayFile& f) { f.set("row_end", D::kI32, {3}); },
                  "row_end is I32 [3], expected shape [Q] = [2]"},
        BadReplay{"SlotTable", [](ReplayFile& f) { f.set("slot_table", D::kI32, {4}); }, "expected I32 [B,P]"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace keysieve
