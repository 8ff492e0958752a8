"""The ledger in Redis: what lies there, how a batch is sent, and how its answer is read.

`ledger.lua` is the ledger. Where the server has Functions (Redis 7, Valkey), it is loaded once, as a library,
and called by FCALL. Otherwise, or if the user may not use them, the same text runs as a script, by EVALSHA,
which takes about twice the server's time.
"""

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from hashlib import sha1
from importlib.resources import files
from operator import attrgetter
from struct import Struct, error
from typing import Any, NamedTuple

from msgspec.msgpack import Decoder, Encoder

from dibs.clock import Clock
from dibs.core import codec
from dibs.core.codec import INTEGER_LIMIT, flaw_of
from dibs.core.names import fingerprint
from dibs.model import (
    Acquire,
    Command,
    Failed,
    Granted,
    Notification,
    Release,
    Released,
    Reply,
    Resize,
)
from dibs.stores.redis.connection import Link, ReplyError, pack
from dibs.stores.redis.errors import code_of

FORMAT = 3
"""Of what lies in Redis; as in `ledger.lua`."""

_TEXT = (files("dibs.stores.redis") / "ledger.lua").read_bytes()
_NAME = b"dibs_%d_%b" % (FORMAT, sha1(_TEXT, usedforsecurity=False).hexdigest()[:16].encode())
"""Of the library and its function: those of several releases can be on one server."""

FUNCTION = (b"FCALL", _NAME)
LIBRARY = b"#!lua name=%b\n%b\nredis.register_function('%b', apply_batch)\n" % (_NAME, _TEXT, _NAME)
TEXT = b"%b\nreturn apply_batch(KEYS, ARGV)\n" % _TEXT
SCRIPT = (b"EVALSHA", sha1(TEXT, usedforsecurity=False).hexdigest().encode())


# ---- keys -----------------------------------------------------------------------------------------

PREFIX = b"dibs:{"

MATCH_ALL = b"dibs:{*}"
"""The keys that carry a book: all else of a resource has a suffix behind the brace."""

_NOTHING = b"%"


@lru_cache(4096)
def store_key(key: bytes) -> bytes:
    """What a ledger's key is called in Redis.

    All of it is the hash tag, so everything of one resource is in one slot of a Cluster. The tag ends with
    the first closing brace, and an empty one is no tag, so these are escaped.
    """
    if b"}" in key or b"%" in key or not key:
        key = key.replace(b"%", b"%25").replace(b"}", b"%7D") or _NOTHING
    return b"dibs:{%b}" % key


@lru_cache(4096)
def ledger_key(name: bytes) -> bytes | None:
    """The way back; None for a Redis key that carries no book of ours."""
    tag = name[len(PREFIX) : -1]
    key = b"" if tag == _NOTHING else tag.replace(b"%7D", b"}").replace(b"%25", b"%")
    return key if store_key(key) == name else None


# ---- commands -------------------------------------------------------------------------------------

_encode = Encoder().encode


_ACQUIRE = b"\xdc\x00\x10" + _encode("acquire")
"""How an Acquire begins: a list of 16."""
_RELEASE = b"\x94" + _encode("release")
_PLAIN = _encode(0) * 2

_rest_of = attrgetter(*[each.name for each in fields(Acquire) if each.name not in ("key", "id")])
_rests: dict[tuple[Any, ...], bytes] = {}
"""What follows the id in an Acquire: one process's hardly ever differ in it."""
MAX_RESTS = 256
MAX_REST = 4096
"""Bytes of one that is remembered, at most."""


def packed(command: Command) -> bytes:
    """A command as the ledger reads it. It answers `invalid` to what can't be a command, with the flaw."""
    try:
        if type(command) is Acquire:
            return _packed_acquire(command)
        if type(command) is Release and not command.retain and not command.tombstone:
            return b"%b%b%b" % (_RELEASE, _encode(command.id), _PLAIN)
        _check(command)
        return _encode(codec.encode(command))
    except (AttributeError, OverflowError, TypeError, UnicodeEncodeError, ValueError) as problem:
        return _encode(["invalid", str(problem)])


def _packed_acquire(command: Acquire) -> bytes:
    if type(command.units) is not int or type(command.priority) is not int:
        _check(command)  # 1.0 and True are equal to 1, and would be found
    own, lease = _encode(command.id), _encode(fingerprint(command.id))
    rest = _rests.get(_rest_of(command))
    if rest is None:
        _check(command)
        rest = b"".join(map(_encode, codec.encode(command)[2:]))
        if len(rest) <= MAX_REST:
            if len(_rests) >= MAX_RESTS:
                _rests.clear()
            _rests[_rest_of(command)] = rest
    return b"".join((_ACQUIRE, own, rest, lease))


def _check(command: Command) -> None:
    """Raises `ValueError` for what can't be a command."""
    flaw = flaw_of(command) or _inexact(command)
    if flaw is not None:
        raise ValueError(flaw)


def _inexact(command: Command) -> str | None:
    """What Lua's numbers and texts could not keep as it is; `flaw_of` has nothing against it."""
    if type(command) is Acquire:
        numbers = command.units, command.capacity, command.priority, command.floor + 1
        if not all(type(each) is int and -INTEGER_LIMIT < each < INTEGER_LIMIT for each in numbers):
            return "units, capacity, priority and floor must be whole numbers less than 2^53"
        texts = command.owner, command.note, command.inbox, command.trace, command.address
        if not all(type(each) is str for each in texts):
            return "owner, note, inbox, trace and address must be texts"
    elif type(command) is Resize:
        for each in (command.units, command.seq):
            if type(each) is not int or not -INTEGER_LIMIT < each < INTEGER_LIMIT:
                return "units and seq must be whole numbers less than 2^53"
    return None


