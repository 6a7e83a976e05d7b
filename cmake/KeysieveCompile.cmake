# SPDX-License-Identifier: Apache-2.0
# Compiler settings shared by every target: C++20, warnings, sanitizers, ccache.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Linked by every target of the project.
add_library(keysieve_compile INTERFACE)
target_include_directories(keysieve_compile INTERFACE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_compile_options(keysieve_compile INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion>
  # Scores are compared bit for bit: no contraction that the source does not ask for.
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  $<$<AND:$<BOOL:${KEYSIEVE_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)
if(KEYSIEVE_SANITIZE)
  target_compile_options(keysieve_compile INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${KEYSIEVE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(keysieve_compile INTERFACE -fsanitize=${KEYSIEVE_SANITIZE})
endif()
if(KEYSIEVE_FUZZERS)  # coverage of the code under test, for libFuzzer
  target_compile_options(keysieve_compile INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# keysieve_avx512_bf16_source(file target): a file of intrinsics that is compiled for AVX-512 BF16 where the compiler can, and
# whose code runs after a check of the processor.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag("-mavx512f -mavx512bf16" KEYSIEVE_HAS_AVX512_BF16_FLAGS)
function(keysieve_avx512_bf16_source file target)
  if(KEYSIEVE_HAS_AVX512_BF16_FLAGS)
    # GCC 12 warns about its own _mm512_undefined_ps().
    set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/${file} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS
      "-mavx512f;-mavx512bf16;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>")
  endif()
endfunction()

# Binaries to carry to a machine that has only a GPU driver: everything static but glibc; what is not (libhwy) lies
# beside the binary.
if(KEYSIEVE_DEVICE)
  target_link_options(keysieve_compile INTERFACE -static-libstdc++ -static-libgcc)
  set(CMAKE_BUILD_RPATH "$ORIGIN")
  set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
endif()
