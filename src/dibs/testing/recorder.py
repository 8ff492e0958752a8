"""Records what one process sees, so that it survives the process: see `history`."""

import os
from itertools import count
from types import TracebackType
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary

from dibs.clock import BootClock
from dibs.testing.history import HistoryEvent, What, line


class RecordedLease(Protocol):
    """The part of a lease that a recorder reads."""

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

    Threads can share one. After a fork, the child makes its own, on another file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._clock = BootClock()
        self._process = os.getpid()
        self._names: WeakKeyDictionary[RecordedLease, str] = WeakKeyDictionary()
        self._numbers = count(1)

    def now(self) -> float:
        """The time by which events are recorded."""
        return self._clock.now()

    def record(self, event: HistoryEvent) -> None:
        """Append an event as it is."""
        os.write(self._file, line(event).encode())

    def asked(self, *keys: bytes) -> float:
        """Record that a call that wants units of all `keys` begins; returns the time, for `granted`."""
        at = self.now()
        for key in keys:
            self._note("asked", key, at=at)
        return at

    def gave_up(self, key: bytes, invoked: float) -> None:
        """Record that the call that began at `invoked` ended without a grant."""
        self._note("gave_up", key, invoked=invoked)

    def refused(self, key: bytes, invoked: float) -> None:
        """Record that the try that began at `invoked` was refused."""
        self._note("refused", key, invoked=invoked)

    def granted(
        self,
        lease: RecordedLease,
        invoked: float,
        *,
        units: int = 1,
        capacity: int = 1,
        min_hold: float = 0.0,
    ) -> None:
        """Record that the call that began at `invoked` has returned `lease`."""
        at = self.now()  # before what remains: a pause in between then only shortens the hold
        until = at + lease.remaining
        self._of(
            lease,
            "granted",
            at=at,
            invoked=invoked,
            until=until,
            units=units,
            capacity=capacity,
            slots=tuple(lease.slots),
            min_hold=min_hold,
        )

    def resized(self, lease: RecordedLease, invoked: float, *, units: int, capacity: int) -> None:
        """Record that the call that began at `invoked` has changed the units of a lease."""
        slots = tuple(lease.slots)
        self._of(lease, "resized", invoked=invoked, units=units, capacity=capacity, slots=slots)

    def shrinking(self, lease: RecordedLease, *, units: int, capacity: int) -> None:
        """Record, before the call, that the holder relies on fewer units from now on."""
        self._of(lease, "shrinking", units=units, capacity=capacity)

    def renewed(self, lease: RecordedLease) -> None:
        """Record the deadline that a lease has by now."""
        at = self.now()
        remaining = lease.remaining
        if remaining > 0:
            self._of(lease, "renewed", at=at, until=at + remaining)

    def releasing(self, lease: RecordedLease) -> None:
        """Record that the holder is about to release."""
        self._of(lease, "releasing")

    def believed(self, lease: RecordedLease, at: float) -> None:
        """Record that a check that began at `at` found the lease held."""
        self._of(lease, "believed", at=at)

    def wrote(self, resource: str, lease: RecordedLease, at: float) -> None:
        """Record that a resource accepted a write at `at`, a time at which nobody else could write."""
        self._of(lease, "wrote", at=at, resource=resource, slots=tuple(lease.slots))

    def disturbed(self, process: int) -> None:
        """Record that a process was killed, paused or resumed."""
        self.record(HistoryEvent(self.now(), "disturbed", process=process))

    def name_of(self, lease: RecordedLease) -> str:
        """The name of a lease in the history. Override it where several processes see one lease."""
        name = self._names.get(lease)
        if name is None:
            name = self._names[lease] = f"{self._process}-{next(self._numbers)}"
        return name

    def _of(self, lease: RecordedLease, what: What, **fields: Any) -> None:
        self._note(what, lease.key, lease=self.name_of(lease), token=lease.token, **fields)

    def _note(self, what: What, key: bytes, *, at: float | None = None, **fields: Any) -> None:
        text = key.decode("utf-8", "backslashreplace")
        when = self.now() if at is None else at
        self.record(HistoryEvent(when, what, text, process=self._process, **fields))

    def close(self) -> None:
        """Close the file. Everything that was recorded is in it already."""
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
