"""Events as the participants saw them: one file for each process, merged afterwards.

Every event is one line of JSON, written with one system call, so a process that is killed loses at
most the line it was about to write. Times are the machine's boot clock: all processes of one host
read the same one, so their events compare directly. A process whose clocks are faked must not
record.
"""

import json
import os
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

type What = Literal[
    "asked",
    "granted",
    "renewed",
    "resized",
    "shrinking",
    "releasing",
    "gave_up",
    "refused",
    "believed",
    "wrote",
    "disturbed",
]


class HistoryEvent(NamedTuple):
    """Something that one participant saw or did.

    | what | means |
    |---|---|
    | asked | a call that wants units began (at `at`) |
    | granted | it returned (`invoked`: when it began); `until`: the holder's deadline |
    | renewed | a renewal was confirmed; `until`: the deadline that follows from it |
    | resized | the lease has `units` now; if these are more, also a new `token` |
    | shrinking | the holder goes on with `units` only, whatever becomes of the message |
    | releasing | the holder gives up its hold, whatever becomes of the message |
    | gave_up | a call that asked ended without a grant |
    | refused | one try (begun at `invoked`) found that it may not be had at this moment |
    | believed | a check, at `at` or later, found the lease still held |
    | wrote | the resource `resource` accepted a write under `token` |
    | disturbed | a process was killed, paused or resumed: waiting (for `key`) may take longer |

    An acquire without an answer counts as no hold. A renewal without one extends nothing.
    """

    at: float
    what: What
    key: str = ""
    lease: str = ""
    """Distinguishes the leases of one history. Never a lease's secret id."""
    token: int = 0
    invoked: float = -inf
    until: float = inf
    units: int = 1
    capacity: int = 1
    slots: tuple[int, ...] = ()
    resource: str = ""
    process: int = 0
    min_hold: float = 0.0
    """Seconds after the start in which no other owner may be granted the key."""

    def __str__(self) -> str:
        about = [f"{self.at:.6f} pid {self.process} {self.what}"]
        for field in ("key", "lease", "token", "invoked", "until", "units", "slots", "resource"):
            value = getattr(self, field)
            if value != HistoryEvent._field_defaults[field]:
                about.append(f"{field}={value!r}")
        return " ".join(about)


def read(*paths: str | os.PathLike[str]) -> list[HistoryEvent]:
    """Merge the files of all processes into one history, in the order of time.

    A line that breaks off at the end of a file is left out: its writer was killed. Raises
    `ValueError` for any other line that is none of ours.
    """
    return merge(event for path in paths for event in _events(Path(path)))


def merge(events: Iterable[HistoryEvent]) -> list[HistoryEvent]:
    """Events in the order of time; those of one moment keep their order."""
    return sorted(events, key=lambda event: event.at)


def _events(path: Path) -> Iterator[HistoryEvent]:
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield _parsed(line, path)


def line(event: HistoryEvent) -> str:
    """Encode an event, without fields that have their defaults."""
    defaults = HistoryEvent._field_defaults
    fields = {k: v for k, v in event._asdict().items() if k not in defaults or v != defaults[k]}
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _parsed(line: str, path: Path) -> HistoryEvent:
    try:
        fields = json.loads(line)
        if "slots" in fields:
            fields["slots"] = tuple(fields["slots"])
        return HistoryEvent(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds a line that is no event: {line!r}") from error
