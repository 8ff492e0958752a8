"""The blocking faces of the primitives, for threads."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Unpack

from dibs.config import UNSET, Duration, Unset, optional_seconds
from dibs.defaults import default_hub
from dibs.faces.blocking_entering import Enterable, HeldByThread
from dibs.faces.described import Described
from dibs.faces.joining import by_thread
from dibs.faces.loops import refuse_in_loop
from dibs.lazy import imported
from dibs.model import Status
from dibs.primitives.lease import LeaseBase
from dibs.primitives.lock import LockBase
from dibs.primitives.options import HoldOptions, NoOptions, refuse_options
from dibs.primitives.semaphore import SemaphoreBase
from dibs.primitives.watching import Waiting
from dibs.runtime.step import step
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import NamedStore

if TYPE_CHECKING:
    from dibs.faces.blocking_client import Client


class Lease(LeaseBase, HeldByThread):
    """A lease that is held by a thread.

    `with lease` releases it at the end of the block, and raises `LeaseLost` there if it was lost. A thread
    cannot be interrupted: call `ensure()` between steps, which raises once the lease is lost.
    """

    __slots__ = ()

    def renew(self, ttl: Duration | None = None) -> None:
        """Renew the lease for `ttl` seconds from now; None means the ttl of the acquire. Never shortens it.

        Raises `LeaseLost` if it is lost, `NotHeld` if it was released, and `BackendUnavailable`.
        """
        step(self._renew(ttl))

    def release(self) -> bool:
        """Release the lease; True if it was held until now. Can be called again."""
        return step(self._release())

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until the lease is lost (True), or released, or for `timeout` seconds (False)."""
        return step(self._wait_lost(optional_seconds(timeout, "timeout")))


class Resource[LeaseT: Lease](Enterable[LeaseT], Described[LeaseT]):
    """Base of all blocking primitives: status, revocation and `with`."""

    _join = staticmethod(by_thread)
    _may_await = False
    _client: "Client | NamedStore | None"

    def _runtime(self) -> ThreadRuntime:
        client = self._client
        return (default_hub() if client is None else client.hub).thread_runtime()

    def status(self) -> Status:
        """Return the holders and waiters. `mine` tells which leases belong to this client."""
        refuse_in_loop(self)
        return step(self._status())

    def locked(self) -> bool:
        """Return whether nothing is free at this moment."""
        refuse_in_loop(self)
        return step(self._locked())

    def revoke(self, *, reason: str, now: bool = False) -> int:
        """End the leases of all holders; return how many there were.

        The holders get a notification with `reason` and cannot renew any more; the units are free when the
        leases run out. With `now=True` they are free at once, although the holders may still be working.
        This gives up exclusion: then only fencing protects the resource.
        """
        refuse_in_loop(self)
        return step(self._revoke(reason, now))


class Acquirable[LeaseT: Lease](Resource[LeaseT]):
    """Base of the blocking primitives that queue."""

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
    ) -> LeaseT:
        """Acquire `units` and return the lease, a context manager.

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
        if others:
            refuse_options("acquire()", others, Acquirable.acquire)
        refuse_in_loop(self)
        return step(self._acquire(units, wait, priority, note, within, on_wait))

    def try_acquire(
        self, *, units: int = 1, priority: int | None = None, note: str | None = None
    ) -> LeaseT | None:
        """Acquire without waiting; None if others hold it or wait for it."""
        refuse_in_loop(self)
        return step(self._try(units, priority, note))

    if not TYPE_CHECKING:  # it is an error to type checkers, and help at run time

        def release(self) -> None:
            """Never works: a lease is released, not the primitive. Raises `TypeError`."""
            raise TypeError("release the lease: `lease = lock.acquire()`, then `lease.release()`")


class Primitive(Acquirable[Lease]):
    """Base of the blocking primitives whose leases are plain `Lease`s."""

    _lease_type = Lease


class Lock(LockBase[Lease], Primitive):
    """One holder at a time, across threads, processes and machines.

    Contention: waiters queue by priority, then arrival. Expiry: the lease is renewed in the background at a
    third of the ttl; if that fails, the holder learns of the loss before the store lets others in.
    Interrupts: an interrupted acquire leaves nothing behind. Durations are seconds, or texts such as "30s".
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
    lets others in. Interrupts: an interrupted acquire leaves nothing behind. Durations are seconds, or texts
    such as "30s".
    """
