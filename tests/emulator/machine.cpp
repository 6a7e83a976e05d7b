// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine.hpp"

#include <algorithm>
#include <boost/context/fixedsize_stack.hpp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

namespace emulator {
namespace {

constexpr size_t kStackBytes = 128 * 1024;
thread_local Lane* current_lane = nullptr;

int draw(std::mt19937_64& random, int limit) {
  return static_cast<int>(random() % static_cast<uint64_t>(limit));
}

}  // namespace

void fail(const char* format, ...) {
  std::fprintf(stderr, "emulated device: ");
  std::va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  if (current_lane != nullptr) {
    const dim3 block = current_lane->block().index();
    std::fprintf(stderr, "  (block %u, thread %u)", block.x, current_lane->thread());
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void multiply(const float* a, const float* b, float* __restrict__ c, int m, int k, int n) {
  std::fill(c, c + m * n, 0.0F);
  for (int row = 0; row < m; ++row) {
    for (int i = 0; i < k; ++i) {
      for (int column = 0; column < n; ++column) {
        c[row * n + column] += a[row * k + i] * b[i * n + column];
      }
    }
  }
}

// ---- Lane ----

Lane::Lane(Block& block, unsigned thread, Warp& warp, const std::function<void()>& kernel)
    : block_(block), thread_(thread), warp_(warp) {
  fiber_ = boost::context::fiber(std::allocator_arg, boost::context::fixedsize_stack(kStackBytes),
                                 [this, &kernel](boost::context::fiber&& scheduler) {
                                   scheduler_ = std::move(scheduler);
                                   kernel();
                                   finish_stores(0);
                                   finished_ = true;
                                   Machine::get().progress();
                                   return std::move(scheduler_);
                                 });
}

Lane& Lane::current() {
  return *current_lane;
}

void Lane::resume() {
  current_lane = this;
  fiber_ = std::move(fiber_).resume();
  current_lane = nullptr;
}

void Lane::yield() {
  scheduler_ = std::move(scheduler_).resume();
}

void Lane::maybe_yield() {
  if (draw(Machine::get().random(), 8) == 0) {
    Machine::get().progress();
    yield();
  }
}

const uint64_t* Lane::meet(const char* operation, uint64_t value) {
  Warp& warp = warp_;
  if (warp.arrived == 0) {
    warp.operation = operation;
  } else if (std::strcmp(warp.operation, operation) != 0) {
    fail("lanes of a warp meet in %s and in %s", warp.operation, operation);
  }
  const uint32_t generation = warp.generation;
  warp.given[lane()] = value;
  if (++warp.arrived == 32) {
    std::copy(std::begin(warp.given), std::end(warp.given), std::begin(warp.received));
    warp.arrived = 0;
    ++warp.generation;
    Machine::get().progress();
  } else {
    wait_until(operation, [&] { return warp.generation != generation; });
  }
  return warp.received;
}

void Lane::commit(Work& open, Groups& groups) {
  groups.push_back(std::move(open));
  open = {};
}

void Lane::finish(Groups& groups, size_t groups_left) {
  while (groups.size() > groups_left) {
    for (const auto& work : groups.front()) {
      work();
    }
    groups.pop_front();
  }
}

void Lane::commit_copies() {
  commit(open_copies_, copies_);
}
void Lane::finish_copies(size_t groups_left) {
  finish(copies_, groups_left);
}
void Lane::commit_products() {
  products_.push_back(std::exchange(open_products_, {}));
}
void Lane::finish_products(size_t groups_left) {
  const unsigned warpgroup = thread_ / 128;
  Rendezvous& meeting = block_.products_of(warpgroup);
  const uint32_t before = meeting.generation;
  if (!meeting.arrive(128)) {
    wait_until("wgmma of its warpgroup", [&] { return meeting.generation != before; });
    return;
  }
  while (products_.size() > groups_left) {
    for (size_t i = 0; i < products_.front().size(); ++i) {
      const Product product = products_.front()[i];
      float* d[128];
      for (unsigned other = 0; other < 128; ++other) {
        const auto& products = block_.lane(128 * warpgroup + other).products_;
        if (products.size() != products_.size() || products.front().size() != products_.front().size() ||
            products.front()[i].a != product.a || products.front()[i].b != product.b ||
            products.front()[i].form != product.form) {
          fail("the lanes of a warpgroup ask for different products");
        }
        d[other] = products.front()[i].d;
      }
      product.form(block_, product, d);
    }
    for (unsigned other = 0; other < 128; ++other) {
      block_.lane(128 * warpgroup + other).products_.pop_front();
    }
  }
}
void Lane::commit_stores() {
  commit(open_stores_, stores_);
}
void Lane::finish_stores(size_t groups_left) {
  finish(stores_, groups_left);
}

std::function<void()> Lane::take_copies() {
  commit_copies();
  return [groups = std::exchange(copies_, {})]() mutable { finish(groups, 0); };
}

// ---- barriers ----

bool Rendezvous::arrive(unsigned threads) {
  Machine::get().progress();
  if (++arrived < threads) {
    return false;
  }
  arrived = 0;
  ++generation;
  return true;
}

void Rendezvous::sync(const char* what, unsigned threads) {
  const uint32_t before = generation;
  (void)arrive(threads);
  Lane::current().wait_until(what, [&] { return generation != before; });
}

void Mbarrier::init(uint32_t arrivals) {
  expected = arrivals;
  pending = arrivals;
  phase = 0;
  bytes = 0;
}

void Mbarrier::arrive() {
  if (pending == 0) {
    fail("more arrivals at an mbarrier than its %u", static_cast<unsigned>(expected));
  }
  --pending;
  finish_phase_if_done();
}

void Mbarrier::complete(int32_t done_bytes) {
  bytes -= done_bytes;
  finish_phase_if_done();
}

void Mbarrier::finish_phase_if_done() {
  if (pending == 0 && bytes == 0) {
    pending = expected;
    phase = phase ^ 1U;
  }
  Machine::get().progress();
}

// ---- Block ----

Block::Block(dim3 index, dim3 grid, unsigned threads, size_t shared_bytes, std::shared_ptr<Cluster> cluster,
             const std::function<void()>& kernel, std::mt19937_64& random)
    : index_(index),
      grid_(grid),
      cluster_(std::move(cluster)),
      shared_bytes_(shared_bytes),
      storage_(shared_bytes + 1024) {
  if (threads % 32 != 0 || threads > 1024 || shared_bytes > Machine::kSharedBytes) {
    fail("a block cannot have %u threads and %zu bytes of shared memory", threads, shared_bytes);
  }
  std::generate(storage_.begin(), storage_.end(), [&] { return static_cast<uint8_t>(random()); });
  const auto begin = reinterpret_cast<uintptr_t>(storage_.data());
  shared_ = storage_.data() + (1024 - begin % 1024) % 1024;
  cluster_->blocks.push_back(this);
  for (unsigned thread = 0; thread < threads; ++thread) {
    if (thread % 32 == 0) {
      order_.push_back(warps_.size());
      warps_.push_back(std::make_unique<Warp>());
    }
    lanes_.push_back(std::make_unique<Lane>(*this, thread, *warps_.back(), kernel));
    lanes_.back()->set_registers(std::min(65536 / static_cast<int>(threads) / 8 * 8, 255));
  }
}

uint8_t* Block::at(uint32_t address, size_t bytes, size_t alignment) {
  if (address < kFirstAddress || address + bytes > kFirstAddress + shared_bytes_ || address % alignment != 0) {
    fail("%zu bytes at shared address %u: outside the block's %zu, or not aligned", bytes, address, shared_bytes_);
  }
  return shared_ + (address - kFirstAddress);
}

uint32_t Block::address_of(const void* pointer) const {
  const auto offset = static_cast<size_t>(static_cast<const uint8_t*>(pointer) - shared_);
  if (offset > shared_bytes_) {
    fail("a pointer outside the block's shared memory has no shared address");
  }
  return kFirstAddress + static_cast<uint32_t>(offset);
}

Rendezvous& Block::barrier(int id) {
  if (id < 0 || id >= 16) {
    fail("there is no barrier %d", id);
  }
  return barriers_[id];
}

void Block::set_registers(Lane& lane, int registers) {
  const int more = registers - lane.registers();
  lane.wait_until("registers", [&] { return free_registers_ >= more; });
  free_registers_ -= more;
  lane.set_registers(registers);
}

bool Block::run(std::mt19937_64& random) {
  std::shuffle(order_.begin(), order_.end(), random);
  bool any = false;
  for (const size_t warp : order_) {
    any |= run_warp(warp, 1 + draw(random, 100));
  }
  return any;
}

bool Block::run_warp(size_t warp, int steps) {
  bool any = false;
  for (int step = 0; step < steps; ++step) {
    const uint64_t before = Machine::get().progress_so_far();
    for (size_t i = 32 * warp; i < 32 * warp + 32; ++i) {
      if (!lanes_[i]->finished()) {
        any = true;
        lanes_[i]->resume();
      }
    }
    if (Machine::get().progress_so_far() == before) {
      break;
    }
  }
  return any;
}

void Block::print_waits() const {
  for (size_t warp = 0; warp < warps_.size(); ++warp) {
    std::map<std::string, int> waits;
    for (size_t i = 32 * warp; i < 32 * warp + 32; ++i) {
      ++waits[lanes_[i]->finished() ? "(finished)" : lanes_[i]->waits_for()];
    }
    for (const auto& [what, count] : waits) {
      std::fprintf(stderr, "block %u warp %zu: %d lanes wait for %s\n", index_.x, warp, count, what.c_str());
    }
  }
}

// ---- Machine ----

Machine& Machine::get() {
  static Machine machine;
  return machine;
}

Machine::Machine() {
  const char* seed = std::getenv("KEYSIEVE_EMULATOR_SEED");
  random_.seed(seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10));
}

void Machine::finish_some_copies() {
  std::shuffle(in_flight_.begin(), in_flight_.end(), random_);
  const size_t left = in_flight_.empty() ? 0 : random_() % in_flight_.size();
  while (in_flight_.size() > left) {
    const auto work = std::move(in_flight_.back());
    in_flight_.pop_back();
    work();
    progress();
  }
}

void Machine::launch(dim3 grid, unsigned threads, unsigned cluster_size, size_t shared_bytes,
                     const std::function<void()>& kernel) {
  if (grid.x == 0 || grid.y != 1 || grid.z != 1 || cluster_size == 0 || grid.x % cluster_size != 0) {
    fail("a grid of %u x %u x %u blocks in clusters of %u", grid.x, grid.y, grid.z, cluster_size);
  }
  std::vector<std::unique_ptr<Block>> resident;
  unsigned next = 0;
  int idle = 0;
  while (next < grid.x || !resident.empty()) {
    while (next < grid.x && resident.size() + cluster_size <= std::max<size_t>(kMultiprocessors, cluster_size)) {
      const auto cluster = std::make_shared<Cluster>();
      for (unsigned i = 0; i < cluster_size; ++i) {
        resident.push_back(
            std::make_unique<Block>(dim3(next++), grid, threads, shared_bytes, cluster, kernel, random_));
      }
    }
    const uint64_t before = progress_;
    std::shuffle(resident.begin(), resident.end(), random_);
    for (auto& block : resident) {
      if (!block->run(random_)) {
        block = nullptr;  // and its place is free; of a cluster only when all have finished, but who would notice
      }
    }
    resident.erase(std::remove(resident.begin(), resident.end(), nullptr), resident.end());
    finish_some_copies();
    idle = progress_ == before ? idle + 1 : 0;
    if (idle > 100) {
      for (const auto& block : resident) {
        block->print_waits();
      }
      fail("nothing goes on: a deadlock");
    }
  }
}

}  // namespace emulator
