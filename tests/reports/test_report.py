"""A report is one page that holds everything, says what the results say, and stays whole."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from support.tiny_runs import make_dataset, make_run

from fastlbbnn.reports import render, uncertain, write_report
from fastlbbnn.reports.columns import share
from fastlbbnn.reports.content import gather
from fastlbbnn.reports.words import headline


class Page(HTMLParser):
    """Collects what a browser would load, and checks that what is opened is closed."""

    EMPTY = frozenset(("meta", "img", "br", "link", "input", "hr"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[dict[str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.loads += [found[k] for k in ("src", "srcset", "action") if k in found]
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a":
            self.links.append(found["href"])
        elif "href" in found:
            self.loads.append(found["href"])
        if tag == "img":
            self.images.append(found)
        assert tag not in ("script", "iframe", "object", "embed")
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module", autouse=True)
def few_examples():
    """Each takes two axes, which take longest to draw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uncertain, "SHOWN", 2)
        patch.setattr(uncertain, "WRONG", 2)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run") / "lbbnn")


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "new" / "report.html"
    other = make_dataset(name="foreign <b>&</b>")
    assert write_report(run, make_dataset(), out, other=other, samples=20) == out
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]
    return out.read_text(encoding="utf-8")


def test_the_page_is_whole_and_loads_nothing(page):
    found = Page(page)
    assert found.open == [], "every tag is closed"
    assert found.loads and all(source.startswith("data:image/png;base64,") for source in found.loads)
    assert "@import" not in page and "url(" not in page
    assert '<meta name="viewport" content="width=device-width' in page
    assert "prefers-color-scheme: dark" in page


def test_every_figure_is_an_image_with_words(page):
    images = Page(page).images
    # Curves, histograms, inputs, calibration, single, wrong (if any), entropies, bars of both domains.
    assert len(images) >= 7
    for image in images:
        data = base64.b64decode(image["src"].removeprefix("data:image/png;base64,"), validate=True)
        assert data.startswith(b"\x89PNG") and len(data) > 5000
        assert len(image["alt"]) > 10


def test_links_lead_to_sections(page):
    found = Page(page)
    assert found.links and {link.removeprefix("#") for link in found.links} <= set(found.ids)
    assert len(set(found.ids)) == len(found.ids)


def test_the_table_holds_every_row_of_the_results(page, run):
    text = " ".join("".join(Page(page).text).split())
    for row in run.results["rows"]:
        assert f"{row['accuracy']:.4f}" in text and share(row["density"]) in text
    for stage in ("After training", "After post-training of the sparse model"):
        assert stage in text
    for name in ("gamma SIM", "gamma MED", "beta MEA", "decided", "density"):
        assert name in text
    assert run.config["versions"]["torch"] in text and "quick" in text


def test_names_from_outside_cannot_become_tags(page):
    assert "foreign &lt;b&gt;&amp;&lt;/b&gt;" in page
    assert "<b>" not in page


def test_the_headline_is_of_the_averaged_prediction_and_the_sparse_model(run):
    found = headline(run.results, run, run.model())
    rows = {(r["network"], r["gamma"], r["beta"], r["R"]): r for r in run.results["rows"]}
    full, sparse = rows["trained", "SIM", "SIM", 4], rows["trained", "MED", "SIM", 4]
    assert f"{100 * full['accuracy']:.1f} % of 60 test rows" in found["sentence"]
    assert f"right on {100 * sparse['accuracy']:.1f} %" in found["sentence"]
    assert "SIM SIM, R = 4" in found["cards"][0][1]


def test_validation_rows_are_called_so(run, monkeypatch):
    monkeypatch.setattr("fastlbbnn.reports.plots.as_bytes", lambda *_, **__: b"")
    held_out = replace(make_dataset(), held_out="validation")
    page = render(gather(run, held_out, other=None, samples=5, seed=0))
    assert "60 validation rows" in page and "test row" not in page


def test_without_a_second_data_set_the_page_says_how_to_give_one(run, monkeypatch):
    monkeypatch.setattr("fastlbbnn.reports.plots.as_bytes", lambda *_, **__: b"")
    content = gather(run, make_dataset(), other=None, samples=5, seed=0)
    (section,) = [s for s in content["sections"] if s.id == "foreign"]
    assert not section.figures and "--other DATA" in section.text[0]
    assert re.search(r"--other DATA", render(content))


def test_a_median_model_without_a_path_is_resolved_and_said(run, monkeypatch):
    from fastlbbnn.runs import Run

    network = run.model()
    with torch.no_grad():
        network[0].inclusion.omega.copy_(network[0].inclusion.omega.clamp(max=-1.0))
    monkeypatch.setattr(Run, "model", lambda *_: network)
    monkeypatch.setattr("fastlbbnn.reports.plots.as_bytes", lambda *_, **__: b"")
    content = gather(run, make_dataset(), other=None, samples=5, seed=0)
    (section,) = [s for s in content["sections"] if s.id == "structure"]
    assert (
        "no path from an input to an output" in section.text[0]
        and "the closest with a path" in section.text[0]
    )
    kept = section.tables[0]["rows"][-1][4]
    assert not kept.startswith("0 ")


@pytest.mark.parametrize(
    ("method", "likelihood", "sections"),
    [
        ("FNN", "categorical", {"predictions", "training", "structure", "calibration"}),
        ("BNN-GP-MF", "bernoulli", {"predictions", "training", "structure", "calibration"}),
        ("LBBNN-GP-MF", "gaussian", {"predictions", "training", "structure", "numbers"}),
        ("LBBNN-GP-MF", "poisson", {"predictions", "training", "structure", "numbers"}),
    ],
)
def test_every_kind_of_network_and_target_has_a_report(method, likelihood, sections, tmp_path):
    made = make_run(tmp_path / "run", method, likelihood)
    text = write_report(made, make_dataset(likelihood), tmp_path / "r.html", samples=5).read_text()
    found = Page(text)
    assert found.open == [] and sections <= set(found.ids)
