"""Messages over HTTP between a client and the service: commands, replies, notifications and the rest.

`POST /v1/batch` takes a `Batch` and answers a `BatchAnswer`, a reply for each command and in their
order; both are JSON, or MessagePack where `Content-Type` and `Accept` say `application/msgpack`. Each
message is an object with the fields of its record in `dibs.model`; `op` names a command, `is` a reply.
The structs that read and write them are made from the table of `core.codec`. A key is
`names.encoded(b"{kind}:{name}")`; durations are seconds, as everywhere.

`GET /v1/stream` (server-sent events) brings a client's notifications: first an event `hello` (`Hello`),
then `notification` events, and `recheck` where some may have been lost before. A command's `inbox` is
that of the stream's `Hello`, or empty.

`GET /v1/scan?prefix=&cursor=&limit=` gives a `StatusPage`: `prefix` and `cursor` are the beginnings of keys,
spelt as keys are (`cursor` is that of the page before, or left out). `GET /v1/about` gives an `About`,
and `GET /v1/limits` among others the `Ttls`. A `Problem` is the answer to any request that fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, replace
from functools import reduce
from operator import attrgetter, or_
from sys import intern
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from msgspec import Meta, Struct, defstruct

from dibs import model
from dibs.core.codec import COMMANDS, ENTRIES, REPLIES
from dibs.stores.http.names import decoded, encoded
from dibs.stores.port import MAX_BATCH

FORMAT = 1
"""The format of what is written here. Each side names its own in the header `Dibs-Format`."""

FORMAT_HEADER = "dibs-format"
SERVER_HEADER = "dibs-server"
"""Names the server that answered: notifications come from that one only."""


# ---- messages -------------------------------------------------------------------------------------

_UNSENT: dict[type, frozenset[str]] = {
    model.Acquire: frozenset({"address"}),
    model.Status: frozenset({"mine"}),
    model.Notification: frozenset({"inbox"}),
    **{cls: frozenset({"address", "trace"}) for cls in ENTRIES},
}
"""Fields that are not sent: the service sets addresses itself, and shows no traces."""


class _Op(Struct, tag_field="op", tag=str.lower, omit_defaults=True, frozen=True):
    """A command."""


class _Said(Struct, tag_field="is", tag=str.lower, omit_defaults=True, frozen=True):
    """A reply."""


class _Entry(Struct, omit_defaults=True, frozen=True):
    """Part of a reply, or a notification."""


_KEY = (
    "KIND:NAME (lock, semaphore, rwlock, tasklock or leader) in URL-safe base64 without padding: "
    "bG9jazpqb2JzL2I for lock:jobs/b"
)

_DESCRIPTIONS: dict[type[Struct], dict[str, str]] = {
    _Op: {
        "key": _KEY,
        "id": "The lease id, as it is, not encoded again: at least 128 random bits of your own, and a secret",
        "owner": "Who it is, for people",
        "ttl": "Seconds for which the store keeps the lease without renewal",
        "units": "Units of the capacity",
        "capacity": "Units that all holders can have together",
        "queue": "Wait in the queue if it is held. Send the same command again within `recheck_in` seconds",
        "waiter_ttl": "Seconds after which the store drops a waiter that does not repeat its command",
        "priority": "Higher goes first in the queue",
        "note": "A note, for people",
        "floor": "Fencing tokens up to this one are used already, elsewhere",
        "lock_delay": "Seconds for which the units stay taken if the lease expires",
        "inbox": "Address of notifications: the inbox of this client's stream; empty without one",
        "trace": "A W3C `traceparent`",
        "retain": "Seconds for which the units stay taken after the release",
        "tombstone": "Seconds for which the store remembers the id, so that a late acquire gets `gone`",
        "seq": "Number of this resize of the lease. Copies older than the newest one are ignored",
        "lease": "The fingerprint of one lease, as `inspect` has it; null for all",
        "reason": "The reason that the holders get",
        "now": "Free the units at once. This gives up exclusion",
    },
    _Said: {
        "key": _KEY,
        "token": "The fencing token",
        "slots": "Numbers of the units",
        "ttl": "Seconds until the lease ends, from the time when you sent the command",
        "position": "Waiters ahead, counted up to 1,000",
        "recheck_in": "Send the command again within so many seconds (`queued`), or after them (`refused`)",
        "reason": "Why",
        "detail": "More about the reason, for people",
        "count": "Number of revoked leases",
        "ends_in": "Seconds within which the last of them ends",
        "waiting": "Number of all waiters, listed or not",
        "holding": "Number of all holders, listed or not",
        "used": "Units that the holders have together",
    },
    _Entry: {
        "lease": "The fingerprint of the lease id",
        "held_for": "Seconds since the grant",
        "expires_in": "Seconds until the lease ends, unless it is renewed",
        "waited": "Seconds in the queue",
        "state": "`held`, `unclaimed`, `revoked` or `retained`",
        "event": "`granted`, `head`, `revoked` or `refused`",
    },
}
"""Fields of commands, replies and their parts, for the OpenAPI document."""


def _struct(record: type, base: type[Struct]) -> Any:
    """Make the struct of a record, with the same name and the fields that are sent."""
    listed = [each for each in fields(record) if each.name not in _UNSENT.get(record, ())]
    told = _DESCRIPTIONS[base]
    members = [
        (
            each.name,
            _described(_type_of(each.type), told.get(each.name)),
            *(() if each.default is MISSING else (each.default,)),
        )
        for each in listed
    ]
    return defstruct(
        record.__name__,
        members,
        bases=(base,),
        namespace={"__doc__": record.__doc__},
        module=__name__,
    )


def _described(kind: Any, description: str | None) -> Any:
    return Annotated[kind, Meta(description=description)] if description else kind


def _type_of(declared: Any) -> Any:
    """The type of a record's field over HTTP: keys are texts, and a word may be one of a later release."""
    if get_origin(declared) is tuple and get_args(declared)[0] in ENTRIES:
        return tuple[_STRUCTS[get_args(declared)[0]], ...]  # type: ignore[misc]
    plain = getattr(declared, "__value__", declared)
    return str if plain is bytes or get_origin(plain) is Literal else declared


