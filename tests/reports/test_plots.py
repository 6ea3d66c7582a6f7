"""Figures are drawn, are not blank, and show the numbers that they were given."""

from __future__ import annotations

import io

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from fastlbbnn.prediction import metrics
from fastlbbnn.reports import plots
from fastlbbnn.reports.plots import lines, style
from fastlbbnn.reports.plots.predictive import CONFIDENT
from fastlbbnn.reports.plots.training import stages
from fastlbbnn.structure.histogram import InclusionCounts

RNG = np.random.default_rng(3)


def pixels(figure) -> np.ndarray:
    return matplotlib.image.imread(io.BytesIO(plots.as_bytes(figure, "png", dpi=50)))[..., :3]


def history(epochs: int = 6) -> list[dict]:
    return [
        {
            "stage": "pre-training" if e < 2 else "training", "epoch": e + 1,
            "loss": 9.5 / (e + 1), "log_likelihood": -9.0 / (e + 1), "kl": 500.0 / (e + 1),
            "density": 0.5 / (e + 1), "mean_inclusion": 0.6 / (e + 1),
            "train_accuracy": 1.0 - 0.5 / (e + 1),
        }
        for e in range(epochs)
    ]  # fmt: skip


def examples(count: int, truth: bool = True) -> list[plots.Example]:
    draws = RNG.dirichlet(np.full(4, 0.4), (count, 20))
    return [plots.Example.of(RNG.random(36), p, i % 4 if truth else None) for i, p in enumerate(draws)]


FIGURES = {
    "inclusion histograms": lambda: plots.inclusion_histograms(
        {"a": [torch.rand(3, 4), torch.rand(2, 3)], "b": [torch.rand(3, 4)]}
    ),
    "inputs as an image": lambda: plots.used_inputs({"a": np.arange(36)}, input_shape=(6, 6)),
    "inputs as bars": lambda: plots.used_inputs({"a": np.arange(36), "b": np.ones(36)}, input_shape=(36,)),
    "correlations": lambda: plots.correlation_heatmaps(
        {"MF": np.corrcoef(RNG.random((9, 50))), "MVN": np.corrcoef(RNG.random((9, 50)))}, draws=50
    ),
    "predictive bars": lambda: plots.predictive_bars(
        {"in": examples(3), "out": examples(4, truth=False)},
        input_shapes={"in": (6, 6), "out": (36,)}, class_names=["cat", "dog", "owl", "emu"],
    ),
    "misclassified": lambda: plots.misclassified(examples(5), input_shape=(6, 6), title="wrong"),
    "entropies": lambda: plots.entropy_ecdfs(
        {"a to b": {"LBBNN-GP-MF": RNG.random(900), "LBBNN-GP-MF S": RNG.random(5)}}, classes=4
    ),
    "samples": lambda: plots.accuracy_against_samples(
        {"digits": {"LBBNN-GP-MF": ([1, 10, 100], RNG.random((3, 3))), "other": ([1, 5], [0.4, 0.5])}}
    ),
    "widths": lambda: plots.width_study(
        {
            "accuracy": {"all": {"FNN": ([1, 2], [0.4, 0.5])}, "sparse": {"FNN": ([1, 2], [0.3, 0.5])}},
            "density": {"sparse": {"FNN": ([1, 2], [0.4, 0.5])}},
        }
    ),
    "training curves": lambda: plots.training_curves(history()),
    "calibration": lambda: plots.reliability_diagram(
        {"p": metrics.calibration(torch.rand(60, 3).softmax(-1), torch.randint(0, 3, (60,)))}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_and_not_blank(name):
    image = pixels(FIGURES[name]())
    assert (image < 0.9).any(axis=-1).mean() > 0.01, "hardly a pixel is not white"
    colours = np.unique((image * 31).astype(int).reshape(-1, 3), axis=0)
    assert len(colours) > 8


def test_the_callers_style_is_neither_used_nor_changed():
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30.0}):
        before = dict(matplotlib.rcParams)
        figure = plots.training_curves(history())
        assert to_hex(figure.axes[0].get_facecolor()) == "#ffffff"
        assert figure.axes[0].xaxis.label.get_size() < 12.0
        assert dict(matplotlib.rcParams) == before


def test_a_saved_figure_is_the_same_file_twice(tmp_path):
    for kind in ("png", "svg"):
        first, again = (
            plots.save(plots.inclusion_histograms({"net": [[0.2, 0.9]]}), tmp_path / "new" / f"{name}.{kind}")
            for name in "ab"
        )
        assert first.read_bytes() == again.read_bytes()
    assert {p.name for p in (tmp_path / "new").iterdir()} == {"a.png", "b.png", "a.svg", "b.svg"}
    with pytest.raises(ValueError, match=r"ends in \.png, \.svg or \.pdf"):
        plots.save(plots.inclusion_histograms({"net": [[0.2, 0.9]]}), tmp_path / "a.gif")


def test_bars_are_votes_and_yellow_lines_averages():
    p = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.4, 0.5, 0.1], [0.1, 0.8, 0.1]])
    example = plots.Example.of(torch.zeros(4), p, truth=0)
    assert example.votes.tolist() == [0.25, 0.75, 0.0]
    assert example.mean == pytest.approx([0.325, 0.575, 0.1])
    assert example.predicted == 1 and example.doubtful
    figure = plots.misclassified([example], input_shape=(2, 2))
    bars = figure.axes[1] if figure.axes[1].patches else figure.axes[0]
    assert [bar.get_height() for bar in bars.patches] == pytest.approx([25.0, 75.0, 0.0])
    colours = [to_hex(bar.get_facecolor()).upper() for bar in bars.patches]
    assert colours == [style.GREEN, style.VERMILLION, style.BLUE]
    heights = [segment[0][1] for segment in bars.collections[0].get_segments()]
    assert heights == pytest.approx([32.5, 57.5, 10.0])
    (dashed,) = [line for line in bars.lines if line.get_linestyle() == "--"]
    assert dashed.get_ydata()[0] == 100.0 * CONFIDENT


