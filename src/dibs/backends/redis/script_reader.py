"""Reading the script's structs from front to back."""

from struct import Struct, unpack_from

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


_SLOT_0 = b"\0\0\0\0"


def slots_of(raw: bytes) -> tuple[int, ...]:
    """Slots are four bytes each."""
    if raw == _SLOT_0:
        return (0,)
    return unpack_from(f"<{len(raw) // 4}I", raw)
