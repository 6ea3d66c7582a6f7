"""Packages whose names load on first use, so that importing them imports nothing heavy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, str], submodules: tuple[str, ...] = ()
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        modules: public name -> the module, relative to the package, that defines it.
        submodules: modules and packages that are public themselves.
    """
    public = [*modules, *submodules]

    def load(name: str) -> Any:
        if name in modules:
            value = getattr(importlib.import_module(f".{modules[name]}", package), name)
        elif name in submodules:
            value = importlib.import_module(f".{name}", package)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return public, load, lambda: sorted({*public, "__all__", "__doc__", "__name__", "__version__"})
