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

// Layers by rows follow each other in the order of their slices; others take and give units as they are.
void single(const Network& net, const Pass& pass) {
  const Kernels& k = kernels_for(1);
  // Slices begin anew where rows without weights end.
  const int64_t inputs = net.layers[pass.first].rows.cols;
  const int64_t wide = widest(net, pass.first, pass.last) + 2 * k.lanes;
  float* buffer = scratch(inputs + 2 * wide);
  float* next[2] = {buffer + inputs, buffer + inputs + wide};
  const auto by_rows = [&](int32_t l) { return pass.formats[l] == Format::kRows; };
  const float* x = pass.x;
  if (!by_rows(pass.first) && inputs != pass.stride) {
    const int32_t* index = index_of(net, pass.first);
    for (int64_t j = 0; j < inputs; ++j) buffer[j] = pass.x[index[j]];
    x = buffer;
  }
  int turn = 0;
  const std::vector<int32_t>* place = pass.first == 0 ? &net.inputs : nullptr;
  for (int32_t l = pass.first; l < pass.last; ++l) {
    const Layer& layer = net.layers[l];
    const bool last = l + 1 == pass.last;
    float* y = last ? pass.y : next[turn];
    if (!by_rows(l)) {
      kernels().blocks_single(layer.blocks, layer.bias.data(), layer.relu, x, y);
      place = nullptr;
    } else {
      const Slices& m = layer.slices(place);
      float* sums = next[turn];
      k.slices_single(m, x, sums);
      place = &m.places;
      if (last || !by_rows(l + 1)) {
        turn ^= 1;
        if (!last) y = next[turn];
        for (size_t i = 0; i < place->size(); ++i) y[i] = sums[(*place)[i]];
        place = nullptr;
      }
    }
    x = y;
    turn ^= 1;
  }
}

// Multiplications that are worth more than one thread: some 50 us of one. Threads that are borrowed wait
// busily after a call, which a neighbour that wants the processor pays for, and so do we for his.
constexpr int64_t kWorthThreads = int64_t{1} << 21;

// Numbers whose noise is worth more than one thread.
constexpr int64_t kWorthDrawing = 1 << 15;

