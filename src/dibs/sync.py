# Generated from `_api.py` by `tools/unasync.py`: change that file, and run the tool.
"""Only one at a time, everywhere: leases on shared resources, for threads.

`dibs` has the same names, for asyncio.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, Self, Unpack, overload

from dibs.client import (
    ConnectOptions,
    NamedStore,
    OpenStore,
    default_session,
    examine,
    kinds_asked,
    open_store,
    resource_key,
    scan_prefix,
    session_named,
)
from dibs.config import UNSET, Unset, optional_seconds
from dibs.config import Duration as Duration
from dibs.core.names import Kind
from dibs.lazy import imported, public_names
from dibs.locks.allof import AllOfBase, LeasesBase
from dibs.locks.base import BlockLease, PrimitiveBase, ReusableContext, attach, revoke, status_of
from dibs.locks.election import CampaignBase, ElectionBase, GuardedBase, TermBase
from dibs.locks.lease import LeaseBase
from dibs.locks.requests import (
    ElectionOptions,
    LockOptions,
    NoOptions,
    SkippingDecorator,
    TaskOptions,
    WhenBusy,
    refuse_options,
    shown_as,
)
from dibs.locks.rwlock import ReadSideBase, RWLeaseBase, RWLockBase, WriteSideBase
from dibs.locks.semaphore import SemaphoreBase
from dibs.locks.tasklock import TaskLeaseBase, TaskLockBase
from dibs.locks.waiting import Waiting as Waiting
from dibs.model import Capabilities as Capabilities
from dibs.model import Finding as Finding
from dibs.model import Holder as Holder
from dibs.model import Status as Status
from dibs.runtime.port import Runtime, step
from dibs.runtime.threads import ThreadRuntime
from dibs.session import StoreSession
from dibs.settings import store_name
from dibs.sides import (
    body_of_thread,
    checked_client,
    join_blocking,
    refuse_client_in_workflow,
    refuse_in_loop,
    step_until_sigterm,
)

MAY_AWAIT = False
"""Callbacks may be coroutine functions."""
SIDE = "dibs.sync"
"""Where users import these names from."""


class HeldBlock:
    """A lease, or several, as the subject of `with`."""

    __slots__ = ()
    _are: ClassVar[str] = "this lease is"

    def __enter__[HeldT: BlockLease](self: HeldT) -> HeldT:
        step(self._begin())
        return self

    def __exit__(self: BlockLease, kind: object, exc: BaseException | None, trace: object) -> None:
        step(self._leave(exc))

    if not TYPE_CHECKING:

        async def __aenter__(self) -> Any:
            raise TypeError(f"{self._are} held by a thread: write `with`, not `async with`")

        async def __aexit__(self, *about: object) -> None: ...


class Lease(LeaseBase, HeldBlock):
    """A lease that is held by a thread.

    `with lease` releases it at the end of the block. If the lease was lost, the end of the block raises
    `LeaseLost`. A thread cannot be interrupted: call `ensure()` between steps, which raises once the lease
    is lost.
    """

    __slots__ = ()

    def renew(self, ttl: Duration | None = None) -> None:
        """Renew the lease for `ttl` seconds from now; None means the ttl of the acquire. Never shortens it.

        Raises `LeaseLost` if it is lost, `NotHeld` if it was released, and `BackendUnavailable`.
        """
        step(self._renew(ttl))

    def release(self) -> bool:
        """Release the lease; True if it was held until now. Can be called again.

        With `reentrant=True` each call undoes one acquire, and the last one releases.
        """
        return step(self._release())

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it is lost (return True), or released or `timeout` seconds have passed (False)."""
        return step(self._wait_lost(optional_seconds(timeout, "timeout")))


