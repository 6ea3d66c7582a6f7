// W by rows times a tile of activations.
#pragma once

#include <cstdint>
#include <cstring>

#include "../common/inline.h"
#include "packed.h"

namespace fastlbbnn {
namespace FASTLBBNN_ARCH {

// Where a panel's weights are read.
struct PanelCursor {
  const int32_t* row;
  const uint16_t* offset;
  const float* value;
};

// sum[t] += weight x[column] for the T vectors of a tile. `offset`: see PackedRows.
template <class V, int T>
FL_INLINE void add_weight(typename V::F* sum, uint64_t offset, typename V::F weight,
                          const float* x) {
  constexpr int kScale = T * V::kLanes / sparse::offset_unit(V::kLanes);
  const char* from = reinterpret_cast<const char*>(x) + offset * kScale;
  // One register for the address: with base and index apart, each of the T loads takes two slots of
  // the processor's front end (measured: a tenth of the time).
#if defined(__x86_64__)
  asm("" : "+r"(from));
#endif
  const float* a = reinterpret_cast<const float*>(from);
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) sum[t] = V::fma(weight, V::load(a + t * V::kLanes), sum[t]);
}

// Four weights of a row into S sets of T sums, in turn. Loads are the bottleneck: where it pays, the
// four values come in one and are spread in registers, and so do the four offsets.
template <class V, class L, int T, int S>
FL_INLINE void add_four(typename V::F (*sum)[T], const uint16_t* offset, const float* value,
                        const float* x) {
  uint64_t c[4];
  if (L::kOffsetsByFour) {
    uint64_t all;
    std::memcpy(&all, offset, sizeof(all));
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) c[j] = all >> 16 * j & 0xffff;
  } else {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) c[j] = offset[j];
  }
  if (L::spreads(T)) {
    const typename V::F four = L::repeat_four(value);
    add_weight<V, T>(sum[0], c[0], L::template spread<0>(four), x);
    add_weight<V, T>(sum[1 % S], c[1], L::template spread<1>(four), x);
    add_weight<V, T>(sum[2 % S], c[2], L::template spread<2>(four), x);
    add_weight<V, T>(sum[3 % S], c[3], L::template spread<3>(four), x);
  } else {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) add_weight<V, T>(sum[j % S], c[j], V::set1(value[j]), x);
  }
}

// `rows` rows (a multiple of G) with `count` weights each, G at a time so that enough sums are under way.
// The order of additions is the same for every T and G, so a result does not depend on the tile that an
// observation is in.
template <class V, class L, int T, int S, int G, bool kFirst, bool kRelu>
__attribute__((noinline)) void equal_rows(int64_t count, int64_t rows, PanelCursor* at,
                                          const float* bias, const float* x, float* y) {
  using F = typename V::F;
  constexpr int64_t width = T * V::kLanes;
  PanelCursor p = *at;
  for (const int32_t* end = p.row + rows; p.row != end; p.row += G) {
    F sum[G][S][T];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const int64_t row = p.row[g];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        sum[g][0][t] = kFirst ? V::set1(bias[row]) : V::load(y + row * width + t * V::kLanes);
        if (S > 1) sum[g][S - 1][t] = V::set1(0.0f);
      }
    }
    int64_t k = 0;
    for (; k + 4 <= count; k += 4, p.offset += 4, p.value += 4) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        add_four<V, L, T, S>(sum[g], p.offset + g * count, p.value + g * count, x);
      }
    }
    for (; k < count; ++k, ++p.offset, ++p.value) {
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        add_weight<V, T>(sum[g][0], p.offset[g * count], V::set1(p.value[g * count]), x);
      }
    }
    p.offset += (G - 1) * count;
    p.value += (G - 1) * count;
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      float* out = y + p.row[g] * width;
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        F a = S > 1 ? V::add(sum[g][0][t], sum[g][S - 1][t]) : sum[g][0][t];
        // Zero comes first: a NaN then stays one, as it does in torch's relu.
        if (kRelu) a = V::max(V::set1(0.0f), a);
        V::store(out + t * V::kLanes, a);
      }
    }
  }
  *at = p;
}

// Short rows one at a time: the processor has several of them under way anyway.
constexpr int kShort = 16;

template <class V, class L, int T, int S, bool kFirst, bool kRelu>
void panel_runs(const sparse::PackedRows& m, const sparse::Panel& panel, PanelCursor at,
                const float* bias, const float* x, float* y) {
  constexpr int G = T == 2 ? 4 : 2;
  for (int32_t i = panel.first_run; i < panel.end_run; ++i) {
    const sparse::Run& run = m.runs[i];
    const int64_t grouped = run.count < kShort ? 0 : run.rows / G * G;
    if (grouped) equal_rows<V, L, T, S, G, kFirst, kRelu>(run.count, grouped, &at, bias, x, y);
    if (grouped < run.rows) {
      equal_rows<V, L, T, S, 1, kFirst, kRelu>(run.count, run.rows - grouped, &at, bias, x, y);
    }
  }
}

template <class V, class L, int T, int S>
void one_panel(const sparse::PackedRows& m, size_t i, const float* values, const float* bias,
               const float* x, float* y) {
  const sparse::Panel& panel = m.panels[i];
  const PanelCursor at{m.rows.data() + panel.first_row, m.offsets.data() + panel.first_weight,
                       values + panel.first_weight};
  const bool relu = m.relu && i + 1 == m.panels.size();
  if (i == 0) {
    relu ? panel_runs<V, L, T, S, true, true>(m, panel, at, bias, x, y)
         : panel_runs<V, L, T, S, true, false>(m, panel, at, bias, x, y);
  } else {
    relu ? panel_runs<V, L, T, S, false, true>(m, panel, at, bias, x, y)
         : panel_runs<V, L, T, S, false, false>(m, panel, at, bias, x, y);
  }
}

template <class V, class L>
void spmm_panel(const sparse::PackedRows& m, size_t panel, const float* values, const float* bias,
                const float* x, float* y, int vectors) {
  switch (vectors) {
    case 1:
      return m.sums == 2 ? one_panel<V, L, 1, 2>(m, panel, values, bias, x, y)
                         : one_panel<V, L, 1, 1>(m, panel, values, bias, x, y);
    case 2: return one_panel<V, L, 2, 1>(m, panel, values, bias, x, y);
    case 3: return one_panel<V, L, 3, 1>(m, panel, values, bias, x, y);
    default: return one_panel<V, L, 4, 1>(m, panel, values, bias, x, y);
  }
}

}  // namespace FASTLBBNN_ARCH
}  // namespace fastlbbnn
