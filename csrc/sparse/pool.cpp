#include "pool.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace fastlbbnn {
namespace sparse {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// How long a thread looks for work before it sleeps: longer than the time between two calls in a
// loop, short enough not to take a processor from whoever needs it next.
constexpr auto kPatience = std::chrono::microseconds(100);

// `gate` says which job is on (upper half), whether it may still be joined (kOpen) and how many
// workers are in it. A worker enters by counting itself in while the gate is open; the caller closes
// it once no task is left and waits for those inside. Workers that come late find it closed, so a
// sleeper never delays a call.
class Pool {
 public:
  Pool() : owner(getpid()) {}

  void run(int64_t count, int threads, void (*task)(void*, int64_t), void* context) {
    std::unique_lock<std::mutex> alone(callers_, std::try_to_lock);
    if (!alone.owns_lock()) {
      for (int64_t i = 0; i < count; ++i) task(context, i);
      return;
    }
    grow(threads - 1);
    task_ = task;
    context_ = context;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    wanted_.store(threads - 1, std::memory_order_relaxed);
    const uint64_t job = (gate_.load(std::memory_order_relaxed) >> 32) + 1;
    gate_.store(job << 32 | kOpen);
    if (sleepers_.load() > 0) {
      { std::lock_guard<std::mutex> lock(sleep_); }
      wake_.notify_all();
    }
    work();
    gate_.fetch_and(~kOpen);
    for (int spins = 0; (gate_.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
      if (spins < 2000) relax(); else std::this_thread::yield();
    }
  }

  const pid_t owner;

 private:
  static constexpr uint64_t kOpen = uint64_t{1} << 31, kInside = kOpen - 1;

  void grow(int workers) {
    try {
      for (; size_ < workers; ++size_) {
        std::thread([this, id = size_] { serve(id); }).detach();
      }
    } catch (const std::system_error&) {
      // No more threads to be had: those there are, and the caller, do the work.
    }
  }

  void work() {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
      task_(context_, i);
    }
  }

  bool offered(uint64_t gate, uint64_t served, int id) const {
    return (gate >> 32) != served && (gate & kOpen) && id < wanted_.load(std::memory_order_relaxed);
  }

  void serve(int id) {
    uint64_t served = 0;
    for (;;) {
      uint64_t gate = await(served, id);
      const uint64_t job = gate >> 32;
      // The count of workers may change under us; the job and the open gate may not.
      while (offered(gate, served, id) && (gate >> 32) == job) {
        if (gate_.compare_exchange_weak(gate, gate + 1)) {
          work();
          gate_.fetch_sub(1, std::memory_order_release);
          break;
        }
      }
      served = job;
    }
  }

  // The gate, once it is open for a job that this worker has not served.
  uint64_t await(uint64_t served, int id) {
    for (;;) {
      uint64_t gate;
      const auto give_up = std::chrono::steady_clock::now() + kPatience;
      for (int spins = 1;; ++spins) {
        gate = gate_.load();
        if (offered(gate, served, id)) return gate;
        relax();
        if (spins % 64 == 0 && std::chrono::steady_clock::now() > give_up) break;
      }
      // Any new job ends the sleep, even one that is over by the time we are awake: where one was,
      // the next is near, and that one finds us looking.
      std::unique_lock<std::mutex> lock(sleep_);
      ++sleepers_;
      wake_.wait(lock, [&] { return gate_.load() >> 32 != gate >> 32; });
      --sleepers_;
    }
  }

  std::mutex callers_, sleep_;
  std::condition_variable wake_;
  std::atomic<uint64_t> gate_{0};
  std::atomic<int64_t> next_{0};
  std::atomic<int> wanted_{0}, sleepers_{0};
  void (*task_)(void*, int64_t) = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  int size_ = 0;
};

std::atomic<Pool*> current{nullptr};

std::atomic<Runner> lender{nullptr};
std::atomic<pid_t> lender_process{0};

// A forked child has the pool's memory and none of its threads: it gets a pool of its own. Pools are
// never destroyed, because their threads may outlive the end of main.
Pool& pool() {
  Pool* p = current.load(std::memory_order_acquire);
  if (p && p->owner == getpid()) return *p;
  Pool* fresh = new Pool();
  if (current.compare_exchange_strong(p, fresh)) return *fresh;
  delete fresh;
  return *p;
}

}  // namespace

void run_parallel(int64_t count, int threads, void (*task)(void*, int64_t), void* context) {
  const Runner runner = lender.load(std::memory_order_acquire);
  if (runner && lender_process.load(std::memory_order_relaxed) == getpid()) {
    runner(count, threads, task, context);
  } else {
    pool().run(count, threads, task, context);
  }
}

void borrow_threads(Runner runner) {
  lender_process.store(getpid(), std::memory_order_relaxed);
  lender.store(runner, std::memory_order_release);
}

}  // namespace sparse
}  // namespace fastlbbnn
