// SPDX-License-Identifier: Apache-2.0
// Replay files: the inputs of one score_select call, as a safetensors file.
//
//   q            F8_E4M3 or BF16 [Q,H,D]
//   k            F8_E4M3 or BF16 [N,D], or U8 [N,D/2]: MXFP4, two values a byte (only with F8_E4M3 queries)
//   k_scale      F32 [N] with F8_E4M3 keys, U8 or F8_E8M0 [N,D/32] with MXFP4 keys, absent with BF16 keys
//   weights      F32 [Q,H]
//   row_start    I32 [Q], optional: 0               row_end     I32 [Q], optional: N
//   out_offset   I32 [Q], optional: needed for --index-space offset
//   slot_table   I32 [B,P], row_request I32 [Q], metadata slot_page_size: needed for --index-space slot
//
// Other tensors and metadata are free.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.hpp"
#include "io/safetensors.hpp"
#include "keysieve/keysieve.h"

namespace keysieve {

/// A checked replay file; the views point into `file`.  A view of rank 0 is absent.
struct Replay {
  Safetensors file;

  int64_t num_rows = 0;   // Q
  int64_t num_heads = 0;  // H
  int64_t head_dim = 0;   // D
  int64_t num_keys = 0;   // N
  int32_t q_dtype = KEYSIEVE_DTYPE_NONE;
  int32_t k_dtype = KEYSIEVE_DTYPE_NONE;
  int32_t slot_page_size = 0;

  keysieve_tensor q = {};
  keysieve_tensor k = {};
  keysieve_tensor k_scale = {};
  keysieve_tensor weights = {};
  keysieve_tensor row_start = {};
  keysieve_tensor row_end = {};
  keysieve_tensor row_request = {};
  keysieve_tensor out_offset = {};
  keysieve_tensor slot_table = {};
};

/// A dense row-major view.
keysieve_tensor make_view(const void* data, int32_t dtype, std::initializer_list<int64_t> shape);

/// Opens and checks the replay file at `path`.
Status open_replay(const std::string& path, Replay* replay);

/// Checks the tensors of `file` and takes it over.
Status make_replay(Safetensors file, Replay* replay);

}  // namespace keysieve
