"""The blocking faces of the primitives, for threads."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from leasehold.config import UNSET, Duration, Unset, optional_seconds
from leasehold.core.names import Kind
from leasehold.defaults import default_hub
from leasehold.faces.asked import kinds_asked, resource_key
from leasehold.faces.blocking_entering import Enterable, HeldByThread
from leasehold.faces.described import Described
from leasehold.faces.joining import by_thread
from leasehold.faces.loops import refuse_in_loop
from leasehold.faces.opening import ConnectOptions, Opened, opened
from leasehold.hub import Hub
from leasehold.model import Capabilities, Finding, Status
from leasehold.primitives import admin
from leasehold.primitives.description import NO_TIMEOUT
from leasehold.primitives.lease import LeaseBase
from leasehold.primitives.lock import LockBase
from leasehold.primitives.options import ElectionOptions, HoldOptions, TaskOptions
from leasehold.primitives.semaphore import SemaphoreBase
from leasehold.primitives.watching import Waiting
from leasehold.runtime.step import step
from leasehold.runtime.threads import ThreadRuntime
from leasehold.stores import NamedStore

if TYPE_CHECKING:
    from leasehold.faces.blocking_election import LeaderElection
    from leasehold.faces.blocking_rwlock import RWLock
    from leasehold.faces.blocking_tasklock import TaskLock


class Lease(LeaseBase, HeldByThread):
    """A lease that is held by a thread.

    As a context manager it is released on leaving, which raises `LeaseLost` if it was lost meanwhile.
    Nothing interrupts a thread: between steps call `ensure()`, which raises once the lease is lost.
    """

    __slots__ = ()
    _join = staticmethod(by_thread)

    def renew(self, ttl: Duration | None = None) -> None:
        """Ask the store for `ttl` seconds from now (None: what it was acquired with); never shortens.

        Raises `LeaseLost` if it is lost, `NotHeld` if it was given up, `BackendUnavailable`.
        """
        step(self._renew(ttl))

    def release(self, *, within: Any = None) -> bool:
        """Give it up; True if it was held until now. May be called again.

        With `within`, a connection of the user's own as for `acquire`, it is given up by the commit of the
        transaction there. Should that roll back, it was not: `renew()` takes it up again, and so does
        the next renewal in the background. Until then it is not to be relied on.
        """
        return step(self._release() if within is None else self._release_within(within))

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it is lost (True), given up, or `timeout` seconds have passed (False)."""
        return step(self._wait_lost(optional_seconds(timeout, "timeout")))


class Resource[LeaseT: Lease](Enterable[LeaseT], Described[LeaseT]):
    """What all blocking primitives share: they can be looked at, and entered."""

    _join = staticmethod(by_thread)
    _may_await = False
    _client: "Client | NamedStore | None"

    def _runtime(self) -> ThreadRuntime:
        client = self._client
        return (default_hub() if client is None else client.hub).thread_runtime()

    def status(self) -> Status:
        """Who holds it, who waits for it; what is this client's own is told by `mine`."""
        refuse_in_loop(self)
        return step(self._status())

    def locked(self) -> bool:
        """Nothing of it is free at this moment."""
        refuse_in_loop(self)
        return step(self._locked())

    def revoke(self, *, reason: str, now: bool = False) -> int:
        """Refuse further renewals to all holders, and tell them; return how many there were.

        With `now` the units are free at once, though their holders may still be at work: that gives up
        exclusion, and only fencing protects.
        """
        refuse_in_loop(self)
        return step(self._revoke(reason, now))


class Acquirable[LeaseT: Lease](Resource[LeaseT]):
    """What the blocking primitives share, whatever their leases can do."""

    def acquire(
        self,
        *,
        units: int = 1,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
        within: Any = None,
        on_wait: Callable[[Waiting], object] | None = None,
        timeout: Unset = UNSET,
    ) -> LeaseT:
        """Acquire `units`, in turn: a lease, which is a context manager.

        Waits for at most `wait` seconds (None: for ever; 0: one try; unset: as constructed), first come
        first served within a priority. Interrupted meanwhile, it leaves nothing behind. Raises
        `AcquireTimeout`, `Reentrant`, `Deadlock`, `BackendUnavailable`, `Forbidden`, `IncompatibleVersion`.

        While it has to wait, `on_wait` (unset: the constructor's) is called with a `Waiting`, at once and
        then every second. It is called in the waiter's own thread, so it
        should be quick; what it raises is logged, and ends nothing.

        With `within`, a connection of the user's own to the database that keeps the leases (PostgreSQL),
        it is one try, and part of the transaction there: the lease stands once that commits, and until then
        others are told that the key is busy. The ttl has to be longer than the transaction. Raises
        `NotConfigured` for a store that can't do that, and for a connection to another one.
        """
        if timeout is not UNSET:
            raise TypeError(NO_TIMEOUT)
        refuse_in_loop(self)
        return step(self._acquire(units, wait, priority, note, within, on_wait))

    def try_acquire(
        self, *, units: int = 1, priority: int | None = None, note: str | None = None
    ) -> LeaseT | None:
        """Acquire at once or not at all; None if others hold it or wait for it."""
        refuse_in_loop(self)
        return step(self._try(units, priority, note))

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def release(self) -> None:
            """Never works: a lease is released, not the primitive. Raises `TypeError`."""
            raise TypeError("release the lease: `lease = lock.acquire()`, then `lease.release()`")


class Primitive(Acquirable[Lease]):
    """What most blocking primitives share: a lease of theirs is a `Lease`."""

    _lease_type = Lease


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
        from leasehold.faces.wraps import wraps

        return wraps(template, on_busy=on_busy, default=default, client=client, **options)