int useful_threads(const Network& net, const Pass& pass, int64_t samples) {
  int64_t work = net.layers[pass.first].rows.cols;
  for (int32_t l = pass.first; l < pass.last; ++l) {
    work += static_cast<int64_t>(net.layers[l].values.size());
  }
  const int64_t times = std::max<int64_t>(1, pass.batch * samples);
  return work < kWorthThreads / times ? 1 : pass.threads;
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

// A tile of observations on its way through the layers. `Weights` says what they are:
// rows(layer), values(layer), bias(layer).
template <class Weights>
class Tile {
 public:
  // `width`: floats of a feature.
  Tile(const Network& net, const Kernels& k, const Pass& pass, const Weights& weights, int vectors)
      : net_(net), k_(k), pass_(pass), weights_(weights), vectors_(vectors),
        width_(static_cast<int64_t>(vectors) * k.lanes) {
    const int64_t inputs = net.layers[pass.first].rows.cols;
    const int64_t wide = widest(net, pass.first, pass.last);
    inputs_ = scratch((inputs + 2 * wide) * width_);
    next_[0] = inputs_ + inputs * width_;
    next_[1] = next_[0] + wide * width_;
  }

  // Observations [row, row + rows) into place.
  void read(int64_t row, int64_t rows) { read(row, rows, 0, net_.layers[pass_.first].rows.cols); }

  // The first layer by rows, straight from the observations: a panel's inputs are brought to the front
  // of the buffer, which stays in the first-level cache, just before they are used.
  void read_through_first(int64_t row, int64_t rows) {
    const int32_t l = pass_.first;
    const PackedRows& m = weights_.rows(l);
    for (size_t p = 0; p < m.panels.size(); ++p) {
      read(row, rows, m.panels[p].first_col, m.panels[p].cols);
      k_.panel(m, p, weights_.values(l), weights_.bias(l), inputs_, next_[l % 2], vectors_);
    }
  }

  // Layers [first, last) and out of place, to y [rows, outputs].
  void finish(int32_t first, int64_t rows, float* y) {
    const float* x = first == pass_.first ? inputs_ : next_[(first - 1) % 2];
    for (int32_t l = first; l < pass_.last; ++l) {
      float* out = next_[l % 2];
      if (pass_.formats[l] == Format::kBlocks) {
        k_.blocks(net_.layers[l].packed_blocks, weights_.values(l), weights_.bias(l), x, out, vectors_);
      } else {
        const PackedRows& m = weights_.rows(l);
        for (size_t p = 0; p < m.panels.size(); ++p) {
          k_.panel(m, p, weights_.values(l), weights_.bias(l), x + m.panels[p].first_col * width_, out,
                   vectors_);
        }
      }
      x = out;
    }
    const int64_t outputs = net_.layers[pass_.last - 1].rows.rows;
    k_.from_tile(x, vectors_, outputs, rows, y, outputs);
  }

 private:
  void read(int64_t row, int64_t rows, int64_t first, int64_t count) {
    k_.to_tile(pass_.x + row * pass_.stride, pass_.stride, rows, index_of(net_, pass_.first) + first,
               count, inputs_, vectors_);
  }

  const Network& net_;
  const Kernels& k_;
  const Pass& pass_;
  const Weights& weights_;
  const int vectors_;
  const int64_t width_;
  float *inputs_, *next_[2];
};

// Samples [first, first + samples) of observations [row, row + observations).
struct SampledTask {
  int64_t row, first;
  int observations, samples;
};

void run_sampled(const Network& net, const Draws& draws, const Pass& pass, const SampledTask& task) {
  const Kernels& k = kernels();
  const int64_t inputs = net.layers[pass.first].rows.cols;
  const int64_t step = widest(net, pass.first, pass.last) * k.lanes;
  float* buffer = scratch(task.observations * (inputs + 2 * step));
  float* next[2] = {buffer + task.observations * inputs,
                    buffer + task.observations * (inputs + step)};
  const int32_t* index = index_of(net, pass.first);
  for (int b = 0; b < task.observations; ++b) {
    const float* from = pass.x + (task.row + b) * pass.stride;
    for (int64_t j = 0; j < inputs; ++j) buffer[b * inputs + j] = from[index[j]];
  }
  const float* x = buffer;
  for (int32_t l = pass.first; l < pass.last; ++l) {
    const Layer& layer = net.layers[l];
    const SampledLayer& drawn = draws.layers[l];
    const bool shared = l == pass.first;
    k.rows_sampled({layer.rows, drawn.values.data() + task.first, drawn.bias.data() + task.first,
                    draws.count, task.samples, task.observations, layer.relu, shared, x, next[l % 2],
                    shared ? inputs : step, step});
    x = next[l % 2];
  }
  const int64_t outputs = net.layers[pass.last - 1].rows.rows;
  for (int s = 0; s < task.samples; ++s) {
    for (int b = 0; b < task.observations; ++b) {
      float* y = pass.y + ((task.first + s) * pass.batch + task.row + b) * outputs;
      for (int64_t r = 0; r < outputs; ++r) y[r] = x[b * step + r * k.lanes + s];
    }
  }
}

void run_side_by_side(const Network& net, const Draws& draws, const Pass& pass, int threads) {
  // Groups of observations of four, two or one, times groups of samples that fill the lanes; more of the
  // latter where threads would have nothing to do.
  std::vector<SampledTask> tasks;
  const int64_t groups = (pass.batch + 3) / 4, lanes = kernels().lanes;
  const int64_t wanted = (threads + groups - 1) / groups;
  const int64_t parts = std::min(draws.count, std::max((draws.count + lanes - 1) / lanes, wanted));
  for (int64_t row = 0; row < pass.batch;) {
    const int64_t left = pass.batch - row;
    const int observations = left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t first = draws.count * p / parts, end = draws.count * (p + 1) / parts;
      tasks.push_back({row, first, observations, static_cast<int>(end - first)});
    }
    row += observations;
  }
  parallel_for(static_cast<int64_t>(tasks.size()), threads,
               [&](int64_t i) { run_sampled(net, draws, pass, tasks[i]); });
}

