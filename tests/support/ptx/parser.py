"""PTX text -> a kernel: parameters, registers, instructions and where its labels point."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .errors import PtxError

#: Bits of a register by its declared type.
REGISTER_BITS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64, "f32": 32, "f64": 64, "b128": 128}


@dataclass(frozen=True)
class Register:
    name: str


@dataclass(frozen=True)
class Immediate:
    text: str


@dataclass(frozen=True)
class Name:
    """A special register, parameter, label or variable: the instruction knows which."""

    text: str


@dataclass(frozen=True)
class Vector:
    """``{%r1, %r2}``"""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Address:
    """``[base + offset]``"""

    base: Operand
    offset: int


Operand = Register | Immediate | Name | Vector | Address


@dataclass(frozen=True)
class Instruction:
    opcode: str  # up to the first dot
    modifiers: tuple[str, ...]  # what follows it
    operands: tuple[Operand, ...]
    guard: str | None  # a predicate register
    guard_negated: bool
    text: str


@dataclass
class Kernel:
    name: str
    parameters: list[tuple[str, str]]  # name, type
    threads: int
    registers: dict[str, int] = field(default_factory=dict)  # name -> bits
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # -> index of the next instruction
    shared: dict[str, int] = field(default_factory=dict)  # variable -> offset
    static_shared_bytes: int = 0


_NUMBER = re.compile(
    r"-?(0[xX][0-9a-fA-F]+U?|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+(\.\d+)?)$"
)
_ADDRESS = re.compile(r"\[\s*(?P<base>[^\s+\]]+)\s*(\+\s*(?P<offset>-?\w+)\s*)?\]$")


def parse(text: str) -> Kernel:
    """The one ``.entry`` of a PTX module, as Triton writes it."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    # Debug lines have no semicolon.
    text = re.sub(r"^\s*\.(loc|file)\b[^\n]*", "", text, flags=re.M)
    entries = list(re.finditer(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{]*)\{", text))
    if len(entries) != 1:
        raise PtxError(f"{len(entries)} kernels in the PTX, expected exactly one .entry")
    entry = entries[0]
    kernel = Kernel(entry[1], _parameters(entry[2]), _threads(entry[3]))
    _declare_shared(kernel, text[: entry.start()])
    _parse_body(kernel, text, entry.end())
    return kernel


def _parameters(text: str) -> list[tuple[str, str]]:
    parameters = []
    for declaration in filter(None, (part.strip() for part in text.split(","))):
        match = re.match(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s.*?([\w$]+)$", declaration)
        if match is None:
            raise PtxError(f"parameter not understood: {declaration}")
        parameters.append((match[2], match[1]))
    return parameters


def _threads(directives: str) -> int:
    match = re.search(r"\.reqntid\s+(\d+)", directives)
    if match is None:
        raise PtxError(f"no .reqntid (threads of a CTA) among: {directives.strip() or 'nothing'}")
    return int(match[1])


def _declare_shared(kernel: Kernel, text: str) -> None:
    """Static variables one after the other, then the dynamic array (extern) after them."""
    pattern = r"(\.extern\s+)?\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d*)\]"
    declared = re.findall(pattern, text)
    for extern, align, name, size in sorted(declared, key=lambda d: bool(d[0])):
        offset = -(-kernel.static_shared_bytes // int(align)) * int(align)
        kernel.shared[name] = offset
        if not extern:
            kernel.static_shared_bytes = offset + int(size)


def _parse_body(kernel: Kernel, text: str, position: int) -> None:
    """Statements end with a semicolon; braces around statements are scopes, in them operands."""
    depth = 1
    label = re.compile(r"\s*([\w$.]+):")
    while depth:
        space = re.compile(r"\s*").match(text, position)
        position = space.end()
        if position >= len(text):
            raise PtxError("the kernel's body does not end")
        if text[position] in "{}":
            depth += 1 if text[position] == "{" else -1
            position += 1
        elif match := label.match(text, position):
            kernel.labels[match[1]] = len(kernel.instructions)
            position = match.end()
        else:
            end = text.index(";", position)
            _statement(kernel, " ".join(text[position:end].split()))
            position = end + 1


def _statement(kernel: Kernel, text: str) -> None:
    if text.startswith(".reg"):
        _declare_registers(kernel, text)
    elif text.startswith(".pragma") or not text:
        pass
    elif text.startswith("."):
        raise PtxError(f"directive not understood: {text}")
    else:
        kernel.instructions.append(_instruction(kernel, text))


def _declare_registers(kernel: Kernel, text: str) -> None:
    match = re.match(r"\.reg\s+\.(\w+)\s+(.*)$", text)
    if match is None or match[1] not in REGISTER_BITS:
        raise PtxError(f"register declaration not understood: {text}")
    for name in (n.strip() for n in match[2].split(",")):
        numbered = re.match(r"([%\w$]+)<(\d+)>$", name)
        names = [f"{numbered[1]}{i}" for i in range(int(numbered[2]))] if numbered else [name]
        kernel.registers.update(dict.fromkeys(names, REGISTER_BITS[match[1]]))


def _instruction(kernel: Kernel, text: str) -> Instruction:
    match = re.match(r"(?:@(!?)([%\w$]+)\s+)?([a-z0-9_]+)([.:\w]*)\s*(.*)$", text)
    if match is None:
        raise PtxError(f"instruction not understood: {text}")
    negated, guard, opcode, modifiers, rest = match.groups()
    operands = tuple(_operand(kernel, part) for part in _split(rest))
    # "L1::evict_last" is one modifier.
    parts = tuple(modifiers.split(".")[1:])
    return Instruction(opcode, parts, operands, guard, bool(negated), text)


def _split(text: str) -> list[str]:
    """At commas outside braces and brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return [*parts, current.strip()] if current.strip() else parts


def _operand(kernel: Kernel, text: str) -> Operand:
    if text.startswith("{"):
        return Vector(tuple(_operand(kernel, part) for part in _split(text[1:-1])))
    if text.startswith("["):
        match = _ADDRESS.match(text)
        if match is None:
            raise PtxError(f"address not understood: {text}")
        return Address(_operand(kernel, match["base"]), int(match["offset"] or "0", 0))
    if text in kernel.registers:
        return Register(text)
    if _NUMBER.match(text):
        return Immediate(text)
    return Name(text)
