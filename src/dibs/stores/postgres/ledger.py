"""The ledger's functions in the database: how a batch is sent to them, and how their answer is read.

A batch is one JSON array with an object for each command: the columns of `dibs.command`. The answer is one
JSON text with what `core/codec.py` writes, so a call is one row, cheap to read on both sides. Every parameter
is a text or None: the statements say what it is.

A text in PostgreSQL cannot hold the character NUL. It is written as two others, of which the first is an
escape; `dibs.bytes_of` in the database reads it.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from dibs.core import codec
from dibs.core.codec import flaw_of
from dibs.model import (
    Acquire,
    Command,
    Failed,
    Inspect,
    Notification,
    Page,
    Release,
    Renew,
    Reply,
    Resize,
    Revoke,
    Status,
)
from dibs.stores.postgres.connection import TIMEOUT, Session, Site, Statement, Wire
from dibs.stores.postgres.errors import Unfit
from dibs.stores.postgres.schema import FORMAT

type Applied = tuple[Sequence[Reply], Sequence[Notification]]
"""A reply for each command, and the notifications for the caller's own inbox."""

APPLY = Statement(
    "dibs_apply", f"SELECT dibs.apply({FORMAT}, %s::jsonb, %s::text, %s::float8, %s::bigint)"
)
SCAN = Statement(
    "dibs_scan",
    """
    SELECT encode(k.key, 'hex') FROM dibs.keys AS k
    WHERE k.key >= decode(%s, 'hex') AND k.key > decode(%s, 'hex') AND k.key < decode(%s, 'hex')
        AND ((k.hold).id IS NOT NULL OR k.waiting > 0 OR k.holds > 0)
    ORDER BY k.key LIMIT %s::integer
    """,
)
"""The next keys, in byte order, that are held or waited for."""

SCAN_CHUNK = 64
"""Keys inspected at a time, because their rows are locked meanwhile."""

_ESCAPE = "\x10"

SWEEP = Statement("dibs_sweep", "SELECT dibs.sweep(512)")
"""Remove idle keys, of the next 512 that it looks at."""

SWEEP_EVERY = 2048
"""Commands of this process between two sweeps."""


async def apply[W: Wire](
    session: Session[W], commands: Sequence[Command], inbox: str, timeout: float | None
) -> Applied:
    """Apply a batch, in one round trip."""
    if not commands:
        return [], []
    values = parameters(commands, inbox, *session.site.time())
    try:
        return read_answer(await session.ask(APPLY, values, timeout), commands, inbox)
    except Unfit as error:
        if len(commands) > 1:
            raise  # the batcher tries its halves
        return [Failed("invalid", str(error))], []


async def scan[W: Wire](
    session: Session[W], prefix: bytes, cursor: bytes | None, limit: int
) -> Page:
    """Return the next keys that begin with `prefix` and are not idle, in byte order, after `cursor`."""
    stem = prefix.rstrip(b"\xff")
    end = stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\xff" * 1024  # longer than any key
    most = min(limit, SCAN_CHUNK)
    rows = await session.ask(SCAN, [prefix.hex(), (cursor or b"").hex(), end.hex(), str(most)])
    keys = [bytes.fromhex(key) for (key,) in rows]
    replies, _ = await apply(session, [Inspect(key) for key in keys], "", TIMEOUT)
    busy = [r for r in replies if isinstance(r, Status) and (r.holders or r.waiters)]
    return Page(busy, keys[-1] if len(keys) == most else None)


def is_sweep_due(site: Site, commands: int) -> bool:
    """Count commands that were applied. True if it is time for a sweep."""
    site.work += commands
    if site.work < SWEEP_EVERY:
        return False
    site.work = 0
    return True


def parameters(
    commands: Sequence[Command],
    inbox: str | None,
    now: float | None = None,
    stamp: int | None = None,
) -> list[str | None]:
    """What `APPLY` is called with. Notifications to `inbox` are returned instead of being sent.

    None in a transaction of the user's own, where nobody is granted by notification.
    """
    said = [_columns(number, command) for number, command in enumerate(commands, 1)]
    try:
        text = _to_json(said)
        text.encode()
    except (ValueError, TypeError):
        text = ""
    if not text or "\\u0000" in text or "\\u0010" in text:
        text = _to_json([_sayable(columns) for columns in said])
    # the time for the database to go by: in production its own
    return [
        text,
        inbox,
        None if now is None else repr(float(now)),
        None if stamp is None else str(stamp),
    ]


def read_answer(rows: Any, commands: Sequence[Command], inbox: str) -> Applied:
    """The replies in order, and the notifications for `inbox`, which is the caller's own."""
    replies, notifications = loads(rows[0][0])
    return (
        [
            codec.decode_reply(reply, command.key)
            for reply, command in zip(replies, commands, strict=True)
        ],
        [_notification(each, inbox) for each in notifications],
    )


def notifications_in(payloads: Iterable[str], inbox: str) -> list[Notification]:
    """The notifications that arrived in an inbox, without what somebody else has sent there."""
    found = []
    for payload in payloads:
        with suppress(ValueError, TypeError, LookupError, OverflowError, RecursionError):
            found.append(_notification(loads(payload), inbox))
    return found


def _notification(said: Sequence[Any], inbox: str) -> Notification:
    return codec.decode_notification(said[1:], bytes.fromhex(said[0]), inbox)


_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_NAMES = {
    cls: ("kind", *(field.name for field in fields(cls) if field.name != "key"))
    for cls in (Acquire, Renew, Release, Resize, Inspect, Revoke)
}
"""The columns for what `core/codec.py` writes of a command."""


def _columns(number: int, command: Command) -> dict[str, Any]:
    """A command as a row of `dibs.command`. One that the ledger must not see says what is wrong with it."""
    values, key = codec.encode(command), "\\x" + command.key.hex()
    try:
        flaw = flaw_of(command)
        if flaw is None and None in values and type(command) is not Revoke:
            flaw = "something is missing"
    except TypeError as error:
        flaw = str(error)
    if flaw is not None:
        return _flawed(number, key, flaw)
    columns = dict(zip(_NAMES[type(command)], values, strict=True))
    columns["n"] = number
    columns["key"] = key
    return columns


def _flawed(number: int, key: str, flaw: str) -> dict[str, Any]:
    return {"n": number, "kind": "flawed", "key": key, "flaw": flaw}


# ---- texts that JSON or PostgreSQL cannot hold as they are ----------------------------------------


def escaped(value: Any) -> Any:
    """A text without NUL, from which `unescaped` makes the same again; anything else as it is."""
    if isinstance(value, str):
        return value.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return value


def unescaped(value: Any) -> Any:
    """What was escaped, also within lists."""
    if isinstance(value, str):
        return value.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
    if isinstance(value, list):
        return [unescaped(item) for item in value]
    return value


def loads(text: str) -> Any:
    """The value of a JSON text that the database has written."""
    value = json.loads(text)
    return unescaped(value) if "\\u0010" in text else value


def _sayable(columns: dict[str, Any]) -> dict[str, Any]:
    """A command whose texts PostgreSQL can hold; one that JSON cannot hold says so."""
    escaped_columns = {name: escaped(value) for name, value in columns.items()}
    try:
        _to_json(escaped_columns).encode()
    except (TypeError, ValueError) as error:
        return _flawed(columns["n"], columns["key"], f"no row can hold this: {error}")
    return escaped_columns
