// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix products with both operands in shared memory (wgmma), PTX ISA 8.0 section 9.7.14.
//     D[64][kColumns] (f32, registers) = A[64][32 bytes] * B[kColumns][32 bytes]^T  (+ D)
// One step consumes 32 bytes a row: 32 e4m3 or 16 bf16 values.  Rows of A and B are K-major with the swizzle of their
// width (64 or 128 bytes), as TMA writes them.
//
// Accumulators of lane l of warp w: element 4*j + 2*r + p is row 16*w + l/4 + 8*r, column 8*j + 2*(l%4) + p.
#pragma once

#include <cstdint>
#include <type_traits>

namespace keysieve::ptx {

/// Shared-memory matrix descriptor of K-major rows of kRowBytes (64 or 128), in swizzled groups of 8 rows.
/// s_address is a multiple of 8 * kRowBytes.  The next 32-byte step of the rows is descriptor + 2.
template <int kRowBytes>
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t s_address) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  constexpr uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2;
  constexpr uint64_t kGroupStride = 8 * kRowBytes / 16;
  return (static_cast<uint64_t>(s_address & 0x3FFFFU) >> 4U) | (kGroupStride << 32U) | (kSwizzle << 62U);
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of accumulators across an asynchronous product.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(values[i])::"memory");
  }
}

struct E4m3Operands {};
struct Bf16Operands {};

#define KEYSIEVE_REGS_8(d, i)                                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define KEYSIEVE_REGS_32(d, i) \
  KEYSIEVE_REGS_8(d, i), KEYSIEVE_REGS_8(d, i + 8), KEYSIEVE_REGS_8(d, i + 16), KEYSIEVE_REGS_8(d, i + 24)

#define KEYSIEVE_WGMMA_64(d, shape_and_types, immediates, a, b, accumulate)            \
  asm volatile(                                                                        \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"                               \
      "wgmma.mma_async.sync.aligned." shape_and_types                                  \
      " {"                                                                             \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "         \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, %32, %33, p, " immediates ";\n\t}"                                           \
      : KEYSIEVE_REGS_32(d, 0)                                                         \
      : "l"(a), "l"(b), "r"(accumulate))

#define KEYSIEVE_WGMMA_128(d, shape_and_types, immediates, a, b, accumulate)             \
  asm volatile(                                                                          \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"                                 \
      "wgmma.mma_async.sync.aligned." shape_and_types                                    \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"   \
      "}, %64, %65, p, " immediates ";\n\t}"                                             \
      : KEYSIEVE_REGS_32(d, 0), KEYSIEVE_REGS_32(d, 32)                                  \
      : "l"(a), "l"(b), "r"(accumulate))

#define KEYSIEVE_WGMMA_256(d, shape_and_types, immediates, a, b, accumulate)                              \
  asm volatile(                                                                                           \
      "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"                                                 \
      "wgmma.mma_async.sync.aligned." shape_and_types                                                     \
      " {"                                                                                                \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                            \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                  \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                  \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                  \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"    \
      "}, %128, %129, p, " immediates ";\n\t}"                                                            \
      : KEYSIEVE_REGS_32(d, 0), KEYSIEVE_REGS_32(d, 32), KEYSIEVE_REGS_32(d, 64), KEYSIEVE_REGS_32(d, 96) \
      : "l"(a), "l"(b), "r"(accumulate))

/// One 32-byte step.  accumulate == 0 overwrites `d`.
template <class Operands, int kColumns>
__device__ __forceinline__ void wgmma(float (&d)[kColumns / 2], uint64_t a, uint64_t b, int accumulate) {
  static_assert(kColumns == 64 || kColumns == 128 || kColumns == 256);
  constexpr bool kE4m3 = std::is_same_v<Operands, E4m3Operands>;
  if constexpr (kE4m3 && kColumns == 64) {
    KEYSIEVE_WGMMA_64(d, "m64n64k32.f32.e4m3.e4m3", "1, 1", a, b, accumulate);
  }
  if constexpr (!kE4m3 && kColumns == 64) {
    KEYSIEVE_WGMMA_64(d, "m64n64k16.f32.bf16.bf16", "1, 1, 0, 0", a, b, accumulate);
  }
  if constexpr (kE4m3 && kColumns == 128) {
    KEYSIEVE_WGMMA_128(d, "m64n128k32.f32.e4m3.e4m3", "1, 1", a, b, accumulate);
  }
  if constexpr (!kE4m3 && kColumns == 128) {
    KEYSIEVE_WGMMA_128(d, "m64n128k16.f32.bf16.bf16", "1, 1, 0, 0", a, b, accumulate);
  }
  if constexpr (kE4m3 && kColumns == 256) {
    KEYSIEVE_WGMMA_256(d, "m64n256k32.f32.e4m3.e4m3", "1, 1", a, b, accumulate);
  }
  if constexpr (!kE4m3 && kColumns == 256) {
    KEYSIEVE_WGMMA_256(d, "m64n256k16.f32.bf16.bf16", "1, 1, 0, 0", a, b, accumulate);
  }
}

#undef KEYSIEVE_WGMMA_64
#undef KEYSIEVE_WGMMA_128
#undef KEYSIEVE_WGMMA_256
#undef KEYSIEVE_REGS_32
#undef KEYSIEVE_REGS_8

}  // namespace keysieve::ptx
