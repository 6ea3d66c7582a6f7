// torch's threads, and subnormal numbers as zero on them.
//
// What a network has excluded gets no gradient any more, and its Adam moments decay: 0.9^n m falls below
// 1e-38 and then stays, since 0.9 of the smallest subnormal number rounds to itself. Arithmetic on such
// numbers takes a microcode assist of a hundred cycles or more: it made the training step of a network that
// had become sparse several times slower. As zeros they change nothing that float32 could tell.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastlbbnn {

// While it lives, its thread takes subnormal operands and results as zero.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushSubnormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  unsigned before_;
#elif defined(__aarch64__)
  FlushSubnormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    set(before_ | kFlushToZero);
  }
  ~FlushSubnormals() { set(before_); }

 private:
  static constexpr uint64_t kFlushToZero = uint64_t{1} << 24;
  static void set(uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
  uint64_t before_;
#else
  FlushSubnormals() {}   // as slow as the processor is
  ~FlushSubnormals() {}

 private:
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

// Whether `items`, each of the work of so many multiplications, are worth more than one thread: 2^24 of them
// take some 150 us. OpenMP's threads wait busily after a region; where a neighbour wants the processor, a
// region may cost a time slice of milliseconds, and for less than this it gains next to nothing.
inline bool worth_threads(int64_t items, int64_t work) {
  constexpr int64_t kWorthThreads = int64_t{1} << 24;
  return items > kWorthThreads / work;
}

// What a weight costs besides its products: noise, gates, KL, gradients, Adam.
constexpr int64_t kWeightWork = 256;

// body(first, last) on parts of [begin, end) of at least `grain` items.
template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  torch::stable::parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
    const FlushSubnormals flush;
    body(first, last);
  });
}

}  // namespace fastlbbnn
