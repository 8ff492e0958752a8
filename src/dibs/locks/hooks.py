"""An observer of each acquire and each hold of this process, for tracing.

There is none unless a program sets it (`dibs.contrib.otel`). Until then an acquire costs one look at
`observer` more, and a lease one attribute more.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from dibs.locks.requests import AcquireRequest
from dibs.model import Holder


class TracedLease(Protocol):
    """What an observer sees of a lease."""

    key: bytes
    token: int


class AcquireHook(Protocol):
    """Follows one acquire."""

    def traced(self, request: AcquireRequest) -> AcquireRequest:
        """The request with this acquire's trace."""

    def end(self, error: BaseException | None) -> None:
        """It has ended with a lease, or with that error."""


class LeaseHook(Protocol):
    """Follows one hold. Called from any thread, also within the garbage collector for a forgotten lease."""

    def renewed(self) -> None:
        """The store keeps it for longer."""

    def ended(self, how: str) -> None:
        """It was `released`, `detached`, `forgotten`, or lost by this reason."""


class Observer(Protocol):
    """Follows all acquires and holds."""

    def acquiring(
        self, requests: Sequence[AcquireRequest], wait: float | None, me: object
    ) -> AcquireHook:
        """A task or thread begins to acquire all of these within `wait` seconds (None: no limit)."""

    def in_the_way(self, holders: Iterable[Holder]) -> None:
        """The acquire of the caller was refused because of these."""

    def holding(self, lease: TracedLease, me: object, *, here: bool) -> LeaseHook:
        """A task or thread has a lease; `here`: it is the caller."""


observer: Observer | None = None


def observe(by: Observer | None) -> None:
    """Set the observer; None: no observer."""
    global observer
    observer = by
