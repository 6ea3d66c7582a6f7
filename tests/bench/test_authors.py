"""The `authors` objective: its fast form is the literal one, and its predictions are the scripts'."""

from __future__ import annotations

import dataclasses
import importlib
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import RelaxedBernoulli

PAPER = Path(__file__).parents[2] / "bench" / "paper"


@pytest.fixture
def authors(monkeypatch):
    """Modules of the package, imported by the name that the script beside it uses."""
    monkeypatch.syspath_prepend(str(PAPER))
    names = (
        "data", "fnn", "gaussian", "lbbnn", "literal", "normal_jeffreys", "prediction", "results", "training",
    )
    return SimpleNamespace(**{name: importlib.import_module(f"authors.{name}") for name in names})


@pytest.fixture(autouse=True)
def float64_on_one_thread():
    """Layers are built, and noise is drawn, in the default dtype; threads only slow such small layers."""
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)


INCLUSIONS = ("MeanFieldInclusion", "StaleMVNInclusion", "RankOneInclusion")
STAGES = {  # weight_prior, indicator_prior, gates: rounded or hard
    "pre-training": (False, False, False),
    "training, first layer": (True, True, False),
    "training, other layers": (False, True, False),
    "post-training": (True, True, True),
}


def density(eps, tau):
    """N(mu + tau eps; mu, tau^2)"""
    return (-0.5 * eps * eps).exp() / (tau * math.sqrt(2.0 * math.pi))


def make_layer(authors, inclusion, stage):
    torch.manual_seed(3)
    layer = authors.lbbnn.AuthorsLayer(200, 100, getattr(authors.lbbnn, inclusion))
    weight_prior, indicator_prior, gates = STAGES[stage]
    layer.exact = authors.lbbnn.Exactness(weight_prior, indicator_prior, gates)
    if stage != "pre-training":
        for hyper in (layer.pa, layer.pb, layer.weight_a, layer.weight_b, layer.bias_a, layer.bias_b):
            hyper.requires_grad_(False)
    if gates:
        layer.inclusion.requires_grad_(False)
    return layer


@pytest.mark.parametrize("inclusion", INCLUSIONS)
@pytest.mark.parametrize("stage", STAGES)
def test_the_fast_objective_has_the_gradients_of_the_literal_one(authors, inclusion, stage):
    layer = make_layer(authors, inclusion, stage)
    x, target = torch.randn(7, 200), torch.randn(7, 100)
    parameters = {name: p for name, p in layer.named_parameters() if p.requires_grad}

    torch.manual_seed(11)
    outputs, divergence = layer(x)
    fast = torch.autograd.grad((outputs * target).sum() + divergence, parameters.values())
    torch.manual_seed(11)
    draw = authors.literal.draw(layer)
    literal_outputs = F.linear(x, draw.w, draw.bias)
    slow = torch.autograd.grad((literal_outputs * target).sum() + draw.divergence, parameters.values())

    # Half-open gates are what the closed form leaves to the literal terms: there must be some to test.
    half_open = (draw.g > 1e-6) & (draw.g < 1.0 - 1e-6)
    assert STAGES[stage][2] or half_open.sum() >= 5
    # An open gate is 1 in the one and 1 - 2^-52 in the other.
    torch.testing.assert_close(outputs, literal_outputs, rtol=1e-12, atol=1e-12)
    # The closed form drops the guard 1e-8 beside a density N: d log(N + guard) is N / (N + guard) of
    # d log N, which is -1/tau for tau and cancels for mu, there with terms of size |eps| / tau <= 5 / tau.
    # Everything else differs by rounding, 2^-52 a term, of terms up to 1/T = 1e3 times 1/tau, of which a
    # scalar sums as many as there are weights.
    tau = F.softplus(layer.rho.detach())
    guard = authors.literal.GUARD / density(draw.eps, tau) * 5.0 / tau
    assert guard.median() < 1e-6  # against gradients of order 1/tau = 1e2
    rounding = 2.0**-52 * 1e3 / float(tau.min())
    for name, mine, theirs in zip(parameters, fast, slow):
        tolerance = rounding + 1e-11 * theirs.abs() + (guard if name in ("mu", "rho") else 0.0)
        worst = ((mine - theirs).abs() / tolerance).max()
        assert worst <= 1.0, f"{name}: error of {float(worst)} tolerances"


