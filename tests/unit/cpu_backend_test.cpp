// SPDX-License-Identifier: Apache-2.0
// What only the CPU backend promises: the same bits for any number of threads, any size of workspace and any place of
// a pair in the call, on every instruction set that this machine has.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/bf16.hpp"
#include "core/fp8.hpp"
#include "keysieve/keysieve.hpp"

namespace keysieve {
namespace {

enum class Pair { kE4m3, kBf16, kMxfp4 };

struct Shape {
  Pair pair;
  int64_t rows, heads, dim, keys, topk;
  bool paged = false;
};

std::vector<uint8_t> random_bytes(size_t count, std::mt19937& random) {
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(random());
    byte = (byte & 0x7FU) == 0x7FU ? 0x38 : byte;  // no e4m3 NaN
  }
  return bytes;
}

void fill_bf16(std::vector<uint8_t>& bytes, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const uint16_t half = float_to_bf16(normal(random));
    std::memcpy(bytes.data() + i, &half, 2);
  }
}

/// The tensors of one problem, with random content.
struct Data {
  Shape shape;
  int64_t num_pages = 0;
  int64_t table_columns = 0;
  std::vector<uint8_t> q, k, mx_scale;
  std::vector<float> k_scale, weights;
  std::vector<int32_t> row_start, row_end, table;

  explicit Data(const Shape& s, uint32_t seed = 1) : shape(s) {
    std::mt19937 random(seed);
    const int64_t channel_bytes = s.pair == Pair::kBf16 ? 2 : 1;
    q = random_bytes(s.rows * s.heads * s.dim * channel_bytes, random);
    std::normal_distribution<float> normal;
    weights.resize(s.rows * s.heads);
    for (float& w : weights) {
      w = normal(random);
    }
    for (int64_t t = 0; t < s.rows; ++t) {
      row_start.push_back(static_cast<int32_t>(random() % 7) - 3);
      row_end.push_back(static_cast<int32_t>(s.keys - static_cast<int64_t>(random() % (s.keys / 2 + 1))));
    }
    if (s.paged) {
      make_pages(random);
    } else {
      k = random_bytes(s.keys * key_bytes(), random);
      mx_scale.resize(s.keys * (s.dim / 32));
      for (uint8_t& byte : mx_scale) {
        byte = static_cast<uint8_t>(124 + random() % 7);
      }
      for (int64_t n = 0; n < s.keys; ++n) {
        k_scale.push_back(0.5F + static_cast<float>(random() % 1000) / 1000);
      }
    }
    if (s.pair == Pair::kBf16) {
      fill_bf16(q, random);
      fill_bf16(k, random);
    }
  }

  [[nodiscard]] int32_t k_dtype() const {
    return shape.pair == Pair::kE4m3 ? KEYSIEVE_E4M3 : shape.pair == Pair::kBf16 ? KEYSIEVE_BF16 : KEYSIEVE_MXFP4;
  }
  [[nodiscard]] int64_t key_bytes() const {
    return shape.pair == Pair::kE4m3 ? shape.dim : shape.pair == Pair::kBf16 ? 2 * shape.dim : shape.dim / 2;
  }
  [[nodiscard]] int64_t scale_bytes() const {
    return shape.pair == Pair::kE4m3 ? 4 : shape.pair == Pair::kBf16 ? 0 : shape.dim / 32;
  }
  [[nodiscard]] int64_t page_bytes() const { return KEYSIEVE_PAGE_SIZE * (key_bytes() + scale_bytes()); }
  [[nodiscard]] int64_t page_stride() const { return (page_bytes() + 15) / 16 * 16; }

