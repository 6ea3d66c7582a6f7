"""Named things that a user may add to: priors, likelihoods, layers, data sets, recipes, backends, formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """What is known of one kind, by name, in the order of registration.

        PRIORS: Registry[type[Prior]] = Registry("prior")

        @PRIORS.register("fixed")
        class FixedPrior(Prior): ...

        PRIORS.find("fixed")

    A user's own is registered in the same way, from any module. A name is taken once: registering another
    thing under it raises, unless it says ``replace=True``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._known: dict[str, T] = {}
        #: Counts changes, for callers that remember what they found.
        self.version = 0

    def register(self, name: str, thing: T | None = None, *, replace: bool = False) -> Callable[[T], T]:
        """Register ``thing`` under ``name``; without one, a decorator that does."""
        if not isinstance(name, str) or not name:
            raise TypeError(f"a {self.kind} is registered under {name!r}; expected a name, a non-empty str")

        def remember(value: T) -> T:
            if name in self._known and self._known[name] is not value and not replace:
                raise ValueError(
                    f"there is a {self.kind} {name!r} already; choose another name, or say replace=True"
                )
            self._known[name] = value
            self.version += 1
            return value

        if thing is not None:
            remember(thing)
        return remember

    def remove(self, name: str) -> None:
        """Forget a name: what a test that registered something does at its end."""
        self.find(name)
        del self._known[name]
        self.version += 1

    def find(self, name: str) -> T:
        """What is known as ``name``; ValueError with all names if nothing is."""
        if name not in self._known:
            names = ", ".join(repr(known) for known in self._known)
            raise ValueError(f"there is no {self.kind} {name!r}; expected one of {names}")
        return self._known[name]

    def __getitem__(self, name: str) -> T:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