class Enterable[HeldT: BlockLease](ReusableContext[HeldT]):
    """An object for `with`."""

    def __enter__(self) -> HeldT:
        return step(self._enter_block())

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        step(self._take_entered()._leave(exc))

    if not TYPE_CHECKING:

        async def __aenter__(self) -> Any:
            name = type(self).__name__
            raise TypeError(
                f"{name} of dibs.sync blocks: write `with`, or import {name} from dibs for `async with`"
            )

        async def __aexit__(self, *about: object) -> None: ...


class Resource[LeaseT: Lease](Enterable[LeaseT], PrimitiveBase[LeaseT]):
    """Base of the primitives with one key: status, revocation and `with`."""

    _checked_client = staticmethod(checked_client)
    _join = staticmethod(join_blocking)
    _may_await = MAY_AWAIT
    _client: "Client | NamedStore | None"

    def _runtime(self) -> ThreadRuntime:
        refuse_in_loop(self)
        client = self._client
        return (default_session() if client is None else client.session).thread_runtime()

    def status(self) -> Status:
        """Return the holders and waiters. `mine` lists the leases of this client."""
        return step(self._status())

    def locked(self) -> bool:
        """Return whether all units are taken."""
        return step(self._locked())

    def revoke(self, *, reason: str, now: bool = False) -> int:
        """End the leases of all holders; return how many there were.

        The holders get a notification with `reason` and cannot renew any more; the units are free when the
        leases run out. A holder that is busy learns of it by its next renewal at the latest.
        With `now=True` they are free at once, although the holders may still be working. This gives up
        exclusion: then only fencing protects the resource.
        """
        return step(self._revoke(reason, now))


class Acquirable[LeaseT: Lease](Resource[LeaseT]):
    """Base of what has `acquire(wait=…)`."""

    def acquire(
        self,
        *more: Never,
        units: int = 1,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
        within: Any = None,
        on_wait: Callable[[Waiting], object] | None = None,
        **others: Unpack[NoOptions],
    ) -> LeaseT:
        """Acquire `units`: return the lease, a context manager.

        If it is held, wait in the queue for at most `wait` seconds (None: no limit; 0: one try; unset: as
        constructed). The queue is ordered by priority, then arrival. An interrupted acquire leaves nothing
        behind. Raises `AcquireTimeout`, `Reentrant`, `Deadlock`, `BackendUnavailable`, `Forbidden`,
        `IncompatibleVersion`.

        While it waits, `on_wait` (unset: the constructor's) is called with a `Waiting`, at once and then
        every second. It runs in the waiting thread, so it must be quick. Its exceptions are only logged.

        `within` takes your own connection to the PostgreSQL database that keeps the leases. Then the
        acquire is one try, and part of your transaction: the lease exists once the transaction commits, and
        until then the key is busy for others. The ttl must be longer than the transaction. Raises
        `NotConfigured` for a store without transactions, and for a connection to another database.
        """
        if more or others:
            takes = more and "no positional arguments"
            refuse_options("acquire()", others, Acquirable.acquire, takes)
        return step(self._acquire(units, wait, priority, note, within, on_wait))

    @shown_as("try_acquire")
    def try_acquire(
        self, *, units: int = 1, priority: int | None = None, note: str | None = None
    ) -> LeaseT | None:
        """Acquire without waiting; None if others hold it or wait for it."""
        return step(self._try(units, priority, note))

    if not TYPE_CHECKING:

        def release(self) -> None:
            """Never works: a lease is released, not the primitive. Raises `TypeError`."""
            raise TypeError("release the lease: `lease = lock.acquire()`, then `lease.release()`")