  void make_pages(std::mt19937& random) {
    table_columns = (shape.keys + 63) / 64;
    num_pages = table_columns * shape.rows;
    k = random_bytes(num_pages * page_stride(), random);
    for (int64_t i = 0; i < num_pages; ++i) {
      table.push_back(static_cast<int32_t>((i * 7 + 3) % num_pages));
    }
    std::shuffle(table.begin(), table.end(), random);
    table[table.size() / 3] = static_cast<int32_t>(num_pages);  // outside the pool: NaN scores
    table[table.size() / 2] = -5;
    for (int64_t page = 0; page < num_pages; ++page) {
      uint8_t* scales = k.data() + page * page_stride() + KEYSIEVE_PAGE_SIZE * key_bytes();
      for (int64_t i = 0; shape.pair == Pair::kE4m3 && i < 64; ++i) {
        const float scale = 0.5F + static_cast<float>(i) / 64;
        std::memcpy(scales + 4 * i, &scale, 4);
      }
      for (int64_t i = 0; shape.pair == Pair::kMxfp4 && i < 2 * shape.dim; ++i) {
        scales[i] = static_cast<uint8_t>(125 + random() % 5);
      }
    }
  }

  [[nodiscard]] keysieve_problem problem(int32_t op) const {
    keysieve_problem p = {};
    p.struct_size = sizeof(p);
    p.op = op;
    p.num_rows = shape.rows;
    p.num_heads = shape.heads;
    p.head_dim = shape.dim;
    p.num_keys = shape.keys;
    p.topk = shape.topk;
    p.q_dtype = shape.pair == Pair::kBf16 ? KEYSIEVE_BF16 : KEYSIEVE_E4M3;
    p.k_dtype = k_dtype();
    if (shape.paged && op != KEYSIEVE_SELECT) {
      p.key_layout = KEYSIEVE_KEYS_PAGED;
      p.num_pages = num_pages;
      p.num_requests = shape.rows;
      p.pages_per_request = table_columns;
    }
    return p;
  }

  [[nodiscard]] keysieve_tensors tensors(const keysieve_problem& p) {
    const Shape& s = shape;
    keysieve_tensors x = {};
    x.struct_size = sizeof(x);
    x.row_start = view(row_start.data(), {s.rows});
    x.row_end = view(row_end.data(), {s.rows});
    if (p.op == KEYSIEVE_SELECT) {
      return x;
    }
    x.weights = view(weights.data(), {s.rows, s.heads});
    if (s.pair == Pair::kBf16) {
      x.q = view(reinterpret_cast<bf16*>(q.data()), {s.rows, s.heads, s.dim});
    } else {
      x.q = view(reinterpret_cast<e4m3*>(q.data()), {s.rows, s.heads, s.dim});
    }
    if (s.paged) {
      x.k = view(k.data(), {num_pages, page_bytes()}, {page_stride(), 1});
      x.block_table = view(table.data(), {s.rows, table_columns});
    } else if (s.pair == Pair::kBf16) {
      x.k = view(reinterpret_cast<bf16*>(k.data()), {s.keys, s.dim});
    } else if (s.pair == Pair::kE4m3) {
      x.k = view(reinterpret_cast<e4m3*>(k.data()), {s.keys, s.dim});
      x.k_scale = view(k_scale.data(), {s.keys});
    } else {
      x.k = view(k.data(), {s.keys, s.dim / 2});
      x.k_scale = view(mx_scale.data(), {s.keys, s.dim / 32});
    }
    return x;
  }
};

struct How {
  const char* backend = "cpu";
  const char* config = nullptr;
  int32_t threads = 1;
  bool least_workspace = false;
};

void execute(const keysieve_problem& p, keysieve_tensors& x, const How& how) {
  keysieve_options options = {};
  options.struct_size = sizeof(options);
  options.backend = how.backend;
  options.config = how.config;
  options.threads = how.threads;
  const WorkspaceSizes sizes = workspace_size(p, &options);
  const size_t bytes = how.least_workspace ? sizes.min_bytes : sizes.preferred_bytes;
  std::vector<std::byte> workspace(bytes + 3, std::byte{0xFF});
  x.workspace = workspace.data() + 3;  // any alignment
  x.workspace_bytes = bytes;
  check(keysieve_run(&p, &options, &x, nullptr));
}

