// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "core/backend.hpp"

namespace keysieve {

BackendList backends() noexcept {
  static const Backend* const kBackends[] = {
#if defined(KEYSIEVE_WITH_CUDA)
    &cuda_backend(),
#endif
    &cpu_backend(),
    &reference_backend(),
  };
  return {kBackends, static_cast<int32_t>(std::size(kBackends))};
}

}  // namespace keysieve
