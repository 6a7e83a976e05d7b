// SPDX-License-Identifier: Apache-2.0
// A ring of shared-memory buffers between a producer and its consumers.
//
//   full[slot]   arrives: the producer's commits and the bytes it announced    protects: data of the slot is there
//   empty[slot]  arrives: every consumer once                                  protects: nobody reads the slot any more
//
//   producer: acquire(cursor) .. write or copy .. commit(cursor) .. cursor.advance()
//   consumer: wait(cursor) .. read .. release(cursor) .. cursor.advance()
#pragma once

#include <cstdint>
#include <cstdio>

#include "core/ring_cursor.hpp"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/warp.cuh"

namespace keysieve::device {

/// The barriers, in shared memory.
template <int kSlots>
struct RingBarriers {
  uint64_t full[kSlots];
  uint64_t empty[kSlots];
};

template <int kSlots>
class Ring {
 public:
  using Cursor = RingCursor<kSlots>;

  /// `name` is for the debug trap only.
  __device__ __forceinline__ explicit Ring(RingBarriers<kSlots>& s_barriers, const char* name)
      : full_(ptx::shared_address(s_barriers.full)), empty_(ptx::shared_address(s_barriers.empty)), name_(name) {}

  /// The same ring with addresses that the compiler knows to be the same in all lanes (ptx::uniform).
  [[nodiscard]] __device__ __forceinline__ Ring uniform() const {
    Ring ring = *this;
    ring.full_ = static_cast<uint32_t>(ptx::uniform(static_cast<int32_t>(full_)));
    ring.empty_ = static_cast<uint32_t>(ptx::uniform(static_cast<int32_t>(empty_)));
    return ring;
  }

  /// By one thread; a mbarrier_init_fence and a __syncthreads follow.
  __device__ __forceinline__ void init(uint32_t producer_arrivals, uint32_t consumer_arrivals) const {
    for (int slot = 0; slot < kSlots; ++slot) {
      ptx::mbarrier_init(full_ + 8U * slot, producer_arrivals);
      ptx::mbarrier_init(empty_ + 8U * slot, consumer_arrivals);
    }
  }

  /// Producer: the slot may be overwritten.
  __device__ __forceinline__ void acquire(const Cursor& cursor) const {
    wait_for(empty_ + 8U * cursor.slot(), cursor.empty_parity());
  }
  /// Producer: one arrival, announcing `bytes` of asynchronous copies to full_barrier().
  __device__ __forceinline__ void commit(const Cursor& cursor, uint32_t bytes) const {
    ptx::mbarrier_arrive_expect(full_barrier(cursor), bytes);
  }
  /// Producer: one arrival without copies.
  __device__ __forceinline__ void commit(const Cursor& cursor) const { ptx::mbarrier_arrive(full_barrier(cursor)); }
  [[nodiscard]] __device__ __forceinline__ uint32_t full_barrier(const Cursor& cursor) const {
    return full_ + 8U * cursor.slot();
  }

  /// Consumer: the slot's data is there.
  __device__ __forceinline__ void wait(const Cursor& cursor) const {
    wait_for(full_barrier(cursor), cursor.full_parity());
  }
  /// Consumer: whether it is there; may suspend the thread for a moment.
  [[nodiscard]] __device__ __forceinline__ bool try_wait(const Cursor& cursor) const {
    return ptx::mbarrier_try_wait(full_barrier(cursor), cursor.full_parity());
  }
  /// Consumer: one arrival; this consumer has read the slot.
  __device__ __forceinline__ void release(const Cursor& cursor) const {
    ptx::mbarrier_arrive(empty_ + 8U * cursor.slot());
  }

 private:
  __device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity) const {
#if defined(KEYSIEVE_DEBUG_WAITS)
    const int64_t start = clock64();
    while (!ptx::mbarrier_try_wait(barrier, parity)) {
      if (clock64() - start > 2'000'000'000LL) {  // about a second
        printf("keysieve: ring %s hangs: block %d thread %d barrier %u parity %u\n", name_, blockIdx.x, threadIdx.x,
               barrier, parity);
        __trap();
      }
    }
#else
    while (!ptx::mbarrier_try_wait(barrier, parity)) {
    }
#endif
  }

  uint32_t full_;
  uint32_t empty_;
  [[maybe_unused]] const char* name_;
};

}  // namespace keysieve::device
