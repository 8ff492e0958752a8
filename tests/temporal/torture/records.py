"""What is recorded: leases as activities see them, and who was killed.

Events of the driver are told apart by `resource`. Plain programs record another of the kind.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dibs.clock import BootClock
from dibs.testing.history import HistoryEvent as Event
from dibs.testing.recorder import RecordedLease, Recorder

KILLED = "killed"
"""That process is dead."""
AGAIN = "again"
"""Of a grant: its lease was recorded before, and is relied on again after a while."""
LOST = "lost"
"""A plain program has lost its lease, for the reason in `lease`."""

_CLOCK = BootClock()


def boot_time(wall: float) -> float:
    """A time since 1970 on the machine's boot clock, by the wall's of this moment."""
    return _CLOCK.now() + wall - _CLOCK.stamp() / 1e6


class LeaseName(NamedTuple):
    """What tells leases apart in a history; those of plain programs have only the first part."""

    workflow: str
    run: str = ""
    turn: int = 0
    permit_run: str = ""
    token: int = 0

    @property
    def by_broker(self) -> bool:
        """Its permit is no workflow of its own."""
        return "-" not in self.permit_run

    def __str__(self) -> str:
        return "|".join(map(str, self))


def lease_name(text: str) -> LeaseName:
    workflow, *rest = text.split("|")
    if not rest:
        return LeaseName(workflow)
    run, turn, permit_run, token = rest
    return LeaseName(workflow, run, int(turn), permit_run, int(token))


@dataclass(eq=False, slots=True, weakref_slot=True)
class Claim:
    """A permit, as an activity knows it: what a recorder and a fenced file want of a lease."""

    name: str
    key: bytes
    token: int
    slots: tuple[int, ...]
    until: float
    """On the boot clock."""

    @property
    def remaining(self) -> float:
        return max(0.0, self.until - _CLOCK.now())


class Diary(Recorder):
    """A recorder that names leases as their holders do: several processes see the same lease."""

    def name_of(self, lease: RecordedLease) -> str:
        assert isinstance(lease, Claim)
        return lease.name


def killed(at: float, process: int) -> Event:
    return Event(at, "disturbed", process=process, resource=KILLED)


def lost(at: float, key: bytes, reason: str, process: int) -> Event:
    return Event(at, "asked", key.decode(), lease=reason, process=process, resource=LOST)


class Watch:
    """Follows the histories: who holds at this moment, and how many cycles are done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self._open: set[LeaseName] = set()
        self._used: set[LeaseName] = set()

    @property
    def cycles(self) -> int:
        """Leases that were granted and used to the end."""
        return len(self._used)

    @property
    def holders(self) -> list[str]:
        """Workflow IDs of those whose work has begun and not ended. The dead stay until `forget`."""
        return sorted({lease.workflow for lease in self._open})

    @property
    def programs(self) -> set[int]:
        """Process ids of plain programs that hold something, and of those that died with it."""
        return {int(name.workflow.partition("-")[0]) for name in self._open if not name.run}

    def forget(self, workflow: str) -> None:
        """It has ended, however."""
        self._open = {each for each in self._open if each.workflow != workflow}

    def look(self) -> None:
        """Read on."""
        for path in self._folder.glob("history-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read[path] += len(line)
                    self._take(json.loads(line))

    def _take(self, event: dict[str, str]) -> None:
        match event["what"]:
            case "granted" | "renewed":
                self._open.add(lease_name(event["lease"]))
            case "releasing":
                self._open.discard(lease_name(event["lease"]))
                self._used.add(lease_name(event["lease"]))
            case _:
                pass
