"""What the driver writes down besides what workers see: who died, and whose hold an operator ended.

They are events of the history like others, told apart by what stands in `resource`. Plain programs write
another of the kind.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dibs.testing.history import HistoryEvent as Event

KILLED = "killed"
"""That process is dead: what it did, it does no more."""
CLEARED = "cleared"
"""An operator freed these slots of a key: whoever had them under a token up to this one has them no more."""
AGAIN = "again"
"""Of a grant: it is one that was told before, and is relied on again after a while."""
STRUCK = "struck"
"""That holder (a workflow ID, in `lease`) was terminated, cancelled, reset, or ran out of time."""
LOST = "lost"
"""A plain program was told that its lease is lost, and why: that stands in `lease`."""


class LeaseName(NamedTuple):
    """What tells the leases of a history apart; those of plain programs have only the first part."""

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
    """The way back."""
    workflow, *rest = text.split("|")
    if not rest:
        return LeaseName(workflow)
    run, turn, permit_run, token = rest
    return LeaseName(workflow, run, int(turn), permit_run, int(token))


def killed(at: float, process: int) -> Event:
    return Event(at, "disturbed", process=process, resource=KILLED)


def cleared(at: float, key: str, slots: tuple[int, ...], token: int) -> Event:
    """No slots are all slots."""
    return Event(at, "disturbed", key, token=token, slots=slots, resource=CLEARED)


def struck(at: float, workflow: str) -> Event:
    return Event(at, "disturbed", lease=workflow, resource=STRUCK)


def lost(at: float, key: bytes, reason: str, process: int) -> Event:
    return Event(at, "asked", key.decode(), lease=reason, process=process, resource=LOST)


def slot_key(key: str, slot: int) -> str:
    """A key of its own for one slot, where tokens are the slot's."""
    return f"{key}/{slot}"


KILLED_HOLDING, KILLED_WAITING = "killed while holding", "killed while waiting"


def befell(events: Iterable[Event]) -> Counter[str]:
    """How their turns ended. `events` are in the order of time."""
    told = Counter[str]()
    waiting: Counter[tuple[int, str]] = Counter()
    held: dict[str, int] = {}
    for event in events:
        caller = event.process, event.key
        match event.what:
            case "asked" if event.resource == LOST:
                told[f"lost ({event.lease})"] += 1
            case "asked" if not event.resource:
                waiting[caller] += 1
            case "gave_up":
                waiting[caller] -= 1
                told["gave up"] += 1
            case "granted" if waiting[caller]:
                waiting[caller] -= 1
                held[event.lease] = event.process
            case "releasing" if event.lease in held:
                told["released"] += 1
                del held[event.lease]
            case "disturbed" if event.resource == KILLED:
                told[KILLED_HOLDING] += _forget(event.process, held)
                told[KILLED_WAITING] += sum(
                    many for (process, _), many in waiting.items() if process == event.process
                )
            case _:
                pass
    return +told


def _forget(process: int, held: dict[str, int]) -> int:
    """How many it held."""
    of_it = [lease for lease, holder in held.items() if holder == process]
    for lease in of_it:
        del held[lease]
    return len(of_it)


class Watch:
    """Who holds at this moment, and how many cycles are done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self._open: set[str] = set()
        self._used: set[str] = set()

    @property
    def cycles(self) -> int:
        """Leases that were granted and used to the end."""
        return len(self._used)

    @property
    def holders(self) -> list[str]:
        """Workflow IDs of those whose work has begun and not ended. The dead stay until `forget`."""
        return sorted({lease_name(lease).workflow for lease in self._open})

    @property
    def programs(self) -> set[int]:
        """Process ids of plain programs that hold something, and of those that died with it."""
        names = [lease_name(lease) for lease in self._open]
        return {int(name.workflow.partition("-")[0]) for name in names if not name.run}

    def forget(self, workflow: str) -> None:
        """It has ended, however."""
        self._open = {each for each in self._open if lease_name(each).workflow != workflow}

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
                self._open.add(event["lease"])
            case "releasing":
                self._open.discard(event["lease"])
                self._used.add(event["lease"])
