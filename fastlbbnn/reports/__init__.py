"""One self-contained HTML page about a run: figures inside, nothing loaded from elsewhere.

from fastlbbnn.reports import write_report
write_report(load_run("runs/digits"), data.load("digits"), "digits.html")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.files import replace_file

if TYPE_CHECKING:
    from ..data import Dataset
    from ..runs import Run

__all__ = ["render", "write_report"]


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
        other: data from another domain with as many inputs, to see how the network doubts them.
        samples: draws that the figures of single predictions and entropies average.
        seed: of these draws.
    """
    from .content import gather

    path = Path(path)
    page = render(gather(run, dataset, other=other, samples=samples, seed=seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def render(content: dict[str, Any]) -> str:
    """The page from what ``content.gather`` found."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("a report needs jinja2, which is not installed: pip install jinja2") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fastlbbnn.reports", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(**content)
