"""Replies and wakeups, as the functions in the database write them."""

from collections.abc import Callable
from typing import Any

from dibs.model import (
    Failed,
    Gone,
    Granted,
    Holder,
    Lost,
    Queued,
    Refused,
    Released,
    Renewed,
    Reply,
    Revoked,
    Status,
    Unknown,
    Waiter,
    Wakeup,
)

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