class Semaphore(SemaphoreBase[Lease], Primitive):
    """At most `capacity` units at a time; each unit is a numbered slot, told by `lease.slots`.

    Contention: waiters queue by priority, then arrival, and strictly: a large request at the head is
    not overtaken by small ones. The capacity is the newest that anybody asked with: what no longer fits
    it is refused, and what is held runs on. Expiry: the units of a lease end together, each free for
    others no sooner than the store lets go, of which the holder is told before. Interrupts: an
    interrupted acquire leaves nothing behind, and keeps no unit. Durations are seconds, or texts such as
    "30s".
    """


def _lease_type(kind: str) -> type[Lease]:
    """What a lease of that kind is."""
    if kind != "rwlock":
        return Lease
    from leasehold.faces.blocking_rwlock import RWLease

    return RWLease


class Client:
    """A store in use, by threads: connects when it is first needed."""

    def __init__(self, hub: Hub, *, opened: Opened | None = None) -> None:
        self.hub = hub
        self._opened = opened or Opened(hub)

    @property
    def url(self) -> str:
        """The store's URL, without a password."""
        return self.hub.url

    @property
    def capabilities(self) -> Capabilities:
        """What the store promises."""
        return self.hub.capabilities

    def lock(self, name: str | bytes, **options: Unpack[HoldOptions]) -> Lock:
        """A `Lock` in this store."""
        return Lock(name, client=self, **options)

    def semaphore(
        self, name: str | bytes, capacity: int, **options: Unpack[HoldOptions]
    ) -> Semaphore:
        """A `Semaphore` in this store."""
        return Semaphore(name, capacity, client=self, **options)

    def rwlock(self, name: str | bytes, **options: Unpack[HoldOptions]) -> "RWLock":
        """An `RWLock` in this store."""
        from leasehold.faces.blocking_rwlock import RWLock  # only who asks for it pays for it

        return RWLock(name, client=self, **options)

    def task_lock(
        self,
        name: str | bytes,
        min_hold: Duration | Unset = UNSET,
        max_hold: Duration | Unset = UNSET,
        **options: Unpack[TaskOptions],
    ) -> "TaskLock":
        """A `TaskLock` in this store."""
        from leasehold.faces.blocking_tasklock import TaskLock

        return TaskLock(name, min_hold, max_hold, client=self, **options)

    def leader_election(
        self, name: str | bytes, **options: Unpack[ElectionOptions]
    ) -> "LeaderElection":
        """A `LeaderElection` in this store."""
        from leasehold.faces.blocking_election import LeaderElection

        return LeaderElection(name, client=self, **options)

    def status(self, name: str | bytes | Status, kind: Kind | None = None) -> Status:
        """Who holds a resource and who waits for it.

        Named by kind (unset: a lock) and name, or by a `Status` of it, such as `list()` gives. Raises
        `ValueError` for an unknown kind.
        """
        refuse_in_loop(self)
        return step(admin.status(self.hub.thread_runtime(), resource_key(name, kind)))

    def list(self, prefix: str | bytes = b"", kind: Kind | None = None) -> Iterator[Status]:
        """All resources in use whose names begin with `prefix`, kind by kind in byte order."""
        refuse_in_loop(self)
        for each in kinds_asked(kind):
            yield from self.hub.thread_runtime().scan(admin.scan_prefix(each, prefix))

    def revoke(
        self,
        name: str | bytes | Status,
        *,
        reason: str,
        now: bool = False,
        kind: Kind | None = None,
    ) -> int:
        """As `Lock.revoke`, for any kind; the resource is named as for `status`."""
        refuse_in_loop(self)
        return step(admin.revoke(self.hub.thread_runtime(), resource_key(name, kind), reason, now))

    def examine(self) -> Sequence[Finding]:
        """Look at the store: how far away it is, what it promises, and what is wrong with it.

        For people: `leasehold doctor` prints the same. Raises `BackendUnavailable`, `Forbidden`.
        """
        refuse_in_loop(self)
        return step(admin.examine(self.hub.thread_runtime()))

    def attach(self, handle: str) -> Lease:
        """Take over a lease that another process detached. Raises `LeaseLost` if it came too late."""
        refuse_in_loop(self)
        return step(admin.attach(self.hub.thread_runtime(), handle, _lease_type))

    def close(self) -> None:
        """Give up what is held here (its holders see `LeaseLost`, reason `closed`) and disconnect.

        Used again, it connects again. A client of the default store or of a named one (`connect()` without
        a URL) has nothing of its own to close; of several that were connected under one name the last
        one closes the store.
        """
        if not self._opened.given_up():
            return
        self.hub.close()

    def __enter__(self) -> Self:
        self.hub = self._opened.taken()
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"


def connect(
    url: str | None = None,
    *,
    default: bool = False,
    name: str | None = None,
    **options: Unpack[ConnectOptions],
) -> Client:
    """A client of the store that `url` names; None for the default store. Connects when it is used.

    `default` makes it what bare primitives use. With a `name`, until it is closed, primitives of both worlds
    may name that store: `Lock("x", client="reports")`; without a URL, it is a client of the store that has
    the name. Options, which go with a URL only: `connect_timeout`
    and `call_timeout`, in seconds, and `clock`, for tests. In the stead of a URL `client` may be a client
    of redis-py's, whose addresses, login and TLS are taken for connections of our own. Closing a client
    of the default store, or of one by its name alone, leaves that store open, as others use it. Raises
    `NotConfigured` for a URL that no backend serves and a name that no store has, `ValueError` for a name
    that another store has.
    """
    found = opened(url, default, name, options)
    return Client(found.hub, opened=found)
