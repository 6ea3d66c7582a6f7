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
        bool, typer.Option("--means-only", help="Leave out the scales for sampled predictions: a smaller file.")
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

    A threshold that leaves no path from an input to an output would make a network of constants: the
    closest one below with a path is used instead, and said.
    """
    from ..runs import load_run

    if threshold is not None and not 0.0 <= threshold < 1.0:
        raise typer.BadParameter(f"{threshold}: expected a probability in [0, 1)", param_hint="--threshold")
    if criterion not in CRITERIA:
        raise typer.BadParameter(f"{criterion!r}: expected {', '.join(CRITERIA)}", param_hint="--criterion")
    if threshold is not None and criterion != "median":
        raise typer.BadParameter(f"--threshold or --criterion {criterion}: give one of them")
    use_threads(threads)
    run = load_run(folder)
    if not any(p.gamma == "MED" for p in run.method.predictions):
        raise ValueError(
            f"{run.method.name} has no inclusion probabilities to select weights by; select is for the LBBNN "
            "methods"
        )
    model = run.model(network)
    tried: list[dict[str, Any]] = []
    used = criterion
    if criterion == "most-probable":
        model, used = _most_probable(model, seed)
    elif criterion != "median":
        threshold, tried = _best(run, model, criterion, samples, rows, seed, data, root)
    found = _select(model, 0.5 if threshold is None else threshold, not means_only)
    path = out if out is not None else folder / "selected.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    found.pop("model").save(path)
    found |= {"artifact": str(path), "bytes": path.stat().st_size, "network": network}
    found |= {"criterion": used, "asked_criterion": criterion, "tried": tried}
    if as_json:
        print_json(found)
    else:
        _show(found)


#: Ways to choose a structure.
CRITERIA = ("median", "most-probable", "waic", "dic", "nll")


def _most_probable(model: Any, seed: int) -> tuple[Any, str]:
    """The network with the structure, and the criterion that chose it."""
    import torch

    from ..structure.criteria import most_probable_model, with_structure
    from ..structure.paths import is_connected

    generator = torch.Generator().manual_seed(seed)
    found = with_structure(model, most_probable_model(model, generator=generator).indicators)
    if is_connected(found):
        return found, "most-probable"
    typer.echo(
        "the most probable structure has no path from an input to an output, so that it would be a constant; "
        "the median model instead",
        err=True,
    )
    return model, "median"


def _best(
    run: Any,
    model: Any,
    criterion: str,
    samples: int,
    rows: int,
    seed: int,
    data: str | None,
    root: str | None,
) -> tuple[float, list[dict[str, Any]]]:
    import torch

    from ..runs.data import dataset_of
    from ..structure.criteria import THRESHOLDS, best_threshold
    from ..structure.paths import connecting_threshold

    dataset = dataset_of(run, data, root)
    x, y = dataset.x_train, dataset.y_train
    if criterion == "nll":
        if dataset.held_out != "validation":
            raise ValueError(
                "--criterion nll chooses by rows that were held out, and this run has none but its test "
                "rows; train with --validation SHARE, or use waic"
            )
        x, y = dataset.x_test, dataset.y_test
    generator = torch.Generator().manual_seed(seed)
    kept = torch.randperm(len(x), generator=generator)[:rows]
    lowest = connecting_threshold(model, min(THRESHOLDS))
    if lowest < min(THRESHOLDS):
        typer.echo(
            f"no path has all its weights above {min(THRESHOLDS):g}, the smallest threshold to compare; the "
            f"closest with one is {lowest:.6g}",
            err=True,
        )
    choice = best_threshold(
        model,
        x[kept],
        y[kept],
        criterion,
        sorted({*THRESHOLDS, lowest}),
        samples=samples,
        generator=generator,
    )
    tried = [
        {
            "threshold": row.threshold,
            "density": row.density,
            "criterion": row.criterion.value,
            "effective_parameters": row.criterion.effective_parameters,
        }
        for row in choice.rows
    ]
    return choice.threshold, tried


def _show(found: dict[str, Any]) -> None:
    if found["tried"]:
        columns = {
            "threshold": Column("threshold", "{:g}".format),
            "density": Column("density", "{:.4f}".format),
            "criterion": Column(found["criterion"], "{:.6g}".format),
            "effective_parameters": Column("effective parameters", "{:.1f}".format),
        }
        typer.echo(text_table(found["tried"], columns) + "\n")
    if found["threshold"] != found["asked"]:
        typer.echo(
            f"no path has all its weights above {found['asked']:g}; the closest threshold with one is "
            f"{found['threshold']:.6g}",
            err=True,
        )
    typer.echo(text_table(found["layers"], LAYERS))
    typer.echo(
        f"\n{found['active']:,} of {found['weights']:,} weights ({100 * found['active_density']:.3g} %) and "
        f"{found['used_inputs']:,} of {found['inputs']:,} inputs at threshold {found['threshold']:.6g}\n"
        f"wrote {found['artifact']} ({found['bytes'] / 1e3:.1f} kB)"
    )


def _select(model: Any, threshold: float, posterior: bool) -> dict[str, Any]:
    from ..sparse.compact import select as select_model
    from ..structure.paths import resolve_threshold, structure_of

    used = resolve_threshold(model, threshold, warn=False)
    structure = structure_of(model, used)
    if not structure.is_connected:
        raise ValueError(
            "no threshold connects an input to an output: every path has a weight of inclusion probability "
            "0, so any selected network would be a constant; train with a weaker prior or for longer"
        )
    layers = [
        {"layer": i + 1, "weights": s.weights, "mean_inclusion": s.mean_inclusion, "kept": s.kept,
         "active": s.active, "active_density": s.active_density}
        for i, s in enumerate(structure.layers)
    ]  # fmt: skip
    return {
        "model": select_model(model, used, posterior=posterior),
        "asked": threshold,
        "threshold": used,
        "layers": layers,
        "weights": structure.weights,
        "kept": structure.kept,
        "active": structure.active,
        "density": structure.density,
        "active_density": structure.active_density,
        "used_inputs": int(structure.used_inputs.sum()),
        "inputs": structure.used_inputs.numel(),
    }
