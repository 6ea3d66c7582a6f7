// The cross-entropy of logits and classes, summed over a batch, with its gradient in the same pass.
//
// torch's log_softmax opens a parallel region even for a hundred rows of ten classes: of a small network's
// training step that would be the only one, and its threads then wait busily for the rest of the step.
#include "ops.h"

namespace fastlbbnn {

std::tuple<Tensor, Tensor> cross_entropy_fwd(Tensor logits, Tensor target) {
  STD_TORCH_CHECK(logits.dim() == 2 && logits.size(1) >= 1, "fastlbbnn: logits must be [rows, classes]");
  const Tensor rows = row_major(logits), classes = row_major(target);
  const int64_t count = logits.size(0), width = logits.size(1);
  check_float(rows, volume({count, width}), "logits");
  STD_TORCH_CHECK(classes.is_cpu() && classes.scalar_type() == ScalarType::Long && classes.dim() == 1 &&
                      classes.numel() == count,
                  "fastlbbnn: target must be an int64 CPU tensor of ", count, " classes");
  const auto* labels = static_cast<const int64_t*>(classes.const_data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    STD_TORCH_CHECK(labels[i] >= 0 && labels[i] < width, "fastlbbnn: target is ", labels[i],
                          " in row ", i, "; expected 0 to ", width - 1);
  }
  Tensor gradient = empty({count, width}), loss = empty({});
  *mutable_data(loss) = static_cast<float>(
      kernels().cross_entropy(data(rows), labels, count, width, mutable_data(gradient)));
  return {loss, gradient};
}

}  // namespace fastlbbnn
