// Work in chunks, shared by the threads of XLA's pool.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace palladio {

// XLA's thread pool, without its headers, which take long to compile. Tasks may start late.
class Pool {
 public:
  using Scheduler = void (*)(void* handle, std::function<void()> task);

  Pool(void* handle, int64_t num_threads, Scheduler schedule)
      : handle_(handle), num_threads_(num_threads), schedule_(schedule) {}
  int64_t num_threads() const { return num_threads_; }
  void Schedule(std::function<void()> task) const { schedule_(handle_, std::move(task)); }

 private:
  void* handle_;
  int64_t num_threads_;
  Scheduler schedule_;
};

struct Work {
  int64_t count;                         // of chunks
  std::function<void(int64_t)> compute;  // one of them
};

// Spins first, then yields the core at each wait. The engine's thread, the front and XLA's other threads need the same
// cores, and the system may preempt a thread that holds a chunk as well as one that waits in vain.
class Backoff {
 public:
  void Wait() {
    if (++spins_ < kSpins)
      __builtin_ia32_pause();
    else
      sched_yield();
  }

 private:
  static constexpr int kSpins = 200;  // some microseconds
  int spins_ = 0;
};

// Runs all chunks, on the caller's thread and on those of the pool that are idle, and returns when they are done.
// A free thread takes the next chunk; a late task finds none left, and touches nothing else.
inline void Run(const Pool& pool, Work work) {
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
  for (Backoff backoff; shared->done.load(std::memory_order_acquire) < count;) backoff.Wait();
}

}  // namespace palladio
