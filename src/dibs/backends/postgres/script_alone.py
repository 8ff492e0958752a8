"""What is said of a command that comes alone: no JSON on the way there, and little on the way back."""

from collections.abc import Callable
from typing import Any, NamedTuple

from dibs.backends.postgres.migrations import FORMAT
from dibs.backends.postgres.script_values import escaped
from dibs.backends.postgres.statements import Statement, Values
from dibs.model import MAX_SLOTS, Acquire, Command, Granted, Release, Released, Reply

ACQUIRE = Statement(
    "dibs_acquire_alone",
    f"SELECT dibs.acquire_alone({FORMAT}, %s::bytea, %s::text, %s::text, %s::float8, %s::bigint,"
    " %s::bigint, %s::bool, %s::float8, %s::bigint, %s::text, %s::bigint, %s::bigint, %s::float8,"
    " %s::text, %s::text, %s::text, %s::text, %s::float8, %s::bigint)",
)
RELEASE = Statement(
    "dibs_release_alone",
    f"SELECT dibs.release_alone({FORMAT}, %s::bytea, %s::text, %s::float8, %s::float8, %s::text,"
    " %s::float8, %s::bigint)",
)
STATEMENTS = (ACQUIRE, RELEASE)


class Lone(NamedTuple):
    """A call for one command."""

    statement: Statement
    values: Values
    plain: Callable[[Any, str], Reply | None]
    """The reply that a short answer stands for; None where the answer is a whole letter."""


def call_for(command: Command, inbox: str, now: float | None, stamp: int | None) -> Lone | None:
    """How to say it; None of what only a batch can say. Pushes to `inbox` are returned."""
    tail = (inbox, None if now is None else repr(now), None if stamp is None else str(stamp))
    if type(command) is Acquire:
        return Lone(ACQUIRE, (*_acquire(command), *tail), _granted)
    if type(command) is Release:
        return Lone(RELEASE, (*_release(command), *tail), _released)
    return None


def _acquire(c: Acquire) -> Values:
    return (
        "\\x" + c.key.hex(),
        escaped(c.id),
        escaped(c.owner),
        repr(c.ttl),
        str(c.units),
        str(c.capacity),
        "t" if c.queue else "f",
        repr(c.patience),
        str(c.priority),
        escaped(c.note),
        str(c.tokens),
        str(c.floor),
        repr(c.lock_delay),
        escaped(c.inbox),
        escaped(c.address),
        escaped(c.trace),
    )


def _release(c: Release) -> Values:
    return "\\x" + c.key.hex(), escaped(c.id), repr(c.keep), repr(c.bury)


def _granted(command: Acquire, answer: str) -> Reply | None:
    """A token alone: of the lowest slots, and for all of the ttl."""
    if answer.startswith("{"):
        return None
    slots = () if command.capacity > MAX_SLOTS else tuple(range(command.units))
    return Granted(int(answer), slots, float(command.ttl))


def _released(command: Release, answer: str) -> Reply | None:
    return None if answer else _RELEASED


_RELEASED = Released()
