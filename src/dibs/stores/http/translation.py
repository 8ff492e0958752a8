"""Between what goes over HTTP (`wire`) and what the rest of Dibs says (`model`).

Classes of the same name have the same fields in the same order, but for the last ones of `model`, which stay
in the service: the address of a caller, the trace of a holder. Keys change their spelling, and nested
records their class. A key that is misspelt raises `ValueError`.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

from dibs import model
from dibs.stores.http import wire
from dibs.stores.http.names import decoded, encoded

type Translator = Callable[[Any], Any]


def to_wire(command: model.Command) -> wire.Command:
    """A command, as it goes to the service."""
    return cast(wire.Command, _TO_WIRE[type(command)](command))


def to_model(op: wire.Command) -> model.Command:
    """A command that came. Raises `ValueError` for a key that is not spelt as `names` has it."""
    return cast(model.Command, _TO_MODEL[type(op)](op))


def reply_to_wire(reply: model.Reply) -> wire.Reply:
    """A store's answer, as it goes to a client; a status without what is the client's own (`mine`)."""
    return cast(wire.Reply, _TO_WIRE[type(reply)](reply))


def reply_to_model(reply: wire.Reply) -> model.Reply:
    """The service's answer to one command. Raises `ValueError` for a key that is misspelt."""
    return cast(model.Reply, _TO_MODEL[type(reply)](reply))


def status_to_wire(it: model.Status) -> wire.Status:
    """Who holds and waits for a key, as it goes to a client."""
    return cast(wire.Status, reply_to_wire(it))


def status_to_model(it: wire.Status) -> model.Status:
    """Who holds and waits for a key, by the service's word."""
    return cast(model.Status, reply_to_model(it))


def holders_to_wire(holders: tuple[model.Holder, ...]) -> tuple[wire.Holder, ...]:
    """Who holds, as it goes to a client."""
    return tuple(map(_TO_WIRE[model.Holder], holders))


def push_to_wire(it: model.Notification) -> wire.Push:
    """A notification, as it goes into a client's stream, which is its inbox."""
    return wire.Push(encoded(it.key), *_PUSH(it))


def push_to_model(it: wire.Push, inbox: str) -> model.Notification:
    """A notification that came in the stream of `inbox`."""
    lease, *more = _PUSH(it)
    return model.Notification(decoded(it.key), lease, inbox, *more)


_PUSH = attrgetter(*wire.Push.__struct_fields__[1:])

_NAMES = (
    *("Acquire", "Renew", "Release", "Resize", "Inspect", "Revoke"),
    *("Granted", "Queued", "Refused", "Gone", "Renewed", "Lost", "Released", "Unknown", "Revoked"),
    *("Status", "Failed", "Holder", "Waiter"),
)


def _table(source: Any, target: Any, change_key: Translator) -> dict[type, Translator]:
    """How a record of each class becomes one of the class of the same name."""
    table: dict[type, Translator] = {}

    def nested(name: str) -> Translator:
        kind = getattr(source, name)
        return lambda records: tuple(map(table[kind], records))

    changes = {"key": change_key, "holders": nested("Holder"), "waiters": nested("Waiter")}
    for name in _NAMES:
        fields = getattr(wire, name).__struct_fields__
        changed = [(fields.index(each), how) for each, how in changes.items() if each in fields]
        table[getattr(source, name)] = _translator(getattr(target, name), fields, changed)
    return table


def _translator(
    new: Any, fields: tuple[str, ...], changed: list[tuple[int, Translator]]
) -> Translator:
    def take_few(it: Any) -> list[Any]:  # `attrgetter` of one name gives no tuple
        return [getattr(it, name) for name in fields]

    take = attrgetter(*fields) if len(fields) > 1 else take_few
    if not changed:
        return lambda it: new(*take(it))

    def translate(it: Any) -> Any:
        values = list(take(it))
        for index, change in changed:
            values[index] = change(values[index])
        return new(*values)

    return translate


_TO_WIRE = _table(model, wire, encoded)
_TO_MODEL = _table(wire, model, decoded)
