"""Training by recipes: stages do what they say, and an interruption changes nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from tqdm import tqdm

from fastlbbnn._util.files import write_json
from fastlbbnn.data import Dataset, Preparation
from fastlbbnn.nn import expand_samples, weights
from fastlbbnn.nn.layer import bayesian_layers
from fastlbbnn.runs import RECIPES, Recipe, Stage, find_recipe, load_run, train
from fastlbbnn.runs import trainer as trainer_module
from fastlbbnn.runs.checkpoint import CheckpointClock, load_network, save_network
from fastlbbnn.runs.evaluate import evaluate_run
from fastlbbnn.runs.methods import METHODS
from fastlbbnn.runs.trainer import _Trainer

_QUICK = {"hidden": (6, 5), "batch": 16}


@pytest.fixture
def data() -> Dataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 4, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    return Dataset(
        name="toy", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:],
        likelihood="categorical", n_classes=3, preparation=Preparation.as_is(4, class_names="abc"),
    )


def _recipe(method: str, epochs: int = 4) -> Recipe:
    name = "ours" if method == "FNN-GMP" else "paper"
    return replace(find_recipe(method, name).scaled(epochs), **_QUICK)


def _networks(folder) -> dict[str, dict[str, torch.Tensor]]:
    run = load_run(folder)
    return {name: run.model(name).state_dict() for name in run.networks}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_and_is_evaluated(method, data, tmp_path):
    run = train(method, data, _recipe(method), out=tmp_path / "run", progress=False)
    assert run.finished
    assert run.config["sizes"] == [4, 6, 5, 3]
    rows = evaluate_run(run, data, samples=3)["rows"]
    trained = {(r["gamma"], r["beta"]) for r in rows if r["network"] == "trained"}
    assert trained == {(p.gamma, p.beta) for p in METHODS[method].predictions}
    assert all(0.0 <= r["accuracy"] <= 1.0 and 0.0 <= r["density"] <= 1.0 for r in rows)
    assert load_run(run.folder).results["rows"] == json.loads(json.dumps(rows))


@pytest.mark.parametrize("name", RECIPES)
def test_interrupted_and_continued_equals_uninterrupted_to_the_bit(name, data, tmp_path, monkeypatch):
    recipe = replace(RECIPES[name].scaled(5), **_QUICK)
    _assert_equal_when_interrupted(recipe.method, data, recipe, tmp_path, monkeypatch)


def test_a_learnt_noise_variance_goes_on_to_the_bit(data, tmp_path, monkeypatch):
    numbers = replace(
        data, y_train=data.x_train.sum(1), y_test=data.x_test.sum(1), likelihood="gaussian", n_classes=None,
        preparation=None,
    )
    recipe = replace(find_recipe("LBBNN-GP-MF", "ours").scaled(5), **_QUICK)
    _assert_equal_when_interrupted("LBBNN-GP-MF", numbers, recipe, tmp_path, monkeypatch)


def _assert_equal_when_interrupted(method, data, recipe, tmp_path, monkeypatch):
    whole = train(method, data, recipe, seed=7, out=tmp_path / "whole", progress=False).folder

    monkeypatch.setattr(CheckpointClock, "due", lambda _: True)  # after every epoch
    one_epoch = trainer_module._Trainer._train_epoch
    calls = 0

    def interrupt(self, *args):
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise KeyboardInterrupt
        return one_epoch(self, *args)

    monkeypatch.setattr(trainer_module._Trainer, "_train_epoch", interrupt)
    interruptions = 0
    while True:
        torch.manual_seed(interruptions)  # the state of the process must not matter
        try:
            broken = train(method, data, recipe, seed=7, out=tmp_path / "broken", progress=False).folder
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions >= 2
    expected, found = _networks(whole), _networks(broken)
    assert expected.keys() == found.keys()
    for stage, tensors in expected.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, found[stage][name]), (stage, name)
    if data.likelihood == "gaussian":
        for stage in expected:
            one, other = (load_run(folder).model(stage).likelihood for folder in (whole, broken))
            assert torch.equal(one.log_variance, other.log_variance)
    columns = ("stage", "epoch", "loss", "kl", "density")
    histories = [[[row[c] for c in columns] for row in load_run(f).history] for f in (whole, broken)]
    assert histories[0] == histories[1]


def test_seeds_differ_and_repeat(data, tmp_path):
    recipe = _recipe("LBBNN-GP-MF")
    weights = [
        _networks(train("LBBNN-GP-MF", data, recipe, seed=seed, out=tmp_path / name, progress=False).folder)
        ["trained"]["0.kappa"]
        for seed, name in ((0, "a"), (0, "b"), (1, "c"))
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_post_training_leaves_the_structure_alone(data, tmp_path):
    run = train("LBBNN-GP-MF", data, _recipe("LBBNN-GP-MF"), out=tmp_path / "r", progress=False)
    trained = run.model("trained").state_dict()
    for stage in ("post-trained", "post-median"):
        after = run.model(stage).state_dict()
        assert torch.equal(after["0.inclusion.omega"], trained["0.inclusion.omega"])
        assert torch.equal(after["0.prior.raw_psi"], trained["0.prior.raw_psi"])
        assert not torch.equal(after["0.kappa"], trained["0.kappa"])


def test_main_stage_fixes_hyperparameters_that_pre_training_learns(data, tmp_path):
    main = Stage("training", 6, {"weights": 1e-3, "inclusion": 1e-2}, saves="trained")
    learnt = {"weights": 1e-3, "inclusion": 1e-2, "psi": 1e-2, "sigma2": 1e-2}
    pre = Stage("pre-training", 3, learnt, saves="pre")
    recipe = Recipe("LBBNN-GP-MF", "test", (pre, main), **_QUICK)
    run = train("LBBNN-GP-MF", data, recipe, out=tmp_path / "r", progress=False)
    pre, trained = run.model("pre").state_dict(), run.model("trained").state_dict()
    start = run.new_network().state_dict()
    for name in ("0.prior.raw_psi", "0.prior.raw_beta"):
        assert not torch.equal(pre[name], start[name])
        assert torch.equal(pre[name], trained[name])


def test_gradual_pruning_ends_at_its_density(data, tmp_path):
    run = train("FNN-GMP", data, _recipe("FNN-GMP", 8), out=tmp_path / "r", progress=False)
    (row,) = evaluate_run(run, data)["rows"]
    weights = [4 * 6, 6 * 5, 5 * 3]
    assert row["density"] == sum(round(0.08 * n) for n in weights) / sum(weights)


@pytest.mark.parametrize("method", ["LBBNN-GP-MF", "FNN"])
def test_regression_learns_its_noise(method, tmp_path):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(400, 3, generator=generator)
    y = 2.0 * x[:, :1] + 0.3 * torch.randn(400, 1, generator=generator)
    data = Dataset(
        name="line", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:],
        likelihood="gaussian",
    )
    stage = Stage("training", 150, {"weights": 2e-2, "inclusion": 2e-2}, saves="trained", kl_warmup=30)
    recipe = Recipe(method, "test", (stage,), hidden=(8,), batch=50)
    run = train(method, data, recipe, out=tmp_path / "r", progress=False)
    # The shape's posterior is known, so the variance's estimate is as good as 300 residuals make it:
    # a relative standard error of sqrt(2/300) = 8 %; three of them, and the network's own error.
    variance = run.model().likelihood.log_variance.exp().item()
    assert 0.09 * 0.7 < variance < 0.09 * 1.6
    rows = evaluate_run(run, data, samples=5)["rows"]
    assert all(row["rmse"] < 0.5 for row in rows)
    assert all(row["rmse"] > 0.2 for row in rows)


def test_the_shipped_recipe_learns_a_small_noise(tmp_path):
    """240 rows: a hundred steps per epoch more or less must not decide how large the noise is."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(300, 2, generator=generator)
    y = 0.5 * x[:, :1] + 0.02 * torch.randn(300, 1, generator=generator)
    data = Dataset(
        name="fine line", x_train=x[:240], y_train=y[:240], x_test=x[240:], y_test=y[240:],
        likelihood="gaussian",
    )
    recipe = replace(find_recipe("LBBNN-GP-MF", "ours"), hidden=(10,))
    main = tuple(s for s in recipe.stages if s.start_from is None)
    run = train("LBBNN-GP-MF", data, replace(recipe, stages=main), out=tmp_path / "r", progress=False)
    model = run.model()
    noise = model.likelihood
    with torch.no_grad(), weights("sampled", samples=100):
        square = (model(expand_samples(data.x_train, 100)) - data.y_train).square().mean().item()
    # b/a averages (y - f)^2 over the draws of about one epoch, and the prior adds b_0/a = 0.01/121.
    assert noise.point_variance().item() == pytest.approx(square + 0.01 / 121, rel=0.3)
    assert noise.point_variance().item() < 0.02**2 * 10


