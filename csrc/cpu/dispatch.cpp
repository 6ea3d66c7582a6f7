// Picks the kernels for this processor, once.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace fastlbbnn {
namespace {

const KernelTable& best_kernels() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // FASTLBBNN_CPU=avx512|avx2|portable asks for less than the processor can do (never for more), to
  // compare the paths.
  const char* limit = std::getenv("FASTLBBNN_CPU");
  const bool no_avx512 = limit && std::strcmp(limit, "avx512") != 0;
  const bool no_avx2 = no_avx512 && std::strcmp(limit, "avx2") != 0;
  if (!no_avx512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma")) {
    return kAvx512Kernels;
  }
  if (!no_avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return kAvx2Kernels;
  }
#endif
  return kPortableKernels;
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& table = best_kernels();
  return table;
}

}  // namespace fastlbbnn
