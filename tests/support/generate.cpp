// SPDX-License-Identifier: Apache-2.0
#include "support/generate.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>

#include "core/bf16.hpp"
#include "support/encode.hpp"

namespace keysieve::test {
namespace {

constexpr uint8_t kE4m3Nan = 0x7F;
constexpr uint16_t kBf16Nan = 0x7FC0;

int32_t q_dtype(KeyType type) {
  return type == KeyType::kBf16 ? KEYSIEVE_BF16 : KEYSIEVE_E4M3;
}

int32_t k_dtype(KeyType type) {
  switch (type) {
    case KeyType::kBf16: return KEYSIEVE_BF16;
    case KeyType::kMxfp4: return KEYSIEVE_MXFP4;
    default: return KEYSIEVE_E4M3;
  }
}

int64_t key_bytes(KeyType type, int64_t head_dim) {
  switch (type) {
    case KeyType::kBf16: return 2 * head_dim;
    case KeyType::kMxfp4: return head_dim / 2;
    default: return head_dim;
  }
}

/// Bytes of scale that belong to one key: an f32, or one e8m0 byte for 32 channels.
int64_t scale_bytes(KeyType type, int64_t head_dim) {
  switch (type) {
    case KeyType::kBf16: return 0;
    case KeyType::kMxfp4: return head_dim / 32;
    default: return 4;
  }
}

void fill_scale(KeyType type, Values values, uint8_t* scale, int64_t head_dim, Random& random) {
  const bool nan = values == Values::kWithNan && random.chance(3);
  if (type == KeyType::kE4m3) {
    auto value = static_cast<float>(random.uniform(0.5, 1.5) / 128);
    if (values == Values::kExact || values == Values::kFewKeys || values == Values::kZeros) {
      value = static_cast<float>(1 << random.below(3)) * 0.5F;
    }
    if (nan) {
      value = std::numeric_limits<float>::quiet_NaN();
    }
    std::memcpy(scale, &value, sizeof(value));
    return;
  }
  for (int64_t group = 0; group < scale_bytes(type, head_dim); ++group) {
    scale[group] = nan ? 255 : static_cast<uint8_t>(126 + random.below(3));
  }
}

/// One key: its channels at `key`, its scales at `scale`.
void fill_key(const ProblemSpec& spec, uint8_t* key, uint8_t* scale, Random& random) {
  Values values = spec.values;
  Random source = random;
  random.next();
  if (values == Values::kFewKeys) {
    source = Random(spec.seed * 16 + static_cast<uint64_t>(random.below(16)));
    values = Values::kExact;
  } else if (values == Values::kZeros && random.chance(2)) {
    values = Values::kExact;
  }
  fill_keys(spec.key_type, values, key, spec.shape.head_dim, source);
  fill_scale(spec.key_type, values, scale, spec.shape.head_dim, source);
}

void make_contiguous_keys(const ProblemSpec& spec, Random& random, Inputs& out) {
  const int64_t keys = spec.shape.keys;
  const int64_t head_dim = spec.shape.head_dim;
  switch (spec.key_type) {
    case KeyType::kE4m3:
      out.k = Tensor(Dtype::kE4m3, {keys, head_dim});
      out.k_scale = Tensor(Dtype::kF32, {keys});
      break;
    case KeyType::kBf16: out.k = Tensor(Dtype::kBf16, {keys, head_dim}); break;
    case KeyType::kMxfp4:
      out.k = Tensor(Dtype::kU8, {keys, head_dim / 2});
      out.k_scale = Tensor(Dtype::kU8, {keys, head_dim / 32});
      break;
  }
  auto* key = out.k.mutable_data<uint8_t>();
  auto* scale = out.k_scale.mutable_data<uint8_t>();
  uint8_t unused[4];
  for (int64_t n = 0; n < keys; ++n) {
    fill_key(spec, key + n * key_bytes(spec.key_type, head_dim),
             scale == nullptr ? unused : scale + n * scale_bytes(spec.key_type, head_dim), random);
  }
}

/// Columns of a slot table; 0 if slots do not come from one.
int64_t slot_columns(const ProblemSpec& spec) {
  const int64_t size = spec.index_space == KEYSIEVE_INDEX_SLOT ? spec.slot_page_size : 0;
  return size == 0 ? 0 : (spec.shape.keys + size - 1) / size;
}

/// A pool with more pages than are used, in shuffled order, with space between pages and garbage in everything that no
/// row may read.
void make_paged_keys(const ProblemSpec& spec, int64_t requests, Random& random, Inputs& out) {
  const int64_t head_dim = spec.shape.head_dim;
  const int64_t pages_per_request = (spec.shape.keys + KEYSIEVE_PAGE_SIZE - 1) / KEYSIEVE_PAGE_SIZE + random.below(2);
  const int64_t columns = std::max(pages_per_request, slot_columns(spec));  // both tables are [B,P]
  const int64_t used = requests * pages_per_request;
  const int64_t num_pages = used + random.between(1, 3);
  const int64_t channel_bytes = key_bytes(spec.key_type, head_dim);
  const int64_t page_size = KEYSIEVE_PAGE_SIZE * (channel_bytes + scale_bytes(spec.key_type, head_dim));
  const int64_t stride = (page_size + 15) / 16 * 16 + 16 * random.below(3);
  out.problem.key_layout = KEYSIEVE_KEYS_PAGED;
  out.problem.num_pages = num_pages;
  out.problem.num_requests = requests;
  out.problem.pages_per_request = columns;
  out.k = Tensor(Dtype::kU8, {num_pages, page_size}, {{stride, 1}});
  out.k.fill(kSlackByte);

  std::vector<int32_t> pages(static_cast<size_t>(num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  for (int64_t i = num_pages - 1; i > 0; --i) {
    std::swap(pages[i], pages[random.below(i + 1)]);
  }
  out.block_table = Tensor(Dtype::kI32, {requests, columns}, {{columns + random.below(3), 1}});
  out.block_table.fill(kSlackByte);
  auto* base = out.k.mutable_data<uint8_t>();
  for (int64_t i = 0; i < used; ++i) {
    const int64_t page = pages[i];
    uint8_t* keys = base + page * stride;
    uint8_t unused[4];
    for (int64_t entry = 0; entry < KEYSIEVE_PAGE_SIZE; ++entry) {
      uint8_t* scale = spec.key_type == KeyType::kBf16
                           ? unused
                           : keys + KEYSIEVE_PAGE_SIZE * channel_bytes + entry * scale_bytes(spec.key_type, head_dim);
      fill_key(spec, keys + entry * channel_bytes, scale, random);
    }
    int32_t id = pages[i];
    if (spec.bad_pages && random.chance(25)) {
      const int32_t kBad[] = {-1, static_cast<int32_t>(num_pages), INT32_MAX, INT32_MIN};
      id = random.pick(kBad, 4);
    }
    out.block_table.mutable_data<int32_t>()[out.block_table.offset(i / pages_per_request, i % pages_per_request)] = id;
  }
}

std::pair<int32_t, int32_t> random_range(Ranges kind, const ProblemShape& shape, int64_t t, Random& random) {
  const auto keys = static_cast<int32_t>(shape.keys);
  const auto any = [&] { return static_cast<int32_t>(random.between(0, keys)); };
  switch (kind) {
    case Ranges::kEndsOnly: return {0, any()};
    case Ranges::kCausal: return {0, static_cast<int32_t>(std::max<int64_t>(0, shape.keys - shape.rows + 1 + t))};
    case Ranges::kUnaligned: {
      const int32_t a = any();
      const int32_t b = any();
      return {std::min(a, b), std::max(a, b)};
    }
    case Ranges::kHostile: {
      const int32_t kValues[] = {INT32_MIN, -1, 0, 1, keys / 3, keys, keys + 1, INT32_MAX, any(), any()};
      return {random.pick(kValues, 10), random.pick(kValues, 10)};
    }
    case Ranges::kNone: break;
  }
  return {0, keys};
}

void make_ranges(const ProblemSpec& spec, const std::vector<int64_t>& row_shape, Random& random, Inputs& out) {
  if (spec.ranges == Ranges::kNone) {
    return;
  }
  out.row_end = Tensor(Dtype::kI32, row_shape);
  if (spec.ranges == Ranges::kUnaligned || spec.ranges == Ranges::kHostile) {
    out.row_start = Tensor(Dtype::kI32, row_shape);
  }
  for (int64_t t = 0; t < spec.shape.rows; ++t) {
    const auto [begin, end] = random_range(spec.ranges, spec.shape, t, random);
    out.row_end.mutable_data<int32_t>()[t] = end;
    if (out.row_start.present()) {
      out.row_start.mutable_data<int32_t>()[t] = begin;
    }
  }
}

void make_slots(const ProblemSpec& spec, int64_t requests, Random& random, Inputs& out) {
  if (spec.slot_page_size == 0) {
    return;
  }
  out.problem.num_requests = requests;
  out.problem.pages_per_request = std::max(slot_columns(spec), out.problem.pages_per_request);
  out.slot_table = Tensor(Dtype::kI32, {requests, out.problem.pages_per_request});
  for (int64_t i = 0; i < requests * out.problem.pages_per_request; ++i) {
    out.slot_table.mutable_data<int32_t>()[i] = static_cast<int32_t>(random.below(100000));
  }
}

/// Ascending, unique block ids, some past the row, then -1 and garbage that must not matter.
void make_candidate_lists(const ProblemSpec& spec, Random& random, Inputs& out) {
  out.cand_in = Tensor(Dtype::kI32, {spec.shape.rows, spec.cand_count});
  const int64_t blocks = (spec.shape.keys + spec.cand_block - 1) / spec.cand_block;
  for (int64_t t = 0; t < spec.shape.rows; ++t) {
    int32_t* list = out.cand_in.mutable_data<int32_t>() + t * spec.cand_count;
    std::vector<int32_t> ids;
    const int percent = static_cast<int>(random.between(5, 95));
    for (int64_t id = 0; id < blocks + 3 && static_cast<int64_t>(ids.size()) < spec.cand_count; ++id) {
      if (random.chance(percent)) {
        ids.push_back(static_cast<int32_t>(id));
      }
    }
    std::fill(list, list + spec.cand_count, -1);
    std::copy(ids.begin(), ids.end(), list);
  }
}

}  // namespace

Tensor i32_tensor(const std::vector<int32_t>& values) {
  Tensor tensor(Dtype::kI32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.mutable_data<int32_t>());
  return tensor;
}

void fill_keys(KeyType type, Values values, uint8_t* keys, int64_t channels, Random& random) {
  const bool exact = values == Values::kExact || values == Values::kFewKeys;
  const int64_t nan_at =
      values == Values::kWithNan && type != KeyType::kMxfp4 && random.chance(5) ? random.below(channels) : -1;
  for (int64_t d = 0; d < channels; ++d) {
    const auto bits = static_cast<uint32_t>(random.next() >> 40U);
    const double whole = values == Values::kZeros ? -1.0 : static_cast<double>(bits % 5) - 2;
    const bool coded = exact || values == Values::kZeros;
    switch (type) {
      case KeyType::kE4m3: keys[d] = d == nan_at ? kE4m3Nan : coded ? to_e4m3(whole) : normal_e4m3(bits); break;
      case KeyType::kBf16: {
        const uint16_t half = d == nan_at ? kBf16Nan
                              : coded     ? float_to_bf16(static_cast<float>(whole))
                                          : normal_bf16(bits);
        std::memcpy(keys + 2 * d, &half, sizeof(half));
        break;
      }
      case KeyType::kMxfp4: {
        const uint8_t nibble = coded ? to_e2m1(whole) : normal_e2m1(bits);
        keys[d / 2] = static_cast<uint8_t>(d % 2 == 0 ? nibble : keys[d / 2] | nibble << 4U);
        break;
      }
    }
  }
}

Tensor random_queries(KeyType type, std::vector<int64_t> shape, Values values, Random& random) {
  const Dtype dtype = type == KeyType::kBf16 ? Dtype::kBf16 : Dtype::kE4m3;
  Tensor tensor(dtype, shape);
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  auto* bytes = tensor.mutable_data<uint8_t>();
  for (int64_t i = 0; i < elements; ++i) {
    const auto bits = static_cast<uint32_t>(random.next() >> 40U);
    // -1, 0 or 1: 128 products with keys of magnitude 2 stay below 2^9.
    const double whole = values == Values::kZeros ? static_cast<double>(bits % 2) : static_cast<double>(bits % 3) - 1;
    const bool coded = values != Values::kNormal && values != Values::kWithNan;
    const bool nan = values == Values::kWithNan && bits % 4096 == 0;
    if (type == KeyType::kBf16) {
      const uint16_t half = nan ? kBf16Nan : coded ? float_to_bf16(static_cast<float>(whole)) : normal_bf16(bits);
      std::memcpy(bytes + 2 * i, &half, sizeof(half));
    } else {
      bytes[i] = nan ? kE4m3Nan : coded ? to_e4m3(whole) : normal_e4m3(bits);
    }
  }
  return tensor;
}

Tensor random_weights(std::vector<int64_t> shape, Values values, Random& random) {
  Tensor tensor(Dtype::kF32, shape);
  const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  auto* weights = tensor.mutable_data<float>();
  for (int64_t i = 0; i < elements; ++i) {
    const bool coded = values != Values::kNormal && values != Values::kWithNan;
    weights[i] = static_cast<float>(coded ? static_cast<double>(random.below(9)) - 4 : random.normal());
  }
  return tensor;
}

Tensor random_scores(int64_t rows, int64_t columns, int64_t distinct, bool special, Random& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float kSpecial[] = {kInfinity,
                            -kInfinity,
                            std::numeric_limits<float>::quiet_NaN(),
                            -0.0F,
                            0.0F,
                            -std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min(),
                            -std::numeric_limits<float>::denorm_min()};
  Tensor tensor(Dtype::kF32, {rows, columns});
  auto* scores = tensor.mutable_data<float>();
  for (int64_t i = 0; i < rows * columns; ++i) {
    if (special && random.chance(20)) {
      scores[i] = random.pick(kSpecial, 9);
    } else if (distinct > 0) {
      scores[i] = static_cast<float>(random.below(distinct)) / 16 - 4;
    } else {
      scores[i] = static_cast<float>(random.normal());
    }
  }
  return tensor;
}

keysieve_problem plan_problem(const ProblemSpec& spec) {
  keysieve_problem problem{};
  problem.op = spec.op;
  problem.num_rows = spec.shape.rows;
  problem.num_heads = spec.shape.heads;
  problem.head_dim = spec.shape.head_dim;
  problem.num_keys = spec.shape.keys;
  problem.topk = spec.shape.topk;
  problem.q_dtype = q_dtype(spec.key_type);
  problem.k_dtype = k_dtype(spec.key_type);
  problem.score_dtype = spec.score_dtype;
  problem.score_layout = spec.score_layout;
  problem.score_width = spec.score_width;
  problem.index_space = spec.index_space;
  problem.slot_page_size = spec.index_space == KEYSIEVE_INDEX_SLOT ? spec.slot_page_size : 0;
  problem.order = spec.order;
  problem.next_n = spec.next_n;
  problem.candidates = spec.candidates;
  if (spec.candidates != KEYSIEVE_CANDIDATES_NONE) {
    problem.cand_block = spec.cand_block;
    problem.cand_count = spec.cand_count;
  }
  if (spec.paged || spec.index_space == KEYSIEVE_INDEX_SLOT) {
    problem.num_requests = std::max<int64_t>((spec.shape.rows + spec.next_n - 1) / spec.next_n, 1);
    problem.pages_per_request =
        std::max((spec.shape.keys + KEYSIEVE_PAGE_SIZE - 1) / KEYSIEVE_PAGE_SIZE, slot_columns(spec));
  }
  if (spec.paged) {
    problem.key_layout = KEYSIEVE_KEYS_PAGED;
    problem.num_pages = problem.num_requests * problem.pages_per_request + 4;
  }
  return problem;
}

Inputs make_inputs(const ProblemSpec& spec) {
  Random random(spec.seed);
  Inputs out;
  out.problem = plan_problem(spec);
  const ProblemShape& shape = spec.shape;
  const int64_t requests = std::max<int64_t>((shape.rows + spec.next_n - 1) / spec.next_n, 1);
  const bool grouped = spec.decode && shape.rows % spec.next_n == 0;
  const std::vector<int64_t> rows =
      grouped ? std::vector<int64_t>{requests, spec.next_n} : std::vector<int64_t>{shape.rows};
  std::vector<int64_t> q_shape = rows;
  q_shape.push_back(shape.heads);
  out.weights = random_weights(q_shape, spec.values, random);
  q_shape.push_back(shape.head_dim);
  out.q = random_queries(spec.key_type, q_shape, spec.values, random);
  if (spec.paged) {
    make_paged_keys(spec, requests, random, out);
  } else {
    make_contiguous_keys(spec, random, out);
  }
  make_ranges(spec, rows, random, out);
  if (spec.index_space == KEYSIEVE_INDEX_OFFSET) {
    out.out_offset = Tensor(Dtype::kI32, {shape.rows});
    for (int64_t t = 0; t < shape.rows; ++t) {
      out.out_offset.mutable_data<int32_t>()[t] = static_cast<int32_t>(random.between(-1000, 1000000));
    }
  }
  if (spec.index_space == KEYSIEVE_INDEX_SLOT) {
    make_slots(spec, requests, random, out);
  }
  if (spec.row_request && (spec.paged || spec.index_space == KEYSIEVE_INDEX_SLOT)) {
    out.row_request = Tensor(Dtype::kI32, {shape.rows});
    for (int64_t t = 0; t < shape.rows; ++t) {
      out.row_request.mutable_data<int32_t>()[t] = static_cast<int32_t>(random.below(requests));
    }
  }
  if (spec.candidates == KEYSIEVE_CANDIDATES_CONSUME) {
    make_candidate_lists(spec, random, out);
  }
  return out;
}

std::string describe(const ProblemSpec& spec) {
  static const char* const kKeyTypes[] = {"e4m3", "bf16", "mxfp4"};
  static const char* const kValues[] = {"normal", "exact", "few keys", "zeros", "with NaN"};
  static const char* const kRanges[] = {"none", "ends", "causal", "unaligned", "hostile"};
  std::ostringstream text;
  text << "T=" << spec.shape.rows << " H=" << spec.shape.heads << " D=" << spec.shape.head_dim
       << " N=" << spec.shape.keys << " K=" << spec.shape.topk << " keys " << kKeyTypes[static_cast<int>(spec.key_type)]
       << " values " << kValues[static_cast<int>(spec.values)] << " ranges " << kRanges[static_cast<int>(spec.ranges)]
       << (spec.paged ? " paged" : "") << (spec.bad_pages ? " bad pages" : "") << (spec.decode ? " decode" : "")
       << " next_n " << spec.next_n << (spec.row_request ? " row_request" : "") << " index space " << spec.index_space
       << " slot page " << spec.slot_page_size << " order " << spec.order << " candidates " << spec.candidates << " ("
       << spec.cand_block << " x " << spec.cand_count << ") score dtype " << spec.score_dtype << " layout "
       << spec.score_layout << " width " << spec.score_width << " op " << spec.op << " seed " << spec.seed;
  return text.str();
}

}  // namespace keysieve::test
