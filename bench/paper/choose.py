"""Where `ours`, `gentle` and `early` come from: candidates compared on validation, never on test data.

    python bench/paper/choose.py --dataset phoneme --json candidates.json

A fifth of the training data is held out; every candidate trains on the rest. Among those whose median
(or pruned) model comes within a margin of the best accuracy, a mean over the splits, the one with the fewest
weights is chosen. The margin is what a split can tell apart: half a percent on PHONEME's 700 rows, a tenth of
a percent on the 12,000 of MNIST, where the paper's density gives the hyperprior (``--fitted``):

    python bench/paper/choose.py --dataset mnist --fitted --epochs 100 --margin 0.001 \
        --only "fitted, ours" "fitted, step sizes / 3" "fitted, warm-up of 60 epochs" \
        "fitted, warm-up of 150 epochs" --json candidates.json
    python bench/paper/choose.py --dataset mnist --recipe early --margin 0.001 --only early \
        --json candidates.json

Finished candidates are kept in the result file and not trained again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from data_folder import data_folder

from fastlbbnn import data
from fastlbbnn._util.files import replace_file
from fastlbbnn.runs import Recipe, Stage, find_recipe, train
from fastlbbnn.runs.evaluate import evaluate_run

#: Share of the training data that is held out.
VALIDATION = 0.2


def candidates(method: str, recipe: str, dataset: str, fitted: bool) -> dict[str, Recipe]:
    """Name -> recipe: the paper's, the named one and that with one change.

    ``ours`` either is not fitted to a data set, or as it is for one, and then called so; ``early`` is.
    """
    if recipe == "gentle":
        changed = _gentle_candidates(method)
    elif recipe == "early":
        changed = _early_candidates(find_recipe(method, "early").on(dataset), dataset)
    elif fitted:
        ours = replace(find_recipe(method, "ours"), epochs_on={}).on(dataset)
        changed = {f"fitted, {name}": r for name, r in _our_candidates(ours).items()}
    else:
        changed = _our_candidates(replace(find_recipe(method, "ours"), for_data={}, epochs_on={}))
    return {"paper": find_recipe(method, "paper"), **changed}


def _with_options(recipe: Recipe, **options) -> Recipe:
    return replace(recipe, options={**recipe.options, **options})


def _gentle_candidates(method: str) -> dict[str, Recipe]:
    gentle = find_recipe(method, "gentle")
    if method == "BNN-GP-CMF":
        return {
            f"gentle, dropout {rate:g}": replace(gentle, options={"dropout": rate})
            for rate in (0.3, 0.5, 0.8, 0.92)
        }
    first, *others = gentle.stages

    def with_size(size: float) -> Recipe:
        sizes = {k: size if k in ("inclusion", "covariance") else v for k, v in first.step_sizes.items()}
        return replace(gentle, stages=(replace(first, step_sizes=sizes), *others))

    def with_start(*logits: float) -> Recipe:
        return _with_options(gentle, start_logits=list(logits))

    starts = ((0, 1), (-2, 1), (-2, 1.5), (-4, 1.5), (-4, 2.5))
    return {
        "gentle": gentle,
        **{f"gentle, logits from {low} to {high}": with_start(low, high) for low, high in starts},
        **{f"gentle, {size:g} at first": with_size(size) for size in (1e-4, 1e-3)},
    }


def _masks_of_units(early: Recipe, dataset: str) -> dict[str, Recipe]:
    """Concrete dropout at the same densities with masks of hidden units, as in the authors' scripts."""
    last = 200 if dataset == "fmnist" else 100
    start = Stage("pre-training", 10, {"weights": 1e-4})
    main = replace(early.stages[0], until_epoch=last, step_sizes={"weights": 5e-4})
    options = {"drops": "outputs", "scaled_start": True, "temperature": 0.01}
    if dataset == "fmnist":
        options |= {"dropout": [0.913, 0.92, 1e-4], "last_dropout": None}
    units = _with_options(replace(early, stages=(start, main)), **options)
    # The first form: weights as nn.Linear's, no small steps at first, masks that are half open, rates
    # that hardly move.
    alone = replace(main, until_epoch=100, step_sizes={"weights": 3e-4, "inclusion": 1e-6})
    plain = _with_options(replace(units, stages=(alone,)), scaled_start=False, temperature=0.1)

    def with_rates(recipe: Recipe, *rates: float) -> Recipe:
        return _with_options(recipe, dropout=list(rates), last_dropout=None)

    return {
        "units": units,
        "units, dropout 0.8822 0.96": with_rates(units, 0.8822, 0.96, 1e-4),
        "units, masks at temperature 0.1": _with_options(units, temperature=0.1),
        "units, sigma2 10": _with_options(units, sigma2=10.0),
        "units, plain": plain,
        "units, plain, dropout 0.903 0.937": with_rates(plain, 0.903, 0.937, 1e-3),
    }


