"""What servers of the model say of a lease that stands, whatever they have read: not that there is none."""

from collections.abc import Iterator
from functools import lru_cache

from dibs.core.names import fingerprint
from dibs.model import (
    Acquire,
    Command,
    Inspect,
    Refused,
    Release,
    Renew,
    Reply,
    Revoke,
    Status,
)
from dibs.server.placing.home import Home
from dibs.server.placing.plans import To, plan_for
from dibs.server.placing.table import is_denial, may_tell
from tests.server.placing.books import Frozen, applied
from tests.server.placing.states import GUARDS, STAMPS, Server, World

type Books = tuple[tuple[str, Frozen], ...]


class Denials:
    """Of one world. Nothing that is asked here changes it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.denied = lru_cache(maxsize=None)(self._denied)

    def _denied(self, books: Books, home: Home, server: Server, lease_id: str, units: int) -> str:
        """By which command somebody would be told that there is nothing under an id; else nothing."""
        for command in self._commands(lease_id, units):
            if isinstance(command, Acquire) and server.stale:
                continue  # it asks for nothing that it could not tell
            reply, fresh = _reply(books, server.view, command), not server.stale
            if self.world.is_sure and not may_tell(
                reply, server.view, home, is_fresh=fresh, was_read_since=True
            ):  # it has read where directories live, and asks anew
                reply = _reply(books, home, command)
            if _denies(reply, lease_id):
                return type(command).__name__
        return ""

    def _commands(self, lease_id: str, units: int) -> Iterator[Command]:
        key = self.world.key
        yield Renew(key, lease_id, 10.0)
        yield Release(key, lease_id)
        yield Acquire(key, lease_id, "me", 10.0, 1, units)
        yield Inspect(key)
        yield Revoke(key, None, "a test", now=True)


def _denies(reply: Reply, lease_id: str) -> bool:
    if isinstance(reply, Status | Refused):  # beside it there may be a guard that came late
        named = any(each.lease == fingerprint(lease_id) for each in reply.holders)
        return is_denial(reply) and not named
    return is_denial(reply)


def _reply(books: Books, view: Home, command: Command) -> Reply:
    """What comes of it at once, by a server with that view."""
    now = dict(books)

    def told(to: To) -> tuple[Reply, ...]:
        now[to.place], replies = applied(now[to.place], to.commands, STAMPS[to.place])
        return replies

    if not view.to and not isinstance(command, Revoke):
        return told(To(view.place, (command,)))[0]
    plan = plan_for(view, command, GUARDS)
    asked = next(plan)
    try:
        while True:
            asked = plan.send([told(each) for each in asked])
    except StopIteration as end:
        reply: Reply = end.value
        return reply