class Lock(Acquirable[Lease]):
    """One holder at a time, across threads, processes and machines.

    Contention: waiters queue by priority, then arrival. Expiry: the lease is renewed in the background at a
    third of the ttl; if that fails, the holder learns of the loss before the store lets others in.
    Interrupts: an interrupted acquire leaves nothing behind. Durations are seconds, or texts such as "30s".
    """

    _lease_type = Lease

    @overload
    @staticmethod
    def wraps[F: Callable[..., Any]](
        template: str,
        *,
        on_busy: Literal["raise"] = "raise",
        default: object = None,
        client: "Client | str | None" = None,
        **options: Unpack[LockOptions[Lease]],
    ) -> Callable[[F], F]: ...

    @overload
    @staticmethod
    def wraps[D](
        template: str,
        *,
        on_busy: Literal["skip"],
        default: D,
        client: "Client | str | None" = None,
        **options: Unpack[LockOptions[Lease]],
    ) -> SkippingDecorator[D]: ...

    @overload
    @staticmethod
    def wraps(
        template: str,
        *,
        on_busy: Literal["skip"],
        client: "Client | str | None" = None,
        **options: Unpack[LockOptions[Lease]],
    ) -> SkippingDecorator[None]: ...

    @overload
    @staticmethod
    def wraps[D](
        template: str,
        *,
        on_busy: WhenBusy[D],
        client: "Client | str | None" = None,
        **options: Unpack[LockOptions[Lease]],
    ) -> SkippingDecorator[D]: ...

    @staticmethod
    def wraps(
        template: str,
        *,
        on_busy: Literal["raise", "skip"] | WhenBusy[object] = "raise",
        default: object = None,
        client: "Client | str | None" = None,
        **options: Unpack[LockOptions[Lease]],
    ) -> Callable[[Callable[..., Any]], Any]:
        """Hold the lock that `template` names while the decorated function runs.

        `"report:{day}"` takes the parameter `day`. A coroutine function acquires in its event loop; a plain
        function blocks. If it cannot acquire within `wait`, the call raises `AcquireTimeout`. With
        `on_busy="skip"` it returns `default`. With a function as `on_busy` it returns what that returns for
        the `AcquireTimeout`, or raises what that raises, such as the retry of a job queue. Both try once,
        unless `wait` is set. Inside, `current_lease()` returns the lease. The other options are the
        constructor's. At decoration a field without a parameter raises `ValueError`, and a generator
        function `TypeError`.
        """
        wrapping: Callable[[Callable[..., Any]], Any] = imported("dibs.decorator").wraps(
            "Lock", template, on_busy, default, client, options
        )
        return wrapping


class Semaphore(SemaphoreBase[Lease], Acquirable[Lease]):
    """At most `capacity` units at a time; each unit is a numbered slot, in `lease.slots`.

    Contention: waiters queue by priority, then arrival. The queue is strict: a large request at the head is
    not overtaken. The newest declared capacity applies; holders beyond it keep their units until they
    release. Expiry: the units of a lease end together, and the holder learns of the loss before the store
    lets others in. Interrupts: an interrupted acquire leaves nothing behind. Durations are seconds, or
    texts such as "30s".
    """

    _lease_type = Lease

    @overload
    @staticmethod
    def wraps[F: Callable[..., Any]](
        template: str,
        capacity: int,
        *,
        on_busy: Literal["raise"] = "raise",
        default: object = None,
        client: "Client | str | None" = None,
        **options: Unpack[LockOptions[Lease]],
    ) -> Callable[[F], F]: ...

    @overload
    @staticmethod
    def wraps[D](
        template: str,
        capacity: int,
        *,
        on_busy: Literal["skip"],
        default: D,
        client: "Client | str | None" = None,
        **options: Unpack[LockOptions[Lease]],
    ) -> SkippingDecorator[D]: ...

    @overload
    @staticmethod
    def wraps(
        template: str,
        capacity: int,
        *,
        on_busy: Literal["skip"],
        client: "Client | str | None" = None,
        **options: Unpack[LockOptions[Lease]],
    ) -> SkippingDecorator[None]: ...

    @overload
    @staticmethod
    def wraps[D](
        template: str,
        capacity: int,
        *,
        on_busy: WhenBusy[D],
        client: "Client | str | None" = None,
        **options: Unpack[LockOptions[Lease]],
    ) -> SkippingDecorator[D]: ...

    @staticmethod
    def wraps(
        template: str,
        capacity: int,
        *,
        on_busy: Literal["raise", "skip"] | WhenBusy[object] = "raise",
        default: object = None,
        client: "Client | str | None" = None,
        **options: Unpack[LockOptions[Lease]],
    ) -> Callable[[Callable[..., Any]], Any]:
        """Like `Lock.wraps`, with a unit of the semaphore; a wrong `capacity` raises at decoration."""
        wrapping: Callable[[Callable[..., Any]], Any] = imported("dibs.decorator").wraps(
            "Semaphore", template, on_busy, default, client, options, capacity
        )
        return wrapping


