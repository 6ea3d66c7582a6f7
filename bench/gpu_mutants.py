"""Wrong kernels, one mistake each, and the test that notices: are the tests of the kernels worth anything?

    python bench/gpu_mutants.py [--out FILE] [--only NAME ...] [--list] [--processes N]

A mutant is a copy of kernels/ with one line changed as a tired author would: a mask left out, an offset off by
one, the order of a step exchanged, a rounding or a cast dropped. The tests of tests/kernels/interpreted/ run
on it until one fails. Writes ``mutant, file, killed_by`` (and the change) to
bench/results/gpu_mutants.csv; exits with 1 if a mutant survives. About half an hour on one core.

Launch code is mutated too: what a kernel is told is as easily wrong as what it does.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "gpu_mutants.csv"
TESTS = Path("tests/kernels/interpreted")
COLUMNS = ("mutant", "file", "killed_by", "change")

#: Tests that a mutant of a file meets, in the order of what they cost.
_GATED = ("test_gated_linear.py", "test_registration.py", "test_half.py")
_LOCAL = ("test_local_linear.py", "test_registration.py", "test_half.py")
_ADAM = ("test_registration.py", "test_half.py")
_NOISE = ("test_noise.py", "test_gated_linear.py")


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = _GATED

    def applied(self, text: str) -> str:
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: {self.old!r} stands {found} times in {self.file}; expected once")
        return text.replace(self.old, self.new)

    @property
    def change(self) -> str:
        return f"{' '.join(self.old.split())}  ->  {' '.join(self.new.split())}"


def _of(file: str, tests: tuple[str, ...], *changes: tuple[str, str, str]) -> list[Mutant]:
    return [Mutant(name, file, old, new, tests) for name, old, new in changes]


MUTANTS = [
    *_of(
        "gated_linear.py", _GATED,
        ("forward: rows of x without their mask", "x = tl.load(x_rows + k, mask=inside_m[:, None] & (k < K)",
         "x = tl.load(x_rows + k, mask=(k < K)"),
        ("forward: columns of x without their mask", "x = tl.load(x_rows + k, mask=inside_m[:, None] & (k < K)",
         "x = tl.load(x_rows + k, mask=inside_m[:, None]"),
        ("forward: rows of weights without their mask", "inside = inside_n[:, None] & (k < K)\n",
         "inside = (k < K) & (n >= 0)[:, None]\n"),
        ("forward: outputs without their mask", "inside_y = inside_m[:, None] & inside_n[None, :]",
         "inside_y = inside_m[:, None] & (n >= 0)[None, :]"),
        ("forward: a slab writes beyond its rows", "inside_n = n < first_row + rows\n    x_rows",
         "inside_n = n <= first_row + rows\n    x_rows"),
        ("forward: the last column left out", "tl.minimum(K, (split + 1) * step), BK):\n        k = first_k",
         "tl.minimum(K - 1, (split + 1) * step), BK):\n        k = first_k"),
        ("forward: pieces of a reduction overlap", "for first_k in range(split * step,",
         "for first_k in range(split * step - split * BK,"),
        ("forward: sums counted in every sample", "with_sums = (m_tile == 0) & (sample == 0)",
         "with_sums = m_tile == 0"),
        ("forward: sums counted in every tile of the batch", "with_sums = (m_tile == 0) & (sample == 0)",
         "with_sums = sample == 0"),
        ("forward: partial sums of a split in one place", "store_partials(partials_ptr, n_tile * splits + split, H",
         "store_partials(partials_ptr, n_tile * splits, H"),
        ("forward: x of the first sample", "x_rows = x_ptr + tl.cast(sample, tl.int64) * x_sample_stride + m",
         "x_rows = x_ptr + m"),
        ("forward: staged weights of the first sample", "(tl.cast(sample, tl.int64) * rows + (n - first_row))[:, None]",
         "((n - first_row).to(tl.int64))[:, None]"),
        ("forward: staged weights from the layer's first row",
         "(tl.cast(sample, tl.int64) * rows + (n - first_row))[:, None]",
         "(tl.cast(sample, tl.int64) * rows + n)[:, None]"),
        ("forward: no bias", "            acc += sample_bias(bias_kappa_ptr, bias_rho_ptr, seed, sample, n, inside_n)"
         "[None, :]\n        if RELU:\n            acc = tl.where(acc < 0.0, 0.0, acc)  #",
         "            acc += 0.0\n        if RELU:\n            acc = tl.where(acc < 0.0, 0.0, acc)  #"),
        ("forward: bias after the ReLU", "            acc = tl.where(acc < 0.0, 0.0, acc)  # a NaN stays one",
         "            acc = tl.where(acc < 0.0, acc, acc)"),
        ("forward: weight without its mean", "w = (gate * tl.fma(tau, eps, kappa)).to(x_ptr",
         "w = (gate * (tau * eps)).to(x_ptr"),
        ("forward: gate on the mean alone", "w = (gate * tl.fma(tau, eps, kappa)).to(x_ptr",
         "w = (tl.fma(tau, eps, gate * kappa)).to(x_ptr"),
        ("forward: outputs of a split in one place", "y_ptr + split.to(tl.int64) * samples * M * N + y_offset",
         "y_ptr + y_offset"),
        ("weights: columns without their mask", "inside = (n < first_row + rows) & (k < first_col + cols)",
         "inside = (n < first_row + rows) & (k < K)"),
        ("weights: rows without their mask", "inside = (n < first_row + rows) & (k < first_col + cols)",
         "inside = (n >= first_row) & (k < first_col + cols)"),
        ("weights: place without the first column", "(n - first_row)) * cols + (k - first_col)",
         "(n - first_row)) * cols + k"),
        ("weights: sums in every sample", "        if sample == 0:\n            H, A, T, S", "        if sample >= 0:\n"
         "            H, A, T, S"),
        ("finish: parts from the second on", "    for split in range(splits):\n        part = parts_ptr + tl.cast(split, tl.int64)"
         " * samples * M * N",
         "    for split in range(1, splits):\n        part = parts_ptr + tl.cast(split, tl.int64) * samples * M * N"),
        ("finish: parts of one sample", "tl.cast(split, tl.int64) * samples * M * N\n        acc +=",
         "tl.cast(split, tl.int64) * M * N\n        acc +="),
    ),
    *_of(
        "gated_linear_backward.py", _GATED,
        ("parameters: columns before the first block", "inside_k = (k < K) & (k >= col_begin) & (k < col_begin + COL_SPAN)",
         "inside_k = (k < K) & (k < col_begin + COL_SPAN)"),
        ("parameters: columns after the last block", "inside_k = (k < K) & (k >= col_begin) & (k < col_begin + COL_SPAN)",
         "inside_k = (k < K) & (k >= col_begin)"),
        ("parameters: rows after the last block", "inside_n = (n < N) & (n < row_begin + ROW_SPAN)", "inside_n = n < N"),
        ("parameters: tiles that do not start at a multiple of four", "first_k = col_begin // 4 * 4 + (k_tile",
         "first_k = col_begin + (k_tile"),
        ("parameters: rows of the batch without their mask", "inside_m = (m < M)[:, None]\n            m = m",
         "inside_m = (m >= 0)[:, None]\n            m = m"),
        ("parameters: dy of the first sample", "dy_rows = dy_ptr + tl.cast(sample, tl.int64) * M * N\n        for first_m",
         "dy_rows = dy_ptr\n        for first_m"),
        ("parameters: x of the first sample", "x_rows = x_ptr + tl.cast(sample, tl.int64) * x_sample_stride\n        dy_rows",
         "x_rows = x_ptr\n        dy_rows"),
        ("parameters: products of samples added up", "        dw = tl.zeros([BN, BK], tl.float32)\n        x_rows",
         "        dw = by_kappa\n        x_rows"),
        ("parameters: gradient of rho without the noise", "by_tau = tl.fma(gated, eps, by_tau)", "by_tau = gated + by_tau"),
        ("parameters: gradient of rho without the gate", "by_tau = tl.fma(gated, eps, by_tau)",
         "by_tau = tl.fma(dw, eps, by_tau)"),
        ("parameters: gradient of omega without 1 - gate", "by_omega = tl.fma(gated * tl.fma(tau, eps, kappa), rest, by_omega)",
         "by_omega += gated * tl.fma(tau, eps, kappa)"),
        ("parameters: temperature left out", "domega = tl.fma(slope, cost, by_omega * inv_temperature)",
         "domega = tl.fma(slope, cost, by_omega)"),
        ("parameters: entropy left out", "cost = tl.fma(c_H, omega, c_A) + cost", "cost = c_A + cost"),
        ("parameters: sum over blocks without its mask", "tl.trans(tl.where(inside, domega, 0.0))", "tl.trans(domega)"),
        ("parameters: sum over blocks without the shift", "shift = col_begin - first_k", "shift = 0"),
        ("parameters: blocks beyond the tile written", "there = (i < (row_begin + ROW_SPAN) // BLOCK_ROWS) & (i < grid_rows)",
         "there = i < grid_rows"),
        ("parameters: blocks beyond the grid written", "there = there & (j < (col_begin + COL_SPAN) // BLOCK_COLS) & (j < grid_cols)",
         "there = there & (j < (col_begin + COL_SPAN) // BLOCK_COLS)"),
        ("parameters: pieces of a block in one place", "part = (n_tile % ROW_PIECES) * COL_PIECES + k_tile % COL_PIECES",
         "part = (n_tile % ROW_PIECES) * 0 + k_tile % COL_PIECES"),
        ("input: rows of the batch without their mask", "mask=inside_m & (n < N)[None, :], other=0.0)\n            n = n[:, None]",
         "mask=(m >= 0)[:, None] & (n < N)[None, :], other=0.0)\n            n = n[:, None]"),
        ("input: columns beyond the slab", "    inside_k = k < first_col + cols\n", "    inside_k = k < K\n"),
        ("input: one sample where they share x", "end_sample = output * 0 + samples", "end_sample = output * 0 + 1"),
        ("input: no mask of the ReLU", "            acc = tl.where(hidden > 0.0, acc, 0.0)\n        tl.store(dx_ptr + offset, acc.to",
         "            acc = tl.where(hidden > 0.0, acc, acc)\n        tl.store(dx_ptr + offset, acc.to"),
        ("input: staged weights of the first sample", "place = (tl.cast(sample, tl.int64) * N + n) * cols + (k - first_col)",
         "place = n.to(tl.int64) * cols + (k - first_col)"),
        ("input: staged weights from the layer's first column", "* N + n) * cols + (k - first_col)", "* N + n) * cols + k"),
        ("input: last tile of a split left out", "for first_n in range(split * step, tl.minimum(N, (split + 1) * step), BN):",
         "for first_n in range(split * step, tl.minimum(N, (split + 1) * step - BN), BN):"),
        ("finish dx: mask of the ReLU turned round", "        acc = tl.where(hidden > 0.0, acc, 0.0)\n    tl.store(dx_ptr + offset",
         "        acc = tl.where(hidden > 0.0, 0.0, acc)\n    tl.store(dx_ptr + offset"),
        ("finish dx: one part", "        acc += tl.load(part + offset, mask=inside, other=0.0)\n    if MASKED",
         "        acc = tl.load(part + offset, mask=inside, other=0.0)\n    if MASKED"),
    ),
    *_of(
        "adam.py", _ADAM,
        ("Adam: the step before the second average", "update = m / tl.fma(tl.sqrt(v), inv_bias_sqrt, eps)",
         "update = m / tl.fma(tl.sqrt(tl.load(exp_avg_sq_ptr + offset, mask=inside, other=0.0).to(tl.float32)), inv_bias_sqrt, eps)"),
        ("Adam: eps under the correction", "tl.fma(tl.sqrt(v), inv_bias_sqrt, eps)", "((tl.sqrt(v) + eps) * inv_bias_sqrt)"),
        ("Adam: no correction of the second average", "tl.fma(tl.sqrt(v), inv_bias_sqrt, eps)", "(tl.sqrt(v) + eps)"),
        ("Adam: the gradient where its square belongs", "tl.fma(gradient * gradient, one_minus_beta2, v * beta2)",
         "tl.fma(gradient, one_minus_beta2, v * beta2)"),
        ("Adam: the second average does not fade", "tl.fma(gradient * gradient, one_minus_beta2, v * beta2)",
         "tl.fma(gradient * gradient, one_minus_beta2, v)"),
        ("Adam: uphill", "tl.fma(update, -step_size, p)", "tl.fma(update, step_size, p)"),
        ("Adam: the first average is not stored", "        tl.store(exp_avg_ptr + offset, m.to(exp_avg_ptr.dtype.element_ty), mask=inside)\n", ""),
        ("Adam: parameters without their mask", "tl.store(ptr + offset, p.to(ptr.dtype.element_ty), mask=inside)",
         "tl.store(ptr + offset, p.to(ptr.dtype.element_ty), mask=inside | (offset >= 0))"),
    ),
    *_of(
        "launch_backward.py", _ADAM,
        ("launch: Adam before the input gradient",
         "    dx = x.new_empty(0)\n    if need_dx:\n        dx = gated_linear_bwd_input(dy, layer, gates, x.dim() == 2, hidden)\n"
         "    gated_linear_bwd_params(dy, dsums, x, layer, gates, sinks)\n",
         "    gated_linear_bwd_params(dy, dsums, x, layer, gates, sinks)\n    dx = x.new_empty(0)\n    if need_dx:\n"
         "        dx = gated_linear_bwd_input(dy, layer, gates, x.dim() == 2, hidden)\n"),
        ("launch: bias correction one step behind", "lr / (1.0 - beta1**step)", "lr / (1.0 - beta1**(step + 1.0))"),
        ("launch: bias correction by the other beta", "1.0 / math.sqrt(1.0 - beta2**step)", "1.0 / math.sqrt(1.0 - beta1**step)"),
        ("launch: a frozen parameter is updated", "sinks.append(Sink(p, p, p, update=False))", "sinks.append(Sink(p, p, p))"),
        ("launch: a tile too few along blocks", "return cdiv(length, self.span) * self.pieces", "return max(1, length // self.span) * self.pieces"),
        ("launch: no room for columns before a block", "slack = 3 if aligned and block % 4 and size % block else 0", "slack = 0"),
    ),
    *_of(
        "gradients.py", _GATED,
        ("gradients: kappa without its pull", "dkappa = tl.fma(pull, kappa, by_kappa)", "dkappa = by_kappa"),
        ("gradients: pull without alpha", "pull = 2.0 * c_S * alpha", "pull = 2.0 * c_S"),
        ("gradients: log tau once", "two_c_T = 2.0 * tl.load(dsums_ptr + 3).to(tl.float32)", "two_c_T = tl.load(dsums_ptr + 3).to(tl.float32)"),
    ),
    *_of(
        "weights.py", _GATED,
        ("weights: sums of lanes outside", "alpha = tl.where(inside, alpha, 0.0)\n    T", "T"),
        ("weights: entropy of lanes outside", "H = tl.where(inside, negative_entropy(omega, alpha, rest, e), 0.0)",
         "H = negative_entropy(omega, alpha, rest, e)"),
        ("weights: log tau for log tau^2", "T = alpha * (2.0 * log_tau(rho, tau, t))", "T = alpha * log_tau(rho, tau, t)"),
        ("weights: gates of the first sample", "grid = gates_ptr + tl.cast(sample, tl.int64) * grid_rows * grid_cols",
         "grid = gates_ptr"),
        ("weights: a block's place by its columns", "(n // block_rows).to(tl.int64) * grid_cols + k // block_cols",
         "(n // block_rows).to(tl.int64) * grid_cols + k // block_rows"),
    ),
    *_of(
        "kl_sums.py", _GATED,
        ("sums: rows after the first chunk left out", "for first in range(0, rows, CHUNK):", "for first in range(0, tl.minimum(rows, 1), CHUNK):"),
        ("sums: biases do not count", "        A_w += biases\n", ""),
        ("sums: biases of lanes outside", "bias_T += tl.where(inside, T_n, 0.0).to(tl.float64)", "bias_T += T_n.to(tl.float64)"),
        ("sums: entropy of blocks that are not there", "H = tl.where(inside, negative_entropy(omega, alpha, rest, e), 0.0)",
         "H = negative_entropy(omega, alpha, rest, e)"),
        ("gates: the first sample's noise for all", "noise = block_logistic(seed, sample, n, k, block_rows, block_cols)",
         "noise = block_logistic(seed, 0, n, k, block_rows, block_cols)"),
    ),
    *_of(
        "noise.py", _NOISE,
        ("noise: nine rounds", "tl.static_range(10)", "tl.static_range(9)"),
        ("noise: a key that does not move", "k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)", "k0 = k0"),
        ("noise: samples alike", "c3 = tl.zeros_like(c0) + tl.cast(sample, tl.uint32)", "c3 = tl.zeros_like(c0)"),
        ("noise: streams alike", "c2 = tl.zeros_like(c0) + stream\n", "c2 = tl.zeros_like(c0)\n"),
        ("noise: a fused multiplication", "p = (t * t) * p + t\n", "p = tl.fma(t * t, p, t)\n"),
        ("noise: the fast square root", "tl.math.sqrt_rn(_log(v, 23.0) * -2.0)", "tl.sqrt(_log(v, 23.0) * -2.0 * 1.0000001)"),
        ("noise: no mirror", "mirror = angle_word & 0x80000000", "mirror = angle_word & 0"),
        ("noise: columns in another order", "pairs = tl.join(tl.join(a, c), tl.join(b, d))", "pairs = tl.join(tl.join(a, b), tl.join(c, d))"),
        ("noise: fewer bits of the gate", "((weight_word & 0x3FF) << 14) | (gate_word >> 18) | 1", "((weight_word & 0x3FF) << 14) | 1"),
        ("noise: uniforms that reach 0", "((weight_word & 0x3FF) << 14) | (gate_word >> 18) | 1", "((weight_word & 0x3FF) << 14) | (gate_word >> 18)"),
    ),
    *_of(
        "posterior.py", _GATED,
        ("posterior: softplus of small scales", "return tl.where(rho > 0.0, rho, 0.0) + log1p_unit(t), t", "return tl.where(rho > 0.0, rho, 0.0) + tl.log(1.0 + t), t"),
        ("posterior: 1 - sigmoid by cancellation", "return tl.where(below, smaller, larger), tl.where(below, larger, smaller), e",
         "return tl.where(below, smaller, larger), 1.0 - tl.where(below, smaller, larger), e"),
        ("posterior: a NaN logit closes its gate", "gate = tl.where(omega == omega, gate, omega)", "gate = gate"),
        ("posterior: exp without its reduction", "return tl.exp2(n) * tl.exp2(r * 1.4426950408889634)", "return tl.exp2(x * 1.4426950408889634)"),
    ),
    *_of(
        "parameters_backward.py", _GATED,
        ("bias: noise of the first sample", "normal_at(seed, BIAS, sample, 0, n), by_tau)", "normal_at(seed, BIAS, 0, 0, n), by_tau)"),
        ("bias: gradients of one sample", "by_mean_ptr, tl.cast(sample, tl.int64) * N + n, inside)", "by_mean_ptr, n, inside)"),
        ("block logits: the first part alone", "for part in range(parts):", "for part in range(tl.minimum(parts, 1)):"),
        ("block logits: what a block costs counted per part", "        domega += load_float(parts_ptr", "        domega = domega * 1.5 + load_float(parts_ptr"),
    ),
    *_of(
        "local_linear.py", _LOCAL,
        ("local: variance without 1 - alpha", "var = alpha * tl.fma(rest * kappa, kappa, tau * tau)", "var = alpha * tl.fma(kappa, kappa, tau * tau)"),
        ("local: x where its square belongs", "        x2 = (x2 * x2).to(var_type)\n", "        x2 = x2.to(var_type)\n"),
        ("local: rows of x without their mask", "x = tl.load(x_rows + k, mask=inside_m & (k < K), other=0.0)", "x = tl.load(x_rows + k, mask=k < K, other=0.0)"),
        ("local: parts of a split in one place", "parts_ptr + split.to(tl.int64) * 2 * size", "parts_ptr + split.to(tl.int64) * size"),
        ("local: no floor under the variance", "flat = var < _MIN_VARIANCE", "flat = var < 0.0"),
        ("local: variance of the bias left out", "        var += tau * tau\n", ""),
        ("local: one draw for all samples", "eps = normal_tile(seed, ACTIVATION, repeat, m, group)", "eps = normal_tile(seed, ACTIVATION, 0, m, group)"),
        ("local: dx with x once", "dx = tl.fma(2.0 * load_float(x_ptr, offset, inside), by_var, by_mean)", "dx = tl.fma(load_float(x_ptr, offset, inside), by_var, by_mean)"),
        ("local: outputs of rows outside", "inside = (m < rows) & (n < N)\n    size", "inside = (m >= 0) & (n < N)\n    size"),
        ("local: d alpha by alpha", "spread = tl.fma((rest - alpha) * kappa, kappa, tau * tau)", "spread = tl.fma(rest * kappa, kappa, tau * tau)"),
    ),
    *_of(
        "launch.py", _GATED,
        ("launch: sums of the first slab alone", "stacked = partials[0] if len(partials) == 1 else torch.cat(partials)", "stacked = partials[0]"),
        ("launch: slabs from the first row", "sample_weights(layer, gates, (first, rows), (0, K), x.dtype, True)",
         "sample_weights(layer, gates, (0, rows), (0, K), x.dtype, True)"),
        ("launch: a slab of all rows", "rows = min(slab, N - first)\n", "rows = slab\n"),
        ("launch: bias added to every part", "HAS_BIAS=layer.bias_kappa is not None, RELU=relu, STAGED=staged, SPLIT=splits > 1,",
         "HAS_BIAS=layer.bias_kappa is not None, RELU=relu, STAGED=staged, SPLIT=False,"),
    ),
]  # fmt: skip


def killer(mutant: Mutant) -> str:
    """The first test that fails on a mutant; empty if it survives."""
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder) / "kernels"
        shutil.copytree(ROOT / "kernels", kernels, ignore=shutil.ignore_patterns("__pycache__"))
        file = kernels / mutant.file
        file.write_text(mutant.applied(file.read_text(encoding="utf-8")), encoding="utf-8")
        environment = {
            **os.environ, "TRITON_INTERPRET": "1", "FASTLBBNN_MUTATED_KERNELS": str(kernels),
            "PYTHONPATH": str(ROOT / "tests"), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        plugins = ["-p", "no:cacheprovider", "-p", "support.mutated_kernels"]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", *plugins]
        files = [str(TESTS / tests) for tests in mutant.tests]
        result = subprocess.run([*command, *files], cwd=ROOT, env=environment, capture_output=True, text=True)
    if result.returncode == 1:
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.M)
        return found.group(1) if found else files[0]
    if result.returncode != 0:
        raise RuntimeError(f"{mutant.name}: pytest stopped: {result.stdout[-2000:]}{result.stderr[-1000:]}")
    return ""


def check_mutants(mutants: list[Mutant]) -> None:
    names = [m.name for m in mutants]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise ValueError(f"two mutants are called {', '.join(sorted(twice))}")
    for mutant in mutants:
        mutant.applied((ROOT / "kernels" / mutant.file).read_text(encoding="utf-8"))


def write(path: Path, known: dict[str, str]) -> list[tuple[str, str, str, str]]:
    rows = [(m.name, f"kernels/{m.file}", known[m.name], m.change) for m in MUTANTS if m.name in known]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="Table to write.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Run only these; the rest of the table stays.")
    parser.add_argument("--list", action="store_true", help="Name the mutants and stop.")
    parser.add_argument("--processes", type=int, default=1, help="Mutants at a time.")
    args = parser.parse_args(argv)
    check_mutants(MUTANTS)
    unknown = set(args.only or ()) - {m.name for m in MUTANTS}
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: no such mutant; --list names them")
    if args.list:
        print("\n".join(f"{m.file}: {m.name}: {m.change}" for m in MUTANTS))
        return 0
    known = {}
    if args.only and args.out.exists():
        with args.out.open(encoding="utf-8") as file:
            known = {row["mutant"]: row["killed_by"] for row in csv.DictReader(file)}
    chosen = [m for m in MUTANTS if not args.only or m.name in args.only]
    with ThreadPoolExecutor(args.processes) as pool:
        for mutant, killed_by in zip(chosen, pool.map(killer, chosen)):
            known[mutant.name] = killed_by
            write(args.out, known)
            print(f"{'killed  ' if killed_by else 'SURVIVED'} {mutant.name}: {killed_by}", flush=True)
    rows = write(args.out, known)
    survivors = [name for name, _, killed_by, _ in rows if not killed_by]
    print(f"{len(rows)} mutants, {len(survivors)} survived; wrote {args.out}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
