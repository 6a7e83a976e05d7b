// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: selection from arbitrary score bits, ranges, orders and candidate lists against std::stable_sort.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "support/oracle.hpp"

namespace keysieve::test {
namespace {

/// Reads numbers from the fuzzer's bytes; zeros once they are used up.
class ByteReader {
 public:
  ByteReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  template <typename T>
  T read() {
    T value{};
    const size_t count = std::min(sizeof(T), size_ - at_);
    std::memcpy(&value, data_ + at_, count);
    at_ += count;
    return value;
  }

  [[nodiscard]] size_t left() const { return size_ - at_; }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

constexpr uint32_t kSpecialBits[] = {0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001,
                                     0x7F7FFFFF, 0xFF7FFFFF, 0x00000001, 0x80000001, 0x3F800000, 0xBF800000};

/// Scores of the rows: whole floats, bytes (many ties) or picks from the special values.
void fill_scores(ByteReader& bytes, uint8_t kind, Tensor& scores) {
  const bool bf16 = scores.dtype() == Dtype::kBf16;
  const int64_t count = scores.shape(0) * scores.shape(1);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    if (kind % 3 == 0) {
      bits = bytes.read<uint32_t>();
    } else {
      const auto byte = bytes.read<uint8_t>();
      const float value = static_cast<float>(byte) - 100;
      std::memcpy(&bits, &value, sizeof(bits));
      bits = kind % 3 == 2 ? kSpecialBits[byte % std::size(kSpecialBits)] : bits;
    }
    if (bf16) {
      scores.mutable_data<uint16_t>()[i] = static_cast<uint16_t>(bits >> 16U);
    } else {
      std::memcpy(scores.mutable_data<float>() + i, &bits, sizeof(bits));
    }
  }
}

Inputs read_problem(ByteReader& bytes) {
  Inputs inputs;
  keysieve_problem& problem = inputs.problem;
  const auto flags = bytes.read<uint32_t>();
  problem.op = KEYSIEVE_SELECT;
  problem.num_rows = 1 + (flags & 3U);
  problem.num_keys = bytes.read<uint16_t>() % 1500;
  problem.topk = 1 + bytes.read<uint16_t>() % ((flags & 4U) != 0 ? 40 : 2048);
  problem.order = static_cast<int32_t>((flags >> 3U) % 3);
  problem.index_space = (flags & 32U) != 0 ? KEYSIEVE_INDEX_ABSOLUTE : KEYSIEVE_INDEX_ROW;
  problem.score_dtype = (flags & 64U) != 0 ? KEYSIEVE_BF16 : KEYSIEVE_F32;
  int64_t columns = problem.num_keys;
  if ((flags & 128U) != 0) {
    problem.score_layout = KEYSIEVE_SCORES_COMPACT;
    problem.score_width = bytes.read<uint16_t>() % 1500;
    columns = problem.score_width;
  }
  if ((flags & 256U) != 0) {
    inputs.row_start = Tensor(Dtype::kI32, {problem.num_rows});
    inputs.row_end = Tensor(Dtype::kI32, {problem.num_rows});
    for (int64_t t = 0; t < problem.num_rows; ++t) {
      const auto wide = (flags & 512U) != 0;
      inputs.row_start.mutable_data<int32_t>()[t] = wide ? bytes.read<int32_t>() : bytes.read<uint8_t>();
      inputs.row_end.mutable_data<int32_t>()[t] = wide ? bytes.read<int32_t>() : bytes.read<int16_t>();
    }
  }
  problem.candidates = static_cast<int32_t>((flags >> 10U) % 3);
  if (problem.candidates != KEYSIEVE_CANDIDATES_NONE) {
    problem.cand_block = (flags & 8192U) != 0 ? 16 : 8;
    problem.cand_count = 1 + bytes.read<uint8_t>();
  }
  if (problem.candidates == KEYSIEVE_CANDIDATES_CONSUME) {
    inputs.cand_in = Tensor(Dtype::kI32, {problem.num_rows, problem.cand_count});
    inputs.cand_in.fill(0xFF);
    for (int64_t t = 0; t < problem.num_rows; ++t) {
      int32_t id = -1;
      for (int64_t i = 0; i < problem.cand_count && bytes.left() > 0; ++i) {
        const auto step = bytes.read<uint8_t>();
        if (step == 0) {
          break;
        }
        id += step;
        inputs.cand_in.mutable_data<int32_t>()[t * problem.cand_count + i] = id;
      }
    }
  }
  inputs.scores =
      Tensor(problem.score_dtype == KEYSIEVE_BF16 ? Dtype::kBf16 : Dtype::kF32, {problem.num_rows, columns});
  fill_scores(bytes, static_cast<uint8_t>(flags >> 16U), inputs.scores);
  return inputs;
}

void require(bool condition, const char* backend, const std::string& text) {
  if (!condition) {
    std::fprintf(stderr, "select on %s: %s\n", backend, text.c_str());
    std::abort();
  }
}

void check_backends(const Inputs& inputs) {
  RunSettings settings;
  const Outputs expected = select_oracle(inputs, inputs.scores, settings);
  for (const char* backend : {"reference", "cpu"}) {
    Runner runner(backend);
    settings.threads = 1;
    const Outputs out = runner.run(inputs, settings);
    require(out.status == KEYSIEVE_OK, backend, out.message);
    require(out.violation.empty(), backend, out.violation);
    const std::string difference = compare_selections(inputs, out, expected);
    require(difference.empty(), backend, difference);
  }
}

}  // namespace
}  // namespace keysieve::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  keysieve::test::ByteReader bytes(data, size);
  keysieve::test::check_backends(keysieve::test::read_problem(bytes));
  return 0;
}
