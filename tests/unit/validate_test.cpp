// SPDX-License-Identifier: Apache-2.0
// Every bad input and the message it gives.  A table: break one thing of a good call, expect one status and one text.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "keysieve/keysieve.h"

namespace keysieve {
namespace {

/// A call on memory that is large enough for every good variant: T=4 H=2 D=32 N=96 K=3.
struct GoodCall {
  keysieve_problem problem{};
  keysieve_options options{};
  keysieve_tensors tensors{};
  void* stream = nullptr;
  std::vector<std::vector<std::byte>> memory;

  static keysieve_tensor view(void* data, int32_t dtype, std::vector<int64_t> shape) {
    keysieve_tensor tensor{};
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.rank = static_cast<int32_t>(shape.size());
    int64_t stride = 1;
    for (size_t axis = shape.size(); axis-- > 0;) {
      tensor.shape[axis] = shape[axis];
      tensor.stride[axis] = stride;
      stride *= shape[axis];
    }
    return tensor;
  }

  keysieve_tensor make(int32_t dtype, std::vector<int64_t> shape) {
    memory.emplace_back(1 << 16);
    return view(memory.back().data(), dtype, std::move(shape));
  }

  GoodCall() {
    problem.struct_size = sizeof(problem);
    problem.num_rows = 4;
    problem.num_heads = 2;
    problem.head_dim = 32;
    problem.num_keys = 96;
    problem.topk = 3;
    problem.q_dtype = KEYSIEVE_E4M3;
    problem.k_dtype = KEYSIEVE_E4M3;
    options.struct_size = sizeof(options);
    options.backend = "reference";
    tensors.struct_size = sizeof(tensors);
    tensors.q = make(KEYSIEVE_E4M3, {4, 2, 32});
    tensors.k = make(KEYSIEVE_E4M3, {96, 32});
    tensors.k_scale = make(KEYSIEVE_F32, {96});
    tensors.weights = make(KEYSIEVE_F32, {4, 2});
    tensors.row_start = make(KEYSIEVE_I32, {4});
    tensors.row_end = make(KEYSIEVE_I32, {4});
    tensors.indices = make(KEYSIEVE_I32, {4, 3});
    tensors.top_scores = make(KEYSIEVE_F32, {4, 3});
    tensors.out_count = make(KEYSIEVE_I32, {4});
    tensors.row_indices = make(KEYSIEVE_I32, {4, 3});
    tensors.stats = make(KEYSIEVE_U64, {8});
  }

  void use_score() {
    problem.op = KEYSIEVE_SCORE;
    tensors.scores = make(KEYSIEVE_F32, {4, 96});
  }
  void use_select() {
    problem.op = KEYSIEVE_SELECT;
    tensors.scores = make(KEYSIEVE_F32, {4, 96});
  }
  void use_mxfp4() {
    problem.k_dtype = KEYSIEVE_MXFP4;
    tensors.k = make(KEYSIEVE_U8, {96, 16});
    tensors.k_scale = make(KEYSIEVE_U8, {96, 1});
  }
  void use_bf16() {
    problem.q_dtype = KEYSIEVE_BF16;
    problem.k_dtype = KEYSIEVE_BF16;
    tensors.q = make(KEYSIEVE_BF16, {4, 2, 32});
    tensors.k = make(KEYSIEVE_BF16, {96, 32});
    tensors.k_scale = {};
  }
  void use_paged() {
    problem.key_layout = KEYSIEVE_KEYS_PAGED;
    problem.num_pages = 5;
    problem.num_requests = 2;
    problem.pages_per_request = 2;
    problem.next_n = 2;
    tensors.k = make(KEYSIEVE_U8, {5, 64 * 36});
    tensors.k_scale = {};
    tensors.block_table = make(KEYSIEVE_I32, {2, 2});
  }
  void use_slots() {
    problem.index_space = KEYSIEVE_INDEX_SLOT;
    problem.slot_page_size = 16;
    problem.num_requests = 2;
    problem.pages_per_request = 6;
    problem.next_n = 2;
    tensors.slot_table = make(KEYSIEVE_I32, {2, 6});
  }
  void use_candidates(int32_t mode) {
    problem.candidates = mode;
    problem.cand_block = 8;
    problem.cand_count = 4;
    (mode == KEYSIEVE_CANDIDATES_PUBLISH ? tensors.cand_out : tensors.cand_in) = make(KEYSIEVE_I32, {4, 4});
  }

