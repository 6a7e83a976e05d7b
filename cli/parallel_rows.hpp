// SPDX-License-Identifier: Apache-2.0
// Independent rows on a few threads; the first exception is thrown again on the caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace keysieve::cli {

/// Calls `body(row)` for each of `rows`, on `num_threads` threads.
template <typename Body>
void for_each_row(const std::vector<int64_t>& rows, int32_t num_threads, const Body& body) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      for (size_t i = next++; i < rows.size(); i = next++) {
        body(rows[i]);
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      failure = failure ? failure : std::current_exception();
      next = rows.size();
    }
  };
  std::vector<std::thread> threads;
  for (int32_t i = 1; i < num_threads && i < static_cast<int32_t>(rows.size()); ++i) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace keysieve::cli
