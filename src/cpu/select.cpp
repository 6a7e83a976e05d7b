// SPDX-License-Identifier: Apache-2.0
// The filter in front of TopK: most scores of a long row are below its floor, and whole vectors of them are dropped
// with one comparison.
#include "cpu/kernels.hpp"

// Vectors of unknown length cannot be array elements; Arm processors with SVE run the NEON kernels.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/select.cpp"
#include "hwy/foreach_target.h"
// Highway must come after foreach_target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace keysieve::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = HWY_LANES(float);

/// ordered_bits() with the top bit flipped: the same order, of signed integers.
template <class DF>
HWY_INLINE hn::Vec<hn::RebindToSigned<DF>> signed_order(DF df, hn::Vec<DF> scores) {
  const hn::RebindToSigned<DF> di;
  const auto magnitude_bits = hn::Set(di, INT32_MAX);
  const auto bits = hn::BitCast(di, hn::Add(scores, hn::Zero(df)));  // -0.0 + 0.0 is +0.0
  const auto ordered = hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), magnitude_bits));
  const auto is_nan = hn::Gt(hn::And(bits, magnitude_bits), hn::Set(di, 0x7F800000));
  return hn::IfThenElse(is_nan, hn::Set(di, INT32_MIN), ordered);
}

/// Smallest ordered score of an index >= first_index that can still get in, as signed_order() has it.
inline int32_t entry_bar(const TopK& top, int64_t first_index) {
  const bool ties_lose = first_index > index_of(top.floor);
  const uint32_t bar = top.floor == 0 ? 0 : ordered_of(top.floor) + (ties_lose ? 1U : 0U);
  return static_cast<int32_t>(bar ^ 0x80000000U);
}

void offer(TopK& top, const float* HWY_RESTRICT scores, int64_t count, int64_t first_index) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  HWY_ALIGN int32_t ordered[kLanes];
  uint64_t floor = top.floor;
  auto bar = hn::Set(di, entry_bar(top, first_index));
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kLanes) <= count; i += kLanes) {
    const auto order = signed_order(df, hn::LoadU(df, scores + i));
    const auto passes = hn::Not(hn::Gt(bar, order));
    if (hn::AllFalse(di, passes)) {
      continue;
    }
    hn::Store(order, di, ordered);
    if (floor == 0 && top.count + static_cast<int64_t>(kLanes) <= top.capacity) {  // nothing was cut yet: all get in
      for (size_t lane = 0; lane < kLanes; ++lane) {
        top.ranks[top.count + lane] =
            rank_of(static_cast<uint32_t>(ordered[lane]) ^ 0x80000000U, first_index + i + lane);
      }
      top.count += kLanes;
      top.num_let_in += kLanes;
      continue;
    }
    uint8_t mask_bytes[8] = {};
    hn::StoreMaskBits(di, passes, mask_bytes);
    for (uint32_t mask = mask_bytes[0] | static_cast<uint32_t>(mask_bytes[1]) << 8U; mask != 0; mask &= mask - 1) {
      const auto lane = hwy::Num0BitsBelowLS1Bit_Nonzero32(mask);
      top.push(rank_of(static_cast<uint32_t>(ordered[lane]) ^ 0x80000000U, first_index + i + lane));
    }
    if (top.floor != floor) {
      floor = top.floor;
      bar = hn::Set(di, entry_bar(top, first_index + i));
    }
  }
  for (; i < count; ++i) {
    top.push(rank_of(ordered_bits(scores[i]), first_index + i));
  }
}

OfferFunction offer_of_target() {
  return &offer;
}

}  // namespace HWY_NAMESPACE
}  // namespace keysieve::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <iterator>

namespace keysieve::cpu {

HWY_EXPORT(offer_of_target);

OfferFunction offer_function(int64_t targets) noexcept {
  hwy::ChosenTarget chosen;
  chosen.Update(targets);
  constexpr size_t kTableSize = std::size(HWY_DISPATCH_TABLE(offer_of_target));
  return HWY_DISPATCH_TABLE(offer_of_target)[kTableSize == 1 ? 0 : chosen.GetIndex()]();
}

}  // namespace keysieve::cpu
#endif
