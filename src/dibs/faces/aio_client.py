"""The asyncio face of a store in use."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Self, Unpack

from dibs.config import UNSET, Duration, Unset
from dibs.core.names import Kind
from dibs.faces.asked import kinds_asked, resource_key
from dibs.faces.loops import refuse_in_workflow
from dibs.faces.opening import ConnectOptions, Opened, named, opened
from dibs.hub import Hub
from dibs.model import Capabilities, Finding, Status
from dibs.primitives import admin
from dibs.primitives.options import ElectionOptions, HoldOptions, TaskOptions
from dibs.runtime.asyncio import AsyncRuntime

if TYPE_CHECKING:
    from dibs.faces.aio_election import LeaderElection
    from dibs.faces.aio_rwlock import RWLock
    from dibs.faces.aio_tasklock import TaskLock

from dibs.faces.aio import Lease, Lock, Semaphore


def _lease_type(kind: str) -> type[Lease]:
    """What a lease of that kind is."""
    if kind != "rwlock":
        return Lease
    from dibs.faces.aio_rwlock import RWLease

    return RWLease


class Client:
    """An asyncio client of a store. It connects on first use."""

    def __init__(self, hub: Hub, *, opened: Opened | None = None) -> None:
        self.hub = hub
        self._opened = opened or Opened(hub)

    @classmethod
    def named(cls, name: str) -> Self:
        """Return a client of a store that the settings name. Closing it leaves the store open.

        Raises `NotConfigured` for an unknown name.
        """
        found = named(name)
        return cls(found.hub, opened=found)

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
        from dibs.faces.aio_rwlock import RWLock  # only who asks for it pays for it

        return RWLock(name, client=self, **options)

    def task_lock(
        self,
        name: str | bytes,
        min_hold: Duration | Unset = UNSET,
        max_hold: Duration | Unset = UNSET,
        **options: Unpack[TaskOptions],
    ) -> "TaskLock":
        """A `TaskLock` in this store."""
        from dibs.faces.aio_tasklock import TaskLock

        return TaskLock(name, min_hold, max_hold, client=self, **options)

    def leader_election(
        self, name: str | bytes, **options: Unpack[ElectionOptions]
    ) -> "LeaderElection":
        """A `LeaderElection` in this store."""
        from dibs.faces.aio_election import LeaderElection

        return LeaderElection(name, client=self, **options)

    async def status(self, name: str | bytes | Status, kind: Kind | None = None) -> Status:
        """Return the holders and waiters of a resource.

        Give its name and kind (unset: a lock), or a `Status`, such as from `list()`. Raises `ValueError` for
        an unknown kind.
        """
        return await admin.status(await self._ready(), resource_key(name, kind))

    async def list(
        self, prefix: str | bytes = b"", kind: Kind | None = None
    ) -> AsyncIterator[Status]:
        """Yield all resources in use whose names begin with `prefix`, by kind and name."""
        await self._ready()
        for each in kinds_asked(kind):
            async for status in self.hub.loop_runtime().scan(admin.scan_prefix(each, prefix)):
                yield status

    async def revoke(
        self,
        name: str | bytes | Status,
        *,
        reason: str,
        now: bool = False,
        kind: Kind | None = None,
    ) -> int:
        """Like `Lock.revoke`, for any kind; the resource is given as for `status`."""
        return await admin.revoke(await self._ready(), resource_key(name, kind), reason, now)

    async def examine(self) -> Sequence[Finding]:
        """Check the store's latency, promises and configuration; `dibs doctor` prints the findings.

        Raises `BackendUnavailable`, `Forbidden`.
        """
        return await admin.examine(await self._ready())

    async def attach(self, handle: str) -> Lease:
        """Take over a lease that another process detached. Raises `LeaseLost` if it has ended."""
        return await admin.attach(await self._ready(), handle, _lease_type)

    async def close(self) -> None:
        """Release all leases of this client and disconnect.

        Their holders get `LeaseLost` with reason `closed`. A later use connects again. A client of the
        default store (`connect()` without a URL) leaves that store open.
        """
        if not self._opened.end():
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.hub.close)
        await self.hub.close_loop()
        await loop.run_in_executor(None, self.hub.close)  # for what was granted meanwhile

    async def __aenter__(self) -> Self:
        self._opened.begin()
        await self._ready()
        return self

    async def __aexit__(self, *about: object) -> None:
        await self.close()

    async def _ready(self) -> AsyncRuntime:
        refuse_in_workflow(self)
        runtime = self.hub.loop_runtime()
        await runtime.ready()
        return runtime

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"


def connect(
    url: str | None = None,
    *,
    default: bool = False,
    **options: Unpack[ConnectOptions],
) -> Client:
    """A client of the store that `url` names; None for the default store. Connects when it is used.

    With `default=True`, primitives created without `client=` use this client until it is closed. Then the
    previous default applies again. Options go with a URL: `connect_timeout` and `call_timeout`, in
    seconds, and `clock`, for tests. Instead of a URL, `client` takes a `temporalio.client.Client`. Raises
    `NotConfigured` for a URL that no backend serves.
    """
    found = opened(url, default, options)
    return Client(found.hub, opened=found)
