// Picks the kernels for this processor, once.
#include "../common/instruction_set.h"
#include "kernels.h"

namespace fastlbbnn {
namespace sparse {
namespace {

const Kernels& best_kernels() {
#if defined(__x86_64__)
  switch (best_instruction_set()) {
    case InstructionSet::kAvx512: return kAvx512;
    case InstructionSet::kAvx2: return kAvx2;
    case InstructionSet::kPortable: break;
  }
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
  if (batch <= kAvx2.lanes && &kernels() == &kAvx512) return kAvx2;
#endif
  return kernels();
}

}  // namespace sparse
}  // namespace fastlbbnn