def test_the_median_model_that_is_trained_has_a_path(data, tmp_path):
    """At 0.5 nothing is left: without another threshold post-training would train biases alone."""
    recipe = _recipe("LBBNN-GP-MF")
    main = [s for s in recipe.stages if s.start_from is None]
    run = train("LBBNN-GP-MF", data, replace(recipe, stages=tuple(main)), out=tmp_path / "r", progress=False)
    out, trainer = run.folder, _Trainer(run, data, recipe, False)
    about = load_network(out / "trained.safetensors", trainer.network)
    for layer in bayesian_layers(trainer.network):
        layer.inclusion.omega.data.sub_(9.0)
    save_network(out / "trained.safetensors", trainer.network, stage="trained", epoch=about["epoch"])
    before = load_run(out).model().state_dict()
    index = next(i for i, s in enumerate(recipe.stages) if s.mode == "median")
    trainer._stage(index, None, tqdm(disable=True))
    threshold = trainer._median_threshold(recipe.stages[index])
    assert threshold < 0.01
    kept = torch.sigmoid(before["0.inclusion.omega"]) > threshold
    moved = trainer.network.state_dict()["0.kappa"] != before["0.kappa"]
    assert kept.any()
    assert moved[kept].all()


def test_looking_at_an_unfinished_run_leaves_no_old_results(data, tmp_path):
    recipe = _recipe("LBBNN-GP-MF")
    main = replace(recipe, stages=tuple(s for s in recipe.stages if s.start_from is None))
    folder = train("LBBNN-GP-MF", data, main, out=tmp_path / "r", progress=False).folder
    evaluate_run(load_run(folder), data, samples=2)
    # As if it had been interrupted after the main stage, and looked at.
    config = load_run(folder).config | {"status": "running", "recipe": recipe.to_config()}
    write_json(folder / "run.json", config)
    train("LBBNN-GP-MF", data, recipe, out=folder, progress=False)
    assert load_run(folder).results is None


