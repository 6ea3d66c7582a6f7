// Kernels with mistakes that a GPU may not show, for the emulation to find. Each prints what it summed.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cuda_emulation.h"

namespace {

using namespace fastlbbnn::cuda;

constexpr int kThreads = 64;

struct Problem {
  std::string mistake;
  float* sum;
};

// Thread t writes t; then thread 0 adds all up.
void sum_kernel(const Problem p) {
  float* shared = reinterpret_cast<float*>(shared_memory());
  const int t = static_cast<int>(threadIdx.x);
  shared[t] = static_cast<float>(t);
  if (p.mistake == "shared-overflow" && t == 63) shared[64] = 0.0f;
  if (p.mistake == "lane-missing" && t == 5) return;
  if (p.mistake == "lane-missing") __shfl_sync(0xffffffffu, 1.0f, 0);
  if (p.mistake == "outside-mask" && t < 8) __shfl_sync(0x000000ffu, 1.0f, 9);
  if (p.mistake == "not-in-mask") __shfl_sync(0x000000ffu, 1.0f, 0);
  if (p.mistake == "unaligned-copy") copy_async(shared + 1, shared, true);
  alignas(16) static const float source[4] = {};
  if (p.mistake == "copy-not-awaited") copy_async(shared, source, true);
  if (p.mistake != "no-barrier") __syncthreads();
  if (t == 0) {
    *p.sum = 0.0f;
    for (int i = 0; i < kThreads; ++i) *p.sum += shared[i];
  }
  // Those that leave early are not waited for.
  if (t % 2 == 1) return;
  __syncthreads();
}

}  // namespace

int main(int argc, char** argv) {
  emulation::state().options.late_copies = true;
  if (argc > 2 && std::string(argv[2]) == "reverse") {
    emulation::state().options.order = emulation::Options::Order::kReverse;
  }
  float sum = 0.0f;
  launch(sum_kernel, 1, kThreads, kThreads * 4, nullptr, Problem{argc > 1 ? argv[1] : "", &sum});
  std::printf("%g\n", static_cast<double>(sum));
  return 0;
}
