// SPDX-License-Identifier: Apache-2.0
// Decodes a panel of keys and scores it against the heads of one query row.
//
//     score[n] = factor[n] * sum_h weights[h] * relu( sum_d q[h,d] * k[n,d] )
//
// One lane is one key; a tile of kGroupHeads x kVectors accumulators stays in registers for the whole dot product:
//
//                  k[word][0 .. kPanelKeys)          3 vectors, loaded once a word
//     q[word][0]   acc[0][0]  acc[0][1]  acc[0][2]
//     q[word][1]   acc[1][0]   ...                   kGroupHeads broadcasts a word
//
// Every lane adds up d = 0, 1, 2, ... and then h = 0, 1, 2, ..., whatever its neighbours are.  That makes a score's
// bits a function of its row and its key.
#include "cpu/kernels.hpp"

// Vectors of unknown length cannot be array elements; Arm processors with SVE run the NEON kernels.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/score.cpp"
#include "hwy/foreach_target.h"
// Highway must come after foreach_target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace keysieve::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

constexpr int kLanes = static_cast<int>(HWY_LANES(float));
constexpr int kVectors = 3;
constexpr int kPanelKeys = kVectors * kLanes;
// Accumulators, three keys and a broadcast: 16 registers with 4 heads, 28 of AVX-512's 32 with 8.
constexpr int kGroupHeads = kLanes == 16 ? 8 : 4;
static_assert(kPanelKeys <= kMaxPanelKeys);

// ---- Decoding ----

/// Magnitude bits of a small float with `kMantissaBits` and exponent bias `kBias`, as f32.  Exact, subnormals too.
template <int kMantissaBits, int kBias>
HWY_INLINE VF decode_magnitude(VU magnitude) {
  const DF df;
  const DU du;
  const VU shifted = hn::ShiftLeft<23 - kMantissaBits>(magnitude);
  const VF normal = hn::BitCast(df, hn::Add(shifted, hn::Set(du, (127U - kBias) << 23U)));
  // Below the smallest normal number m: (m + subnormal) - m, where the sum is the bits above with exponent 1.
  const VU one = hn::Set(du, (128U - kBias) << 23U);
  const VF subnormal = hn::Sub(hn::BitCast(df, hn::Add(shifted, one)), hn::BitCast(df, one));
  const auto is_subnormal = hn::RebindMask(df, hn::Lt(magnitude, hn::Set(du, 1U << kMantissaBits)));
  return hn::IfThenElse(is_subnormal, subnormal, normal);
}

/// Channel kIndex of the four in `raw`.
template <int kIndex>
HWY_INLINE VF decode_e4m3(VU raw) {
  const DF df;
  const DU du;
  const VU byte = hn::ShiftRight<8 * kIndex>(raw);
  const VU magnitude = hn::And(byte, hn::Set(du, 0x7FU));
  const VU sign = hn::ShiftLeft<24>(hn::And(byte, hn::Set(du, 0x80U)));
  const VF value = decode_magnitude<3, 7>(magnitude);
  const auto is_nan = hn::RebindMask(df, hn::Eq(magnitude, hn::Set(du, 0x7FU)));
  const VF magnitude_or_nan = hn::IfThenElse(is_nan, hn::BitCast(df, hn::Set(du, 0x7FC00000U)), value);
  return hn::Or(magnitude_or_nan, hn::BitCast(df, sign));
}

/// Channel kIndex of the eight in `raw`, without its group's scale.
template <int kIndex>
HWY_INLINE VF decode_e2m1(VU raw) {
  const DF df;
  const DU du;
  const VU nibble = hn::ShiftRight<4 * kIndex>(raw);
  const VU sign = hn::ShiftLeft<28>(hn::And(nibble, hn::Set(du, 8U)));
  return hn::Or(decode_magnitude<1, 1>(hn::And(nibble, hn::Set(du, 7U))), hn::BitCast(df, sign));
}

/// Writes channels d and d + 1, as far as they exist, of kLanes keys.
HWY_INLINE void store_channels(const PackArgs& args, int64_t d, VF even, VF odd, uint32_t* HWY_RESTRICT words) {
  const DU du;
  if (d >= args.head_dim) {
    return;
  }
  const VU even_bits = hn::BitCast(du, even);
  const VU odd_bits = hn::BitCast(du, odd);
  if (args.words == Words::kBf16Pairs) {  // the values are bf16 already: their lower halves are zero
    hn::StoreU(hn::Or(hn::ShiftRight<16>(even_bits), odd_bits), du, words + d / 2 * kPanelKeys);
    return;
  }
  hn::StoreU(even_bits, du, words + d * kPanelKeys);
  if (d + 1 < args.head_dim) {
    hn::StoreU(odd_bits, du, words + (d + 1) * kPanelKeys);
  }
}

