"""An observer of each acquire and each hold of this process, for tracing.

There is none unless a program sets it (`dibs.contrib.otel`). Until then an acquire costs one look at
`observer`, and a lease one attribute.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from dibs.locks.requests import AcquireRequest
from dibs.model import Holder


class TracedLease(Protocol):
    """A lease, as observers see it."""

    key: bytes
    token: int


class AcquireHook(Protocol):
    """Follows one acquire."""

    def traced(self, request: AcquireRequest) -> AcquireRequest:
        """The request with this acquire's trace."""

    def end(self, error: BaseException | None) -> None:
        """The acquire has ended with a lease (None), or with an error."""


class LeaseHook(Protocol):
    """Follows one hold. Called from any thread, also within the garbage collector for a forgotten lease."""

    def renewed(self) -> None:
        """The store has renewed the lease."""

    def ended(self, how: str) -> None:
        """The lease was `released`, `detached`, `forgotten`, or lost for this reason."""


class Observer(Protocol):
    """Follows all acquires and holds."""

    def acquiring(
        self, requests: Sequence[AcquireRequest], wait: float | None, me: object
    ) -> AcquireHook:
        """A task or thread begins to acquire all of these within `wait` seconds (None: no limit)."""

    def in_the_way(self, holders: Iterable[Holder]) -> None:
        """These holders are why the caller's acquire was refused."""

    def holding(self, lease: TracedLease, me: object, *, here: bool) -> LeaseHook:
        """A task or thread has a lease; `here`: it is the caller."""


observer: Observer | None = None


def observe(by: Observer | None) -> None:
    """Set the observer; None: no observer."""
    global observer
    observer = by


def begin(
    requests: Sequence[AcquireRequest], wait: float | None, me: object
) -> tuple[AcquireHook, Sequence[AcquireRequest]]:
    """Report to the observer, which is set, that an acquire begins; return the requests with its trace."""
    assert observer is not None
    hook = observer.acquiring(requests, wait, me)
    return hook, [hook.traced(request) for request in requests]
