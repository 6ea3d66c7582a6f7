"""``selfcheck``, part one: every backend of a device against the reference in float64."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import ops, reference
from ..inference.optim import Adam
from ..reference.local_linear import MIN_VARIANCE
from .launch_variants import Variant, forced, launch_layer, products, reachable, recording

#: Relative rounding of a number, to the nearest (tf32: as the tensor cores take it).
UNIT = {
    "float32": 2.0**-24, "tf32": 2.0**-10, "float16": 2.0**-11, "bfloat16": 2.0**-8,
}  # fmt: skip
_NAMES = ("dkappa", "drho", "domega", "dbias_kappa", "dbias_rho")
_SEED = -987654321987
#: An upstream gradient of the five sums with every entry at work.
_DSUMS = (1.0, 0.3, 0.2, -0.5, 0.7)


@dataclass(frozen=True)
class Case:
    """One call, on one backend, in one precision."""

    op: str
    what: str
    backend: str
    precision: str
    shape: tuple[int, int, int]  # batch, outputs, inputs
    samples: int = 1
    block: tuple[int, int] = (1, 1)
    gated: bool = True
    bias: bool = True
    #: float32 parameters beside an x in half precision.
    mixed: bool = False
    #: A step of Adam inside the backward pass in place of the gradients.
    adam: bool = False
    #: x [samples, batch, inputs] in place of one x for all samples.
    per_sample: bool = False
    #: Parameters that are not trained.
    frozen: tuple[str, ...] = ()
    #: Pieces that reductions are cut into, and whether sampled weights are staged; None: the kernels' choice.
    splits: int | None = None
    staged: bool | None = None
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.precision == "tf32" else getattr(torch, self.precision)

    @property
    def parameter_dtype(self) -> torch.dtype:
        return torch.float32 if self.mixed else self.dtype

    @property
    def name(self) -> str:
        return f"{self.op} {self.what} {self.label} {'x'.join(map(str, self.shape))}"

    @property
    def label(self) -> str:
        """The key of ``launch_variants.DTYPES``."""
        return f"{self.precision} beside float32" if self.mixed else self.precision

    def way(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        return forced(self.op, self.shape, self.dtype, self.splits, self.staged, device)


def cases(backend: str, precisions: list[str], quick: bool, small: bool) -> Iterator[Case]:
    """What is checked, in the order in which it is; ``small`` shapes for an interpreter."""
    main, odd = ((24, 32, 48), (5, 9, 13)) if quick or small else ((96, 160, 208), (33, 41, 43))
    for precision in precisions:
        yield Case("gated_linear", "gated", backend, precision, main, options={"temperature": 0.5})
        yield Case("local_linear", "gated", backend, precision, main)
        if precision in ("bfloat16", "float16"):
            mixed: dict[str, Any] = {"mixed": True, "shape": main}
            yield Case(
                "gated_linear", "mixed", backend, precision, options={"temperature": 0.5}, **mixed
            )
            yield Case("local_linear", "mixed", backend, precision, **mixed)
    single: dict[str, Any] = {"backend": backend, "precision": "float32"}
    gate: dict[str, Any] = {"temperature": 0.5}
    yield Case("gated_linear", "odd shape", shape=odd, options=gate, **single)
    yield Case("gated_linear", "hard gates", shape=main, options={"hard": True}, **single)
    yield Case("gated_linear", "no gates", shape=main, gated=False, **single)
    yield Case("kl_sums", "gated", shape=main, **single)
    yield Case("gated_linear", "Adam inside", shape=main, adam=True, options=gate, **single)
    if quick:
        return
    large = 200 if small else 600
    yield Case("gated_linear", "no bias", shape=main, bias=False, options=gate, **single)
    yield Case("gated_linear", "3 samples", shape=odd, samples=3, options=gate, **single)
    yield Case("gated_linear", "blocks 4x4", shape=main, block=(4, 4), options=gate, **single)
    yield Case("gated_linear", "blocks 5x7", shape=odd, block=(5, 7), options=gate, **single)
    yield Case("gated_linear", "batch of 1", shape=(1, *main[1:]), options=gate, **single)
    yield Case("gated_linear", "large batch", shape=(large, 80, 96), options=gate, **single)
    yield Case("local_linear", "no gates", shape=main, gated=False, **single)
    yield Case("local_linear", "3 samples", shape=odd, samples=3, **single)
    yield Case("kl_sums", "blocks 5x7", shape=odd, block=(5, 7), **single)
    blocks: dict[str, Any] = {"block": (5, 7), "options": gate}
    yield Case("gated_linear", "Adam inside, blocks", shape=odd, adam=True, **blocks, **single)
    yield Case("local_linear", "Adam inside", shape=main, adam=True, **single)
    yield Case("gated_mlp", "two layers", shape=main, options=gate, **single)
    yield Case("gated_mlp", "Adam inside", shape=main, adam=True, options=gate, **single)
    if backend == "triton":
        # An interpreter makes the same numbers on any way.
        yield from variant_cases(precisions, (24, 32, 80) if small else main)


_ALL = {"in one piece": (1, False), "cut": (2, False), "staged": (1, True), "staged, cut": (2, True)}
_INDICATORS: dict[str, dict[str, Any]] = {
    "gates": {}, "blocks": {"block": (4, 4)}, "no gates": {"gated": False},
}  # fmt: skip


def variant_cases(precisions: list[str], shape: tuple[int, int, int]) -> Iterator[Case]:
    """Every variant of the Triton kernels that training can launch, in every precision.

    ``launch_variants.reachable`` lists them; a test holds that list against these cases.
    """
    mixed = [p for p in precisions if p in ("bfloat16", "float16")]
    for precision, beside in [*((p, False) for p in precisions), *((p, True) for p in mixed)]:
        common: dict[str, Any] = {
            "backend": "triton", "precision": precision, "shape": shape, "mixed": beside,
        }  # fmt: skip
        soft: dict[str, Any] = {"options": {"temperature": 0.5}}
        hard: dict[str, Any] = {"options": {"hard": True}}
        for indicators, given in _INDICATORS.items():
            for way, (splits, staged) in _ALL.items():
                ways: dict[str, Any] = {"splits": splits, "staged": staged, **given, **common}
                # The ReLU in the first layer's forward pass and in the second one's backward pass.
                yield Case("gated_mlp", f"{indicators}, {way}", **soft, **ways)
                three: dict[str, Any] = {"samples": 3, "per_sample": True, "bias": way == "cut"}
                yield Case("gated_linear", f"{indicators}, x per sample, {way}", **hard, **three, **ways)
            yield Case("gated_mlp", f"{indicators}, Adam inside", adam=True, **soft, **given, **common)
            yield Case("kl_sums", indicators, **given, **common)
        odd: dict[str, Any] = {"block": (3, 5), **soft, **common}
        yield Case("gated_linear", "blocks 3x5", **odd)
        yield Case("gated_linear", "blocks 3x5, Adam inside", adam=True, **odd)
        for gated in (True, False):
            name = "gates" if gated else "no gates"
            for splits in (1, 2):
                ways = {"splits": splits, "gated": gated, **common}
                yield Case("local_linear", f"{name}, {splits} pieces", **ways)
            local: dict[str, Any] = {"gated": gated, "samples": 3, **common}
            yield Case("local_linear", f"{name}, x per sample", per_sample=True, bias=False, **local)
            yield Case("local_linear", f"{name}, Adam inside", adam=True, **local)
    for op, what in (("gated_linear", "gates"), ("gated_linear", "blocks"), ("local_linear", "gates")):
        for frozen in ("kappa", "rho", "omega", "bias_kappa", "bias_rho"):
            yield Case(
                op, f"{what}, Adam inside, {frozen} frozen", "triton", "float32", shape, adam=True,
                frozen=(frozen,), **_INDICATORS[what],
            )  # fmt: skip
    yield Case("gated_linear", "gates, no bias, cut", "triton", "float32", shape, bias=False, splits=2)


def launched(case: Case) -> None:
    """What the kernels are asked for in this case, on tensors without data (``launch_variants``)."""
    with products(case.label), case.way(torch.device("meta")):
        launch_layer(
            case.op, case.shape, case.label, samples=case.samples, block=case.block, gated=case.gated,
            bias=case.bias, hard=case.options.get("hard", False), per_sample=case.per_sample,
            adam=case.adam, frozen=tuple(_NAMES.index(f"d{name}") for name in case.frozen),
        )  # fmt: skip


def coverage() -> dict[str, Any]:
    """Every reachable variant and the first case that launches it (None: none does)."""
    found: dict[Variant, str] = {}
    values: dict[tuple[str, str, int], str] = {}
    for case in cases("triton", ["float32", "tf32", "bfloat16", "float16"], quick=False, small=False):
        with recording(lambda case=case: case.label) as met:  # type: ignore[misc]
            launched(case)
        for variant in met.variants:
            found.setdefault(variant, case.name)
        for value in met.values:
            values.setdefault(value, case.name)
    wanted = reachable()
    return {
        "variants": [{**v.as_dict(), "variant": str(v), "case": found.get(v)} for v in sorted(wanted.variants)],
        "values": [
            {"kernel": kernel, "constant": name, "value": value, "case": values.get((kernel, name, value))}
            for kernel, name, value in sorted(wanted.values)
        ],
    }  # fmt: skip


def make_inputs(case: Case, device: torch.device) -> tuple[Tensor, list[Tensor | None], Tensor]:
    """x, parameters and dy in the dtypes of the case, the same on every device."""
    batch, rows, cols = case.shape
    g = torch.Generator().manual_seed(1)

    def normal(*shape: int, scale: float = 1.0, shift: float = 0.0, dtype=None) -> Tensor:
        values = torch.randn(*shape, generator=g) * scale + shift
        return values.to(dtype or case.parameter_dtype).to(device)

    def layer(cols: int, scale: float) -> list[Tensor | None]:
        grid = reference.grid_shape(rows, cols, case.block)
        return [
            normal(rows, cols, scale=scale),
            normal(rows, cols, scale=1.5, shift=-3.0),
            normal(*grid, scale=2.0) if case.gated else None,
            normal(rows) if case.bias else None,
            normal(rows, shift=-2.0) if case.bias else None,
        ]

    parameters = layer(cols, 0.3)
    x = ((case.samples,) if case.per_sample else ()) + (batch, cols)
    given = normal(*x, dtype=case.dtype), normal(case.samples, batch, rows, dtype=case.dtype)
    if case.op == "gated_mlp":
        parameters += layer(rows, 0.3)
    return given[0], parameters, given[1]


def _float(t: Tensor | None) -> Any:
    return None if t is None else t.float()


class _Plain:
    """The reference with products in the precision of x and all else in float32."""

    @staticmethod
    def kl_sums(*parameters, block):
        return reference.kl_sums(*map(_float, parameters), block=block)

    @staticmethod
    def gated_linear(x, *parameters, seed, samples, block, **options):
        per_sample = [x] * samples if x.dim() == 2 else list(x)
        y = [_Plain._one(xs, parameters, seed, s, block, options) for s, xs in enumerate(per_sample)]
        return torch.stack(y), reference.kl_sums(*map(_float, parameters), block=block)

    @staticmethod
    def gated_mlp(x, layers, *, seeds, samples, blocks, temperatures, hard=False):
        sums = []
        for i, layer in enumerate(layers):
            if i:
                x = torch.relu(x)
            draw = {"hard": True} if hard else {"temperature": temperatures[i]}
            per_sample = [x] * samples if x.dim() == 2 else list(x)
            outputs = [
                _Plain._one(xs, layer, seeds[i], s, blocks[i], draw) for s, xs in enumerate(per_sample)
            ]
            x = torch.stack(outputs)
            sums.append(reference.kl_sums(*map(_float, layer), block=blocks[i]))
        return x, torch.stack(sums)

    @staticmethod
    def _one(x, layer, seed, sample, block, draw):
        kappa, rho, omega, bias_kappa, bias_rho = map(_float, layer)
        w = reference.sample_weights(kappa, rho, omega, seed=seed, sample=sample, block=block, **draw)
        y = (x @ w.to(x.dtype).T).to(kappa.dtype)
        if bias_kappa is not None:
            y = y + reference.sample_bias(bias_kappa, bias_rho, seed=seed, sample=sample)
        return y.to(x.dtype)

    @staticmethod
    def local_linear(x, *parameters, seed, samples):
        kappa, rho, omega, bias_kappa, bias_rho = map(_float, parameters)
        alpha = 1.0 if omega is None else torch.sigmoid(omega)
        mean_w = alpha * kappa
        var_w = alpha * (reference.softplus(rho).square() + (1.0 - alpha) * kappa.square())
        mean = (x @ mean_w.to(x.dtype).T).to(kappa.dtype)
        var = (x.square() @ var_w.to(x.dtype).T).to(kappa.dtype)
        if bias_kappa is not None:
            mean, var = mean + bias_kappa, var + reference.softplus(bias_rho).square()
        eps = torch.stack([
            reference.normals(seed, reference.Stream.ACTIVATION, s, *mean.shape[-2:])
            for s in range(samples)
        ])  # fmt: skip
        y = mean + var.clamp_min(MIN_VARIANCE).sqrt() * eps
        return y.to(x.dtype), reference.kl_sums(kappa, rho, omega, bias_kappa, bias_rho)


def _run(source, case: Case, device: torch.device, dtype: torch.dtype | None, **extra):
    """Outputs, sums and gradients of <y, dy> + <sums, dsums>; ``dtype``: cast everything to it."""
    x, parameters, dy = make_inputs(case, device)
    if dtype is not None:
        x, dy = x.to(dtype), dy.to(dtype)
        parameters = [None if p is None else p.to(dtype) for p in parameters]
    x.requires_grad_()
    names = [*_NAMES, *(f"{name} of layer 1" for name in _NAMES)]
    present = [
        (n, p.requires_grad_())
        for n, p in zip(names, parameters) if p is not None and n[1:] not in case.frozen
    ]  # fmt: skip
    function = getattr(source, case.op)
    seed = torch.tensor(_SEED, device=device)
    if case.op == "kl_sums":
        sums = function(*parameters, block=case.block, **extra)
        found, wanted, scalar = {}, [], torch.zeros((), dtype=torch.float64, device=device)
    elif case.op == "gated_mlp":
        hard = case.options.get("hard", False)
        y, sums = function(
            x, [parameters[: len(_NAMES)], parameters[len(_NAMES) :]], seeds=seed - torch.arange(2, device=device),
            samples=case.samples, blocks=[case.block] * 2, temperatures=[0.5] * 2, hard=hard, **extra,
        )  # fmt: skip
        found, wanted, scalar = {"y": y.detach()}, [("dx", x)], (y.double() * dy.double()).sum()
    else:
        blocks = {"block": case.block} if case.op == "gated_linear" else {}
        y, sums = function(x, *parameters, seed=seed, samples=case.samples, **blocks, **case.options, **extra)
        found, wanted, scalar = {"y": y.detach()}, [("dx", x)], (y.double() * dy.double()).sum()
    # In float64, so that what is upstream of the library rounds nothing.
    scalar = scalar + (sums.double() * torch.tensor(_DSUMS, device=device).double()).sum()
    if case.adam:
        stepped = _step(scalar, present, source is ops)
        return {**found, "sums": sums.detach(), "dx": x.grad, **stepped}
    wanted = [*wanted, *present]
    # Hard gates give their logits no gradient from the outputs; those of the sums are there.
    grads = torch.autograd.grad(scalar, [t for _, t in wanted])
    return {"sums": sums.detach(), **dict(zip([n for n, _ in wanted], grads)), **found}


def _step(loss: Tensor, present: list[tuple[str, Tensor]], inside: bool) -> dict[str, Tensor]:
    """Parameters after one step of Adam, ``inside`` the backward pass or after it.

    eps of one: a first step with the usual one goes by the sign of a gradient, which for the smallest
    is rounding.
    """
    parameters = [p for _, p in present]
    if inside:
        Adam(parameters, lr=0.5, eps=1.0).backward_step(loss)
        written = [name for name, p in present if p.grad is not None]
        if written:
            raise RuntimeError(f"the backward pass wrote {written} instead of stepping")
    else:
        optimizer = torch.optim.Adam(parameters, lr=0.5, eps=1.0)
        loss.backward()
        optimizer.step()
    return {name.removeprefix("d"): p.detach().clone() for name, p in present}


def _distance(got: Tensor, exact: Tensor) -> float:
    scale = exact.norm().item()
    return (got.double() - exact).norm().item() / (scale or 1.0)


def check(case: Case, device: torch.device) -> dict[str, Any]:
    """One case: the worst ratio of its error to what is allowed, and whether two runs agree.

    Allowed: twice the error of plain PyTorch in the same precision, both against float64, plus four
    roundings of the result (plain PyTorch can be exact by luck on a handful of elements), plus what
    the order of a float32 sum makes: L terms added one by one, of partial sums that grow like
    sqrt(i), are off by sqrt(L/2) roundings of the sum; torch adds in pairs and is off by less.
    """
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if case.precision == "tf32" else "highest")
    try:
        with case.way(device):
            got = _run(ops, case, device, None, backend=case.backend)
            again = _run(ops, case, device, None, backend=case.backend)
        plain = _run(_Plain, case, device, None)
    finally:
        torch.set_float32_matmul_precision(previous)
    exact = _run(reference, case, device, torch.float64)
    worst, where = 0.0, ""
    order = math.sqrt(max(case.shape) / 2.0) * UNIT["float32"]
    for name, value in exact.items():
        if got[name].shape != value.shape or not torch.isfinite(got[name]).all():
            return {"ok": False, "worst": None, "where": f"{name} has holes or a wrong shape"}
        allowed = 2.0 * _distance(plain[name], value) + 4.0 * UNIT[case.precision] + order
        ratio = _distance(got[name], value) / allowed
        if ratio >= worst:
            worst, where = ratio, name
    same = all(torch.equal(got[name], again[name]) for name in got)
    return {
        "ok": worst <= 1.0 and same,
        "worst": worst,
        "where": where if same else f"{where}; two runs differ",
        "repeatable": same,
    }
