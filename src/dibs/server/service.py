"""The service: all that a request may need.

Leases lie in stores, keys and restrictions in records; another server of the same service answers just
as well. What a server has of its own may end with it: whom it tells something (streams, long polls), what
each key has in use, tickets, sessions that were ended, and the activity that it has seen.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dibs.core.names import PROBE
from dibs.core.timing import tombstone_ttl
from dibs.errors import BackendUnavailable, DibsError
from dibs.locks.requests import new_id
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Inspect,
    Lost,
    Queued,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Status,
)
from dibs.runtime.aio import AsyncRuntime
from dibs.runtime.port import CallResult, TimedReply
from dibs.server.accounts import Accounts
from dibs.server.activity import Activity, ObservingReceiver
from dibs.server.api.parameters import BodyReader
from dibs.server.api.problems import ApiProblem
from dibs.server.api.routing import Operation
from dibs.server.audit import Audit
from dibs.server.auth.keys import KeyService
from dibs.server.auth.policy import Principal
from dibs.server.drain import Drain, draining
from dibs.server.limits import Limits
from dibs.server.placing.desk import Desk
from dibs.server.placing.runtime import PlacedRuntime
from dibs.server.post import Post, TappedMail
from dibs.server.records.port import Records
from dibs.server.ui.origin import Origins
from dibs.server.ui.sessions import Sessions
from dibs.server.ui.tickets import Tickets

if TYPE_CHECKING:
    from dibs.server.metrics import Metrics
    from dibs.server.spans import Spans


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
        if self._service.drain.begun:
            raise draining()
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


MOST = 10_000
"""Ids that are remembered, of each sort."""


class Doubts:
    """Ids under which something may yet be granted after they were given up.

    A copy of an Acquire that had no answer, or was sent twice, may still be on its way. Should it come after
    the release, it would be granted to nobody for a whole ttl. So the release has the store remember the id.
    A server knows of its own copies only.
    """

    __slots__ = ("_bury", "_made", "ids")

    def __init__(self, call_timeout: float) -> None:
        self._bury = tombstone_ttl(call_timeout)
        self._made: dict[str, None] = {}
        """Ids that this server made and has not released. The latest comes last."""
        self.ids: dict[str, None] = {}
        """The latest comes last. As a rule there are none, and then nothing needs to be `heeded`."""

    def about(self, command: Command) -> None:
        """A copy of it may still be on its way to the store."""
        if type(command) is Acquire:
            self.add(command.id)

    def add(self, lease_id: str) -> None:
        """A copy of an Acquire under this id may still be on its way."""
        _remember(self.ids, lease_id)

    def new_id(self) -> str:
        """A lease id for a caller who brought none. Only this server ever sends an Acquire with it."""
        lease_id = new_id()
        _remember(self._made, lease_id)
        return lease_id

    def was_made(self, lease_id: str) -> bool:
        """Whether this server made it and its release is the first that it sees."""
        if lease_id not in self._made:
            return False
        del self._made[lease_id]
        return True

    def heeded(self, command: Command) -> Command:
        """The command as it is to be sent: a release of such an id has the store remember it."""
        if type(command) is not Release or command.id not in self.ids:
            return command
        return self.buried(command)

    def burial_of(self, lease_id: str) -> float:
        """For how long the store is to remember such an id; 0 for one that nobody doubts."""
        return self._bury if lease_id in self.ids else 0.0

    def buried(self, command: Release) -> Release:
        """Have the store remember its id for as long as a late copy may be on its way."""
        return replace(command, tombstone=max(command.tombstone, self._bury))


def _remember(ids: dict[str, None], lease_id: str) -> None:
    ids.pop(lease_id, None)  # it is the latest again
    ids[lease_id] = None
    if len(ids) > MOST:
        del ids[next(iter(ids))]


log = logging.getLogger("dibs.server")

PATIENCE = 30.0
"""So long a place in line lives after a sign of life, if its client asked for no other time."""

type Observer = Callable[[Principal, Command, Reply], None]
"""Is told of each command that was applied for somebody, and of what came of it."""

type Meter = Callable[[Operation | None, int, float], None]
"""Is told of each request that has ended: its route, the status of its answer, and how long it took."""


@dataclass(slots=True, eq=False)
class Service:
    """See the module."""

    runtime: PlacedRuntime
    """How commands get to the store, or to that of several where their key lives."""
    records: Records
    keys: KeyService
    audit: Audit
    limits: Limits = field(default_factory=Limits)
    origins: tuple[str, ...] = ()
    """Where else browsers find the dashboard."""
    placing: Desk | None = None
    """Who knows where directories live."""
    observers: list[Observer] = field(default_factory=list)
    meters: list[Meter] = field(default_factory=list)
    batches: list[Callable[[int], None]] = field(default_factory=list)
    """Are told how many commands have travelled together."""
    metrics: "Metrics | None" = None
    """What is shown at `/metrics`."""
    spans: "Spans | None" = None
    """What is told to OpenTelemetry, where there is anybody to tell."""
    server_id: str = field(default_factory=lambda: secrets.token_hex(6))
    """Which of several servers this is; new with each start."""
    drain: Drain = field(default_factory=Drain)
    accounts: Accounts = field(init=False)
    bodies: BodyReader = field(init=False)
    doubts: Doubts = field(init=False)
    post: Post = field(init=False)
    health: Health = field(init=False)
    activity: Activity = field(init=False)
    tickets: Tickets = field(init=False)
    sessions: Sessions = field(init=False)
    now: Callable[[], float] = field(init=False)
    """This machine's clock, which only runs forwards."""

    def __post_init__(self) -> None:
        self.now = self.runtime.now
        self.accounts = Accounts(self.limits, self.now)
        accounts = self.accounts
        self.bodies = BodyReader(accounts.small_bodies, accounts.bodies, self.limits.request_time)
        self.doubts = Doubts(self.runtime.call_timeout)
        self.post = Post(
            self.server_id,
            backlog=self.limits.stream_backlog,
            leases=self.limits.leases_per_key + self.limits.waiters_per_key,
        )
        self.health = Health(self)
        runtime = self.runtime
        self.activity = Activity(runtime.now, runtime.connection.scan, runtime.call_all)
        tapped = TappedMail(runtime.receiver, self.post)
        runtime.receiver = ObservingReceiver(tapped, self.activity.keys)
        self.observers.append(self.activity.applied)
        self.tickets = Tickets(self.now)
        self.sessions = Sessions(self.keys, self.records, self.tickets, Origins(self.origins))

    @property
    def trace(self) -> str:
        """The `traceparent` of the current request; empty if it is not traced."""
        return "" if self.spans is None else self.spans.trace

    async def ask(self, who: Principal, command: Command) -> TimedReply:
        """Have a command applied for somebody. Raises `BackendUnavailable` when its fate is unknown."""
        doubts = self.doubts
        if doubts.ids:
            command = doubts.heeded(command)
        command = self._bounded(who, command)
        try:
            answer = await self.runtime.call(command)
        except BackendUnavailable:
            doubts.about(command)
            raise
        if answer.resent:
            doubts.about(command)
        self.saw(who, command, answer.reply)
        return answer

    async def ask_all(self, who: Principal, commands: Sequence[Command]) -> Sequence[CallResult]:
        """What came of each of these, which travel together: its answer, or an error."""
        doubts = self.doubts
        if doubts.ids:
            commands = [doubts.heeded(command) for command in commands]
        commands = [self._bounded(who, command) for command in commands]
        for batch in self.batches:
            batch(len(commands))
        told = await self.runtime.call_all(commands)
        for command, each in zip(commands, told, strict=True):
            if type(each) is not TimedReply or each.resent:
                doubts.about(command)
            if type(each) is TimedReply:
                self.saw(who, command, each.reply)
        return told

    def _bounded(self, who: Principal, command: Command) -> Command:
        if type(command) is Release and command.tombstone:
            return self.accounts.buried(who.key_id, command)
        return command

    def left(self, ttl: float, since: float) -> float:
        """What is left of a lease whose time may have begun then, as when it was asked for.

        Raises `BackendUnavailable` if that may be nothing.
        """
        left = ttl - (self.now() - since)
        if left <= 0:
            raise BackendUnavailable(
                "the store took longer to answer than the lease lasts: ask again, with the same id, "
                "if you brought one"
            )
        return left

    def give_up(self, key: bytes, lease_id: str) -> None:
        """Nobody has it, or will have it, who could release it: that is done in the background."""
        self.runtime.keeper.abandon(key, lease_id, self.doubts.burial_of(lease_id))

    def saw(self, who: Principal, command: Command, reply: Reply) -> None:
        """Remember what a command has come to, and tell those who watch."""
        keep = _KEPT.get(type(command))
        if keep is not None:
            keep(self.accounts, who.key_id, command, reply)
        for observer in self.observers:
            try:
                observer(who, command, reply)
            except Exception:  # whoever watches costs nobody an answer
                log.exception("an observer failed")


def _acquired(accounts: Accounts, key_id: str, command: Acquire, reply: Reply) -> None:
    which, delay = (command.key, command.id), command.lock_delay
    if type(reply) is Granted:
        accounts.leased(key_id, which, reply.ttl, delay)
    elif type(reply) is Queued:
        accounts.queued(key_id, which, command.waiter_ttl, delay)


def _renewed(accounts: Accounts, key_id: str, command: Renew, reply: Reply) -> None:
    if type(reply) is Renewed or type(reply) is Granted:
        accounts.leased(key_id, (command.key, command.id), reply.ttl)
    elif type(reply) is Queued:
        accounts.queued(key_id, (command.key, command.id), max(command.ttl, PATIENCE))
    elif type(reply) is Lost:
        accounts.ended(key_id, (command.key, command.id))


def _released(accounts: Accounts, key_id: str, command: Release, reply: Reply) -> None:
    if type(reply) is Released:
        accounts.released(key_id, (command.key, command.id), command.retain)
    else:
        accounts.ended(key_id, (command.key, command.id))


_KEPT: dict[type, Callable[..., None]] = {
    Acquire: _acquired,
    Renew: _renewed,
    Release: _released,
}
