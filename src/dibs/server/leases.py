"""The one way from requests to the store: it remembers late copies, and calls observers of commands."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dibs.core.timing import tombstone_ttl
from dibs.errors import BackendUnavailable
from dibs.locks.requests import MIN_WAITER_TTL, new_id
from dibs.model import (
    Acquire,
    Command,
    Granted,
    Lost,
    Queued,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Unknown,
)
from dibs.runtime.port import CallResult, TimedReply
from dibs.server.auth.policy import Principal
from dibs.server.placement.router import StoreRouter
from dibs.server.quotas import Quotas

if TYPE_CHECKING:
    from dibs.server.tracing import Tracing

log: logging.Logger = logging.getLogger("dibs.server")

MAX_IDS = 10_000
"""Lease ids that are remembered, of each sort."""


type Observer = Callable[[Command, Reply], None]
"""Is called with each command that was applied for an API key, and its reply."""


class LateCopies:
    """Lease ids that can still be granted after their release.

    A copy of an Acquire that had no answer, or was sent twice, can still be on its way. If it arrived after
    the release, its grant would have no holder for a whole ttl. So the release leaves a tombstone.
    A server only knows its own copies.
    """

    __slots__ = ("_made", "ids", "tombstone")

    def __init__(self, call_timeout: float) -> None:
        self.tombstone: float = tombstone_ttl(call_timeout)
        """Seconds for which a late copy can be on its way."""
        self._made: dict[str, None] = {}
        """Ids that this server made and has not released. The latest comes last."""
        self.ids: dict[str, None] = {}
        """The latest comes last. It is mostly empty."""

    def add(self, lease_id: str) -> None:
        """A copy of an Acquire with this id can still be on its way."""
        _remember(self.ids, lease_id)

    def add_of(self, command: Command) -> None:
        """A copy of this command can still be on its way."""
        if type(command) is Acquire:
            self.add(command.id)

    def new_id(self) -> str:
        """A lease id for a caller who sent none. Only this server ever sends an Acquire with it."""
        lease_id = new_id()
        _remember(self._made, lease_id)
        return lease_id

    def was_made(self, lease_id: str) -> bool:
        """Whether this server made the id, and its release is the first that it sees."""
        if lease_id not in self._made:
            return False
        del self._made[lease_id]
        return True

    def guarded(self, command: Command) -> Command:
        """The command as it is sent: a release has a tombstone if a copy can be on its way."""
        if type(command) is not Release or command.id not in self.ids:
            return command
        return replace(command, tombstone=max(command.tombstone, self.tombstone))

    def tombstone_of(self, lease_id: str) -> float:
        """Seconds of the tombstone that this id needs; 0 without a copy on its way."""
        return self.tombstone if lease_id in self.ids else 0.0


def _remember(ids: dict[str, None], lease_id: str) -> None:
    ids.pop(lease_id, None)  # it is the latest again
    ids[lease_id] = None
    if len(ids) > MAX_IDS:
        del ids[next(iter(ids))]


class LeaseService:
    """Applies commands for API keys, and counts what each has."""

    def __init__(self, runtime: StoreRouter, quotas: Quotas) -> None:
        self.runtime: StoreRouter = runtime
        self.late_copies: LateCopies = LateCopies(runtime.call_timeout)
        self.observers: list[Observer] = []
        self.error_observers: list[Callable[[Command], None]] = []
        """Called with each command that the store did not answer."""
        self.tracing: Tracing | None = None
        self.batch_observers: list[Callable[[int], None]] = []
        """Called with the number of commands in a batch."""
        self._quotas = quotas

    @property
    def trace(self) -> str:
        """The `traceparent` to store with a lease; empty if the current request is not traced."""
        return self.tracing.trace if self.tracing else ""

    def stamp(self) -> int:
        """The server's wall clock: see `Clock`."""
        return self.runtime.stamp()

    async def ask(self, who: Principal, command: Command) -> TimedReply:
        """Apply a command. Raises `BackendUnavailable` if it may or may not have been applied."""
        late = self.late_copies
        if late.ids:
            command = late.guarded(command)
        if type(command) is Release and command.tombstone:
            command = self._quotas.limit_tombstone(who.key_id, command)
        try:
            answer = await self.runtime.call(command)
            if answer.resent:
                late.add_of(command)
                if isinstance(error := _settled(answer), BackendUnavailable):
                    raise error
        except BackendUnavailable:
            late.add_of(command)
            self.unanswered(command)
            raise
        self.observe(who, command, answer.reply)
        return answer

    async def ask_all(self, who: Principal, commands: Sequence[Command]) -> Sequence[CallResult]:
        """Apply a batch of commands. Returns the answer or the error of each."""
        late = self.late_copies
        if late.ids:
            commands = [late.guarded(command) for command in commands]
        limit = partial(self._quotas.limit_tombstone, who.key_id)
        commands = [
            limit(each) if type(each) is Release and each.tombstone else each for each in commands
        ]
        for observer in self.batch_observers:
            observer(len(commands))
        found = [_settled(each) for each in await self.runtime.call_all(commands)]
        for command, each in zip(commands, found, strict=True):
            if type(each) is not TimedReply or each.resent:
                late.add_of(command)
            if type(each) is TimedReply:
                self.observe(who, command, each.reply)
            elif isinstance(each, BackendUnavailable):
                self.unanswered(command)
        return found

    def remaining(self, ttl: float, since: float) -> float:
        """Seconds left of a lease, if it began when its command was sent, at `since`.

        Raises `BackendUnavailable` if it may have expired.
        """
        left = ttl - (self.runtime.now() - since)
        if left <= 0:
            raise BackendUnavailable(
                "the store took longer to answer than the lease lasts: ask again, with the same id, "
                "if you brought one"
            )
        return left

    def give_up(self, key: bytes, lease_id: str) -> None:
        """Release in the background an id that no caller knows."""
        self.runtime.keeper.abandon(key, lease_id, self.late_copies.tombstone_of(lease_id))

    def unanswered(self, command: Command) -> None:
        """Call the observers of commands that the store did not answer."""
        for observer in self.error_observers:
            observer(command)

    def observe(self, who: Principal, command: Command, reply: Reply) -> None:
        """Count the result of a command, and call the observers."""
        count = _COUNTED.get(type(command))
        if count is not None:
            count(self._quotas, who.key_id, command, reply)
        for observer in self.observers:
            try:
                observer(command, reply)
            except Exception:  # the answer matters more
                log.exception("an observer failed")


