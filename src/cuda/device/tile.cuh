// SPDX-License-Identifier: Apache-2.0
// The scores of one tile of 128 keys against one block of query rows: the main loop's body, shared by every kernel that
// scores keys, so that all of them produce the same bits.
//
//     score[t,n] = k_scale[n] * sum_h w[t,h] * relu( q[t,h,:] . k[n,:] )
//
// Layout.  Two warpgroups take 64 keys each (M of the product); the 256 columns (N) are all heads of the block's
// queries. A lane of a wgmma accumulator holds columns 8j + 2c + p of two keys (c = lane % 4, p = 0, 1, j = 0..31), so
// columns are dealt such that these 64 columns are whole queries of lane c, and the head sum needs no exchange between
// lanes:
//
//     H <= 64:  row 8j + 2c + p of the query tile = head 2i + p of query 4u + c,   j = u * H/2 + i
//     H == 128: row 8j + 2c + p of the query tile = head 4j + 2(c%2) + p of query c/2   (two lanes share a query)
//
//               p=0 p=1 p=0 p=1 p=0 p=1 p=0 p=1
//               c=0     c=1     c=2     c=3
//     j = 0   | q0h0 q0h1 q1h0 q1h1 q2h0 q2h1 q3h0 q3h1 |  8 rows of the query tile = one swizzle group
//     j = 1   | q0h2 q0h3 q1h2 q1h3 ...                 |  (H = 64: j = 31 ends with head 63)
//
// The copy engine deals the rows: see query_boxes below.
//
// Order of the sum (that of DeepGEMM's kernel, so that finite scores agree bit for bit): eight chains, chain (c', p)
// over heads 8m + 2c' + p, m in the order 1, 0, 2, 3, ...: the first term a product, then fused multiply-adds (nvcc
// contracts DeepGEMM's first sum to fma(x0, w0, x1 * w1), so it is the product of m = 1 that is rounded alone); then
//     z[c'] = (chain[c'][0] + chain[c'][1]) * k_scale;     score = (z[0] + z[1]) + (z[2] + z[3]).
// H = 128: the eight chains of a lane take heads 4j + 2(c%2) + p, chain j % 4; the two lanes' scores are added.
// e4m3: relu(x) * w is computed as (x + |x|) * (w / 2): one addition on the FMA pipe, exact, and NaN stays NaN.  Dots
// of bf16 can be infinite, and -inf + inf is NaN: there relu is max.NaN, and the weights are whole.
//
// A row of more than 128 bytes lies in planes of 128 (the widest swizzle): all rows' first 128 bytes, then their next.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace keysieve::device {

/// Numbers of a tile of e4m3 (with key scales) or bf16 (without) queries and keys.
template <int kHeadsT, int kHeadDimT, class OperandsT = ptx::E4m3Operands>
struct TileShape {
  using Operands = OperandsT;
  static constexpr bool kIsE4m3 = std::is_same_v<Operands, ptx::E4m3Operands>;
  static constexpr bool kHasScales = kIsE4m3;
  static constexpr int kHeads = kHeadsT;
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kElementBytes = kIsE4m3 ? 1 : 2;
  static constexpr int kRowBytes = kHeadDim * kElementBytes;             // of a query or key
  static constexpr int kPlaneBytes = kRowBytes < 128 ? kRowBytes : 128;  // of a row in a plane
  static constexpr int kPlanes = kRowBytes / kPlaneBytes;
  static_assert(kHeads == 8 || kHeads == 16 || kHeads == 32 || kHeads == 64 || kHeads == 128);
  static_assert(kHeadDim == 64 || kHeadDim == 128);

  static constexpr int kMathWarps = 8;
  static constexpr int kKeys = 128;
  static constexpr int kColumns = 256;
  static constexpr int kColumnsPerLane = 64;
  static constexpr bool kPairedLanes = kHeads == 128;
  static constexpr int kHeadsPerLane = kPairedLanes ? 64 : kHeads;
  static constexpr int kQueriesPerLane = kColumnsPerLane / kHeadsPerLane;
  static constexpr int kQueries = kColumns / kHeads;
  static constexpr int kScoresPerQuery = kPairedLanes ? 1 : 2;  // of a lane and a tile

  static constexpr int kQueryBytes = kColumns * kRowBytes;
  static constexpr int kKeyBytes = kKeys * kRowBytes;
  static constexpr int kQueryPlaneBytes = kColumns * kPlaneBytes;
  static constexpr int kKeyPlaneBytes = kKeys * kPlaneBytes;
  static constexpr int kWeightStride = kHeads + 4;  // between queries in shared memory, without bank conflicts
  static constexpr int kWeightFloats = kQueries * kWeightStride;

