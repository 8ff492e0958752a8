"""The one way from requests to the store: late copies, tombstones, and who observes commands.

Leases are in the store, so any server of the service serves them as well.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

from dibs.core.timing import tombstone_ttl
from dibs.errors import BackendUnavailable
from dibs.locks.requests import new_id
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
)
from dibs.runtime.port import CallResult, TimedReply
from dibs.server.auth.policy import Principal
from dibs.server.placement.router import StoreRouter
from dibs.server.quotas import Quotas

log = logging.getLogger("dibs.server")

MAX_IDS = 10_000
"""Lease ids that are remembered, of each sort."""

WAITER_TTL = 30.0
"""Seconds that a waiter stays queued after a heartbeat, if its client asked for no other time."""


class RequestTraces(Protocol):
    """The trace of the current request, if there are traces."""

    @property
    def trace(self) -> str:
        """The `traceparent` to store with a lease; empty if the request is not traced."""

    def waiting(self) -> AbstractContextManager[None]:
        """A span for the time in the queue."""

    async def look(self, key: bytes) -> None:
        """Link to the holders of a key for which this request waits."""

    async def look_ahead(self) -> None:
        """Link to the holders of the keys for which this request has queued."""


class Untraced:
    """`RequestTraces` where nobody listens."""

    trace = ""

    def waiting(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    async def look(self, key: bytes) -> None:
        """Do nothing."""

    async def look_ahead(self) -> None:
        """Do nothing."""


type Observer = Callable[[Principal, Command, Reply], None]
"""Is called with each command that was applied for somebody, and its reply."""


class LateCopies:
    """Lease ids under which something can still be granted after they were given up.

    A copy of an Acquire that had no answer, or was sent twice, can still be on its way. If it came after the
    release, it would be granted to nobody for a whole ttl. So the release leaves a tombstone.
    A server knows of its own copies only.
    """

    __slots__ = ("_made", "_tombstone", "ids")

    def __init__(self, call_timeout: float) -> None:
        self._tombstone = tombstone_ttl(call_timeout)
        self._made: dict[str, None] = {}
        """Ids that this server made and has not released. The latest comes last."""
        self.ids: dict[str, None] = {}
        """The latest comes last. As a rule there are none, and then no command needs a look here."""

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

    def with_tombstone(self, command: Release) -> Release:
        """The release with a tombstone for as long as a late copy can be on its way."""
        return replace(command, tombstone=max(command.tombstone, self._tombstone))

    def guarded(self, command: Command) -> Command:
        """The command as it is sent: a release has a tombstone if a copy can be on its way."""
        if type(command) is not Release or command.id not in self.ids:
            return command
        return self.with_tombstone(command)

    def tombstone_of(self, lease_id: str) -> float:
        """Seconds of the tombstone that this id needs; 0 without a copy on its way."""
        return self._tombstone if lease_id in self.ids else 0.0


def _remember(ids: dict[str, None], lease_id: str) -> None:
    ids.pop(lease_id, None)  # it is the latest again
    ids[lease_id] = None
    if len(ids) > MAX_IDS:
        del ids[next(iter(ids))]


class LeaseService:
    """Applies commands for API keys, and counts what each has."""

    def __init__(self, runtime: StoreRouter, quotas: Quotas) -> None:
        self.runtime = runtime
        self.late_copies = LateCopies(runtime.call_timeout)
        self.observers: list[Observer] = []
        self.traces: RequestTraces = Untraced()
        self.batch_observers: list[Callable[[int], None]] = []
        """Are called with the number of commands that travel together."""
        self._quotas = quotas

    async def ask(self, who: Principal, command: Command) -> TimedReply:
        """Apply a command. Raises `BackendUnavailable` if nobody knows whether it was applied."""
        late = self.late_copies
        if late.ids:
            command = late.guarded(command)
        command = self._bounded(who, command)
        try:
            answer = await self.runtime.call(command)
        except BackendUnavailable:
            late.add_of(command)
            raise
        if answer.resent:
            late.add_of(command)
        self.observe(who, command, answer.reply)
        return answer

    async def ask_all(self, who: Principal, commands: Sequence[Command]) -> Sequence[CallResult]:
        """Apply commands that travel together. Returns the answer of each, or an error."""
        late = self.late_copies
        if late.ids:
            commands = [late.guarded(command) for command in commands]
        commands = [self._bounded(who, command) for command in commands]
        for observer in self.batch_observers:
            observer(len(commands))
        found = await self.runtime.call_all(commands)
        for command, each in zip(commands, found, strict=True):
            if type(each) is not TimedReply or each.resent:
                late.add_of(command)
            if type(each) is TimedReply:
                self.observe(who, command, each.reply)
        return found

    def _bounded(self, who: Principal, command: Command) -> Command:
        if type(command) is Release and command.tombstone:
            return self._quotas.limit_tombstone(who.key_id, command)
        return command

    def remaining(self, ttl: float, since: float) -> float:
        """Seconds that are left of a lease that may have begun at `since`, as when it was asked for.

        Raises `BackendUnavailable` if that may be nothing.
        """
        left = ttl - (self.runtime.now() - since)
        if left <= 0:
            raise BackendUnavailable(
                "the store took longer to answer than the lease lasts: ask again, with the same id, "
                "if you brought one"
            )
        return left

    def give_up(self, key: bytes, lease_id: str) -> None:
        """Release in the background what nobody has, or will have, who could release it."""
        self.runtime.keeper.abandon(key, lease_id, self.late_copies.tombstone_of(lease_id))

    def observe(self, who: Principal, command: Command, reply: Reply) -> None:
        """Count what a command has come to, and call the observers."""
        count = _COUNTED.get(type(command))
        if count is not None:
            count(self._quotas, who.key_id, command, reply)
        for observer in self.observers:
            try:
                observer(who, command, reply)
            except Exception:  # an observer costs nobody an answer
                log.exception("an observer failed")


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
        quotas.queued(key_id, (command.key, command.id), max(command.ttl, WAITER_TTL))
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
