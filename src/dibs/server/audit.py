"""The audit log: who did what, when, to what. Lines never change; the oldest are removed after a time.

It contains no lease ids, keys or tokens: a lease is named by its fingerprint, a key by its id.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal

import msgspec

from dibs.clock import Clock, SystemClock
from dibs.core.names import shown
from dibs.errors import DibsError
from dibs.server.auth.policy import Principal, Scope
from dibs.server.background import repeat
from dibs.server.records.port import LogEntry, Records
from dibs.stores.http.names import decoded, encoded

log: logging.Logger = logging.getLogger("dibs.server")

type AuditAction = Literal[
    "key created",
    "key revoked",
    "force release",
    "restriction set",
    "restriction deleted",
    "move ordered",
    "move deadline",
    "move finished",
    "placements changed",
    "signed in",
    "signed out",
    "denied",
]
"""Actions in the audit log."""

DENIED_EACH, DENIED_ALL, WINDOW = 10, 100, 60.0
"""Refusals that are written per key, and in all, within `WINDOW` seconds. Others are only counted."""

FORCED_EACH = 600
"""Forced releases of one key within `WINDOW`; more are refused, as each writes a line."""

MAX_DETAIL = 16384
"""Bytes of a line, with its details. Longer details are left out."""

KEEP = 90 * 86400.0
"""Seconds that a line is kept."""

MOST = 100_000
"""Lines that are kept."""

SHARE = 10
"""Each key is sure of a tenth of the lines. If there are too many, lines beyond that are removed first."""

TRIM_FIRST, TRIM_EVERY = 5.0, 600.0
"""Seconds from the start to the first removal of old lines, and between two removals."""

TRIMMED = 500
"""Lines that are read and removed at a time."""

UNDER_WAY = 16
"""Refusals that wait to be written while the records are slow. Further ones are only counted."""


class AuditLine(msgspec.Struct, omit_defaults=True):
    """A line of the audit."""

    at: float
    """Seconds since 1970, by the clock of the server that wrote it."""
    what: str
    key: str
    """The id of the key that did it; empty for the service itself and for commands on its records."""
    who: str
    """That key's name, for people."""
    about: str = ""
    """The name or the directory that it was done to, in base64."""
    detail: dict[str, Any] = msgspec.field(default_factory=dict)


class NumberedLine(AuditLine, omit_defaults=True):
    """A line that was read."""

    number: int = 0
    name: str = ""
    """`about` as printable text."""


class AuditPage(msgspec.Struct):
    """Some lines, newest first. `next` is the `before` of the next page; None after the last."""

    entries: list[NumberedLine]
    next: int | None = None


