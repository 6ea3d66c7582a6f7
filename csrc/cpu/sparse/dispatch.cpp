// Picks the kernels for this processor, once; FASTLBBNN_CPU as in csrc/cpu/dispatch.cpp.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace fastlbbnn {
namespace sparse {
namespace {

const Kernels& best_kernels() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const char* limit = std::getenv("FASTLBBNN_CPU");
  const bool no_avx512 = limit && std::strcmp(limit, "avx512") != 0;
  const bool no_avx2 = no_avx512 && std::strcmp(limit, "avx2") != 0;
  if (!no_avx512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma")) {
    return kAvx512;
  }
  if (!no_avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kAvx2;
#endif
  return kPortable;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& table = best_kernels();
  return table;
}

const Kernels& kernels_for(int64_t batch) {
#if defined(__x86_64__)
  // (A single observation has its weights along the lanes.)
  if (batch > 1 && batch <= kAvx2.lanes && &kernels() == &kAvx512) return kAvx2;
#endif
  return kernels();
}

}  // namespace sparse
}  // namespace fastlbbnn
