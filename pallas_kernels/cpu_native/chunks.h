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

// Waits a little; a thread that has waited for long gives its core away each time. The engine's thread, the front and
// XLA's other threads want the same cores, and the system puts aside who holds a chunk as soon as who waits in vain.
class Patience {
 public:
  void Wait() {
    if (++spins_ < kSpins)
      _mm_pause();
    else
      std::this_thread::yield();
  }

 private:
  static constexpr int kSpins = 200;  // some microseconds
  int spins_ = 0;
};

// Threads that compute the works of one call together, one work after the other: they are asked once, not for each work.
// Who comes late takes the next chunk of whatever work there is; the caller never waits for one that has taken none.
class Team {
 public:
  // Until its end, works of this thread are the team's. Args: wanted: threads, the caller's included.
  Team(xla::ffi::ThreadPool pool, int64_t wanted) : shared_(std::make_shared<Shared>()), before_(Current()) {
    helpers_ = std::min<int64_t>(pool.num_threads(), wanted) - 1;
    for (int64_t i = 0; i < helpers_; ++i) pool.Schedule([shared = shared_] { shared->Help(); });
    Current() = this;
  }
  ~Team() {
    shared_->state.store(kOver, std::memory_order_release);
    Current() = before_;
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void Compute(const Work& work) {
    if (helpers_ <= 0 || work.count == 1 || work.count > kMask) {
      for (int64_t chunk = 0; chunk < work.count; ++chunk) work.compute(chunk);
      return;
    }
    shared_->work = &work;
    shared_->done.store(0, std::memory_order_relaxed);
    number_ = (number_ + 1) % (1 << 20);
    shared_->state.store(number_ << 2 * kBits | uint64_t(work.count) << kBits, std::memory_order_release);
    while (shared_->TakeOne()) {
    }
    shared_->Wait(work.count);
  }

  static Team*& Current() {
    thread_local Team* current = nullptr;
    return current;
  }

 private:
  static constexpr int kBits = 20;
  static constexpr int64_t kMask = (int64_t{1} << kBits) - 1;
  static constexpr uint64_t kOver = ~uint64_t{0};

  struct Shared {
    std::atomic<uint64_t> state{0};  // the work's number, how many chunks it has, and how many are taken
    std::atomic<int64_t> done{0};
    const Work* work = nullptr;  // stays until all chunks are done

    // Computes a chunk, if one is left.
    bool TakeOne() {
      uint64_t seen = state.load(std::memory_order_acquire);
      for (;;) {
        const int64_t taken = seen & kMask, count = seen >> kBits & kMask;
        if (seen == kOver || taken >= count) return false;
        if (!state.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
        work->compute(taken);
        done.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
    void Help() {
      for (Patience patience; state.load(std::memory_order_acquire) != kOver;)
        if (TakeOne())
          patience = Patience();
        else
          patience.Wait();
    }
    void Wait(int64_t count) {
      for (Patience patience; done.load(std::memory_order_acquire) < count;) patience.Wait();
    }
  };

  std::shared_ptr<Shared> shared_;
  Team* before_;
  int64_t helpers_ = 0;
  uint64_t number_ = 0;
};

// Runs all chunks, on the caller's thread and on those of the pool that are idle, and returns when they are done.
// Whoever is free takes the next chunk; a task that comes late finds none left, and touches nothing else.
inline void Run(xla::ffi::ThreadPool pool, Work work) {
  if (Team* team = Team::Current()) return team->Compute(work);
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
  for (Patience patience; shared->done.load(std::memory_order_acquire) < count;) patience.Wait();
}

}  // namespace palladio