struct Means {
  const Network& net;
  const Format* formats;
  int64_t vectors;
  const PackedRows& rows(int32_t l) const { return net.layers[l].packed_rows(vectors); }
  const float* values(int32_t l) const {
    return formats[l] == Format::kBlocks ? net.layers[l].packed_blocks.values.data()
                                         : rows(l).values.data();
  }
  const float* bias(int32_t l) const { return net.layers[l].bias.data(); }
};

struct Drawn {
  const Network& net;
  const std::vector<SampledLayer>* layers;
  const PackedRows& rows(int32_t l) const { return net.layers[l].packed_rows(kMaxVectors); }
  const float* values(int32_t l) const { return (*layers)[l].values.data(); }
  const float* bias(int32_t l) const { return (*layers)[l].bias.data(); }
};

}  // namespace

// The activations of a panel, of as many vectors as a tile has, fill most of a first-level cache of 48 KB.
// Measured on 784-400-600-10 at 8 %: at four vectors of 16 lanes, 160 columns beat 120 and 200, and beat no
// panels by a quarter.
const PackedRows& Layer::packed_rows(int64_t vectors) const {
  const int kind = vectors <= 1 ? 0 : vectors <= 2 ? 1 : 2;
  std::call_once(packed_[kind].once, [&] {
    const int lanes = kernels().lanes;
    const int64_t cols[] = {12800, 5120, 2560};
    packed_[kind].rows = pack_rows(rows, values.data(), relu,
                                   {cols[kind] / lanes, offset_unit(lanes), kind == 0 ? 2 : 1});
  });
  return packed_[kind].rows;
}

const Slices& Layer::slices(const std::vector<int32_t>* place) const {
  LazySlices& found = slices_[place ? 0 : 1];
  std::call_once(found.once, [&] {
    found.slices = pack_slices(rows, values.data(), bias.data(), relu, kernels_for(1).lanes,
                               place ? place->data() : nullptr);
  });
  return found.slices;
}

Places weight_places(const Posterior& q) {
  const Rows& m = q.matrix;
  Places out(m.offsets[m.rows]);
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t i = m.offsets[r]; i < m.offsets[r + 1]; ++i) {
      out.rows[i] = static_cast<uint32_t>(q.row_index[r]);
      out.columns[i] = static_cast<uint32_t>(q.col_index[m.columns[i]]);
      out.mean[i] = q.mean[i];
      out.scale[i] = q.scale[i];
    }
  }
  return out;
}

Places bias_places(const Posterior& q) {
  Places out(q.matrix.rows);
  for (int64_t r = 0; r < q.matrix.rows; ++r) {
    out.columns[r] = static_cast<uint32_t>(q.row_index[r]);
    out.mean[r] = q.bias_mean[r];
    out.scale[r] = q.bias_scale[r];
  }
  return out;
}

const Places& Layer::drawn_from(Format format, bool side_by_side, const Posterior& by_rows) const {
  const int kind = side_by_side ? 0 : format == Format::kBlocks ? 1 : 2;
  LazyPlaces& found = drawn_from_[kind];
  std::call_once(found.once, [&] {
    found.places = weight_places(by_rows);
    if (kind == 0) return;
    const std::vector<int32_t>& source = kind == 1 ? packed_blocks.source : packed_rows(kMaxVectors).source;
    Places ordered(static_cast<int64_t>(source.size()));
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] < 0) continue;
      ordered.rows[i] = found.places.rows[source[i]];
      ordered.columns[i] = found.places.columns[source[i]];
      ordered.mean[i] = found.places.mean[source[i]];
      ordered.scale[i] = found.places.scale[source[i]];
    }
    found.places = std::move(ordered);
  });
  return found.places;
}

