// Picks the kernels for this processor, once.
#include "../common/instruction_set.h"
#include "kernels.h"

namespace fastlbbnn {
namespace {

const KernelTable& best_kernels() {
#if defined(__x86_64__)
  switch (best_instruction_set()) {
    case InstructionSet::kAvx512: return kAvx512Kernels;
    case InstructionSet::kAvx2: return kAvx2Kernels;
    case InstructionSet::kPortable: break;
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
