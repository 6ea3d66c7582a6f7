"""What a likelihood is, which there are, and how a model states its own.

A ``Likelihood`` says how observations depend on a network's outputs: their log-probability, which the bound
sums, and what predictions need of a response: its mean, its variance, and how to draw one. Those of the
paper's exponential family are in ``families``; ``fastlbbnn.GaussianDispersion`` learns its variance.

A model states its likelihood once,

    fastlbbnn.MLP(784, 400, 10, likelihood="categorical")
    fastlbbnn.set_likelihood(any_module, "gaussian")

and ``elbo``, ``predict`` and the like find it there. Outputs are ``[..., n, outputs]``, with any sample axes
in front; targets have no sample axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from .._util.dtypes import HALF
from .._util.registry import Registry

Model = TypeVar("Model", bound=nn.Module)

#: A function of (output, target) that gives the log-likelihood of every observation.
LogLikelihood = Callable[[Any, Tensor], Tensor]


class Likelihood:
    """How an observation depends on the network's outputs for it.

    A likelihood with parameters of its own is also an ``nn.Module``, named second: ``class
    Mine(Likelihood, nn.Module)``. A model that states it then owns its parameters.

    To add one, write ``log_prob``, ``mean``, ``variance`` and ``sample`` and register the class:

        @LIKELIHOODS.register("student-t")
        class StudentT(Likelihood): ...

    ``fastlbbnn.contracts.check_likelihood`` says whether it keeps its promises.
    """

    #: What it is registered as.
    name: ClassVar[str] = ""
    #: Whether responses are classes, which have probabilities but no order.
    classes: ClassVar[bool] = False

    # --- targets -------------------------------------------------------------------------------

    def fit(self, output: Tensor, target: Tensor) -> Tensor:
        """``target`` in the shape and dtype that ``log_prob`` takes; raises if they do not go together.

        ``output`` has no sample axis. Looks at shapes and dtypes alone.
        """
        return fit_values(output, target)

    def check_values(self, output: Tensor, target: Tensor) -> None:
        """Raise ValueError for targets that cannot occur, such as negative counts. Looks at the values."""
        check_not_nan("target", target)

    # --- log-probabilities ---------------------------------------------------------------------

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """Log-probability (or density) of each observation: [..., n, outputs], target -> [..., n]."""
        raise NotImplementedError

    def expected_log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        """``log_prob``, a mean over the posterior of the likelihood's own parameters: what the bound sums."""
        return self.log_prob(output, target)

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """``-expected_log_prob``, summed over the batch: what training needs."""
        return -self.expected_log_prob(output, self.fit(output, target)).sum()

    def kl(self) -> Tensor | None:
        """KL divergence of the likelihood's own parameters from their prior, in nats; None without any."""
        return None

    # --- responses -----------------------------------------------------------------------------

    def mean(self, output: Tensor) -> Tensor:
        """Mean of the response, [..., n, outputs]; for classes, their probabilities."""
        raise NotImplementedError

    def variance(self, output: Tensor) -> Tensor:
        """Variance of the response about its mean, [..., n, outputs]."""
        raise NotImplementedError

    def sample(self, output: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One response for each row of outputs: [..., n, outputs], for classes their indices [..., n]."""
        raise NotImplementedError

    def draw(self, samples: int, generator: torch.Generator | None = None) -> Likelihood:
        """With parameters drawn from their posterior, one for each entry of a leading sample axis.

        Likelihoods without parameters of their own are returned as they are.
        """
        return self

    def plug_in(self) -> Likelihood:
        """With parameters at a point estimate."""
        return self

    # --- on paper ------------------------------------------------------------------------------

    def to_config(self) -> dict[str, Any]:
        """What ``from_config`` makes the same likelihood of: plain numbers, strings and lists."""
        return {"name": self.name}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Likelihood:
        """The likelihood that ``to_config`` described."""
        settings = dict(config)
        if "name" not in settings:
            raise ValueError(f"likelihood config {config!r} has no 'name'; expected what to_config() gives")
        return LIKELIHOODS.find(settings.pop("name")).from_settings(settings)

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Likelihood:
        """One of this class from its config, the name apart."""
        return cls(**settings)

    # --- as a module ---------------------------------------------------------------------------

    def forward(self, output: Tensor, target: Tensor | None = None) -> Tensor:
        """For likelihoods that are modules: ``expected_log_prob``, or without a target the outputs.

        So one may stand at the end of an ``nn.Sequential``, as its last module.
        """
        return output if target is None else self.expected_log_prob(output, target)


#: Name -> class. A user's own is registered in the same way.
LIKELIHOODS: Registry[type[Likelihood]] = Registry("likelihood")

_by_name: dict[type[Likelihood], Likelihood] = {}


def as_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """The likelihood of a name; an object is returned as it is."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, str):
        if likelihood not in LIKELIHOODS:
            raise ValueError(f"likelihood={likelihood!r}; expected {_known()}")
        kind = LIKELIHOODS[likelihood]
        if issubclass(kind, nn.Module):
            return kind()  # with parameters of its own
        if kind not in _by_name:
            _by_name[kind] = kind()
        return _by_name[kind]
    if callable(likelihood):
        raise TypeError(
            f"likelihood is a {type(likelihood).__name__}, which says nothing about responses; for "
            "predictions, expected a name or a fastlbbnn.inference.likelihoods.Likelihood"
        )
    raise TypeError(f"likelihood is a {type(likelihood).__name__}; expected {_known()}")


def _known() -> str:
    return "one of " + ", ".join(repr(name) for name in LIKELIHOODS) + ", or a Likelihood"


# --- the likelihood of a model --------------------------------------------------------------------


def set_likelihood(model: Model, likelihood: str | Likelihood) -> Model:
    """State the likelihood of ``model``, once for its bound and its predictions; returns the model.

    It becomes the attribute ``likelihood``. One with parameters, such as ``GaussianDispersion``, becomes a
    module of the model, so that ``parameters()``, ``param_groups`` and ``state_dict`` hold it (of an
    ``nn.Sequential`` its last, which passes its input on).
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected an nn.Module")
    if not isinstance(likelihood, (str, Likelihood)) and callable(likelihood):
        raise TypeError(
            f"likelihood is a {type(likelihood).__name__}, which says nothing about responses; give it to "
            "elbo(..., likelihood=), or write a fastlbbnn.inference.likelihoods.Likelihood"
        )
    stated = as_likelihood(likelihood)
    already = getattr(model, "likelihood", None)
    if already is not None and not isinstance(already, (str, Likelihood)):
        raise ValueError(
            f"{type(model).__name__} has a `likelihood` of its own, a {type(already).__name__}; rename it, "
            "or pass likelihood= to every call"
        )
    if isinstance(stated, nn.Module) and type(stated).forward is not Likelihood.forward:
        raise TypeError(
            f"{type(stated).__name__}.forward is its own; expected that of Likelihood, which passes outputs "
            "on: write class Mine(Likelihood, nn.Module) and override expected_log_prob instead"
        )
    if already is not None:
        del model.likelihood  # a module and a plain attribute live in different places
    setattr(model, "likelihood", stated)  # noqa: B010 - a module or a plain attribute, as it comes
    return model


def stated_likelihood(model: nn.Module) -> Likelihood | None:
    """What ``set_likelihood`` left on the model, or on the one that it wraps; None for nothing."""
    found = getattr(model, "likelihood", None)
    if found is None:
        inner = getattr(model, "module", None)  # DistributedDataParallel, AveragedModel
        return stated_likelihood(inner) if isinstance(inner, nn.Module) else None
    # Anything else of this name is the model's own affair.
    return _fixed(found) if isinstance(found, (str, Likelihood)) else None


def _fixed(likelihood: str | Likelihood) -> Likelihood:
    """``as_likelihood``; ValueError for one with parameters that no model holds."""
    found = as_likelihood(likelihood)
    if isinstance(likelihood, str) and isinstance(found, nn.Module):
        raise ValueError(
            f"likelihood={likelihood!r} has parameters, which no model holds yet; say "
            f"fastlbbnn.set_likelihood(model, {likelihood!r}) once"
        )
    return found


def likelihood_of(model: nn.Module, likelihood: str | Likelihood | None = None) -> Likelihood:
    """``likelihood`` if one is given, else what the model states; ValueError if it states none."""
    if likelihood is not None:
        return _fixed(likelihood)
    found = stated_likelihood(model)
    if found is None:
        raise ValueError(
            f"{type(model).__name__} states no likelihood, so its outputs mean nothing yet; say "
            'fastlbbnn.set_likelihood(model, "categorical") once (for an MLP: MLP(..., likelihood=)), or '
            f"likelihood= in this call: {_known()}"
        )
    return found


# --- the likelihood term of the bound -------------------------------------------------------------


def negative_log_likelihood(
    output: Tensor, target: Tensor, likelihood: str | Likelihood | LogLikelihood
) -> Tensor:
    """The sum over the observations of a batch, ``output`` without a sample axis.

    In float32 for a network that computes in half precision: a sum over a batch needs its digits.
    """
    if not isinstance(likelihood, str | Likelihood):
        return _of_function(likelihood, output, target)
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the model gives a {type(output).__name__}; expected a tensor [n, outputs] (return it from "
            "forward, or give elbo a function of (output, target) as likelihood)"
        )
    if output.dtype in HALF:
        output = output.float()
    if isinstance(likelihood, str):
        likelihood = as_likelihood(likelihood)
    return likelihood.nll(output, target)


def _of_function(function: LogLikelihood, output: Any, target: Tensor) -> Tensor:
    """A function of the user's own: one log-likelihood per observation, or per value."""
    if isinstance(function, nn.modules.loss._Loss) or getattr(function, "__module__", "") == F_NAME:
        raise TypeError(
            f"likelihood is torch's {getattr(function, '__name__', type(function).__name__)}, a loss: it has "
            "the other sign; expected log-likelihoods, such as likelihood='categorical'"
        )
    if isinstance(output, Tensor) and output.dtype in HALF:
        output = output.float()
    values = function(output, target)
    shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
    given = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    batch = target.shape[0]
    each = isinstance(values, Tensor) and values.dim() > 0 and values.shape[0] == batch
    per_value = each and values.shape == target.shape and (
        not isinstance(output, Tensor) or output.shape == target.shape
    )
    if not each or not (values.numel() == batch or per_value):
        raise ValueError(
            f"the likelihood gives {shape} for outputs {given} and targets {list(target.shape)}; expected "
            f"one log-likelihood per observation, [{batch}], neither averaged nor summed, of outputs and "
            "targets of one shape"
        )
    if not target.dtype.is_floating_point and values.device.type == "cpu" and not _compiling():
        if bool((values > 1e-3).any()):
            raise ValueError(
                f"the likelihood gives {values.max().item():.4g}, a probability above 1; expected "
                "log-likelihoods (for a loss, its negative)"
            )
    return -values.sum()


F_NAME = "torch.nn.functional"
_compiling = torch.compiler.is_compiling


# --- what likelihoods share -----------------------------------------------------------------------


def fit_values(output: Tensor, target: Tensor) -> Tensor:
    """``target`` in the shape and dtype of ``output``; a last axis of one may be left out."""
    if target.shape == output.shape[:-1] and output.shape[-1] == 1:
        target = target.unsqueeze(-1)
    if target.shape != output.shape or output.dim() < 2:
        raise ValueError(
            f"output is {list(output.shape)} and target {list(target.shape)}; expected one shape, "
            f"[n, outputs] (target [n] for one output){_column_advice(output, target)}"
        )
    return target if target.dtype is output.dtype else target.to(output.dtype)


def _column_advice(output: Tensor, target: Tensor) -> str:
    if output.dim() > 1 and target.dim() == 1 and output.shape[-1] > 1:
        return f"; a model of single numbers has one output, and this has {output.shape[-1]}"
    return ""


def align(output: Tensor, target: Tensor) -> Tensor:
    """``target`` [n, ..., outputs] in the dtype of ``output``, which may have sample axes in front."""
    if target.dim() == 1 and output.shape[-1] == 1:
        target = target.unsqueeze(-1)
    if target.dim() < 2 or output.dim() < target.dim() or target.shape != output.shape[-target.dim() :]:
        raise ValueError(
            f"output is {list(output.shape)} and target {list(target.shape)}; expected output "
            "[..., n, outputs] and target [n, outputs] (or [n] for one output)"
        )
    return target.to(output.dtype)


def sum_events(terms: Tensor, target: Tensor) -> Tensor:
    """Sums over all axes of ``target`` but its first, which counts observations: [..., n]."""
    return terms.flatten(-(target.dim() - 1)).sum(-1)


def checks_are_cheap(target: Tensor) -> bool:
    """Whether a look at the values costs a training step next to nothing."""
    return target.device.type == "cpu" and not _compiling()


def check_not_nan(name: str, values: Tensor) -> None:
    """ValueError that says where a NaN is."""
    if values.dtype.is_floating_point and bool(values.isnan().any()):
        missing = values.isnan().nonzero()
        where = ", ".join(str(i) for i in missing[0].tolist())
        raise ValueError(
            f"{name}[{where}] is nan ({len(missing)} of {values.numel()} values); leave such rows out, or "
            "fill them in"
        )
