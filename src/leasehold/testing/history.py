"""What happened, as those saw it who took part: one file for each process, merged afterwards.

Every event is one line of JSON, written with one system call, so a process that is killed loses at
most the line it was about to write. Times are the machine's boot clock: all processes of one host
read the same one, so their events compare directly. A process whose clocks are faked must not
record.
"""

import json
import os
from collections.abc import Iterable, Iterator
from itertools import count
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self
from weakref import WeakKeyDictionary

from leasehold.clock import BootClock

type What = Literal[
    "asked",
    "granted",
    "renewed",
    "resized",
    "releasing",
    "gave_up",
    "believed",
    "wrote",
    "disturbed",
]


class Event(NamedTuple):
    """Something that one participant saw or did.

    | what | means |
    |---|---|
    | asked | a call that wants units began (at `at`) |
    | granted | it returned (`invoked`: when it began); `until`: the holder's deadline |
    | renewed | a renewal was confirmed; `until`: the deadline that follows from it |
    | resized | the lease has `units` now; if these are more, also a new `token` |
    | releasing | the holder gives up its hold, whatever becomes of the message |
    | gave_up | a call that asked ended without a grant |
    | believed | the holder was told, at `at` or later, that it still holds |
    | wrote | the resource `resource` accepted a write under `token` |
    | disturbed | somebody was killed, paused or resumed: waiting (for `key`) may take longer |

    An outcome that nobody saw is recorded by nobody: an acquire without an answer is no hold, a
    renewal without one extends nothing.
    """

    at: float
    what: What
    key: str = ""
    lease: str = ""
    """Tells the leases of one history apart; never a lease's secret id."""
    token: int = 0
    invoked: float = -inf
    until: float = inf
    units: int = 1
    capacity: int = 1
    slots: tuple[int, ...] = ()
    resource: str = ""
    process: int = 0

    def __str__(self) -> str:
        about = [f"{self.at:.6f} pid {self.process} {self.what}"]
        for field in ("key", "lease", "token", "invoked", "until", "units", "slots", "resource"):
            value = getattr(self, field)
            if value != Event._field_defaults[field]:
                about.append(f"{field}={value!r}")
        return " ".join(about)


class Held(Protocol):
    """What a recorder reads of a lease."""

    @property
    def key(self) -> bytes: ...
    @property
    def token(self) -> int: ...
    @property
    def slots(self) -> tuple[int, ...]: ...
    @property
    def remaining(self) -> float: ...


class Recorder:
    """Appends this process's events to one file.

    Threads may share one. After a fork the child makes its own, on another file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._clock = BootClock()
        self._process = os.getpid()
        self._names: WeakKeyDictionary[Held, str] = WeakKeyDictionary()
        self._numbers = count(1)

    def now(self) -> float:
        """The time by which events are recorded."""
        return self._clock.now()

    def record(self, event: Event) -> None:
        """Append an event as it stands."""
        os.write(self._file, _line(event).encode())

    def asked(self, key: bytes) -> float:
        """A call that wants units of `key` begins; returns the time, for `granted`."""
        at = self.now()
        self.record(Event(at, "asked", _text(key), process=self._process))
        return at

    def gave_up(self, key: bytes, invoked: float) -> None:
        """The call that began at `invoked` ended without a grant."""
        self._note("gave_up", key, invoked=invoked)

    def granted(self, lease: Held, invoked: float, *, units: int = 1, capacity: int = 1) -> None:
        """The call that began at `invoked` has returned `lease`."""
        at = self.now()  # before what remains: a pause in between then only shortens the hold
        remaining = lease.remaining
        self.record(
            Event(
                at,
                "granted",
                _text(lease.key),
                self._name(lease),
                lease.token,
                invoked,
                at + remaining,
                units,
                capacity,
                tuple(lease.slots),
                process=self._process,
            )
        )

    def resized(self, lease: Held, invoked: float, *, units: int, capacity: int) -> None:
        """The call that began at `invoked` has changed how many units a lease has."""
        self.record(
            Event(
                self.now(),
                "resized",
                _text(lease.key),
                self._name(lease),
                lease.token,
                invoked,
                units=units,
                capacity=capacity,
                slots=tuple(lease.slots),
                process=self._process,
            )
        )

    def renewed(self, lease: Held) -> None:
        """Note the deadline that a lease has by now."""
        at = self.now()
        remaining = lease.remaining
        if remaining > 0:
            self._note("renewed", lease.key, self._name(lease), until=at + remaining)

    def releasing(self, lease: Held) -> None:
        """The holder is about to release."""
        self._note("releasing", lease.key, self._name(lease), token=lease.token)

    def believed(self, lease: Held, at: float) -> None:
        """A check that began at `at` told the holder that it still holds."""
        self.record(
            Event(at, "believed", _text(lease.key), self._name(lease), process=self._process)
        )

    def wrote(self, resource: str, lease: Held, at: float) -> None:
        """The resource accepted a write at `at`, a time taken while nobody else could write."""
        event = Event(at, "wrote", _text(lease.key), self._name(lease), lease.token)
        self.record(
            event._replace(resource=resource, slots=tuple(lease.slots), process=self._process)
        )

    def disturbed(self, process: int) -> None:
        """A process was killed, paused or resumed."""
        self.record(Event(self.now(), "disturbed", process=process))

    def _note(
        self,
        what: What,
        key: bytes,
        lease: str = "",
        *,
        token: int = 0,
        invoked: float = -inf,
        until: float = inf,
    ) -> None:
        at = self.now()
        self.record(
            Event(at, what, _text(key), lease, token, invoked, until, process=self._process)
        )

    def _name(self, lease: Held) -> str:
        name = self._names.get(lease)
        if name is None:
            name = self._names[lease] = f"{self._process}-{next(self._numbers)}"
        return name

    def close(self) -> None:
        """Close the file; what was recorded is in it already."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read(*paths: str | os.PathLike[str]) -> list[Event]:
    """Merge the files of all processes into one history, in the order of time.

    A line that breaks off at the end of a file is left out: its writer was killed. Raises
    `ValueError` for any other line that is none of ours.
    """
    return merge(event for path in paths for event in _events(Path(path)))


def merge(events: Iterable[Event]) -> list[Event]:
    """Events in the order of time; those of one moment keep their order."""
    return sorted(events, key=lambda event: event.at)


def _events(path: Path) -> Iterator[Event]:
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield _parsed(line, path)


def _line(event: Event) -> str:
    """Only what differs from the defaults, so that lines stay short."""
    defaults = Event._field_defaults
    said = {k: v for k, v in event._asdict().items() if k not in defaults or v != defaults[k]}
    return json.dumps(said, separators=(",", ":")) + "\n"


def _parsed(line: str, path: Path) -> Event:
    try:
        said = json.loads(line)
        if "slots" in said:
            said["slots"] = tuple(said["slots"])
        return Event(**said)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds a line that is no event: {line!r}") from error


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
