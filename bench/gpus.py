"""Published limits of the GPUs that the roofline is drawn for. Nothing here was measured.

Every figure was compared with publications other than the one it comes from; ``source`` names the
maker's document and where the figures were found again. Two could not be settled that way:

- B200's L2 cache and clock are in no document of NVIDIA's that was at hand. 126 MB and a clock "similar
  to H100 SXM5's" are what reviewers read off the device; sellers' tables say 65 to 96 MB.
- Lanes a clock are NVIDIA's table for compute capability 9.0 also for 10.0. For float32 and integers
  they agree with the published peaks (19.5 and 66.9 TFLOPS; 33.5 integer TOPS on H100, 64 lanes);
  for special functions and shuffles there is nothing to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    name: str
    arch: str  # whose compiled kernels it runs
    processors: int  # streaming multiprocessors
    clock: float  # boost, Hz
    bandwidth: float  # of memory, bytes per second
    bf16_flops: float  # of the tensor cores, dense, a second
    l2_bytes: float
    #: Lanes that one multiprocessor starts in a clock, by unit (machine_code.UNITS).
    lanes: dict[str, int]
    source: str
    #: Bytes a second from the L2 cache (MI300X: the Infinity Cache), at its best.
    l2_bandwidth: float = 0.0
    #: Of one multiprocessor: bytes of shared memory, and threads.
    shared_bytes: int = 0
    threads: int = 2048
    #: Architecture whose instructions are counted, where its own are not: by unit they are of NVIDIA's code.
    counted: str = ""

    def rate(self, unit: str) -> float:
        """Lane instructions of a unit a second, over the whole GPU."""
        return self.lanes[unit] * self.processors * self.clock


#: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions": float32 add, multiply
#: and fused; integer add, logic, shift, compare; integer multiply; special functions, conversions;
#: shuffles (taken for all of the load/store unit). "issue": four schedulers, each a warp per clock.
_AMPERE = {"float": 64, "integer": 64, "multiply": 64, "special": 16, "memory": 32, "issue": 128}
_LATER = {**_AMPERE, "float": 128}

GPUS = (
    Gpu(
        "A100", "sm80", 108, 1.41e9, 2.039e12, 312e12, 40 * 2.0**20, _AMPERE,
        "NVIDIA A100 80GB SXM datasheet and Ampere whitepaper; "
        "glennklockwood.com/garden/processors/A100 (SMs, bandwidth, TFLOPS); deviceQuery in "
        "upb-pc2.atlassian.net/wiki/spaces/PC2DOK/pages/1900609 (108 SMs, 1.41 GHz, L2 41943040 bytes)",
        5120 * 1.41e9, 164 * 1024,
    ),
    Gpu(
        # 1.98 GHz; its tensor-core figures are NVIDIA's for 1.83 GHz.
        "H100", "sm90", 132, 1.98e9, 3.35e12, 989.4e12, 50 * 2.0**20, _LATER,
        "NVIDIA H100 SXM5 datasheet and Hopper whitepaper; glennklockwood.com/garden/processors/h100 "
        "(132 SMs, 1.98 GHz, 66.9 float32, 33.5 integer and 989.4 bfloat16 TFLOPS, 3.35 TB/s); "
        "archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html (L2 50 MB, 3,350 GB/s)",
        5120 * 1.98e9, 228 * 1024,
    ),
    Gpu(
        "B200", "sm100", 148, 1.98e9, 8.0e12, 2250e12, 126e6, _LATER,
        "NVIDIA HGX B200 datasheet, an eighth of eight GPUs; glennklockwood.com/garden/processors/B200 "
        "(8 TB/s, 2,250 bfloat16 TFLOPS at 1,000 W); hmc-tech.com/gpus/nvidia-b200-vs-nvidia-b100 "
        "(148 SMs, 1.98 GHz, 75 float32 TFLOPS; it says 7.7 TB/s); "
        "chipsandcheese.com/p/nvidias-b200-keeping-the-cuda-juggernaut (148 SMs, clock, L2)",
        2 * 5120 * 1.98e9, 228 * 1024,
    ),
)  # fmt: skip

#: Two more, for whole training steps alone (bench/roofline.py).
OTHERS = (
    Gpu(
        "RTX 4090", "sm89", 128, 2.52e9, 1.008e12, 165.2e12, 72 * 2.0**20, _LATER,
        "NVIDIA Ada whitepaper (128 SMs, 2.52 GHz, 1,008 GB/s, L2 72 MB, 82.6 float32 TFLOPS, 165.2 dense "
        "bfloat16 TFLOPS with float32 sums)",
        5.0e12, 100 * 1024, 1536,
    ),
    Gpu(
        "MI300X", "gfx942", 304, 2.1e9, 5.3e12, 1307.4e12, 256 * 2.0**20, _LATER,
        "AMD Instinct MI300X data sheet (304 CUs, 2.1 GHz, 5.3 TB/s, 1,307.4 dense bfloat16 and 163.4 float32 "
        "TFLOPS, Infinity Cache 256 MB at 17.2 TB/s)",
        17.2e12, 64 * 1024, 2048, "sm80",
    ),
)  # fmt: skip