class LedgerCall(NamedTuple):
    """One call of the ledger: its keys and its arguments."""

    keys: list[bytes]
    args: list[bytes]

    def request(self, as_function: bool) -> bytes:
        """The bytes to send over a connection."""
        words = FUNCTION if as_function else SCRIPT
        return pack((*words, len(self.keys), *self.keys, *self.args))


class CallContext:
    """What every call of one connection says besides its commands.

    A `clock` stands in for the server's, in tests. With a `holdoff` nothing is granted for so many seconds
    after the server came back empty. Notifications for us go to the `inbox`.
    """

    __slots__ = ("clock", "holdoff", "inbox")

    def __init__(self, clock: Clock | None = None, holdoff: float = 0.0, inbox: str = "") -> None:
        self.clock: Clock | None = clock
        self.holdoff: float = holdoff
        self.inbox: str = inbox

    def call(self, commands: Sequence[Command]) -> LedgerCall:
        """The call that applies a batch."""
        keys = [store_key(command.key) for command in commands]
        args = [self.inbox.encode(), *map(packed, commands)]
        clock, holdoff = self.clock, self.holdoff or None
        if clock is not None:
            args.append(_encode([clock.now(), clock.stamp(), holdoff]))
        elif holdoff is not None:
            args.append(_encode([None, None, holdoff]))
        return LedgerCall(keys, args)

    def read(self, answer: list[bytes | int], commands: Sequence[Command]) -> "Outcome":
        """What came of a batch; see `read_answer`."""
        return read_answer(answer, commands, self.inbox)


# ---- answers --------------------------------------------------------------------------------------

type Outcome = tuple[list[Reply], list[Notification]]
"""A reply for each command, and the notifications for our own inbox."""

_decode = Decoder(list).decode
_SLOT_0 = (0,)
_RELEASED = Released()


def read_answer(raw: list[bytes | int], commands: Sequence[Command], inbox: str) -> Outcome:
    """The replies to a batch, and the notifications for the inbox that it was sent for."""
    replies = [reply_of(answer, command) for answer, command in zip(raw, commands, strict=False)]
    return replies, [read_notification(bytes(each), inbox) for each in raw[len(commands) :]]


def reply_of(raw: bytes | int, command: Command) -> Reply:
    """What was answered to a command. A number is the token of a plain grant, or 0 for a release."""
    if type(raw) is int:
        return Granted(raw, _SLOT_0, command.ttl) if raw else _RELEASED  # type: ignore[union-attr]
    try:
        return codec.decode_reply(_decode(raw), command.key)  # type: ignore[arg-type]
    except ValueError as problem:
        return Failed("corrupt", f"the answer can't be read: {problem}")


_HEAD = Struct(">2sBI")
"""Before the message of a notification: a mark, the format, and how long the key's name is, which follows."""


def read_notification(raw: bytes, inbox: str) -> Notification:
    """What was sent to an inbox. Raises `struct.error` or `ValueError` for what is no notification."""
    mark, version, length = _HEAD.unpack_from(raw)
    end = _HEAD.size + length
    key = ledger_key(raw[_HEAD.size : end])
    if mark != b"DI" or version != FORMAT or key is None:
        raise ValueError("no notification of this format")
    return codec.decode_notification(_decode(raw[end:]), key, inbox)


def read_published(payload: bytes, inbox: str) -> list[Notification]:
    """What was published to an inbox; nothing where it can't be read, as anybody may publish."""
    try:
        return [read_notification(payload, inbox)]
    except (error, ValueError):
        return []


# ---- functions or a script ------------------------------------------------------------------------


def is_unprepared(answer: object) -> bool:
    """The server has not done anything: it lacks the ledger, or can't be asked for it in this way."""
    if not isinstance(answer, ReplyError):
        return False
    said = str(answer)
    return said.startswith(("NOSCRIPT", "ERR Function not found")) or _refuses_functions(said)


def _refuses_functions(said: str) -> bool:
    """It has no Functions, or this user may not call them."""
    told = said.partition(", with args")[0].lower()  # which may be anything
    return told.startswith(("err ", "noperm ")) and "fcall" in told


async def prepare(link: Link, answer: object, limit: float) -> ReplyError | None:
    """Give the server what it lacked, or decide on the other way; an error is what it says to every call.

    It has `limit` seconds. Raises `OSError` and `HiredisError` as the link does.
    """
    said = str(answer)
    if _refuses_functions(said):
        link.has_functions = False
        return None
    if said.startswith("NOSCRIPT"):
        (found,) = await link.ask(pack((b"SCRIPT", b"LOAD", TEXT)), 1, limit)
        return found if isinstance(found, ReplyError) else None
    (found,) = await link.ask(pack((b"FUNCTION", b"LOAD", LIBRARY)), 1, limit)
    if not isinstance(found, ReplyError) or "already exists" in str(found):
        return None
    if code_of(found) in ("NOPERM", "ERR"):
        link.has_functions = False
        return None
    return found
