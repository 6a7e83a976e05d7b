// SPDX-License-Identifier: Apache-2.0
// A saved selection: indices and scores as a safetensors file, with how they were made in the metadata.
#pragma once

#include <string>

#include "session.hpp"

namespace keysieve::cli {

/// Tensors: indices I32 [T,K], scores F32 [T,K], count I32 [T], and row_indices I32 [T,K] unless the index space is
/// row.
void save_selection(const std::string& path, const Selection& selection, const Session& session,
                    const std::string& source);

struct SavedSelection {
  Selection selection;  // row-relative; scores are empty if the file has none
  int32_t order = KEYSIEVE_ORDER_ANY;
  std::string backend;  // empty if the file does not say
};

/// Reads a saved selection of `replay`'s rows.  A file of another tool needs only `indices`; `index_space` says what
/// they mean where the metadata does not.
SavedSelection load_selection(const std::string& path, const Replay& replay, int32_t index_space);

}  // namespace keysieve::cli