  // A plane of the query rows comes in kQueriesPerLane boxes of {row bytes, heads side by side, queries, groups of
  // heads}.
  static constexpr int kBoxHeads = kPairedLanes ? 4 : 2;
  static constexpr int kBoxQueries = kPairedLanes ? 2 : 4;
  static constexpr int kBoxGroups = kHeads / kBoxHeads;
  static constexpr int kBoxBytes = kBoxHeads * kBoxQueries * kBoxGroups * kPlaneBytes;
  static_assert(kBoxBytes * kQueriesPerLane == kQueryPlaneBytes);

  /// Query of the block whose scores the lane receives as its u-th.
  __device__ __forceinline__ static int query_of_lane(int lane, int u) {
    return kPairedLanes ? lane % 4 / 2 : 4 * u + lane % 4;
  }
  /// Key of the tile of the lane's first score; its second is 8 further.
  __device__ __forceinline__ static int first_key_of_lane(int math_warp, int lane) {
    return math_warp * 16 + lane / 4 + (kPairedLanes ? lane % 2 * 8 : 0);
  }
};

/// The weights of a lane's 64 columns, in the order of its accumulators; e4m3: half of them.
template <class Tile>
struct LaneWeights {
  static constexpr float kPart = Tile::kIsE4m3 ? 0.5F : 1.0F;
  float part[Tile::kColumnsPerLane];

  /// s_weights: [kQueries][kWeightStride], 16-byte aligned.
  __device__ __forceinline__ void load(const float* s_weights, int lane) {
    if constexpr (Tile::kPairedLanes) {
      const float* s_row = s_weights + Tile::query_of_lane(lane, 0) * Tile::kWeightStride + lane % 2 * 2;
#pragma unroll
      for (int j = 0; j < Tile::kColumnsPerLane / 2; ++j) {
        const float2 pair = *reinterpret_cast<const float2*>(s_row + 4 * j);
        part[2 * j] = kPart * pair.x;
        part[2 * j + 1] = kPart * pair.y;
      }
    } else {
#pragma unroll
      for (int u = 0; u < Tile::kQueriesPerLane; ++u) {
        const float* s_row = s_weights + Tile::query_of_lane(lane, u) * Tile::kWeightStride;
#pragma unroll
        for (int h = 0; h < Tile::kHeads; h += 4) {
          const float4 four = *reinterpret_cast<const float4*>(s_row + h);
          part[u * Tile::kHeads + h] = kPart * four.x;
          part[u * Tile::kHeads + h + 1] = kPart * four.y;
          part[u * Tile::kHeads + h + 2] = kPart * four.z;
          part[u * Tile::kHeads + h + 3] = kPart * four.w;
        }
      }
    }
  }
};

/// What one warpgroup multiplies: its 64 keys and the block's queries, and the scales of the lane's two keys.
struct TileOperands {
  uint64_t keys;     // matrix descriptor of the warpgroup's 64 key rows
  uint64_t queries;  // matrix descriptor of the 256 query rows
  float scale[2];    // of keys first_key and first_key + 8 (paired lanes: lane/4 and lane/4 + 8)
};

/// The eight chains of a query for each of the lane's two keys.
template <class Tile>
class HeadSums {
 public:
  /// step: place of the pair of heads in the order of the sum; the first four steps open the chains.
  __device__ __forceinline__ void add(int key, int step, float dot0, float dot1, float weight0, float weight1) {
    const int chain = step % 4;
    const float relu0 = relu(dot0);
    const float relu1 = relu(dot1);
    if (step < 4) {
      even_[key][chain] = __fmul_rn(relu0, weight0);
      odd_[key][chain] = __fmul_rn(relu1, weight1);
    } else {
      even_[key][chain] = __fmaf_rn(relu0, weight0, even_[key][chain]);
      odd_[key][chain] = __fmaf_rn(relu1, weight1, odd_[key][chain]);
    }
  }

  [[nodiscard]] __device__ __forceinline__ float finish(int key, float scale) const {
    float z[4];
#pragma unroll
    for (int chain = 0; chain < 4; ++chain) {
      z[chain] = __fmul_rn(__fadd_rn(even_[key][chain], odd_[key][chain]), scale);
    }
    return __fadd_rn(__fadd_rn(z[0], z[1]), __fadd_rn(z[2], z[3]));
  }

