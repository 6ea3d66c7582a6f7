"""Arguments and options that several commands share. Help texts are noun phrases or sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def optional(*names: str, help: str, **how: Any) -> Any:
    """An option that may be left out, without a default to show."""
    return typer.Option(*names, help=help, show_default=False, **how)


Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of text, for other programs.")
]
#: Stages of a run add to the seed's upper bits: below 2^62 nothing overflows.
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**62, help="Random seed.")]
Threads = Annotated[
    int | None, optional("--threads", metavar="N", min=1, help="CPU threads; by default torch's choice.")
]
RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run folder: what `fastlbbnn train` wrote.", show_default=False),
]
DataOption = Annotated[
    str | None, optional("--data", metavar="DATA", help="Where the run's data are now, if they moved.")
]
Root = Annotated[
    str | None,
    optional("--root", metavar="DIR", help="Folder of mnist, fmnist, phoneme; else $FASTLBBNN_DATA."),
]
Samples = Annotated[int, typer.Option("--samples", "-R", min=1, help="Draws to average (R in the paper).")]
Network = Annotated[
    str, typer.Option("--network", help="Which of the run's networks: trained, post-trained or post-median.")
]