  keysieve_status run() { return keysieve_run(&problem, &options, &tensors, stream); }
};

struct BadInput {
  const char* name;
  std::function<void(GoodCall& call)> damage;
  keysieve_status status;
  const char* message;  // must be the whole text; '*' at its end: the beginning
};

void* address(uintptr_t value) {
  return reinterpret_cast<void*>(value);
}

/// Bytes behind `offset` of a tensor's data.
void* inside(const keysieve_tensor& tensor, int64_t offset) {
  return static_cast<std::byte*>(tensor.data) + offset;
}

const keysieve_status kBad = KEYSIEVE_INVALID_ARGUMENT;

std::vector<BadInput> bad_problems() {
  return {
      {"problem of size 0", [](GoodCall& c) { c.problem.struct_size = 0; }, kBad,
       "problem.struct_size is 0, expected sizeof = *"},
      {"problem of an older size", [](GoodCall& c) { c.problem.struct_size -= 8; }, kBad, "problem.struct_size is *"},
      {"options of size 0", [](GoodCall& c) { c.options.struct_size = 0; }, kBad,
       "options.struct_size is 0, expected sizeof = *"},
      {"tensors of size 0", [](GoodCall& c) { c.tensors.struct_size = 0; }, kBad,
       "tensors.struct_size is 0, expected sizeof = *"},
      {"problem of an absurd size", [](GoodCall& c) { c.problem.struct_size = 0xFFFFFFFFU; }, kBad,
       "problem.struct_size is 4294967295, expected sizeof = *"},
      {"unknown op", [](GoodCall& c) { c.problem.op = 3; }, kBad,
       "problem.op is 3, expected 0..2 (score_select, score, select)"},
      {"negative op", [](GoodCall& c) { c.problem.op = -1; }, kBad,
       "problem.op is -1, expected 0..2 (score_select, score, select)"},
      {"unknown device type", [](GoodCall& c) { c.problem.device_type = 2; }, kBad,
       "problem.device_type is 2, expected 0..1 (cpu, cuda)"},
      {"device index on a CPU", [](GoodCall& c) { c.problem.device_index = 1; }, kBad,
       "problem.device_index is 1, expected 0..0"},
      {"negative device index", [](GoodCall& c) { c.problem.device_index = -1; }, kBad,
       "problem.device_index is -1, expected 0..0"},
      {"unknown key layout", [](GoodCall& c) { c.problem.key_layout = 2; }, kBad,
       "problem.key_layout is 2, expected 0..1 (contiguous, paged)"},
      {"unknown score layout", [](GoodCall& c) { c.problem.score_layout = 2; }, kBad,
       "problem.score_layout is 2, expected 0..1 (full, compact)"},
      {"unknown index space", [](GoodCall& c) { c.problem.index_space = 4; }, kBad,
       "problem.index_space is 4, expected 0..3 (row, absolute, offset, slot)"},
      {"unknown order", [](GoodCall& c) { c.problem.order = 3; }, kBad,
       "problem.order is 3, expected 0..2 (ascending, any, score)"},
      {"unknown candidates", [](GoodCall& c) { c.problem.candidates = 3; }, kBad,
       "problem.candidates is 3, expected 0..2 (none, publish, consume)"},
      {"negative T", [](GoodCall& c) { c.problem.num_rows = -1; }, kBad,
       "problem.num_rows is -1, expected 0..2147483647"},
      {"T of 2^31", [](GoodCall& c) { c.problem.num_rows = int64_t{1} << 31; }, kBad,
       "problem.num_rows is 2147483648, expected 0..2147483647"},
      {"negative N", [](GoodCall& c) { c.problem.num_keys = -5; }, kBad,
       "problem.num_keys is -5, expected 0..2147483647"},
      {"N of 2^31", [](GoodCall& c) { c.problem.num_keys = int64_t{1} << 31; }, kBad,
       "problem.num_keys is 2147483648, expected 0..2147483647"},
      {"negative next_n", [](GoodCall& c) { c.problem.next_n = -2; }, kBad,
       "problem.next_n is -2, expected 0..2147483647"},
      {"K of 0", [](GoodCall& c) { c.problem.topk = 0; }, kBad, "problem.topk is 0, expected 1..2048"},
      {"negative K", [](GoodCall& c) { c.problem.topk = -3; }, kBad, "problem.topk is -3, expected 1..2048"},
      {"K over the limit", [](GoodCall& c) { c.problem.topk = 2049; }, kBad, "problem.topk is 2049, expected 1..2048"},
      {"K over select's limit",
       [](GoodCall& c) {
         c.use_select();
         c.problem.topk = 16385;
       },
       kBad, "problem.topk is 16385, expected 1..16384"},
      {"no heads", [](GoodCall& c) { c.problem.num_heads = 0; }, kBad,
       "problem.num_heads is 0, expected 1..2147483647"},
      {"negative head_dim", [](GoodCall& c) { c.problem.head_dim = -32; }, kBad,
       "problem.head_dim is -32, expected 1..2147483647"},
      {"bf16 queries on e4m3 keys", [](GoodCall& c) { c.problem.q_dtype = KEYSIEVE_BF16; }, kBad,
       "problem.(q_dtype, k_dtype) is (BF16, E4M3), expected (E4M3, E4M3), (BF16, BF16) or (E4M3, MXFP4)"},
      {"bf16 queries on MXFP4 keys",
       [](GoodCall& c) {
         c.problem.q_dtype = KEYSIEVE_BF16;
         c.problem.k_dtype = KEYSIEVE_MXFP4;
       },
       kBad, "problem.(q_dtype, k_dtype) is (BF16, MXFP4), expected (E4M3, E4M3), (BF16, BF16) or (E4M3, MXFP4)"},
      {"f32 queries", [](GoodCall& c) { c.problem.q_dtype = KEYSIEVE_F32; }, kBad,
       "problem.(q_dtype, k_dtype) is (F32, E4M3), expected (E4M3, E4M3), (BF16, BF16) or (E4M3, MXFP4)"},
      {"no dtypes", [](GoodCall& c) { c.problem.q_dtype = c.problem.k_dtype = 0; }, kBad,
       "problem.(q_dtype, k_dtype) is (none, none), expected (E4M3, E4M3), (BF16, BF16) or (E4M3, MXFP4)"},
      {"unknown dtype", [](GoodCall& c) { c.problem.k_dtype = 99; }, kBad,
       "problem.(q_dtype, k_dtype) is (E4M3, unknown), expected (E4M3, E4M3), (BF16, BF16) or (E4M3, MXFP4)"},
      {"head_dim that MXFP4 groups do not divide",
       [](GoodCall& c) {
         c.use_mxfp4();
         c.problem.head_dim = 48;
       },
       kBad, "problem.head_dim is 48, expected a multiple of 32 with MXFP4 keys (one scale for 32 values)"},
      {"e4m3 scores",
       [](GoodCall& c) {
         c.use_score();
         c.problem.score_dtype = KEYSIEVE_E4M3;
       },
       kBad, "problem.score_dtype is E4M3, expected F32 or BF16"},
      {"negative compact width",
       [](GoodCall& c) {
         c.use_score();
         c.problem.score_layout = KEYSIEVE_SCORES_COMPACT;
         c.problem.score_width = -1;
       },
       kBad, "problem.score_width is -1, expected 0..2147483647"},
      {"negative page count",
       [](GoodCall& c) {
         c.use_paged();
         c.problem.num_pages = -1;
       },
       kBad, "problem.num_pages is -1, expected 0..2147483647"},
      {"negative request count",
       [](GoodCall& c) {
         c.use_paged();
         c.problem.num_requests = -1;
       },
       kBad, "problem.num_requests is -1, expected 0..2147483647"},
      {"negative table width",
       [](GoodCall& c) {
         c.use_paged();
         c.problem.pages_per_request = -1;
       },
       kBad, "problem.pages_per_request is -1, expected 0..2147483647"},
      {"more keys than a table row holds",
       [](GoodCall& c) {
         c.use_paged();
         c.problem.num_keys = 129;
       },
       kBad, "problem.num_keys is 129, expected at most pages_per_request * 64 = 128, what a row of block_table holds"},
      {"more keys than a slot table row holds",
       [](GoodCall& c) {
         c.use_slots();
         c.problem.num_keys = 97;
       },
       kBad, "problem.num_keys is 97, expected at most pages_per_request * 16 = 96, what a row of slot_table holds"},
      {"slot pages that are no power of two",
       [](GoodCall& c) {
         c.use_slots();
         c.problem.slot_page_size = 24;
       },
       kBad, "problem.slot_page_size is 24, expected a power of two (0, slots from block_table, only with paged keys)"},
      {"negative slot pages",
       [](GoodCall& c) {
         c.use_slots();
         c.problem.slot_page_size = -16;
       },
       kBad,
       "problem.slot_page_size is -16, expected a power of two (0, slots from block_table, only with paged keys)"},
      {"slots from a block table that is not there",
       [](GoodCall& c) {
         c.use_slots();
         c.problem.slot_page_size = 0;
       },
       kBad, "problem.slot_page_size is 0, expected a power of two (0, slots from block_table, only with paged keys)"},
      {"requests that do not cover the rows",
       [](GoodCall& c) {
         c.use_paged();
         c.problem.num_requests = 1;
         c.tensors.block_table.shape[0] = 1;
       },
       kBad, "problem.num_requests * next_n is 2, expected at least num_rows = 4, or row_request"},
      {"candidates with score",
       [](GoodCall& c) {
         c.use_score();
         c.use_candidates(KEYSIEVE_CANDIDATES_PUBLISH);
       },
       kBad, "problem.candidates is 1, expected 0 (none) with op score: blocks belong to a selection"},
      {"candidate blocks of 12",
       [](GoodCall& c) {
         c.use_candidates(KEYSIEVE_CANDIDATES_CONSUME);
         c.problem.cand_block = 12;
       },
       kBad, "problem.cand_block is 12, expected 8 or 16"},
      {"no candidate blocks",
       [](GoodCall& c) {
         c.use_candidates(KEYSIEVE_CANDIDATES_PUBLISH);
         c.problem.cand_count = 0;
       },
       kBad, "problem.cand_count is 0, expected 1..4096"},
      {"too many candidate blocks",
       [](GoodCall& c) {
         c.use_candidates(KEYSIEVE_CANDIDATES_PUBLISH);
         c.problem.cand_count = 4097;
       },
       kBad, "problem.cand_count is 4097, expected 1..4096"},
  };
}

std::vector<BadInput> bad_options() {
  return {
      {"negative threads", [](GoodCall& c) { c.options.threads = -1; }, kBad,
       "options.threads is -1, expected 0..4096"},
      {"negative SM limit", [](GoodCall& c) { c.options.sm_limit = -1; }, kBad,
       "options.sm_limit is -1, expected 0..4096"},
      {"force_first", [](GoodCall& c) { c.options.force_first = 1; }, kBad, "options.force_first is 1, expected 0..0"},
      {"force_last", [](GoodCall& c) { c.options.force_last = 8; }, kBad, "options.force_last is 8, expected 0..0"},
      {"unknown launch flag", [](GoodCall& c) { c.options.launch_flags = 2; }, kBad,
       "options.launch_flags is 2, expected 0..1"},
      {"unknown backend", [](GoodCall& c) { c.options.backend = "vulkan"; }, KEYSIEVE_UNAVAILABLE,
       "options.backend is \"vulkan\", expected one of *"},
      {"backend of another device", [](GoodCall& c) { c.problem.device_type = KEYSIEVE_CUDA; }, kBad,
       "options.backend is \"reference\", expected a backend for cuda tensors"},
      {"configuration of the reference", [](GoodCall& c) { c.options.config = "tile=64"; }, kBad,
       "options.config is \"tile=64\": the reference backend has no configurations"},
      {"a stream on a CPU", [](GoodCall& c) { c.stream = address(16); }, kBad,
       "stream is 0x10, expected null for cpu tensors"},
  };
}

/// The same damage to one tensor after another.
void add_tensor_damage(std::vector<BadInput>& table) {
  table.insert(
      table.end(),
      {
          {"q missing", [](GoodCall& c) { c.tensors.q = {}; }, kBad, "q is missing, expected E4M3 [4, 2, 32]"},
          {"k missing", [](GoodCall& c) { c.tensors.k = {}; }, kBad, "k is missing, expected E4M3 [96, 32]"},
          {"k_scale missing", [](GoodCall& c) { c.tensors.k_scale = {}; }, kBad,
           "k_scale is missing, expected F32 [96]"},
          {"weights missing", [](GoodCall& c) { c.tensors.weights = {}; }, kBad,
           "weights is missing, expected F32 [4, 2]"},
          {"indices missing", [](GoodCall& c) { c.tensors.indices = {}; }, kBad,
           "indices is missing, expected I32 [4, 3]"},
          {"q null", [](GoodCall& c) { c.tensors.q.data = nullptr; }, kBad,
           "q.data is null, expected memory for [4, 2, 32]"},
          {"k null", [](GoodCall& c) { c.tensors.k.data = nullptr; }, kBad,
           "k.data is null, expected memory for [96, 32]"},
          {"weights null", [](GoodCall& c) { c.tensors.weights.data = nullptr; }, kBad,
           "weights.data is null, expected memory for [4, 2]"},
          {"row_end null", [](GoodCall& c) { c.tensors.row_end.data = nullptr; }, kBad,
           "row_end.data is null, expected memory for [4]"},
          {"indices null", [](GoodCall& c) { c.tensors.indices.data = nullptr; }, kBad,
           "indices.data is null, expected memory for [4, 3]"},
          {"q of another dtype", [](GoodCall& c) { c.tensors.q.dtype = KEYSIEVE_BF16; }, kBad,
           "q.dtype is BF16, expected E4M3"},
          {"k of another dtype", [](GoodCall& c) { c.tensors.k.dtype = KEYSIEVE_U8; }, kBad,
           "k.dtype is U8, expected E4M3"},
          {"weights of another dtype", [](GoodCall& c) { c.tensors.weights.dtype = KEYSIEVE_BF16; }, kBad,
           "weights.dtype is BF16, expected F32"},
          {"row_start of another dtype", [](GoodCall& c) { c.tensors.row_start.dtype = KEYSIEVE_U64; }, kBad,
           "row_start.dtype is U64, expected I32"},
          {"indices of another dtype", [](GoodCall& c) { c.tensors.indices.dtype = KEYSIEVE_F32; }, kBad,
           "indices.dtype is F32, expected I32"},
          {"top_scores of another dtype", [](GoodCall& c) { c.tensors.top_scores.dtype = KEYSIEVE_BF16; }, kBad,
           "top_scores.dtype is BF16, expected F32"},
          {"stats of another dtype", [](GoodCall& c) { c.tensors.stats.dtype = KEYSIEVE_I32; }, kBad,
           "stats.dtype is I32, expected U64"},
          {"a dtype that does not exist", [](GoodCall& c) { c.tensors.k.dtype = -1; }, kBad,
           "k.dtype is unknown, expected E4M3"},
          {"q of rank 2", [](GoodCall& c) { c.tensors.q.rank = 2; }, kBad, "q.rank is 2, expected 3: [4, 2, 32]"},
          {"k of rank 1", [](GoodCall& c) { c.tensors.k.rank = 1; }, kBad, "k.rank is 1, expected 2: [96, 32]"},
          {"k of rank 5", [](GoodCall& c) { c.tensors.k.rank = 5; }, kBad, "k.rank is 5, expected 2: [96, 32]"},
          {"indices of negative rank", [](GoodCall& c) { c.tensors.indices.rank = -1; }, kBad,
           "indices.rank is -1, expected 2: [4, 3]"},
          {"out_count of rank 2", [](GoodCall& c) { c.tensors.out_count.rank = 3; }, kBad,
           "out_count.rank is 3, expected 1: [4]"},
          {"q of another shape", [](GoodCall& c) { c.tensors.q.shape[1] = 3; }, kBad,
           "q.shape is [4, 3, 32], expected [4, 2, 32]"},
          {"k of another shape", [](GoodCall& c) { c.tensors.k.shape[0] = 95; }, kBad,
           "k.shape is [95, 32], expected [96, 32]"},
          {"k_scale of another shape", [](GoodCall& c) { c.tensors.k_scale.shape[0] = 97; }, kBad,
           "k_scale.shape is [97], expected [96]"},
          {"weights of another shape", [](GoodCall& c) { c.tensors.weights.shape[1] = 1; }, kBad,
           "weights.shape is [4, 1], expected [4, 2]"},
          {"row_start of another shape", [](GoodCall& c) { c.tensors.row_start.shape[0] = 3; }, kBad,
           "row_start.shape is [3], expected [4]"},
          {"row_end of a negative shape", [](GoodCall& c) { c.tensors.row_end.shape[0] = -4; }, kBad,
           "row_end.shape is [-4], expected [4]"},
          {"indices of another shape", [](GoodCall& c) { c.tensors.indices.shape[1] = 4; }, kBad,
           "indices.shape is [4, 4], expected [4, 3]"},
          {"row_indices of another shape", [](GoodCall& c) { c.tensors.row_indices.shape[0] = 5; }, kBad,
           "row_indices.shape is [5, 3], expected [4, 3]"},
          {"stats of another shape", [](GoodCall& c) { c.tensors.stats.shape[0] = 4; }, kBad,
           "stats.shape is [4], expected [8]"},
          {"q with an inner stride", [](GoodCall& c) { c.tensors.q.stride[2] = 2; }, kBad,
           "q.stride[2] is 2, expected 1 on the innermost axis"},
          {"k with an inner stride", [](GoodCall& c) { c.tensors.k.stride[1] = 3; }, kBad,
           "k.stride[1] is 3, expected 1 on the innermost axis"},
          {"weights with an inner stride", [](GoodCall& c) { c.tensors.weights.stride[1] = 0; }, kBad,
           "weights.stride[1] is 0, expected 1 on the innermost axis"},
          {"indices with an inner stride", [](GoodCall& c) { c.tensors.indices.stride[1] = -1; }, kBad,
           "indices.stride[1] is -1, expected 1 on the innermost axis"},
          {"q with stride 0 on T", [](GoodCall& c) { c.tensors.q.stride[0] = 0; }, kBad,
           "q.stride[0] is 0, expected a positive stride"},
          {"q with a negative head stride", [](GoodCall& c) { c.tensors.q.stride[1] = -32; }, kBad,
           "q.stride[1] is -32, expected a positive stride"},
          {"k with stride 0", [](GoodCall& c) { c.tensors.k.stride[0] = 0; }, kBad,
           "k.stride[0] is 0, expected a positive stride"},
          {"k_scale with stride 0", [](GoodCall& c) { c.tensors.k_scale.stride[0] = 0; }, kBad,
           "k_scale.stride[0] is 0, expected a positive stride"},
          {"weights with a negative stride", [](GoodCall& c) { c.tensors.weights.stride[0] = -2; }, kBad,
           "weights.stride[0] is -2, expected a positive stride"},
          {"row_end with stride 0", [](GoodCall& c) { c.tensors.row_end.stride[0] = 0; }, kBad,
           "row_end.stride[0] is 0, expected a positive stride"},
          {"out_count with stride 0", [](GoodCall& c) { c.tensors.out_count.stride[0] = 0; }, kBad,
           "out_count.stride[0] is 0, expected a positive stride"},
          {"indices whose rows overlap", [](GoodCall& c) { c.tensors.indices.stride[0] = 2; }, kBad,
           "indices.stride[0] is 2, expected at least 3 so that rows do not overlap"},
          {"top_scores whose rows overlap", [](GoodCall& c) { c.tensors.top_scores.stride[0] = 1; }, kBad,
           "top_scores.stride[0] is 1, expected at least 3 so that rows do not overlap"},
          {"k_scale off its alignment", [](GoodCall& c) { c.tensors.k_scale.data = inside(c.tensors.k_scale, 2); },
           kBad, "k_scale.data is *"},
          {"weights off their alignment", [](GoodCall& c) { c.tensors.weights.data = inside(c.tensors.weights, 1); },
           kBad, "weights.data is *"},
          {"indices off their alignment", [](GoodCall& c) { c.tensors.indices.data = inside(c.tensors.indices, 2); },
           kBad, "indices.data is *"},
          {"stats off their alignment", [](GoodCall& c) { c.tensors.stats.data = inside(c.tensors.stats, 4); }, kBad,
           "stats.data is *"},
      });
}

std::vector<BadInput> bad_tensors() {
  std::vector<BadInput> table;
  add_tensor_damage(table);
  table.insert(
      table.end(),
      {
          {"bf16 queries at an odd address",
           [](GoodCall& c) {
             c.use_bf16();
             c.tensors.q.data = inside(c.tensors.q, 1);
           },
           kBad, "q.data is *"},
          {"bf16 keys with scales",
           [](GoodCall& c) {
             const keysieve_tensor scale = c.tensors.k_scale;
             c.use_bf16();
             c.tensors.k_scale = scale;
           },
           kBad, "k_scale is given, expected none: BF16 keys have no scale"},
          {"paged keys with scales",
           [](GoodCall& c) {
             const keysieve_tensor scale = c.tensors.k_scale;
             c.use_paged();
             c.tensors.k_scale = scale;
           },
           kBad, "k_scale is given, expected none: paged keys hold their scales"},
          {"paged keys of the wrong page size",
           [](GoodCall& c) {
             c.use_paged();
             c.tensors.k.shape[1] = 64 * 32;
           },
           kBad, "k.shape is [5, 2048], expected [5, 2304]"},
          {"paged keys without a table",
           [](GoodCall& c) {
             c.use_paged();
             c.tensors.block_table = {};
           },
           kBad, "block_table is missing, expected I32 [2, 2]"},
          {"block table of another shape",
           [](GoodCall& c) {
             c.use_paged();
             c.tensors.block_table.shape[1] = 3;
           },
           kBad, "block_table.shape is [2, 3], expected [2, 2]"},
          {"row_request of another dtype",
           [](GoodCall& c) {
             c.use_paged();
             c.tensors.row_request = c.make(KEYSIEVE_F32, {4});
           },
           kBad, "row_request.dtype is F32, expected I32"},
          {"slots without a table",
           [](GoodCall& c) {
             c.use_slots();
             c.tensors.slot_table = {};
           },
           kBad, "slot_table is missing, expected I32 [2, 6]"},
          {"MXFP4 keys as e4m3",
           [](GoodCall& c) {
             c.use_mxfp4();
             c.tensors.k.dtype = KEYSIEVE_E4M3;
           },
           kBad, "k.dtype is E4M3, expected U8"},
          {"MXFP4 keys without scales",
           [](GoodCall& c) {
             c.use_mxfp4();
             c.tensors.k_scale = {};
           },
           kBad, "k_scale is missing, expected U8 [96, 1]"},
          {"index space offset without offsets", [](GoodCall& c) { c.problem.index_space = KEYSIEVE_INDEX_OFFSET; },
           kBad, "out_offset is missing, expected I32 [4] for index space offset"},
          {"score without an output",
           [](GoodCall& c) {
             c.use_score();
             c.tensors.scores = {};
           },
           kBad, "scores is missing, expected F32 [4, 96]"},
          {"compact scores of the full shape",
           [](GoodCall& c) {
             c.use_score();
             c.problem.score_layout = KEYSIEVE_SCORES_COMPACT;
             c.problem.score_width = 40;
           },
           kBad, "scores.shape is [4, 96], expected [4, 40]"},
          {"bf16 scores as f32",
           [](GoodCall& c) {
             c.use_select();
             c.problem.score_dtype = KEYSIEVE_BF16;
           },
           kBad, "scores.dtype is F32, expected BF16"},
          {"publish without an output",
           [](GoodCall& c) {
             c.use_candidates(KEYSIEVE_CANDIDATES_PUBLISH);
             c.tensors.cand_out = {};
           },
           kBad, "cand_out is missing, expected I32 [4, 4]"},
          {"consume without a list",
           [](GoodCall& c) {
             c.use_candidates(KEYSIEVE_CANDIDATES_CONSUME);
             c.tensors.cand_in = {};
           },
           kBad, "cand_in is missing, expected I32 [4, 4]"},
          {"candidate list of another shape",
           [](GoodCall& c) {
             c.use_candidates(KEYSIEVE_CANDIDATES_CONSUME);
             c.tensors.cand_in.shape[1] = 5;
           },
           kBad, "cand_in.shape is [4, 5], expected [4, 4]"},
          {"k that overflows the address space", [](GoodCall& c) { c.tensors.k.stride[0] = INT64_MAX / 2; }, kBad,
           "k with shape [96, 32] and strides [4611686018427387903, 1] overflows the address space, expected at most "
           "2^63 - 1 bytes"},
          {"indices that overflow the address space", [](GoodCall& c) { c.tensors.indices.stride[0] = INT64_MAX / 4; },
           kBad,
           "indices with shape [4, 3] and strides [2305843009213693951, 1] overflows the address space, expected at "
           "most 2^63 - 1 bytes"},
          {"keys that reach past the last address", [](GoodCall& c) { c.tensors.k.data = address(UINTPTR_MAX - 1000); },
           kBad,
           "k with shape [96, 32] and strides [32, 1] overflows the address space, expected at most 2^63 - 1 bytes"},
          {"indices over scores", [](GoodCall& c) { c.tensors.indices.data = inside(c.tensors.top_scores, 16); }, kBad,
           "top_scores overlaps indices in memory, expected outputs and workspace apart from every other tensor"},
          {"indices over keys", [](GoodCall& c) { c.tensors.indices.data = inside(c.tensors.k, 96 * 32 - 4); }, kBad,
           "indices overlaps k in memory, expected outputs and workspace apart from every other tensor"},
          {"scores over queries",
           [](GoodCall& c) {
             c.use_score();
             c.tensors.scores.data = c.tensors.q.data;
           },
           kBad, "scores overlaps q in memory, expected outputs and workspace apart from every other tensor"},
          {"out_count over row_end", [](GoodCall& c) { c.tensors.out_count.data = inside(c.tensors.row_end, 12); },
           kBad, "out_count overlaps row_end in memory, expected outputs and workspace apart from every other tensor"},
          {"workspace over indices",
           [](GoodCall& c) {
             c.tensors.workspace = c.tensors.indices.data;
             c.tensors.workspace_bytes = 64;
           },
           kBad, "workspace overlaps indices in memory, expected outputs and workspace apart from every other tensor"},
          {"workspace over keys",
           [](GoodCall& c) {
             c.tensors.workspace = inside(c.tensors.k, 100);
             c.tensors.workspace_bytes = 1;
           },
           kBad, "workspace overlaps k in memory, expected outputs and workspace apart from every other tensor"},
          {"workspace of some size at null",
           [](GoodCall& c) {
             c.tensors.workspace = nullptr;
             c.tensors.workspace_bytes = 1000;
           },
           kBad, "workspace is null, expected 1000 bytes"},
          {"workspace past the last address",
           [](GoodCall& c) {
             c.tensors.workspace = address(4096);
             c.tensors.workspace_bytes = SIZE_MAX;
           },
           kBad, "workspace_bytes is 18446744073709551615, expected a range inside the address space"},
          {"reserved word of tensors", [](GoodCall& c) { c.tensors.reserved = 1; }, kBad,
           "tensors.reserved is 1, expected 0"},
      });
  return table;
}

void expect_message(const BadInput& bad, GoodCall& call, std::set<std::string>& messages) {
  SCOPED_TRACE(bad.name);
  EXPECT_EQ(call.run(), bad.status);
  const std::string message = keysieve_last_message();
  const std::string expected = bad.message;
  if (expected.back() == '*') {
    EXPECT_EQ(message.substr(0, expected.size() - 1), expected.substr(0, expected.size() - 1));
  } else {
    EXPECT_EQ(message, expected);
  }
  EXPECT_TRUE(messages.insert(message).second) << "another bad input has the same message: " << message;
}

TEST(Validate, TheGoodCallIsGood) {
  const std::vector<std::function<void(GoodCall & call)>> kVariants = {
      [](GoodCall& /*c*/) {},
      [](GoodCall& c) { c.use_score(); },
      [](GoodCall& c) { c.use_select(); },
      [](GoodCall& c) { c.use_mxfp4(); },
      [](GoodCall& c) { c.use_bf16(); },
      [](GoodCall& c) { c.use_paged(); },
      [](GoodCall& c) { c.use_slots(); },
      [](GoodCall& c) { c.use_candidates(KEYSIEVE_CANDIDATES_PUBLISH); },
      [](GoodCall& c) { c.use_candidates(KEYSIEVE_CANDIDATES_CONSUME); },
      [](GoodCall& c) { c.tensors.weights.stride[0] = 0; },
      [](GoodCall& c) { c.tensors.row_start = c.tensors.row_end = {}; },
      [](GoodCall& c) { c.tensors.top_scores = c.tensors.out_count = c.tensors.row_indices = c.tensors.stats = {}; },
      [](GoodCall& c) { c.tensors.q.stride[0] = 100; },
      [](GoodCall& c) {
        c.problem.num_rows = 0;
        c.tensors.q.shape[0] = c.tensors.weights.shape[0] = 0;
        c.tensors.row_start.shape[0] = c.tensors.row_end.shape[0] = 0;
        c.tensors.indices.shape[0] = c.tensors.top_scores.shape[0] = 0;
        c.tensors.out_count.shape[0] = c.tensors.row_indices.shape[0] = 0;
      },
  };
  for (size_t i = 0; i < kVariants.size(); ++i) {
    GoodCall call;
    kVariants[i](call);
    EXPECT_EQ(call.run(), KEYSIEVE_OK) << "variant " << i << ": " << keysieve_last_message();
    EXPECT_STREQ(keysieve_last_message(), "");
  }
}

TEST(Validate, EveryBadInputHasItsOwnMessage) {
  std::set<std::string> messages;
  for (const std::vector<BadInput>& table : {bad_problems(), bad_options(), bad_tensors()}) {
    for (const BadInput& bad : table) {
      GoodCall call;
      ASSERT_EQ(call.run(), KEYSIEVE_OK) << keysieve_last_message();
      bad.damage(call);
      expect_message(bad, call, messages);
    }
  }
}

TEST(Validate, NullStructs) {
  GoodCall call;
  EXPECT_EQ(keysieve_run(nullptr, &call.options, &call.tensors, nullptr), kBad);
  EXPECT_STREQ(keysieve_last_message(), "problem is null, expected a struct");
  EXPECT_EQ(keysieve_run(&call.problem, &call.options, nullptr, nullptr), kBad);
  EXPECT_STREQ(keysieve_last_message(), "tensors is null, expected a struct");
  std::vector<std::byte> workspace(1 << 24);
  call.tensors.workspace = workspace.data();
  call.tensors.workspace_bytes = workspace.size();
  EXPECT_EQ(keysieve_run(&call.problem, nullptr, &call.tensors, nullptr), KEYSIEVE_OK)
      << "options may be null: " << keysieve_last_message();
  EXPECT_EQ(keysieve_get_backend(0, nullptr), kBad);
  EXPECT_STREQ(keysieve_last_message(), "info is null, expected a struct");
  keysieve_backend_info info{};
  info.struct_size = sizeof(info);
  EXPECT_EQ(keysieve_get_backend(-1, &info), kBad);
  EXPECT_EQ(keysieve_get_backend(keysieve_backend_count(), &info), kBad);
  EXPECT_EQ(keysieve_explain(&call.problem, nullptr, nullptr, 10), kBad);
  char text[4] = "abc";
  EXPECT_EQ(keysieve_explain(&call.problem, nullptr, text, 0), kBad);
  EXPECT_STREQ(text, "abc") << "a buffer of no bytes is not written";
  EXPECT_EQ(keysieve_explain(&call.problem, &call.options, text, sizeof(text)), KEYSIEVE_OK);
  EXPECT_EQ(text[3], '\0') << "cut to the capacity";
}

/// Structs of a newer caller: larger, and zero where this library knows nothing.
template <typename Struct>
struct Larger {
  Struct known;
  std::array<unsigned char, 16> unknown{};
};

TEST(Validate, LargerStructsMustBeZeroPastWhatIsKnown) {
  GoodCall call;
  Larger<keysieve_problem> problem{call.problem, {}};
  Larger<keysieve_options> options{call.options, {}};
  Larger<keysieve_tensors> tensors{call.tensors, {}};
  problem.known.struct_size = sizeof(problem);
  options.known.struct_size = sizeof(options);
  tensors.known.struct_size = sizeof(tensors);
  EXPECT_EQ(keysieve_run(&problem.known, &options.known, &tensors.known, nullptr), KEYSIEVE_OK)
      << keysieve_last_message();
  struct Tail {
    const char* name;
    unsigned char* byte;
    size_t known_bytes;
  };
  for (const Tail& tail : {Tail{"problem", &problem.unknown[3], sizeof(keysieve_problem)},
                           Tail{"options", &options.unknown[3], sizeof(keysieve_options)},
                           Tail{"tensors", &tensors.unknown[3], sizeof(keysieve_tensors)}}) {
    *tail.byte = 1;
    EXPECT_EQ(keysieve_run(&problem.known, &options.known, &tensors.known, nullptr), kBad);
    const std::string message = keysieve_last_message();
    EXPECT_NE(message.find(std::string(tail.name) + " has a non-zero field at byte"), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(tail.known_bytes)), std::string::npos) << message;
    *tail.byte = 0;
  }
}

/// A refused call writes nothing.
TEST(Validate, RefusedCallsWriteNothing) {
  for (const std::vector<BadInput>& table : {bad_problems(), bad_options(), bad_tensors()}) {
    for (const BadInput& bad : table) {
      GoodCall call;
      bad.damage(call);
      for (std::vector<std::byte>& memory : call.memory) {
        std::fill(memory.begin(), memory.end(), std::byte{0xA5});
      }
      EXPECT_NE(call.run(), KEYSIEVE_OK) << bad.name;
      for (const std::vector<std::byte>& memory : call.memory) {
        EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0xA5}), static_cast<int64_t>(memory.size()))
            << bad.name;
      }
    }
  }
}