_STRUCTS: dict[type, Any] = {}
for _base, _records in (
    (_Entry, (*ENTRIES, model.Notification)),
    (_Op, COMMANDS.values()),
    (_Said, REPLIES.values()),
):
    for _record in _records:
        _STRUCTS[_record] = _struct(_record, _base)

if TYPE_CHECKING:  # the structs have the names and fields of the records
    from dibs.model import Command as Command
    from dibs.model import Holder as Holder
    from dibs.model import Notification as Notification
    from dibs.model import Reply as Reply
    from dibs.model import Status as Status
else:
    Holder, Status = _STRUCTS[model.Holder], _STRUCTS[model.Status]
    Notification = _STRUCTS[model.Notification]
    Command = reduce(or_, (_STRUCTS[each] for each in COMMANDS.values()))
    Reply = reduce(or_, (_STRUCTS[each] for each in REPLIES.values()))


class Batch(Struct, frozen=True):
    """Commands that travel together.

    If one lacks a required field, or has an unknown `op`, nothing is applied, and the response is 400.
    """

    commands: Annotated[tuple[Command, ...], Meta(extra_json_schema={"maxItems": MAX_BATCH})]


class BatchAnswer(Struct, frozen=True):
    """A reply for each command, in their order."""

    replies: tuple[Reply, ...]


# ---- between messages and structs -----------------------------------------------------------------


def to_wire(message: model.Command | model.Reply | model.Holder | model.Notification) -> Any:
    """The struct of a message, as it goes to the other side."""
    return _TO_WIRE[type(message)](message)


def to_model(struct: Any) -> Any:
    """The message that a struct brings. Raises `ValueError` for a key that is not spelt as `names` has it."""
    return _TO_MODEL[type(struct)](struct)


def holders_to_wire(holders: Sequence[model.Holder]) -> "tuple[Holder, ...]":
    """The holders, as they go to a client."""
    return tuple(map(_TO_WIRE[model.Holder], holders))


