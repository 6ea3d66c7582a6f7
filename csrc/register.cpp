// Registers the CPU kernels. The schemas are in Python (fastlbbnn/ops/), so that the operators, and
// with them fake tensors and torch.compile, exist even where this library could not be built.
#include "cpu/ops.h"

STABLE_TORCH_LIBRARY_IMPL(fastlbbnn, CPU, m) {
  m.impl("gated_linear_fwd", TORCH_BOX(&fastlbbnn::gated_linear_fwd));
  m.impl("gated_linear_bwd", TORCH_BOX(&fastlbbnn::gated_linear_bwd));
  m.impl("gated_linear_bwd_adam", TORCH_BOX(&fastlbbnn::gated_linear_bwd_adam));
  m.impl("gated_mlp_fwd", TORCH_BOX(&fastlbbnn::gated_mlp_fwd));
  m.impl("gated_mlp_bwd", TORCH_BOX(&fastlbbnn::gated_mlp_bwd));
  m.impl("gated_mlp_bwd_adam", TORCH_BOX(&fastlbbnn::gated_mlp_bwd_adam));
  m.impl("local_linear_fwd", TORCH_BOX(&fastlbbnn::local_linear_fwd));
  m.impl("local_linear_bwd", TORCH_BOX(&fastlbbnn::local_linear_bwd));
  m.impl("local_linear_bwd_adam", TORCH_BOX(&fastlbbnn::local_linear_bwd_adam));
  m.impl("fixed_mlp_fwd", TORCH_BOX(&fastlbbnn::fixed_mlp_fwd));
  m.impl("fixed_mlp_bwd", TORCH_BOX(&fastlbbnn::fixed_mlp_bwd));
  m.impl("fixed_mlp_bwd_adam", TORCH_BOX(&fastlbbnn::fixed_mlp_bwd_adam));
  m.impl("local_mlp_fwd", TORCH_BOX(&fastlbbnn::local_mlp_fwd));
  m.impl("local_mlp_bwd", TORCH_BOX(&fastlbbnn::local_mlp_bwd));
  m.impl("local_mlp_bwd_adam", TORCH_BOX(&fastlbbnn::local_mlp_bwd_adam));
  m.impl("kl_sums_fwd", TORCH_BOX(&fastlbbnn::kl_sums_fwd));
  m.impl("kl_sums_bwd", TORCH_BOX(&fastlbbnn::kl_sums_bwd));
  m.impl("cross_entropy_fwd", TORCH_BOX(&fastlbbnn::cross_entropy_fwd));
  m.impl("noise", TORCH_BOX(&fastlbbnn::noise));
  m.impl("vecmath", TORCH_BOX(&fastlbbnn::vecmath));
}

STABLE_TORCH_LIBRARY_IMPL(fastlbbnn, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&fastlbbnn::cpu_capability));
}
