"""The paper's experiments, declared: what is trained, and what is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LBBNN = ("LBBNN-GP-MF", "LBBNN-GP-MVN", "LBBNN-GP-LFMVN")
DENSE = ("BNN-GP-MF", "BNN-MGP-MF")
SPARSE_BASELINES = ("BNN-GP-CMF", "BNN-HP-MF")
BAYESIAN = (*LBBNN, *DENSE, *SPARSE_BASELINES)
#: The nine of the paper's tables and supplement.
NINE = (*LBBNN, "LBBNN-fixed", *DENSE, *SPARSE_BASELINES, "FNN")

PAPER_DATA = ("mnist", "fmnist", "phoneme")


@dataclass(frozen=True)
class Experiment:
    """One command: a grid of runs, and the tables and figures that are made of them."""

    name: str
    title: str
    #: Where in the paper.
    source: str
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    #: Names of functions in ``outputs.OUTPUTS``, in order.
    outputs: tuple[str, ...]
    #: Which of the paper's rows: trained, post-trained or fixed-prior.
    stage: str = "trained"
    #: Width factors B: hidden layers of 40 B and 60 B units; empty: the recipe's.
    widths: tuple[int, ...] = ()
    #: Data set -> densities that FNN-GMP is pruned to.
    densities: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    #: Whether the outputs take the trained networks themselves, and not only their results.
    needs_networks: bool = False
    #: Runs by default.
    runs: int = 3


def _predictions(name: str, table: str) -> Experiment:
    return Experiment(
        name,
        f"Predictions on {name.upper()}",
        f"Table {table}, S-2 to S-4; Figure 1",
        (name,),
        NINE,
        ("predictions", "inclusion", "times", "histograms"),
    )


EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        _predictions("mnist", "3"),
        _predictions("fmnist", "4"),
        _predictions("phoneme", "5"),
        Experiment(
            "fixed-priors", "Fixed priors: psi = exp(-2 log n), sigma2 = 1", "Supplement, fixed priors",
            ("mnist", "fmnist"), ("LBBNN-fixed",), ("predictions", "inclusion", "histograms"),
            stage="fixed-prior",
        ),
        Experiment(
            "posttrain", "Predictions after post-training", "Supplement, post-training", PAPER_DATA,
            (*LBBNN, *SPARSE_BASELINES), ("predictions",), stage="post-trained",
        ),
        Experiment(
            "fnn", "The frequentist network, pruned", "Tables S-5 to S-7", PAPER_DATA, ("FNN", "FNN-GMP"),
            ("pruning",),
            # Those of the median models of LBBNN-GP-MF, and of a sparse method of the paper's that is denser.
            densities={"mnist": (0.163, 0.079), "fmnist": (0.302, 0.108), "phoneme": (0.457, 0.307)},
            needs_networks=True,
        ),
        Experiment(
            "ood", "Out of domain: MNIST and FMNIST against each other", "Figures 2 to 4, S-1",
            ("mnist", "fmnist"), BAYESIAN, ("foreign_entropies", "foreign_examples"), runs=1,
            needs_networks=True,
        ),
        Experiment(
            "misclassified", "Wrongly classified images", "Figure 5", ("mnist", "fmnist"), ("LBBNN-GP-MF",),
            ("misclassified",), runs=1, needs_networks=True,
        ),
        Experiment(
            "widths", "Networks of other widths", "Supplement, widths", ("phoneme",), BAYESIAN,
            ("width_study",), widths=tuple(range(1, 11)),
        ),
        Experiment(
            "correlations", "Correlations of indicators", "Supplement, correlations", ("phoneme",), LBBNN,
            ("correlations",), runs=1, needs_networks=True,
        ),
        Experiment(
            "samples", "Accuracy against the number of samples", "Supplement, samples", ("mnist", "fmnist"),
            LBBNN, ("samples",), runs=1, needs_networks=True,
        ),
    )
}  # fmt: skip


def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment {name!r}; expected one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
