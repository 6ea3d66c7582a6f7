"""select: from a trained network to a small one in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .._util.text_table import Column, text_table
from ..reports.columns import LAYERS
from .app import app, print_json, use_threads
from .options import DataOption, Json, Network, Root, RunFolder, Seed, Threads, optional


@app.command(short_help="Write the sparse network of a run.")
def select(
    folder: RunFolder,
    out: Annotated[
        Path | None,
        optional("--out", "-o", metavar="ARTIFACT", help="File to write; by default RUN/selected.safetensors."),
    ] = None,
    threshold: Annotated[
        float | None,
        optional(help="Keep weights with an inclusion probability above this; 0.5 is the median model."),
    ] = None,
    criterion: Annotated[
        str, typer.Option(help="Criterion: median, most-probable, waic, dic or nll; see above.")
    ] = "median",
    samples: Annotated[int, typer.Option("--samples", "-R", min=2, help="Draws for a criterion.")] = 30,
    rows: Annotated[int, typer.Option(min=1, help="Most observations for a criterion.")] = 10_000,
    network: Network = "trained",
    means_only: Annotated[
        bool,
        typer.Option("--means-only", help="Leave out the scales of sampled predictions: a smaller file."),
    ] = False,
    seed: Seed = 0,
    threads: Threads = None,
    data: DataOption = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Select a sparse network from a run and write it as one safetensors file.

    \b
        fastlbbnn select runs/digits
        fastlbbnn select runs/digits --threshold 0.9 -o small.safetensors
        fastlbbnn select runs/digits --criterion waic

    \b
    --criterion median         weights that are more probably in than out
                most-probable  the structure of the largest posterior probability
                waic, dic      the threshold with the best information criterion on training rows
                nll            the threshold with the best likelihood of rows held out (--validation)

    The file takes raw rows: it holds their preparation, the names of classes and where it came from. A
    threshold that leaves no path from an input to an output would make a network of constants: the closest
    one below with a path is used instead, and said.
    """
    from ..runs import load_run
    from ..runs.data import dataset_of
    from ..runs.selecting import CRITERIA, select_run

    if threshold is not None and not 0.0 <= threshold < 1.0:
        raise typer.BadParameter(f"{threshold}: expected a probability in [0, 1)", param_hint="--threshold")
    if criterion not in CRITERIA:
        raise typer.BadParameter(f"{criterion!r}: expected {', '.join(CRITERIA)}", param_hint="--criterion")
    if threshold is not None and criterion != "median":
        raise typer.BadParameter(f"--threshold or --criterion {criterion}: give one of them")
    use_threads(threads)
    run = load_run(folder)
    model, found = select_run(
        run, network=network, threshold=threshold, criterion=criterion, samples=samples, rows=rows, seed=seed,
        posterior=not means_only, dataset=lambda: dataset_of(run, data, root),
    )  # fmt: skip
    path = out if out is not None else folder / "selected.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)
    found |= {"artifact": str(path), "bytes": path.stat().st_size}
    for note in found["notes"]:
        typer.echo(note, err=True)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    if found["tried"]:
        columns = {
            "threshold": Column("threshold", "{:g}".format),
            "density": Column("density", "{:.4f}".format),
            "criterion": Column(found["criterion"], "{:.6g}".format),
            "effective_parameters": Column("effective parameters", "{:.1f}".format),
        }
        typer.echo(text_table(found["tried"], columns) + "\n")
    typer.echo(text_table(found["layers"], LAYERS))
    typer.echo(
        f"\n{found['active']:,} of {found['weights']:,} weights ({100 * found['active_density']:.3g} %) and "
        f"{found['used_inputs']:,} of {found['inputs']:,} inputs at threshold {found['threshold']:.6g}\n"
        f"wrote {found['artifact']} ({found['bytes'] / 1e3:.1f} kB)"
    )
