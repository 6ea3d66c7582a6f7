// Runs launchers of csrc/cuda on the CPU, over cases from a file.
//
//   run_cases CASES RESULTS [forward|reverse|shuffled] [SEED] [late|eager] [SKIPPED_LINE]
//
// A case is a row of int64: kind (0 csr, 1 block), rows, inputs, batch, relu, index_bytes, block,
// bfloat16, float_output, shift; then arrays, each a length in bytes and the bytes: row_offsets, columns,
// values, bias (empty: none), x. The result is y as bytes, after its length and the launcher's code.
// `shift` moves x and y off alignment by that many elements. Prints the lines of the barriers and waits
// that were reached.
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

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  emulation::state().options = options_from(argc, argv);
  std::ifstream in(argv[1], std::ios::binary);
  std::ofstream out(argv[2], std::ios::binary);

  int64_t kind = 0;
  while (read_int(in, kind)) {
    int64_t f[9];
    for (int64_t& v : f) read_int(in, v);
    const int64_t rows = f[0], inputs = f[1], batch = f[2], relu = f[3], shift = f[8];
    const bool float_output = kind == 0 || f[7] != 0;
    const size_t x_bytes = kind == 0 ? 4 : 2, y_bytes = float_output ? 4 : 2;
    Buffer row_offsets = read_array(in), columns = read_array(in), values = read_array(in);
    Buffer bias = read_array(in), x = read_array(in, static_cast<size_t>(shift) * x_bytes);
    Buffer y(static_cast<size_t>(rows * batch) * y_bytes, static_cast<size_t>(shift) * y_bytes);

    const auto* offsets = reinterpret_cast<const int32_t*>(row_offsets.data());
    const float* b = bias.size() == 0 ? nullptr : reinterpret_cast<const float*>(bias.data());
    int64_t code = 0;
    if (kind == 0) {
      code = fastlbbnn_csr_matmul(offsets, columns.data(), static_cast<int>(f[4]),
                                  reinterpret_cast<const float*>(values.data()), b,
                                  reinterpret_cast<const float*>(x.data()), reinterpret_cast<float*>(y.data()),
                                  rows, batch, static_cast<int>(relu), nullptr);
    } else {
      code = fastlbbnn_block_matmul(offsets, reinterpret_cast<const int32_t*>(columns.data()), values.data(), b,
                                    x.data(), y.data(), rows, inputs, batch, static_cast<int>(f[5]),
                                    static_cast<int>(f[6]), static_cast<int>(f[7]), static_cast<int>(relu),
                                    nullptr);
    }
    const auto size = static_cast<int64_t>(y.size());
    out.write(reinterpret_cast<const char*>(&code), sizeof code);
    out.write(reinterpret_cast<const char*>(&size), sizeof size);
    out.write(y.data(), size);
  }
  for (const int line : emulation::state().options.visited) std::printf("%d\n", line);
  return 0;
}
