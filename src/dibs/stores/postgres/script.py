"""What is said to the functions in the database, and what they answer.

A batch is one JSON array with an object a command, and its answer one JSON text, so that a call is one
row, cheap to read on either side. Every parameter is a text or None: the statements say what it is.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dibs.model import (
    Acquire,
    Command,
    Failed,
    Gone,
    Granted,
    Holder,
    Inspect,
    Lost,
    Page,
    Queued,
    Refused,
    Release,
    Released,
    Renew,
    Renewed,
    Reply,
    Resize,
    Revoke,
    Revoked,
    Status,
    Unknown,
    Waiter,
    Wakeup,
)
from dibs.stores.postgres.migrations import FORMAT
from dibs.stores.postgres.script_values import careful_json, loads, must_be_escaped

_APPLY = f"SELECT dibs.apply({FORMAT}, %s::json, %s::text, %s::float8, %s::bigint)"
_SCAN = f"""SELECT * FROM dibs.scan({FORMAT}, decode(%s, 'hex'), decode(%s, 'hex'),
    decode(%s, 'hex'), %s::integer, %s::float8, %s::bigint)"""  # noqa: S608


def statement() -> str:
    """A call for a batch: positional placeholders, one row of one column."""
    return _APPLY


def scan_statement() -> str:
    """A call for some of the keys: positional placeholders, one row."""
    return _SCAN


def parameters(
    commands: Sequence[Command],
    *,
    inbox: str | None,
    now: float | None = None,
    stamp: int | None = None,
) -> list[str | None]:
    """What `statement` is called with. Pushes to `inbox` are returned instead of being sent.

    None in a transaction of the user's own, where nobody is granted by push.
    """
    said = [_SAY[type(command)](command) for command in commands]
    try:
        text = json.dumps(said, allow_nan=False)
    except (ValueError, TypeError):
        text = careful_json(said)
    else:
        if must_be_escaped(text):
            text = careful_json(said)
    return [text, inbox, *_time(now, stamp)]


def read_answer(rows: Any, commands: Sequence[Command]) -> tuple[list[Reply], list[Wakeup]]:
    """The replies in order, and the wakeups for the caller's own inbox."""
    answer = loads(rows[0][0])
    replies: list[Any] = [None] * len(commands)
    for number, reply in answer["replies"]:
        replies[number - 1] = reply_of(reply, commands[number - 1].key)
    return replies, [wakeup_of(push, answer["inbox"]) for push in answer["wakeups"]]


def read_push(payload: str, inbox: str) -> Wakeup | None:
    """The wakeup in a notification; None for what somebody else has sent there."""
    try:
        return wakeup_of(loads(payload), inbox)
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        return None


def scan_parameters(
    prefix: bytes, cursor: bytes | None, limit: int, now: float | None, stamp: int | None
) -> list[str | None]:
    """What `scan_statement` is called with."""
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
    [(letter, keys, cursor)] = rows
    inspected = [Inspect(bytes.fromhex(key)) for key in keys]
    replies, _ = read_answer([(letter,)], inspected)
    busy = [r for r in replies if isinstance(r, Status) and (r.holders or r.waiters)]
    return Page(busy, None if cursor is None else bytes.fromhex(cursor))


def _time(now: float | None, stamp: int | None) -> Iterable[str | None]:
    """What the database is told of the time: in production nothing."""
    return (None if now is None else repr(float(now)), None if stamp is None else str(stamp))


def _after_all(prefix: bytes) -> bytes | None:
    """What sorts behind all keys that begin so; None where nothing does."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


# ---- commands as objects ------------------------------------------------------------------------------


def _acquire(c: Acquire) -> dict[str, Any]:
    return {
        "kind": "acquire",
        "key": c.key.hex(),
        "id": c.id,
        "owner": c.owner,
        "ttl": c.ttl,
        "units": c.units,
        "capacity": c.capacity,
        "queue": c.queue,
        "patience": c.patience,
        "priority": c.priority,
        "note": c.note,
        "floor": c.floor,
        "lock_delay": c.lock_delay,
        "inbox": c.inbox,
        "address": c.address,
        "trace": c.trace,
    }


def _renew(c: Renew) -> dict[str, Any]:
    return {"kind": "renew", "key": c.key.hex(), "id": c.id, "ttl": c.ttl, "inbox": c.inbox}


def _release(c: Release) -> dict[str, Any]:
    return {"kind": "release", "key": c.key.hex(), "id": c.id, "keep": c.keep, "bury": c.bury}


def _resize(c: Resize) -> dict[str, Any]:
    return {"kind": "resize", "key": c.key.hex(), "id": c.id, "units": c.units, "seq": c.seq}


def _inspect(c: Inspect) -> dict[str, Any]:
    return {"kind": "inspect", "key": c.key.hex()}


def _revoke(c: Revoke) -> dict[str, Any]:
    return {
        "kind": "revoke",
        "key": c.key.hex(),
        "lease": c.lease,
        "reason": c.reason,
        "now": c.now,
    }


_SAY: dict[type, Callable[[Any], dict[str, Any]]] = {
    Acquire: _acquire,
    Renew: _renew,
    Release: _release,
    Resize: _resize,
    Inspect: _inspect,
    Revoke: _revoke,
}


_GONE, _RELEASED, _UNKNOWN = Gone(), Released(), Unknown()


def reply_of(said: list[Any], key: bytes) -> Reply:
    """A reply, from the name of its class and its fields."""
    return _READ[said[0]](said, key)


def wakeup_of(said: list[Any], inbox: str) -> Wakeup:
    """A wakeup, from its fields; raises what goes wrong with one that isn't ours."""
    key, lease, event, token, slots, granted_at, window, detail, proof = said
    if (
        not all(type(text) is str for text in (lease, event, detail, proof))
        or type(slots) is not list
        or not all(type(number) is int and 0 <= number < 2**53 for number in (token, *slots))
    ):
        raise ValueError("no wakeup")
    return Wakeup(
        bytes.fromhex(key),
        lease,
        inbox,
        event,
        token,
        tuple(slots),
        float(granted_at),
        float(window),
        detail,
        proof,
    )


def _holders(said: list[Any]) -> tuple[Holder, ...]:
    return tuple(
        Holder(lease, owner, token, units, tuple(slots), float(age), float(left), *texts)
        for lease, owner, token, units, slots, age, left, *texts in said
    )


def _waiters(said: list[Any]) -> tuple[Waiter, ...]:
    return tuple(
        Waiter(lease, owner, units, priority, float(age), *texts)
        for lease, owner, units, priority, age, *texts in said
    )


def _status(said: list[Any], key: bytes) -> Status:
    _, capacity, holders, waiters, *counts = said
    return Status(key, capacity, _holders(holders), _waiters(waiters), *counts)


_READ: dict[str, Callable[[list[Any], bytes], Reply]] = {
    "Granted": lambda said, _: Granted(said[1], tuple(said[2]), float(said[3])),
    "Queued": lambda said, _: Queued(said[1], float(said[2]), float(said[3])),
    "Refused": lambda said, _: Refused(said[1], _holders(said[2]), float(said[3])),
    "Gone": lambda *_: _GONE,
    "Renewed": lambda said, _: Renewed(float(said[1])),
    "Lost": lambda said, _: Lost(said[1], said[2]),
    "Released": lambda *_: _RELEASED,
    "Unknown": lambda *_: _UNKNOWN,
    "Revoked": lambda said, _: Revoked(said[1], float(said[2])),
    "Status": _status,
    "Failed": lambda said, _: Failed(said[1], said[2]),
}
