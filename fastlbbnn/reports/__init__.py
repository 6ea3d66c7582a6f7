"""One self-contained HTML page about a run: figures inside, nothing loaded from elsewhere.

    from fastlbbnn.reports import write_report

    write_report(load_run("runs/digits"), data.load("digits"), "digits.html")
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.files import replace_file

if TYPE_CHECKING:
    from ..data import Dataset
    from ..runs import Run

__all__ = ["need_extras", "render", "write_report"]


def write_report(
    run: Run,
    dataset: Dataset,
    path: str | Path,
    *,
    other: Dataset | None = None,
    samples: int = 100,
    seed: int = 0,
) -> Path:
    """Write the page about ``run``; returns its path.

    Args:
        dataset: what the run was trained on; its test rows are predicted.
        other: data from another domain with the same number of inputs, to see how the network doubts them.
        samples: draws that the figures of single predictions and entropies average.
        seed: seed of these draws.
    """
    need_extras()
    from .content import gather

    path = Path(path)
    page = render(gather(run, dataset, other=other, samples=samples, seed=seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def need_extras() -> None:
    """ImportError, saying what to install, unless what draws and writes pages is there."""
    missing = [name for name in ("jinja2", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"a report needs {' and '.join(missing)}, not installed here: pip install {' '.join(missing)}"
        )


def render(content: dict[str, Any]) -> str:
    """The page from what ``content.gather`` found."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fastlbbnn.reports", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(**content)
