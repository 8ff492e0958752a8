"""A batch of commands in one round trip; one text for both worlds."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dibs.model import (
    MAX_SLOTS,
    Acquire,
    Command,
    Failed,
    Granted,
    Page,
    Release,
    Released,
    Reply,
    Wakeup,
)
from dibs.stores.postgres import script
from dibs.stores.postgres.migrations import FORMAT
from dibs.stores.postgres.script_values import escaped
from dibs.stores.postgres.session import Session
from dibs.stores.postgres.site import Site
from dibs.stores.postgres.statements import Rows, Statement, Values
from dibs.stores.postgres.trouble import SqlError, Unfit, is_of_the_values
from dibs.stores.postgres.wire import Wire

ACQUIRE = Statement(
    "dibs_acquire_alone",
    f"SELECT dibs.acquire_alone({FORMAT}, %s::bytea, %s::text, %s::text, %s::float8, %s::bigint,"
    " %s::bigint, %s::bool, %s::float8, %s::bigint, %s::text, %s::bigint, %s::float8,"
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


def lone_call_for(
    command: Command, inbox: str, now: float | None, stamp: int | None
) -> Lone | None:
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


APPLY = Statement("dibs_apply", script.statement())
SCAN = Statement("dibs_scan", script.scan_statement())
PREPARED = (APPLY, *STATEMENTS)
"""What a server that is ours for long keeps ready."""

type Told = tuple[Sequence[Reply], Sequence[Wakeup]]
"""A reply for each command, and what is to be told to the caller's own inbox."""


class Call(NamedTuple):
    """What is asked for a batch, and how the answer reads."""

    statement: Statement
    values: Values
    read: Callable[[Rows], Told]


async def apply[W: Wire](
    session: Session[W], commands: Sequence[Command], inbox: str, patience: float | None
) -> Told:
    """Apply them, one by itself in the short way if there is one."""
    if not commands:
        return [], []
    short = short_call(session.site, commands, inbox)
    if short is not None:
        try:
            rows = await session.ask(short.statement, short.values, patience, is_of_the_values)
            return short.read(rows)
        except (SqlError, UnicodeError):
            pass  # nothing was done: a batch tells what is wrong
    try:
        call = batch_call(session.site, commands, inbox)
        return call.read(await session.ask(call.statement, call.values, patience))
    except Unfit as error:
        if len(commands) > 1:
            raise  # whoever sent the batch tries its halves
        return [Failed("invalid", str(error))], []


def call_for(site: Site, commands: Sequence[Command], inbox: str) -> Call:
    """The shortest way to say it."""
    return short_call(site, commands, inbox) or batch_call(site, commands, inbox)


def short_call(site: Site, commands: Sequence[Command], inbox: str) -> Call | None:
    """How to say one command by itself. Plans are not ours to choose behind a pooler: not there."""
    if len(commands) > 1 or site.is_pooled:
        return None
    [command] = commands
    lone = lone_call_for(command, inbox, *site.time())
    if lone is None:
        return None

    def read(rows: Rows) -> Told:
        reply = lone.plain(command, rows[0][0])
        return script.read_answer(rows, commands) if reply is None else ((reply,), ())

    return Call(lone.statement, lone.values, read)


def batch_call(site: Site, commands: Sequence[Command], inbox: str) -> Call:
    """How to say any of them. May raise `Unfit`."""
    now, stamp = site.time()
    values = script.parameters(commands, inbox=inbox, now=now, stamp=stamp)
    return Call(APPLY, values, lambda rows: script.read_answer(rows, commands))


async def scan[W: Wire](
    session: Session[W], prefix: bytes, cursor: bytes | None, limit: int
) -> Page:
    """The next keys in the order of their bytes."""
    now, stamp = session.site.time()
    return script.read_page(
        await session.ask(SCAN, script.scan_parameters(prefix, cursor, limit, now, stamp))
    )