def test_both_post_trainings_follow_from_the_trained_network_alone(data, tmp_path):
    """Redone from its network, a stage gives the numbers that it gave as part of the run."""
    recipe = _recipe("LBBNN-GP-MF")
    run = train("LBBNN-GP-MF", data, recipe, out=tmp_path / "r", progress=False)
    folder, expected = run.folder, run.model("post-median").state_dict()
    (folder / "post-median.safetensors").unlink()
    trainer = _Trainer(run, data, recipe, False)
    trainer._stage(len(recipe.stages) - 1, None, tqdm(disable=True))
    for name, value in load_run(folder).model("post-median").state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_pre_training_ends_when_the_prior_is_sparse(data, tmp_path):
    stages = (
        Stage("pre-training", 5, {"weights": 1e-3, "psi": 1e-3}, until_psi_below=0.9),
        Stage("training", 7, {"weights": 1e-3}, saves="trained"),
    )
    recipe = Recipe("LBBNN-GP-MF", "test", stages, **_QUICK)
    run = train("LBBNN-GP-MF", data, recipe, out=tmp_path / "r", progress=False)
    # E[psi] = 1/2 at the start is below 0.9 already.
    assert [row["stage"] for row in run.history] == ["training"] * 7


def test_kl_counts_little_in_the_warm_up(data, tmp_path):
    """With a KL that is never switched on, the prior cannot pull the scales: they shrink, not grow."""
    def scale(warmup: int) -> float:
        stage = Stage("training", 30, {"weights": 3e-2}, saves="trained", kl_warmup=warmup)
        recipe = Recipe("BNN-GP-MF", f"test {warmup}", (stage,), **_QUICK)
        run = train("BNN-GP-MF", data, recipe, out=tmp_path / str(warmup), progress=False)
        return run.model()[0].rho.mean().item()

    assert scale(10_000) < scale(0) - 0.5


