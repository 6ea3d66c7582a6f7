"""``python -m fastlbbnn.demo``: train an LBBNN on real digits, then predict in every way there is.

The data are the 1,797 handwritten digits of 8 x 8 pixels that scikit-learn ships, so nothing is
downloaded. Written to ``--out``: the network (safetensors), the results (JSON) and a figure.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ._util.files import replace_file
from .data import load
from .inference.elbo import elbo
from .inference.optim import Adam, param_groups
from .nn import MLP
from .nn.layer import bayesian_layers
from .nn.priors import FixedPrior
from .prediction.predict import predict
from .structure.density import density

#: Prediction mode -> its name in the paper.
MODES = {
    "sampled": "model averaging (SIM SIM)",
    "mean": "posterior mean (ALL MEA)",
    "median": "median model, averaged (MED SIM)",
    "median-mean": "median model, means (MED MEA)",
}

#: A prediction below this probability is a doubt.
CONFIDENT = 0.95


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> list[dict[str, float]]:
    """Returns the bound, the KL and the density of the median model after every epoch."""
    optimizer = Adam(param_groups(model, weights=1e-2, inclusion=3e-2))
    history = []
    progress = tqdm(range(epochs), desc="training", unit="epoch", disable=None)
    for _ in progress:
        value = kl = 0.0
        for rows in torch.randperm(len(x)).split(100):
            batch = elbo(model, x[rows], y[rows], n_data=len(x))
            optimizer.backward_step(batch.loss)
            share = len(rows) / len(x)
            value += share * batch.value.item()
            kl += share * batch.kl.item()
        history.append({"elbo": value, "kl": kl, "density": density(model)})
        progress.set_postfix(elbo=f"{value:.0f}", kl=f"{kl:.0f}", density=f"{history[-1]['density']:.3f}")
    return history


def evaluate(model: nn.Module, x: Tensor, y: Tensor, samples: int) -> list[dict[str, Any]]:
    """One row a prediction mode."""
    rows = []
    for mode, name in MODES.items():
        p = predict(model, x, mode=mode, samples=samples)
        correct = p.argmax(-1) == y
        sure = p.amax(-1) >= CONFIDENT
        rows.append(
            {
                "mode": mode,
                "name": name,
                "accuracy": correct.float().mean().item(),
                "confident_accuracy": correct[sure].float().mean().item() if sure.any() else None,
                "confident_count": int(sure.sum()),
                "count": len(y),
                "density": density(model, mode),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    header = ("prediction", "accuracy", f"accuracy >= {CONFIDENT}", f"count >= {CONFIDENT}", "density")
    lines = [header]
    for r in rows:
        confident = "-" if r["confident_accuracy"] is None else f"{r['confident_accuracy']:.3f}"
        lines.append(
            (
                r["name"], f"{r['accuracy']:.3f}", confident,
                f"{r['confident_count']} of {r['count']}", f"{r['density']:.3f}",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)) for line in lines)


def draw(model: nn.Module, history: list[dict[str, float]], path: Path) -> None:
    """The bound over time, the inclusion probabilities, and which pixels the median model looks at."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    layers = bayesian_layers(model)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    bound = [h["elbo"] for h in history]
    left.plot(bound, color="tab:blue")
    # The first epochs climb so far that the rest would look flat.
    shown = bound[len(bound) // 20 :]
    left.set_ylim(min(shown), max(shown) + 0.05 * (max(shown) - min(shown)))
    left.set(xlabel="epoch", ylabel="ELBO (nats)", title="Evidence lower bound")
    other = left.twinx()
    other.plot([h["density"] for h in history], color="tab:orange")
    other.set(ylabel="density of the median model", yscale="log")
    left.yaxis.label.set_color("tab:blue")
    other.yaxis.label.set_color("tab:orange")

    for i, layer in enumerate(layers):
        alpha = layer.inclusion_probabilities().detach().flatten()
        middle.hist(alpha, bins=40, range=(0, 1), histtype="step", label=f"layer {i + 1}")
    middle.axvline(0.5, color="grey", linestyle=":")
    middle.set(xlabel="inclusion probability", ylabel="weights", yscale="log", title="Structure")
    middle.legend()

    used = (layers[0].inclusion_probabilities() > 0.5).sum(0).reshape(8, 8)
    image = right.imshow(used, cmap="viridis")
    right.set(title="Selected weights a pixel", xticks=[], yticks=[])
    figure.colorbar(image, ax=right)
    with replace_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
    plt.close(figure)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m fastlbbnn.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the results")
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--samples", type=int, default=10, help="draws to average (R in the paper)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.epochs < 1 or args.samples < 1:
        parser.error("--epochs and --samples must be at least 1")

    torch.manual_seed(args.seed)
    digits = load("digits", seed=args.seed)
    x, y, x_test, y_test = digits.x_train, digits.y_train, digits.x_test, digits.y_test
    model = MLP(64, 100, 10, prior=FixedPrior(psi=0.25, sigma2=0.3), likelihood="categorical")
    weights = sum(layer.kappa.numel() for layer in bayesian_layers(model))
    print(f"LBBNN 64-100-10 ({weights} weights), {len(x)} training and {len(x_test)} test digits")
    start = time.perf_counter()
    history = train(model, x, y, args.epochs)
    seconds = time.perf_counter() - start
    rows = evaluate(model, x_test, y_test, args.samples)

    kept = round(density(model) * weights)
    print(f"\ntrained {args.epochs} epochs in {seconds:.1f} s; test data, R = {args.samples}:\n")
    print(table(rows))
    print(f"\nThe median model keeps {kept} of {weights} weights.")
    save(args, model, history, rows)


def save(args: argparse.Namespace, model: nn.Module, history: list, rows: list) -> None:
    from safetensors.torch import save_file

    args.out.mkdir(parents=True, exist_ok=True)
    with replace_file(args.out / "model.safetensors") as temporary:
        tensors = {k: v.contiguous().clone() for k, v in model.state_dict().items()}
        save_file(tensors, temporary, metadata={"seed": str(args.seed)})
    results = {"epochs": args.epochs, "samples": args.samples, "seed": args.seed, "modes": rows}
    with replace_file(args.out / "results.json") as temporary:
        temporary.write_text(json.dumps({**results, "history": history}, indent=1) + "\n")
    draw(model, history, args.out / "demo.png")
    print(f"Files: {args.out}/model.safetensors, {args.out}/results.json, {args.out}/demo.png")


if __name__ == "__main__":
    main()
