"""The blocking faces of the primitives, for threads."""

import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal, Self

from leasehold.config import UNSET, Duration, Unset, optional_seconds
from leasehold.core.names import KINDS, Kind, key_of
from leasehold.defaults import default_hub, set_default_hub
from leasehold.hub import Hub, hub_for
from leasehold.model import Capabilities, Status
from leasehold.primitives import admin
from leasehold.primitives.lease import LeaseBase
from leasehold.primitives.lock import LockBase
from leasehold.primitives.primitive import PrimitiveBase
from leasehold.primitives.semaphore import SemaphoreBase
from leasehold.runtime.step import step
from leasehold.runtime.threads import ThreadRuntime


class Lease(LeaseBase):
    """A lease that is held by a thread.

    As a context manager it is released on leaving, which raises `LeaseLost` if it was lost meanwhile.
    Nothing interrupts a thread: between steps call `ensure()`, which raises once the lease is lost.
    """

    __slots__ = ()

    def renew(self, ttl: Duration | None = None) -> None:
        """Ask the store for `ttl` seconds from now (None: what it was acquired with); never shortens.

        Raises `LeaseLost` if it is lost, `NotHeld` if it was given up, `BackendUnavailable`.
        """
        step(self._renew(ttl))

    def release(self) -> bool:
        """Give it up; True if it was held until now. May be called again."""
        return step(self._release())

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it is lost (True), given up, or `timeout` seconds have passed (False)."""
        return step(self._wait_lost(optional_seconds(timeout, "timeout")))

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        step(self._leave(exc))

    async def __aenter__(self) -> Any:
        raise TypeError("this lease is held by a thread: write `with`, not `async with`")

    async def __aexit__(self, *about: object) -> None: ...


class Primitive(PrimitiveBase[Lease]):
    """What the blocking primitives share."""

    _lease_type = Lease
    _client: "Client | None"

    def _runtime(self) -> ThreadRuntime:
        client = self._client
        return (default_hub() if client is None else client.hub).thread_runtime()

    def acquire(
        self,
        *,
        units: int = 1,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
    ) -> Lease:
        """Acquire `units`, in turn: a lease, which is a context manager.

        Waits for at most `wait` seconds (None: for ever; 0: one try; unset: as constructed), first come
        first served within a priority. Interrupted meanwhile, it leaves nothing behind. Raises
        `AcquireTimeout`, `Reentrant`, `BackendUnavailable`, `Forbidden`, `IncompatibleVersion`.
        """
        _refuse_in_loop(type(self).__name__)
        return step(self._acquire(units, wait, priority, note))

    def try_acquire(
        self, *, units: int = 1, priority: int | None = None, note: str | None = None
    ) -> Lease | None:
        """Acquire at once or not at all; None if others hold it or wait for it."""
        return step(self._try(units, priority, note))

    def status(self) -> Status:
        """Who holds it, who waits for it; what is this client's own is told by `mine`."""
        return step(self._status())

    def locked(self) -> bool:
        """Nothing of it is free at this moment."""
        return step(self._locked())

    def revoke(self, *, reason: str, now: bool = False) -> int:
        """Refuse further renewals to all holders, and tell them; return how many there were.

        With `now` the units are free at once, though their holders may still be at work: that gives up
        exclusion, and only fencing protects.
        """
        return step(self._revoke(reason, now))

    def __enter__(self) -> Lease:
        _refuse_in_loop(type(self).__name__)
        return step(self._enter())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        step(self._take_entered()._leave(exc))

    async def __aenter__(self) -> Any:
        raise TypeError(
            f"{type(self).__name__} of leasehold.sync blocks: write `with`, "
            f"or import {type(self).__name__} from leasehold for `async with`"
        )

    async def __aexit__(self, *about: object) -> None: ...

    def release(self) -> None:
        """Never works: a lease is released, not the primitive. Raises `TypeError`."""
        raise TypeError("release the lease: `lease = lock.acquire()`, then `lease.release()`")