class RWLease(RWLeaseBase, Lease):
    """A lease of a readers-writer lock, held by a thread."""

    __slots__ = ()

    def upgrade(self, *, wait: Duration | None = None) -> None:
        """Change from reading to writing, once all other readers have released.

        The upgrade goes before all waiters, and no new reader gets in. After `wait` seconds (None: no limit;
        0: one try) it raises `AcquireTimeout`, and the lease still reads. If another reader already waits to
        upgrade, it raises `Deadlock` at once. Writing is a new grant with a new `token`. Raises `LeaseLost`,
        `NotHeld`, `BackendUnavailable`.
        """
        step(self._upgrade(wait))

    def downgrade(self) -> None:
        """Change from writing to reading, and let other readers in; no writer gets in between.

        If the store is away, this happens in the background. The token stays. Raises `LeaseLost`, `NotHeld`.
        """
        step(self._downgrade())


class Reading(ReadSideBase[RWLease], Acquirable[RWLease]):
    """An `RWLock` for reading."""

    _lease_type = RWLease


class Writing(WriteSideBase[RWLease], Acquirable[RWLease]):
    """An `RWLock` for writing."""

    _lease_type = RWLease


class RWLock(RWLockBase[Reading, Writing, RWLease]):
    """Many readers or one writer, across threads, processes and machines.

    `with lock.read() as lease` and `with lock.write() as lease`; the sides are acquired as a `Lock` is, and
    their leases can be upgraded and downgraded. Contention: readers and writers share a queue, by priority,
    then arrival, so neither side starves. Expiry and interrupts: as for a `Lock`. The options are those of
    a `Lock`, and apply to both sides.
    """

    _read_type = Reading
    _write_type = Writing

    def status(self) -> Status:
        """Return the holders and waiters; a writer has all units, a reader has one."""
        return self._writing.status()

    def locked(self) -> bool:
        """Return whether anyone holds it; `read().locked()` returns whether a writer holds it."""
        return step(self._writing._locked())

    def revoke(self, *, reason: str, now: bool = False) -> int:
        """Like `Lock.revoke`, for the readers and the writer."""
        return self._writing.revoke(reason=reason, now=now)


class TaskLease(TaskLeaseBase, Lease):
    """The lease of a task lock: never renewed, and retained after its release until `min_hold` is over."""

    __slots__ = ()