def test_out_of_domain_no_bar_is_the_right_one():
    figure = plots.predictive_bars({"out": examples(1, truth=False)}, input_shapes={"out": (6, 6)}, columns=1)
    bars = next(axes for axes in figure.subfigs[0].axes if axes.patches)
    assert {to_hex(bar.get_facecolor()).upper() for bar in bars.patches} == {style.BLUE}


def test_a_histogram_counts_every_weight_once():
    alpha = torch.tensor([[0.0, 0.01, 0.49], [0.5, 0.51, 1.0]])
    figure = plots.inclusion_histograms({"net": [alpha]})
    (axes,) = figure.axes
    assert sum(bar.get_height() for bar in axes.patches) == 6
    # 0.5 is not above 0.5: two of six weights are kept.
    assert "2 of 6 above 0.5" in axes.get_title()


def test_a_histogram_of_counts_is_that_of_the_probabilities():
    alpha = torch.rand(40, 30, generator=torch.Generator().manual_seed(0))
    pictures = [
        plots.as_bytes(plots.inclusion_histograms({"net": [layer]}))
        for layer in (alpha, InclusionCounts.of(alpha))
    ]
    assert pictures[0] == pictures[1]


def test_unused_inputs_stay_blank():
    figure = plots.used_inputs({"net": [0, 2, 3, 0]}, input_shape=(2, 2))
    shown = figure.axes[0].images[0].get_array()
    assert np.ma.getmaskarray(shown).tolist() == [[True, False], [False, True]]
    assert "2 of 4 inputs used" in figure.axes[0].get_title()


def test_an_ecdf_is_the_share_at_or_below():
    at, share = lines.ecdf([3.0, 1.0, 2.0, 2.0])
    assert at.tolist() == [0.0, 1.0, 2.0, 3.0] and share.tolist() == [0.0, 0.25, 0.75, 1.0]
    values = RNG.random(5000)
    at, share = lines.ecdf(values, points=200)
    assert len(at) <= 201 and share[-1] == 1.0
    assert share == pytest.approx([(values <= v).mean() for v in at])


def test_runs_are_drawn_as_their_median_and_range():
    y = np.array([[0.1, 0.2], [0.5, 0.9], [0.4, 0.3]])
    figure = plots.accuracy_against_samples({"digits": {"LBBNN-GP-MF": ([1, 10], y)}})
    axes = figure.axes[0]
    assert axes.lines[0].get_ydata().tolist() == [0.4, 0.3]
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.1, 0.9)


def test_a_reliability_diagram_shows_accuracy_over_confidence():
    # Confidences 1, 0.9, 0.6 and 0.6; right: yes, no, yes, yes. ECE = (0 + 0.9 + 2 * 0.4) / 4.
    p = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.6, 0.4], [0.4, 0.6]])
    figure = plots.reliability_diagram({"two": metrics.calibration(p, torch.tensor([0, 1, 0, 1]), bins=4)})
    above, below = figure.axes
    assert "ECE 0.4250" in above.get_title()
    # The two of confidence 0.9 and 1 share the last bar.
    assert [bar.get_height() for bar in above.patches] == pytest.approx([0.0, 0.0, 1.0, 0.5])
    assert [bar.get_height() for bar in below.patches] == pytest.approx([0.0, 0.0, 0.5, 0.5])
    points = above.lines[1]
    shown = np.isfinite(points.get_xdata())
    assert points.get_xdata()[shown] == pytest.approx([0.6, 0.9, 1.0])
    assert points.get_ydata()[shown] == pytest.approx([1.0, 0.0, 1.0])


def test_stages_are_runs_of_epochs():
    assert stages(history(5)) == [("pre-training", 1, 2), ("training", 3, 5)]


def test_a_plain_network_has_no_kl_panel():
    rows = [{**row, "kl": 0.0, "density": 1.0, "mean_inclusion": 1.0} for row in history()]
    titles = [axes.get_title().strip() for axes in plots.training_curves(rows).axes if axes.axison]
    assert titles == ["Log-likelihood", "Accuracy on the training data, one draw"]


def test_methods_keep_their_colours():
    assert len({colour for colour, _ in style.METHOD_STYLES.values()}) == len(style.METHOD_STYLES)
    assert style.method_style("LBBNN-GP-MF S") == style.METHOD_STYLES["LBBNN-GP-MF"]
    assert style.method_style("anything", 3)[0] == style.CYCLE[3]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.inclusion_histograms({}),
        lambda: plots.predictive_bars({"a": []}, input_shapes={"a": (2,)}),
        lambda: plots.misclassified([], input_shape=(2,)),
        lambda: plots.training_curves([]),
        lambda: plots.reliability_diagram({}),
        lambda: plots.correlation_heatmaps({"a": np.zeros((2, 3))}),
        lambda: plots.entropy_ecdfs({"a": {"b": []}}, classes=3),
        lambda: plots.Example.of(np.zeros(4), np.zeros(3)),
        lambda: plots.accuracy_against_samples({"a": {"b": ([1, 2], [0.5])}}),
    ],
)
def test_nothing_to_draw_is_an_error_with_a_reason(draw):
    with pytest.raises(ValueError, match=r"expected|empty|no "):
        draw()
