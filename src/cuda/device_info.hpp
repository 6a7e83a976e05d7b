// SPDX-License-Identifier: Apache-2.0
// What the choice of a kernel configuration may depend on.  Plain numbers, so that a test without a GPU can make one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace keysieve::cuda {

struct DeviceInfo {
  int32_t index = 0;
  int32_t compute_major = 9;
  int32_t compute_minor = 0;
  int32_t num_sms = 132;
  size_t max_shared_bytes = 232448;  // a block may have, opted in

  [[nodiscard]] bool is_sm90() const { return compute_major == 9 && compute_minor == 0; }
};

/// Multiprocessors a call may use (options.sm_limit; 0 = all).
inline int32_t usable_sms(const DeviceInfo& device, int32_t sm_limit) {
  return sm_limit > 0 && sm_limit < device.num_sms ? sm_limit : device.num_sms;
}

}  // namespace keysieve::cuda
