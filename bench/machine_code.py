"""What a compiled kernel asks of a GPU: registers, memory, instructions by the unit they run on.

NVIDIA: read off the cubin with the cuobjdump and nvdisasm that Triton brings. AMD: read off the
assembler text, which carries the same figures as metadata.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sass_loops
import triton

#: The units of a streaming multiprocessor, and the instructions (by the start of their names) that
#: run on them: the classes of the table "Throughput of Native Arithmetic Instructions" in the CUDA
#: C++ Programming Guide.
UNITS: dict[str, tuple[str, ...]] = {
    "tensor": ("HMMA", "HGMMA", "UTCHMMA", "UTCQMMA", "IMMA", "QGMMA"),
    "float": ("FADD", "FMUL", "FFMA", "HADD", "HMUL", "HFMA"),
    "multiply": ("IMAD", "IMUL"),
    "special": ("MUFU", "I2F", "F2I", "F2F", "FRND", "POPC", "FLO", "I2I"),
    "memory": ("LD", "ST", "SHFL", "BAR", "DEPBAR", "RED", "ATOM", "UTMA", "SYNCS", "MEMBAR"),
    "control": ("BRA", "BSSY", "BSYNC", "EXIT", "CALL", "RET", "NOP", "WARPSYNC", "BREAK", "BRX",
                "YIELD", "NANOSLEEP", "BMOV", "ELECT"),
    # Integer additions, logic, shifts, comparisons, selections, minima: all others.
    "integer": (),
}  # fmt: skip

_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*)$")
_LABEL = re.compile(r"^\s*(\.L_[\w]+|[\w$.]*__internal_[\w$.]*):")


@dataclass
class MachineCode:
    registers: int
    shared_bytes: int
    stack_bytes: int
    spills: int  # instructions that touch local memory, or spilled vector registers (AMD)
    instructions: int
    tensor_core: int
    loads_128: int  # 128-bit loads from global memory
    fused_multiply_adds: int
    #: Instructions of the loop with the matrix product, and of the code that runs once, by unit.
    loop: dict[str, int] = field(default_factory=dict)
    once: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect(compiled) -> MachineCode:
    """Figures of a ``triton.compile`` result."""
    shared = compiled.metadata.shared
    if compiled.metadata.target.backend == "hip":
        return from_amd_assembler(compiled.asm["amdgcn"], shared)
    return from_cubin(compiled.asm["cubin"], shared)


# --- NVIDIA --------------------------------------------------------------------------------------


def _tool(name: str, *arguments: str) -> str:
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout


def from_cubin(cubin: bytes, shared: int) -> MachineCode:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        sass = _tool("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump gave no resource usage:\n{usage}")
    registers, stack, static_shared, local = map(int, found.groups())
    return from_sass(sass, registers, static_shared + shared, stack + local)


def unit(opcode: str) -> str:
    """The unit that runs an instruction; ``U...`` run beside the others, on the scalar one."""
    if opcode.startswith("U") and not opcode.startswith(UNITS["tensor"] + ("UTMA",)):
        return "uniform"
    return next((name for name, starts in UNITS.items() if opcode.startswith(starts)), "integer")


def from_sass(sass: str, registers: int, shared: int, stack: int) -> MachineCode:
    code, labels = _parse_sass(sass)
    inside = sass_loops.main_loop(code, labels, lambda i: unit(code[i].opcode) == "tensor")
    names = [i.opcode for i in code]
    loads_128 = [n for n in names if n.startswith(("LDG", "LDGSTS")) and ".128" in n]
    # A bulk copy (TMA) moves whole tiles.
    bulk = [n for n in names if n.startswith("UTMALDG")]
    return MachineCode(
        registers=registers,
        shared_bytes=shared,
        stack_bytes=stack,
        spills=sum(n.startswith(("LDL", "STL")) for n in names),
        instructions=len(names),
        tensor_core=sum(unit(n) == "tensor" for n in names),
        loads_128=len(loads_128) + len(bulk),
        fused_multiply_adds=sum(n.startswith("FFMA") for n in names),
        loop=dict(Counter(unit(n) for i, n in enumerate(names) if i in inside)),
        once=dict(Counter(unit(n) for i, n in enumerate(names) if i not in inside)),
    )


def _parse_sass(sass: str) -> tuple[list[sass_loops.Instruction], dict[str, int]]:
    """Instructions up to the subroutines, and the place in that list to which labels point.

    Subroutines are the slow paths of division and square root (subnormal operands): not counted.
    """
    code: list[sass_loops.Instruction] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if match := _LABEL.match(line):
            if "__internal_" in match[1]:
                break
            labels[match[1]] = len(code)
        elif match := _INSTRUCTION.match(line):
            code.append(sass_loops.Instruction(match[3], match[4].strip(), bool(match[2])))
    # The padding after the last jump.
    while code and code[-1].opcode == "NOP":
        code.pop()
    return code, labels


# --- AMD -----------------------------------------------------------------------------------------


def from_amd_assembler(text: str, shared: int) -> MachineCode:
    def figure(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", text)
        if found is None:
            raise RuntimeError(f"the AMD assembler text has no .{name}")
        return int(found[1])

    names = re.findall(r"^\t([a-z]+_[a-z0-9_]+)", text, flags=re.M)
    return MachineCode(
        registers=figure("vgpr_count"),
        shared_bytes=max(shared, figure("group_segment_fixed_size")),
        stack_bytes=figure("private_segment_fixed_size"),
        # Scalar registers are spilled into lanes of vector registers, not to memory.
        spills=figure("vgpr_spill_count"),
        instructions=len(names),
        tensor_core=sum(n.startswith(("v_mfma", "v_smfma")) for n in names),
        loads_128=sum(
            bool(re.match(r"(global|buffer|flat)_load_(dwordx4|b128)", n)) for n in names
        ),
        fused_multiply_adds=sum(
            n.startswith(("v_fma_f32", "v_fmac_f32", "v_pk_fma_f32")) for n in names
        ),
    )
