"""The service: all that a request may need.

Leases lie in stores, keys and restrictions in records; another server of the same service answers just
as well. What a server has of its own may end with it: whom it tells something (streams, long polls), what
each key has in use, and the activity that it has seen.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dibs.core.names import PROBE
from dibs.errors import DibsError
from dibs.model import (
    Inspect,
    Status,
)
from dibs.runtime.aio import AsyncRuntime
from dibs.server.activity import Activity, ObservingReceiver
from dibs.server.api.parameters import BodyReader
from dibs.server.api.problems import ApiProblem
from dibs.server.api.push import NotificationStreams, StreamReceiver
from dibs.server.api.routing import Operation
from dibs.server.audit import Audit
from dibs.server.auth.keys import KeyService
from dibs.server.auth.sessions import Sessions
from dibs.server.leases import LeaseService
from dibs.server.limits import Limits
from dibs.server.placement.restrictions import PlacementAdmin
from dibs.server.placement.router import StoreRouter
from dibs.server.quotas import Quotas
from dibs.server.reach import KeyReader
from dibs.server.records.port import Records
from dibs.server.shutdown import Endings, Shutdown

if TYPE_CHECKING:
    from dibs.server.metrics import Metrics
    from dibs.server.tracing import Tracing


HEALTH_PATIENCE = 2.0
"""So long a store may take to answer a probe, in seconds."""

FRESH = 1.0
"""So long an answer of the store's is good for all who ask, in seconds: asking often costs it nothing."""


class Health:
    """What `/readyz` says."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._answered = True
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Raises `ApiProblem`, 503, where requests should go to another server."""
        self._service.drain.check()
        if not self._service.keys.cache.is_current:
            raise ApiProblem("unavailable", "the server cannot read its records", retry_after=1)
        if not self._service.runtime.may_grant:
            raise ApiProblem(
                "unavailable", "the server cannot read the placements of directories", retry_after=1
            )
        await self._ask_store()
        if not self._answered:
            raise ApiProblem("unavailable", "the store does not answer", retry_after=1)

    async def _ask_store(self) -> None:
        """All who ask at a time share one look."""
        if self._asking is None:
            if self._service.now() - self._asked_at < FRESH:
                return
            self._asking = asyncio.create_task(self._look(), name="dibs health")
        await asyncio.shield(self._asking)

    async def _look(self) -> None:
        """While any of several stores answers, there is something to do here."""
        stores = self._service.runtime.stores
        try:
            self._answered = any(await asyncio.gather(*map(_answers, stores)))
        finally:
            self._asked_at = self._service.now()
            self._asking = None


async def _answers(store: AsyncRuntime) -> bool:
    try:
        async with asyncio.timeout(HEALTH_PATIENCE):
            answer = await store.call(Inspect(PROBE), HEALTH_PATIENCE)
    except (TimeoutError, DibsError):
        return False
    return isinstance(answer.reply, Status)


type Meter = Callable[[Operation | None, int, float], None]
"""Is told of each request that has ended: its route, the status of its answer, and how long it took."""


@dataclass(slots=True, eq=False)
class Service:
    """See the module."""

    runtime: StoreRouter
    """How commands get to the store, or to that of several where their key lives."""
    records: Records
    keys: KeyService
    audit: Audit
    limits: Limits = field(default_factory=Limits)
    origins: tuple[str, ...] = ()
    """Where else browsers find the dashboard."""
    placing: PlacementAdmin | None = None
    """Who knows where directories live."""
    meters: list[Meter] = field(default_factory=list)
    metrics: "Metrics | None" = None
    """What is shown at `/metrics`."""
    spans: "Tracing | None" = None
    """What is told to OpenTelemetry, where there is anybody to tell."""
    server_id: str = field(default_factory=lambda: secrets.token_hex(6))
    """Which of several servers this is; new with each start."""
    drain: Shutdown = field(default_factory=Shutdown)
    quotas: Quotas = field(init=False)
    bodies: BodyReader = field(init=False)
    leases: LeaseService = field(init=False)
    reader: KeyReader = field(init=False)
    post: NotificationStreams = field(init=False)
    health: Health = field(init=False)
    activity: Activity = field(init=False)
    sessions: Sessions = field(init=False)
    endings: Endings = field(init=False)
    now: Callable[[], float] = field(init=False)
    """This machine's clock, which only runs forwards."""

    def __post_init__(self) -> None:
        self.now = self.runtime.now
        self.quotas = Quotas(self.limits, self.now)
        quotas = self.quotas
        self.bodies = BodyReader(quotas.small_bodies, quotas.bodies, self.limits.request_time)
        self.leases = LeaseService(self.runtime, quotas)
        self.reader = KeyReader(self.leases, quotas.reading)
        self.post = NotificationStreams(self.server_id, self.limits)
        self.health = Health(self)
        runtime = self.runtime
        self.activity = Activity(runtime.now, runtime.scan)
        tapped = StreamReceiver(runtime.receiver, self.post)
        runtime.receiver = ObservingReceiver(tapped, self.activity.keys)
        self.leases.observers.append(self.activity.applied)
        self.sessions = Sessions(self.keys, self.records, self.origins)
        self.endings = Endings(self.drain, self.keys.cache, self.sessions)
