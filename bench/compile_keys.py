"""What a compiled kernel depends on, as a short key: the same key, the same machine code.

A key covers the kernel's source with that of all functions that it calls (as a syntax tree, so that
comments and docstrings do not count), the types, constants and divisibility of its arguments, the
options, the target and Triton's version.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from typing import Any


@functools.cache
def _tree_and_uses(function) -> tuple[str, tuple[Any, ...]]:
    """The syntax tree of a jitted function, with the constants it names, and those it calls."""
    import triton
    import triton.language as tl

    tree = function.parse()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    constants, called = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            value = function.__globals__.get(node.id)
            if isinstance(value, tl.constexpr):
                constants[node.id] = value.value
            elif isinstance(value, triton.JITFunction):
                called[node.id] = value
    text = ast.dump(tree) + json.dumps(constants, sort_keys=True)
    return text, tuple(called[name] for name in sorted(called))


@functools.cache
def source_key(function) -> str:
    """Hash of a jitted function and of all that it calls."""
    hasher, waiting, seen = hashlib.sha256(), [function], set()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        text, called = _tree_and_uses(current)
        hasher.update(text.encode())
        waiting += called
    return hasher.hexdigest()


def compile_key(item) -> str:
    """The key of a ``fastlbbnn.kernels.shipped.Shipped``."""
    import triton

    parts = [
        source_key(item.kernel), item.signature, item.constexprs,
        sorted((i, value) for (i,), value in item.attrs.items()), item.options, str(item.target),
        triton.__version__,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