class Lock(LockBase[Lease], Primitive):
    """One holder at a time, across threads, processes and machines.

    Contention: waiters queue by priority, then arrival. Expiry: the keeper renews at a third of the
    ttl; a holder that can't is told before the store lets go. Interrupts: an interrupted acquire leaves
    nothing behind. Durations are seconds, or texts such as "30s".
    """

    @staticmethod
    def wraps[F: Callable[..., Any]](
        template: str,
        *,
        on_busy: Literal["raise", "skip"] = "raise",
        default: object = None,
        client: "Client | None" = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Hold the lock that `template` names while the decorated function runs.

        `"report:{day}"` takes the parameter `day`. A coroutine function acquires in its loop, a plain
        one blocks. With `on_busy="skip"` a call that can't have the lock within `wait` (unset: one try)
        returns `default` instead of raising `AcquireTimeout`. Inside, `current_lease()` is the lease.
        Other options are the constructor's. Raises `ValueError` at decoration for a field that is no
        parameter, `TypeError` for a generator function.
        """
        from leasehold.faces.wraps import wraps

        return wraps(template, on_busy=on_busy, default=default, client=client, **options)


class Semaphore(SemaphoreBase[Lease], Primitive):
    """At most `capacity` units at a time; each unit is a numbered slot, told by `lease.slots`."""


class Client:
    """A store in use, by threads: connects when it is first needed."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    @property
    def url(self) -> str:
        """The store's URL, without a password."""
        return self.hub.url

    @property
    def capabilities(self) -> Capabilities:
        """What the store promises."""
        return self.hub.capabilities

    def lock(self, name: str | bytes, **options: Any) -> Lock:
        """A `Lock` in this store."""
        return Lock(name, client=self, **options)

    def semaphore(self, name: str | bytes, capacity: int, **options: Any) -> Semaphore:
        """A `Semaphore` in this store."""
        return Semaphore(name, capacity, client=self, **options)

    def status(self, name: str | bytes, kind: Kind = "lock") -> Status:
        """Who holds a resource and who waits for it."""
        return step(admin.status(self.hub.thread_runtime(), key_of(kind, name)))

    def list(self, prefix: str | bytes = b"", kind: Kind | None = None) -> Iterator[Status]:
        """All resources in use whose names begin with `prefix`, kind by kind in byte order."""
        for each in KINDS if kind is None else (kind,):
            yield from self.hub.thread_runtime().scan(admin.scan_prefix(each, prefix))

    def revoke(
        self, name: str | bytes, *, reason: str, now: bool = False, kind: Kind = "lock"
    ) -> int:
        """As `Lock.revoke`, for any kind."""
        return step(admin.revoke(self.hub.thread_runtime(), key_of(kind, name), reason, now))

    def attach(self, handle: str) -> Lease:
        """Take over a lease that another process detached. Raises `LeaseLost` if it came too late."""
        return step(admin.attach(self.hub.thread_runtime(), handle, Lease))

    def close(self) -> None:
        """Give up what is held here (its holders see `LeaseLost`, reason `closed`) and disconnect."""
        self.hub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"


def connect(url: str | None = None, *, default: bool = False, **options: Any) -> Client:
    """A client of the store that `url` names; None for the default store. Connects when it is used.

    `default` makes it what bare primitives use. Options: `connect_timeout` and `call_timeout`, in
    seconds, and `clock`, for tests. Raises `NotConfigured` for a URL that no backend serves.
    """
    client = Client(default_hub() if url is None else hub_for(url, **options))
    if default:
        set_default_hub(client.hub)
    return client


def _refuse_in_loop(name: str) -> None:
    """Waiting here would stop every task of the loop, the one that should release included."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        raise RuntimeError(
            f"a blocking {name} inside a running event loop would stop the loop: "
            f"`from leasehold import {name}` and write `async with {name}(...)`"
        )
