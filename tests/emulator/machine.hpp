// SPDX-License-Identifier: Apache-2.0
// A Hopper GPU in one host thread, as far as the kernels of src/cuda can tell: every device thread is a fiber, and a
// scheduler with a seeded random order resumes them.  It knows no time and no weak memory order; it knows what a thread
// may rely on.  Asynchronous work (copies, matrix products) is done as late as the program allows, or at a random
// moment where something else waits for it, so that a missing wait gives wrong bits.  Barriers that nobody completes,
// lanes of a warp that meet in different operations, and shared addresses outside the block end the program with a
// message.
//
//   Machine   the launch: blocks in waves, asynchronous copies in flight, the random order
//   Block     shared memory, barriers            Cluster   blocks that start together
//   Warp      operations that all lanes meet in
//   Lane      a device thread
#pragma once

#include <boost/context/fiber.hpp>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>
#include <vector_types.h>

namespace emulator {

class Block;
class Machine;

/// Prints what is wrong and where, and ends the program: a kernel that gets here is wrong.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// 32 lanes and the operation that they meet in.
struct Warp {
  int arrived = 0;
  uint32_t generation = 0;
  const char* operation = "";
  uint64_t given[32] = {};
  uint64_t received[32] = {};
};

/// A matrix product of a warpgroup, as one of its lanes asked for it.
struct Product {
  uint64_t a;
  uint64_t b;
  bool accumulate;
  float* d;  // the lane's part of the result
  /// Forms the product for all 128 lanes; d[i] is lane i's part.
  void (*form)(Block& block, const Product& product, float* const (&d)[128]);
};

/// c[m][n] = a[m][k] * b[k][n].
void multiply(const float* a, const float* b, float* c, int m, int k, int n);

class Lane {
 public:
  Lane(Block& block, unsigned thread, Warp& warp, const std::function<void()>& kernel);

  static Lane& current();

  [[nodiscard]] unsigned thread() const { return thread_; }
  [[nodiscard]] unsigned lane() const { return thread_ % 32; }
  [[nodiscard]] Block& block() const { return block_; }
  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] int registers() const { return registers_; }
  void set_registers(int registers) { registers_ = registers; }
  /// What the lane waits for, for messages.
  [[nodiscard]] const char* waits_for() const { return waits_for_; }

  void resume();
  /// Lets others go on.
  void yield();
  /// Lets others go on, now and then: where a real machine might.
  void maybe_yield();
  template <class Done>
  void wait_until(const char* what, const Done& done);
  /// Lets others go on, because what the lane looks at has not changed.
  void poll(const char* what) {
    waits_for_ = what;
    yield();
  }

  /// All lanes of the warp meet here; what each gave, by lane.  Valid until the lane's next meeting.
  const uint64_t* meet(const char* operation, uint64_t value);

  // cp.async: copies of a group are done when the group is waited for.
  void copy_later(std::function<void()> copy) { open_copies_.push_back(std::move(copy)); }
  void commit_copies();
  void finish_copies(size_t groups_left);
  /// All copies so far, as one.
  std::function<void()> take_copies();

  // wgmma, likewise; the lanes of a warpgroup wait together.
  void multiply_later(const Product& product) { open_products_.push_back(product); }
  void commit_products();
  void finish_products(size_t groups_left);

  // Bulk stores.
  void store_later(std::function<void()> store) { open_stores_.push_back(std::move(store)); }
  void commit_stores();
  void finish_stores(size_t groups_left);

 private:
  using Work = std::vector<std::function<void()>>;
  using Groups = std::deque<Work>;
  static void commit(Work& open, Groups& groups);
  static void finish(Groups& groups, size_t groups_left);

  Block& block_;
  unsigned thread_;
  Warp& warp_;
  boost::context::fiber fiber_;
  boost::context::fiber scheduler_;
  bool finished_ = false;
  int registers_ = 0;
  const char* waits_for_ = "start";
  Work open_copies_, open_stores_;
  Groups copies_, stores_;
  std::vector<Product> open_products_;
  std::deque<std::vector<Product>> products_;
};

