"""Between what goes over HTTP (`wire`) and what the rest of Dibs says (`model`).

The same fields in the same order, so each is taken by position; the address and trace of a holder
stay in the service; keys change their spelling, and what
is nested its class. A key that is misspelt raises `ValueError`.
"""

from collections.abc import Callable
from typing import Any, cast

from dibs import model
from dibs.backends.http import wire
from dibs.backends.http.names import decoded, encoded

# ---- commands -------------------------------------------------------------------------------------


def to_wire(command: model.Command) -> wire.Command:
    """A command, as it goes to the service."""
    return _TO_WIRE[type(command)](command)


def to_model(op: wire.Command) -> model.Command:
    """A command that came. Raises `ValueError` for a key that is not spelt as `names` has it."""
    return _TO_MODEL[type(op)](op)


def _acquire_to_wire(it: model.Acquire) -> wire.Acquire:
    return wire.Acquire(
        encoded(it.key),
        it.id,
        it.owner,
        it.ttl,
        it.units,
        it.capacity,
        it.queue,
        it.patience,
        it.priority,
        it.note,
        it.floor,
        it.lock_delay,
        it.inbox,
        trace=it.trace,
    )


def _acquire_to_model(it: wire.Acquire) -> model.Acquire:
    return model.Acquire(
        decoded(it.key),
        it.id,
        it.owner,
        it.ttl,
        it.units,
        it.capacity,
        it.queue,
        it.patience,
        it.priority,
        it.note,
        it.floor,
        it.lock_delay,
        it.inbox,
        trace=it.trace,
    )


_TO_WIRE: dict[type, Callable[[Any], wire.Command]] = {
    model.Acquire: _acquire_to_wire,
    model.Renew: lambda it: wire.Renew(encoded(it.key), it.id, it.ttl, it.inbox),
    model.Release: lambda it: wire.Release(encoded(it.key), it.id, it.keep, it.bury),
    model.Resize: lambda it: wire.Resize(encoded(it.key), it.id, it.units, it.seq),
    model.Inspect: lambda it: wire.Inspect(encoded(it.key)),
    model.Revoke: lambda it: wire.Revoke(encoded(it.key), it.lease, it.reason, it.now),
}

_TO_MODEL: dict[type, Callable[[Any], model.Command]] = {
    wire.Acquire: _acquire_to_model,
    wire.Renew: lambda it: model.Renew(decoded(it.key), it.id, it.ttl, it.inbox),
    wire.Release: lambda it: model.Release(decoded(it.key), it.id, it.keep, it.bury),
    wire.Resize: lambda it: model.Resize(decoded(it.key), it.id, it.units, it.seq),
    wire.Inspect: lambda it: model.Inspect(decoded(it.key)),
    wire.Revoke: lambda it: model.Revoke(decoded(it.key), it.lease, it.reason, it.now),
}


# ---- replies --------------------------------------------------------------------------------------


def reply_to_wire(reply: model.Reply) -> wire.Reply:
    """A store's answer, as it goes to a client."""
    return _REPLY_TO_WIRE[type(reply)](reply)


def reply_to_model(reply: wire.Reply) -> model.Reply:
    """The service's answer to one command. Raises `ValueError` for a key that is misspelt."""
    return _REPLY_TO_MODEL[type(reply)](reply)


def holders_to_wire(holders: tuple[model.Holder, ...]) -> tuple[wire.Holder, ...]:
    """Who holds, as it goes to a client."""
    return tuple(map(_holder_to_wire, holders))


def holders_to_model(holders: tuple[wire.Holder, ...]) -> tuple[model.Holder, ...]:
    """Who holds, by the service's word."""
    return tuple(map(_holder_to_model, holders))


def _holder_to_wire(it: model.Holder) -> wire.Holder:
    return wire.Holder(
        it.lease,
        it.owner,
        it.token,
        it.units,
        it.slots,
        it.held_for,
        it.expires_in,
        it.note,
        it.state,
    )


