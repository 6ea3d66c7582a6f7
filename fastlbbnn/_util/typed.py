"""Whether plain data, as read from a JSON file, have the fields and the types that a class declares."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict


def wrong_field(values: Mapping[str, Any], kind: type) -> str | None:
    """What is wrong with ``values`` as fields of ``kind``, a dataclass or a TypedDict; None if nothing is."""
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    else:
        required = {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}
    for name in hints:
        if name in required and name not in values:
            return f"it has no {name!r}"
    for name, value in values.items():
        if name not in hints:
            return f"it has a field {name!r} that nothing here knows"
        found = _wrong(value, hints[name])
        if found is not None:
            return f"{name!r}: {found}"
    return None


def _wrong(value: Any, hint: Any) -> str | None:
    if hint is Any:
        return None
    if get_origin(hint) is NotRequired:
        hint = get_args(hint)[0]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        reasons = [_wrong(value, option) for option in arguments]
        return None if None in reasons else _said(value, hint)
    if hint is None or hint is type(None):
        return None if value is None else _said(value, "null")
    if origin in (tuple, list):
        if not isinstance(value, (list, tuple)):
            return _said(value, "a list")
        return _first(_wrong(v, arguments[0]) for v in value)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            return _said(value, "an object")
        return _first(_wrong(v, arguments[1]) for v in value.values())
    if is_dataclass(hint) or is_typeddict(hint):
        return wrong_field(value, hint) if isinstance(value, Mapping) else _said(value, "an object")
    if hint in (int, float) and isinstance(value, bool):
        return _said(value, "a number")
    if hint is float:
        return None if isinstance(value, (int, float)) else _said(value, "a number")
    return None if isinstance(value, hint) else _said(value, hint.__name__)


def _first(reasons: Any) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _said(value: Any, expected: Any) -> str:
    shown = repr(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '...'}, expected {expected}"