class TaskLock(TaskLockBase[TaskLease], Resource[TaskLease]):
    """One start of a task at a time, and none within `min_hold` of the one before.

    Contention: one try. It raises `AcquireTimeout`, which names the holder, or the time until it is free.
    Expiry: nothing is renewed, so others can start after `max_hold`, whatever happens to the holder. A body
    that takes longer is reported at its end, as a thread cannot be interrupted; with `cancel=True` the end
    raises `LeaseLost`. Durations are seconds, or texts such as "30s".
    """

    _lease_type = TaskLease

    @overload
    @staticmethod
    def wraps[F: Callable[..., Any]](
        template: str,
        *,
        min_hold: Duration | Unset = UNSET,
        max_hold: Duration | Unset = UNSET,
        on_busy: Literal["raise"] = "raise",
        default: object = None,
        client: "Client | str | None" = None,
        **options: Unpack[TaskOptions[TaskLease]],
    ) -> Callable[[F], F]: ...

    @overload
    @staticmethod
    def wraps[D](
        template: str,
        *,
        min_hold: Duration | Unset = UNSET,
        max_hold: Duration | Unset = UNSET,
        on_busy: Literal["skip"],
        default: D,
        client: "Client | str | None" = None,
        **options: Unpack[TaskOptions[TaskLease]],
    ) -> SkippingDecorator[D]: ...

    @overload
    @staticmethod
    def wraps(
        template: str,
        *,
        min_hold: Duration | Unset = UNSET,
        max_hold: Duration | Unset = UNSET,
        on_busy: Literal["skip"],
        client: "Client | str | None" = None,
        **options: Unpack[TaskOptions[TaskLease]],
    ) -> SkippingDecorator[None]: ...

    @overload
    @staticmethod
    def wraps[D](
        template: str,
        *,
        min_hold: Duration | Unset = UNSET,
        max_hold: Duration | Unset = UNSET,
        on_busy: WhenBusy[D],
        client: "Client | str | None" = None,
        **options: Unpack[TaskOptions[TaskLease]],
    ) -> SkippingDecorator[D]: ...

    @staticmethod
    def wraps(
        template: str,
        *,
        min_hold: Duration | Unset = UNSET,
        max_hold: Duration | Unset = UNSET,
        on_busy: Literal["raise", "skip"] | WhenBusy[object] = "raise",
        default: object = None,
        client: "Client | str | None" = None,
        **options: Unpack[TaskOptions[TaskLease]],
    ) -> Callable[[Callable[..., Any]], Any]:
        """Like `Lock.wraps`, with a task lock; `on_busy="skip"` skips a call that may not start."""
        hold = {"min_hold": min_hold, "max_hold": max_hold, **options}
        wrapping: Callable[[Callable[..., Any]], Any] = imported("dibs.decorator").wraps(
            "TaskLock", template, on_busy, default, client, hold
        )
        return wrapping

    def acquire(self, *, note: str | None = None) -> TaskLease:
        """Start, if it may: return the lease, a context manager.

        Raises `AcquireTimeout` at once if it may not.
        """
        return step(self._acquire(1, 0, None, note))

    def try_acquire(self, *, note: str | None = None) -> TaskLease | None:
        """Start if possible; None if it is running, or ran too recently."""
        return step(self._try(1, None, note))


class Term(TermBase, Lease):
    """A term of leadership: a lease that lasts until the leader dies, resigns or loses it.

    `token` rises with every term of any candidate: pass it on with each write. `number` counts the terms of
    this candidate.
    """

    __slots__ = ()


class Guarded(GuardedBase[Term]):
    """A block that only the leader can enter.

    If the term has ended, the end of the block raises `LeaseLost`.
    """

    def __enter__(self) -> Term:
        return self._begin()

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        self._end(exc)


class Campaign(CampaignBase[Term]):
    """A candidate in the background: it leads when elected, and stands again after each loss.

    At the end of its block it steps down, and another candidate can lead at once.
    """

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it leads (return True); return False after `timeout` seconds."""
        return step(self._wait(optional_seconds(timeout, "timeout")))

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it does not lead (return True); return False after `timeout` seconds."""
        return step(self._wait_lost(optional_seconds(timeout, "timeout")))

    def __enter__(self) -> Self:
        step(self._start())
        return self

    def __exit__(self, *about: object) -> None:
        step(self._finish())

    def guard(self) -> Guarded:
        """A block for the leader only; entering it raises `NotHeld` if this candidate does not lead.

        When the term ends, the body is cancelled and `LeaseLost` raised instead. A thread is not interrupted:
        `term.ensure()` and the end of the block raise. No other candidate leads before the body has ended or
        the lease has run out.
        """
        return Guarded(self)


