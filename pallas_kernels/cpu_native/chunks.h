// Work in chunks, shared by the threads of XLA's pool.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace palladio {

class Team;

// XLA's thread pool, without its headers, which take long to compile. Tasks may start late.
class Pool {
 public:
  using Scheduler = void (*)(void* handle, std::function<void()> task);

  Pool(void* handle, int64_t num_threads, Scheduler schedule)
      : handle_(handle), num_threads_(num_threads), schedule_(schedule) {}
  int64_t num_threads() const { return num_threads_; }
  // The threads that compute the works of this pool; null: each work asks for threads of its own.
  Team* team() const { return team_; }
  Pool Of(Team* team) const {
    Pool pool = *this;
    pool.team_ = team;
    return pool;
  }
  void Schedule(std::function<void()> task) const { schedule_(handle_, std::move(task)); }

 private:
  void* handle_;
  int64_t num_threads_;
  Scheduler schedule_;
  Team* team_ = nullptr;
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

// Threads that compute the works of one call together, one work after the other: they are asked once, not for each work.
// A late thread takes the next chunk of the current work; the caller never waits for a thread that has taken none.
class Team {
 public:
  // Args: wanted: threads, the caller's included.
  Team(const Pool& pool, int64_t wanted) : shared_(std::make_shared<Shared>()), pool_(pool.Of(this)) {
    helpers_ = std::min<int64_t>(pool.num_threads(), wanted) - 1;
    for (int64_t i = 0; i < helpers_; ++i) pool.Schedule([shared = shared_] { shared->Help(); });
  }
  ~Team() { shared_->state.store(kOver, std::memory_order_release); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // A pool whose works the team computes, until the team ends.
  const Pool& pool() const { return pool_; }

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
      for (Backoff backoff; state.load(std::memory_order_acquire) != kOver;)
        if (TakeOne())
          backoff = Backoff();
        else
          backoff.Wait();
    }
    void Wait(int64_t count) {
      for (Backoff backoff; done.load(std::memory_order_acquire) < count;) backoff.Wait();
    }
  };

  std::shared_ptr<Shared> shared_;
  const Pool pool_;
  int64_t helpers_ = 0;
  uint64_t number_ = 0;
};

// Runs all chunks, on the caller's thread and on those of the pool that are idle, and returns when they are done.
// A free thread takes the next chunk; a late task finds none left, and touches nothing else.
inline void Run(const Pool& pool, Work work) {
  if (pool.team()) return pool.team()->Compute(work);
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
