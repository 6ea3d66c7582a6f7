// Runs the library of selected networks on random layers, for the sanitizers: arrays are exactly as
// long as they must be, so a read or write past their ends is seen. Results are compared with plain
// loops in double.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "../../csrc/sparse/api.h"

namespace {

std::mt19937 generator(1);

float uniform() { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(generator); }
bool chance(double p) { return std::uniform_real_distribution<double>(0.0, 1.0)(generator) < p; }

// A vector without spare capacity.
template <class T>
struct Exact {
  std::unique_ptr<T[]> data;
  size_t size;
  explicit Exact(const std::vector<T>& v) : data(new T[v.size()]), size(v.size()) {
    for (size_t i = 0; i < size; ++i) data[i] = v[i];
  }
};

struct Matrix {
  int64_t rows, cols, bn, bk;
  std::vector<double> dense;
  Exact<int64_t> offsets{{}};
  Exact<uint16_t> narrow{{}};
  Exact<int32_t> wide{{}}, index{{}}, block_offsets{{}};
  Exact<uint16_t> block_columns{{}};
  Exact<float> mean{{}}, scale{{}}, bias{{}}, bias_scale{{}}, block_values{{}};
  bool relu;

  Matrix(int64_t rows, int64_t cols, int64_t bn, int64_t bk, double density, bool relu)
      : rows(rows), cols(cols), bn(bn), bk(bk), dense(rows * cols), relu(relu) {
    const int64_t grid_rows = (rows + bn - 1) / bn, grid_cols = (cols + bk - 1) / bk;
    std::vector<bool> kept(grid_rows * grid_cols);
    for (size_t i = 0; i < kept.size(); ++i) kept[i] = chance(density);
    std::vector<int64_t> at{0};
    std::vector<uint16_t> columns;
    std::vector<float> values, biases(rows), scales;
    for (int64_t r = 0; r < rows; ++r) {
      biases[r] = uniform();
      for (int64_t c = 0; c < cols; ++c) {
        if (!kept[r / bn * grid_cols + c / bk]) continue;
        columns.push_back(static_cast<uint16_t>(c));
        values.push_back(uniform());
        scales.push_back(0.1f);
        dense[r * cols + c] = values.back();
      }
      at.push_back(static_cast<int64_t>(columns.size()));
    }
    std::vector<int32_t> block_at{0}, all(rows);
    std::vector<uint16_t> block_cols;
    std::vector<float> blocks;
    for (int64_t i = 0; i < grid_rows; ++i) {
      for (int64_t j = 0; j < grid_cols; ++j) {
        if (!kept[i * grid_cols + j]) continue;
        block_cols.push_back(static_cast<uint16_t>(j));
        for (int64_t r = i * bn; r < (i + 1) * bn; ++r) {
          for (int64_t c = j * bk; c < (j + 1) * bk; ++c) {
            blocks.push_back(r < rows && c < cols ? static_cast<float>(dense[r * cols + c]) : 0.0f);
          }
        }
      }
      block_at.push_back(static_cast<int32_t>(block_cols.size()));
    }
    for (int64_t r = 0; r < rows; ++r) all[r] = static_cast<int32_t>(r);
    offsets = Exact<int64_t>(at);
    narrow = Exact<uint16_t>(columns);
    wide = Exact<int32_t>(std::vector<int32_t>(columns.begin(), columns.end()));
    mean = Exact<float>(values);
    scale = Exact<float>(scales);
    bias = Exact<float>(biases);
    bias_scale = Exact<float>(std::vector<float>(rows, 0.1f));
    index = Exact<int32_t>(all);
    block_offsets = Exact<int32_t>(block_at);
    block_columns = Exact<uint16_t>(block_cols);
    block_values = Exact<float>(blocks);
  }

  FlLayer describe(bool wide_columns, const int32_t* col_index) const {
    const bool blocks = bn * bk > 1;
    return {rows, cols, offsets.data.get(),
            wide_columns ? static_cast<const void*>(wide.data.get()) : narrow.data.get(),
            mean.data.get(), scale.data.get(), bias.data.get(), bias_scale.data.get(),
            index.data.get(), col_index, blocks ? bn : 0, blocks ? bk : 0,
            block_offsets.data.get(), block_columns.data.get(), block_values.data.get(),
            wide_columns ? 4 : 2, 2, relu};
  }