def _early_candidates(early: Recipe, dataset: str) -> dict[str, Recipe]:
    first, *others = early.stages

    def with_structure_held_after(epochs: int) -> Recipe:
        return replace(early, stages=(replace(first, until_epoch=epochs), *others))

    def with_weight_steps(size: float) -> Recipe:
        sizes = {**first.step_sizes, "weights": size}
        return replace(early, stages=(replace(first, step_sizes=sizes), *others))

    if early.method == "BNN-MGP-MF":
        return {"early": early, **{f"early, {n:g} at first": with_weight_steps(n) for n in (3e-4, 1e-3)}}
    if early.method == "BNN-GP-CMF":
        return {"early": early, **_masks_of_units(early, dataset)}
    return {
        "early": early,
        **{f"early, held after {n} epochs": with_structure_held_after(n) for n in (10, 40)},
    }


def _our_candidates(ours: Recipe) -> dict[str, Recipe]:
    stages = [s for s in ours.stages if s.start_from is None]

    def with_prior(**values: float) -> Recipe:
        return _with_options(ours, prior_options={**ours.options["prior_options"], **values})

    def with_sizes(factor: float) -> Recipe:
        def scaled(sizes):
            return {kind: size * factor for kind, size in sizes.items()}

        return replace(ours, stages=tuple(replace(s, step_sizes=scaled(s.step_sizes)) for s in stages))

    found = {
        "ours": ours,
        "no warm-up": replace(ours, stages=tuple(replace(s, kl_warmup=0) for s in stages)),
        "step sizes / 3": with_sizes(1 / 3),
        "step sizes * 3": with_sizes(3.0),
    }
    if any(s.kl_warmup == s.until_epoch for s in stages):

        def with_warmup(epochs: int) -> Recipe:
            changed = (replace(s, until_epoch=epochs, kl_warmup=epochs) if s.kl_warmup else s for s in stages)
            return replace(ours, stages=tuple(changed))

        found |= {f"warm-up of {epochs} epochs": with_warmup(epochs) for epochs in (60, 150)}
    if "threshold" in ours.options:
        found |= {f"threshold {t:g}": _with_options(ours, threshold=t) for t in (-1.5, 0.0, 0.4)}
        (main,) = stages

        def with_scales_held(after: int, warmup: int) -> Recipe:
            """As in `early`: what is pruned is decided while the KL has a part of its weight."""
            first = replace(
                main, name="pre-training", until_epoch=after, kl_warmup=warmup, final_factor=None, saves=None
            )
            weights = {"weights": main.step_sizes["weights"]}
            return replace(ours, stages=(first, replace(main, step_sizes=weights, kl_warmup=0)))

        found |= {
            f"scales held after {after} epochs, KL {after / warmup:.2f}": with_scales_held(after, warmup)
            for after, warmup in ((50, 550), (100, 550), (100, 250))
        }
    if ours.method == "BNN-GP-CMF":
        found |= {f"sigma2 {v:g}": _with_options(ours, sigma2=v) for v in (0.3, 0.1, 0.03)}
    if "estimator" in ours.options:
        found["Concrete gates"] = _with_options(ours, estimator="concrete")
    if "prior_options" in ours.options:
        found |= {f"{a} weights in a hundred": with_prior(a_psi=a, b_psi=100 - a) for a in (1, 3, 5, 10, 20)}
        found |= {f"slab variance {v:g} at first": with_prior(b_beta=5 * v) for v in (0.03, 0.1, 1.0)}
        learned = [
            replace(s, step_sizes={**s.step_sizes, "psi": 1e-3}) if s.kl_warmup else s for s in stages
        ]
        found["hyperprior learned"] = replace(ours, stages=tuple(learned))
    return found


