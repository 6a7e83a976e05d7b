// SPDX-License-Identifier: Apache-2.0
#include "support/memory_space.hpp"

namespace keysieve::test {
namespace {

class HostSpace final : public MemorySpace {
 public:
  void reset() override {
    outputs_.clear();
    workspace_.reset();
  }

  void* place_input(const Tensor& tensor) override {
    tensor.memory().seal();
    return tensor.memory().data();
  }

  void* place_output(Tensor& tensor) override {
    outputs_.push_back(tensor);
    return tensor.mutable_image();
  }

  void* place_workspace(size_t bytes, Poison poison, Fence fence) override {
    workspace_ = std::make_unique<GuardedMemory>(bytes, fence);
    poison_memory(poison, workspace_->data(), bytes);
    return workspace_->data();
  }

  void end_staging() override {}

  std::string finish() override {
    if (workspace_ != nullptr && !workspace_->slack_intact()) {
      return "bytes next to the workspace were written";
    }
    for (const Tensor& tensor : outputs_) {
      if (!tensor.memory().slack_intact()) {
        return "bytes next to an output were written";
      }
    }
    return {};
  }

  void fetch(Tensor& /*tensor*/, const void* /*placed*/) override {}

 private:
  std::vector<Tensor> outputs_;
  std::unique_ptr<GuardedMemory> workspace_;
};

}  // namespace

std::unique_ptr<MemorySpace> make_host_space() {
  return std::make_unique<HostSpace>();
}

}  // namespace keysieve::test
