// Which vector instructions to use on this processor.
#pragma once

#include <cstdlib>
#include <cstring>

namespace fastlbbnn {

enum class InstructionSet { kPortable, kAvx2, kAvx512 };

// FASTLBBNN_CPU=avx512|avx2|portable asks for less than the processor can do (never for more), to compare
// the paths.
inline InstructionSet best_instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const char* limit = std::getenv("FASTLBBNN_CPU");
  const bool no_avx512 = limit && std::strcmp(limit, "avx512") != 0;
  const bool no_avx2 = no_avx512 && std::strcmp(limit, "avx2") != 0;
  if (!no_avx512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma")) {
    return InstructionSet::kAvx512;
  }
  if (!no_avx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return InstructionSet::kAvx2;
  }
#endif
  return InstructionSet::kPortable;
}

}  // namespace fastlbbnn
