"""Our figures by the authors' objective beside the published ones, as Markdown.

    python bench/paper/compare.py [--results DIR] [--write bench/paper/README.md]

``--write`` replaces what stands between the two markers of the file. Medians over seeds with (min, max); the
published min and max are over ten runs. A figure is marked + where our median lies in the published range
(accuracies) or within 0.02 of the published value (densities and inclusions), else -.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from authors import results
from pages import ROOT, write_between_markers

from fastlbbnn.paper.tables import markdown, read_csv

BEGIN, END = "<!-- figures: bench/paper/compare.py --write -->", "<!-- end of figures -->"
DATASETS = ("phoneme", "mnist", "fmnist")
CLOSE = 0.02
Row = dict[str, Any]


def spread(values: list[float], digits: int = 3) -> str:
    """median (min, max)"""
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}, {max(values):.{digits}f})"


def mark(good: bool) -> str:
    return "+" if good else "-"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
    return markdown(list(head), [list(line) for line in lines]).splitlines()


def full_runs(rows: list[Row]) -> list[Row]:
    """Quick trials may lie in the same file: only runs of the published length count."""
    return [row for row in rows if (row["epochs"], row["post_epochs"]) == (250, 50)]


def prediction_lines(ours: list[Row], published: list[Row], dataset: str) -> Iterable[list[str]]:
    for row in published:
        if row["dataset"] != dataset:
            continue
        names = ("method", "gamma", "beta")
        runs = [
            r for r in ours
            if r["network"] == row["stage"] and all(r[k] == row[k] for k in names) and r["R"] == int(row["R"])
        ]
        if not runs:
            continue
        accuracies = [r["accuracy"] for r in runs]
        densities = [r["density"] for r in runs]
        low, high, density = (float(row[k]) for k in ("accuracy_min", "accuracy_max", "density"))
        inside = low <= round(statistics.median(accuracies), 3) <= high
        close = abs(statistics.median(densities) - density) <= CLOSE
        sure, published_sure = "", ""
        if row["classified_at_095"]:
            counts = statistics.median(r["classified_at_095"] for r in runs)
            shares = [r["accuracy_at_095"] for r in runs if r["accuracy_at_095"] is not None]
            sure = f"{statistics.median(shares):.3f} of {counts:.0f}" if shares else f"- of {counts:.0f}"
            published_sure = f"{float(row['accuracy_at_095']):.3f} of {row['classified_at_095']}"
        yield [
            row["method"], row["stage"], f"{row['gamma']} {row['beta']} {row['R']}",
            f"{float(row['accuracy']):.3f} ({low:.3f}, {high:.3f})", f"{spread(accuracies)} {mark(inside)}",
            published_sure, sure, f"{density:.3f}",
            f"{statistics.median(densities):.3f} {mark(close)}",
        ]


def inclusion_lines(ours: list[Row], published: list[Row], dataset: str) -> Iterable[list[str]]:
    for row in published:
        runs = [r["mean_inclusion"] for r in ours
                if r["method"] == row["method"] and r["layer"] == int(row["layer"])]
        if row["dataset"] != dataset or not runs:
            continue
        mean = float(row["mean_inclusion"])
        yield [
            row["method"], row["layer"], f"{mean:.4f} ({float(row['min']):.4f}, {float(row['max']):.4f})",
            f"{spread(runs, 4)} {mark(abs(statistics.median(runs) - mean) <= CLOSE)}",
        ]


def pruning_lines(ours: list[Row], published: list[Row], dataset: str) -> Iterable[list[str]]:
    for row in published:
        level = float(row["density"])
        line = [row["density"]]
        for kind in ("neuron", "weight"):
            gamma = "ALL" if level == 1.0 else f"{kind}s {level}"
            runs = [r["accuracy"] for r in ours if r["method"] == "FNN" and r["gamma"] == gamma]
            low, high = float(row[f"{kind}_min"]), float(row[f"{kind}_max"])
            median = float(row[f"{kind}_pruned_acc"])
            line += [f"{median:.3f} ({low:.3f}, {high:.3f})", spread(runs) if runs else ""]
        if row["dataset"] == dataset and line[-1]:
            yield line


def cost_lines(ours: list[Row], batches: int) -> Iterable[list[str]]:
    for method in dict.fromkeys(row["method"] for row in ours):
        times = [r["epoch_seconds"] for r in ours if r["method"] == method and r["network"] == "trained"]
        yield [method, f"{statistics.median(times):.2f}", f"{1e3 * statistics.median(times) / batches:.1f}"]


def report(folder: Path, paper: Path) -> str:
    lines: list[str] = []
    for dataset in DATASETS:
        found = results.read(folder, dataset)
        rows, inclusion = full_runs(found["predictions"]), full_runs(found["layers"])
        if not rows:
            continue
        methods = dict.fromkeys(row["method"] for row in rows)
        runs = ", ".join(f"{m} {len({r['seed'] for r in rows if r['method'] == m})}" for m in methods)
        lines += [f"#### {dataset.upper()}", "", f"Runs: {runs}.", ""]
        lines += table(
            ("method", "stage", "prediction, R", "accuracy, paper", "`authors`", "sure, paper", "`authors`",
             "density, paper", "`authors`"),
            prediction_lines(rows, read_csv(paper / "results.csv"), dataset),
        )
        sections = (
            (("method", "layer", "mean inclusion, paper", "`authors`"),
             list(inclusion_lines(inclusion, read_csv(paper / "inclusion.csv"), dataset))),
            (("FNN, share kept", "neurons pruned, paper", "`authors`", "weights pruned, paper", "`authors`"),
             list(pruning_lines(rows, read_csv(paper / "fnn_pruning.csv"), dataset))),
            (("method", "CPU seconds per epoch", "ms per step"),
             list(cost_lines(rows, 35 if dataset == "phoneme" else 600))),
        )
        for head, body in sections:
            if body:
                lines += ["", *table(head, body)]
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results",
                        help="folder of authors_predictions.csv and authors_layers.csv")
    parser.add_argument("--paper", type=Path, default=ROOT / "fastlbbnn" / "paper" / "numbers",
                        help="folder of the published results.csv, inclusion.csv, fnn_pruning.csv")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between FILE's markers")
    args = parser.parse_args(arguments)
    text = report(args.results, args.paper)
    if args.write is None:
        print(text)
    else:
        write_between_markers(args.write, BEGIN, END, text)


if __name__ == "__main__":
    main()
