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

    As a context manager it is released on leaving; if it is lost meanwhile the task that entered is
    cancelled, and `LeaseLost` raised in the stead of that cancellation. Outside of `async with` a loss
    interrupts nobody: ask `lost`, call `ensure()`, or wait for `wait_lost()`.
    """

    __slots__ = ()

    async def renew(self, ttl: Duration | None = None) -> None:
        """Ask the store for `ttl` seconds from now (None: what it was acquired with); never shortens.

        Raises `LeaseLost` if it is lost, `NotHeld` if it was given up, `BackendUnavailable`.
        """
        await self._renew(ttl)

    def release(self) -> Coroutine[Any, Any, bool]:
        """Give it up; True if it was held until now. May be called again."""
        return self._release()

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it is lost (True), given up, or `timeout` seconds have passed (False)."""
        return await self._wait_lost(optional_seconds(timeout, "timeout"))


class Acquisition[LeaseT: Held](Coroutine[Any, Any, LeaseT]):
    """What `acquire()` gives: await it for a lease, or enter it with `async with`."""

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
    """What all asyncio primitives share: they can be looked at, and entered."""

    _join = staticmethod(by_task)
    _client: "Client | NamedStore | None"

    def _runtime(self) -> AsyncRuntime:
        refuse_in_workflow(self)
        client = self._client
        return (default_hub() if client is None else client.hub).loop_runtime()

    async def status(self) -> Status:
        """Who holds it, who waits for it; what is this client's own is told by `mine`."""
        return await self._status()

    async def locked(self) -> bool:
        """Nothing of it is free at this moment."""
        return await self._locked()

    async def revoke(self, *, reason: str, now: bool = False) -> int:
        """Refuse further renewals to all holders, and tell them; return how many there were.

        With `now` the units are free at once, though their holders may still be at work: that gives up
        exclusion, and only fencing protects.
        """
        return await self._revoke(reason, now)


class Acquirable[LeaseT: Lease](Resource[LeaseT]):
    """What the asyncio primitives share, whatever their leases can do."""

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
        """Acquire `units`, in turn: await it, or enter it with `async with`.

        Waits for at most `wait` seconds (None: for ever; 0: one try; unset: as constructed), first come
        first served within a priority. Cancelled meanwhile, it leaves nothing behind. Raises
        `AcquireTimeout`, `Reentrant`, `Deadlock`, `BackendUnavailable`, `Forbidden`, `IncompatibleVersion`.

        While it has to wait, `on_wait` (unset: the constructor's) is called with a `Waiting`, at once and
        then every second, and awaited if it is a coroutine function. It is called in the waiter's own
        task, so it should be quick; what it raises is logged, and ends nothing.

        With `within`, a connection of the user's own to the database that keeps the leases (PostgreSQL),
        it is one try, and part of the transaction there: the lease stands once that commits, and until then
        others are told that the key is busy. The ttl has to be longer than the transaction. Raises
        `NotConfigured` for a store that can't do that, and for a connection to another one.
        """
        if others:
            refuse_options("acquire()", others, Acquirable.acquire)
        return Acquisition(self._acquire(units, wait, priority, note, within, on_wait))

    async def try_acquire(
        self, *, units: int = 1, priority: int | None = None, note: str | None = None
    ) -> LeaseT | None:
        """Acquire at once or not at all; None if others hold it or wait for it."""
        return await self._try(units, priority, note)

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def release(self) -> None:
            """Never works: a lease is released, not the primitive. Raises `TypeError`."""
            raise TypeError(
                "release the lease: `lease = await lock.acquire()`, then `await lease.release()`"
            )


class Primitive(Acquirable[Lease]):
    """What most asyncio primitives share: a lease of theirs is a `Lease`."""

    _lease_type = Lease


class Lock(LockBase[Lease], Primitive):
    """One holder at a time, across tasks, processes and machines, for asyncio.

    Contention: waiters queue by priority, then arrival. Expiry: the keeper renews at a third of the
    ttl; a holder that can't is told before the store lets go. Cancellation: a cancelled acquire leaves
    nothing behind. Durations are seconds, or texts such as "30s".
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

        `"report:{day}"` takes the parameter `day`. A coroutine function acquires in its loop, a plain
        one blocks. With `on_busy="skip"` a call that can't have the lock within `wait` (unset: one try)
        returns `default` instead of raising `AcquireTimeout`. Inside, `current_lease()` is the lease.
        Other options are the constructor's. Raises `ValueError` at decoration for a field that is no
        parameter, `TypeError` for a generator function.
        """
        wrapping: Callable[[F], F] = imported("dibs.faces.wraps").wraps(
            template, on_busy=on_busy, default=default, client=client, **options
        )
        return wrapping


class Semaphore(SemaphoreBase[Lease], Primitive):
    """At most `capacity` units at a time; each unit is a numbered slot, told by `lease.slots`.

    Contention: waiters queue by priority, then arrival, and strictly: a large request at the head is
    not overtaken by small ones. The capacity is the newest that anybody asked with: what no longer fits
    it is refused, and what is held runs on. Expiry: the units of a lease end together, each free for
    others no sooner than the store lets go, of which the holder is told before. Cancellation: a
    cancelled acquire leaves nothing behind, and keeps no unit. Durations are seconds, or texts such as
    "30s".
    """
