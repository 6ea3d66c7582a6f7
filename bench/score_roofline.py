"""Holds the roofline's predictions against a report from a GPU: where was the model wrong?

    python bench/score_roofline.py REPORT.json [--predictions FILE] [--device NAME]

REPORT.json is what ``fastlbbnn selfcheck --json`` wrote on the device. Each measured step with Adam (a width, a
batch, a variant) is compared with the committed row of the same: it should lie between the ideal ratio to a
dense step and the serial one. Below, the model charges for what the GPU does not do; above, it leaves out what
decides. Exits with 0 if at least four steps of five lie within, 1 if the model lost, 2 if nothing can be
compared.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

from report import Row, print_table

PREDICTIONS = Path(__file__).parent / "results" / "roofline.csv"
#: Share of the measured steps that has to lie between the two predictions, and what measuring may be off by.
WON, MARGIN = 0.8, 0.05
COLUMNS = {
    "device": "s", "width": "d", "batch": "d", "variant": "s", "measured": ".2f", "ideal": ".2f", "serial": ".2f",
    "verdict": "s",
}  # fmt: skip


def device_of(name: str, known: list[str]) -> str | None:
    """The device of the predictions that a driver's name means: "NVIDIA A100-SXM4-80GB" is A100."""
    found = [k for k in known if k.lower() in name.lower()]
    return max(found, key=len) if found else None


def steps(report: dict[str, Any]) -> list[Row]:
    """The measured steps of one layer: those of a network have no prediction."""
    found = (report.get("timings") or {}).get("steps", [])
    return [row for row in found if "width" in row and "ratio_to_dense" in row and row["variant"] != "dense"]


def score(report: dict[str, Any], predicted: list[dict[str, str]], device: str | None = None) -> list[Row]:
    """A row for every measured step that was predicted."""
    known = list(dict.fromkeys(p["device"] for p in predicted))
    name = device or device_of(report["machine"]["device"], known)
    if name not in known:
        raise ValueError(
            f"no prediction for {report['machine']['device']!r}; expected one of {', '.join(known)} (or --device)"
        )
    by_key = {
        (p["device"], int(p["width"]), int(p["batch"]), p["dtype"], p["variant"]): p for p in predicted
    }
    rows = []
    for row in steps(report):
        p = by_key.get((name, row["width"], row["batch"], row["dtype"], row["variant"]))
        if p is None:
            continue
        ideal, serial = float(p["ratio_to_dense_ideal"]), float(p["ratio_to_dense_serial"])
        measured = row["ratio_to_dense"]
        verdict = "within"
        if measured < ideal * (1.0 - MARGIN):
            verdict = "faster"
        elif measured > serial * (1.0 + MARGIN):
            verdict = "slower"
        rows.append({
            "device": name, "width": row["width"], "batch": row["batch"], "variant": row["variant"],
            "measured": measured, "ideal": ideal, "serial": serial, "verdict": verdict,
        })  # fmt: skip
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="What selfcheck --json wrote.")
    parser.add_argument("--predictions", type=Path, default=PREDICTIONS, help="Table of bench/roofline.py --csv.")
    parser.add_argument("--device", help="Device of the predictions, where the report's name does not tell.")
    args = parser.parse_args(argv)
    try:
        report = json.loads(args.report.read_text(encoding="utf-8"))
        with args.predictions.open(encoding="utf-8") as file:
            rows = score(report, list(csv.DictReader(file)), args.device)
    except (OSError, ValueError, KeyError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if not rows:
        print("the report holds no step that was predicted (was it made with --quick?)", file=sys.stderr)
        return 2
    print_table(rows, COLUMNS)
    within = sum(row["verdict"] == "within" for row in rows)
    print(f"\n{within} of {len(rows)} steps lie between the ideal and the serial prediction")
    won = within >= WON * len(rows)
    print("the model holds" if won else "the model LOST: see the rows above")
    return 0 if won else 1


if __name__ == "__main__":
    sys.exit(main())
