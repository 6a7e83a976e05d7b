// SPDX-License-Identifier: Apache-2.0
// The part of cooperative groups that the kernels use, for the emulated device.
#pragma once

#include <cstdint>

#include "emulator/machine.hpp"

namespace cooperative_groups {

class cluster_group {
 public:
  [[nodiscard]] unsigned num_blocks() const { return static_cast<unsigned>(cluster().blocks.size()); }
  [[nodiscard]] unsigned block_rank() const { return emulator::Lane::current().block().index().x % num_blocks(); }
  void sync() const {
    cluster().barrier.sync("a cluster's barrier", num_blocks() * emulator::Lane::current().block().threads());
  }
  template <class T>
  [[nodiscard]] T* map_shared_rank(T* s_pointer, unsigned rank) const {
    emulator::Block& own = emulator::Lane::current().block();
    const uint32_t address = own.address_of(s_pointer);
    return reinterpret_cast<T*>(cluster().blocks[rank]->at(address, sizeof(T), alignof(T)));
  }

 private:
  static emulator::Cluster& cluster() { return emulator::Lane::current().block().cluster(); }
};

inline cluster_group this_cluster() {
  return {};
}

}  // namespace cooperative_groups
