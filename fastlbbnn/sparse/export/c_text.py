"""C text that both forms of the C export are made of: literals and constant arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def float_literal(value: float) -> str:
    """Nine significant digits: read back, they are exactly the float32 that they were made from."""
    text = f"{value:.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def double_literal(value: float) -> str:
    """Read back, exactly the double that it was made from."""
    text = repr(float(value))
    return text if "." in text or "e" in text else text + ".0"


def array(kind: str, name: str, items: list[str]) -> str:
    """A constant array; none where it would be empty, which C99 does not allow."""
    if not items:
        return ""
    lines, line = [], " "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            lines.append(line)
            line = " "
        line += f" {item},"
    lines.append(line)
    return f"static const {kind} {name}[{len(items)}] = {{\n" + "\n".join(lines) + "\n};\n"


def indices(name: str, values: NDArray[Any]) -> str:
    """In as few bytes as the largest fits in."""
    largest = int(values.max()) if values.size else 0
    kind = "uint8_t" if largest < 1 << 8 else "uint16_t" if largest < 1 << 16 else "uint32_t"
    return array(kind, name, [str(v) for v in values.tolist()])


def floats(name: str, values: NDArray[np.float32]) -> str:
    return array("float", name, [float_literal(v) for v in values.tolist()])
