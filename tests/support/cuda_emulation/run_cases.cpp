// Runs launchers of csrc/cuda on the CPU, over cases from a file.
//
//   run_cases CASES RESULTS [forward|reverse|shuffled] [SEED] [late|eager] [SKIPPED_LINE]
//
// A case is thirteen int64, then arrays, each a length in bytes and the bytes (empty: a null pointer). The
// result is what the launcher wrote, after its length and the launcher's code. Of a product:
//   kind (0 csr, 1 block), rows, inputs, batch, relu, index_bytes, block_rows, block_cols, element,
//   float_output, shift, samples, shared_input; row_offsets, columns, values, bias, x
// `shift` moves x and y off alignment by that many elements. Of sampled weights:
//   kind (2), rows, weights, stride, samples, index_bytes, stream of noise, element, seed, then zeros;
//   row_offsets, columns, place, mean, scale, row_index, col_index
// Prints the lines of the barriers and waits that were reached.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "fibers.h"
#include "launchers.h"

namespace {

// Exactly as long as its contents, at a multiple of 16 plus `shift`: the sanitizer sees the first byte
// beyond the end.
class Buffer {
 public:
  Buffer(size_t bytes, size_t shift) : bytes_(bytes), shift_(shift) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 16, bytes + shift) != 0) std::abort();
    memory_.reset(static_cast<char*>(memory));
    std::memset(memory_.get(), 0xff, bytes + shift);  // NaN
  }
  char* data() { return memory_.get() + shift_; }
  size_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  size_t bytes_, shift_;
  std::unique_ptr<char, Free> memory_;
};

bool read_int(std::ifstream& in, int64_t& v) {
  return static_cast<bool>(in.read(reinterpret_cast<char*>(&v), sizeof v));
}

Buffer read_array(std::ifstream& in, size_t shift = 0) {
  int64_t bytes = 0;
  if (!read_int(in, bytes)) std::abort();
  Buffer buffer(static_cast<size_t>(bytes), shift);
  in.read(buffer.data(), bytes);
  return buffer;
}

emulation::Options options_from(int argc, char** argv) {
  emulation::Options options;
  const std::string order = argc > 3 ? argv[3] : "forward";
  if (order == "reverse") options.order = emulation::Options::Order::kReverse;
  if (order == "shuffled") options.order = emulation::Options::Order::kShuffled;
  if (argc > 4) options.seed = static_cast<unsigned>(std::atoi(argv[4]));
  if (argc > 5) options.late_copies = std::string(argv[5]) == "late";
  if (argc > 6) options.skipped_line = std::atoi(argv[6]);
  return options;
}

template <class T>
const T* as(Buffer& buffer) {
  return buffer.size() == 0 ? nullptr : reinterpret_cast<const T*>(buffer.data());
}

void write(std::ofstream& out, int64_t code, Buffer& y) {
  const auto size = static_cast<int64_t>(y.size());
  out.write(reinterpret_cast<const char*>(&code), sizeof code);
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out.write(y.data(), size);
}

size_t element_bytes(int64_t element) { return element == 0 ? 4 : 2; }

void run_product(bool blocks, const int64_t (&f)[12], std::ifstream& in, std::ofstream& out) {
  const int64_t rows = f[0], inputs = f[1], batch = f[2], element = f[7], samples = f[10];
  const int relu = static_cast<int>(f[3]), index_bytes = static_cast<int>(f[4]);
  const int code_of_element = static_cast<int>(element), float_output = static_cast<int>(f[8]);
  const int shared = static_cast<int>(f[11]);
  const size_t x_bytes = element_bytes(element), y_bytes = float_output != 0 ? 4 : x_bytes;
  const auto shift = static_cast<size_t>(f[9]);
  Buffer row_offsets = read_array(in), columns = read_array(in), values = read_array(in);
  Buffer bias = read_array(in), x = read_array(in, shift * x_bytes);
  Buffer y(static_cast<size_t>(samples * rows * batch) * y_bytes, shift * y_bytes);
  int64_t code = 0;
  if (blocks) {
    const auto count = static_cast<int64_t>(columns.size() / sizeof(int32_t));
    code = fastlbbnn_block_matmul(as<int32_t>(row_offsets), as<int32_t>(columns), values.data(),
                                  as<float>(bias), x.data(), y.data(), rows, inputs, batch, count,
                                  static_cast<int>(f[5]), static_cast<int>(f[6]), samples, shared,
                                  code_of_element, float_output, relu, nullptr);
  } else {
    const auto weights = static_cast<int64_t>(values.size() / x_bytes) / (samples > 0 ? samples : 1);
    code = fastlbbnn_csr_matmul(as<int32_t>(row_offsets), columns.data(), index_bytes, values.data(),
                                as<float>(bias), x.data(), y.data(), rows, inputs, batch, weights, samples,
                                shared, code_of_element, float_output, relu, nullptr);
  }
  write(out, code, y);
}

void run_draw(const int64_t (&f)[12], std::ifstream& in, std::ofstream& out) {
  Buffer row_offsets = read_array(in), columns = read_array(in), place = read_array(in);
  Buffer mean = read_array(in), scale = read_array(in), row_index = read_array(in);
  Buffer col_index = read_array(in);
  Buffer values(static_cast<size_t>(f[2] * f[3]) * element_bytes(f[6]), 0);
  const int code = fastlbbnn_draw_weights(
      as<int32_t>(row_offsets), as<char>(columns), static_cast<int>(f[4]), as<float>(mean), as<float>(scale),
      as<int32_t>(row_index), as<int32_t>(col_index), as<int32_t>(place), values.data(), f[0], f[1], f[2],
      f[3], static_cast<uint64_t>(f[7]), static_cast<int>(f[5]), static_cast<int>(f[6]), nullptr);
  write(out, code, values);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  emulation::state().options = options_from(argc, argv);
  std::ifstream in(argv[1], std::ios::binary);
  std::ofstream out(argv[2], std::ios::binary);

  int64_t kind = 0;
  while (read_int(in, kind)) {
    int64_t f[12];
    for (int64_t& v : f) read_int(in, v);
    if (kind == 2) {
      run_draw(f, in, out);
    } else {
      run_product(kind == 1, f, in, out);
    }
  }
  for (const int line : emulation::state().options.visited) std::printf("%d\n", line);
  return 0;
}
