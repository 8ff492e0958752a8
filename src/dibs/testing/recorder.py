"""Writes down what one process sees, so that it survives that process: see `history`."""

import os
from itertools import count
from math import inf
from types import TracebackType
from typing import Protocol, Self
from weakref import WeakKeyDictionary

from dibs.clock import BootClock
from dibs.testing.history import Event, What, line


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
        os.write(self._file, line(event).encode())

    def asked(self, *keys: bytes) -> float:
        """A call that wants units of all `keys` at once begins; returns the time, for `granted`."""
        at = self.now()
        for key in keys:
            self.record(Event(at, "asked", _text(key), process=self._process))
        return at

    def gave_up(self, key: bytes, invoked: float) -> None:
        """The call that began at `invoked` ended without a grant."""
        self._note("gave_up", key, invoked=invoked)

    def refused(self, key: bytes, invoked: float) -> None:
        """The try that began at `invoked` found it taken, or closed."""
        self._note("refused", key, invoked=invoked)

    def granted(
        self,
        lease: Held,
        invoked: float,
        *,
        units: int = 1,
        capacity: int = 1,
        min_hold: float = 0.0,
    ) -> None:
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
                min_hold=min_hold,
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

    def shrinking(self, lease: Held, *, units: int, capacity: int) -> None:
        """The holder is about to ask for fewer units: from now on it relies on no more."""
        event = Event(self.now(), "shrinking", _text(lease.key), self._name(lease), lease.token)
        self.record(event._replace(units=units, capacity=capacity, process=self._process))

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


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
