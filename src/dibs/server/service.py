"""The service: all that a request may need.

Leases lie in stores, keys and restrictions in records; another server of the same service answers just
as well. What a server has of its own may end with it: whom it tells something (streams, long polls), what
each key has in use, tickets, sessions that were ended, and what the observatory has seen.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dibs.errors import BackendUnavailable
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Lost,
    Queued,
    Release,
    Renew,
    Renewed,
    Reply,
)
from dibs.runtime.port import Answer, Told
from dibs.server.accounts import Accounts
from dibs.server.audit import Audit
from dibs.server.doubts import Doubts
from dibs.server.drain import Drain
from dibs.server.health import Health
from dibs.server.keys import KeyRing
from dibs.server.limits import Limits
from dibs.server.observatory.observatory import Observatory, OverheardMail
from dibs.server.placing.desk import Desk
from dibs.server.placing.runtime import PlacedRuntime
from dibs.server.post import Post, TappedMail
from dibs.server.principal import Principal
from dibs.server.records.port import Records
from dibs.server.routing import Route
from dibs.server.ui.origin import Origins
from dibs.server.ui.sessions import Sessions
from dibs.server.ui.tickets import Tickets

if TYPE_CHECKING:
    from dibs.server.metrics import Metrics
    from dibs.server.spans import Spans

log = logging.getLogger("dibs.server")

PATIENCE = 30.0
"""So long a place in line lives after a sign of life, if its client asked for no other time."""

type Observer = Callable[[Principal, Command, Reply], None]
"""Is told of each command that was applied for somebody, and of what came of it."""

type Meter = Callable[[Route | None, int, float], None]
"""Is told of each request that has ended: its route, the status of its answer, and how long it took."""


@dataclass(slots=True, eq=False)
class Service:
    """See the module."""

    runtime: PlacedRuntime
    """How commands get to the store, or to that of several where their key lives."""
    records: Records
    keys: KeyRing
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
    doubts: Doubts = field(init=False)
    post: Post = field(init=False)
    health: Health = field(init=False)
    observatory: Observatory = field(init=False)
    tickets: Tickets = field(init=False)
    sessions: Sessions = field(init=False)
    now: Callable[[], float] = field(init=False)
    """This machine's clock, which only runs forwards."""

    def __post_init__(self) -> None:
        self.now = self.runtime.now
        self.accounts = Accounts(self.limits, self.now)
        self.doubts = Doubts(self.runtime.call_timeout)
        self.post = Post(
            self.server_id,
            backlog=self.limits.stream_backlog,
            leases=self.limits.leases_per_key + self.limits.waiters_per_key,
        )
        self.health = Health(self)
        self.observatory = Observatory(self.runtime)
        tapped = TappedMail(self.runtime.letterbox, self.post)
        self.runtime.letterbox = OverheardMail(tapped, self.observatory.picture)
        self.observers.append(self.observatory.saw)
        self.tickets = Tickets(self.now)
        self.sessions = Sessions(self.keys, self.records, self.tickets, Origins(self.origins))

    @property
    def trace(self) -> str:
        """The `traceparent` of the current request; empty if it is not traced."""
        return "" if self.spans is None else self.spans.trace

    async def ask(self, who: Principal, command: Command) -> Answer:
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

    async def ask_all(self, who: Principal, commands: Sequence[Command]) -> Sequence[Told]:
        """What came of each of these, which travel together: its answer, or an error."""
        doubts = self.doubts
        if doubts.ids:
            commands = [doubts.heeded(command) for command in commands]
        commands = [self._bounded(who, command) for command in commands]
        for batch in self.batches:
            batch(len(commands))
        told = await self.runtime.call_all(commands)
        for command, each in zip(commands, told, strict=True):
            if type(each) is not Answer or each.resent:
                doubts.about(command)
            if type(each) is Answer:
                self.saw(who, command, each.reply)
        return told

    def _bounded(self, who: Principal, command: Command) -> Command:
        if type(command) is Release and command.bury:
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
    if type(reply) is Granted:
        accounts.leased(key_id, (command.key, command.id), reply.ttl)
    elif type(reply) is Queued:
        accounts.queued(key_id, (command.key, command.id), command.patience)


def _renewed(accounts: Accounts, key_id: str, command: Renew, reply: Reply) -> None:
    if type(reply) is Renewed or type(reply) is Granted:
        accounts.leased(key_id, (command.key, command.id), reply.ttl)
    elif type(reply) is Queued:
        accounts.queued(key_id, (command.key, command.id), max(command.ttl, PATIENCE))
    elif type(reply) is Lost:
        accounts.ended(key_id, (command.key, command.id))


def _released(accounts: Accounts, key_id: str, command: Release, _: Reply) -> None:
    accounts.ended(key_id, (command.key, command.id))


_KEPT: dict[type, Callable[..., None]] = {
    Acquire: _acquired,
    Renew: _renewed,
    Release: _released,
}