def _holder_to_model(it: wire.Holder) -> model.Holder:
    return model.Holder(
        it.lease,
        it.owner,
        it.token,
        it.units,
        it.slots,
        it.held_for,
        it.expires_in,
        it.note,
        cast(Any, it.state),
    )


def _waiter_to_wire(it: model.Waiter) -> wire.Waiter:
    return wire.Waiter(it.lease, it.owner, it.units, it.priority, it.waited, it.note)


def _waiter_to_model(it: wire.Waiter) -> model.Waiter:
    return model.Waiter(it.lease, it.owner, it.units, it.priority, it.waited, it.note)


def status_to_wire(it: model.Status) -> wire.Status:
    """Who holds and waits for a key, as it goes to a client; without what is the client's own (`mine`)."""
    return wire.Status(
        encoded(it.key),
        it.capacity,
        tuple(map(_holder_to_wire, it.holders)),
        tuple(map(_waiter_to_wire, it.waiters)),
        it.waiting,
        it.last_token,
        it.holding,
        it.used,
    )


def status_to_model(it: wire.Status) -> model.Status:
    """Who holds and waits for a key, by the service's word."""
    return model.Status(
        decoded(it.key),
        it.capacity,
        tuple(map(_holder_to_model, it.holders)),
        tuple(map(_waiter_to_model, it.waiters)),
        it.waiting,
        it.last_token,
        it.holding,
        it.used,
    )


_REPLY_TO_WIRE: dict[type, Callable[[Any], wire.Reply]] = {
    model.Granted: lambda it: wire.Granted(it.token, it.slots, it.ttl),
    model.Queued: lambda it: wire.Queued(it.position, it.recheck_in, it.now),
    model.Refused: lambda it: wire.Refused(it.reason, holders_to_wire(it.holders), it.recheck_in),
    model.Gone: lambda _: wire.Gone(),
    model.Renewed: lambda it: wire.Renewed(it.ttl),
    model.Lost: lambda it: wire.Lost(it.reason, it.detail),
    model.Released: lambda _: wire.Released(),
    model.Unknown: lambda _: wire.Unknown(),
    model.Revoked: lambda it: wire.Revoked(it.count, it.ends_in),
    model.Status: status_to_wire,
    model.Failed: lambda it: wire.Failed(it.reason, it.detail),
}

_REPLY_TO_MODEL: dict[type, Callable[[Any], model.Reply]] = {
    wire.Granted: lambda it: model.Granted(it.token, it.slots, it.ttl),
    wire.Queued: lambda it: model.Queued(it.position, it.recheck_in, it.now),
    wire.Refused: lambda it: model.Refused(it.reason, holders_to_model(it.holders), it.recheck_in),
    wire.Gone: lambda _: model.Gone(),
    wire.Renewed: lambda it: model.Renewed(it.ttl),
    wire.Lost: lambda it: model.Lost(it.reason, it.detail),
    wire.Released: lambda _: model.Released(),
    wire.Unknown: lambda _: model.Unknown(),
    wire.Revoked: lambda it: model.Revoked(it.count, it.ends_in),
    wire.Status: status_to_model,
    wire.Failed: lambda it: model.Failed(it.reason, it.detail),
}


# ---- pushes ---------------------------------------------------------------------------------------


def push_to_wire(it: model.Wakeup) -> wire.Push:
    """A push, as it goes into a client's stream, which is its inbox."""
    return wire.Push(
        encoded(it.key),
        it.lease,
        it.event,
        it.token,
        it.slots,
        it.granted_at,
        it.window,
        it.detail,
        it.proof,
    )


def push_to_model(it: wire.Push, inbox: str) -> model.Wakeup:
    """A push that came in the stream of `inbox`."""
    return model.Wakeup(
        decoded(it.key),
        it.lease,
        inbox,
        cast(model.Event, it.event),
        it.token,
        it.slots,
        it.granted_at,
        it.window,
        it.detail,
        it.proof,
    )
