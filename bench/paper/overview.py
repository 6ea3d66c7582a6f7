"""The overview of all methods on the paper's data, from the results of `fastlbbnn reproduce`.

    python bench/paper/overview.py [--write bench/paper/README.md]

A cell: accuracy averaged over ten draws / accuracy of the sparse model's means (of a dense method's means; of
one draw where draws alone are sparse), the share of the weights that the sparse model keeps, and in brackets
the number of runs where it is not the paper's ten; medians over the runs. ``--write`` replaces what stands
between the two markers of the file.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from pages import ROOT, write_between_markers

from fastlbbnn.paper import Settings, find_experiment, reproduce
from fastlbbnn.paper.tables import markdown, read_csv

BEGIN, END = "<!-- figures: bench/paper/overview.py --write -->", "<!-- end of the overview -->"
#: Data set -> runs per method.
DATASETS = {"phoneme": 10, "mnist": 3, "fmnist": 3}
RECIPES = ("paper", "gentle", "early", "ours")
METHODS = (
    "LBBNN-GP-MF", "LBBNN-GP-MVN", "LBBNN-GP-LFMVN", "LBBNN-fixed", "BNN-HP-MF", "BNN-GP-CMF", "BNN-MGP-MF",
    "BNN-GP-MF",
)
#: Heading -> where its numbers come from; of several the one that a data set has.
COLUMNS = {
    "paper": ("paper",),
    "authors' objective": ("authors",),
    "`paper` recipe": ("ours, paper's recipe",),
    "`gentle` (PHONEME), `early`": ("ours, gentle recipe", "ours, early recipe"),
    "`ours`": ("ours, our recipe",),
}
AVERAGED = (("SIM", "SIM", "10"), ("ALL", "SIM", "10"))
SPARSE = (("MED", "MEA", "1"), ("PRN", "MEA", "1"), ("SIM", "SIM", "1"), ("ALL", "MEA", "1"))
PAPERS_RUNS = "10"


def percent(share: float) -> str:
    """Two digits: 0.0031 -> 0.31 %."""
    return f"{float(f'{100.0 * share:.2g}'):g} %"


def cell(rows: list[dict[str, str]]) -> str:
    """``rows``: of one data set, method and source."""
    by_prediction = {(row["gamma"], row["beta"], row["R"]): row for row in rows}
    averaged = next((by_prediction[p] for p in AVERAGED if p in by_prediction), None)
    sparse = next((by_prediction[p] for p in SPARSE if p in by_prediction), None)
    if averaged is None or sparse is None:
        return ""
    text = f"{float(averaged['accuracy']):.3f} / {float(sparse['accuracy']):.3f}"
    if sparse["gamma"] != "ALL":
        text += f", {percent(float(sparse['density']))}"
    return text if averaged["runs"] == PAPERS_RUNS else f"{text} ({averaged['runs']})"


def predictions(results: Path, dataset: str) -> list[dict[str, str]]:
    """The rows of the experiment's table, from the tidy tables of all runs."""
    with tempfile.TemporaryDirectory() as out:
        settings = Settings(
            out=Path(out), results=results, authors=results, runs=DATASETS[dataset], recipes=RECIPES
        )
        experiment = replace(find_experiment(dataset), outputs=("predictions",))
        reproduce(experiment, settings, train=False, pictures=False)
        return read_csv(Path(out) / dataset / "predictions.csv")


def lines(results: Path) -> list[list[str]]:
    found = []
    for dataset in DATASETS:
        rows = predictions(results, dataset)
        for method in METHODS:
            own = [row for row in rows if row["method"] == method]
            if not any(row["source"] == "paper" for row in own):
                continue
            cells = []
            for sources in COLUMNS.values():
                made = (cell([row for row in own if row["source"] == source]) for source in sources)
                cells.append(next((text for text in made if text), ""))
            found.append([f"{dataset.upper()}, {method}", *cells])
    return found


def report(results: Path) -> str:
    return markdown(("", *COLUMNS), lines(results))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results",
                        help="folder of the tidy tables that `fastlbbnn reproduce` writes")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between FILE's markers")
    args = parser.parse_args(arguments)
    if args.write is None:
        print(report(args.results))
    else:
        write_between_markers(args.write, BEGIN, END, report(args.results))


if __name__ == "__main__":
    main()
