"""What is launched is what the self-check says of it: its list is made without running a kernel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fastlbbnn
from fastlbbnn.machine import launch_variants as variants
from fastlbbnn.machine import selfcheck_agreement as agreement
from fastlbbnn.nn import MLP, GaussianLinear, LBBNNLinear, weights

CPU = torch.device("cpu")


def cases():
    shape = (24, 32, 80)
    wanted = (
        "gates, staged, cut", "blocks, cut", "no gates, x per sample, staged", "blocks, Adam inside", "blocks 3x5",
        "gates, 2 pieces", "gates, x per sample", "gates, no bias, cut", "blocks, Adam inside, omega frozen",
    )  # fmt: skip
    for case in agreement.variant_cases(["float32"], shape):
        if case.what in wanted:
            yield pytest.param(case, id=case.name)


@pytest.mark.parametrize("case", list(cases()))
def test_a_case_launches_what_is_listed_for_it_and_agrees(case):
    with variants.recording(lambda: case.label, processors=1) as listed:
        agreement.launched(case)
    with variants.recording(lambda: case.label, run=True, processors=None) as met:
        assert agreement.check(case, CPU)["ok"]
    assert met.variants == listed.variants
    assert met.values == listed.values


def models():
    yield "mlp", lambda: MLP(20, 16, 12, 3), None
    yield "mlp, blocks", lambda: MLP(20, 16, 3, block=(3, 5)), None
    yield "mlp, samples", lambda: MLP(20, 16, 3), 2
    yield "sequence, samples", lambda: nn.Sequential(LBBNNLinear(20, 16), nn.ReLU(), LBBNNLinear(16, 3)), 2
    yield "dense", lambda: nn.Sequential(GaussianLinear(20, 3)), None
    yield "local", lambda: nn.Sequential(LBBNNLinear(20, 3, estimator="local")), 2


@pytest.mark.parametrize("make,samples", [pytest.param(*rest, id=name) for name, *rest in models()])
def test_what_layers_launch_is_reachable(make, samples):
    torch.manual_seed(0)
    model = make()
    x, y = torch.randn(6, 20), torch.randint(3, (6,))
    with variants.recording(lambda: "float32", run=True, processors=None) as met:
        for optimizer in (fastlbbnn.Adam(model.parameters()), torch.optim.Adam(model.parameters())):
            loss = fastlbbnn.elbo(model, x, y, n_data=100, likelihood="categorical", samples=samples or 1).loss
            if isinstance(optimizer, fastlbbnn.Adam):
                optimizer.backward_step(loss)
            else:
                loss.backward()
                optimizer.step()
        with torch.no_grad(), weights("sampled"):
            model(x)
    reachable = variants.reachable()
    assert met.variants, "nothing was launched"
    assert met.variants <= reachable.variants, sorted(map(str, met.variants - reachable.variants))
    assert met.values <= reachable.values
