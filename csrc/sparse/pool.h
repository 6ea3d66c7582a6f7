// A few threads that wait for work.
//
// Not OpenMP: the program that loads this library mostly has an OpenMP runtime already, and two of
// them compete for the processors. For the same reason threads can be borrowed: those of torch go on
// looking for work for a while after they had some, and would keep ours from running.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

namespace fastlbbnn {
namespace sparse {

// task(context, i) for i in [0, count), by up to `threads` threads of which the caller is one. A call
// that comes while another thread's is running, or from a task, is served by its caller alone.
void run_parallel(int64_t count, int threads, void (*task)(void*, int64_t), void* context);

// Makes run_parallel use another's threads in this process (not in its forked children, where they do
// not exist); nullptr: its own again.
using Runner = void (*)(int64_t count, int32_t threads, void (*task)(void*, int64_t), void* context);
void borrow_threads(Runner runner);

// body(i) for i in [0, count). Memory that runs out in any thread is reported in the caller's.
template <class Body>
void parallel_for(int64_t count, int threads, const Body& body) {
  if (threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  struct Context {
    const Body& body;
    std::atomic<bool> failed{false};
  } context{body};
  run_parallel(
      count, threads,
      [](void* p, int64_t i) {
        Context& c = *static_cast<Context*>(p);
        try {
          c.body(i);
        } catch (const std::bad_alloc&) {
          c.failed = true;
        }
      },
      &context);
  if (context.failed) throw std::bad_alloc();
}

}  // namespace sparse
}  // namespace fastlbbnn
