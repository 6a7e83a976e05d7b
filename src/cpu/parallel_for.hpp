// SPDX-License-Identifier: Apache-2.0
// Fork, work, join: all the threading there is.  The tasks are a function of the problem; which thread takes which
// task is not, so a task writes nothing but its own outputs and its worker's scratch.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace keysieve {

/// Calls body(worker, task) once for every task in [0, num_tasks), worker in [0, num_workers).  The caller's thread
/// is worker 0.  A thread that the system refuses is done without.
template <class Body>
void parallel_for(int num_workers, int64_t num_tasks, const Body& body) noexcept {
  std::atomic<int64_t> next_task{0};
  const auto work = [&next_task, num_tasks, &body](int worker) {
    for (int64_t task = next_task.fetch_add(1); task < num_tasks; task = next_task.fetch_add(1)) {
      body(worker, task);
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int worker = 1; worker < num_workers && worker < num_tasks; ++worker) {
      threads.emplace_back(work, worker);
    }
  } catch (...) {  // std::system_error or std::bad_alloc: the threads that did start share the tasks
  }
  work(0);
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace keysieve