class Audit:
    """The audit log of one service. Its records must be open."""

    def __init__(
        self,
        records: Records,
        clock: Clock | None = None,
        *,
        keep: float = KEEP,
        most: int = MOST,
    ) -> None:
        self._records = records
        self._clock = clock or SystemClock()
        self._keep = keep
        self._most = most
        self._denied = _Rate(DENIED_EACH, DENIED_ALL)
        self._forced = _Rate(FORCED_EACH, FORCED_EACH * 10)
        self._left_out = 0
        self._refusals: asyncio.Queue[tuple[Principal, str, bytes]] = asyncio.Queue(UNDER_WAY)

    async def work(self) -> None:
        """Remove old lines, and write the refusals of `deny`, for ever."""
        await asyncio.gather(
            repeat(self.trim, TRIM_EVERY, "the audit can't be trimmed", TRIM_FIRST),
            repeat(self._write_refusal, 0, "a refusal could not be written to the audit"),
        )

    def may_force(self, who: Principal) -> bool:
        """Whether a key may force a release now. False if it has done so too often lately."""
        return self._forced.may(who.key_id, self._clock.now())

    async def trim(self) -> None:
        """Remove lines that are too old, or too many. Raises `BackendUnavailable`."""
        since = self._clock.stamp() / 1e6 - self._keep
        while lines := await self._records.oldest(TRIMMED):
            over = list(takewhile(lambda each: 0 < _read(each).at < since, lines))
            await self._records.forget(over)
            if len(over) < len(lines):
                break
        newest = await self._records.log(None, 1)
        if lines and newest and newest[0].number - lines[0].number >= self._most:
            await self._trim_to_most()

    async def _trim_to_most(self) -> None:
        """Remove the oldest lines of keys with more than their share, then the oldest lines of all."""
        pages, counts, before = list[int | None](), Counter[str](), None
        while lines := await self._records.log(before, TRIMMED):
            pages.append(before)
            counts.update(_read(each).key for each in lines)
            before = lines[-1].number
        over = counts.total() - self._most
        for share in (self._most // SHARE, 0):
            for before in reversed(pages):
                gone = list[LogEntry]()
                for each in reversed(await self._records.log(before, TRIMMED) if over else ()):
                    key = _read(each).key
                    if len(gone) < over and counts[key] > share and (key or not share):
                        counts[key] -= 1
                        gone.append(each)
                over -= len(gone)
                await self._records.forget(gone)

    async def write(
        self,
        who: Principal,
        what: AuditAction,
        about: bytes = b"",
        detail: dict[str, Any] | None = None,
    ) -> int:
        """Add a line. Raises `BackendUnavailable` if the records cannot be reached.

        Call it before an action that must not happen without a line.
        """
        at = self._clock.stamp() / 1e6
        line = AuditLine(at, what, who.key_id, who.name, encoded(about), detail or {})
        value = msgspec.json.encode(line)
        if len(value) > MAX_DETAIL:
            line.detail = {"left_out": "it was too long"}
            value = msgspec.json.encode(line)
        return await self._records.append(value)

    def deny(self, who: Principal, tried: str, about: bytes = b"") -> bool:
        """Have `work` write a line for a refused request, so that nobody waits for slow records.

        Returns False if it is only counted: too many wait, or were written lately.
        """
        may = not self._refusals.full() and self._denied.may(who.key_id, self._clock.now())
        if may:
            self._refusals.put_nowait((who, tried, about))
        else:
            self._left_out += 1
        return may

    async def _write_refusal(self) -> None:
        who, tried, about = await self._refusals.get()
        left_out, self._left_out = self._left_out, 0
        detail: dict[str, Any] = {"tried": tried} | ({"left_out": left_out} if left_out else {})
        try:
            await self.write(who, "denied", about, detail)
        except DibsError:
            self._left_out += left_out + 1
            raise

    async def page(
        self, reader: Principal, before: int | None = None, limit: int = 100
    ) -> AuditPage:
        """The newest lines before a number that the reader may see.

        An administrator of a directory sees only lines about it. So a page can be empty and not the last.
        """
        found = await self._records.log(before, limit)
        entries = [line for entry in found if _may_see(reader, line := _read(entry))]
        return AuditPage(entries, found[-1].number if len(found) == limit else None)


class _Rate:
    """How often each key has done something within `WINDOW`."""

    def __init__(self, each: int, all_: int) -> None:
        self._each = each
        self._all = all_
        self._times: dict[str, deque[float]] = {}

    def may(self, key_id: str, now: float) -> bool:
        """Whether that key may do it now; then it counts."""
        for times in self._times.values():
            while times and times[0] <= now - WINDOW:
                times.popleft()
        self._times = {each: times for each, times in self._times.items() if times}
        own = self._times.setdefault(key_id, deque())
        if len(own) >= self._each or sum(map(len, self._times.values())) >= self._all:
            return False
        own.append(now)
        return True


def _may_see(reader: Principal, line: NumberedLine) -> bool:
    return reader.may_everywhere(Scope.ADMIN) or (
        bool(line.about) and reader.may(Scope.ADMIN, decoded(line.about))
    )


def _read(entry: LogEntry) -> NumberedLine:
    """Read a line. An invalid one becomes `unreadable`."""
    try:
        line = msgspec.json.decode(entry.value, type=NumberedLine)
        line.name = shown(decoded(line.about))
    except ValueError:
        line = NumberedLine(0.0, "unreadable", "", "")
    line.number = entry.number
    return line


def common_directory(prefixes: Sequence[bytes]) -> bytes:
    """The innermost directory that contains all of these. Audit lines about a key name it."""
    first, last = min(prefixes), max(prefixes)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    shared = first if length is None else first[:length]
    return shared[: shared.rfind(b"/") + 1]
