// What tests and `fastlbbnn.info` look at: the noise, the elementary functions, the CPU path.
#include "ops.h"

namespace fastlbbnn {

Tensor noise(Tensor seed, std::string kind, int64_t stream, int64_t sample, int64_t rows,
             int64_t cols, int64_t block_rows, int64_t block_cols) {
  const auto fits = [](int64_t size, int64_t block) { return size <= kMostRows / block; };
  STD_TORCH_CHECK(rows >= 0 && cols >= 0 && stream >= 0 && stream <= 3 && block_rows >= 1 &&
                      block_cols >= 1 && fits(rows, block_rows) && fits(cols, block_cols) &&
                      sample >= 0 && sample <= kMostRows,
                  "fastlbbnn: noise needs sizes >= 0, a stream in 0..3, blocks >= 1, and sizes times "
                  "blocks and a sample of at most ", kMostRows);
  Draw draw = make_draw(read_seeds(seed, 1)[0], static_cast<Stream>(stream), sample, 1.0, true);
  const int64_t stride = padded_cols(cols);
  volume({rows, stride});
  Tensor out = empty({rows, stride});
  const int64_t count = cols > 0 ? rows : 0;
  const int64_t rows_a_thread = worth_threads(count * stride, kWeightWork) ? 16 : count;
  if (kind == "normal") {
    parallel_for(0, count, rows_a_thread, [&](int64_t begin, int64_t end) {
      kernels().normals(draw, begin, end, cols, stride, mutable_data(out));
    });
    return out;
  }
  STD_TORCH_CHECK(kind == "uniform" || kind == "logistic",
                  "fastlbbnn: noise kind must be normal, uniform or logistic");
  draw.stream = Stream::kWeight;
  Tensor other = empty({rows, stride});
  const bool uniform = kind == "uniform";
  parallel_for(0, count, rows_a_thread, [&](int64_t begin, int64_t end) {
    kernels().gate_noise(draw, begin, end, cols, block_rows, block_cols,
                         mutable_data(uniform ? out : other), mutable_data(uniform ? other : out));
  });
  return out;
}

Tensor vecmath(Tensor x, int64_t function) {
  check_float(x, x.numel(), "x");
  STD_TORCH_CHECK(function >= 0 && function <= 8, "fastlbbnn: vecmath function must be in 0..8");
  Tensor out = torch::stable::empty_like(x);
  kernels().math(static_cast<int>(function), data(x), mutable_data(out), x.numel());
  return out;
}

std::string cpu_capability() { return kernels().name; }

}  // namespace fastlbbnn