  std::vector<double> apply(const std::vector<double>& x) const {
    std::vector<double> y(rows);
    for (int64_t r = 0; r < rows; ++r) {
      y[r] = bias.data[r];
      for (int64_t c = 0; c < cols; ++c) y[r] += dense[r * cols + c] * x[c];
      if (relu && y[r] < 0.0) y[r] = 0.0;
    }
    return y;
  }
};

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

void run_network(const std::vector<Matrix*>& layers, int64_t in_features, int format, bool wide) {
  std::vector<int32_t> used;
  const int64_t cols = layers[0]->cols;
  for (int64_t j = 0; j < cols; ++j) used.push_back(static_cast<int32_t>(j * in_features / cols));
  const Exact<int32_t> inputs(used);
  std::vector<FlLayer> described;
  const int32_t* before = inputs.data.get();
  for (const Matrix* m : layers) {
    described.push_back(m->describe(wide, before));
    before = m->index.data.get();
  }
  const int32_t count = static_cast<int32_t>(layers.size());
  void* net = fl_sparse_create(described.data(), count, inputs.data.get());
  check(net != nullptr, "create");
  const std::vector<int32_t> formats(count, format);
  const int samples = 5;
  void* draws[2] = {fl_sparse_draws_create(net, samples, formats.data(), 0),
                    fl_sparse_draws_create(net, samples, formats.data(), 1)};
  for (int32_t l = 0; l < count; ++l) {
    const Matrix& m = *layers[l];
    Exact<float> values(std::vector<float>(m.mean.size)), bias(std::vector<float>(m.rows));
    check(fl_sparse_draw(&described[l], 7, 3, values.data.get(), bias.data.get()) == 0, "draw");
    check(fl_sparse_draw(&described[l], 7, 3, nullptr, bias.data.get()) == 0, "draw of biases");
    for (size_t i = 0; i < m.mean.size; ++i) {
      // (Scales are 0.1, and normals made of 22 bits below 6.)
      check(std::fabs(values.data[i] - m.mean.data[i]) < 0.6, "a weight");
    }
    // Without scales draws are the means, and the expected result is known.
    FlLayer still = described[l];
    const Exact<float> none(std::vector<float>(m.mean.size)), no_bias(std::vector<float>(m.rows));
    std::vector<float> repeated;
    for (int s = 0; s < samples; ++s) {
      repeated.insert(repeated.end(), m.bias.data.get(), m.bias.data.get() + m.rows);
    }
    const Exact<float> biases(repeated);
    still.scale = none.data.get();
    still.bias_scale = no_bias.data.get();
    for (void* d : draws) {
      const float* given = l % 2 ? biases.data.get() : nullptr;
      check(fl_sparse_draws_fill(net, d, l, &still, 7, 2, given) == 0, "fill");
    }
  }
  const int64_t outputs = layers.back()->rows;
  for (const int64_t batch : {1, 2, 8, 9, 16, 33, 70}) {
    for (const int threads : {1, 3}) {
      std::vector<float> data(batch * in_features);
      for (float& v : data) v = uniform();
      const Exact<float> x(data);
      const std::vector<float> empty(samples * batch * outputs);
      Exact<float> y(std::vector<float>(batch * outputs)), z(empty), side(empty);
      const FlPass pass{net, nullptr, formats.data(), in_features, 0, count, threads};
      const FlPass sampled{net, draws[0], formats.data(), in_features, 0, count, threads};
      const FlPass beside{net, draws[1], formats.data(), in_features, 0, count, threads};
      check(fl_sparse_run(&pass, x.data.get(), batch, y.data.get()) == 0, "run");
      check(fl_sparse_run(&sampled, x.data.get(), batch, z.data.get()) == 0, "run of draws");
      check(fl_sparse_run(&beside, x.data.get(), batch, side.data.get()) == 0, "run side by side");
      for (int64_t b = 0; b < batch; ++b) {
        std::vector<double> h;
        for (const int32_t j : used) h.push_back(data[b * in_features + j]);
        for (const Matrix* m : layers) h = m->apply(h);
        for (int64_t r = 0; r < outputs; ++r) {
          // Sums of up to a few hundred products near 1, three layers deep.
          const double allowed = 1e-4 * (1.0 + std::fabs(h[r]));
          check(std::fabs(y.data[b * outputs + r] - h[r]) < allowed, "means");
          for (int s = 0; s < samples; ++s) {
            const int64_t at = (s * batch + b) * outputs + r;
            check(std::fabs(z.data[at] - h[r]) < allowed, "draws");
            check(std::fabs(side.data[at] - h[r]) < allowed, "draws side by side");
          }
        }
      }
    }
  }
  for (void* d : draws) fl_sparse_draws_destroy(d);
  fl_sparse_destroy(net);
}

}  // namespace

int main() {
  std::printf("%s\n", fl_sparse_kernels());
  struct Sizes { int64_t bn, bk; double density; };
  for (const Sizes s : {Sizes{1, 1, 0.1}, Sizes{1, 1, 1.0}, Sizes{1, 1, 0.0}, Sizes{4, 8, 0.3},
                        Sizes{16, 16, 0.5}, Sizes{3, 5, 0.4}, Sizes{1, 7, 0.5}}) {
    Matrix a(61, 253, s.bn, s.bk, s.density, true), b(29, 61, s.bn, s.bk, s.density, true),
        c(5, 29, s.bn, s.bk, s.density, false);
    for (const bool wide : {false, true}) {
      for (int format = 0; format < (s.bn * s.bk > 1 ? 2 : 1); ++format) {
        run_network({&a, &b, &c}, 253, format, wide);
        run_network({&a, &b, &c}, 300, format, wide);
      }
    }
  }
  // Several panels of columns, in all of the packings.
  Matrix wide(37, 2900, 1, 1, 0.06, true), narrow(3, 37, 1, 1, 0.5, false);
  run_network({&wide, &narrow}, 2900, 0, false);
  std::printf("done\n");
  return 0;
}
