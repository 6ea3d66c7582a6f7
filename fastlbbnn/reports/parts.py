"""What a page is made of: sections with figures, tables and paragraphs."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from . import plots


@dataclass(frozen=True)
class Figure:
    """An image inside the page, what it shows to those who do not see it, and how to read it."""

    source: str
    alt: str
    caption: str
    #: Too wide to be legible on a phone's screen without scrolling.
    wide: bool


@dataclass
class Section:
    id: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    #: Tables as headings and rows of text.
    tables: list[dict[str, Any]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


def figure(drawing: Any, alt: str, caption: str) -> Figure:
    data = base64.b64encode(plots.as_bytes(drawing, "png", dpi=140)).decode()
    return Figure(f"data:image/png;base64,{data}", alt, caption, drawing.get_figwidth() > 5.0)
