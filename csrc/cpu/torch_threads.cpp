// torch's threads, lent to the library of selected networks (csrc/cpu/sparse, which knows no torch).
#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstdint>

// task(context, i) for i in [0, count), by up to `threads` threads of torch's.
extern "C" __attribute__((visibility("default"))) void fastlbbnn_run_parallel(
    int64_t count, int32_t threads, void (*task)(void*, int64_t), void* context) {
  // Tasks take different times: whoever is free takes the next.
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(context, i);
    }
  });
}
