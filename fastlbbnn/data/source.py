"""Where data came from, so that later commands find them again and notice when they have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import Dataset


@dataclass(frozen=True)
class Source:
    """What ``fastlbbnn.data.load`` was called with, and a hash of what it read."""

    data: str  #: a name, or the path of a file
    root: str | None = None
    #: Seed of the split into training and test rows, where the data have none of their own.
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    #: Share of the training rows held out instead of the test rows; None: test as usual.
    validation: float | None = None
    #: Sha256 of the file before it was compressed, once it was read; None for named data, which are
    #: checked whenever they are read.
    content_hash: str | None = None

    @staticmethod
    def of(data: str, **given: Any) -> Source:
        """The path of a file is kept whole, so that a run folder can be used from anywhere."""
        from .loading import DATASETS

        path = Path(data).expanduser()
        is_file = data not in DATASETS and path.exists()
        return Source(str(path.resolve()) if is_file else data, **given)

    @property
    def is_named(self) -> bool:
        """Whether the data are known by a name, and not a file of the user's."""
        from .loading import DATASETS

        return self.data in DATASETS

    def load(self, **changes: Any) -> Dataset:
        """The data set, read once; its ``source`` is this one with the hash of what was read."""
        from .loading import load

        dataset = load(self.data, root=self.root, seed=self.seed, **{**self.options, **changes})
        assert dataset.source is not None  # of what was read just now
        source = replace(self, content_hash=dataset.source.content_hash)
        if self.validation is not None:
            dataset = dataset.with_validation(self.validation, self.seed)
        return replace(dataset, source=source)

    def elsewhere(self, data: str | None = None, root: str | None = None) -> Source:
        """The same options for another file, as far as it is of the same kind, or another folder."""
        found = self
        if data is not None:
            other = Source.of(data, root=self.root, seed=self.seed, validation=self.validation)
            found = replace(other, options=self.options if other.is_named == self.is_named else {})
        return found if root is None else replace(found, root=root)

    def difference(self, other: Source) -> str | None:
        """In what ``other`` is not the same data, read in the same way; None: it is."""
        old, new = (
            {"data": s.data, "data seed": s.seed, "validation": s.validation, **s.options}
            for s in (self, other)
        )
        different = [
            f"{name} {old.get(name)!r}, not {new.get(name)!r}"
            for name in {**old, **new}
            if old.get(name) != new.get(name)
        ]
        if different:
            return "; ".join(different)
        if None not in (self.content_hash, other.content_hash) and self.content_hash != other.content_hash:
            return f"another {self.data}: the file has changed since"
        return None

    def to_config(self) -> dict[str, Any]:
        """For JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Source:
        """What ``to_config`` gave. ValueError for anything else."""
        names = [f.name for f in fields(Source)]
        if not isinstance(config, Mapping) or not isinstance(config.get("data"), str) or set(config) - {*names}:
            raise ValueError(f"{str(config)[:80]} does not describe a source; expected {', '.join(names)}")
        return Source(**config)