def notification_to_model(struct: Any, inbox: str) -> model.Notification:
    """The notification that a struct brings in the stream of `inbox`. Raises `ValueError` like `to_model`."""
    notification: model.Notification = to_model(struct)
    return replace(notification, inbox=inbox)


type _Translator = Callable[[Any], Any]


def _translator(
    new: _Translator,
    names: Sequence[str],
    changes: dict[str, _Translator],
    unsent: Sequence[tuple[int, Any]] = (),
) -> _Translator:
    """Return a function that makes `new` from the fields in `names`.

    `changes` converts some of them. `unsent` has the places of others, in front of these, and their values.
    """
    changed = [(names.index(each), how) for each, how in changes.items() if each in names]

    def take_few(it: Any) -> list[Any]:  # `attrgetter` of one name gives no tuple
        return [getattr(it, name) for name in names]

    take = attrgetter(*names) if len(names) > 1 else take_few
    if not (changed or unsent):
        return lambda it: new(*take(it))

    def translate(it: Any) -> Any:
        values = list(take(it))
        for index, change in changed:
            values[index] = change(values[index])
        for index, value in unsent:
            values.insert(index, value)
        return new(*values)

    return translate


def _each(table: dict[Any, _Translator], kind: Any) -> _Translator:
    return lambda entries: tuple(map(table[kind], entries))


def _unsent(record: type, names: Sequence[str]) -> list[tuple[int, Any]]:
    """Places and values of the fields that are not sent, up to the last one that is."""
    listed = fields(record)
    last = max((n for n, each in enumerate(listed) if each.name in names), default=0)
    return [
        (n, "" if each.default is MISSING else each.default)
        for n, each in enumerate(listed[:last])
        if each.name not in names
    ]


_TO_WIRE: dict[Any, _Translator] = {}
_TO_MODEL: dict[Any, _Translator] = {}
for _cls, _made in _STRUCTS.items():
    _names = _made.__struct_fields__
    _TO_WIRE[_cls] = _translator(
        _made,
        _names,
        {
            "key": encoded,
            "state": intern,  # defaults are left out by identity, and a store's "held" is its own
            "holders": holders_to_wire,
            "waiters": _each(_TO_WIRE, model.Waiter),
        },
    )
    _TO_MODEL[_made] = _translator(
        _cls,
        _names,
        {
            "key": decoded,
            "holders": _each(_TO_MODEL, Holder),
            "waiters": _each(_TO_MODEL, _STRUCTS[model.Waiter]),
        },
        _unsent(_cls, _names),
    )


# ---- what else the service answers ----------------------------------------------------------------


class Hello(Struct, frozen=True):
    """The first event of a stream of notifications."""

    inbox: Annotated[str, Meta(description="The address of this stream: `inbox` of commands")]
    """The address of the stream: the server's name, a dot, and more."""
    server: str
    format: int = FORMAT
    beat: Annotated[float, Meta(description="Seconds between two events or comments, at most")] = (
        15.0
    )


class StatusPage(Struct, frozen=True):
    """Some of the keys in use, and where to go on: None after the last (`GET /v1/scan`)."""

    items: tuple[Status, ...]
    cursor: str | None = None


class Promises(Struct, frozen=True):
    """What all stores of the service promise."""

    scope: str
    clock: bool
    durable: bool
    fenced: bool
    notifies: bool
    survives: tuple[str, ...] = ()


class About(Struct, frozen=True):
    """The service, and the caller's key (`GET /v1/about`, for every key)."""

    server: str
    version: str
    promises: Promises
    key: str
    """The API key's id, which is no secret."""
    name: str
    scopes: tuple[str, ...]
    directories: tuple[str, ...]
    """Where those scopes hold, each spelt as keys are; an empty one is everywhere."""
    format: int = FORMAT


class Ttls(Struct, frozen=True):
    """Which ttls the service takes, in seconds: a part of `GET /v1/limits`, for every key."""

    min_ttl: float
    max_ttl: float


class Problem(Struct, omit_defaults=True, frozen=True):
    """A failure, as `application/problem+json` (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    retry_after: float | None = None
    holders: tuple[Holder, ...] = ()
    position: int | None = None
