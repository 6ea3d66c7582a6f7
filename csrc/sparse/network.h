// A selected network, packed, and how a batch goes through it.
#pragma once

#include <cstdint>
#include <mutex>
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
  // As given.
  std::vector<int64_t> offsets;
  std::vector<char> columns;
  std::vector<float> values;
  std::vector<int32_t> block_offsets;
  std::vector<char> block_columns;
  std::vector<float> block_values;
  Rows rows;
  Blocks blocks;
  PackedBlocks packed_blocks;

  // By rows for tiles of this many vectors, packed when they are first asked for.
  const PackedRows& packed_rows(int64_t vectors) const;

  // For a single observation, packed when they are first asked for. `place`: where x has each column, the same
  // in all calls but for null: at its index.
  const Slices& slices(const std::vector<int32_t>* place) const;

  // What the values of a format are drawn from, in their order, made of `by_rows` when first asked for. Side by
  // side they are by rows.
  const Places& drawn_from(Format format, bool side_by_side, const Posterior& by_rows) const;

 private:
  struct Lazy {
    std::once_flag once;
    PackedRows rows;
  };
  mutable Lazy packed_[3];
  struct LazySlices {
    std::once_flag once;
    Slices slices;
  };
  mutable LazySlices slices_[2];
  struct LazyPlaces {
    std::once_flag once;
    Places places;
  };
  mutable LazyPlaces drawn_from_[3];
};

struct Network {
  explicit Network(int32_t layers) : layers(layers) {}
  std::vector<Layer> layers;
  std::vector<int32_t> inputs;      // of the trained network's features, those that are used
  std::vector<int32_t> identity;    // 0, 1, ... for calls that start at a later layer
};

struct SampledLayer {
  std::vector<float> values, bias;
};

// Of weights by rows, and of biases.
Places weight_places(const Posterior& q);
Places bias_places(const Posterior& q);

// Sampled weights and biases: either sample by sample, in the order of the formats' values, or (for few
// observations) side by side, [weight][sample] in the order of W by rows.
struct Draws {
  int64_t count;
  bool side_by_side;
  std::vector<Format> formats;
  std::vector<std::vector<SampledLayer>> samples;   // [sample][layer]
  std::vector<SampledLayer> layers;
};

// Draws all samples of layer l.
void fill(const Network& net, Draws* draws, int32_t l, const Posterior& q, uint64_t seed, int threads);

// Whether samples side by side are fewer vectors than observations side by side.
bool better_side_by_side(int64_t samples, int64_t batch);

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
