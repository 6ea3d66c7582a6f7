"""How many kernels a first epoch compiles: Triton compiles anew for every kind of argument that it tells apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the launch code needs triton (pip install triton)")

from fastlbbnn.kernels import launch, launch_backward, launch_local

from fastlbbnn.machine import launch_variants
from fastlbbnn.machine.launch_variants import Met, recording

SIZES = (784, 400, 600, 10)


def kind_of(value, parameter) -> object:
    """What Triton's launcher looks at: constants, dtypes, divisibility by 16, integers that are one."""
    if parameter.is_constexpr:
        return value
    if isinstance(value, Tensor):
        # What torch allocates is aligned; a view is if its offset is.
        aligned = value.storage_offset() * value.element_size() % 16 == 0
        return value.dtype, parameter.do_not_specialize_on_alignment or aligned
    if isinstance(value, bool) or not isinstance(value, int):
        return type(value)
    return "int" if parameter.do_not_specialize else ("int", value == 1, value % 16 == 0)


class Kinds(Met):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple] = set()

    def add(self, kernel, given, dtype) -> None:
        modules = (launch, launch_backward, launch_local)
        wrapped = next(vars(m)[f"_{kernel}_kernel"] for m in modules if f"_{kernel}_kernel" in vars(m))
        parameters = wrapped.kernel.params
        kinds = tuple(kind_of(given.get(p.name), p) for p in parameters)
        self.found.add((kernel, kinds, given.get("num_warps"), given.get("num_stages"), given.get("maxnreg")))


def compiled_for(batches: list[int], adam: bool = True) -> set[tuple]:
    """Kernels of training steps of the paper's network in TF32, as an H100 launches them."""
    from fastlbbnn.ops import on_triton
    from fastlbbnn.ops.parameters import absent_as_empty

    kinds = Kinds()
    parameters: list[Tensor | None] = []
    for cols, rows in zip(SIZES, SIZES[1:]):
        parameters += launch_variants._parameters(rows, cols, torch.float32, (1, 1), True, True)
    layers = len(SIZES) - 1
    seeds = torch.empty(layers, dtype=torch.int64, device="meta")
    with launch_variants.products("tf32"), recording(lambda: "tf32", arch="sm90", met=kinds):
        for batch in batches:
            x = torch.empty(batch, SIZES[0], device="meta")
            given = absent_as_empty(parameters, x)
            draw = (seeds, 1, [1, 1] * layers, [0.5] * layers, False)
            y, sums, saved = on_triton.gated_mlp_fwd(x, given, *draw, True)
            arguments = (torch.empty_like(y), torch.empty_like(sums), x, given, saved, *draw, False)
            if adam:
                on_triton.gated_mlp_bwd_adam(*arguments, *launch_variants._adam(parameters))
            else:
                on_triton.gated_mlp_bwd(*arguments)
    return kinds.found


def test_a_changed_last_batch_compiles_nothing():
    """Neither one that is a multiple of 16, nor one that is odd."""
    once = compiled_for([100])
    assert compiled_for([100, 96, 97]) == once


def test_the_papers_network_compiles_few_kernels():
    assert len(compiled_for([100])) <= 16
