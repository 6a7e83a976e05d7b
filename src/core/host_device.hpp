// SPDX-License-Identifier: Apache-2.0
// Marks the few core functions that device code shares with the host, so that a CPU test can run them.
#pragma once

#if defined(__CUDACC__)
#define KEYSIEVE_HOST_DEVICE __host__ __device__
#else
#define KEYSIEVE_HOST_DEVICE
#endif
