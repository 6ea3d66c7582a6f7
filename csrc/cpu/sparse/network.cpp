#include "network.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "pool.h"

namespace fastlbbnn {
namespace sparse {
namespace {

// Memory that a thread keeps from call to call: fresh pages would cost more than small batches.
float* scratch(size_t floats) {
  struct Buffer {
    float* data = nullptr;
    size_t size = 0;
    ~Buffer() { std::free(data); }
  };
  static thread_local Buffer buffer;
  if (buffer.size < floats) {
    std::free(buffer.data);
    buffer.size = 0;
    const size_t bytes = (floats * sizeof(float) + 4095) / 4096 * 4096;
    buffer.data = static_cast<float*>(std::aligned_alloc(4096, bytes));
    if (!buffer.data) throw std::bad_alloc();
    buffer.size = floats;
  }
  return buffer.data;
}

int64_t widest(const Network& net, int32_t first, int32_t last) {
  int64_t n = 1;
  for (int32_t l = first; l < last; ++l) n = std::max(n, net.layers[l].rows.rows);
  return n;
}

const int32_t* index_of(const Network& net, int32_t first) {
  return first == 0 ? net.inputs.data() : net.identity.data();
}

void single(const Network& net, const Pass& pass) {
  const Kernels& k = kernels();
  const int64_t inputs = net.layers[pass.first].rows.cols, wide = widest(net, pass.first, pass.last);
  float* buffer = scratch(inputs + 2 * wide);
  const float* x = pass.x;
  if (inputs != pass.stride) {
    const int32_t* index = index_of(net, pass.first);
    for (int64_t j = 0; j < inputs; ++j) buffer[j] = pass.x[index[j]];
    x = buffer;
  }
  float* next[2] = {buffer + inputs, buffer + inputs + wide};
  for (int32_t l = pass.first; l < pass.last; ++l) {
    const Layer& layer = net.layers[l];
    float* y = l + 1 == pass.last ? pass.y : next[l % 2];
    if (pass.formats[l] == Format::kBlocks) {
      k.blocks_single(layer.blocks, layer.bias.data(), layer.relu, x, y);
    } else {
      k.rows_single(layer.rows, layer.values.data(), layer.bias.data(), layer.relu, x, y);
    }
    x = y;
  }
}

// How a batch is cut: `count` tiles of nearly the same number of vectors, and as many tiles as keep
// all threads busy.
struct Tiles {
  int64_t vectors, count, lanes, batch;
  Tiles(int64_t batch, int threads, int lanes) : lanes(lanes), batch(batch) {
    vectors = (batch + lanes - 1) / lanes;
    count = (vectors + kMaxVectors - 1) / kMaxVectors;
    count = std::min(vectors, (count + threads - 1) / threads * threads);
  }
  int64_t begin(int64_t i) const { return vectors * i / count; }
  int size(int64_t i) const { return static_cast<int>(begin(i + 1) - begin(i)); }
  int64_t first_row(int64_t i) const { return begin(i) * lanes; }
  int64_t rows(int64_t i) const {
    return std::min(batch, begin(i + 1) * lanes) - first_row(i);
  }
};

// Through all layers; returns where the last one's outputs are.
template <class Rows, class Values, class Bias>
const float* through_layers(const Network& net, const Kernels& k, const Pass& pass, const float* x,
                            float* const* next, int vectors, const Rows& rows,
                            const Values& values, const Bias& bias) {
  for (int32_t l = pass.first; l < pass.last; ++l) {
    const Layer& layer = net.layers[l];
    float* y = next[l % 2];
    if (pass.formats[l] == Format::kBlocks) {
      k.blocks(layer.packed_blocks, values(l), bias(l), x, y, vectors);
    } else {
      k.rows(rows(layer), values(l), bias(l), x, y, vectors);
    }
    x = y;
  }
  return x;
}

// The tile's inputs and room for two layers' outputs.
struct TileBuffers {
  float *x, *next[2];
  TileBuffers(int64_t inputs, int64_t wide, int64_t width) {
    x = scratch((inputs + 2 * wide) * width);
    next[0] = x + inputs * width;
    next[1] = next[0] + wide * width;
  }
};

}  // namespace

void run(const Network& net, const Pass& pass) {
  if (pass.batch == 1) return single(net, pass);
  const Kernels& k = kernels_for(pass.batch);
  const Tiles tiles(pass.batch, pass.threads, k.lanes);
  const int64_t inputs = net.layers[pass.first].rows.cols;
  const int64_t outputs = net.layers[pass.last - 1].rows.rows;
  const int64_t wide = widest(net, pass.first, pass.last);
  // By the batch and not by the tile: sums then do not depend on how the batch is cut.
  const auto rows_of = [&](const Layer& layer) -> const PackedRows& {
    return pass.batch <= k.lanes ? layer.packed_wide : layer.packed_rows;
  };
  parallel_for(tiles.count, pass.threads, [&](int64_t i) {
    const int vectors = tiles.size(i);
    const int64_t row = tiles.first_row(i), rows = tiles.rows(i);
    const TileBuffers buffers(inputs, wide, vectors * tiles.lanes);
    k.to_tile(pass.x + row * pass.stride, pass.stride, rows, index_of(net, pass.first), inputs,
              buffers.x, vectors);
    const float* y = through_layers(
        net, k, pass, buffers.x, buffers.next, vectors, rows_of,
        [&](int32_t l) {
          const Layer& layer = net.layers[l];
          return pass.formats[l] == Format::kBlocks ? layer.packed_blocks.values.data()
                                                    : rows_of(layer).values.data();
        },
        [&](int32_t l) { return net.layers[l].bias.data(); });
    k.from_tile(y, vectors, outputs, rows, pass.y + row * outputs, outputs);
  });
}

// The inputs of a tile are brought into place once for all samples of a task.
void run(const Network& net, const Draws& draws, const Pass& pass) {
  const Kernels& k = kernels_for(pass.batch);
  const Tiles tiles(pass.batch, pass.threads, k.lanes);
  const int64_t samples = static_cast<int64_t>(draws.samples.size());
  const int64_t parts = std::min(samples, std::max<int64_t>(1, pass.threads / tiles.count));
  const int64_t inputs = net.layers[pass.first].rows.cols;
  const int64_t outputs = net.layers[pass.last - 1].rows.rows;
  const int64_t wide = widest(net, pass.first, pass.last);
  parallel_for(tiles.count * parts, pass.threads, [&](int64_t task) {
    const int64_t i = task / parts, part = task % parts;
    const int vectors = tiles.size(i);
    const int64_t row = tiles.first_row(i), rows = tiles.rows(i);
    const TileBuffers buffers(inputs, wide, vectors * tiles.lanes);
    k.to_tile(pass.x + row * pass.stride, pass.stride, rows, index_of(net, pass.first), inputs,
              buffers.x, vectors);
    for (int64_t s = samples * part / parts; s < samples * (part + 1) / parts; ++s) {
      const std::vector<SampledLayer>& drawn = draws.samples[s];
      const float* y = through_layers(
          net, k, pass, buffers.x, buffers.next, vectors,
          [](const Layer& layer) -> const PackedRows& { return layer.packed_rows; },
          [&](int32_t l) { return drawn[l].values.data(); },
          [&](int32_t l) { return drawn[l].bias.data(); });
      k.from_tile(y, vectors, outputs, rows, pass.y + (s * pass.batch + row) * outputs, outputs);
    }
  });
}

}  // namespace sparse
}  // namespace fastlbbnn
