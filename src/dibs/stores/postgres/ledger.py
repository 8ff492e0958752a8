"""The ledger's functions in the database: how a batch is sent to them, and how their answer is read.

A batch is one JSON array with an array for each command, its key in hexadecimal and then what
`core/codec.py` writes. The answer is one JSON text, so that a call is one row, cheap to read on both sides.
Every parameter is a text or None: the statements say what it is.

A text in PostgreSQL cannot hold the character NUL: it is written as two others, of which the first is an
escape. `dibs.bytes_of` in the database knows of that, too.
"""

import json
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from dibs.core import codec
from dibs.model import Command, Failed, Inspect, Notification, Page, Reply, Status
from dibs.stores.postgres.connection import Session, Site, Statement, Wire
from dibs.stores.postgres.errors import Unfit
from dibs.stores.postgres.schema import FORMAT

type Told = tuple[Sequence[Reply], Sequence[Notification]]
"""A reply for each command, and the notifications for the caller's own inbox."""

APPLY = Statement(
    "dibs_apply", f"SELECT dibs.apply({FORMAT}, %s::jsonb, %s::text, %s::float8, %s::bigint)"
)
SCAN = Statement(
    "dibs_scan",
    f"""SELECT * FROM dibs.scan({FORMAT}, decode(%s, 'hex'), decode(%s, 'hex'),
    decode(%s, 'hex'), %s::integer, %s::float8, %s::bigint)""",  # noqa: S608
)

_ESCAPE = "\x10"

SWEEP = Statement("dibs_sweep", "SELECT dibs.sweep(512)")
"""Remove idle keys, of the next 512 that it looks at."""

SWEEP_EVERY = 2048
"""Commands of this process between two sweeps."""


async def apply[W: Wire](
    session: Session[W], commands: Sequence[Command], inbox: str, timeout: float | None
) -> Told:
    """Apply a batch, in one round trip."""
    if not commands:
        return [], []
    now, stamp = session.site.time()
    values = parameters(commands, inbox=inbox, now=now, stamp=stamp)
    try:
        return read_answer(await session.ask(APPLY, values, timeout), commands, inbox)
    except Unfit as error:
        if len(commands) > 1:
            raise  # the batcher tries its halves
        return [Failed("invalid", str(error))], []


async def scan[W: Wire](
    session: Session[W], prefix: bytes, cursor: bytes | None, limit: int
) -> Page:
    """The next keys in the order of their bytes."""
    now, stamp = session.site.time()
    return read_page(await session.ask(SCAN, scan_parameters(prefix, cursor, limit, now, stamp)))


def note_work(site: Site, commands: int, wire: Wire | None) -> None:
    """So many commands were applied: begin a sweep if it is time, on this connection, and do not wait."""
    site.work += commands
    if site.work >= SWEEP_EVERY and wire is not None and not wire.is_cut:
        site.work = 0
        try:
            wire.begin(lambda: wire.send(SWEEP, ()))
        except Exception:  # noqa: BLE001  # it broke: the next call finds out
            wire.cut()


def parameters(
    commands: Sequence[Command],
    *,
    inbox: str | None,
    now: float | None = None,
    stamp: int | None = None,
) -> list[str | None]:
    """What `APPLY` is called with. Notifications to `inbox` are returned instead of being sent.

    None in a transaction of the user's own, where nobody is granted by notification.
    """
    said = [[command.key.hex(), *codec.encode(command)] for command in commands]
    try:
        text = json.dumps(said, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (ValueError, TypeError):
        text = _careful_json(said)
    else:
        if "\\u0000" in text or "\\u0010" in text:
            text = _careful_json(said)
    return [text, inbox, *_time(now, stamp)]


def read_answer(rows: Any, commands: Sequence[Command], inbox: str) -> Told:
    """The replies in order, and the notifications for `inbox`, which is the caller's own."""
    replies, pushes = loads(rows[0][0])
    return (
        [
            codec.decode_reply(reply, command.key)
            for reply, command in zip(replies, commands, strict=True)
        ],
        [_notification(push, inbox) for push in pushes],
    )


def read_push(payload: str, inbox: str) -> Notification | None:
    """The notification that arrived in an inbox; None for what somebody else has sent there."""
    try:
        return _notification(loads(payload), inbox)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None


def _notification(said: Sequence[Any], inbox: str) -> Notification:
    return codec.decode_notification(said[1:], bytes.fromhex(said[0]), inbox)


def scan_parameters(
    prefix: bytes, cursor: bytes | None, limit: int, now: float | None, stamp: int | None
) -> list[str | None]:
    """What `SCAN` is called with."""
    end = _after_all(prefix)
    return [
        prefix.hex(),
        None if cursor is None else cursor.hex(),
        None if end is None else end.hex(),
        str(limit),
        *_time(now, stamp),
    ]


def read_page(rows: Any) -> Page:
    """Some of the keys that were asked for, maybe fewer; go on behind the cursor."""
    [(answer, keys, cursor)] = rows
    inspected = [Inspect(bytes.fromhex(key)) for key in keys]
    replies, _ = read_answer([(answer,)], inspected, "")
    busy = [r for r in replies if isinstance(r, Status) and (r.holders or r.waiters)]
    return Page(busy, None if cursor is None else bytes.fromhex(cursor))


def _time(now: float | None, stamp: int | None) -> Iterable[str | None]:
    """The time for the database to go by: in production its own."""
    return (None if now is None else repr(float(now)), None if stamp is None else str(stamp))


def _after_all(prefix: bytes) -> bytes | None:
    """What sorts behind all keys that begin so; None where nothing does."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


# ---- texts and numbers that JSON or PostgreSQL cannot hold as they are ----------------------------


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


def _careful_json(said: list[codec.Fields]) -> str:
    """The batch as JSON, whatever is in it; a command that JSON cannot hold is marked as flawed."""
    return json.dumps([_sayable(command) for command in said], ensure_ascii=False)


def _sayable(command: codec.Fields) -> codec.Fields:
    values = [_value(value) for value in command]
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        return [command[0], "flawed", f"no row can hold this: {error}"]
    return values


def _value(value: Any) -> Any:
    """Texts without NUL, and PostgreSQL's word for numbers that JSON has no word for."""
    value = escaped(value)
    if isinstance(value, float) and not isfinite(value):
        return str(value).replace("inf", "Infinity")
    return value
