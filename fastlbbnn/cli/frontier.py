"""frontier: accuracy against density, from one run."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from .app import app, interruptible, print_json, use_threads, wrong_call
from .options import Json, Root, Samples, Seed, Threads, optional


@app.command(short_help="Show accuracy against density, from one training run.")
def frontier(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Data, as for `fastlbbnn train`.", show_default=False)
    ],
    densities: Annotated[
        str | None,
        optional("--densities", metavar="LIST", help="Shares of the weights, e.g. 0.1,0.03,0.01."),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", "-m", help="Method, by the paper's name.")
    ] = "LBBNN-GP-MF",
    hidden: Annotated[str | None, optional(metavar="SIZES", help="Hidden units, e.g. 400-600.")] = None,
    epochs: Annotated[
        int | None, optional(min=2, metavar="N", help="Epochs of the recipe, its stages in proportion.")
    ] = None,
    out: Annotated[
        Path | None,
        optional("--out", "-o", metavar="DIR", help="Folder for frontier.csv and frontier.png."),
    ] = None,
    target: Annotated[str | None, optional(metavar="COLUMN", help="Table: column to predict.")] = None,
    standardise: Annotated[
        bool | None,
        optional(
            "--standardise/--raw-features",
            help="File: scale features to mean 0 and deviation 1; by default tables are, arrays are not.",
        ),
    ] = None,
    validation: Annotated[
        float | None,
        optional(
            metavar="SHARE", help="Measure on this share of the training rows instead of the test rows."
        ),
    ] = None,
    seed: Seed = 0,
    samples: Samples = 10,
    device: Annotated[str, typer.Option(help="Device to train on: cpu, cuda or cuda:N.")] = "cpu",
    threads: Threads = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show accuracy against density, from one training run that keeps turning the dial.

    \b
        fastlbbnn frontier digits
        fastlbbnn frontier mnist --densities 0.05,0.02,0.01,0.005 -o frontier

    When the density that the run is steered to passes one of the list, a copy is held there, trained briefly
    on its structure and measured. To choose a density, measure on --validation rows; a network that
    `fastlbbnn train --density` makes for one density alone is somewhat better.
    """
    from ..data import Source
    from ..runs.frontier import DENSITIES, Point
    from ..runs.frontier import frontier as points_of
    from ..runs.methods import find_method
    from ..runs.recipes import find_recipe
    from .train import device_here, hidden_sizes

    with wrong_call("--method"):
        method = find_method(method).name
    with wrong_call("--densities"):
        wanted = DENSITIES if densities is None else tuple(map(float, densities.split(",")))
    recipe = find_recipe(method)
    recipe = recipe if epochs is None else recipe.scaled(epochs)
    recipe = recipe if hidden is None else replace(recipe, hidden=hidden_sizes(hidden))
    options = {"target": target, "standardise": standardise}
    options = {k: v for k, v in options.items() if v is not None}
    use_threads(threads)
    where = device_here(device)
    try:
        dataset = Source.of(data, root=root, options=options, validation=validation).load()
    except TypeError as error:
        raise typer.BadParameter(str(error)) from error

    def show(point: Point) -> None:
        if not as_json:
            numbers = point.accuracy is None
            figure = f"RMSE {point.rmse:.4g}" if numbers else f"accuracy {point.accuracy:.4f}"
            typer.echo(f"{point.density:9.3%} {point.weights:9,} weights   {figure}   NLL {point.nll:.4f}")

    with interruptible("the same command starts from the beginning"):
        points = points_of(
            method, dataset, densities=wanted, recipe=recipe, seed=seed, samples=samples, device=where,
            progress=show,
        )  # fmt: skip
    if out is not None:
        _write(out, points, dataset.name, method)
    if as_json:
        found = [asdict(point) for point in points]
        print_json({"data": dataset.name, "held_out": dataset.held_out, "points": found})


def _write(folder: Path, points: list, data: str, method: str) -> None:
    """The points as a table, and as a picture where matplotlib is there."""
    from .._util.files import replace_file

    folder.mkdir(parents=True, exist_ok=True)
    with replace_file(folder / "frontier.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(points[0])))
        writer.writeheader()
        writer.writerows(asdict(point) for point in points)
    try:
        from ..reports.plots.frontier import frontier_figure
        from ..reports.plots.style import save
    except ImportError as error:
        typer.echo(f"note: no picture: {error}", err=True)
        return
    save(frontier_figure(points, data, method), folder / "frontier.png")
