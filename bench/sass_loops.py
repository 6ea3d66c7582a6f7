"""Which instructions of a compiled kernel a loop repeats.

Addresses alone do not say: waits for a barrier stand behind the kernel's end and jump back into its
middle. A loop is what can reach a jump back to a block that dominates the jump (a natural loop).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: str
    guarded: bool  # by a predicate


def _successors(code: list[Instruction], labels: dict[str, int], last: int) -> list[int]:
    """Places where control can go after an instruction."""
    instruction = code[last]
    following = [last + 1] if last + 1 < len(code) else []
    if instruction.opcode.startswith(("EXIT", "RET")):
        return following if instruction.guarded else []
    if instruction.opcode.startswith("BRA"):
        target = re.search(r"\((\.L_\w+)\)", instruction.operands)
        there = (
            [labels[target[1]]] if target and labels.get(target[1], len(code)) < len(code) else []
        )
        # Newer architectures write the predicate among the operands.
        conditional = instruction.guarded or not instruction.operands.startswith("`")
        return there + following if conditional else there
    return following


def main_loop(
    code: list[Instruction], labels: dict[str, int], is_product: Callable[[int], bool]
) -> set[int]:
    """Instructions of the innermost loop with a matrix product; without one, the longest loop."""
    ends = ("BRA", "EXIT", "RET")
    starts = {0, *(p for p in labels.values() if p < len(code))}
    starts |= {i + 1 for i, c in enumerate(code) if c.opcode.startswith(ends) and i + 1 < len(code)}
    ordered = sorted(starts)
    blocks = dict(zip(ordered, [*ordered[1:], len(code)]))
    after = {s: _successors(code, labels, end - 1) for s, end in blocks.items()}
    before: dict[int, list[int]] = {s: [] for s in blocks}
    for start, targets in after.items():
        for target in targets:
            before[target].append(start)

    loops = []
    dominators = _dominators(ordered, before)
    for tail, targets in after.items():
        for head in targets:
            if head in dominators[tail]:
                body = _reaching(tail, head, before)
                loops.append({i for start in body for i in range(start, blocks[start])})
    with_product = [loop for loop in loops if any(map(is_product, loop))]
    if with_product:
        return min(with_product, key=len)
    return max(loops, key=len, default=set())


def _dominators(ordered: list[int], before: dict[int, list[int]]) -> dict[int, set[int]]:
    """Block -> blocks through which every path to it leads; unreachable ones have all."""
    everything = set(ordered)
    dominators = {s: set(everything) for s in ordered}
    dominators[ordered[0]] = {ordered[0]}
    changed = True
    while changed:
        changed = False
        for start in ordered[1:]:
            if before[start]:
                common = set.intersection(*(dominators[p] for p in before[start]))
                if common | {start} != dominators[start]:
                    dominators[start] = common | {start}
                    changed = True
    return dominators


def _reaching(tail: int, head: int, before: dict[int, list[int]]) -> set[int]:
    """Blocks from which the tail can be reached without passing the head, and the head."""
    body, waiting = {head}, [tail]
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting += before[block]
    return body