@pytest.mark.parametrize("inclusion", INCLUSIONS)
def test_the_fast_objective_has_the_value_of_the_literal_one(authors, inclusion):
    layer = make_layer(authors, inclusion, "pre-training")
    torch.manual_seed(11)
    _, fast = layer(torch.zeros(1, 200))
    torch.manual_seed(11)
    draw = authors.literal.draw(layer)
    slow = draw.divergence
    # A guard is 1e-8 a weight in the prior, and 1e-8 / N in log q(w).
    smallest = density(draw.eps, F.softplus(layer.rho.detach())).min()
    tolerance = layer.mu.numel() * authors.literal.GUARD * (2.0 + 1.0 / smallest)
    assert tolerance < 1e-3 * slow.abs()
    torch.testing.assert_close(fast, slow, rtol=0.0, atol=float(tolerance))


def test_the_gate_is_torchs_relaxed_bernoulli(authors):
    alpha = torch.linspace(0.01, 0.99, 1001)
    torch.manual_seed(5)
    expected = RelaxedBernoulli(torch.tensor(1e-3), probs=alpha).rsample()
    torch.manual_seed(5)
    torch.testing.assert_close(authors.literal.relaxed_gate(alpha, torch.rand_like(alpha)), expected)


def test_the_indicator_prior_ignores_a(authors):
    """g = 0: log(pb / (pa + pb)) - lgamma(pa), g = 1: -log(pa + pb) - lgamma(pa): log-odds -log pb."""
    pa, pb = torch.tensor(1.7), torch.tensor(2.9)
    shut = authors.literal.log_indicator_prior(torch.zeros(1), pa, pb)
    opened = authors.literal.log_indicator_prior(torch.ones(1), pa, pb)
    torch.testing.assert_close(shut, (pb / (pa + pb)).log() - torch.lgamma(pa))
    torch.testing.assert_close(opened, -(pa + pb).log() - torch.lgamma(pa))


def test_the_mixture_prior_has_a_narrow_component_of_sd_e_to_the_minus_6(authors):
    w = torch.tensor([0.0, 1e-4, 0.003, 0.01, 0.4])
    wide, narrow = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.0, math.exp(-6.0))
    expected = (0.5 * wide.log_prob(w).exp() + 0.5 * narrow.log_prob(w).exp()).log().sum()
    torch.testing.assert_close(authors.gaussian.log_prior(w, mixture=True), expected)
    torch.testing.assert_close(authors.gaussian.log_prior(w, mixture=False), wide.log_prob(w).sum())


def test_pruning_changes_no_output_of_the_normal_jeffreys_network_but_its_density(authors):
    torch.manual_seed(0)
    network = authors.normal_jeffreys.AuthorsNormalJeffreys((6, 5, 4, 3), n_data=10)
    assert network.pruned_density() == 1.0
    with torch.no_grad():
        network.layers[0].z_mu[:2] = 0.01  # log rate -9 + 9.2, above -2.8
        network.layers[2].z_mu[0] = 0.1  # -9 + 4.6, above -5
    assert network.pruned_density() == (4 * 5 + 5 * 3 + 3 * 3) / (6 * 5 + 5 * 4 + 4 * 3)
    assert set(network.batch(torch.randn(2, 6), 3)) == {
        ("SIM", "SIM"), ("ALL", "MEA"), ("PRN", "SIM"), ("PRN", "MEA"),
    }


def test_pruned_plain_networks_keep_the_largest_weights_and_neurons(authors):
    torch.manual_seed(0)
    weights = [torch.randn(40, 20), torch.randn(60, 40), torch.randn(5, 60)]
    total = sum(w.numel() for w in weights)
    pruned = authors.fnn.keep_largest_weights(weights, 0.3)
    kept = torch.cat([w[w != 0.0] for w in pruned]).abs()
    assert kept.numel() == round(0.3 * total)
    assert kept.min() == torch.cat([w.flatten() for w in weights]).abs().sort().values[-kept.numel()]

    pruned = authors.fnn.keep_largest_neurons(weights, 0.3)
    assert [int((w.abs().sum(1) > 0.0).sum()) for w in pruned] == [12, 18, 5]
    for before, layer, following in zip(weights, pruned, pruned[1:]):
        alive = layer.abs().sum(1) > 0.0
        assert before[alive].norm(dim=1).min() >= before[~alive].norm(dim=1).max()
        assert torch.equal(following.abs().sum(0) > 0.0, alive)