def _settled(answer: CallResult) -> CallResult:
    """The answer, or an error for a release whose first copy may have released the lease."""
    if isinstance(answer, TimedReply) and answer.resent and type(answer.reply) is Unknown:
        return BackendUnavailable(
            "the connection to the store broke during the release: the lease was released then, or "
            "had ended before"
        )
    return answer


def _acquired(quotas: Quotas, key_id: str, command: Acquire, reply: Reply) -> None:
    which, delay = (command.key, command.id), command.lock_delay
    if type(reply) is Granted:
        quotas.leased(key_id, which, reply.ttl, delay)
    elif type(reply) is Queued:
        quotas.queued(key_id, which, command.waiter_ttl, delay)


def _renewed(quotas: Quotas, key_id: str, command: Renew, reply: Reply) -> None:
    if type(reply) is Renewed or type(reply) is Granted:
        quotas.leased(key_id, (command.key, command.id), reply.ttl)
    elif type(reply) is Queued:
        quotas.queued(key_id, (command.key, command.id), max(command.ttl, MIN_WAITER_TTL))
    elif type(reply) is Lost:
        quotas.ended(key_id, (command.key, command.id))


def _released(quotas: Quotas, key_id: str, command: Release, reply: Reply) -> None:
    if type(reply) is Released:
        quotas.released(key_id, (command.key, command.id), command.retain)
    else:
        quotas.ended(key_id, (command.key, command.id))


_COUNTED: dict[type, Callable[..., None]] = {
    Acquire: _acquired,
    Renew: _renewed,
    Release: _released,
}
