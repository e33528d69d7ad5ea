// Work in chunks, shared by the threads of XLA's pool.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace palladio {

struct Work {
  int64_t count;                         // of chunks
  std::function<void(int64_t)> compute;  // one of them
};

// Runs all chunks, on the caller's thread and on those of the pool that are idle, and returns when they are done.
// Whoever is free takes the next chunk; a task that comes late finds none left, and touches nothing else.
inline void Run(xla::ffi::ThreadPool pool, Work work) {
  struct Shared {
    std::atomic<int64_t> taken{0}, done{0};
    Work work;
    void Compute() {
      for (int64_t chunk; (chunk = taken.fetch_add(1)) < work.count; done.fetch_add(1, std::memory_order_release))
        work.compute(chunk);
    }
  };
  auto shared = std::make_shared<Shared>();
  shared->work = std::move(work);
  const int64_t count = shared->work.count, helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([shared] { shared->Compute(); });
  shared->Compute();
  for (int spins = 0; shared->done.load(std::memory_order_acquire) < count; ++spins)
    if (spins < 1000)
      _mm_pause();
    else
      std::this_thread::yield();
}

}  // namespace palladio