std::vector<float> scores_of(Data& data, const How& how) {
  const keysieve_problem p = data.problem(KEYSIEVE_SCORE);
  std::vector<float> scores(data.shape.rows * data.shape.keys, -777.0F);
  keysieve_tensors x = data.tensors(p);
  x.scores = view(scores.data(), {data.shape.rows, data.shape.keys});
  execute(p, x, how);
  return scores;
}

struct Selection {
  std::vector<int32_t> indices, counts, blocks;
  std::vector<uint32_t> scores;
};

void expect_same(const Selection& a, const Selection& b) {
  EXPECT_EQ(a.indices, b.indices);
  EXPECT_EQ(a.scores, b.scores);
  EXPECT_EQ(a.counts, b.counts);
  EXPECT_EQ(a.blocks, b.blocks);
}

Selection selection_of(Data& data, const How& how, std::vector<float>* given = nullptr, bool publish = false) {
  keysieve_problem p = data.problem(given == nullptr ? KEYSIEVE_SCORE_SELECT : KEYSIEVE_SELECT);
  Selection s;
  s.indices.assign(data.shape.rows * data.shape.topk, -777);
  s.counts.assign(data.shape.rows, -777);
  s.blocks.assign(publish ? data.shape.rows * 5 : 0, -777);
  std::vector<float> top_scores(s.indices.size());
  keysieve_tensors x = data.tensors(p);
  if (given != nullptr) {
    x.scores = view(given->data(), {data.shape.rows, data.shape.keys});
  }
  if (publish) {
    p.candidates = KEYSIEVE_CANDIDATES_PUBLISH;
    p.cand_block = 8;
    p.cand_count = 5;
    x.cand_out = view(s.blocks.data(), {data.shape.rows, 5});
  }
  x.indices = view(s.indices.data(), {data.shape.rows, data.shape.topk});
  x.top_scores = view(top_scores.data(), {data.shape.rows, data.shape.topk});
  x.out_count = view(s.counts.data(), {data.shape.rows});
  execute(p, x, how);
  for (const float score : top_scores) {  // neither a zero's sign nor a NaN's bits matter
    s.scores.push_back(std::isnan(score) ? 0x7FC00000U : float_bits(score + 0.0F));
  }
  return s;
}

/// Instruction sets of this machine, best first.
std::vector<std::string> isas() {
  std::vector<std::string> names;
  const Data data({Pair::kE4m3, 1, 1, 1, 1, 1});
  const keysieve_problem p = data.problem(KEYSIEVE_SCORE_SELECT);
  for (const char* name : {"avx512_bf16", "avx512", "avx2", "sse4", "ssse3", "neon", "generic"}) {
    keysieve_options options = {};
    options.struct_size = sizeof(options);
    options.backend = "cpu";
    options.config = name;
    if (keysieve_supported(&p, &options) == KEYSIEVE_OK) {
      names.emplace_back(name);
    }
  }
  return names;
}

bool same_bits(float a, float b) {
  return float_bits(a) == float_bits(b) || (std::isnan(a) && std::isnan(b));
}

/// |w|, |q| and |k|: their scores are the sums that the contract's bound is a fraction of.
Data magnitudes(const Data& data) {
  Data result = data;
  for (float& w : result.weights) {
    w = std::abs(w);
  }
  const bool is_bf16 = data.shape.pair == Pair::kBf16;
  for (size_t i = 0; i < result.q.size(); ++i) {
    result.q[i] = static_cast<uint8_t>(result.q[i] & (is_bf16 && i % 2 == 0 ? 0xFF : 0x7F));
  }
  const int64_t plane = data.shape.paged ? KEYSIEVE_PAGE_SIZE * data.key_bytes() : static_cast<int64_t>(data.k.size());
  const int64_t stride = data.shape.paged ? data.page_stride() : plane;
  for (int64_t i = 0; i < static_cast<int64_t>(result.k.size()); ++i) {
    const int mask = data.shape.pair == Pair::kMxfp4 ? 0x77 : is_bf16 && i % 2 == 0 ? 0xFF : 0x7F;
    result.k[i] = static_cast<uint8_t>(result.k[i] & (i % stride < plane ? mask : 0xFF));
  }
  return result;
}

