#include "packed.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace fastlbbnn {
namespace sparse {

namespace {

constexpr float kNoFloor = -std::numeric_limits<float>::infinity();

// Weights of a row in a panel, on average: with fewer, loading and storing its sums costs more than the
// cache misses that panels avoid. Measured on 784-400-600-10 at 1-50 %.
constexpr double kWeightsPerPanel = 9.0;

// Columns of a panel: a multiple of 16, for whole squares of inputs (tiles.h).
int64_t panel_width(const Rows& m, const Packing& how) {
  const double density = static_cast<double>(m.offsets[m.rows]) /
                         std::max(1.0, static_cast<double>(m.rows) * static_cast<double>(m.cols));
  const int64_t most = (65536 / (how.unit * static_cast<int64_t>(sizeof(float)))) / 16 * 16;
  const double wanted = std::max(static_cast<double>(how.panel_cols),
                                 kWeightsPerPanel / std::max(density, 1e-6));
  const int64_t limit = std::min<int64_t>(most, static_cast<int64_t>(std::min(wanted, 65536.0)));
  const int64_t count = std::max<int64_t>(1, (m.cols + limit - 1) / limit);
  return std::max<int64_t>(16, ((m.cols + count - 1) / count + 15) / 16 * 16);
}

// Rows of at least this many weights are padded to multiples of four where there are two sums: of long
// rows few have the same count, and loops over groups of equal ones end too often.
constexpr int64_t kPadded = 24;

int64_t padded(int64_t weights, const Packing& how) {
  return how.sums == 2 && weights >= kPadded ? (weights + 3) / 4 * 4 : weights;
}

}  // namespace

PackedRows pack_rows(const Rows& m, const float* values, bool relu, const Packing& how) {
  PackedRows out;
  out.relu = relu;
  out.sums = how.sums;
  const int64_t nnz = m.offsets[m.rows], width = panel_width(m, how);
  const int64_t count = std::max<int64_t>(1, (m.cols + width - 1) / width);
  out.offsets.reserve(nnz);
  out.values.reserve(nnz);
  if (how.sums == 1) out.source.reserve(nnz);

  // Where each row's part of the current panel starts, and where it ends.
  std::vector<int64_t> begin(m.offsets, m.offsets + m.rows), end(m.rows), order(m.rows);
  for (int64_t p = 0; p < count; ++p) {
    const int64_t first_col = p * width, cols = std::min(width, m.cols - first_col);
    for (int64_t r = 0; r < m.rows; ++r) {
      end[r] = begin[r];
      while (end[r] < m.offsets[r + 1] && m.columns[end[r]] < first_col + cols) ++end[r];
    }
    const auto length = [&](int64_t r) { return padded(end[r] - begin[r], how); };
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return length(a) < length(b); });
    Panel panel{first_col, cols, static_cast<int64_t>(out.rows.size()),
                static_cast<int64_t>(out.values.size()), static_cast<int32_t>(out.runs.size()), 0};
    for (const int64_t r : order) {
      const int64_t weights = length(r), halves = weights - (end[r] - begin[r]);
      if (weights == 0 && p > 0 && p + 1 < count) continue;
      const bool fresh = static_cast<int32_t>(out.runs.size()) == panel.first_run;
      if (fresh || out.runs.back().count != weights) {
        out.runs.push_back({static_cast<int32_t>(weights), 0});
      }
      ++out.runs.back().rows;
      out.rows.push_back(static_cast<int32_t>(r));
      for (int64_t i = begin[r]; i < end[r]; ++i) {
        const bool twice = i >= end[r] - halves;
        for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
          out.offsets.push_back(static_cast<uint16_t>((m.columns[i] - first_col) * how.unit *
                                                      static_cast<int64_t>(sizeof(float))));
          out.values.push_back(twice ? 0.5f * values[i] : values[i]);
          if (how.sums == 1) out.source.push_back(static_cast<int32_t>(i));
        }
      }
    }
    panel.end_run = static_cast<int32_t>(out.runs.size());
    out.panels.push_back(panel);
    begin = end;
  }
  return out;
}

Slices pack_slices(const Rows& m, const float* values, const float* bias, bool relu, int width,
                   const int32_t* place) {
  Slices out;
  out.width = width;
  out.relu = relu;
  out.places.resize(m.rows);
  std::vector<int64_t> order(m.rows);
  const auto length = [&](int64_t r) { return m.offsets[r + 1] - m.offsets[r]; };
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return length(a) < length(b); });
  std::vector<int32_t> columns;
  int32_t largest = 0;
  for (int64_t i = 0; i < m.rows;) {
    int64_t end = std::min<int64_t>(m.rows, i + width);
    // Rows without weights have none that could stand in for the others'.
    while (length(order[i]) == 0 && length(order[end - 1]) > 0) --end;
    const int64_t count = length(order[end - 1]);
    const size_t first = out.values.size();
    out.values.resize(first + count * width);
    columns.resize(first + count * width);
    for (int lane = 0; lane < width; ++lane) {
      const bool used = i + lane < end;
      const int64_t r = used ? order[i + lane] : -1;
      if (used) out.places[r] = static_cast<int32_t>(out.bias.size());
      out.bias.push_back(used ? bias[r] : 0.0f);
      if (!used) continue;
      // A row with fewer weights takes its last one in parts, which powers of two do not round: a weight of
      // zero would make a NaN of an infinite input.
      float rest = 0.0f;
      for (int64_t k = 0; k < count; ++k) {
        const int64_t last = m.offsets[r + 1] - 1, at = std::min(m.offsets[r] + k, last);
        const int64_t column = m.columns[at];
        if (m.offsets[r] + k <= last) rest = values[at];
        const bool in_parts = m.offsets[r] + k >= last && k + 1 < count;
        if (in_parts) rest *= 0.5f;
        out.values[first + k * width + lane] = rest;
        columns[first + k * width + lane] = place ? place[column] : static_cast<int32_t>(column);
        largest = std::max(largest, columns[first + k * width + lane]);
      }
    }
    out.counts.push_back(static_cast<int32_t>(count));
    i = end;
  }
  out.column_bytes = largest < 1 << 16 ? 2 : 4;
  out.columns.resize(columns.size() * out.column_bytes);
  for (size_t i = 0; i < columns.size(); ++i) {
    const uint16_t narrow = static_cast<uint16_t>(columns[i]);
    std::memcpy(out.columns.data() + i * out.column_bytes,
                out.column_bytes == 2 ? static_cast<const void*>(&narrow) : &columns[i],
                out.column_bytes);
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
