// A selected network, packed, and how a batch goes through it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"
#include "packed.h"

namespace fastlbbnn {
namespace sparse {

enum class Format : int32_t { kRows = 0, kBlocks = 1 };

// Owns copies of what it is given.
struct Layer {
  bool relu, has_blocks;
  std::vector<float> bias;
  // As given: for single observations.
  std::vector<int64_t> offsets;
  std::vector<char> columns;
  std::vector<float> values;
  std::vector<int32_t> block_offsets;
  std::vector<char> block_columns;
  std::vector<float> block_values;
  Rows rows;
  Blocks blocks;
  // For tiles: of one vector, whose activations fill little of the cache, in wider panels.
  PackedRows packed_rows, packed_wide;
  PackedBlocks packed_blocks;
};

struct Network {
  std::vector<Layer> layers;
  std::vector<int32_t> inputs;      // of the trained network's features, those that are used
  std::vector<int32_t> identity;    // 0, 1, ... for calls that start at a later layer
};

// Sampled weights and biases, in the order of the formats' values.
struct SampledLayer {
  std::vector<float> values, bias;
};
struct Draws {
  std::vector<Format> formats;
  std::vector<std::vector<SampledLayer>> samples;   // [sample][layer]
};

// Layers [first, last) of a batch x [batch, stride] by rows; y: [batch, outputs], and with `draws`
// [samples, batch, outputs].
struct Pass {
  const float* x;
  int64_t stride, batch;
  const Format* formats;   // a layer of the network each
  int32_t first, last, threads;
  float* y;
};

void run(const Network& net, const Pass& pass);
void run(const Network& net, const Draws& draws, const Pass& pass);

}  // namespace sparse
}  // namespace fastlbbnn