def test_a_folder_of_another_run_is_refused(data, tmp_path):
    recipe = _recipe("FNN")
    train("FNN", data, recipe, seed=0, out=tmp_path / "r", progress=False)
    with pytest.raises(ValueError, match="seed 0, not 1"):
        train("FNN", data, recipe, seed=1, out=tmp_path / "r", progress=False)
    with pytest.raises(ValueError, match="another recipe"):
        train("FNN", data, replace(recipe, batch=5), seed=0, out=tmp_path / "r", progress=False)


def test_damaged_files_are_named(data, tmp_path):
    folder = train("FNN", data, _recipe("FNN"), out=tmp_path / "r", progress=False).folder
    (folder / "trained.safetensors").write_bytes(b"no safetensors file")
    with pytest.raises(ValueError, match=r"trained\.safetensors is damaged"):
        load_run(folder).model()
    with pytest.raises(FileNotFoundError, match=r"no run\.json"):
        load_run(tmp_path)
    (folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        load_run(folder)


def test_a_stage_that_trains_nothing_is_refused(data, tmp_path):
    recipe = Recipe("FNN", "test", (Stage("training", 1, {}, saves="trained"),), **_QUICK)
    with pytest.raises(ValueError, match="trains nothing"):
        train("FNN", data, recipe, out=tmp_path / "r", progress=False)


def test_recipes_are_plain_data():
    for recipe in RECIPES.values():
        again = Recipe.from_config(json.loads(json.dumps(recipe.to_config())))
        assert again.to_config() == recipe.to_config()


@pytest.mark.parametrize("epochs", [1, 2, 3, 7])
def test_the_main_stage_ends_after_as_many_epochs_as_asked_for(epochs):
    for recipe in RECIPES.values():
        scaled = recipe.scaled(epochs)
        main = next(i for i, stage in enumerate(scaled.stages) if stage.saves == "trained")
        ends = [stage.until_epoch for stage in scaled.stages]
        assert ends[main] == epochs and all(end < epochs for end in ends[:main])
        assert all(end > epochs for end in ends[main + 1 :])


def test_options_for_a_data_set_take_the_place_of_the_others(data, tmp_path):
    recipe = replace(
        _recipe("BNN-GP-MF"), options={"sigma2": 0.5, "start": "paper"},
        for_data={"toy": {"sigma2": 0.25}, "other": {"sigma2": 2.0}},
    )  # fmt: skip
    run = train("BNN-GP-MF", data, recipe, out=tmp_path / "run", progress=False)
    assert run.recipe.options == {"sigma2": 0.25, "start": "paper"}
    assert "for_data" not in run.config["recipe"]
    assert run.model("trained")[0].prior.sigma2 == 0.25
    assert recipe.on("unheard of").options == recipe.options


def test_epochs_for_a_data_set_take_the_place_of_the_others(data, tmp_path):
    recipe = replace(find_recipe("LBBNN-GP-MF", "paper"), epochs_on={"toy": 50, "other": 100}, **_QUICK)
    ends = [stage.until_epoch for stage in recipe.stages]
    assert ends == [20, 250, 300, 300]
    assert [stage.until_epoch for stage in recipe.on("toy").stages] == [4, 50, 60, 60]
    assert [stage.until_epoch for stage in recipe.on("unheard of").stages] == ends
    # Who asks for a number of epochs gets it.
    run = train("LBBNN-GP-MF", data, recipe.scaled(5), out=tmp_path / "run", progress=False)
    assert [stage.until_epoch for stage in run.recipe.stages] == [1, 5, 6, 6]
    assert "epochs_on" not in run.config["recipe"]


@pytest.mark.parametrize("method", ["LBBNN-GP-MF", "LBBNN-GP-MVN", "LBBNN-GP-LFMVN"])
def test_early_decides_the_structure_first_and_holds_it(method, data, tmp_path):
    # Six epochs of pre-training move the logits, the 24 after them must not.
    recipe = replace(find_recipe(method, "early").scaled(30), **_QUICK)
    history = train(method, data, recipe, out=tmp_path / "run", progress=False).history
    deciding = [row["mean_inclusion"] for row in history if row["stage"] == "pre-training"]
    held = {row["mean_inclusion"] for row in history if row["stage"] == "training"}
    assert len(deciding) == 6 and len(set(deciding)) == 6
    assert held == {deciding[-1]}


def test_early_decides_the_horseshoes_scales_first_and_holds_them(data, tmp_path):
    recipe = replace(find_recipe("BNN-HP-MF", "early").scaled(10), **_QUICK)
    deciding, *others = recipe.stages
    recipe = replace(recipe, stages=(replace(deciding, saves="decided"), *others))
    run = train("BNN-HP-MF", data, recipe, out=tmp_path / "run", progress=False)
    networks = (run.new_network(), run.model("decided"), run.model("trained"))
    for fresh, decided, trained in zip(*(bayesian_layers(network) for network in networks)):
        scales = zip(fresh.scale_parameters(), decided.scale_parameters(), trained.scale_parameters())
        for before, then, after in scales:
            assert not torch.equal(before, then) and torch.equal(then, after)
        assert not torch.equal(decided.kappa, trained.kappa)


def test_early_of_concrete_dropout_starts_each_layer_at_its_rate_and_leaves_it_there(data, tmp_path):
    recipe = replace(find_recipe("BNN-GP-CMF", "early").scaled(3), **_QUICK)
    rates = [0.9, 0.2, 0.001]
    recipe = replace(recipe, options={**recipe.options, "dropout": rates, "last_dropout": None})
    run = train("BNN-GP-CMF", data, recipe, out=tmp_path / "run", progress=False)
    layers = zip(rates, bayesian_layers(run.new_network()), bayesian_layers(run.model("trained")))
    for rate, fresh, layer in layers:
        assert layer.drops == "weights"
        # The logit has a few roundings of 2^-24 of its size of at most 7, a quarter of that in the rate.
        assert layer.dropout_rate() == pytest.approx(rate, abs=7 * 2.0**-24)
        assert torch.equal(fresh.omega, layer.omega) and not torch.equal(fresh.kappa, layer.kappa)
    with pytest.raises(ValueError, match=r"dropout=\[0.1, 0.1, 0.1, 0.1\] for a network of .* layers"):
        recipe = replace(recipe, options={"dropout": [0.1] * 4})
        train("BNN-GP-CMF", data, recipe, out=tmp_path / "other", progress=False)


@pytest.mark.parametrize("hidden", [(), (7,), (7, 6, 5)])
def test_early_of_concrete_dropout_takes_any_depth(hidden):
    options = find_recipe("BNN-GP-CMF", "early").options
    network = METHODS["BNN-GP-CMF"].build((4, *hidden, 3), 100, **options)
    rates = [layer.dropout for layer in bayesian_layers(network)]
    assert rates == [0.5] * len(hidden) + [1e-4]


def test_other_words_about_a_recipe_are_no_other_recipe(data, tmp_path):
    recipe = _recipe("FNN")
    folder = train("FNN", data, recipe, out=tmp_path / "run", progress=False).folder
    again = train("FNN", data, replace(recipe, notes="put better"), out=folder, progress=False)
    assert again.folder == folder
    with pytest.raises(ValueError, match="another recipe"):
        train("FNN", data, replace(recipe, batch=8), out=folder, progress=False)


def test_unknown_names_say_what_there_is():
    with pytest.raises(ValueError, match="it has 'paper'"):
        find_recipe("FNN", "best")
    with pytest.raises(ValueError, match="LBBNN-GP-MF"):
        train("LBBNN", None, out="nowhere")


def test_without_a_name_a_recipe_is_the_default_where_there_is_one():
    assert find_recipe("LBBNN-GP-MF") == find_recipe("LBBNN-GP-MF", "default")
    assert find_recipe("BNN-HP-MF") == find_recipe("BNN-HP-MF", "ours")
    assert find_recipe("BNN-GP-MF") == find_recipe("BNN-GP-MF", "paper")


@pytest.mark.parametrize("method", ["LBBNN-GP-MF", "LBBNN-GP-MVN", "LBBNN-GP-LFMVN", "LBBNN-fixed"])
@pytest.mark.parametrize("asked", [{"density": 0.1}, {"weights": 23}])
def test_the_default_recipe_delivers_what_was_asked_for(method, data, tmp_path, asked):
    recipe = replace(find_recipe(method), hidden=(12, 8)).asking(**asked).scaled(10)
    run = train(method, data, recipe, out=tmp_path / "r", progress=False)
    layers = bayesian_layers(run.model())
    kept = sum(int(layer.inclusion.chosen().sum()) for layer in layers)
    assert kept == asked.get("weights", round(0.1 * sum(layer.kappa.numel() for layer in layers)))
    assert run.config["learned"] == (run.config["gain"] > 1e-3)


def test_a_recipe_without_a_dial_cannot_be_asked_for_a_density():
    with pytest.raises(ValueError, match="has no dial"):
        find_recipe("LBBNN-GP-MF", "paper").asking(density=0.1)
    with pytest.raises(ValueError, match="expected one of the two"):
        find_recipe("LBBNN-GP-MF").asking(density=0.1, weights=3)


def test_small_data_are_gone_through_more_often():
    recipe = find_recipe("LBBNN-GP-MF", "default")
    large = recipe.for_rows(60_000, (784, 10))
    assert [s.until_epoch for s in large.stages] == [s.until_epoch for s in recipe.stages]
    for rows in (30, 100, 1_000):
        stages = recipe.for_rows(rows, (10, 2)).stages
        assert stages[-1].until_epoch * math.ceil(rows / recipe.batch) >= recipe.least_steps
        assert stages[0].until_epoch / stages[1].until_epoch == pytest.approx(
            recipe.stages[0].until_epoch / recipe.stages[1].until_epoch, abs=0.02
        )


def test_the_kl_weighs_less_the_more_rows_there_are_for_a_weight():
    recipe = find_recipe("LBBNN-GP-MF", "default").asking(weights=400)
    for rows, expected in ((100, 1.0), (400, 1.0), (1_600, 0.5), (40_000, 0.1)):
        resolved = recipe.for_rows(rows, (10, 2))
        assert [s.kl_weight for s in resolved.stages] == pytest.approx([0.3 * expected, 0.5 * expected])
        assert resolved.for_rows(rows, (10, 2)) == resolved


def test_a_network_that_does_not_learn_is_tried_again_and_then_said(data, tmp_path):
    nothing = replace(data, x_train=torch.zeros_like(data.x_train), x_test=torch.zeros_like(data.x_test))
    recipe = replace(find_recipe("LBBNN-GP-MF"), hidden=(4,)).asking(density=0.2).scaled(2)
    with pytest.warns(trainer_module.NotLearned, match="in 3 attempts"):
        run = train("LBBNN-GP-MF", nothing, recipe, out=tmp_path / "r", progress=False)
    assert run.config["attempt"] == 2 and not run.config["learned"]
    assert load_run(run.folder).finished
