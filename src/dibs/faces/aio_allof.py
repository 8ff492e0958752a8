"""The asyncio face of several leases, all or nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from dibs.config import UNSET, Duration, Unset, optional_seconds
from dibs.faces.aio import Acquirable, Acquisition, Lease, Semaphore
from dibs.faces.aio_entering import Enterable, HeldByTask
from dibs.primitives.allof import AllOfBase
from dibs.primitives.allof_leases import LeasesBase
from dibs.primitives.options import NoOptions, refuse_options
from dibs.primitives.watching import Waiting

type Member = Acquirable[Any] | tuple[Semaphore, int] | AllOf
"""What can be held with others: a primitive, a semaphore with the units wanted of it, or an `AllOf`."""


class Leases(LeasesBase[Lease], HeldByTask):
    """The leases of an `AllOf`, in the order of its arguments, held by an asyncio task.

    A sequence: `leases[0]` is the lease of the first argument. `async with` releases all of them at the end,
    in one round trip. If one is lost inside the block, the task is cancelled, and the block raises
    `LeaseLost`, which names the lost one, instead of `CancelledError`.
    """

    __slots__ = ()
    _are = "these leases are"

    async def release(self) -> bool:
        """Release all, in one round trip; True if each was held until now. Can be called again."""
        return await self._release()

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until one is lost (True), or all are released, or for `timeout` seconds (False)."""
        return await self._wait_lost(optional_seconds(timeout, "timeout"))


class AllOf(Enterable[Leases], AllOfBase[Leases]):
    """Several resources at once, all or nothing, for asyncio.

    `AllOf(lock, (semaphore, 2), rwlock.read())`; the leases come in this order. Contention: the first try
    takes all in one round trip. If that fails, it acquires them one after the other in the order of their
    keys, so that two `AllOf`s never wait for each other. Expiry: each is an ordinary lease; if one is lost,
    all are. Cancellation: a cancelled acquire leaves nothing behind. `ttl` applies to each (unset: its
    own), `wait` to all together (unset: the shortest of theirs). Durations are seconds, or texts such as
    "30s".
    """

    _leases_type = Leases
    _takes = Acquirable
    _world = "dibs"

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
    ) -> Acquisition[Leases]:
        """Acquire all, or none: await it, or use it with `async with`.

        It waits for at most `wait` seconds in all (None: no limit; 0: one try; unset: as constructed).
        While it waits for one, it may hold and renew others. `on_wait` is called as for a `Lock`, about the
        one that it waits for. A cancelled acquire leaves nothing behind. Raises `AcquireTimeout`,
        `Reentrant` (before anything is acquired), `Deadlock`, `BackendUnavailable`, `Forbidden`,
        `IncompatibleVersion`, and `ValueError` if they are not all of one client.
        """
        if others:
            refuse_options("acquire()", others, AllOf.acquire)
        return Acquisition(self._acquire(wait, priority, note, on_wait))

    async def try_acquire(
        self, *, priority: int | None = None, note: str | None = None
    ) -> Leases | None:
        """Acquire all without waiting; None if others hold one of them or wait for it."""
        return await self._try(priority, note)

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def release(self) -> None:
            """Never works: leases are released, not the `AllOf`. Raises `TypeError`."""
            raise TypeError(
                "release the leases: `leases = await both.acquire()`, then `await leases.release()`"
            )
