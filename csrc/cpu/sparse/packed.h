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

// A row's weights within a panel.
struct RowPart {
  int32_t row, count;
  float floor;   // what the sum is raised to: 0 for a ReLU at the row's last part, else -infinity
};

// Columns [first_col, ...) of W. The activations of a panel stay in the first-level cache while all
// rows go over them, so that it is read from there and not from the second level.
struct Panel {
  int64_t first_col, first_part, end_part, weights;
};

// Rows of a panel are in the order of their number of weights: the loop over a row's weights then
// ends where the processor's branch predictor expects it to.
struct PackedRows {
  std::vector<Panel> panels;
  std::vector<RowPart> parts;
  std::vector<uint16_t> columns;   // from the panel's first
  std::vector<float> values;       // the means
  std::vector<int32_t> source;     // where each value is in W by rows
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

PackedRows pack_rows(const Rows& matrix, const float* values, bool relu, int64_t panel_cols);
PackedBlocks pack_blocks(const Blocks& matrix, const Rows& by_rows, bool relu, int group_rows);

}  // namespace sparse
}  // namespace fastlbbnn