def measure(recipe: Recipe, method: str, dataset: data.Dataset, seed: int) -> dict:
    """Figures of the network at the end of the main stage on the validation data."""
    recipe = replace(recipe, stages=tuple(s for s in recipe.stages if s.start_from is None))
    with tempfile.TemporaryDirectory() as folder:
        run = train(method, dataset, recipe, seed=seed, out=Path(folder) / "run")
        results = evaluate_run(run, dataset)
        loss = run.history[-1]["loss"]
    row = {"loss": loss}
    for r in results["rows"]:
        name = f"{r['gamma']} {r['beta']} {r['R']}"
        row |= {f"{name} accuracy": r["accuracy"], f"{name} density": r["density"]}
    return row


def sparse_prediction(row: dict) -> str:
    """The prediction that a method's density is about: the median model, what pruning leaves, or one draw."""
    return next(p for p in ("MED MEA 1", "PRN MEA 1", "SIM SIM 1", "ALL MEA 1") if f"{p} accuracy" in row)


def chosen(rows: list[dict], margin: float) -> str:
    """The choice among the candidates that were tried on the most splits."""
    name = sparse_prediction(rows[0])
    tried: dict[str, list[dict]] = {}
    for row in rows:
        tried.setdefault(row["candidate"], []).append(row)
    splits = max(len(found) for found in tried.values())
    means = {
        candidate: [fmean(row[f"{name} {what}"] for row in found) for what in ("accuracy", "density")]
        for candidate, found in tried.items()
        if len(found) == splits
    }
    best = max(accuracy for accuracy, _ in means.values())
    good = {c: density for c, (accuracy, density) in means.items() if accuracy >= best - margin}
    return min(good, key=good.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="phoneme")
    parser.add_argument("--method", default="LBBNN-GP-MF")
    parser.add_argument("--recipe", choices=("ours", "gentle", "early"), default="ours")
    parser.add_argument("--fitted", action="store_true", help="change `ours` as it is for this data set")
    parser.add_argument("--margin", type=float, default=0.005, help="of accuracies that count as the same")
    parser.add_argument("--only", nargs="*", help="names of candidates")
    parser.add_argument("--epochs", type=int, help="of the main stage; the others in proportion")
    parser.add_argument("--seed", type=int, default=0, help="of the split and of the training")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    dataset = data.load(args.dataset, root=data_folder()).with_validation(VALIDATION, seed=args.seed)
    rows = json.loads(args.json.read_text())["rows"] if args.json and args.json.exists() else []
    tried = candidates(args.method, args.recipe, args.dataset, args.fitted)
    for name, recipe in tried.items():
        if args.only and name not in args.only:
            continue
        if args.epochs:
            recipe = recipe.scaled(args.epochs)
        about = {"dataset": args.dataset, "method": args.method, "candidate": name, "seed": args.seed,
                 "epochs": next(s.until_epoch for s in recipe.stages if s.saves == "trained")}
        if any(about.items() <= row.items() for row in rows):
            continue
        row = about | measure(recipe, args.method, dataset, args.seed)
        rows.append(row)
        sparse = sparse_prediction(row)
        print(f"{name:28} loss {row['loss']:9.3f}   {sparse} {row[f'{sparse} accuracy']:.4f} at density "
              f"{row[f'{sparse} density']:.5f}   ALL MEA {row['ALL MEA 1 accuracy']:.4f}", flush=True)
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(args.json) as temporary:
                temporary.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    same = [r for r in rows if (r["method"], r["dataset"]) == (args.method, args.dataset)]
    print(f"chosen: {chosen([r for r in same if r['candidate'] in tried], args.margin)}")


if __name__ == "__main__":
    main()