def test_the_average_is_of_log_probabilities_and_sure_is_normalised_sigmoids(authors):
    """Row 0: the mean of logs picks class 1, the mean of probabilities class 0. Row 1 is sure."""
    p = torch.tensor([
        [[0.98, 0.015, 0.005], [0.998, 0.001, 0.001]],
        [[0.001, 0.5, 0.499], [0.998, 0.001, 0.001]],
    ])
    assert p.mean(0).argmax(1).tolist() == [0, 0]
    densities = {("SIM", 1): 0.5, ("SIM", 2): 1.0}
    single, average = authors.prediction.rows({("SIM", "SIM"): p.log()}, torch.tensor([1, 0]), densities)
    assert single["accuracy"] == 0.75  # the median of 0.5 and 1
    assert single["accuracies"] == [0.5, 1.0]
    assert (average["accuracy"], average["classified_at_095"], average["accuracy_at_095"]) == (1.0, 1, 1.0)
    assert (single["density"], average["density"]) == (0.5, 1.0)

    q = p / (1.0 + p)
    torch.testing.assert_close(authors.prediction.confidence(p.log()), (q / q.sum(2, keepdim=True)).mean(0))
    just_sure = torch.tensor([[[0.975, 0.025, 0.0]]])
    assert authors.prediction.confidence(just_sure.log())[0, 0] > 0.95
    assert authors.prediction.confidence(torch.tensor([[[0.97, 0.03, 0.0]]]).log())[0, 0] < 0.95


LBBNN_ROWS = [("SIM", "SIM", 1), ("SIM", "SIM", 10), ("MED", "SIM", 1), ("MED", "SIM", 10),
              ("ALL", "MEA", 1), ("MED", "MEA", 1)]
BNN_ROWS = [("ALL", "SIM", 1), ("ALL", "SIM", 10), ("ALL", "MEA", 1)]
CMF_ROWS = [("SIM", "SIM", 1), ("SIM", "SIM", 10), ("ALL", "MEA", 1)]
PRN_ROWS = [("PRN", "SIM", 1), ("PRN", "SIM", 10), ("PRN", "MEA", 1)]
PAPER_ROWS = {
    **{name: {"trained": LBBNN_ROWS, "post-trained": LBBNN_ROWS}
       for name in ("LBBNN-GP-MF", "LBBNN-GP-MVN", "LBBNN-GP-LFMVN")},
    **{name: {"trained": BNN_ROWS} for name in ("BNN-GP-MF", "BNN-MGP-MF")},
    "BNN-GP-CMF": {"trained": CMF_ROWS, "post-trained": CMF_ROWS},
    "BNN-HP-MF": {"trained": [*CMF_ROWS, *PRN_ROWS], "post-trained": PRN_ROWS},
}


@pytest.mark.parametrize("method", PAPER_ROWS)
def test_a_run_has_the_rows_of_the_papers_tables_and_repeats_itself(authors, method, monkeypatch):
    monkeypatch.setattr(authors.data, "HIDDEN", (12, 15))
    torch.manual_seed(1)
    x, y = torch.randn(200, 6), torch.randint(3, (200,))
    problem = authors.data.Problem("phoneme", x, y, x, y, 3, shuffled=False, test_batch=100)
    rows, inclusion = authors.training.run(problem, method, seed=0, epochs=22, post_epochs=1)
    found: dict[str, list] = {}
    for row in rows:
        found.setdefault(row["network"], []).append((row["gamma"], row["beta"], row["R"]))
        assert 0.0 <= row["accuracy"] <= 1.0
        assert 0.0 <= row["density"] <= 1.0
    assert found == PAPER_ROWS[method]
    assert [row["layer"] for row in inclusion] == ([1, 2, 3] if method.startswith("LBBNN") else [])

    again, _ = authors.training.run(problem, method, seed=0, epochs=22, post_epochs=1)
    assert [(r["accuracy"], r["density"]) for r in again] == [(r["accuracy"], r["density"]) for r in rows]


