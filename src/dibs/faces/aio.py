"""The asyncio faces of the primitives."""

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack

from dibs.config import UNSET, Duration, Unset, optional_seconds
from dibs.defaults import default_hub
from dibs.faces.aio_entering import Enterable, HeldByTask
from dibs.faces.described import Described
from dibs.faces.joining import by_task
from dibs.faces.loops import refuse_in_workflow
from dibs.lazy import imported
from dibs.model import Status
from dibs.primitives.entering import Held
from dibs.primitives.lease import LeaseBase
from dibs.primitives.lock import LockBase
from dibs.primitives.options import HoldOptions, NoOptions, refuse_options
from dibs.primitives.semaphore import SemaphoreBase
from dibs.primitives.watching import Waiting
from dibs.runtime.asyncio import AsyncRuntime
from dibs.stores import NamedStore

if TYPE_CHECKING:
    from dibs.faces.aio_client import Client


class Lease(LeaseBase, HeldByTask):
    """A lease that is held by an asyncio task.

    `async with lease` releases it at the end of the block. If the lease is lost inside the block, the task
    is cancelled, and the block raises `LeaseLost` instead of `CancelledError`. Outside of `async with`
    nothing is interrupted: check `lost`, call `ensure()`, or await `wait_lost()`.
    """

    __slots__ = ()

    async def renew(self, ttl: Duration | None = None) -> None:
        """Renew the lease for `ttl` seconds from now; None means the ttl of the acquire. Never shortens it.

        Raises `LeaseLost` if it is lost, `NotHeld` if it was released, and `BackendUnavailable`.
        """
        await self._renew(ttl)

    def release(self) -> Coroutine[Any, Any, bool]:
        """Release the lease; True if it was held until now. Can be called again."""
        return self._release()

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until the lease is lost (True), or released, or for `timeout` seconds (False)."""
        return await self._wait_lost(optional_seconds(timeout, "timeout"))


class Acquisition[LeaseT: Held](Coroutine[Any, Any, LeaseT]):
    """The result of `acquire()`: await it to get a lease, or use it with `async with`."""

    __slots__ = ("_coroutine", "_lease")

    def __init__(self, coroutine: Coroutine[Any, Any, LeaseT]) -> None:
        self._coroutine = coroutine
        self._lease: LeaseT | None = None

    def __await__(self) -> Generator[Any, None, LeaseT]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *about: Any) -> Any:
        return self._coroutine.throw(*about)

    def close(self) -> None:
        self._coroutine.close()

    async def __aenter__(self) -> LeaseT:
        lease = self._lease = await self._coroutine
        await lease._begin()
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._lease is not None
        await self._lease._leave(exc)

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def __enter__(self) -> Any:
            self._coroutine.close()
            raise TypeError("this acquires in an event loop: write `async with`, not `with`")

        def __exit__(self, *about: object) -> None: ...


class Resource[LeaseT: Lease](Enterable[LeaseT], Described[LeaseT]):
    """Base of all asyncio primitives: status, revocation and `async with`."""

    _join = staticmethod(by_task)
    _client: "Client | NamedStore | None"

    def _runtime(self) -> AsyncRuntime:
        refuse_in_workflow(self)
        client = self._client
        return (default_hub() if client is None else client.hub).loop_runtime()

    async def status(self) -> Status:
        """Return the holders and waiters. `mine` tells which leases belong to this client."""
        return await self._status()

    async def locked(self) -> bool:
        """Return whether nothing is free at this moment."""
        return await self._locked()

    async def revoke(self, *, reason: str, now: bool = False) -> int:
        """End the leases of all holders; return how many there were.

        The holders get a notification with `reason` and cannot renew any more; the units are free when the
        leases run out. With `now=True` they are free at once, although the holders may still be working.
        This gives up exclusion: then only fencing protects the resource.
        """
        return await self._revoke(reason, now)


class Acquirable[LeaseT: Lease](Resource[LeaseT]):
    """Base of the asyncio primitives that queue."""

    def acquire(
        self,
        *,
        units: int = 1,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
        within: Any = None,
        on_wait: Callable[[Waiting], object] | None = None,
        **others: Unpack[NoOptions],
    ) -> Acquisition[LeaseT]:
        """Acquire `units`: await it to get a lease, or use it with `async with`.

        If it is held, wait in the queue for at most `wait` seconds (None: no limit; 0: one try; unset: as
        constructed). The queue is ordered by priority, then arrival. A cancelled acquire leaves nothing
        behind. Raises `AcquireTimeout`, `Reentrant`, `Deadlock`, `BackendUnavailable`, `Forbidden`,
        `IncompatibleVersion`.

        While it waits, `on_wait` (unset: the constructor's) is called with a `Waiting`, at once and then
        every second, and awaited if it is a coroutine function. It runs in the waiting task, so it must be
        quick. Its exceptions are only logged.

        `within` takes your own connection to the PostgreSQL database that keeps the leases. Then the
        acquire is one try, and part of your transaction: the lease exists once the transaction commits, and
        until then the key is busy for others. The ttl must be longer than the transaction. Raises
        `NotConfigured` for a store without transactions, and for a connection to another database.
        """
        if others:
            refuse_options("acquire()", others, Acquirable.acquire)
        return Acquisition(self._acquire(units, wait, priority, note, within, on_wait))

    async def try_acquire(
        self, *, units: int = 1, priority: int | None = None, note: str | None = None
    ) -> LeaseT | None:
        """Acquire without waiting; None if others hold it or wait for it."""
        return await self._try(units, priority, note)

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def release(self) -> None:
            """Never works: a lease is released, not the primitive. Raises `TypeError`."""
            raise TypeError(
                "release the lease: `lease = await lock.acquire()`, then `await lease.release()`"
            )


class Primitive(Acquirable[Lease]):
    """Base of the asyncio primitives whose leases are plain `Lease`s."""

    _lease_type = Lease


class Lock(LockBase[Lease], Primitive):
    """One holder at a time, across tasks, processes and machines, for asyncio.

    Contention: waiters queue by priority, then arrival. Expiry: the lease is renewed in the background at a
    third of the ttl; if that fails, the holder learns of the loss before the store lets others in.
    Cancellation: a cancelled acquire leaves nothing behind. Durations are seconds, or texts such as "30s".
    """

    @staticmethod
    def wraps[F: Callable[..., Any]](
        template: str,
        *,
        on_busy: Literal["raise", "skip"] = "raise",
        default: object = None,
        client: "Client | str | None" = None,
        **options: Unpack[HoldOptions],
    ) -> Callable[[F], F]:
        """Hold the lock that `template` names while the decorated function runs.

        `"report:{day}"` takes the parameter `day`. A coroutine function acquires in its event loop; a plain
        function blocks. With `on_busy="skip"` the call returns `default` if it cannot acquire within `wait`
        (unset: one try); otherwise it raises `AcquireTimeout`. Inside, `current_lease()` returns the lease.
        The other options are the constructor's. At decoration a field without a parameter raises
        `ValueError`, and a generator function `TypeError`.
        """
        wrapping: Callable[[F], F] = imported("dibs.faces.wraps").wraps(
            template, on_busy=on_busy, default=default, client=client, **options
        )
        return wrapping


class Semaphore(SemaphoreBase[Lease], Primitive):
    """At most `capacity` units at a time; each unit is a numbered slot, in `lease.slots`.

    Contention: waiters queue by priority, then arrival. The queue is strict: a large request at the head is
    not overtaken. The newest declared capacity applies; holders beyond it keep their units until they
    release. Expiry: the units of a lease end together, and the holder learns of the loss before the store
    lets others in. Cancellation: a cancelled acquire leaves nothing behind. Durations are seconds, or texts
    such as "30s".
    """
