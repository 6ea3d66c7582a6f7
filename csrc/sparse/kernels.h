// Kernels of selected networks as plain C++, one table for each instruction set.
//
// A batch is cut into tiles of a few vectors. Inside a tile activations lie feature by feature,
// [features][vectors * lanes], so that the batch is the vector dimension: a kept weight costs one
// broadcast and one fused multiply-add a vector, whatever column it is in. A tile goes through all
// layers before the next one starts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../common/philox.h"
#include "packed.h"

namespace fastlbbnn {
namespace sparse {

// The most vectors in a tile: with two accumulators each they fit the sixteen registers of AVX2.
constexpr int kMaxVectors = 4;

struct Kernels {
  const char* name;
  int lanes;
  int block_rows;   // rows of a block that are computed together

  // y (+)= W x for one panel of columns and one tile of `vectors` vectors; x: [panel's columns]
  // [vectors * lanes]. The first panel starts with the bias, the last one applies the ReLU.
  void (*panel)(const PackedRows&, size_t panel, const float* values, const float* bias,
                const float* x, float* y, int vectors);
  // y = floor(W x + bias) for one tile; x: [cols][vectors * lanes].
  void (*blocks)(const PackedBlocks&, const float* values, const float* bias, const float* x,
                 float* y, int vectors);
  // The same for a single observation; x: [cols], y: [rows], of slices in the order of their lanes.
  void (*slices_single)(const Slices&, const float* x, float* y);
  void (*blocks_single)(const Blocks&, const float* bias, bool relu, const float* x, float* y);
  // The same for a few observations and sampled weights, side by side.
  void (*rows_sampled)(const SampledRows&);

  // Between observations by rows [batch, stride] and a tile: `features` of them, those in `index`.
  // Columns of the tile past `batch` are zero.
  void (*to_tile)(const float* x, int64_t stride, int64_t batch, const int32_t* index,
                  int64_t features, float* tile, int vectors);
  void (*from_tile)(const float* tile, int vectors, int64_t features, int64_t batch, float* y,
                    int64_t stride);

  // values[i - begin] = mean[i] + scale[i] eps for i in [begin, end), begin a multiple of kDrawnTogether; eps is that of
  // the number's place in the trained network.
  void (*draw)(const Places&, Stream stream, uint64_t seed, uint32_t sample, int64_t begin, int64_t end,
               float* values);
};

const Kernels& kernels();

// Those for a batch: where eight lanes hold it all, sixteen would be half empty, and narrow loads go
// three at a time where wide ones go two; and slices of eight rows have fewer weights in parts than slices of
// sixteen. Packed weights serve every table.
const Kernels& kernels_for(int64_t batch);

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2;
extern const Kernels kAvx512;
#endif

}  // namespace sparse
}  // namespace fastlbbnn
