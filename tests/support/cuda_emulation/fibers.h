// The threads of one thread block as fibers, and what they wait for.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace emulation {

[[noreturn]] void fail(const std::string& what);

// How a test wants the kernels to run.
struct Options {
  enum class Order { kForward, kReverse, kShuffled };
  Order order = Order::kForward;
  unsigned seed = 0;         // of the shuffled order
  bool late_copies = false;  // asynchronous copies arrive when they are waited for, not when started
  int skipped_line = 0;      // the barrier or wait in this line of the source does nothing
  std::set<int> visited;     // lines of the barriers and waits that were reached

  bool visit(int line) {
    visited.insert(line);
    return line != skipped_line;
  }
};

// One thread's asynchronous copies.
class Copies {
 public:
  struct Copy {
    void* shared;
    const void* global;
    bool valid;
  };
  void start(const Copy& copy, bool late) {
    if (late) {
      open_.push_back(copy);
    } else {
      run(copy);
    }
  }
  void commit() {
    groups_.push_back(open_);
    open_.clear();
  }
  void wait(size_t pending) {
    while (groups_.size() > pending) {
      for (const Copy& copy : groups_.front()) run(copy);
      groups_.erase(groups_.begin());
    }
  }
  // Whether a thread may leave: everything that it started has been waited for.
  bool idle() const {
    for (const auto& group : groups_) {
      if (!group.empty()) return false;
    }
    return open_.empty();
  }

 private:
  static void run(const Copy& copy) {
    if (copy.valid) {
      std::memcpy(copy.shared, copy.global, 16);
    } else {
      std::memset(copy.shared, 0, 16);
    }
  }
  std::vector<Copy> open_;
  std::vector<std::vector<Copy>> groups_;
};

// What the lanes of a mask brought to one warp-wide operation.
struct Exchange {
  unsigned arrived = 0;  // a bit a lane
  std::vector<unsigned char> values[32];

  template <class T>
  T get(int lane, unsigned mask) const {
    if (lane < 0 || lane >= 32 || (mask >> lane & 1u) == 0) fail("a lane reads from one outside its mask");
    T value;
    std::memcpy(&value, values[lane].data(), sizeof value);
    return value;
  }
};

struct Fiber {
  unsigned thread = 0;
  bool done = false;
  std::function<bool()> ready;  // what it waits for; empty: nothing
  std::map<unsigned, uint64_t> rounds;  // mask -> warp-wide operations so far
  Copies copies;

  int lane() const { return static_cast<int>(thread % 32); }
  int warp() const { return static_cast<int>(thread / 32); }
};

struct State {
  Options options;
  unsigned block_index = 0;
  unsigned char* shared = nullptr;
};

State& state();
Fiber& current();

// The current fiber stops here until `ready` holds; the others run meanwhile.
void wait_until(std::function<bool()> ready);

// Until all threads of the block that have not left are here.
void block_barrier();

// The exchange of this warp, mask and round, as it is when all lanes of the mask have brought theirs.
std::shared_ptr<Exchange> exchange_bytes(unsigned mask, const void* value, size_t size);

template <class T>
std::shared_ptr<Exchange> exchange(unsigned mask, const T& value) {
  return exchange_bytes(mask, &value, sizeof value);
}

// Runs `body` once for every thread of a block, with shared memory that holds NaN at the start.
void run_block(unsigned block_index, int threads, int shared_bytes, const std::function<void()>& body);

}  // namespace emulation
