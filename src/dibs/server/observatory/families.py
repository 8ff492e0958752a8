"""Names that belong together, and how long is waited and held there: so contention has a place.

A family is a first directory; of a name in no directory it is the name with its digits folded, so that
`report-17` and `report-18` are one.
"""

import re
from collections.abc import Iterator

from dibs.server.observatory.histogram import Histogram

MOST = 1_000
"""So many families are told apart; what comes later is counted together."""

OTHERS = b""
"""The name of all that came later."""

_DIGITS = re.compile(rb"[0-9]+")


def family_of(name: bytes) -> bytes:
    """The family that a name belongs to."""
    directory, slash, _ = name.partition(b"/")
    return directory + slash if slash else _DIGITS.sub(b"#", name)


class Family:
    """What has happened in one, of one kind."""

    __slots__ = ("closest", "expired", "grants", "held", "kind", "name", "refused", "ttl", "waited")

    def __init__(self, kind: str, name: bytes) -> None:
        self.kind = kind
        self.name = name
        self.grants = 0
        self.refused = 0
        self.expired = 0
        self.waited = Histogram()
        self.held = Histogram()
        self.ttl = 0.0
        """Of the latest grant whose ttl is known, in seconds; 0 before that."""
        self.closest = 0.0
        """The greatest part of its ttl that a lease has gone without a renewal, or before its release."""

    def stretched(self, seconds: float, ttl: float) -> None:
        """A lease was renewed, or released, so long after it was renewed before."""
        if ttl > 0:
            self.closest = max(self.closest, seconds / ttl)


class Families:
    """All of them."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._each: dict[tuple[bytes, bytes], Family] = {}

    def of(self, key: bytes) -> Family:
        """The family that a key belongs to."""
        kind, _, name = key.partition(b":")
        index = kind, family_of(name)
        found = self._each.get(index)
        if found is None:
            if len(self._each) >= self._most:
                index = kind, OTHERS
            found = self._each.setdefault(index, Family(kind.decode("ascii", "replace"), index[1]))
        return found

    def __iter__(self) -> Iterator[Family]:
        return iter(list(self._each.values()))
