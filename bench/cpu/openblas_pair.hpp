// SPDX-License-Identifier: Apache-2.0
// The unfused pair on a CPU, as people write it: one SGEMM for all products, one threaded pass for relu, weights and
// the head sum, then std::nth_element for each row.  Operands come as f32, decoded beforehand at no charge.
#pragma once

#include <cstdint>
#include <vector>

namespace keysieve::bench {

struct OpenblasPairInputs {
  int64_t num_rows = 0;            // T
  int64_t num_heads = 0;           // H
  int64_t head_dim = 0;            // D
  int64_t num_keys = 0;            // N
  int64_t topk = 0;                // K <= N
  const float* q = nullptr;        // [T,H,D]
  const float* k = nullptr;        // [N,D]
  const float* k_scale = nullptr;  // [N]
  const float* weights = nullptr;  // [T,H]
  int threads = 1;
};

struct OpenblasPairTimes {
  double gemm_ms = 0;
  double reduce_ms = 0;
  double select_ms = 0;
};

class OpenblasPair {
 public:
  /// Rows go through in chunks whose products [rows*H, N] stay under `product_bytes`.
  explicit OpenblasPair(const OpenblasPairInputs& inputs, int64_t product_bytes = int64_t{1} << 30);

  /// Writes the K best keys of every row, in any order, to indices [T,K].
  OpenblasPairTimes run(int32_t* indices);

 private:
  void multiply(int64_t first_row, int64_t num_rows);
  void reduce(int64_t first_row, int64_t num_rows);
  void select(int64_t first_row, int64_t num_rows, int32_t* indices);

  OpenblasPairInputs inputs_;
  int64_t chunk_rows_;
  std::vector<float> products_;  // [chunk_rows * H, N]
  std::vector<float> scores_;    // [chunk_rows, N]
};

/// The kernels that OpenBLAS chose, such as "Zen".  OPENBLAS_CORETYPE in the environment overrides its choice, so a
/// benchmark wants it unset.
const char* openblas_core_name();

}  // namespace keysieve::bench