def test_the_stages_switch_what_the_scripts_switch(authors):
    torch.manual_seed(1)
    network = authors.lbbnn.AuthorsLBBNN((6, 5, 4, 3), authors.lbbnn.MeanFieldInclusion)
    seen = {}
    for stage in network.stages(epochs=250, post_epochs=50):
        stage.epochs_done = stage.epochs
        exact = [dataclasses.astuple(layer.exact) for layer in network.layers]
        trained = {name for name, p in network.layers[1].named_parameters() if p.requires_grad}
        groups = stage.optimizer.param_groups
        steps = [group["lr"] for group in groups[: len(groups) // 3]]  # of the first layer
        seen[stage.name] = (stage.epochs, exact, trained, steps)
    weights = {"mu", "rho", "bias_mu", "bias_rho"}
    hyper = {"pa", "pb", "weight_a", "weight_b", "bias_a", "bias_b"}
    rest = (False, True, False)
    assert seen["pre-training"] == (
        20, [(False, False, False)] * 3, weights | hyper | {"inclusion.logit"}, [1e-4, 0.1, 1e-3, 1e-5])
    assert seen["training"] == (
        230, [(True, True, False), rest, rest], weights | {"inclusion.logit"}, [1e-4, 1e-4])
    assert seen["post-training"] == (
        50, [(True, True, True), (False, True, True), (False, True, True)], weights, [1e-4, 1e-4])


def test_finished_runs_are_kept_and_skipped(authors, tmp_path):
    path = tmp_path / "new folder"
    settings = {"dataset": "phoneme", "method": "FNN", "seed": 0, "epochs": 250, "post_epochs": 50}
    assert not authors.results.finished(path, settings)
    authors.results.append(path, settings, [{"accuracy": 0.9, "accuracies": [0.9, 0.8]}], [{"layer": 1}])
    assert authors.results.finished(path, settings)
    for other in ({"seed": 1}, {"epochs": 3}, {"method": "BNN-GP-MF"}):
        assert not authors.results.finished(path, {**settings, **other})
    authors.results.append(path, {**settings, "seed": 1}, [{"accuracy": 0.8}], [])
    found = authors.results.read(path)
    assert [row["accuracy"] for row in found["predictions"]] == [0.9, 0.8]
    assert found["layers"] == [{**settings, "layer": 1}]
    assert found["predictions"][0]["accuracies"] == "0.9 0.8"
    assert authors.results.read(path, "mnist")["layers"] == []
    (path / "authors_layers.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match="is not a file of this script"):
        authors.results.read(path)


def test_the_comparison_marks_what_lies_in_the_published_range(authors, tmp_path):
    compare = importlib.import_module("compare")
    (tmp_path / "results.csv").write_text(
        "dataset,stage,method,gamma,beta,R,accuracy,accuracy_min,accuracy_max,accuracy_at_095,"
        "classified_at_095,density\n"
        "phoneme,trained,LBBNN-GP-MF,SIM,SIM,10,0.927,0.923,0.933,0.992,690,1.0\n"
        "phoneme,trained,LBBNN-GP-MF,MED,MEA,1,0.925,0.913,0.932,,,0.307\n"
    )
    (tmp_path / "inclusion.csv").write_text(
        "method,layer,dataset,mean_inclusion,min,max\nLBBNN-GP-MF,1,phoneme,0.38,0.37,0.39\n"
    )
    (tmp_path / "fnn_pruning.csv").write_text("dataset,density\n")
    for seed, accuracy, epochs in ((0, 0.930, 250), (1, 0.924, 250), (2, 0.922, 250), (3, 0.5, 2)):
        settings = {"dataset": "phoneme", "method": "LBBNN-GP-MF", "seed": seed, "epochs": epochs,
                    "post_epochs": 50}
        row = {"network": "trained", "gamma": "SIM", "beta": "SIM", "R": 10, "accuracy": accuracy,
               "accuracy_at_095": 0.99, "classified_at_095": 680, "density": 0.985, "epoch_seconds": 0.7}
        median_model = {**row, "gamma": "MED", "beta": "MEA", "R": 1, "accuracy": 0.9, "density": 0.35}
        authors.results.append(
            tmp_path, settings, [row, median_model], [{"layer": 1, "mean_inclusion": 0.41}]
        )
    text = compare.report(tmp_path, tmp_path)
    assert "| 0.927 (0.923, 0.933) | 0.924 (0.922, 0.930) + | 0.992 of 690 | 0.990 of 680 |" in text
    assert "| 1.000 | 0.985 + |" in text
    assert "| 0.900 (0.900, 0.900) - |  |  | 0.307 | 0.350 - |" in text
    assert "| 0.4100 (0.4100, 0.4100) - |" in text
    assert "| LBBNN-GP-MF | 0.70 | 20.0 |" in text  # 35 steps per epoch

    page = tmp_path / "page.md"
    page.write_text(f"before\n{compare.BEGIN}\nold\n{compare.END}\nafter\n")
    compare.write_between_markers(page, compare.BEGIN, compare.END, "new")
    assert page.read_text() == f"before\n{compare.BEGIN}\n\nnew\n{compare.END}\nafter\n"