void fill(const Network& net, Draws* draws, int32_t l, const Posterior& q, uint64_t seed, int threads) {
  const int64_t samples = draws->count;
  const Layer& layer = net.layers[l];
  // Numbers whose places stay in the first-level cache for all samples.
  constexpr int64_t kPart = 16 * kDrawnTogether;
  const auto draw = [&](const Places& from, Stream stream, std::vector<float> SampledLayer::*which) {
    const int64_t count = from.size(), parts = (count + kPart - 1) / kPart;
    for (int64_t s = 0; s < samples && !draws->side_by_side; ++s) {
      (draws->samples[s][l].*which).resize(count);
    }
    parallel_for(parts, count * samples < kWorthDrawing ? 1 : threads, [&](int64_t part) {
      const int64_t begin = part * kPart, end = std::min(count, begin + kPart);
      for (int64_t s = 0; s < samples; ++s) {
        const uint32_t sample = static_cast<uint32_t>(s);
        if (!draws->side_by_side) {
          float* to = (draws->samples[s][l].*which).data() + begin;
          kernels().draw(from, stream, seed, sample, begin, end, to);
          continue;
        }
        float drawn[kPart];
        kernels().draw(from, stream, seed, sample, begin, end, drawn);
        float* to = (draws->layers[l].*which).data() + begin * samples + s;
        for (int64_t i = 0; i < end - begin; ++i) to[i * samples] = drawn[i];
      }
    });
  };
  draw(layer.drawn_from(draws->formats[l], draws->side_by_side, q), Stream::kWeight, &SampledLayer::values);
  draw(bias_places(q), Stream::kBias, &SampledLayer::bias);
}

void run(const Network& net, const Pass& pass) {
  if (pass.batch == 1) return single(net, pass);
  const int threads = useful_threads(net, pass, 1);
  const Kernels& k = kernels_for(pass.batch);
  const Tiles tiles(pass.batch, threads, k.lanes);
  const int64_t outputs = net.layers[pass.last - 1].rows.rows;
  // By the batch and not by the tile: sums then do not depend on how the batch is cut.
  const Means means{net, pass.formats, (pass.batch + k.lanes - 1) / k.lanes};
  for (int32_t l = pass.first; l < pass.last; ++l) means.values(l);  // packed before threads start
  const bool by_rows = pass.formats[pass.first] == Format::kRows;
  parallel_for(tiles.count, threads, [&](int64_t i) {
    const int64_t row = tiles.first_row(i), rows = tiles.rows(i);
    Tile<Means> tile(net, k, pass, means, tiles.size(i));
    by_rows ? tile.read_through_first(row, rows) : tile.read(row, rows);
    tile.finish(pass.first + by_rows, rows, pass.y + row * outputs);
  });
}

bool better_side_by_side(int64_t samples, int64_t batch) {
  const int64_t lanes = kernels().lanes;
  return batch * ((samples + lanes - 1) / lanes) <= samples * ((batch + lanes - 1) / lanes);
}

// The inputs of a tile are brought into place once for all samples of a task.
void run(const Network& net, const Draws& draws, const Pass& pass) {
  const int threads = useful_threads(net, pass, draws.count);
  if (draws.side_by_side) return run_side_by_side(net, draws, pass, threads);
  const Kernels& k = kernels_for(pass.batch);
  const Tiles tiles(pass.batch, threads, k.lanes);
  const int64_t samples = draws.count;
  const int64_t parts = std::min(samples, std::max<int64_t>(1, threads / tiles.count));
  const int64_t outputs = net.layers[pass.last - 1].rows.rows;
  parallel_for(tiles.count * parts, threads, [&](int64_t task) {
    const int64_t i = task / parts, part = task % parts;
    const int64_t row = tiles.first_row(i), rows = tiles.rows(i);
    Drawn drawn{net, nullptr};
    Tile<Drawn> tile(net, k, pass, drawn, tiles.size(i));
    tile.read(row, rows);
    for (int64_t s = samples * part / parts; s < samples * (part + 1) / parts; ++s) {
      drawn.layers = &draws.samples[s];
      tile.finish(pass.first, rows, pass.y + (s * pass.batch + row) * outputs);
    }
  });
}

}  // namespace sparse
}  // namespace fastlbbnn