class LeaderElection(ElectionBase[Term], Resource[Term]):
    """One leader at a time among all candidates of that name.

    `with` waits until it leads, and hands over at the end of the block. If the term ends earlier,
    `term.ensure()` and the end of the block raise `LeaseLost`; a thread is not interrupted. Contention:
    candidates queue by priority, then arrival. Expiry: a leader renews every `retry` seconds. If that fails
    for `renew_deadline` seconds, it steps down before the ttl is over, so that terms do not overlap.
    `on_started` and `on_stopped` are called with each term, in this order, before anyone else leads.
    Durations are seconds, or texts such as "30s".
    """

    _lease_type = Term

    def campaign(self) -> Campaign:
        """Return a candidate that runs in the background while its block lasts."""
        return Campaign(self)

    def who(self) -> Holder | None:
        """Return the leader, for observers; None if there is none."""
        return step(self._who())

    def run[R](self, func: Callable[[Term], R] | None = None, *, ready: object = None) -> R | None:
        """Stand, and call `func` with the term when elected; again after each loss.

        When the term ends, a coroutine function is cancelled; a thread is not interrupted, and
        `term.ensure()` raises. When `func` returns or raises by itself, the leader hands over and `run`
        does the same. Without `func` it leads until it is cancelled or interrupted. `ready` (a function, an
        event or a future) is called or set when it begins to stand. It waits through an outage.
        In the main thread SIGTERM ends `func` and hands over, unless the program handles it; `run` then
        returns None.
        """
        return step_until_sigterm(self._run(body_of_thread(func), ready))


type Member = Acquirable[Any] | tuple[Semaphore, int] | AllOf
"""What can be held with others: a primitive, a semaphore with the units wanted of it, or an `AllOf`."""