/// Contract section 1 with the constant that docs/backends.md gives: every addition and product rounds once.
void expect_within_bound(Data& data, const std::vector<float>& scores) {
  const std::vector<float> reference = scores_of(data, {"reference"});
  Data positive = magnitudes(data);
  const std::vector<float> sums = scores_of(positive, {"reference"});
  const double c = std::ldexp(static_cast<double>(data.shape.dim + 2 * data.shape.heads + 8), -24);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isfinite(reference[i])) {
      ASSERT_NEAR(scores[i], reference[i], c * sums[i]) << "pair " << i;
    } else {
      ASSERT_TRUE(same_bits(scores[i], reference[i])) << "pair " << i << ": " << scores[i] << " " << reference[i];
    }
  }
}

class CpuBackendTest : public testing::TestWithParam<Shape> {};

TEST_P(CpuBackendTest, ScoresKeepTheBoundAndSelectionsAgree) {
  Data data(GetParam());
  for (const std::string& isa : isas()) {
    SCOPED_TRACE(isa);
    std::vector<float> scores = scores_of(data, {"cpu", isa.c_str(), 2});
    expect_within_bound(data, scores);
    const Selection expected = selection_of(data, {"reference"}, &scores, true);
    for (const int threads : {1, 2, 7}) {
      for (const bool least : {false, true}) {
        SCOPED_TRACE(std::to_string(threads) + (least ? " threads, least workspace" : " threads"));
        const How how{"cpu", isa.c_str(), threads, least};
        expect_same(selection_of(data, how, nullptr, true), expected);
        expect_same(selection_of(data, how, &scores, true), expected);
        const std::vector<float> again = scores_of(data, how);
        ASSERT_TRUE(std::equal(again.begin(), again.end(), scores.begin(), same_bits));
      }
    }
  }
}