/// keysieve_supported, keysieve_workspace_size and keysieve_explain refuse what keysieve_run refuses.
TEST(Validate, EveryEntryPointChecksTheProblem) {
  for (const BadInput& bad : bad_problems()) {
    GoodCall call;
    bad.damage(call);
    if (std::string(bad.message).rfind("problem.num_requests * next_n", 0) == 0 ||
        std::string(bad.message).rfind("tensors.", 0) == 0) {
      continue;  // needs the tensors
    }
    SCOPED_TRACE(bad.name);
    size_t minimum = 77;
    size_t preferred = 77;
    char text[64];
    EXPECT_EQ(keysieve_supported(&call.problem, &call.options), bad.status);
    const std::string message = keysieve_last_message();
    EXPECT_EQ(keysieve_workspace_size(&call.problem, &call.options, &minimum, &preferred), bad.status);
    EXPECT_EQ(keysieve_last_message(), message);
    EXPECT_EQ(keysieve_explain(&call.problem, &call.options, text, sizeof(text)), bad.status);
    EXPECT_EQ(keysieve_last_message(), message);
    EXPECT_EQ(minimum, 0U);
    EXPECT_EQ(preferred, 0U);
  }
}

/// Outputs that interleave in one wide buffer do not overlap.
TEST(Validate, ColumnsOfOneBufferAreApart) {
  GoodCall call;
  std::vector<int32_t> wide(4 * 16);
  call.tensors.indices = GoodCall::view(wide.data(), KEYSIEVE_I32, {4, 3});
  call.tensors.row_indices = GoodCall::view(wide.data() + 3, KEYSIEVE_I32, {4, 3});
  call.tensors.out_count = GoodCall::view(wide.data() + 6, KEYSIEVE_I32, {4});
  for (keysieve_tensor* tensor : {&call.tensors.indices, &call.tensors.row_indices, &call.tensors.out_count}) {
    tensor->stride[0] = 16;
  }
  EXPECT_EQ(call.run(), KEYSIEVE_OK) << keysieve_last_message();
  call.tensors.row_indices.data = wide.data() + 2;
  EXPECT_EQ(call.run(), kBad);
  call.tensors.row_indices.data = wide.data() + 14;  // its row runs into the next row of indices
  EXPECT_EQ(call.run(), kBad);
}

}  // namespace
}  // namespace keysieve
