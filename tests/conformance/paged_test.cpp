// SPDX-License-Identifier: Apache-2.0
// Paged keys (contract section 5): shuffled pages, strides, decode and general rows, page ids that do not exist.
#include "support/checks.hpp"

namespace keysieve::test {
namespace {

class Paged : public ConformanceTest {};
KEYSIEVE_FOR_EACH_BACKEND(Paged);

constexpr KeyType kKeyTypes[] = {KeyType::kE4m3, KeyType::kBf16, KeyType::kMxfp4};

ProblemSpec paged_spec(KeyType type, ProblemShape shape, uint64_t seed) {
  ProblemSpec spec;
  spec.shape = shape;
  spec.key_type = type;
  spec.paged = true;
  spec.seed = seed;
  return spec;
}

TEST_P(Paged, DecodeWithAnyNextN) {
  uint64_t seed = 1000;
  for (const KeyType type : kKeyTypes) {
    for (const int64_t next_n : {1, 2, 3, 5}) {
      for (const Ranges ranges : {Ranges::kEndsOnly, Ranges::kHostile, Ranges::kNone}) {
        ProblemSpec spec = paged_spec(type, {4 * next_n, 8, 64, 500, 60}, ++seed);
        spec.decode = true;
        spec.next_n = next_n;
        spec.ranges = ranges;
        check(spec);
      }
    }
  }
}

TEST_P(Paged, ShapesOfOnePageAndMore) {
  uint64_t seed = 1100;
  for (const KeyType type : kKeyTypes) {
    for (const int64_t keys : {1, 63, 64, 65, 127, 128, 1000, 2500}) {
      ProblemSpec spec = paged_spec(type, {3, 64, 128, keys, 64}, ++seed);
      spec.ranges = Ranges::kEndsOnly;
      check(spec);
    }
  }
}

TEST_P(Paged, GeneralRowsNameTheirRequest) {
  uint64_t seed = 1200;
  for (const KeyType type : kKeyTypes) {
    for (const Values values : {Values::kNormal, Values::kFewKeys, Values::kZeros, Values::kWithNan}) {
      ProblemSpec spec = paged_spec(type, {21, 8, 128, 420, 100}, ++seed);
      spec.next_n = 4;  // six requests
      spec.row_request = true;
      spec.ranges = Ranges::kUnaligned;
      spec.values = values;
      check(spec);
    }
  }
}

TEST_P(Paged, IndexSpacesAndOrders) {
  uint64_t seed = 1300;
  for (const int32_t order : {KEYSIEVE_ORDER_ASCENDING, KEYSIEVE_ORDER_ANY, KEYSIEVE_ORDER_SCORE}) {
    for (const int32_t space :
         {KEYSIEVE_INDEX_ROW, KEYSIEVE_INDEX_ABSOLUTE, KEYSIEVE_INDEX_OFFSET, KEYSIEVE_INDEX_SLOT}) {
      for (const int32_t slot_page_size : {0, 1, 32}) {
        if (space != KEYSIEVE_INDEX_SLOT && slot_page_size != 0) {
          continue;
        }
        ProblemSpec spec = paged_spec(KeyType::kE4m3, {6, 8, 64, 300, 80}, ++seed);
        spec.decode = true;
        spec.next_n = 2;
        spec.ranges = Ranges::kUnaligned;
        spec.order = order;
        spec.index_space = space;
        spec.slot_page_size = slot_page_size;
        check(spec);
      }
    }
  }
}

/// Keys of a page that does not exist score NaN and rank last, but they are keys.
TEST_P(Paged, PageIdsOutsideThePool) {
  uint64_t seed = 1400;
  for (const KeyType type : kKeyTypes) {
    for (const int64_t topk : {16, 300, 700}) {
      ProblemSpec spec = paged_spec(type, {6, 16, 64, 640, topk}, ++seed);
      spec.bad_pages = true;
      spec.decode = true;
      spec.next_n = 2;
      spec.ranges = Ranges::kEndsOnly;
      check(spec);
    }
  }
}

/// A request that row_request does not find in the table has no keys.
TEST_P(Paged, RequestsOutsideTheTableAreEmptyRows) {
  ProblemSpec spec = paged_spec(KeyType::kE4m3, {6, 8, 64, 200, 10}, 1500);
  spec.row_request = true;
  Inputs inputs = make_inputs(spec);
  const int32_t kRequests[] = {-1, 0, 6, INT32_MAX, INT32_MIN, 5};
  std::copy(std::begin(kRequests), std::end(kRequests), inputs.row_request.mutable_data<int32_t>());
  Runner runner(GetParam());
  expect_conforms(runner, inputs);
}

/// Table entries past a row's keys are never read: here they lie past the end of the table's memory.
TEST_P(Paged, TableEntriesPastTheRowAreNotRead) {
  ProblemSpec spec = paged_spec(KeyType::kE4m3, {3, 8, 64, 320, 30}, 1600);
  Inputs inputs = make_inputs(spec);
  const int64_t columns = inputs.problem.pages_per_request;
  Tensor table(Dtype::kI32, {3, columns});
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t i = 0; i < columns; ++i) {
      const int32_t page = inputs.block_table.value<int32_t>(b, i);
      table.mutable_data<int32_t>()[b * columns + i] = i < 2 ? page : INT32_MAX - page;
    }
  }
  inputs.block_table = table;
  inputs.row_end = i32_tensor({128, 65, 66});
  Runner runner(GetParam());
  expect_conforms(runner, inputs);
}

/// Paged or not, the bits of a score are the same.
TEST_P(Paged, ScoresEqualThoseOfContiguousKeys) {
  for (const KeyType type : kKeyTypes) {
    ProblemSpec spec = paged_spec(type, {4, 32, 128, 333, 64}, 1700);
    spec.next_n = 4;  // one request
    const Inputs paged = make_inputs(spec);
    ProblemSpec flat_spec = spec;
    flat_spec.paged = false;
    Inputs flat = make_inputs(flat_spec);
    flat.q = paged.q;
    flat.weights = paged.weights;
    const int64_t channel_bytes = type == KeyType::kBf16 ? 256 : type == KeyType::kMxfp4 ? 64 : 128;
    const int64_t scale_bytes = type == KeyType::kBf16 ? 0 : 4;
    for (int64_t n = 0; n < 333; ++n) {
      const int64_t page = paged.block_table.value<int32_t>(0, n / 64);
      const uint8_t* base = paged.k.data<uint8_t>() + page * paged.k.stride(0);
      std::copy_n(base + n % 64 * channel_bytes, channel_bytes, flat.k.mutable_data<uint8_t>() + n * channel_bytes);
      if (scale_bytes > 0) {
        std::copy_n(base + 64 * channel_bytes + n % 64 * scale_bytes, scale_bytes,
                    flat.k_scale.mutable_data<uint8_t>() + n * scale_bytes);
      }
    }
    Runner runner(GetParam());
    if (takes(runner, as_score(paged)) && takes(runner, as_score(flat))) {
      const Outputs a = run_ok(runner, as_score(paged));
      const Outputs b = run_ok(runner, as_score(flat));
      EXPECT_EQ(compare_scores(a.scores, b.scores), "");
    }
    if (takes(runner, paged) && takes(runner, flat)) {
      const Outputs a = run_ok(runner, paged);
      const Outputs b = run_ok(runner, flat);
      EXPECT_EQ(compare_selections(paged, a, b), "");
    }
  }
}

}  // namespace
}  // namespace keysieve::test
