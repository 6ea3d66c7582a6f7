// Weights in the order in which the kernels read them.
#pragma once

#include <cstdint>
#include <vector>

namespace fastlbbnn {
namespace sparse {

// Column indices as they come, of 16 or 32 bits.
struct Columns {
  const void* data;
  int bytes;   // 2 or 4
  int64_t operator[](int64_t i) const {
    return bytes == 2 ? static_cast<int64_t>(static_cast<const uint16_t*>(data)[i])
                      : static_cast<int64_t>(static_cast<const int32_t*>(data)[i]);
  }
};

// W by rows: what formats.SparseLayer holds.
struct Rows {
  int64_t rows, cols;
  const int64_t* offsets;   // [rows + 1]
  Columns columns;
};

// W by blocks: what formats.BlockArrays holds.
struct Blocks {
  int64_t rows, cols, bn, bk;
  const int32_t* offsets;   // [block rows + 1]
  Columns columns;
  const float* values;      // [nblocks][bn][bk]
  int64_t block_rows() const { return (rows + bn - 1) / bn; }
};

// Means, scales and places of a layer's weights.
struct Posterior {
  Rows matrix;
  const float *mean, *scale, *bias_mean, *bias_scale;
  const int32_t* row_index;      // [rows], in the trained network
  const int32_t* col_index;      // [cols], likewise
};

// Weights are drawn so many at a time, at most; Places has room for that after the last one.
constexpr int64_t kDrawnTogether = 32;

// What numbers are drawn from, in whatever order they are wanted: their means and scales, and the rows and columns
// that they have in the trained network.
struct Places {
  std::vector<uint32_t> rows, columns;
  std::vector<float> mean, scale;
  int64_t size() const { return static_cast<int64_t>(mean.size()) - kDrawnTogether; }
  explicit Places(int64_t count = 0)
      : rows(count + kDrawnTogether), columns(count + kDrawnTogether), mean(count + kDrawnTogether),
        scale(count + kDrawnTogether) {}
};

// Rows with the same number of weights in a panel, one after the other.
struct Run {
  int32_t count, rows;
};

// Columns [first_col, first_col + cols) of W. The activations of a panel stay in the first-level cache
// while all rows go over them, so that it is read from there and not from the second level.
struct Panel {
  int64_t first_col, cols, first_row, first_weight;
  int32_t first_run, end_run;
};

// Floats between two columns, in the unit of PackedRows::offsets: a multiplication by the ratio of a
// tile's width to it (1, 2, 4 or 8) is part of an x86 address.
constexpr int offset_unit(int lanes) { return lanes < 8 ? lanes : 8; }

// How rows are packed.
struct Packing {
  int64_t panel_cols;   // of W; more where a row would have too few weights in a panel
  int unit;             // offset_unit
  int sums;             // 2: long rows have a multiple of four weights, some of them in two halves
};

// Rows of a panel are in the order of their number of weights, so that loops end where the processor's
// branch predictor expects them to. The first panel has all rows, and so has the last one.
struct PackedRows {
  bool relu;
  int sums;                        // that the weights of a row go into, in turn
  std::vector<Panel> panels;
  std::vector<Run> runs;
  std::vector<int32_t> rows;       // of the runs
  std::vector<uint16_t> offsets;   // of columns from the panel's first, times unit * sizeof(float)
  std::vector<float> values;       // the means
  std::vector<int32_t> source;     // where each value is in W by rows (with one sum)
};

// W by rows for a single observation: rows with about the same number of weights are the lanes of a slice, so
// that no sum has to be taken across a vector. What a slice computes is kept in the order of its lanes; the
// columns of the next layer say where.
struct Slices {
  int width;                       // lanes
  bool relu;
  std::vector<int32_t> counts;     // weights of each row, by slice
  std::vector<int32_t> places;     // [rows], the lane of each, counted through all slices
  std::vector<float> bias;         // [slices][width]
  std::vector<float> values;       // [slices][count][width]
  std::vector<char> columns;       // likewise
  int column_bytes;                // 2 or 4
};

// Rows of a block row that are computed together.
struct RowGroup {
  int64_t first_row;
  int32_t rows;                 // 4, 2 or 1
  int32_t block_row;
  int64_t first_value;          // of values[block][k][row of the group]
};

struct PackedBlocks {
  int64_t cols, bk;
  float floor;
  std::vector<RowGroup> groups;
  std::vector<int32_t> offsets;        // [block rows + 1]
  std::vector<int32_t> block_columns;
  std::vector<float> values;           // the means
  std::vector<int32_t> source;         // where each value is in W by rows, -1: nowhere, it is 0
};

// A layer at up to kLanes sampled weights, and what it is applied to.
struct SampledRows {
  Rows matrix;
  const float *values, *bias;   // [weights][stride], [rows][stride]
  int64_t stride;
  int samples, observations;    // observations: 1, 2 or 4
  bool relu, shared;            // shared: x is the same for all samples
  const float* x;               // [observations][x_step], of [cols] where shared, else [cols][kLanes]
  float* y;                     // [observations][y_step], of [rows][kLanes]
  int64_t x_step, y_step;
};

PackedRows pack_rows(const Rows& matrix, const float* values, bool relu, const Packing& how);
// `place`: where x has each column of W; null: at its index.
Slices pack_slices(const Rows& matrix, const float* values, const float* bias, bool relu, int width,
                   const int32_t* place);
PackedBlocks pack_blocks(const Blocks& matrix, const Rows& by_rows, bool relu, int group_rows);

}  // namespace sparse
}  // namespace fastlbbnn