class Leases(LeasesBase[Lease], HeldBlock):
    """The leases of an `AllOf`, in the order of its arguments.

    A sequence: `leases[0]` is the lease of the first argument. `with` releases all of them at the end, in
    one round trip. If one was lost, the end of the block raises `LeaseLost`, which names it. A thread
    cannot be interrupted: call `ensure()` between steps, which raises once one is lost.
    """

    __slots__ = ()
    _are = "these leases are"

    def release(self) -> bool:
        """Release all, in one round trip; True if each was held until now. Can be called again."""
        return step(self._release())

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until one is lost (return True), or all released or `timeout` seconds have passed (False)."""
        return step(self._wait_lost(optional_seconds(timeout, "timeout")))


class AllOf(Enterable[Leases], AllOfBase[Leases]):
    """Several resources at once, all or nothing.

    `AllOf(lock, (semaphore, 2), rwlock.read())`; the leases come in this order. Contention: the first try
    takes all in one round trip. If that fails, it acquires them one after the other in the order of their
    keys, so that two `AllOf`s never deadlock. Expiry: each is an ordinary lease; if one is lost, the block
    raises `LeaseLost`, and the others are released at its end. Interrupts: an interrupted acquire leaves
    nothing behind. `ttl` applies to each (unset: its own), `wait` to all together (unset: the shortest of
    theirs). Durations are seconds, or texts such as "30s".
    """

    _leases_type = Leases
    _takes = Acquirable
    _side = SIDE
    _may_await = MAY_AWAIT

    def __init__(
        self,
        *members: Member,
        wait: Duration | Unset | None = UNSET,
        ttl: Duration | Unset = UNSET,
        on_wait: Callable[[Waiting], object] | None = None,
        **others: Unpack[NoOptions],
    ) -> None:
        super().__init__(*members, wait=wait, ttl=ttl, on_wait=on_wait, **others)

    def _runtime(self) -> Runtime:
        refuse_in_loop(self)
        return super()._runtime()

    def acquire(
        self,
        *,
        wait: Duration | Unset | None = UNSET,
        priority: int | None = None,
        note: str | None = None,
        on_wait: Callable[[Waiting], object] | None = None,
        **others: Unpack[NoOptions],
    ) -> Leases:
        """Acquire all, or none: return the leases, a context manager.

        It waits for at most `wait` seconds in all (None: no limit; 0: one try; unset: as constructed).
        While it waits for one, it may hold and renew others. `on_wait` is called as for a `Lock`, about the
        one that it waits for. An interrupted acquire leaves nothing behind. Raises `AcquireTimeout`,
        `Reentrant` (before anything is acquired), `Deadlock`, `BackendUnavailable`, `Forbidden`,
        `IncompatibleVersion`, and `ValueError` if they are not all of one client.
        """
        if others:
            refuse_options("acquire()", others, AllOf.acquire)
        return step(self._acquire(wait, priority, note, on_wait))

    def try_acquire(self, *, priority: int | None = None, note: str | None = None) -> Leases | None:
        """Acquire all without waiting; None if others hold one of them or wait for it."""
        return step(self._try(priority, note))

    if not TYPE_CHECKING:

        def release(self) -> None:
            """Never works: leases are released, not the `AllOf`. Raises `TypeError`."""
            raise TypeError(
                "release the leases: `leases = both.acquire()`, then `leases.release()`"
            )


class Client:
    """A client of a store. It connects on first use."""

    def __init__(self, session: StoreSession, *, store: OpenStore | None = None) -> None:
        self.session: StoreSession = session
        self._settings = session.settings
        self._store = store or OpenStore(session)

    @classmethod
    def named(cls, name: str) -> Self:
        """Return a client of a store that the settings name. Closing it leaves the store open.

        Raises `NotConfigured` for an unknown name.
        """
        refuse_client_in_workflow()
        session = session_named(store_name(name))
        return cls(session, store=OpenStore(session, shared=True))

    @property
    def url(self) -> str:
        """The store's URL, without a password."""
        return self.session.url

    @property
    def capabilities(self) -> Capabilities:
        """The promises of the store."""
        return self.session.capabilities

    def lock(self, name: str | bytes, **options: Unpack[LockOptions[Lease]]) -> Lock:
        """A `Lock` in this store."""
        return Lock(name, client=self, **options)

    def semaphore(
        self, name: str | bytes, capacity: int, **options: Unpack[LockOptions[Lease]]
    ) -> Semaphore:
        """A `Semaphore` in this store."""
        return Semaphore(name, capacity, client=self, **options)

    def rwlock(self, name: str | bytes, **options: Unpack[LockOptions[RWLease]]) -> RWLock:
        """An `RWLock` in this store."""
        return RWLock(name, client=self, **options)

    def task_lock(
        self,
        name: str | bytes,
        min_hold: Duration | Unset = UNSET,
        max_hold: Duration | Unset = UNSET,
        **options: Unpack[TaskOptions[TaskLease]],
    ) -> TaskLock:
        """A `TaskLock` in this store."""
        return TaskLock(name, min_hold, max_hold, client=self, **options)

    def leader_election(
        self, name: str | bytes, **options: Unpack[ElectionOptions[Term]]
    ) -> LeaderElection:
        """A `LeaderElection` in this store."""
        return LeaderElection(name, client=self, **options)

    def status(self, name: str | bytes | Status, kind: Kind | None = None) -> Status:
        """Return the holders and waiters of a resource.

        Give its name and kind (unset: a lock), or a `Status`, such as from `list()`. Raises `ValueError` for
        an unknown kind.
        """
        return step(status_of(self._ready(), resource_key(name, kind)))

    def list(self, prefix: str | bytes = b"", kind: Kind | None = None) -> Iterator[Status]:
        """Yield all resources in use whose names begin with `prefix`, by kind and name."""
        runtime = self._ready()
        for each in kinds_asked(kind):
            yield from runtime.scan(scan_prefix(each, prefix))

    def revoke(
        self,
        name: str | bytes | Status,
        *,
        reason: str,
        now: bool = False,
        kind: Kind | None = None,
    ) -> int:
        """Like `Lock.revoke`, for any kind; the resource is given as for `status`."""
        return step(revoke(self._ready(), resource_key(name, kind), reason, now))

    def examine(self) -> Sequence[Finding]:
        """Check the store's latency, promises and configuration; `dibs doctor` prints the findings.

        Raises `BackendUnavailable`, `Forbidden`.
        """
        return step(examine(self._ready()))

    def attach(self, handle: str) -> Lease:
        """Take over a lease that another process detached. Raises `LeaseLost` if it has ended."""
        return step(attach(self._ready(), handle, _lease_type))

    def close(self) -> None:
        """Release all leases of this client and disconnect.

        Their holders get `LeaseLost` with reason `closed`. A later use connects again. A client of the
        default store (`connect()` without a URL) leaves that store open.
        """
        if self._store.end():
            self.session.close()

    def __enter__(self) -> Self:
        self._store.begin()
        self._ready()
        return self

    def __exit__(self, *about: object) -> None:
        self.close()

    def _ready(self) -> ThreadRuntime:
        refuse_in_loop(self)
        runtime = self.session.thread_runtime()
        step(runtime.ready())
        return runtime

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"