 private:
  /// Twice that for e4m3, whose weights are halved.
  static __device__ __forceinline__ float relu(float dot) {
    return Tile::kIsE4m3 ? __fadd_rn(dot, fabsf(dot)) : ptx::max_nan(dot, 0.0F);
  }

  float even_[2][4];
  float odd_[2][4];
};

/// Adds half a tile's columns to the sums and hands out the queries that are complete.
template <class Tile, int kHalf, class Consume>
__device__ __forceinline__ void consume_half(const float (&dots)[64], const LaneWeights<Tile>& weights,
                                             const float (&scale)[2], HeadSums<Tile>& sums, const Consume& consume) {
  constexpr int kPairsPerQuery = Tile::kHeadsPerLane / 2;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const int u = (kHalf * 16 + j) / kPairsPerQuery;
    const int step = (kHalf * 16 + j) % kPairsPerQuery;
    const int swap = kPairsPerQuery >= 8 && step < 8 ? 4 : 0;  // m = 1 before m = 0
    const int i = j ^ swap;
    const int column_pair = kHalf * 16 + i;
#pragma unroll
    for (int key = 0; key < 2; ++key) {
      sums.add(key, step, dots[4 * i + 2 * key], dots[4 * i + 2 * key + 1], weights.part[2 * column_pair],
               weights.part[2 * column_pair + 1]);
    }
    if (step == kPairsPerQuery - 1) {
      const float score0 = sums.finish(0, scale[0]);
      const float score1 = sums.finish(1, scale[1]);
      if constexpr (Tile::kPairedLanes) {
        const bool keeps_second = ptx::lane_index() % 2 != 0;
        const float received = __shfl_xor_sync(0xFFFFFFFFU, keeps_second ? score0 : score1, 1);
        consume(u, 0, __fadd_rn(keeps_second ? score1 : score0, received));
      } else {
        consume(u, 0, score0);
        consume(u, 1, score1);
      }
    }
  }
}

/// Starts the products of one half of the columns: 64 keys x 128 columns.
template <class Tile, int kHalf>
__device__ __forceinline__ void start_half(float (&dots)[64], const TileOperands& operands) {
  // Descriptors count 16 bytes; a step is 32.
  constexpr uint64_t kHalfOffset = 128 * Tile::kPlaneBytes / 16;
  constexpr int kStepsPerPlane = Tile::kPlaneBytes / 32;
#pragma unroll
  for (int step = 0; step < Tile::kPlanes * kStepsPerPlane; ++step) {
    const int plane = step / kStepsPerPlane;
    const int in_plane = 2 * (step % kStepsPerPlane);
    ptx::wgmma<typename Tile::Operands, 128>(
        dots, operands.keys + plane * (Tile::kKeyPlaneBytes / 16) + in_plane,
        operands.queries + kHalf * kHalfOffset + plane * (Tile::kQueryPlaneBytes / 16) + in_plane, step);
  }
  ptx::wgmma_commit();
}

/// Scores one tile.  The first half's sums are formed under the second half's products.
/// `release()` is called when shared memory of the tile has been read, `consume(u, s, score)` for every score of the
/// lane: query query_of_lane(u), key first_key_of_lane + 8 * s.
template <class Tile, class Release, class Consume>
__device__ __forceinline__ void score_tile(const TileOperands& operands, const LaneWeights<Tile>& weights,
                                           const Release& release, const Consume& consume) {
  float first[64];
  float second[64];
  HeadSums<Tile> sums;
  ptx::pin_registers(first);
  ptx::wgmma_fence();
  start_half<Tile, 0>(first, operands);
  ptx::pin_registers(second);
  start_half<Tile, 1>(second, operands);
  ptx::pin_registers(first);
  ptx::wgmma_wait<1>();
  consume_half<Tile, 0>(first, weights, operands.scale, sums, consume);
  ptx::pin_registers(second);
  ptx::wgmma_wait<0>();
  release();
  consume_half<Tile, 1>(second, weights, operands.scale, sums, consume);
}

/// score_tile without the sums, for experiments that measure the products alone: `consume` gets one raw dot.
template <class Tile, class Release, class Consume>
__device__ __forceinline__ void multiply_tile(const TileOperands& operands, const Release& release,
                                              const Consume& consume) {
  float first[64];
  float second[64];
  ptx::pin_registers(first);
  ptx::wgmma_fence();
  start_half<Tile, 0>(first, operands);
  ptx::pin_registers(second);
  start_half<Tile, 1>(second, operands);
  ptx::pin_registers(first);
  ptx::pin_registers(second);
  ptx::wgmma_wait<0>();
  release();
  consume(first[3] + second[3]);
}

}  // namespace keysieve::device
