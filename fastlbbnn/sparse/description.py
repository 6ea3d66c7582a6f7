"""What a selected network is about: how rows are prepared, what its outputs mean, and where it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..data.preparation import Preparation
from .responses import config_of


@dataclass(frozen=True)
class Description:
    """Travels with a selected network, and is in its file."""

    #: None: the network takes its inputs as they are.
    preparation: Preparation | None = None
    class_names: tuple[str, ...] | None = None
    #: The likelihood's configuration, ``{"name": ...}`` and what else it has, such as a dispersion.
    likelihood: Mapping[str, Any] | None = None
    #: Versions, the data's hash, seed, density, recipe: whatever JSON holds.
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        preparation: Preparation | None = None,
        class_names: Sequence[str] | None = None,
        likelihood: Any = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Description:
        """Checked against each other; class names are the preparation's where none are given."""
        known = None if preparation is None else preparation.target.class_names
        names = known if class_names is None else tuple(str(name) for name in class_names)
        if known is not None and names != known:
            raise ValueError(f"class_names={names} and the preparation has {known}; expected the same")
        if preparation is not None and names is not None and known is None:
            preparation = replace(preparation, target=replace(preparation.target, class_names=names))
        made = Description(preparation, names, config_of(likelihood), dict(provenance or {}))
        try:
            json.dumps([made.likelihood, made.provenance], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"likelihood and provenance must be what JSON holds: {error}") from None
        return made

    def check(self, in_features: int, out_features: int) -> None:
        """ValueError unless this can be about a network of these sizes."""
        if self.preparation is not None and self.preparation.n_inputs != in_features:
            raise ValueError(
                f"the preparation makes {self.preparation.n_inputs} inputs and the network takes {in_features}"
            )
        name = None if self.likelihood is None else self.likelihood["name"]
        outputs = {"categorical": None if self.class_names is None else len(self.class_names)}.get(name or "")
        if outputs is not None and outputs != out_features:
            raise ValueError(f"{outputs} class names and the network has {out_features} outputs")
        target = None if self.preparation is None else self.preparation.target
        if target is not None and target.scale is not None and len(target.scale) not in (1, out_features):
            raise ValueError(
                f"the preparation has {len(target.scale)} scales of targets and the network {out_features} "
                "outputs"
            )
        if target is not None and target.is_scaled and name not in (None, "gaussian"):
            if name in ("categorical", "bernoulli", "poisson"):
                raise ValueError(f"targets were scaled, and the likelihood is {name!r}; expected 'gaussian'")

    # --- files -------------------------------------------------------------------------------------

    def to_metadata(self) -> dict[str, str]:
        """Each field as JSON."""
        return {
            "preparation": json.dumps(None if self.preparation is None else self.preparation.to_config()),
            "class_names": json.dumps(None if self.class_names is None else list(self.class_names)),
            "likelihood": json.dumps(None if self.likelihood is None else dict(self.likelihood)),
            "provenance": json.dumps(dict(self.provenance)),
        }

    @staticmethod
    def from_metadata(metadata: Mapping[str, str]) -> Description:
        """What ``to_metadata`` gave. ValueError for anything else."""
        found: dict[str, Any] = {}
        kinds: dict[str, Any] = {
            "preparation": dict, "class_names": list, "likelihood": dict, "provenance": dict
        }
        for name, kind in kinds.items():
            try:
                found[name] = json.loads(metadata.get(name, "null"))
            except (ValueError, RecursionError):
                raise ValueError(f"its {name} is not JSON") from None
            if found[name] is not None and not isinstance(found[name], kind):
                raise ValueError(f"its {name} is {str(found[name])[:40]!r}")
        if found["preparation"] is not None:
            found["preparation"] = Preparation.from_config(found["preparation"])
        return Description.of(**found)
