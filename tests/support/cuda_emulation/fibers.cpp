#include "fibers.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define START_SWITCH(saved, bottom, size) __sanitizer_start_switch_fiber(saved, bottom, size)
#define FINISH_SWITCH(saved, bottom, size) __sanitizer_finish_switch_fiber(saved, bottom, size)
#else
#define START_SWITCH(saved, bottom, size) ((void)0)
#define FINISH_SWITCH(saved, bottom, size) ((void)0)
#endif

namespace emulation {
namespace {

constexpr size_t kStackBytes = 256 * 1024;

struct Stack {
  ucontext_t context;
  std::unique_ptr<char[]> memory{new char[kStackBytes]};
  void* sanitizer = nullptr;  // the sanitizer's note of this stack while another runs
};

// One block at a time.
struct Block {
  std::vector<Fiber> fibers;
  size_t running = 0;
  size_t left = 0;         // threads that have not ended
  size_t at_barrier = 0;   // of those, how many wait for the others
  uint64_t barriers = 0;   // that all have passed
  // (warp, mask, round) -> what the lanes brought, until the last has seen it.
  std::map<std::tuple<int, unsigned, uint64_t>, std::shared_ptr<Exchange>> exchanges;
  const std::function<void()>* body = nullptr;
};

State the_state;
Block block;
std::vector<Stack> stacks;  // kept from block to block
ucontext_t scheduler;
[[maybe_unused]] void* scheduler_sanitizer = nullptr;
[[maybe_unused]] const void* scheduler_bottom = nullptr;
[[maybe_unused]] size_t scheduler_size = 0;

void to_scheduler(bool leaving) {
  Stack& stack = stacks[block.running];
  START_SWITCH(leaving ? nullptr : &stack.sanitizer, scheduler_bottom, scheduler_size);
  (void)leaving;
  swapcontext(&stack.context, &scheduler);
  FINISH_SWITCH(stack.sanitizer, &scheduler_bottom, &scheduler_size);
}

void enter_fiber() {
  FINISH_SWITCH(nullptr, &scheduler_bottom, &scheduler_size);
  (*block.body)();
  Fiber& fiber = current();
  if (!fiber.copies.idle()) fail("a thread leaves while its asynchronous copies are under way");
  fiber.done = true;
  to_scheduler(true);
}

void resume(size_t thread) {
  block.running = thread;
  START_SWITCH(&scheduler_sanitizer, stacks[thread].memory.get(), kStackBytes);
  swapcontext(&scheduler, &stacks[thread].context);
  FINISH_SWITCH(scheduler_sanitizer, nullptr, nullptr);
}

// The threads from the one that goes first whenever it can to the one that goes last.
std::vector<size_t> thread_order(size_t threads, std::mt19937& random) {
  std::vector<size_t> order(threads);
  for (size_t i = 0; i < threads; ++i) order[i] = i;
  if (the_state.options.order == Options::Order::kReverse) std::reverse(order.begin(), order.end());
  if (the_state.options.order == Options::Order::kShuffled) std::shuffle(order.begin(), order.end(), random);
  return order;
}

void release_barrier() {
  if (block.left > 0 && block.at_barrier == block.left) {
    block.at_barrier = 0;
    ++block.barriers;
  }
}

}  // namespace

void fail(const std::string& what) {
  std::fprintf(stderr, "emulation: block %u, thread %u: %s\n", the_state.block_index,
               block.fibers.empty() ? 0u : current().thread, what.c_str());
  std::fflush(stderr);
  std::_Exit(3);  // not exit: the sanitizer's last search for leaks does not end on a fiber's stack
}

State& state() { return the_state; }
Fiber& current() { return block.fibers[block.running]; }

void wait_until(std::function<bool()> ready) {
  if (ready()) return;
  current().ready = std::move(ready);
  to_scheduler(false);
}

void block_barrier() {
  const uint64_t mine = block.barriers;
  ++block.at_barrier;
  release_barrier();
  wait_until([mine] { return block.barriers > mine; });
}

std::shared_ptr<Exchange> exchange_bytes(unsigned mask, const void* value, size_t size) {
  Fiber& me = current();
  if ((mask >> me.lane() & 1u) == 0) fail("a lane takes part in an operation whose mask leaves it out");
  const uint64_t round = ++me.rounds[mask];
  auto& entry = block.exchanges[{me.warp(), mask, round}];
  if (!entry) entry = std::make_shared<Exchange>();
  const std::shared_ptr<Exchange> mine = entry;
  const auto* bytes = static_cast<const unsigned char*>(value);
  mine->values[me.lane()].assign(bytes, bytes + size);
  mine->arrived |= 1u << me.lane();
  wait_until([mask, mine] { return mine->arrived == mask; });
  block.exchanges.erase({me.warp(), mask, round});
  return mine;
}

void run_block(unsigned block_index, int threads, int shared_bytes, const std::function<void()>& body) {
  the_state.block_index = block_index;
  // Exactly as long as asked for, so that the sanitizer sees an access beyond it; NaN in every format.
  void* shared = nullptr;
  if (shared_bytes > 0 && posix_memalign(&shared, 16, static_cast<size_t>(shared_bytes)) != 0) fail("memory");
  if (shared != nullptr) std::memset(shared, 0xff, static_cast<size_t>(shared_bytes));
  the_state.shared = static_cast<unsigned char*>(shared);

  block.fibers.assign(static_cast<size_t>(threads), Fiber{});
  block.left = block.fibers.size();
  block.at_barrier = 0;
  block.exchanges.clear();
  block.body = &body;
  while (stacks.size() < block.fibers.size()) stacks.emplace_back();
  for (size_t t = 0; t < block.fibers.size(); ++t) {
    block.fibers[t].thread = static_cast<unsigned>(t);
    getcontext(&stacks[t].context);
    stacks[t].context.uc_stack.ss_sp = stacks[t].memory.get();
    stacks[t].context.uc_stack.ss_size = kStackBytes;
    stacks[t].context.uc_link = nullptr;
    makecontext(&stacks[t].context, enter_fiber, 0);
  }

  std::mt19937 random(the_state.options.seed + block_index);
  const std::vector<size_t> order = thread_order(block.fibers.size(), random);
  const auto can_run = [](size_t t) {
    const Fiber& fiber = block.fibers[t];
    return !fiber.done && (!fiber.ready || fiber.ready());
  };
  while (block.left > 0) {
    // Always the first that can: a warp runs ahead of the others as far as the barriers let it.
    const auto next = std::find_if(order.begin(), order.end(), can_run);
    if (next == order.end()) fail("deadlock: every thread waits for another at a barrier or in a warp");
    block.fibers[*next].ready = nullptr;
    resume(*next);
    if (block.fibers[*next].done) {
      --block.left;
      release_barrier();
    }
  }
  std::free(shared);
}

}  // namespace emulation
