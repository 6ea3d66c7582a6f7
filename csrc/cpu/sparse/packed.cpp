#include "packed.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace fastlbbnn {
namespace sparse {

namespace {

constexpr float kNoFloor = -std::numeric_limits<float>::infinity();

}  // namespace

PackedRows pack_rows(const Rows& m, const float* values, bool relu, int64_t panel_cols) {
  PackedRows out;
  const int64_t count = std::max<int64_t>(1, (m.cols + panel_cols - 1) / panel_cols);
  const int64_t width = (m.cols + count - 1) / count;
  const int64_t nnz = m.offsets[m.rows];
  out.columns.reserve(nnz);
  out.values.reserve(nnz);
  out.source.reserve(nnz);

  // Where each row's part of the current panel starts, and the end of all parts so far.
  std::vector<int64_t> begin(m.offsets, m.offsets + m.rows), end(m.rows);
  std::vector<int64_t> order(m.rows);
  for (int64_t p = 0; p < count; ++p) {
    const int64_t limit = p + 1 == count ? m.cols : (p + 1) * width;
    for (int64_t r = 0; r < m.rows; ++r) {
      end[r] = begin[r];
      while (end[r] < m.offsets[r + 1] && m.columns[end[r]] < limit) ++end[r];
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return end[a] - begin[a] < end[b] - begin[b];
    });
    Panel panel{p * width, static_cast<int64_t>(out.parts.size()), 0,
                -static_cast<int64_t>(out.values.size())};
    for (const int64_t r : order) {
      // The first panel starts every row with its bias, so it has all of them.
      if (p > 0 && begin[r] == end[r]) continue;
      const bool last = end[r] == m.offsets[r + 1];
      out.parts.push_back({static_cast<int32_t>(r), static_cast<int32_t>(end[r] - begin[r]),
                           relu && last ? 0.0f : kNoFloor});
      for (int64_t i = begin[r]; i < end[r]; ++i) {
        out.columns.push_back(static_cast<uint16_t>(m.columns[i] - panel.first_col));
        out.values.push_back(values[i]);
        out.source.push_back(static_cast<int32_t>(i));
      }
    }
    panel.end_part = static_cast<int64_t>(out.parts.size());
    panel.weights += static_cast<int64_t>(out.values.size());
    out.panels.push_back(panel);
    begin = end;
  }
  return out;
}

PackedBlocks pack_blocks(const Blocks& m, const Rows& by_rows, bool relu, int group_rows) {
  PackedBlocks out;
  out.cols = m.cols;
  out.bk = m.bk;
  out.floor = relu ? 0.0f : kNoFloor;
  out.offsets.assign(m.offsets, m.offsets + m.block_rows() + 1);
  const int64_t nblocks = m.offsets[m.block_rows()];
  out.block_columns.resize(nblocks);
  for (int64_t i = 0; i < nblocks; ++i) out.block_columns[i] = static_cast<int32_t>(m.columns[i]);

  for (int64_t i = 0; i < m.block_rows(); ++i) {
    const int64_t end_row = std::min(m.rows, (i + 1) * m.bn);
    for (int64_t row = i * m.bn; row < end_row;) {
      int rows = group_rows;
      while (row + rows > end_row) rows /= 2;
      out.groups.push_back({row, rows, static_cast<int32_t>(i),
                            static_cast<int64_t>(out.values.size())});
      for (int64_t b = m.offsets[i]; b < m.offsets[i + 1]; ++b) {
        const int64_t first_col = m.columns[b] * m.bk;
        for (int64_t k = 0; k < m.bk; ++k) {
          for (int r = 0; r < rows; ++r) {
            const int64_t in_block = row + r - i * m.bn;
            out.values.push_back(m.values[(b * m.bn + in_block) * m.bk + k]);
            // Block b is the (b - offsets[i])-th of its row, and rows keep their columns in order.
            const int64_t before = (b - m.offsets[i]) * m.bk;
            out.source.push_back(first_col + k < m.cols ? static_cast<int32_t>(
                by_rows.offsets[row + r] + before + k) : -1);
          }
        }
      }
      row += rows;
    }
  }
  return out;
}

}  // namespace sparse
}  // namespace fastlbbnn
