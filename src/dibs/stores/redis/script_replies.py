"""Replies as the script writes them: a letter, then a struct (`lua/replies.lua`)."""

from collections.abc import Callable, Sequence
from struct import Struct, unpack_from
from typing import Any

from dibs.errors import IncompatibleVersion
from dibs.model import (
    Command,
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
)

_LENGTH = Struct("<I")


class Reader:
    """A struct, and how far it has been read. Raises `struct.error` or `IndexError` behind its end."""

    __slots__ = ("_at", "_raw")

    def __init__(self, raw: bytes, at: int) -> None:
        self._raw = raw
        self._at = at

    def numbers(self, count: int) -> tuple[float, ...]:
        """The next doubles."""
        values: tuple[float, ...] = unpack_from(f"<{count}d", self._raw, self._at)
        self._at += 8 * count
        return values

    def count(self) -> int:
        """The next small number."""
        value: int = _LENGTH.unpack_from(self._raw, self._at)[0]
        self._at += 4
        return value

    def raw(self, length: int) -> bytes:
        """So many bytes."""
        self._at += length
        if self._at > len(self._raw):
            raise IndexError("cut off")
        return self._raw[self._at - length : self._at]

    def bytes(self) -> bytes:
        """The next bytes of any length."""
        return self.raw(self.count())

    def text(self) -> str:
        """The next text; what others wrote there may be no UTF-8."""
        return self.bytes().decode(errors="replace")

    def slots(self) -> tuple[int, ...]:
        """The next slots."""
        return slots_of(self.bytes())


_FIRST_SLOT = b"\0\0\0\0"


def slots_of(raw: bytes) -> tuple[int, ...]:
    """Slots are four bytes each."""
    if raw == _FIRST_SLOT:
        return (0,)
    return unpack_from(f"<{len(raw) // 4}I", raw)


FORMAT = 1
"""Of what lies in Redis; as in `lua/forms.lua`."""

_IS_GRANTED = ord("G")
_GRANTED = Struct("<dd")
_GRANTED_SIZE = 1 + _GRANTED.size


def check_format(raw: Sequence[bytes | int]) -> None:
    """Raises `IncompatibleVersion` for the answer that another release's book is there."""
    if raw and type(raw[0]) is bytes and raw[0][:1] == b"I":
        raise IncompatibleVersion(
            f"this server has leases of format {raw[0][1:].decode()}, and this release of dibs "
            f"reads format {FORMAT}: nothing is granted; run the same release everywhere on it"
        )


def reply_of(raw: bytes | int, command: Command) -> Reply:
    """What the script answered to a command."""
    if type(raw) is int:
        return _plainly(raw, command)
    assert isinstance(raw, bytes)
    if raw[0] == _IS_GRANTED:
        token, ttl = _GRANTED.unpack_from(raw, 1)
        return Granted(int(token), slots_of(raw[_GRANTED_SIZE:]), ttl)
    if raw in _PLAIN:
        return _PLAIN[raw]
    return _READ[raw[:1]](Reader(raw, 1), command)


def _plainly(number: int, command: Any) -> Reply:
    return Granted(number, _SLOT_0, command.ttl) if number else _RELEASED


def _queued(reader: Reader, _command: Command) -> Queued:
    position, recheck_in, now = reader.numbers(3)
    return Queued(int(position), recheck_in, now)


def _refused(reader: Reader, _command: Command) -> Refused:
    (recheck_in,) = reader.numbers(1)
    reason: Any = reader.text()
    return Refused(reason, _holders(reader, reader.count()), recheck_in)


def _renewed(reader: Reader, _command: Command) -> Renewed:
    return Renewed(*reader.numbers(1))


def _lost(reader: Reader, _command: Command) -> Lost:
    reason: Any = reader.text()
    return Lost(reason, reader.text())


def _revoked(reader: Reader, _command: Command) -> Revoked:
    count, ends_in = reader.numbers(2)
    return Revoked(int(count), ends_in)


def _status(reader: Reader, command: Command) -> Status:
    capacity, waiting, last, holding, used = map(int, reader.numbers(5))
    holders, waiters = reader.count(), reader.count()
    return Status(
        command.key,
        capacity,
        _holders(reader, holders),
        tuple(_waiter(reader) for _ in range(waiters)),
        waiting,
        last,
        holding,
        used,
    )


def _failed(reader: Reader, _command: Command) -> Failed:
    reason: Any = reader.text()
    return Failed(reason, reader.text())


def _holders(reader: Reader, count: int) -> tuple[Holder, ...]:
    return tuple(_holder(reader) for _ in range(count))


def _holder(reader: Reader) -> Holder:
    token, units, held_for, expires_in = reader.numbers(4)
    lease, owner, slots = reader.text(), reader.text(), reader.slots()
    note, state = reader.text(), reader.text()
    known: Any = state
    return Holder(
        lease,
        owner,
        int(token),
        int(units),
        slots,
        held_for,
        expires_in,
        note,
        known,
        reader.text(),
        reader.text(),
    )


def _waiter(reader: Reader) -> Waiter:
    units, priority, waited = reader.numbers(3)
    lease, owner, note = reader.text(), reader.text(), reader.text()
    address, trace = reader.text(), reader.text()
    return Waiter(lease, owner, int(units), int(priority), waited, note, address, trace)


_SLOT_0 = (0,)
_RELEASED = Released()
_PLAIN: dict[bytes, Reply] = {b"g": Gone(), b"r": _RELEASED, b"u": Unknown()}

_READ: dict[bytes, Callable[[Reader, Command], Reply]] = {
    b"Q": _queued,
    b"R": _refused,
    b"N": _renewed,
    b"L": _lost,
    b"V": _revoked,
    b"S": _status,
    b"F": _failed,
}
