"""The blocking face of several leases, all or nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from dibs.config import UNSET, Duration, Unset, optional_seconds
from dibs.faces.blocking import Acquirable, Lease, Semaphore
from dibs.faces.blocking_entering import Enterable, HeldByThread
from dibs.faces.loops import refuse_in_loop
from dibs.primitives.allof import AllOfBase
from dibs.primitives.allof_leases import LeasesBase
from dibs.primitives.options import NoOptions, refuse_options
from dibs.primitives.watching import Waiting
from dibs.runtime.step import step

type Member = Acquirable[Any] | tuple[Semaphore, int] | AllOf
"""What can be held with others: a primitive, a semaphore with the units wanted of it, or an `AllOf`."""


class Leases(LeasesBase[Lease], HeldByThread):
    """The leases of an `AllOf`, in the order of its arguments, held by a thread.

    A sequence: `leases[0]` is the lease of the first argument. `with leases` releases all at the end, in one
    round trip, and raises `LeaseLost` there if one was lost. A thread cannot be interrupted: call `ensure()`
    between steps, which raises once one is lost.
    """

    __slots__ = ()
    _are = "these leases are"

    def release(self) -> bool:
        """Release all, in one round trip; True if each was held until now. Can be called again."""
        return step(self._release())

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until one is lost (True), or all are released, or for `timeout` seconds (False)."""
        return step(self._wait_lost(optional_seconds(timeout, "timeout")))


class AllOf(Enterable[Leases], AllOfBase[Leases]):
    """Several resources at once, all or nothing.

    `AllOf(lock, (semaphore, 2), rwlock.read())`; the leases come in this order. Contention: the first try
    takes all in one round trip. If that fails, it acquires them one after the other in the order of their
    keys, so that two `AllOf`s never wait for each other. Expiry: each is an ordinary lease; if one is lost,
    all are. Interrupts: an interrupted acquire leaves nothing behind. `ttl` applies to each (unset: its own),
    `wait` to all together (unset: the shortest of theirs). Durations are seconds, or texts such as "30s".
    """

    _leases_type = Leases
    _takes = Acquirable
    _world = "dibs.sync"
    _may_await = False

    def __init__(
        self,
        *members: Member,
        wait: Duration | Unset | None = UNSET,
        ttl: Duration | Unset = UNSET,
        on_wait: Callable[[Waiting], object] | None = None,
        **others: Unpack[NoOptions],
    ) -> None:
        super().__init__(*members, wait=wait, ttl=ttl, on_wait=on_wait, **others)

    def acquire(
        self,
        *,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
        on_wait: Callable[[Waiting], object] | None = None,
        **others: Unpack[NoOptions],
    ) -> Leases:
        """Acquire all, or none, and return the leases, a context manager.

        It waits for at most `wait` seconds in all (None: no limit; 0: one try; unset: as constructed).
        While it waits for one, it may hold and renew others. `on_wait` is called as for a `Lock`, about the
        one that it waits for. An interrupted acquire leaves nothing behind. Raises `AcquireTimeout`,
        `Reentrant` (before anything is acquired), `Deadlock`, `BackendUnavailable`, `Forbidden`,
        `IncompatibleVersion`, and `ValueError` if they are not all of one client.
        """
        if others:
            refuse_options("acquire()", others, AllOf.acquire)
        refuse_in_loop(self)
        return step(self._acquire(wait, priority, note, on_wait))

    def try_acquire(self, *, priority: int | None = None, note: str | None = None) -> Leases | None:
        """Acquire all without waiting; None if others hold one of them or wait for it."""
        refuse_in_loop(self)
        return step(self._try(priority, note))

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def release(self) -> None:
            """Never works: leases are released, not the `AllOf`. Raises `TypeError`."""
            raise TypeError(
                "release the leases: `leases = both.acquire()`, then `leases.release()`"
            )