def _lease_type(kind: str) -> type[Lease]:
    """Return the lease class of a kind."""
    return RWLease if kind == "rwlock" else Lease


def connect(
    url: str | None = None, *, default: bool = False, **options: Unpack[ConnectOptions]
) -> Client:
    """Return a client of the store at `url` (None: the default store). It connects on first use.

    With `default=True`, primitives created without `client=` use this client until it is closed. Then the
    previous default applies again. Options go with a URL: `connect_timeout` and `call_timeout`, in
    seconds, and `clock`, for tests. Instead of a URL, `client` takes a `temporalio.client.Client`. Raises
    `NotConfigured` for a URL that is not one of a store.
    """
    refuse_client_in_workflow()
    store = open_store(url, default, options)
    return Client(store.session, store=store)


def current_lease() -> Lease:
    """Return the lease that the innermost decorated function around this call holds.

    Raises `NotHeld` outside of functions decorated with `wraps`. In a coroutine function it is a lease of
    `dibs`. In a plain function it is one of `dibs.sync`: there call `dibs.sync.current_lease`, whose type
    is right for it.
    """
    lease: Lease = imported("dibs.decorator").current_lease()
    return lease


if TYPE_CHECKING:
    from dibs.client import override as override
    from dibs.client import set_default as set_default
    from dibs.config import LockConfig as LockConfig
    from dibs.decorator import NameTemplate as NameTemplate
    from dibs.decorator import as_current as as_current
    from dibs.errors import AcquireTimeout as AcquireTimeout
    from dibs.errors import BackendUnavailable as BackendUnavailable
    from dibs.errors import CapacityWarning as CapacityWarning
    from dibs.errors import Corrupt as Corrupt
    from dibs.errors import Deadlock as Deadlock
    from dibs.errors import DibsError as DibsError
    from dibs.errors import Forbidden as Forbidden
    from dibs.errors import ImplicitStoreWarning as ImplicitStoreWarning
    from dibs.errors import IncompatibleVersion as IncompatibleVersion
    from dibs.errors import InvalidName as InvalidName
    from dibs.errors import InvalidRequest as InvalidRequest
    from dibs.errors import LeaseLost as LeaseLost
    from dibs.errors import MissingCapability as MissingCapability
    from dibs.errors import NotConfigured as NotConfigured
    from dibs.errors import NotHeld as NotHeld
    from dibs.errors import Reentrant as Reentrant
    from dibs.errors import UnsafeTiming as UnsafeTiming
    from dibs.locks.election import LeaderConfig as LeaderConfig
    from dibs.locks.tasklock import TaskLockConfig as TaskLockConfig
    from dibs.model import Waiter as Waiter

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = public_names(__name__, __name__)
