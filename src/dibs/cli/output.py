"""Shapes of the JSON output, to which fields are only ever added, and how people see the same."""

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from dibs.model import MANY, Finding, Holder, Status, Waiter

type Shape = dict[str, Any]


def emit(shape: Mapping[str, Any]) -> None:
    """One object, on a line of its own."""
    print(json.dumps(shape), flush=True)


def name_shape(key: bytes, *, decode: bool = True) -> Shape:
    """Kind and name of a key; a name that is no UTF-8, or is not to be decoded, as base64."""
    kind, _, name = key.partition(b":")
    try:
        if decode:
            return {"kind": kind.decode(), "name": name.decode()}
    except UnicodeDecodeError:
        pass
    return {"kind": kind.decode("ascii", "replace"), "name_base64": b64encode(name).decode()}


def status_shape(status: Status, *, decode: bool = True) -> Shape:
    """Who holds a key and who waits for it."""
    return name_shape(status.key, decode=decode) | {
        "held": bool(status.holders),
        "capacity": None if status.capacity >= MANY else status.capacity,
        "holding": max(status.holding, len(status.holders)),
        "used": status.used,
        "holders": [holder_shape(holder) for holder in status.holders],
        "waiting": max(status.waiting, len(status.waiters)),
        "waiters": [_waiter_shape(waiter) for waiter in status.waiters],
        "last_token": status.last_token,
    }


def holder_shape(holder: Holder) -> Shape:
    """One hold."""
    return {
        "owner": holder.owner,
        "lease": holder.lease,
        "token": holder.token,
        "units": holder.units,
        "slots": list(holder.slots),
        "held_for": round(holder.held_for, 3),
        "expires_in": round(holder.expires_in, 3),
        "note": holder.note,
        "state": holder.state,
    }


def finding_shape(finding: Finding) -> Shape:
    """One thing that a look at a store has told."""
    return {
        "about": finding.about,
        "level": finding.level,
        "told": finding.told,
        "advice": finding.advice,
    }


def _waiter_shape(waiter: Waiter) -> Shape:
    return {
        "owner": waiter.owner,
        "lease": waiter.lease,
        "units": waiter.units,
        "priority": waiter.priority,
        "waited": round(waiter.waited, 3),
        "note": waiter.note,
    }