TEST_P(CpuBackendTest, BitsOfAPairDoNotDependOnItsPlace) {
  Data data(GetParam());
  if (data.shape.paged || data.shape.keys < 30) {
    GTEST_SKIP() << "needs contiguous keys to take a part of";
  }
  const std::vector<float> all = scores_of(data, {});
  Data part = data;  // the last row against the last 29 keys
  const int64_t skipped_keys = data.shape.keys - 29;
  part.shape.keys = 29;
  part.shape.rows = 1;
  const auto drop = [](auto& values, int64_t count) { values.erase(values.begin(), values.begin() + count); };
  const int64_t last = data.shape.rows - 1;
  drop(part.q, static_cast<int64_t>(part.q.size()) / data.shape.rows * last);
  drop(part.weights, data.shape.heads * last);
  drop(part.k, static_cast<int64_t>(part.k.size()) / data.shape.keys * skipped_keys);
  drop(part.k_scale, skipped_keys);
  drop(part.mx_scale, static_cast<int64_t>(part.mx_scale.size()) / data.shape.keys * skipped_keys);
  part.row_start = {0};
  part.row_end = {29};
  const std::vector<float> some = scores_of(part, {});
  for (int64_t n = 0; n < 29; ++n) {
    const float whole = all[last * data.shape.keys + skipped_keys + n];
    if (!std::isinf(whole)) {
      EXPECT_TRUE(same_bits(some[n], whole)) << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuBackendTest,
    testing::Values(Shape{Pair::kE4m3, 5, 64, 128, 4000, 256}, Shape{Pair::kE4m3, 1, 3, 7, 9000, 2048},
                    Shape{Pair::kE4m3, 37, 9, 33, 301, 64}, Shape{Pair::kBf16, 6, 32, 128, 1500, 100},
                    Shape{Pair::kBf16, 3, 1, 1, 5000, 1}, Shape{Pair::kBf16, 18, 5, 61, 77, 2048},
                    Shape{Pair::kMxfp4, 4, 64, 128, 2500, 512}, Shape{Pair::kMxfp4, 2, 7, 32, 30, 8},
                    Shape{Pair::kE4m3, 4, 16, 64, 1000, 100, true}, Shape{Pair::kBf16, 3, 8, 64, 500, 64, true},
                    Shape{Pair::kMxfp4, 3, 8, 64, 700, 64, true}));

TEST(CpuBackend, MxfpScalesOfEverySizeKeepTheBound) {
  Data data({Pair::kMxfp4, 2, 4, 64, 255, 8});
  for (int64_t n = 0; n < 255; ++n) {
    data.mx_scale[2 * n] = static_cast<uint8_t>(n + 1);  // 255 is NaN
    data.mx_scale[2 * n + 1] = static_cast<uint8_t>(n > 10 ? n - 10 : 0);
  }
  data.row_start = {0, 0};
  data.row_end = {255, 255};
  for (const std::string& isa : isas()) {
    SCOPED_TRACE(isa);
    expect_within_bound(data, scores_of(data, {"cpu", isa.c_str()}));
  }
}

TEST(CpuBackend, SubnormalBf16CountsInFull) {
  Data data({Pair::kBf16, 2, 1, 3, 60, 8});
  const auto put = [](std::vector<uint8_t>& bytes, int64_t i, float value) {
    const uint16_t half = float_to_bf16(value);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  };
  for (int64_t i = 0; i < 6; ++i) {
    put(data.q, i, i < 3 ? 1e38F : 1e-39F);  // row 1 is subnormal
  }
  for (int64_t n = 0; n < 60; ++n) {
    for (int64_t d = 0; d < 3; ++d) {
      put(data.k, 3 * n + d, n % 2 == 0 ? 1e-39F : 1e-5F * static_cast<float>(n));
    }
  }
  data.weights = {1.0F, 1e30F};
  data.row_start = {0, 0};
  data.row_end = {60, 60};
  const std::vector<float> reference = scores_of(data, {"reference"});
  for (const std::string& isa : isas()) {
    const std::vector<float> scores = scores_of(data, {"cpu", isa.c_str()});
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_NEAR(scores[i], reference[i], 1e-5 * std::abs(reference[i]) + 1e-12) << isa << " pair " << i;
    }
  }
}

TEST(CpuBackend, WorkspaceStaysSmallAndDoesNotGrowWithKeys) {
  Data data({Pair::kE4m3, 64, 64, 128, 1, 2048});
  keysieve_options options = {};
  options.struct_size = sizeof(options);
  options.backend = "cpu";
  options.threads = 2;
  std::vector<size_t> sizes;
  for (const int64_t keys : {8192, 131072, 1 << 30}) {
    data.shape.keys = keys;
    const WorkspaceSizes bytes = workspace_size(data.problem(KEYSIEVE_SCORE_SELECT), &options);
    EXPECT_LE(bytes.preferred_bytes, size_t{4} << 20);
    EXPECT_LE(bytes.min_bytes, size_t{1} << 18);
    sizes.push_back(bytes.preferred_bytes);
  }
  EXPECT_EQ(sizes.front(), sizes.back());
}

TEST(CpuBackend, UnknownConfigurationListsTheKnown) {
  const Data data({Pair::kE4m3, 1, 1, 1, 1, 1});
  const keysieve_problem p = data.problem(KEYSIEVE_SCORE_SELECT);
  keysieve_options options = {};
  options.struct_size = sizeof(options);
  options.backend = "cpu";
  options.config = "mmx";
  EXPECT_EQ(keysieve_supported(&p, &options), KEYSIEVE_UNSUPPORTED);
  EXPECT_NE(std::string(keysieve_last_message()).find(isas().front()), std::string::npos) << keysieve_last_message();
}

}  // namespace
}  // namespace keysieve