/// Threads that wait for each other: a named barrier, or that of a cluster.
struct Rendezvous {
  unsigned arrived = 0;
  uint32_t generation = 0;

  /// True for the last one, who comes before the others go on.
  bool arrive(unsigned threads);
  void sync(const char* what, unsigned threads);
};

/// An mbarrier, in its 64 bits of shared memory.
struct Mbarrier {
  uint32_t expected : 12;
  uint32_t pending : 12;
  uint32_t phase : 8;
  int32_t bytes;

  void init(uint32_t arrivals);
  void arrive();
  void expect(int32_t more_bytes) { bytes += more_bytes; }
  void complete(int32_t done_bytes);

 private:
  void finish_phase_if_done();
};
static_assert(sizeof(Mbarrier) == 8);

struct Cluster {
  std::vector<Block*> blocks;
  Rendezvous barrier;
};

class Block {
 public:
  /// Shared addresses start here, as the driver keeps the first KiB for itself.
  static constexpr uint32_t kFirstAddress = 1024;

  Block(dim3 index, dim3 grid, unsigned threads, size_t shared_bytes, std::shared_ptr<Cluster> cluster,
        const std::function<void()>& kernel, std::mt19937_64& random);

  [[nodiscard]] dim3 index() const { return index_; }
  [[nodiscard]] dim3 grid() const { return grid_; }
  [[nodiscard]] unsigned threads() const { return static_cast<unsigned>(lanes_.size()); }
  [[nodiscard]] Cluster& cluster() const { return *cluster_; }
  [[nodiscard]] uint8_t* shared() { return shared_; }
  /// Shared memory behind `bytes` bytes at an aligned 32-bit address.
  uint8_t* at(uint32_t address, size_t bytes, size_t alignment);
  uint32_t address_of(const void* pointer) const;
  Mbarrier& mbarrier(uint32_t address) { return *reinterpret_cast<Mbarrier*>(at(address, 8, 8)); }
  Rendezvous& barrier(int id);
  /// setmaxnreg of one thread: registers come from what others of the block have given back.
  void set_registers(Lane& lane, int registers);
  Lane& lane(unsigned thread) { return *lanes_[thread]; }
  /// Where the warpgroup's lanes wait for products.
  Rendezvous& products_of(unsigned warpgroup) { return warpgroups_[warpgroup]; }

  /// Runs the warps in a random order, each for a random while; false once all lanes have finished.
  bool run(std::mt19937_64& random);
  void print_waits() const;

 private:
  bool run_warp(size_t warp, int steps);

  dim3 index_;
  dim3 grid_;
  std::shared_ptr<Cluster> cluster_;
  size_t shared_bytes_;
  std::vector<uint8_t> storage_;
  uint8_t* shared_;
  Rendezvous barriers_[16];
  Rendezvous warpgroups_[8];
  int free_registers_ = 0;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<size_t> order_;
};

/// One launch after the other.
class Machine {
 public:
  static constexpr int kMultiprocessors = 4;
  static constexpr size_t kSharedBytes = 232448;  // of a block

  static Machine& get();

  void launch(dim3 grid, unsigned threads, unsigned cluster_size, size_t shared_bytes,
              const std::function<void()>& kernel);

  /// Done at a random moment, by the copy engine.
  void do_sometime(std::function<void()> work) { in_flight_.push_back(std::move(work)); }
  /// Something happened that others may wait for.
  void progress() { ++progress_; }
  [[nodiscard]] uint64_t progress_so_far() const { return progress_; }
  [[nodiscard]] std::mt19937_64& random() { return random_; }

 private:
  Machine();
  void finish_some_copies();

  std::mt19937_64 random_;
  uint64_t progress_ = 0;
  std::vector<std::function<void()>> in_flight_;
};

template <class Done>
void Lane::wait_until(const char* what, const Done& done) {
  while (!done()) {
    waits_for_ = what;
    yield();
  }
  waits_for_ = "nothing";
  Machine::get().progress();
}

}  // namespace emulator
