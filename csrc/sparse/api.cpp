#include "api.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "kernels.h"
#include "network.h"
#include "pool.h"

namespace {

using namespace fastlbbnn::sparse;
using fastlbbnn::Stream;

Rows rows_of(const FlLayer& l) {
  return {l.rows, l.cols, l.row_offsets, {l.columns, l.column_bytes}};
}

Posterior posterior_of(const FlLayer& l) {
  return {rows_of(l), l.mean, l.scale, l.bias_mean, l.bias_scale, l.row_index, l.col_index};
}

template <class T>
void copy(std::vector<T>* to, const void* from, int64_t count) {
  to->resize(count);
  if (count) std::memcpy(to->data(), from, count * sizeof(T));
}

void fill_layer(Layer* to, const FlLayer& from) {
  to->relu = from.relu != 0;
  to->has_blocks = from.block_rows > 0;
  const int64_t nnz = from.row_offsets[from.rows];
  copy(&to->bias, from.bias_mean, from.rows);
  copy(&to->offsets, from.row_offsets, from.rows + 1);
  copy(&to->columns, from.columns, nnz * from.column_bytes);
  copy(&to->values, from.mean, nnz);
  to->rows = {from.rows, from.cols, to->offsets.data(), {to->columns.data(), from.column_bytes}};
  if (!to->has_blocks) return;
  const int64_t bn = from.block_rows, bk = from.block_cols;
  const int64_t grid_rows = (from.rows + bn - 1) / bn, count = from.block_row_offsets[grid_rows];
  copy(&to->block_offsets, from.block_row_offsets, grid_rows + 1);
  copy(&to->block_columns, from.block_columns, count * from.block_column_bytes);
  copy(&to->block_values, from.block_values, count * bn * bk);
  to->blocks = {from.rows, from.cols, bn, bk, to->block_offsets.data(),
                {to->block_columns.data(), from.block_column_bytes}, to->block_values.data()};
  to->packed_blocks = pack_blocks(to->blocks, to->rows, to->relu, kernels().block_rows);
}

template <class Body>
int32_t guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace

int32_t fl_sparse_version() { return 4; }

const char* fl_sparse_kernels() { return kernels().name; }

void fl_sparse_borrow_threads(void* runner) {
  borrow_threads(reinterpret_cast<Runner>(runner));
}

void* fl_sparse_create(const FlLayer* layers, int32_t count, const int32_t* inputs) {
  Network* net = nullptr;
  try {
    net = new Network(count);
    int64_t most = 0;
    for (int32_t l = 0; l < count; ++l) {
      fill_layer(&net->layers[l], layers[l]);
      most = std::max(most, layers[l].cols);
    }
    copy(&net->inputs, inputs, layers[0].cols);
    net->identity.resize(most);
    std::iota(net->identity.begin(), net->identity.end(), 0);
    return net;
  } catch (const std::bad_alloc&) {
    delete net;
    return nullptr;
  }
}

void fl_sparse_destroy(void* network) { delete static_cast<Network*>(network); }

int32_t fl_sparse_run(const FlPass* pass, const float* x, int64_t batch, float* y) {
  const Network& net = *static_cast<const Network*>(pass->network);
  const Draws* draws = static_cast<const Draws*>(pass->draws);
  fastlbbnn::sparse::Pass p{x, pass->stride, batch,
                            reinterpret_cast<const Format*>(pass->formats), pass->first, pass->last,
                            pass->threads, y};
  return guarded([&] {
    if (draws) {
      p.formats = draws->formats.data();
      run(net, *draws, p);
    } else {
      run(net, p);
    }
  });
}

int32_t fl_sparse_draw(const FlLayer* layer, uint64_t seed, uint32_t sample, float* values,
                       float* bias) {
  return guarded([&] {
    const Posterior q = posterior_of(*layer);
    if (values) {
      const Places places = weight_places(q);
      kernels().draw(places, Stream::kWeight, seed, sample, 0, places.size(), values);
    }
    const Places places = bias_places(q);
    kernels().draw(places, Stream::kBias, seed, sample, 0, places.size(), bias);
  });
}

int32_t fl_sparse_side_by_side(int32_t samples, int64_t batch) {
  return better_side_by_side(samples, batch);
}

void* fl_sparse_draws_create(const void* network, int32_t samples, const int32_t* formats,
                             int32_t side_by_side) {
  const std::vector<Layer>& layers = static_cast<const Network*>(network)->layers;
  Draws* draws = nullptr;
  try {
    draws = new Draws;
    draws->count = samples;
    draws->side_by_side = side_by_side != 0;
    draws->formats.resize(layers.size());
    for (size_t l = 0; l < layers.size(); ++l) draws->formats[l] = static_cast<Format>(formats[l]);
    if (side_by_side) {
      draws->layers.resize(layers.size());
      for (size_t l = 0; l < layers.size(); ++l) {
        draws->layers[l].values.resize(layers[l].values.size() * samples);
        draws->layers[l].bias.resize(layers[l].bias.size() * samples);
      }
    } else {
      draws->samples.assign(samples, std::vector<SampledLayer>(layers.size()));
    }
    return draws;
  } catch (const std::bad_alloc&) {
    delete draws;
    return nullptr;
  }
}

void fl_sparse_draws_destroy(void* draws) { delete static_cast<Draws*>(draws); }

int32_t fl_sparse_draws_fill(const void* network, void* draws, int32_t layer, const FlLayer* posterior,
                             uint64_t seed, int32_t threads, const float* biases) {
  return guarded([&] {
    Draws& d = *static_cast<Draws*>(draws);
    fill(*static_cast<const Network*>(network), &d, layer, posterior_of(*posterior), seed, threads);
    const int64_t rows = posterior->rows;
    for (int64_t s = 0; s < d.count && biases; ++s, biases += rows) {
      if (!d.side_by_side) {
        d.samples[s][layer].bias.assign(biases, biases + rows);
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) d.layers[layer].bias[r * d.count + s] = biases[r];
    }
  });
}
