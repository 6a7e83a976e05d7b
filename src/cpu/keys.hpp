// SPDX-License-Identifier: Apache-2.0
// From the caller's tensors to packed operands: where a key lies, panels of keys, rows of queries.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cpu/kernels.hpp"

namespace keysieve::cpu {

/// Where one key lies in the caller's memory.
struct KeyRef {
  const uint8_t* values = nullptr;  // null: no such key; it scores NaN
  const uint8_t* scales = nullptr;  // f32 with e4m3, D/32 e8m0 bytes with MXFP4
};

/// The key at `position` of a request.  With paged keys, null if its page id is outside the pool.
KeyRef find_key(const Call& call, int64_t request, int64_t position);

/// Fills lane `lane` of raw, group_scale and factor with one key, or with a NaN factor if there is none.
void stage_key(const Problem& problem, const KeyRef& key, int panel_keys, int lane, const KeyPanel& panel);

/// Query row t as words, [head group][num_words][group_heads], zeros beyond H and D.
void pack_query_row(const Call& call, int64_t t, Words words, int group_heads, uint32_t* out);

/// True if one of `count` bf16 values is subnormal (and not zero).
bool has_bf16_subnormal(const uint8_t* values, int64_t count);

}  // namespace keysieve::cpu
