"""Whoever is told of each acquire and each hold of this process, if anybody is.

Nobody is unless a program asks for it (`dibs.contrib.otel`); till then an acquire pays for one look at
`observer`, and a lease for one more attribute.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dibs.locks.requests import Ask
    from dibs.model import Holder


class TracedLease(Protocol):
    """What may be shown of a lease."""

    key: bytes
    token: int


class Attempt(Protocol):
    """One acquire, from its beginning to its end."""

    def traced(self, ask: "Ask") -> "Ask":
        """The request with this acquire's trace."""

    def end(self, error: BaseException | None) -> None:
        """It has ended: by a lease, or by that."""


class Witness(Protocol):
    """One hold. Called from any thread, also from within the garbage collector if it was forgotten."""

    def renewed(self) -> None:
        """The store keeps it for longer."""

    def ended(self, how: str) -> None:
        """It was `released`, `detached`, `forgotten`, or it was lost by this reason."""


class Observer(Protocol):
    """Is told of them all."""

    def acquiring(self, asks: "Sequence[Ask]", wait: float | None, me: object) -> Attempt:
        """That task or thread begins to acquire all of these within so many seconds; None: for ever."""

    def in_the_way(self, holders: "Iterable[Holder]") -> None:
        """Whoever is acquiring here is refused because of these."""

    def holding(self, lease: TracedLease, me: object, *, here: bool) -> Witness:
        """That task or thread has a lease; `here`: it is the one who runs this."""


observer: Observer | None = None


def observe(by: Observer | None) -> None:
    """From now on that one is told; None: nobody."""
    global observer
    observer = by
