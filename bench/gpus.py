"""Published limits of the GPUs that the roofline is drawn for. Nothing here was measured.

The sources are named, but the figures were written down without them at hand (only B200's were compared
with other publications): check them before relying on a predicted time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    name: str
    arch: str  # whose compiled kernels it runs
    processors: int  # streaming multiprocessors
    clock: float  # boost, Hz
    bandwidth: float  # of memory, bytes a second
    bf16_flops: float  # of the tensor cores, dense, a second
    l2_bytes: float
    #: Lanes that one multiprocessor starts in a clock, by unit (machine_code.UNITS).
    lanes: dict[str, int]
    source: str

    def rate(self, unit: str) -> float:
        """Lane instructions of a unit a second, over the whole GPU."""
        return self.lanes[unit] * self.processors * self.clock


#: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions": float32 add, multiply
#: and fused; integer add, logic, shift, compare; integer multiply; special functions, conversions;
#: shuffles (taken for all of the load/store unit). "issue": four schedulers, a warp a clock each.
_AMPERE = {"float": 64, "integer": 64, "multiply": 64, "special": 16, "memory": 32, "issue": 128}
_LATER = {**_AMPERE, "float": 128}

GPUS = (
    Gpu(
        "A100", "sm80", 108, 1.41e9, 2.039e12, 312e12, 40e6, _AMPERE,
        "NVIDIA A100 80GB SXM datasheet; A100 whitepaper (108 SMs, 1.41 GHz, 40 MB L2)",
    ),
    Gpu(
        "H100", "sm90", 132, 1.98e9, 3.35e12, 989.4e12, 50e6, _LATER,
        "NVIDIA H100 SXM5 datasheet; H100 whitepaper (132 SMs, 66.9 float32 TFLOPS = "
        "132 * 128 * 2 * 1.98 GHz, 50 MB L2)",
    ),
    Gpu(
        # L2: what CUDA reports; NVIDIA's datasheet does not say.
        "B200", "sm100", 148, 1.98e9, 8.0e12, 2250e12, 126e6, _LATER,
        "NVIDIA HGX B200 datasheet, an eighth of eight GPUs; clock from its 75 float32 TFLOPS = "
        "148 * 128 * 2 * 1.98 GHz; lanes as compute capability 9.0",
    ),
)  # fmt: skip