void decode_panel(const PackArgs& args, const KeyPanel& panel) {
  const DF df;
  const DU du;
  const int64_t raw_words = num_raw_words(args.k_dtype, args.head_dim);
  for (int64_t j = 0; j < raw_words; ++j) {
    for (int lane = 0; lane < kPanelKeys; lane += kLanes) {
      const VU raw = hn::LoadU(du, panel.raw + j * kPanelKeys + lane);
      uint32_t* words = panel.words + lane;
      if (args.k_dtype == Dtype::kE4m3) {
        store_channels(args, 4 * j, decode_e4m3<0>(raw), decode_e4m3<1>(raw), words);
        store_channels(args, 4 * j + 2, decode_e4m3<2>(raw), decode_e4m3<3>(raw), words);
      } else if (args.k_dtype == Dtype::kBf16) {
        store_channels(args, 2 * j, hn::BitCast(df, hn::ShiftLeft<16>(raw)),
                       hn::BitCast(df, hn::And(raw, hn::Set(du, 0xFFFF0000U))), words);
      } else {
        const VF scale = hn::LoadU(df, panel.group_scale + j / 4 * kPanelKeys + lane);
        store_channels(args, 8 * j, hn::Mul(scale, decode_e2m1<0>(raw)), hn::Mul(scale, decode_e2m1<1>(raw)), words);
        store_channels(args, 8 * j + 2, hn::Mul(scale, decode_e2m1<2>(raw)), hn::Mul(scale, decode_e2m1<3>(raw)),
                       words);
        store_channels(args, 8 * j + 4, hn::Mul(scale, decode_e2m1<4>(raw)), hn::Mul(scale, decode_e2m1<5>(raw)),
                       words);
        store_channels(args, 8 * j + 6, hn::Mul(scale, decode_e2m1<6>(raw)), hn::Mul(scale, decode_e2m1<7>(raw)),
                       words);
      }
    }
  }
}

// ---- Scoring ----

HWY_INLINE void multiply_word(const uint32_t* q, const uint32_t* k, VF (&acc)[kGroupHeads][kVectors]) {
  const DF df;
  const VF key0 = hn::BitCast(df, hn::LoadU(DU(), k));
  const VF key1 = hn::BitCast(df, hn::LoadU(DU(), k + kLanes));
  const VF key2 = hn::BitCast(df, hn::LoadU(DU(), k + 2 * kLanes));
  HWY_UNROLL(8)
  for (int i = 0; i < kGroupHeads; ++i) {
    const VF query = hn::BitCast(df, hn::Set(DU(), q[i]));
    acc[i][0] = hn::MulAdd(query, key0, acc[i][0]);
    acc[i][1] = hn::MulAdd(query, key1, acc[i][1]);
    acc[i][2] = hn::MulAdd(query, key2, acc[i][2]);
  }
}

void score(const ScoreArgs& args, float* HWY_RESTRICT scores) {
  const DF df;
  const VF zero = hn::Zero(df);
  const uint32_t* HWY_RESTRICT q = args.q;
  HWY_ALIGN float sums[kPanelKeys] = {};  // in memory between groups: the registers are taken

  for (int64_t h = 0; h < args.num_heads; h += kGroupHeads) {
    const uint32_t* HWY_RESTRICT k = args.k;
    VF acc[kGroupHeads][kVectors];  // every loop over it is unrolled, so that it lives in registers
    HWY_UNROLL(8)
    for (int i = 0; i < kGroupHeads; ++i) {
      acc[i][0] = acc[i][1] = acc[i][2] = zero;
    }
    for (int64_t word = 0; word < args.num_words; ++word) {
      multiply_word(q, k, acc);
      q += kGroupHeads;
      k += kPanelKeys;
    }
    HWY_UNROLL(8)
    for (int i = 0; i < kGroupHeads; ++i) {
      if (h + i < args.num_heads) {
        const VF weight = hn::Set(df, args.weights[h + i]);
        HWY_UNROLL(8)
        for (int v = 0; v < kVectors; ++v) {
          // Not Max: which operand that returns for NaN depends on the instruction set.
          const VF relu = hn::IfThenZeroElse(hn::Lt(acc[i][v], zero), acc[i][v]);
          hn::Store(hn::MulAdd(weight, relu, hn::Load(df, sums + v * kLanes)), df, sums + v * kLanes);
        }
      }
    }
  }
  for (int lane = 0; lane < kPanelKeys; lane += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(df, args.factor + lane), hn::Load(df, sums + lane)), df, scores + lane);
  }
}

const char* isa_name() {
  if (kLanes == 16) {
    return "avx512";
  }
  switch (HWY_TARGET) {
    case HWY_AVX2: return "avx2";
    case HWY_SSE4: return "sse4";
    case HWY_SSSE3: return "ssse3";
    case HWY_NEON: return "neon";
    default: return "generic";
  }
}

ScoreKernels kernels_of_target() {
  return {isa_name(), kPanelKeys, kGroupHeads, &decode_panel, &score};
}

}  // namespace HWY_NAMESPACE
}  // namespace keysieve::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <iterator>

namespace keysieve::cpu {

HWY_EXPORT(kernels_of_target);

ScoreKernels score_kernels(int64_t targets) noexcept {
  hwy::ChosenTarget chosen;
  chosen.Update(targets);
  constexpr size_t kTableSize = std::size(HWY_DISPATCH_TABLE(kernels_of_target));
  return HWY_DISPATCH_TABLE(kernels_of_target)[kTableSize == 1 ? 0 : chosen.GetIndex()]();
}

}  // namespace keysieve::cpu
#endif
